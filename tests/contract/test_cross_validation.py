"""Rank and penalties by cross-validation: scores that others can check, and the chosen model."""

import functools
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.metrics import make_scorer, r2_score
from sklearn.model_selection import GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler

from contract.tables import low_rank, nmse, planted_pairs
from quadlin import SecondOrderRegressor, SecondOrderRegressorCV

TABLE = low_rank(300, 6, 2, sigma=1.0)
X, Y = TABLE.X, TABLE.y
FOLDS = KFold(4, shuffle=True, random_state=0)
ALPHAS = (0.3, 3.0, 30.0, 300.0)
SQUARES = "neg_mean_squared_error"
GRID = {"ranks": [0, 1, 2], "alphas": [1.0, 30.0], "cv": FOLDS}


def choose(rows=X, y=Y, weight=None, **options):
    return SecondOrderRegressorCV(**{"random_state": 0, **options}).fit(rows, y, weight)


@functools.cache
def grid_choice():
    return choose(**GRID)


def products(Z):
    """Return all products, squares by 1/√2, so that a plain ridge is α₁|w|² + 2α₂‖M‖²."""
    both = PolynomialFeatures(2, include_bias=False).fit(Z)
    return both.transform(Z) / np.where(both.powers_.max(axis=1) == 2, np.sqrt(2), 1.0)


def ridge_scores(rows, y, *columns):
    """Return the cross-validated scores of ridge regression, one per penalty."""
    steps = [FunctionTransformer(f) for f in columns]
    models = (make_pipeline(StandardScaler(), *steps, Ridge(alpha)) for alpha in ALPHAS)
    return [cross_val_score(m, rows, y, cv=FOLDS, scoring=SQUARES).mean() for m in models]


# The choice


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_known_rank_is_chosen(rank):
    table = low_rank(1200, 6, max(rank, 1), sigma=0.3, seed=rank)
    y = table.y if rank else table.X @ table.w + table.noise
    assert choose(table.X, y, cv=3).rank_ == rank


def test_without_noise_the_model_is_exact():
    table = low_rank(200, 5, 2, seed=1)
    model = choose(table.X, table.truth, cv=3)
    assert model.rank_ == 2
    np.testing.assert_allclose(model.predict(table.X), table.truth, atol=1e-4)


def test_of_models_that_fit_exactly_the_simplest_is_chosen():
    assert choose(X, X[:, 0], cv=3).rank_ == 0
    assert choose(X, X[:, 0] ** 2, cv=3).rank_ == 1


@pytest.mark.parametrize("n", [60, 442])
def test_public_rows_are_predicted_as_well_as_by_either_ridge(n):
    rows, y = (a[:n] for a in load_diabetes(return_X_y=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of what few rows cannot show
        model = choose(rows, y, cv=FOLDS)
    best = max(ridge_scores(rows, y) + ridge_scores(rows, y, products))
    assert -model.best_score_ < 1.03 * -best


# Scores


@pytest.mark.smoke
def test_rank_zero_has_the_scores_of_ridge_regression():
    model = choose(ranks=[0], alphas=ALPHAS, cv=FOLDS)
    expected = ridge_scores(X, Y)
    np.testing.assert_allclose(np.sort(model.cv_results_["mean_test_score"]), np.sort(expected))
    best = make_pipeline(StandardScaler(), Ridge(model.alpha_[0])).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), best.predict(X), rtol=1e-6)


@pytest.mark.parametrize("n", [300, 24])  # more and fewer than the 27 products
def test_full_rank_has_the_scores_of_ridge_regression_on_products(n):
    model = choose(X[:n], Y[:n], ranks=[6], alphas=ALPHAS, cv=FOLDS, extrapolation="free")
    expected = ridge_scores(X[:n], Y[:n], products)
    np.testing.assert_allclose(np.sort(model.cv_results_["mean_test_score"]), np.sort(expected))


@pytest.mark.parametrize("pairs", [None, [(1, 2), (0, 0)]])
def test_every_score_is_that_of_cross_val_score(pairs):
    results = (grid_choice() if pairs is None else choose(**GRID, pairs=pairs)).cv_results_
    for k, params in enumerate(results["params"]):
        one = SecondOrderRegressor(params["rank"], alpha=params["alpha"], pairs=pairs)
        expected = cross_val_score(one, X, Y, cv=FOLDS, scoring=SQUARES)
        mine = [results[f"split{i}_test_score"][k] for i in range(4)]
        # A low rank is not convex: both end within a small share of an optimum.
        np.testing.assert_allclose(mine, expected, rtol=0.02)


@pytest.mark.smoke
def test_results_have_the_form_of_a_grid_search():
    model = grid_choice()
    results = model.cv_results_
    scores = np.stack([results[f"split{i}_test_score"] for i in range(4)])
    assert "split4_test_score" not in results
    assert scores.shape == (4, 6)
    np.testing.assert_allclose(results["mean_test_score"], scores.mean(axis=0))
    np.testing.assert_allclose(results["std_test_score"], scores.std(axis=0))
    best = int(np.argmin(results["rank_test_score"]))
    assert results["rank_test_score"][best] == 1
    assert model.best_score_ == pytest.approx(results["mean_test_score"].max())
    assert results["params"][best]["rank"] == model.rank_ == results["param_rank"][best]
    assert set(results["param_rank"]) == {0, 1, 2}


def test_a_score_does_not_depend_on_the_other_candidates():
    one = choose(ranks=[1], alphas=[3.0], cv=FOLDS).best_score_
    many = choose(ranks=[0, 1], alphas=[1e-9, 3.0, 300.0], cv=FOLDS).cv_results_
    place = [(p["rank"], p["alpha"]) for p in many["params"]].index((1, (3.0, 3.0)))
    assert many["mean_test_score"][place] == pytest.approx(one, rel=1e-6)


@pytest.mark.parametrize("options", [GRID, {"cv": FOLDS}])
def test_the_chosen_model_is_that_of_the_regressor_with_these_parameters(options):
    model = choose(**options)
    one = SecondOrderRegressor(model.rank_, alpha=model.alpha_, pairs=None, random_state=0)
    expected = one.fit(X, Y).predict(X)
    assert nmse(expected, model.predict(X)) < 1e-4


# Folds, groups and weights


def test_groups_are_held_out_together():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 30, 300)
    y = X[:, 0] + 3 * rng.standard_normal(30)[group] + 0.3 * rng.standard_normal(300)
    rows = np.column_stack([X[:, 0], np.eye(30)[group]])
    grid = {"ranks": [0], "alphas": [1.0]}
    by_number, by_splitter = (
        SecondOrderRegressorCV(**grid, cv=cv).fit(rows, y, groups=group)
        for cv in (3, GroupKFold(3))
    )
    listed = choose(rows, y, **grid, cv=list(GroupKFold(3).split(rows, y, group)))
    assert by_splitter.best_score_ == pytest.approx(listed.best_score_)
    among_rows = choose(rows, y, **grid, cv=3)
    assert by_number.best_score_ < 3 * among_rows.best_score_  # new groups are much harder


def test_a_weight_of_zero_leaves_a_row_out_of_fits_and_scores():
    keep = np.arange(300) % 3 > 0
    tests = [np.arange(300) % 4 == i for i in range(4)]
    every, kept = (
        [(np.flatnonzero(~test[some]), np.flatnonzero(test[some])) for test in tests]
        for some in (slice(None), keep)
    )
    grid = {"ranks": [0, 1], "alphas": [3.0]}
    weighted = choose(X, np.where(keep, Y, 1e3), keep.astype(float), **grid, cv=every)
    left = choose(X[keep], Y[keep], **grid, cv=kept)
    assert weighted.best_score_ == pytest.approx(left.best_score_, rel=1e-4)
    np.testing.assert_allclose(weighted.predict(X), left.predict(X), atol=1e-3)


def test_scores_are_weighted():
    weight = np.random.default_rng(1).uniform(0.5, 2, 300)
    model = choose(X, Y, weight, ranks=[0], alphas=[3.0], cv=FOLDS)
    train, test = next(FOLDS.split(X))
    one = SecondOrderRegressor(0, alpha=3.0, pairs=None).fit(X[train], Y[train], weight[train])
    error = np.average((Y[test] - one.predict(X[test])) ** 2, weights=weight[test])
    assert model.cv_results_["split0_test_score"][0] == pytest.approx(-error, rel=1e-4)


# Other scores


def mean_absolute(estimator, rows, y):
    return -float(np.mean(np.abs(estimator.predict(rows) - y)))


@pytest.mark.parametrize(
    ("scoring", "same"),
    [("r2", make_scorer(r2_score)), ("neg_mean_absolute_error", mean_absolute)],
)
def test_a_callable_scores_as_its_name_does(scoring, same):
    named, called = (choose(**GRID, scoring=s).cv_results_ for s in (scoring, same))
    np.testing.assert_allclose(named["mean_test_score"], called["mean_test_score"])


# Pairs


def test_pairs_are_taken_where_rows_held_out_show_them():
    table, pairs = planted_pairs(300, 8, 2, seed=1)
    model = choose(table.X, table.y, ranks=[0], cv=3, pairs=4)
    found = {tuple(sorted((p.first, p.second))) for p in model.pairs_.pairs}
    assert {(f"x{i}", f"x{j}") for i, j in pairs} <= found


def test_a_pair_that_only_rows_held_out_show_earns_no_score():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((150, 8))
    train, test = np.arange(100), np.arange(100, 150)
    y = rows[:, 0] + rng.standard_normal(150)
    y[test] += 5 * rows[test, 1] * rows[test, 2]
    with_pairs, without = (
        choose(rows, y, ranks=[0], alphas=[1.0], cv=[(train, test)], pairs=pairs)
        for pairs in (5, None)
    )
    assert with_pairs.best_score_ == pytest.approx(without.best_score_, rel=0.15)
    assert without.best_score_ < -5


# Errors and warnings


BAD = {
    "ranks below 0": ({"ranks": [-1]}, "ranks"),
    "no ranks": ({"ranks": []}, "ranks"),
    "no penalties": ({"alphas": []}, "alphas"),
    "a metric, not a scorer": ({"scoring": r2_score}, "make_scorer"),
    "no rows to test": ({"cv": [(np.arange(300), [])]}, "test rows"),
    "no rows to train on": ({"cv": [([], np.arange(300))]}, "training rows"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("case", BAD)
def test_grids_folds_and_scorers_that_make_no_sense_are_named(case):
    options, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        choose(**options)


@pytest.mark.parametrize(
    ("cv", "groups", "words"),
    [
        (3, np.zeros(5), "5"),
        (3, np.zeros(300), "group"),
    ],
)
def test_groups_that_make_no_sense_are_named(cv, groups, words):
    with pytest.raises(ValueError, match=words):
        SecondOrderRegressorCV([0], [1.0], cv).fit(X, Y, groups=groups)
