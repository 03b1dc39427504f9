"""What a search for pairs of log-odds says: shares of the deviance in place of a variance."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from quadlin.core.moments import Survey
from quadlin.core.rows import Rows
from quadlin.estimators.regression.pairs import Reported
from quadlin.explain.pair_report import DEVIANCE, PairReport
from quadlin.solve.composite.pair_labels import LabelOutcome, LabelPairs
from quadlin.solve.fits.fit_state import FitState

if TYPE_CHECKING:
    from quadlin.estimators.regression.fitting import Task


def label_pairs(
    task: "Task",
    rows: Rows,
    surveyed: Survey,
    warm: FitState | None,
    on_step: Callable[[FitState], bool] | None,
) -> Reported:
    """Fit log-odds with pairs, or without where none are worth it, and say what was found."""
    assert task.pairs is not None
    outcome = LabelPairs(task.plan, task.pairs, rows, surveyed).fitted(warm, on_step)
    return Reported(outcome.state, outcome.options, rows, report=_report(outcome, task))


def _report(outcome: LabelOutcome, task: "Task") -> PairReport | None:
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
