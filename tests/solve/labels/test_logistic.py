"""The logistic fit in the solver: its loss with its gradient and curvature."""

from dataclasses import replace

import numpy as np
import pytest

from quadlin.core.chunks import MemorySource
from quadlin.core.losses import constant_deviance, curvature, log_odds, probability, softplus
from quadlin.core.model import Model
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.labels.likelihood import Working
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.tangent import Tangent
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Identity

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 4)) + np.array([0, 1, 0, 2])
X[:, 3] = X[:, 3] > 2  # has no square
Y = (RNG.uniform(size=300) < probability(X[:, 0] * X[:, 1] + X[:, 2])).astype(float)
WEIGHT = RNG.uniform(0.5, 2, 300)


def problem(**options):
    options = {"fit_linear": True, "fit_intercept": True, **options}
    parts = (options["fit_intercept"], X.dtype, "abcd", (), options["fit_linear"])
    rows = Rows.of(MemorySource(X, Y, WEIGHT, block_rows=100))
    total = rows.reduce(survey)
    units = UnitsMaker("auto", *parts, loss="logistic")(total.features, total.target)
    settings = Options(rank=2, alpha=(0.7, 0.3), loss="logistic", **options)
    return Problem(rows, units, settings, np.random.default_rng(0))


def test_the_functions_of_log_odds_do_not_overflow():
    f = np.array([-800.0, -1.0, 0.0, 2.0, 800.0])
    np.testing.assert_allclose(probability(f), [0, 1 / (1 + np.e), 0.5, 1 / (1 + np.exp(-2)), 1])
    np.testing.assert_allclose(softplus(f), np.logaddexp(0, f))
    np.testing.assert_allclose(curvature(f), probability(f) * probability(-f), atol=1e-300)
    assert log_odds(0.2) == pytest.approx(np.log(0.25))
    expected = -2 * (0.2 * np.log(0.2) + 0.8 * np.log(0.8))
    assert constant_deviance(0.2, log_odds(0.2)) == pytest.approx(expected)


@pytest.mark.parametrize("parts", [{}, {"fit_linear": False}, {"fit_intercept": False}])
def test_gradient_and_curvature_are_those_of_finite_differences(parts):
    task = GaussNewton(problem(**parts), Identity())
    rng = np.random.default_rng(1)
    U = np.linalg.qr(rng.standard_normal((4, 2)))[0]
    p = task.point(0.3, rng.standard_normal(4), U, np.array([0.8, -0.5]))
    t = Tangent(rng.standard_normal(1), *(rng.standard_normal(s) for s in ((4, 1), (4, 1, 2))))

    def objective(size):
        """The model M + size (U Gᵀ + G Uᵀ), which is of rank 4, without truncation."""
        return task.moved(p, t, size, 4).objective

    step = 1e-4
    low, middle, high = (objective(size) for size in (-step, 0.0, step))
    slope, bend = (high - low) / (2 * step), (high - 2 * middle + low) / step**2
    assert 2 * task.gradient(p).dot(t) == pytest.approx(slope, rel=1e-5)
    # Predictions are linear in M, so this is the curvature itself and not an approximation.
    assert 2 * t.dot(task.curvature(p, t)) == pytest.approx(bend, rel=1e-4)


def test_the_working_least_squares_have_the_gradient_of_the_loss():
    given = problem()
    rng = np.random.default_rng(1)
    U = np.linalg.qr(rng.standard_normal((4, 2)))[0]
    model = Model(U, np.array([0.5, -0.4]), rng.standard_normal(4), 0.2, given.units.free)
    working = Working.about(model, given.rows, given.units, fit_intercept=True)
    options = replace(given.options, loss="squared")
    about = Problem(working.rows, working.units, options, given.rng)
    shifted = replace(model, c=model.c - working.offset)
    ours, theirs = given.sums(model), about.sums(shifted)
    for name in ("p0", "p1", "p2", "action"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-9)
