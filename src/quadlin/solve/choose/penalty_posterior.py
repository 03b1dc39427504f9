"""The posterior of penalties: their mean, and the evidence of a model with all of them.

The penalty of largest evidence is one point of a wide hill where rows are few, and often its edge:
rows that can be separated have evidence for ever smaller penalties. The mean of log α over the
hill predicts better, and models are compared by what all their penalties make of the rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np
from scipy.special import logsumexp

FEW_POINTS, FAR = 5, 10.0  # and log evidence, after which a walk that is behind is given up
DEPTH = 6.0  # of log evidence below the peak, where the hill ends
LEAST, MOST = (-14.0, -9.0), 3.5  # log(α/N): the range of α₁ and α₂
TAIL = 0.5  # per unit of log variance beyond the widest prior, as in the tail of Cauchy's law

Point = tuple[int, ...]


@dataclass(frozen=True)
class PenaltyPosterior:
    """Where the posterior of log α has its mean, and the log evidence of all penalties together."""

    log_alpha: np.ndarray  # (g,)
    log_evidence: float


def posterior_of(
    log_evidence: Callable[[np.ndarray, Point, Point | None], float],
    starts: Sequence[np.ndarray],
    weight: float,
    widest: Sequence[float],
    step: float,
    most_points: int,
    least: float = -inf,
    scores: int = 1,
) -> PenaltyPosterior:
    """Walk over the hill of the evidence on a lattice of log α.

    Parameters
    ----------
    log_evidence : callable
        Gets log α, the point of the lattice and the neighbour from which it was reached.
    starts : sequence of arrays (g,)
        log α to begin with: the best of them is taken.
    weight : float
        N, that penalties are measured by.
    widest : sequence of float
        log α of each group below which a prior is wider than one expects.
    step : float
        Of the lattice.
    most_points : int
        After which the walk ends.
    least : float
        The evidence of something better: a walk that stays far behind it ends early.
    scores : int
        How many functions share the prior, each of which may turn out too wide.
    """
    groups = len(starts[0])
    low = np.array(LEAST[:groups]) + log(weight)
    high = np.full(groups, MOST) + log(weight)
    origin: Point = (0,) * groups
    values: dict[Point, float] = {}

    def value(at: np.ndarray, point: Point, source: Point | None) -> float:
        beyond = np.maximum(np.asarray(widest[:groups]) - at, 0.0)
        return log_evidence(at, point, source) - scores * TAIL * float(beyond.sum())

    starts = [np.clip(start, low, high) for start in starts]
    heights = [value(start, origin, None) for start in starts]
    best = int(np.argmax(heights))
    start, values[origin] = starts[best], heights[best]
    if best < len(starts) - 1:  # what is kept of the origin is that of the last call
        value(start, origin, None)

    def place(point: Point) -> np.ndarray:
        return np.asarray(start + step * np.array(point))

    seen = set(values)
    while len(values) < most_points:
        top = max(values.values())
        if len(values) >= FEW_POINTS and top < least - FAR:
            break
        # The highest point whose neighbours were not all seen is next.
        open_points = sorted(values, key=lambda p: -values[p])
        moves = (
            (near, point)
            for point in open_points
            if values[point] >= top - DEPTH
            for near in _neighbours(point)
            if near not in seen and np.all((place(near) >= low) & (place(near) <= high))
        )
        following = next(moves, None)
        if following is None:
            break
        point, source = following
        seen.add(point)
        values[point] = value(place(point), point, source)
    points = list(values)
    logs = np.array([values[p] for p in points])
    total = float(logsumexp(logs))
    mean = np.exp(logs - total) @ np.array([place(p) for p in points])
    share = float(np.log(step / (high - low)).sum())  # of the range, which is the prior
    return PenaltyPosterior(mean, total + share)


def _neighbours(point: Point) -> list[Point]:
    return [
        (*point[:g], point[g] + side, *point[g + 1 :])
        for g in range(len(point))
        for side in (-1, 1)
    ]
