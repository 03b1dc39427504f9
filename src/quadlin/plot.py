"""Displays: computed once from what was fitted, drawn when asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np


@dataclass
class ConvergenceDisplay:
    """The training loss of one or more fits against the passes over the rows.

    Parameters
    ----------
    curves : mapping of str to (passes, loss)
        One curve a fit; the loss is relative to that of the constant model.

    Examples
    --------
    >>> from quadlin import SecondOrderRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(1000, 5, rank=1, random_state=0)
    >>> model = SecondOrderRegressor(rank=1, random_state=0).fit(data.X, data.y)
    >>> display = ConvergenceDisplay.from_estimators({"guarded": model})
    >>> bool(display.curves["guarded"][1][-1] < 1e-12)
    True
    """

    curves: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ax_: Any = None
    figure_: Any = None

    @classmethod
    def from_estimators(cls, estimators: Mapping[str, Any]) -> Self:
        """Take the histories of fitted estimators, by name."""

        def curve(history: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
            first = history[0].loss or 1.0
            passes = np.array([record.passes for record in history])
            return passes, np.array([record.loss for record in history]) / first

        return cls({name: curve(e.history_) for name, e in estimators.items()})

    def plot(self, ax: Any = None) -> Self:
        """Draw the curves on a logarithmic scale."""
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:  # pragma: no cover
            raise ImportError('Plots need matplotlib: pip install "quadlin[plot]".') from error
        if ax is None:
            _, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        # Markers as well as colours: legible in print and to the colour-blind.
        colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
        for number, (name, (passes, loss)) in enumerate(self.curves.items()):
            ax.semilogy(
                passes,
                np.maximum(loss, np.finfo(float).tiny),
                label=name,
                color=colours[number % len(colours)],
                marker="osD^v<"[number % 6],
                markersize=4,
            )
        ax.set_xlabel("passes over the rows")
        ax.set_ylabel("training loss / loss of the constant")
        ax.grid(True, which="major", alpha=0.3)
        ax.legend(frameon=False)
        self.ax_, self.figure_ = ax, ax.figure
        return self
