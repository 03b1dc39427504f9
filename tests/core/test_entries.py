"""Entries of sparse rows by columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from quadlin.core import library
from quadlin.core.entries import _ones_by_kernel, _ones_by_numpy, by_columns, entry_counts

pytestmark = pytest.mark.skipif(library.library() is None, reason="there is no compiled kernel")


@given(
    seed=st.integers(0, 1000),
    n=st.integers(0, 50),
    d=st.integers(1, 50),
    index=st.sampled_from([np.int32, np.int64]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_entries_by_columns_are_those_of_scipy(seed, n, d, index, dtype):
    rng = np.random.default_rng(seed)
    X = csr_array(random_array((n, d), density=0.3, rng=rng, dtype=np.float64).astype(dtype))
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    counts, order = entry_counts(X), rng.permutation(d)
    np.testing.assert_array_equal(counts, np.bincount(X.indices, minlength=d))
    got, expected = by_columns(X, order, counts), X[:, order].tocsc()
    expected.sort_indices()
    assert (got.dtype, got.shape) == (dtype, (n, d))
    np.testing.assert_array_equal(got.indptr, expected.indptr)
    np.testing.assert_array_equal(got.indices, expected.indices)
    np.testing.assert_array_equal(got.data, expected.data)


@given(seed=st.integers(0, 1000), n=st.integers(0, 30), d=st.integers(1, 12))
def test_the_kernel_counts_ones_as_numpy_does(seed, n, d):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 6, n)
    at = np.concatenate([np.sort(rng.integers(0, d, m)) for m in lengths] or [np.empty(0, int)])
    value = rng.choice([0.0, 1.0, 1.0, 1.0, 1.0, 2.0], len(at))  # some twice, some stored zeros
    X = csr_array((value, at, np.concatenate([[0], np.cumsum(lengths)])), shape=(n, d))
    for got, expected in zip(_ones_by_kernel(X), _ones_by_numpy(X), strict=True):
        np.testing.assert_array_equal(got, expected)
