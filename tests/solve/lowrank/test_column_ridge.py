"""Ridge regression of wide sparse rows: all penalties at once are each of them alone."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import Ridge

from quadlin.solve.lowrank.column_ridge import ridges

ALPHAS = [30.0, 0.5, 4.0]


def rows_of(dtype=np.float64, n=80, d=120):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.1)
    return csr_array(X.astype(dtype)), rng.standard_normal(n) + 3, 0.5 + rng.random(n)


@pytest.mark.parametrize("weighted", [False, True])
def test_every_penalty_has_the_solution_of_a_ridge_regression(weighted):
    X, y, weight = rows_of()
    penalty = 0.2 + np.random.default_rng(1).random(X.shape[1])
    path = ridges(X, y, weight if weighted else None, penalty, ALPHAS, 1e-12, 500)
    root = np.sqrt(penalty)
    for alpha, coef, intercept in zip(ALPHAS, path.coef, path.intercept, strict=True):
        ridge = Ridge(alpha, solver="cholesky")
        ridge.fit(X.toarray() / root, y, weight if weighted else None)
        np.testing.assert_allclose(coef, ridge.coef_ / root, atol=1e-9)
        assert np.isclose(intercept, ridge.intercept_, atol=1e-9)


def test_single_numbers_are_enough_for_three_digits():
    X, y, weight = rows_of(np.float32)
    exact = ridges(X.astype(np.float64), y, weight, np.ones(120), ALPHAS, 1e-12, 500)
    path = ridges(X, y, weight, np.ones(120), ALPHAS, 1e-3, 500)
    assert path.coef.dtype == np.float32
    # The residual of the smallest penalty is a thousandth; the condition number is about 40.
    np.testing.assert_allclose(path.coef, exact.coef, atol=5e-3 * np.abs(exact.coef).max())
    assert path.passes < exact.passes


def test_columns_without_penalty_are_left_out_and_walks_are_capped():
    X, y, _ = rows_of()
    penalty = np.ones(120)
    penalty[7] = 0.0
    path = ridges(X, y, None, penalty, [1.0], 1e-12, 3)
    assert path.coef[0, 7] == 0.0
    assert path.passes == 5
    rest = path.errors(X, y, 0)
    np.testing.assert_allclose(rest, X @ path.coef[0] + path.intercept[0] - y)
    assert abs(rest.mean()) < 1e-10


def test_a_constant_target_has_no_slopes():
    X, _, _ = rows_of()
    path = ridges(X, np.full(80, 2.5), None, np.ones(120), [1.0, 2.0], 1e-6, 10)
    assert not path.coef.any()
    np.testing.assert_allclose(path.intercept, 2.5)
