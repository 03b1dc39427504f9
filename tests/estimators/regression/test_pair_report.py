"""What a model says of its pairs: the frame, pairs that could be exchanged, other runtimes."""

import numpy as np
import pytest
from dask import array as da

from quadlin import SecondOrderClassifier, SecondOrderRegressor

COLUMNS = ["first", "second", "coefficient", "std_error", "t", "p", "share", "order"]


def drawn(n=400):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 6))
    f = X[:, 0] + X[:, 1] * X[:, 2] - 2 * X[:, 3] * X[:, 4]
    return X, f, f + 0.5 * rng.standard_normal(n)


def labelled(n=400):
    X, f, _ = drawn(n)
    return X, np.random.default_rng(1).random(n) < 1 / (1 + np.exp(-f))


def test_the_frame_has_names_coefficients_tests_shares_and_the_order_of_entry():
    X, _, y = drawn()
    model = SecondOrderRegressor(rank=0, alpha=0.0, pairs=2).fit(X, y)
    frame = model.pairs_.to_frame()
    assert list(frame.columns) == COLUMNS
    assert list(zip(frame["first"], frame["second"], strict=True)) == [("x3", "x4"), ("x1", "x2")]
    np.testing.assert_allclose(frame["t"], frame["coefficient"] / frame["std_error"])
    assert frame["order"].tolist() == [1, 2]
    # A share is what R² falls by without the pair: three dense regressions.
    A = np.column_stack([np.ones(400), X, X[:, 3] * X[:, 4], X[:, 1] * X[:, 2]])
    losses = [np.linalg.lstsq(np.delete(A, k, 1), y, rcond=None)[1][0] for k in (7, 8)]
    whole = np.linalg.lstsq(A, y, rcond=None)[1][0]
    np.testing.assert_allclose(frame["share"], (losses - whole) / (400 * y.var()), rtol=1e-6)


@pytest.mark.parametrize("kind", [SecondOrderRegressor, SecondOrderClassifier])
def test_a_model_names_pairs_that_could_stand_for_each_other(kind):
    X, f, _ = drawn()
    X[:, 5] = X[:, 4] + 0.02 * np.random.default_rng(2).standard_normal(400)
    y = f + np.random.default_rng(3).logistic(size=400)
    model = kind(rank=0, alpha=1.0, pairs=2).fit(X, y > 0 if kind is SecondOrderClassifier else y)
    exchanges = {frozenset((e.taken, e.other)) for e in model.pairs_.exchangeable}
    assert frozenset((("x3", "x4"), ("x3", "x5"))) in exchanges
    assert "would do about as well as" in str(model.pairs_)


def test_a_hierarchy_of_labels_leaves_pairs_without_main_effects_out():
    X, y = labelled()
    taken = {
        hierarchy: len(
            SecondOrderClassifier(0, pairs=2, hierarchy=hierarchy).fit(X, y).pairs_.pairs
        )
        for hierarchy in (None, "strong")
    }
    assert taken == {None: 2, "strong": 0}


def test_pairs_of_labels_are_the_same_on_threads_and_on_a_cluster():
    X, y = labelled()
    options = {"rank": 0, "alpha": 1.0, "pairs": 2, "random_state": 0}
    here = SecondOrderClassifier(**options).fit(X, y)
    threads = SecondOrderClassifier(**options).fit(X, y, engine=2)
    lazy = SecondOrderClassifier(**options).fit(
        da.from_array(X, (150, 6)), da.from_array(y.astype(int), 150)
    )
    expected = here.predict_proba(X)
    for other in (threads, lazy):
        assert [p[:2] for p in other.pairs_.pairs] == [p[:2] for p in here.pairs_.pairs]
        np.testing.assert_allclose(other.predict_proba(X), expected, atol=1e-8)


def test_other_runtimes_predict_with_the_pairs():
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from quadlin.export.onnx import to_onnx

    X, _, y = drawn()
    y = y + 0.3 * X.sum(axis=1) ** 2
    model = SecondOrderRegressor(1, alpha=0.1, pairs=2, random_state=0).fit(X, y)
    assert len(model.pairs_.pairs) == 2
    session = runtime.InferenceSession(to_onnx(model).SerializeToString())
    name = session.get_inputs()[0].name
    predicted = session.run(["y"], {name: X})[0]
    np.testing.assert_allclose(np.ravel(predicted), model.predict(X), rtol=1e-6, atol=1e-6)
