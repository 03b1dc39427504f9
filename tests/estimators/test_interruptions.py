"""Ctrl-C in a fit leaves what is finished, or the estimator as it was; it is never swallowed."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from quadlin import (
    FactorizationMachineClassifier,
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    Status,
    load,
    save,
)
from quadlin.core.chunks import MemorySource
from quadlin.core.engine import Threads
from quadlin.estimators.cv import cv_scores
from quadlin.estimators.regression import fitting
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.signals import symmetric_sensing
from quadlin.solve.fields.label_machine import LabelSweeps
from quadlin.solve.labels.logistic_search import LogisticSearch
from quadlin.solve.lowrank.types import Problem
from quadlin.solve.signals import bilinear, levenberg


def table(n=90, d=3):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, X[:, 0] * X[:, 1] + X[:, 2] + 0.3 * rng.standard_normal(n)


def three_classes(y):
    return np.array(["high", "low", "middle"])[np.digitize(y, np.quantile(y, [0.3, 0.6]))]


def interrupted_at(monkeypatch, owner, name, call):
    """Let the function raise KeyboardInterrupt at its so many-th call, counted from 1."""
    function, calls = getattr(owner, name), []

    def counted(*args, **more):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return function(*args, **more)

    monkeypatch.setattr(owner, name, counted)
    return calls


def taken_as_an_end(monkeypatch, owner, name):
    """Let a fit end as one that was interrupted at its last step does: with a status."""
    function = getattr(owner, name)

    def ended(*args, **more):
        outcome = function(*args, **more)
        if isinstance(outcome, tuple):
            return replace(outcome[0], status=Status.interrupted), *outcome[1:]
        return replace(outcome, state=replace(outcome.state, status=Status.interrupted))

    monkeypatch.setattr(owner, name, ended)


FOLDS = [(np.arange(30, 90), np.arange(30)), (np.arange(60), np.arange(60, 90))]


def test_an_interrupted_cross_validation_leaves_its_best_point_of_the_first_fold(
    monkeypatch, tmp_path
):
    X, y = table()
    interrupted_at(monkeypatch, cv_scores.CVScores, "score", 2)
    model = SecondOrderRegressorCV([0, 1, 2], [5.0, 500.0], cv=FOLDS, random_state=0)
    with pytest.raises(KeyboardInterrupt, match="training rows of the first fold only"):
        model.fit(X, y)
    assert model.status_ is Status.interrupted
    assert model.rank_ == 0
    assert model.cv_results_["param_rank"].tolist() == [0, 0]
    train = FOLDS[0][0]
    centre, spread = X[train].mean(axis=0), X[train].std(axis=0)
    oracle = Ridge(model.alpha_[0]).fit((X[train] - centre) / spread, y[train])
    np.testing.assert_allclose(
        model.predict(X[train]), oracle.predict((X[train] - centre) / spread)
    )
    assert model.best_score_ == model.cv_results_["mean_test_score"].max()
    save(model, tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict(X), model.predict(X))


def test_a_cross_validation_that_is_interrupted_within_a_score_has_whole_scores_only(monkeypatch):
    X, y = table()
    interrupted_at(monkeypatch, cv_scores.CVScores, "_judge", 6)  # four are those of rank 0
    model = SecondOrderRegressorCV([0, 1], [5.0, 500.0], cv=FOLDS, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.cv_results_["param_rank"].tolist() == [0, 0]
    assert np.isfinite(model.cv_results_["split1_test_score"]).all()


def test_a_cross_validation_whose_last_fit_is_interrupted_has_all_scores(monkeypatch):
    X, y = table()
    interrupted_at(monkeypatch, fitting, "outcome_of", 1)
    model = SecondOrderRegressorCV([0, 1], [5.0], cv=FOLDS, random_state=0)
    with pytest.raises(KeyboardInterrupt, match="first fold"):
        model.fit(X, y)
    assert model.cv_results_["param_rank"].tolist() == [0, 1]
    assert (model.rank_, model.n_samples_seen_) == (1, 60)
    fold = SecondOrderRegressor(1, alpha=5.0, random_state=0).fit(X[30:], y[30:])
    np.testing.assert_allclose(model.predict(X), fold.predict(X), rtol=1e-3, atol=1e-3)


def test_without_any_score_an_interrupted_cross_validation_leaves_the_earlier_model(monkeypatch):
    X, y = table()
    model = SecondOrderRegressorCV([0], [5.0], cv=FOLDS, random_state=0).fit(X[:, :2], y)
    before = model.predict(X[:, :2])
    interrupted_at(monkeypatch, cv_scores.CVScores, "score", 1)
    with pytest.raises(KeyboardInterrupt, match="before there was a model"):
        model.fit(X, y)
    np.testing.assert_array_equal(model.predict(X[:, :2]), before)
    assert model.status_ is Status.converged


def test_ctrl_c_in_the_fit_of_a_fold_with_pairs_ends_the_search(monkeypatch):
    X, y = table(40)
    taken_as_an_end(monkeypatch, cv_scores, "outcome_of")
    model = SecondOrderRegressorCV([0], [5.0], cv=2, pairs=1, random_state=0)
    with pytest.raises(KeyboardInterrupt, match="before there was a model"):
        model.fit(X, y)


def test_ctrl_c_in_the_first_fit_by_hubers_loss_ends_it_all(monkeypatch):
    X, y = table()
    taken_as_an_end(monkeypatch, fitting, "provisional_fit")
    monkeypatch.setattr(fitting, "fit_choosing", None)  # is not called
    model = SecondOrderRegressor(loss="huber", random_state=0)
    with pytest.raises(KeyboardInterrupt, match="last finished step"):
        model.fit(X, y)
    assert model.status_ is Status.interrupted
    assert model.score(X, y) > 0.5


@pytest.mark.parametrize("together", [False, True])
def test_classes_that_a_fit_did_not_come_to_are_predicted_by_their_shares(monkeypatch, together):
    X, y = table()
    labels = three_classes(y)
    options = {"rank": 1, "alpha": 1.0 if together else 0.0, "random_state": 0}
    alone = SecondOrderClassifier(**options).fit(X, labels == "high")
    interrupted_at(monkeypatch, fitting, "fit", 2)
    model = SecondOrderClassifier(**options)
    with pytest.raises(KeyboardInterrupt, match="last finished step"):
        model.fit(X, labels)
    assert model.status_ is Status.interrupted
    high, low, middle = model.decision_function(X).T
    np.testing.assert_allclose(high, alone.decision_function(X))
    for f, label in ((low, "low"), (middle, "middle")):
        p = np.mean(labels == label)
        np.testing.assert_allclose(f, np.log(p / (1 - p)))
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    assert np.mean(model.predict(X) == labels) > 0.5


def test_shares_of_classes_are_those_of_their_weights(monkeypatch):
    X, y = table()
    labels = three_classes(y)
    interrupted_at(monkeypatch, fitting, "fit", 2)
    model = SecondOrderClassifier(1, alpha=1.0, class_weight="balanced", random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, labels)
    np.testing.assert_allclose(model.decision_function(X)[:, 1:], np.log(1 / 2), rtol=1e-6)


def test_an_interrupted_fit_of_the_first_class_leaves_no_model(monkeypatch):
    X, y = table()
    interrupted_at(monkeypatch, fitting, "fit", 1)
    model = SecondOrderClassifier(1, alpha=1.0, random_state=0)
    with pytest.raises(KeyboardInterrupt, match="before there was a model"):
        model.fit(X, three_classes(y))
    assert not hasattr(model, "classes_")


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_an_interrupted_choice_of_labels_and_counts_keeps_its_best_candidate(monkeypatch, loss):
    X, y = table()
    counts = loss == "poisson"
    y = np.round(np.exp(X[:, 2])) if counts else (y > 0).astype(int)
    model = SecondOrderRegressor(loss=loss) if counts else SecondOrderClassifier(pairs=None)
    interrupted_at(monkeypatch, LogisticSearch, "alternated", 2)
    with pytest.raises(KeyboardInterrupt, match="last finished step"):
        model.fit(X, y)
    first, last = (record.loss for record in model.history_)
    assert model.status_ is Status.interrupted
    assert last < 0.98 * first  # better than the constant
    if counts:
        mu = model.predict(X)
        ratio = np.where(y > 0, y * np.log(np.where(y > 0, y, 1) / mu), 0)
        np.testing.assert_allclose(last, np.mean(mu - y + ratio), rtol=1e-6)
    else:
        p = model.predict_proba(X)[np.arange(len(y)), y]
        np.testing.assert_allclose(last, -np.mean(np.log(p)), rtol=1e-6)


@pytest.mark.parametrize(
    ("place", "name", "call"), [(LabelSweeps, "sweep", 70), (Problem, "sums", 1)]
)
def test_labels_of_levels_keep_their_last_sweep(monkeypatch, place, name, call):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.integers(0, 9, (150, 2)).astype(str), columns=["user", "item"])
    y = (X["user"] < X["item"]).astype(int)
    model = FactorizationMachineClassifier(2, random_state=0)
    interrupted_at(monkeypatch, place, name, call)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.status_ is Status.interrupted
    assert np.mean(model.predict(X) == y) > 0.6


def test_a_search_from_one_start_keeps_its_steps(monkeypatch):
    rng = np.random.default_rng(0)
    A, z = rng.standard_normal((60, 5)), rng.standard_normal(5)
    noisy = (A @ z) ** 2 + rng.standard_normal(60)
    calls = interrupted_at(monkeypatch, levenberg.LinearisedResidual, "__init__", 0)
    PhaseRetriever(n_starts=1, tol=0, random_state=0).fit(A, noisy)
    monkeypatch.undo()
    interrupted_at(monkeypatch, levenberg.LinearisedResidual, "__init__", len(calls) - 1)
    model = PhaseRetriever(n_starts=1, tol=0, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(A, noisy)
    assert model.status_ is Status.interrupted
    assert np.corrcoef(model.predict(A), noisy)[0, 1] > 0.9


def test_an_interrupted_signal_leaves_the_earlier_one(monkeypatch):
    rng = np.random.default_rng(0)
    A, z = rng.standard_normal((60, 5)), rng.standard_normal(5)
    model = PhaseRetriever(random_state=0).fit(A[:, :4], (A[:, :4] @ z[:4]) ** 2)
    before = model.predict(A[:, :4])
    interrupted_at(monkeypatch, levenberg.LinearisedResidual, "__init__", 1)
    with pytest.raises(KeyboardInterrupt, match="before there was a model"):
        model.fit(A, (A @ z) ** 2)
    np.testing.assert_array_equal(model.predict(A[:, :4]), before)


def test_an_interrupted_search_for_the_rank_of_a_matrix_says_so(monkeypatch):
    rng = np.random.default_rng(0)
    A, z = rng.standard_normal((80, 4)), rng.standard_normal((4, 2))
    y = (A @ z[:, 0]) ** 2 - (A @ z[:, 1]) ** 2
    interrupted_at(monkeypatch, symmetric_sensing, "symmetric_model", 2)
    model = MatrixSensing(rank="auto", random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(A, y)
    assert model.status_ is Status.interrupted
    np.testing.assert_allclose(model.predict(A), y, rtol=1e-3, atol=1e-3)


def test_ctrl_c_while_ranks_of_pairs_of_rows_are_compared_is_not_swallowed(monkeypatch):
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((2, 80, 3))
    best_of = bilinear.best_of

    def ended(*args):
        return replace(best_of(*args), status=Status.interrupted)

    monkeypatch.setattr(bilinear, "best_of", ended)
    model = MatrixSensing(rank="auto", random_state=0)
    with pytest.raises(KeyboardInterrupt, match="before there was a model"):
        model.fit((A, B), A[:, 0] * B[:, 1])


def test_threads_that_were_interrupted_add_all_rows_the_next_time():
    X = np.ones((10, 2))
    engine = Threads(MemorySource(X, np.arange(10.0)), workers=2)

    def interrupted(chunk):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.carry(interrupted, ())
    total = engine.carry(lambda pair: float(pair[1].sum()), (), np.arange(10.0))
    assert total == 45.0


def test_ctrl_c_while_a_matrix_is_adopted_leaves_the_earlier_one(monkeypatch):
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((60, 3)), rng.standard_normal((80, 4))
    model = MatrixSensing(rank=1, random_state=0).fit(A, A[:, 0] ** 2)
    expected = model.predict(A)
    monkeypatch.setattr(
        SecondOrderRegressor, "components_", property(lambda self: press_ctrl_c()), raising=False
    )
    with pytest.raises(KeyboardInterrupt, match="the estimator is unchanged"):
        model.fit(B, B[:, 1] ** 2)
    np.testing.assert_array_equal(model.predict(A), expected)


def test_ctrl_c_while_a_model_is_adopted_leaves_the_earlier_one(monkeypatch):
    X, y = table()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = SecondOrderRegressor(1, alpha=0.0, random_state=0).fit(frame, y)
    expected = model.predict(frame)
    monkeypatch.setattr(Fitted, "attributes", lambda self: press_ctrl_c())
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:, :2], y)
    np.testing.assert_array_equal(model.predict(frame), expected)


def press_ctrl_c():
    raise KeyboardInterrupt
