"""Pictures of measurements: computed once from plain numbers, drawn on axes of matplotlib."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np

from quadlin.paper.methods import LARGEST, METHODS, name_of
from quadlin.paper.study import power

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
MARKERS, LINES = "os^Dv<>P", ("-", "--", ":", "-.")


def style_of(number: int, key: str) -> dict[str, Any]:
    """Return how to draw a series: the style of its method, or one by its number."""
    known = {entry[0]: entry for entry in METHODS.values()}
    by_number = ("", COLOURS[number % len(COLOURS)], MARKERS[number % 8], LINES[number % 4])
    _, colour, marker, line = known.get(key, by_number)
    return {"color": colour, "marker": marker, "linestyle": line, "markerfacecolor": "none"}


@dataclass
class Curves:
    """Series of points: the mean of each x as a line, the least and the largest as a band."""

    series: Mapping[str, tuple[Any, Any]]  # x (numbers, or words) and y, several for an x
    x: str = ""
    y: str = ""
    title: str = ""
    log: str = "xy"  # the axes that are logarithmic; with y, means are geometric
    level: tuple[float, str] | None = None  # a line across, with its words
    slopes: bool = False  # whether the legend names the exponent of y = a·xᵖ
    limits: tuple[float | None, float | None] = (None, None)
    size: tuple[float, float] = (6.4, 4.6)

    def draw(self, ax: Any, legend: bool = True) -> None:
        """Draw the series."""
        words = list(dict.fromkeys(w for x, _ in self.series.values() for w in map(str, x)))
        numeric = all(np.asarray(x).dtype.kind in "iuf" for x, _ in self.series.values())
        ax.set_xscale("log" if numeric and "x" in self.log else "linear")
        ax.set_yscale("log" if "y" in self.log else "linear")
        for number, (name, (x, y)) in enumerate(self.series.items()):
            keys, mean, low, high = self._grouped(x, y)
            style = style_of(number, name)
            label = f"{name}: slope {power(x, y).exponent:.2f}" if self.slopes else name
            if numeric:
                every = max(1, len(keys) // 12)
                ax.plot(keys, mean, label=label, markevery=(number % every, every), **style)
                ax.fill_between(keys, low, high, color=style["color"], alpha=0.15, linewidth=0)
                continue
            places = np.array([words.index(key) for key in keys], dtype=float)
            places += 0.08 * (number - (len(self.series) - 1) / 2)
            bars = np.maximum([mean - low, high - mean], 0)
            ax.errorbar(
                places, mean, yerr=bars, label=label, capsize=3, **style | {"linestyle": ""}
            )
        if not numeric:
            short = [fill(w, max(8, 50 // len(words)), break_long_words=False) for w in words]
            ax.set_xticks(range(len(words)), short)
        if self.level is not None:
            ax.axhline(self.level[0], color="#666666", linewidth=1, label=self.level[1])
        (least, most), (bottom, top) = self.limits, ax.get_ylim()
        ax.set_ylim(max(bottom, least or bottom), min(top, most or top))
        ax.set(xlabel=self.x, ylabel=self.y, title=self.title)
        ax.grid(True, which="major", alpha=0.3)
        if legend:
            place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2}
            ax.legend(fontsize="x-small", frameon=False, **place)

    def _grouped(self, x: Any, y: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        x, y = np.asarray(x), np.asarray(y, dtype=float)
        keys = np.unique(x) if x.dtype.kind in "iuf" else np.array(list(dict.fromkeys(x.tolist())))
        parts = [y[x == key] for key in keys]
        if "y" in self.log:
            parts = [np.clip(part, 1 / LARGEST, LARGEST) for part in parts]
            mean = [np.exp(np.log(part).mean()) for part in parts]
        else:
            mean = [part.mean() for part in parts]
        low, high = (np.array([of(part) for part in parts]) for of in (np.min, np.max))
        return keys, np.array(mean), low, high


@dataclass
class Map:
    """A table of shares between 0 and 1, written and coloured; NaN where nothing was tried."""

    shares: np.ndarray  # (rows, columns)
    columns: Sequence[str]
    rows: Sequence[str]
    x: str
    y: str
    title: str

    @classmethod
    def of(cls, frame: Any, x: str, y: str, value: str, /, **words: str) -> "Map":
        """Take the mean of a column over the trials, by two others in order of appearance."""
        table = frame.pivot_table(value, y, x, "mean", sort=False)
        if frame[x].dtype.kind in "iuf":
            table = table[sorted(table.columns)]
        names = [f"{c:g}" if isinstance(c, (int, float)) else str(c) for c in table.columns]
        return cls(table.to_numpy(), names, [str(r) for r in table.index], **words)

    @property
    def size(self) -> tuple[float, float]:
        """Return the size of the figure, in inches."""
        return 6.4, max(2.4, 1.4 + 0.4 * len(self.rows))

    def draw(self, ax: Any) -> None:
        """Draw the table."""
        image = ax.imshow(
            self.shares, origin="lower", aspect="auto", cmap="cividis", vmin=0, vmax=1
        )
        for (i, j), share in np.ndenumerate(self.shares):
            ink = "black" if share > 0.55 else "white"
            ax.text(j, i, f"{share:.0%}", ha="center", va="center", color=ink, fontsize="x-small")
        ax.set_xticks(range(len(self.columns)), self.columns)
        ax.set_yticks(range(len(self.rows)), self.rows)
        ax.set(xlabel=self.x, ylabel=self.y, title=self.title)
        ax.figure.colorbar(image, ax=ax, label="share recovered")


def series(frame: Any, x: str, y: str, by: Any = "method", name: Any = name_of) -> dict[str, Any]:
    """Return two columns for each method, or each value of other columns, by its name."""
    groups = frame.groupby(by, sort=False)
    return {name(key): (part[x].to_numpy(), part[y].to_numpy()) for key, part in groups}


def convergence(frame: Any, x: str, keys: Iterable[str], by: str = "solver") -> dict[str, Any]:
    """Return the curve of each method over all trials: one that ended early keeps its last error.

    `x` is a column that grows with the iteration, such as the passes: its median is shown.
    """
    curves = {}
    for key in keys:
        part = frame[frame[by] == key]
        if len(part):
            table = part.pivot_table("nmse", "iteration", "seed").ffill()
            places = part.groupby("iteration")[x].median().cummax()
            columns = table.shape[1]
            curves[name_of(key)] = np.repeat(places.to_numpy(), columns), table.to_numpy().ravel()
    return curves
