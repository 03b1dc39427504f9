"""Posterior draws: calibrated, bounded in memory, blind to the order of rows."""

import numpy as np
import pytest

from field_problems import CELLS, FIELDS, X, Y, every_cell, sample
from quadlin.solve.fields.field_predict import predict_all


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


def test_draws_depend_on_the_seed_and_not_on_the_order_of_rows():
    options = {"draws": 5, "burn_in": 2}
    one = sample(X, Y, FIELDS, 2, seed=0, **options)
    order = np.random.default_rng(1).permutation(len(Y))
    other = sample(X[order], Y[order], FIELDS, 2, seed=0, **options)
    np.testing.assert_allclose(one.tables, other.tables, rtol=1e-3, atol=1e-4)
    again = sample(X, Y, FIELDS, 2, seed=1, **options)
    assert np.abs(one.tables - again.tables).max() > 0.1


def test_weights_are_repetitions():
    weight = np.random.default_rng(1).integers(0, 4, size=len(Y))
    rows = np.repeat(np.arange(len(Y)), weight)
    options = {"draws": 5, "burn_in": 2, "seed": 0}
    weighted = sample(X, Y, FIELDS, 2, weight=weight, **options)
    repeated = sample(X[rows], Y[rows], FIELDS, 2, **options)
    np.testing.assert_allclose(weighted.tables, repeated.tables, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(weighted.noises, repeated.noises, rtol=1e-4)


def test_the_kept_draws_fit_into_the_memory_given():
    size = 8 * (140 + 2) * 3
    draws = sample(X, Y, FIELDS, 2, draws=20, burn_in=1, seed=0, max_bytes=7 * size)
    assert len(draws.tables) == 6  # every third of 20
    assert draws.tables.nbytes + draws.centred.nbytes <= 7 * size
    assert draws.tables.dtype == np.float32
    assert len(draws.history) == 21


def test_a_row_without_a_level_counts_as_one_of_the_mean_of_the_field():
    draws = sample(X, Y + 100, FIELDS, 2, draws=50, seed=0)
    unseen = np.hstack([np.zeros((80, 60)), np.eye(80)])
    # What a new user thinks of an item is the mean of what the users think of it: the errors are
    # the means of 60 and the noise of some 37 ratings per item, of standard deviation 2.
    np.testing.assert_allclose(draws.predict(unseen), 100 + CELLS.mean(axis=0), atol=1.2)
    averages = draws.predict(every_cell()).reshape(60, 80).mean(axis=0)
    np.testing.assert_allclose(draws.predict(unseen), averages, atol=0.25)


def test_levels_without_rows_predict_like_no_level_at_all():
    fields = [np.arange(63), 63 + np.arange(80)]
    wide = np.hstack([X[:, :60], np.zeros((len(Y), 3)), X[:, 60:]])
    draws = sample(wide, Y, fields, 2, draws=200, seed=0)
    cold = np.hstack([np.zeros((80, 60)), np.ones((80, 1)), np.zeros((80, 2)), np.eye(80)])
    gone = np.hstack([np.zeros((80, 63)), np.eye(80)])
    # A mean of 200 draws of a level with standard deviation 1 per unknown.
    np.testing.assert_allclose(draws.predict(cold), draws.predict(gone), atol=0.8)


def test_levels_at_their_means_predict_the_same_and_vary_less():
    draws = sample(X, Y, FIELDS, 2, draws=100, seed=0)
    plain, steady = (
        draws.intercepts + predict_all(every_cell(), draws.layout, tables, draws.signs)
        for tables in (draws.tables, draws.centred)
    )
    assert np.mean(steady.var(axis=1)) < 0.8 * np.mean(plain.var(axis=1))
    # The mean over draws of what is left out has a standard error of 1/√100 of the spread.
    gap = (steady.mean(axis=1) - plain.mean(axis=1)) / plain.std(axis=1)
    assert np.sqrt(np.mean(gap**2)) < 0.12
