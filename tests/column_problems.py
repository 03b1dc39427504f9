"""Sparse rows of few columns, and the objective of a model of them from its definition."""

import numpy as np
from scipy.sparse import csr_array


def sparse_rows(n, d, seed=0, density=0.3):
    """Return rows with entries of any size, some columns without any, and targets."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < density)
    X[:, 1] = 0
    return csr_array(X), rng.standard_normal(n), 0.5 + rng.random(n)


def objective(table, X, y, weight, V, w):
    """The objective from its definition, with the best intercept."""
    s, mean = table.signs[: table.k], table.mean
    f = X @ w + (X @ V) ** 2 @ s - X**2 @ (V**2 @ s)
    e = f - y - np.average(f - y, weights=weight)
    M = (V * s) @ V.T
    off = M - np.diag(np.diag(M))
    level, root = w + 2 * off @ mean, np.sqrt(table.penalty)
    first, second = table.alpha
    ridge = first * np.sum(table.penalty * level**2)
    return weight @ e**2 + ridge + 2 * second * np.sum((root[:, None] * M * root) ** 2)
