"""Solvers on the same rows, scored on test rows after every iteration."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import moments_of
from quadlin.core.units import Units
from quadlin.paper import baselines
from quadlin.paper.study import Row
from quadlin.solve.polish import fit_rows
from quadlin.solve.types import Options, Solution

SETTLED = 1e-8  # the paper's: the training error falls by less than this in an iteration
PUBLISHED, OURS, POLISHED = "MES as published", "quadlin MES", "quadlin, polished"
GD, GD_CENTRED = "GD", "GD, centred"
SOLVERS = (PUBLISHED, OURS, POLISHED, GD, GD_CENTRED)  # in the order they are drawn


@dataclass(frozen=True)
class Race:
    """Training rows, test rows, and how the features are standardised."""

    source: MemorySource
    units: Units
    test: MemorySource  # y as drawn
    clean: Array  # (n_test,), y without noise
    power: float  # E y² of the training rows
    rank: int
    iterations: int
    seed: int

    def score(self, function: Callable[[Block], Array]) -> tuple[np.ndarray, np.ndarray]:
        """Return E(ŷ − y)²/E y² on the test rows, y as drawn and y without noise."""
        xp, target = namespace(self.clean), self.units.target
        f = xp.concat([function(Block(chunk.X, self.units)) for chunk in self.test])
        f = xp.reshape(f, (self.clean.shape[0], -1))
        y = target.mean + target.scale * xp.astype(f, xp.float64)

        def nmse(truth: Array) -> np.ndarray:
            with np.errstate(over="ignore", invalid="ignore"):
                error = xp.mean((y - truth[:, None]) ** 2, axis=0) / xp.mean(truth**2)
            return to_numpy(error)

        return nmse(self.test.y), nmse(self.clean)

    def train(self, loss: Any) -> np.ndarray:
        """Return a loss in standardised units as E(ŷ − y)²/E y² of the training rows."""
        return np.asarray(to_numpy(loss) * self.units.target.scale**2 / self.power)


@dataclass
class Watch:
    """The rows of the results for one solver; scoring is not timed."""

    race: Race
    solver: str
    rows: list[Row] = field(default_factory=list)
    clock: float = field(default_factory=perf_counter)
    seconds: float = 0.0

    def note(
        self, step: int, passes: int, loss: Any, function: Callable[[Block], Array], **more: Any
    ) -> bool:
        """Add a line for each function; say whether the paper's rule ends the iteration."""
        train = np.atleast_1d(self.race.train(loss))  # waits for the device
        self.seconds += perf_counter() - self.clock
        before = self.rows[-1]["train"] if self.rows else float("inf")
        for number, (drawn, clean) in enumerate(zip(*self.race.score(function), strict=True)):
            line = {"solver": self.solver, "iteration": step, "passes": passes}
            errors = {"train": train[number], "nmse": drawn, "nmse_clean": clean}
            line |= {name: _plain(error) for name, error in errors.items()}
            self.rows.append(line | {"seconds": self.seconds, "step_size": None, **more})
        self.clock = perf_counter()
        return settled(before, float(train[-1]))


def settled(before: float, now: float) -> bool:
    """Tell whether an error no longer falls; one that rises is watched, unless it is lost."""
    return not isfinite(now) or now > baselines.LOST or abs(before - now) < SETTLED


def _plain(error: float) -> float:
    """Return a number that JSON knows."""
    return min(float(error), 1e30) if isfinite(error) else 1e30


def prepared(
    X: Array, y: Array, X_test: Array, y_test: Array, clean: Array, diagonal: bool, **settings: Any
) -> Race:
    """Standardise by the training rows' own moments: the same units for every solver."""
    xp = namespace(X)
    source = MemorySource(X, y)
    names = [f"x{j}" for j in range(X.shape[1])]
    units = UnitsMaker("free" if diagonal else "zero", True, X.dtype, names)(
        *moments_of(Rows.of(source))
    )
    power = float(xp.mean(xp.astype(y, xp.float64) ** 2))
    return Race(source, units, MemorySource(X_test, y_test), clean, power, **settings)


def run(race: Race, solvers: Iterable[str]) -> list[Row]:
    """Run some of the solvers; one line for each iteration."""
    return [row for solver in solvers for row in _RUNS[solver](race, solver)]


def _published(race: Race, solver: str) -> list[Row]:
    watch, rng = Watch(race, solver), np.random.default_rng(race.seed)
    steps = baselines.published_mes(
        Rows.of(race.source), race.units, race.rank, rng, race.iterations
    )
    for it in steps:
        if watch.note(it.step, it.passes, it.loss, _function(it)) and it.step > 0:
            break
    return watch.rows


def _function(it: baselines.Iterate) -> Callable[[Block], Array]:
    return lambda rows: baselines.predict(it.factors, rows)


def _gradient_descent(race: Race, solver: str) -> list[Row]:
    """Keep the step size of the grid whose training error ends lowest."""
    watch, rng = Watch(race, solver), np.random.default_rng(race.seed)
    walk = baselines.gradient_descent(
        Rows.of(race.source),
        race.units,
        race.rank,
        rng,
        race.iterations,
        centred=solver == GD_CENTRED,
    )
    for it in walk:
        watch.note(it.step, it.passes, it.loss, _function(it))
    g = len(baselines.STEP_SIZES)
    best = min(range(g), key=lambda i: watch.rows[i - g]["train"])
    rows = [row | {"step_size": baselines.STEP_SIZES[best]} for row in watch.rows[best::g]]
    return list(_until_settled(rows))


def _until_settled(rows: list[Row]) -> Iterator[Row]:
    yield rows[0]
    for before, row in pairwise(rows):
        yield row
        if settled(before["train"], row["train"]):
            return


def _ours(race: Race, solver: str) -> list[Row]:
    """Fit by the library's own solver, with the paper's rule to stop in place of its own."""
    options = Options(
        race.rank, polish=solver == POLISHED, max_iter=race.iterations, tol=0.0, whiten="none"
    )
    watch = Watch(race, solver)
    scale = race.units.target.scale**2

    def on_step(solution: Solution) -> bool:
        record = solution.history[-1]
        loss = np.asarray(record.loss / scale)
        return watch.note(record.step, record.passes, loss, _predictor(solution.model))

    constant = race.units.target
    watch.note(0, 0, np.asarray(constant.power), lambda rows: rows.X[:, 0] * 0 + constant.centre)
    weight, rng = float(race.source.X.shape[0]), np.random.default_rng(race.seed)
    fit_rows(Rows.of(race.source), race.units, options, weight, rng, None, on_step)
    return watch.rows


def _predictor(model: Model) -> Callable[[Block], Array]:
    return lambda rows: predict(model, rows)


_RUNS = {
    PUBLISHED: _published,
    OURS: _ours,
    POLISHED: _ours,
    GD: _gradient_descent,
    GD_CENTRED: _gradient_descent,
}
