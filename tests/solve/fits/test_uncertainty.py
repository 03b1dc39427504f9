"""Standard errors against closed forms, refits on new noise, and repeated rows."""

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_array

from problems import draw
from quadlin import SecondOrderRegressor
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import predict, to_raw
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.solve.fits.curvature import Curvature
from quadlin.solve.fits.uncertainty import uncertainty_of
from quadlin.solve.lowrank.polish import fit_rows
from quadlin.solve.lowrank.tangent import Tangent
from quadlin.solve.lowrank.types import Options, Problem

PARTS = [(True, True), (False, True), (True, False), (False, False)]


class Fit:
    """A polished fit and its uncertainty, with the pieces that tests ask for."""

    def __init__(self, X, y, rank, weight=None, diagonal="auto", block_rows=None,
                 dense_limit=1500, draws=64, tol=1e-12, max_iter=300, fields=(),
                 **options):  # fmt: skip
        self.options = Options(rank=rank, tol=tol, max_iter=max_iter, **options)
        self.rows = Rows.of(MemorySource(X, y, weight, block_rows))
        moments = Moments.of(X, weight)
        names = [f"x{j}" for j in range(X.shape[1])]
        maker = UnitsMaker(diagonal, self.options.fit_intercept, X.dtype, names, fields)
        self.units = maker(moments, Moments.of(y[:, None], weight))
        rng = np.random.default_rng(0)
        solution, self.white = fit_rows(self.rows, self.units, self.options, moments.weight, rng)
        self.model, self.raw = solution.model, to_raw(solution.model, self.units)
        self.law = self.measured(dense_limit, draws)

    def measured(self, dense_limit=1500, draws=64, seed=1, robust=False):
        return uncertainty_of(
            self.rows, self.model, self.units, self.options, self.white,
            np.random.default_rng(seed), dense_limit=dense_limit, draws=draws, robust=robust,
        )  # fmt: skip

    @property
    def noise(self):
        return self.law.noise * self.units.target.scale

    def predict(self, X):
        target = self.units.target
        return target.mean + target.scale * predict(self.model, Block(X, self.units))

    def std(self, X, law=None, predictive=False):
        law = law or self.law
        return self.units.target.scale * law.predict_std(Block(X, self.units), predictive)

    def interaction(self, i, j):
        V, e = self.raw.components, self.raw.eigenvalues
        return float(V[:, i] * e @ V[:, j])


def table(n=120, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ (np.eye(d) + 0.3 * rng.standard_normal((d, d))) + 1.5
    return X, 3 * X[:, 0] * X[:, 1] - X[:, 2] + 0.5 * X[:, 3] ** 2 + rng.standard_normal(n)


def closed_form(X, y, linear=True, intercept=True, squares=True, weight=None):
    """Ordinary least squares on the raw products: parameters' covariance, noise and the columns."""
    i, j = np.triu_indices(X.shape[1], 0 if squares else 1)

    def columns(X):
        ones = np.ones((len(X), int(intercept)))
        return np.column_stack([ones, X[:, : X.shape[1] * linear], X[:, i] * X[:, j]])

    F = columns(X)
    omega = np.ones(len(y)) if weight is None else weight
    A = F.T @ (omega[:, None] * F)
    theta = np.linalg.solve(A, F.T @ (omega * y))
    variance = np.sum(omega * (y - F @ theta) ** 2) / (omega.sum() - F.shape[1])
    return variance * np.linalg.inv(A), np.sqrt(variance), columns, (i, j)


@pytest.mark.parametrize(("linear", "intercept"), PARTS)
@pytest.mark.parametrize("weighted", [False, True])
def test_at_full_rank_all_standard_errors_are_those_of_linear_regression(
    linear, intercept, weighted
):
    X, y = table()
    weight = np.random.default_rng(5).uniform(0.5, 2.0, len(y)) if weighted else None
    fit = Fit(X, y, 4, weight, block_rows=37, fit_linear=linear, fit_intercept=intercept)
    covariance, noise, columns, (i, j) = closed_form(X, y, linear, intercept, weight=weight)
    expected = np.sqrt(np.diag(covariance))
    coef, b = fit.law.coef_std()
    # The fit stops within a share of 1e-12 of the least squares, so σ is right to 1e-6 or so.
    assert fit.noise == pytest.approx(noise, rel=1e-5)
    assert fit.law.dof == pytest.approx(len(expected))
    assert b == pytest.approx(expected[0] if intercept else 0.0, rel=1e-5, abs=1e-9)
    np.testing.assert_allclose(
        coef, expected[int(intercept) :][:4] if linear else np.zeros(4), rtol=1e-5, atol=1e-9
    )
    # The coefficient of x_i·x_j is 2 M_ij.
    products = np.array([fit.law.interaction_std(*pair) for pair in zip(i, j, strict=True)])
    np.testing.assert_allclose(products * np.where(i == j, 1, 2), expected[-10:], rtol=1e-5)
    new = np.random.default_rng(1).standard_normal((20, 4)) + 1.5
    F = columns(new)
    variance = np.sum((F @ covariance) * F, axis=1)
    np.testing.assert_allclose(fit.std(new), np.sqrt(variance), rtol=1e-5)
    np.testing.assert_allclose(
        fit.std(new, predictive=True), np.sqrt(noise**2 + variance), rtol=1e-5
    )


def test_diagonals_that_are_not_modelled_have_no_error_and_need_no_parameters():
    # Three binary features: with rank 3 and no diagonal every product is free, 1 + 3 + 3 columns.
    rng = np.random.default_rng(0)
    X = (rng.uniform(size=(200, 3)) < [0.3, 0.5, 0.6]).astype(float)
    y = 1 + X[:, 0] - 2 * X[:, 0] * X[:, 1] + X[:, 1] * X[:, 2] + rng.standard_normal(200)
    fit = Fit(X, y, 3)
    covariance, noise, columns, _ = closed_form(X, y, squares=False)
    expected = np.sqrt(np.diag(covariance))
    coef, b = fit.law.coef_std()
    assert fit.noise == pytest.approx(noise, rel=1e-5)
    np.testing.assert_allclose([b, *coef], expected[:4], rtol=1e-5)
    pairs = [(0, 1), (0, 2), (1, 2)]
    np.testing.assert_allclose(
        [2 * fit.law.interaction_std(*p) for p in pairs], expected[4:], rtol=1e-5
    )
    assert fit.law.interaction_std(1, 1) == 0.0
    variance = np.sum((columns(X) @ covariance) * columns(X), axis=1)
    np.testing.assert_allclose(fit.std(X), np.sqrt(variance), rtol=1e-5)


@pytest.mark.parametrize("alpha", [(5.0, 0.0), (0.0, 5.0), (3.0, 20.0)])
def test_with_a_ridge_they_are_those_of_the_posterior(alpha):
    # Standardised products scaled so that the penalty is |θ|²: see test_polish.
    X, y = table()
    fit = Fit(X, y, 4, alpha=alpha, fields=[np.array([1])])  # a level, with its own share
    first, second = alpha
    i, j = np.triu_indices(4)
    rho = np.where(np.arange(4) == 1, 1 / X.std(axis=0), 1.0)
    R = np.diag([0.0, *(first * rho), *(np.where(i == j, 2, 1) * second * rho[i] * rho[j])])

    def columns(X):
        Z = (X - fit.units.mean) * fit.units.scale
        return np.column_stack([np.ones(len(X)), Z, Z[:, i] * Z[:, j]])

    F = columns(X)
    A = F.T @ F + R
    H = F @ np.linalg.solve(A, F.T)
    variance = np.sum((y - H @ y) ** 2) / (len(y) - np.trace(H))
    assert fit.law.dof == pytest.approx(np.trace(H), rel=1e-8)
    assert fit.noise == pytest.approx(np.sqrt(variance), rel=1e-5)
    G = columns(np.random.default_rng(1).standard_normal((20, 4)))
    expected = np.sqrt(variance * np.sum((G @ np.linalg.inv(A)) * G, axis=1))
    got = fit.std(np.random.default_rng(1).standard_normal((20, 4)))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gaussian", "mixed"])
def test_at_low_rank_they_are_those_of_refits_on_new_noise(kind):
    # An error from 200 refits is itself uncertain by 1/√400 = 5%, so 20% is four of its sigmas; the
    # mean over all is steadier. The noise is small because the law is that of the linearised
    # model: with 0.3 the errors of mixed features come out 3% too small.
    n, d, k, sigma, refits = 400, 5, 2, 0.05, 200
    data = make_second_order(n, d, rank=k, distribution=kind, random_state=0)
    X, X_new = data.X + 0.5, draw(kind, 8, d, np.random.default_rng(3)) + 0.5
    rng = np.random.default_rng(1)
    pairs = [(0, 1), (1, 3), (2, 4), (1, 1)]
    fits = [Fit(X, data.y + sigma * rng.standard_normal(n), k, tol=1e-8) for _ in range(refits)]

    def spread(get):
        return np.std([get(f) for f in fits], axis=0)

    def mean(get):
        return np.sqrt(np.mean([np.square(get(f)) for f in fits], axis=0))

    ratios = np.concatenate(
        [
            mean(lambda f: f.law.coef_std()[0]) / spread(lambda f: f.raw.coef),
            [mean(lambda f: f.law.coef_std()[1]) / spread(lambda f: f.raw.intercept)],
            [
                mean(lambda f, p=p: f.law.interaction_std(*p))
                / spread(lambda f, p=p: f.interaction(*p))
                for p in pairs
            ],
            mean(lambda f: f.std(X_new)) / spread(lambda f: f.predict(X_new)),
        ]
    )
    assert np.all(np.abs(np.log(ratios)) < 0.2), ratios
    assert abs(np.mean(ratios) - 1) < 0.06
    # E σ̂² = σ², its mean over 200 fits uncertain by √(2/(n·200)) = 0.5%.
    assert np.mean([f.noise**2 for f in fits]) == pytest.approx(sigma**2, rel=0.03)


@pytest.mark.parametrize(
    ("linear", "intercept", "alpha", "weighted"),
    [(True, True, 0.0, False), (True, True, 3.0, True), (False, False, 3.0, False)],
)
def test_draws_agree_with_the_exact_form(linear, intercept, alpha, weighted):
    # With 400 draws a spread is uncertain by 1/√800 = 3.5%: 15% is four of its sigmas.
    rng = np.random.default_rng(0)
    X = draw("mixed", 300, 8, rng) @ (np.eye(8) + 0.2 * rng.standard_normal((8, 8)))
    X[:, 2] = rng.uniform(size=300) < 0.4
    y = X[:, 0] * X[:, 1] - X[:, 3] + X[:, 2] * X[:, 4] + rng.standard_normal(300)
    weight = rng.uniform(0.5, 2.0, 300) if weighted else None
    parts = {"fit_linear": linear, "fit_intercept": intercept}
    fit = Fit(X, y, 2, weight, alpha=(alpha, alpha), fields=[np.array([2])], **parts)
    law = fit.measured(dense_limit=0, draws=400)
    assert fit.law.exact
    assert not law.exact
    assert law.converged
    assert law.spread.H.shape == (8, 400, 2)
    # tr εᵀ(projector)ε has a standard deviation of √(2 dof/draws), about 0.35 here.
    assert law.dof == pytest.approx(fit.law.dof, abs=1.5)
    assert law.noise == pytest.approx(fit.law.noise, rel=0.01)
    np.testing.assert_allclose(fit.std(X[:30], law), fit.std(X[:30]), rtol=0.15, atol=1e-9)
    for got, expected in zip(law.coef_std(), fit.law.coef_std(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0.15, atol=1e-9)
    for pair in [(0, 1), (2, 4), (5, 5), (2, 2)]:
        got, expected = law.interaction_std(*pair), fit.law.interaction_std(*pair)
        assert got == pytest.approx(expected, rel=0.15)


def test_many_systems_are_solved_with_the_passes_of_one():
    X, y = table(d=6, n=200)
    fit = Fit(X, y, 2)
    problem = Problem(fit.rows, fit.units, fit.options, np.random.default_rng(0))
    task = Curvature(problem, fit.white)
    p = task.point_of(fit.model)
    rng = np.random.default_rng(2)
    shapes = [(5,), (6, 5), (6, 5, 2)]
    truth = Tangent(*(rng.standard_normal(shape) for shape in shapes))
    g = task.curvature(p, truth)
    before = fit.rows.walks
    t, met = task.direction(p, -1.0 * g, 1e-10, 60)
    assert met
    assert fit.rows.walks - before < 60
    got, expected = (task.coordinates.steps(p.model, p.U, each) for each in (t, truth))
    # The steps are those up to a turn of U's columns, which nothing that is asked for can see.
    np.testing.assert_allclose(got.w, expected.w, rtol=1e-6)
    v = rng.standard_normal(6)
    np.testing.assert_allclose(
        got.times(v, fit.units.free), expected.times(v, fit.units.free), atol=1e-6
    )


def test_weights_equal_repetition():
    X, y = table(n=80)
    counts = np.random.default_rng(1).integers(0, 4, 80)
    weighted = Fit(X, y, 2, counts.astype(float))
    repeated = Fit(np.repeat(X, counts, axis=0), np.repeat(y, counts), 2)
    assert weighted.law.left == pytest.approx(repeated.law.left)
    assert weighted.noise == pytest.approx(repeated.noise, rel=1e-5)
    np.testing.assert_allclose(weighted.std(X), repeated.std(X), rtol=1e-4)
    coef, b = weighted.law.coef_std()
    np.testing.assert_allclose([*coef, b], np.hstack(repeated.law.coef_std()), rtol=1e-4)


@pytest.mark.parametrize("limit", [0, 1500])
def test_sparse_rows_have_the_errors_of_dense_ones(limit):
    rng = np.random.default_rng(0)
    X = np.where(rng.uniform(size=(200, 6)) < 0.4, rng.standard_normal((200, 6)) + 1, 0)
    X[:, 0] = X[:, 0] > 0
    y = X[:, 0] * X[:, 1] + X[:, 2] + rng.standard_normal(200)
    dense = Fit(X, y, 2, dense_limit=limit)
    sparse = Fit(csr_array(X), y, 2, dense_limit=limit)
    assert sparse.noise == pytest.approx(dense.noise, rel=1e-5)
    np.testing.assert_allclose(sparse.std(csr_array(X)), dense.std(X), rtol=1e-3)
    np.testing.assert_allclose(
        np.hstack(sparse.law.coef_std()), np.hstack(dense.law.coef_std()), rtol=1e-3
    )


def test_how_rows_are_cut_does_not_matter():
    X, y = table()
    fit = Fit(X, y, 2)
    cut = Fit(X, y, 2, block_rows=7)
    np.testing.assert_allclose(cut.std(X), fit.std(X), rtol=1e-5)


def test_the_unit_of_a_feature_does_not_matter():
    X, y = table()
    fit, scaled = Fit(X, y, 2), Fit(X * [1, 100, 0.01, 1], 10 * y, 2)
    np.testing.assert_allclose(scaled.std(X * [1, 100, 0.01, 1]), 10 * fit.std(X), rtol=1e-4)
    coef = fit.law.coef_std()[0] * 10 / [1, 100, 0.01, 1]
    np.testing.assert_allclose(scaled.law.coef_std()[0], coef, rtol=1e-4)
    expected = fit.law.interaction_std(0, 1) / 10
    assert scaled.law.interaction_std(0, 1) == pytest.approx(expected, rel=1e-4)


def test_equal_columns_change_no_prediction_and_no_noise():
    X, y = table()
    once, twice = Fit(X, y, 2), Fit(np.column_stack([X, X[:, 0]]), y, 2)
    assert twice.law.dof == pytest.approx(once.law.dof)
    assert twice.noise == pytest.approx(once.noise, rel=1e-4)
    np.testing.assert_allclose(twice.std(np.column_stack([X, X[:, 0]])), once.std(X), rtol=1e-3)


def test_without_a_row_left_over_nothing_is_known():
    X, y = table(n=12, d=6)
    law = Fit(X, y, 2, max_iter=20).law
    assert law.left < 1
    assert np.isnan(law.noise)
    assert np.all(np.isnan(law.coef_std()[0]))
    assert np.all(np.isnan(law.predict_std(Block(X, law.units))))


def test_a_constant_target_and_a_constant_feature_are_certain():
    X, _ = table()
    X[:, 1] = 7.0
    law = Fit(X, np.full(120, 3.0), 2).law
    assert law.noise == 0
    assert law.coef_std()[0][1] == 0


@pytest.mark.parametrize("limit", [0, 1500])
def test_float32_is_good_to_its_digits_and_pickles(limit):
    X, y = table(n=300)
    fit = Fit(X, y, 2, tol=1e-8, dense_limit=limit)
    single = Fit(X.astype(np.float32), y.astype(np.float32), 2, tol=1e-6, dense_limit=limit)
    law = pickle.loads(pickle.dumps(single.law))
    assert law.spread.H.dtype == np.float32
    np.testing.assert_allclose(single.std(X.astype(np.float32), law), fit.std(X), rtol=0.01)


def test_the_exact_form_takes_three_passes_and_the_draws_some_fifty():
    # One for the residual, one for C, one for A or the noise; then one an iteration, three times.
    data = make_second_order(1200, 30, rank=4, noise=1.0, random_state=0)
    fit = Fit(data.X, data.y, 4, tol=1e-6)
    assert fit.law.passes == 3
    assert fit.measured(dense_limit=0).passes < 70


@pytest.mark.parametrize("limit", [0, 1500])
def test_intervals_cover_what_they_promise(limit):
    # 5 × 2000 new rows: binomial noise 0.2%, and the fits' own 0.6% (they share σ̂ and θ̂).
    inside, mean_inside = [], []
    d, k = 30, 2
    for seed, kind in enumerate(["gaussian", "bernoulli", "mixed", "ar1", "truncated"]):
        data = make_second_order(
            10 * k * d, d, rank=k, distribution=kind, noise=1.0, n_test=2000, random_state=seed
        )
        fit = Fit(data.X, data.y, k, tol=1e-6, max_iter=50, dense_limit=limit)
        y_new = data.y_test + np.random.default_rng(seed).standard_normal(2000)
        error = fit.predict(data.X_test)
        inside.append(np.abs(error - y_new) < 1.96 * fit.std(data.X_test, predictive=True))
        mean_inside.append(np.abs(error - data.y_test) < 1.96 * fit.std(data.X_test))
    assert 0.93 < np.mean(inside) < 0.97
    assert 0.90 < np.mean(mean_inside) < 0.98


def test_where_noise_hides_the_quadratic_part_the_dof_count_what_fitting_noise_costs():
    # y is noise alone, so a rank-k fit takes the k largest directions of the noise and gains more
    # than p parameters would. Seen: dof 74 to 82 for p = 60, and a mean noise of 1.004 (0.993
    # with p in its place, which four fits cannot tell from 1: only the dof are a sharp test).
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(4):
        X, y = rng.standard_normal((800, 20)), rng.standard_normal(800)
        fit = Fit(X, y, 2, tol=1e-8)
        p = 1 + 20 + 20 * 2 - 1
        assert fit.law.dof > 1.2 * p
        ratios.append(fit.noise)
    # The mean of four has a standard deviation of 1/√(2·740·4) = 1.3%.
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.04)


@pytest.mark.parametrize("rank", [0, "auto"])
def test_without_interactions_standard_deviations_are_those_of_linear_regression(rank):
    rng = np.random.default_rng(0)
    n, d = 200, 5
    X = rng.standard_normal((n, d)) + 1
    y = X[:, 0] + rng.standard_normal(n)  # so weak an M that no component is worth its parameters
    model = SecondOrderRegressor(rank=rank, alpha=0, tol=1e-14, uncertainty=True, random_state=0)
    model.fit(X, y)
    assert model.eigenvalues_.shape == (0,)
    predicted, deviation = model.predict(X, return_std=True)
    A = np.column_stack([np.ones(n), X])
    hat = A @ np.linalg.solve(A.T @ A, A.T)
    noise = np.sum((y - hat @ y) ** 2) / (n - d - 1)
    np.testing.assert_allclose(predicted, hat @ y, atol=1e-6)
    np.testing.assert_allclose(deviation, np.sqrt(noise * (1 + np.diag(hat))), rtol=1e-6)


def products(X):
    i, j = np.triu_indices(X.shape[1])
    return np.column_stack([np.ones(len(X)), X, X[:, i] * X[:, j]])


def uneven(n=200, d=3, seed=0):
    """Return rows whose noise grows with the first feature, and weights."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 0.5
    noise = (0.3 + np.abs(X[:, 0])) * rng.standard_normal(n)
    return X, X[:, 0] * X[:, 1] + X[:, 2] + noise, rng.uniform(0.5, 2.0, n)


@pytest.mark.parametrize("weighted", [False, True])
def test_at_full_rank_robust_errors_are_those_of_hc3(weighted):
    X, y, weight = uneven()
    weight = weight if weighted else None
    fit = Fit(X, y, 3, weight, block_rows=37)
    law = fit.measured(robust=True)
    F, omega = products(X), np.ones(len(y)) if weight is None else weight
    inverse = np.linalg.inv(F.T @ (omega[:, None] * F))
    r = y - F @ (inverse @ (F.T @ (omega * y)))
    score = (omega * r / (1 - omega * np.sum((F @ inverse) * F, axis=1)))[:, None] * F
    covariance = inverse @ (score.T @ score) @ inverse
    expected = np.sqrt(np.diag(covariance))
    coef, b = law.coef_std()
    # The fit stops within a share of 1e-12 of the least squares.
    np.testing.assert_allclose([b, *coef], expected[:4], rtol=1e-5)
    new = np.random.default_rng(1).standard_normal((20, 3))
    variance = np.sum((products(new) @ covariance) * products(new), axis=1)
    np.testing.assert_allclose(fit.std(new, law), np.sqrt(variance), rtol=1e-5)
    both = np.sqrt(fit.noise**2 + variance)
    np.testing.assert_allclose(fit.std(new, law, predictive=True), both, rtol=1e-5)
    assert law.robust
    assert law.noise == fit.law.noise


def test_robust_errors_of_draws_are_the_exact_ones_up_to_their_leverage():
    X, y, weight = uneven(n=600)
    fit = Fit(X, y, 1, weight, alpha=(5.0, 10.0))
    exact, drawn = (fit.measured(limit, draws=400, robust=True) for limit in (1500, 0))
    assert exact.exact
    assert not drawn.exact
    # 400 draws: four of 1/√800 = 3.5%; leverages are 7/600 on average.
    np.testing.assert_allclose(drawn.coef_std()[0], exact.coef_std()[0], rtol=0.14)
    np.testing.assert_allclose(fit.std(X[:9], drawn), fit.std(X[:9], exact), rtol=0.14)


def test_with_equal_noise_robust_errors_are_the_usual_ones_with_a_ridge_too():
    X, _, _ = uneven(n=5000)
    # A signal as small as the prior says, or shrinking would leave some of it in the residuals.
    y = 0.02 * X[:, 0] * X[:, 1] + np.random.default_rng(2).standard_normal(5000)
    for alpha in ((0.0, 0.0), (5000.0, 5000.0)):
        fit = Fit(X, y, 2, alpha=alpha)
        robust = fit.measured(robust=True)
        # A squared error is a mean of squares of 5,000 residuals with weights: some 3% of noise.
        np.testing.assert_allclose(robust.coef_std()[0], fit.law.coef_std()[0], rtol=0.1)


def test_a_row_that_alone_decides_a_coefficient_has_the_noise_of_all():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal(100), np.arange(100) == 7]).astype(float)
    fit = Fit(X, X[:, 0] + rng.standard_normal(100), 0)
    robust, usual = fit.measured(robust=True).coef_std()[0], fit.law.coef_std()[0]
    assert robust[1] == pytest.approx(usual[1], rel=0.05)


def test_robust_errors_need_rows_to_tell_the_noise_by():
    X, y, _ = uneven(n=9)
    law = Fit(X, y, 3).measured(robust=True)
    assert np.isnan(law.coef_std()[0]).all()


def test_robust_errors_of_pairs_are_those_of_hc3():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 4))
    noise = (0.2 + np.abs(X[:, 0])) * rng.standard_normal(600)
    y = X[:, 0] + X[:, 1] * X[:, 2] - 2 * X[:, 3] * X[:, 0] + noise
    model = SecondOrderRegressor(uncertainty="robust", random_state=0).fit(X, y)
    F = np.column_stack([np.ones(600), X, X[:, 1] * X[:, 2], X[:, 0] * X[:, 3]])
    inverse = np.linalg.inv(F.T @ F)
    r = y - F @ (inverse @ (F.T @ y))
    score = (r / (1 - np.sum((F @ inverse) * F, axis=1)))[:, None] * F
    expected = np.sqrt(np.diag(inverse @ (score.T @ score) @ inverse))
    errors = [*model.coef_std_, model.interaction_std(1, 2), model.interaction_std(0, 3)]
    # The penalty of largest evidence shrinks by about a percent.
    np.testing.assert_allclose(errors, expected[1:], rtol=0.03)
