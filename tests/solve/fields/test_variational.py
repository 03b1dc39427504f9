"""The variational posterior: its bound rises, it recovers what rows say, and shrinks the rest."""

import numpy as np
import pytest

from field_problems import CELLS, FIELDS, X, Y, every_cell, ratings, table, variational_fit
from quadlin.solve.fields.field_rows import field_rows
from quadlin.solve.fields.field_sums import LevelMoments, statistics


@pytest.mark.parametrize("kind", ["two", "side", "near", "more"])
def test_the_bound_never_falls(kind):
    rows, y, fields, weight = table(kind)
    for seed in range(3):
        fit = variational_fit(rows, y, fields, 3, weight=weight, max_sweeps=40, tol=0, seed=seed)
        bounds = np.array([line.bound for line in fit.history])
        assert np.diff(bounds).min() > -1e-8 * np.abs(bounds).max()


def test_data_without_noise_are_recovered():
    rows, y, fields, cells = ratings(noise=0.0)
    fit = variational_fit(rows, y, fields, 2, max_sweeps=200, tol=1e-7, seed=0)
    error = fit.predict(every_cell()) - cells.ravel()
    assert np.sqrt(np.mean(error**2)) < 1e-3 * cells.std()
    assert fit.history[-1].noise < 1e-2


def test_components_that_are_not_needed_are_shrunk_away():
    small, large = (variational_fit(X, Y, FIELDS, rank, seed=0) for rank in (2, 6))
    error = [np.std(fit.predict(every_cell()) - CELLS.ravel()) for fit in (small, large)]
    assert error[1] < 1.05 * error[0]
    V = large.table[:140, 1:]
    size = np.sort(np.sqrt(np.mean(V[:60] ** 2, axis=0) * np.mean(V[60:] ** 2, axis=0)))
    assert size[3] < 0.02 * size[4]  # two components remain of six


def test_a_level_without_rows_is_the_mean_of_its_field():
    fields = [np.arange(63), 63 + np.arange(80)]
    wide = np.hstack([X[:, :60], np.zeros((len(Y), 3)), X[:, 60:]])
    fit = variational_fit(wide, Y, fields, 2, seed=0)
    cold = np.hstack([np.zeros((80, 60)), np.ones((80, 1)), np.zeros((80, 2)), np.eye(80)])
    gone = np.hstack([np.zeros((80, 63)), np.eye(80)])
    np.testing.assert_allclose(fit.predict(cold), fit.predict(gone), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(fit.predict(gone), CELLS.mean(axis=0), atol=1.2)


def test_the_fit_depends_neither_on_the_order_of_rows_nor_on_units():
    order = np.random.default_rng(1).permutation(len(Y))
    one = variational_fit(X, Y, FIELDS, 3, seed=0)
    other = variational_fit(X[order], 1000 * Y[order] - 5, FIELDS, 3, seed=0)
    cells = every_cell()
    np.testing.assert_allclose(1000 * one.predict(cells) - 5, other.predict(cells), atol=1)
    assert other.history[-1].noise == pytest.approx(1000 * one.history[-1].noise, rel=1e-4)


def test_weights_are_repetitions():
    weight = np.random.default_rng(1).integers(0, 4, size=len(Y))
    rows = np.repeat(np.arange(len(Y)), weight)
    weighted = variational_fit(X, Y, FIELDS, 2, weight=weight, seed=0)
    repeated = variational_fit(X[rows], Y[rows], FIELDS, 2, seed=0)
    np.testing.assert_allclose(weighted.table, repeated.table, rtol=1e-4, atol=1e-6)
    assert weighted.history[-1].bound == pytest.approx(repeated.history[-1].bound)


def test_statistics_of_many_entities_are_those_of_draws_of_their_levels():
    rng = np.random.default_rng(0)
    n, sizes, signs = 6, (2, 3, 2, 2), np.array([1.0, -1.0])
    codes = np.column_stack([rng.permutation(np.arange(n) % size) for size in sizes])
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    X = np.zeros((n, sum(sizes)))
    X[np.arange(n)[:, None], codes + offsets] = 1
    fields = [o + np.arange(size) for o, size in zip(offsets, sizes, strict=True)]
    rows = field_rows(X, rng.standard_normal(n), fields)
    state = []
    for entity in rows.entities:
        roots = 0.5 * rng.standard_normal((3, 3, entity.size))
        cov = np.einsum("abp,cbp->acp", roots, roots)
        state.append((LevelMoments(rng.standard_normal((3, entity.size)), cov), roots))
    stats = statistics(rows, 1, [moments for moments, _ in state], signs, 0.3)
    draws = 100_000
    G, h, rest = np.zeros_like(stats.G), np.zeros_like(stats.h), 0.0
    theta = [
        moments.mean
        + np.einsum("abp,sbp->sap", roots, rng.standard_normal((draws, *roots[0].shape)))
        for moments, roots in state
    ]
    for row in range(n):
        parts = [theta[a][:, :, rows.entities[a].of_row[row]] for a in (0, 2, 3)]
        total = sum(part[:, 1:] for part in parts)
        squares = sum(part[:, 1:] ** 2 for part in parts)
        offset = 0.3 + sum(part[:, 0] for part in parts) + (total**2 - squares) @ signs / 2
        q = np.column_stack([np.ones(draws), signs * total])
        error, level = rows.y[row] - offset, rows.entities[1].of_row[row]
        G[:, :, level] += q.T @ q / draws
        h[:, level] += error @ q / draws
        rest += error @ error / draws
    # Sums of six rows of products of up to four normal variables, whose standard errors over
    # 100,000 draws are below 0.02 of the largest.
    np.testing.assert_allclose(stats.G, G, atol=0.05 * np.abs(G).max())
    np.testing.assert_allclose(stats.h, h, atol=0.05 * np.abs(h).max())
    assert np.isclose(stats.rest, rest, rtol=0.05)
