"""The data sets: rows of known models, so that every error is due to the solver."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

N_TEST = 5000
FULL = 1000  # features of the paper's experiments, at scale 1


@dataclass(frozen=True)
class Problem:
    """Rows y = b + xᵀw + xᵀMx without noise, and others for testing."""

    X: Any  # (n, d), float32; CSR for ratings
    y: np.ndarray  # (n,), float32
    X_test: Any
    y_test: np.ndarray
    rank: int
    signs: np.ndarray  # (k,), of the components of M
    has_diagonal: bool  # whether M has one; factorization machines cannot

    def head(self, n: int) -> "Problem":
        """Return the problem with its first n rows only."""
        return replace(self, X=self.X[:n], y=self.y[:n])

    @property
    def is_positive(self) -> bool:
        """Tell whether a factorization machine is the right model."""
        return bool(np.all(self.signs > 0)) and not self.has_diagonal

    @property
    def is_sparse(self) -> bool:
        """Tell whether the rows are sparse."""
        return not isinstance(self.X, np.ndarray)


def dense(
    scale: float, seed: int, signed: bool, diagonal: bool, bernoulli: float | None
) -> Problem:
    """Draw 30 kd rows of d = 1000·scale features, k = 10, M = Q diag(±1) Qᵀ."""
    rng = np.random.default_rng(seed)
    d, k = max(20, round(FULL * scale)), 10
    n = 30 * k * d
    Q = np.linalg.qr(rng.standard_normal((d, k)))[0].astype(np.float32)
    w = (rng.standard_normal(d) / np.sqrt(d)).astype(np.float32)
    signs = np.where(np.arange(k) % 2, -1, 1) if signed else np.ones(k)
    X, y = np.empty((n + N_TEST, d), np.float32), np.empty(n + N_TEST, np.float32)
    for start in range(0, len(X), 10_000):
        part = slice(start, min(start + 10_000, len(X)))
        size = (part.stop - start, d)
        if bernoulli is None:
            X[part] = rng.standard_normal(size, dtype=np.float32)
        else:
            X[part] = rng.random(size, dtype=np.float32) < bernoulli
        y[part] = 1 + X[part] @ w + (X[part] @ Q) ** 2 @ signs
        if not diagonal:
            y[part] -= X[part] ** 2 @ (Q**2 @ signs)
    return Problem(X[:n], y[:n], X[n:], y[n:], k, signs, diagonal)


def ratings(scale: float, seed: int) -> Problem:
    """Draw 100 ratings per user and item, one-hot: biases and factors of rank 5, no noise."""
    rng = np.random.default_rng(seed)
    levels, k = max(20, round(FULL * scale)), 5
    n = 100 * levels
    codes = rng.integers(levels, size=(n + N_TEST, 2)) + np.array([0, levels])
    w = 0.5 * rng.standard_normal(2 * levels)
    V = rng.standard_normal((2 * levels, k)) / k**0.5
    y = 3.5 + w[codes].sum(axis=1) + (V[codes[:, 0]] * V[codes[:, 1]]).sum(axis=1)
    ends = np.arange(0, codes.size + 1, 2)
    X = csr_matrix((np.ones(codes.size, np.float32), codes.ravel(), ends), (len(y), 2 * levels))
    y = y.astype(np.float32)
    return Problem(X[:n], y[:n], X[n:], y[n:], k, np.ones(k), False)


PROBLEMS = {
    "signed M": lambda scale, seed: dense(scale, seed, True, True, None),
    "positive M, no diagonal": lambda scale, seed: dense(scale, seed, False, False, None),
    "Bernoulli(.1)": lambda scale, seed: dense(scale, seed, False, False, 0.1),
    "ratings": ratings,
}
