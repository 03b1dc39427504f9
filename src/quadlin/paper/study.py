"""The parts of an experiment: tasks that yield rows of numbers, power laws, and a verdict."""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

import numpy as np

Task = dict[str, Any]  # plain numbers and strings only: it is written to the results as JSON
Row = dict[str, Any]  # one line of the results: plain numbers and strings
Frame = Any  # a pandas DataFrame of the rows of all tasks, the task's own entries as columns
LAWS = ("gaussian", "truncated:0", "bernoulli:0.1")  # that most studies compare
EXACT = 1e-6  # test NMSE of a model that is found
SLACK = 0.15  # of an exponent, besides twice its standard error
SIZES = ("tiny", "quick", "full")  # for tests; some minutes in all; the paper's


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
    rows = int(good.sum())
    if not varied or rows <= len(varied):
        return unknown
    design = np.column_stack([np.ones(rows), *(np.log(x) for x in varied.values())])
    target = np.log(y[good])
    solution, _, rank, _ = np.linalg.lstsq(design, target, rcond=None)
    if rank < design.shape[1]:
        return unknown
    spare = rows - design.shape[1]
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
