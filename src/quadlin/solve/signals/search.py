"""Searches from several starts: least squares or Huber's loss, until two of them agree."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from quadlin.core.rows import Walks
from quadlin.solve.fits.robust import BEND, MAD, ROUNDING, weighted_median
from quadlin.solve.lowrank.types import Record, Status, finished
from quadlin.solve.signals.levenberg import LinearisedResidual, Place, levenberg

ROUNDED = 64  # times the rounding of one number: an exact fit
GIVEN_UP = 1e-3  # a gain from which a start is not worth another step until it proves the best
FAR, ROUNDS, SETTLED = 10.0, 100, 1e-3  # of Huber's loss, as in `robust`


class SearchProblem(Protocol):
    """Residuals f(z) − y that can be linearised, and what they weigh."""

    @property
    def y(self) -> np.ndarray: ...  # noqa: D102
    @property
    def weight(self) -> np.ndarray: ...  # noqa: D102
    @property
    def walks(self) -> Walks: ...  # noqa: D102
    def linearise(self, z: np.ndarray) -> LinearisedResidual: ...  # noqa: D102


@dataclass(frozen=True)
class Effort:
    """How far a search goes."""

    n_starts: int
    max_iter: int
    tol: float
    robust: bool = False


@dataclass(frozen=True)
class StartEnd:
    """Where one start led to."""

    z: np.ndarray
    objective: float  # to compare with that of other starts
    exact: bool  # whether nothing but rounding is left
    status: Status
    history: tuple[Record, ...]


def best_of(
    starts: Iterator[np.ndarray],
    problem: SearchProblem,
    effort: Effort,
    same: Callable[[np.ndarray, np.ndarray], bool],
) -> StartEnd:
    """Search from one start after the other and return the best search.

    Ends at an exact solution, when a second start leads to the best optimum so far, or after
    `n_starts`. A start is given up when a step gains less than 0.1% of the loss, so that hopeless
    ones cost little, and only the best is followed to the end. Ctrl-C leaves the best so far.
    """
    search = huber if effort.robust else least_squares
    brief = replace(effort, tol=max(effort.tol, GIVEN_UP))
    best: StartEnd | None = None
    agreed = effort.n_starts == 1
    try:
        for _ in range(effort.n_starts):
            reached = search(problem, next(starts), brief)
            agreed = agreed or (best is not None and same(best.z, reached.z))
            if best is None or reached.objective < best.objective:
                best = reached
            finished(reached)
            if agreed or best.exact:
                break
        assert best is not None
        if not best.exact:
            best = _continued(best, search(problem, best.z, effort))
            finished(best)
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, status=Status.interrupted)
    return best if agreed or best.exact else replace(best, status=Status.ambiguous)


def _continued(first: StartEnd, then: StartEnd) -> StartEnd:
    """Return the second search with the path of both."""
    steps = first.history[-1].step
    more = (replace(record, step=steps + record.step) for record in then.history[1:])
    return replace(then, history=(*first.history, *more))


def least_squares(problem: SearchProblem, z: np.ndarray, effort: Effort) -> StartEnd:
    """Go to the optimum of Σ ω r²."""
    total, weight = float(np.sum(problem.weight)), problem.weight
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
            if len(history) < 2:  # the first place is the start itself
                raise
            return StartEnd(place.z, place.loss, False, Status.interrupted, tuple(history))
        history.append(Record(len(history), problem.walks.rounded, place.loss / total))


@dataclass(frozen=True)
class Bounded:
    """A problem whose targets were moved and whose rows were weighted anew."""

    base: SearchProblem
    y: np.ndarray
    weight: np.ndarray

    @property
    def walks(self) -> Walks:
        """Return the walks over the rows of the problem."""
        return self.base.walks

    def linearise(self, z: np.ndarray) -> LinearisedResidual:
        """Return the residual f(z) − y of the moved targets."""
        near = self.base.linearise(z)
        return replace(near, residual=near.residual + (self.base.y - self.y))


def huber(problem: SearchProblem, z: np.ndarray, effort: Effort) -> StartEnd:
    """Go to the optimum of Huber's loss by reweighted least squares, as `robust` does.

    Searches are compared by Σ ω|r|, for each has a scale of its own.
    """
    y, given = problem.y, problem.weight
    eps = max(ROUNDING, ROUNDED * float(np.finfo(z.dtype).eps))
    rounding = eps * weighted_median(np.abs(y), given)
    scale, factor, reached = np.inf, np.zeros_like(y), None
    for _ in range(ROUNDS):
        r = problem.linearise(z).residual
        size = np.abs(r)
        before = (scale, factor)
        scale = max(MAD * weighted_median(size, given), rounding)
        factor = BEND / np.clip(size / (scale or 1.0), BEND, FAR)
        exact = scale <= rounding
        steady = scale > (1 - SETTLED) * before[0]
        if reached is not None and (
            exact or (steady and np.max(np.abs(factor - before[1])) <= SETTLED)
        ):
            break
        moved = y + r - np.clip(r, -FAR * scale, FAR * scale)
        reached = least_squares(Bounded(problem, moved, given * factor), z, effort)
        z = reached.z
        if reached.status is Status.interrupted:
            exact = False
            break
    assert reached is not None
    return replace(reached, objective=float(given @ size), exact=bool(exact))
