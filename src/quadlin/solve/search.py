"""Searches from several starts: least squares or Huber's loss, until two of them agree."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from quadlin.core.rows import Walks
from quadlin.solve.levenberg import Linearised, Place, levenberg
from quadlin.solve.robust import BEND, MAD, ROUNDING, weighted_median
from quadlin.solve.types import Record, Status

ROUNDED = 64  # times the rounding of one number: an exact fit
FAR, ROUNDS, SETTLED = 10.0, 30, 1e-3  # of Huber's loss, as in `robust`


class Problem(Protocol):
    """Residuals f(z) − y that can be linearised, and what they weigh."""

    @property
    def y(self) -> np.ndarray: ...  # noqa: D102
    @property
    def weight(self) -> np.ndarray: ...  # noqa: D102
    @property
    def walks(self) -> Walks: ...  # noqa: D102
    def linearise(self, z: np.ndarray) -> Linearised: ...  # noqa: D102


@dataclass(frozen=True)
class Effort:
    """How far a search goes."""

    n_starts: int
    max_iter: int
    tol: float
    robust: bool = False


@dataclass(frozen=True)
class Search:
    """Where one start led to."""

    z: np.ndarray
    objective: float  # to compare with that of other starts
    exact: bool  # whether nothing but rounding is left
    status: Status
    history: tuple[Record, ...]


def best_of(
    starts: Iterator[np.ndarray],
    problem: Problem,
    effort: Effort,
    same: Callable[[np.ndarray, np.ndarray], bool],
) -> Search:
    """Search from one start after the other and return the best search.

    Ends at an exact solution, when a second start leads to the best optimum so far, or after
    `n_starts`; Ctrl-C leaves the best of the searches that are finished.
    """
    search = huber if effort.robust else least_squares
    best: Search | None = None
    try:
        for _ in range(effort.n_starts):
            reached = search(problem, next(starts), effort)
            again = best is not None and same(best.z, reached.z)
            if best is None or reached.objective < best.objective:
                best = reached
            if again or best.exact or effort.n_starts == 1:
                return best
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, status=Status.interrupted)
    assert best is not None
    return replace(best, status=Status.ambiguous)


def least_squares(problem: Problem, z: np.ndarray, effort: Effort) -> Search:
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
            return Search(place.z, place.loss, place.loss <= nothing, end.value, tuple(history))
        history.append(Record(len(history), problem.walks.count, place.loss / total))


@dataclass(frozen=True)
class Bounded:
    """A problem whose targets were moved and whose rows were weighted anew."""

    base: Problem
    y: np.ndarray
    weight: np.ndarray

    @property
    def walks(self) -> Walks:
        """Return the walks over the rows of the problem."""
        return self.base.walks

    def linearise(self, z: np.ndarray) -> Linearised:
        """Return the residual f(z) − y of the moved targets."""
        near = self.base.linearise(z)
        return replace(near, residual=near.residual + (self.base.y - self.y))


def huber(problem: Problem, z: np.ndarray, effort: Effort) -> Search:
    """Go to the optimum of Huber's loss by reweighted least squares, as `robust` does.

    Searches are compared by Σ ω|r|, for each has a scale of its own.
    """
    y, given = problem.y, problem.weight
    rounding = max(ROUNDING, ROUNDED * float(np.finfo(z.dtype).eps)) * weighted_median(
        np.abs(y), given
    )
    factor, reached = np.zeros_like(y), None
    for _ in range(ROUNDS):
        r = problem.linearise(z).residual
        size = np.abs(r)
        scale = MAD * weighted_median(size, given)
        exact = scale <= rounding
        limit = FAR * max(scale, rounding)
        before, factor = factor, BEND / np.clip(FAR * size / (limit or 1.0), BEND, FAR)
        if reached is not None and (exact or np.max(np.abs(factor - before)) <= SETTLED):
            break
        moved = y + r - np.clip(r, -limit, limit)
        reached = least_squares(Bounded(problem, moved, given * factor), z, effort)
        z = reached.z
    assert reached is not None
    return replace(reached, objective=float(given @ size), exact=bool(exact))
