"""Where w or b is not fitted, they are tied to M: also with features far from zero."""

import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array

from quadlin import SecondOrderRegressor
from quadlin.solve.lowrank.tangent import TiedParts
from quadlin.solve.lowrank.whitening import Full, in_float64, low_rank_whitener

PARTS = [(False, True), (True, False), (False, False)]


def curvature(U, nu, fit_linear, fit_intercept, variance=1.0, ridge=0.0):
    """Return the matrix of E f² + 2·ridge·|variance·D|² in (v, G), whitened features of a variance.

    G's skew part is damped as by `without_ties`.
    """
    d, k = U.shape
    size = variance * np.sqrt(1 + ridge)

    def terms(x):
        v, G = x[:d], x[d:].reshape(d, k)
        D = U @ G.T + G @ U.T
        slope = v if fit_linear else 2 * D @ nu
        mean = nu @ slope - nu @ D @ nu + variance * np.trace(D)
        unused = 0 * v if fit_linear else v
        # The whitener has the ridge of w in it, so that v weighs 1 where it is fitted.
        slope = slope if fit_linear else np.sqrt(variance) * slope
        products = [2 * size * G.ravel(), 2 * size * (U.T @ G).ravel()]
        return np.concatenate([*products, slope, unused, [mean * (not fit_intercept)]])

    J = np.stack([terms(x) for x in np.eye(d + d * k)], axis=1)
    return J.T @ J


@pytest.mark.parametrize("ridges", [(0.0, 0.0), (0.5, 3.0), (1e3, 1e3)])
@pytest.mark.parametrize(("fit_linear", "fit_intercept"), PARTS)
def test_the_inverse_is_that_of_the_dense_matrix(fit_linear, fit_intercept, ridges):
    rng = np.random.default_rng(0)
    U, nu = np.linalg.qr(rng.standard_normal((7, 3)))[0], 3 * rng.standard_normal(7)
    v, G = fit_linear * rng.standard_normal((7, 2)), rng.standard_normal((7, 2, 3))
    variance = 1 / (1 + ridges[0])
    stiffness = (1 + ridges[1]) * variance**2
    x, X = TiedParts(nu, fit_linear, fit_intercept, variance, stiffness).inverse(U, v, G)
    A = curvature(U, nu, fit_linear, fit_intercept, variance, ridges[1])
    for i in range(2):
        expected = np.linalg.solve(A, np.concatenate([v[:, i], G[:, i].ravel()]))
        np.testing.assert_allclose(
            np.concatenate([x[:, i], X[:, i].ravel()]), expected, rtol=1e-9, atol=1e-12
        )


def least_squares_loss(X, y, fit_linear, fit_intercept):
    """Return the optimum of rank d by dense least squares on products of features about zero."""
    i, j = np.triu_indices(X.shape[1])
    columns = [X[:, i] * X[:, j]] + [X] * fit_linear + [np.ones((len(y), 1))] * fit_intercept
    A = np.concatenate(columns, axis=1)
    A = A / np.linalg.norm(A, axis=0)
    r = A @ np.linalg.lstsq(A, y, rcond=1e-13)[0] - y
    return np.mean(r**2)


@pytest.mark.parametrize(("fit_linear", "fit_intercept"), PARTS)
def test_features_far_from_zero_are_fitted(fit_linear, fit_intercept):
    # Rank 2 of 3 with a truth of rank 2: the loss is that of all products but for a few parameters.
    rng = np.random.default_rng(1)
    X = rng.normal([0, 0, 1e3], 1, (200, 3))
    x = X / [1, 1, 1e3]
    y = x[:, 0] ** 2 - (x[:, 1] + x[:, 2]) ** 2 + 0.1 * rng.standard_normal(200)
    parts = {"fit_linear": fit_linear, "fit_intercept": fit_intercept}
    model = SecondOrderRegressor(rank=2, alpha=0.0, random_state=0, **parts).fit(X, y)
    best = least_squares_loss(X, y, **parts)
    assert best * (1 - 1e-6) <= model.history_[-1].loss <= 1.05 * best  # 4 parameters of 200 rows


def test_weights_are_repetitions_without_an_intercept_and_far_from_zero():
    # Two columns at 10⁴: the terms that tie b to M are 10⁸ times what they leave.
    rng = np.random.default_rng(640)
    X = rng.normal([0, 1e4, 0, 1e4], 1, (12, 4))
    y = X[:, 0] * X[:, 2] + 0.3 * rng.standard_normal(12)
    options = {"rank": 2, "alpha": 0.1, "fit_intercept": False, "random_state": 0}
    for seed in range(4):
        times = np.random.default_rng(seed).integers(0, 4, 12)
        index = np.repeat(np.arange(12), times)
        repeated = SecondOrderRegressor(**options).fit(X[index], y[index])
        weighted = SecondOrderRegressor(**options).fit(X, y, sample_weight=times)
        losses = [m.history_[-1].loss for m in (repeated, weighted)]
        spread = np.mean(y[index] ** 2)
        assert max(losses) < 0.5 * spread
        assert abs(losses[0] - losses[1]) < 1e-3 * spread


def test_a_stream_without_a_linear_part_is_no_worse_than_a_constant_far_from_zero():
    rng = np.random.default_rng(719)
    X = rng.normal([0, 0, 0, 1e4], 1, (300, 4))
    y = X[:, 0] * X[:, 1] + rng.standard_normal(300)
    model = SecondOrderRegressor(rank=1, alpha=0.1, fit_linear=False, batch_size=20, random_state=0)
    for start in range(0, 300, 37):
        model.partial_fit(X[start : start + 37], y[start : start + 37])
        seen = slice(0, start + 37)
        assert np.mean((model.predict(X[seen]) - y[seen]) ** 2) <= np.var(y[seen])


def test_float32_far_from_zero_without_an_intercept_reaches_the_optimum_of_float64():
    # At 10⁴ standard deviations the ties are 10⁸ times what they leave, beyond float32.
    rng = np.random.default_rng(5)
    X = rng.normal([1e4, 0, 0, 0], 1, (141, 4)).astype(np.float32)
    x = X.astype(float) / [1e4, 1, 1, 1]
    y = (x[:, 1] * (1 + x[:, 2] - 2 * x[:, 0]) + rng.standard_normal(141)).astype(np.float32)
    parts = {"fit_linear": False, "fit_intercept": False}
    best = least_squares_loss(X.astype(float), y.astype(float), **parts)
    for seed in range(3):
        model = SecondOrderRegressor(rank=4, alpha=0.0, random_state=seed, **parts).fit(X, y)
        assert abs(model.history_[-1].loss / best - 1) <= 1e-4
        # Predictions are of the model as it is kept, rounded to float32.
        assert np.mean((model.predict(X) - y.astype(float)) ** 2) <= 1.001 * best
        assert model.components_.dtype == np.float32


@pytest.mark.parametrize("full", [True, False])
def test_a_whitener_of_float32_is_undone_to_the_last_digits_of_float64(full):
    # Far from zero, 10⁸ times what is lost there and back counts.
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.standard_normal((6, 6)))[0].astype(np.float32)
    size = rng.uniform(0.01, 9, 6).astype(np.float32)
    ones = np.ones(6, dtype=np.float32)
    white = (
        Full(V, size**2, size) if full else low_rank_whitener(V[:, :3], size[:3], ones, 0 * ones)
    )
    wide, Q = in_float64(white), rng.standard_normal((6, 2))
    np.testing.assert_allclose(wide.inverse(wide.apply(Q)), Q, rtol=1e-12)
    np.testing.assert_allclose(wide.apply(Q), white.apply(Q), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("parts", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("ones", [1.0, -3.0, 1e6])
@pytest.mark.parametrize("form", [np.asarray, csr_array, lambda X: X.astype(np.float32)])
def test_a_column_of_ones_stands_for_the_parts_that_are_not_fitted(parts, ones, form):
    """It was left out silently: predictions were too low by the mean, R² −2 instead of .99."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((300, 3))
    y = 5 + Z @ [1.0, -1.0, 0.5] + Z[:, 0] * Z[:, 1] + 0.1 * rng.standard_normal(300)
    X = form(np.column_stack([np.full(300, ones), Z]))
    linear, intercept = parts
    model = SecondOrderRegressor(
        4, alpha=0, pairs=None, fit_linear=linear, fit_intercept=intercept, random_state=0
    ).fit(X, y)
    full = SecondOrderRegressor(4, alpha=0, pairs=None, random_state=0).fit(Z, y)
    assert model.predict(X) == pytest.approx(full.predict(Z), abs=1e-4)
    assert intercept or model.intercept_ == 0
    assert linear or not np.any(model.coef_)


def test_a_column_of_ones_is_the_intercept_of_every_kind_of_fit():
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((600, 3))
    y = 5 + Z @ [1.0, -1.0, 0.5] + Z[:, 0] * Z[:, 1] + 0.1 * rng.standard_normal(600)
    X = np.column_stack([np.ones(600), Z])
    for options in ({"rank": 2}, {"rank": 2, "polish": False}, {"rank": 2, "loss": "huber"}):
        model = SecondOrderRegressor(fit_intercept=False, random_state=0, **options).fit(X, y)
        full = SecondOrderRegressor(random_state=0, **options).fit(Z, y)
        # With a learned penalty, which the column of ones has and the intercept has not.
        assert model.predict(X) == pytest.approx(full.predict(Z), abs=0.02)
        assert model.coef_[0] == pytest.approx(full.intercept_, abs=0.02)
    assert SecondOrderRegressor(fit_intercept=False, random_state=0).fit(X, y).score(X, y) > 0.99
    stream = SecondOrderRegressor(2, fit_intercept=False, random_state=0)
    for start in range(0, 600, 100):
        stream.partial_fit(X[start : start + 100], y[start : start + 100])
    assert stream.score(X, y) > 0.99


@pytest.mark.parametrize(("fit_linear", "fit_intercept"), PARTS)
def test_means_beyond_rounding_are_warned_of_without_intercept_or_linear_part(
    fit_linear, fit_intercept
):
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((300, 3))
    y = Z[:, 0] * Z[:, 1] + Z[:, 2]
    options = {"rank": 1, "alpha": 0.0, "pairs": None, "random_state": 0}
    model = SecondOrderRegressor(fit_linear=fit_linear, fit_intercept=fit_intercept, **options)
    with pytest.warns(UserWarning, match="rounding errors of their squares"):
        model.fit(Z + 1e6, y)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*rounding errors of their squares")
        model.fit(Z + 1e4, y)
        model.fit(np.column_stack([Z, np.full(300, 0.1)]), y)  # constant up to rounding
        SecondOrderRegressor(**options).fit(Z + 1e6, y)
