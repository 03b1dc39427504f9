"""An ONNX graph predicts what the model predicts, in any runtime."""

import json
import sys
from functools import cache

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from contract.tables import labels_of, low_rank
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    open_source,
    to_onnx,
)

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

TABLE = low_rank(300, 4, 2, kind="mixed", sigma=0.3)
X, Y = TABLE.X, TABLE.y
FAR = 8 * X + 3  # many training ranges away
RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(np.exp(TABLE.truth / 4))
LABELS = labels_of(TABLE)
THREE = np.array(["high", "low", "middle"])[np.digitize(Y, np.quantile(Y, [0.3, 0.7]))]
FRAME = pd.DataFrame(
    {
        "city": RNG.choice(["Oslo", "Rome", "Zürich"], 300),
        "age": np.where(np.arange(300) % 7, X[:, 0], np.nan),
        "code": RNG.choice(["a", "b"], 300),
        "size": X[:, 1],
    }
)
RATINGS = pd.DataFrame(
    {"user": RNG.integers(0, 30, 600).astype(str), "film": RNG.integers(0, 20, 600).astype(str)}
)
TASTE, STYLE = RNG.standard_normal(30), RNG.standard_normal(20)
STARS = (TASTE[RATINGS.user.astype(int)] * STYLE[RATINGS.film.astype(int)]).astype(float)
STARS += 0.3 * RNG.standard_normal(600)

NUMBERS = {
    "default": lambda: SecondOrderRegressor(random_state=0).fit(X, Y),
    "linear": lambda: SecondOrderRegressor(0, pairs=None).fit(X, Y),
    "low rank": lambda: SecondOrderRegressor(2, alpha=1.0, random_state=0).fit(X, Y),
    "pairs": lambda: SecondOrderRegressor(0, pairs=[(0, 1), (1, 1)]).fit(X, Y),
    "no intercept": lambda: SecondOrderRegressor(1, fit_intercept=False).fit(X, Y),
    "free": lambda: SecondOrderRegressor(2, extrapolation="free").fit(X, Y),
    "huber": lambda: SecondOrderRegressor(loss="huber", random_state=0).fit(X, Y),
    "poisson": lambda: SecondOrderRegressor(1, loss="poisson").fit(X, COUNTS),
    "linear poisson": lambda: SecondOrderRegressor(0, loss="poisson").fit(X, COUNTS),
    "cross-validation": lambda: SecondOrderRegressorCV([0, 2], [1.0], cv=3).fit(X, Y),
    "stream": lambda: SecondOrderRegressor(2, random_state=0).partial_fit(X, Y),
    "factorization machine": lambda: FactorizationMachineRegressor(2).fit(X, Y),
    "machine of counts": lambda: FactorizationMachineRegressor(2, loss="poisson").fit(X, COUNTS),
    "classifier": lambda: SecondOrderClassifier(random_state=0).fit(X, LABELS),
    "linear classifier": lambda: SecondOrderClassifier(0, pairs=None).fit(X, LABELS),
    "three classes": lambda: SecondOrderClassifier(random_state=0).fit(X, THREE),
    "three classes apart": lambda: SecondOrderClassifier(1, alpha=0.0).fit(X, THREE),
    "labels in a stream": lambda: SecondOrderClassifier(1, random_state=0).partial_fit(
        X, LABELS, classes=[0, 1]
    ),
    "huber machine": lambda: FactorizationMachineRegressor(1, loss="huber").fit(X, Y),
    "machine of labels": lambda: FactorizationMachineClassifier(1).fit(X, LABELS),
    "machine of classes": lambda: FactorizationMachineClassifier(1).fit(X, THREE),
}


@cache
def fitted(name):
    return NUMBERS[name]()


@cache
def machine():
    return FactorizationMachineRegressor(random_state=0).fit(RATINGS, STARS)


def run(model, inputs, **options):
    """Return the outputs of the graph by their names."""
    data = to_onnx(model, **options).SerializeToString()
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def columns_of(frame):
    return {name: frame[name].to_numpy(object if frame[name].dtype != float else None)
            for name in frame}  # fmt: skip


def assert_parity(model, outputs, rows, tolerance=1e-10):
    if not hasattr(model, "classes_"):
        expected, got = model.predict(rows), outputs["y"]
    else:
        expected, got = model.predict_proba(rows), outputs["probabilities"]
        assert outputs["label"].tolist() == model.predict(rows).tolist()
    assert got.shape == expected.shape
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * scale)


SMOKE = ("default", "three classes", "poisson")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.smoke] * (name in SMOKE)) for name in NUMBERS],
)
def test_the_graph_predicts_what_the_model_predicts(name):
    model = fitted(name)
    assert_parity(model, run(model, {"X": X}), X)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # the rows are meant to be far away
@pytest.mark.parametrize("name", NUMBERS)
def test_the_graph_extrapolates_as_the_model_does(name):
    model = fitted(name)
    assert_parity(model, run(model, {"X": FAR}), FAR, 1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64", None])
@pytest.mark.parametrize("shift", [0, 1e4, 3e6])
def test_single_precision_and_features_far_from_zero_cost_no_digits(dtype, shift):
    rows = (X + shift * np.arange(1, 5)).astype("f4")
    model = SecondOrderRegressor(2, alpha=0.0, random_state=0).fit(rows, Y)
    outputs = run(model, {"X": rows.astype(dtype or "f4")}, dtype=dtype)
    assert outputs["y"].dtype == np.dtype(dtype or "f4")
    # float32 has seven digits.
    assert_parity(model, outputs, rows, 1e-5)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_any_number_of_rows_will_do(n):
    got = run(fitted("low rank"), {"X": X[:n]})["y"]
    np.testing.assert_allclose(got, fitted("low rank").predict(X)[:n], rtol=1e-10)


@pytest.mark.parametrize(
    "labels", [LABELS.astype(bool), 5 * LABELS - 2, np.where(LABELS, "y", "n")]
)
def test_labels_are_those_of_the_rows(labels):
    model = SecondOrderClassifier(1, alpha=1.0).fit(X, labels)
    assert_parity(model, run(model, {"X": X}), X)


@pytest.mark.parametrize("kind", [SecondOrderRegressor, SecondOrderClassifier])
def test_columns_of_a_table_are_inputs_in_their_order_and_gaps_are_filled(kind):
    target = Y if kind is SecondOrderRegressor else THREE
    model = kind(1, alpha=1.0, missing="mean").fit(FRAME, target)
    assert [node.name for node in to_onnx(model).graph.input] == list(FRAME)
    assert_parity(model, run(model, columns_of(FRAME)), FRAME)
    new = FRAME[:9].assign(city="Bergen")
    with pytest.warns(UserWarning, match="city"):
        expected = model.predict(new)
    got = next(iter(run(model, columns_of(new)).values()))
    if kind is SecondOrderRegressor:
        np.testing.assert_allclose(got, expected, rtol=1e-10)
    else:
        assert got.tolist() == expected.tolist()


def test_a_missing_text_is_the_level_of_missing_texts():
    frame = FRAME.assign(city=FRAME.city.where(np.arange(300) % 5 > 0, None))
    model = SecondOrderRegressor(1, alpha=1.0, missing="mean").fit(frame, Y)
    inputs = columns_of(frame.assign(city=frame.city.fillna("missing")))
    assert_parity(model, run(model, inputs), frame)


def test_gaps_that_a_source_filled_are_filled_by_the_graph():
    rows = X.copy()
    rows[::7, 1] = np.nan
    model = SecondOrderRegressor(2, alpha=1.0).fit(open_source(rows, target=Y, missing="mean"))
    assert_parity(model, run(model, {"X": rows}), open_source(rows, fill=model.fill_))
    assert np.isnan(run(fitted("low rank"), {"X": rows})["y"][::7]).all()  # it has no fill


@pytest.mark.parametrize("kind", [FactorizationMachineRegressor, FactorizationMachineClassifier])
def test_a_factorization_machine_takes_text(kind):
    labels = kind is FactorizationMachineClassifier
    model = kind(2, random_state=0).fit(RATINGS, STARS > 0) if labels else machine()
    assert_parity(model, run(model, columns_of(RATINGS)), RATINGS)
    new = pd.DataFrame({"user": ["stranger", "1"], "film": ["3", "unknown"]})
    with pytest.warns(UserWarning, match="user"):
        expected = model.predict_proba(new) if labels else model.predict(new)
    got = run(model, columns_of(new))["probabilities" if labels else "y"]
    np.testing.assert_allclose(got, expected, rtol=1e-10)


def test_a_factorization_machine_looks_its_levels_up():
    graph = onnx.shape_inference.infer_shapes(to_onnx(machine())).graph
    widths = [
        dim.dim_value for value in graph.value_info for dim in value.type.tensor_type.shape.dim
    ]
    assert max(widths) < 20  # no array has a column for each of the levels, 30 users and 20 films
    assert "Gather" in {node.op_type for node in graph.node}


def test_names_of_features_and_the_class_are_in_the_metadata():
    frame = pd.DataFrame(X, columns=list("abcd"))
    graph = to_onnx(SecondOrderRegressor(1, alpha=1.0).fit(frame, Y))
    about = {prop.key: prop.value for prop in graph.metadata_props}
    assert json.loads(about["feature_names"]) == list("abcd")
    assert about["class"] == "SecondOrderRegressor"
    assert ([i.name for i in graph.graph.input], [o.name for o in graph.graph.output]) == (
        ["X"],
        ["y"],
    )


def test_the_file_is_the_graph_that_is_returned(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    for form in (path, str(path)):
        assert to_onnx(fitted("linear"), form) == onnx.load(path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_what_a_graph_cannot_hold_is_refused(monkeypatch):
    with pytest.raises(NotFittedError):
        to_onnx(SecondOrderRegressor())
    with pytest.raises(ValueError, match="int32"):
        to_onnx(fitted("linear"), dtype="int32")
    with pytest.raises(ValueError, match="draws"):
        to_onnx(FactorizationMachineRegressor(1, draws=5).fit(RATINGS, STARS))
    for measured in (PhaseRetriever(random_state=0), MatrixSensing(1, random_state=0)):
        with pytest.raises(TypeError, match=type(measured).__name__):
            to_onnx(measured.fit(X, X[:, 0] ** 2))
    clash = FRAME.drop(columns="age").rename(columns={"size": "y"})
    with pytest.raises(ValueError, match="'y'"):
        to_onnx(SecondOrderRegressor(1, alpha=1.0).fit(clash, Y))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"quadlin\[onnx\]"):
        to_onnx(fitted("linear"))
