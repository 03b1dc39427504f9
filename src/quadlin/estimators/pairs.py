"""Pairs beside the low-rank part: the fit that goes on to look for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from quadlin.core.model import in_units
from quadlin.core.rows import Rows
from quadlin.core.survey import Survey, survey
from quadlin.core.units import Units
from quadlin.estimators.pair_request import refuse_uninformative
from quadlin.explain.pair_report import PairReport, empty_report, report_of
from quadlin.solve.automatic import Search
from quadlin.solve.choice import Automatic, fit_choosing, search_of
from quadlin.solve.fit_state import FitState
from quadlin.solve.levels import settled
from quadlin.solve.pair_joint import Joint
from quadlin.solve.pair_model import Beside, Composer, Composite, Request
from quadlin.solve.pair_part import Parts, whole
from quadlin.solve.pair_regression import MOST_FEATURES
from quadlin.solve.pair_uncertainty import pair_uncertainty
from quadlin.solve.robust import fit_robustly
from quadlin.solve.types import Options, Record, Status
from quadlin.solve.uncertainty import Uncertainty
from quadlin.stream.stream import FIXED

if TYPE_CHECKING:
    from quadlin.estimators.fitting import Task

FEWEST_ROWS = 12  # that a search makes sense for


@dataclass(frozen=True)
class Outcome:
    """A fit with pairs, or without where none are worth it."""

    state: FitState
    options: Options
    rows: Rows  # with the weights that the fit ended with
    report: PairReport | None = None  # None if none were looked for
    joint: Joint | None = None  # the regression with the pairs
    share: float = 1.0  # of the weights of rows in that regression

    def law(self, fields: Sequence[np.ndarray]) -> Uncertainty | None:
        """Return how sure the fit with pairs is; None where that is not known from its matrix."""
        return None if self.joint is None else pair_uncertainty(self.joint, fields, self.share)


class PairStage:
    """The search for pairs in some rows, before a rank is tried and beside a fit.

    Parameters
    ----------
    task : Task
        What is to be learned.
    request : Request
        Which pairs are wanted.
    rows : Rows
        The rows, with the weights of a fit by Huber's loss.
    surveyed : Survey
        Of these rows.
    units : Units
        Of the models.
    """

    def __init__(
        self, task: "Task", request: Request, rows: Rows, surveyed: Survey, units: Units
    ) -> None:
        self.task, self.request, self.rows, self.units = task, request, rows, units
        self.tally, self.weight = surveyed.tally, surveyed.features.weight
        self.surveyed, self.looked = surveyed, False
        self.penalise = not task.automatic.alpha  # products like L, where the penalty was given
        self.least_penalty = 0.0  # on the products
        self.noise: float | None = None  # variance of that of a row of weight 1, where it is known

    @property
    def possible(self) -> bool:
        """Tell whether there is anything to search."""
        return bool(self.units.target.power) and self.tally.counting >= FEWEST_ROWS

    @cached_property
    def composer(self) -> Composer:
        """Return what searches; as for the evidence, each different row counts once on average."""
        task, share = self.task, self.search.n_rows / self.weight
        return Composer(
            self.search.rows,
            self.units,
            task.options,
            self.search.n_rows,
            task.seed,
            self.request,
            task.make_units.fields,
            task.automatic.rank,
            self.penalise,
            task.automatic.alpha,
            self._refit,
            self.search,
            self.least_penalty * share,
            None if self.noise is None else self.noise * share,
        )

    @cached_property
    def search(self) -> Search:
        """Return the search for a rank, which pairs are compared with."""
        task = self.task
        return search_of(self.rows, self.units, task.options, self.surveyed, task.seed)

    def alone(self, linear: FitState, options: Options) -> Outcome | None:
        """Return pairs beside a linear model if they leave nothing of low rank, else None."""
        composite = self.composer.alone(self._beside(linear, options))
        self.looked = True
        return None if composite is None else self._outcome(composite, linear, options)

    def beside(self, state: FitState, options: Options) -> Outcome:
        """Return a fit with pairs beside it, or as it was."""
        composer, composite, rank = self.composer, None, state.model.s.shape[0]
        # Where pairs beside ridge regression are nothing, or worse than all products, those are.
        nothing = self.looked and composer.clean and not rank
        refused = composer.refused and rank in (0, composer.d)
        if not (nothing or refused):
            composite = composer.composed(self._beside(state, options))
        if composite is not None:
            return self._outcome(composite, state, options)
        r2 = 1 - composer.start_loss / (composer.n_rows * self.units.target.power)
        names, counting = self.task.make_units.names, self.tally.counting
        report = empty_report(len(names), composer.candidates, counting, r2)
        return Outcome(state, options, self.rows, report)

    def _beside(self, state: FitState, options: Options) -> Beside:
        share = self.composer.n_rows / self.weight
        first, second = options.alpha
        return Beside(state.model, (first * share, second * share))

    def _refit(self, rest: Rows, rank: int | None) -> Beside:
        """Fit what pairs leave, of a rank or of the best one."""
        task = self.task
        chooses = Automatic(rank is None and task.automatic.rank, task.automatic.alpha)
        given = task.options if rank is None else replace(task.options, rank=rank)
        search, surveyed = None, survey(rest)
        if chooses.alpha and surveyed.target.var[0] > 0:
            units = task.make_units(surveyed.features, surveyed.target)
            search = search_of(rest, units, given, surveyed, task.seed)
            search.thorough = False  # it is a start for pairs and L together
        args = (task.make_units, task.seed, chooses, None, None, surveyed, search)
        beside, chosen = fit_choosing(rest, given, *args)
        if beside.status is Status.interrupted:
            raise KeyboardInterrupt
        return Beside(in_units(beside.model, beside.units, self.units), chosen.alpha)

    def _outcome(self, composite: Composite, state: FitState, options: Options) -> Outcome:
        """Return the state with L + S for M."""
        joint, fields = composite.joint, self.task.make_units.fields
        model = settled(whole(joint.model, joint.terms), self.units, fields)
        low_rank = settled(joint.model, self.units, fields)
        loss = joint.fit.loss / joint.search.weight * self.units.target.scale**2
        record = Record(state.history[-1].step + 1, self.rows.walks, loss)
        state = replace(
            state,
            model=model,
            history=(*state.history, record),
            status=Status.converged,
            parts=Parts(low_rank.U, low_rank.s, joint.terms),
        )
        share = self.composer.n_rows / self.weight
        alpha = (composite.alpha[0] / share, composite.alpha[1] / share)
        options = replace(options, rank=int(model.s.shape[0]), alpha=alpha)
        names, counting = self.task.make_units.names, self.tally.counting
        report = report_of(names, joint.search, joint.fit, counting, low_rank=False)
        return Outcome(state, options, self.rows, report, joint, share)


def pairs_first(task: "Task", rows: Rows, surveyed: Survey) -> tuple[PairStage, Outcome | None]:
    """Look for pairs beside a linear model, before any rank is tried."""
    assert task.pairs is not None
    units = task.make_units(surveyed.features, surveyed.target)
    stage = PairStage(task, task.pairs, rows, surveyed, units)
    searches = task.automatic.rank and task.pairs.given is None and not task.robust
    if not (searches and stage.possible and len(task.make_units.names) <= MOST_FEATURES):
        return stage, None
    options, chooses = replace(task.options, rank=0), Automatic(False, task.automatic.alpha)
    linear, options = fit_choosing(
        rows, options, task.make_units, task.seed, chooses, None, None, surveyed, stage.search
    )
    if linear.status is Status.interrupted:
        return stage, Outcome(linear, options, rows)
    try:
        return stage, stage.alone(linear, options)
    except KeyboardInterrupt:
        return stage, Outcome(replace(linear, status=Status.interrupted), options, rows)


def pairs_beside(stage: PairStage, outcome: Outcome, rows: Rows, surveyed: Survey) -> Outcome:
    """Look for pairs beside a fit; return it with them, or as it was."""
    state, options, task, request = outcome.state, outcome.options, stage.task, stage.request
    ended = state.status in (Status.interrupted, Status.stopped, Status.diverged)
    if ended or not stage.possible:
        return outcome
    refuse_uninformative(request, state, task.make_units)
    try:
        if not task.robust:
            return stage.beside(state, options)
        weighted = outcome.rows
        stage = PairStage(task, request, weighted, survey(weighted), state.units)
        beside = stage.beside(state, options)
        return beside if beside.state.parts is None else _robust(task, beside, rows, surveyed)
    except KeyboardInterrupt:  # the model without pairs is there
        return replace(outcome, state=replace(state, status=Status.interrupted))


def _robust(task: "Task", start: Outcome, rows: Rows, surveyed: Survey) -> Outcome:
    """Keep the pairs that were chosen, and fit them and the rest by Huber's loss."""
    state, parts = start.state, start.state.parts
    assert parts is not None
    given = tuple(zip(parts.terms.i.tolist(), parts.terms.j.tolist(), strict=True))
    options = replace(start.options, rank=int(parts.s.shape[0]))
    fixed = replace(task, automatic=FIXED, options=options)
    base, last = replace(state, model=state.low_rank, parts=None), [start]

    def least_squares(view: Rows, _: FitState | None) -> FitState:
        stage = PairStage(fixed, Request(given=given), view, survey(view), state.units)
        stage.penalise = not task.automatic.alpha
        last[0] = stage.beside(base, options)
        return last[0].state

    state, weighted = fit_robustly(rows, least_squares, state)
    state = replace(state, features=surveyed.features, target=surveyed.target)
    first, second = start.report, last[0].report
    assert first is not None
    assert second is not None
    order = {(p.first, p.second): p.order for p in first.pairs}  # the way there was the search's
    pairs = [p._replace(order=order[p.first, p.second]) for p in second.pairs]
    return replace(last[0], state=state, rows=weighted, report=replace(first, pairs=pairs))
