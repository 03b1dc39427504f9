"""Fits of the library, observed step by step: the only module of the studies that calls solvers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from quadlin.core.arrays import Array
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import Model, constant_model, predict, to_raw
from quadlin.core.moments import moments_of
from quadlin.core.rows import Rows
from quadlin.core.units import Units, UnitsMaker
from quadlin.paper.laws import Law
from quadlin.paper.problems import Sample
from quadlin.paper.solver import Report, Setting
from quadlin.solve.lowrank.moment_sequence import State, evaluated, guarded_step, plain_step
from quadlin.solve.lowrank.polish import fit_rows
from quadlin.solve.lowrank.types import Options, Problem, Solution


def panel_fit(X: Array, y: Array, setting: Setting, report: Report, method: str) -> None:
    """Fit as a solver of the panels: `method` is plain (the authors'), guarded or polished.

    The stopping rule of the panels replaces that of the solver.
    """
    rows = Rows.of(MemorySource(X, y))
    units = units_for(rows, X, "free" if setting.has_diagonal else "zero")
    target = units.target
    rng = np.random.default_rng(setting.seed)
    step = "plain" if method == "plain" else "guarded"
    options = Options(
        setting.rank,
        max_iter=setting.max_iter,
        tol=0.0,
        whiten="none",
        polish=method == "polished",
        step=step,
    )

    def reported(model: Model, loss: float) -> bool:
        def predictions(X: Array) -> Array:
            return target.mean + target.scale * predict(model, Block(X, units))

        return report(rows.walks, predictions, loss)

    def on_step(solution: Solution) -> bool:
        return reported(solution.model, solution.history[-1].loss)

    square = target.scale**2
    reported(constant_model(units, 1), target.power * square)
    if method == "polished":
        fit_rows(rows, units, options, float(X.shape[0]), rng, None, on_step)
        return
    problem = Problem(rows, units, options, rng)
    with np.errstate(all="ignore"):
        for state in _states(lambda number, state: problem, problem, step, setting.max_iter):
            if reported(state.model, state.loss * square):
                return


def _states(
    problem_of: Callable[[int, State], Problem], first: Problem, step: str, steps: int
) -> Iterator[State]:
    """Yield the state after each moment step; another problem may be given for each."""
    move = plain_step if step == "plain" else guarded_step
    units = first.units
    state = State(constant_model(units, first.options.rank), units.target.power)
    for number in range(steps):
        problem = problem_of(number, state)
        if problem is not first:  # new rows, whose residual is unknown
            state = evaluated(problem, state.model, state.previous)
        state = move(problem, state)
        if state.done is not None:  # as far as rounding allows, or lost
            return
        yield state


@dataclass(frozen=True)
class StepModel:
    """The model of a fit after a step; it predicts as an estimator does."""

    passes: int
    loss: float  # mean squared error on the training rows
    intercept_: float
    coef_: np.ndarray
    components_: np.ndarray
    eigenvalues_: np.ndarray
    has_diagonal_: np.ndarray

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return b + xᵀw + xᵀMx."""
        A, s = self.components_, self.eigenvalues_
        left_out = np.where(self.has_diagonal_, 0.0, s @ A**2)
        f = self.intercept_ + X @ self.coef_ + ((X @ A.T) ** 2) @ s - (X * X) @ left_out
        return np.asarray(f)


def watched(X: np.ndarray, y: np.ndarray, options: Options) -> list[StepModel]:
    """Fit as an estimator does, and return the model after each step."""
    rows = Rows.of(MemorySource(X, y))
    units = units_for(rows, X)
    steps: list[StepModel] = []

    def note(solution: Solution) -> bool:
        last = solution.history[-1]
        steps.append(_step_model(solution.model, units, last.passes, last.loss))
        return False

    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        fit_rows(rows, units, options, float(len(y)), rng, None, note)
    return steps


def moment_steps(
    data: Sample, law: Law, rank: int, step: str, steps: int, seed: int, fresh: bool
) -> Iterator[StepModel]:
    """Take one moment step after another, each on new rows if they must be fresh."""
    options = Options(rank, step=step, polish=False, tol=0.0)
    rng = np.random.default_rng([seed, 1])
    rows = Rows.of(MemorySource(data.X, data.y))
    units = units_for(rows, data.X)
    first = Problem(rows, units, options, rng)

    def problem_of(number: int, state: State) -> Problem:
        if number == 0 or not fresh:
            return first
        Z = law.draw(rng, *data.X.shape)
        return Problem(Rows.of(MemorySource(Z, data.truth(Z))), units, options, rng)

    for state in _states(problem_of, first, step, steps):
        yield _step_model(state.model, units, rows.walks, state.loss)


def units_for(rows: Rows, X: Array, diagonal: str = "auto") -> Units:
    """Return the units in which an estimator would fit rows with the features X: one pass."""
    names = [f"x{j}" for j in range(X.shape[1])]
    return UnitsMaker(diagonal, True, X.dtype, names)(*moments_of(rows))


def _step_model(model: Model, units: Units, passes: int, loss: float) -> StepModel:
    raw = to_raw(model, units)
    parts = (raw.intercept, raw.coef, raw.components, raw.eigenvalues)
    return StepModel(passes, loss, *parts, units.free > 0)
