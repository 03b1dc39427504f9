r"""Which of some columns belong into a regression: stepwise by the extended BIC, on a Gram matrix.

.. math:: \mathrm{EBIC}(T) = N \log \mathrm{RSS}(T) + \mathrm{df}(T) \log N + 2 \log \binom{p}{|T|}

N is the weight of the rows less the parameters that are in any case fitted, p the number of
candidates that were looked at: the last term pays for having looked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, lgamma, log

import numpy as np

SMALLEST = 1e-10  # of the target's power: what rounding leaves of a residual
COLLINEAR = 1e-7  # of a column's own power: what is left of one that others explain


def log_choices(candidates: int, taken: int) -> float:
    """Return log(p choose k)."""
    if taken > candidates:
        return inf
    k, p = taken, candidates
    return lgamma(p + 1) - lgamma(k + 1) - lgamma(p - k + 1)


@dataclass(frozen=True)
class Criterion:
    """The extended BIC of a residual sum of squares; smaller is better.

    Examples
    --------
    >>> criterion = Criterion(rows=1000.0, candidates=820, power=1000.0)
    >>> criterion(loss=500.0, dof=1, taken=1) < criterion(loss=1000.0, dof=0, taken=0)
    True
    >>> criterion(loss=990.0, dof=1, taken=1) < criterion(loss=1000.0, dof=0, taken=0)
    False
    """

    rows: float  # N
    candidates: int  # p
    power: float  # Σω y², for what counts as zero

    def __call__(self, loss: float, dof: float, taken: int) -> float:
        """Return EBIC of a model with this loss, of `dof` parameters in `taken` candidates."""
        fit = self.rows * log(max(loss, SMALLEST * self.power, 1e-300))
        return fit + dof * log(self.rows) + 2 * log_choices(self.candidates, taken)

    def entry(self, taken: int) -> float:
        """Return t² that the next single column must exceed, for many rows."""
        more = log_choices(self.candidates, taken + 1) - log_choices(self.candidates, taken)
        return log(self.rows) + 2 * max(more, 0.0)


@dataclass(frozen=True)
class Choice:
    """The groups taken, in the order of entry, and what they leave."""

    taken: tuple[int, ...]  # positions of groups
    loss: float  # Σω r²
    dof: int
    value: float  # of the criterion


class Stepwise:
    """Forward, backward and exchange steps over groups of columns, on their Gram matrix.

    The matrix, (m + 1)², is of the columns and the response after all that is fitted in any case
    was projected out of them. Each step lowers the criterion, so the steps end; ties go to the
    candidate that comes first, so callers order candidates by their features.
    """

    def __init__(
        self, gram: np.ndarray, groups: Sequence[np.ndarray], criterion: Criterion
    ) -> None:
        self.gram, self.groups, self.criterion = gram, groups, criterion
        self.floor = COLLINEAR * np.diag(gram)[:-1]

    def run(self, start: Iterable[int] = (), banned: Iterable[int] = (), most: int = 100) -> Choice:
        """Return the choice at which no single step lowers the criterion."""
        refused, current = set(banned), self.judged(tuple(start))
        while True:
            better = self._backward(current)
            if better is None and len(current.taken) < most:
                better = self._forward(current, refused)
            better = better or self._exchange(current, refused)
            if better is None:
                return current
            current = better

    def judged(self, taken: tuple[int, ...]) -> Choice:
        """Return the choice of these groups."""
        rest, dof = self._without(taken)
        loss = float(max(rest[-1, -1], 0.0))
        return Choice(taken, loss, dof, self.criterion(loss, dof, len(taken)))

    def columns(self, taken: Iterable[int]) -> np.ndarray:
        """Return the columns of these groups, each once, in order of entry."""
        parts = [self.groups[g] for g in taken]
        return np.array(list(dict.fromkeys(c for part in parts for c in part)), dtype=np.int64)

    def exchanges(self, choice: Choice, group: int, within: float) -> list[tuple[int, float]]:
        """Return the groups that could stand for one that is taken, and what that would cost."""
        others = tuple(g for g in choice.taken if g != group)
        gaps = [(g, v - choice.value) for g, v in self._additions(others) if g != group]
        return sorted((pair for pair in gaps if pair[1] <= within), key=lambda pair: pair[1])

    def _forward(self, current: Choice, refused: set[int]) -> Choice | None:
        values = [(v, g) for g, v in self._additions(current.taken) if g not in refused]
        if not values or _best(values)[0] >= current.value:
            return None
        return self._if_better((*current.taken, _best(values)[1]), current)

    def _backward(self, current: Choice) -> Choice | None:
        """Leave out the group that is missed least, if the criterion says so."""
        index = self.columns(current.taken)
        if not len(index):
            return None
        inverse, gamma = self._solved(index)
        place = {c: m for m, c in enumerate(index)}
        missed = []
        for g in current.taken:
            at = [place[c] for c in self.groups[g]]
            part = np.linalg.pinv(inverse[np.ix_(at, at)], hermitian=True)
            missed.append((float(gamma[at] @ part @ gamma[at]) / len(at), g))
        least = min(missed)[1]
        return self._if_better(tuple(g for g in current.taken if g != least), current)

    def _exchange(self, current: Choice, refused: set[int]) -> Choice | None:
        for g in reversed(current.taken):
            others = tuple(t for t in current.taken if t != g)
            values = [(v, c) for c, v in self._additions(others) if c not in refused | {g}]
            if values and _best(values)[0] < current.value - 1e-6:
                better = self._if_better((*others, _best(values)[1]), current)
                if better is not None:
                    return better
        return None

    def _if_better(self, taken: tuple[int, ...], current: Choice) -> Choice | None:
        choice = self.judged(taken)
        return choice if choice.value < current.value - 1e-9 else None

    def _additions(self, taken: tuple[int, ...]) -> list[tuple[int, float]]:
        """Return every group that is not taken and explains more, with the criterion beside it."""
        rest, dof = self._without(taken)
        power, cross, loss = np.diag(rest)[:-1], rest[:-1, -1], max(float(rest[-1, -1]), 0.0)
        alive = power > self.floor
        gain = np.where(alive, cross**2 / np.where(alive, power, 1.0), 0.0)
        values = []
        for g, group in enumerate(self.groups):
            if g in taken:
                continue
            if len(group) == 1:
                explained, rank = float(gain[group[0]]), int(alive[group[0]])
            else:
                explained, rank = self._explained(rest, group)
            if rank:
                left = max(loss - explained, 0.0)
                values.append((g, self.criterion(left, dof + rank, len(taken) + 1)))
        return values

    def _explained(self, rest: np.ndarray, group: np.ndarray) -> tuple[float, int]:
        """Return what a group of columns explains of the response, and its rank."""
        size = np.sqrt(np.maximum(np.diag(self.gram)[group], 1e-300))
        values, vectors = np.linalg.eigh(rest[np.ix_(group, group)] / np.outer(size, size))
        seen = values > COLLINEAR
        along = vectors.T @ (rest[group, -1] / size)
        return float(np.sum(along[seen] ** 2 / values[seen])), int(seen.sum())

    def _without(self, taken: tuple[int, ...]) -> tuple[np.ndarray, int]:
        """Return the Gram matrix with the groups projected out of it, and their rank."""
        index = self.columns(taken)
        if not len(index):
            return self.gram, 0
        root = self._inverse_root(index)
        basis = root.T @ self.gram[index]
        return self.gram - basis.T @ basis, root.shape[1]

    def _solved(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the inverse Gram matrix of some columns and their coefficients."""
        root = self._inverse_root(index)
        inverse = root @ root.T
        return inverse, inverse @ self.gram[index, -1]

    def _inverse_root(self, index: np.ndarray) -> np.ndarray:
        """Return R with R Rᵀ the pseudo-inverse of the Gram matrix of some columns."""
        size = np.sqrt(np.maximum(np.diag(self.gram)[index], 1e-300))
        values, vectors = np.linalg.eigh(self.gram[np.ix_(index, index)] / np.outer(size, size))
        seen = values > COLLINEAR
        root: np.ndarray = vectors[:, seen] / np.sqrt(values[seen]) / size[:, None]
        return root


def _best(values: list[tuple[float, int]]) -> tuple[float, int]:
    """Return the smallest value; of those that only rounding tells apart, the first group."""
    return min(values, key=lambda value: (round(value[0], 6), value[1]))
