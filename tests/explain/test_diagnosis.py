"""What `diagnose` says, each of a cause that is there and not of one that is not."""

import numpy as np
import pandas as pd
import pytest

from quadlin import SecondOrderRegressor, SecondOrderRegressorCV
from quadlin.datasets import make_second_order
from quadlin.explain.report import report_page
from quadlin.solve.lowrank.types import Status


def table(n=2000, d=6, noise=0.5, seed=0):
    data = make_second_order(n, d, rank=1, noise=noise, random_state=seed)
    return data.X, data.y


@pytest.mark.parametrize("options", [{}, {"rank": 1, "alpha": 0.0}])
def test_five_gross_errors_are_outliers_and_no_reason_for_another_rank(options):
    X, y = table(d=4)
    wrong = [3, 500, 900, 1200, 1999]
    y[wrong] = 1e4
    with pytest.warns(UserWarning, match="extreme targets"):
        model = SecondOrderRegressor(**options, random_state=0).fit(X, y)
    for text in (model.diagnose(), model.diagnose(X, y)):
        assert "rank=" not in text
        assert 'loss="huber"' in text
    assert {line.split(":")[0] for line in text.splitlines()} >= {"outliers", "error"}
    named = next(line for line in text.splitlines() if line.startswith("outliers"))
    assert any(str(i) in named for i in wrong)
    # And what is advised helps.
    robust = SecondOrderRegressor(loss="huber", random_state=0).fit(X, y)
    good = np.setdiff1d(np.arange(len(y)), wrong)
    assert robust.score(X[good], y[good]) > 0.5 > model.score(X[good], y[good])
    assert "huber" not in robust.diagnose(X, y)


def test_overfitting_is_told_by_the_error_of_rows_left_out_and_the_advice_helps():
    X, y = table(n=60, d=6, noise=2.0)
    model = SecondOrderRegressor(4, alpha=0.0, random_state=0).fit(X, y)
    text = model.diagnose(X, y)
    assert "overfitting" in text
    assert 'alpha="auto"' in text
    new, target = table(n=2000, d=6, noise=2.0)
    advised = SecondOrderRegressor(4, alpha="auto", random_state=0).fit(X, y)
    assert advised.score(new, target) > model.score(new, target)
    X, y = table(n=2000)
    assert "overfitting" not in SecondOrderRegressor(random_state=0).fit(X, y).diagnose(X, y)


def test_the_error_of_rows_left_out_is_that_of_fits_without_them():
    X, y = table(n=25, d=3, noise=1.0)
    model = SecondOrderRegressor(3, alpha=5.0, random_state=0).fit(X, y)
    errors = next(line for line in model.diagnose(X, y).splitlines() if line.startswith("error"))
    squares = []
    for i in range(25):
        keep = np.arange(25) != i
        one = SecondOrderRegressor(3, alpha=5.0, random_state=0).fit(X[keep], y[keep])
        squares.append((one.predict(X[i : i + 1])[0] - y[i]) ** 2)
    told = float(errors.split("these rows, ")[1].split()[0])
    assert told == pytest.approx(np.sqrt(np.mean(squares)), rel=0.05)  # units vary with the rows


def test_two_valued_features_have_squares_where_there_is_no_linear_part():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal(200), rng.uniform(size=200) < 0.5])
    y = X[:, 0] ** 2 + X[:, 1] + 0.1 * rng.standard_normal(200)
    without = SecondOrderRegressor(1, fit_linear=False, alpha=0.0, random_state=0).fit(X, y)
    assert without.has_diagonal_.all()
    assert "squares equal linear terms" not in without.diagnose()
    assert "1 two-valued (x1): squares take the place of linear terms" in without.diagnose()
    with_w = SecondOrderRegressor(1, alpha=0.0, random_state=0).fit(X, y)
    assert "1 two-valued (x1): squares equal linear terms" in with_w.diagnose()


def test_a_budget_of_passes_that_ran_out_is_not_a_matter_of_steps():
    assert "max_iter" not in Status.out_of_passes.value
    assert 'alpha="auto"' in Status.out_of_passes.value
    assert "max_iter" in Status.out_of_steps.value


def test_too_few_rows_and_a_missing_component_are_told_with_what_to_do():
    data = make_second_order(1000, 8, rank=3, noise=0.1, random_state=0)
    low = SecondOrderRegressor(1, alpha=0.0, random_state=0).fit(data.X, data.y)
    assert "Try rank=2" in low.diagnose(data.X, data.y)
    with pytest.warns(UserWarning, match="too_few_rows"):
        few = SecondOrderRegressor(3, alpha=0.0, random_state=0).fit(data.X[:20], data.y[:20])
    assert "Too few to determine them" in few.diagnose()


def test_a_cross_validated_model_is_diagnosed_too():
    X, y = table(n=200)
    model = SecondOrderRegressorCV([0, 1], [1.0], cv=2, random_state=0).fit(X, y)
    assert "error: " in model.diagnose(X, y)


def test_a_rank_is_told_in_words_and_only_components_that_stand_out_are_counted():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    y = 3 * X[:, 0] * X[:, 1] + rng.normal(size=300)  # two components, and noise
    model = SecondOrderRegressor(rank=6, alpha=(0, 300.0), pairs=None).fit(X, y)
    words = "6, all products of the 6 features, shrunk by the penalty"
    assert f"rank: {words}; 2 of 6 components stand out from the noise." in model.diagnose()
    assert model.summary().facts["rank"] == words
    assert words in report_page(model, X, y, None, 5)
    low = SecondOrderRegressor(rank=2, alpha=0, pairs=None).fit(X, y)
    assert "rank: all 2 components stand out from the noise." in low.diagnose()


def test_one_outlier_is_one_row():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = X[:, 0] + rng.normal(size=200)
    y[43] += 1e4
    model = SecondOrderRegressor(rank=0, alpha=0, pairs=None).fit(X, y)
    assert "of the squared error comes from row 43 (counted from 0)" in model.diagnose(X, y)


def test_pairs_alone_are_not_called_overfitted():
    X = np.random.default_rng(0).normal(size=(1500, 6))
    y = X[:, 0] * X[:, 1] + 0.5 * np.random.default_rng(1).normal(size=1500)
    text = SecondOrderRegressor(random_state=0).fit(X, y).diagnose(X, y)
    assert "beside 1 pair" in text
    assert "left out" not in text  # the penalty of w and L is not that of pairs
    assert "error: 0.5" in text


def test_new_rows_give_no_advice_about_the_rank():
    rng = np.random.default_rng(0)
    city, x, z = rng.choice(["a", "b", "c"], 1200), rng.normal(size=1200), rng.gamma(2, 2, 1200)
    y = 2 * x - 0.5 * z + 0.3 * x * z + 2 * (city == "b") + 0.5 * rng.normal(size=1200)
    frame = pd.DataFrame({"city": city, "x": x, "z": z})
    model = SecondOrderRegressor(random_state=0).fit(frame[:900], y[:900])
    for rows in (slice(0, 900), slice(900, None)):
        assert "Try rank" not in model.diagnose(frame[rows], y[rows])
    assert "left out" not in model.diagnose(frame[900:], y[900:])
