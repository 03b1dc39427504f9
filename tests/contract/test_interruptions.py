"""Ctrl-C leaves a usable model or the estimator as it was; a fit that ends early says so."""

import signal
from copy import copy
from functools import cache, partial

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from contract.interrupting import calls_of, moments
from contract.tables import low_rank, nmse
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    Status,
    load,
    open_source,
    save,
)

TABLE = low_rank(120, 4, 2, sigma=0.3)
X, Y = TABLE.X, TABLE.y
RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(np.exp(TABLE.truth / 4))
THREE = np.digitize(Y, np.quantile(Y, [0.3, 0.7]))
OTHER = RNG.standard_normal((120, 3))
SIGNAL = np.arange(1.0, 5.0)
RATINGS = pd.DataFrame(RNG.integers(0, 9, (120, 2)).astype(str), columns=["user", "film"])

FITS = {
    "default": (SecondOrderRegressor(random_state=0), X, Y),
    "given": (SecondOrderRegressor(2, alpha=1.0, uncertainty=True, random_state=0), X, Y),
    "huber": (SecondOrderRegressor(loss="huber", random_state=0), X, Y),
    "counts": (SecondOrderRegressor(loss="poisson", random_state=0), X, COUNTS),
    "cross-validation": (SecondOrderRegressorCV([0, 1], [1.0, 9.0], cv=3, random_state=0), X, Y),
    "labels": (SecondOrderClassifier(random_state=0), X, Y > 0),
    "three classes": (SecondOrderClassifier(1, alpha=1.0, random_state=0), X, THREE),
    "ratings": (FactorizationMachineRegressor(random_state=0), RATINGS, Y),
    "likes": (FactorizationMachineClassifier(1, random_state=0), RATINGS, Y > 0),
    "draws": (FactorizationMachineRegressor(1, draws=10, random_state=0), RATINGS, Y),
    "phase": (PhaseRetriever(random_state=0), X, (X @ SIGNAL) ** 2),
    "matrix": (MatrixSensing(2, random_state=0), X, X[:, 0] ** 2 - X[:, 1] ** 2),
    "matrix of pairs": (MatrixSensing(1, random_state=0), (X, OTHER), X[:, 0] * OTHER[:, 1]),
}
SMOKE = ("given", "phase")
ALL = [pytest.param(name, marks=[pytest.mark.smoke] * (name in SMOKE)) for name in FITS]


def is_fitted(model):
    return any(name.endswith("_") for name in vars(model))


@pytest.mark.parametrize("name", ALL)
def test_ctrl_c_at_any_moment_leaves_a_model_or_nothing(name, tmp_path):
    model, rows, target = FITS[name]
    kept = 0
    for moment in moments(lambda: partial(clone(model).fit, rows, target), 5):
        new = clone(model)
        with pytest.raises(KeyboardInterrupt):
            calls_of(lambda new=new: new.fit(rows, target), moment)
        assert new.get_params() == model.get_params()
        if not is_fitted(new):
            with pytest.raises(NotFittedError):
                new.predict(rows)
            continue
        kept += 1
        prediction = np.asarray(new.predict(rows), float)
        assert np.isfinite(prediction).all()
        save(new, tmp_path / "model")
        np.testing.assert_array_equal(load(tmp_path / "model").predict(rows), prediction)
    # The last moments are after the first step, of which a grid search keeps nothing.
    assert kept or name == "cross-validation"


@pytest.mark.parametrize("name", ["default", "cross-validation", "three classes", "matrix"])
def test_an_earlier_model_is_there_until_there_is_another(name):
    model, rows, target = FITS[name]
    old = clone(model).fit(rows[:, :3], target)
    expected = old.predict(rows[:, :3])
    for moment in moments(lambda: partial(copy(old).fit, rows, target), 4):
        again = copy(old)
        with pytest.raises(KeyboardInterrupt):
            calls_of(lambda again=again: again.fit(rows, target), moment)
        if again.n_features_in_ == 3:
            np.testing.assert_array_equal(again.predict(rows[:, :3]), expected)
        else:
            assert again.predict(rows).shape == target.shape
        if moment == 1:  # before the first step
            assert again.n_features_in_ == 3


def test_a_fit_that_is_interrupted_can_be_repeated():
    model, rows, target = FITS["default"]
    new = clone(model)
    for moment in moments(lambda: partial(clone(model).fit, rows, target), 4):
        with pytest.raises(KeyboardInterrupt):
            calls_of(lambda: new.fit(rows, target), moment)
    expected = clone(model).fit(rows, target).predict(rows)
    np.testing.assert_array_equal(new.fit(rows, target).predict(rows), expected)


@pytest.mark.parametrize("engine", ["serial", "threads"])
def test_a_signal_in_the_middle_of_the_rows_ends_the_fit(engine):
    passes = 0

    def rows():
        nonlocal passes
        passes += 1
        for part in np.split(np.arange(120), 4):
            if passes == 4 and part[0]:
                signal.raise_signal(signal.SIGINT)
            yield X[part], Y[part]

    model = SecondOrderRegressor(2, alpha=1.0, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(open_source(rows), engine=engine)
    assert is_fitted(model) or not hasattr(model, "coef_")


@pytest.mark.parametrize("start", [0, 60])
def test_ctrl_c_in_a_stream_keeps_what_was_learned_before(start):
    model, alone = (SecondOrderRegressor(1, alpha=0.0, random_state=0) for _ in range(2))
    if start:
        model.partial_fit(X[:start], Y[:start])
        alone.partial_fit(X[:start], Y[:start])

    def rows():
        yield X[start:90], Y[start:90]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(open_source(rows))
    if is_fitted(model):
        assert np.isfinite(model.predict(X)).all()
        assert model.n_samples_seen_ in (start, 90)
        alone.partial_fit(X[start:90], Y[start:90]) if model.n_samples_seen_ == 90 else None
        np.testing.assert_allclose(model.predict(X), alone.predict(X), rtol=1e-7, atol=1e-7)
    else:
        assert start == 0


# ---- How fits end


@cache
def hard_table():
    return low_rank(400, 20, 3, kind="correlated", sigma=0.5)


def test_too_few_steps_are_reported():
    table = hard_table()
    model = SecondOrderRegressor(3, alpha=0.0, max_iter=1, tol=0, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model.fit(table.X, table.y)
    assert model.status_ is not Status.converged
    assert "max_iter" in str(model.status_.value)
    assert model.n_iter_ == 1


def test_fewer_rows_than_parameters_are_reported():
    model = SecondOrderRegressor(3, alpha=0.0, pairs=None, random_state=0)
    table = hard_table()
    with pytest.warns(ConvergenceWarning, match="rows"):
        model.fit(table.X[:30], table.y[:30])
    assert "rows" in str(model.status_.value)


def test_labels_that_are_separated_are_reported():
    model = SecondOrderClassifier(0, alpha=0.0, pairs=None, random_state=0)
    with pytest.warns(ConvergenceWarning, match="alpha"):
        model.fit(X, X[:, 0] > 0)
    assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.parametrize("status", Status)
def test_every_status_is_a_sentence_of_advice(status):
    assert str(status.value).endswith(".")


def test_a_quiet_fit_has_converged_and_its_objective_never_rose():
    table = hard_table()
    model = SecondOrderRegressor(3, alpha=1.0, random_state=0).fit(table.X, table.y)
    losses = np.array([record.loss for record in model.history_])
    assert model.status_ is Status.converged
    assert (np.diff(losses) <= 1e-9 * losses[0]).all()


# ---- Callbacks of scikit-learn


@pytest.fixture(scope="module")
def callback():
    return pytest.importorskip("sklearn.callback")  # since scikit-learn 1.9


def test_a_progress_bar_and_a_score_follow_the_fit(callback, capsys):
    monitor = callback.ScoringMonitor(scoring="r2")
    table = hard_table()
    model = SecondOrderRegressor(3, alpha=0.0, random_state=0)
    model.set_callbacks(monitor, callback.ProgressBar()).fit(table.X, table.y)
    whole, *steps = monitor.get_logs().data_as_pandas["r2"]
    assert whole == pytest.approx(model.score(table.X, table.y))
    assert steps[-1] == pytest.approx(whole)
    assert "100%" in capsys.readouterr().out


class AtStep:
    """Does something after a step: stops the fit, or raises."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def setup(self, estimator, context):
        """Nothing is needed."""

    def on_fit_task_begin(self, estimator, context, **more):
        """Nothing is needed."""

    def on_fit_task_end(self, estimator, context, **more):
        return self.action() if context.task_id == self.step else False

    def teardown(self, estimator, context):
        """Nothing is left."""


def press_ctrl_c():
    raise KeyboardInterrupt


@pytest.mark.parametrize("action", [lambda: True, press_ctrl_c], ids=["stop", "ctrl-c"])
def test_a_callback_can_end_the_fit_early(callback, action):
    table = hard_table()
    model = SecondOrderRegressor(3, alpha=0.0, random_state=0).set_callbacks(AtStep(0, action))
    if action is press_ctrl_c:
        with pytest.raises(KeyboardInterrupt):
            model.fit(table.X, table.y)
    else:
        model.fit(table.X, table.y)
    assert model.status_ in (Status.stopped, Status.interrupted)
    assert nmse(table.y, model.predict(table.X)) < 1  # better than the constant
