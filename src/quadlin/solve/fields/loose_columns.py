"""Loose columns, which follow no field: their slopes, and a test for products.

A column that is not a function of a level, such as the hour of a rating, would need products of its
own in the posterior. It has only a slope, from a ridge regression on all columns. The residual is
tested for products of the column, which least squares could fit. In a stream, the slopes of later
batches come from a regression of the machine's residual on these columns alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import lsmr

SURE = 6.0  # standard deviations beyond which products certainly exist
RIDGE = 1.0  # in rows with slope zero, for each column


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
        """Fit the slopes together with all other columns of X (n, d), which have a common scale."""
        places = np.asarray(columns)
        weight = np.ones(len(y)) if weight is None else np.asarray(weight)
        root = np.sqrt(weight)
        target = root * (y - np.average(y, weights=weight))
        slopes = lsmr(diags(root) @ X, target, damp=RIDGE**0.5, atol=1e-8, btol=1e-8)[0]
        return cls(places, slopes[places], np.asarray(X[:, places].todense()))

    def without(self, X: csr_matrix, y: np.ndarray) -> tuple[csr_matrix, np.ndarray]:
        """Return rows without the columns, and targets without their contribution."""
        keep = np.ones(X.shape[1])
        keep[self.columns] = 0.0
        return csr_matrix(X @ diags(keep)), np.asarray(y) - self.values @ self.slopes

    def interact(
        self, error: np.ndarray, weight: np.ndarray | None, levels: Sequence[np.ndarray]
    ) -> bool:
        """Return whether errors show products of the columns with levels or with each other."""
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


class RunningSlopes(NamedTuple):
    """The slopes of loose columns in a stream, and the sums of all rows so far."""

    columns: np.ndarray  # (m,), of X
    mean: np.ndarray  # (m,), subtracted from them
    scale: np.ndarray  # (m,), by which they were multiplied
    slopes: np.ndarray  # (m,), with which the last batch was learned
    gram: np.ndarray  # (m, m), Σ weight zzᵀ
    score: np.ndarray  # (m,), Σ weight z·(residual of the machine at that time)

    def values(self, X: csr_matrix) -> np.ndarray:
        """Return the standardised values of rows (n, m)."""
        return np.asarray((X[:, self.columns].toarray() - self.mean) * self.scale)

    def renewed(self) -> "RunningSlopes":
        """Return the same with the slopes of all rows so far."""
        ridge = RIDGE * np.eye(len(self.slopes))
        return self._replace(slopes=np.linalg.solve(self.gram + ridge, self.score))

    def fed(self, Z: np.ndarray, residual: np.ndarray, weight: np.ndarray) -> "RunningSlopes":
        """Add the sums of more rows; `residual` is that of the machine."""
        weighted = weight[:, None] * Z
        score = self.score + residual @ weighted
        return self._replace(gram=self.gram + Z.T @ weighted, score=score)

    def problem(self, d: int, taken: np.ndarray) -> bool:
        """Return whether values read from a file are invalid."""
        columns = self.columns
        inside = columns.dtype.kind == "i" and bool(np.isin(columns, np.arange(d)).all())
        unique = len(np.unique(columns)) == len(columns) > 0 and not np.isin(columns, taken).any()
        finite = all(np.isfinite(array).all() for array in self)
        size = np.sqrt(np.maximum(np.diag(self.gram), 0.0))
        sums = bool((np.abs(self.gram) <= (1 + 1e-6) * np.outer(size, size)).all())
        return not (inside and unique and finite and sums and bool((self.scale > 0).all()))
