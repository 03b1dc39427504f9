"""Columns of numbers beside fields that are fitted by their posterior: slopes, and a test of them.

A column that is no function of a level, such as the hour of a rating, would need products of its
own in the posterior. Its slope comes from a ridge regression on all columns; what it leaves is
tested for products of it, which least squares can fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import lsmr

SURE = 6.0  # standard deviations: products that are there beyond doubt
RIDGE = 1.0  # rows that say zero, for each column


@dataclass(frozen=True)
class LooseColumns:
    """Columns that follow no field, with their slopes."""

    columns: np.ndarray  # (m,)
    slopes: np.ndarray  # (m,)
    values: np.ndarray  # (n, m)

    @classmethod
    def of(
        cls, X: csr_matrix, y: np.ndarray, weight: np.ndarray | None, columns: Sequence[int]
    ) -> "LooseColumns":
        """Find the slopes beside all other columns of X (n, d), which have a common scale."""
        places = np.asarray(columns)
        weight = np.ones(len(y)) if weight is None else np.asarray(weight)
        root = np.sqrt(weight)
        target = root * (y - np.average(y, weights=weight))
        slopes = lsmr(diags(root) @ X, target, damp=RIDGE**0.5, atol=1e-8, btol=1e-8)[0]
        return cls(places, slopes[places], np.asarray(X[:, places].todense()))

    def without(self, X: csr_matrix, y: np.ndarray) -> tuple[csr_matrix, np.ndarray]:
        """Return rows without the columns, and targets without what they add."""
        keep = np.ones(X.shape[1])
        keep[self.columns] = 0.0
        return csr_matrix(X @ diags(keep)), np.asarray(y) - self.values @ self.slopes

    def interact(
        self, error: np.ndarray, weight: np.ndarray | None, levels: Sequence[np.ndarray]
    ) -> bool:
        """Tell whether errors show products of the columns with levels or with each other."""
        weight = np.ones(len(error)) if weight is None else np.asarray(weight)
        Z, error, weight = self.values[weight > 0], error[weight > 0], weight[weight > 0]
        noise = np.average(error**2, weights=weight)
        for column in Z.T:
            for level in levels:
                score = np.bincount(level, weight * error * column)
                spread = noise * np.bincount(level, weight * column**2)
                seen = spread > 0
                square = float(np.sum(score[seen] ** 2 / spread[seen]))  # χ² of so many levels
                if square > seen.sum() + SURE * np.sqrt(2 * seen.sum()):
                    return True
        for i, j in combinations(range(Z.shape[1]), 2):
            product = Z[:, i] * Z[:, j]
            if (weight @ (error * product)) ** 2 > SURE**2 * noise * (weight @ product**2):
                return True
        return False
