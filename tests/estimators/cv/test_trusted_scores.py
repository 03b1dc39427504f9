"""Cross-validated scores that can be trusted: cells, folds, order, groups and heavy rows."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.model_selection import GroupKFold, KFold, TimeSeriesSplit, cross_val_score

from quadlin import SecondOrderRegressor, SecondOrderRegressorCV
from quadlin.datasets import make_second_order

SQUARES = "neg_mean_squared_error"
FOLDS = KFold(3, shuffle=True, random_state=0)


def ratings(n=1500, users=60, items=40, rank=2, seed=0):
    """Return one-hot rows of users and items, and targets of a true rank."""
    rng = np.random.default_rng(seed)
    u, i = rng.integers(0, users, n), rng.integers(0, items, n)
    A, B = rng.standard_normal((users, rank)), rng.standard_normal((items, rank))
    y = 0.5 * rng.standard_normal(users)[u] + 0.5 * (A[u] * B[i]).sum(axis=1)
    y = y + 0.5 * rng.standard_normal(n)
    columns = np.column_stack([u, users + i]).ravel()
    X = sparse.csr_array(
        (np.ones(2 * n), (np.repeat(np.arange(n), 2), columns)), shape=(n, users + items)
    )
    return X, y, u


def cell(model, rank, alpha):
    place = model.cv_results_["params"].index({"rank": rank, "alpha": alpha})
    return model.cv_results_["mean_test_score"][place]


def test_a_cell_of_sparse_ratings_scores_the_same_in_any_grid_and_alone():
    X, y, _ = ratings(2500, 100, 60, rank=3)
    rank, alpha = 3, (10.0, 5.0)
    one, many = (
        SecondOrderRegressorCV(ranks, alphas, FOLDS, random_state=0).fit(X, y)
        for ranks, alphas in (([3], [alpha]), ([3, 6], [alpha, (10.0, 50.0)]))
    )
    assert cell(one, rank, alpha) == cell(many, rank, alpha)
    single = SecondOrderRegressor(rank, alpha=alpha, random_state=0)
    alone = cross_val_score(single, X, y, cv=FOLDS, scoring=SQUARES).mean()
    assert cell(many, rank, alpha) == pytest.approx(alone, rel=0.01)


@pytest.mark.parametrize(("n", "d"), [(45, 7), (60, 40)])  # many optima; by products, by rows
def test_cells_of_few_noisy_rows_are_those_of_cross_val_score(n, d):
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    model = SecondOrderRegressorCV([1, 2], [(0.1, 0.3), (3.0, 30.0)], FOLDS, random_state=0)
    model.fit(X, y)
    for params in model.cv_results_["params"]:
        single = SecondOrderRegressor(**params, random_state=0)
        alone = cross_val_score(single, X, y, cv=FOLDS, scoring=SQUARES).mean()
        assert cell(model, **params) == pytest.approx(alone, rel=0.01)


def test_the_order_of_the_rows_chooses_nothing():
    data = make_second_order(200, 5, rank=1, noise=1.0, random_state=3)
    order = np.argsort(data.X[:, 0])
    one, other = (
        SecondOrderRegressorCV(random_state=0).fit(data.X[rows], data.y[rows])
        for rows in (np.arange(200), order)
    )
    assert one.rank_ == other.rank_
    assert one.best_score_ == pytest.approx(other.best_score_, rel=1e-6)


def test_rows_sorted_by_user_are_scored_as_if_they_were_not_and_the_user_is_told():
    X, y, user = ratings()
    order = np.argsort(user, kind="stable")
    grid = {"ranks": [0], "alphas": [10.0]}
    shuffled = SecondOrderRegressorCV(**grid).fit(X, y)
    with pytest.warns(UserWarning, match=r"order of the rows matters: .* new groups"):
        ordered = SecondOrderRegressorCV(**grid).fit(X[order], y[order])
    assert ordered.best_score_ == pytest.approx(shuffled.best_score_, rel=1e-9)
    blocks = SecondOrderRegressorCV(**grid, cv=KFold(5)).fit(X[order], y[order])
    assert blocks.best_score_ < 1.1 * ordered.best_score_


def test_groups_are_held_out_together():
    X, y, user = ratings(600, 30, 20)
    grid = {"ranks": [0], "alphas": [10.0]}
    given = SecondOrderRegressorCV(**grid, cv=GroupKFold(3)).fit(X, y, groups=user)
    listed = SecondOrderRegressorCV(**grid, cv=list(GroupKFold(3).split(X, y, user))).fit(X, y)
    assert given.best_score_ == listed.best_score_
    by_number = SecondOrderRegressorCV(**grid, cv=3).fit(X, y, groups=user)
    among_rows = SecondOrderRegressorCV(**grid, cv=3).fit(X, y)
    assert by_number.best_score_ < among_rows.best_score_  # new users are harder
    for cv, groups, words in (
        (3, user[:5], "5 entries"),
        (3, np.zeros(600), "only one group"),
        ([(np.arange(300), np.arange(300, 600))], user, "list of splits"),
    ):
        with pytest.raises(ValueError, match=words):
            SecondOrderRegressorCV(**grid, cv=cv).fit(X, y, groups=groups)


def test_time_ordered_splits_train_on_the_past_alone():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 2))
    y = X[:, 0] + 0.1 * rng.standard_normal(120)
    y[100:] = 1e3  # the last fold trains on rows that know nothing of it
    splitter = TimeSeriesSplit(3, test_size=20)
    model = SecondOrderRegressorCV([0], [1e-3], splitter).fit(X, y)
    scores = [model.cv_results_[f"split{i}_test_score"][0] for i in range(3)]
    assert min(scores[:2]) > -0.02
    assert scores[2] < -9e5


def test_the_search_goes_on_beyond_any_grid():
    # Noise of 1e-4: the best penalty of all products is below 1e-6 of the weight, 160.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 4))
    y = (X @ rng.standard_normal((4, 4)) * X).sum(axis=1) + 1e-4 * rng.standard_normal(200)
    assert min(SecondOrderRegressorCV([4]).fit(X, y).alpha_) < 1e-6 * 160
    noise = rng.standard_normal(200)  # and the best one of nothing but noise far above
    assert SecondOrderRegressorCV([0]).fit(X, noise).alpha_[0] > 100


def test_a_best_penalty_at_the_edge_of_a_given_grid_is_told():
    data = make_second_order(120, 4, rank=1, noise=0.1, random_state=0)
    with pytest.warns(UserWarning, match=r"best penalty, 100, is the smallest of `alphas`"):
        SecondOrderRegressorCV([4], [100.0, 1e3, 1e4]).fit(data.X, data.y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SecondOrderRegressorCV([4], [1e-9, 0.1, 1e4]).fit(data.X, data.y)


def test_rows_that_carry_most_of_the_error_are_named():
    data = make_second_order(300, 4, rank=1, noise=0.3, random_state=0)
    data.y[[7, 123]] += 300.0
    grid = {"ranks": [0, 1], "alphas": [1.0]}
    with pytest.warns(UserWarning, match=r"Rows? [7123, ]+ .*squared error.*loss=\"huber\""):
        SecondOrderRegressorCV(**grid).fit(data.X, data.y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        robust = SecondOrderRegressorCV(**grid, loss="huber", random_state=0).fit(data.X, data.y)
    assert robust.rank_ == 1
    clean = make_second_order(300, 4, rank=1, noise=0.3, random_state=0)
    np.testing.assert_allclose(robust.predict(clean.X), clean.y, atol=1.5)  # five times the noise
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SecondOrderRegressorCV(**grid).fit(clean.X, clean.y)


def test_folds_share_each_pass_over_the_rows():
    # M ≥ 0 has no matrix of all products, so that every rank is fitted by walks.
    data = make_second_order(400, 30, rank=1, noise=1.0, random_state=0)
    grid = {"ranks": [1], "alphas": [5.0, 50.0], "psd": True, "random_state": 0}
    passes = [SecondOrderRegressorCV(**grid, cv=k).fit(data.X, data.y).n_passes_ for k in (2, 6)]
    assert passes[1] < 1.5 * passes[0]  # not three times as many


def test_rows_that_fit_into_memory_are_walked_a_few_times_for_any_number_of_cells():
    data = make_second_order(90, 30, rank=1, noise=1.0, random_state=0)
    few, many = (
        SecondOrderRegressorCV([1, 2], alphas, 3, random_state=0).fit(data.X, data.y).n_passes_
        for alphas in ([5.0], [5.0, 50.0, 500.0])
    )
    assert many == few < 40
