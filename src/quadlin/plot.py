"""Displays: computed once from plain numbers, drawn when asked."""

from quadlin.explain.displays import (
    ConvergenceDisplay,
    LevelDisplay,
    PhaseTransitionDisplay,
    ScalingDisplay,
)
from quadlin.explain.pair_display import PairPathDisplay

__all__ = [
    "ConvergenceDisplay",
    "LevelDisplay",
    "PairPathDisplay",
    "PhaseTransitionDisplay",
    "ScalingDisplay",
]
