"""The fit of rows that can be read many times, with any loss: what is chosen, pairs, and the law.

`fit` looks for pairs to add to a linear model, chooses rank and penalties, looks for pairs to add
to the result, and measures how sure it is of it. Huber's loss does so for rows weighted anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from quadlin.core.arrays import namespace
from quadlin.core.losses import LOSSES
from quadlin.core.moments import Survey, Tally, survey
from quadlin.core.rows import Rows
from quadlin.solve.choose.choice import fit_choosing
from quadlin.solve.choose.least_squares import LeastSquares
from quadlin.solve.choose.search import Search
from quadlin.solve.choose.wide_rows import swept_law, with_units_for
from quadlin.solve.composite.composer import (
    PairOutcome,
    PairRequest,
    PairStage,
    ProductPrior,
    ended,
    first_stage,
    refuse_uninformative,
)
from quadlin.solve.composite.label_pairs import LabelPairs
from quadlin.solve.fits.fit_state import FitState, fit_table, with_row_count
from quadlin.solve.fits.robust import ROUGHLY, bend_of, fit_robustly, robust_law, tighter
from quadlin.solve.fits.uncertainty import (
    NORMAL,
    Uncertainty,
    made_robust,
    uncertainty_of,
    warn_if_unknown,
    with_noise_of_complete_rows,
)
from quadlin.solve.labels.label_choice import fit_logistic
from quadlin.solve.labels.logistic import Working
from quadlin.solve.lowrank.types import FIXED, Options, Plan, Status, finished

MOST_KEPT = 512  # parameters of a regression with pairs that `partial_fit` could go on with
PROVISIONAL_ALPHA = 0.02  # of the weight

OnState = Callable[[FitState], bool] | None  # called after each step; True stops the fit


@dataclass(frozen=True, kw_only=True)
class TablePlan(Plan):
    """How the rows of a table are fitted, with what is added to a rank and penalties."""

    robust: bool = False  # by Huber's loss
    uncertainty: bool | str = False  # or "robust"
    pairs: PairRequest | None = None


@dataclass(frozen=True)
class TableFit:
    """What was learned from the rows of a table."""

    state: FitState
    options: Options  # rank and penalties as given or chosen
    rows: Rows  # with the weights at the end of the fit
    searched: PairOutcome | None = None  # the search for pairs; None if there was none
    last: PairOutcome | None = None  # its pairs as they were fitted last
    deviances: tuple[float, ...] = ()  # of labels: D² with the first 0, 1, … pairs
    factor: float = 1.0  # of labels: from shares of a sum of squares to those of the deviance
    law: Uncertainty | None = None

    @classmethod
    def of(cls, outcome: PairOutcome) -> "TableFit":
        """Return a fit by least squares, with pairs or without."""
        searched = None if outcome.searched is None else outcome
        return cls(outcome.state, outcome.options, outcome.rows, searched, searched)

    def kept(self) -> FitState:
        """Return the state with a regression of its pairs for a stream, if that is small."""
        state, last = self.state, self.last
        if last is not None and not self.deviances:
            state = replace(last, state=state).for_stream(MOST_KEPT)
        if state.running is not None and state.running.size > MOST_KEPT:
            state = replace(state, running=None)
        return state


def with_passes(state: FitState, rows: Rows) -> FitState:
    """Return the state with all passes over the rows counted in the last line of its history."""
    last = replace(state.history[-1], passes=rows.walks)
    return replace(state, history=(*state.history[:-1], last))


def interrupted(state: FitState) -> FitState:
    """Return the state with the status of a fit that was interrupted."""
    return replace(state, status=Status.interrupted)


def fit(
    plan: TablePlan,
    rows: Rows,
    surveyed: Survey,
    warm: FitState | None = None,
    on_step: OnState = None,
) -> tuple[TableFit, TablePlan]:
    """Fit rows that can be read many times; also return the plan with its choices."""
    plan = with_units_for(rows, plan, surveyed)
    fitted = _fit(plan, rows, surveyed, warm, on_step)
    state = fitted.state if plan.pairs is None else fitted.kept()
    state, law = with_row_count(state, surveyed.tally, fitted.options), None
    if plan.uncertainty and state.status is not Status.interrupted:
        try:
            law = _law_of_fit(plan, rows, replace(fitted, state=state), surveyed.tally)
        except KeyboardInterrupt:  # the model is there, its standard errors are not
            state = interrupted(state)
    return replace(fitted, state=with_passes(state, rows), law=law), plan


def _fit(
    plan: TablePlan, rows: Rows, surveyed: Survey, warm: FitState | None, on_step: OnState
) -> TableFit:
    """Fit rows, with pairs where they are wanted."""
    request, stage, first = plan.pairs, None, None
    if request is not None and LOSSES[plan.options.loss].linked:
        found = LabelPairs(plan, request, rows, surveyed).fitted(warm, on_step)
        ends = (found.search, found.tested, found.deviances, found.factor)
        fitted = TableFit(found.state, found.options, rows, *ends)
        if on_step is not None:
            on_step(fitted.state)
        return fitted
    if request is not None:
        stage, first = first_stage(plan, request, rows, surveyed, not plan.robust)
    if first is not None:
        if on_step is not None:
            on_step(first.state)
        return TableFit.of(first)
    search = stage.search if stage is not None and stage.looked else None
    fitted = TableFit(*_fit_state(plan, rows, surveyed, warm, on_step, search))
    return fitted if stage is None else _pairs_beside(plan, stage, fitted, rows, surveyed)


def _pairs_beside(
    plan: TablePlan, stage: PairStage, fitted: TableFit, rows: Rows, surveyed: Survey
) -> TableFit:
    """Look for pairs in addition to a fit; return it with them, or as it was."""
    state, request = fitted.state, stage.request
    if ended(state) or not stage.possible:
        return fitted
    refuse_uninformative(request, state, plan.make_units)
    try:
        if not plan.robust:
            return TableFit.of(stage.beside(state, fitted.options))
        weighted = fitted.rows
        stage = PairStage(plan, request, weighted, _counted(weighted, surveyed), state.units)
        beside = stage.beside(state, fitted.options)
        if beside.state.parts is None:
            return TableFit.of(beside)
        return _robust_pairs(plan, beside, rows, surveyed)
    except KeyboardInterrupt:  # the model without pairs is there
        return replace(fitted, state=interrupted(state))


def _counted(weighted: Rows, surveyed: Survey) -> Survey:
    """Return the survey of reweighted rows, which are as many observations as given."""
    return replace(weighted.reduce(survey), tally=surveyed.tally)


def _robust_pairs(plan: TablePlan, start: PairOutcome, rows: Rows, surveyed: Survey) -> TableFit:
    """Keep the pairs that were chosen, and fit them and the rest by Huber's loss."""
    state, parts = start.state, start.state.parts
    assert parts is not None
    assert start.joint is not None
    given = PairRequest.of(parts.terms, start.joint.entry)
    options = replace(start.options, rank=int(parts.s.shape[0]))
    told = replace(plan, automatic=FIXED, options=options)
    base, last = replace(state, model=state.low_rank, parts=None), [start]
    prior = ProductPrior(like_low_rank=not plan.automatic.alpha)

    def least_squares(view: Rows, _: FitState | None, tol: float) -> FitState:
        stage = PairStage(told, given, view, _counted(view, surveyed), state.units, prior)
        last[0] = stage.beside(base, replace(options, tol=tol))
        return last[0].state

    state, weighted = fit_robustly(rows, least_squares, options.tol, begin=state)
    return TableFit(_of_all_rows(state, surveyed), last[0].options, weighted, start, last[0])


def _law_of_fit(plan: TablePlan, rows: Rows, fitted: TableFit, tally: Tally) -> Uncertainty:
    """Measure how sure a fit is, with its pairs, its loss and its missing values."""
    state, options, weighted = fitted.state, fitted.options, fitted.rows
    robust = plan.uncertainty == "robust"
    bend = bend_of(rows, state) if plan.robust and robust else inf
    law = None if fitted.last is None else fitted.last.law(plan.make_units.fields)
    if law is None and not (robust or plan.robust or LOSSES[options.loss].linked):
        law = swept_law(rows, plan, state, tally)
    if law is None:
        law = law_of(state, weighted, options, plan, bend)
    elif LOSSES[options.loss].linked:
        law = replace(law, noise=1.0, error=1.0, left=NORMAL)
        if robust:
            about = Working.about(state.model, weighted, state.units, options.fit_intercept)
            model = replace(state.model, c=state.model.c - about.offset)
            law = made_robust(law, about.rows, model)
        law = replace(law, units=state.units)
    elif robust:
        law = made_robust(law, weighted, state.model, bend)
    law = robust_law(law, rows, weighted, state) if plan.robust else law
    if tally.filled and not (plan.robust or LOSSES[options.loss].linked):
        law = with_noise_of_complete_rows(law, rows, state.model)
    warn_if_unknown(law, tally)
    return law


def _fit_state(
    plan: TablePlan,
    rows: Rows,
    surveyed: Survey,
    warm: FitState | None,
    on_step: OnState,
    search: Search[LeastSquares] | None = None,
) -> tuple[FitState, Options, Rows]:
    """Fit by least squares or by Huber's loss; also return the options and rows at its end."""
    if LOSSES[plan.options.loss].linked:
        return *fit_logistic(rows, plan, warm, on_step, surveyed), rows
    if plan.automatic == FIXED and not plan.robust:
        return fit_table(rows, plan, warm, on_step, surveyed), plan.options, rows
    if not plan.robust:
        return *fit_choosing(rows, plan, warm, on_step, surveyed, search), rows
    plan.make_units.refuse_overflow(surveyed.features, surveyed.target)
    options, begin = _tight(plan, surveyed), None
    if plan.automatic != FIXED:
        # Gross errors must not choose: a fit with moderate penalties finds them first.
        first = _provisional_fit(plan, rows, surveyed, warm, on_step)
        weighted = first[2]
        try:
            finished(first[0])
            # Weights count observations as given; those of outliers count less.
            of_weighted = replace(weighted.reduce(survey), tally=surveyed.tally)
            chooser = replace(plan, options=options)
            begin, options = fit_choosing(weighted, chooser, surveyed=of_weighted)
        except KeyboardInterrupt:
            return replace(first[0], status=Status.interrupted), *first[1:]
        if begin.status is Status.interrupted:
            return _of_all_rows(begin, surveyed), options, weighted

    def least_squares(rows: Rows, warm: FitState | None, tol: float) -> FitState:
        return fit_table(rows, replace(plan, options=replace(options, tol=tol)), warm, on_step)

    state, weighted = fit_robustly(rows, least_squares, options.tol, warm, begin)
    return _of_all_rows(state, surveyed), options, weighted


def _of_all_rows(state: FitState, surveyed: Survey) -> FitState:
    """Return the state with the moments of rows as they were given, for a stream that goes on."""
    return replace(state, features=surveyed.features, target=surveyed.target)


def _provisional_fit(
    plan: TablePlan,
    rows: Rows,
    surveyed: Survey,
    warm: FitState | None = None,
    on_step: OnState = None,
) -> tuple[FitState, Options, Rows]:
    """Fit by Huber's loss with moderate penalties; the rows it returns have the weights of that."""
    options = _tight(plan, surveyed)
    if plan.automatic.alpha:
        weight = PROVISIONAL_ALPHA * surveyed.features.weight
        options = replace(options, alpha=(weight, weight))

    def least_squares(rows: Rows, warm: FitState | None, tol: float) -> FitState:
        return fit_table(rows, replace(plan, options=replace(options, tol=tol)), warm, on_step)

    state, weighted = fit_robustly(rows, least_squares, options.tol, warm, settled=ROUGHLY)
    return _of_all_rows(state, surveyed), options, weighted


def _tight(plan: TablePlan, surveyed: Survey) -> Options:
    """Return the options of a reweighted fit."""
    eps = float(namespace(surveyed.features.mean).finfo(plan.make_units.dtype).eps)
    return replace(plan.options, tol=tighter(plan.options.tol, eps))


def law_of(
    state: FitState,
    rows: Rows,
    options: Options,
    plan: TablePlan,
    bend: float = inf,
) -> Uncertainty:
    """Measure how sure a fit is; warn where that cannot be known.

    A likelihood is least squares about its optimum, with a noise of 1.
    """
    model, units, linked = state.model, state.units, LOSSES[options.loss].linked
    if linked:
        working = Working.about(model, rows, units, options.fit_intercept, options.loss)
        rows, units, options = working.rows, working.units, replace(options, loss="squared")
        model = replace(model, c=model.c - working.offset)

    law = uncertainty_of(
        rows,
        model,
        units,
        options,
        state.white,
        np.random.default_rng(plan.seed),
        fields=plan.make_units.fields,
        robust=plan.uncertainty == "robust",
        bend=bend,
        unit_noise=linked,
    )
    return replace(law, units=state.units)
