r"""Which of some columns belong in a regression: stepwise by the extended BIC, on a Gram matrix.

.. math:: \mathrm{EBIC}(T) = N \log \mathrm{RSS}(T) + \mathrm{df}(T) \log N + 2 \log \binom{p}{|T|}

N is the weight of the rows less the parameters that are always fitted, p the number of candidates
that were tried: the last term is the price of trying them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, lgamma, log
from typing import Any

import numpy as np

from quadlin.solve.lowrank.linear_model import inverse_root
from quadlin.solve.lowrank.types import NO_NOISE

COLLINEAR = 1e-7  # of a column's own power: if less remains, others explain it


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
    noise: float | None = None  # its variance, if known: then RSS/σ² replaces N log RSS

    def __call__(self, loss: float, dof: float, taken: int) -> float:
        """Return the EBIC of a model with this loss, and `dof` parameters in `taken` candidates."""
        return float(self.values(np.float64(loss), dof, taken))

    def values(self, loss: np.ndarray | np.float64, dof: Any, taken: int) -> np.ndarray:
        """Return the EBIC of several models of `taken` candidates."""
        least = max(NO_NOISE * self.power, 1e-300)
        fit: Any = self.rows * np.log(np.maximum(loss, least))
        if self.noise is not None:
            fit = loss / self.noise
        # Given pairs may be none of the candidates.
        choices = log_choices(max(self.candidates, taken), taken)
        return np.asarray(fit + dof * log(self.rows) + 2 * choices)

    def entry(self, taken: int) -> float:
        """Return the t² that the next single column must exceed, for many rows."""
        rise = log_choices(self.candidates, taken + 1) - log_choices(self.candidates, taken)
        return log(self.rows) + 2 * max(rise, 0.0)


@dataclass(frozen=True)
class PairChoice:
    """The chosen groups, in the order of entry, and the remaining loss."""

    taken: tuple[int, ...]  # positions of groups
    loss: float  # Σω r²
    dof: int
    value: float  # of the criterion


class Stepwise:
    """Forward, backward and exchange steps over groups of columns, on their Gram matrix.

    The matrix, (m + 1)², is that of the columns and the response after everything that is always
    fitted was projected out of them. Each step lowers the criterion, so the steps end; ties go to
    the first candidate, so callers order candidates by their features.
    """

    def __init__(
        self, gram: np.ndarray, groups: Sequence[np.ndarray], criterion: Criterion
    ) -> None:
        size = np.sqrt(np.maximum(np.diag(gram), 1e-300))
        size[-1] = 1.0
        self.gram = gram / np.outer(size, size)  # of columns of power 1, and the response
        self.groups, self.criterion = groups, criterion
        self.single = np.array([len(group) == 1 for group in groups], bool)
        self.first = np.array([group[0] for group in groups], dtype=np.int64)

    def run(
        self, start: Iterable[int] = (), banned: Iterable[int] = (), most: int = 100
    ) -> PairChoice:
        """Return the choice at which no single step lowers the criterion."""
        refused, current = np.zeros(len(self.groups), bool), self.judged(tuple(start))
        refused[list(banned)] = True
        while True:
            better = self._backward(current)
            if better is None and len(current.taken) < most:
                better = self._replaced(current, current.taken, refused)
            for g in reversed(current.taken if better is None else ()):
                kept = tuple(t for t in current.taken if t != g)
                better = better or self._replaced(current, kept, refused)
            if better is None:
                return current
            current = better

    def judged(self, taken: tuple[int, ...]) -> PairChoice:
        """Return the choice of these groups."""
        basis = self._basis(taken)
        loss = max(float(self.gram[-1, -1] - basis[:, -1] @ basis[:, -1]), 0.0)
        dof = len(basis)
        return PairChoice(taken, loss, dof, self.criterion(loss, dof, len(taken)))

    def columns(self, taken: Iterable[int]) -> np.ndarray:
        """Return the columns of these groups, each once, in order of entry."""
        parts = [self.groups[g] for g in taken]
        return np.array(list(dict.fromkeys(c for part in parts for c in part)), dtype=np.int64)

    def exchanges(self, choice: PairChoice, within: float) -> dict[int, list[tuple[int, float]]]:
        """Return, for each chosen group, the groups that could replace it, and at what cost."""
        near: dict[int, list[tuple[int, float]]] = {}
        for group in choice.taken:
            gaps = self._additions(tuple(t for t in choice.taken if t != group)) - choice.value
            gaps[group] = inf
            others = np.flatnonzero(gaps <= within)
            near[group] = sorted(((int(g), float(gaps[g])) for g in others), key=lambda p: p[1])
        return near

    def _replaced(
        self, current: PairChoice, kept: tuple[int, ...], refused: np.ndarray
    ) -> PairChoice | None:
        """Return the kept groups with the best further one, if that lowers the criterion."""
        values = np.where(refused, inf, self._additions(kept))
        values[list(current.taken)] = inf
        if not values.size or not values.min() < current.value:
            return None
        best = int(np.argmin(np.round(values, 6)))  # the first of those equal to rounding
        return self._if_better((*kept, best), current)

    def _backward(self, current: PairChoice) -> PairChoice | None:
        """Leave out the group without which the criterion is the lowest, if that is better."""
        fewer = (tuple(t for t in current.taken if t != g) for g in current.taken)
        least = min(map(self.judged, fewer), key=lambda choice: choice.value, default=current)
        return self._if_better(least.taken, current)

    def _if_better(self, taken: tuple[int, ...], current: PairChoice) -> PairChoice | None:
        choice = self.judged(taken)
        return choice if choice.value < current.value - 1e-6 else None

    def _additions(self, taken: tuple[int, ...]) -> np.ndarray:
        """Return the criterion with each group added to those chosen; inf if it adds nothing."""
        basis, gram, count = self._basis(taken), self.gram, len(self.groups)
        power = np.diag(gram) - np.sum(basis**2, axis=0)
        cross = gram[:-1, -1] - basis[:, :-1].T @ basis[:, -1]
        alive = power[:-1] > COLLINEAR
        gain = np.where(alive, cross**2 / np.where(alive, power[:-1], 1.0), 0.0)[self.first]
        rank = alive[self.first].astype(np.int64)
        for g in np.flatnonzero(~self.single).tolist():
            c = self.groups[g]
            values, V = np.linalg.eigh(gram[np.ix_(c, c)] - basis[:, c].T @ basis[:, c])
            V = V[:, values > COLLINEAR] / np.sqrt(values[values > COLLINEAR])
            gain[g], rank[g] = np.sum((V.T @ cross[c]) ** 2), V.shape[1]
        loss = np.maximum(max(power[-1], 0.0) - gain, 0.0)
        values = self.criterion.values(loss, len(basis) + rank, len(taken) + 1)
        usable = rank > 0
        usable[list(taken)] = False
        return np.where(usable, values, inf) if count else np.zeros(0)

    def _basis(self, taken: tuple[int, ...]) -> np.ndarray:
        """Return the coordinates of all columns and the response on the chosen columns' span."""
        index = self.columns(taken)
        root = inverse_root(self.gram[np.ix_(index, index)], COLLINEAR)
        return np.asarray(root.T @ self.gram[index])
