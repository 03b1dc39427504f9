"""The authors' iteration in forty lines of numpy, beside the estimator's step="plain".

Nothing but the estimator is imported from quadlin. The iteration is that of the authors' public
code (MingLin-home/gFM), written anew: standardise, learn a bias, remove the mean of the residual,
solve the 2×2 systems in κ and φ, and symmetrise.
"""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from quadlin import SecondOrderRegressor

D, K, N = 40, 3, 30 * 3 * 40
LAWS = {
    "gaussian": lambda rng, n: rng.standard_normal((n, D)),
    "truncated": lambda rng, n: np.minimum(rng.standard_normal((n, D)), 0.0),
    "bernoulli": lambda rng, n: (rng.random((n, D)) < 0.1).astype(float),
}


def problem(name):
    rng = np.random.default_rng(3)
    Q, w = np.linalg.qr(rng.standard_normal((D, K)))[0], rng.standard_normal(D) / D**0.5
    M = Q @ Q.T - (np.diag(np.sum(Q * Q, axis=1)) if name == "bernoulli" else 0)
    X = LAWS[name](rng, N + 1000)
    y = X @ w + np.sum((X @ M) * X, axis=1)
    return X[:N], y[:N], X[N:], y[N:]


def plain(X, y, steps):
    """The estimator after so many steps, the first of which is the spectral start."""
    options = {"step": "plain", "polish": False, "max_iter": steps, "tol": 0.0, "whiten": "none"}
    model = SecondOrderRegressor(K, alpha=0.0, random_state=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


def iteration(X, y, start, steps, reading, diagonal=True):
    """Yield the predictor after each step, from the model of a fitted estimator."""
    mean, sd, b, scale = X.mean(0), X.std(0), y.mean(), y.std()
    Z, t = (X - mean) / sd, (y - b) / scale
    n, kappa, phi = len(t), (Z**3).mean(0), (Z**4).mean(0)
    tau = phi - 1 - kappa**2
    A = start.components_.T * sd[:, None]
    M = (A * start.eigenvalues_) @ A.T / scale
    s, Q = np.linalg.eigh(M)
    U = Q[:, np.argsort(-np.abs(s))[:K]]
    V = M @ U
    w = 2 * (M if diagonal else M - np.diag(np.diag(M))) @ (mean / sd) + sd * start.coef_ / scale
    c = 0.0  # the spectral start has that of the constant

    def f(Z, U, V, w, c):
        m = np.sum(U * V, axis=1)
        squares = m.sum() if diagonal else (Z * Z) @ m
        return c + Z @ w + np.sum((Z @ U) * (Z @ V), axis=1) - squares

    for _ in range(steps):
        r = f(Z, U, V, w, c) - t
        P0, P1 = r.mean(), Z.T @ r / n
        P2 = (Z * Z).T @ r / n - P0
        E = Z.T @ (r[:, None] * Z) / (2 * n) - P0 / 2 * np.eye(D)
        if diagonal:
            E = E + np.diag((P2 - kappa * P1) / tau - P2 / 2)
            w = w - ((phi - 1) * P1 - kappa * P2) / tau
        else:
            E, w = E - np.diag(P2 / 2), w - P1
        c = c - P0
        B = (U @ V.T + V @ U.T) / 2 - E
        U = np.linalg.qr(B @ U)[0]
        V = B @ U  # the authors' line
        if reading == "rank k":  # which has rank 2k once symmetrised: keep its rank-k part
            V = U @ (U.T @ V)
        model = (U, V, w, c)
        yield lambda X, model=model: b + scale * f((X - mean) / sd, *model)


def errors(name, steps, reading):
    X, y, X_test, y_test = problem(name)
    start = plain(X, y, 1)
    walk = iteration(X, y, start, steps, reading, diagonal=name != "bernoulli")
    return [np.mean((predict(X_test) - y_test) ** 2) / np.mean(y_test**2) for predict in walk]


@pytest.mark.parametrize("name", LAWS)
def test_the_plain_step_is_the_authors_iteration_to_rounding(name):
    X, y, X_test, y_test = problem(name)
    walk = iteration(X, y, plain(X, y, 1), 10, "rank k", diagonal=name != "bernoulli")
    for step, predict in enumerate(walk, 2):
        difference = predict(X_test) - plain(X, y, step).predict(X_test)
        assert np.abs(difference).max() < 1e-10 * np.abs(y_test).max(), step


@pytest.mark.parametrize("name", LAWS)
def test_symmetrising_to_rank_2k_as_the_authors_do_changes_little(name):
    """sym(UVᵀ) has rank 2k, step="plain" keeps its rank-k part: the same up to second order."""
    authors, rank_k = (np.array(errors(name, 10, reading)) for reading in ("authors", "rank k"))
    assert (np.abs(np.log(authors / rank_k)) < np.log(1.5)).all()
    # Both go on to rounding: contractions of 0.35 to 0.5 per step leave 1e-18 after 60.
    assert errors(name, 60, "authors")[-1] < 1e-18
