"""The sample of all rows that keeps a stream from showing a useless model."""

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from quadlin import SecondOrderRegressor
from quadlin.core.chunks import Chunk
from quadlin.stream.row_sample import RowSample


def fed(X, y, cuts, most):
    sample = replace(RowSample.of_features(X.shape[1]), most=most)
    for start, stop in zip([0, *cuts], [*cuts, len(y)], strict=True):
        sample = sample.fed(Chunk(X[start:stop], y[start:stop], None))
    return sample


def test_the_sample_does_not_depend_on_the_sizes_of_the_calls():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((500, 3)), rng.standard_normal(500)
    whole = fed(X, y, [], 40)
    for cuts in ([1, 2, 3], list(range(1, 500)), [250], [499]):
        other = fed(X, y, cuts, 40)
        np.testing.assert_array_equal(other.numbers, whole.numbers)
        np.testing.assert_array_equal(other.X, X[whole.numbers])
        np.testing.assert_array_equal(other.y, y[whole.numbers])
        assert other.seen == 500


def test_every_row_is_as_likely_to_be_kept_and_few_rows_are_all_kept():
    y = np.arange(20_000.0)
    kept = fed(y[:, None], y, list(range(1000, 20_000, 1000)), 2000).numbers
    assert len(kept) == 2000
    # The mean of 2,000 of 20,000 numbers has a standard deviation of 122; four of them.
    assert abs(kept.mean() - 10_000) < 500
    np.testing.assert_array_equal(fed(y[:9, None], y[:9], [4], 2000).numbers, np.arange(9))


def test_sparse_rows_and_dense_rows_after_them_are_kept_and_later_changes_of_theirs_are_not():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 3)), rng.standard_normal(20)
    before = X.copy()
    sample = RowSample.of_features(3).fed(Chunk(csr_array(X[:10]), y[:10], None))
    sample = sample.fed(Chunk(X[10:], y[10:], np.full(10, 2.0)))
    X[:] = 0
    np.testing.assert_array_equal(sample.X, before)
    np.testing.assert_array_equal(sample.weight, [1.0] * 10 + [2.0] * 10)


def test_no_stream_is_shown_worse_than_the_constant():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X, weight = rng.lognormal(0, 1.5, (90, 3)), rng.integers(0, 4, 90).astype(float)
        y = 5 * rng.standard_normal(90) + rng.standard_t(2, 90)
        model = SecondOrderRegressor(2, alpha=0.0, random_state=0, extrapolation="free")
        for stop in range(11, 91, 11):
            part, seen = slice(stop - 11, stop), slice(0, stop)
            model.partial_fit(X[part], y[part], sample_weight=weight[part])
            error = np.average((model.predict(X[seen]) - y[seen]) ** 2, weights=weight[seen])
            centre = np.average(y[seen], weights=weight[seen])
            assert error <= np.average((y[seen] - centre) ** 2, weights=weight[seen]) * (1 + 1e-9)
