"""Probabilities of several classes from the log-odds of each: how they are combined."""

import numpy as np
import pytest
from scipy.special import expit, log_softmax
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from quadlin import SecondOrderClassifier, load, save, to_onnx
from quadlin.estimators.labels import class_choice
from quadlin.estimators.labels.fitted_classes import log_probabilities, probabilities

F = 5 * np.random.default_rng(0).standard_normal((20, 3))


def test_no_coupling_divides_by_the_sum_and_one_is_a_softmax():
    p = expit(F) / expit(F).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities(F), p)
    np.testing.assert_allclose(probabilities(F, 1.0), np.exp(log_softmax(F, axis=1)))


@pytest.mark.parametrize("coupling", [0.0, 0.5, 1.5])
def test_any_coupling_gives_probabilities_in_the_order_of_the_log_odds(coupling):
    p = probabilities(F, coupling)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    np.testing.assert_allclose(np.log(p), log_probabilities(F, coupling))
    np.testing.assert_array_equal(np.argsort(p, axis=1), np.argsort(F, axis=1))


def test_classes_that_can_be_separated_are_coupled_and_predicted_better(tmp_path, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    X, X_new, y, y_new = train_test_split(
        *load_wine(return_X_y=True), test_size=0.3, random_state=0
    )
    # As with rows that no matrix holds: few rows have scores with one prior for all classes.
    together = SecondOrderClassifier(rank=0, random_state=0).fit(X, y)
    assert len(together.fitted_.joint) == 3
    monkeypatch.setattr(class_choice, "_on_table", lambda *_: None)
    model = SecondOrderClassifier(rank=0, random_state=0).fit(X, y)
    assert model.fitted_.coupling > 0
    p = model.predict_proba(X_new)
    apart = probabilities(model.decision_function(X_new))
    peer = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y).predict_proba(X_new)
    # Measured over five splits: .034, .077 and .054 to .064 for the peer.
    least = min(log_loss(y_new, apart), log_loss(y_new, peer))
    assert max(log_loss(y_new, p), log_loss(y_new, together.predict_proba(X_new))) < least
    save(model, tmp_path / "wine.st")
    np.testing.assert_array_equal(load(tmp_path / "wine.st").predict_proba(X_new), p)
    to_onnx(model, tmp_path / "wine.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "wine.onnx")
    np.testing.assert_allclose(session.run(["probabilities"], {"X": X_new})[0], p, atol=1e-12)


def test_many_rows_and_given_penalties_are_fitted_together():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    y = np.argmax(X @ rng.standard_normal((2, 3)) + rng.gumbel(size=(400, 3)), axis=1)
    many = SecondOrderClassifier(rank=0, random_state=0).fit(X, y).fitted_
    few = SecondOrderClassifier(rank=0, alpha=1.0, random_state=0).fit(X[:40], y[:40]).fitted_
    assert [(fitted.coupling, len(fitted.joint)) for fitted in (many, few)] == [(0, 3), (0, 3)]


def test_a_stream_of_labels_has_no_checkpoint(tmp_path):
    model = SecondOrderClassifier(rank=0, random_state=0)
    with pytest.raises(ValueError, match="save the classifier from time to time"):
        model.partial_fit(F, F[:, 0] > 0, classes=[False, True], checkpoint=tmp_path / "c")
