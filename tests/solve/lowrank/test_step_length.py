"""The length of a step: least squares along its directions, so that the loss never rises."""

from itertools import islice

import numpy as np
import pytest

from problems import random_model
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import predict
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.units import Target, units_of
from quadlin.datasets import make_second_order
from quadlin.solve.lowrank import step_length as guard
from quadlin.solve.lowrank.moment_sequence import moment_sequence
from quadlin.solve.lowrank.types import Options, Problem


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


@pytest.mark.parametrize(("kind", "per_parameter"), [("ar1", 20), ("gaussian", 4), ("gaussian", 1)])
def test_guarded_steps_never_raise_the_loss(kind, per_parameter):
    d, k = 20, 2
    data = make_second_order(per_parameter * k * d, d, rank=k, distribution=kind, random_state=0)
    m = Moments.of(data.X)
    target = Target(0.0, float(np.sqrt(np.mean(data.y**2))), 0.0, 1.0)
    units = units_of(m, m.tau >= 0.05, target, np.float64)
    rows = Rows.of(MemorySource(data.X, data.y))
    problem = Problem(rows, units, Options(rank=k), np.random.default_rng(0))
    losses = [iterate.objective for iterate in islice(moment_sequence(problem), 40)]
    assert len(losses) > 5
    assert np.all(np.diff(losses) < 0)
