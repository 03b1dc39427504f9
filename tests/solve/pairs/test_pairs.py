"""The search for pairs: its sums, its choice, and what it finds where the answer is known."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from problems import PLANTED, planted_pairs
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Threads
from quadlin.core.model import constant_model, predict
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.composite.pair_split import split
from quadlin.solve.pairs import pair_regression
from quadlin.solve.pairs.pair_choice import Criterion, Stepwise
from quadlin.solve.pairs.pair_fit import scores
from quadlin.solve.pairs.pair_regression import Coefficients, inverse_of
from quadlin.solve.pairs.pair_remainder import bounded_moments
from quadlin.solve.pairs.pair_screen import Blocks
from quadlin.solve.pairs.pair_search import PairSearch
from quadlin.solve.pairs.pair_sparse import sparse_search
from quadlin.solve.pairs.pair_sums import (
    RegressionColumns,
    base_leverages,
    flipped_moments,
    joint_gram,
    look_at,
    product_moments,
)
from quadlin.solve.pairs.pivots import explained_by_pivots


def in_memory(X, y, weight=None, fields=()):
    rows = Rows.of(MemorySource(X, y, weight))
    surveyed = rows.reduce(survey)
    names = [f"x{j}" for j in range(X.shape[1])]
    make_units = UnitsMaker("auto", True, X.dtype, names, fields)
    return rows, make_units(surveyed.features, surveyed.target)


def searched(X, y, weight=None, fields=(), **options):
    rows, units = in_memory(X, y, weight, fields)
    return PairSearch(rows, units, fields=fields, **options).run()


def pairs_of(fit):
    return set(zip(fit.i.tolist(), fit.j.tolist(), strict=True))


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
    fit = Coefficients(np.linspace(-1, 1, base + 3), onto, S)
    return fit, np.diag(np.linspace(0.001, 0.002, base))


def all_sums(chunk, columns):
    fit, inverse = some_regression(columns)
    leverages = base_leverages(chunk, columns.with_pairs([], []), inverse)
    return [
        product_moments(chunk, columns),
        joint_gram(chunk, columns, True),
        joint_gram(chunk, columns, False),
        scores((chunk, leverages), columns, fit, True),
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


def test_rows_left_out_have_the_errors_of_fits_without_them():
    X, y, weight = some_rows()
    rows, units = in_memory(X, y, weight)
    search = PairSearch(rows, units, alpha=(0.3, 0.0, 0.2))
    fit = search.run()
    assert len(fit.i) > 0
    Z, ridge = units.standardised(X), np.full(6 + len(fit.i), 0.3)
    ridge[0], ridge[6:] = 0.0, 0.2
    A = np.concatenate([np.ones((60, 1)), Z, Z[:, fit.i] * Z[:, fit.j]], axis=1)
    r, squares = (y - units.target.mean) / units.target.scale, []
    for i in np.flatnonzero(weight):
        others = np.where(np.arange(60) == i, 0.0, weight)
        gram = A.T @ (others[:, None] * A) + np.diag(ridge)
        f = A[i] @ np.linalg.solve(gram, A.T @ (others * r))
        squares.append(weight[i] * (r[i] - f) ** 2)
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


def test_another_look_says_of_a_residual_what_the_first_one_does():
    X, y, _ = some_rows()
    rows, units = in_memory(X, y)
    columns = columns_of(units)
    first = look_at(rows, columns, None)
    again = look_at(rows, columns, first.features)
    assert again.features is first.features
    assert (again.loss, again.moments.tolist()) == (first.loss, first.moments.tolist())


def test_moments_with_random_signs_do_not_depend_on_how_rows_are_cut():
    X, y, _ = some_rows()
    rows, units = in_memory(X, y)
    columns = columns_of(units)
    beta = np.linspace(-1, 1, columns.base + 3)
    whole = rows.reduce_numbered(flipped_moments, 60, columns, beta, [1]).moments
    for cut in (Rows.of(MemorySource(X, y, None, 7)), Rows(Threads(MemorySource(X, y), 2))):
        parts = cut.reduce_numbered(flipped_moments, 60, columns, beta, [1]).moments
        np.testing.assert_allclose(parts, whole, rtol=1e-9, atol=1e-9)
    other = rows.reduce_numbered(flipped_moments, 60, columns, beta, [2]).moments
    assert not np.allclose(other, whole)


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


def test_every_exchange_is_judged_as_a_regression_judges_it():
    rng = np.random.default_rng(3)
    A, y = rng.standard_normal((80, 9)), rng.standard_normal(80)
    A[:, 8] = A[:, 7] + 0.3 * A[:, 8]  # correlated
    groups = [np.array([c]) for c in range(7)] + [np.array([7, 8])]
    both, criterion = np.column_stack([A, y]), Criterion(80.0, 8, float(y @ y))
    step = Stepwise(both.T @ both, groups, criterion)

    def value(taken):
        columns = A[:, np.concatenate([groups[g] for g in taken])]
        loss = float(np.sum((y - columns @ np.linalg.lstsq(columns, y)[0]) ** 2))
        return criterion(loss, columns.shape[1], len(taken))

    for taken in ((4, 0, 2), (7, 1)):  # singles, and a block beside one
        values = step._instead(taken)
        for row, g in zip(values, taken, strict=True):
            others = [t for t in taken if t != g]
            for c in set(range(8)) - set(taken):
                assert row[c] == pytest.approx(value([*others, c]), rel=1e-9)
        assert not np.isfinite(values[0, taken[1]])
    choice = step.judged((4, 0, 2))
    assert choice.value == pytest.approx(value([4, 0, 2]), rel=1e-9)
    gaps = dict(step.exchanges(choice, within=1e9)[4])
    assert set(gaps) == {1, 3, 5, 6, 7}
    assert gaps[7] == pytest.approx(value([0, 2, 7]) - choice.value, abs=1e-6)


@pytest.mark.parametrize(("n", "d", "pairs", "noise", "kind"), PLANTED)
def test_planted_pairs_are_all_found_and_no_others(n, d, pairs, noise, kind):
    X, y, truth = planted_pairs(n, d, pairs, noise, kind=kind)
    fit = searched(X, y)
    assert pairs_of(fit) == truth
    # The t of a pair of strength 1 is √n/noise > 24 with 600 rows; 10 leaves room for 0/1 features.
    assert (np.abs(fit.coef) > 10 * fit.errors.std).all()
    values = [choice.value for choice in fit.path]
    assert values == sorted(values, reverse=True)  # each pair lowers the criterion


def test_the_search_does_not_depend_on_the_order_of_rows_and_features_nor_on_the_engine():
    X, y, truth = planted_pairs(500, 15, 3, 0.5, seed=4)
    rng = np.random.default_rng(0)
    turned, order = rng.permutation(500), rng.permutation(15)
    assert pairs_of(searched(X, y)) == truth
    moved = searched(X[turned][:, order], y[turned])
    back = {tuple(sorted((int(order[i]), int(order[j])))) for i, j in pairs_of(moved)}
    assert back == truth
    rows, units = in_memory(X, y)
    threads = PairSearch(Rows(Threads(rows.engine.source, 2)), units).run()
    np.testing.assert_allclose(threads.coef, searched(X, y).coef, rtol=1e-8)


def test_weights_are_repetitions_and_sparse_rows_give_the_same_pairs():
    X, y, _ = planted_pairs(400, 12, 2, 0.5, seed=5)
    X = X * (np.random.default_rng(1).uniform(size=X.shape) < 0.7)
    y = y + 2 * X[:, 0] * X[:, 1]
    weight = np.random.default_rng(2).integers(1, 4, 400)
    again = np.repeat(np.arange(400), weight)
    weighted = searched(X, y, weight.astype(float))
    assert (0, 1) in pairs_of(weighted)
    for other in (searched(X[again], y[again]), searched(csr_array(X), y, weight.astype(float))):
        assert pairs_of(other) == pairs_of(weighted)
        np.testing.assert_allclose(other.coef, weighted.coef, rtol=1e-6)
        np.testing.assert_allclose(other.errors.std, weighted.errors.std, rtol=1e-6)


def test_squares_are_found_where_they_are_modelled():
    rng = np.random.default_rng(6)
    X = rng.standard_normal((600, 10))
    X[:, 3] = X[:, 3] > 0  # its square is its linear term
    y = X[:, 3] + X[:, 2] ** 2 - X[:, 2] * X[:, 3] + 0.5 * rng.standard_normal(600)
    assert pairs_of(searched(X, y)) == {(2, 2), (2, 3)}


@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_no_pair_is_found_where_nothing_interacts(kind):
    # The bar is a false pair in at most 5% of draws. In 100 draws each of seven kinds of rows none
    # to 2% had one, so that in 60 draws more than three (P < .04 at 2%) would be news; at most two.
    wrong = 0
    for seed in range(60):
        rng = np.random.default_rng([seed, 1])
        X = rng.standard_normal((300, 20)) + 0.7 * rng.standard_normal((300, 1))
        noise = rng.standard_normal(300)
        if kind == "heavy":  # and the noise as well
            X, noise = np.exp(X), rng.standard_t(3, 300)
        wrong += len(searched(X, X @ rng.standard_normal(20) / 5 + noise).i) > 0
    assert wrong <= 2


def test_a_pair_that_one_row_carries_is_not_taken():
    rng = np.random.default_rng(7)
    X, y = rng.standard_normal((500, 8)), rng.standard_normal(500)
    X[0, [2, 5]], y[0] = 9.0, 40.0  # t of the product is 13 by usual standard errors
    assert pairs_of(searched(X, y)) == set()


def test_a_hierarchy_leaves_pairs_without_main_effects_out():
    rng = np.random.default_rng(8)
    X = rng.standard_normal((800, 10))
    y = X[:, 0] + X[:, 1] + X[:, 0] * X[:, 1] + X[:, 0] * X[:, 5] + X[:, 6] * X[:, 7]
    y = y + 0.3 * rng.standard_normal(800)
    assert pairs_of(searched(X, y)) == {(0, 1), (0, 5), (6, 7)}
    assert {(0, 1), (0, 5)} <= pairs_of(searched(X, y, hierarchy="weak"))
    strong = pairs_of(searched(X, y, hierarchy="strong"))
    assert (0, 1) in strong
    assert not strong & {(0, 5), (6, 7)}


def test_pairs_that_stand_for_each_other_are_reported():
    rng = np.random.default_rng(9)
    X = rng.standard_normal((400, 8))
    X[:, 7] = X[:, 6] + 0.05 * rng.standard_normal(400)
    y = X[:, 2] * X[:, 6] + rng.standard_normal(400)
    fit = searched(X, y)
    assert len(fit.i) == 1
    assert {frozenset(pair) for pair in fit.exchangeable[0][:2]} == {
        frozenset({2, 6}),
        frozenset({2, 7}),
    }


def test_columns_of_levels_compete_as_wholes():
    rng = np.random.default_rng(10)
    codes = rng.integers(0, 4, (1500, 2))
    hot = [(codes[:, [a]] == np.arange(4)).astype(float) for a in range(2)]
    X = np.concatenate([rng.standard_normal((1500, 3)), *hot], axis=1)
    fields = [np.arange(3, 7), np.arange(7, 11)]
    y = rng.standard_normal((4, 4))[codes[:, 0], codes[:, 1]] + 0.3 * rng.standard_normal(1500)
    fit = searched(X, y, fields=fields)
    assert len(fit.path) == 2  # one step, which took the block
    assert {(i // 7, j // 7) for i, j in pairs_of(fit)} == {(0, 1)}
    assert min(fit.i) >= 3


def test_some_features_can_be_searched_beside_a_model_of_all():
    X, y, truth = planted_pairs(600, 20, 2, 0.5, seed=11)
    rows, units = in_memory(X, y)
    model = constant_model(units, 0, units.target.centre)
    some = np.array(sorted({j for pair in truth for j in pair} | {0, 1}))
    fit = PairSearch(rows, units, model=model, features=some, candidates=210).run()
    assert pairs_of(fit) == truth


def sparse_problem(interacts):
    """4,000 sparse features, more than d×d matrices are kept for, some of them common."""
    rng = np.random.default_rng(14)
    n, d = 3000, 4000
    share = np.minimum(0.3, 2 / np.arange(1, d + 1))
    X = csr_array((rng.uniform(size=(n, d)) < share).astype(float))
    y = rng.standard_normal(n) + np.asarray(X[:, [0]].todense()).ravel()
    if interacts:
        y = y + 2 * np.asarray((X[:, [1]] * X[:, [4]]).todense()).ravel()
    rows = Rows.of(MemorySource(X, y))
    surveyed = rows.reduce(survey)
    names = [f"x{j}" for j in range(d)]
    units = UnitsMaker("zero", True, X.dtype, names)(surveyed.features, surveyed.target)
    w = np.zeros(d)
    w[0] = X[:, [0]].todense().std() / y.std()
    return rows, units, replace(constant_model(units, 0, 0.0), w=w)


@pytest.mark.parametrize("interacts", [True, False])
def test_pairs_of_many_sparse_features_are_found_among_those_that_occur_together(interacts):
    fit = sparse_search(*sparse_problem(interacts)).run()
    assert pairs_of(fit) == ({(1, 4)} if interacts else set())


@pytest.mark.parametrize("seed", range(5))
def test_products_with_either_level_of_two_explain_the_same_and_the_first_is_taken(seed):
    rng = np.random.default_rng(seed)
    level = rng.uniform(size=1000) < 0.5
    X = np.column_stack([rng.uniform(30, 200, 1000), rng.integers(0, 9, 1000), level, ~level])
    y = 2 * X[:, 0] - 8 * X[:, 1] * X[:, 3] + rng.normal(0, 20, 1000)
    fit = searched(X, y, fields=[np.array([2, 3])])
    assert pairs_of(fit) == {(1, 2)}
    (one, other, cost) = fit.exchangeable[0]
    assert (one, other) == ((1, 2), (1, 3))
    assert abs(cost) < 1e-6  # of a criterion of some 7,000
    base = np.column_stack([np.ones(1000), X[:, :3]])  # oracle: dense least squares
    full = np.column_stack([base, X[:, 1] * X[:, 2]])
    losses = [float(np.linalg.lstsq(A, y)[1][0]) for A in (base, full)]
    told = [step.loss for step in fit.path]
    assert told[1] / told[0] == pytest.approx(losses[1] / losses[0], rel=1e-9)


def test_what_pairs_leave_is_nothing_or_something_that_all_products_could_explain():
    X, y, _ = planted_pairs(800, 20, 3, 0.5, 0)
    rows, units = in_memory(X, y)
    search = PairSearch(rows, units)
    search.run()
    assert search.leaves_nothing()
    # A full quadratic part of half of the noise: t² of 210 products sum to about twice 210.
    rng = np.random.default_rng(1)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    M = np.triu(rng.standard_normal((20, 20))) * 0.35 / np.sqrt(210)
    rows, units = in_memory(X, y + np.einsum("ni,ij,nj->n", Z, M, Z))
    search = PairSearch(rows, units)
    search.run(3)
    assert not search.leaves_nothing()
    # Of fewer rows than twice the products the sum says nothing.
    rows, units = in_memory(X[:400], y[:400])
    search = PairSearch(rows, units)
    search.run()
    assert not search.leaves_nothing()


@pytest.mark.parametrize(("size", "nothing"), [(0.0, 5), (0.6, 0)])
def test_a_dense_remainder_is_seen_although_a_few_rows_have_heavy_tails(size, nothing):
    """Log-normal features and t(3) noise: residuals with random signs vary as much as the sum."""
    answers = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = np.exp(rng.standard_normal((1000, 28)))
        Z = (X - X.mean(axis=0)) / X.std(axis=0)
        U = np.linalg.qr(rng.standard_normal((28, 2)))[0]
        f = (
            Z @ rng.standard_normal(28) / 5
            + Z[:, 1] * Z[:, 2]
            + size * ((Z @ U) ** 2 @ [1.0, -1.0])
        )
        search = PairSearch(*in_memory(X, f + 0.5 * rng.standard_t(3, 1000)))
        search.run(3)
        answers.append(search.leaves_nothing())
    # Noise exceeds p + √2p once in six draws; a remainder was overlooked in four of five.
    assert abs(sum(answers) - nothing) <= 1


def test_sums_of_bounded_features_are_those_of_dense_columns():
    X, y, _ = planted_pairs(300, 5, 1, 0.5, 0)
    rows, units = in_memory(X, y)
    search = PairSearch(rows, units)
    search.run()
    columns, beta = search.regression.columns, search.regression.fit.beta
    W, numbers = search.screen.whitener, np.arange(300)
    chunk = Chunk(X, y, np.linspace(0.5, 2, 300))
    sums = bounded_moments((chunk, numbers), columns, beta, W, 0.4, None)
    piece = next(iter(columns.pieces(chunk)))
    A, response, omega = piece.A, piece.residual(), piece.omega
    e = np.clip(response - A @ beta, -0.4, 0.4)
    V = np.clip((X - X.mean(axis=0)) / X.std(axis=0) @ W, -2.5, 2.5)
    i, j = np.triu_indices(5)
    products = V[:, i] * V[:, j]
    centred = products - np.average(products, axis=0, weights=omega)
    noise = np.average((e - np.average(e, weights=omega)) ** 2, weights=omega)
    t2 = (centred.T @ (omega * e)) ** 2 / (noise * (omega @ centred**2))
    assert sums.energy == pytest.approx(t2.sum(), rel=1e-9)
    halves = [slice(0, 100), slice(100, 300)]
    parts = [
        bounded_moments(
            (Chunk(X[h], y[h], chunk.weight[h]), numbers[h]), columns, beta, W, 0.4, None
        )
        for h in halves
    ]
    assert (parts[0] + parts[1]).energy == pytest.approx(sums.energy, rel=1e-9)


def test_the_inverse_of_columns_that_explain_each_other_is_that_on_their_span():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((30, 4))
    A = np.column_stack([A, A[:, 0] + A[:, 1]])
    A /= np.sqrt(np.sum(A * A, axis=0))
    np.testing.assert_allclose(inverse_of(A.T @ A), np.linalg.pinv(A.T @ A), atol=1e-8)
    whole = A[:, :4].T @ A[:, :4]
    np.testing.assert_allclose(inverse_of(whole), np.linalg.inv(whole), rtol=1e-10)


def test_a_search_for_few_pairs_ends_where_something_of_low_rank_is_left():
    rng = np.random.default_rng(0)
    X = np.exp(rng.standard_normal((1500, 20)))
    u = rng.standard_normal((20, 2)) / np.sqrt(20)
    y = (X @ u[:, 0]) ** 2 - (X @ u[:, 1]) ** 2 + 0.5 * rng.standard_normal(1500)
    walks = []
    for few in (False, True):
        search = PairSearch(*in_memory(X, y))
        before = search.rows.walks
        search.run(11, few)
        assert search.looks_low_rank(1.5)
        walks.append(search.rows.walks - before)
    assert walks[1] <= 10 < walks[0] / 2


def test_a_search_for_few_pairs_ends_where_a_few_rows_carry_many_of_them():
    # One row in 200 is 30 times as large: product after product seems to explain these few.
    rng = np.random.default_rng(3)
    X = rng.standard_normal((1500, 20))
    X[:8] *= 30
    y = np.tanh(X @ rng.standard_normal(20)) + 0.01 * np.sum(X[:, :5] ** 2, axis=1)
    y += 0.3 * rng.standard_normal(1500)
    walks, taken = [], []
    for few in (False, True):
        search = PairSearch(*in_memory(X, y))
        before = search.rows.walks
        taken.append(len(search.run(11, few).choice.taken))
        walks.append(search.rows.walks - before)
    assert taken[1] == 0
    assert walks[1] < walks[0] / 2


def test_sums_over_blocks_are_those_of_each_block():
    rng = np.random.default_rng(0)
    allowed = np.triu(rng.uniform(size=(11, 11)) < 0.5, 1)
    allowed |= allowed.T
    fields = [np.array([0, 4, 9]), np.array([2, 3]), np.array([7])]
    blocks = Blocks.of(allowed, fields)
    alone = [np.array([j]) for j in (1, 5, 6, 8, 10)]
    expected = []
    for a, field in enumerate(fields):
        for other in [*fields[a + 1 :], *alone]:
            if allowed[np.ix_(field, other)].sum() > 1:
                expected.append((field.tolist(), other.tolist()))
    count = len(blocks.first)
    sides = [tuple(side.tolist() for side in blocks.features(b)) for b in range(count)]
    assert sides == expected
    t2 = np.where(allowed, rng.uniform(size=(11, 11)), 0.0)
    sums = [t2[np.ix_(*block)].sum() for block in expected]
    np.testing.assert_allclose(blocks.sums(t2), sums, rtol=1e-12)
    dofs = [max(1, len(a) - 1) * max(1, len(b) - 1) for a, b in expected]
    assert blocks.dofs.tolist() == dofs


def test_groups_of_one_size_are_judged_together_as_each_is_alone():
    rng = np.random.default_rng(0)
    A = np.concatenate([rng.standard_normal((200, 14)), np.zeros((200, 1))], axis=1)
    A[:, 5] = A[:, 4]  # a group whose columns are the same
    y = A[:, 0] + A[:, 6] - A[:, 7] + rng.standard_normal(200)
    gram = np.column_stack([A, y]).T @ np.column_stack([A, y])
    groups = [np.array(g) for g in ([0], [1, 2], [3], [4, 5], [6, 7, 8], [9, 10], [11, 12, 13])]
    step = Stepwise(gram, groups, Criterion(200.0, 50, float(y @ y), None))
    for taken in ((), (0,), (0, 2), (4, 1)):
        values = step._additions(taken)
        for g in set(range(len(groups))) - set(taken):
            assert values[g] == pytest.approx(step.judged((*taken, g)).value, rel=1e-9)
        if taken:
            rows = step._instead(taken)
            for out, row in zip(taken, rows, strict=True):
                others = tuple(t for t in taken if t != out)
                for g in set(range(len(groups))) - set(taken):
                    assert row[g] == pytest.approx(step.judged((*others, g)).value, rel=1e-9)


def test_entries_of_a_matrix_must_be_better_than_a_lower_rank_alone():
    rng = np.random.default_rng(0)
    d = 30
    noise = rng.standard_normal((d, d))
    M = np.outer(np.ones(d), np.ones(d)) / 4 + 0.05 * (noise + noise.T)
    C = np.eye(d) + 0.3
    assert split(M, d, C, 600.0, 1.0, 32) is None  # one component, and 29 that are not worth it
    M[3, 7] = M[7, 3] = 4.0
    terms, rank = split(M, d, C, 600.0, 1.0, 32)
    assert set(zip(terms.i.tolist(), terms.j.tolist(), strict=True)) == {(3, 7)}
    assert 1 <= rank <= 3


def test_columns_that_explain_one_another_are_counted_once_by_pivots():
    rng = np.random.default_rng(0)
    levels = np.eye(15)[rng.integers(15, size=400)], np.eye(20)[rng.integers(20, size=400)]
    apart = np.hstack([levels[0], levels[1][:, 1:]])  # products of levels sum to these
    X = np.einsum("ni,nj->nij", *levels).reshape(400, -1)
    y = rng.standard_normal(400)
    X, y = (v - apart @ np.linalg.lstsq(apart, v)[0] for v in (X, y))
    solved, _, rank, _ = np.linalg.lstsq(X, y, rcond=1e-8)
    G, c = X.T @ X, X.T @ y
    for gram, cross in ((G, c), (np.stack([G, 0 * G]), np.stack([c, c]))):
        explained, counted = explained_by_pivots(gram, cross, 1e-7)
        np.testing.assert_allclose(np.ravel(explained)[0], np.sum((X @ solved) ** 2))
        assert np.ravel(counted)[0] == rank
    assert (explained[1], counted[1]) == (0.0, 0)


def test_groups_of_many_columns_are_chosen_as_by_eigenvectors(monkeypatch):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((500, 36))
    X[:, 30:] = X[:, :6] + X[:, 6:12]
    groups = [np.arange(12), np.arange(12, 24), np.arange(24, 36), np.array([3]), np.array([30])]
    y = X[:, 12:24].sum(axis=1) + X[:, 30] + rng.standard_normal(500)
    both = np.column_stack([X, y])
    choices = []
    for many in (200, 5):
        monkeypatch.setattr("quadlin.solve.pairs.pair_choice.MANY", many)
        choices.append(Stepwise(both.T @ both, groups, Criterion(500.0, 5, float(y @ y))).run())
    assert choices[0].taken == choices[1].taken
    np.testing.assert_allclose(choices[0].value, choices[1].value)


def with_gross_errors():
    """Return rows with levels of which a few occur in rows with gross errors, and a pair."""
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.standard_normal((400, 3)), rng.random((400, 12)) < 0.05]).astype(float)
    y = X[:, 0] * X[:, 1] + 0.3 * rng.standard_normal(400)
    for row in (5, 50, 120):
        X[row, 3:] = rng.random(12) < 0.6
        y[row] += 12.0
    return X, y


def test_products_that_a_few_rows_carry_are_left_out_without_a_look_at_all_others(monkeypatch):
    looks, leverages = [], []
    original = PairSearch._scored, pair_regression.base_leverages

    def scored(self, regression, look=True):
        looks.append(look)
        return original[0](self, regression, look)

    def counted(*args):
        leverages.append(args)
        return original[1](*args)

    monkeypatch.setattr(PairSearch, "_scored", scored)
    monkeypatch.setattr(pair_regression, "base_leverages", counted)
    X, y = with_gross_errors()
    search = PairSearch(*in_memory(X, y), alpha=(1.0, 0.0, 0.0))
    fit = search.run()
    assert pairs_of(fit) == {(0, 1)}
    assert len(search.seen.banned) > 20
    assert looks.count(False) > 2 * looks.count(True)
    assert len(leverages) == 1  # a chunk: those without products are the same for all products
    passes, again = search.rows.walks, PairSearch(*in_memory(X, y), alpha=(1.1, 0.0, 0.0))
    again.seen = search.seen
    assert pairs_of(again.run()) == {(0, 1)}
    assert again.rows.walks < passes / 2  # what was left out stays out
