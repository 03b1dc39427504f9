"""Recommendations: the best pairs without a row for each, checked against `predict` on all rows."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_matrix, hstack
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    load,
    open_source,
    save,
)
from quadlin.solve.fields import pairwise_predictions

USERS, ITEMS = 16, 12


def table(seed=0, n=500):
    """Ratings by user and film, with the age of the user and the year and the kind of the film."""
    rng = np.random.default_rng(seed)
    users = pd.DataFrame({"user": [f"u{i}" for i in range(USERS)], "age": rng.normal(40, 9, USERS)})
    films = pd.DataFrame(
        {
            "film": [f"f{i}" for i in range(ITEMS)],
            "year": rng.integers(1950, 2020, ITEMS),
            "kind": rng.choice(["war", "love"], ITEMS),
        }
    )
    u, i = rng.integers(USERS, size=n), rng.integers(ITEMS, size=n)
    taste, style = rng.normal(size=(USERS, 2)), rng.normal(size=(ITEMS, 2))
    y = 3 + np.sum(taste[u] * style[i], axis=1) + 0.02 * users.age.to_numpy()[u]
    y += (films.kind == "war").to_numpy()[i] + 0.3 * rng.normal(size=n)
    rows = pd.concat(
        [users.iloc[u].reset_index(drop=True), films.iloc[i].reset_index(drop=True)], axis=1
    )
    return users, films, rows, y


def all_pairs(users, films):
    return users.merge(films, how="cross")


@pytest.fixture(scope="module")
def machine():
    _, _, rows, y = table()
    return FactorizationMachineRegressor(2, random_state=0).fit(rows, y)


@pytest.mark.parametrize("options", [{}, {"draws": 20}, {"alpha": 0.1, "pairs": 2}])
def test_the_best_items_are_those_of_the_highest_predictions(options):
    users, films, rows, y = table()
    machine = FactorizationMachineRegressor(2, random_state=0, **options).fit(rows, y)
    best = machine.recommend(users, films, 4)
    pairs = all_pairs(users, films)
    pairs["oracle"] = machine.predict(pairs[list(rows.columns)])
    expected = pairs.sort_values("oracle", ascending=False).groupby("user", sort=False).head(4)
    expected = expected.set_index("user").loc[users.user].reset_index()
    assert best.film.tolist() == expected.film.tolist()
    # Draws are kept in float32, and their predictions are sums of some hundred numbers.
    rtol = 1e-4 if "draws" in options else 1e-9
    np.testing.assert_allclose(best.prediction, expected.oracle, rtol=rtol)
    assert best["rank"].tolist() == [1, 2, 3, 4] * USERS


def test_blocks_of_users_and_items_change_nothing(machine, monkeypatch):
    users, films, _, _ = table()
    whole = machine.recommend(users, films, 3)
    monkeypatch.setattr(pairwise_predictions, "SCORES", 40)
    monkeypatch.setattr(pairwise_predictions, "FACTORS", 20)
    pd.testing.assert_frame_equal(machine.recommend(users, films, 3), whole)


def test_pairs_that_are_excluded_are_not_recommended(machine):
    users, films, rows, _ = table()
    best = machine.recommend(users, films, ITEMS, exclude=rows[["user", "film"]])
    seen = set(zip(rows.user, rows.film, strict=True))
    told = set(zip(best.user, best.film, strict=True))
    every = set(zip(*all_pairs(users, films)[["user", "film"]].to_numpy().T, strict=True))
    assert told == every - seen
    at = [[users.user.tolist().index(u), films.film.tolist().index(f)] for u, f in sorted(seen)]
    again = machine.recommend(users, films, ITEMS, exclude=np.array(at))
    pd.testing.assert_frame_equal(again, best)


def test_pairs_are_excluded_by_their_ids_whatever_else_has_changed(machine):
    users, films, rows, _ = table()
    later, renamed = users.assign(age=users.age + 1), films.assign(year=films.year - 1)
    seen = set(zip(rows.user, rows.film, strict=True))
    for tables in ((later, films), (users, renamed), (later, renamed)):
        best = machine.recommend(*tables, ITEMS, exclude=rows)
        assert not seen & set(zip(best.user, best.film, strict=True))
    # A second category tells rows apart where the ids do not: two kinds of one film.
    twice = pd.concat([films[:1].assign(kind=kind) for kind in ("war", "love")])
    one = films[:1].assign(user=users.user[0], kind="war")
    assert machine.recommend(users[:1], twice, 2, exclude=one).kind.tolist() == ["love"]
    # Columns that are no categories of the model serve where there is nothing else.
    titled = films.assign(title="The " + films.film)
    best = machine.recommend(
        users, titled, ITEMS, exclude=pd.DataFrame({"user": users.user, "title": "The f3"})
    )
    assert "f3" not in set(best.film)


def test_a_repeated_item_stands_in_a_list_once(machine):
    users, films, _, _ = table()
    best = machine.recommend(users, films, 4)
    again = pd.concat([films, films], ignore_index=True)
    pd.testing.assert_frame_equal(machine.recommend(users, again, 4), best)
    polars = machine.recommend(pl.from_pandas(users), pl.from_pandas(again), 4)
    assert polars["film"].to_list() == best.film.tolist()
    first = films.film.tolist().index(best.film[0])
    for copy in (first, first + ITEMS):  # the position of either copy
        without = machine.recommend(users[:1], again, 1, exclude=[[0, copy]])
        assert without.film[0] == best.film[1]


def test_tables_that_look_swapped_are_warned_of(machine):
    users, films, _, _ = table()
    with pytest.warns(UserWarning, match="item_rows has the column 'user'.*swapped"):
        machine.recommend(films, users, 2)


def test_new_users_and_films_are_known_by_their_other_columns(machine):
    _, _, rows, _ = table()
    new = pd.DataFrame({"user": ["nobody"], "age": [30.0]})
    film = pd.DataFrame({"film": ["unknown"] * 2, "year": [2000] * 2, "kind": ["war", "love"]})
    with pytest.warns(UserWarning, match="average level"):
        best = machine.recommend(new, film, 2)
    assert best.kind.tolist() == ["war", "love"]  # which adds one
    with pytest.warns(UserWarning, match="average level"):
        oracle = machine.predict(all_pairs(new, film)[list(rows.columns)])
    np.testing.assert_allclose(best.prediction, oracle, rtol=1e-9)


def test_columns_that_are_not_the_models_are_passed_on_in_the_library_of_the_frames(machine):
    users, films, _, _ = table()
    films["title"] = "The " + films.film
    best = machine.recommend(pl.from_pandas(users), pl.from_pandas(films), 2)
    assert isinstance(best, pl.DataFrame)
    assert best.columns == ["user", "age", "rank", "film", "year", "kind", "title", "prediction"]
    assert best["title"].to_list() == [f"The {film}" for film in best["film"]]
    shuffled = users.sample(frac=1, random_state=0)  # whose index is not in order
    pandas = machine.recommend(shuffled, films, 2)
    both = pandas.merge(best.to_pandas(), on=["user", "rank"])
    assert len(both) == 2 * USERS
    assert (both.film_x == both.film_y).all()


def test_arrays_have_all_features_with_zeros_on_the_other_side():
    rng = np.random.default_rng(0)
    u, i = rng.integers(8, size=400), rng.integers(6, size=400)
    X = csr_matrix(hstack([csr_matrix(np.eye(8)[u]), csr_matrix(np.eye(6)[i])]))
    y = rng.normal(size=8)[u] * rng.normal(size=6)[i]
    machine = FactorizationMachineRegressor(1, random_state=0).fit(X, y)
    users = csr_matrix(np.eye(8, 14))
    items = csr_matrix(np.eye(6, 14, 8))
    best = machine.recommend(users, items, 1)
    f = machine.predict(csr_matrix(np.eye(8, 14).repeat(6, 0) + np.tile(np.eye(6, 14, 8), (8, 1))))
    assert best.item_row.tolist() == f.reshape(8, 6).argmax(axis=1).tolist()
    with pytest.raises(ValueError, match="belongs to one side"):
        machine.recommend(users, users)


def test_a_classifier_recommends_by_probability(tmp_path):
    users, films, rows, y = table()
    machine = FactorizationMachineClassifier(2, random_state=0).fit(rows, y > np.median(y))
    save(machine, tmp_path / "likes.safetensors")
    best = load(tmp_path / "likes.safetensors").recommend(users, films, ITEMS)
    pairs = best[list(rows.columns)]
    np.testing.assert_allclose(best.probability, machine.predict_proba(pairs)[:, 1], rtol=1e-6)
    assert (best.groupby("user").probability.diff().dropna() <= 0).all()
    three = FactorizationMachineClassifier(1, alpha=1.0, max_iter=3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        three.fit(rows, np.digitize(y, np.quantile(y, [0.3, 0.6])))
    with pytest.raises(ValueError, match="one_vs_rest"):
        three.recommend(users, films)
    assert len(three.one_vs_rest(2).recommend(users, films, 2)) == 2 * USERS


@pytest.mark.parametrize("options", [{}, {"draws": 20}])
def test_a_label_that_is_text_must_be_named_and_ranks_the_items(options):
    users, films, rows, y = table()
    likes = np.where(y > np.median(y), "like", "no")  # "no" is the second class
    machine = FactorizationMachineClassifier(2, random_state=0, **options).fit(rows, likes)
    with pytest.raises(ValueError, match=r"'like' and 'no'.*label="):
        machine.recommend(users, films)
    for place, label in enumerate(("like", "no")):
        best = machine.recommend(users, films, 3, label=label)
        pairs = all_pairs(users, films)[list(rows.columns)]
        P = machine.predict_proba(pairs)[:, place].reshape(USERS, ITEMS)
        ranked = best[f"probability={label}"].to_numpy().reshape(USERS, 3)
        np.testing.assert_allclose(ranked, -np.sort(-P, axis=1)[:, :3], rtol=1e-4)
    with pytest.raises(ValueError, match="not a class; there are 'like' and 'no'"):
        machine.recommend(users, films, label="likes")


def test_of_two_numbers_the_larger_ranks_the_items_unless_another_is_named():
    users, films, rows, y = table()
    machine = FactorizationMachineClassifier(2, random_state=0).fit(rows, (y > 3).astype(int))
    best = machine.recommend(users, films, 2)
    named = machine.recommend(users, films, 2, label=1)
    assert best.film.tolist() == named.film.tolist()
    assert (best.columns[-1], named.columns[-1]) == ("probability", "probability=1")
    worst = machine.recommend(users, films, 1, label=0)
    assert worst.film.tolist() == machine.recommend(users, films, ITEMS).film.tolist()[11::ITEMS]


def test_embeddings_make_up_the_predictions(machine):
    rng = np.random.default_rng(1)
    u, i = rng.integers(9, size=500), rng.integers(7, size=500)
    rows = pd.DataFrame({"user": u.astype(str), "film": i.astype(str)})
    y = rng.normal(size=9)[u] * rng.normal(size=7)[i] + 0.1 * rng.normal(size=500)
    small = FactorizationMachineRegressor(2, random_state=0).fit(rows, y)
    user, film = (small.embeddings(name).set_index("level") for name in ("user", "film"))
    signs = np.sign(small.eigenvalues_)
    vectors = [c for c in user.columns if c != "bias"]
    f = small.intercept_ + user.bias.to_numpy()[:, None] + film.bias.to_numpy()
    f = f + (user[vectors].to_numpy() * signs) @ film[vectors].to_numpy().T
    pairs = all_pairs(pd.DataFrame({"user": user.index}), pd.DataFrame({"film": film.index}))
    np.testing.assert_allclose(f.ravel(), small.predict(pairs), rtol=1e-8)
    assert machine.embeddings("age")["level"].tolist() == ["age"]
    with pytest.raises(KeyError, match="kind"):
        machine.embeddings("colour")


@pytest.mark.parametrize("dtype", ["int64", "int32", "float64", "bool", "category", "string"])
def test_levels_of_embeddings_have_the_dtype_of_their_column(dtype, tmp_path):
    rng = np.random.default_rng(0)
    item = rng.integers(0, 2 if dtype == "bool" else 12, 400)
    rows = pd.DataFrame({"item": pd.Series(item).astype(dtype), "user": rng.integers(0, 9, 400)})
    machine = FactorizationMachineRegressor(1, alpha=1.0, categorical_features=["item", "user"])
    machine.fit(rows, rng.normal(size=400))
    save(machine, tmp_path / "m")
    items = rows[["item"]].drop_duplicates()
    for each in (machine, load(tmp_path / "m")):
        levels = each.embeddings("item")
        wanted = {"category": "int64", "string": None}.get(dtype, dtype)
        assert wanted is None or levels["level"].dtype == wanted
        assert len(items.merge(levels, left_on="item", right_on="level")) == len(items)
        assert each.embeddings("user")["level"].tolist() == list(range(9))


def test_ids_of_files_and_arrays_and_given_ones_have_their_dtype(tmp_path):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 9, (300, 2))
    machine = FactorizationMachineRegressor(1, alpha=1.0, categorical_features=[0, 1])
    machine.fit(ids, rng.normal(size=300))
    assert machine.embeddings("x1")["level"].dtype == np.int64
    frame = pd.DataFrame(ids, columns=["user", "item"]).assign(y=rng.normal(size=300))
    frame.to_parquet(tmp_path / "rows.parquet")
    options = {"target": "y", "categorical_features": ["user", "item"]}
    for more in ({}, {"levels": {"user": list(range(10)), "item": list(range(9))}}):
        source = open_source(tmp_path / "rows.parquet", **options, **more)
        assert source.encoder.level_values("item").dtype == np.int64


def test_a_file_of_an_earlier_checkout_has_levels_as_text(tmp_path):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.integers(0, 9, (300, 2)), columns=["user", "item"])
    machine = FactorizationMachineRegressor(1, alpha=1.0, categorical_features=["user", "item"])
    machine.fit(rows, rng.normal(size=300))
    columns = machine.fitted_.columns
    old = replace(
        machine.fitted_, columns=replace(columns, encoder=replace(columns.encoder, kinds=()))
    )
    machine.adopt(old)
    save(machine, tmp_path / "m")
    assert load(tmp_path / "m").embeddings("item")["level"].tolist() == list(map(str, range(9)))


def test_what_does_not_fit_together_is_said(machine):
    users, films, rows, _ = table()
    with pytest.raises(ValueError, match="fitted to 'age' as well"):
        machine.recommend(users[["user"]], films)
    with pytest.raises(ValueError, match="both have a column 'year'"):
        machine.recommend(users.assign(year=1), films)
    with pytest.raises(ValueError, match="item_rows is not"):
        machine.recommend(users, films.to_numpy())
    with pytest.raises(ValueError, match="must be frames"):
        machine.recommend(users.to_numpy(), films.to_numpy())
    with pytest.raises(ValueError, match="n=0 must be a whole number"):
        machine.recommend(users, films, 0)
    with pytest.raises(ValueError, match="no column in common with item_rows"):
        machine.recommend(users, films, exclude=rows[["user"]])
    with pytest.raises(ValueError, match="16 users and 12 items"):
        machine.recommend(users, films, exclude=[[0, 12]])
    with pytest.raises(ValueError, match="'rank', which is also the name of a column"):
        machine.recommend(users.assign(rank=1), films)
    with pytest.raises(ValueError, match="same library"):
        machine.recommend(users, pl.from_pandas(films))
    with pytest.raises(ValueError, match="user_rows has no rows"):
        machine.recommend(users[:0], films)
    with pytest.raises(ValueError, match="item_rows has no rows"):
        machine.recommend(users, films[:0])


def test_a_bias_is_that_beside_average_others(machine):
    _, films, rows, _ = table()
    assert machine.rank_ > 0
    average = {"user": "nobody", "age": rows.age.mean(), "film": "none", "year": rows.year.mean()}
    frame = pd.DataFrame([{**average, "kind": kind} for kind in ("love", "war", "none")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are new
        love, war, none = machine.predict(frame[list(rows.columns)])
        new = frame.iloc[[2] * len(films)].assign(film=films.film.to_numpy())
        of_films = machine.predict(new[list(rows.columns)]) - none
    bias = machine.embeddings("kind").set_index("level")["bias"]
    np.testing.assert_allclose(bias[["love", "war"]], [love - none, war - none], atol=1e-8)
    bias = machine.embeddings("film").set_index("level")["bias"]
    np.testing.assert_allclose(bias[films.film], of_films, atol=1e-8)
    assert np.abs(machine.embeddings("age")["v0"]).max() > 0  # products with the age are there


@pytest.mark.parametrize(
    ("library", "kind"),
    [(pd.DataFrame, list), (pd.DataFrame, tuple), (pd.DataFrame, set), (pl.DataFrame, list)],
)
def test_cells_may_be_lists_of_labels(library, kind, tmp_path):
    _, _, rows, y = table()
    labels = {"war": ["war", "old"], "love": ["love"]}
    text = library({"user": rows.user.tolist(), "tags": ["|".join(labels[k]) for k in rows.kind]})
    lists = library({"user": rows.user.tolist(), "tags": [kind(labels[k]) for k in rows.kind]})
    machine = FactorizationMachineRegressor(1, alpha=1.0, multi_hot=["tags"], random_state=0)
    expected = machine.fit(text, y).predict(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        machine.fit(lists, y)
    assert machine.embeddings("tags")["level"].tolist() == ["love", "old", "war"]
    np.testing.assert_allclose(machine.predict(lists), expected, rtol=1e-9)
    machine.report(tmp_path / "r.html", lists, y)
    with pytest.raises(ValueError, match=r"holds lists.*give multi_hot=\['tags'\]"):
        FactorizationMachineRegressor().fit(lists, y)


def test_messages_say_what_to_do_for_ratings_and_clicks(tmp_path):
    _, _, rows, y = table()
    stars = np.round(2 * y) / 2
    with pytest.raises(
        ValueError, match=r"stored as text, convert them.*FactorizationMachineClass"
    ):
        FactorizationMachineRegressor().fit(rows, stars.astype(str))
    with pytest.raises(ValueError, match="for ratings FactorizationMachineRegressor"):
        FactorizationMachineClassifier().fit(rows, stars)
    with pytest.raises(ValueError, match=r"clicks, sample negative ones at random"):
        FactorizationMachineClassifier().fit(rows, np.ones(len(y)))
    machine = FactorizationMachineRegressor(1, alpha=1.0, random_state=0)
    search = GridSearchCV(machine, {"rank": [1]}, cv=2).fit(rows, y)
    with pytest.raises(TypeError, match="Save its best_estimator_"):
        save(search, tmp_path / "m.safetensors")
    with pytest.raises(TypeError, match=r"Save its last step, pipeline\[-1\]"):
        save(make_pipeline(search.best_estimator_), tmp_path / "m.safetensors")
    strange = rows.assign(user="user " + rows.user)
    with pytest.warns(UserWarning, match="No value of 'user' occurred in fit"):
        search.best_estimator_.predict(strange)


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_rows_with_lists_of_labels_may_not_be_none(library):
    _, _, rows, y = table()
    rows = library({"user": rows.user.tolist(), "kind": (rows.kind + "|x").tolist()})
    machine = FactorizationMachineRegressor(1, alpha=1.0, multi_hot=["kind"], random_state=0)
    with pytest.raises(ValueError, match="0 sample"):
        machine.fit(rows[:0], y[:0])
    with pytest.raises(ValueError, match="0 sample"):
        machine.fit(rows, y).predict(rows[:0])


def test_counts_are_recommended_by_their_means():
    users, films, rows, y = table()
    counts = np.random.default_rng(0).poisson(np.exp(y / 3))
    machine = FactorizationMachineRegressor(1, loss="poisson", random_state=0).fit(rows, counts)
    best = machine.recommend(users, films, 3)
    predicted = machine.predict(best[list(rows.columns)])
    np.testing.assert_allclose(best.prediction, predicted, rtol=1e-9)


@pytest.mark.parametrize("extrapolation", ["clip", "free"])
def test_numbers_far_outside_are_limited_as_in_predict(extrapolation):
    users, films, rows, y = table()
    machine = FactorizationMachineRegressor(2, random_state=0, extrapolation=extrapolation)
    machine.fit(rows, y)
    old = users.assign(age=users.age + 900)
    best = machine.recommend(old, films, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that they are far outside
        predicted = machine.predict(best[list(rows.columns)])
    np.testing.assert_allclose(best.prediction, predicted, rtol=1e-9)


def test_a_machine_without_standard_errors_points_to_draws(machine):
    with pytest.raises(AttributeError, match="draws=200 also gives the noise"):
        _ = machine.coef_std_
    _, _, rows, _ = table()
    with pytest.raises(AttributeError, match=r"with draws=200, .* or with uncertainty=True"):
        machine.predict(rows, return_std=True)


@pytest.mark.parametrize("rank", ["auto", 2])
def test_standard_errors_leave_a_machine_as_it_is(rank):
    _, _, rows, y = table(n=1500)
    kept = np.arange(1500) < 1000
    machine, plain = (
        FactorizationMachineRegressor(rank, random_state=0, uncertainty=u) for u in (True, False)
    )
    machine.fit(rows[kept], y[kept])
    np.testing.assert_array_equal(
        machine.predict(rows), plain.fit(rows[kept], y[kept]).predict(rows)
    )
    mean, std = machine.predict(rows[~kept], return_std=True)
    inside = np.mean(np.abs(y[~kept] - mean) < 1.96 * std)
    assert abs(inside - 0.95) < 0.04  # 500 rows: four standard errors of the share
    assert machine.noise_ == pytest.approx(0.3, rel=0.1)
    assert (machine.coef_std_ > 0).all()


def test_intervals_of_a_machine_take_weights_as_relative():
    _, _, rows, y = table()
    plain, light = (
        FactorizationMachineRegressor(2, random_state=0, uncertainty=True).fit(
            rows, y, sample_weight=weight
        )
        for weight in (None, np.full(500, 1e-4))
    )
    np.testing.assert_allclose(light.predict_interval(rows), plain.predict_interval(rows))
    assert str(light.summary().quality) == str(plain.summary().quality)


def test_standard_errors_of_a_machine_cover_its_products():
    rng = np.random.default_rng(1)
    u, i = rng.integers(300, size=6000), rng.integers(150, size=6000)
    P, Q = 1.5 * rng.normal(size=(300, 2)), 1.5 * rng.normal(size=(150, 2))
    M = (P - P.mean(axis=0)) @ (Q - Q.mean(axis=0)).T
    y = rng.normal(size=300)[u] + M[u, i] + 0.7 * rng.normal(size=6000)
    rows = pd.DataFrame({"u": u.astype(str), "i": i.astype(str)})
    machine = FactorizationMachineRegressor(random_state=0, uncertainty=True).fit(rows, y)
    pairs = [(a, b) for a in range(0, 300, 9) for b in range(0, 150, 9)]
    inside = [
        abs(machine.interaction(f"u={a}", f"i={b}") - M[a, b])
        < 1.96 * machine.interaction_std(f"u={a}", f"i={b}")
        for a, b in pairs
    ]
    # 578 pairs of 51 levels, some 1.5% uncertain; errors of least squares with one penalty: 90%.
    assert 0.92 < np.mean(inside) < 0.98


@pytest.mark.parametrize("option", [{"psd": True}, {"loss": "huber", "uncertainty": True}])
def test_options_that_cost_a_machine_its_posterior_are_warned_of(option):
    _, _, rows, y = table()
    machine = FactorizationMachineRegressor(1, random_state=0, **option)
    with pytest.warns(UserWarning, match=f"{next(iter(option))}=.* asks for another model"):
        machine.fit(rows, y)
    labels = FactorizationMachineClassifier(1, random_state=0, uncertainty=True)
    with pytest.warns(UserWarning, match="uncertainty=True asks for another model"):
        labels.fit(rows, y > 3)


def test_new_items_are_warned_of_once_and_new_users_each_time():
    users, films, rows, y = table()
    machine = FactorizationMachineRegressor(2, random_state=0).fit(rows, y)
    more = pd.concat([films, films[:2].assign(film=["new", "newer"])])
    with pytest.warns(UserWarning, match="2 in 'film'"):
        machine.recommend(users[:1], more, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # narwhals 2.0 renames series as pandas 3 would rather not have it.
        warnings.filterwarnings("ignore", "The inplace keyword", DeprecationWarning)
        machine.recommend(users[1:2], more, 2)
    with pytest.warns(UserWarning, match="1 in 'film'"):
        machine.recommend(users[:1], more[:-1], 2)
    for _ in range(2):
        with pytest.warns(UserWarning, match="1 in 'user'"):
            machine.recommend(users[:1].assign(user="nobody"), more, 2)
    with pytest.warns(UserWarning, match="2 in 'film'"):
        machine.fit(rows, y).recommend(users[:1], more, 2)
