"""Fits of every method, observed step by step: iterations on standardised rows, and our own fit."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from math import isfinite
from typing import Any

import numpy as np

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import Model, predict, to_raw
from quadlin.core.moments import moments_of
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.paper.iterations import ITERATIONS, Iterate
from quadlin.paper.laws import TWO_VALUED, Law
from quadlin.paper.problems import Sample, fitted, matrix
from quadlin.paper.race import Report, Setting, Standardised
from quadlin.solve.lowrank.polish import fit_rows
from quadlin.solve.lowrank.types import Options, Solution

DIVERGED = 100.0  # times the variance of the target
ROUNDING = 1e-28  # of the variance of the target: nothing is left to improve


def iterate(X: Array, y: Array, setting: Setting, report: Report, method: str) -> None:
    """Run an iteration as a solver of the panels."""
    rows = Standardised.of(X, y)
    models = ITERATIONS[method](
        repeat((rows.Z, rows.t)), setting.rank, setting.has_diagonal, setting.seed
    )
    with np.errstate(over="ignore", invalid="ignore"):
        for model in islice(models, setting.max_iter + 1):

            def predictions(X: Array, model: Iterate = model) -> Array:
                return rows.predictions(model.values(rows.standardise(X)))

            if report(model.passes, predictions, rows.mean_square(model.loss)):
                return


def polish(X: Array, y: Array, setting: Setting, report: Report) -> None:
    """Run our own fit as a solver of the panels, whose rule of stopping replaces the fit's."""
    rows = Rows.of(MemorySource(X, y))
    units = UnitsMaker("auto", True, X.dtype, _names(X))(*moments_of(rows))
    target = units.target

    def reported(model: Model | None, loss: float) -> bool:
        def predictions(X: Array) -> Array:
            f = 0.0 * X[:, 0] if model is None else predict(model, Block(X, units))
            return target.mean + target.scale * f

        return report(rows.walks, predictions, loss)

    reported(None, target.power * target.scale**2)
    options = Options(setting.rank, max_iter=setting.max_iter, tol=0.0)
    rng = np.random.default_rng(setting.seed)
    fit_rows(
        rows, units, options, float(X.shape[0]), rng, None,
        lambda solution: reported(solution.model, solution.history[-1].loss),
    )  # fmt: skip


@dataclass(frozen=True)
class StepModel:
    """y = b + xᵀw + xᵀMx after a step; it predicts as an estimator does."""

    passes: int
    loss: float  # mean squared error on the training rows
    intercept: float
    coef: np.ndarray  # (d,)
    M: np.ndarray  # (d, d)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return b + xᵀw + xᵀMx."""
        return np.asarray(self.intercept + X @ self.coef + np.sum((X @ self.M) * X, axis=1))


def _step_model(model: Iterate, rows: Standardised) -> StepModel:
    """Return the model in the units of the rows as sampled."""
    scale = rows.scale / np.asarray(rows.sd)
    M = model.times(np.eye(len(model.w)))
    constant = model.c
    if not model.has_diagonal:
        M = M - np.diag(np.diag(M))
    elif model.centred:
        constant = constant - np.trace(M)
    M = scale[:, None] * M / np.asarray(rows.sd)
    w = scale * model.w - 2 * M @ rows.mean
    b = rows.centre + rows.scale * constant - rows.mean @ (scale * model.w)
    b = b + rows.mean @ M @ rows.mean
    loss = float(rows.mean_square(model.loss))
    return StepModel(model.passes, loss, float(b), np.asarray(w), np.asarray(M))


def steps(
    method: str,
    X: np.ndarray,
    y: np.ndarray,
    rank: int,
    max_iter: int = 50,
    tol: float = 1e-6,
    has_diagonal: bool | None = None,
) -> Iterator[StepModel]:
    """Yield the model of a method after each step, until the loss no longer falls by `tol` of it.

    By default the diagonal of M is modelled unless the features take two values.
    """
    if method == "polished":
        yield from _fit_steps(X, y, Options(rank, max_iter=max_iter, tol=tol))
        return
    rows = Standardised.of(X, y)
    if has_diagonal is None:
        kappa, phi = np.mean(rows.Z**3, axis=0), np.mean(rows.Z**4, axis=0)
        has_diagonal = bool(np.median(phi - 1 - kappa**2) >= TWO_VALUED)
    models = ITERATIONS[method](repeat((rows.Z, rows.t)), rank, has_diagonal, 0)
    before = 1.0
    with np.errstate(all="ignore"):
        for model in islice(models, 1, max_iter + 1):
            loss = float(model.loss)
            yield _step_model(model, rows)
            if not isfinite(loss) or not ROUNDING < loss < DIVERGED:
                return
            if abs(before - loss) <= tol * before:
                return
            before = loss


def _fit_steps(X: np.ndarray, y: np.ndarray, options: Options) -> list[StepModel]:
    rows = Rows.of(MemorySource(X, y))
    units = UnitsMaker("auto", True, X.dtype, _names(X))(*moments_of(rows))
    seen: list[StepModel] = []

    def note(solution: Solution) -> bool:
        raw, last = to_raw(solution.model, units), solution.history[-1]
        M = matrix(raw.components.T, raw.eigenvalues, to_numpy(units.free) > 0)
        seen.append(StepModel(last.passes, last.loss, raw.intercept, raw.coef, M))
        return False

    with np.errstate(all="ignore"):
        fit_rows(rows, units, options, float(len(y)), np.random.default_rng(0), None, note)
    return seen


def fit(method: str, X: np.ndarray, y: np.ndarray, rank: int, **options: Any) -> StepModel:
    """Return the last model of a method; ours is that of the estimator."""
    if method == "polished":
        model = fitted(X, y, rank, max_iter=options.get("max_iter", 50))
        M = matrix(model.components_.T, model.eigenvalues_, model.has_diagonal_)
        return StepModel(0, 0.0, float(model.intercept_), model.coef_, M)
    *_, last = steps(method, X, y, rank, **options)
    return last


def moment_steps(
    data: Sample, law: Law, rank: int, method: str, count: int, seed: int, fresh: bool
) -> Iterator[StepModel]:
    """Take one moment step after another, each on new rows if they must be fresh."""
    rows, rng = Standardised.of(data.X, data.y), np.random.default_rng([seed, 1])

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield rows.Z, rows.t
        while fresh:
            X = law.draw(rng, *data.X.shape)
            yield rows.standardise(X), (data.truth(X) - rows.centre) / rows.scale
        yield from repeat((rows.Z, rows.t))

    models = ITERATIONS[method](batches(), rank, data.truth.has_diagonal, seed)
    for model in islice(models, 1, count + 1):
        yield _step_model(model, rows)


def _names(X: Array) -> list[str]:
    return [f"x{j}" for j in range(X.shape[1])]
