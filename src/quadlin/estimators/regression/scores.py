"""Scores of predictions, chunk by chunk, and intervals of new observations."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.special import xlogy
from scipy.stats import nbinom
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.moments import Moments
from quadlin.data import Source
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.rows.columns import NO_TARGET, as_source
from quadlin.solve.fits.uncertainty import NORMAL, standard_errors_of

NO_WEIGHT = "All weights are zero, so there is no row to score."


def r2_of(predicted: Iterable[tuple[Chunk, Array, Any]]) -> float:
    """Return R² of chunks and their predictions; of a constant target 1 if exact, else 0."""
    squares, target = 0.0, None
    for chunk, f, _ in predicted:
        y = to_numpy(chunk.y).astype(np.float64)
        squares += float(chunk.weights @ (to_numpy(f) - y) ** 2)
        moments = Moments.of(y[:, None], chunk.weights)
        target = moments if target is None else target + moments
    assert target is not None  # a Source without rows is refused
    if not target.weight > 0:
        raise ValueError(NO_WEIGHT)
    if not bool(target.varies(np.float64)[0]):
        return 0.0 if squares > 0 else 1.0
    return 1 - squares / target.weight / float(target.var[0])


def d2_of(predicted: Iterable[tuple[Chunk, Array, Any]]) -> float:
    """Return D² of counts and their predicted means: 1 − deviance/deviance of their mean.

    Of a constant target it is 1 if exact, else 0.
    """
    weight = total = logs = deviance = 0.0
    for chunk, f, _ in predicted:
        y, mean = (to_numpy(a).astype(np.float64) for a in (chunk.y, f))
        if (y < 0).any():
            raise ValueError(f"Counts are ≥ 0, but the targets go down to {y.min():.4g}.")
        omega = chunk.weights
        weight, total = weight + float(omega.sum()), total + float(omega @ y)
        logs += float(omega @ xlogy(y, y))
        deviance += float(omega @ (xlogy(y, y) - xlogy(y, mean) - y + mean))
    if not weight > 0:
        raise ValueError(NO_WEIGHT)
    constant = logs - xlogy(total, total / weight)
    if constant <= 1e-12 * max(logs, total):
        return 0.0 if deviance > 1e-12 * total else 1.0
    return float(1 - deviance / constant)


def accuracy_of(
    predicted: Iterable[tuple[Chunk, Array, Array]],
    texts: tuple[str, ...] | None,
    label: Any = None,
) -> float:
    """Return the share, by weight, of chunks' labels that are predicted.

    With `texts` the targets of the chunks are positions in them. With `label` the predictions tell
    whether a row belongs to that class.
    """
    right = total = 0.0
    for chunk, _, labels in predicted:
        y = to_numpy(chunk.y)
        y = y if texts is None else np.asarray(texts)[y.astype(np.int64)]
        y = y if label is None else y == label
        right += float(chunk.weights @ (to_numpy(labels) == y))
        total += float(chunk.weights.sum())
    if not total > 0:
        raise ValueError(NO_WEIGHT)
    return right / total


def source_to_score(estimator: Any, X: Any, y: Any, weight: Any, targets: str) -> Source | None:
    """Return the Source to score, None for other rows; refuse rows without what is predicted."""
    if not isinstance(X, Source):
        if y is None:
            raise ValueError(f"score needs {targets}: give y, or a Source opened with target=.")
        return None
    check_is_fitted(estimator)
    source = as_source(X, y, weight, None)
    if not source.has_target:
        raise ValueError(NO_TARGET)
    return source


def interval(fitted: Fitted, mean: Array, std: Array, level: float) -> tuple[Array, Array]:
    """Return the ends of intervals that contain new observations with probability `level`.

    Targets are within as many standard deviations as Student's distribution says. Counts follow
    Poisson's law with an uncertain mean, which has the quantiles of a negative binomial one.
    """
    left = NORMAL if fitted.law is None else fitted.law.left  # draws include what is not certain
    reach = standard_errors_of(level, left)
    if fitted.options.loss != "poisson":
        return mean - reach * std, mean + reach * std
    mean, variance = (np.asarray(a, dtype=np.float64) for a in (mean, std**2))
    share = np.minimum(mean / variance, 1 - 1e-9)  # 1 is Poisson's law itself
    size = mean * share / (1 - share)
    low, high = (nbinom.ppf(tail, size, share) for tail in ((1 - level) / 2, (1 + level) / 2))
    return low, high
