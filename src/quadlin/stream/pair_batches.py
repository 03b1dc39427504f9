"""A stream with pairs, which are searched in the first batch and fitted to all rows."""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import Array
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive
from quadlin.core.losses import LOSSES
from quadlin.core.moments import Moments, Survey, moments_of
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.choice import fit_choosing
from quadlin.solve.composite.composer import (
    FEWEST_ROWS,
    PairOutcome,
    PairRequest,
    ended,
    first_stage,
    refuse_uninformative,
)
from quadlin.solve.composite.label_pairs import LabelPairs
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.driver import loss_unit
from quadlin.solve.lowrank.types import Options, Plan, Record
from quadlin.solve.pairs.regression import RunningPairs
from quadlin.stream.batch import lengthened


@dataclass(frozen=True)
class PairPending(Additive):
    """Sums over the rows of a batch that is not complete yet."""

    rows: int
    gram: Array  # of the columns of the running regression, and of the response
    features: Moments
    target: Moments
    loss: float = 0.0  # Σω · loss of these rows before they are learned from


def first_with_pairs(
    rows: Rows, plan: Plan, request: PairRequest, surveyed: Survey
) -> tuple[FitState, Options]:
    """Fit the rows of a first batch, with pairs if they show any; also return the options.

    If all parameters fit into a matrix, the state has a regression that continues with the pairs.
    Otherwise later steps continue with M as a whole.
    """
    if LOSSES[plan.options.loss].linked:
        labels = LabelPairs(plan, request, rows, surveyed).fitted(constant=False)
        return _begun(labels.state, labels.options, plan)
    stage, outcome = first_stage(plan, request, rows, surveyed)
    if outcome is None:
        search = stage.search if stage.looked else None
        state, options = fit_choosing(rows, plan, surveyed=surveyed, search=search)
        outcome = PairOutcome(state, options, rows)
        enough = stage.tally.counting >= FEWEST_ROWS  # later rows may be of another kind
        if not ended(state) and stage.possible and enough:
            refuse_uninformative(request, state, plan.make_units, constant=False)
            outcome = stage.beside(state, options)
    return _begun(outcome.for_stream(), outcome.options, plan)


def _begun(state: FitState, options: Options, plan: Plan) -> tuple[FitState, Options]:
    """Return the state with the model of its regression, whose rank stays the same.

    A penalty that the user gave remains that of the stream, whatever the search used.
    """
    running = state.running
    if not plan.automatic.alpha:
        options = replace(options, alpha=plan.options.alpha)
    if running is None:
        return state, options
    model, parts = running.model(plan.make_units.fields)
    state = replace(state, model=model, units=running.units, parts=parts)
    return state, replace(options, rank=int(model.s.shape[0]))


def gather_pairs(pending: PairPending | None, chunk: Chunk, running: RunningPairs) -> PairPending:
    """Add the sums and moments of some rows to the pending ones."""
    rows = Rows.of(MemorySource(chunk.X, chunk.y, chunk.weight))
    sums = running.sums(rows)
    if not np.isfinite(sums.gram).all():
        raise ValueError(
            "The products of some rows, which are far from all earlier rows, are too large to be "
            "squared. Look for wrong units or typing errors in X and y."
        )
    new = PairPending(chunk.X.shape[0], sums.gram, *moments_of(rows), sums.loss)
    return new if pending is None else pending + new


def pair_step(state: FitState, pending: PairPending, make_units: UnitsMaker) -> FitState:
    """Return the state after the pending rows: least squares on all rows so far.

    The record in the history is the error on these rows before the model learned from them.
    """
    assert state.running is not None
    running = state.running.with_sums(pending.gram)
    features, target = state.features + pending.features, state.target + pending.target
    make_units.refuse_overflow(features, target)
    model, parts = running.model(make_units.fields)
    loss = pending.loss / pending.features.weight * loss_unit(running.loss, running.units)
    last = state.history[-1]
    history = lengthened(state.history, Record(last.step + 1, last.passes, loss))
    return replace(
        state,
        model=model,
        units=running.units,
        features=features,
        target=target,
        history=history,
        parts=parts,
        running=running,
    )
