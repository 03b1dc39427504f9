"""Displays: computed once from plain numbers, drawn when asked."""

from quadlin.explain.contribution_display import ContributionDisplay
from quadlin.explain.displays import (
    ConvergenceDisplay,
    LevelDisplay,
    PhaseTransitionDisplay,
    ScalingDisplay,
)
from quadlin.explain.interaction_display import InteractionDisplay, SpectrumDisplay
from quadlin.explain.pair_display import PairPathDisplay
from quadlin.explain.surface_display import PairDisplay

__all__ = [
    "ContributionDisplay",
    "ConvergenceDisplay",
    "InteractionDisplay",
    "LevelDisplay",
    "PairDisplay",
    "PairPathDisplay",
    "PhaseTransitionDisplay",
    "ScalingDisplay",
    "SpectrumDisplay",
]
