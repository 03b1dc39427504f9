"""Contributions sum to predictions, and effects are their standard deviations."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from quadlin import FactorizationMachineRegressor, SecondOrderRegressor, open_source
from quadlin.core.model import Model
from quadlin.explain.decomposition import Decomposition
from quadlin.explain.effects import INDEPENDENT
from quadlin.explain.whole_columns import whole_columns

CITIES = ["Bonn", "Oslo", "Rome"]


def table(n=400, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "area": rng.normal(300.0, 20.0, n),
            "city": rng.choice(CITIES, n, p=[0.2, 0.3, 0.5]),
            "kind": rng.choice(["flat", "house"], n),
            "age": rng.exponential(1.0, n),
        }
    )
    y = 0.1 * frame["area"] - 3 * (frame["city"] == "Rome") * frame["age"]
    return frame, (y + 4 * (frame["kind"] == "house") + rng.standard_normal(n)).to_numpy()


FRAME, Y = table()
MODEL = SecondOrderRegressor(2, alpha=0.0, random_state=0).fit(FRAME, Y)


def agree(parts, predictions):
    """The sum of all parts is the prediction, to 1e-9 of the largest part."""
    size = np.abs(parts.values).max()
    np.testing.assert_allclose(parts.prediction, predictions, rtol=0, atol=1e-9 * size)
    np.testing.assert_allclose(parts.values.sum(axis=1), parts.prediction, atol=1e-12 * size)


@given(
    seed=st.integers(0, 10_000),
    rank=st.integers(0, 4),
    pairs=st.sampled_from([True, False, 0, 2]),
    reference=st.sampled_from(["mean", "zero", {"city": "Oslo"}, {"age": 2.5, "kind": "flat"}]),
)
@settings(deadline=None, max_examples=20)
def test_contributions_sum_to_the_prediction(seed, rank, pairs, reference):
    # Any model in the units of the fitted one: what a fit ends at does not matter here.
    rng = np.random.default_rng(seed)
    state, d = MODEL.fitted_.state, 7
    U = np.linalg.qr(rng.standard_normal((d, d)))[0][:, :rank]
    free = (rng.uniform(size=d) < 0.7) * 1.0
    s, w = rng.standard_normal(rank), rng.standard_normal(d)
    model = Model(U, s, w, rng.standard_normal(), free)
    other = SecondOrderRegressor(rank)
    units = replace(state.units, free=free)
    changed = type(state)(**{**_fields(state), "model": model, "units": units})
    other.adopt(MODEL.fitted_.with_state(changed))
    rows = FRAME.iloc[:50].assign(area=rng.normal(300, 100, 50))
    agree(other.contributions(rows, pairs=pairs, reference=reference), other.predict(rows))


def _fields(state):
    return {name: getattr(state, name) for name in state.__dataclass_fields__}


def test_a_pair_of_numbers_is_its_coefficient_times_the_distances_from_the_mean():
    parts = MODEL.contributions(FRAME).to_frame()
    a, b = (FRAME[name] - FRAME[name].mean() for name in ("area", "age"))
    expected = MODEL.interaction("area", "age") * a * b
    np.testing.assert_allclose(parts["area × age"], expected, rtol=1e-6, atol=1e-9)


def test_the_mean_is_the_average_over_levels():
    parts = MODEL.contributions(FRAME).to_frame()
    for name in ("city", "kind", "city × kind"):
        assert abs(parts[name].mean()) < (1e-9 if "×" not in name else 0.1)
    row = FRAME.iloc[:1].assign(area=FRAME["area"].mean(), age=FRAME["age"].mean())
    share = FRAME[["city", "kind"]].apply(lambda c: c.value_counts(normalize=True).to_dict())
    mean = sum(
        share["city"][c] * share["kind"][k] * MODEL.predict(row.assign(city=c, kind=k))[0]
        for c in CITIES
        for k in ("flat", "house")
    )
    assert parts["baseline"].iloc[0] == pytest.approx(mean)


def test_a_reference_is_where_contributions_are_zero():
    parts = MODEL.contributions(FRAME, reference={"city": "Oslo", "age": 1.0}).to_frame()
    oslo = (FRAME["city"] == "Oslo").to_numpy()
    assert np.abs(parts.loc[oslo, "city"]).max() < 1e-10
    assert np.abs(parts.loc[oslo, "city × age"]).max() < 1e-10
    assert np.abs(parts.loc[~oslo, "city"]).min() > 1e-3
    zero = MODEL.contributions(FRAME, reference="zero")
    assert zero.baseline == pytest.approx(MODEL.intercept_)
    rome = MODEL.contributions(FRAME, reference={"city": "Rome"})
    assert rome.reference == "city=Rome, and from the mean of the fitted rows elsewhere"


def test_columns_only_have_half_of_their_pairs():
    whole, halves = MODEL.contributions(FRAME), MODEL.contributions(FRAME, pairs=False)
    expected = whole.columns.copy()
    for j, name in enumerate(whole.column_names):
        mine = [name in pair.split(" × ") for pair in whole.pair_names]
        expected[:, j] += whole.pairs[:, mine].sum(axis=1) / 2
    np.testing.assert_allclose(halves.columns, expected, atol=1e-10)
    assert halves.pairs.shape == (len(FRAME), 0)


def test_the_strongest_pairs_are_told_apart_and_the_others_summed():
    few, every = MODEL.contributions(FRAME, pairs=1), MODEL.contributions(FRAME)
    assert few.pair_names == ["city × age", "other pairs"]
    np.testing.assert_allclose(few.pairs.sum(axis=1), every.pairs.sum(axis=1), atol=1e-10)


def test_frames_arrays_sparse_rows_and_sources_say_the_same():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.eye(3)[rng.integers(0, 3, 300)], rng.standard_normal((300, 2))])
    y = X[:, 0] * X[:, 3] + X[:, 4] + 0.1 * rng.standard_normal(300)
    model = SecondOrderRegressor(2, alpha=0.0, random_state=0).fit(X, y)
    parts = model.contributions(X)
    assert parts.column_names == ["x0 … x2", "x3", "x4"]  # found as one-hot
    agree(parts, model.predict(X))
    for rows in (sparse.csr_array(X), sparse.csc_matrix(X), open_source(X)):
        np.testing.assert_allclose(model.contributions(rows).values, parts.values, atol=1e-10)
    as_polars = MODEL.contributions(pl.from_pandas(FRAME))
    np.testing.assert_allclose(as_polars.values, MODEL.contributions(FRAME).values)


def test_rows_with_two_levels_of_a_group_still_add_up():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.eye(3)[rng.integers(0, 3, 300)], rng.standard_normal((300, 2))])
    model = SecondOrderRegressor(2, random_state=0).fit(X, X[:, 0] * X[:, 3] + X[:, 4])
    X[:5, :3] = 1.0
    X[5:9, :3] = 0.0
    for pairs in (True, False):
        agree(model.contributions(X, pairs=pairs), model.predict(X))


@pytest.mark.filterwarnings("ignore:Levels that fit did not see")
def test_a_level_that_was_never_seen_adds_nothing():
    rows = FRAME.iloc[:5].assign(city="Bergen")
    parts = MODEL.contributions(rows)
    agree(parts, MODEL.predict(rows))
    assert np.abs(parts.columns[:, parts.column_names.index("city")]).max() < 1e-9


def test_the_index_of_a_frame_is_kept():
    rows = FRAME.iloc[[7, 3]]
    assert MODEL.contributions(rows).to_frame().index.tolist() == [7, 3]


@pytest.mark.filterwarnings("ignore:out_of_steps")
def test_a_factorization_machine_of_fields_is_taken_apart():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.integers(6, size=200).astype(str) for name in ("user", "film")})
    taste = rng.standard_normal((6, 6))
    y = taste[frame["user"].astype(int), frame["film"].astype(int)] + 0.3 * rng.standard_normal(200)
    machine = FactorizationMachineRegressor(max_iter=3, random_state=0).fit(frame, y)
    agree(machine.contributions(frame), machine.predict(frame))
    drawn = FactorizationMachineRegressor(draws=5, max_iter=3, random_state=0).fit(frame, y)
    with pytest.raises(ValueError, match="draws=None"):
        drawn.contributions(frame)


@pytest.mark.parametrize("options", [{"fit_linear": False}, {"fit_intercept": False}, {"rank": 0}])
def test_models_without_some_part_are_taken_apart(options):
    model = SecondOrderRegressor(**{"rank": 2, **options}, alpha=0.0, random_state=0).fit(FRAME, Y)
    agree(model.contributions(FRAME), model.predict(FRAME))


def test_single_precision_agrees_with_its_own_rounding():
    X = FRAME[["area", "age"]].to_numpy(np.float32)
    model = SecondOrderRegressor(1, random_state=0).fit(X, Y.astype(np.float32))
    np.testing.assert_allclose(model.contributions(X).prediction, model.predict(X), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pairs": -1}, "pairs=-1 must be True, False or a whole number"),
        ({"pairs": "all"}, 'pairs="all" must be'),
        ({"reference": "median"}, 'reference="median" must be "mean", "zero" or a mapping'),
        ({"reference": {"city": "Rom"}}, "'Rom' is not a level of 'city'"),
        ({"reference": {"age": "old"}}, "'age' holds numbers"),
    ],
)
def test_what_makes_no_sense_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        MODEL.contributions(FRAME, **options)


def test_an_unknown_column_is_named():
    with pytest.raises(KeyError, match="'town'"):
        MODEL.contributions(FRAME, reference={"town": "Rome"})


def test_too_many_pairs_are_refused_with_a_way_out(monkeypatch):
    monkeypatch.setattr("quadlin.explain.contributions.MOST", 40)
    monkeypatch.setattr("quadlin.explain.effects.MOST_COLUMNS", 3)
    with pytest.raises(ValueError, match=r"4 columns and 6 pairs .* pairs=False for columns only"):
        MODEL.contributions(FRAME)
    agree(MODEL.contributions(FRAME[:3], pairs=False), MODEL.predict(FRAME[:3]))
    with pytest.raises(ValueError, match=r"4 columns"):
        MODEL.effects()


def test_effects_are_the_deviations_of_contributions():
    effects, parts = MODEL.effects(FRAME), MODEL.contributions(FRAME).to_frame()
    for effect in effects.columns:
        assert effect.strength == pytest.approx(parts[effect.first].std(ddof=0))
    for effect in effects.pairs:
        name = f"{effect.first} × {effect.second}"
        assert effect.strength == pytest.approx(parts[name].std(ddof=0), rel=1e-6)
    strengths = [effect.strength for effect in effects.pairs]
    assert strengths == sorted(strengths, reverse=True)
    assert (effects.pairs[0].first, effects.pairs[0].second) == ("city", "age")
    assert effects.rows == "the 400 rows given"
    assert "city × age" in str(effects)
    assert "the 400 rows given" in str(effects)


def test_without_rows_effects_are_those_of_independent_columns():
    # Each column of the fitted rows with each: all rows of the product of the four columns would
    # be 400⁴, so 20 values of each number, which the model is fitted to as well.
    rng = np.random.default_rng(0)
    values = [rng.exponential(size=12), rng.normal(5, 2, 12), np.arange(3), np.arange(2)]
    grid = np.stack([v.ravel() for v in np.meshgrid(*values)], axis=1)
    names = np.array(["a", "b", "c"])[grid[:, 2].astype(int)]
    kinds = np.array(["u", "v"])[grid[:, 3].astype(int)]
    frame = pd.DataFrame({"x": grid[:, 0], "z": grid[:, 1], "name": names, "kind": kinds})
    y = grid[:, 0] * grid[:, 1] + (names == "a") * grid[:, 0] + rng.standard_normal(len(grid))
    y += (names == "b") * (kinds == "u") + grid[:, 0] ** 2
    model = SecondOrderRegressor(3, alpha=0.0, random_state=0).fit(frame, y)
    with_rows, without = model.effects(frame), model.effects()
    assert without.rows == INDEPENDENT
    expected = {(e.first, e.second): e.strength for e in [*with_rows.columns, *with_rows.pairs]}
    for effect in [*without.columns, *without.pairs]:
        assert effect.strength == pytest.approx(expected[effect.first, effect.second], rel=1e-6)


def test_effects_of_levels_are_told_from_the_mean_or_a_level():
    effects = {e.level: e.effect for e in MODEL.effects().levels if e.column == "city"}
    shares = {e.level: e.share for e in MODEL.effects().levels if e.column == "city"}
    assert sum(shares[c] * effects[c] for c in CITIES) == pytest.approx(0, abs=1e-9)
    oslo = {e.level: e.effect for e in MODEL.effects(reference={"city": "Oslo"}).levels}
    assert oslo["Oslo"] == pytest.approx(0, abs=1e-9)
    assert oslo["Rome"] == pytest.approx(effects["Rome"] - effects["Oslo"])
    assert "measured from city=Oslo" in str(MODEL.effects(reference={"city": "Oslo"}))


def test_groups_are_named_after_what_their_features_share():
    names = ["age", "city_Oslo", "city_Rome", "a", "b"]
    columns = whole_columns(names, [np.array([1, 2]), np.array([3, 4])], None)
    assert [c.name for c in columns] == ["age", "city", "a … b"]
    assert columns[1].levels == ("Oslo", "Rome")
    taken = whole_columns(["city", "city_a", "city_b"], [np.array([1, 2])], None)
    assert [c.name for c in taken] == ["city", "city_a … city_b"]


def test_a_column_with_very_many_levels_needs_no_square_of_them():
    d = 30_000  # whose square would take 7 GB
    state = MODEL.fitted_.state
    columns = whole_columns([f"c={j}" for j in range(d)], [np.arange(d)], None)
    wide = {
        name: np.full(d, value)
        for name, value in (("mean", 1 / d), ("scale", 1.0), ("rest", 0.0), ("free", 0.0))
    }
    units = replace(state.units, **wide)
    U = np.linalg.qr(np.random.default_rng(0).standard_normal((d, 2)))[0]
    model = Model(U, np.ones(2), np.ones(d), 0.0, units.free)
    changed = type(state)(**{**_fields(state), "model": model, "units": units})
    assert Decomposition.of(changed, columns).level_effects(0).shape == (d,)
