"""From rows and an estimator's options to everything it learns: survey, fit, uncertainty."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from quadlin.core.arrays import namespace
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import Survey, Tally, survey
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.pairs import Reported, label_pairs, pairs_beside, pairs_first
from quadlin.estimators.regression.tasks import Task
from quadlin.estimators.rows.input_errors import check_survey
from quadlin.solve.choose.choice import fit_choosing
from quadlin.solve.choose.column_choice import without_squares
from quadlin.solve.choose.rank_search import RankSearch, leaves_mean
from quadlin.solve.choose.rarity import with_rarity
from quadlin.solve.fits.fit_state import FitState, fit_table, with_row_count
from quadlin.solve.fits.robust import ROUGHLY, bend_of, fit_robustly, robust_law, tighter
from quadlin.solve.fits.status_advice import warn_if_unknown
from quadlin.solve.fits.uncertainty import NORMAL, Uncertainty, made_robust, uncertainty_of
from quadlin.solve.labels.logistic import Working
from quadlin.solve.labels.logistic_choice import fit_logistic
from quadlin.solve.lowrank.design import EXACT_COLUMNS
from quadlin.solve.lowrank.types import FIXED, Options, Status, finished

MOST_KEPT = 512  # parameters of a regression with pairs that `partial_fit` could go on with
PROVISIONAL_ALPHA = 0.02  # of the weight

Attributes = Callable[[], dict[str, Any]]  # what makes a copy of the estimator ready to predict
OnStep = Callable[[Attributes], bool]  # called after each step; stops the fit by returning True


@dataclass(frozen=True)
class Job:
    """Rows that can be read many times, and what to learn from them."""

    task: Task
    rows: Rows
    source: MemorySource | Source  # of the rows
    warm: FitState | None  # to start from
    on_step: OnStep | None

    def fitted(self) -> Fitted:
        """Fit the rows."""
        return fit(self.task, self.rows, self.warm, self.on_step)


def fit(task: Task, rows: Rows, warm: FitState | None, on_step: OnStep | None = None) -> Fitted:
    """Fit rows that can be read many times."""
    surveyed = rows.reduce(survey)
    dtype, names = task.make_units.dtype, task.make_units.names
    entries, size = rows.engine.source.entries, surveyed.tally.rows * len(names)
    sparse = entries is not None and entries < size / 2
    check_survey(surveyed, dtype, names, task.options, task.robust, sparse)
    if task.automatic.rarity:
        task = with_rarity(rows, task, surveyed)
    if len(names) >= EXACT_COLUMNS:
        task = without_squares(rows, task, surveyed)
    hook = None
    if on_step is not None:

        def hook(state: FitState) -> bool:
            options = replace(task.options, rank=int(state.model.s.shape[0]))
            return on_step(lambda: Fitted.of(task, state, options, surveyed.tally).attributes())

    outcome = outcome_of(task, rows, surveyed, warm, hook)
    state = outcome.state if task.pairs is None else outcome.kept(MOST_KEPT)
    state = with_row_count(state, surveyed.tally, outcome.options)
    result = Fitted.of(task, state, outcome.options, surveyed.tally)
    result = replace(result, pairs=outcome.report)
    if task.uncertainty and state.status is not Status.interrupted:
        try:
            result = replace(result, law=_law_of_fit(task, rows, outcome, result))
        except KeyboardInterrupt:  # the model is there, its standard errors are not
            result = result.interrupted()
    return result.with_passes(rows)


def _law_of_fit(task: Task, rows: Rows, outcome: Reported, fitted: Fitted) -> Uncertainty:
    """Measure how sure a fit is, with its pairs, its loss and its missing values."""
    state, options, weighted = fitted.state, outcome.options, outcome.rows
    robust = task.uncertainty == "robust"
    bend = bend_of(rows, state) if task.robust and robust else inf
    law = outcome.law(task.make_units.fields)
    if law is None:
        law = law_of(state, weighted, options, task, fitted.learned.tally, bend)
    elif options.loss != "squared":
        law = replace(law, noise=1.0, error=1.0, left=NORMAL)
        if robust:
            about = Working.about(state.model, weighted, state.units, options.fit_intercept)
            model = replace(state.model, c=state.model.c - about.offset)
            law = made_robust(law, about.rows, model)
        law = replace(law, units=state.units)
    elif robust:
        law = made_robust(law, weighted, state.model, bend)
    law = robust_law(law, rows, weighted, state) if task.robust else law
    warn_if_unknown(law, fitted.learned.tally)
    return law


def outcome_of(
    task: Task,
    rows: Rows,
    surveyed: Survey,
    warm: FitState | None = None,
    on_step: Callable[[FitState], bool] | None = None,
) -> Reported:
    """Fit rows, with pairs where they are wanted."""
    stage, outcome = None, None
    if task.pairs is not None and task.options.loss == "logistic":
        outcome = label_pairs(task, rows, surveyed, warm, on_step)
    elif task.pairs is not None:
        stage, outcome = pairs_first(task, rows, surveyed)
    if outcome is not None and on_step is not None:
        on_step(outcome.state)
    if outcome is None:
        search = stage.search if stage is not None and stage.looked else None
        outcome = Reported(*_fit_state(task, rows, surveyed, warm, on_step, search))
        if stage is not None:
            outcome = pairs_beside(task, stage, outcome, rows, surveyed)
    return outcome


def _fit_state(
    task: Task,
    rows: Rows,
    surveyed: Survey,
    warm: FitState | None,
    on_step: Callable[[FitState], bool] | None,
    search: RankSearch | None = None,
) -> tuple[FitState, Options, Rows]:
    """Fit by least squares or by Huber's loss; also return the options and rows at its end."""
    if task.options.loss != "squared":
        return *fit_logistic(rows, task, warm, on_step, surveyed), rows
    if task.automatic == FIXED and not task.robust:
        return fit_table(rows, task, warm, on_step, surveyed), task.options, rows
    if not task.robust:
        return *fit_choosing(rows, task, warm, on_step, surveyed, search), rows
    task.make_units.refuse_overflow(surveyed.features, surveyed.target)
    options, begin = _tight(task, surveyed), None
    if task.automatic != FIXED:
        # Gross errors must not choose: a fit with moderate penalties finds them first.
        first = provisional_fit(task, rows, surveyed, warm, on_step)
        weighted = first[2]
        try:
            finished(first[0])
            # Weights count observations as given; those of outliers count less.
            of_weighted = replace(weighted.reduce(survey), tally=surveyed.tally)
            chooser = replace(task, options=options)
            begin, options = fit_choosing(weighted, chooser, surveyed=of_weighted)
        except KeyboardInterrupt:
            return replace(first[0], status=Status.interrupted), *first[1:]
        if begin.status is Status.interrupted:
            return _of_all_rows(begin, surveyed), options, weighted

    def least_squares(rows: Rows, warm: FitState | None, tol: float) -> FitState:
        return fit_table(rows, replace(task, options=replace(options, tol=tol)), warm, on_step)

    state, weighted = fit_robustly(rows, least_squares, options.tol, warm, begin)
    return _of_all_rows(state, surveyed), options, weighted


def _of_all_rows(state: FitState, surveyed: Survey) -> FitState:
    """Return the state with the moments of rows as they were given, for a stream that goes on."""
    return replace(state, features=surveyed.features, target=surveyed.target)


def provisional_fit(
    task: Task,
    rows: Rows,
    surveyed: Survey,
    warm: FitState | None = None,
    on_step: Callable[[FitState], bool] | None = None,
) -> tuple[FitState, Options, Rows]:
    """Fit by Huber's loss with moderate penalties; the rows it returns have the weights of that."""
    options = _tight(task, surveyed)
    if task.automatic.alpha:
        weight = PROVISIONAL_ALPHA * surveyed.features.weight
        options = replace(options, alpha=(weight, weight))

    def least_squares(rows: Rows, warm: FitState | None, tol: float) -> FitState:
        plan = replace(task, options=replace(options, tol=tol))
        return fit_table(rows, plan, warm, on_step)

    state, weighted = fit_robustly(rows, least_squares, options.tol, warm, settled=ROUGHLY)
    return _of_all_rows(state, surveyed), options, weighted


def _tight(task: Task, surveyed: Survey) -> Options:
    """Return the options of a reweighted fit."""
    eps = float(namespace(surveyed.features.mean).finfo(task.make_units.dtype).eps)
    return replace(task.options, tol=tighter(task.options.tol, eps))


def law_of(
    state: FitState,
    rows: Rows,
    options: Options,
    task: Task,
    tally: Tally,
    bend: float = inf,
) -> Uncertainty:
    """Measure how sure a fit is; warn where that cannot be known.

    A likelihood is least squares about its optimum, with a noise of 1.
    """
    model, units, linked = state.model, state.units, options.loss != "squared"
    if linked:
        working = Working.about(model, rows, units, options.fit_intercept, options.loss)
        rows, units, options = working.rows, working.units, replace(options, loss="squared")
        model = replace(model, c=model.c - working.offset)

    def law(alpha: tuple[float, float]) -> Uncertainty:
        return uncertainty_of(
            rows,
            model,
            units,
            replace(options, alpha=alpha),
            state.white,
            np.random.default_rng(task.seed),
            fields=task.make_units.fields,
            tally=tally,
            robust=task.uncertainty == "robust",
            bend=bend,
            unit_noise=linked,
        )

    alpha = options.alpha
    measured = replace(law(alpha), units=state.units)
    if task.automatic.alpha and leaves_mean(alpha, state.features.weight):
        # A line may be true nevertheless: as large as the noise, a priori.
        line = law((float(len(state.units.scale)), alpha[1]))
        measured = replace(measured, spread=line.spread)
    return measured
