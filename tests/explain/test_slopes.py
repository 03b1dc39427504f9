"""Slopes at the mean: against finite differences and least squares of centred columns."""

import numpy as np
import pandas as pd
import pytest

from quadlin import SecondOrderClassifier, SecondOrderRegressor
from quadlin.explain.report import describe, mean_slope_errors, mean_slopes

RNG = np.random.default_rng(0)
N = 400
X = pd.DataFrame(
    {
        "a": RNG.normal(5, 1, N),
        "b": RNG.normal(-3, 2, N),
        "flag": 1.0 * (RNG.random(N) > 0.7),
        "city": RNG.choice(list("xyz"), N, p=[0.5, 0.3, 0.2]),
        "kind": RNG.choice(list("uv"), N),
    }
)
Y = X.a * X.b + X.a**2 + 2 * X.flag * X.a + (X.city == "x") * X.b + RNG.normal(size=N)


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 3, "alpha": (1.0, 20.0), "pairs": None},
        {"rank": 0, "alpha": 1.0, "pairs": 4},
        {"rank": 2, "alpha": 0.0, "pairs": [("a", "b")], "fit_intercept": True},
    ],
)
def test_slopes_at_the_mean_are_finite_differences_there(options):
    model = SecondOrderRegressor(random_state=0, **options).fit(X, Y)
    mean = model.encoder_.encode(X)[0].toarray().mean(axis=0)
    M, w = model.interactions_.matrix(), model.coef_

    def f(x):
        return x @ w + x @ M @ x

    steps = 1e-3 * np.eye(len(mean))
    expected = [(f(mean + step) - f(mean - step)) / 2e-3 for step in steps]
    np.testing.assert_allclose(mean_slopes(model), expected, rtol=1e-7, atol=1e-7)


def test_slopes_at_the_mean_have_the_errors_of_least_squares_with_centred_columns():
    # Rank d without a penalty is the regression on all products, whose errors are known.
    R = np.random.default_rng(1).normal([50, -20, 2000], [1, 2, 3], size=(200, 3))
    Z = R - R.mean(axis=0)
    y = Z[:, 0] + 2 * Z[:, 1] * Z[:, 2] + np.random.default_rng(2).normal(size=200)
    model = SecondOrderRegressor(3, alpha=0, pairs=None, uncertainty=True, tol=1e-14).fit(R, y)
    i, j = np.triu_indices(3)
    A = np.column_stack([np.ones(200), Z, Z[:, i] * Z[:, j]])
    beta, rest = np.linalg.lstsq(A, y)[:2]
    errors = np.sqrt(rest[0] / (200 - 10) * np.diag(np.linalg.inv(A.T @ A)))
    np.testing.assert_allclose(mean_slopes(model), beta[1:4], rtol=1e-5)
    np.testing.assert_allclose(mean_slope_errors(model), errors[1:4], rtol=1e-5)
    told = {term["feature"]: term for term in describe(model, 3)["linear"]}
    assert told["x1"]["slope"] == pytest.approx(beta[2], rel=1e-5)
    assert told["x1"]["std_error"] == pytest.approx(errors[2], rel=1e-5)
    assert abs(told["x1"]["coefficient"]) > 1000  # at zero, 2,000 years off


def test_the_error_of_a_difference_of_levels_is_that_of_a_difference_of_predictions():
    # A linear model with one column of text: the slope of a level is its mean less that of y.
    model = SecondOrderRegressor(rank=0, alpha=0, pairs=None, uncertainty=True)
    model.fit(X[["city"]], Y)
    counts = X.city.value_counts().sort_index().to_numpy()
    noise = model.noise_
    expected = noise * np.sqrt(1 / counts - 1 / N)
    np.testing.assert_allclose(mean_slope_errors(model), expected, rtol=1e-6)


def test_slopes_of_log_odds_are_described_too():
    model = SecondOrderClassifier(rank=1, alpha=1.0, uncertainty=True).fit(X, Y.median() < Y)
    linear = describe(model, 3)["linear"]
    assert all(term["std_error"] > 0 for term in linear)
