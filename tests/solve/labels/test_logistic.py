"""The logistic fit in the solver: its loss, gradient and curvature, and the evidence."""

from dataclasses import replace

import numpy as np
import pytest

from quadlin.core.chunks import MemorySource
from quadlin.core.losses import constant_deviance, curvature, log_odds, probability, softplus
from quadlin.core.model import Model
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.labels.logistic import LogisticFit, Working
from quadlin.solve.labels.logistic_choice import fit_logistic
from quadlin.solve.labels.logistic_search import LogisticSearch, floored
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.tangent import Tangent
from quadlin.solve.lowrank.types import Automatic, Options, Plan, Problem, Status
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
    units = UnitsMaker("auto", *parts, labels=True)(total.features, total.target)
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


def fitted(options, automatic):
    make = UnitsMaker("auto", True, X.dtype, "abcd", (), True, labels=True)
    rows = Rows.of(MemorySource(X, Y, WEIGHT))
    return fit_logistic(rows, Plan(options, make, 0, automatic))


def test_penalties_of_largest_evidence_are_macKays_fixed_point():
    # α = γ/|θ|² where γ of the parameters are determined: here of logistic regression.
    given, rows = problem(), Rows.of(MemorySource(X, Y, WEIGHT))
    make = UnitsMaker("auto", True, X.dtype, "abcd", (), True, labels=True)
    fit = LogisticFit(rows, given.units, make, rows.reduce(survey), 0)
    search = LogisticSearch.of(fit, Options(rank=0, loss="logistic"), 300)
    ridge = search.ridge()
    Z = (X - np.average(X, axis=0, weights=WEIGHT)) * given.units.scale
    p = probability(ridge.model.c + Z @ ridge.model.w)
    h = WEIGHT * p * (1 - p)
    C = Z - np.average(Z, axis=0, weights=h)
    H = C.T @ (h[:, None] * C)
    alpha = ridge.alpha[0]
    determined = np.trace(np.linalg.solve(H + alpha * np.eye(4), H))
    # The search stops where log α changes by less than .3 between fits.
    assert np.log(alpha) == pytest.approx(np.log(determined / np.sum(ridge.model.w**2)), abs=0.4)
    # The posterior has 300 rows for one number: its mean is near, here .5 below.
    mean = fitted(Options(rank=0, loss="logistic"), Automatic(rank=False, alpha=True))[1].alpha[0]
    assert np.log(mean) == pytest.approx(np.log(alpha), abs=1.0)


def test_no_penalty_is_chosen_below_the_floor():
    assert floored((0.0, 0.0), 10, 2) == (0.1, 0.19)
    assert floored((5.0, 7.0), 10, 2) == (5.0, 7.0)


def test_one_label_gives_the_constant():
    make = UnitsMaker("auto", True, X.dtype, "abcd", (), True, labels=True)
    rows = Rows.of(MemorySource(X, np.ones(300)))
    plan = Plan(Options(rank=3, loss="logistic"), make, 0, Automatic(rank=True, alpha=True))
    state, options = fit_logistic(rows, plan)
    assert options.rank == 0
    assert state.status is Status.converged
    assert probability(np.float64(state.model.c)) == pytest.approx(300.5 / 301)
