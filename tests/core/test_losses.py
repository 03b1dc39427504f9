"""A new loss is one class: estimators and solvers ask it, and never compare its name."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import d2_tweedie_score

from quadlin import SecondOrderRegressor
from quadlin.core.losses import LOSSES, Poisson, bounded_exp
from quadlin.estimators import checks


class Gamma(Poisson):
    """The deviance of the gamma law of targets y > 0, for logarithms f of their means."""

    name = solved = "gamma"
    kind = "positive targets"

    def value_and_slope(self, f, y):
        r = y / bounded_exp(f)
        return 2 * (r - 1 - np.log(np.where(r > 0, r, 1.0))), 1 - r

    def curvature(self, f):
        return np.ones_like(f)

    def variance(self, mean):
        return mean**2

    def entropy(self, y):
        return -np.log(y)

    def null(self, weight, mean, variance, entropy):
        return 2 * (entropy + weight * np.log(mean))


@pytest.fixture
def gamma(monkeypatch):
    monkeypatch.setitem(LOSSES, "gamma", Gamma())
    monkeypatch.setitem(checks.RULES, "loss", (lambda value: value == "gamma", "gamma"))
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    f = 0.3 + 0.5 * X[:, 0] + 0.4 * X[:, 1] * X[:, 2]
    return X, np.exp(f) * rng.gamma(4, 1 / 4, 400), f


def test_the_optimum_of_a_new_loss_is_that_of_a_dense_fit(gamma):
    X, y, _ = gamma
    i, j = np.triu_indices(3)
    F = np.column_stack([np.ones(400), X, X[:, i] * X[:, j]])

    def deviance(theta):
        r = y * np.exp(-F @ theta)
        return 2 * np.mean(r - 1 - np.log(r))

    best = minimize(deviance, np.zeros(F.shape[1]), tol=1e-12)
    model = SecondOrderRegressor(3, alpha=0.0, loss="gamma", squares=True, tol=1e-12, max_iter=200)
    model.fit(X, y)
    assert 2 * model.history_[-1].loss == pytest.approx(best.fun, rel=1e-8)
    np.testing.assert_allclose(np.log(model.predict(X)), F @ best.x, atol=1e-4)
    expected = d2_tweedie_score(y, model.predict(X), power=2)
    assert model.score(X, y) == pytest.approx(expected)


def test_rank_and_penalties_of_a_new_loss_are_chosen(gamma):
    X, y, f = gamma
    model = SecondOrderRegressor(loss="gamma", uncertainty=True, random_state=0).fit(X, y)
    # The noise of log y is 0.5, so ten parameters of 400 rows have an error of about 0.08.
    assert np.sqrt(np.mean((np.log(model.predict(X)) - f) ** 2)) < 0.1
    assert np.isfinite(model.predict(X, return_std=True)[1]).all()
