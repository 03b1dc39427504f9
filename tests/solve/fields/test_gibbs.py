"""Posterior draws: calibrated, and those of the conditional distributions."""

import numpy as np
import pytest

from field_problems import CELLS, FIELDS, X, Y, every_cell, machine_of_rows, sample, table
from quadlin.solve.fields.field_sums import statistics
from quadlin.solve.fields.level_posterior import MEAN_WEIGHT


def test_the_spread_of_the_draws_is_that_of_the_errors():
    draws = sample(X, Y, FIELDS, 2, draws=150, seed=0)
    mean, std = draws.predict(every_cell(), return_std=True)
    spread = np.sqrt(std**2 - draws.noise**2)
    z = (mean - CELLS.ravel()) / spread
    # 140 levels with three unknowns each: the mean square of z has a standard error near
    # √(2/420) = 7%, and 150 correlated draws add some 5%.
    assert np.mean(z**2) == pytest.approx(1, abs=0.25)
    assert draws.noise == pytest.approx(0.5, abs=0.03)
    assert np.mean(np.abs(z) < 1.645) == pytest.approx(0.9, abs=0.04)


def test_weights_are_repetitions():
    weight = np.random.default_rng(1).integers(0, 4, size=len(Y))
    rows = np.repeat(np.arange(len(Y)), weight)
    options = {"draws": 5, "burn_in": 2, "seed": 0}
    weighted = sample(X, Y, FIELDS, 2, weight=weight, **options)
    repeated = sample(X[rows], Y[rows], FIELDS, 2, **options)
    np.testing.assert_allclose(weighted.tables, repeated.tables, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(weighted.noises, repeated.noises, rtol=1e-4)


@pytest.mark.parametrize("kind", ["two", "side"])
def test_draws_on_the_other_side_of_the_mean_keep_the_posterior(kind):
    # Given the other entity, noise and precisions, all levels and means of an entity are jointly
    # normal: their updates must have that distribution, whatever the correlation of draws.
    X, y, fields, weight = table(kind)
    machine = machine_of_rows(X, y, fields, 2, weight, seed=0)
    machine.start_sampling()
    for _ in range(3):
        machine.sweep()
    e, entity = 0, machine.rows.entities[0]
    stats = statistics(machine.rows, e, machine.state, machine.signs, machine.b)
    H, g = equations(machine, entity, stats)
    exact, cov = np.linalg.solve(H, g), np.linalg.inv(H)
    draws, groups = [], sorted({member.group for member in entity.members})
    for _ in range(1100):
        machine._update_entity(e, entity, stats)
        parts = [levels.mean.T.ravel() for levels in machine.levels[e]]
        draws.append(np.concatenate([*parts, *(machine.means[group] for group in groups)]))
    z = (np.array(draws[100:]) - exact) / np.sqrt(np.diag(cov))
    # Levels of other members are correlated over some ten draws, so that 1,000 draws are at least
    # 100 independent ones: means have a standard error of 10%, squares one of 14%; four of each. Of
    # all unknowns, some ten of them independent, together 5%.
    assert np.abs(z.mean(axis=0)).max() < 0.4
    np.testing.assert_allclose((z**2).mean(axis=0), 1, atol=0.57)
    assert np.mean(z**2) == pytest.approx(1, abs=0.2)
    end = len(exact) - 3 * len(groups)
    key = z[:, end - 3 * len(entity.members[-1].columns) : end]
    assert np.mean(key[1:] * key[:-1]) < (-0.4 if kind == "two" else 0)  # members are drawn anew


def equations(machine, entity, stats):
    """Return the precision and its product with the mean of (levels, means of groups)."""
    K, noise = len(machine.signs) + 1, float(machine.noise.mean)
    sizes = [K * len(member.columns) for member in entity.members]
    starts = np.cumsum([0, *sizes])
    groups = sorted({member.group for member in entity.members})
    d = starts[-1] + K * len(groups)
    design = np.zeros((entity.size, K, d))  # (ω, t) of each pattern by the unknowns
    H, g = np.zeros((d, d)), np.zeros(d)
    for member, start in zip(entity.members, starts, strict=False):
        where = np.arange(entity.size)[member.where]
        level = where if member.level is None else member.level
        x = np.broadcast_to(member.x, where.shape)
        at = starts[-1] + K * groups.index(member.group) + np.arange(K)
        precision = machine.precisions[member.group].mean
        for p, j, value in zip(where, level, x, strict=True):
            design[p, np.arange(K), start + K * j + np.arange(K)] += value
        for j in range(len(member.columns)):
            here = start + K * j + np.arange(K)
            H[here, here] += precision
            H[at, at] += precision
            H[here, at] -= precision
            H[at, here] -= precision
    for i, group in enumerate(groups):
        at = starts[-1] + K * i + np.arange(K)
        H[at, at] += MEAN_WEIGHT * machine.precisions[group].mean
    for p in range(entity.size):
        H += noise * design[p].T @ stats.G[:, :, p] @ design[p]
        g += noise * design[p].T @ stats.h[:, p]
    return H, g
