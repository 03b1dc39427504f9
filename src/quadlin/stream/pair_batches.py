"""A stream with pairs: searched in the first batch, then fitted to all rows that come."""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import Array
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.survey import moments_of, survey
from quadlin.core.units import UnitsMaker
from quadlin.solve.choice import fit_choosing
from quadlin.solve.fit_state import FitState
from quadlin.solve.pair_composite import PairRequest
from quadlin.solve.pair_running import PairNotes, RunningPairs
from quadlin.solve.pair_stage import (
    PairOutcome,
    Plan,
    ended,
    first_stage,
    refuse_uninformative,
)
from quadlin.solve.types import Options, Record
from quadlin.stream.batch import lengthened


@dataclass(frozen=True)
class PairPending(Additive):
    """What the rows of the batch that is being gathered have left behind."""

    rows: int
    gram: Array  # of the columns of the running regression, and of the response
    features: Moments
    target: Moments


def first_with_pairs(rows: Rows, plan: Plan, request: PairRequest) -> tuple[FitState, Options]:
    """Fit the rows of a first batch with pairs, as far as there are some; also return the options.

    The state has a regression that goes on with the pairs where all its parameters fit into a
    matrix; else the steps that follow go on with M as a whole.
    """
    surveyed = survey(rows)
    stage, outcome = first_stage(plan, request, rows, surveyed)
    if outcome is None:
        search = stage.search if stage.looked else None
        args = (plan.options, plan.make_units, plan.seed, plan.automatic)
        state, options = fit_choosing(rows, *args, surveyed=surveyed, search=search)
        outcome = PairOutcome(state, options, rows)
        if not ended(state) and stage.possible:
            refuse_uninformative(request, state, plan.make_units, constant=False)
            outcome = stage.beside(state, options)
    state = replace(outcome.state, notes=_notes(outcome))
    running = None if outcome.joint is None else RunningPairs.of(outcome.joint, outcome.share)
    if running is None:
        return state, outcome.options
    model, parts = running.model(plan.make_units.fields)
    state = replace(state, model=model, units=running.units, parts=parts, running=running)
    return state, replace(outcome.options, rank=int(model.s.shape[0]))


def _notes(outcome: PairOutcome) -> PairNotes | None:
    searched, joint = outcome.searched, outcome.joint
    if searched is None:
        return None
    if joint is None:
        return PairNotes(searched.n_rows, searched.candidates, ((0.0, searched.r2),))
    fit, power, candidates = joint.fit, joint.search.power, joint.search.criterion.candidates
    path = tuple((c.value - fit.path[0].value, 1 - c.loss / power) for c in fit.path)
    return PairNotes(searched.n_rows, candidates, path, fit.exchangeable, fit.at_limit)


def gather_pairs(pending: PairPending | None, chunk: Chunk, running: RunningPairs) -> PairPending:
    """Add the sums and moments of some rows to those that wait."""
    rows = Rows.of(MemorySource(chunk.X, chunk.y, chunk.weight))
    gram = running.sums(rows)
    if not np.isfinite(gram).all():
        raise ValueError(
            "Some rows are so far from all earlier ones that their products cannot be squared. "
            "Look for wrong units or typing errors in X and y."
        )
    new = PairPending(chunk.X.shape[0], gram, *moments_of(rows))
    return new if pending is None else pending + new


def pair_step(state: FitState, pending: PairPending, make_units: UnitsMaker) -> FitState:
    """Return the state with the rows that wait: the least squares of all rows so far.

    Its record is the error of these rows before they were learned.
    """
    assert state.running is not None
    before, running = state.running, state.running.with_sums(pending.gram)
    features, target = state.features + pending.features, state.target + pending.target
    make_units.refuse_overflow(features, target)
    model, parts = running.model(make_units.fields)
    squares = before.loss_of(pending.gram, before.solved.beta)
    loss = squares / float(pending.gram[0, 0]) * running.units.target.scale**2
    last = state.history[-1]
    history = lengthened(state.history, Record(last.step + 1, last.passes, loss))
    return replace(
        state,
        model=model,
        features=features,
        target=target,
        history=history,
        parts=parts,
        running=running,
    )
