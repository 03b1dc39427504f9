"""Laws that hold whatever the rows are: sums add, in any order and however they are cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from problems import random_model
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.sums import residual_sums
from quadlin.core.units import Target, units_of
from quadlin.solve.lowrank.whitening import covariance, covariance_products


def problem(seed):
    rng = np.random.default_rng(seed)
    X = rng.gamma(1.0, size=(50, 5)) * (rng.uniform(size=(50, 5)) < 0.7)
    y, weight = rng.standard_normal(50), rng.uniform(size=50)
    m = Moments.of(X, weight)
    units = units_of(m, m.tau >= 0.5, Target(0.1, 2.0, 0.0, 1.0), np.float64)
    return X, y, weight, units, random_model(5, 2, units.free, rng), rng


def same(a, b):
    for name in a.__dataclass_fields__:
        np.testing.assert_allclose(
            getattr(a, name), getattr(b, name), rtol=1e-9, atol=1e-9, err_msg=name
        )


@given(seed=st.integers(0, 500), block=st.integers(1, 50), as_sparse=st.booleans())
def test_sums_do_not_know_how_the_rows_were_cut_or_ordered(seed, block, as_sparse):
    X, y, weight, units, model, rng = problem(seed)
    order = rng.permutation(50)
    form = sparse.csr_array if as_sparse else np.asarray
    whole = MemorySource(X, y, weight, block_rows=50)
    cut = MemorySource(form(X[order]), y[order], weight[order], block_rows=block)
    same(*(Rows.of(source).reduce(residual_sums, model, units) for source in (whole, cut)))
    same(*(Rows.of(source).reduce(covariance_products, units, model.U) for source in (whole, cut)))
    same(*(Rows.of(source).reduce(covariance, units) for source in (whole, cut)))


@given(seed=st.integers(0, 500))
def test_weights_equal_repetition_in_every_sum(seed):
    X, y, _, units, model, rng = problem(seed)
    times = rng.integers(0, 4, 50)
    times[0] = 1
    again = np.repeat(np.arange(50), times)
    weighted, repeated = MemorySource(X, y, times.astype(float)), MemorySource(X[again], y[again])
    same(*(Rows.of(source).reduce(residual_sums, model, units) for source in (weighted, repeated)))
    same(*(Rows.of(source).reduce(covariance, units) for source in (weighted, repeated)))
