"""A column of lists, such as the genres of a film, is one column in everything that is said."""

import numpy as np
import pandas as pd
import pytest

from quadlin import FactorizationMachineRegressor, SecondOrderRegressor
from quadlin.plot import ContributionDisplay, InteractionDisplay, PairDisplay, SpectrumDisplay

KINDS = np.array(["drama", "fun", "war", "love"])


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    has, user = rng.random((2500, 4)) < [0.5, 0.3, 0.2, 0.4], rng.integers(0, 12, 2500)
    genres = ["|".join(KINDS[row]) for row in has]
    age = rng.normal(40, 10, 2500)
    taste = rng.normal(size=(12, 4))
    y = 3 + has @ [0.5, -0.3, 1.0, 0.2] + has[:, 0] * has[:, 2] + 0.3 * rng.normal(size=2500)
    y += np.sum(taste[user] * has, axis=1) + 0.01 * age * has[:, 1]
    frame = pd.DataFrame({"genres": genres, "user": [f"u{i}" for i in user], "age": age})
    return frame, y, has


@pytest.fixture(scope="module")
def model(table):
    X, y, _ = table
    return SecondOrderRegressor(4, alpha=0.1, multi_hot=["genres"], random_state=0).fit(X, y)


@pytest.mark.parametrize("pairs", [True, False, 2])
@pytest.mark.parametrize("reference", ["mean", "zero", {"genres": "war|drama"}, {"user": "u3"}])
def test_contributions_have_one_number_per_column_and_sum_to_the_prediction(
    model, table, pairs, reference
):
    X = table[0][:200]
    parts = model.contributions(X, pairs=pairs, reference=reference)
    frame = parts.to_frame()
    np.testing.assert_allclose(frame.sum(axis=1), model.predict(X), rtol=1e-9)
    assert [name for name in frame if "=" in name] == []
    if pairs is True:
        columns = {"genres", "user", "age", "genres × user", "genres × age", "user × age"}
        assert columns == set(parts.column_names) | set(parts.pair_names)


def test_a_reference_of_labels_is_a_list_or_text(model, table):
    X = table[0][:5]
    parts = [model.contributions(X, reference={"genres": g}) for g in ("war|fun", ["fun", "war"])]
    np.testing.assert_allclose(parts[0].columns, parts[1].columns)
    at = X.assign(genres="war|fun")
    np.testing.assert_allclose(
        model.contributions(at, reference={"genres": "fun|war"}).columns[:, 0], 0, atol=1e-9
    )
    with pytest.raises(ValueError, match="'opera' is not a level of 'genres'"):
        model.contributions(X, reference={"genres": "opera"})


def test_effects_are_deviations_of_contributions_with_and_without_rows(model, table):
    X = table[0]
    parts = model.contributions(X, pairs=True)
    over_rows, independent = model.effects(X), model.effects()
    for effects, tolerance in ((over_rows, 1e-9), (independent, 0.05)):
        # Columns were drawn independently: deviations of 2500 rows are known to some percent.
        sizes = {(e.first, e.second or ""): e.strength for e in (*effects.columns, *effects.pairs)}
        names = [(name, "") for name in parts.column_names]
        names += [tuple(name.split(" × ")) for name in parts.pair_names]
        deviations = np.concatenate([parts.columns.std(axis=0), parts.pairs.std(axis=0)])
        assert len(sizes) == len(names) == 6
        for name, deviation in zip(names, deviations, strict=True):
            size = sizes.get(name, sizes.get(name[::-1]))
            assert size == pytest.approx(deviation, rel=tolerance, abs=1e-9)


def test_effects_of_labels_are_what_a_label_adds_beside_the_mean_of_others(model, table):
    X, _, has = table
    levels = {e.level: e for e in model.effects().levels if e.column == "genres"}
    assert set(levels) == set(KINDS)
    # Of a label with, less without it, over rows: the others are drawn independently, so that
    # their mean is that of the rows up to chance; by itself the effect differs by the product.
    for number, name in enumerate(KINDS):
        with_it, without = has.copy(), has.copy()
        with_it[:, number], without[:, number] = True, False
        f = [
            model.predict(X.assign(genres=["|".join(KINDS[r]) for r in h]))
            for h in (with_it, without)
        ]
        assert levels[name].effect == pytest.approx(np.mean(f[0] - f[1]), abs=0.1)
        assert levels[name].share == pytest.approx(has[:, number].mean())


def test_displays_and_reports_show_lists_as_one_column(model, table, tmp_path):
    pytest.importorskip("matplotlib")
    X, y, has = table
    assert set(InteractionDisplay.from_estimator(model, X).names) == {"genres", "user", "age"}
    row = int(np.flatnonzero((has == [True, False, True, False]).all(axis=1))[0])
    names = ContributionDisplay.from_estimator(model, X, row=row).names
    assert "genres = drama|war" in names
    display = PairDisplay.from_estimator(model, X, columns=("genres", "user"))
    assert sorted(display.x) == sorted(KINDS)
    drama = list(display.x).index("drama")
    assert np.sum(display.points[:, 0] == drama) == has[:, 0].sum()
    page = model.report(tmp_path / "r.html", X, y).read_text()
    assert "genres × user" in page or "user × genres" in page
    assert "<td>genres</td>" in page


def test_a_machine_with_lists_has_one_number_per_column(table):
    X, y, _ = table
    machine = FactorizationMachineRegressor(multi_hot=["genres"], random_state=0).fit(X, y)
    assert {e.first for e in machine.effects().columns} == {"genres", "user", "age"}
    parts = machine.contributions(X[:50])
    np.testing.assert_allclose(parts.prediction, machine.predict(X[:50]), rtol=1e-9)


def test_labels_that_fit_did_not_see_are_not_taken_for_unseen_levels(model, table):
    X = table[0][table[0]["genres"] != ""][:50]
    more = X.assign(genres=X["genres"] + "|opera")
    with pytest.warns(UserWarning, match="Labels of lists") as caught:
        new = model.predict(more)
    assert [str(w.message) for w in caught] == [
        "Labels of lists that fit did not see are left out; rows: 50 in 'genres'."
    ]
    np.testing.assert_array_equal(new, model.predict(X))


def test_tables_of_levels_have_a_place_for_every_column(table):
    X, y, _ = table
    rng = np.random.default_rng(1)
    film = rng.integers(40, size=len(y))
    rows = X[["user", "genres"]].assign(film=[f"f{i}" for i in film])
    model = FactorizationMachineRegressor(2, multi_hot=["genres"], random_state=0)
    effects = model.fit(rows, y + 3 * rng.normal(size=40)[film]).effects()
    levels = effects.strongest_levels(10)
    assert len(levels) == 10
    assert {level.column for level in levels} == {"user", "film", "genres"}
    sizes = [abs(level.effect) for level in levels]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == max(abs(level.effect) for level in effects.levels)
    assert "genres=" in str(effects)
    assert len(effects.strongest_levels(2)) == 2


def test_components_of_a_posterior_are_not_compared_with_noise_that_is_not_shrunk():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({name: rng.integers(30, size=3000) for name in ("user", "film")})
    taste, style = rng.normal(size=(2, 30))
    y = taste[X["user"]] * style[X["film"]] + rng.normal(size=3000)
    for learn in ("fit", "partial_fit"):
        model = FactorizationMachineRegressor(categorical_features=[0, 1], random_state=0)
        getattr(model, learn)(X, y)
        assert model.rank_ > 0
        assert np.isnan(SpectrumDisplay.from_estimator(model).noise)
