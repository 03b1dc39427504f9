"""Every option of the classifiers with two classes and with three."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from quadlin import FactorizationMachineClassifier, SecondOrderClassifier, load, save

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 3))
LOG_ODDS = np.stack([X[:, 0] * X[:, 1], X[:, 1] + X[:, 2], -X[:, 0]], axis=1)
THREE = np.argmax(2 * LOG_ODDS + RNG.gumbel(size=(120, 3)), axis=1)
HOLES = np.where(RNG.uniform(size=X.shape) < 0.05, np.nan, X)
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "city": np.where(X[:, 2] > 0, "Oslo", "Rome")})
GIVEN = {"rank": 1, "alpha": 1.0, "random_state": 0}

OPTIONS = {
    "missing": ({"missing": "mean"}, HOLES),
    "missing in a frame": ({"missing": "mean"}, FRAME.mask(RNG.uniform(size=(120, 3)) < 0.05)),
    "text": ({}, FRAME),
    "categories": ({"categorical_features": [2]}, np.round(X)),
    "fields": ({"fields": [[0, 1]]}, np.stack([X[:, 0] > 0, X[:, 0] <= 0, X[:, 2]], axis=1)),
    "sparse": ({}, sparse.csr_matrix(X)),
    "float32": ({}, X.astype(np.float32)),
    "class_weight": ({"class_weight": "balanced"}, X),
    "no linear part": ({"fit_linear": False}, X),
    "no intercept": ({"fit_intercept": False}, X),
    "psd": ({"psd": True}, X),
    "whiten": ({"whiten": "full"}, X),
    "extrapolation": ({"extrapolation": "free"}, X),
    "warm_start": ({"warm_start": True}, X),
    "rank 0": ({"rank": 0}, X),
    "rank d": ({"rank": 3}, X),
}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("option", OPTIONS)
def test_a_classifier_with_any_option_predicts_scores_and_is_saved(tmp_path, option, count):
    given, rows = OPTIONS[option]
    kind = FactorizationMachineClassifier if "fields" in given else SecondOrderClassifier
    labels = np.array(["no", "so", "yes"])[np.minimum(THREE, count - 1)]
    model = kind(**{**GIVEN, **given}).fit(rows, labels)
    model = model.fit(rows, labels) if model.warm_start else model
    p = model.predict_proba(rows)
    assert p.shape == (120, count)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(model.predict(rows), model.classes_[p.argmax(axis=1)])
    assert model.score(rows, labels) > max(np.mean(labels == label) for label in labels)
    assert not model.extrapolates(rows).any()
    save(model, tmp_path / "model.quadlin")
    again = load(tmp_path / "model.quadlin")
    np.testing.assert_allclose(again.predict_proba(rows), p, rtol=1e-12)
    one = model if count == 2 else model.one_vs_rest("so")
    np.testing.assert_allclose(
        one.contributions(rows).prediction, one.decision_function(rows), atol=1e-4
    )


@pytest.mark.parametrize("count", [2, 3])
def test_a_stream_with_missing_values_learns_predicts_and_goes_on(count):
    labels = np.minimum(THREE, count - 1)
    model = SecondOrderClassifier(missing="mean", **GIVEN)
    for part in np.array_split(np.arange(120), 3):
        model.partial_fit(HOLES[part], labels[part], classes=np.arange(count))
    assert np.isfinite(model.predict_proba(HOLES)).all()
    assert model.score(HOLES, labels) > 0.5
