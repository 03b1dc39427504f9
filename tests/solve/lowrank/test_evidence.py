"""Evidence against brute force, and what rank and penalties it chooses."""

from math import log

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from quadlin import SecondOrderRegressor
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import predict
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.choose.automatic import RankSearch
from quadlin.solve.choose.penalty_search import maximised
from quadlin.solve.lowrank.evidence import ColumnGram, RowKernel, Value, log_volume
from quadlin.solve.lowrank.tangent_gram import Basis, rotated, tangent_gram
from quadlin.solve.lowrank.types import Options


def small_problem(n=12, sizes=(3, 4), seed=0):
    """Return centred columns in two groups, their unit penalties, and a target."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, sum(sizes)))
    y = A @ rng.standard_normal(sum(sizes)) + 0.5 * rng.standard_normal(n)
    unit = rng.uniform(0.5, 2, sum(sizes))
    return A - A.mean(axis=0), y - y.mean(), unit


def gram_of(A, y, unit, sizes=(3, 4)):
    return ColumnGram(A.T @ A, A.T @ y, float(y @ y), len(y) - 1, sizes, unit)


def kernel_of(A, y, unit, sizes=(3, 4)):
    p = sizes[0]
    groups = [(A[:, :p], unit[:p]), (A[:, p:], unit[p:])]
    return RowKernel(
        [(G / r) @ G.T for G, r in groups], y, np.full(len(y), 1 / len(y)), len(y) - 1, sizes
    )


@pytest.mark.parametrize("log_alpha", [(0.0, 0.0), (-2.0, 3.0), (4.0, -1.0)])
@pytest.mark.parametrize("form", [gram_of, kernel_of])
def test_the_evidence_is_the_density_of_the_contrasts_of_the_target(form, log_alpha):
    A, y, unit = small_problem()
    value = form(A, y, unit).at(np.array(log_alpha))
    prior = np.repeat(np.exp(log_alpha), (3, 4)) * unit  # σ² over the prior variance
    # Without the intercept n − 1 orthonormal contrasts of y remain, N(0, σ²(I + A R⁻¹ Aᵀ)).
    Q = np.linalg.svd(np.eye(12) - 1 / 12)[0][:, :-1]
    covariance = value.noise * (np.eye(11) + Q.T @ (A / prior) @ A.T @ Q)
    expected = multivariate_normal(np.zeros(11), covariance).logpdf(Q.T @ y)
    assert value.log_evidence == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("form", [gram_of, kernel_of])
def test_the_gradient_of_the_evidence_is_that_of_finite_differences(form):
    model, at, h = form(*small_problem()), np.array([0.3, -0.4]), 1e-5
    for g, gradient in enumerate(model.at(at).gradient):
        step = h * np.eye(2)[g]
        rise = model.at(at + step).log_evidence - model.at(at - step).log_evidence
        assert gradient == pytest.approx(rise / (2 * h), abs=1e-6)


@pytest.mark.parametrize("log_alpha", [(-8.0, -8.0), (-8.0, -11.0)])
def test_fewer_rows_than_parameters_do_not_tell_the_size_of_small_penalties(log_alpha):
    # S = αyᵀK⁻¹y and |A| = |K|α^(p − n): the campaign compares no objectives there.
    model = kernel_of(*small_problem(n=6))
    small, smaller = (model.at(np.array(log_alpha) - shift) for shift in (0.0, 6.0))
    assert small.log_evidence == pytest.approx(smaller.log_evidence, abs=0.01)
    assert small.noise > 100 * smaller.noise


def test_the_best_penalties_are_mackays_fixed_point():
    A, y, unit = small_problem(n=60)
    gram = gram_of(A, y, unit)
    best = maximised(gram, [(-3.0, -3.0), (0.0, 0.0)])
    alphas = np.exp(best.log_alpha)
    R = np.repeat(alphas, (3, 4)) * unit
    theta = np.linalg.solve(gram.products + np.diag(R), gram.right)
    for part, alpha, determined in zip(
        (slice(3), slice(3, 7)), alphas, best.determined, strict=True
    ):
        size = float(unit[part] @ theta[part] ** 2)
        # The search ends at a slope of 0.2 in log α, of some 3 determined parameters.
        assert alpha == pytest.approx(best.noise * determined / size, rel=0.2)


class Slope:
    """An evidence that rises by 2.9 per unit of log α, up to log α = 9."""

    weight, sizes = 1.0, (1,)

    def at(self, log_alpha, gradient=True, least=-np.inf):
        x = float(log_alpha[0])
        rise = np.where(log_alpha < 9, 2.9, -2.9)
        return Value(-2.9 * abs(x - 9), rise, 1.0, np.zeros(1))


def test_the_search_for_a_peak_does_not_end_just_short_of_where_it_looks():
    # The first step is of the slope's own length, 0.1 short of 6, where one search ends.
    assert maximised(Slope(), [(3.0,)]).log_alpha[0] == pytest.approx(9, abs=0.3)


def test_the_volume_of_rank_one_and_of_full_rank_are_known_in_closed_form():
    assert log_volume(30, 30) == 0
    assert log_volume(30, 1) == pytest.approx(29 / 2 * log(2))


def test_the_volume_of_all_but_full_rank_is_that_of_the_formula_for_full_rank():
    # For k = d the same integral is 1: here it is taken one below, where for d = 2 it is √2.
    assert log_volume(2, 1) == pytest.approx(log(2) / 2)


def test_the_directions_of_a_basis_are_orthonormal_matrices():
    _, units = rows_and_units(np.random.default_rng(0).standard_normal((50, 5)), np.arange(50.0))
    basis = Basis.at(np.linalg.qr(np.random.default_rng(1).standard_normal((5, 2)))[0], units)
    # zᵀBz is linear in zzᵀ: its coefficients are read off at e_i and e_i + e_j.
    none = np.zeros(5, dtype=bool)
    diagonal = basis.quadratic(np.eye(5), none)
    B = np.zeros((basis.size, 5, 5))
    for i in range(5):
        for j in range(5):
            pair = basis.quadratic((np.eye(5)[i] + np.eye(5)[j])[None, :], none)[0]
            B[:, i, j] = diagonal[i] if i == j else (pair - diagonal[i] - diagonal[j]) / 2
    assert np.einsum("aij,bij->ab", B, B) == pytest.approx(np.eye(basis.size), abs=1e-12)


def rows_and_units(X, y, weight=None, **parts):
    rows = Rows.of(MemorySource(X, y, weight))
    moments = rows.reduce(survey)
    intercept, linear = parts.get("fit_intercept", True), parts.get("fit_linear", True)
    names = [str(j) for j in range(X.shape[1])]
    maker = UnitsMaker("auto", intercept, X.dtype, names, (), linear)
    return rows, maker(moments.features, moments.target)


PARTS = [(True, False), (False, True), (False, False)]


def evidence_by_singular_values(A, y, weight):
    """Return the evidence but for a constant, from the columns themselves: no sum of products."""
    left, values, _ = np.linalg.svd(A, full_matrices=False)
    t = left.T @ y
    S = y @ y - t @ t + np.sum(t**2 / (1 + values**2))
    return -weight / 2 * np.log(S) - np.log1p(values**2).sum() / 2


@pytest.mark.parametrize(("fit_linear", "fit_intercept"), PARTS)
def test_the_evidence_of_features_far_from_zero_is_not_lost_in_rounding(fit_linear, fit_intercept):
    # At 10⁵ standard deviations squares are 10¹⁰, and their products have lost all but the mean.
    rng = np.random.default_rng(0)
    parts = {"fit_linear": fit_linear, "fit_intercept": fit_intercept}
    X = rng.standard_normal((40, 4)) + np.array([0, 1e5, 0, -1e5])
    y = X[:, 0] * X[:, 2] + rng.standard_normal(40)
    rows, units = rows_and_units(X, y, **parts)
    U, fixed = np.linalg.qr(rng.standard_normal((4, 2)))[0], np.zeros(4, dtype=bool)
    linear = tangent_gram(rows, units, Options(rank=2, **parts), U).centred(40.0)
    Z, nu, basis = (X - units.mean) * units.scale, units.nu, Basis.at(U, units)
    at_zero = basis.quadratic(nu[None, :], fixed)
    A = np.hstack([Z + nu, basis.quadratic(Z, fixed) - at_zero])
    if not fit_linear:
        A = basis.quadratic(Z + nu, fixed)
    target = (y - units.target.mean) * units.target.scale
    if fit_intercept:
        A, target = A - A.mean(axis=0), target - target.mean()
    differences = []
    for penalties in ([1.0, 2.0], [4.0, 9.0]):
        log_alpha = np.array(penalties[-len(linear.sizes) :])
        root = np.sqrt(np.repeat(np.exp(log_alpha), linear.sizes) * linear.unit)
        expected = evidence_by_singular_values(A / root, target, linear.weight)
        differences.append(linear.at(log_alpha).log_evidence - expected)
    # Rounding of 10¹⁰ is 10⁻⁶ of what else there is in a row.
    assert differences[0] == pytest.approx(differences[1], abs=1e-3)


def test_turned_rows_have_what_they_share_in_one_coordinate():
    rng = np.random.default_rng(0)
    A, everywhere = rng.standard_normal((6, 4)), np.array([3.0, -1e8, 0.0, 2.0])
    T = rotated(A, everywhere)
    np.testing.assert_allclose(T @ T.T, (A + everywhere) @ (A + everywhere).T, rtol=1e-12)
    assert np.abs(T[:, 0]).min() > 0.99e8
    assert np.abs(T[:, 1:]).max() < 10
    np.testing.assert_array_equal(rotated(A, 0 * everywhere), A)


def search_of(X, y, weight=None, **parts):
    rows, units = rows_and_units(X, y, weight, **parts)
    n = len(y) if weight is None else int(np.count_nonzero(weight))
    total = float(n if weight is None else weight.sum())
    return RankSearch(rows, units, Options(rank=1, **parts), n, total, 0)


def chosen(X, y, weight=None, rank=None, **parts):
    search = search_of(X, y, weight, **parts)
    return search.choice(rank), search.units


def predicted(choice, units, X):
    return units.target.mean + units.target.scale * predict(choice.solution.model, Block(X, units))


def noisy(n=600, d=12, rank=2, noise=0.7, seed=0, **more):
    return make_second_order(n, d, rank=rank, noise=noise, random_state=seed, **more)


def test_the_true_rank_is_found():
    tables = [noisy(seed=seed) for seed in range(4)]
    assert [chosen(table.X, table.y)[0].options.rank for table in tables] == [2] * 4


@pytest.mark.parametrize(("rank", "tried"), [(2, False), (26, True)])
def test_all_products_are_tried_unless_a_low_rank_leaves_nothing_of_them(rank, tried):
    # Of 1,200 rows and 351 products: a full rank leaves any low one hundreds of them.
    data = noisy(n=1200, d=26, rank=rank, noise=0.5)
    search = search_of(data.X, data.y)
    assert search.choice().options.rank == rank
    assert (26 in search.tried) == tried


def test_the_choice_does_not_depend_on_the_order_of_the_rows():
    data = noisy(n=200)
    order = np.argsort(data.y)
    one, units = chosen(data.X, data.y)
    other, other_units = chosen(data.X[order], data.y[order])
    assert one.options.rank == other.options.rank
    assert one.options.alpha == pytest.approx(other.options.alpha, rel=1e-6)
    f = predicted(one, units, data.X)
    assert predicted(other, other_units, data.X) == pytest.approx(f, abs=1e-6 * np.std(f))


@pytest.mark.parametrize("n", [120, 60])  # more rows than products, and fewer
def test_weights_are_repetitions(n):
    # 27 parameters of all products: fewer than the rows that are left with a weight above zero.
    data = noisy(n=n, d=6)
    times = np.random.default_rng(1).integers(0, 4, n)
    one, _ = chosen(data.X, data.y, times.astype(float))
    other, _ = chosen(np.repeat(data.X, times, axis=0), np.repeat(data.y, times))
    assert one.options.rank == other.options.rank
    assert one.options.alpha == pytest.approx(other.options.alpha, rel=1e-4)


@pytest.mark.parametrize("rank", [1, 2, 6])
def test_without_noise_there_is_no_penalty_and_the_model_is_exact(rank):
    d = 20
    data = make_second_order(
        3 * degrees_of_freedom(d, rank), d, rank=rank, n_test=500, random_state=rank
    )
    choice, units = chosen(data.X, data.y)
    assert choice.options.alpha == (0.0, 0.0)
    assert choice.options.rank == rank
    error = predicted(choice, units, data.X_test) - data.y_test
    assert np.std(error) <= 1e-5 * np.std(data.y_test)


def test_a_linear_target_without_noise_has_rank_zero_and_no_penalty():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 8))
    choice, _ = chosen(X, X @ rng.standard_normal(8) + 3)
    assert (choice.options.rank, choice.options.alpha) == (0, (0.0, 0.0))


def test_of_pure_noise_nothing_is_learnt():
    # About one in 40 draws has a quadratic part: more than 2 of 30 have a probability of 4%.
    errors, ranks = [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        X, y = rng.standard_normal((150, 6)), rng.standard_normal(150)
        choice, units = chosen(X, y)
        ranks.append(choice.options.rank)
        errors.append(np.std(predicted(choice, units, rng.standard_normal((500, 6)))))
    assert ranks.count(0) >= 28
    assert np.sqrt(1 + np.mean(np.square(errors))) < 1.02  # RMSE on new rows, beside that of 1


def test_few_rows_per_parameter_are_not_overfitted():
    # 1.7 rows per parameter of the true rank 3: the mean has an error of 1, and without the
    # volume of the rank-k matrices the evidence takes rank 5 or 6.
    data = make_second_order(400, 60, rank=3, noise=0.9, n_test=2000, random_state=1)
    choice, units = chosen(data.X, data.y)
    assert choice.options.rank <= 3
    error = np.std(predicted(choice, units, data.X_test) - data.y_test) / np.std(data.y_test)
    assert error < 0.95


def test_a_rank_that_is_given_is_kept_and_its_penalties_are_found():
    data = noisy(n=150, noise=2.0, n_test=1000)
    choice, units = chosen(data.X, data.y, rank=5)
    assert choice.options.rank == 5
    plain = SecondOrderRegressor(rank=5, alpha=0.0, random_state=0).fit(data.X, data.y)
    errors = predicted(choice, units, data.X_test), plain.predict(data.X_test)
    ours, theirs = (np.std(f - data.y_test) for f in errors)
    assert ours < 0.9 * theirs  # 2 rows per parameter, without a penalty


@pytest.mark.parametrize(
    "parts",
    [{"fit_linear": False}, {"fit_intercept": False}, {"psd": True}],
    ids=lambda parts: next(iter(parts)),
)
def test_parts_that_are_not_fitted_are_left_out_of_the_choice(parts):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 8)) + 0.5
    U = np.linalg.qr(rng.standard_normal((8, 1)))[0]
    y = 2 * ((X @ U) ** 2)[:, 0] + 0.3 * rng.standard_normal(400)
    choice, units = chosen(X, y, **parts)
    assert choice.options.rank == 1
    assert np.std(predicted(choice, units, X) - y) < 0.4


def test_the_rank_is_the_one_of_largest_evidence():
    data = noisy(n=300)
    search = search_of(data.X, data.y)
    choice = search.choice()
    assert max(search.candidates(), key=lambda c: c.evidence).rank == choice.options.rank
    assert 0 in search.tried
