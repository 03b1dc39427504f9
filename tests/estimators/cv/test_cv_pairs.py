"""Cross-validation with pairs: scores of models that were searched without the rows held out."""

import numpy as np
import pytest
from sklearn.model_selection import KFold, cross_val_score

from quadlin import SecondOrderRegressor, SecondOrderRegressorCV, load, save
from quadlin.datasets import make_second_order

FOLDS = KFold(3)


def drawn(n=150, noise=1.0, pairs=((1, 2), (3, 4)), d=8):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    y = X[:, 0] + sum(X[:, i] * X[:, j] for i, j in pairs) + noise * rng.standard_normal(n)
    return X, y


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pairs", [2, [(1, 2), (0, 0)]], ids=["searched", "given"])
def test_the_score_of_a_cell_is_that_of_cross_val_score(pairs, weighted):
    X, y = drawn()
    weight = np.random.default_rng(1).uniform(0.5, 2, len(y)) if weighted else None
    options = {"pairs": pairs, "random_state": 0}
    ranks = [0, 1] if pairs != 2 and not weighted else [0]
    model = SecondOrderRegressorCV(ranks, [3.0], FOLDS, **options).fit(X, y, weight)
    results = model.cv_results_
    if weight is None:
        for params, *mine in zip(
            results["params"], *(results[f"split{i}_test_score"] for i in range(3)), strict=True
        ):
            alone = SecondOrderRegressor(**params, **options)
            scores = cross_val_score(alone, X, y, cv=FOLDS, scoring="neg_mean_squared_error")
            np.testing.assert_allclose(mine, scores, rtol=1e-4)
        return
    train, test = next(FOLDS.split(X))
    alone = SecondOrderRegressor(**results["params"][0], **options)
    error = y[test] - alone.fit(X[train], y[train], weight[train]).predict(X[test])
    score = -np.average(error**2, weights=weight[test])
    np.testing.assert_allclose(results["split0_test_score"][0], score, rtol=1e-6)


def test_a_pair_that_only_the_rows_held_out_show_earns_no_score():
    X, y = drawn(pairs=())
    train, test = np.arange(100), np.arange(100, 150)
    y = np.where(np.arange(150) < 100, y, y + 5 * X[:, 1] * X[:, 2])  # not among the training rows
    model = SecondOrderRegressorCV([0], [1.0], [(train, test)], pairs=5, random_state=0).fit(X, y)
    plain = SecondOrderRegressorCV([0], [1.0], [(train, test)], random_state=0).fit(X, y)
    # The square of 5 z₁z₂ is 25: a search that saw these rows would save most of it.
    assert model.best_score_ == pytest.approx(plain.best_score_, rel=0.01)
    assert plain.best_score_ < -5


def test_the_automatic_search_takes_pairs_where_rows_held_out_say_so(tmp_path):
    X, y = drawn(300)
    model = SecondOrderRegressorCV([0], cv=3, pairs="auto", random_state=0).fit(X, y)
    assert {p[:2] for p in model.pairs_.pairs} == {("x1", "x2"), ("x3", "x4")}
    assert model.rank_ == 0
    results = model.cv_results_
    assert set(results["param_pairs"]) == {0, 32}
    best = int(np.argmax(results["mean_test_score"]))
    assert results["params"][best]["pairs"] == 32
    assert results["rank_test_score"][best] == 1
    assert model.best_score_ == results["mean_test_score"][best]
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.cv_results_["params"] == results["params"]
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_the_automatic_search_leaves_pairs_out_where_they_do_not_help():
    data = make_second_order(300, 6, rank=1, noise=0.5, random_state=0)
    model = SecondOrderRegressorCV([0, 1], [3.0], 3, pairs="auto", random_state=0)
    model.fit(data.X, data.y)
    assert model.rank_ == 1
    assert model.pairs_ is None
    # Four cells: pairs beside rank 0 are better than nothing, and worse than the rank.
    scores = model.cv_results_["mean_test_score"].reshape(2, 2)
    assert scores[0, 0] < scores[1, 0] < scores[0, 1]


def test_scorers_are_given_the_model_with_its_pairs_and_hierarchies_count():
    X, y = drawn()

    def count(model, X, y):
        return float(len(model.pairs_.pairs))

    options = {"pairs": 2, "random_state": 0, "scoring": count}
    free = SecondOrderRegressorCV([0], [1.0], FOLDS, **options).fit(X, y)
    strong = SecondOrderRegressorCV([0], [1.0], FOLDS, hierarchy="strong", **options).fit(X, y)
    assert strong.best_score_ < free.best_score_ <= 2  # x1 to x4 have no effects of their own


def test_pairs_that_make_no_sense_are_refused():
    X, y = drawn(30)
    with pytest.raises(ValueError, match='must be "auto", None'):
        SecondOrderRegressorCV(pairs="all").fit(X, y)
