"""Displays: computed once from plain numbers, drawn when asked."""

from quadlin.explain.displays import (
    ContributionDisplay,
    InteractionDisplay,
    PairDisplay,
    SpectrumDisplay,
)

__all__ = ["ContributionDisplay", "InteractionDisplay", "PairDisplay", "SpectrumDisplay"]
