"""A second look at a result: whether y holds amplitudes, or a background, and not what it should.

Amplitudes that were mistaken for intensities, and a background, bend the relation of y to the
intensities of a signal: a line through them does not pass through 0. Then the signal is searched
for again with the squares of y, and without the background. A matrix takes up a part of a
background, so it is fitted again together with one. What then fits far better is the cause.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from quadlin.solve.lowrank.types import finished
from quadlin.solve.signals.phase import Retrieval, retrieve
from quadlin.solve.signals.results import Rest, Sensed
from quadlin.solve.signals.search import Effort

BENT = 5.0  # standard errors of the line's intercept: noise of mean 0 never reaches it
MUCH = 0.5  # of the unexplained part, or of the variance of y: the most that another y may leave
ROUNDS, STARTS = 4, 3  # of a fit without the background; starts of a fit
CLAIMED = 16.0  # gain of Schwarz's criterion: by noise alone in one of 20,000 fits


class OtherContent(NamedTuple):
    """What y seems to hold, and the share of its variance that this leaves."""

    left: float
    background: float | None = None  # None: amplitudes


def rest_of_signal(
    y: np.ndarray, weight: np.ndarray, real: bool, effort: Effort, result: Retrieval
) -> Rest:
    """Return what the intensities of a signal leave of y."""
    assert result.fitted is not None
    unknowns = result.rank if real else 2 * result.rank
    robust_of = result.n_distinct if effort.robust else None
    return Rest.of(y, result.fitted, weight, unknowns, robust_of)


def other_intensities(
    A: Any, y: np.ndarray, weight: np.ndarray, real: bool, effort: Effort, result: Retrieval
) -> OtherContent | None:
    """Return what y seems to hold instead of the intensities of a signal."""
    fitted, brief = result.fitted, replace(effort, n_starts=min(STARTS, effort.n_starts))
    rest = rest_of_signal(y, weight, real, effort, result)
    assert fitted is not None
    size, error = line(fitted, y, rest.kept)
    if rest.exact or not size > BENT * error:
        return None

    def without(y: np.ndarray) -> np.ndarray:
        again = finished(retrieve(A, y, weight, real, brief, 0))
        assert again.fitted is not None
        return again.fitted

    def left(fitted: np.ndarray) -> float:
        return Rest.of(y, fitted, rest.kept, rest.unknowns).noise

    best = OtherContent(left(np.sqrt(without(np.maximum(y, 0) ** 2))))
    for _ in range(ROUNDS):
        fitted = without(y - size)
        best = min(best, OtherContent(left(fitted + size), size), key=lambda other: other.left)
        size, _ = line(fitted, y, rest.kept)
    return best if best.left < MUCH * min(rest.noise, 1.0) else None


def line(fitted: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Return the intercept of the line of y over the intensities, and its standard error."""
    total = weight.sum()
    centre = weight @ fitted / total
    spread = weight @ (fitted - centre) ** 2
    if not spread > 0:
        return 0.0, np.inf
    slope = weight @ ((fitted - centre) * y) / spread
    intercept = float(weight @ y / total - slope * centre)
    rest = weight @ (y - intercept - slope * fitted) ** 2 / total
    rows = max(np.count_nonzero(weight), 1)
    return intercept, float(np.sqrt(rest / rows * (1 + centre**2 * total / spread)))


def background_of(
    rest: Rest,
    again: Callable[[int | None, bool], tuple[Sensed, Rest]],
    rank: int | None,
) -> tuple[Sensed, Rest] | None:
    """Return the matrix with a background, if y holds one; `again` fits a rank, with or without.

    The fit with it must be better than the one without it, and than that of any rank.
    """
    with_it = again(rank, True)
    better = with_it[1].left < MUCH and with_it[1].criterion < rest.criterion - CLAIMED
    if better and rank is not None:  # or it is the rank that is too low
        better = with_it[1].criterion < again(None, False)[1].criterion - CLAIMED
    return with_it if better else None
