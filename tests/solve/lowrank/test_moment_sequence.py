"""Moment estimates are unbiased for any skewness and kurtosis, and guarded steps do no harm."""

from itertools import islice

import numpy as np
import pytest

from problems import KINDS, chunk_of, dense_m, dense_predict, draw, population_units, random_model
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import predict
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.sums import Sums, residual_sums
from quadlin.core.units import Target, units_of
from quadlin.datasets import make_second_order
from quadlin.solve.lowrank import moment_sequence as mes
from quadlin.solve.lowrank.types import Options, Problem

D, K, N, DRAWS = 6, 2, 400, 1000


def estimates(kind, noise):
    """Draw many batches; return 𝓜Q and 𝓦 of each beside the true ΔM Q and Δw."""
    rng = np.random.default_rng(7)
    units = population_units(kind, D)
    truth, model = (random_model(D, K, units.free, rng, c) for c in (0.0, 0.4))
    Q = rng.standard_normal((D, 2))
    found_m, found_w = [], []
    for _ in range(DRAWS):
        X = draw(kind, N, D, rng)
        Z = Block(X, units).matmul(np.eye(D))
        y = dense_predict(truth, Z) + noise * rng.standard_normal(N)
        sums = residual_sums(chunk_of(X, y), model, units, Q)
        MQ, W = mes.unbiased(sums, Q, units)
        found_m.append(MQ)
        found_w.append(W)
    return (
        (np.array(found_m), (dense_m(model) - dense_m(truth)) @ Q),
        (np.array(found_w), model.w - truth.w),
    )


def worst_deviation(estimate, truth):
    """Return the largest deviation of the mean, in standard errors."""
    error = estimate.std(axis=0) / np.sqrt(len(estimate))
    return np.max(np.abs(estimate.mean(axis=0) - truth) / error)


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimates_are_unbiased(kind):
    # 18 numbers a case and 5 cases: 4.5 standard errors are passed by chance in 1e-3 of runs,
    # and the seed is fixed. The population moments are known to 1e-3, far inside that.
    (m, true_m), (w, true_w) = estimates(kind, noise=1.0)
    assert worst_deviation(m, true_m) < 4.5
    assert worst_deviation(w, true_w) < 4.5


@pytest.mark.parametrize("kind", KINDS)
def test_the_tangent_step_lands_on_the_truth_in_expectation(kind):
    # A truth within the tangent space of the model: the population step must find it exactly, so
    # the mean over draws must, within its standard error.
    rng = np.random.default_rng(3)
    units = population_units(kind, D)
    model = random_model(D, K, units.free, rng)
    truth = random_model(D, K, units.free, rng, c=0.0)
    same_span = type(model)(model.U, truth.s, truth.w, truth.c, model.free)
    estimates = []
    for _ in range(DRAWS):
        X = draw(kind, N, D, rng)
        y = dense_predict(same_span, Block(X, units).matmul(np.eye(D)))
        Y, dw = mes.tangent_step(residual_sums(chunk_of(X, y), model, units), model.U, units)
        estimates.append(np.column_stack([Y, dw]))
    D_true = (model.U * (model.s - truth.s)) @ model.U.T
    true = np.column_stack([D_true @ model.U, model.w - truth.w])
    assert worst_deviation(np.array(estimates), true) < 4.5


def test_the_tangent_step_solves_the_normal_equations_of_the_tangent_space():
    """Against a dense least squares with the population Gram matrix, d² parameters and all."""
    rng = np.random.default_rng(0)
    d, k = 5, 2
    units = population_units("mixed", d)
    U = np.linalg.qr(rng.standard_normal((d, k)))[0]
    E = rng.standard_normal((d, d))
    E, P1 = E + E.T, rng.standard_normal(d)
    p2, action = np.diag(E)[:, None], (E @ U)[:, None, :]
    sums = Sums(1.0, 0.0, np.zeros(1), P1[:, None], p2, action)
    Y, dw = mes.tangent_step(sums, U, units)
    D = Y @ U.T + U @ Y.T - U @ (U.T @ Y) @ U.T
    # ⟨Gram of the step, T⟩ = E r f_T for every T of the tangent space, spanned outright.
    free, kappa, phi = units.free, units.kappa, units.phi
    for a in range(d):
        for b in range(k):
            A = np.zeros((d, k))
            A[a, b] = 1
            T = U @ A.T + A @ U.T
            off = 2 * np.sum((D - np.diag(np.diag(D))) * (T - np.diag(np.diag(T))))
            diag = np.sum(free * np.diag(T) * (kappa * dw + (phi - 1) * np.diag(D)))
            right = np.sum((E - np.diag(np.diag(E))) * T) + np.sum(free * np.diag(T) * np.diag(E))
            assert off + diag == pytest.approx(right, abs=0.02)  # solved by iteration, to 1e-3
    np.testing.assert_allclose(dw + free * kappa * np.diag(D), P1, atol=1e-8)


def test_the_spectral_start_finds_the_leading_eigenpairs_by_size():
    rng = np.random.default_rng(0)
    d = 60
    V = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = np.concatenate([[3.0, -2.5, 2.0], 0.3 * rng.uniform(-1, 1, d - 3)])
    A = (V * values) @ V.T
    U, s, _ = mes.spectral(lambda Q: (-A @ Q, np.zeros(d)), rng.standard_normal((d, 6)), 3, False)
    np.testing.assert_allclose(s, [3.0, -2.5, 2.0], rtol=1e-3)
    np.testing.assert_allclose(np.abs(np.sum(U * V[:, :3], axis=0)), 1.0, atol=1e-2)


def test_a_step_is_the_best_in_the_span_of_its_changes():
    rng = np.random.default_rng(0)
    units = population_units("mixed", 8)
    X, y = draw("mixed", 200, 8, rng), rng.standard_normal(200)
    model, *changes = (random_model(8, 2, units.free, rng) for _ in range(4))
    rows = Rows.of(MemorySource(X, y, block_rows=37))
    products = rows.reduce(mes.change_products, changes, model, units)
    sizes, left = mes.best_sizes(products, changes)
    F = np.column_stack([predict(change, Block(X, units)) for change in changes])
    residual = y - predict(model, Block(X, units))
    expected, rest, *_ = np.linalg.lstsq(F, residual, rcond=None)
    np.testing.assert_allclose(sizes, expected, atol=1e-8)
    assert left == pytest.approx(float(rest[0]) / float(residual @ residual))
    best = mes.combined([model, *changes], [1.0, *sizes], 8, False)  # nothing is cut off
    found = y - predict(best, Block(X, units))
    assert float(found @ found) == pytest.approx(float(rest[0]))


def test_the_first_change_is_the_tangent_step():
    rng = np.random.default_rng(0)
    U, G = np.linalg.qr(rng.standard_normal((8, 2)))[0], 1e-9 * rng.standard_normal((8, 2))
    V, s = mes.on_tangent(U, G)
    np.testing.assert_allclose((V * s) @ V.T, U @ G.T + G @ U.T, rtol=1e-12, atol=1e-23)


@pytest.mark.parametrize(("kind", "per_parameter"), [("ar1", 20), ("gaussian", 4), ("gaussian", 1)])
def test_guarded_steps_never_raise_the_loss(kind, per_parameter):
    d, k = 20, 2
    data = make_second_order(per_parameter * k * d, d, rank=k, distribution=kind, random_state=0)
    m = Moments.of(data.X)
    target = Target(0.0, float(np.sqrt(np.mean(data.y**2))), 0.0, 1.0)
    units = units_of(m, m.tau >= 0.05, target, np.float64)
    rows = Rows.of(MemorySource(data.X, data.y))
    problem = Problem(rows, units, Options(rank=k), np.random.default_rng(0))
    losses = [iterate.objective for iterate in islice(mes.moment_sequence(problem), 40)]
    assert len(losses) > 5
    assert np.all(np.diff(losses) < 0)
