"""Samples and folds by the content of rows are fair, also where many rows are equal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.linear_model import LinearRegression

from quadlin import SecondOrderRegressor, SecondOrderRegressorCV
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.units import Target, units_of
from quadlin.solve.choose.rank import FOLDS, folds_by
from quadlin.solve.lowrank.row_hash import content_keys
from quadlin.solve.lowrank.sample import row_content, sample_of


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


def folds_of(X, y):
    units = units_of(Moments.of(X), np.zeros(X.shape[1], bool), Target(0.0, 1.0, 0.0, 1.0), X.dtype)
    keys = content_keys(Rows.of(MemorySource(X, y)), units)
    return folds_by(keys, np.random.default_rng(0))


def test_folds_of_rows_with_few_values_are_fair():
    X, y = flags(20_000)
    folds = folds_of(X, y)
    # 4,000 rows each, of which a tenth are ones: a standard error of 0.005.
    assert_allclose([y[folds == fold].mean() for fold in range(FOLDS)], y.mean(), atol=0.02)


def test_repeated_rows_are_in_the_same_fold_unless_they_are_a_large_part_of_it():
    rng = np.random.default_rng(0)
    twice = np.repeat(rng.standard_normal((500, 1)), 2, axis=0)
    folds = folds_of(twice, twice[:, 0])
    assert np.mean(folds[::2] == folds[1::2]) > 0.99
    zeros = np.concatenate([np.zeros((1000, 1)), rng.standard_normal((1000, 1))])
    folds = folds_of(zeros, zeros[:, 0])
    assert_allclose([np.mean(zeros[folds == fold] == 0) for fold in range(FOLDS)], 0.5, atol=0.15)


def test_cross_validation_of_flags_has_fair_folds():
    X, y = flags(4000, d=8)
    model = SecondOrderRegressorCV(ranks=[0], alphas=[1.0, 100.0]).fit(X, y)
    scores = [model.cv_results_[f"split{fold}_test_score"][0] for fold in range(5)]
    # 0.09 each, to 6%; folds of rows that are all equal had 0.02 and 0.54.
    assert_allclose(scores, np.mean(scores), rtol=0.2)


# Rows that are equal by chance are no repetitions: counting them once left only the mean here.
@pytest.mark.parametrize("n", [2000, 60_000])
def test_flags_and_a_target_of_two_values_are_fitted_as_well_as_by_least_squares(n):
    X, y = flags(n, d=30)
    new, _ = flags(5000, seed=1, d=30)
    truth = 0.1 + 0.5 * new[:, 0]
    errors = [
        np.mean((model.fit(X, y).predict(new) - truth) ** 2)
        for model in (SecondOrderRegressor(random_state=0), LinearRegression())
    ]
    assert errors[0] < 1.1 * errors[1]
    assert errors[0] < 0.5 * np.var(truth)


def test_rows_that_are_repeated_still_count_once():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (150, 12)).astype(float)
    y = X[:, 0] + 2 * rng.standard_normal(150)
    often = np.repeat(np.arange(150), 5)
    once, again = (
        SecondOrderRegressor(random_state=0).fit(X[o], y[o]) for o in (slice(None), often)
    )
    assert once.rank_ == again.rank_
    assert_allclose(again.predict(X), once.predict(X), rtol=1e-5, atol=1e-6)
