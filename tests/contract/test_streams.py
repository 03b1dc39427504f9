"""Rows that are seen once: what a stream learns does not depend on how its rows arrive."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.metrics import log_loss

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    load,
    save,
)
from quadlin.datasets import make_second_order

from .tables import labels_of, low_rank, nmse

N = 3000
TABLE = low_rank(N, 5, 2, kind="correlated", sigma=0.3)
RNG = np.random.default_rng(0)
USER, FILM = np.sort(RNG.integers(40, size=N)), RNG.integers(30, size=N)  # users come one by one
RATINGS = pd.DataFrame({"user": USER.astype(str), "film": FILM.astype(str)})
STARS = RNG.normal(size=40)[USER] * RNG.normal(size=30)[FILM] + RNG.normal(size=N)
NUMBERS, LABELS = (TABLE.X, TABLE.y), (TABLE.X, labels_of(TABLE))
STREAMS = {
    "by default": (SecondOrderRegressor(), *NUMBERS),
    "of a given rank": (SecondOrderRegressor(2, alpha=0.0), *NUMBERS),
    "of pairs": (SecondOrderRegressor(0, pairs=[(0, 1), (2, 2)]), *NUMBERS),
    "that keeps no row": (SecondOrderRegressor(2, max_memory="minimal"), *NUMBERS),
    "of labels": (SecondOrderClassifier(2, alpha=0.0, pairs=None), *LABELS),
    "of labels with pairs": (SecondOrderClassifier(0, pairs=[(0, 1)]), *LABELS),
    "of labels without rows": (SecondOrderClassifier(2, max_memory="minimal"), *LABELS),
    "of ratings": (FactorizationMachineRegressor(1), RATINGS, STARS),
    "of likes": (FactorizationMachineClassifier(1), RATINGS, STARS > 0),
}


def streamed(name, cuts=(), form=np.asarray, weight=None, path=None, rows=None):
    """Learn the rows in parts; with a path, save and load the model after each of them."""
    model, table, target = STREAMS[name]
    model = clone(model).set_params(random_state=0)
    classes = {"classes": [0, 1]} if hasattr(model, "predict_proba") else {}
    for part in np.split(np.arange(N) if rows is None else np.flatnonzero(rows), cuts):
        X = table.iloc[part] if isinstance(table, pd.DataFrame) else form(table[part])
        more = classes if weight is None else {**classes, "sample_weight": weight[part]}
        model.partial_fit(X, target[part], **more)
        if path is not None:
            save(model, path)
            model = load(path)
    return model


def answer(model, name):
    return getattr(model, "decision_function", model.predict)(STREAMS[name][1])


@pytest.mark.parametrize("name", STREAMS)
def test_neither_calls_nor_files_nor_storage_change_a_stream(name, tmp_path):
    of_levels = name in ("of ratings", "of likes")
    cuts = [*([] if of_levels else [1, 2, 3]), 300, 777, 1500, 2900]
    whole, cut = streamed(name), streamed(name, cuts)
    saved = streamed(name, cuts, path=tmp_path / "model")
    for other in (cut, saved, *([] if of_levels else [streamed(name, [1000], form=csr_array)])):
        np.testing.assert_allclose(answer(other, name), answer(whole, name), rtol=1e-5, atol=1e-5)
        assert other.n_samples_seen_ == N
    np.testing.assert_array_equal(answer(saved, name), answer(cut, name))


@pytest.mark.parametrize("name", STREAMS)
def test_rows_of_weight_zero_are_absent_from_a_stream(name):
    kept = np.random.default_rng(1).random(N) < 0.8
    weighted, alone = streamed(name, [200], weight=kept * 1.0), streamed(name, rows=kept)
    np.testing.assert_allclose(answer(weighted, name), answer(alone, name), rtol=1e-5, atol=1e-5)


LAWS = ("gaussian", "truncated", "bernoulli")


@pytest.mark.parametrize(
    ("kind", "memory", "bar"),
    [*((k, "auto", 1.8) for k in (*LAWS, "ar1")), *((k, "minimal", 3.0) for k in LAWS)],
)
def test_one_pass_ends_near_the_statistical_error(kind, memory, bar):
    law = {"distribution": kind, "parameter": 0.7 if kind == "ar1" else None}
    data = make_second_order(30_000, 10, rank=2, noise=0.5, n_test=4000, random_state=0, **law)
    model = SecondOrderRegressor(2, alpha=0.0, max_memory=memory, random_state=0)
    excess = np.mean((model.partial_fit(data.X, data.y).predict(data.X_test) - data.y_test) ** 2)
    # χ² with 30 degrees of freedom over 30 is 1 ± .26: three of them. Without a first batch some
    # rows go by before there is a model: over eight seeds it was up to 1.6.
    assert excess < bar * 0.5**2 * 30 / 30_000  # σ²·dof/N


@pytest.mark.parametrize(
    ("correlation", "seed", "status"), [(0.5, 6, "converged"), (0.9, 3, "searching")]
)
def test_a_stream_without_rows_finds_the_right_signs_or_goes_on_searching(
    correlation, seed, status
):
    law = {"distribution": "ar1", "parameter": correlation, "random_state": seed}
    data = make_second_order(80_000, 40, rank=3, noise=1.0, n_test=4000, **law)
    model = SecondOrderRegressor(3, alpha=0.0, max_memory="minimal", random_state=0)
    excess = np.mean((model.partial_fit(data.X, data.y).predict(data.X_test) - data.y_test) ** 2)
    assert model.status_.name == status
    if status == "converged":  # the first walk of this seed has a component too few
        assert excess < 20 * 158 / 80_000  # 9 times σ²·dof/N; without an exchange 728 times


def test_a_stream_of_labels_predicts_about_as_well_as_a_fit():
    fit = SecondOrderClassifier(2, alpha=0.0, pairs=None, random_state=0).fit(*LABELS)
    losses = [log_loss(LABELS[1], m.predict_proba(TABLE.X)) for m in (streamed("of labels"), fit)]
    # A fit is 15/6,000 = .0025 below the truth on its own rows; over six seeds .0017 at most.
    assert losses[0] < losses[1] + 0.01


@pytest.mark.parametrize("memory", ["auto", "minimal"])
def test_noise_and_outliers_are_predicted_no_worse_than_by_the_mean(memory):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2, 1200, 4))
    y = 1 + y[:, 0] + 50 * (np.arange(1200) == 70)
    model = SecondOrderRegressor(2, max_memory=memory, random_state=0)
    for part in np.array_split(np.arange(600), 7):
        model.partial_fit(X[part], y[part])
    # Over eight seeds it was 1.00 to 1.12, with the mean of the outlier in it.
    assert np.mean((model.predict(X[600:]) - y[600:]) ** 2) < 1.15 * np.var(y[600:])


@pytest.mark.parametrize("first", [lambda x: 0 * x, lambda x: 1e-3 * x, lambda x: x > 0])
def test_a_feature_that_varies_late_is_learned(first):
    X = np.random.default_rng(0).standard_normal((20_000, 4))
    X[:1000, 2] = first(X[:1000, 2])  # constant, narrow, or two values
    y = X[:, 0] * X[:, 1] + X[:, 2] + X[:, 2] ** 2 + 0.1 * X[:, 3]
    models = [SecondOrderRegressor(3, alpha=0.0) for _ in range(2)]
    models[0].partial_fit(X[:, :3], y), models[1].fit(X[:, :3], y)
    left = [1 - model.score(X[1000:, :3], y[1000:]) for model in models]
    assert left[0] < 4 * left[1]  # over six seeds it was up to 2.5 times what a fit leaves


def test_a_stream_goes_on_from_a_fit_with_the_same_model_only():
    model, X, y = clone(STREAMS["of a given rank"][0]), *NUMBERS
    before = nmse(TABLE.truth, model.fit(X[:300], y[:300]).predict(X))
    assert nmse(TABLE.truth, model.partial_fit(X[300:], y[300:]).predict(X)) < before / 2
    for name, value in (("rank", 1), ("fit_intercept", False), ("squares", False)):
        with pytest.raises(ValueError, match=f"{name} changed"):
            clone(model).fit(X, y).set_params(**{name: value}).partial_fit(X, y)


def test_what_is_refused_does_not_spoil_a_stream():
    model, (X, y) = streamed("of a given rank"), NUMBERS
    before = model.predict(X)
    for bad in (1e200 * X, X * np.nan, X[:, :2]):
        with pytest.raises(ValueError, match=r"large|NaN|features"):
            model.partial_fit(bad, y)
    np.testing.assert_array_equal(model.predict(X), before)
    for option in ({"alpha": 1.0}, {"pairs": 2}):
        with pytest.raises(ValueError, match="memory"):
            SecondOrderRegressor(max_memory="minimal", **option).partial_fit(X, y)


@pytest.mark.parametrize("memory", ["auto", "minimal"])
def test_the_memory_of_a_stream_does_not_grow(memory):
    model = SecondOrderRegressor(2, max_memory=memory, random_state=0)
    sizes = [len(pickle.dumps(model.partial_fit(*NUMBERS))) for _ in range(9)]
    assert sizes[-1] - sizes[3] < 60_000  # for records of steps; the rows are 720,000 bytes


@pytest.mark.parametrize("seed", [1, 5])
def test_a_saved_stream_goes_on_exactly_also_with_heavy_tails(seed, tmp_path):
    # A sample of its rows keeps a stream of such rows from models that are worse than the constant.
    rng = np.random.default_rng(seed)
    X = rng.standard_t(1.5, (5000, 6))
    y = X @ rng.standard_normal(6) + (X[:, 0] + X[:, 1]) ** 2 - X[:, 2] * X[:, 3]
    one, other = (SecondOrderRegressor(2, alpha=0.0) for _ in range(2))
    for part in np.split(np.arange(5000), 50):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # extreme rows
            one.partial_fit(X[part], y[part])
            other.partial_fit(X[part], y[part])
        if part[-1] == 2499:
            save(other, tmp_path / "stream")
            other = load(tmp_path / "stream")
    np.testing.assert_array_equal(other.predict(X), one.predict(X))


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_penalty_is_that_of_all_rows_however_they_are_divided(rank, correlated):
    rng, n = np.random.default_rng(0), 20_000
    X = rng.standard_normal((n, 6)) + correlated * rng.standard_normal((n, 1))
    y = X[:, 0] + 0.5 * rank * X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(n)
    fit, stream = (
        SecondOrderRegressor(rank, alpha=float(n), pairs=None, random_state=0) for _ in range(2)
    )
    fit.fit(X, y)
    for start in range(0, n, 500):
        stream.partial_fit(X[start : start + 500], y[start : start + 500])
    # Each batch is one step with a covariance of the first rows, 500 to 1,000, so that is off by
    # their sampling error: below 0.01. A penalty of the first batch alone gives 0.02 to 0.7.
    np.testing.assert_allclose(stream.coef_, fit.coef_, atol=0.02)
