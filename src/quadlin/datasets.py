"""Problems with a known answer."""

from typing import Any

import numpy as np
from sklearn.utils import Bunch, check_random_state

DISTRIBUTIONS = ("gaussian", "truncated", "bernoulli", "uniform", "mixed", "ar1")


def make_second_order(
    n_samples: int = 1000,
    n_features: int = 20,
    *,
    rank: int = 2,
    distribution: str = "gaussian",
    signed: bool = True,
    diagonal: bool | None = None,
    noise: float = 0.0,
    parameter: float | None = None,
    n_test: int = 0,
    random_state: Any = None,
) -> Bunch:
    r"""Draw rows of a second order linear model, :math:`y = b + x^\top w + x^\top M x + \xi`.

    :math:`M = Q\,\mathrm{diag}(s)\,Q^\top` with Q random orthonormal, :math:`w \sim N(0, I/d)` and
    b = 1, as in the paper's experiments but for the intercept and the signs.

    Parameters
    ----------
    n_samples, n_features : int
        Rows and features.
    rank : int
        Rank of M before its diagonal is taken out.
    distribution : {"gaussian", "truncated", "bernoulli", "uniform", "mixed", "ar1"}
        Of the features, in raw units: standard normal; min(x, `parameter`); 0/1 with probability
        `parameter`; uniform on [0, 1]; alternately Bernoulli and truncated; a Gaussian AR(1)
        sequence with correlation `parameter`.
    signed : bool
        Whether the eigenvalues of M alternate in sign (else all are +1).
    diagonal : bool or None
        Whether M keeps its diagonal. None: all features but the Bernoulli ones keep it.
    noise : float
        Standard deviation of the noise.
    parameter : float or None
        Of the distribution; defaults are 0 (truncated), 0.1 (Bernoulli), 0.5 (AR(1)).
    n_test : int
        Noiseless test rows to draw as well.
    random_state : int, RandomState or None
        Seed.

    Returns
    -------
    Bunch
        X, y, X_test, y_test (noiseless), intercept, coef, components (k×d), eigenvalues,
        has_diagonal (d, bool).

    Examples
    --------
    >>> data = make_second_order(100, 5, rank=2, random_state=0)
    >>> data.X.shape, data.components.shape
    ((100, 5), (2, 5))
    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution={distribution!r} is not one of {', '.join(DISTRIBUTIONS)}.")
    if not 1 <= rank <= n_features:
        raise ValueError(f"rank={rank} must be between 1 and n_features={n_features}.")
    rng = check_random_state(random_state)
    X = _features(rng, n_samples + n_test, n_features, distribution, parameter)
    Q = np.linalg.qr(rng.standard_normal((n_features, rank)))[0]
    s = np.where(np.arange(rank) % 2, -1.0, 1.0) if signed else np.ones(rank)
    w = rng.standard_normal(n_features) / np.sqrt(n_features)
    binary = np.zeros(n_features, dtype=bool)
    binary[:: 2 if distribution == "mixed" else 1] = distribution in ("bernoulli", "mixed")
    has_diagonal = ~binary if diagonal is None else np.full(n_features, diagonal)
    m = np.where(has_diagonal, 0.0, (Q * Q) @ s)
    y = 1.0 + X @ w + ((X @ Q) ** 2) @ s - (X * X) @ m
    train, test = slice(0, n_samples), slice(n_samples, None)
    return Bunch(
        X=X[train],
        y=y[train] + noise * rng.standard_normal(n_samples),
        X_test=X[test],
        y_test=y[test],
        intercept=1.0,
        coef=w,
        components=Q.T,
        eigenvalues=s,
        has_diagonal=has_diagonal,
    )


def _features(rng: Any, n: int, d: int, distribution: str, parameter: float | None) -> np.ndarray:
    def truncated(columns: int) -> np.ndarray:
        level = 0.0 if parameter is None or distribution == "mixed" else parameter
        return np.asarray(np.minimum(rng.standard_normal((n, columns)), level))

    def bernoulli(columns: int) -> np.ndarray:
        q = 0.1 if parameter is None else parameter
        return np.asarray(rng.uniform(size=(n, columns)) < q, dtype=float)

    if distribution == "gaussian":
        return np.asarray(rng.standard_normal((n, d)))
    if distribution == "truncated":
        return truncated(d)
    if distribution == "bernoulli":
        return bernoulli(d)
    if distribution == "uniform":
        return np.asarray(rng.uniform(size=(n, d)))
    X = np.asarray(rng.standard_normal((n, d)))
    if distribution == "mixed":
        X[:, ::2] = bernoulli((d + 1) // 2)
        X[:, 1::2] = truncated(d // 2)
        return X
    rho = 0.5 if parameter is None else parameter
    for j in range(1, d):
        X[:, j] = rho * X[:, j - 1] + np.sqrt(1 - rho**2) * X[:, j]
    return X
