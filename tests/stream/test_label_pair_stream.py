"""Streams of labels with pairs: searched in the first batch, then fitted to all rows seen once."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from quadlin import FactorizationMachineClassifier, SecondOrderClassifier, load, save
from quadlin.core.chunks import MemorySource
from quadlin.core.losses import curvature, probability
from quadlin.core.rows import Rows

PAIRS = [(1, 2), (3, 4)]
NAMES = {("x1", "x2"), ("x3", "x4")}
GIVEN = {"rank": 0, "alpha": 0.0, "pairs": PAIRS, "random_state": 0}


def drawn(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6))
    f = 0.5 + X[:, 0] + X[:, 1] * X[:, 2] - X[:, 3] * X[:, 4]
    return X, np.where(rng.random(n) < 1 / (1 + np.exp(-f)), "yes", "no")


def streamed(model, X, y, cuts, weight=None):
    for part in np.split(np.arange(len(y)), cuts):
        w = None if weight is None else weight[part]
        model.partial_fit(X[part], y[part], classes=["no", "yes"], sample_weight=w)
    return model


def likelihood(X, y):
    """Return the coefficients of logistic regression on the products and their standard errors."""
    A = np.column_stack([X, *(X[:, i] * X[:, j] for i, j in PAIRS)])
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(A, y)
    p, B = model.predict_proba(A)[:, 1], np.column_stack([np.ones(len(A)), A])
    std = np.sqrt(np.diag(np.linalg.inv(B.T @ ((p * (1 - p))[:, None] * B))))
    return model.coef_[0], std[1:]


@pytest.mark.parametrize("kind", [SecondOrderClassifier, FactorizationMachineClassifier])
def test_given_pairs_are_near_maximum_likelihood_however_the_stream_is_cut(kind):
    X, y = drawn()
    coef, std = likelihood(X, y)
    models = [
        streamed(kind(**GIVEN), X, y, cuts) for cuts in ([700, 701, 1400], range(45, 2000, 97))
    ]
    for model in models:
        report = model.pairs_
        assert {(p.first, p.second) for p in report.pairs} == NAMES
        streamed_coef = np.array([p.coefficient for p in report.pairs])
        # Each batch is one Newton step about the model before it, so that the first ones, about a
        # fit of 180 rows, are off by its squared error: a fraction of a standard error at the end.
        assert (np.abs(streamed_coef - coef[6:]) < 0.35 * std[6:]).all()
        assert (np.abs(model.coef_ - coef[:6]) < 0.35 * std[:6]).all()
        np.testing.assert_allclose([p.std_error for p in report.pairs], std[6:], rtol=0.1)
        assert (report.measure, report.n_rows_fitted) == ("D²", 2000)
        assert model.rank_ == 0
    same = [m.decision_function(X) for m in models]
    np.testing.assert_allclose(same[0], same[1], atol=1e-8)


def test_the_default_finds_pairs_in_the_first_batch_and_each_class_has_its_own():
    X, y = drawn(3000)
    model = streamed(SecondOrderClassifier(random_state=0), X, y, [1000])
    assert {(p.first, p.second) for p in model.pairs_.pairs} == NAMES
    assert model.pairs_.n_rows < 3000 == model.pairs_.n_rows_fitted
    three = np.where(X[:, 5] > 1.2, "other", y)
    options = {"rank": 0, "pairs": 2, "random_state": 0, "batch_size": 1000}
    classes = ["no", "other", "yes"]
    model = SecondOrderClassifier(**options).partial_fit(X, three, classes=classes)
    report = model.one_vs_rest("yes").pairs_
    assert {(p.first, p.second) for p in report.pairs} == NAMES


def test_a_batch_adds_the_least_squares_that_the_deviance_is_about_the_model_before_it():
    X, y = drawn(400)
    model = streamed(SecondOrderClassifier(**GIVEN, batch_size=200), X[:200], y[:200], [])
    running = model.fitted_.stream.state.running
    labels = (y[200:] == "yes").astype(float)
    gram, loss = running.sums(Rows.of(MemorySource(X[200:], labels, None)))
    f = model.decision_function(X[200:])
    h, Z = curvature(f), (X[200:] - running.units.mean) * running.units.scale
    A = np.column_stack([np.ones(200), Z, *(Z[:, i] * Z[:, j] for i, j in PAIRS)])
    target = A @ running.solved.beta + (labels - probability(f)) / h
    A = np.column_stack([A, target])
    np.testing.assert_allclose(gram, A.T @ (h[:, None] * A), rtol=1e-6, atol=1e-6)
    # The history has the log-loss of rows before they were learned.
    expected = np.sum(np.logaddexp(0, f) - labels * f)
    assert loss / 2 == pytest.approx(expected)
    model.partial_fit(X[200:], y[200:])
    assert model.history_[-1].loss == pytest.approx(expected / 200)


def test_pairs_beside_a_low_rank_part_of_log_odds_go_on_with_both():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((6000, 5))
    f = X[:, 0] + 0.4 * X.sum(axis=1) ** 2 - 1.5 + 1.2 * X[:, 1] * X[:, 2]
    y = np.where(rng.random(6000) < 1 / (1 + np.exp(-f)), "yes", "no")
    options = {"rank": 1, "alpha": 0.0, "pairs": [(1, 2)], "random_state": 0}
    stream = streamed(SecondOrderClassifier(**options, batch_size=1000), X, y, [2000, 4000])
    fit = SecondOrderClassifier(**options).fit(X, y)
    assert stream.rank_ == 1
    pair, other = stream.pairs_.pairs[0], fit.pairs_.pairs[0]
    assert abs(pair.coefficient - other.coefficient) < 0.5 * other.std_error
    p, q = stream.predict_proba(X)[:, 1], fit.predict_proba(X)[:, 1]
    # Six parameters more than the pair from 6,000 rows: errors of probabilities of about .01.
    assert np.sqrt(np.mean((p - q) ** 2)) < 0.01


def test_weights_are_repetitions_and_sparse_rows_are_the_same():
    X, y = drawn(600)
    weight = 1.0 + np.arange(600) % 2
    options = {**GIVEN, "alpha": 1.0, "batch_size": 300}
    model = streamed(SecondOrderClassifier(**options), X, y, [300], weight)
    sparse = SecondOrderClassifier(**options)
    for part in (slice(0, 300), slice(300, 600)):
        more = {"classes": ["no", "yes"], "sample_weight": weight[part]}
        sparse.partial_fit(csr_array(X[part]), y[part], **more)
    twice = np.repeat(np.arange(600), weight.astype(int))
    options = {**options, "batch_size": 450}
    repeated = streamed(SecondOrderClassifier(**options), X[twice], y[twice], [450])
    f = model.decision_function(X)
    np.testing.assert_allclose(sparse.decision_function(csr_array(X)), f, atol=1e-6)
    np.testing.assert_allclose(repeated.decision_function(X), f, atol=1e-4)


def test_a_saved_stream_of_labels_with_pairs_goes_on_as_if_it_had_never_been(tmp_path):
    X, y = drawn(900)
    for cut in (50, 600):  # in the first batch, and in a later one
        model = streamed(SecondOrderClassifier(**GIVEN, batch_size=250), X[:cut], y[:cut], [])
        save(model, tmp_path / "model.safetensors")
        again = load(tmp_path / "model.safetensors")
        assert again.pairs_ == model.pairs_
        for each in (model, again):
            each.partial_fit(X[cut:], y[cut:])
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
        assert again.pairs_ == model.pairs_


def test_after_a_fit_a_stream_of_labels_keeps_the_pairs():
    X, y = drawn()
    coef, std = likelihood(X, y)
    model = SecondOrderClassifier(**GIVEN).fit(X[:1000], y[:1000])
    model.partial_fit(X[1000:], y[1000:])
    streamed_coef = np.array([p.coefficient for p in model.pairs_.pairs])
    # A Newton step from a fit to half of the rows is off by the square of its error.
    assert (np.abs(streamed_coef - coef[6:]) < 0.1 * std[6:]).all()
    assert model.pairs_.n_rows_fitted == 2000


def test_a_stream_of_labels_that_keeps_no_row_has_no_room_for_pairs():
    X, y = drawn(300)
    model = SecondOrderClassifier(max_memory="minimal", random_state=0)
    assert streamed(model, X, y, []).pairs_ is None
    with pytest.raises(ValueError, match="needs more memory than"):
        streamed(SecondOrderClassifier(pairs=2, max_memory="minimal"), X, y, [])
