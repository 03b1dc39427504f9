"""Displays: computed once from plain numbers, drawn when asked."""

from quadlin.explain.displays import (
    ConvergenceDisplay,
    LevelDisplay,
    PhaseTransitionDisplay,
    ScalingDisplay,
)

__all__ = [
    "ConvergenceDisplay",
    "LevelDisplay",
    "PhaseTransitionDisplay",
    "ScalingDisplay",
]
