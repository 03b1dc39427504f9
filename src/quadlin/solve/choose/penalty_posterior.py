"""The posterior of penalties: their mean, and the evidence of a model over all of them.

If rows are few, the penalty of largest evidence is one point of a wide hill, and often its edge:
the evidence of separable rows rises as penalties shrink. The mean of log α over the hill predicts
better, and models are compared by their evidence over all penalties.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import TypeVar

import numpy as np
from scipy.special import logsumexp

from quadlin.solve.lowrank.design import Alpha

FEW_POINTS, FAR = 5, 10.0  # after so many points, a walk that is so far behind in evidence ends
DEPTH = 6.0  # of log evidence below the peak, where the hill ends
LEAST, MOST = (-14.0, -9.0), 3.5  # log(α/N): the range of α₁ and α₂
TAIL = 0.5  # per unit of log variance beyond the widest prior, as in the tail of Cauchy's law

T = TypeVar("T")  # a fit
Point = tuple[int, ...]


@dataclass(frozen=True)
class Lattice:
    """The penalties that are tried."""

    weight: float  # N, the unit of the penalties
    widest: Alpha  # below which a prior is wider than expected
    step: float  # of log α
    most_points: int
    scores: int = 1  # how many functions share the prior, each of which may be too wide


@dataclass(frozen=True)
class PenaltyPosterior:
    """The mean of the posterior of log α, and the log evidence over all penalties."""

    log_alpha: np.ndarray  # (g,)
    log_evidence: float

    @property
    def alpha(self) -> Alpha:
        """Return the penalties of w and M."""
        return exp(self.log_alpha[0]), exp(self.log_alpha[-1])


def posterior_of(
    evaluate: Callable[[Alpha, T], tuple[T, float]],
    begin: T,
    starts: Sequence[np.ndarray],
    lattice: Lattice,
    least: float = -inf,
) -> PenaltyPosterior:
    """Walk over the hill of the evidence on a lattice of log α.

    Parameters
    ----------
    evaluate : callable
        Takes penalties and a nearby fit; returns the fit with these penalties and its log evidence.
    begin : object
        The first fit.
    starts : sequence of arrays (g,)
        Values of log α; the walk starts at the best of them.
    lattice : Lattice
        The penalties that are tried.
    least : float
        The evidence of a rival: a walk that stays far behind it ends early.
    """
    groups, step = len(starts[0]), lattice.step
    low = np.array(LEAST[:groups]) + log(lattice.weight)
    high = np.full(groups, MOST) + log(lattice.weight)
    widest = np.log(np.maximum(lattice.widest[:groups], 1e-300))

    def evaluated(log_alpha: np.ndarray, near: T) -> tuple[T, float]:
        fit, evidence = evaluate((exp(log_alpha[0]), exp(log_alpha[-1])), near)
        beyond = np.maximum(widest - log_alpha, 0.0)
        return fit, evidence - lattice.scores * TAIL * float(beyond.sum())

    starts = [np.clip(start, low, high) for start in starts]
    first = [evaluated(start, begin) for start in starts]
    best = int(np.argmax([evidence for _, evidence in first]))
    origin: Point = (0,) * groups
    start, fits, values = starts[best], {origin: first[best][0]}, {origin: first[best][1]}

    def place(point: Point) -> np.ndarray:
        return np.asarray(start + step * np.array(point))

    seen = set(values)
    while len(values) < lattice.most_points:
        top = max(values.values())
        if len(values) >= FEW_POINTS and top < least - FAR:
            break
        # The next point is a neighbour of the highest point whose neighbours were not all seen.
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
        fits[point], values[point] = evaluated(place(point), fits[source])
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
