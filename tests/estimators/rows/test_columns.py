"""Columns as people have them: ids, text, missing values, and rows that Dask holds."""

import re
import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    load,
    open_source,
    save,
)


def table(n=400, seed=0):
    """Rows whose target depends on an integer code, without any order among its values."""
    rng = np.random.default_rng(seed)
    code = rng.choice([3, 7, 20, 101], n)
    effect = {3: 2.0, 7: -3.0, 20: 4.0, 101: -1.0}
    age = rng.normal(size=n)
    y = np.array([effect[c] for c in code.tolist()]) + age + 0.1 * rng.standard_normal(n)
    return {"code": code, "age": age}, y


def model(**options):
    return SecondOrderRegressor(rank=1, alpha=0.1, random_state=0, **options)


FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("given", [["code"], [0], [True, False], np.array([True, False])])
def test_declared_ids_become_levels(kind, given):
    columns, y = table()
    X = FRAMES[kind](columns)
    fitted = model(categorical_features=given).fit(X, y)
    assert fitted.interactions_.names[:4] == ["code=3", "code=7", "code=20", "code=101"]
    assert fitted.score(X, y) > 0.99  # the noise is 0.1 of a target with variance 9
    assert model().fit(X, y).score(X, y) < 0.9


@pytest.mark.parametrize("given", [[0], [True, False]])
def test_declared_columns_of_an_array_are_those_of_a_frame(given):
    columns, y = table()
    X = np.column_stack([columns["code"], columns["age"]])
    by_array = model(categorical_features=given).fit(X, y)
    by_frame = model(categorical_features=["code"]).fit(pd.DataFrame(columns), y)
    assert by_array.interactions_.names[0] == "x0=3"
    np.testing.assert_allclose(
        by_array.predict(X), by_frame.predict(pd.DataFrame(columns)), rtol=1e-12
    )
    with pytest.warns(UserWarning, match="1 in 'x0'"):
        by_array.predict([[4.0, 0.0]])


def test_declared_ids_are_saved_and_cloned(tmp_path):
    columns, y = table()
    X = pd.DataFrame(columns)
    fitted = model(categorical_features=["code"], missing="mean").fit(X, y)
    copy = clone(fitted)
    assert copy.get_params()["categorical_features"] == ["code"]
    save(fitted, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    X.loc[::3, "age"] = np.nan
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    assert again.categorical_features == ["code"]
    assert again.fill_ == fitted.fill_


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_declared_ids_of_files_are_levels(tmp_path, name):
    columns, y = table()
    frame = pl.DataFrame({**columns, "y": y})
    (frame.write_csv if name == "t.csv" else frame.write_parquet)(tmp_path / name)
    source = open_source(tmp_path / name, target="y", categorical_features=["code"])
    assert set(source.names) == {"code=3", "code=7", "code=20", "code=101", "age"}
    fitted = model(categorical_features=["code"]).fit(source)
    assert fitted.score(source) > 0.99
    rows = open_source(tmp_path / name, encoder=fitted.encoder_)
    np.testing.assert_allclose(
        fitted.predict(rows), fitted.predict(frame.select("code", "age")), rtol=1e-12
    )
    plain = open_source(tmp_path / name, target="y")
    with pytest.raises(ValueError, match=r"reads 'code' as numbers.*categorical_features=\['code'"):
        model(categorical_features=["code"]).fit(plain)


@pytest.mark.parametrize(
    "estimator",
    [
        FactorizationMachineRegressor(rank=1, alpha=0.1, random_state=0),
        SecondOrderRegressorCV(ranks=[1], alphas=[0.1], cv=2, random_state=0),
    ],
)
def test_every_estimator_has_the_options(estimator):
    columns, y = table()
    X = pd.DataFrame(columns)
    X.loc[5, "age"] = np.nan
    fitted = estimator.set_params(categorical_features=["code"], missing="mean").fit(X, y)
    assert fitted.score(X, y) > 0.95  # one row has an error of one standard deviation


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["cod"], "no column 'cod' .* Did you mean 'code'"),
        ([2], "has 2, but the columns of X are numbered from 0 to 1"),
        ([True], "has 1 booleans, but X has 2 columns"),
        ("code", 'must be "from_dtype", None, a list'),
        ([0.5], 'must be "from_dtype", None, a list'),
    ],
)
def test_categories_that_are_not_there_are_refused(given, words):
    columns, y = table(20)
    with pytest.raises(ValueError, match=words):
        model(categorical_features=given).fit(pd.DataFrame(columns), y)


def test_categories_need_columns_that_can_be_told_apart():
    columns, y = table(20)
    X = np.column_stack([columns["code"], columns["age"]])
    with pytest.raises(ValueError, match="X is an array, whose columns have no names"):
        model(categorical_features=["code"]).fit(X, y)
    with pytest.raises(ValueError, match="needs a frame or a NumPy array"):
        model(categorical_features=[0]).fit(csr_array(X), y)
    with pytest.raises(ValueError, match="'code' holds text, but categorical_features=None"):
        model(categorical_features=None).fit(pd.DataFrame(columns).astype({"code": str}), y)


@pytest.mark.parametrize("kind", FRAMES)
def test_missing_values_are_replaced_by_what_the_fit_saw(kind):
    columns, y = table()
    city = np.where(columns["code"] < 10, "Oslo", "Rome").astype(object)
    age = columns["age"].copy()
    city[::7], age[::5] = None, np.nan
    X = FRAMES[kind]({"city": city.tolist(), "age": age})
    fitted = model(missing="mean").fit(X, y)
    assert fitted.fill_ == {"age": pytest.approx(np.nanmean(age))}
    assert fitted.interactions_.names == ["city=Oslo", "city=Rome", "city=missing", "age"]
    gap = FRAMES[kind]({"city": ["Oslo", None], "age": [np.nan, 1.0]})
    whole = FRAMES[kind]({"city": ["Oslo", "missing"], "age": [np.nanmean(age), 1.0]})
    np.testing.assert_allclose(fitted.predict(gap), fitted.predict(whole))
    with pytest.raises(ValueError, match=r'NaN .*missing="mean"'):
        model().fit(X, y)


@pytest.mark.parametrize("make", [np.asarray, csr_array, pd.DataFrame, pl.DataFrame])
def test_missing_numbers_are_filled_in_any_rows(make):
    rng = np.random.default_rng(0)
    X = rng.normal(3, 1, (60, 3))
    y = X @ [1.0, 2.0, 3.0]
    X[4, 1] = X[9, 2] = np.nan
    means = np.nanmean(X, axis=0)
    fitted = model(missing="mean").fit(make(X), y)
    np.testing.assert_allclose(list(fitted.fill_.values()), means)
    whole = make(np.where(np.isnan(X), means, X))
    np.testing.assert_allclose(fitted.predict(make(X)), fitted.predict(whole))
    np.testing.assert_allclose(fitted.predict(whole), model().fit(whole, y).predict(whole))


@pytest.mark.parametrize("text", [False, True])
def test_a_weight_counts_in_the_means_as_repetition_does(text):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(3, 1, (40, 2)), columns=["a", "b"])
    y, times = X["a"] + X["b"], rng.integers(0, 4, 40)
    X.loc[::6, "a"] = np.nan
    if text:
        X["city"] = ["Oslo", "Rome"] * 20
    rows = np.repeat(np.arange(40), times)
    weighted = model(missing="mean").fit(X, y, times)
    repeated = model(missing="mean").fit(X.iloc[rows], y.iloc[rows])
    assert weighted.fill_ == pytest.approx(repeated.fill_)
    frame = pl.DataFrame(X.iloc[:, :2].to_dict("list") | {"y": y, "w": times})
    source = open_source(frame, target="y", weight="w", missing="mean")
    assert source.fill["a"] == pytest.approx(repeated.fill_["a"])


def test_a_model_of_complete_rows_fills_with_their_means_once_it_is_told_to():
    rng = np.random.default_rng(0)
    X = rng.normal(3, 1, (60, 2))
    fitted = model().fit(X, X @ [1.0, 2.0])
    gap = [[np.nan, 1.0]]
    with pytest.raises(ValueError, match=r'Input X contains NaN .*missing="mean"'):
        fitted.predict(gap)
    filled = fitted.set_params(missing="mean").predict(gap)
    np.testing.assert_allclose(filled, fitted.predict([[X[:, 0].mean(), 1.0]]))


def test_a_stream_fills_with_the_means_of_its_first_batch():
    rng = np.random.default_rng(0)
    X = rng.normal(3, 1, (200, 2))
    y, X[3, 0] = X @ [1.0, 2.0], np.nan
    stream = model(missing="mean")
    for part in (slice(0, 100), slice(100, 200)):
        stream.partial_fit(X[part], y[part])
    assert stream.fill_["x0"] == np.nanmean(X[:100, 0])


@pytest.mark.parametrize("output", ["default", "pandas"])
def test_text_goes_through_a_pipeline(output):
    columns, y = table()
    X = pd.DataFrame({"city": columns["code"].astype(str), "age": columns["age"]})
    scaled = make_column_transformer((StandardScaler(), ["age"]), remainder="passthrough")
    pipeline = make_pipeline(scaled.set_output(transform=output), model()).fit(X, y)
    assert pipeline.score(X, y) > 0.99
    assert model().fit(X, y).score(X, y) == pytest.approx(pipeline.score(X, y), abs=1e-3)


@pytest.mark.parametrize("y", [["yes", "no"] * 10, np.array(["yes", "no"] * 10), "series"])
def test_text_targets_are_for_the_classifier(y):
    y = pd.Series(["yes", "no"] * 10) if isinstance(y, str) else y
    with pytest.raises(ValueError, match=r"text, such as 'yes'.*SecondOrderClassifier"):
        model().fit(np.arange(40.0).reshape(20, 2), y)


def test_complex_rows_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match=re.escape("np.hstack([X.real, X.imag])")) as caught:
        model().fit(np.ones((4, 2)) * 1j, np.arange(4))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "form", [np.asarray, csr_array, lambda X: pd.DataFrame(X, columns=["a", "b"])]
)
def test_infinite_entries_are_named_by_row_and_column(form):
    X = np.random.default_rng(0).normal(size=(30, 2))
    X[7, 1] = np.inf
    name = "b" if hasattr(form(X), "columns") else "x1"
    where = re.escape(f"infinity, first in row 7 (counted from 0) of column '{name}'")
    with pytest.raises(ValueError, match=where):
        model().fit(form(X), np.arange(30.0))


def test_a_constant_target_is_warned_of():
    X = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.warns(UserWarning, match="target is 3 in every row, so the model is constant"):
        model().fit(X, np.full(30, 3.0))


def test_negative_targets_of_a_positive_model_are_warned_of():
    X = np.random.default_rng(0).normal(size=(60, 2))
    retrieval = model(psd=True, fit_linear=False, fit_intercept=False)
    with pytest.warns(UserWarning, match="predicts no negative numbers with psd=True"):
        retrieval.fit(X, -(X[:, 0] ** 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        retrieval.fit(X, X[:, 0] ** 2)
        model(psd=True).fit(X, X[:, 0] - 5)  # the intercept is negative


def test_the_prediction_of_a_dask_array_is_lazy():
    X = np.random.default_rng(0).normal(size=(60, 2))
    target = X[:, 0] * X[:, 1] + X[:, 1]
    fitted = model(uncertainty=True).fit(X, target)
    computed = []

    def noted(block):
        computed.append(len(block))
        return block

    rows = da.from_array(X, chunks=(25, 1)).map_blocks(noted, dtype=float, meta=np.empty((0, 0)))
    y, std = fitted.predict(rows, return_std=True)
    assert isinstance(y, da.Array)
    assert y.shape == std.shape == (60,)
    assert y.dtype == np.float64
    assert not computed
    np.testing.assert_array_equal(y.compute(), fitted.predict(X))
    np.testing.assert_array_equal(std.compute(), fitted.predict(X, return_std=True)[1])
    assert fitted.score(rows, target) == fitted.score(X, target)
    with pytest.raises(ValueError, match="X has 1 features, but the model was fitted to 2"):
        fitted.predict(rows[:, :1])


def test_the_prediction_of_a_dask_frame_is_lazy():
    columns, y = table()
    X = pd.DataFrame(columns)
    fitted = model(categorical_features=["code"], missing="mean").fit(X, y)
    X.loc[::50, "age"] = np.nan
    rows = dd.from_pandas(X, npartitions=3)
    predicted = fitted.predict(rows)
    assert isinstance(predicted, da.Array)
    np.testing.assert_array_equal(predicted.compute(), fitted.predict(X))
    again = clone(fitted).fit(rows, dd.from_pandas(pd.Series(y), 3))
    assert again.interactions_.names == fitted.interactions_.names
    with pytest.raises(ValueError, match=r"different order\. The model was fitted to code, age"):
        fitted.predict(rows[["age", "code"]])


def test_a_diagnosis_with_rows_names_columns_of_codes():
    rng = np.random.default_rng(0)
    store, size = rng.integers(1, 21, 500), rng.integers(1, 9, 500)
    X = pd.DataFrame({"store": store, "size": size})
    y = rng.normal(0, 3, 21)[store] + size + rng.normal(size=500)
    text = model().fit(X, y).diagnose(X, y)
    assert "columns: store holds whole numbers that look like ids or codes" in text
    assert "categorical_features=['store']" in text
    assert "columns: size" not in text
    assert "columns:" not in model(categorical_features=["store"]).fit(X, y).diagnose(X, y)
