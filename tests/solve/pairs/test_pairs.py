"""The search for pairs: its sums against dense columns, and its choice against all subsets."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from quadlin.core.arrays import to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.model import constant_model, predict
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.lowrank.design import Design
from quadlin.solve.lowrank.linear_model import column_products
from quadlin.solve.lowrank.types import Options
from quadlin.solve.pairs.products import product_moments, residual_moments
from quadlin.solve.pairs.regression import Criterion, Regression, Stepwise, error_sums
from quadlin.solve.pairs.search import PairSearch


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


def a_model(units, rank=0, seed=0):
    rng, model = np.random.default_rng(seed), constant_model(units, rank, 0.2)
    U = np.linalg.qr(rng.standard_normal(model.U.shape))[0]
    return replace(model, U=U, s=np.ones(rank), w=rng.standard_normal(len(model.w)))


def design_of(units, rank=0):
    design = Design.at(a_model(units, rank).U, units, Options(rank))
    return replace(design, i=np.array([0, 1, 2]), j=np.array([1, 3, 2]))


def all_sums(chunk, units, rank=0):
    design, model = design_of(units, rank), a_model(units, rank)
    p = sum(design.sizes)
    root = np.linalg.qr(np.random.default_rng(5).standard_normal((p, p)))[0] / 30
    args = root, np.linspace(-1, 1, p), np.zeros(p + 1), root[-3:].T, 0.001
    return [
        product_moments(chunk, units),
        column_products(chunk, design),
        column_products(chunk, design, p - 2),
        residual_moments(chunk, model, units),
        error_sums(chunk, design, *args),
    ], args


def numbers(sums):
    *named, errors = sums
    values = [v for part in named for v in vars(part).values()]
    return np.concatenate([np.ravel(v) for v in (*values, errors)])


@pytest.mark.parametrize("rank", [0, 2])
def test_sums_over_products_equal_those_of_dense_columns(rank):
    X, y, weight = some_rows()
    _, units = in_memory(X, y, weight)
    Z, model = units.standardised(X), a_model(units, rank)
    r = (y - units.target.mean) / units.target.scale - predict(model, Block(X, units))
    A = design_of(units, rank).columns(Chunk(X, y, weight))
    np.testing.assert_allclose(A[:, -4:-1], Z[:, [0, 1, 2]] * Z[:, [1, 3, 2]])
    sums, (root, theta, _, ends, share) = all_sums(Chunk(X, y, weight), units, rank)
    moments, full, tall, looked, errors = sums
    product = np.einsum("n,ni,nj->ij", weight, Z, Z)
    np.testing.assert_allclose(moments.second, product)
    np.testing.assert_allclose(moments.third, np.einsum("n,ni,nj->ij", weight, Z**2, Z), atol=1e-9)
    np.testing.assert_allclose(moments.fourth, np.einsum("n,ni,nj->ij", weight, Z**2, Z**2))
    np.testing.assert_allclose(full.gram, A.T @ (weight[:, None] * A), atol=1e-9)
    np.testing.assert_allclose(tall.gram, full.gram[:, -4:], atol=1e-12)
    np.testing.assert_allclose(looked.moments, np.einsum("n,ni,nj->ij", weight * r, Z, Z))
    F, left = A[:, 1:-1], A[:, -1] - A[:, 1:-1] @ theta
    leverage = np.sum((F @ root) ** 2, axis=1) + share
    influence = F @ root @ ends
    spread = (weight * (left / (1 - np.clip(leverage, None, 1 - 1e-9))) ** 2) @ influence**2
    np.testing.assert_allclose(errors[0], spread)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_parameters_of_a_model_are_those_that_give_it_again(rank):
    X, y, _ = some_rows()
    _, units = in_memory(X, y)
    design, model = Design.at(a_model(units, rank).U, units, Options(rank)), a_model(units, rank)
    constant = model.c - float(model.free @ (model.U**2 @ model.s))
    A = design.columns(Chunk(X, y, None))
    f = constant + A[:, 1:-1] @ design.parameters(model)
    np.testing.assert_allclose(f, predict(model, Block(X, units)))


def test_products_that_are_fixed_and_regressions_agree_with_dense_least_squares():
    X, y, _ = some_rows()
    rows, units = in_memory(X, y)
    design = design_of(units, 2)
    G = to_numpy(rows.reduce(column_products, design).gram)
    A, alpha = design.columns(Chunk(X, y, None)), (0.3, 0.5, 0.2)
    regression = Regression.of(G, design, alpha)
    R = np.concatenate([[0], np.repeat(alpha, design.sizes) * design.unit])
    F, t = A[:, :-1], A[:, -1]
    beta = np.linalg.solve(F.T @ F + np.diag(R), F.T @ t)
    np.testing.assert_allclose(regression.theta, beta[1:])
    loss = np.sum((t - F @ beta) ** 2)
    np.testing.assert_allclose(regression.loss, loss)
    np.testing.assert_allclose(regression.objective, loss + R @ beta**2)
    hat = np.trace(np.linalg.solve(F.T @ F + np.diag(R), F.T @ F))
    np.testing.assert_allclose(regression.dof, hat)
    # with the tangent directions at zero only features and products are fitted
    still, at = regression.still(np.zeros(design.sizes[1])), np.r_[0:6, len(R) - 3 : len(R)]
    beta = np.linalg.solve(F[:, at].T @ F[:, at] + np.diag(R[at]), F[:, at].T @ t)
    np.testing.assert_allclose(still.theta, beta[1:])
    np.testing.assert_allclose(still.constant, beta[0])


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
    np.testing.assert_allclose(fit.left_out_squares(), squares, rtol=1e-5)


def test_sums_of_two_chunks_add_and_sparse_rows_and_repeated_rows_give_the_same():
    X, y, weight = some_rows()
    _, units = in_memory(X, y, weight)
    whole = numbers(all_sums(Chunk(X, y, weight), units)[0])
    halves = [
        all_sums(Chunk(X[part], y[part], weight[part]), units)[0]
        for part in (slice(0, 23), slice(23, 60))
    ]
    np.testing.assert_allclose(
        numbers([a + b for a, b in zip(*halves, strict=True)]), whole, rtol=1e-9, atol=1e-9
    )
    sparse = all_sums(Chunk(csr_array(X), y, weight), units)[0]
    np.testing.assert_allclose(numbers(sparse), whole, rtol=1e-9, atol=1e-9)
    again = np.repeat(np.arange(60), weight.astype(int))
    repeated = all_sums(Chunk(X[again], y[again], None), units)[0]
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
