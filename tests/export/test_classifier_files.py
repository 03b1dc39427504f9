"""Classifiers in files: saved and loaded, and as ONNX graphs."""

import json

import numpy as np
import pandas as pd
import pytest

from quadlin import FactorizationMachineClassifier, SecondOrderClassifier, load, save, to_onnx
from quadlin.storage.tensor_file import FileFormatError, read_tensors, write_tensors

RNG = np.random.default_rng(0)
X = RNG.standard_normal((400, 3))
F = 2 * X[:, 0] * X[:, 1] + X[:, 2] + RNG.logistic(size=400)
LABELS = {
    "text": np.where(F > 0, "yes", "no"),
    "objects": np.where(F > 0, "yes", "no").astype(object),
    "whole numbers": np.digitize(F, [-1, 1]) * 10,
    "truths": F > 0,
}


def fitted(y, **options):
    return SecondOrderClassifier(1, alpha=1.0, random_state=0, **options).fit(X, y)


@pytest.mark.parametrize("y", LABELS.values(), ids=LABELS)
def test_a_classifier_comes_back_from_a_file(y, tmp_path):
    model = fitted(y, class_weight={np.asarray(y).tolist()[0]: 2.0})
    save(model, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert type(again) is SecondOrderClassifier
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.classes_, model.classes_)
    assert again.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_a_stream_of_labels_goes_on_after_loading(tmp_path):
    y = LABELS["whole numbers"]
    model = SecondOrderClassifier(1, alpha=1.0, batch_size=50, random_state=0)
    model.partial_fit(X[:250], y[:250], classes=[0, 10, 20])
    save(model, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors").partial_fit(X[250:], y[250:])
    model.partial_fit(X[250:], y[250:])
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("classes", None),
        ("classes", {"kind": "i", "labels": [1, 0]}),
        ("classes", {"kind": "i", "labels": [0, 1, 2]}),
        ("classes", {"kind": "U", "labels": ["a", "a"]}),
        ("other_classes", None),
        ("class", "SecondOrderRegressor"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(part, value, tmp_path):
    path = tmp_path / "m.safetensors"
    save(fitted(F > 0), path)
    tensors, header = read_tensors(path, kind="model")
    header = {**json.loads(json.dumps(header)), part: value}
    write_tensors(path, tensors, header, kind="model")
    with pytest.raises(FileFormatError):
        load(path)


@pytest.mark.parametrize("y", LABELS.values(), ids=LABELS)
def test_an_onnx_graph_gives_labels_and_probabilities(y):
    runtime = pytest.importorskip("onnxruntime")
    model = fitted(y)
    session = runtime.InferenceSession(to_onnx(model).SerializeToString())
    label, P = session.run(["label", "probabilities"], {"X": X})
    np.testing.assert_allclose(P, model.predict_proba(X), atol=1e-12)
    np.testing.assert_array_equal(label, model.predict(X))


def test_an_onnx_graph_of_a_machine_takes_text():
    runtime = pytest.importorskip("onnxruntime")
    rows = pd.DataFrame({"city": RNG.choice(["Oslo", "Rome"], 400), "age": X[:, 0]})
    model = FactorizationMachineClassifier(1, alpha=1.0, random_state=0).fit(rows, LABELS["text"])
    session = runtime.InferenceSession(to_onnx(model).SerializeToString())
    given = {"city": rows["city"].to_numpy(dtype=object), "age": X[:, 0]}
    label, P = session.run(None, given)
    np.testing.assert_allclose(P, model.predict_proba(rows), atol=1e-12)
    assert label.tolist() == model.predict(rows).tolist()
