"""Rows and targets that cannot be used: the message says which, and what to do."""

import dask.array
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csc_array, csr_matrix
from sklearn.base import clone

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    open_source,
)


def rows(n=40, d=3, dtype=np.float64):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)).astype(dtype)
    return X, (X[:, 0] + X[:, 1] * X[:, 2]).astype(dtype)


@pytest.mark.parametrize(
    "estimator",
    [SecondOrderRegressor(), SecondOrderRegressorCV(cv=2), PhaseRetriever(), MatrixSensing()],
    ids=lambda e: type(e).__name__,
)
def test_a_missing_target_is_named_by_its_row(estimator):
    X, y = rows()
    y = y**2
    y[[7, 9]] = np.nan
    words = r"y contains NaN.*first in row 7 \(counted from 0\); 2 of the 40 targets"
    with pytest.raises(ValueError, match=words):
        estimator.fit(X, y)
    y[[7, 9]] = 1.0, np.inf
    with pytest.raises(ValueError, match=r"y contains infinity.*row 9 "):
        estimator.fit(X, y)


@pytest.mark.parametrize("estimator", [SecondOrderClassifier(), FactorizationMachineClassifier()])
def test_a_missing_label_is_named_by_its_row(estimator):
    X, y = rows()
    labels = (y > 0).astype(float)
    labels[5] = np.nan
    with pytest.raises(ValueError, match="row 5 "):
        estimator.fit(X, labels)
    words = np.where(y > 0, "yes", "no").astype(object)
    words[6] = None
    with pytest.raises(ValueError, match="row 6 "):
        estimator.fit(X, words)


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix, pl.DataFrame, pd.DataFrame])
def test_a_missing_value_of_x_is_named_by_its_row_and_column(kind):
    X, y = rows()
    X[4, 2] = np.nan
    if kind in (pl.DataFrame, pd.DataFrame):
        X, column = kind({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}), "c"
    else:
        X, column = kind(X), "x2"
    with pytest.raises(ValueError, match=rf"row 4 \(counted from 0\) of column '{column}'"):
        SecondOrderRegressor().fit(X, y)


def test_tensors_of_single_precision_stay_so_without_array_api_dispatch():
    torch = pytest.importorskip("torch")
    X, y = rows(200, dtype=np.float32)
    model = SecondOrderRegressor(2, alpha=0.1, random_state=0)
    oracle = model.fit(X, y).predict(X)
    model.fit(torch.asarray(X), torch.asarray(y))
    predicted = model.predict(torch.asarray(X))
    assert predicted.dtype == np.float32
    assert model.coef_.dtype == np.float32
    np.testing.assert_array_equal(predicted, oracle)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_marks_of_missing_values_in_frames_are_noticed(frame):
    rng = np.random.default_rng(0)
    power, y = rng.integers(1, 9, 60).astype(str), rng.standard_normal(60)
    power[3] = "?"
    with pytest.warns(UserWarning, match=r"'power' has '\?'.*to_numeric.*missing=\"mean\""):
        SecondOrderRegressor(1, alpha=1.0).fit(frame({"power": power, "x": y**2}), y)
    city = np.where(power == "?", "?", "Oslo").astype(object)
    city[::2] = "Rome"
    city[5] = "?"
    with pytest.warns(UserWarning, match=r"'city' has '\?'.*treated as a level"):
        SecondOrderRegressor(1, alpha=1.0).fit(frame({"city": city, "x": y**2}), y)


DAYS = pd.date_range("2024-01-01", periods=20)


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame({"when": DAYS, "a": np.arange(20.0)}),
        pd.DataFrame({"when": DAYS.tz_localize("UTC"), "a": ["x", "y"] * 10}),
        pd.DataFrame({"when": DAYS - DAYS[0]}),
        pl.DataFrame({"when": DAYS.to_numpy(), "a": np.arange(20.0)}),
        DAYS.to_numpy()[:, None],
    ],
    ids=["pandas", "with text", "durations", "polars", "array"],
)
def test_dates_are_not_taken_for_numbers(rows):
    y = np.arange(20.0)
    with pytest.raises(ValueError, match=r"holds dates or times .*days since a start"):
        SecondOrderRegressor().fit(rows, y)
    with pytest.raises(ValueError, match=r"y holds dates or times"):
        SecondOrderRegressor().fit(y[:, None], DAYS)
    model = SecondOrderRegressor(1).fit(np.column_stack([y, y**2])[:, : np.shape(rows)[1]], y)
    with pytest.raises(ValueError, match=r"holds dates or times"):
        model.predict(rows)


@pytest.mark.parametrize(
    "model", [SecondOrderRegressor(), FactorizationMachineRegressor(), SecondOrderClassifier()]
)
def test_one_row_is_refused_wherever_it_comes_from(model):
    X, y = np.array([[1.0, 2.0]]), np.array([0.0])
    for given in ((X, y), (open_source(X, target=y),), (dask.array.from_array(X), y)):
        with pytest.raises(ValueError, match=r"at least 2|minimum of 2|at least two classes"):
            clone(model).fit(*given)
    with pytest.warns(UserWarning, match="There are only 2 rows"):
        clone(model).fit(np.eye(2), [0, 1])


def broken_sparse(kind):
    rows = np.random.default_rng(0).random((40, 30))
    X = csc_array(rows * (rows > 0.8)) if kind == "csc" else csr_matrix(rows * (rows > 0.8))
    if kind == "pointer":
        X.indptr[5] = 10**8
    else:
        X.indices[7] = -5 if kind == "negative" else 10**8
    return X


@pytest.mark.parametrize("kind", ["far", "negative", "pointer", "csc"])
def test_sparse_rows_that_point_outside_of_themselves_are_refused(kind):
    # The kernel, and scipy's own conversions, would read and write memory that is not theirs.
    X, y = broken_sparse(kind), np.arange(40.0)
    sound = csr_matrix(np.random.default_rng(1).random((40, 30)))
    model = SecondOrderRegressor(rank=1, alpha=1.0).fit(sound, y)
    sensing, phase = MatrixSensing(rank=1), PhaseRetriever()
    calls = [
        lambda: SecondOrderRegressor().fit(X, y),
        lambda: SecondOrderRegressor().partial_fit(X, y),
        lambda: FactorizationMachineRegressor().fit(X, y),
        lambda: model.predict(X),
        lambda: sensing.fit(X, y),
        lambda: sensing.fit((sound, X), y),
        lambda: phase.fit(X, y),
        lambda: open_source(X, target=y),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="broken sparse array"):
            call()
