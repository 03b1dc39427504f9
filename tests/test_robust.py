"""Gross errors in y, heavy tails in x, text columns and the diagnosis, as a user meets them."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.preprocessing import OneHotEncoder

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.metrics import nmse


def with_outliers(y, share=0.01, size=1e4, seed=0):
    rng = np.random.default_rng(seed)
    bad = rng.uniform(size=len(y)) < share
    return np.where(bad, y + size * rng.standard_normal(len(y)), y)


@pytest.mark.parametrize("kind", ["gaussian", "mixed"])
def test_gross_errors_in_y_hardly_move_a_huber_fit(kind):
    data = make_second_order(
        4000, 20, rank=2, distribution=kind, noise=0.3, n_test=2000, random_state=0
    )
    dirty = with_outliers(data.y)
    clean = SecondOrderRegressor(rank=2, random_state=0).fit(data.X, data.y)
    huber = SecondOrderRegressor(rank=2, loss="huber", random_state=0).fit(data.X, dirty)
    squares = SecondOrderRegressor(rank=2, random_state=0).fit(data.X, dirty)
    error = [nmse(data.y_test, m.predict(data.X_test)) for m in (clean, huber, squares)]
    assert error[1] < 1.5 * error[0]
    assert error[2] > 100 * error[0]


def test_without_noise_outliers_are_ignored_altogether():
    data = make_second_order(3000, 15, rank=2, n_test=500, random_state=0)
    model = SecondOrderRegressor(rank=2, loss="huber", random_state=0)
    model.fit(data.X, with_outliers(data.y))
    assert nmse(data.y_test, model.predict(data.X_test)) < 1e-6


def test_huber_is_least_squares_for_weights_that_repeat():
    data = make_second_order(400, 5, rank=1, noise=0.5, random_state=0)
    weight = np.random.default_rng(0).integers(0, 3, 400)
    again = np.repeat(np.arange(400), weight)
    a = SecondOrderRegressor(rank=1, loss="huber", random_state=0)
    b = SecondOrderRegressor(rank=1, loss="huber", random_state=0)
    a.fit(data.X, data.y, sample_weight=weight)
    b.fit(data.X[again], data.y[again])
    np.testing.assert_allclose(a.predict(data.X), b.predict(data.X), atol=1e-4)


@pytest.mark.parametrize("tail", ["lognormal", "student"])
def test_heavy_tails_in_x_are_no_obstacle(tail):
    rng = np.random.default_rng(0)
    X = rng.lognormal(size=(6000, 20)) if tail == "lognormal" else rng.standard_t(5, (6000, 20))
    Q = np.linalg.qr(rng.standard_normal((20, 2)))[0]
    f = 1 + X @ rng.standard_normal(20) + ((X @ Q) ** 2) @ [1.0, -1.0]
    y = f + 0.1 * np.std(f) * rng.standard_normal(6000)
    model = SecondOrderRegressor(rank=2, random_state=0).fit(X[:4000], y[:4000])
    assert nmse(f[4000:], model.predict(X[4000:])) < 0.01


def table(n, frame, seed=0):
    rng = np.random.default_rng(seed)
    city, colour = rng.choice(list("abcde"), n), rng.choice(["red", "blue", "green"], n)
    size = rng.standard_normal(n)
    y = np.where(city == "a", 2.0, 0.0) * np.where(colour == "red", 1.0, -1.0) + size**2
    return frame({"city": city, "size": size, "colour": colour}), y


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_text_columns_become_fields(frame):
    X, y = table(1500, frame)
    model = SecondOrderRegressor(rank=4, random_state=0).fit(X, y)
    assert model.score(*table(500, frame, 1)) > 1 - 1e-8
    assert model.n_features_in_ == 3
    assert list(model.feature_names_in_) == ["city", "size", "colour"]
    assert model.interaction("city=a", "city=b") == 0  # never both
    pairs = {(p.first, p.second) for p in model.interactions_.top(30)}
    assert all(a.split("=")[0] != b.split("=")[0] for a, b in pairs)


def test_text_columns_are_what_one_hot_encoding_makes_of_them():
    X, y = table(800, pd.DataFrame)
    encoded = np.column_stack(
        [OneHotEncoder(sparse_output=False).fit_transform(X[["city"]]), X["size"],
         OneHotEncoder(sparse_output=False).fit_transform(X[["colour"]])]
    )  # fmt: skip
    a = SecondOrderRegressor(rank=2, random_state=0).fit(X, y)
    b = SecondOrderRegressor(rank=2, random_state=0).fit(encoded, y)
    np.testing.assert_allclose(a.predict(X), b.predict(encoded), atol=1e-8)
    assert b.interaction(0, 1) == 0  # found without being told


def test_levels_never_seen_are_counted():
    X, y = table(800, pd.DataFrame)
    model = SecondOrderRegressor(rank=2, random_state=0).fit(X, y)
    new = X.head(10).copy()
    new.loc[:3, "city"] = "nowhere"
    with pytest.warns(UserWarning, match="4 in 'city'"):
        assert np.all(np.isfinite(model.predict(new)))
    with pytest.raises(ValueError, match="frame"):
        model.predict(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="colour"):
        model.predict(X[["city", "size"]])


def test_a_stream_of_frames_with_text():
    X, y = table(3000, pl.DataFrame)
    model = SecondOrderRegressor(rank=3, random_state=0, batch_size=1000)
    for start in range(0, 3000, 500):
        model.partial_fit(X[start : start + 500], y[start : start + 500])
    assert model.score(X, y) > 0.99


def test_fields_can_be_named():
    X, y = table(600, pd.DataFrame)
    dummies = pd.get_dummies(X, dtype=float)
    groups = [[c for c in dummies if c.startswith(f)] for f in ("city", "colour")]
    model = SecondOrderRegressor(rank=2, fields=groups, random_state=0).fit(dummies, y)
    assert model.interaction("city_a", "city_c") == 0
    free = SecondOrderRegressor(rank=2, fields=None, random_state=0).fit(dummies, y)
    assert free.interaction("city_a", "city_c") != 0
    with pytest.raises(KeyError, match="town"):
        SecondOrderRegressor(fields=[["town"]]).fit(dummies, y)


def test_the_diagnosis_says_what_to_change():
    rng = np.random.default_rng(0)
    data = make_second_order(3000, 12, rank=3, noise=0.5, random_state=0)
    X = np.column_stack([data.X, data.X[:, 0] + data.X[:, 1], np.ones(3000), data.X[:, 0] > 0])
    names = [f"f{j}" for j in range(12)] + ["sum", "unit", "flag"]
    X = pd.DataFrame(X, columns=names)
    low = SecondOrderRegressor(rank=2, random_state=0).fit(X, data.y)
    text = low.diagnose(X, data.y)
    assert "constant (unit)" in text
    assert "two-valued (flag)" in text
    assert "linear dependence" in text
    assert "sum" in text
    assert "too low" in text
    right = SecondOrderRegressor(rank=3, random_state=0).fit(data.X, data.y)
    assert "all 3 components stand out" in right.diagnose(data.X, data.y)
    high = SecondOrderRegressor(rank=6, random_state=0).fit(data.X, data.y)
    assert "3 of 6 components" in high.diagnose()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        few = SecondOrderRegressor(rank=3, random_state=0)
        few.fit(rng.standard_normal((20, 12)), rng.standard_normal(20))
    assert "Too few" in few.diagnose()
    weight = np.where(np.arange(3000) < 30, 1.0, 1e-6)
    right.fit(data.X, data.y, sample_weight=weight)
    assert "effectively 30" in right.diagnose()


def test_standard_errors_are_there_when_asked_for():
    data = make_second_order(3000, 8, rank=2, noise=0.5, n_test=3000, random_state=0)
    model = SecondOrderRegressor(rank=2, uncertainty=True, random_state=0).fit(data.X, data.y)
    # 3,000 rows: the noise level is known to 1/√(2·3000) = 1.3%.
    assert model.noise_ == pytest.approx(0.5, rel=0.05)
    predicted, std = model.predict(data.X_test, return_std=True)
    new = data.y_test + 0.5 * np.random.default_rng(1).standard_normal(3000)
    assert 0.93 < np.mean(np.abs(new - predicted) < 1.96 * std) < 0.97
    assert np.all(np.abs(model.coef_ - data.coef) < 5 * model.coef_std_)
    truth = float(data.components[:, 0] * data.eigenvalues @ data.components[:, 1])
    assert abs(model.interaction(0, 1) - truth) < 5 * model.interaction_std(0, 1)
    assert model.intercept_std_ > 0
    model.partial_fit(data.X, data.y)
    with pytest.raises(AttributeError, match="uncertainty=True"):
        model.predict(data.X, return_std=True)
