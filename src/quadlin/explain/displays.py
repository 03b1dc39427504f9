"""Displays of measurements: computed once from plain numbers, drawn when asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import Any, Self

import numpy as np

from quadlin.explain.convergence_display import ConvergenceDisplay
from quadlin.explain.drawing import (
    Display,
    Points,
    Styles,
    finish,
    grouped,
    hollow,
    style_of,
    tick_values,
)

__all__ = ["ConvergenceDisplay", "LevelDisplay", "PhaseTransitionDisplay", "ScalingDisplay"]

WORDS_WIDTH = 50  # letters under an axis, of all its words together


@dataclass
class PhaseTransitionDisplay(Display):
    """How often a model is recovered, over the rows per parameter and the rank.

    Parameters
    ----------
    x, y : arrays
        The columns and the rows of the table, such as n/dof and k.
    success : array (len(y), len(x))
        Shares between 0 and 1; NaN where nothing was tried.

    Examples
    --------
    >>> display = PhaseTransitionDisplay.from_trials([1, 1, 2, 2], [3, 3, 3, 3], [0, 1, 1, 1])
    >>> display.success.tolist()
    [[0.5, 1.0]]
    """

    x: np.ndarray
    y: np.ndarray
    success: np.ndarray
    x_label: str = "rows / parameters"
    y_label: str = "rank k"
    title: str | None = None
    y_names: Sequence[str] | None = None  # words for the rows of the table, in place of numbers

    @classmethod
    def from_trials(cls, x: Any, y: Any, success: Any, **labels: Any) -> Self:
        """Take one entry per trial: where it was made, and whether it succeeded."""
        x, y, success = np.asarray(x), np.asarray(y), np.asarray(success, dtype=float)
        columns, rows = np.unique(x), np.unique(y)
        table = np.full((len(rows), len(columns)), np.nan)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                cell = success[(x == column) & (y == row)]
                if len(cell):
                    table[i, j] = cell.mean()
        return cls(columns, rows, table, **labels)

    @property
    def size(self) -> tuple[float, float]:
        """Return the size of a figure of its own, in inches."""
        return 6.4, max(2.4, 1.4 + 0.5 * len(self.y))

    def _draw(self, ax: Any) -> None:
        """Draw the table as a heat map with its shares written in it."""
        image = ax.imshow(
            np.ma.masked_invalid(self.success),
            origin="lower",
            aspect="auto",
            cmap="cividis",
            vmin=0,
            vmax=1,
        )
        for (i, j), share in np.ndenumerate(self.success):
            if np.isfinite(share):
                ink = "black" if share > 0.55 else "white"
                ax.text(j, i, f"{share:.0%}", ha="center", va="center", color=ink, fontsize="small")
        ax.set_xticks(range(len(self.x)), [f"{v:g}" for v in self.x])
        numbers = [f"{v:g}" for v in self.y]
        ax.set_yticks(range(len(self.y)), numbers if self.y_names is None else self.y_names)
        ax.figure.colorbar(image, ax=ax, label="share recovered")
        finish(ax, self.x_label, self.y_label, self.title, legend=False)
        ax.grid(False)


@dataclass
class ScalingDisplay(Display):
    """Points on logarithmic axes, and the power law y = a·xᵖ fitted through each series.

    Parameters
    ----------
    points : mapping of str to (x, y)
        Series; y may hold several trials of an x.
    laws : mapping of str to (a, p)
        The fitted power laws.

    Examples
    --------
    >>> display = ScalingDisplay.from_points({"squares": ([1, 2, 4], [1, 4, 16])})
    >>> round(display.exponents["squares"], 6)
    2.0
    """

    points: Points
    laws: Mapping[str, tuple[float, float]]
    x_label: str = "x"
    y_label: str = "y"
    title: str | None = None
    styles: Styles = field(default_factory=dict)

    @classmethod
    def from_points(cls, points: Points, **labels: Any) -> Self:
        """Fit each series by least squares of log y on log x; what is not positive is left out."""
        laws = {}
        for name, (x, y) in points.items():
            x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
            good = (x > 0) & (y > 0) & np.isfinite(y)
            if len(np.unique(x[good])) > 1:
                power, log_a = np.polyfit(np.log(x[good]), np.log(y[good]), 1)
                laws[name] = (float(np.exp(log_a)), float(power))
        return cls(points, laws, **labels)

    @property
    def exponents(self) -> dict[str, float]:
        """Return the fitted exponent of each series."""
        return {name: power for name, (_, power) in self.laws.items()}

    def _draw(self, ax: Any) -> None:
        """Draw the points and the lines, with the exponents in the legend."""
        for number, (name, (x, y)) in enumerate(self.points.items()):
            style = hollow(style_of(number, name, self.styles))
            x = np.asarray(x, dtype=float)
            line = style.pop("linestyle")
            label = f"{name}: slope {self.laws[name][1]:.2f}" if name in self.laws else name
            ax.loglog(x, y, linestyle="none", alpha=0.8, **style)
            ax.loglog([], [], linestyle=line if name in self.laws else "none", label=label, **style)
            if name in self.laws:
                a, power = self.laws[name]
                ends = np.array([x.min(), x.max()])
                ax.loglog(ends, a * ends**power, color=style["color"], linestyle=line)
        tick_values(ax, self.points)
        finish(ax, self.x_label, self.y_label, self.title)


@dataclass
class LevelDisplay(Display):
    """Values beside the level they are measured against, such as a bound that equals 1.

    Parameters
    ----------
    points : mapping of str to (x, y)
        Series; x are numbers or words, and y may hold several trials of an x.
    level : float or None
        The level, drawn as a line.
    log_x, log_y : bool
        Whether an axis is logarithmic; on a logarithmic y axis the means are geometric.
    styles : mapping of str to keywords of matplotlib, optional
        How to draw the series of a name.

    Examples
    --------
    >>> LevelDisplay({"ours": (["a", "a", "b"], [1.0, 1.2, 1.1])}, level=1.0).level
    1.0
    """

    points: Points
    level: float | None = None
    level_label: str = "level"
    x_label: str = ""
    y_label: str = "value"
    title: str | None = None
    log_x: bool = False
    log_y: bool = False
    styles: Styles = field(default_factory=dict)

    def _draw(self, ax: Any) -> None:
        """Draw the mean of each x with bars to the least and the largest, and the level."""
        entries = [key for x, _ in self.points.values() for key in np.asarray(x).tolist()]
        words = list(dict.fromkeys(key for key in entries if isinstance(key, str)))
        if words:
            width = max(8, WORDS_WIDTH // len(words))
            ax.set_xticks(
                range(len(words)), [fill(word, width, break_long_words=False) for word in words]
            )
        for number, (name, (x, y)) in enumerate(self.points.items()):
            keys, mean, low, high = grouped(x, y, self.log_y)
            style = hollow(style_of(number, name, self.styles))
            if keys.dtype.kind not in "iuf":
                style["linestyle"] = "none"  # there is nothing between two words
                places = np.array([words.index(key) for key in keys.tolist()])
                keys = places + 0.08 * (number - (len(self.points) - 1) / 2)
            elif self.log_x:  # a little apart, so that equal values do not hide each other
                keys = keys * 1.02 ** (number - (len(self.points) - 1) / 2)
            # The mean of equal numbers may be off by rounding, and no bar is negative.
            bars = np.maximum([mean - low, high - mean], 0)
            ax.errorbar(keys, mean, yerr=bars, label=name, capsize=3, **style)
        if self.level is not None:
            ax.axhline(self.level, color="#666666", linewidth=1, label=self.level_label)
        if self.log_x:
            ax.set_xscale("log")
            tick_values(ax, self.points)
        if self.log_y:
            ax.set_yscale("log")
        finish(ax, self.x_label, self.y_label, self.title)
