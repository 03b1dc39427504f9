"""Solvers of the panels side by side on the same rows, and how to write your own.

A solver is one function in one small file::

    NAME = "ridge on all products"      # optional: how the pictures call it


    def solve(X, y, setting, report):
        ...
        report(passes, predict)         # after each iteration

`X` (n, d) holds the features as sampled and `y` (n,) the targets: numpy arrays, or torch tensors
if the studies run on another device. `setting` describes the problem. `report` takes the number
of passes over the rows so far and a function that returns predictions for rows like X. It measures
the time, scores the predictions on test rows (which is not counted), and returns True when the
paper's rule ends the iteration; a solver may stop earlier.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, Self

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.messages import warn
from quadlin.paper.laws import load
from quadlin.paper.study import Row

BLOCK_ROWS = 1 << 14


@dataclass(frozen=True)
class Standardised:
    """z = (x − mean)/sd and t = (y − centre)/scale, in the dtype of x."""

    Z: Array  # (n, d)
    t: Array  # (n,)
    mean: Array  # (d,)
    sd: Array  # (d,)
    centre: float
    scale: float

    @classmethod
    def of(cls, X: Array, y: Array) -> Self:
        """Standardise by the means and variances of the rows; a constant feature becomes 0."""
        xp = namespace(X)
        mean = xp.mean(X, axis=0)
        sd = xp.std(X, axis=0)
        sd = xp.where(sd > 0, sd, xp.ones_like(sd))
        centre, scale = float(xp.mean(y)), float(xp.std(y)) or 1.0
        t = xp.astype((y - centre) / scale, X.dtype)
        return cls((X - mean) / sd, t, mean, sd, centre, scale)

    @classmethod
    def identity(cls, X: Array, y: Array) -> Self:
        """Leave the features as sampled; only the unit of y changes."""
        xp = namespace(X)
        zero = xp.zeros(X.shape[1], dtype=X.dtype, device=X.device)
        scale = float(xp.mean(y * y)) ** 0.5 or 1.0
        return cls(X, xp.astype(y / scale, X.dtype), zero, zero + 1, 0.0, scale)

    def standardise(self, X: Array) -> Array:
        """Return other rows in the same units."""
        return (X - self.mean) / self.sd

    def predictions(self, f: Array) -> Array:
        """Return values of f in the unit of y, in float64."""
        xp = namespace(f)
        return self.centre + self.scale * xp.astype(f, xp.float64)

    def mean_square(self, loss: Any) -> np.ndarray:
        """Return a mean squared residual in the unit of y²."""
        return np.asarray(to_numpy(loss), dtype=float) * self.scale**2

    def moment_matrix(self) -> Array:
        """Return the d×d matrix Zᵀ(t∘Z)/n, in blocks of rows."""
        n = self.Z.shape[0]
        total: Any = 0
        for part in blocks(n):
            rows = self.Z[part, ...]
            total = total + rows.T @ (self.t[part][:, None] * rows)
        return total / n


def blocks(n: int) -> Iterator[slice]:
    """Yield slices of at most some thousand rows."""
    for start in range(0, n, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, n))


Predict = Callable[[Array], Array]  # rows as sampled (n, d) → (n,), or (n, g) for g variants


@dataclass(frozen=True)
class Setting:
    """The problem that a solver is given."""

    rank: int
    has_diagonal: bool  # whether the squares of the features are modelled: the paper's MIP form
    max_iter: int
    seed: int


class Report(Protocol):
    """Takes the result of an iteration, and tells whether to stop."""

    def __call__(self, passes: int, predict: Predict, loss: Any = None) -> bool:
        """Score the predictions; `loss` is the mean squared training error if it is known.

        A solver that runs g variants at once, such as g step sizes, reports (n, g) predictions and
        g losses; the variant whose training error ends lowest is the one that counts.
        """


Solver = Callable[[Array, Array, Setting, Report], None]


class SolverError(ValueError):
    """A user's solver failed; the message says where."""


@dataclass(frozen=True)
class SolverFile:
    """A user's solver: its file, its name in the pictures, and the function."""

    path: Path
    name: str
    solve: Solver

    @property
    def digest(self) -> str:
        """Return a short hash of the file, so that a changed solver is a new one."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:12]


def load_solver(path: str | Path) -> SolverFile:
    """Read a user's solver from its file."""
    path = Path(path)
    module = load(path, "solve")

    def solve(X: Array, y: Array, setting: Setting, report: Report) -> None:
        try:
            module.solve(X, y, setting, report)
        except Exception as error:
            line = error.__traceback__
            while line is not None and line.tb_next is not None:
                line = line.tb_next
            number = f", line {line.tb_lineno}" if line is not None else ""
            raise SolverError(
                f"The solver {str(path)!r} failed{number}: {type(error).__name__}: {error}"
            ) from error

    return SolverFile(path, str(getattr(module, "NAME", path.stem)), solve)


STEP_SIZES = (0.1, 0.2, 0.4, 0.8, 1.6)  # of gradient descent, over the curvature at the start
SETTLED = 1e-8  # the rule of the paper: the training error falls by less than this per iteration
LOST = 1e6  # a training NMSE above this never recovers
LARGEST = 1e30  # stands for an infinite error, since JSON has no infinity


@dataclass(frozen=True)
class Race:
    """Training rows and test rows, features as sampled."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array  # with noise like that of y
    clean: Array  # (n_test,), y_test without noise
    setting: Setting
    until_settled: bool = True  # the stopping rule of the paper, besides the limit of iterations

    def run(self, name: str, solver: Solver) -> list[Row]:
        """Run a solver; return one line per iteration, including the start."""
        watch = Watch(self, name)
        solver(self.X, self.y, self.setting, watch)
        return watch.lines()


@dataclass
class Watch:
    """Receives the reports of a solver: measures its time, without that of scoring predictions."""

    race: Race
    solver: str
    iterations: list[list[Row]] = field(default_factory=list)  # one line for each variant
    clock: float = field(default_factory=perf_counter)
    seconds: float = 0.0
    told: bool = False  # whether it was said that predictions are not numbers

    def __call__(self, passes: int, predict: Predict, loss: Any = None) -> bool:
        """Add the lines of an iteration; return whether the solver should stop."""
        race = self.race
        if loss is not None:
            loss = to_numpy(loss)  # waits for the device
        self.seconds += perf_counter() - self.clock
        if loss is None:
            loss = _mean_squares(predict, race.X, race.y)
        power = float(np.mean(to_numpy(race.y).astype(float) ** 2))
        train = np.atleast_1d(np.asarray(loss, dtype=float)) / power
        errors = {
            "train": train,
            "nmse": _nmse(predict, race.X_test, race.y_test),
            "nmse_clean": _nmse(predict, race.X_test, race.clean),
        }
        if not self.told and np.isnan(errors["nmse"]).all():
            self.told = True
            warn(
                f"The solver {self.solver!r} predicts NaN in iteration {len(self.iterations)}; its "
                f"errors count as {LARGEST:.0e} from there on."
            )
        common = {"solver": self.solver, "iteration": len(self.iterations), "passes": int(passes)}
        lines = [
            {**common, **{name: _plain(e[i]) for name, e in errors.items()}}
            | {"seconds": self.seconds, "step_size": STEP_SIZES[i] if len(train) > 1 else None}
            for i in range(len(train))
        ]
        self.iterations.append(lines)
        stop = len(self.iterations) > race.setting.max_iter
        if race.until_settled and len(train) == 1 and len(self.iterations) > 1:
            stop = stop or settled(*(its[0]["train"] for its in self.iterations[-2:]))
        self.clock = perf_counter()
        return stop

    def lines(self) -> list[Row]:
        """Return the lines of the variant whose training error ends lowest."""
        if not self.iterations:
            raise ValueError(f"The solver {self.solver!r} reported no iteration.")
        last = self.iterations[-1]
        best = min(range(len(last)), key=lambda i: last[i]["train"])
        rows = [lines[best] for lines in self.iterations]
        if not self.race.until_settled:
            return rows
        for number, (before, row) in enumerate(pairwise(rows), 1):
            if settled(before["train"], row["train"]):
                return rows[: number + 1]
        return rows


def settled(before: float, now: float) -> bool:
    """Tell whether an error no longer falls; one that rises counts only if it has diverged."""
    return not isfinite(now) or now > LOST or abs(before - now) < SETTLED


def _mean_squares(predict: Predict, X: Array, y: Array) -> np.ndarray:
    """Return E(ŷ − y)² for each variant."""
    total: Any = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for part in blocks(X.shape[0]):
            target = to_numpy(y[part]).astype(float)
            f = to_numpy(predict(X[part, ...])).astype(float)
            if f.ndim not in (1, 2) or f.shape[0] != len(target):
                raise ValueError(
                    f"predict must return {len(target)} numbers for as many rows; the shape of "
                    f"its answer is {f.shape}."
                )
            error = f.reshape(len(target), -1) - target[:, None]
            total = total + np.sum(error**2, axis=0)
    return np.asarray(total / X.shape[0])


def _nmse(predict: Predict, X: Array, y: Array) -> np.ndarray:
    """Return the paper's error, E(ŷ − y)²/E y², for each variant."""
    power = float(np.mean(to_numpy(y).astype(float) ** 2))
    return np.asarray(_mean_squares(predict, X, y) / power)


def _plain(error: float) -> float:
    return min(float(error), LARGEST) if isfinite(error) else LARGEST
