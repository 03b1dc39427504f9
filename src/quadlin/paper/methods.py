"""Every method as a fit that is observed step by step, and how to write your own.

A solver is one function in one small file::

    NAME = "ridge on all products"      # optional: how the pictures call it


    def solve(X, y, setting, report):
        ...
        report(passes, predict)         # after each iteration

`X` (n, d) holds the features as sampled and `y` (n,) the targets: numpy arrays, or torch tensors
if the studies run on another device. `setting` describes the problem. `report` takes the number
of passes over the rows so far and a function that returns predictions for rows like X. It measures
the CPU time, scores the predictions on test rows (which is not counted), and returns True when the
paper's rule ends the iteration; a solver may stop earlier.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from math import isfinite
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.messages import warn
from quadlin.core.model import predict
from quadlin.core.moments import moments_of
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.paper.iterations import ITERATIONS, Batches, Iterate
from quadlin.paper.problems import Law, Sample, load
from quadlin.paper.studies import LARGEST, Row
from quadlin.solve.lowrank.polish import fit_rows
from quadlin.solve.lowrank.types import Options, Solution, finished

Predict = Callable[[Array], Array]  # rows as sampled (n, d) → (n,)
SOLVERS = {"polished": "auto", "guarded": "moments"}  # of our own estimator
BUILT_IN = (*SOLVERS, *ITERATIONS)  # that the panels can run
FITS = ("plain", "guarded", "polished")  # that most studies compare
SETTLED = 1e-8  # the rule of the paper: the training error falls by less than this per iteration
LOST = 1e6  # a training NMSE above this never recovers
ROUNDING = 1e-28  # and one below this cannot fall


@dataclass(frozen=True)
class Setting:
    """The problem that a solver is given."""

    rank: int
    has_diagonal: bool  # whether the squares of the features are modelled: the paper's MIP form
    max_iter: int
    seed: int


@dataclass(frozen=True)
class Step:
    """The model y = b + xᵀw + xᵀMx after a step; it predicts as an estimator does."""

    passes: int
    loss: float  # mean squared error on the training rows
    predict: Predict
    raw: Callable[[], tuple[float, np.ndarray, np.ndarray]] | None = None  # b, w and M

    def error(self, truth: Any) -> float:
        """Return the paper's error ‖ŵ − w‖ + ‖M̂ − M‖₂."""
        assert self.raw is not None
        _, w, M = self.raw()
        return float(np.linalg.norm(w - truth.w) + np.linalg.norm(M - truth.M, 2))


@dataclass(frozen=True)
class Standardised:
    """z = (x − mean)/sd and t = (y − centre)/scale; as sampled, only the unit of y changes."""

    mean: Array  # (d,)
    sd: Array  # (d,)
    centre: float
    scale: float

    @classmethod
    def of(cls, X: Array, y: Array, as_sampled: bool = False) -> "Standardised":
        """Take the means and deviations of the rows; a constant feature becomes 0."""
        xp = namespace(X)
        mean = xp.mean(X, axis=0)
        if as_sampled:
            return cls(mean * 0, mean * 0 + 1, 0.0, float(xp.mean(y * y)) ** 0.5 or 1.0)
        sd = xp.std(X, axis=0)
        sd = xp.where(sd > 0, sd, xp.ones_like(sd))
        return cls(mean, sd, float(xp.mean(y)), float(xp.std(y)) or 1.0)

    def rows(self, X: Array, y: Array) -> tuple[Array, Array]:
        """Return Z and t, in the dtype of X."""
        t = namespace(X).astype((y - self.centre) / self.scale, X.dtype)
        return (X - self.mean) / self.sd, t

    def step(self, model: Iterate) -> Step:
        """Return the model in the units of the rows as sampled."""
        loss = float(model.loss) * self.scale**2

        def predict(X: Array) -> Array:
            xp = namespace(X)
            f = model.values((X - self.mean) / self.sd)
            return self.centre + self.scale * xp.astype(f, xp.float64)

        def raw() -> tuple[float, np.ndarray, np.ndarray]:
            M, c = np.asarray(model.times(np.eye(len(model.w)))), model.c
            if not model.has_diagonal:
                M = M - np.diag(np.diag(M))
            elif model.centred:
                c = c - np.trace(M)
            M = self.scale * M / self.sd[:, None] / self.sd
            w = self.scale * model.w / self.sd
            b = self.centre + self.scale * c - self.mean @ w + self.mean @ M @ self.mean
            return float(b), w - 2 * M @ self.mean, M

        return Step(model.passes, loss, predict, raw)


def observe(
    method: str, X: Array, y: Array, setting: Setting, seen: Callable[[Step], bool]
) -> None:
    """Run a method and show every model, the start included, until `seen` returns True."""
    if method in SOLVERS:
        _observe_fit(SOLVERS[method], X, y, setting, seen)
        return
    units = Standardised.of(X, y, as_sampled=method == "gd_printed")
    rows = repeat(units.rows(X, y))
    models = ITERATIONS[method](rows, setting.rank, setting.has_diagonal, setting.seed)
    with np.errstate(all="ignore"):  # of a method that diverges
        for model in islice(models, setting.max_iter + 1):
            if seen(units.step(model)):
                return


def _observe_fit(
    solver: str, X: Array, y: Array, setting: Setting, seen: Callable[[Step], bool]
) -> None:
    """Run our own fit, which ends by its own rule only where rounding does."""
    rows = Rows.of(MemorySource(X, y))
    names = [f"x{j}" for j in range(X.shape[1])]
    squares = True if setting.has_diagonal else "auto"
    units = UnitsMaker(squares, True, X.dtype, names)(*moments_of(rows))
    target = units.target
    variance = target.power * target.scale**2

    def note(solution: Solution) -> bool:
        model, record = solution.model, solution.history[-1]

        def values(X: Array) -> Array:
            return target.mean + target.scale * predict(model, Block(X, units))

        return seen(Step(rows.walks, record.loss, values))

    if seen(Step(rows.walks, variance, lambda X: 0.0 * X[:, 0] + float(target.mean))):
        return
    options = Options(setting.rank, max_iter=setting.max_iter, tol=0.0, solver=solver)
    rng = np.random.default_rng(setting.seed)
    with np.errstate(all="ignore"):
        finished(fit_rows(rows, units, options, float(X.shape[0]), rng, None, note)[0])


def steps(method: str, data: Sample, rank: int, max_iter: int = 50) -> list[Step]:
    """Return the models of a method, until the loss no longer falls by a millionth of it."""
    found: list[Step] = []
    variance = float(np.var(data.y))

    def seen(step: Step) -> bool:
        found.append(step)
        if len(found) < 3:
            return False
        before, loss = found[-2].loss, step.loss
        lost = not isfinite(loss) or not ROUNDING < loss / variance < LOST
        return lost or abs(before - loss) <= 1e-6 * before

    observe(method, data.X, data.y, Setting(rank, data.truth.has_diagonal, max_iter, 0), seen)
    return found[1:]


def moment_steps(
    data: Sample, law: Law, rank: int, method: str, count: int, seed: int
) -> Iterator[Step]:
    """Take one moment step after another, each on new rows."""
    units, rng = Standardised.of(data.X, data.y), np.random.default_rng([seed, 1])

    def batches() -> Batches:
        yield units.rows(data.X, data.y)
        while True:
            X = law.draw(rng, *data.X.shape)
            yield units.rows(X, data.truth(X))

    models = ITERATIONS[method](batches(), rank, data.truth.has_diagonal, seed)
    yield from (units.step(model) for model in islice(models, 1, count + 1))


@dataclass(frozen=True)
class Race:
    """Training and test rows, features as sampled, on which solvers are compared."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array  # without noise
    setting: Setting
    until_settled: bool = True  # the stopping rule of the paper, besides the limit of iterations

    def run(self, name: str, solver: "Solver | None" = None) -> list[Row]:
        """Run a method or a user's solver; return one line per iteration, including the start.

        CPU time is measured without the scoring.
        """
        lines: list[Row] = []
        seconds, clock = 0.0, process_time()

        def report(passes: int, predict: Predict, loss: Any = None) -> bool:
            """Add the line of an iteration; return whether the solver should stop."""
            nonlocal seconds, clock
            loss = loss if loss is None else float(to_numpy(loss))  # waits for the device
            seconds += process_time() - clock
            train = _nmse(predict, self.X, self.y) if loss is None else loss / _power(self.y)
            error = _nmse(predict, self.X_test, self.y_test)
            if isfinite(train) and np.isnan(error):
                warn(
                    f"The solver {name!r} predicts NaN in iteration {len(lines)}; its error counts "
                    f"as {LARGEST:.0e}."
                )
            line = {"solver": name, "iteration": len(lines), "passes": int(passes)}
            line |= {"train": _plain(train), "nmse": _plain(error), "seconds": seconds}
            lines.append(line)
            stop = len(lines) > self.setting.max_iter
            if self.until_settled and len(lines) > 1:
                before, now = (line["train"] for line in lines[-2:])
                stop = stop or now > LOST or abs(before - now) < SETTLED
            clock = process_time()
            return stop

        if solver is None:
            observe(
                name, self.X, self.y, self.setting,
                lambda step: report(step.passes, step.predict, step.loss),
            )  # fmt: skip
        else:
            solver(self.X, self.y, self.setting, report)
        if not lines:
            raise ValueError(f"The solver {name!r} reported no iteration.")
        return lines


def _power(y: Array) -> float:
    return float(np.mean(to_numpy(y).astype(float) ** 2))


def _nmse(predict: Predict, X: Array, y: Array) -> float:
    """Return the paper's error, E(ŷ − y)²/E y²."""
    with np.errstate(over="ignore", invalid="ignore"):
        f = to_numpy(predict(X)).astype(float)
        if f.shape != tuple(y.shape):
            raise ValueError(f"predict must return {len(y)} numbers; its shape is {f.shape}.")
        return float(np.mean((f - to_numpy(y)) ** 2)) / _power(y)


def _plain(error: float) -> float:
    return min(float(error), LARGEST) if isfinite(error) else LARGEST


Report = Callable[..., bool]  # (passes, predict, loss=None), whether the solver should stop
Solver = Callable[[Array, Array, Setting, Report], None]


def load_solver(path: str | Path) -> tuple[str, Solver]:
    """Return the name of a user's solver and its function."""
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
            raise ValueError(
                f"The solver {str(path)!r} failed{number}: {type(error).__name__}: {error}"
            ) from error

    return str(getattr(module, "NAME", path.stem)), solve
