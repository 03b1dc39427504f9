"""Gauss–Newton against dense oracles, and exact recovery where moments alone are not enough."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge

from problems import draw
from quadlin import SecondOrderRegressor, Status
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import predict
from quadlin.core.moments import Moments, moments_of
from quadlin.core.rows import Rows
from quadlin.core.units import Target, UnitsMaker, units_of
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom, nmse
from quadlin.solve.lowrank import polish
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.krylov import conjugate_gradients
from quadlin.solve.lowrank.polish import sign_flipped
from quadlin.solve.lowrank.tangent import Tangent
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Identity, whitener


def task(seed, linear=True, intercept=True, mode="full", alpha=(0.3, 0.7)):
    rng = np.random.default_rng(seed)
    n, d, k = 60, 6, 2
    X = draw("mixed", n, d, rng) @ np.triu(np.ones((d, d)), 0) * 0.5 + rng.standard_normal(d)
    X[:, 2] = rng.uniform(size=n) < 0.4
    y, weight = rng.standard_normal(n), rng.uniform(0.5, 2.0, n)
    source = MemorySource(X, y, weight, block_rows=17)
    m = Moments.of(X, weight)
    # Feature 2 as one of a one-hot field: its share of the penalty is another.
    one_hot = np.arange(d) == 2
    units = units_of(m, m.tau >= 0.05, Target(0.1, 1.3, 0.0, 1.0), np.float64, one_hot)
    options = Options(rank=k, fit_linear=linear, fit_intercept=intercept, alpha=alpha)
    rows = Rows.of(source)
    white = whitener(rows, units, mode, 0.01, rng)
    t = GaussNewton(Problem(rows, units, options, rng), white)
    U = np.linalg.qr(rng.standard_normal((d, k)))[0]
    v = rng.standard_normal(d) if linear else np.zeros(d)
    c = 0.2 if intercept else 0.0
    p = t.point(c, v, U, np.array([1.2, -0.8]))
    move = Tangent(
        rng.standard_normal(1) if intercept else np.zeros(1),
        rng.standard_normal((d, 1)) if linear else np.zeros((d, 1)),
        rng.standard_normal((d, 1, k)),
    )
    return t, p, move


PARTS = [(True, True), (False, True), (True, False), (False, False)]


@pytest.mark.parametrize(("linear", "intercept"), PARTS)
@pytest.mark.parametrize("mode", ["none", "full", "lowrank"])
def test_the_gradient_is_that_of_finite_differences(linear, intercept, mode):
    t, p, move = task(0, linear, intercept, mode)
    h = 1e-6
    ahead, behind = (t.moved(p, move, s, 2).objective for s in (h, -h))
    slope = 2 * t.gradient(p).dot(move)  # half the gradient is what is kept
    assert slope == pytest.approx((ahead - behind) / (2 * h), rel=1e-5)


@pytest.mark.parametrize(("linear", "intercept"), PARTS)
def test_the_curvature_is_that_of_the_linearised_predictions(linear, intercept):
    t, p, move = task(1, linear, intercept, alpha=(0.0, 0.0))
    source = t.problem.rows.engine.source
    X, weight = source.X, source.weight
    rows, h = Block(X, t.units), 1e-5
    q = (
        predict(t.moved(p, move, h, 2).model, rows) - predict(t.moved(p, move, -h, 2).model, rows)
    ) / (2 * h)
    expected = np.sum(weight * q**2) / np.sum(weight)
    assert move.dot(t.curvature(p, move)) == pytest.approx(expected, rel=1e-5)


def test_the_curvature_of_the_ridge_is_that_of_the_penalty():
    # The penalty is quadratic in w and M, so its second difference along M + t(E Hᵀ + H Eᵀ) is
    # twice what the curvature with the ridge has more than the one without.
    with_ridge, p, move = task(5)
    without, q, _ = task(5, alpha=(0.0, 0.0))
    gained = move.dot(with_ridge.curvature(p, move)) - move.dot(without.curvature(q, move))
    step, rho = with_ridge.coordinates.steps(p.model, p.U, move), with_ridge.units.penalty_scale
    H, w = step.H[:, 0, :], step.w[:, 0]
    dM = step.E @ H.T + H @ step.E.T
    first, second = with_ridge.options.alpha
    penalty = first * np.sum((rho * w) ** 2) + 2 * second * np.sum((np.outer(rho, rho) * dM) ** 2)
    assert gained == pytest.approx(penalty / p.sums.weight)


def test_the_curvature_is_symmetric():
    t, p, move = task(2)
    _, _, other = task(3)
    assert move.dot(t.curvature(p, other)) == pytest.approx(other.dot(t.curvature(p, move)))


@pytest.mark.parametrize("mode", ["full", "lowrank", "none"])
def test_a_whitener_knows_its_transpose_and_inverse(mode):
    t, _, _ = task(4, mode=mode)
    white = t.white
    B = white.apply(np.eye(6))
    np.testing.assert_allclose(white.transpose(np.eye(6)), B.T, atol=1e-12)
    np.testing.assert_allclose(white.inverse(B), np.eye(6), atol=1e-10)
    np.testing.assert_allclose(white.apply(np.ones(6)), B @ np.ones(6), atol=1e-12)


def test_full_whitening_whitens():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 8)) @ rng.standard_normal((8, 8))
    m = Moments.of(X)
    units = units_of(m, m.tau >= 0.05, Target(0.0, 1.0, 0.0, 1.0), np.float64)
    rows = Rows.of(MemorySource(X))
    white = whitener(rows, units, "full", 0.0, rng)
    Z = Block(X, units).matmul(white.apply(np.eye(8)))
    S = Z.T @ Z / 2000
    # Shrunk: an eigenvalue e of the correlation becomes e/(e + 0.01), and the smallest is small.
    assert rows.walks == 1
    assert np.all(np.linalg.eigvalsh(S) <= 1)
    assert np.linalg.cond(S) < np.linalg.cond(np.corrcoef(X.T)) / 2


@pytest.mark.parametrize(("kind", "expected"), [("gaussian", "Identity"), ("ar1", "Full")])
def test_auto_whitens_what_is_correlated(kind, expected):
    data = make_second_order(1500, 30, distribution=kind, rank=1, random_state=0)
    model = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).fit(data.X, data.y)
    assert type(model.fitted_.state.white).__name__ == expected


@pytest.mark.parametrize("alpha", [1.0, (0.5, 20.0), 300.0])
def test_at_full_rank_the_fit_is_a_ridge_regression_on_products(alpha):
    # Closed form: Ridge on the standardised features and their products. The coefficient of
    # z_i z_j is 2M_ij, so 2α‖M‖² is α/2 on its square, off the diagonal twice.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 4)) @ rng.standard_normal((4, 4)) + 1.0
    y = X[:, 0] * X[:, 1] - X[:, 2] + rng.standard_normal(150)
    model = SecondOrderRegressor(rank=4, alpha=alpha, tol=1e-12, max_iter=200, random_state=0)
    model.fit(X, y)
    first, second = alpha if isinstance(alpha, tuple) else (alpha, alpha)
    Z = (X - X.mean(0)) / X.std(0)
    i, j = np.triu_indices(4)
    # Columns scaled so that a plain ridge of 1 is our penalty.
    size = np.sqrt(np.where(i == j, 1 / (2 * second), 1 / second))
    F = np.column_stack([Z / np.sqrt(first), Z[:, i] * Z[:, j] * size])
    expected = Ridge(alpha=1.0, tol=1e-12).fit(F, y).predict(F)
    np.testing.assert_allclose(model.predict(X), expected, atol=2e-5 * np.std(y))


CASES = [("gaussian", 1.6, True), ("truncated", 1.6, True), ("mixed", 1.6, True),
         ("bernoulli", 2.5, True), ("bernoulli", 2.5, False)]  # fmt: skip


@pytest.mark.parametrize(("kind", "ratio", "signed"), CASES)
def test_exact_recovery_with_few_rows(kind, ratio, signed):
    d, k = 60, 3
    for seed in range(3):
        data = make_second_order(
            int(ratio * degrees_of_freedom(d, k)), d, rank=k, distribution=kind, signed=signed,
            n_test=500, random_state=seed,
        )  # fmt: skip
        model = SecondOrderRegressor(rank=k, random_state=0, alpha=0.0).fit(data.X, data.y)
        assert nmse(data.y_test, model.predict(data.X_test)) < 1e-8


@pytest.mark.parametrize("mode", ["auto", "full", "lowrank"])
def test_exact_recovery_with_correlated_features(mode):
    d, k = 60, 3
    data = make_second_order(
        4 * k * d, d, rank=k, distribution="ar1", parameter=0.9, n_test=500, random_state=0
    )
    model = SecondOrderRegressor(rank=k, whiten=mode, random_state=0, alpha=0.0).fit(data.X, data.y)
    assert nmse(data.y_test, model.predict(data.X_test)) < 1e-8


def test_singular_covariances_are_no_obstacle():
    data = make_second_order(1500, 20, rank=2, n_test=300, random_state=0)
    twice, twice_test = (np.column_stack([A, A[:, :7]]) for A in (data.X, data.X_test))
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(twice, data.y)
    assert nmse(data.y_test, model.predict(twice_test)) < 1e-8


def test_a_rank_three_times_too_high_costs_nothing_without_noise():
    data = make_second_order(20 * 2 * 30, 30, rank=2, n_test=300, random_state=0)
    model = SecondOrderRegressor(rank=6, random_state=0, alpha=0.0).fit(data.X, data.y)
    assert nmse(data.y_test, model.predict(data.X_test)) < 1e-8


def test_with_noise_the_fit_reaches_the_loss_of_one_started_at_the_truth():
    data = make_second_order(1200, 20, rank=2, noise=1.0, random_state=0)
    model = SecondOrderRegressor(rank=2, tol=1e-10, random_state=0, alpha=0.0).fit(data.X, data.y)
    truth = 1 + data.X @ data.coef + ((data.X @ data.components.T) ** 2) @ data.eigenvalues
    started = SecondOrderRegressor(rank=2, tol=1e-10, warm_start=True, random_state=0, alpha=0.0)
    started.fit(data.X, truth).fit(data.X, data.y)
    assert model.history_[-1].loss == pytest.approx(started.history_[-1].loss, rel=1e-6)


@settings(max_examples=30)
@given(
    n=st.integers(2, 60),
    d=st.integers(1, 15),
    rank=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    alpha=st.sampled_from([0.0, 1e-3, 10.0]),
    psd=st.booleans(),
    whiten=st.sampled_from(["auto", "full", "lowrank", "none"]),
    spread=st.sampled_from([0.0, 3.0, 8.0]),
)
def test_the_objective_never_rises(n, d, rank, seed, alpha, psd, whiten, spread):
    import warnings

    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ np.diag(10 ** (spread * rng.uniform(-1, 1, d)))
    X = X @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    y = rng.standard_normal(n) * X[:, 0]
    model = SecondOrderRegressor(rank, alpha=alpha, psd=psd, whiten=whiten, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    loss = np.array([record.loss for record in model.history_])
    assert np.all(np.diff(loss) < 0)
    residual = np.mean((model.predict(X) - y) ** 2)
    assert residual <= np.var(y) * (1 + 1e-9)
    assert residual <= loss[-1] * (1 + 1e-6) + 1e-12 * np.var(y)


def test_a_point_that_is_not_a_number_is_never_the_model(monkeypatch):
    point = GaussNewton.point
    monkeypatch.setattr(GaussNewton, "point", lambda *a: replace(point(*a), objective=float("nan")))
    X = np.random.default_rng(0).standard_normal((60, 4))
    with pytest.warns(ConvergenceWarning, match="diverged"):
        model = SecondOrderRegressor(1, alpha=0.0).fit(X, X[:, 0] * X[:, 1])
    assert np.isfinite(model.predict(X)).all()
    assert len(model.history_) == 1  # the constant


def test_steps_end_where_rounding_does(monkeypatch):
    # A kernel whose sums round more leaves a larger loss than the smallest that is expected.
    smallest = polish.smallest_loss
    monkeypatch.setattr(polish, "smallest_loss", lambda units: 0.02 * smallest(units))
    data = make_second_order(3600, 40, rank=3, random_state=0)
    X, y = data.X.astype(np.float32), data.y.astype(np.float32)
    model = SecondOrderRegressor(3, alpha=0.0, pairs=None, random_state=0).fit(X, y)
    assert model.status_ is Status.converged
    assert model.history_[-1].passes <= 35  # 29, and 49 where steps go on


@pytest.mark.parametrize("seed", [5, 6, 14, 15, 17, 18])
def test_signs_that_the_start_got_wrong_are_turned(seed):
    # Without squares a component of the wrong sign runs off to infinity along one feature. These
    # are draws in which it did, of products of 0/1 features without noise.
    rng = np.random.default_rng(seed)
    X = (rng.random((1000, 8)) < 0.4).astype(float)
    V, signs = rng.standard_normal((8, 2)), rng.choice([-1.0, 1.0], 2)
    y = 1 + X @ rng.standard_normal(8) + (X @ V) ** 2 @ signs
    model = SecondOrderRegressor(2, random_state=0, alpha=0.0).fit(X, y)
    assert model.score(X, y) > 1 - 1e-8
    assert model.status_ is Status.converged


def test_a_component_is_turned_only_where_that_can_help():
    rng = np.random.default_rng(0)
    X = (rng.random((200, 5)) < 0.5).astype(float)
    rows = Rows.of(MemorySource(X, X[:, 0] * X[:, 1]))
    units = UnitsMaker("auto", True, X.dtype, "abcde")(*moments_of(rows))
    U = np.eye(5)[:, :1] + 0.1
    U /= np.linalg.norm(U)
    for psd in (False, True):
        problem = Problem(rows, units, Options(rank=1, psd=psd), rng)
        task = GaussNewton(problem, Identity())
        p = task.point(0.0, np.zeros(5), U, np.array([50.0]))
        other = sign_flipped(task, p)
        assert (other is None) == psd  # a positive component must not become a negative one
        if other is not None:  # the row of the feature is the same, the sign is not
            M, N = ((q.model.U * q.model.s) @ q.model.U.T for q in (p, other))
            np.testing.assert_allclose(N[0, 1:], M[0, 1:])
            assert other.s[0] < 0
    assert (
        sign_flipped(task, task.point(0.0, np.zeros(5), np.eye(5)[:, :1], np.array([50.0]))) is None
    )


def test_conjugate_gradients_stop_at_the_first_iterate_that_gains_enough():
    rng = np.random.default_rng(0)
    J, b = rng.standard_normal((60, 20)), rng.standard_normal(20)
    A, products = J.T @ J, []

    def solved(cap, goal=np.inf):
        products.clear()
        return conjugate_gradients(
            lambda x: products.append(1) or A @ x,
            b,
            lambda u, v: float(u @ v),
            1e-8,
            cap,
            goal=goal,
        )

    gains = [2 * b @ x - x @ A @ x for x, _ in map(solved, range(1, 8))]
    assert gains == sorted(gains)
    for count, gain in enumerate(gains, 1):
        x, met = solved(20, goal=gain * (1 - 1e-9))
        assert met
        assert len(products) == count
        assert 2 * b @ x - x @ A @ x == pytest.approx(gain)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_slow_end_at_the_level_of_the_noise_is_no_wrong_optimum(seed, monkeypatch):
    # The rank is three times too high, so that directions of the noise compete for a place in M.
    data = make_second_order(1600, 40, rank=2, noise=1.0, random_state=seed)
    model = SecondOrderRegressor(6, alpha=0.0, pairs=None, random_state=0).fit(data.X, data.y)
    assert model.history_[-1].passes <= 100  # 67 were measured, and 210 with searches
    monkeypatch.setattr(polish, "final_error", lambda *_: 0.0)
    other = SecondOrderRegressor(6, alpha=0.0, pairs=None, random_state=0).fit(data.X, data.y)
    assert model.history_[-1].loss < 1.001 * other.history_[-1].loss
