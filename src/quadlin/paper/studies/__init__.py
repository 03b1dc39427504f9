"""The paper's figure and its claims, measured again: tasks, verdicts, power laws and pictures.

Pictures are computed once, from plain numbers, and drawn on axes of matplotlib.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from itertools import product
from textwrap import fill
from typing import Any

import numpy as np

Task = dict[str, Any]  # plain numbers and strings only: it is written to the results as JSON
Row = dict[str, Any]  # one line of the results: plain numbers and strings
Frame = Any  # a pandas DataFrame of the rows of all tasks, the task's own entries as columns
LAWS = ("gaussian", "truncated:0", "bernoulli:0.1")  # that most studies compare
EXACT = 1e-6  # test NMSE of a model that is found
SLACK = 0.15  # of an exponent, besides twice its standard error
SIZES = ("tiny", "quick", "full")  # for tests; some minutes in all; the paper's
LARGEST = 1e30  # stands for an infinite error, since JSON has no infinity
METHODS: dict[str, tuple[str, str, str, str]] = {  # name, colour, marker and line in all pictures
    "published": ("authors' code", "#88CCEE", "X", "-"),
    "plain": ("plain MES", "#0072B2", "o", "-"),
    "gaussian": ("2016 MES", "#DDCC77", "8", ":"),
    "plain without squares": ("plain MES without squares", "#117733", "P", "-."),
    "literal": ("literal MES", "#56B4E9", "v", ":"),
    "guarded": ("quadlin MES", "#009E73", "s", "-"),
    "polished": ("quadlin fit", "#000000", "D", "-"),
    "gd_printed": ("printed GD", "#D55E00", "^", "--"),
    "gd_standardised": ("standardised GD", "#E69F00", "<", "--"),
    "stream": ("quadlin one pass", "#332288", "*", "--"),
}


def name_of(key: str) -> str:
    """Return the name of a method; a user's solver is named by its key."""
    return METHODS[key][0] if key in METHODS else key


@dataclass(frozen=True)
class Verdict:
    """The measurement in a few sentences, and whether the claim holds."""

    holds: str  # "yes", "no", "in part" or "not judged"
    measured: str

    @classmethod
    def of(cls, checks: Iterable[Any], measured: str) -> "Verdict":
        """Judge by checks: "yes" if all hold, "no" if none does, else "in part"."""
        held = [bool(check) for check in checks]
        holds = "yes" if all(held) else "in part" if any(held) else "no"
        return cls(holds, measured.replace(" -", " −").replace("(-", "(−"))


@dataclass(frozen=True)
class Study:
    """One figure or claim.

    A task is the unit of resuming: it runs on its own, in any order, and the same task gives the
    same rows, except in measured columns, whose names begin with ``seconds`` or ``bytes``.
    """

    name: str  # for `--only`
    text: Mapping[
        str, str
    ]  # title; claim, in our own words; setting; words, where it holds and why
    tasks: Callable[[str], Sequence[Task]]  # for a size
    run: Callable[[Task, str], list[Row]]  # a task, on a device: "cpu" or torch's name of another
    pictures: Callable[[Frame], dict[str, Any]]
    verdict: Callable[[Frame], Verdict]


def grid(**axes: Any) -> list[Task]:
    """Return a task for every combination of values; a number or a text is the same in all.

    Examples
    --------
    >>> grid(law=("gaussian", "signs"), d=5, seed=range(1))
    [{'law': 'gaussian', 'd': 5, 'seed': 0}, {'law': 'signs', 'd': 5, 'seed': 0}]
    """
    plain = (
        v if isinstance(v, Iterable) and not isinstance(v, str) else [v] for v in axes.values()
    )
    return [dict(zip(axes, values, strict=True)) for values in product(*plain)]


@cache
def claims() -> dict[str, Any]:
    """Return what each study is about, with the sizes of its tasks: `studies/claims.toml`."""
    text = files("quadlin.paper.studies").joinpath("claims.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def text_of(*names: str) -> dict[str, str]:
    """Return the texts of a claim; a later name replaces those of an earlier one."""
    merged: dict[str, Any] = {}
    for name in names:
        merged |= claims().get(name, {})
    return {key: " ".join(text.split()) for key, text in merged.items() if isinstance(text, str)}


def tasks_of(name: str, size: str) -> list[Task]:
    """Return a task for every combination of the values in `claims.toml`, seed by seed.

    A size may have several `parts`, each with combinations of its own.
    """
    plan = []
    for part in claims()[name].get("parts", [{}]):
        axes = claims()[name].get("all", {}) | part.get("all", {})
        axes |= claims()[name].get("sizes", {}).get(size, {}) | part.get(size, {})
        seeds = range(axes.pop("seeds"))
        plan += grid(**axes, seed=seeds)
    return [_apart(task) for task in plan]


def _apart(task: Task) -> Task:
    """Return a task in which an entry of several names, such as "n d k", is as many entries."""
    apart: Task = {}
    for key, value in task.items():
        names = key.split()
        apart |= zip(names, value, strict=True) if len(names) > 1 else {key: value}
    return apart


def study(
    name: str,
    run: Callable[[Task, str], list[Row]],
    pictures: Callable[[Frame], dict[str, Any]],
    verdict: Callable[[Frame], Verdict],
    tried: Callable[[Task], bool] = lambda task: True,
) -> Study:
    """Return the study of a claim of `claims.toml`, with the tasks that are to be `tried`."""

    def tasks(size: str) -> list[Task]:
        return [task for task in tasks_of(name, size) if tried(task)]

    return Study(name, text_of(name), tasks, run, pictures, verdict)


def listed(items: Iterable[Any]) -> str:
    """Join words as a sentence does: a, b and c."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


@dataclass(frozen=True)
class Power:
    """An exponent and its standard error, NaN for too few points; shown with ± two of them."""

    exponent: float
    error: float

    def __str__(self) -> str:
        spread = f" ± {2 * self.error:.2f}" if np.isfinite(self.error) else ""
        return f"{self.exponent:+.2f}{spread}".replace("-", "−")

    def near(self, value: float) -> bool:
        """Tell whether the exponent is a value, up to `SLACK` and two standard errors."""
        return bool(abs(self.exponent - value) <= SLACK + 2 * np.nan_to_num(self.error))

    def at_most(self, value: float) -> bool:
        """Tell whether the exponent is at most a value, up to `SLACK` and two standard errors."""
        return self.exponent < value or self.near(value)


def powers(factors: Mapping[str, Any], values: Any) -> dict[str, Power]:
    """Fit values = a·Π factorᵖ by least squares of the logarithms; return each p by name.

    Factors that do not vary, and values that are not positive and finite, are left out.
    """
    y = np.asarray(values, dtype=float)
    columns = {name: np.asarray(x, dtype=float) for name, x in factors.items()}
    good = np.isfinite(y) & (y > 0)
    varied = {name: x[good] for name, x in columns.items() if len(np.unique(x[good])) > 1}
    unknown = {name: Power(float("nan"), float("nan")) for name in columns}
    design = np.column_stack([np.ones(good.sum()), *(np.log(x) for x in varied.values())])
    target = np.log(y[good])
    solution, _, rank, _ = np.linalg.lstsq(design, target, rcond=None)
    if rank < design.shape[1]:
        return unknown
    spare = len(target) - rank
    error = np.full(len(solution), np.nan)
    if spare > 0:
        residual = target - design @ solution
        covariance = np.linalg.inv(design.T @ design) * (residual @ residual) / spare
        error = np.sqrt(np.diag(covariance))
    fitted = zip(varied, solution[1:], error[1:], strict=True)
    return unknown | {name: Power(float(p), float(e)) for name, p, e in fitted}


def power(x: Any, y: Any) -> Power:
    """Fit y = a·xᵖ and return p."""
    return powers({"x": x}, y)["x"]


def style_of(number: int, key: str) -> dict[str, Any]:
    """Return how to draw a series: the style of its method, or a marker by its number."""
    style: dict[str, Any] = {"marker": "os^Dv<>P"[number % 8], "markerfacecolor": "none"}
    known = {name: rest for name, *rest in METHODS.values()}
    return style | dict(zip(("color", "marker", "linestyle"), known.get(key, ()), strict=False))


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
                style["markevery"] = number % every, every
                (line,) = ax.plot(keys, mean, label=label, **style)
                ax.fill_between(keys, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
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


@cache
def studies() -> dict[str, Study]:
    """Return all studies by name, in the order of the report.

    Examples
    --------
    >>> list(studies())[:5]
    ['a', 'b', 'c', 'd', 'levels']
    """
    names = ("panels", "rates", "fits")
    return {s.name: s for name in names for s in import_module(f"{__name__}.{name}").STUDIES}
