"""Rank 0 and all products, which are linear in their parameters, against dense least squares."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from quadlin import FactorizationMachineRegressor, SecondOrderRegressor
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.lowrank.types import Options
from quadlin.solve.lowrank.unrestricted import unrestricted_optimum


def table(kind, n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    if kind == "correlated":
        X = 0.9 * X[:, :1] + 0.4 * X @ np.triu(np.ones((d, d)))
    if kind == "skewed, far from zero":
        X = 30 + np.exp(X / 3)
    if kind == "units":
        X = X * 10.0 ** rng.integers(-8, 8, d)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    y = Z[:, 0] * Z[:, d // 2] - Z[:, -1] ** 2 + Z @ rng.standard_normal(d)
    return X, 5 + y + 2 * rng.standard_normal(n), rng.uniform(0.1, 3.0, n)


def products(Z, rank, linear=True, intercept=True, squares=True):
    i, j = np.triu_indices(Z.shape[1], 0 if squares else 1)
    parts = [np.ones((len(Z), 1))] * intercept + [Z] * linear + [Z[:, i] * Z[:, j]] * (rank > 0)
    return np.concatenate(parts, axis=1)


def least_squares(A, y, weight=None):
    root = np.ones(len(y)) if weight is None else np.sqrt(weight)
    return A @ np.linalg.lstsq(A * root[:, None], root * y, rcond=1e-14)[0]


def distance(a, b, y):
    return np.max(np.abs(a - b)) / np.std(y)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["plain", "correlated", "skewed, far from zero", "units"])
@pytest.mark.parametrize(("d", "rank"), [(1, 1), (2, 2), (5, 5), (5, 9), (12, 12), (25, 25)])
def test_all_products_without_penalty_are_dense_least_squares(d, rank, kind, weighted):
    X, y, weight = table(kind, max(200, 2 * d**2), d)
    weight = weight if weighted else None
    model = SecondOrderRegressor(rank=rank, alpha=0, pairs=None).fit(X, y, sample_weight=weight)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    # Normal equations lose the square of the condition number of the products, at most 10⁴ here.
    assert distance(model.predict(X), least_squares(products(Z, rank), y, weight), y) < 1e-8
    assert model.status_.name == "converged"


@pytest.mark.parametrize(("linear", "intercept"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("rank", [0, 4])
def test_parts_that_are_not_fitted_leave_dense_least_squares(rank, linear, intercept):
    X, y, weight = table("correlated", 300, 4)
    X += np.array([0.0, 1.0, 2.0, -3.0])
    if rank == 0 and not linear:
        expected = np.full(len(y), np.average(y, weights=weight) * intercept)
    else:
        expected = least_squares(products(X, rank, linear, intercept), y, weight)
    model = SecondOrderRegressor(
        rank=rank, alpha=0, pairs=None, fit_linear=linear, fit_intercept=intercept
    ).fit(X, y, sample_weight=weight)
    assert distance(model.predict(X), expected, y) < 1e-9


@pytest.mark.parametrize("kind", ["plain", "correlated", "units"])
@pytest.mark.parametrize(("n", "d"), [(8, 5), (1000, 30), (203, 200), (3000, 60)])
def test_rank_0_without_penalty_is_linear_regression(n, d, kind):
    """203 rows of 200 features took all passes and ended 5e-3 standard deviations away."""
    X, y, _ = table(kind, n, d)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    expected = least_squares(products(Z, 0), y)
    for rows in (X, csr_array(X)):
        model = SecondOrderRegressor(rank=0, alpha=0, pairs=None).fit(rows, y)
        assert distance(model.predict(rows), expected, y) < 1e-8
        assert model.status_.name == "converged"


@pytest.mark.parametrize("alpha", [1e-3, 1.0, (3.0, 50.0)])
@pytest.mark.parametrize("rank", [0, 6])
def test_penalties_on_all_products_are_ridge_regression(rank, alpha):
    X, y, _ = table("correlated", 400, 6)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    first, second = alpha if isinstance(alpha, tuple) else (alpha, alpha)
    A = products(Z, rank, intercept=False)
    i, j = np.triu_indices(6)
    ridge = [np.full(6, first)] + [second * np.where(i == j, 2.0, 1.0)] * (rank > 0)
    C = A - A.mean(axis=0)
    beta = np.linalg.solve(C.T @ C + np.diag(np.concatenate(ridge)), C.T @ (y - y.mean()))
    model = SecondOrderRegressor(rank=rank, alpha=alpha, pairs=None).fit(X, y)
    assert distance(model.predict(X), y.mean() + C @ beta, y) < 1e-10


def test_a_machine_of_full_rank_is_least_squares_on_all_pairs():
    X, y, _ = table("correlated", 400, 7)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    model = FactorizationMachineRegressor(rank=7, alpha=0, pairs=None).fit(X, y)
    expected = least_squares(products(Z, 7, squares=False), y)
    assert distance(model.predict(X), expected, y) < 1e-9


def test_more_products_than_one_pass_sums_are_as_precise_by_steps():
    """40 features have 861 products: steps take over, and go on until predictions settle."""
    X, y, _ = table("plain", 3000, 40)
    model = SecondOrderRegressor(rank=40, alpha=0, pairs=None).fit(X, y)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    # `tol` is 1e-6, and the last steps are to end within it.
    assert distance(model.predict(X), least_squares(products(Z, 40), y), y) < 1e-6


@pytest.mark.parametrize("rank", [0, 3])
def test_no_optimum_is_given_where_rows_do_not_determine_it_or_rank_restricts_it(rank):
    X, y, _ = table("plain", 60, 3)

    def optimum(X, y, **options):
        rows = Rows.of(MemorySource(X, y))
        surveyed = rows.reduce(survey)
        units = UnitsMaker("auto", True, np.float64, list("abc"))(
            surveyed.features, surveyed.target
        )
        return unrestricted_optimum(rows, units, Options(**options), len(y))

    assert optimum(X, y, rank=rank) is not None
    assert optimum(X[:4], y[:4], rank=rank) is None  # as many rows as linear parameters
    assert optimum(X, y, rank=1) is None
    assert optimum(X, y, rank=3, psd=True) is None
    if rank:
        twice = np.concatenate([X[:, :2], X[:, :1]], axis=1)
        assert optimum(twice, y, rank=rank) is None
