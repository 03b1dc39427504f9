"""Pairs beside the low-rank part, of targets and of labels: the fit that looks for them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.estimators.regression.tasks import Task
from quadlin.explain.pair_report import DEVIANCE, PairReport, empty_report, report_of
from quadlin.solve.composite.pair_composite import PairRequest, ProductPrior
from quadlin.solve.composite.pair_labels import LabelOutcome, LabelPairs
from quadlin.solve.composite.pair_stage import (
    PairOutcome,
    PairStage,
    ended,
    first_stage,
    refuse_uninformative,
)
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.robust import fit_robustly
from quadlin.solve.lowrank.types import FIXED, Status


@dataclass(frozen=True)
class Reported(PairOutcome):
    """A fit with pairs or without, and what the search says."""

    report: PairReport | None = None  # None if none were looked for

    @classmethod
    def of(cls, outcome: PairOutcome, task: Task) -> "Reported":
        """Return an outcome with its report."""
        searched, joint, names = outcome.searched, outcome.joint, task.make_units.names
        if searched is None:
            report = None
        elif joint is None:
            r2 = searched.path[0][1]
            report = empty_report(len(names), searched.candidates, searched.n_rows, r2)
        else:
            report = report_of(names, joint.search, joint.fit, searched.n_rows, low_rank=False)
        state, options, rows = outcome.state, outcome.options, outcome.rows
        return cls(state, options, rows, searched, joint, outcome.share, report)

    def kept(self, most: int) -> FitState:
        """Return the state with a regression of at most so many parameters for a stream."""
        state = self.state if self.searched is None else self.for_stream(most)
        if state.running is not None and state.running.size > most:
            state = replace(state, running=None)
        return state


def pairs_first(task: Task, rows: Rows, surveyed: Survey) -> tuple[PairStage, Reported | None]:
    """Look for pairs beside a linear model, before any rank is tried."""
    assert task.pairs is not None
    stage, outcome = first_stage(task, task.pairs, rows, surveyed, not task.robust)
    return stage, None if outcome is None else Reported.of(outcome, task)


def pairs_beside(
    task: Task, stage: PairStage, outcome: Reported, rows: Rows, surveyed: Survey
) -> Reported:
    """Look for pairs beside a fit; return it with them, or as it was."""
    state, options, request = outcome.state, outcome.options, stage.request
    if ended(state) or not stage.possible:
        return outcome
    refuse_uninformative(request, state, task.make_units)
    try:
        if not task.robust:
            return Reported.of(stage.beside(state, options), task)
        weighted = outcome.rows
        stage = PairStage(task, request, weighted, _counted(weighted, surveyed), state.units)
        beside = Reported.of(stage.beside(state, options), task)
        return beside if beside.state.parts is None else _robust(task, beside, rows, surveyed)
    except KeyboardInterrupt:  # the model without pairs is there
        return replace(outcome, state=replace(state, status=Status.interrupted))


def _counted(weighted: Rows, surveyed: Survey) -> Survey:
    """Return the survey of reweighted rows, which are as many observations as given."""
    return replace(weighted.reduce(survey), tally=surveyed.tally)


def _robust(task: Task, start: Reported, rows: Rows, surveyed: Survey) -> Reported:
    """Keep the pairs that were chosen, and fit them and the rest by Huber's loss."""
    state, parts = start.state, start.state.parts
    assert parts is not None
    assert start.joint is not None
    given = PairRequest.of(parts.terms, start.joint.fit.entry)
    options = replace(start.options, rank=int(parts.s.shape[0]))
    plan = replace(task, automatic=FIXED, options=options)
    base, last = replace(state, model=state.low_rank, parts=None), [start]
    prior = ProductPrior(like_low_rank=not task.automatic.alpha)

    def least_squares(view: Rows, _: FitState | None, tol: float) -> FitState:
        stage = PairStage(plan, given, view, _counted(view, surveyed), state.units, prior)
        last[0] = Reported.of(stage.beside(base, replace(options, tol=tol)), task)
        return last[0].state

    state, weighted = fit_robustly(rows, least_squares, options.tol, begin=state)
    state = replace(state, features=surveyed.features, target=surveyed.target)
    first, second = start.report, last[0].report
    assert first is not None
    assert second is not None
    # The path is the one of the search.
    report = replace(first, pairs=second.pairs, blocks=second.blocks)
    return replace(last[0], state=state, rows=weighted, report=report)


def label_pairs(
    task: Task,
    rows: Rows,
    surveyed: Survey,
    warm: FitState | None,
    on_step: Callable[[FitState], bool] | None,
) -> Reported:
    """Fit log-odds with pairs, or without where none are worth it, and say what was found."""
    assert task.pairs is not None
    outcome = LabelPairs(task, task.pairs, rows, surveyed).fitted(warm, on_step)
    report, tested = _report(outcome, task), outcome.tested
    joint, share = (None, 1.0) if tested is None else (tested.joint, tested.share)
    state, options = outcome.state, outcome.options
    return Reported(state, options, rows, joint=joint, share=share, report=report)


def _report(outcome: LabelOutcome, task: Task) -> PairReport | None:
    """Return the pairs as the search took them, and as they are beside the model with them."""
    search, tested = outcome.search, outcome.tested
    report = None if search is None else Reported.of(search, task).report
    if report is None:
        return None
    steps = zip(report.path, outcome.deviances, strict=True)
    report = replace(report, path=[s._replace(r2=d2) for s, d2 in steps], measure=DEVIANCE)
    last = None if tested is None else Reported.of(tested, task).report
    if last is None:
        return report
    pairs = [p._replace(share=p.share * outcome.factor) for p in last.pairs]
    return replace(report, pairs=pairs, blocks=last.blocks)
