"""The summary: estimates, how sure they are, and R² of rows that are named."""

import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.model_selection import KFold

from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
)
from quadlin.datasets import make_second_order
from quadlin.explain.pair_report import Pair
from quadlin.explain.quality import quality_of
from quadlin.explain.summary import summary_of
from quadlin.explain.tables import found_pairs

DATA = make_second_order(300, 4, rank=1, noise=0.5, n_test=50, random_state=0)
RNG = np.random.default_rng(0)
X, NOISE = RNG.standard_normal((200, 3)), RNG.standard_normal(200)
Y = 2 + X[:, 0] + X[:, 0] * X[:, 1] - X[:, 2] ** 2 + NOISE


def fitted(**options):
    options = {"rank": 3, "alpha": 0.0, "tol": 1e-12, "uncertainty": True, **options}
    return SecondOrderRegressor(**options, random_state=0).fit(X, Y)


SURE = fitted()


def test_a_summary_is_that_of_least_squares():
    # Rank d is a linear model of all products, whose table is known in closed form.
    i, j = np.triu_indices(3)
    design = np.column_stack([np.ones(200), X, X[:, i] * X[:, j]])
    beta, loss = np.linalg.lstsq(design, Y, rcond=None)[:2]
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * loss[0] / 190)
    frame = SURE.summary(top=6, level=0.9).to_frame().set_index("term")
    names = ["intercept", "x0", "x1", "x2", "x0²", "x0 × x1", "x0 × x2", "x1²", "x1 × x2", "x2²"]
    table = frame.loc[names]
    np.testing.assert_allclose(table["estimate"], beta, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(table["std_error"], errors, rtol=1e-3)
    np.testing.assert_allclose(table["t"], beta / errors, rtol=1e-3, atol=1e-4)
    expected = 2 * student.sf(np.abs(beta / errors), 190)
    np.testing.assert_allclose(table["p"], expected, rtol=1e-2, atol=1e-4)
    reach = student.ppf(0.95, 190) * errors
    np.testing.assert_allclose(table["high"] - table["low"], 2 * reach, rtol=1e-3)


def test_a_summary_prints_the_fit_in_words():
    text = str(SURE.summary(X, Y))
    for words in (
        "rows      200",
        "0.7",
        "on the 200 rows given",
        "rank      3",
        "penalty   none",
        "noise     ",
        "status    converged. A step no longer lowers",
        "std error",
        "[0.025",
        "The estimate of a pair is the coefficient of the product x_i·x_j in y.",
    ):
        assert words in text
    assert repr(SURE.summary()) == str(SURE.summary())


def test_without_standard_errors_a_summary_says_how_to_get_them():
    summary = fitted(uncertainty=False).summary()
    assert "fit with uncertainty=True" in str(summary)
    assert "std error" not in str(summary)
    assert "noise     not known" in str(summary)
    assert summary.to_frame()["p"].isna().all()


def test_many_linear_terms_are_in_the_frame_and_the_strongest_are_printed():
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((200, 40))
    model = SecondOrderRegressor(0, alpha=1.0).fit(wide, wide @ np.arange(40.0))
    text, frame = str(model.summary()), model.summary().to_frame()
    assert "and 15 weaker linear terms" in text
    assert "x39 " in text
    assert "x1 " not in text
    assert (frame["kind"] == "linear").sum() == 40


def test_a_summary_without_pandas_is_a_dict(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    columns = SURE.summary().to_frame()
    assert isinstance(columns, dict)
    assert columns["term"][0] == "intercept"


def test_levels_are_said_to_be_differences_from_the_mean():
    frame = pd.DataFrame({"a": X[:, 0], "city": np.where(X[:, 1] > 0, "Oslo", "Rome")})
    text = str(SecondOrderRegressor(1, alpha=0.1, uncertainty=True).fit(frame, Y).summary())
    assert "differences from their mean over the fitted rows" in text
    assert "shrunk towards zero by the penalty" in text


def test_names_are_printed_without_control_characters():
    frame = pd.DataFrame({"a\x1b[31m": X[:, 0], "b": X[:, 1]})
    text = str(SecondOrderRegressor(1, alpha=0.1).fit(frame, Y).summary())
    assert "\x1b" not in text
    assert r"a\x1b[31m" in text


@pytest.mark.parametrize("level", [0, 1, 95])
def test_a_level_is_a_probability(level):
    with pytest.raises(ValueError, match=f"level={level} must lie between 0 and 1"):
        SURE.summary(level=level)


def test_pairs_that_were_found_are_marked_if_the_estimator_has_them():
    model = SecondOrderRegressor(3, alpha=0.0, random_state=0).fit(X, Y)
    assert found_pairs(model) == []
    coefficient = model.interaction(0, 1)
    for searched, error in ((coefficient, 0.1), (2 * coefficient, np.nan)):
        pair = Pair("x0", "x1", searched, 0.1, searched / 0.1, 0.0, 0.1, 1)
        sought = SimpleNamespace(pairs=[pair])
        summary = summary_of(WithPairs(model, sought), (None, None, None), 0, 0.95)
        assert [term.kind for term in summary.terms].count("found pair") == 1
        last = summary.terms[-1]
        assert last.estimate == coefficient  # in y, whatever part of the model it comes from
        np.testing.assert_equal(last.std_error, error)
        assert "see pairs_" in str(summary)


class WithPairs:
    """An estimator that keeps the pairs that it found."""

    def __init__(self, model, pairs):
        self.model, self.pairs_ = model, pairs

    def __getattr__(self, name):
        return getattr(self.model, name)


def test_r2_of_a_cross_validated_model_is_that_of_its_folds():
    model = SecondOrderRegressorCV(ranks=[0, 1], alphas=[1.0], cv=KFold(3)).fit(X, Y)
    told = quality_of(model)
    errors = [
        np.mean(
            (clone(model).set_params(ranks=[model.rank_]).fit(X[a], Y[a]).predict(X[b]) - Y[b]) ** 2
        )
        for a, b in KFold(3).split(X)
    ]
    assert told.value == pytest.approx(1 - np.mean(errors) / np.var(Y), rel=1e-3)
    assert told.how == "by cross-validation with 3 folds"


@pytest.mark.parametrize("alpha", [0.0, 5.0, "auto"])
def test_r2_of_the_fit_is_that_of_its_rows(alpha):
    quality = quality_of(fitted(alpha=alpha))
    model = fitted(alpha=alpha)
    assert quality.value == pytest.approx(model.score(X, Y), rel=1e-6)
    assert not quality.bound
    unsure = fitted(alpha=alpha, uncertainty=False)
    told = quality_of(unsure)
    assert not told.bound
    assert told.value == pytest.approx(unsure.score(X, Y), rel=1e-6)


def test_r2_of_a_fit_with_pairs_or_levels_is_a_bound_where_the_penalty_is_not_known():
    target = 3 * X[:, 0] * X[:, 1] + Y
    for options in ({"pairs": [(0, 1)], "alpha": 2.0}, {"rank": 1, "alpha": 2.0}):
        level = np.arange(len(X)) % 3 == np.arange(3)[:, None]
        rows = X if "pairs" in options else np.hstack([X, level.T])
        model = SecondOrderRegressor(uncertainty=False, random_state=0, **options)
        model.fit(rows, target)
        told = quality_of(model)
        assert told.bound
        assert told.value <= model.score(rows, target) + 1e-9
        assert told.value > model.score(rows, target) - 0.1


def test_r2_of_weighted_rows_and_without_an_intercept():
    weight = np.arange(1.0, 201.0)
    for options in ({}, {"fit_intercept": False}):
        model = SecondOrderRegressor(1, alpha=0.0, uncertainty=True, random_state=0, **options)
        model.fit(X, Y, sample_weight=weight)
        assert quality_of(model).value == pytest.approx(model.score(X, Y, weight), rel=1e-6)


def test_r2_that_is_not_known_is_not_made_up():
    huber = SecondOrderRegressor(1, loss="huber", alpha=0.0, random_state=0).fit(X, Y)
    assert quality_of(huber).value is None
    assert "give X and y" in str(huber.summary())
    constant = SecondOrderRegressor(1, alpha=0.0).fit(X, np.ones(200))
    assert quality_of(constant).value is None


def test_r2_of_a_stream_is_that_of_its_last_batch():
    stream = SecondOrderRegressor(1, alpha=0.0, batch_size=50, random_state=0)
    for start in range(0, 200, 50):
        stream.partial_fit(X[start : start + 50], Y[start : start + 50])
    assert "on the last batch" in quality_of(stream).how


@pytest.mark.filterwarnings("ignore:out_of_steps")
def test_a_machine_with_draws_has_a_summary():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.integers(5, size=150).astype(str) for name in ("u", "v")})
    machine = FactorizationMachineRegressor(draws=3, max_iter=2, random_state=0)
    machine.fit(frame, rng.standard_normal(150))
    text = str(machine.summary(frame, np.zeros(150)))
    assert f"noise     {machine.noise_:.4g}" in text
    assert "u=1" in text


def test_an_estimator_of_several_models_is_not_summarised_as_one():
    model = fitted(uncertainty=False)
    model.fitted_ = SimpleNamespace(parts=(model.fitted_, model.fitted_))
    for method in (model.summary, model.effects, lambda: model.contributions(X)):
        with pytest.raises(ValueError, match="one model per class"):
            method()


def test_top_limits_the_linear_terms_that_are_printed_too():
    rng = np.random.default_rng(0)
    R = rng.normal(size=(200, 30))
    model = SecondOrderRegressor(rank=0, alpha=1.0, pairs=None).fit(R, R @ np.arange(30.0))
    few, plain = model.summary(top=29), model.summary()
    assert "and 1 weaker linear term; to_frame()" in str(few)
    assert "x0 " not in str(few)
    assert "and 5 weaker linear terms; to_frame()" in str(plain)
    assert len(model.summary(top=2).to_frame()) == 31  # the intercept, and all linear terms
    assert str(model.summary(top=2)).count("\nx") == 2


@pytest.mark.parametrize("uncertainty", [True, False])
def test_columns_that_are_not_estimated_are_named_and_not_shown_as_estimates(uncertainty):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(300, 3)), columns=list("abc")).assign(always=1.0)
    y = X.a + rng.normal(size=300)
    model = SecondOrderRegressor(0, alpha=0, pairs=None, uncertainty=uncertainty).fit(X, y)
    lines = str(model.summary()).splitlines()
    assert not any(line.startswith("always") for line in lines)
    assert "Not estimated, because they do not vary or are not in the model: 'always'." in lines
    frame = model.summary().to_frame().set_index("term")
    assert frame.loc["always", "estimate"] == 0
    assert np.isnan(frame.loc["always", "std_error"])
    few = str(model.summary(top=2))
    assert "and 1 weaker linear term;" in few
