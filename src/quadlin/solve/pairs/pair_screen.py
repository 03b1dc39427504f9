r"""Which products are worth trying: the residual's moments over their standard errors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import numpy as np

from quadlin.core.arrays import Array, to_numpy
from quadlin.solve.pairs.pair_choice import Criterion
from quadlin.solve.pairs.pair_fit import Group, Scores
from quadlin.solve.pairs.pair_sums import FirstLook, ProductMoments

SHORTLIST, BLOCKS = 48, 4  # products, and blocks of them, that are tried in a round
WORTH_A_LOOK = 0.5  # of the t² for entry, since only two features are projected out here
NEW = 1e-6  # of a product's power: the least that its features must leave of it


@dataclass(frozen=True)
class Blocks:
    """The products of a field with another field, or with a feature that belongs to none.

    With features sorted by field, each block is a rectangle of the matrix of products.
    """

    parts: Sequence[np.ndarray]  # the features of each field, then each feature of no field
    first: np.ndarray  # for each block, the part that is a field
    second: np.ndarray  # and the other part

    @classmethod
    def of(cls, allowed: np.ndarray, fields: Sequence[np.ndarray]) -> "Blocks":
        """Return the blocks in which more than one product may be chosen."""
        inside = np.zeros(len(allowed), bool)
        for field in fields:
            inside[field] = True
        parts = [*fields, *([j] for j in np.flatnonzero(~inside))]
        blocks = cls([np.asarray(part) for part in parts], np.zeros(0, int), np.zeros(0, int))
        if not fields:
            return blocks
        counts = blocks._by_parts(allowed.astype(float))
        first, second = np.nonzero(np.triu(counts > 1, 1)[: len(fields)])
        return replace(blocks, first=first, second=second)

    def features(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the features of both sides of a block."""
        return self.parts[self.first[block]], self.parts[self.second[block]]

    @cached_property
    def dofs(self) -> np.ndarray:
        """Return the number of parameters of each block: the levels of a field add up to one."""
        free = np.maximum([len(part) - 1 for part in self.parts], 1)
        return np.asarray(free[self.first] * free[self.second])

    def sums(self, t2: np.ndarray) -> np.ndarray:
        """Return the sum over each block of a number per product, (d, d)."""
        if not len(self.first):
            return np.zeros(0)
        return np.asarray(self._by_parts(t2)[self.first, self.second])

    def _by_parts(self, matrix: np.ndarray) -> np.ndarray:
        order = np.concatenate(self.parts)
        start = np.cumsum([0, *(len(part) for part in self.parts[:-1])])
        by_rows = np.add.reduceat(matrix[order], start, axis=0)
        return np.asarray(np.add.reduceat(by_rows[:, order], start, axis=1))


class Screen:
    """The products that may be chosen, and what 1, z_i and z_j leave of each."""

    def __init__(
        self, moments: ProductMoments, free: Array, fields: Sequence[np.ndarray], main: Array | None
    ) -> None:
        C, K, F = (to_numpy(a) for a in (moments.second, moments.third, moments.fourth))
        var = np.diag(C)
        with np.errstate(all="ignore"):
            # |q|² less its projection onto 1 and onto (z_i, z_j), whose Gram matrix is 2×2
            det = np.outer(var, var) - C**2
            pull = (K**2 * var[None, :] + K.T**2 * var[:, None] - 2 * C * K * K.T) / det
            np.fill_diagonal(pull, np.diag(K) ** 2 / var)
            left = F - C**2 / moments.weight - pull
            allowed = left > NEW * F
        np.fill_diagonal(allowed, np.diag(allowed) & (to_numpy(free) > 0))
        for field in fields:
            allowed[np.ix_(field, field)] = False
        if main is not None:
            allowed &= main
        self.allowed, self.left = allowed, np.where(allowed, left, 1.0)
        self.blocks = Blocks.of(allowed, fields)

    @property
    def candidates(self) -> int:
        """Return the number of products and of blocks of them."""
        return int(np.triu(self.allowed).sum()) + len(self.blocks.first)

    def shortlist(
        self,
        score: Scores | FirstLook,
        criterion: Criterion,
        taken: int,
        share: float = WORTH_A_LOOK,
    ) -> list[Group]:
        """Return products, and blocks of products, with large moments of the residual."""
        t2 = self._t2(score, criterion)
        least = share * criterion.entry(taken)
        flat = np.flatnonzero(np.triu(t2).ravel() > least)
        flat = flat[np.argsort(-t2.ravel()[flat], kind="stable")[:SHORTLIST]]
        gains = self.blocks.sums(t2) - self.blocks.dofs * log(criterion.rows)
        large = np.flatnonzero(gains > least)
        blocks = [(-float(gains[b]), self._group(*self.blocks.features(int(b)))) for b in large]
        return [(int(p),) for p in flat] + [group for _, group in sorted(blocks)[:BLOCKS]]

    def largest(self, score: Scores | FirstLook, criterion: Criterion) -> float:
        """Return the largest t² of a product."""
        return float(self._t2(score, criterion).max(initial=0.0))

    def _t2(self, score: Scores | FirstLook, criterion: Criterion) -> np.ndarray:
        noise = criterion.noise or max(score.loss / criterion.rows, 1e-300)
        return np.where(self.allowed, to_numpy(score.moments) ** 2 / (noise * self.left), 0.0)

    def _group(self, a: np.ndarray, b: np.ndarray) -> Group:
        d = len(self.allowed)
        grid = [(min(i, j), max(i, j)) for i in a for j in b if self.allowed[i, j]]
        return tuple(sorted(int(i * d + j) for i, j in grid))
