"""Odd tables, targets, weights and changes of mind: they are taken, or refused in words."""

import datetime
import pickle

import numpy as np
from sklearn.base import clone

from campaign_families.checks import in_sample, needed, require, same_after_a_file, seed_of
from campaign_families.forms import estimator_of, whole_numbers
from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
)

CHANGES = [
    *(("rank", 2), ("alpha", 5.0), ("batch_size", 7), ("fit_linear", False)),
    *(("tol", 1e-3), ("psd", True), ("random_state", 5)),
]


def refused(action, text):
    """Require an error in words."""
    try:
        action()
    except (ValueError, TypeError) as error:
        require(len(str(error)) > 20, f"{text}: refused without words, {error!r}")
        return True
    return False


def several_outputs(rng):
    """Targets of two columns are refused by every estimator, however they come."""
    pandas = needed("pandas")
    X, y = whole_numbers(rng)
    model, kind = estimator_of(rng)
    y = {"labels": (y > np.median(y)) * 1.0, "counts": np.abs(y), "numbers": y}[kind]
    two = np.column_stack([y, y[::-1]])
    forms = (two, two.tolist(), pandas.DataFrame(two, columns=["a", "b"]), np.stack([two, two]))
    form = int(rng.integers(len(forms)))
    text = f"{type(model).__name__}: two targets, form {form}"
    require(refused(lambda: clone(model).fit(X, forms[form]), text), f"{text} were taken")
    if hasattr(model, "partial_fit"):
        more = {"classes": [0.0, 1.0]} if kind == "labels" else {}
        require(
            refused(lambda: clone(model).partial_fit(X, two, **more), text), f"{text} were taken"
        )


def odd_columns(rng, n, pandas):
    """Return columns of all kinds that frames may hold."""
    numbers = rng.integers(0, 5, n)
    day = datetime.datetime(2020, 1, 1)
    return {
        "Int64": pandas.array(numbers, dtype="Int64"),
        "Float64": pandas.array(rng.standard_normal(n), dtype="Float64"),
        "boolean": pandas.array(numbers > 2, dtype="boolean"),
        "bool": numbers > 2,
        "unused": pandas.Categorical.from_codes(numbers % 2, ["a", "b", "never"]),
        "ordered": pandas.Categorical(numbers, categories=range(5), ordered=True),
        "single": np.full(n, "only"),
        "mixed": np.array([("a", 1, 2.5, None)[i % 4] for i in numbers], dtype=object),
        "numbers as objects": np.array(numbers.tolist(), dtype=object),
        "string": pandas.array(numbers.astype(str), dtype="string"),
        "dates": [day + datetime.timedelta(days=int(i)) for i in numbers],
        "spans": pandas.to_timedelta(numbers, unit="D"),
        "uint8": numbers.astype(np.uint8),
        "float16": numbers.astype(np.float16),
        "complex": numbers * 1j,
        "lists": [[int(i)] for i in numbers],
    }


def odd_frames(rng):
    """A frame with an odd column is fitted, predicted and saved as a whole, or refused in words."""
    pandas = needed("pandas")
    n = int(rng.integers(30, 90))
    columns = odd_columns(rng, n, pandas)
    names = [str(name) for name in rng.choice(list(columns), 2, replace=False)]
    frame = pandas.DataFrame({"x": rng.standard_normal(n), **{k: columns[k] for k in names}})
    frame.index = rng.permutation(n)
    if rng.uniform() < 0.2:
        frame.columns = ["x", "x", names[1]]
        names = [*names, "a name twice"]
    y = pandas.Series(frame.iloc[:, 0].to_numpy() + rng.standard_normal(n), index=np.arange(n) + 7)
    target = [y, y.to_numpy(), y.tolist(), y.to_frame("y")][rng.integers(4)]
    model = SecondOrderRegressor(rank=1, alpha=1.0, random_state=seed_of(rng))
    text = f"columns {names}"
    if refused(lambda: model.fit(frame, target), text):
        require(not hasattr(model, "fitted_"), f"{text}: refused, and yet fitted")
        return
    require("a name twice" not in names, f"{text}: taken")
    in_sample(model, frame, y.to_numpy(), None, text)
    plain = clone(model).fit(frame.reset_index(drop=True), y.to_numpy())
    same = np.array_equal(plain.predict(frame), model.predict(frame))
    require(same, f"{text}: an index changes the fit")
    same_after_a_file(model, lambda m: m.predict(frame))
    part = frame.iloc[:1]
    apart = abs(model.predict(part)[0] - model.predict(frame)[0])
    require(apart <= 1e-6 * (1 + np.ptp(y)), f"{text}: a row alone is predicted {apart:.3g} apart")


def odd_weights(rng):
    """Weights of zero, and of a huge ratio, are weights; those that are none are refused."""
    X, y = whole_numbers(rng)
    model, kind = estimator_of(rng)
    y = {"labels": (y > np.median(y)) * 1.0, "counts": np.abs(y), "numbers": y}[kind]
    how = str(rng.choice(["ratio", "one", "none", "negative", "nan", "short", "two-dimensional"]))
    n = len(y)
    weight = {
        "ratio": 10.0 ** rng.uniform(-12, 12, n),
        "one": np.eye(n)[int(rng.integers(n))],
        "none": np.zeros(n),
        "negative": np.where(np.arange(n) == 3, -1.0, 1.0),
        "nan": np.where(np.arange(n) == 3, np.nan, 1.0),
        "short": np.ones(n - 1),
        "two-dimensional": np.ones((n, 2)),
    }[how]
    text = f"{type(model).__name__}: weights {how}"
    if refused(lambda: model.fit(X, y, sample_weight=weight), text):
        require(how != "ratio" or kind != "numbers", f"{text}: refused")
        return
    require(how in ("ratio", "one"), f"{text}: taken")
    f = model.predict_proba(X) if kind == "labels" else model.predict(X)
    require(np.isfinite(f).all(), f"{text}: a prediction is not finite")


def changes_of_mind(rng):
    """Options that change in mid-stream are refused in words; copies by any way are the same."""
    X, y = whole_numbers(rng)
    kind = (SecondOrderRegressor, FactorizationMachineRegressor)[rng.integers(2)]
    model = kind(rank=1, alpha=1.0, batch_size=10, random_state=seed_of(rng))
    model.partial_fit(X[:20], y[:20])
    before = model.predict(X)
    option, value = CHANGES[rng.integers(len(CHANGES))]
    model.set_params(**{option: value})
    require(np.array_equal(model.predict(X), before), f"set_params({option}) changes predictions")
    changed = refused(lambda: model.partial_fit(X[20:], y[20:]), f"{option} in mid-stream")
    good = np.isfinite(model.predict(X)).all()
    require(good, f"{option}={value} in mid-stream: a prediction is not finite")
    if changed:
        require(np.array_equal(model.predict(X), before), f"{option}: refused, and yet learned")
    fresh = clone(model)
    require(not hasattr(fresh, "fitted_"), "a clone is fitted")
    require(fresh.get_params() == model.get_params(), "a clone has other options")
    loaded = pickle.loads(pickle.dumps(model))
    require(np.array_equal(loaded.predict(X), model.predict(X)), "a pickle predicts otherwise")


def every_kind(rng):
    """A model of any kind is the same after a file, to the last bit."""
    pandas = needed("pandas")
    X, y = whole_numbers(rng)
    frame = pandas.DataFrame({"u": rng.integers(0, 5, len(y)).astype(str), "v": X[:, 0]})
    frame["w"] = rng.integers(0, 5, len(y)).astype(str)
    seed = {"random_state": seed_of(rng)}
    labels = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    levels = frame[["u", "w"]]
    cases = (
        (SecondOrderRegressorCV([0, 1], [1.0], cv=3, pairs=1, **seed), X, y),
        (SecondOrderClassifier(1, alpha=1.0, uncertainty=True, **seed), X, labels),
        (SecondOrderClassifier(**seed), frame, labels),
        (SecondOrderRegressor(1, alpha=1.0, pairs=1, uncertainty="robust", **seed), frame, y),
        (SecondOrderRegressor(loss="poisson", uncertainty=True, **seed), X, np.abs(y)),
        (SecondOrderRegressor(loss="huber", uncertainty=True, **seed), X, y),
        (FactorizationMachineRegressor(1, draws=3, **seed), levels, y),
    )
    model, rows, target = cases[rng.integers(len(cases))]
    model.fit(rows, target)
    proba = hasattr(model, "predict_proba")
    loaded = same_after_a_file(model, lambda m: m.predict_proba(rows) if proba else m.predict(rows))
    require(loaded.get_params().keys() == model.get_params().keys(), "other options after a file")
    require(loaded.status_ is model.status_, "another status after a file")
    if not proba and model.fitted_.has_spread:
        a, b = (m.predict(rows, return_std=True)[1] for m in (model, loaded))
        require(np.array_equal(a, b, equal_nan=True), "other standard deviations after a file")


ODD_INPUT = {
    "several outputs": (0.01, several_outputs),
    "odd frames": (0.03, odd_frames),
    "odd weights": (0.02, odd_weights),
    "changes": (0.02, changes_of_mind),
    "every kind": (0.01, every_kind),
}
