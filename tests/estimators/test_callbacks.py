"""The names of scikit-learn's callbacks that quadlin uses: what breaks if one of them changes."""

import numpy as np
import pytest

from quadlin import SecondOrderRegressor
from quadlin.estimators import learning as callbacks

sklearn_callback = pytest.importorskip("sklearn.callback")  # since scikit-learn 1.9
X = np.random.default_rng(0).standard_normal((60, 2))
Y = X[:, 0] * X[:, 1] + X[:, 1]


class Steps:
    """A callback that counts the tasks of a fit."""

    def __init__(self):
        self.ended = []

    def setup(self, estimator, context):
        """Nothing is needed."""

    def on_fit_task_begin(self, estimator, context, **more):
        """Nothing is needed."""

    def on_fit_task_end(self, estimator, context, **more):
        self.ended.append(context.task_name)

    def teardown(self, estimator, context):
        """Nothing is left."""


def fitted(steps):
    return SecondOrderRegressor(1, alpha=0.1, random_state=0).set_callbacks(steps).fit(X, Y)


def test_scikit_learn_has_the_names_that_are_used():
    model = SecondOrderRegressor().set_callbacks(Steps())
    missing = "scikit-learn renamed {}: change estimators/learning.py, or callbacks are not called"
    assert hasattr(model, callbacks.OWN), missing.format(callbacks.OWN)
    assert hasattr(model, callbacks.BEGIN), missing.format(callbacks.BEGIN)
    context = sklearn_callback.CallbackContext
    for name in ("subcontext", "call_on_fit_task_begin", "call_on_fit_task_end"):
        assert hasattr(context, name), missing.format(name)


def test_every_step_and_the_whole_fit_are_told():
    steps = Steps()
    fitted(steps)
    assert steps.ended[-1] == "fit"
    assert set(steps.ended[:-1]) == {"step"}


@pytest.mark.parametrize("name", ["OWN", "BEGIN"])
def test_a_fit_goes_on_without_callbacks_if_a_name_is_gone(name, monkeypatch):
    wanted = fitted(Steps()).predict(X)
    monkeypatch.setattr(callbacks, name, "_of_another_version")
    steps = Steps()
    np.testing.assert_array_equal(fitted(steps).predict(X), wanted)
    assert not steps.ended
