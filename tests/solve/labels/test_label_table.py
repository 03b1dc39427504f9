"""Fits of few labels and counts by one matrix: the optima, and the evidence about them."""

import numpy as np
import pytest
from scipy.optimize import minimize

from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.losses import probability, value_and_slope
from quadlin.core.model import Model, constant_model, predict
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.labels.label_table import LabelTable
from quadlin.solve.labels.logistic import LogisticFit, Working
from quadlin.solve.lowrank.tangent_gram import tangent_gram
from quadlin.solve.lowrank.types import Options

RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 4)) + np.array([0, 1, 0, 2])
X[:, 3] = X[:, 3] > 2  # has no square, and is rare enough for a penalty of its own
X[:5, 2] = 40.0
LOG_ODDS = X[:, 0] * X[:, 1] + X[:, 3]
Y = {
    "logistic": (RNG.uniform(size=200) < probability(LOG_ODDS)).astype(float),
    "poisson": RNG.poisson(np.exp(np.clip(LOG_ODDS, None, 2))).astype(float),
}
WEIGHT = RNG.integers(0, 3, 200).astype(float)  # rows of weight 0 are left out


def table_of(loss, **options):
    rows = Rows.of(MemorySource(X, Y[loss], WEIGHT, block_rows=70))
    surveyed = rows.reduce(survey)
    labels = {"labels": loss == "logistic", "counts": loss == "poisson"}
    make = UnitsMaker("auto", True, X.dtype, "abcd", (), True, **labels)
    units = make(surveyed.features, surveyed.target)
    settings = Options(loss=loss, **options)
    fit = LogisticFit(rows, units, make, surveyed, 0, loss)
    return LabelTable.of(rows, units, settings, loss), fit


def products(Z, units):
    """Return the columns of a model of all products and their penalties, by definition."""
    i, j = np.triu_indices(Z.shape[1])
    kept = (i != j) | (units.free[i] == 1)
    i, j = i[kept], j[kept]
    # f has 2 M_ij z_i z_j of ‖M‖² = 2 M_ij² for i < j, so b = 2 M_ij costs b²/2 of it.
    return Z[:, i] * Z[:, j], np.where(i == j, 1.0, 0.5)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
@pytest.mark.parametrize("rank", [0, 4])
def test_ranks_without_restriction_have_the_optimum_of_a_general_minimiser(loss, rank):
    table, fit = table_of(loss, rank=rank)
    units, alpha = fit.units, (2.0, 3.0)
    Z = (X - units.mean) * units.scale - units.rest
    quadratic, share = products(Z, units) if rank else (Z[:, :0], np.zeros(0))
    A = np.column_stack([np.ones(len(Z)), Z, quadratic])
    rho = units.penalty_scale
    i, j = np.triu_indices(4)
    kept = (i != j) | (units.free[i] == 1)
    of_pairs = (rho[i] * rho[j])[kept] ** 2 if rank else np.zeros(0)
    ridge = np.concatenate([[0.0], alpha[0] * rho**2, 2 * alpha[1] * share * of_pairs])

    def objective(theta):
        value, slope = value_and_slope(loss, A @ theta, Y[loss])
        return WEIGHT @ value + ridge @ theta**2, 2 * (A.T @ (WEIGHT * slope) + ridge * theta)

    oracle = minimize(
        objective, np.zeros(A.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-9}
    )
    at = table.fitted(constant_model(units, rank, units.target.centre), alpha)
    assert at.objective == pytest.approx(oracle.fun, rel=1e-9)
    f = predict(at.model, Block(X, units))
    np.testing.assert_allclose(f, A @ oracle.x, atol=1e-4)
    np.testing.assert_allclose(at.f, f[WEIGHT > 0], atol=1e-9)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_a_low_rank_ends_at_the_optimum_that_walks_over_the_rows_find(loss):
    table, fit = table_of(loss, rank=2)
    options = Options(rank=2, alpha=(1.0, 1.0), tol=1e-13, max_iter=200, loss=loss)
    by_walks = fit.polished(options, fit.start(options))[0].model
    start = Model(by_walks.U, 0.7 * by_walks.s, by_walks.w, by_walks.c, by_walks.free)
    by_table = table.fitted(start, options.alpha, tol=1e-13).model
    f, g = (predict(model, Block(X, fit.units)) for model in (by_table, by_walks))
    np.testing.assert_allclose(f, g, atol=1e-4)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
@pytest.mark.parametrize("rank", [0, 2, 4])
def test_the_least_squares_about_a_fit_is_that_of_passes(loss, rank):
    table, fit = table_of(loss, rank=rank)
    U = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0][:, :rank]
    model = Model(U, np.linspace(0.2, -0.1, rank), np.full(4, 0.3), 0.1, fit.units.free)
    gram, weight, excess = table.linear(table.at(model))
    working = Working.about(model, fit.rows, fit.units, True, loss)
    basis = U if 0 < rank < 4 else np.eye(4, rank)
    other = tangent_gram(working.rows, working.units, table.options, basis)
    assert weight == pytest.approx(working.weight)
    assert excess == pytest.approx(working.excess)
    ours, theirs = gram.centred(weight), other.centred(weight)
    assert ours.power == pytest.approx(theirs.power)
    np.testing.assert_allclose(ours.products, theirs.products, atol=1e-8)
    np.testing.assert_allclose(ours.right, theirs.right, atol=1e-8)


def test_labels_that_a_line_separates_have_finite_log_odds():
    y = (X[:, 0] > 0).astype(float)
    rows = Rows.of(MemorySource(X, y))
    surveyed = rows.reduce(survey)
    make = UnitsMaker("auto", True, X.dtype, "abcd", (), True, labels=True)
    units = make(surveyed.features, surveyed.target)
    table = LabelTable.of(rows, units, Options(rank=0, loss="logistic"), "logistic")
    at = table.fitted(constant_model(units, 0, units.target.centre), (1e-6, 1e-6))
    assert np.all((at.f > 0) == (y == 1))
    assert 10 < np.max(np.abs(at.f)) < 1e4
