"""The result of a fit, and the fit of rows that can be read again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from quadlin.core.arrays import Array, mapped, moved_to, namespace, to_host, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.model import (
    Model,
    RawModel,
    in_units,
    positive,
    predict,
    to_raw,
    with_rank,
)
from quadlin.core.moments import Moments, Survey, Tally, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units, UnitsMaker
from quadlin.solve.lowrank.levels import settled
from quadlin.solve.lowrank.linear_model import unrestricted_optimum
from quadlin.solve.lowrank.polish import fit_from_few, fit_rows
from quadlin.solve.lowrank.product_gram import products_pay
from quadlin.solve.lowrank.types import Options, Plan, Record, Solution, Status
from quadlin.solve.lowrank.whitening import Identity, Whitener
from quadlin.solve.pairs.products import Parts
from quadlin.solve.pairs.regression import PairNotes, RunningPairs


@dataclass(frozen=True)
class FitState:
    """The model, its units, and what is needed to continue from it."""

    model: Model
    units: Units
    features: Moments
    target: Moments
    history: tuple[Record, ...]
    status: Status
    white: Whitener
    pace: float = 1.0  # of the steps of a stream, halved after a step that did harm
    before: Model | None = None  # the model before the last step of a stream, to undo it
    walker: Model | None = None  # from which steps continue, if `model` is their mean
    parts: Parts | None = None  # of M, if it is more than a low-rank part
    running: RunningPairs | None = None  # with which a stream with pairs continues
    notes: PairNotes | None = None  # of the search in the first batch of a stream

    @property
    def stepping(self) -> Model:
        """Return the model from which the next step of a stream is taken."""
        return self.model if self.walker is None else self.walker

    @property
    def has_steps(self) -> bool:
        """Return whether the model is more than the constant with which every fit begins."""
        return self.history[-1].step > 0

    @cached_property
    def raw(self) -> RawModel:
        """Return the model in the user's units."""
        return to_raw(self.model, self.units)

    @cached_property
    def low_rank(self) -> Model:
        """Return the model with only the low-rank part L in M."""
        return self.model if self.parts is None else self.parts.low_rank(self.model)

    @cached_property
    def raw_low_rank(self) -> RawModel:
        """Return the same in the user's units."""
        return to_raw(self.low_rank, self.units)

    def n_parameters(self, options: Options) -> int:
        """Return the number of parameters that were fitted."""
        dof = options.dof(*self.low_rank.U.shape)
        return dof + (0 if self.parts is None else len(self.parts.terms.i))


OnState = Callable[[FitState], bool] | None  # called after each step; True stops the fit


def fit_table(
    rows: Rows,
    plan: Plan,
    warm: FitState | None = None,
    on_step: OnState = None,
    surveyed: Survey | None = None,
) -> FitState:
    """Fit rows that can be read again, from scratch or from an earlier state."""
    surveyed = rows.reduce(survey) if surveyed is None else surveyed
    if rows.engine.hosted is not None:
        rows = replace(rows, engine=rows.engine.hosted)
        return _fit_on_host(rows, plan, warm, on_step, surveyed)
    options, seed = plan.options, plan.seed

    def state(solution: Solution, white: Whitener) -> FitState:
        return fit_state(solution, surveyed, options, plan.make_units, white)

    hook = None if on_step is None else lambda solution: on_step(state(solution, Identity()))
    units, tally, fitted = plan.make_units(surveyed.features, surveyed.target), surveyed.tally, None
    d, start = int(units.scale.shape[0]), warm_start(warm, units, options)
    automatic = start is None and options.solver == "auto" and units.target.power > 0
    if automatic and not 0 < options.rank < d:
        start = unrestricted_optimum(rows, units, options, tally.effective)
    elif automatic and not products_pay(tally.effective, d):
        fitted = fit_from_few(rows, units, options, plan.make_units, tally, seed, hook)
    if fitted is not None:
        return state(*fitted)
    rng, weight = np.random.default_rng(seed), surveyed.features.weight
    return state(*fit_rows(rows, units, options, weight, rng, start, hook, tally.effective))


def warm_start(warm: FitState | None, units: Units, options: Options) -> Model | None:
    """Return the model to continue from, in these units and of the requested rank.

    None if there is no earlier state, or if it has other features.
    """
    if warm is None or warm.model.w.shape != units.scale.shape:
        return None
    start = in_units(warm.model, warm.units, units)
    return with_rank(positive(start) if options.psd else start, options.rank)


def _fit_on_host(
    rows: Rows, plan: Plan, warm: FitState | None, on_step: OnState, surveyed: Survey
) -> FitState:
    """Fit rows on an accelerator, which computes the sums, with a solver in numpy.

    A step factorises small matrices, one after another, and its decisions depend on their values:
    this takes a tenth of the time on the host. The state is moved to the accelerator.
    """
    like = surveyed.features.mean
    xp = namespace(like)

    def back(state: FitState) -> FitState:
        return mapped(lambda leaf: moved_to(leaf, xp, like.device), state)  # type: ignore[no-any-return]

    warm, surveyed = mapped(to_host, (warm, surveyed))
    dtype = to_numpy(xp.empty(0, dtype=plan.make_units.dtype)).dtype
    plan = replace(plan, make_units=replace(plan.make_units, dtype=dtype))
    hook = None if on_step is None else lambda state: on_step(back(state))
    return back(fit_table(rows, plan, warm, hook, surveyed))


def fit_state(
    solution: Solution,
    surveyed: Survey,
    options: Options,
    make_units: UnitsMaker,
    white: Whitener,
) -> FitState:
    """Return the state of a solution; ambiguous levels follow the convention of `levels`."""
    units, model = solution.units, solution.model
    if len(make_units.fields) and options.levels_are_ambiguous:
        model = settled(model, units, make_units.fields)
    moments = (surveyed.features, surveyed.target)
    return FitState(model, units, *moments, solution.history, solution.status, white)


def with_row_count(state: FitState, tally: Tally, options: Options) -> FitState:
    """Return the state with the status `too_few_rows` where there are fewer than parameters."""
    few = tally.counting < state.n_parameters(options) and not any(options.alpha)
    unfinished = (Status.converged, Status.out_of_steps, Status.out_of_passes)
    if few and state.status in unfinished:
        return replace(state, status=Status.too_few_rows)
    return state


def squared_errors(model: Model, units: Units, rows: Rows) -> tuple[Array, Array]:
    """Return (r², ω) for the rows, in standardised units: one pass."""
    xp = namespace(model.w)
    errors, weights = zip(*rows.collect(_squared_errors, model, units), strict=True)
    return xp.concat(list(errors)), xp.concat(list(weights))


def _squared_errors(chunk: Chunk, model: Model, units: Units) -> tuple[Array, Array]:
    xp = namespace(model.w)
    r = predict(model, Block(chunk.X, units)) - units.standardised_target(chunk.y)
    squares = xp.astype(r, xp.float64) ** 2
    return squares, xp.ones_like(squares) if chunk.weight is None else chunk.weight
