"""The fit of rows that can be read many times, with any loss: what is chosen, pairs, and the law.

`fit` looks for pairs to add to a linear model, chooses rank and penalties, looks for pairs to add
to the result, and measures how sure it is of it. Huber's loss does so for rows weighted anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np

from quadlin.core.arrays import namespace
from quadlin.core.losses import LOSSES
from quadlin.core.moments import Survey, Tally, survey
from quadlin.core.rows import Rows
from quadlin.solve.choose.choice import LeastSquares, fit_choosing
from quadlin.solve.choose.search import Search
from quadlin.solve.choose.wide_rows import swept_law, with_units_for
from quadlin.solve.composite.composer import (
    FEWEST_ROWS,
    PairOutcome,
    PairRequest,
    PairStage,
    ProductPrior,
    TableFit,
    ended,
    refuse_uninformative,
)
from quadlin.solve.composite.label_pairs import LabelPairs, moved, stage_about
from quadlin.solve.fits.fit_state import FitState, fit_table, with_row_count
from quadlin.solve.fits.robust import ROUGHLY, Fit, bend_of, fit_robustly, robust_law, tighter
from quadlin.solve.fits.uncertainty import (
    NORMAL,
    Uncertainty,
    made_robust,
    uncertainty_of,
    warn_if_unknown,
    with_noise_of_complete_rows,
)
from quadlin.solve.labels.likelihood import Likelihood, Working, fit_logistic
from quadlin.solve.lowrank.types import FIXED, Options, Plan, Status, finished
from quadlin.solve.pairs.products import MOST_FEATURES

MOST_KEPT = 512  # parameters of a regression with pairs that `partial_fit` could go on with
PROVISIONAL_ALPHA = 0.02  # of the weight

OnState = Callable[[FitState], bool] | None  # called after each step; True stops the fit


@dataclass(frozen=True, kw_only=True)
class TablePlan(Plan):
    """How the rows of a table are fitted, with what is added to a rank and penalties."""

    robust: bool = False  # by Huber's loss
    uncertainty: bool | str = False  # or "robust"
    pairs: PairRequest | None = None


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
    fitted = PairedFit(plan, rows, surveyed, warm, on_step).run()
    state = fitted.state if plan.pairs is None else fitted.kept(MOST_KEPT)
    state, law = with_row_count(state, surveyed.tally, fitted.options), None
    if plan.uncertainty and state.status is not Status.interrupted:
        try:
            law = _law_of_fit(plan, rows, replace(fitted, state=state), surveyed.tally)
        except KeyboardInterrupt:  # the model is there, its standard errors are not
            state = interrupted(state)
    return replace(fitted, state=with_passes(state, rows), law=law), plan


@dataclass
class PairedFit:
    """A fit of rows with pairs where they are wanted: beside a linear model, then beside a rank."""

    plan: TablePlan
    rows: Rows
    surveyed: Survey
    warm: FitState | None = None
    on_step: OnState = None
    early: bool = False  # whether later rows may be of another kind
    begun: list[Search[Likelihood]] = field(default_factory=list)

    @cached_property
    def linked(self) -> bool:
        """Return whether the loss is a likelihood."""
        return LOSSES[self.plan.options.loss].linked

    @cached_property
    def stage(self) -> PairStage:
        """Return the search for pairs in the rows by least squares."""
        plan, surveyed = self.plan, self.surveyed
        assert plan.pairs is not None
        units = plan.make_units(surveyed.features, surveyed.target)
        return PairStage(plan, plan.pairs, self.rows, surveyed, units)

    @property
    def possible(self) -> bool:
        """Return whether there are pairs to fit, or enough rows to search for them."""
        request, target = self.plan.pairs, self.surveyed.target
        if request is None or not bool(target.varies(target.mean.dtype)[0]):
            return False
        given = request.given is not None and not (self.linked or self.early)
        return given or self.surveyed.tally.counting >= FEWEST_ROWS

    def run(self) -> TableFit:
        """Fit the rows."""
        plan, request = self.plan, self.plan.pairs
        if request is None or not self.possible:
            return self._without(plan, self.warm, self.on_step)
        searches = plan.automatic.rank and request.given is None and not plan.robust
        if searches and len(plan.make_units.names) <= MOST_FEATURES:
            linear = self._without(plan.of_rank(0))
            if linear.state.status is Status.interrupted:
                return linear
            found = self._with_pairs(linear, alone=True)
            if found is not None:
                return found
        fitted = self._without(plan, self.warm, self.on_step)
        if ended(fitted.state):
            return fitted
        refuse_uninformative(request, fitted.state, plan.make_units, not self.early)
        return self._with_pairs(fitted) or fitted

    def _without(
        self, plan: TablePlan, warm: FitState | None = None, on_step: OnState = None
    ) -> TableFit:
        """Fit without pairs."""
        rows, surveyed = self.rows, self.surveyed
        if self.linked:
            return TableFit(*fit_logistic(rows, plan, warm, on_step, surveyed, self.begun), rows)
        search = None if plan.robust or plan.pairs is None else self.stage.search
        return TableFit(*_fit_state(plan, rows, surveyed, warm, on_step, search))

    def _with_pairs(self, before: TableFit, alone: bool = False) -> TableFit | None:
        """Return a fit with pairs, or the fit as it was; None if a rank is to be tried first."""
        plan, state, options, offset = self.plan, before.state, before.options, 0.0
        assert plan.pairs is not None
        try:
            if self.linked:
                stage, offset = stage_about(self.rows, plan, plan.pairs, state, options.rank)
            elif plan.robust:
                counted = _counted(before.rows, self.surveyed)
                stage = PairStage(plan, plan.pairs, before.rows, counted, state.units)
            else:
                stage = self.stage
            start = replace(state, model=moved(state.model, -offset))
            search = stage.alone if alone else stage.beside
            outcome = search(start, options)
            if outcome is None:
                return None
            if self.linked:
                found = LabelPairs(plan, self.rows, self.surveyed).converged(
                    outcome, before, offset
                )
            elif plan.robust and outcome.state.parts is not None:
                found = _robust_pairs(plan, outcome, self.rows, self.surveyed)
            else:
                found = TableFit.of(outcome)
        except KeyboardInterrupt:  # the model without pairs is there
            return replace(before, state=interrupted(state))
        if self.on_step is not None and found.state.parts is not None:
            self.on_step(found.state)
        return found


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
    if not plan.robust:
        return *fit_choosing(rows, plan, warm, on_step, surveyed, search), rows
    plan.make_units.refuse_overflow(surveyed.features, surveyed.target)
    eps = float(namespace(surveyed.features.mean).finfo(plan.make_units.dtype).eps)
    options, begin = replace(plan.options, tol=tighter(plan.options.tol, eps)), None

    def least_squares(options: Options) -> Fit:
        return lambda rows, warm, tol: fit_table(
            rows, replace(plan, options=replace(options, tol=tol)), warm, on_step
        )

    if plan.automatic != FIXED:
        # Gross errors must not choose: a fit with moderate penalties finds them first.
        moderate = options
        if plan.automatic.alpha:
            weight = PROVISIONAL_ALPHA * surveyed.features.weight
            moderate = replace(options, alpha=(weight, weight))
        fit = least_squares(moderate)
        begin, weighted = fit_robustly(rows, fit, options.tol, warm, settled=ROUGHLY)
        try:
            finished(begin)
            # Weights count observations as given; those of outliers count less.
            chooser, counted = replace(plan, options=options), _counted(weighted, surveyed)
            begin, options = fit_choosing(weighted, chooser, surveyed=counted)
        except KeyboardInterrupt:
            begin = interrupted(begin)
        if begin.status is Status.interrupted:
            return _of_all_rows(begin, surveyed), options, weighted
    state, weighted = fit_robustly(rows, least_squares(options), options.tol, warm, begin)
    return _of_all_rows(state, surveyed), options, weighted


def _of_all_rows(state: FitState, surveyed: Survey) -> FitState:
    """Return the state with the moments of rows as they were given, for a stream that goes on."""
    return replace(state, features=surveyed.features, target=surveyed.target)


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
