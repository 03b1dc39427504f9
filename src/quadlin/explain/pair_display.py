"""The display of a search for pairs: how each of them lowered the criterion."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from quadlin.explain.drawing import COLOURS, finish, new_axes, plain


@dataclass
class PairPathDisplay:
    """The criterion against the pairs, in the order of entry, from top to bottom.

    Parameters
    ----------
    labels : sequence of str
        What entered in each step; the first is the model without pairs.
    criterion : sequence of float
        The criterion after each step, less that of the model without pairs.
    r2 : sequence of float
        R² after each step, written beside the points, or what `measure` calls it.

    Examples
    --------
    >>> PairPathDisplay(["linear model", "+ a × b"], [0.0, -120.0], [0.2, 0.9]).criterion[-1]
    -120.0
    """

    labels: Sequence[str]
    criterion: Sequence[float]
    r2: Sequence[float]
    x_label: str = "extended BIC, less that of the linear model"
    title: str | None = None
    measure: str = "R²"
    ax_: Any = None
    figure_: Any = None

    def plot(self, ax: Any = None) -> Self:
        """Draw one line per step."""
        places = range(len(self.labels))
        ax = new_axes(ax, (6.4, 1.4 + 0.3 * len(places)))
        ax.plot(self.criterion, places, color=COLOURS[0], marker="o", markersize=5, linewidth=1.4)
        for place, value, r2 in zip(places, self.criterion, self.r2, strict=True):
            ax.annotate(
                f"{self.measure} {r2:.3f}",
                (value, place),
                (6, -2),
                textcoords="offset points",
                va="top",
            )
        ax.set_yticks(places, [plain(label, 60) for label in self.labels])
        ax.invert_yaxis()
        ax.margins(x=0.22, y=0.2)
        finish(ax, self.x_label, "", self.title, legend=False)
        self.ax_, self.figure_ = ax, ax.figure
        return self
