"""Gauss–Newton against finite differences and dense algebra."""

import numpy as np
import pytest

from problems import draw
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import predict
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.units import Target, units_of
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.tangent import Tangent
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Identity, covariance, estimate_low_rank, full_whitener


def whitener_of(mode, rows, units, ridge, rng):
    if mode == "none":
        return Identity((1 + ridge) ** -0.5)
    if mode == "lowrank":
        return estimate_low_rank(rows, units, ridge, rng)
    return full_whitener(units, ridge, rows.reduce(covariance, units))


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
    white = whitener_of(mode, rows, units, 0.01, rng)
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
    white = whitener_of("full", rows, units, 0.0, rng)
    Z = Block(X, units).matmul(white.apply(np.eye(8)))
    S = Z.T @ Z / 2000
    # Shrunk: an eigenvalue e of the correlation becomes e/(e + 0.01), and the smallest is small.
    assert np.all(np.linalg.eigvalsh(S) <= 1)
    assert np.linalg.cond(S) < np.linalg.cond(np.corrcoef(X.T)) / 2
