"""Who carries out the sums changes nothing, and every pass over the rows is counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from quadlin.core.chunks import MemorySource
from quadlin.core.engine import Serial, Threads, height
from quadlin.core.moments import survey
from quadlin.core.rows import Rows

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((3000, 12)), RNG.standard_normal(3000)


@given(st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_parts_in_order_are_the_whole(n, count, as_sparse):
    X = np.arange(2.0 * n).reshape(n, 2)
    source = MemorySource(sparse.csr_array(X) if as_sparse else X, np.arange(n), np.ones(n), 3)
    parts = source.parts(count)
    assert 1 <= len(parts) <= count
    y = np.concatenate([chunk.y for part in parts for chunk in part])
    np.testing.assert_array_equal(y, np.arange(n))
    whole = [c.X.toarray() if as_sparse else c.X for part in parts for c in part]
    np.testing.assert_array_equal(np.concatenate(whole), X)


def test_threads_add_what_one_thread_adds():
    serial, threads = (
        Rows(engine).reduce(survey)
        for engine in (Serial(MemorySource(X, Y)), Threads(MemorySource(X, Y), 3))
    )
    assert threads.tally == serial.tally
    np.testing.assert_allclose(threads.features.var, serial.features.var, rtol=1e-13)


def test_an_error_in_a_thread_reaches_the_caller():
    def raises(chunk):
        raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError, match="by zero"):
        Rows(Threads(MemorySource(X, Y), 2)).reduce(raises)


def test_every_walk_is_counted():
    def total(chunk):
        return float(chunk.y.sum())

    rows = Rows(Serial(MemorySource(X, Y)))
    view = rows.reweighted(np.full(3000, 2.0))
    assert rows.reduce(total) == view.reduce(total) == pytest.approx(Y.sum())
    assert sum(rows.collect(height)) == sum(height(chunk) for chunk in view.walk()) == 3000
    assert rows.walks == view.walks == 4
