"""Solvers on the same rows, scored on test rows after every iteration."""

from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.messages import warn
from quadlin.paper.descent import STEP_SIZES
from quadlin.paper.solver import Predict, Setting, Solver
from quadlin.paper.standardised import blocks
from quadlin.paper.study import Row

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
