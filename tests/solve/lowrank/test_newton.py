"""Newton's method on rank-k matrices, against finite differences and dense solutions."""

import numpy as np
import pytest

from quadlin.solve.lowrank.newton import CentredTable, Newton, System


def table_of(n=60, d=8, seed=0):
    """Return rows of pure noise with weights and two features without squares: no easy optimum."""
    rng = np.random.default_rng(seed)
    Z, y, weight = rng.standard_normal((n, d)), rng.standard_normal(n), rng.uniform(0.5, 2, n)
    mean, root = np.average(y, weights=weight), np.sqrt(weight)
    return CentredTable(Z, root * (y - mean), root, mean, np.arange(d) < 2), y


def objective(table, y, alpha, c, w, M):
    """Return what is minimised, from its definition."""
    seen = M - np.diag(np.where(table.fixed, np.diag(M), 0.0))
    f = c + table.Z @ w + np.einsum("ni,ij,nj->n", table.Z, seen, table.Z)
    return table.root**2 @ (f - y) ** 2 + alpha[0] * w @ w + 2 * alpha[1] * np.sum(M**2)


@pytest.mark.parametrize("rank", [1, 3])
def test_the_optimum_has_no_slope_along_any_factor(rank):
    table, y = table_of()
    alpha = (0.5, 4.0)
    newton = Newton(table, rank, alpha)
    U = np.linalg.qr(np.random.default_rng(1).standard_normal((8, rank)))[0]
    p = newton.optimum(U, np.linspace(1.0, -1.0, rank))
    f = table.Z @ p.w + table.quadratic(p.U, p.s)
    c = table.mean - table.share @ f

    def value(change):
        E = p.U + change.reshape(8, rank)
        return objective(table, y, alpha, c, p.w, (E * p.s) @ E.T)

    at = value(np.zeros(8 * rank))
    assert p.objective == pytest.approx(at, rel=1e-10)
    h = 1e-5
    slope = [(value(h * e) - value(-h * e)) / (2 * h) for e in np.eye(8 * rank)]
    assert np.linalg.norm(slope) < 1e-3 * at  # a step gains far less than 1e-4 of it
    linear = [
        objective(table, y, alpha, c + e[0], p.w + e[1:], (p.U * p.s) @ p.U.T) - at
        for e in np.vstack([np.eye(9), -np.eye(9)]) * 1e-4
    ]
    assert min(linear) > 0


def test_the_curvature_of_the_set_makes_the_last_steps_quadratic():
    # Nothing but noise, so that the residual is as large as the target: without the curvature a
    # step would leave a fixed share of the slope.
    table, _ = table_of(n=40, d=6, seed=3)
    newton = Newton(table, 2, (1.0, 5.0))
    U = np.linalg.qr(np.random.default_rng(2).standard_normal((6, 2)))[0]
    p = newton.optimum(U, np.array([0.5, -0.5]))
    slopes = []
    for _ in range(3):
        slopes.append(np.linalg.norm(newton.system(p).slope))
        p = newton.lower(p, 0.0)[0]
    assert slopes[1] < 1e-2 * slopes[0] or slopes[1] < 1e-9
    assert slopes[2] < 1e-2 * slopes[1] or slopes[2] < 1e-9


def test_a_system_of_more_parameters_than_rows_is_solved_by_a_matrix_of_rows():
    rng = np.random.default_rng(0)
    A, slope = rng.standard_normal((5, 300)), rng.standard_normal(300)
    ridge = rng.uniform(1.0, 2.0, 300)
    theta = System(None, A, ridge, slope, 1.0, 10).solved(0.0)
    dense = -np.linalg.solve(A.T @ A + np.diag(ridge), slope)
    np.testing.assert_allclose(theta, dense, rtol=1e-9)


def test_a_matrix_of_nothing_stays_finite():
    table, _ = table_of()
    p = Newton(table, 1, (1.0, 1.0)).optimum(np.eye(8)[:, 2:3], np.zeros(1))
    assert np.isfinite(p.objective)
