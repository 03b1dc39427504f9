"""Displays of measurements: computed once from plain numbers, drawn when asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import Any, Self

import numpy as np

from quadlin.explain.displays import Display, Styles, finish, style_of

TINY = 1e-60  # what a logarithmic axis shows a zero as, and 1 over it infinity
MAX_TICKS = 7  # distinct x values that each get a tick of their own
WORDS_WIDTH = 50  # letters under an axis, of all its words together
Points = Mapping[str, tuple[Any, Any]]  # by name: x and y, one entry per point


@dataclass
class ConvergenceDisplay(Display):
    """An error against the passes over the rows, iterations or seconds, on a logarithmic scale.

    Parameters
    ----------
    curves : mapping of str to (x, y)
        One curve each.
    bands : mapping of str to (low, high), optional
        What lies around a curve, such as the least and the largest of several trials.
    x_label, y_label, title : str
        Words on the axes and above.
    limits : (float, float), optional
        Least and largest y shown: what diverges leaves the picture instead of flattening it.
    styles : mapping of str to keywords of matplotlib, optional
        How to draw the curve of a name, such as ``{"color": "black", "marker": "o"}``.
    stepwise : bool
        Whether a value holds until the next one, as an error does between two iterations.

    Examples
    --------
    >>> from quadlin import SecondOrderRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(1000, 5, rank=1, random_state=0)
    >>> model = SecondOrderRegressor(rank=1, random_state=0).fit(data.X, data.y)
    >>> display = ConvergenceDisplay.from_estimators({"guarded": model})
    >>> bool(display.curves["guarded"][1][-1] < 1e-12)
    True
    >>> trials = {"halving": [([0, 1, 2], [1, 0.5, 0.25]), ([0, 1], [4, 2])]}
    >>> ConvergenceDisplay.from_trials(trials).curves["halving"][1].tolist()
    [2.0, 1.0, 0.7071067811865476]
    """

    curves: Mapping[str, tuple[np.ndarray, np.ndarray]]
    bands: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None
    x_label: str = "passes over the rows"
    y_label: str = "training loss / loss of the constant"
    title: str | None = None
    limits: tuple[float | None, float | None] = (None, None)
    styles: Styles = field(default_factory=dict)
    stepwise: bool = False

    @classmethod
    def from_estimator(cls, estimator: Any, name: str | None = None) -> Self:
        """Take the history of one fitted estimator."""
        return cls.from_estimators({name or type(estimator).__name__: estimator})

    @classmethod
    def from_estimators(cls, estimators: Mapping[str, Any]) -> Self:
        """Take the histories of fitted estimators, by name."""

        def curve(history: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
            first = history[0].loss or 1.0
            passes = np.array([record.passes for record in history])
            return passes, np.array([record.loss for record in history]) / first

        return cls({name: curve(e.history_) for name, e in estimators.items()})

    @classmethod
    def from_trials(cls, trials: Mapping[str, Sequence[tuple[Any, Any]]], **labels: Any) -> Self:
        """Take the geometric mean over several (x, y) per name, and the least and the largest.

        The entries of a trial are its steps. One that ended early keeps its last value; x is the
        median over the trials that came as far.
        """
        curves, bands = {}, {}
        for name, runs in trials.items():
            longest = max(len(x) for x, _ in runs)
            x = np.full((len(runs), longest), np.nan)
            y = np.empty((len(runs), longest))
            for row, (xs, ys) in enumerate(runs):
                x[row, : len(xs)] = xs
                y[row, : len(ys)], y[row, len(ys) :] = ys, ys[-1]
            logs = np.log(np.clip(y, TINY, 1 / TINY))
            places = np.maximum.accumulate(np.nanmedian(x, axis=0))  # trials end, time does not
            curves[name] = (places, np.exp(logs.mean(axis=0)))
            bands[name] = (y.min(axis=0), y.max(axis=0))
        return cls(curves, bands, **{"x_label": "iteration", "y_label": "test NMSE", **labels})

    def _draw(self, ax: Any) -> None:
        """Draw the curves on a logarithmic scale."""
        for number, (name, (x, y)) in enumerate(self.curves.items()):
            style = style_of(number, name, self.styles)
            if self.stepwise:
                style["drawstyle"] = "steps-post"
            every = max(1, len(x) // 12)
            # Each curve has its markers in other places, so that none hides another.
            where = (number % every, every)
            ax.semilogy(x, np.clip(y, TINY, 1 / TINY), label=name, markevery=where, **style)
            if self.bands is not None and name in self.bands:
                low, high = (np.clip(b, TINY, 1 / TINY) for b in self.bands[name])
                step = "post" if self.stepwise else None
                fill = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
                ax.fill_between(x, low, high, step=step, **fill)
        low, high = self.limits
        values = np.concatenate([np.ravel(y) for _, y in self.curves.values()])
        values = values[np.isfinite(values)]
        if low is not None and (values < low).any():
            ax.set_ylim(bottom=low)
        if high is not None and (values > high).any():
            ax.set_ylim(top=high)
        finish(ax, self.x_label, self.y_label, self.title)


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


def hollow(style: dict[str, Any]) -> dict[str, Any]:
    """Return the style with hollow markers, so that none hides another."""
    return {**style, "markerfacecolor": "none", "markersize": 6}


def tick_values(ax: Any, points: Points) -> None:
    """Put a tick at every x that was measured, where they are few and far enough apart."""
    from matplotlib.ticker import NullLocator

    columns = [np.asarray(x) for x, _ in points.values()]
    if not columns or any(x.dtype.kind not in "iuf" for x in columns):
        return
    values = np.unique(np.concatenate(columns).astype(float))
    if not 0 < len(values) <= MAX_TICKS or values[0] <= 0:
        return
    if len(values) == 1 or np.min(values[1:] / values[:-1]) > 1.3:
        ax.set_xticks(values)
        ax.xaxis.set_minor_locator(NullLocator())


def grouped(
    x: Any, y: Any, geometric: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct x, in order of appearance if they are words, with y's mean, min, max."""
    x, y = np.asarray(x), np.asarray(y, dtype=float)
    keys = np.unique(x) if x.dtype.kind in "iuf" else np.array(list(dict.fromkeys(x.tolist())))
    parts = [y[x == key] for key in keys]

    def mean_of(part: np.ndarray) -> float:
        if geometric and (part > 0).all():
            return float(np.exp(np.log(part).mean()))
        return float(part.mean())

    rows = [(mean_of(part), part.min(), part.max()) for part in parts]
    mean, low, high = np.array(rows).reshape(-1, 3).T
    return keys, mean, low, high
