"""Ctrl-C at any moment: what is left can be used, or the estimator is as it was before."""

import sys
import tempfile
from inspect import CO_GENERATOR
from pathlib import Path

import numpy as np
from sklearn.base import clone

from campaign_families.checks import needed, require, same_after_a_file, seed_of
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    Status,
)


class CtrlC:
    """KeyboardInterrupt at the call of a function of the library, counted from 1; 0 is never."""

    def __init__(self, call=0):
        self.call, self.calls = call, 0

    def __enter__(self):
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _profile(self, frame, event, _):
        # Python drops what is raised while a generator that nobody wants is closed. Ctrl-C itself
        # is not raised there, but a profiler may be called.
        ours = event == "call" and "quadlin" in frame.f_code.co_filename
        if ours and not frame.f_code.co_flags & CO_GENERATOR:
            self.calls += 1
            if self.calls == self.call:
                raise KeyboardInterrupt


def interrupted(fit, call):
    """Tell whether KeyboardInterrupt came out of a fit that is interrupted at a call.

    Or whether the fit was over before that call: a second fit may have a call less than the first,
    which found nothing remembered.
    """
    watched = CtrlC(call)
    try:
        with watched:
            fit()
    except KeyboardInterrupt:
        return True
    return watched.calls < call


def numbers(rng, d):
    X = rng.standard_normal((60, d))
    return X, X[:, 0] * X[:, -1] + X[:, 0] + 0.3 * rng.standard_normal(60)


def problem_of(rng):
    """Return an estimator that is quick to fit, rows and targets, and others of another width."""
    seed = {"random_state": seed_of(rng)}
    fixed = {"rank": int(rng.integers(0, 3)), "alpha": float(rng.choice([0.0, 1.0])), **seed}
    first, second = numbers(rng, 3), numbers(rng, 4)
    kind = int(rng.integers(12))
    if kind < 5:
        models = (
            SecondOrderRegressor(**seed),
            SecondOrderRegressor(**fixed, uncertainty=True),
            SecondOrderRegressor(**{**fixed, "alpha": "auto"}, loss="huber"),
            SecondOrderRegressor(**fixed, pairs=1),
            SecondOrderRegressorCV([0, 1], [1.0, 10.0], cv=3, **seed),
        )
        return models[kind], first, second
    if kind == 5:
        counts = [(X, np.round(np.abs(y))) for X, y in (first, second)]
        return SecondOrderRegressor(**{**fixed, "alpha": 1.0}, loss="poisson"), *counts
    if kind < 9:
        cuts = [0.0] if kind == 6 else [-0.5, 0.5]
        labels = [(X, np.digitize(y, cuts)) for X, y in (first, second)]
        options = {**fixed, "alpha": "auto"} if kind == 8 and rng.uniform() < 0.3 else fixed
        return SecondOrderClassifier(**options), *labels
    if kind == 9:
        return _of_levels(rng, seed)
    A, B, z = (rng.standard_normal(shape) for shape in ((60, 4), (60, 4), 4))
    if kind == 10:
        A = A + 1j * B if rng.uniform() < 0.5 else A
        data = [(A[:, :d], np.abs(A[:, :d] @ z[:d]) ** 2) for d in (3, 4)]
        return PhaseRetriever(**seed), *data
    if rng.uniform() < 0.5:
        data = [((A[:, :d], B), (A[:, :d] @ z[:d]) * (B @ z)) for d in (3, 4)]
        return MatrixSensing(rank=1 if rng.uniform() < 0.5 else "auto", **seed), *data
    data = [(A[:, :d], (A[:, :d] @ z[:d]) ** 2) for d in (3, 4)]
    return MatrixSensing(rank="auto", **seed), *data


def _of_levels(rng, seed):
    pandas = needed("pandas")
    columns = {name: rng.integers(0, 5, 60).astype(str) for name in ("user", "item", "day")}
    frame, y = pandas.DataFrame(columns), rng.standard_normal(60)
    draws = int(rng.integers(2, 5)) if rng.uniform() < 0.5 else None
    data = (frame[["user", "item"]], frame)
    if rng.uniform() < 0.5:
        model = FactorizationMachineRegressor(rank=1, draws=draws, **seed)
        return model, *((X, y) for X in data)
    labels = np.digitize(y, [0.0] if rng.uniform() < 0.5 else [-0.5, 0.5])
    model = FactorizationMachineClassifier(rank=1, draws=draws, **seed)
    return model, *((X, labels) for X in data)


def answers(model, X):
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)


def says(model, X, expected):
    try:
        return np.array_equal(answers(model, X), expected)
    except ValueError:  # rows of another width are refused
        return False


def fits(rng):
    """A fit that is interrupted leaves a model, the earlier one, or all that it was to leave."""
    model, (X, y), (other_X, other_y) = problem_of(rng)
    with CtrlC() as counted:
        whole = clone(model).fit(X, y)
    before = clone(model).fit(other_X, other_y) if rng.uniform() < 0.5 else None
    model = clone(model) if before is None else before
    was = None if before is None else answers(before, other_X)
    call = int(rng.integers(1, counted.calls + 1))
    text = f"{model}, call {call} of {counted.calls}"
    came = interrupted(lambda: model.fit(X, y), call)
    require(came, f"{text}: no KeyboardInterrupt")
    if not hasattr(model, "status_"):
        require(before is None, f"{text}: the earlier model is gone")
    elif model.status_ is Status.interrupted:
        require(np.isfinite(answers(model, X)).all(), f"{text}: a prediction is not finite")
        if not isinstance(model, PhaseRetriever | MatrixSensing):
            same_after_a_file(model, lambda m: answers(m, X))
    elif not says(model, X, answers(whole, X)):
        require(was is not None, f"{text}: half a fit, {model.status_.name}")
        require(says(model, other_X, was), f"{text}: the earlier model has changed")
    again = answers(clone(model).fit(X, y), X)
    require(np.array_equal(again, answers(whole, X)), f"{text}: the next fit is another one")


def streams(rng):
    """A part of a stream that is interrupted has been learned from, or can be given again."""
    X, y = numbers(rng, 3)
    labels = rng.uniform() < 0.4
    kind = SecondOrderClassifier if labels else SecondOrderRegressor
    y = np.digitize(y, [0.0] if rng.uniform() < 0.5 else [-0.5, 0.5]) if labels else y
    model = kind(
        rank=int(rng.integers(0, 3)),
        alpha="auto" if rng.uniform() < 0.5 else 1.0,
        batch_size=int(rng.integers(4, 30)),
        random_state=seed_of(rng),
    )
    more = {"classes": np.unique(y)} if labels else {}
    first = int(rng.integers(0, 40))
    whole, cut = clone(model), clone(model)
    for each in (whole, cut):
        if first:
            each.partial_fit(X[:first], y[:first], **more)
    before = answers(cut, X) if first else None
    with CtrlC() as counted:
        whole.partial_fit(X[first:], y[first:], **more)
    call = int(rng.integers(1, counted.calls + 1))
    text = f"{model}, rows {first}: interrupted at call {call} of {counted.calls}"
    came = interrupted(lambda: cut.partial_fit(X[first:], y[first:], **more), call)
    require(came, f"{text}: no KeyboardInterrupt")
    if hasattr(cut, "fitted_") and np.array_equal(answers(cut, X), answers(whole, X)):
        return
    if hasattr(cut, "fitted_"):
        require(before is not None, f"{text}: half of a first part was learned")
        require(np.array_equal(answers(cut, X), before), f"{text}: half of it was learned")
    cut.partial_fit(X[first:], y[first:], **more)
    same = np.array_equal(answers(cut, X), answers(whole, X))
    require(same, f"{text}: given again, it is learned otherwise")


def checkpoints(rng):
    """A fit that notes its passes and is interrupted at any moment ends at the same model."""
    X, y = numbers(rng, int(rng.integers(2, 5)))
    options = {"rank": int(rng.integers(0, 3)), "random_state": seed_of(rng)}
    options["alpha"] = "auto" if rng.uniform() < 0.5 else 0.1
    kind = SecondOrderRegressor
    if rng.uniform() < 0.3:
        kind, y = SecondOrderClassifier, np.digitize(y, [-0.5, 0.5])
        options["alpha"] = 1.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "passes"
        with CtrlC() as counted:
            whole = kind(**options).fit(X, y, checkpoint=Path(folder) / "other")
        for _ in range(2):
            call = int(rng.integers(1, counted.calls + 1))
            interrupted(lambda c=call: kind(**options).fit(X, y, checkpoint=path), call)
        resumed = kind(**options).fit(X, y, checkpoint=path)
    same = np.array_equal(answers(resumed, X), answers(whole, X))
    require(same, f"{kind.__name__}({options}): resumed after call {call}, another model")


INTERRUPTIONS = {
    "ctrl-c": (0.04, fits),
    "ctrl-c streams": (0.02, streams),
    "checkpoints": (0.02, checkpoints),
}
