"""Fields are told from their means: the same function, said in the one way that rows can tell."""

import array_api_strict
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quadlin import SecondOrderRegressor, SecondOrderRegressorCV
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import Model, predict
from quadlin.core.moments import moments_of
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.lowrank.levels import settled

CITIES, KINDS = ["Bonn", "Oslo", "Rome"], ["flat", "house"]


def table(n=600, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "city": rng.choice(CITIES, n, p=[0.2, 0.3, 0.5]),
            "kind": rng.choice(KINDS, n),
            "area": rng.normal(3.0, 1.0, n),
            "age": rng.uniform(0, 2, n),
        }
    )
    rome = frame["city"] == "Rome"
    y = 5 + 2 * frame["area"] - 3 * rome * frame["age"] + 4 * (frame["kind"] == "house")
    return frame, (y + rng.standard_normal(n)).to_numpy()


FRAME, Y = table()
SHARE = {f"city={c}": float((FRAME["city"] == c).mean()) for c in CITIES}
SHARE |= {f"kind={k}": float((FRAME["kind"] == k).mean()) for k in KINDS}


def mean_is_zero(model, atol=1e-8):
    names, top = model.interactions_.names, np.abs(model.coef_).max()
    for field, levels in (("city", CITIES), ("kind", KINDS)):
        features = [f"{field}={level}" for level in levels]
        coef = sum(SHARE[name] * model.coef_[names.index(name)] for name in features)
        assert abs(coef) < atol * top
        rows = sum(SHARE[name] * model.interactions_.row(name) for name in features)
        others = [j for j, name in enumerate(names) if not name.startswith(field)]
        assert np.abs(rows[others]).max() < atol * top


@given(st.integers(0, 10_000), st.integers(1, 4))
@settings(deadline=None, max_examples=25)
def test_the_function_stays_the_same_where_each_field_has_a_level(seed, rank):
    rng = np.random.default_rng(seed)
    fields = [np.array([4, 0, 2]), np.array([1, 5])]
    X = np.zeros((40, 6))
    for field in fields:
        X[np.arange(40), field[rng.permutation(np.arange(40) % len(field))]] = 1
    X[:, 3] = rng.standard_normal(40) + 2
    source = MemorySource(X, rng.standard_normal(40))
    units = UnitsMaker("auto", True, X.dtype, "abcdef", fields)(*moments_of(Rows.of(source)))
    U = np.linalg.qr(rng.standard_normal((6, rank)))[0]
    model = Model(U, rng.standard_normal(rank), rng.standard_normal(6), 0.7, units.free)
    other, rows = settled(model, units, fields), Block(X, units)
    np.testing.assert_allclose(predict(other, rows), predict(model, rows), atol=1e-10)
    again = settled(other, units, fields)
    np.testing.assert_allclose(again.w, other.w, atol=1e-10)  # there is one such way
    np.testing.assert_allclose((again.U * again.s) @ again.U.T, (other.U * other.s) @ other.U.T)


@pytest.mark.parametrize("rank", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_coefficients_of_levels_have_mean_zero(rank, dtype):
    frame = FRAME.astype({"area": dtype, "age": dtype})
    model = SecondOrderRegressor(rank, random_state=0, alpha=0.0).fit(frame, Y)
    mean_is_zero(model, atol=1e-8 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize("asarray", [torch.asarray, array_api_strict.asarray])
def test_other_arrays_go_through_the_same_lines(asarray):
    rng = np.random.default_rng(0)
    X = np.column_stack([np.eye(3)[rng.integers(0, 3, 300)], rng.standard_normal((300, 2))])
    y = X[:, 0] * X[:, 3] + X[:, 4] + 0.1 * rng.standard_normal(300)
    options = {"rank": 2, "fields": [[0, 1, 2]], "uncertainty": True, "random_state": 0}
    expected = SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}).fit(X, y)
    with sklearn.config_context(array_api_dispatch=True):
        model = SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}).fit(
            asarray(X), asarray(y)
        )
    np.testing.assert_allclose(np.asarray(model.coef_), expected.coef_, atol=1e-6)
    np.testing.assert_allclose(np.asarray(model.coef_std_), expected.coef_std_, rtol=1e-4)


def test_what_is_said_of_levels_hardly_depends_on_the_rank():
    # The truth has rank 2; what rank 2 says of it, higher ranks say too, within its own error.
    for rank in (2, 3, 4, 7):
        model = SecondOrderRegressor(rank, uncertainty=True, random_state=0, alpha=0.0).fit(
            FRAME, Y
        )
        coefficient = model.interaction("city=Rome", "age")
        error = model.interaction_std("city=Rome", "age")
        assert coefficient == pytest.approx(-3 * (1 - SHARE["city=Rome"]), abs=4 * error)
        assert 0.03 < error < 0.12
        assert np.all(model.coef_std_ < 2)


def design(frame):
    """All products of dummies and numbers but those of one field, a level of each left out."""
    numbers = frame[["area", "age"]].to_numpy()
    dummies = [(frame["city"] == c).to_numpy() for c in CITIES[1:]] + [
        (frame["kind"] == "house").to_numpy()
    ]
    base = np.column_stack([*dummies, numbers]).astype(float)
    pairs = [(i, j) for i in range(5) for j in range(i, 5)]
    pairs = [(i, j) for i, j in pairs if not (i == j < 3 or (i, j) == (0, 1))]
    return np.column_stack(
        [np.ones(len(frame)), base, *(base[:, i] * base[:, j] for i, j in pairs)]
    )


def test_standard_errors_are_those_of_least_squares():
    # Rank d is a linear model: its errors are known. What is asked is a contrast of predictions.
    model = SecondOrderRegressor(7, uncertainty=True, tol=1e-12, random_state=0, alpha=0.0).fit(
        FRAME, Y
    )
    B = design(FRAME)
    beta, loss = np.linalg.lstsq(B, Y, rcond=None)[:2]
    covariance = np.linalg.inv(B.T @ B) * loss[0] / (len(Y) - B.shape[1])

    def at(city, age):
        return design(pd.DataFrame({"city": [city], "kind": "flat", "area": 0.0, "age": age}))[0]

    # age and age² at 0, 1 and −1 tell the slope from the curvature.
    slope = {c: (at(c, 1.0) - at(c, -1.0)) / 2 for c in CITIES}
    contrast = slope["Rome"] - sum(SHARE[f"city={c}"] * slope[c] for c in CITIES)
    assert model.interaction("city=Rome", "age") == pytest.approx(contrast @ beta, rel=1e-4)
    error = np.sqrt(contrast @ covariance @ contrast)
    assert model.interaction_std("city=Rome", "age") == pytest.approx(error, rel=1e-4)
    level = {c: at(c, 0.0) for c in CITIES}  # and over both kinds
    other = design(pd.DataFrame({"city": CITIES, "kind": "house", "area": 0.0, "age": 0.0}))
    both = {
        c: SHARE["kind=flat"] * level[c] + SHARE["kind=house"] * other[i]
        for i, c in enumerate(CITIES)
    }
    contrast = both["Rome"] - sum(SHARE[f"city={c}"] * both[c] for c in CITIES)
    j = model.interactions_.names.index("city=Rome")
    assert model.coef_[j] == pytest.approx(contrast @ beta, rel=1e-4)
    assert model.coef_std_[j] == pytest.approx(np.sqrt(contrast @ covariance @ contrast), rel=1e-4)


@pytest.mark.filterwarnings("ignore:.*did not see")
@pytest.mark.parametrize("rank", [1, 3])
def test_a_level_that_was_never_seen_is_the_mean_of_those_that_were(rank):
    model = SecondOrderRegressor(rank, random_state=0, alpha=0.0).fit(FRAME, Y)
    rows = FRAME.iloc[:20]
    mean = sum(SHARE[f"city={c}"] * model.predict(rows.assign(city=c)) for c in CITIES)
    np.testing.assert_allclose(model.predict(rows.assign(city="Paris")), mean)


def test_streams_cross_validation_and_pure_moments_say_it_the_same_way():
    stream = SecondOrderRegressor(2, batch_size=200, random_state=0, alpha=0.0)
    for start in range(0, 600, 150):
        part = slice(start, start + 150)
        stream.partial_fit(FRAME.iloc[part], Y[part])
    mean_is_zero(stream, atol=1e-6)
    mean_is_zero(SecondOrderRegressor(2, polish=False, random_state=0, alpha=0.0).fit(FRAME, Y))
    mean_is_zero(SecondOrderRegressorCV([2], [0.0], cv=3, random_state=0).fit(FRAME, Y))


def test_a_penalty_does_not_change_how_levels_are_reported_and_a_missing_part_does():
    mean_is_zero(SecondOrderRegressor(2, alpha=10.0, random_state=0).fit(FRAME, Y))
    through_zero = SecondOrderRegressor(7, fit_intercept=False, random_state=0, alpha=0.0).fit(
        FRAME, Y
    )
    assert through_zero.score(FRAME, Y) > 0.8
    rows = FRAME.assign(city=np.where(np.arange(600) == 3, None, FRAME["city"]))
    with pytest.raises(ValueError, match="city"):
        SecondOrderRegressor(2, alpha=0.0).fit(rows, Y)
