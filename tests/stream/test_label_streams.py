"""Streams of labels: no row kept, and an excess log-loss near that of maximum likelihood."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from quadlin import (
    FactorizationMachineClassifier,
    SecondOrderClassifier,
    load,
    save,
)
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model, constant_model
from quadlin.core.moments import Moments
from quadlin.core.sums import Sums
from quadlin.core.units import target_of_labels, units_of
from quadlin.metrics import degrees_of_freedom
from quadlin.stream.batch import step_curvature
from quadlin.stream.power_iteration import Stage
from quadlin.stream.walk import FAR, Flatness, flatness_of, resized

D, K, N = 8, 2, 10_000
DOF = degrees_of_freedom(D, K)


def drawn(size=1.0, n=N, seed=0, binary=False):
    """Return rows, labels, and rows with their true log-odds to test with."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n + 8000, D))
    X = (X > 0.5).astype(float) if binary else X
    Z = (X - X.mean(0)) / X.std(0)
    U = np.linalg.qr(rng.standard_normal((D, K)))[0]
    f = size * (Z @ rng.standard_normal(D) / D**0.5 + (Z @ U) ** 2 @ [1.0, -1.0])
    y = (rng.uniform(size=len(f)) < 1 / (1 + np.exp(-f))).astype(int)
    return X[:n], y[:n], X[n:], f[n:]


def excess(model, X, f):
    """Return the log-loss over that of the truth, in units of dof/(2N): 1 for a likelihood fit."""
    g, p = model.decision_function(X), 1 / (1 + np.exp(-f))
    loss = np.mean(np.logaddexp(0, g) - p * g - np.logaddexp(0, f) + p * f)
    return float(loss * 2 * N / DOF)


def classifier(**options):
    return SecondOrderClassifier(
        **{"rank": K, "alpha": 0.0, "pairs": None, "random_state": 0, **options}
    )


@pytest.mark.parametrize("size", [1.0, 2.0])
@pytest.mark.parametrize("memory", ["auto", "minimal"])
def test_a_stream_has_about_the_log_loss_of_a_fit(memory, size):
    X, y, X_new, f = drawn(size)
    model = classifier(max_memory=memory).partial_fit(X, y, classes=[0, 1])
    # A fit to these draws has 1.5 and 1.4: χ² with 24 degrees of freedom over 24 is 1 ± .3. The
    # weights of the walk take an eighth of the rows, and a stream that keeps none needs some 150
    # rows per parameter, a third of them, before it has a model.
    assert excess(model, X_new, f) < (2.1 if memory == "auto" else 3.5)


def test_two_valued_features_are_no_obstacle():
    X, y, X_new, f = drawn(1.5, seed=1, binary=True)
    machine = FactorizationMachineClassifier(
        K, pairs=None, max_memory="minimal", random_state=0
    ).partial_fit(X, y, classes=[0, 1])
    assert excess(machine, X_new, f) < 3.5


def test_sparse_rows_and_rows_one_by_one_make_the_same_stream():
    X, y, X_new, _ = drawn(binary=True, n=5000)
    whole = classifier(max_memory="minimal").partial_fit(X, y, classes=[0, 1])
    thin = classifier(max_memory="minimal").partial_fit(sparse.csr_array(X), y, classes=[0, 1])
    single = classifier(max_memory="minimal")
    for start in range(0, 5000, 100):
        rows = slice(start, start + 100)
        single.partial_fit(X[rows], y[rows], classes=[0, 1])
    assert whole.fitted_.stream.start is None
    for each in (thin, single):
        np.testing.assert_allclose(
            each.decision_function(X_new), whole.decision_function(X_new), rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize(
    ("rows", "stage"),
    [
        (30, Stage.moments),
        (200, Stage.correlations),
        (500, Stage.power),
        (3000, Stage.annealing),
        (5500, None),
    ],
)
def test_a_saved_stream_of_labels_goes_on_as_if_it_had_not_been_saved(rows, stage, tmp_path):
    X, y, X_new, _ = drawn(n=6000)
    model = classifier(max_memory="minimal").partial_fit(X[:rows], y[:rows], classes=[0, 1])
    start = model.fitted_.stream.start
    assert (None if start is None else start.stage) is stage
    assert np.isfinite(model.predict_proba(X_new)).all()
    save(model, tmp_path / "m")
    again = load(tmp_path / "m")
    np.testing.assert_array_equal(again.decision_function(X_new), model.decision_function(X_new))
    for each in (model, again):
        each.partial_fit(X[rows:], y[rows:])
    np.testing.assert_array_equal(again.decision_function(X_new), model.decision_function(X_new))


def test_the_first_model_is_the_share_of_labels():
    X, y, X_new, _ = drawn()
    model = classifier(max_memory="minimal").partial_fit(X[:20], y[:20], classes=[0, 1])
    np.testing.assert_allclose(model.predict_proba(X_new)[:, 1], np.mean(y[:20]))
    one_label = classifier(max_memory="minimal").partial_fit(X[:20], 0 * y[:20], classes=[0, 1])
    # Half a row of the other label: .5/21.
    np.testing.assert_allclose(one_label.predict_proba(X_new)[:, 1], 0.5 / 21)
    again = one_label.partial_fit(X, y)
    assert again.score(X, y) > np.mean(y == 0) + 0.05


def test_several_classes_have_a_stream_each():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 4))
    f = np.column_stack([X[:, 0] * X[:, 1], X[:, 2], 0 * X[:, 0]])
    y = np.array(["a", "b", "c"])[np.argmax(f + rng.gumbel(size=f.shape), axis=1)]
    model = classifier(max_memory="minimal").partial_fit(X, y, classes=["c", "b", "a"])
    p = np.exp(f) / np.exp(f).sum(1, keepdims=True)
    # One against the rest is not quite a softmax; the rest is noise of 14 parameters a class.
    assert np.abs(model.predict_proba(X) - p).mean() < 0.05


def test_a_linear_stream_of_labels_needs_no_power_iteration():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 5))
    y = (X[:, 0] - X[:, 1] + rng.logistic(size=6000) > 0).astype(int)
    stream = classifier(rank=0, max_memory="minimal").partial_fit(X, y, classes=[0, 1])
    peer = LogisticRegression(C=np.inf).fit(X, y)
    # Standard errors are .035; the stream's are larger by what its start and its weights cost.
    np.testing.assert_allclose(stream.coef_, peer.coef_[0], atol=0.08)


def test_a_penalty_that_is_given_is_the_same_after_the_rank_was_chosen():
    # Labels are numbers there: 7.9 over their curvature, .4·.6, and times it is not quite 7.9.
    X, y = np.random.default_rng(0).standard_normal((60, 3)), np.arange(60) % 5 < 2
    model = classifier(rank="auto", alpha=7.9, batch_size=10)
    model.partial_fit(X[:30], y[:30], classes=[False, True])
    assert model.partial_fit(X[30:], y[30:]).alpha_ == (7.9, 7.9)


def test_options_that_need_rows_are_refused():
    X, y, *_ = drawn(n=100)
    with pytest.raises(ValueError, match=r"alpha.*Raise `max_memory`"):
        classifier(alpha=1.0, max_memory="minimal").partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="max_memory"):
        classifier(max_memory="none").partial_fit(X, y, classes=[0, 1])


def test_the_step_along_the_size_of_log_odds_is_newtons():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    y = (rng.uniform(size=400) < 1 / (1 + np.exp(-X[:, 0] - 0.3))).astype(float)
    target = Moments.of(y[:, None])
    units = units_of(
        Moments.of(X), np.ones(3, bool), target_of_labels(target, True), np.dtype(float)
    )
    constant = constant_model(units, 1, units.target.centre)
    model = Model(constant.U, constant.s, np.array([0.8, 0.1, 0.0]), 0.2, constant.free)
    for _ in range(20):  # steps of full length end at the best size about the mean they are about
        flat = flatness_of(Chunk(X, y, None), model, units, "logistic")
        theta, mean = flat.step()
        model = resized(model, flat, 1.0)
    assert abs(theta) < 1e-10
    assert flat.rf - mean * flat.r == pytest.approx(0, abs=1e-8)
    # A straight line in the predictions, whose slope logistic regression on them finds as well.
    assert Flatness(1.0, 0.0, 1.0, 0.0, -10.0).step()[0] == FAR
    assert Flatness().step() == (0.0, 0.0)


def test_a_batch_whose_labels_are_certain_asks_for_no_step():
    """Their loss is 0, and so are their slopes: nothing is divided by it."""
    moments = Moments.of(np.array([[0.0], [1.0], [1.0]]))
    units = units_of(moments, np.array([False]), target_of_labels(moments, True), np.float64)
    nothing = Sums(3.0, 0.0, np.zeros(1), np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 1, 1)))
    assert 0 < 1 / step_curvature("logistic", units, nothing) < 1e20
    assert step_curvature("logistic", units, replace(nothing, loss=1.0)) > 0.01


@pytest.mark.parametrize("kind", [SecondOrderClassifier, FactorizationMachineClassifier])
def test_weights_that_count_no_labels_are_told(kind):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 3, size=(500, 2)).astype(str).astype(object), rng.integers(0, 2, 500)
    for weight in (1e-20, 1e-6, 1e20):
        with pytest.raises(ValueError, match="In a stream weights count labels"):
            kind().partial_fit(X, y, classes=[0, 1], sample_weight=np.full(500, weight))
    with pytest.warns(UserWarning, match="500 rows count as 5. Divide"):
        kind().partial_fit(X, y, classes=[0, 1], sample_weight=np.full(500, 0.01))


@pytest.mark.parametrize("weight", [0.002, 0.01, 0.1])
def test_a_stream_of_a_machine_may_begin_with_less_than_one_label(weight):
    X = np.array([["a", "b"], ["c", "d"]], dtype=object)
    machine = FactorizationMachineClassifier(random_state=0)
    for rows in (1, 2):
        weights = np.full(rows, weight)
        machine.partial_fit(X[:rows], np.zeros(rows), classes=[0, 1], sample_weight=weights)
        P = machine.predict_proba(X)
        assert np.all((P[:, 0] > 0.5) & (P[:, 0] < 1))
