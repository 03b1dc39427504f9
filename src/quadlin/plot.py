"""Displays: computed once from plain numbers, drawn when asked."""

from quadlin.explain.contribution_display import ContributionDisplay
from quadlin.explain.interaction_display import InteractionDisplay, SpectrumDisplay
from quadlin.explain.surface_display import PairDisplay

__all__ = ["ContributionDisplay", "InteractionDisplay", "PairDisplay", "SpectrumDisplay"]
