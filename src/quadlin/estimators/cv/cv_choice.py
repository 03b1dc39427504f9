"""The choice by cross-validation: what is scored, with pairs and without, and the fit of the best.

Pairs are searched in the training rows of every fold by themselves.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import rankdata

from quadlin.core.chunks import Chunk
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.estimators.cv.cv_scores import TIE, CVScores
from quadlin.estimators.cv.cv_search import CVSearch
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import fit, provisional_fit
from quadlin.estimators.regression.tasks import PROVISIONAL_RANK, Task
from quadlin.solve.composite.pair_composite import PairRequest
from quadlin.solve.fits.grid import Point
from quadlin.solve.lowrank.exact import Alpha
from quadlin.solve.lowrank.types import Automatic, finished
from quadlin.solve.pairs.pair_search import MOST_PAIRS

LOW_RANKS = (1, 2, 4, 8)  # beside 0, where only penalties are given
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
    state, _, weighted = provisional_fit(first, rows, rows.reduce(survey))
    finished(state)
    values = weighted.values
    if values is None:
        return chunk, rows
    weight = values.weight if chunk.weight is None else values.weight * chunk.weight
    return Chunk(chunk.X, values.y, weight), weighted


def searched(
    scores: CVScores,
    ranks: list[int] | None,
    alphas: list[Alpha] | None,
    pairs: PairRequest | None,
    both: bool,
) -> tuple[CVScores, dict[str, Any], bool]:
    """Score ranks and penalties, with pairs or without; return the scores to choose by, and all.

    `both` compares models with pairs and without. Penalties are searched without them first. Also
    tell whether all was scored: Ctrl-C leaves what has been scored by then, if anything.
    """
    paired, whole = None if pairs is None else scores.beside(pairs), True
    try:
        _search(scores, paired, ranks, alphas, both)
    except KeyboardInterrupt:
        whole = False
        if not (paired or scores).scores:  # those with pairs, if only these were asked for
            if not scores.scores:
                raise
            return scores, scores.results(), whole
    if paired is None:
        return scores, scores.results(), whole
    if not both:
        return paired, paired.results(), whole
    better = paired if _are_better(paired, scores) else scores
    return better, _both_results(scores, paired), whole


def _search(
    scores: CVScores,
    paired: CVScores | None,
    ranks: list[int] | None,
    alphas: list[Alpha] | None,
    both: bool,
) -> None:
    """Score all points there are to score."""
    search = CVSearch(scores)
    if alphas is not None:
        ranks = ranks or [0, *(k for k in LOW_RANKS if k <= scores.d)]
        for each in [scores, paired] if both else [paired or scores]:
            if each is not None:
                CVSearch(each).grid(ranks, alphas)
    else:
        search.automatic(ranks)
        if paired is not None:
            search.beside_pairs(paired, ranks)


def _are_better(paired: CVScores, without: CVScores) -> bool:
    """Tell whether rows held out are predicted better with pairs; a perfect model has none."""
    before = without.best()
    if without.perfect(before):
        return False
    score = without.mean(before)
    return paired.mean(paired.best()) > score + TIE * abs(score)


def _both_results(without: CVScores, paired: CVScores) -> dict[str, Any]:
    """Return the scores without pairs and with them, as `GridSearchCV` would."""
    first, second = without.results(), paired.results()
    counts = [0] * len(without.scores) + [MOST_PAIRS] * len(paired.scores)
    mean = np.concatenate([first["mean_test_score"], second["mean_test_score"]])
    params = first["params"] + second["params"]
    joined = {
        name: np.concatenate([first[name], second[name]]) for name in first if name != "params"
    }
    joined["rank_test_score"] = rankdata(-mean, method="min").astype(int)
    params = [{**point, "pairs": count} for point, count in zip(params, counts, strict=True)]
    return {"params": params, **joined, "param_pairs": np.asarray(counts)}


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
