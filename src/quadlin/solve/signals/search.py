"""Searches from several starts: least squares or Huber's loss, until two of them agree."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from scipy.special import ndtri

from quadlin.core.rows import Walks
from quadlin.solve.fits.robust import BEND, ROUNDING, weighted_median
from quadlin.solve.lowrank.types import Record, Status, finished
from quadlin.solve.signals.levenberg import LinearisedResidual, Place, levenberg

ROUNDED = 64  # times the rounding of one number: an exact fit
SAME = 1e-2  # results that differ by less, relative to their size, are the same optimum
GIVEN_UP = 1e-3  # after a smaller gain, only the best start is continued
FAR, SETTLED = 10.0, 1e-3  # of Huber's loss, as in `robust`
TYPICAL = 30.0  # medians: Gaussian vectors measure nothing larger
STEPS_PER_ROUND = 3  # before rows are reweighted
MOST = 0.95  # of the rows: the largest majority


class SearchProblem(Protocol):
    """Residuals f(z) − y that can be linearised, and their weights."""

    @property
    def y(self) -> np.ndarray: ...  # noqa: D102
    @property
    def weight(self) -> np.ndarray: ...  # noqa: D102
    @property
    def walks(self) -> Walks: ...  # noqa: D102
    @property
    def majority(self) -> "Majority": ...  # noqa: D102
    def linearise(self, z: np.ndarray) -> LinearisedResidual: ...  # noqa: D102


@dataclass(frozen=True)
class Effort:
    """How far a search goes."""

    n_starts: int
    max_iter: int
    tol: float
    loss: str = "squared"

    @property
    def robust(self) -> bool:
        """Tell whether gross errors are left out."""
        return self.loss == "huber"


@dataclass(frozen=True)
class StartEnd:
    """The result of one start."""

    z: Any  # what was found
    objective: float  # to compare with that of other starts
    certain: bool  # whether no other start can be better, as only rounding remains
    status: Status
    history: tuple[Record, ...]


Same = Callable[[Any, Any], bool]  # whether two results are the same optimum


def best_of(ends: Iterator[StartEnd], n_starts: int, same: Same) -> StartEnd:
    """Return the best of some starts; it is ambiguous if no other one agrees with it.

    The search ends at a result that is certain, when a second start leads to the best optimum so
    far, or after `n_starts`. After Ctrl-C, the best so far is returned.
    """
    best: StartEnd | None = None
    agreed = n_starts == 1
    try:
        for _ in range(n_starts):
            reached = next(ends)
            agreed = agreed or (best is not None and same(best.z, reached.z))
            if best is None or reached.objective < best.objective:
                best = reached
            finished(reached)
            if agreed or best.certain:
                break
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, status=Status.interrupted)
    assert best is not None
    return best if agreed or best.certain else replace(best, status=Status.ambiguous)


def search(
    problem: SearchProblem, starts: Iterator[np.ndarray], effort: Effort, same: Same
) -> StartEnd:
    """Search from one start after the other and return the best search.

    A start is given up when a step gains less than 0.1% of the loss, so hopeless starts cost
    little; only the best is continued to the end.
    """
    descend = huber if effort.robust else least_squares
    brief = replace(effort, tol=max(effort.tol, GIVEN_UP))
    best = best_of((descend(problem, z, brief) for z in starts), effort.n_starts, same)
    if best.certain or best.status is Status.interrupted:
        return best
    try:
        ended = descend(problem, best.z, effort)
    except KeyboardInterrupt:
        return replace(best, status=Status.interrupted)
    unsure = best.status is Status.ambiguous and not ended.certain
    ambiguous = unsure and ended.status is not Status.interrupted
    status = Status.ambiguous if ambiguous else ended.status
    return replace(ended, status=status, history=joined(best.history, ended.history))


def joined(first: tuple[Record, ...], then: tuple[Record, ...]) -> tuple[Record, ...]:
    """Return the path of a search together with that of its continuation."""
    if not first:
        return then
    steps = first[-1].step
    return (*first, *(replace(record, step=steps + record.step) for record in then[1:]))


def least_squares(
    problem: SearchProblem, z: np.ndarray, effort: Effort, weight: np.ndarray | None = None
) -> StartEnd:
    """Descend to the optimum of Σ ω r², with the weights of the problem or others."""
    weight = problem.weight if weight is None else weight
    total = float(np.sum(weight))
    eps = float(np.finfo(z.dtype).eps)
    nothing = (ROUNDED * eps) ** 2 * float(weight @ problem.y**2)
    method = levenberg(problem.linearise, z, weight, effort.tol, nothing, effort.max_iter)
    history: list[Record] = []
    place = Place(z, np.inf)
    while True:
        try:
            place = next(method)
        except StopIteration as end:
            return StartEnd(place.z, place.loss, place.loss <= nothing, end.value, tuple(history))
        except KeyboardInterrupt:
            if len(history) < 2:  # the first point is the start itself
                raise
            return StartEnd(place.z, place.loss, False, Status.interrupted, tuple(history))
        history.append(Record(len(history), problem.walks.rounded, place.loss / total))


@dataclass(frozen=True)
class Majority:
    """The best-fitting rows, more than half of them: p + m/2 rows, with p unknowns and m more rows.

    Any p rows can be fitted, whatever they measure; so the rest decides, and no more than half of
    it may be gross errors. The size of the residuals of this majority determines σ.
    """

    share: float
    per_sigma: float  # the largest of their residuals, if noise is Gaussian

    @classmethod
    def of(cls, n: int, unknowns: int) -> "Majority":
        """Return the majority of n different measurements."""
        share = min((1 + unknowns / max(n, 1)) / 2, MOST)
        overfit = np.sqrt(max(1 - unknowns / max(n, 1), 1 - MOST))  # by which residuals shrink
        return cls(share, float(ndtri((1 + share) / 2) * overfit))

    def largest(self, size: np.ndarray, weight: np.ndarray) -> float:
        """Return the largest residual of the majority."""
        return float(np.quantile(size, self.share, weights=weight, method="inverted_cdf"))

    def sigma(self, size: np.ndarray, weight: np.ndarray) -> float:
        """Return the standard deviation of the noise, which gross errors do not affect."""
        return self.largest(size, weight) / self.per_sigma

    def mean(self, size: np.ndarray, weight: np.ndarray) -> float:
        """Return the mean residual of the majority."""
        inside = size <= self.largest(size, weight)
        return float(np.average(size[inside], weights=weight[inside]))


ALL_ROWS = Majority(1.0, 1.0)


def huber(problem: SearchProblem, z: np.ndarray, effort: Effort) -> StartEnd:
    """Descend to an optimum of Huber's loss, without gross errors."""
    brief = replace(effort, max_iter=min(effort.max_iter, STEPS_PER_ROUND))
    eps = max(ROUNDING, ROUNDED * float(np.finfo(z.dtype).eps))
    return reweighted(
        StartEnd(z, np.inf, False, Status.out_of_steps, ()),
        lambda z: np.abs(problem.linearise(z).residual),
        lambda z, weight: least_squares(problem, z, brief, weight),
        eps * problem.majority.largest(np.abs(problem.y), problem.weight),
        problem.weight,
        problem.majority,
        effort.max_iter,
    )[0]


def reweighted(
    end: StartEnd,
    size_of: Callable[[Any], np.ndarray],
    descend: Callable[[Any, np.ndarray], StartEnd],
    rounding: float,
    given: np.ndarray,
    majority: "Majority",
    rounds: int,
) -> tuple[StartEnd, np.ndarray]:
    """Descend to an optimum of Huber's loss by reweighted least squares; also return the weights.

    Beyond 1.345σ a residual counts linearly, beyond 10σ not at all: a bounded influence is not
    enough if unknowns are multiplied, since they could align with the gross errors. Searches are
    compared by the mean residual of the majority that determines σ.
    """
    sigma, factor, exact, size = np.inf, np.zeros_like(given), False, given
    for number in range(rounds):
        size = size_of(end.z)
        before = (sigma, factor)
        sigma = max(majority.sigma(size, given), rounding)
        factor = robust_factor(size, sigma)
        exact = sigma <= rounding
        steady = sigma > (1 - SETTLED) * before[0]
        if number and (exact or (steady and np.max(np.abs(factor - before[1])) <= SETTLED)):
            end = replace(end, status=Status.converged)
            break
        reached = descend(end.z, given * factor)
        end = replace(reached, history=joined(end.history, reached.history))
        if end.status is Status.interrupted:
            exact = False
            break
        end = replace(end, status=Status.out_of_steps)  # unless another round follows
    objective = majority.mean(size, given)
    return replace(end, objective=objective, certain=bool(exact)), given * factor


def robust_factor(size: np.ndarray, sigma: float) -> np.ndarray:
    """Return the weights of residuals: 1, less beyond 1.345σ, and none beyond 10σ."""
    ratio = size / (sigma or 1.0)
    return np.where(ratio > FAR, 0.0, BEND / np.maximum(ratio, BEND))


def typical_size(size: np.ndarray, weight: np.ndarray, robust: bool) -> float:
    """Return the mean of sizes, or with gross errors the median of those that are not 0."""
    counts = (size > 0) & (weight > 0)
    if not np.any(counts):
        return 0.0
    if robust:
        return weighted_median(size[counts], weight[counts])
    return float(np.average(size, weights=weight))


def usual_limit(size: np.ndarray, weight: np.ndarray) -> float:
    """Return the size beyond which rows are gross errors if vectors are about Gaussian."""
    counts = (size > 0) & (weight > 0)
    if not np.any(counts):
        return np.inf
    return TYPICAL * weighted_median(size[counts], weight[counts])
