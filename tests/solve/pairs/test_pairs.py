"""The search for pairs: its sums against dense columns, and its choice against all subsets."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.model import constant_model, predict
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.pairs.products import (
    RegressionColumns,
    base_leverages,
    joint_gram,
    product_moments,
)
from quadlin.solve.pairs.regression import Solution, inverse_of, scores
from quadlin.solve.pairs.search import PairSearch
from quadlin.solve.pairs.stepwise import Criterion, Stepwise


def in_memory(X, y, weight=None, fields=()):
    rows = Rows.of(MemorySource(X, y, weight))
    surveyed = rows.reduce(survey)
    names = [f"x{j}" for j in range(X.shape[1])]
    make_units = UnitsMaker("auto", True, X.dtype, names, fields)
    return rows, make_units(surveyed.features, surveyed.target)


def some_rows(seed=0, n=60, d=5):
    rng = np.random.default_rng(seed)
    X = rng.exponential(size=(n, d)) * (rng.uniform(size=(n, d)) < 0.6)
    return X, rng.standard_normal(n) + X[:, 0] * X[:, 1], rng.integers(1, 4, n).astype(float)


def columns_of(units, rank=0, seed=0):
    model = constant_model(units, rank, 0.2)
    if rank:
        rng = np.random.default_rng(seed)
        model = type(model)(
            np.linalg.qr(rng.standard_normal(model.U.shape))[0],
            np.ones(rank),
            model.w,
            0.2,
            units.free,
        )
    d = units.scale.shape[0]
    return RegressionColumns(
        units, model, np.arange(d), rank > 0, np.array([0, 1, 2]), np.array([1, 3, 2])
    )


def some_regression(columns):
    """Return coefficients of three products, and the inverse Gram matrix of all else."""
    base, rng = columns.base, np.random.default_rng(5)
    onto, S = 0.2 * rng.standard_normal((base, 3)), np.diag([0.001, 0.0015, 0.002])
    fit = Solution(columns, np.linspace(-1, 1, base + 3), onto, S)
    return fit, np.diag(np.linspace(0.001, 0.002, base))


def all_sums(chunk, columns):
    fit, inverse = some_regression(columns)
    leverages = base_leverages(chunk, columns.with_pairs([], []), inverse)
    return [
        product_moments(chunk, columns),
        joint_gram(chunk, columns),
        joint_gram(chunk, columns, columns.base),
        scores((chunk, leverages), fit, True),
    ]


def numbers(sums):
    return np.concatenate([np.ravel(v) for part in sums for v in vars(part).values()])


@pytest.mark.parametrize("rank", [0, 2])
def test_sums_over_products_equal_those_of_dense_columns(rank):
    X, y, weight = some_rows()
    _, units = in_memory(X, y, weight)
    columns = columns_of(units, rank)
    rows = Block(X, units)
    Z, U = units.standardised(X), columns.model.U
    r = (y - units.target.mean) / units.target.scale - predict(columns.model, rows)
    tangent = [2 * Z * (Z @ U[:, [a]] - (1 - units.free) * U[:, a] * Z) for a in range(rank)]
    A = np.concatenate([np.ones((60, 1)), Z, *tangent, Z[:, [0, 1, 2]] * Z[:, [1, 3, 2]]], axis=1)
    moments, full, tall, score = all_sums(Chunk(X, y, weight), columns)
    product = np.einsum("n,ni,nj->ij", weight, Z, Z)
    np.testing.assert_allclose(moments.second, product)
    np.testing.assert_allclose(moments.third, np.einsum("n,ni,nj->ij", weight, Z**2, Z), atol=1e-9)
    np.testing.assert_allclose(moments.fourth, np.einsum("n,ni,nj->ij", weight, Z**2, Z**2))
    with_y = np.concatenate([A, r[:, None]], axis=1)
    np.testing.assert_allclose(full.gram, with_y.T @ (weight[:, None] * with_y), atol=1e-9)
    np.testing.assert_allclose(tall.gram, full.gram[:, columns.base :], atol=1e-12)
    (fit, inverse), base = some_regression(columns), columns.base
    whole = fit.apart @ fit.inverse @ fit.apart.T
    whole[:base, :base] += inverse
    left, leverage = r - A @ fit.beta, np.clip(np.sum(A * (A @ whole), axis=1), None, 1 - 1e-9)
    influence = A @ whole[:, base:]
    np.testing.assert_allclose(score.moments, np.einsum("n,ni,nj->ij", weight * left, Z, Z))
    np.testing.assert_allclose(score.spread, (weight * (left / (1 - leverage)) ** 2) @ influence**2)


def test_observations_left_out_have_the_errors_of_fits_without_them():
    X, y, weight = some_rows()
    rows, units = in_memory(X, y, weight)
    search = PairSearch(rows, units, alpha=(0.3, 0.0, 0.2))
    fit = search.run()
    assert len(fit.i) > 0
    Z, ridge = units.standardised(X), np.full(6 + len(fit.i), 0.3)
    ridge[0], ridge[6:] = 0.0, 0.2
    A = np.concatenate([np.ones((60, 1)), Z, Z[:, fit.i] * Z[:, fit.j]], axis=1)
    r, squares = (y - units.target.mean) / units.target.scale, []
    for i in np.repeat(np.arange(60), weight.astype(int)):  # a row of weight 2 is two of them
        others = weight - (np.arange(60) == i)
        gram = A.T @ (others[:, None] * A) + np.diag(ridge)
        f = A[i] @ np.linalg.solve(gram, A.T @ (others * r))
        squares.append((r[i] - f) ** 2)
    np.testing.assert_allclose(search.left_out_squares(), squares, rtol=1e-5)


def test_the_tangent_columns_are_what_a_small_change_of_l_adds():
    X, y, _ = some_rows()
    _, units = in_memory(X, y)
    columns = columns_of(units, 2)
    model, H = columns.model, np.random.default_rng(1).standard_normal((5, 2))
    Z, eps = units.standardised(X), 1e-5

    def moved(size):
        M = (model.U * model.s) @ model.U.T + size * (model.U @ H.T + H @ model.U.T)
        f = np.einsum("ni,ij,nj->n", Z, M, Z)
        return f - Z**2 @ ((1 - units.free) * np.diag(M))

    (piece,) = columns.pieces(Chunk(X, y, None))
    A = piece.A
    slope = (moved(eps) - moved(-eps)) / (2 * eps)
    np.testing.assert_allclose(A[:, 6:16] @ H.T.ravel(), slope, atol=1e-7)


def test_sums_of_two_chunks_add_and_sparse_rows_and_repeated_rows_give_the_same():
    X, y, weight = some_rows()
    _, units = in_memory(X, y, weight)
    columns = columns_of(units)
    whole = numbers(all_sums(Chunk(X, y, weight), columns))
    halves = [
        all_sums(Chunk(X[part], y[part], weight[part]), columns)
        for part in (slice(0, 23), slice(23, 60))
    ]
    np.testing.assert_allclose(
        numbers([a + b for a, b in zip(*halves, strict=True)]), whole, rtol=1e-9, atol=1e-9
    )
    sparse = all_sums(Chunk(csr_array(X), y, weight), columns)
    np.testing.assert_allclose(numbers(sparse), whole, rtol=1e-9, atol=1e-9)
    again = np.repeat(np.arange(60), weight.astype(int))
    repeated = all_sums(Chunk(X[again], y[again], None), columns)
    np.testing.assert_allclose(numbers(repeated), whole, rtol=1e-9, atol=1e-9)


def test_the_choice_is_the_best_of_all_subsets_on_a_small_problem():
    rng = np.random.default_rng(3)
    A = rng.standard_normal((200, 6)) + rng.standard_normal((200, 1))
    y = 0.6 * A[:, 1] - 0.8 * A[:, 4] + rng.standard_normal(200)
    both = np.concatenate([A, y[:, None]], axis=1)
    criterion = Criterion(200.0, 6, float(y @ y))
    step = Stepwise(both.T @ both, [np.array([c]) for c in range(6)], criterion)
    subsets = [tuple(c for c in range(6) if mask >> c & 1) for mask in range(64)]

    def value(subset):
        left = y - A[:, subset] @ np.linalg.lstsq(A[:, subset], y)[0] if subset else y
        return criterion(float(left @ left), len(subset), len(subset))

    best = min(subsets, key=value)
    assert set(step.run().taken) == set(best) == {1, 4}
    assert step.run().value == pytest.approx(value(best))
    # From too many the steps lead back.
    assert set(step.run(start=range(6)).taken) == {1, 4}


def test_the_inverse_of_columns_that_explain_each_other_is_that_on_their_span():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((30, 4))
    A = np.column_stack([A, A[:, 0] + A[:, 1]])
    A /= np.sqrt(np.sum(A * A, axis=0))
    np.testing.assert_allclose(inverse_of(A.T @ A), np.linalg.pinv(A.T @ A), atol=1e-8)
    whole = A[:, :4].T @ A[:, :4]
    np.testing.assert_allclose(inverse_of(whole), np.linalg.inv(whole), rtol=1e-10)
