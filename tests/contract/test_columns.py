"""Columns as people have them: text, ids, missing values, other dtypes, other names at predict."""

import functools
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    load,
    open_source,
    save,
)

N = 200
LINEAR = SecondOrderRegressor(0, alpha=0.0, pairs=None, random_state=0)
MODEL = SecondOrderRegressor(1, alpha=0.1, random_state=0)


@functools.cache
def table():
    """Return a city, a code without order, an age, and a target with products of city and age."""
    rng = np.random.default_rng(0)
    city = rng.choice(["Bonn", "Oslo", "Rome"], N, p=[0.5, 0.3, 0.2])
    code = rng.choice([3, 7, 20, 101], N)
    age = rng.standard_normal(N)
    effect = pd.Series({3: 2.0, 7: -3.0, 20: 4.0, 101: -1.0})[code].to_numpy()
    y = effect + age * (1 + (city == "Rome")) + (city == "Oslo") + 0.1 * rng.standard_normal(N)
    return pd.DataFrame({"city": city, "code": code, "age": age}), y


def one_hot(frame, names):
    """Return the table with the named columns as 0/1 columns, by scikit-learn."""
    encoder = make_column_transformer(
        (OneHotEncoder(sparse_output=False), names), remainder="passthrough"
    )
    return encoder.fit_transform(frame)


def near(actual, wanted, margin=2e-5):
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=margin)


TEXT = {
    "pandas": lambda frame: frame,
    "objects": lambda frame: frame.astype({"city": object}),
    "categories": lambda frame: frame.astype({"city": "category"}),
    "string": lambda frame: frame.astype({"city": "string"}),
    "polars": pl.from_pandas,
    "polars categories": lambda frame: pl.from_pandas(frame).cast({"city": pl.Categorical}),
    "pyarrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
}

# Text, levels and ids.


@pytest.mark.parametrize("kind", TEXT)
def test_text_becomes_levels_as_in_a_linear_regression_on_one_hot_columns(kind):
    frame, y = table()
    frame = frame[["city", "age"]]
    rows = TEXT[kind](frame)
    model = clone(LINEAR).fit(rows, y)
    assert list(model.interactions_.names) == ["city=Bonn", "city=Oslo", "city=Rome", "age"]
    by_hand = one_hot(frame, ["city"])
    near(model.predict(rows), LinearRegression().fit(by_hand, y).predict(by_hand))


@pytest.mark.smoke
@pytest.mark.parametrize("given_columns", [["code"], [1], [False, True, False]])
@pytest.mark.parametrize("library", [lambda frame: frame, pl.from_pandas])
def test_declared_ids_become_levels(library, given_columns):
    frame, y = table()
    rows = library(frame)
    model = clone(LINEAR).set_params(categorical_features=given_columns).fit(rows, y)
    by_hand = one_hot(frame, ["city", "code"])
    near(model.predict(rows), LinearRegression().fit(by_hand, y).predict(by_hand))


def test_declared_columns_of_an_array_are_those_of_a_frame():
    frame, y = table()
    frame = frame[["code", "age"]]
    by_array = clone(MODEL).set_params(categorical_features=[0]).fit(frame.to_numpy(), y)
    by_frame = clone(MODEL).set_params(categorical_features=["code"]).fit(frame, y)
    near(by_array.predict(frame.to_numpy()), by_frame.predict(frame))
    text = frame.astype({"code": str})
    near(clone(MODEL).fit(text, y).predict(text), by_frame.predict(frame))


@pytest.mark.parametrize("estimator", [MODEL, SecondOrderRegressor(random_state=0)])
def test_one_hot_columns_are_the_levels_of_the_text_declared_or_not(estimator):
    frame, y = table()
    frame = frame[["city", "age"]]
    wanted = clone(estimator).fit(frame, y).predict(frame)
    by_hand = one_hot(frame, ["city"])
    near(clone(estimator).fit(by_hand, y).predict(by_hand), wanted)
    declared = clone(estimator).set_params(categorical_features=[[0, 1, 2]]).fit(by_hand, y)
    near(declared.predict(by_hand), wanted)


@given(seed=st.integers(0, 99))
def test_the_names_of_levels_and_the_order_of_rows_mean_nothing(seed):
    frame, y = table()
    frame = frame[["city", "age"]]
    rng = np.random.default_rng(seed)
    names = rng.permutation(["zürich", "7th", "a=b", "e\u0301", "Bonn"])[:3]
    order = rng.permutation(N)
    other = dict(zip(frame["city"].unique(), names, strict=True))
    renamed = frame.assign(city=frame["city"].map(other))
    model = clone(MODEL).fit(renamed.iloc[order], y[order])
    near(model.predict(renamed), clone(MODEL).fit(frame, y).predict(frame), 1e-4)


def test_products_within_a_field_are_zero():
    frame, y = table()
    model = clone(MODEL).fit(frame[["city", "age"]], y)
    assert model.interaction("city=Oslo", "city=Rome") == 0
    assert model.interaction("city=Rome", "age") != 0


@pytest.mark.parametrize(
    "estimator",
    [LINEAR, MODEL, SecondOrderRegressor(random_state=0)],
    ids=["linear", "rank 1", "default"],
)
def test_an_unseen_level_is_predicted_as_the_mean_level(estimator):
    frame, y = table()
    frame = frame[["city", "age"]]
    model = clone(estimator).fit(frame, y)
    age = np.array([-1.0, 0.0, 0.5])
    new = pd.DataFrame({"city": ["Kiel"] * 3, "age": age})
    share = frame["city"].value_counts(normalize=True)
    wanted = sum(p * model.predict(new.assign(city=city)) for city, p in share.items())
    with pytest.warns(UserWarning, match="3 in 'city'"):
        near(model.predict(new), wanted)


def test_an_unseen_user_of_a_factorization_machine_is_an_average_one():
    rng = np.random.default_rng(0)
    user, film = rng.integers(15, size=600), rng.integers(10, size=600)
    bias = rng.normal(size=10)
    y = bias[film] + rng.normal(size=15)[user] + 0.1 * rng.normal(size=600)
    rows = pd.DataFrame({"user": user, "film": film}).astype(str)
    machine = FactorizationMachineRegressor(random_state=0).fit(rows, y)
    films = pd.DataFrame({"user": "new", "film": [str(i) for i in range(10)]})
    with pytest.warns(UserWarning, match="10 in 'user'"):
        predicted = machine.predict(films)
    # Films keep their effects, each known to 0.1/√60, and so does their mean.
    wanted = [y[film == i].mean() for i in range(10)]
    assert np.corrcoef(predicted, bias)[0, 1] > 0.999
    assert abs(np.mean(predicted) - np.mean(wanted)) < 0.3


def test_levels_of_categories_keep_their_order_and_unused_ones_are_no_columns():
    _, y = table()
    values = pd.Categorical(
        np.resize(["mid", "low", "top"], N), categories=["low", "mid", "top", "never"], ordered=True
    )
    model = clone(MODEL).fit(pd.DataFrame({"plan": values, "a": np.arange(N) % 7.0}), y)
    assert list(model.interactions_.names)[:3] == ["plan=low", "plan=mid", "plan=top"]
    assert len(model.interactions_.names) == 4


@pytest.mark.parametrize(
    "estimator",
    [
        SecondOrderRegressorCV(ranks=[0, 1], alphas=[0.1], cv=3, random_state=0),
        SecondOrderClassifier(1, alpha=1.0, random_state=0),
        FactorizationMachineRegressor(1, alpha=0.1, random_state=0),
        FactorizationMachineClassifier(1, alpha=1.0, random_state=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_every_estimator_reads_text_ids_and_missing_values(estimator):
    frame, y = table()
    frame = frame.copy()
    frame.loc[frame["age"].abs().idxmin(), "age"] = np.nan  # the mean is near what it was
    y = y > 0 if hasattr(estimator, "predict_proba") else y
    model = clone(estimator).set_params(categorical_features=["code"], missing="mean")
    model.fit(frame, y)
    assert {"city=Rome", "code=101", "age"} <= set(model.interactions_.names)
    assert model.score(frame, y) > 0.9  # the noise is 0.1, and y varies by 3


def test_text_goes_through_a_pipeline():
    frame, y = table()
    frame = frame[["city", "age"]]
    scaled = make_column_transformer((StandardScaler(), ["age"]), remainder="passthrough")
    pipeline = make_pipeline(scaled.set_output(transform="pandas"), clone(MODEL)).fit(frame, y)
    near(pipeline.predict(frame), clone(MODEL).fit(frame, y).predict(frame), 1e-4)


def test_levels_and_means_survive_a_file_and_declarations_survive_a_clone(tmp_path):
    frame, y = table()
    model = clone(MODEL).set_params(categorical_features=["code"], missing="mean").fit(frame, y)
    assert clone(model).get_params()["categorical_features"] == ["code"]
    save(model, tmp_path / "model")
    gaps = frame.copy()
    gaps.loc[::3, "age"] = np.nan
    np.testing.assert_array_equal(load(tmp_path / "model").predict(gaps), model.predict(gaps))


# Missing values.


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table])
def test_missing_numbers_are_means_and_missing_text_is_a_level(library):
    frame, y = table()
    city, age = frame["city"].to_numpy(object, copy=True), frame["age"].to_numpy(copy=True)
    city[::7], age[::5] = None, np.nan
    rows = library({"city": city.tolist(), "age": age})
    model = clone(MODEL).set_params(missing="mean").fit(rows, y)
    mean = np.nanmean(age)
    assert model.fill_ == {"age": pytest.approx(mean)}
    assert "city=missing" in model.interactions_.names
    hand = pd.DataFrame(
        {"city": ["missing" if c is None else c for c in city], "age": np.nan_to_num(age, nan=mean)}
    )
    near(model.predict(rows), clone(MODEL).fit(hand, y).predict(hand))
    gap = library({"city": ["Oslo", None], "age": [np.nan, 1.0]})
    near(model.predict(gap), model.predict(hand.head(2).assign(city=["Oslo", "missing"],
                                                               age=[mean, 1.0])))  # fmt: skip


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table])
@pytest.mark.parametrize("column", ["city", "age"])
def test_missing_values_are_errors_that_name_column_and_row(column, library):
    frame, y = table()
    values = {name: frame[name].tolist() for name in ("city", "age")}
    model = clone(MODEL).fit(library(values), y)
    values[column][4] = None
    for call in (lambda rows: clone(MODEL).fit(rows, y), model.predict):
        with pytest.raises(ValueError, match=rf"(?s)'{column}'.*\b4\b|\b4\b.*'{column}'"):
            call(library(values))


def test_a_missing_level_that_fit_did_not_see_is_an_average_one():
    frame, y = table()
    model = clone(MODEL).set_params(missing="mean").fit(frame[["city", "age"]], y)
    new = pd.DataFrame({"city": ["Kiel", None], "age": 0.5})
    with pytest.warns(UserWarning, match="'city'"):
        unseen, absent = model.predict(new)
    assert unseen == pytest.approx(absent, abs=1e-9)


@pytest.mark.smoke
def test_a_weight_counts_in_the_means_as_repetition_does():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(3, 1, (60, 2)), columns=["a", "b"])
    y, times = (X["a"] + X["b"]).to_numpy(), rng.integers(0, 4, 60)
    X.loc[::6, "a"] = np.nan
    rows = np.repeat(np.arange(60), times)
    model = clone(MODEL).set_params(missing="mean")
    weighted = clone(model).fit(X, y, times)
    repeated = clone(model).fit(X.iloc[rows], y[rows])
    assert weighted.fill_ == pytest.approx(repeated.fill_)
    near(weighted.predict(X), repeated.predict(X))


def test_a_stream_fills_with_the_means_of_its_first_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(3, 1, (200, 2))
    y, X[3, 0] = X @ [1.0, 2.0], np.nan
    stream = clone(MODEL).set_params(missing="mean")
    stream.partial_fit(X[:100], y[:100]).partial_fit(X[100:], y[100:])
    assert stream.fill_["x0"] == pytest.approx(np.nanmean(X[:100, 0]))


# Other dtypes.

FLAG = np.arange(N) % 3 == 0
HALVES = np.arange(N) % 7 / 2
NUMBERS = {
    "nullable integers": (pd.array(np.arange(N) % 5, dtype="Int64"), np.arange(N) % 5),
    "nullable floats": (pd.array(HALVES, dtype="Float64"), HALVES),
    "booleans": (FLAG, FLAG * 1.0),
    "nullable booleans": (pd.array(FLAG, dtype="boolean"), FLAG * 1.0),
    "Arrow numbers": (pd.Series(HALVES, dtype="double[pyarrow]"), HALVES),
    "objects": (pd.Series(HALVES.tolist(), dtype=object), HALVES),
    "decimals": ([Decimal(str(half)) for half in HALVES.tolist()], HALVES),
}


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("kind", NUMBERS)
def test_columns_of_any_kind_of_number_are_numbers(kind, text):
    frame, y = table()
    values, plain = NUMBERS[kind]
    frame = frame[["city", "age"]] if text else frame[["age"]]
    rows, wanted = frame.assign(z=values), frame.assign(z=plain)
    near(clone(MODEL).fit(rows, y).predict(rows), clone(MODEL).fit(wanted, y).predict(wanted))


DAYS = pd.date_range("2024-01-01", periods=N)
NO_NUMBERS = {
    "dates": pd.DataFrame({"age": 1.0, "when": DAYS}),
    "dates with a zone": pd.DataFrame({"age": 1.0, "when": DAYS.tz_localize("UTC")}),
    "durations": pd.DataFrame({"age": 1.0, "when": DAYS - DAYS[0]}),
    "dates of polars": pl.DataFrame({"age": 1.0, "when": DAYS.to_numpy()}),
    "lists": pd.DataFrame({"age": 1.0, "when": [[1]] * N}),
    "a mixture": pd.DataFrame({"age": 1.0, "when": [1, "one"] * (N // 2)}),
    "bytes": pl.DataFrame({"age": 1.0, "when": [b"a", b"b"] * (N // 2)}),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_what_is_neither_number_nor_text_is_refused_by_the_name_of_its_column(kind):
    _, y = table()
    with pytest.raises((ValueError, TypeError), match="when"):
        clone(MODEL).fit(NO_NUMBERS[kind], y)


def test_dates_that_are_declared_are_levels():
    frame, y = table()
    rows = frame[["age"]].assign(when=DAYS[:4].repeat(N // 4))
    model = clone(MODEL).set_params(categorical_features=["when"]).fit(rows, y)
    letters = rows.assign(when=np.repeat(list("abcd"), N // 4))
    near(model.predict(rows), clone(MODEL).fit(letters, y).predict(letters))


# Other columns at predict, and declarations that do not fit.


@pytest.mark.parametrize("library", [lambda frame: frame, pl.from_pandas])
@pytest.mark.parametrize("text", [False, True])
def test_other_columns_at_predict_are_refused_by_name(text, library):
    frame, y = table()
    frame = frame if text else frame[["code", "age"]]
    model = clone(MODEL).fit(library(frame), y)
    changed = {
        "order": frame[frame.columns[::-1]],
        "age": frame.drop(columns="age"),
        "height": frame.assign(height=1.0),
        "years": frame.rename(columns={"age": "years"}),
    }
    for name, rows in changed.items():
        with pytest.raises(ValueError, match=name):
            model.predict(library(rows))
    if text:
        with pytest.raises(ValueError, match="age"):
            model.predict(library(frame.assign(age="old")))
        with pytest.raises(ValueError, match="city"):
            model.predict(library(frame.assign(city=1.0)))


@pytest.mark.parametrize(
    ("given_columns", "mentioned"),
    [
        (["cod"], "'cod'.*'code'"),
        ([7], "7"),
        ([True], "3 columns|1 boolean"),
        ("code", "categorical_features"),
        ([0.5], "categorical_features"),
    ],
)
def test_declared_columns_that_are_not_there_are_named(given_columns, mentioned):
    frame, y = table()
    model = clone(MODEL).set_params(categorical_features=given_columns)
    with pytest.raises((ValueError, TypeError), match=mentioned):
        model.fit(frame, y)


def test_text_is_refused_where_no_column_may_be_categorical():
    frame, y = table()
    with pytest.raises(ValueError, match="'city'"):
        clone(MODEL).set_params(categorical_features=None).fit(frame, y)


def test_columns_that_cannot_be_told_apart_are_refused():
    frame, y = table()
    twice = pd.concat([frame[["age"]], frame[["age"]]], axis=1)
    with pytest.raises(ValueError, match="age"):
        clone(MODEL).fit(twice.assign(city=frame["city"]), y)
    collide = pd.DataFrame({"a": np.resize(["b=c", "d"], N), "a=b": np.resize(["c", "e"], N)})
    with pytest.raises(ValueError, match="a=b=c"):
        clone(MODEL).fit(collide, y)


# Columns of factorization machines.


def test_whole_numbers_given_to_a_factorization_machine_are_ids():
    rng = np.random.default_rng(0)
    ids = pd.DataFrame(rng.integers(0, 8, (400, 2)), columns=["f0", "f1"])
    effects = rng.normal(size=(2, 8))
    y = effects[0][ids["f0"]] + effects[1][ids["f1"]] + 0.1 * rng.normal(size=400)
    machine = FactorizationMachineRegressor(random_state=0)
    declared = clone(machine).set_params(categorical_features=["f0", "f1"]).fit(ids, y)
    assert declared.score(ids, y) > 0.95
    near(clone(machine).fit(ids, y).predict(ids), declared.predict(ids))


def test_a_factorization_machine_takes_many_users_with_few_ratings():
    rng = np.random.default_rng(0)
    n, users = 16_000, 11_000
    user = np.concatenate([np.arange(users), rng.integers(users, size=n - users)])
    film = rng.integers(10, size=n)
    y = rng.normal(size=10)[film] + 0.5 * rng.normal(size=users)[user] + rng.normal(size=n)
    rows = pd.DataFrame({"user": [f"u{i}" for i in user], "film": [f"f{i}" for i in film]})
    machine = FactorizationMachineRegressor(1, random_state=0).fit(rows, y)
    assert machine.score(rows, y) > 0.3  # films alone explain nearly half


@pytest.mark.parametrize("form", ["parquet", "array", "dask"])
def test_ids_that_are_whole_numbers_are_categories_in_every_container(form, tmp_path):
    rng = np.random.default_rng(0)
    ids = pd.DataFrame(rng.integers(0, 8, (400, 2)), columns=["user", "film"])
    ids["new"] = rng.integers(0, 2, 400)  # zeros and ones stay a number
    y = rng.normal(size=(8, 8))[ids["user"], ids["film"]] + ids["new"] + rng.normal(size=400)
    machine = FactorizationMachineRegressor(random_state=0)
    expected = clone(machine).fit(ids, y)
    assert len(expected.coef_) == 17
    if form == "parquet":
        ids.assign(y=y).to_parquet(tmp_path / "t.parquet", index=False)
        model = machine.fit(open_source(tmp_path / "t.parquet", target="y"))
    elif form == "array":
        near(machine.fit(ids.to_numpy(), y).predict(ids.to_numpy()), expected.predict(ids))
        return
    else:
        dask = pytest.importorskip("dask.dataframe").from_pandas(ids.assign(y=y), npartitions=3)
        model = machine.fit(dask[["user", "film", "new"]], dask["y"])
    near(model.predict(ids), expected.predict(ids))
    numbers = FactorizationMachineRegressor(random_state=0, categorical_features=None)
    assert len(numbers.fit(ids, y).coef_) == 3
