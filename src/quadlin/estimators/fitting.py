"""From rows and an estimator's options to everything it learns: survey, rank, fit, uncertainty."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quadlin.core.arrays import namespace
from quadlin.core.messages import warn
from quadlin.core.rows import Rows
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import Survey, Tally, survey
from quadlin.estimators.columns import Columns, check_weights
from quadlin.estimators.fitted import Fitted
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.fit_state import FitState, fit_table
from quadlin.solve.rank import choose_rank
from quadlin.solve.robust import fit_robustly, robust_law, tighter
from quadlin.solve.types import Options, Status
from quadlin.solve.uncertainty import Uncertainty, uncertainty_of
from quadlin.stream.stream import Stream

BATCH_PER_PARAMETER = 10  # rows of a batch for each of the (k+1)·d parameters
BATCH_ELEMENTS = 1 << 25  # and at most this many entries


@dataclass(frozen=True)
class Task:
    """What an estimator wants to learn from rows of these columns."""

    options: Options
    make_units: UnitsMaker
    columns: Columns
    seed: int
    batch_size: int | str = "auto"
    choose_rank: bool = False
    robust: bool = False
    uncertainty: bool = False

    def fitted(self, stream: Stream, law: Uncertainty | None = None) -> Fitted:
        """Return what was learned."""
        return Fitted(stream, self.columns, tuple(self.make_units.fields), law)

    def stream(self, options: Options, state: FitState | None = None) -> Stream:
        """Return a stream that begins, or goes on from a fit."""
        d = len(self.make_units.names)
        most = max(2, BATCH_ELEMENTS // d)
        if self.batch_size == "auto":
            size = max(2, min(BATCH_PER_PARAMETER * (options.rank + 1) * d, most))
        else:
            size = most = int(self.batch_size)
        return Stream(options, size, most, self.make_units, self.seed, state)


def fit(
    task: Task,
    rows: Rows,
    warm: FitState | None,
    on_step: Callable[[Callable[[], dict[str, Any]]], bool] | None = None,
) -> Fitted:
    """Fit rows that can be walked many times.

    `on_step` is called after each step with a function that returns the attributes of an estimator
    fitted so far, and stops the fit by returning True.
    """
    surveyed = survey(rows)
    check_weights(surveyed.tally, task.make_units.dtype)
    options = task.options
    if task.choose_rank:
        options = replace(options, rank=_rank(task, rows, surveyed))

    def fitted(state: FitState) -> Fitted:
        return task.fitted(task.stream(options, state).counted(surveyed.tally))

    hook = None
    if on_step is not None:

        def hook(state: FitState) -> bool:
            return on_step(lambda: fitted(state).attributes())

    state, weighted = _fit_state(task, options, rows, surveyed, warm, hook)
    result = fitted(with_row_count(state, surveyed.tally, options))
    if task.uncertainty and state.status is not Status.interrupted:
        try:
            law = law_of(state, weighted, options, task.make_units.fields, task.seed)
            law = robust_law(law, rows, weighted, state) if task.robust else law
            result = replace(result, law=law)
        except KeyboardInterrupt:  # the model is there, its standard errors are not
            result = result.with_state(replace(result.state, status=Status.interrupted))
    return result.with_passes(rows)


def _rank(task: Task, rows: Rows, surveyed: Survey) -> int:
    units, weight = task.make_units(surveyed.features, surveyed.target), surveyed.features.weight
    return choose_rank(rows, units, task.options, weight, np.random.default_rng(task.seed))


def _fit_state(
    task: Task,
    options: Options,
    rows: Rows,
    surveyed: Survey,
    warm: FitState | None,
    on_step: Callable[[FitState], bool] | None,
) -> tuple[FitState, Rows]:
    """Fit by least squares or by Huber's loss; also return the rows as they were weighted."""
    make_units, seed = task.make_units, task.seed
    if not task.robust:
        return fit_table(rows, options, make_units, seed, warm, on_step, surveyed), rows
    make_units.refuse_overflow(surveyed.features, surveyed.target)
    eps = float(namespace(surveyed.features.mean).finfo(make_units.dtype).eps)
    closer = replace(options, tol=tighter(options.tol, eps))

    def least_squares(rows: Rows, warm: FitState | None) -> FitState:
        return fit_table(rows, closer, make_units, seed, warm, on_step)

    state, weighted = fit_robustly(rows, least_squares, warm)
    # The moments are those of the rows as they were given, for a stream that goes on from here.
    return replace(state, features=surveyed.features, target=surveyed.target), weighted


def law_of(
    state: FitState, rows: Rows, options: Options, fields: Sequence[np.ndarray], seed: int
) -> Uncertainty:
    """Measure how sure a fit is; warn where that cannot be known."""
    rng = np.random.default_rng(seed)
    law = uncertainty_of(rows, state.model, state.units, options, state.white, rng, fields=fields)
    if not law.noise >= 0:
        warn(
            "Standard errors are not known (nan), because there are no more rows than parameters. "
            "Weights count as repetitions of rows; scale them to a mean of 1."
        )
    return law


def with_row_count(state: FitState, tally: Tally, options: Options) -> FitState:
    """Return the state with the status `too_few_rows` where there are fewer than parameters."""
    dof = degrees_of_freedom(*state.model.U.shape, **options.parts)
    few = tally.counting < dof and not any(options.alpha)
    unfinished = (Status.converged, Status.out_of_steps, Status.out_of_passes)
    if few and state.status in unfinished:
        return replace(state, status=Status.too_few_rows)
    return state
