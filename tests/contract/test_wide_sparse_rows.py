"""Texts, baskets and flags: sparse rows with many more columns than most tables have."""

import numpy as np
import pytest
from scipy import sparse

from quadlin import SecondOrderClassifier, SecondOrderRegressor

N, NEW = 15_000, 1000
SIGNS = np.array([0.5, -0.5, 0.5])


@pytest.fixture(scope="module")
def baskets():
    """Up to eight of 1,600 things in each row, with linear effects and products of rank 3."""
    rng, d = np.random.default_rng(0), 1600
    popular = 1 / (10 + np.arange(d)) ** 0.8
    lengths = rng.integers(1, 9, N + NEW)
    things = rng.choice(d, lengths.sum(), p=popular / popular.sum())
    starts = np.append(0, np.cumsum(lengths))
    X = sparse.csr_array((np.ones(len(things)), things, starts), shape=(N + NEW, d))
    X.sum_duplicates()
    X.data[:] = 1
    V = 0.6 * rng.standard_normal((d, 3))
    f = X @ (0.5 * rng.standard_normal(d)) + ((X @ V) ** 2 - X @ V**2) @ SIGNS
    return X, f, f + 0.5 * rng.standard_normal(len(f))


def error(model, X, f):
    return np.sqrt(np.mean((model.predict(X) - f) ** 2)) / np.std(f)


def test_products_are_found_where_a_linear_model_misses_most(baskets):
    X, f, y = baskets
    chosen = SecondOrderRegressor(random_state=0).fit(X[:N], y[:N])
    linear = SecondOrderRegressor(0, random_state=0).fit(X[:N], y[:N])
    assert chosen.rank_ >= 2
    assert error(chosen, X[N:], f[N:]) < 0.85 * error(linear, X[N:], f[N:])


def test_rank_zero_is_chosen_where_there_are_no_products(baskets):
    X, _, _ = baskets
    rng = np.random.default_rng(1)
    f = X @ rng.standard_normal(X.shape[1])
    y = f + np.std(f) * rng.standard_normal(len(f))
    model = SecondOrderRegressor(random_state=0).fit(X[:N], y[:N])
    assert model.rank_ == 0
    assert error(model, X[N:], f[N:]) < 0.5


def test_levels_of_a_frame_are_fitted_as_their_indicators():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    users, items = rng.integers(1500, size=N), rng.integers(400, size=N)
    f = rng.standard_normal(1500)[users] + rng.standard_normal(400)[items]
    y = f + 0.3 * rng.standard_normal(N)
    frame = pd.DataFrame({"user": [f"u{i}" for i in users], "item": [f"i{i}" for i in items]})
    model = SecondOrderRegressor(random_state=0).fit(frame, y)
    assert error(model, frame, f) < 0.25


def test_standard_deviations_cover_new_rows(baskets):
    X, _, y = baskets
    model = SecondOrderRegressor(uncertainty=True, random_state=0).fit(X[:5000], y[:5000])
    low, high = model.predict_interval(X[N:])
    assert 0.9 < np.mean((low < y[N:]) & (y[N:] < high)) < 0.99


def test_columns_that_do_not_occur_do_no_harm(baskets):
    X, f, y = baskets
    wider = sparse.csr_array(sparse.hstack([X, sparse.csr_array((X.shape[0], 5000))]))
    narrow, wide = (
        error(SecondOrderRegressor(2, random_state=0).fit(A[:N], y[:N]), A[N:], f[N:])
        for A in (X, wider)
    )
    assert wide < 1.1 * narrow


def test_weights_count_as_repetitions_of_rows_and_zero_leaves_rows_out(baskets):
    X, _, y = baskets
    keep = np.arange(N) % 3 > 0
    model = SecondOrderRegressor(0, random_state=0)
    weighted = model.fit(X[:N], y[:N], sample_weight=keep.astype(float)).predict(X[N:])
    left = model.fit(X[:N][keep], y[:N][keep]).predict(X[N:])
    assert np.std(weighted - left) < 0.05 * np.std(left)


def test_max_iter_limits_the_sweeps(baskets):
    X, _, y = baskets
    assert SecondOrderRegressor(2, random_state=0, max_iter=3).fit(X[:N], y[:N]).n_iter_ <= 3


def test_labels_are_told_apart_by_products(baskets):
    X, _, y = baskets
    labels = (y > np.median(y)).astype(int)
    model = SecondOrderClassifier(random_state=0).fit(X[:N], labels[:N])
    assert model.score(X[N:], labels[N:]) > 0.65


def test_a_stream_goes_on_from_the_choice_of_its_first_rows(baskets):
    X, f, y = baskets
    X = X[:, :600]
    stream = SecondOrderRegressor(random_state=0)
    for part in np.array_split(np.arange(4000), 2):
        stream.partial_fit(X[part], y[part])
    assert error(stream, X[N:], f[N:]) < 1.0
