r"""Which of some columns belong in a regression: stepwise by the extended BIC, on a Gram matrix.

.. math:: \mathrm{EBIC}(T) = N \log \mathrm{RSS}(T) + \mathrm{df}(T) \log N + 2 \log \binom{p}{|T|}

N is the weight of the rows less the parameters that are always fitted, p the number of candidates
that were tried: the last term is the price of trying them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, lgamma, log
from typing import Any, NamedTuple

import numpy as np

SMALLEST = 1e-10  # of the target's power: a smaller residual is rounding
KEPT_ROOTS = 64  # a step needs that of the same columns several times
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
        least = max(SMALLEST * self.power, 1e-300)
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


class LeftOver(NamedTuple):
    """The remainder of columns and response after some groups, or after each of several sets."""

    power: np.ndarray  # (…, m), of each column
    cross: np.ndarray  # (…, m), with the response
    loss: np.ndarray  # (…, 1), of the response


class Stepwise:
    """Forward, backward and exchange steps over groups of columns, on their Gram matrix.

    The matrix, (m + 1)², is that of the columns and the response after everything that is always
    fitted was projected out of them. Each step lowers the criterion, so the steps end; ties go to
    the first candidate, so callers order candidates by their features.
    """

    def __init__(
        self, gram: np.ndarray, groups: Sequence[np.ndarray], criterion: Criterion
    ) -> None:
        self.gram, self.groups, self.criterion = gram, groups, criterion
        self.floor = COLLINEAR * np.diag(gram)[:-1]
        sizes = np.array([len(group) for group in groups], dtype=np.int64)
        self.singles = np.flatnonzero(sizes == 1)
        # Groups of several columns, those of the same size together: (groups), (groups, size).
        self.blocks = [
            (same := np.flatnonzero(sizes == size), np.stack([groups[int(g)] for g in same]))
            for size in np.unique(sizes[sizes > 1])
        ]
        self.single_columns = np.array([groups[int(g)][0] for g in self.singles], dtype=np.int64)
        self._roots: dict[bytes, np.ndarray] = {}  # of the last sets of columns

    def run(
        self, start: Iterable[int] = (), banned: Iterable[int] = (), most: int = 100
    ) -> PairChoice:
        """Return the choice at which no single step lowers the criterion."""
        refused, current = np.zeros(len(self.groups), bool), self.judged(tuple(start))
        refused[list(banned)] = True
        while True:
            better = self._backward(current)
            if better is None and len(current.taken) < most:
                better = self._forward(current, refused)
            better = better or self._exchange(current, refused)
            if better is None:
                return current
            current = better

    def judged(self, taken: tuple[int, ...]) -> PairChoice:
        """Return the choice of these groups."""
        index = self.columns(taken)
        root = self._inverse_root(index)
        explained = float(np.sum((root.T @ self.gram[index, -1]) ** 2))
        loss, dof = max(float(self.gram[-1, -1]) - explained, 0.0), root.shape[1]
        return PairChoice(taken, loss, dof, self.criterion(loss, dof, len(taken)))

    def columns(self, taken: Iterable[int]) -> np.ndarray:
        """Return the columns of these groups, each once, in order of entry."""
        parts = [self.groups[g] for g in taken]
        return np.array(list(dict.fromkeys(c for part in parts for c in part)), dtype=np.int64)

    def exchanges(self, choice: PairChoice, within: float) -> dict[int, list[tuple[int, float]]]:
        """Return, for each chosen group, the groups that could replace it, and at what cost."""
        near: dict[int, list[tuple[int, float]]] = {}
        for group, gaps in zip(choice.taken, self._instead(choice.taken), strict=True):
            others = np.flatnonzero(gaps - choice.value <= within)
            costs = [(int(g), float(gaps[g] - choice.value)) for g in others if g != group]
            near[group] = sorted(costs, key=lambda pair: pair[1])
        return near

    def _forward(self, current: PairChoice, refused: np.ndarray) -> PairChoice | None:
        values = np.where(refused, inf, self._additions(current.taken))
        best = _best(values)
        if not values.size or values[best] >= current.value:
            return None
        return self._if_better((*current.taken, best), current)

    def _backward(self, current: PairChoice) -> PairChoice | None:
        """Leave out the least useful group, if that lowers the criterion."""
        index = self.columns(current.taken)
        if not len(index):
            return None
        root = self._inverse_root(index)
        inverse = root @ root.T
        gamma = inverse @ self.gram[index, -1]
        place = {c: m for m, c in enumerate(index)}
        losses = []
        for g in current.taken:
            at = [place[c] for c in self.groups[g]]
            if len(at) == 1:
                power = inverse[at[0], at[0]]
                lost = gamma[at[0]] ** 2 / power if power > 0 else 0.0
            else:
                part = np.linalg.pinv(inverse[np.ix_(at, at)], hermitian=True)
                lost = gamma[at] @ part @ gamma[at]
            losses.append((float(lost) / len(at), g))
        least = min(losses)[1]
        return self._if_better(tuple(g for g in current.taken if g != least), current)

    def _exchange(self, current: PairChoice, refused: np.ndarray) -> PairChoice | None:
        if not current.taken:
            return None
        values = np.where(refused, inf, self._instead(current.taken))
        for row, g in reversed([*zip(values, current.taken, strict=True)]):
            row[g] = inf
            best = _best(row)
            if row[best] < current.value - 1e-6:
                others = tuple(t for t in current.taken if t != g)
                better = self._if_better((*others, best), current)
                if better is not None:
                    return better
        return None

    def _if_better(self, taken: tuple[int, ...], current: PairChoice) -> PairChoice | None:
        choice = self.judged(taken)
        return choice if choice.value < current.value - 1e-9 else None

    def _additions(self, taken: tuple[int, ...]) -> np.ndarray:
        """Return the criterion with each group added to those chosen; inf if it adds nothing."""
        rest, dof = self._without(taken)
        left = LeftOver(np.diag(rest)[:-1], rest[:-1, -1], np.maximum(rest[-1:, -1], 0.0))
        blocks = [rest[c[:, :, None], c[:, None, :]] for _, c in self.blocks]
        values = self._values(left, blocks, dof, len(taken) + 1)
        values[list(taken)] = inf
        return values

    def _instead(self, taken: tuple[int, ...]) -> np.ndarray:
        """Return the criterion with each group instead of each chosen one: (taken, groups).

        If no chosen column explains another, one matrix is enough: with A the inverse Gram matrix
        of those chosen and B = A·Gram, leaving out g adds WᵀW with W = A_gg^(-½)·B_g to the
        remainder of the Gram matrix.
        """
        index, sizes = self.columns(taken), [len(self.groups[g]) for g in taken]
        root = self._inverse_root(index)
        if not taken or not root.shape[1] == len(index) == sum(sizes):
            others = [tuple(t for t in taken if t != g) for g in taken]
            additions = [self._additions(kept) for kept in others]
            return np.reshape(additions, (len(taken), len(self.groups)))
        G = self.gram[index]
        A = root @ root.T
        B = A @ G
        places = np.split(np.arange(len(index)), np.cumsum(sizes)[:-1])
        each = [np.linalg.solve(np.linalg.cholesky(A[np.ix_(g, g)]), B[g]) for g in places]
        rest = self.gram - G.T @ B
        left = LeftOver(
            np.diag(rest)[:-1] + [np.sum(W[:, :-1] ** 2, axis=0) for W in each],
            rest[:-1, -1] + [W[:, -1] @ W[:, :-1] for W in each],
            np.maximum(rest[-1, -1] + [[W[:, -1] @ W[:, -1]] for W in each], 0.0),
        )
        blocks = []
        for _, c in self.blocks:
            added = [np.einsum("sgi,sgj->gij", W[:, c], W[:, c]) for W in each]
            blocks.append(rest[c[:, :, None], c[:, None, :]] + added)
        dof = len(index) - np.array(sizes)[:, None]
        values = self._values(left, blocks, dof, len(taken))
        values[:, list(taken)] = inf
        return values

    def _values(self, left: LeftOver, blocks: list[np.ndarray], dof: Any, taken: int) -> np.ndarray:
        """Return the criterion with each group, given the remainder; inf if it adds nothing.

        `blocks` are the remaining parts of the Gram matrix for groups of several columns; those of
        the same size are together.
        """
        alive = left.power > self.floor
        gain = np.where(alive, left.cross**2 / np.where(alive, left.power, 1.0), 0.0)
        each = self.criterion.values(np.maximum(left.loss - gain, 0.0), dof + 1, taken)
        values = np.full((*left.power.shape[:-1], len(self.groups)), inf)
        values[..., self.singles] = np.where(alive, each, inf)[..., self.single_columns]
        for (same, columns), block in zip(self.blocks, blocks, strict=True):
            explained, rank = self._explained(block, left.cross[..., columns], columns)
            loss = np.maximum(left.loss - explained, 0.0)
            value = self.criterion.values(loss, dof + rank, taken)
            values[..., same] = np.where(rank > 0, value, inf)
        return values

    def _explained(
        self, rest: np.ndarray, cross: np.ndarray, columns: np.ndarray
    ) -> tuple[Any, Any]:
        """Return what groups of the same size explain of the response, and their ranks."""
        size = np.sqrt(np.maximum(np.diag(self.gram)[columns], 1e-300))
        rest, cross = rest / (size[:, :, None] * size[:, None, :]), cross / size
        values, vectors = np.linalg.eigh(rest)
        independent = values > COLLINEAR
        along = np.einsum("...ij,...i->...j", vectors, cross)
        part = np.where(independent, along**2 / np.where(independent, values, 1.0), 0.0)
        return np.sum(part, axis=-1), np.sum(independent, axis=-1)

    def _without(self, taken: tuple[int, ...]) -> tuple[np.ndarray, int]:
        """Return the Gram matrix with the groups projected out of it, and their rank."""
        index = self.columns(taken)
        if not len(index):
            return self.gram, 0
        root = self._inverse_root(index)
        basis = root.T @ self.gram[index]
        return self.gram - basis.T @ basis, root.shape[1]

    def _inverse_root(self, index: np.ndarray) -> np.ndarray:
        """Return R with R Rᵀ the pseudo-inverse of the Gram matrix of some columns."""
        key = index.tobytes()
        if key not in self._roots:
            if len(self._roots) >= KEPT_ROOTS:
                self._roots.clear()
            size = np.sqrt(np.maximum(np.diag(self.gram)[index], 1e-300))
            values, V = np.linalg.eigh(self.gram[np.ix_(index, index)] / np.outer(size, size))
            independent = values > COLLINEAR
            self._roots[key] = V[:, independent] / np.sqrt(values[independent]) / size[:, None]
        return self._roots[key]


def _best(values: np.ndarray) -> int:
    """Return the position of the smallest value; the first of those that are equal to rounding."""
    return int(np.argmin(np.round(values, 6))) if values.size else 0
