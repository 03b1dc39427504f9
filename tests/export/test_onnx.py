import os

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    open_source,
)
from quadlin.datasets import make_second_order
from quadlin.export.onnx import to_onnx

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
DATA = make_second_order(600, 6, rank=2, distribution="mixed", noise=0.1, random_state=0)


def run(model, inputs):
    session = runtime.InferenceSession(model.SerializeToString())
    return session.run(["y"], inputs)[0]


def assert_close(got, expected, tolerance=1e-5):
    assert got.shape == expected.shape
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * scale)


@settings(max_examples=12)
@given(
    kind=st.sampled_from([np.float32, np.float64]),
    given_as=st.sampled_from([None, "float32", "float64"]),
    rank=st.sampled_from([0, 1, 2, 6]),
    diagonal=st.sampled_from(["auto", "zero", [True, False, False, True, False, False]]),
    intercept=st.booleans(),
)
def test_the_graph_predicts_what_the_model_predicts(kind, given_as, rank, diagonal, intercept):
    X = DATA.X.astype(kind)
    options = {"rank": rank, "diagonal": diagonal, "fit_intercept": intercept, "random_state": 0}
    try:
        model = SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}).fit(X, DATA.y)
    except ValueError:  # the square of a two-valued feature was asked for
        return
    rows = X.astype(given_as or kind)
    got = run(to_onnx(model, dtype=given_as), {"X": rows})
    assert got.dtype == rows.dtype
    assert_close(got, model.predict(rows), 1e-5)


@pytest.mark.parametrize(
    ("kind", "shift"), [(np.float32, 1e4), (np.float32, 3e6), (np.float64, 1e4)]
)
def test_features_far_from_zero_cost_no_digits(kind, shift):
    X = (DATA.X + shift * np.arange(1, 7)).astype(kind)
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(X, DATA.y)
    assert_close(run(to_onnx(model), {"X": X}), model.predict(X), 1e-5)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_any_number_of_rows_will_do(n):
    model = FactorizationMachineRegressor(rank=2, random_state=0, alpha=0.0).fit(DATA.X, DATA.y)
    got = run(to_onnx(model), {"X": DATA.X[:n]})
    assert_close(np.append(got, 1.0), np.append(model.predict(DATA.X)[:n], 1.0))


def test_a_model_chosen_by_cross_validation_becomes_a_graph():
    model = SecondOrderRegressorCV(ranks=[1], alphas=[1.0], random_state=0).fit(DATA.X, DATA.y)
    assert_close(run(to_onnx(model), {"X": DATA.X}), model.predict(DATA.X))


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "city": rng.choice(["Rome", "Oslo", "Zürich"], n),
            "age": rng.integers(0, 90, n),
            "kind": rng.choice(["a", "b"], n),
            "member": rng.random(n) < 0.5,
        }
    )


def columns(frame):
    texts = ("city", "kind")
    return {
        name: np.asarray(frame[name].to_list(), dtype=object if name in texts else np.float64)
        for name in frame.columns
    }


def test_text_columns_are_inputs_of_their_own_and_unseen_levels_are_none_of_the_known():
    frame = table(500)
    rng = np.random.default_rng(1)
    y = (frame["city"] == "Rome").to_numpy() * frame["age"].to_numpy() + rng.standard_normal(500)
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(frame, y)
    graph = to_onnx(model)
    assert [i.name for i in graph.graph.input] == frame.columns
    assert_close(run(graph, columns(frame)), model.predict(frame))
    new = table(20, 2).with_columns(city=pl.lit("Bonn"))
    with pytest.warns(UserWarning, match="did not see"):
        expected = model.predict(new)
    assert_close(run(graph, columns(new)), expected)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_was_filled_in_the_fit_is_filled_in_the_graph(kind):
    X = DATA.X.astype(kind)
    X[::7, 1], X[::5, 0] = np.nan, np.nan
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0)
    model.fit(open_source(X, target=DATA.y, missing="mean"))
    expected = model.predict(open_source(X, fill=model.fill_))
    assert np.isfinite(expected).all()
    assert_close(run(to_onnx(model), {"X": X}), expected)


def test_missing_numbers_and_texts_of_a_table_are_filled_in_the_graph():
    frame, y = table(500), np.random.default_rng(1).standard_normal(500)
    every = pl.int_range(pl.len())
    frame = frame.with_columns(
        age=pl.when(every % 7 > 0).then("age"), city=pl.when(every % 5 > 0).then("city")
    )
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0)
    model.fit(open_source(frame, target=y, missing="mean"))
    rows = open_source(frame, encoder=model.encoder_, fill=model.fill_)
    given = columns(frame.with_columns(city=pl.col("city").fill_null("missing")))
    assert_close(run(to_onnx(model), given), model.predict(rows))


def test_means_of_counts_are_held_in_the_graph_as_well():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(300, 2))
    y = rng.poisson(np.exp(1 + 2 * X[:, 0]))
    model = SecondOrderRegressor(loss="poisson", rank=0, alpha=0.0, random_state=0).fit(X, y)
    rows = np.array([[0.5, 0.0], [2.9, 0.0]])
    expected = model.predict(rows)
    assert expected[1] == pytest.approx(2 * y.max())
    assert_close(run(to_onnx(model), {"X": rows}), expected)


def test_a_column_with_the_name_of_the_output_is_refused_in_words():
    frame = table(200).rename({"age": "y"})
    model = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).fit(frame, np.arange(200.0))
    with pytest.raises(ValueError, match="Rename the column"):
        to_onnx(model)


def test_the_names_of_features_are_in_the_metadata():
    frame = pl.DataFrame(DATA.X, schema=list("abcdef"))
    model = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).fit(frame, DATA.y)
    session = runtime.InferenceSession(to_onnx(model).SerializeToString())
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata == {
        "feature_names": '["a", "b", "c", "d", "e", "f"]',
        "class": "SecondOrderRegressor",
    }


def test_the_file_is_the_model_and_nothing_is_left_beside_it(tmp_path):
    model = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).fit(DATA.X, DATA.y)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    made = to_onnx(model, path)
    assert onnx.load(path) == made
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_what_cannot_be_is_refused():
    with pytest.raises(NotFittedError):
        to_onnx(SecondOrderRegressor(rank=5, alpha=0.0))
    model = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).fit(DATA.X, DATA.y)
    with pytest.raises(ValueError, match="float64"):
        to_onnx(model, dtype="int32")
