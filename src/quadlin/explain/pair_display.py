"""The display of a search for pairs: how each of them lowered the criterion."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from quadlin.explain.drawing import COLOURS, finish, new_axes, plain
from quadlin.explain.tables import product_name


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

    validated : sequence of float or None
        The same on rows that were left out, with pairs found on the others.

    Examples
    --------
    >>> PairPathDisplay(["linear model", "+ a × b"], [0.0, -120.0], [0.2, 0.9]).criterion[-1]
    -120.0
    """

    labels: Sequence[str]
    criterion: Sequence[float]
    r2: Sequence[float]
    validated: Sequence[float] | None = None
    x_label: str = "extended BIC, less that without pairs"
    title: str | None = None
    measure: str = "R²"
    ax_: Any = None
    figure_: Any = None

    @classmethod
    def from_report(cls, report: Any) -> Self:
        """Return the display of a `PairReport`, such as `pairs_` of an estimator."""
        labels = ["no pair"]
        for step in range(1, len(report.path)):
            entered = [p for p in report.pairs if p.order == step]
            more = f" and {len(entered) - 1} more" if len(entered) > 1 else ""
            labels.append(f"+ {product_name(entered[0].first, entered[0].second)}{more}")
        criterion, r2 = ([getattr(s, name) for s in report.path] for name in ("criterion", "r2"))
        return cls(labels, criterion, r2, report.validated, measure=report.measure)

    @property
    def size(self) -> tuple[float, float]:
        """Return the size of a figure of its own, in inches."""
        return 6.4, 1.4 + 0.34 * len(self.labels)

    def plot(self, ax: Any = None) -> Self:
        """Draw one line per step."""
        places = range(len(self.labels))
        ax = new_axes(ax, self.size)
        ax.plot(self.criterion, places, color=COLOURS[0], marker="o", markersize=5, linewidth=1.4)
        for place, value, r2 in zip(places, self.criterion, self.r2, strict=True):
            text = f"{self.measure} {r2:.3f}"
            if self.validated is not None:
                text += f", {self.validated[place]:.3f} on rows left out"
            # Above the line on its right half, below it on the left: so no text is cut or crossed.
            right = value > min(self.criterion) / 2
            offset, ha, va = ((-7, 2), "right", "bottom") if right else ((6, -2), "left", "top")
            ax.annotate(text, (value, place), offset, textcoords="offset points", ha=ha, va=va)
        ax.set_yticks(places, [plain(label, 60) for label in self.labels])
        ax.invert_yaxis()
        ax.margins(x=0.22, y=0.3)
        finish(ax, self.x_label, "", self.title, legend=False)
        self.ax_, self.figure_ = ax, ax.figure
        return self
