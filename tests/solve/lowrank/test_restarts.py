"""The optimum that few features are started at, against the rows and another optimiser."""

import numpy as np
import pytest
from scipy.optimize import minimize

from problems import draw
from quadlin import SecondOrderRegressor
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.units import Target, units_of
from quadlin.solve.lowrank import many_descents
from quadlin.solve.lowrank.exact import products_of
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.landscape import Landscape
from quadlin.solve.lowrank.many_descents import descended
from quadlin.solve.lowrank.restarts import FEW, best_start
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Identity

PARTS = [(True, True), (False, True), (True, False), (False, False)]


def problem(seed, rank=2, n=80, **options):
    rng = np.random.default_rng(seed)
    X = draw("mixed", n, 6, rng) + rng.standard_normal(6)
    X[:, 2] = rng.uniform(size=n) < 0.4  # without a diagonal
    y, weight = rng.standard_normal(n) + X[:, 0] * X[:, 1], rng.uniform(0.5, 2.0, n)
    m = Moments.of(X, weight)
    one_hot = np.arange(6) == 2
    units = units_of(m, m.tau >= 0.05, Target(0.1, 1.3, 0.0, 1.0), np.float64, one_hot)
    rows = Rows.of(MemorySource(X, y, weight, block_rows=17))
    return Problem(rows, units, Options(rank=rank, **options), rng)


def landscape_of(p):
    return Landscape(products_of(p.rows, p.units), p.units, p.options)


@pytest.mark.parametrize("alpha", [(0.0, 0.0), (3.0, 7.0)])
@pytest.mark.parametrize(("linear", "intercept"), PARTS)
def test_the_landscape_is_the_objective_with_the_linear_parts_solved_for(linear, intercept, alpha):
    p = problem(0, fit_linear=linear, fit_intercept=intercept, alpha=alpha)
    landscape, task = landscape_of(p), GaussNewton(p, Identity())
    assert p.rows.walks == 1
    for _ in range(3):
        f = landscape.factors(p.rng.standard_normal((6, 2)), np.array([1.0, -1.0]))
        reached = task.point_of(landscape.model(f, p.units))
        assert reached.objective == pytest.approx(f.loss + landscape.unexplained, rel=1e-9)
        gradient = task.gradient(reached)  # by c and w, which are optimal
        assert np.abs(gradient.c).max() < 1e-9
        assert np.abs(gradient.v).max() < 1e-9


def test_penalties_far_above_one_row_weigh_in_the_landscape_where_features_are_far_from_zero():
    # In units of the landscape the ridge of the far feature's square is 1e-16 times that of others.
    rng = np.random.default_rng(3)
    X = rng.normal([1e4, 0, 0, 0], 1, (60, 4))
    m = Moments.of(X)
    units = units_of(m, np.zeros(4, dtype=bool), Target(0.0, 1.0, 0.0, 1.0), np.float64)
    rows = Rows.of(MemorySource(X, rng.standard_normal(60)))
    options = Options(rank=1, fit_linear=False, alpha=(1e7, 1e7), psd=True)
    p = Problem(rows, units, options, rng)
    landscape, task = landscape_of(p), GaussNewton(p, Identity())
    f = landscape.factors(rng.normal(0, [[100.0], [0.1], [0.1], [0.1]]), np.ones(1))
    reached = task.point_of(landscape.model(f, units))
    assert reached.objective == pytest.approx(f.loss + landscape.unexplained, rel=1e-6)


@pytest.mark.parametrize("entries", [1, 1 << 20])
def test_starts_descend_together_as_each_does_alone(monkeypatch, entries):
    monkeypatch.setattr("quadlin.solve.lowrank.many_descents.ENTRIES", entries)
    p = problem(2)
    landscape = landscape_of(p)
    signs = [np.array(s) for s in ([1.0, 1.0], [1.0, -1.0], [-1.0, -1.0])]
    many = [landscape.factors(p.rng.standard_normal((6, 2)), s) for s in signs]
    many.append(landscape.factors(np.zeros((6, 2)), signs[0]))  # where no direction says anything
    alone = [descended(landscape, [start], 5)[0] for start in many]
    for start, reached in zip(many, alone, strict=True):
        assert reached.loss == pytest.approx(landscape.factors(reached.L, start.signs).loss)
        assert reached.loss < start.loss or not start.L.any()
    together = descended(landscape, many, 5)
    best_first = sorted(alone, key=lambda reached: reached.loss)
    for reached, expected in zip(together, best_first, strict=True):
        np.testing.assert_allclose(reached.L, expected.L, atol=1e-8)
        assert reached.loss == pytest.approx(expected.loss)
    assert descended(landscape, [], 5) == []


def test_steps_near_an_optimum_of_noise_are_few(monkeypatch):
    taken = []
    equations = many_descents._equations

    def counted(loss, signed, r):
        taken.append(len(signed))
        return equations(loss, signed, r)

    monkeypatch.setattr(many_descents, "_equations", counted)
    for seed in range(4):
        p = problem(seed, alpha=(1.0, 1.0))
        landscape = landscape_of(p)
        start = landscape.factors(p.rng.standard_normal((6, 2)), np.array([1.0, -1.0]))
        taken.clear()
        reached = descended(landscape, [start], 200)[0]
        gradient = 4 * (landscape.slope_of_loss(reached) @ reached.L) * reached.signs
        # A step ends the descent that gains a share of 1e-16, so slopes are its root at most.
        assert np.abs(gradient).max() < 1e-6 * (reached.loss + landscape.unexplained)
        # Those of Gauss and Newton, which only shrink by a factor each, are 25 to 310 here.
        assert len(taken) < 35


def test_steps_of_higher_ranks_are_few_near_an_optimum_of_noise(monkeypatch):
    # The loss is flat where M stays the same, and bends down near saddle points: Newton's steps
    # must neither go along there nor end there.
    tries = []
    equations = many_descents._equations

    def counted(loss, signed, r):
        tries.append(len(signed))
        return equations(loss, signed, r)

    monkeypatch.setattr(many_descents, "_equations", counted)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((300, 10))
        y = rng.standard_normal(300) + X[:, 0] * X[:, 1]
        units = units_of(Moments.of(X), np.zeros(10, dtype=bool), Target(0, 1, 0, 1), np.float64)
        rows = Rows.of(MemorySource(X, y))
        landscape = landscape_of(Problem(rows, units, Options(rank=6, alpha=(1.0, 1.0)), rng))
        start = landscape.factors(rng.standard_normal((10, 6)), np.repeat([1.0, -1.0], 3))
        tries.clear()
        reached = descended(landscape, [start], 200)[0]
        assert len(tries) < 60  # 21 to 46 here; with Newton's matrix as it is up to 113
        moved = landscape.factors(reached.L + 1e-3 * rng.standard_normal((10, 6)), reached.signs)
        again = descended(landscape, [moved], 200)[0]
        assert again.loss == pytest.approx(reached.loss, rel=1e-6)  # so it was no saddle point


def test_turns_leave_the_matrix_as_it_is():
    rng = np.random.default_rng(0)
    L, signs = rng.standard_normal((5, 3)), np.array([1.0, -1.0, -1.0])
    turns = many_descents._turns(L[None], signs[None])[0]
    values, vectors = np.linalg.eigh(turns)
    assert np.trace(turns) == pytest.approx(15)
    assert (
        (values > 1e-9).sum() == 3 == (np.abs(values) > 1e-9).sum()
    )  # one of each pair of columns
    for v in vectors[:, -3:].T:
        change = (v.reshape(5, 3) * signs) @ L.T
        np.testing.assert_allclose(change + change.T, 0, atol=1e-9)


@pytest.mark.parametrize("rank", [2, 12])
def test_equations_are_those_of_the_derivatives(rank):
    p = problem(3, n=200)
    landscape = landscape_of(p)
    L, signs = p.rng.standard_normal((2, 6, rank)), p.rng.choice([-1.0, 1.0], (2, rank))
    r = many_descents.residuals(landscape, L, signs)
    H, g = many_descents._equations(landscape, L * signs[:, None, :], r)
    for m in range(2):
        J = 2 * (landscape.slope @ (L[m] * signs[m])).reshape(len(landscape.t), -1)
        np.testing.assert_allclose(H[m], J.T @ J, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(g[m], J.T @ r[m], rtol=1e-9, atol=1e-9)
    damped = H + np.eye(6 * rank)
    damped[1, 0, 0] = -1e-3  # it bends down: the step must lead down all the same
    bent = np.array([False, True])
    steps = many_descents._solved(damped, g, bent)
    np.testing.assert_allclose(damped[0] @ steps[0], g[0], rtol=1e-8, atol=1e-8)
    assert steps[1] @ g[1] > 0


def test_the_bend_of_the_landscape_is_that_of_finite_differences():
    p = problem(1)
    landscape, h = landscape_of(p), 1e-5
    L, signs = p.rng.standard_normal((6, 2)), np.array([1.0, -1.0])
    towards = p.rng.standard_normal((6, 2))
    r = landscape.residual(L, signs)[None]
    H = many_descents._equations(landscape, (L * signs)[None], r)[0]
    H += many_descents._bend(landscape, r, signs[None])
    losses = [landscape.factors(L + s * h * towards, signs).loss for s in (-1, 0, 1)]
    expected = (losses[0] - 2 * losses[1] + losses[2]) / h**2
    assert 2 * towards.ravel() @ H[0] @ towards.ravel() == pytest.approx(expected, rel=1e-4)


def test_the_slope_of_the_landscape_is_that_of_finite_differences():
    p = problem(1)
    landscape, h = landscape_of(p), 1e-6
    L, signs = p.rng.standard_normal((6, 2)), np.array([1.0, -1.0])
    towards = p.rng.standard_normal((6, 2))
    slope = landscape.slope_of_loss(landscape.factors(L, signs))
    ahead, behind = (landscape.factors(L + s * towards, signs).loss for s in (h, -h))
    expected = 4 * np.sum(slope * ((L * signs) @ towards.T))
    assert (ahead - behind) / (2 * h) == pytest.approx(expected, rel=1e-6)


def test_every_component_of_a_positive_start_is_positive():
    assert np.all(best_start(problem(2, psd=True)).s >= 0)


@pytest.mark.parametrize("n", [3, 12, 40])
def test_fewer_rows_than_products_are_no_obstacle(n):
    p = problem(3, n=n)
    task = GaussNewton(p, Identity())
    model = best_start(p)
    assert np.isfinite(model.U).all()
    constant = p.units.target.power
    assert task.point_of(model).objective < max(constant, 1.0)


def lowest_by_lbfgs(Z, y, rank, squares, starts, rng):
    """Return the smallest loss of L-BFGS on M = L diag(±1) Lᵀ from random starts."""
    (n, d), left_out = Z.shape, 0.0 if squares else 1.0

    def loss(theta, signs):
        c, w, L = theta[0], theta[1 : d + 1], theta[d + 1 :].reshape(d, rank)
        ZL = Z @ L
        r = c + Z @ w + ZL**2 @ signs - left_out * (Z**2 @ (L**2 @ signs)) - y
        by_L = 2 * signs * (Z.T @ (r[:, None] * ZL) - left_out * (Z**2).T @ r[:, None] * L)
        return r @ r / n, 2 / n * np.concatenate([[r.sum()], Z.T @ r, by_L.ravel()])

    ends = []
    for _ in range(starts):
        signs = rng.choice([-1.0, 1.0], rank)
        start = np.append(np.zeros(1 + d), rng.standard_normal(d * rank) / np.sqrt(d))
        ends.append(minimize(loss, start, (signs,), "L-BFGS-B", True).fun)
    return min(ends)


# Draws in which a single start of annealed rank ended higher, by 6% to 15%.
DRAWS = [(2, True), (21, True), (26, True), (16, False), (28, False), (29, False)]


@pytest.mark.parametrize(("seed", "squares"), DRAWS)
def test_with_noise_no_random_start_of_another_optimiser_ends_lower(seed, squares):
    rng = np.random.default_rng(seed)
    n, d, rank = 150, 12, 2
    X = rng.standard_normal((n, d))
    V, signs = rng.standard_normal((d, 4)), rng.choice([-1.0, 1.0], 4)
    y = (X @ V) ** 2 @ signs
    y += np.std(y) * rng.standard_normal(n)
    diagonal = "free" if squares else "zero"
    model = SecondOrderRegressor(rank, alpha=0, diagonal=diagonal, random_state=0).fit(X, y)
    Z, target = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    best = lowest_by_lbfgs(Z, target, rank, squares, 12, rng)
    assert np.mean((y - model.predict(X)) ** 2) < best * np.var(y) * 1.001


def test_more_features_are_fitted_without_their_products():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, FEW + 1))
    y = (X @ rng.standard_normal(FEW + 1)) ** 2
    wide = SecondOrderRegressor(1, alpha=0, random_state=0).fit(X, y)
    narrow = SecondOrderRegressor(1, alpha=0, random_state=0).fit(X[:, :FEW], y)
    assert narrow.history_[-1].passes < wide.history_[-1].passes / 2
    assert wide.score(X, y) > 1 - 1e-10


@pytest.mark.parametrize(("common", "alpha", "passes"), [(0.0, 0, 3), (2.0, 0, 4), (2.0, 1.0, 3)])
def test_the_products_of_few_features_tell_their_correlations(common, alpha, passes):
    """Passes: a survey, the products, and the optimum, without a penalty with each whitener."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 6)) + common * rng.standard_normal((600, 1))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(600)
    model = SecondOrderRegressor(2, alpha=alpha, random_state=0).fit(X, y)
    assert model.history_[-1].passes == passes
    assert model.score(X, y) > 0.99


def redundant(kind, dtype, rng):
    """Return features that vary in fewer directions than there are of them, up to rounding."""
    X = rng.standard_normal((60, 3))
    X[:, 2] = {
        "equal": lambda: X[:, 0],
        "a sum": lambda: X[:, 0] + X[:, 1],
        "nearly equal": lambda: X[:, 0] + 1e-6 * X[:, 2],  # which float32 hardly tells
    }[kind]()
    return X.astype(dtype)


REDUNDANT = [("equal", np.float64), ("a sum", np.float64), ("equal", np.float32)]
REDUNDANT += [("a sum", np.float32), ("nearly equal", np.float32)]


@pytest.mark.parametrize("options", [{}, {"psd": True}, {"fit_linear": False}])
@pytest.mark.parametrize(("kind", "dtype"), REDUNDANT)
def test_components_do_not_grow_where_features_do_not_vary(kind, dtype, options):
    """Where only rounding depends on M, no M is large enough to fit it: it was 1e15."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = redundant(kind, dtype, rng)
        signed = rng.choice([-1.0, 1.0]) * (X @ rng.standard_normal(3)) ** 2
        y = (
            X @ rng.standard_normal(3) + signed + 0.5 * (seed % 2) * rng.standard_normal(60)
        ).astype(dtype)
        for rank in (1, 2):
            model = SecondOrderRegressor(rank, alpha=0, random_state=0, **options).fit(X, y)
            # Without rounding all of y is explained by an M below 10 times its spread.
            assert np.abs(model.eigenvalues_).max() < 1e3 * np.std(y)
            assert np.mean((y - model.predict(X)) ** 2) < np.var(y)
