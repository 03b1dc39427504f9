"""Columns of sparse rows that are solved for two at a time."""

import numpy as np
import pytest
from scipy.sparse import csc_array

from column_problems import objective
from quadlin.core import library
from quadlin.core.compiled_columns import ColumnTable

pytestmark = pytest.mark.skipif(library.library() is None, reason="there is no compiled kernel")


def short_columns(n=400, d=300, seed=0):
    """Return a table of columns of up to 20 entries, from the rarest; some are there twice."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, d))
    for j in range(d):
        X[rng.choice(n, 20 * j // d, replace=False), j] = rng.standard_normal(20 * j // d)
    X[:, 100:140:2] = X[:, 101:141:2]
    y, mean = rng.standard_normal(n), X.mean(axis=0)
    table = ColumnTable(csc_array(X), y, None, mean, np.ones(d), np.array([1.0, -1.0]), (3.0, 3.0))
    table.V[:] = 0.1 * rng.standard_normal((d, 2))
    table.evaluate()
    return table, X


def test_columns_are_solved_for_in_pairs_if_they_share_no_row():
    table, X = short_columns()
    there = X != 0
    some = there.any(axis=0)
    apart = some[:-1] & some[1:] & ~np.any(there[:, :-1] & there[:, 1:], axis=0)
    assert 50 < apart.sum() < len(apart)
    np.testing.assert_array_equal(table.apart[:-1], apart)
    assert table.apart[-1] == 0


def test_pairs_of_columns_end_where_single_ones_do():
    pairs, X = short_columns()
    alone, _ = short_columns()
    alone.apart[:] = 0
    first = [table.sweep() for table in (pairs, alone)]
    # Each of a pair sees the ridge of the other as it was, one of 300 columns.
    np.testing.assert_allclose(*first, rtol=1e-3)
    ends = [[table.sweep() for _ in range(300)] for table in (pairs, alone)]
    assert ends[0] == sorted(ends[0], reverse=True)
    np.testing.assert_allclose(ends[0][-1], ends[1][-1], rtol=1e-6)
    weight = np.ones(len(X))
    errors, y = pairs.errors, pairs.state[:, pairs.factors.shape[1] + 2]
    expected = objective(pairs, X, y, weight, pairs.V, pairs.linear)
    assert np.isclose(ends[0][-1], expected, rtol=1e-9)
    assert np.isclose(errors.mean(), 0, atol=1e-9)
