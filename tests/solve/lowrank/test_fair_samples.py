"""Samples by the content of rows are fair, also where many rows are equal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.rows import Rows
from quadlin.solve.lowrank.observations import row_content, sample_of


def flags(n, seed=0, d=40):
    """Rare 0/1 columns and a 0/1 target: some 60% of the rows are all zeros."""
    rng = np.random.default_rng(seed)
    X = (rng.uniform(size=(n, d)) < 0.01).astype(float)
    return X, (rng.uniform(size=n) < 0.1 + 0.5 * X[:, 0]).astype(float)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sparse", [False, True])
def test_a_sample_of_rows_with_few_values_is_fair(seed, sparse):
    X, y = flags(40_000, seed)
    rows = Rows.of(MemorySource(csr_array(X) if sparse else X, y))
    sample = sample_of(rows, 0.1, None).engine.source.table
    # 4,000 rows: standard errors are 0.005 of the mean target and 63 of the number of rows.
    assert abs(sample.y.mean() - y.mean()) < 0.02
    assert abs(len(sample.y) - 4000) < 250
    assert abs((sample.X.sum() / len(sample.y)) - X.sum() / len(y)) < 0.05


def test_a_row_of_much_weight_is_always_drawn_with_its_share():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((5000, 3)), rng.standard_normal(5000)
    weight = np.full(5000, 0.5)
    weight[7] = 2500.5  # the mean is 1
    for share in (0.1, 0.3):
        sample = sample_of(Rows.of(MemorySource(X, y, weight)), share, None).engine.source.table
        at = np.flatnonzero(sample.y == y[7])
        assert_allclose(sample.weight[at], [share * 2500.5])
        assert_allclose(np.delete(sample.weight, at), 0.5)
        assert abs(sample.weight.sum() - share * 5000) < 0.02 * 5000


@given(seed=st.integers(0, 1000), dtype=st.sampled_from([np.float32, np.float64]))
def test_the_content_of_dense_and_sparse_rows_is_the_same_in_any_cut(seed, dtype):
    rng = np.random.default_rng(seed)
    X = np.where(rng.uniform(size=(30, 7)) < 0.4, rng.standard_normal((30, 7)), -0.0).astype(dtype)
    y = rng.integers(0, 2, 30).astype(dtype)
    whole = row_content(Chunk(X, y, None))
    assert_array_equal(row_content(Chunk(csr_array(X), y, None)), whole)
    pieces = [row_content(Chunk(X[a:b], y[a:b], None)) for a, b in ((0, 11), (11, 30))]
    assert_array_equal(np.concatenate(pieces), whole)
    other = X.copy()
    other[3, 5] += 1
    assert_array_equal(np.flatnonzero(row_content(Chunk(other, y, None)) != whole), [3])


def test_the_order_of_rows_does_not_matter():
    X, y = flags(3000)
    order = np.random.default_rng(1).permutation(3000)
    sums = [
        sample_of(Rows.of(MemorySource(X[o], y[o])), 0.2, None).engine.source.table.X.sum(axis=0)
        for o in (np.arange(3000), order)
    ]
    assert_array_equal(*sums)
