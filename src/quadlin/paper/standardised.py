"""Dense rows and targets as the baselines see them: as sampled, or standardised."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy

BLOCK_ROWS = 1 << 14


@dataclass(frozen=True)
class Standardised:
    """z = (x − mean)/sd and t = (y − centre)/scale, in the dtype of x."""

    Z: Array  # (n, d)
    t: Array  # (n,)
    mean: Array  # (d,)
    sd: Array  # (d,)
    centre: float
    scale: float

    @classmethod
    def of(cls, X: Array, y: Array) -> Self:
        """Standardise by the means and variances of the rows; a constant feature becomes 0."""
        xp = namespace(X)
        mean = xp.mean(X, axis=0)
        sd = xp.std(X, axis=0)
        sd = xp.where(sd > 0, sd, xp.ones_like(sd))
        centre, scale = float(xp.mean(y)), float(xp.std(y)) or 1.0
        t = xp.astype((y - centre) / scale, X.dtype)
        return cls((X - mean) / sd, t, mean, sd, centre, scale)

    @classmethod
    def identity(cls, X: Array, y: Array) -> Self:
        """Leave the features as sampled; only the unit of y changes."""
        xp = namespace(X)
        zero = xp.zeros(X.shape[1], dtype=X.dtype, device=X.device)
        scale = float(xp.mean(y * y)) ** 0.5 or 1.0
        return cls(X, xp.astype(y / scale, X.dtype), zero, zero + 1, 0.0, scale)

    def standardise(self, X: Array) -> Array:
        """Return other rows in the same units."""
        return (X - self.mean) / self.sd

    def predictions(self, f: Array) -> Array:
        """Return values of f in the unit of y, in float64."""
        xp = namespace(f)
        return self.centre + self.scale * xp.astype(f, xp.float64)

    def mean_square(self, loss: Any) -> np.ndarray:
        """Return a mean squared residual in the unit of y²."""
        return np.asarray(to_numpy(loss), dtype=float) * self.scale**2

    def moment_matrix(self) -> Array:
        """Return the d×d matrix Zᵀ(t∘Z)/n, in blocks of rows."""
        n = self.Z.shape[0]
        total: Any = 0
        for part in blocks(n):
            rows = self.Z[part, ...]
            total = total + rows.T @ (self.t[part][:, None] * rows)
        return total / n


def blocks(n: int) -> Iterator[slice]:
    """Yield slices of at most some thousand rows."""
    for start in range(0, n, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, n))
