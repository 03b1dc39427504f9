"""The rows that points are compared on, and the fit of all rows at the best of them."""

from contextlib import suppress
from dataclasses import replace

from quadlin.core.chunks import Chunk
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.estimators.cv.cv_scores import CVScores
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import Task, fit, provisional_fit
from quadlin.estimators.regression.tasks import PROVISIONAL_RANK
from quadlin.solve.fits.grid import Point
from quadlin.solve.lowrank.types import Automatic, finished

CUT_SHORT = (
    "Cross-validation was interrupted; the model has the best rank and penalties so far, and was "
    "fitted to the training rows of the first fold only."
)


def judged_rows_of(task: Task, chunk: Chunk, rows: Rows) -> tuple[Chunk, Rows]:
    """Return the rows that models are compared on: with Huber's loss, gross errors weigh little."""
    if not task.robust:
        return chunk, rows
    rank = min(PROVISIONAL_RANK, len(task.make_units.names))
    first = replace(task, options=replace(task.options, rank=rank), automatic=Automatic(True, True))
    state, _, weighted = provisional_fit(first, rows, survey(rows))
    finished(state)
    values = weighted.values
    if values is None:
        return chunk, rows
    weight = values.weight if chunk.weight is None else values.weight * chunk.weight
    return Chunk(chunk.X, values.y, weight), weighted


def refitted(scores: CVScores, point: Point, rows: Rows, whole: bool) -> tuple[Fitted, str]:
    """Fit all rows; of a search or a fit that Ctrl-C cut short, say what there is instead."""
    fitted = None
    if whole:
        with suppress(KeyboardInterrupt):
            fitted = _refit(scores, point, rows)
    if fitted is not None and fitted.is_begun:
        return fitted, fitted.status.value
    fold = scores.best_of_first_fold()
    assert fold is not None
    return fold.interrupted(), CUT_SHORT


def _refit(scores: CVScores, point: Point, rows: Rows) -> Fitted:
    """Fit all rows, from where a fold or a matrix of all rows leads."""
    if scores.pairs is not None:
        return fit(scores.task_at(point), rows, None)
    rank, alpha = point
    outright = scores.whole.outright(rank, alpha)
    warm = scores.state(scores.whole if outright else scores.folds[0].cells, point)
    return fit(scores.task_at(point), rows, warm)
