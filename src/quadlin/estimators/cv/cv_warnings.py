"""What a person should know before trusting a cross-validated score."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
from sklearn.model_selection import KFold

from quadlin.core.messages import warn
from quadlin.estimators.cv.cv_folds import mean_square
from quadlin.estimators.cv.cv_scores import CVScores
from quadlin.estimators.cv.splitting import neighbours_are_alike
from quadlin.solve.fits.grid import Point
from quadlin.solve.lowrank.exact import Alpha

HANDFUL, MOST = 5, 0.5  # rows, and the share of the squared error that they carry
MANY_ROWS = 100  # of fewer, a handful is not few
CLEAR, ERRORS = 1.1, 2.0  # the ratio of two errors that matters, and the standard errors it takes


def warn_of_heavy_rows(scores: CVScores, point: Point, robust: bool) -> None:
    """Name the rows where a handful of them carry most of the error on rows held out."""
    index, squares = scores.squares(point)
    total = float(squares.sum())
    if len(index) < MANY_ROWS or not total > 0 or scores.perfect(point):
        return
    top = np.argsort(-squares)[:HANDFUL]
    shares = np.cumsum(squares[top]) / total
    if shares[-1] <= MOST:
        return
    count = int(np.argmax(shares > MOST)) + 1
    rows = ", ".join(str(i) for i in sorted(index[top[:count]].tolist()))
    advice: str = "Check their features and targets."
    if not robust:
        advice = 'Check their features and targets, or use loss="huber".'
    plural = "Row" if count == 1 else "Rows"
    carry = "carries" if count == 1 else "carry"
    warn(
        f"{plural} {rows} (counted from 0) {carry} {float(shares[count - 1]):.0%} "
        "of the squared error on rows held out, so the choice of rank and "
        f"penalties depends on them. {advice}"
    )


def warn_of_order(scores: CVScores, point: Point) -> None:
    """Warn where blocks of consecutive rows are predicted clearly worse, or better, than others.

    Only where neighbours are alike at all; then the chosen model is fitted once for each block.
    """
    if not neighbours_are_alike(scores.whole.rows, scores.chunk.y, scores.whole.units):
        return
    folds = list(scores.folds_of(KFold(max(2, len(scores.folds))).split(np.arange(scores.n))))
    blocks = [mean_square(scores.predicted(f, point) - f.test.y, f.test.weight) for f in folds]
    shuffled = scores.errors[point]
    gap = np.mean(blocks) - np.mean(shuffled)
    noise = sqrt((np.var(blocks) + np.var(shuffled)) / len(blocks))
    ratio = max(float(np.mean(blocks)), 1e-300) / max(float(np.mean(shuffled)), 1e-300)
    if abs(gap) > ERRORS * noise and max(ratio, 1 / ratio) > CLEAR:
        warn(
            "The order of the rows matters: the mean squared error is "
            f"{float(np.mean(shuffled)):.3g} on shuffled folds and "
            f"{float(np.mean(blocks)):.3g} on blocks of consecutive rows. The first "
            "says how well rows like these are predicted, the second how well later "
            "rows or new groups are. If that is what you need, pass `groups` to fit, "
            "or set cv=TimeSeriesSplit()."
        )


def warn_of_edge(point: Point, alphas: Sequence[Alpha]) -> None:
    """Warn where the best of the given penalties is the smallest or the largest of them."""
    rank, best = point
    which = range(2) if rank else range(1)
    values = [sorted({alpha[i] for alpha in alphas}) for i in which]
    for i, tried in zip(which, values, strict=True):
        ends = {tried[0]: "smallest", tried[-1]: "largest"}
        if len(tried) > 2 and best[i] in ends and best[i] > 0:
            warn(
                (
                    "The best penalty, {alpha:g}, is the {end} of `alphas`: a better one may "
                    "lie beyond. Add {more} ones, or leave `alphas` out to search for the "
                    "best."
                ).format(
                    alpha=best[i],
                    end=ends[best[i]],
                    more="smaller" if best[i] == tried[0] else "larger",
                )
            )
            return
