import numpy as np
import pytest

from problems import chunk_of, random_model
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import predict
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.units import Target, units_of
from quadlin.solve.lowrank import step_length as guard


def setting(parts=(True, True)):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 8))
    X[:, 3] = X[:, 3] > 0
    m = Moments.of(X)
    units = units_of(m, m.tau >= 0.05, Target(0.0, 1.0, 0.0, 1.0), np.float64)
    model, previous = (random_model(8, 2, units.free, rng) for _ in range(2))
    step = (rng.standard_normal((8, 2)), rng.standard_normal(8))
    step = (step[0] + model.U @ (step[0].T @ model.U - model.U.T @ step[0]) / 2, step[1])
    family = guard.family(model, step, previous, units, *parts)
    return X, rng.standard_normal(200), units, model, family


def test_alpha_is_the_least_squares_solution():
    X, y, units, model, family = setting()
    g = Rows.of(MemorySource(X, y, block_rows=37)).reduce(guard.gram, family, units)
    alpha, loss = guard.best(g, 5)
    rows = Block(X, units)

    def along(direction, size):  # of full rank, so that nothing is cut off
        a = np.zeros(5)
        a[direction] = size
        return predict(guard.member(family, a, 8, False), rows)

    base = predict(model, rows)
    F = np.column_stack([along(i, 1.0) - base for i in range(5)])
    expected, residual, *_ = np.linalg.lstsq(F, y - base, rcond=None)
    np.testing.assert_allclose(alpha, expected, atol=1e-8)
    assert loss == pytest.approx(float(residual[0]) / 200)


def test_the_first_direction_is_the_tangent_step_with_its_sign_turned():
    _, _, _, model, family = setting()
    moved = guard.member(family, np.array([1.0, 0, 0, 0, 0]), 8, False)
    D = (model.U * model.s) @ model.U.T - (moved.U * moved.s) @ moved.U.T
    np.testing.assert_allclose(np.linalg.norm(D - D.T), 0, atol=1e-12)
    P = np.eye(8) - model.U @ model.U.T
    np.testing.assert_allclose(P @ D @ P, 0, atol=1e-10)  # nothing outside the tangent space


def test_directions_that_are_one_and_the_same_do_no_harm():
    X, y, units, _, family = setting()
    twin = guard.Family(
        family.span,
        [*family.cores, family.cores[1]],
        np.column_stack([family.w, family.w[:, 1]]),
        [*family.c, family.c[1]],
        family.free,
    )
    once = guard.best(guard.gram(chunk_of(X, y), family, units), 5)[1]
    alpha, twice = guard.best(guard.gram(chunk_of(X, y), twin, units), 6)
    assert np.all(np.isfinite(alpha))
    assert twice == pytest.approx(once)


def test_every_direction_obeys_what_is_not_fitted():
    from quadlin.core.model import to_raw

    _, _, units, _, family = setting(parts=(False, False))
    rng = np.random.default_rng(0)
    # The base itself is only tied when the solver ties it: compare differences.
    zero = to_raw(guard.member(family, np.zeros(2), 8, False), units)
    some = to_raw(guard.member(family, rng.standard_normal(2), 8, False), units)
    np.testing.assert_allclose(some.coef, zero.coef, atol=1e-9)
    assert some.intercept == pytest.approx(zero.intercept, abs=1e-9)
