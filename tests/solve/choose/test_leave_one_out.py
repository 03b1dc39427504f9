"""Errors of rows left out, against fits without each of them; and what they decide."""

import numpy as np
import pytest

from quadlin import SecondOrderRegressor
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.automatic import RankSearch
from quadlin.solve.choose.leave_one_out import (
    BLOCK,
    bounds_of_squares,
    inverses_of,
    inverses_of_mean,
    left_out_error,
    left_out_squares,
    left_out_squares_by_rows,
    residuals_by_rows,
)
from quadlin.solve.lowrank.evidence import RowKernel
from quadlin.solve.lowrank.tangent_gram import columns, product_kernel, tangent_gram
from quadlin.solve.lowrank.types import Options

ALPHA = (0.7, 1.9)


def problem(n=14, d=3, weight=None, **options):
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    rows = Rows.of(MemorySource(X, y, weight))
    surveyed = rows.reduce(survey)
    make = UnitsMaker("auto", options.get("fit_intercept", True), np.float64, None)
    units = make(surveyed.features, surveyed.target)
    return rows, units, Options(rank=0, **options)


def squares_of(rows, *model):
    return left_out_squares(rows, inverses_of(*model))


def refitted(rows, units, options, gram):
    """Return the weighted squared error of each row under a fit of the others."""
    chunk = next(iter(rows.walk()))
    A = columns(chunk, units, options, gram.basis)
    A = A if options.fit_intercept else A[:, 1:]
    weight = np.ones(len(A)) if chunk.weight is None else chunk.weight
    R, squares = np.diag(gram.penalty(ALPHA)), []
    for i in range(len(A)):
        others = np.arange(len(A)) != i
        F, y, w = A[others, :-1], A[others, -1], weight[others]
        theta = np.linalg.solve(F.T @ (w[:, None] * F) + R, F.T @ (w * y))
        squares.append(weight[i] * (A[i, -1] - A[i, :-1] @ theta) ** 2)
    return np.array(squares)


@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [{}, {"fit_linear": False}, {"fit_intercept": False}])
def test_rows_left_out_have_the_errors_of_fits_without_them(k, weighted, parts):
    weight = np.linspace(0.2, 3, 14) if weighted else None
    rows, units, options = problem(weight=weight, **parts)
    U = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0][:, :k]
    gram = tangent_gram(rows, units, options, U)
    total = 14.0 if weight is None else weight.sum()
    error = left_out_error(rows, units, gram, ALPHA, total)
    squares = refitted(rows, units, options, gram)
    assert error == pytest.approx(squares.sum() / total, rel=1e-9)
    by_row = squares_of(rows, units, gram, ALPHA, total)[:, 0]
    np.testing.assert_allclose(by_row, squares, rtol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_products_of_rows_give_the_same_errors_as_products_of_columns(weighted):
    weight = np.linspace(0.2, 3, 14) if weighted else None
    total = 14.0 if weight is None else weight.sum()
    rows, units, options = problem(weight=weight)
    gram = tangent_gram(rows, units, options, np.eye(3))
    kernel, _ = product_kernel(rows, units, 8, total)  # fewer rows than products, it is told
    assert isinstance(kernel, RowKernel)
    by_row = left_out_squares_by_rows(kernel, ALPHA)[:, 0]
    others = squares_of(rows, units, gram, ALPHA, total)[:, 0]
    np.testing.assert_allclose(by_row, others, rtol=1e-8)


def test_rows_without_weight_have_no_error():
    weight = np.linspace(0.2, 3, 14)
    weight[[2, 5]] = 0.0
    rows, units, options = problem(weight=weight)
    gram = tangent_gram(rows, units, options, np.eye(3))
    kernel, _ = product_kernel(rows, units, 8, weight.sum())
    by_row = squares_of(rows, units, gram, ALPHA, weight.sum())[:, 0]
    assert len(by_row) == 12
    np.testing.assert_allclose(by_row, left_out_squares_by_rows(kernel, ALPHA)[:, 0], rtol=1e-8)


FACTORS = (1.0, 0.05, 20.0)


@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("parts", [{}, {"fit_linear": False}, {"fit_intercept": False}])
def test_one_pass_tells_the_errors_for_all_multiples_of_the_penalties(k, parts):
    rows, units, options = problem(weight=np.linspace(0.2, 3, 14), **parts)
    U = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0][:, :k]
    gram = tangent_gram(rows, units, options, U)
    walks = rows.walks
    squares = squares_of(rows, units, gram, ALPHA, 22.4, FACTORS)
    assert rows.walks == walks + 1
    for factor, error in zip(FACTORS, squares.sum(axis=0) / 22.4, strict=True):
        alpha = (factor * ALPHA[0], factor * ALPHA[1])
        assert error == pytest.approx(left_out_error(rows, units, gram, alpha, 22.4), rel=1e-9)


def test_many_columns_have_the_same_leverages_by_blocks_as_by_eigenvectors():
    rows, units, options = problem(n=400, d=20)
    gram = tangent_gram(rows, units, options, np.eye(20))
    assert len(gram.products) > BLOCK
    by_blocks = squares_of(rows, units, gram, ALPHA, 400.0)
    by_eigenvectors = squares_of(rows, units, gram, ALPHA, 400.0, (1.0, 2.0))[:, :1]
    np.testing.assert_allclose(by_blocks, by_eigenvectors, rtol=1e-8)


@pytest.mark.parametrize("parts", [{}, {"fit_intercept": False}])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_predicts_rows_left_out_as_a_ridge_does_that_leaves_nothing_else(weighted, parts):
    weight = np.linspace(0.0, 3, 14) if weighted else None
    total = 14.0 if weight is None else weight.sum()
    rows, units, options = problem(weight=weight, **parts)
    gram = tangent_gram(rows, units, options, np.eye(3, 0))
    ridge = squares_of(rows, units, gram, (1e14, 1e14), total)[:, 0]
    mean = left_out_squares(rows, inverses_of_mean(units, gram))[:, 0]
    np.testing.assert_allclose(mean, ridge, rtol=1e-8)


def test_products_of_rows_tell_the_errors_for_all_multiples_too():
    rows, units, _ = problem()
    kernel, _ = product_kernel(rows, units, 8, 14.0)
    squares = left_out_squares_by_rows(kernel, ALPHA, FACTORS)
    for factor, each in zip(FACTORS, squares.T, strict=True):
        alpha = (factor * ALPHA[0], factor * ALPHA[1])
        np.testing.assert_allclose(each, left_out_squares_by_rows(kernel, alpha)[:, 0], rtol=1e-8)


def test_a_quadratic_part_that_a_few_extreme_rows_carry_does_no_harm():
    # y is linear in log x. A few large x make squares of x seem useful; with all products and the
    # penalties of largest evidence the error on new rows was .90 of the spread of y. Penalties
    # that rows left out prefer, or none of them, are no worse than a ridge (R² .40).
    rng = np.random.default_rng(3)
    X, w = np.exp(1.2 * rng.normal(size=(560, 6))), rng.normal(size=6)
    y = np.log(X) @ w + 0.5 * rng.normal(size=560)
    model = SecondOrderRegressor(random_state=0).fit(X[:60], y[:60])
    ridge = SecondOrderRegressor(rank=0, random_state=0).fit(X[:60], y[:60])
    assert model.score(X[60:], y[60:]) > max(0.3, ridge.score(X[60:], y[60:]) - 0.02)


def test_rounding_that_is_larger_than_the_identity_leaves_numbers():
    # I + K/α is not positive by rounding where α is far below K's: both ways must go on.
    rng = np.random.default_rng(0)
    phi = rng.standard_normal((40, 3)) * 1e9
    y = rng.standard_normal(40)
    kernel = RowKernel([phi @ phi.T], y, np.full(40, 1 / 40), 40.0, [3], noise=1.0)
    solved, left = residuals_by_rows(kernel, (1e-6,))
    assert np.isfinite(solved).all()
    assert (left > 0).all()
    assert not np.isnan(kernel.at(np.log([1e-6])).log_evidence)


BOUNDED_ALPHA = (5.0, 9.0)


def wide_problem(n=3000, d=40, weight=None, extreme=False):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    y = X[:, 0] + X[:, 1] * X[:, 2] - X[:, 3] * X[:, 4] + 0.5 * rng.standard_normal(n)
    if extreme:
        X[::500] *= 30
        y[::500] = 30 * rng.standard_normal(len(y[::500]))
    rows = Rows.of(MemorySource(X, y, weight))
    surveyed = rows.reduce(survey)
    units = UnitsMaker("auto", True, np.float64, None)(surveyed.features, surveyed.target)
    return rows, units


@pytest.mark.parametrize("weighted", [False, True])
def test_errors_of_rows_left_out_are_within_their_bounds(weighted):
    weight = np.tile([0.0, 0.8, 1.0, 1.2], 750) if weighted else None
    rows, units = wide_problem(weight=weight)
    U = np.linalg.qr(np.random.default_rng(1).standard_normal((40, 4)))[0]
    gram = tangent_gram(rows, units, Options(rank=0), U)
    squares = squares_of(rows, units, gram, BOUNDED_ALPHA, 3000.0)[:, 0]
    least, most = bounds_of_squares(rows, units, gram, BOUNDED_ALPHA, 3000.0, seed=0).T
    assert len(squares) == (2250 if weighted else 3000)
    assert np.all(least <= squares)
    # Leverages are about .08 here, and what bounds them is 1.24 times an estimate whose error is
    # 20%: a row in ten may be above its bound, by more than 5% of its square one in fifty. All of
    # them together are bounded.
    assert np.mean(squares <= 1.05 * most) > 0.97
    assert squares.sum() < most.sum() < 1.5 * squares.sum()


def test_a_row_that_decides_a_parameter_has_no_bound():
    rows, units = wide_problem(extreme=True)
    gram = tangent_gram(rows, units, Options(rank=0), np.eye(40, 6))
    squares = squares_of(rows, units, gram, BOUNDED_ALPHA, 3000.0)[::500, 0]
    most = bounds_of_squares(rows, units, gram, BOUNDED_ALPHA, 3000.0, seed=0)[::500, 1]
    assert np.all(most >= squares)


@pytest.mark.parametrize("extreme", [False, True])
def test_bounds_agree_only_where_the_errors_do(extreme):
    rows, units = wide_problem(extreme=extreme)
    search = RankSearch(rows, units, Options(rank=0), 3000, 3000.0, 0)
    ridge, low = search.ridge(), search.candidate(5)
    sure = search.surely_better(low, ridge, ridge)
    assert (5, low.alpha) not in search.squares  # no error of a row was looked at
    assert sure is not extreme
    assert search.confirmed(search.left_out_squares(low), ridge) or not sure
    assert not search.surely_better(low, ridge, ridge)  # now that errors are there
