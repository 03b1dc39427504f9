"""Tables with a known truth, and the estimators that fit them."""

from typing import NamedTuple

import numpy as np

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
)

REGRESSORS = (SecondOrderRegressor, SecondOrderRegressorCV, FactorizationMachineRegressor)
CLASSIFIERS = (SecondOrderClassifier, FactorizationMachineClassifier)


class Table(NamedTuple):
    """Rows, their targets without noise, and the noise of each."""

    X: np.ndarray  # (n, d)
    truth: np.ndarray  # (n,), b + xᵀw + xᵀMx
    noise: np.ndarray  # (n,), of standard deviation sigma
    intercept: float
    w: np.ndarray  # (d,)
    M: np.ndarray  # (d, d), symmetric

    @property
    def y(self):
        return self.truth + self.noise

    def value(self, X):
        """Return the true target of other rows."""
        return self.intercept + X @ self.w + np.einsum("ni,ij,nj->n", X, self.M, X)


def draw_features(kind, n, d, rng):
    """Return rows of a law: independent, skewed, two-valued, mixed or correlated features."""
    X = rng.standard_normal((n, d))
    if kind == "gaussian":
        return X
    if kind == "uniform":
        return rng.uniform(-1, 3, (n, d))
    if kind == "exponential":
        return rng.exponential(size=(n, d))
    if kind == "binary":
        return (X > 0.3).astype(float)
    if kind == "mixed":
        X[:, ::3] = X[:, ::3] > 0.4
        X[:, 1::3] = np.exp(0.5 * X[:, 1::3])
        return X
    if kind == "correlated":  # autoregressive, correlation 0.8 between neighbours
        for j in range(1, d):
            X[:, j] = 0.8 * X[:, j - 1] + 0.6 * X[:, j]
        return X
    raise ValueError(f"There is no law {kind!r}.")


KINDS = ("gaussian", "uniform", "exponential", "binary", "mixed", "correlated")


def low_rank(n, d, k, *, kind="gaussian", sigma=0.0, seed=0):
    """Return a table whose M has rank k and either sign; binary columns have no square."""
    rng = np.random.default_rng(seed)
    X = draw_features(kind, n, d, rng)
    U = np.linalg.qr(rng.standard_normal((d, k)))[0]
    M = (U * np.where(np.arange(k) % 2, -1.0, 1.0)) @ U.T
    two_valued = np.array([len(np.unique(x)) <= 2 for x in X.T])
    M[two_valued, two_valued] = 0.0
    w, b = rng.standard_normal(d) / np.sqrt(d), 0.7
    truth = b + X @ w + np.einsum("ni,ij,nj->n", X, M, X)
    return Table(X, truth, sigma * rng.standard_normal(n), b, w, M)


def planted_pairs(n, d, count, *, sigma=0.5, kind="gaussian", seed=0):
    """Return a linear model plus a few products of coefficient ±1, and their positions."""
    rng = np.random.default_rng(seed)
    X = draw_features(kind, n, d, rng)
    pairs = set()
    while len(pairs) < count:
        pairs.add(tuple(sorted(rng.choice(d, 2, replace=False).tolist())))
    M = np.zeros((d, d))
    for i, j in sorted(pairs):
        M[i, j] = M[j, i] = rng.choice([-0.5, 0.5])
    w = rng.standard_normal(d) / np.sqrt(d)
    truth = 0.3 + X @ w + np.einsum("ni,ij,nj->n", X, M, X)
    return Table(X, truth, sigma * rng.standard_normal(n), 0.3, w, M), pairs


def nmse(truth, prediction):
    """Return the mean squared error relative to the variance of the truth."""
    truth, prediction = np.asarray(truth, float), np.asarray(prediction, float)
    return float(np.mean((truth - prediction) ** 2) / np.var(truth))


def quadratic_columns(X):
    """Return 1, the features and all their products, for a dense least squares."""
    i, j = np.triu_indices(X.shape[1])
    return np.column_stack([np.ones(len(X)), X, X[:, i] * X[:, j]])


def labels_of(table, *, seed=0, scale=1.0):
    """Return 0/1 labels whose log-odds are the centred truth times a scale."""
    odds = scale * (table.truth - np.median(table.truth))
    uniform = np.random.default_rng(seed).uniform(size=len(odds))
    return (uniform < 1 / (1 + np.exp(-odds))).astype(int)
