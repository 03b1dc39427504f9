"""Rows that stand several times in a table are one row with their weight."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from quadlin import SecondOrderRegressor
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.lowrank.row_hash import counted_once, merged_weights

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((30, 4)), RNG.standard_normal(30)


def once(rows, y, weight=None):
    source = Rows.of(MemorySource(rows, y, weight))
    surveyed = source.reduce(survey)
    make_units = UnitsMaker("auto", True, np.float64, [f"x{j}" for j in range(4)])
    units = make_units(surveyed.features, surveyed.target)
    return counted_once(source, units, surveyed.tally.counting)


def test_different_rows_stay_as_they_are():
    assert once(X, Y) == (30, None)


def test_the_first_of_equal_rows_gets_the_weight_of_all():
    weight = np.arange(1.0, 41.0)
    weight[5] = 0.0
    rows, y = np.vstack([X, X[:10]]), np.concatenate([Y, Y[:10]])
    count, factors = once(rows, y, weight)
    assert count == 30
    totals = weight * factors
    expected = np.where(np.arange(40) < 30, weight, 0.0)
    expected[:10] += weight[30:]
    expected[[5, 35]] = 0.0, weight[35]  # a row without weight is not the first
    np.testing.assert_allclose(totals, expected)


def test_the_same_features_with_another_target_are_another_row():
    assert once(np.vstack([X, X[:10]]), np.concatenate([Y, Y[:10] + 1])) == (40, None)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_repeated_rows_are_chosen_for_as_weighted_ones(seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((40, 5))
    y = rows[:, 0] + 0.5 * rows[:, 1] * rows[:, 2] + rng.standard_normal(40)
    times = rng.integers(1, 4, 40)
    weighted = SecondOrderRegressor(random_state=0).fit(rows, y, sample_weight=times)
    repeated = SecondOrderRegressor(random_state=0).fit(
        np.repeat(rows, times, axis=0), y.repeat(times)
    )
    assert repeated.rank_ == weighted.rank_
    np.testing.assert_allclose(repeated.predict(rows), weighted.predict(rows), rtol=1e-5, atol=1e-6)


def test_equal_sparse_rows_count_once_whatever_their_order():
    rng = np.random.default_rng(0)
    X = csr_array(rng.integers(0, 2, (300, 6)) * rng.integers(1, 3, (300, 6)).astype(np.float32))
    weight = rng.random(300)
    merged = merged_weights(X, weight)
    rows, group = np.unique(X.toarray(), axis=0, return_inverse=True)
    assert (merged > 0).sum() == len(rows)
    np.testing.assert_allclose(np.bincount(group, merged), np.bincount(group, weight))
    assert merged_weights(X[:1], weight[:1]) == weight[:1]
