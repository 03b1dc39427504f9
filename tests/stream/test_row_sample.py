"""The sample of all rows that keeps a stream from showing a useless model."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from quadlin import SecondOrderRegressor
from quadlin.core.chunks import Chunk
from quadlin.stream.row_sample import FEWEST, MOST_NUMBERS, NUMBERS, RowSample


def fed(X, y, cuts, most):
    sample = RowSample(most)
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
        np.testing.assert_array_equal(other.rows.X, X[whole.numbers])
        np.testing.assert_array_equal(other.rows.y, y[whole.numbers])
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
    sample = RowSample(50).fed(Chunk(csr_array(X[:10]), y[:10], None))
    sample = sample.fed(Chunk(X[10:], y[10:], np.full(10, 2.0)))
    X[:] = 0
    np.testing.assert_array_equal(sample.rows.X.toarray(), before)
    np.testing.assert_array_equal(sample.rows.weight, [1.0] * 10 + [2.0] * 10)


def test_its_size_is_bounded_and_wide_rows_have_none():
    for d in (1, 10, 500, 4000):
        assert RowSample.of_features(d).most >= FEWEST
        assert RowSample.of_features(d).most * (d + 2) <= max(NUMBERS, MOST_NUMBERS)
    assert RowSample.of_features(10**6) is None


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("batch_size", [2, 7])
def test_a_stream_of_noise_is_never_shown_worse_than_the_constant(batch_size, intercept):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X, weight = rng.lognormal(0, 1.5, (90, 3)), rng.integers(0, 4, 90).astype(float)
        y = 5 * rng.standard_normal(90) + rng.standard_t(2, 90)
        model = SecondOrderRegressor(
            rank=2, alpha=0, batch_size=batch_size, fit_intercept=intercept, random_state=0
        )
        for start in range(0, 90, 11):
            part = slice(start, start + 11)
            model.partial_fit(X[part], y[part], sample_weight=weight[part])
            seen = slice(0, start + 11)
            centre = np.average(y[seen], weights=weight[seen]) if intercept else 0.0
            error = np.average((model.predict(X[seen]) - y[seen]) ** 2, weights=weight[seen])
            constant = np.average((y[seen] - centre) ** 2, weights=weight[seen])
            assert error <= constant * (1 + 1e-9)


def test_a_stream_that_goes_on_from_a_fit_is_not_judged_by_its_last_rows_alone():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    y = X[:, 0] * X[:, 1] + 0.1 * rng.standard_normal(400)
    model = SecondOrderRegressor(rank=2, alpha=0, random_state=0).fit(X, y)
    model.partial_fit(X[:3], y[:3] + 3)
    assert model.score(X, y) > 0.9
