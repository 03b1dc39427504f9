"""Standard errors against closed forms, refits on new noise, and repeated rows."""

import numpy as np
import pytest

from problems import draw
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import predict, to_raw
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.solve.fits.uncertainty import uncertainty_of
from quadlin.solve.lowrank.polish import fit_rows
from quadlin.solve.lowrank.types import Options

PARTS = [(True, True), (False, True), (True, False), (False, False)]


class Fit:
    """A polished fit and its uncertainty, with the pieces that tests ask for."""

    def __init__(self, X, y, rank, weight=None, squares="auto", block_rows=None,
                 most_exact=1500, draws=64, tol=1e-12, max_iter=300, fields=(),
                 **options):  # fmt: skip
        self.options = Options(rank=rank, tol=tol, max_iter=max_iter, **options)
        self.rows = Rows.of(MemorySource(X, y, weight, block_rows))
        moments = Moments.of(X, weight)
        names = [f"x{j}" for j in range(X.shape[1])]
        maker = UnitsMaker(squares, self.options.fit_intercept, X.dtype, names, fields)
        self.units = maker(moments, Moments.of(y[:, None], weight))
        rng = np.random.default_rng(0)
        solution, self.white = fit_rows(self.rows, self.units, self.options, moments.weight, rng)
        self.model, self.raw = solution.model, to_raw(solution.model, self.units)
        self.law = self.measured(most_exact, draws)

    def measured(self, most_exact=1500, draws=64, seed=1, robust=False):
        return uncertainty_of(
            self.rows, self.model, self.units, self.options, self.white,
            np.random.default_rng(seed), most_exact=most_exact, draws=draws, robust=robust,
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


def test_at_low_rank_they_are_those_of_refits_on_new_noise():
    # An error from 200 refits is itself uncertain by 1/√400 = 5%, so 20% is four of its sigmas; the
    # mean over all is steadier. The noise is small because the law is that of the linearised
    # model: with 0.3 the errors of mixed features come out 3% too small.
    kind, n, d, k, sigma, refits = "mixed", 400, 5, 2, 0.05, 200
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
    law = fit.measured(most_exact=0, draws=400)
    assert fit.law.exact
    assert not law.exact
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
