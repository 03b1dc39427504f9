"""Factorization machines: ratings and contexts of one-hot fields, embeddings and lists."""

import functools
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.linear_model import RidgeCV
from sklearn.metrics import log_loss

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    load,
    open_source,
    save,
)
from quadlin.datasets import make_second_order

USERS, ITEMS, RANK, NOISE = 80, 50, 2, 0.7
TRAIN, TEST = slice(0, 3200), slice(3200, None)


@functools.cache
def ratings(noise=NOISE, seed=0):
    """Return users, items, the true rating of each pair and the ratings of 4,200 of them."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(USERS, size=4200), rng.integers(ITEMS, size=4200)
    cells = 3.5 + 0.5 * rng.normal(size=USERS)[:, None] + 0.5 * rng.normal(size=ITEMS)
    cells = cells + rng.normal(0, 0.5, (USERS, RANK)) @ rng.normal(size=(RANK, ITEMS))
    return user, item, cells, cells[user, item] + noise * rng.normal(size=4200)


def as_frame(user, item):
    """Return ids as text, such as u07, so that their order is that of the numbers."""
    names = {"user": [f"u{u:03}" for u in user], "item": [f"i{i:03}" for i in item]}
    return pd.DataFrame(names)


USER, ITEM, CELLS, Y = ratings()
FRAME = as_frame(USER, ITEM)
ONE_HOT = np.hstack([np.eye(USERS)[USER], np.eye(ITEMS)[ITEM]])
EVERY = as_frame(np.repeat(np.arange(USERS), ITEMS), np.tile(np.arange(ITEMS), USERS))


def fit(rows, y, **options):
    return FactorizationMachineRegressor(**{"random_state": 0} | options).fit(rows, y)


@functools.cache
def machine(**options):
    return fit(FRAME[TRAIN], Y[TRAIN], **options)


def quietly(predict, *args, **options):
    """Call without the warning that levels are new."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return predict(*args, **options)


def error_of(model, rows=FRAME, truth=CELLS[USER, ITEM]):
    """Return the mean squared error of held-out rows against their expected ratings."""
    return float(np.mean((model.predict(rows[TEST]) - truth[TEST]) ** 2))


# Ratings by two fields


def test_ratings_are_learned_to_the_statistical_error():
    # Least squares with the true rank pays σ² for each of 3·130 parameters among 3,200 rows; a
    # posterior pays less. Twice the noise of that estimate is 1.15.
    bound = NOISE**2 * (RANK + 1) * (USERS + ITEMS) / 3200
    assert error_of(machine()) < 1.15 * bound
    biases = RidgeCV(np.logspace(-1, 2, 7)).fit(ONE_HOT[TRAIN], Y[TRAIN])
    by_bias = np.mean((biases.predict(ONE_HOT[TEST]) - CELLS[USER, ITEM][TEST]) ** 2)
    assert error_of(machine()) < 0.3 * by_bias


def test_ratings_without_noise_are_recovered_exactly():
    user, item, cells, y = ratings(0.0)
    model = fit(as_frame(user, item), y)
    np.testing.assert_allclose(model.predict(EVERY), cells.ravel(), atol=1e-5)


FORMS = {
    "sparse": lambda: (sparse.csr_array(ONE_HOT), {}),
    "single precision": lambda: (ONE_HOT.astype(np.float32), {}),
    "ids in an array": lambda: (np.stack([USER, ITEM], axis=1), {"categorical_features": [0, 1]}),
    "polars": lambda: (pl.from_pandas(FRAME), {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_two_fields_gives_the_same_ratings(form):
    rows, options = FORMS[form]()
    model = fit(rows[TRAIN], Y[TRAIN], **options)
    np.testing.assert_allclose(model.predict(rows), machine().predict(FRAME), atol=2e-3)


@pytest.mark.smoke
def test_weights_equal_repetition_and_zero_is_absence():
    weight = np.random.default_rng(1).integers(0, 3, 3200)
    chosen = np.repeat(np.arange(3200), weight)
    weighted = FactorizationMachineRegressor(random_state=0)
    weighted.fit(FRAME[TRAIN], Y[TRAIN], sample_weight=weight)
    repeated = fit(FRAME.iloc[chosen], Y[chosen])
    np.testing.assert_allclose(weighted.predict(EVERY), repeated.predict(EVERY), atol=1e-3)


def test_gross_errors_do_little_harm_with_hubers_loss():
    rng = np.random.default_rng(100)
    y = Y[TRAIN] + 30 * (rng.random(3200) < 0.03) * rng.choice([-1, 1], 3200)
    robust = fit(FRAME[TRAIN], y, loss="huber")
    # Huber's loss is 95% as efficient, and 3% of the rows are lost.
    assert error_of(robust) < 1.25 * error_of(machine())
    assert error_of(fit(FRAME[TRAIN], y)) > 2 * error_of(robust)


def test_predictions_are_those_of_the_formula():
    model = machine()
    M = model.components_.T @ np.diag(model.eigenvalues_) @ model.components_
    quadratic = np.einsum("ni,ij,nj->n", ONE_HOT, M, ONE_HOT) - ONE_HOT**2 @ np.diag(M)
    # Columns are named after their levels, in the order of the fields.
    order = [f"user=u{u:03}" for u in range(USERS)] + [f"item=i{i:03}" for i in range(ITEMS)]
    assert list(model.interactions_.names) == order
    expected = model.intercept_ + ONE_HOT @ model.coef_ + quadratic
    np.testing.assert_allclose(model.predict(FRAME), expected, atol=1e-8)


def test_levels_of_one_field_do_not_interact():
    model = machine()
    assert model.interaction("user=u001", "user=u002") == pytest.approx(0, abs=1e-9)
    assert abs(model.interaction("user=u001", "item=i002")) > 1e-6


# Draws and standard errors


@pytest.mark.parametrize("options", [{"draws": 100}, {"uncertainty": True}])
def test_intervals_of_new_ratings_cover_as_many_as_they_say(options):
    model = machine(**options)
    mean, std = model.predict(FRAME[TEST], return_std=True)
    np.testing.assert_allclose(mean, model.predict(FRAME[TEST]))
    assert error_of(model) < 1.1 * error_of(machine())
    low, high = model.predict_interval(FRAME[TEST], 0.95)
    # 1,000 ratings: the share has a standard error of 0.007.
    assert abs(np.mean((low < Y[TEST]) & (Y[TEST] < high)) - 0.95) < 0.03
    assert model.noise_ == pytest.approx(NOISE, rel=0.07)  # 1/√(2·2,800) = 0.013, and a bias
    assert std.min() > 0.95 * model.noise_


def test_draws_need_fields():
    data = make_second_order(200, 4, rank=1, random_state=0)
    with pytest.raises(ValueError, match="draws"):
        fit(data.X, data.y, draws=10)


# New levels


@pytest.mark.parametrize("draws", [None, 100])
def test_a_new_user_gets_the_mean_of_all_users(draws):
    model = machine(draws=draws)
    new = as_frame([999] * ITEMS, range(ITEMS))
    with pytest.warns(UserWarning, match="user"):
        predicted = model.predict(new)
    mean = model.predict(EVERY).reshape(USERS, ITEMS).mean(axis=0)
    # The mean of a field is known to √(1/80) of the spread of its levels, 0.9; draws add √(1/100).
    np.testing.assert_allclose(predicted, mean, atol=0.25)
    assert np.sqrt(np.mean((predicted - mean) ** 2)) < 0.1


# More fields, and numbers beside them


@functools.cache
def contexts(sizes, n, seed, k=3, strength=0.5):
    """Return a frame of several fields, targets and their expectation, all pairs interacting."""
    rng = np.random.default_rng(seed)
    levels = [rng.integers(size, size=n + 600) for size in sizes]
    fields = list(zip(sizes, levels, strict=True))
    factors = [rng.normal(0, strength, (size, k))[level] for size, level in fields]
    truth = sum(rng.normal(0, 0.3, size)[level] for size, level in fields)
    truth = truth + 0.5 * np.sum(sum(factors) ** 2 - sum(f**2 for f in factors), axis=1)
    frame = pd.DataFrame({f"c{j}": level.astype(str) for j, level in enumerate(levels)})
    return frame, truth + 0.5 * rng.normal(size=n + 600), truth


def unexplained(model, frame, truth, n):
    """Return the share of the variance of held-out expectations that is not predicted."""
    predicted = quietly(model.predict, frame[n:])
    return float(np.mean((predicted - truth[n:]) ** 2) / np.var(truth[n:]))


def test_three_fields_interact_with_each_other():
    frame, y, truth = contexts((30, 20, 10), 2000, 0)
    model = fit(frame[:2000], y[:2000])
    # 4·60 parameters cost 240/2,000·0.25 = 0.03, 2% of the variance of the truth.
    assert unexplained(model, frame, truth, 2000) < 0.04
    assert abs(model.interaction("c0=1", "c2=1")) + abs(model.interaction("c1=1", "c2=1")) > 1e-3


@pytest.mark.parametrize("draws", [None, 60])
def test_six_fields_with_more_parameters_than_rows_are_learned(draws):
    frame, y, truth = contexts((300, 200, 12, 7, 5, 4), 2000, 1)
    with warnings.catch_warnings():
        # Draws may start from a fit that has used all its steps.
        warnings.simplefilter("ignore", UserWarning)
        model = fit(frame[:2000], y[:2000], draws=draws)
    # A posterior mean leaves 0.18, a ridge regression on the levels 0.86.
    assert unexplained(model, frame, truth, 2000) < 0.3


def weekday_ratio(frame, y, truth, n):
    """Return the error with a weekday of no effect, relative to that without, of five fits."""
    three, two = (
        sum(
            unexplained(fit(table[:n], y[:n], random_state=state), table, truth, n)
            for state in range(5)
        )
        for table in (frame, frame[["user", "item"]])
    )
    return three / two


def test_a_weekday_of_no_effect_costs_little_where_ratings_are_few():
    rng = np.random.default_rng(0)
    user, item, day = (rng.integers(size, size=3500) for size in (300, 250, 7))
    P, Q = rng.normal(0, 0.5, (300, 2)), rng.normal(size=(250, 2))
    truth = rng.normal(0, 0.3, 300)[user] + rng.normal(0, 0.3, 250)[item]
    truth = truth + np.sum(P[user] * Q[item], axis=1)
    frame = as_frame(user, item).assign(day=day.astype(str))
    assert weekday_ratio(frame, truth + 0.7 * rng.normal(size=3500), truth, 2800) < 1.1


def test_a_weekday_of_no_effect_costs_little_where_ratings_are_many():
    day = np.random.default_rng(5).integers(7, size=len(Y)).astype(str)
    ratio = weekday_ratio(FRAME.assign(day=day), Y, CELLS[USER, ITEM], 3200)
    assert ratio < 1.15  # seven levels beside 130


@pytest.mark.parametrize("unit", [1.0, 365.25])
def test_a_number_that_belongs_to_the_user_helps_in_any_unit(unit):
    rng = np.random.default_rng(2)
    age, slope = rng.uniform(18, 80, USERS), 0.02 * rng.normal(size=ITEMS)
    more = 0.02 * age[USER] + slope[ITEM] * (age[USER] - 50)  # alone, and with the item
    rows, truth = FRAME.assign(age=unit * age[USER]), CELLS[USER, ITEM] + more
    model = fit(rows[TRAIN], (Y + more)[TRAIN])
    # Four numbers of each of 130 levels; twice the statistical error of the table without ages.
    assert error_of(model, rows, truth) < 2 * NOISE**2 * 4 * (USERS + ITEMS) / 3200
    new = pd.DataFrame({"user": "u999", "item": "i001", "age": unit * np.array([20.0, 75.0])})
    young, old = quietly(model.predict, new)
    assert old != pytest.approx(young, abs=0.1)  # a new user still has an age


def test_a_number_of_the_row_has_a_slope():
    rng = np.random.default_rng(3)
    hour = rng.normal(size=len(Y))
    rows, y, truth = FRAME.assign(hour=hour), Y + 0.4 * hour, CELLS[USER, ITEM] + 0.4 * hour
    assert error_of(fit(rows[TRAIN], y[TRAIN]), rows, truth) < 1.5 * error_of(machine())


def test_a_number_that_interacts_with_the_user_is_learned():
    rng = np.random.default_rng(0)
    user, item = rng.integers(100, size=3000), rng.integers(60, size=3000)
    hour = rng.normal(size=3000)
    P, Q, slope = rng.normal(0, 0.5, (100, 2)), rng.normal(size=(60, 2)), rng.normal(0, 0.7, 100)
    truth = rng.normal(0, 0.3, 100)[user] + rng.normal(0, 0.3, 60)[item]
    truth = truth + np.sum(P[user] * Q[item], axis=1) + slope[user] * hour
    y = truth + 0.5 * rng.normal(size=3000)
    rows = as_frame(user, item).assign(hour=hour)
    model = fit(rows[:2400], y[:2400])
    # Slopes are 40% of the variance and factors 45%. Rank 3 has 4·161 parameters, which cost
    # 644/2,400·0.25 = 0.07, 6% of the variance.
    assert unexplained(model, rows, truth, 2400) < 0.2


def test_columns_of_numbers_are_a_model_without_squares():
    data = make_second_order(
        1000, 8, rank=2, distribution="bernoulli", parameter=0.3, n_test=100, random_state=0
    )
    model = fit(data.X, data.y, rank=2)
    np.testing.assert_allclose(model.predict(data.X_test), data.y_test, atol=1e-5)
    assert not np.any(model.has_diagonal_)
    assert model.interaction(0, 0) == 0


# Updates


def nights():
    """Return rows by users of whom some come late, and the expected ratings."""
    rng = np.random.default_rng(0)
    n = 6000
    user, item = rng.integers(120, size=n), rng.integers(60, size=n)
    user[:4000] %= 100
    P, Q = rng.normal(0, 0.5, (120, 2)), rng.normal(size=(60, 2))
    truth = rng.normal(0, 0.5, 120)[user] + np.sum(P[user] * Q[item], axis=1)
    return as_frame(user, item), truth, truth + 0.7 * rng.normal(size=n)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("labels", [False, True])
def test_partial_fit_goes_on_from_a_fit_in_a_file_and_learns_new_users(labels, tmp_path):
    rows, truth, y = nights()
    kind = FactorizationMachineClassifier if labels else FactorizationMachineRegressor
    y = (y > 0).astype(int) if labels else y
    model = kind(random_state=0).fit(rows[:4000], y[:4000])
    save(model, tmp_path / "model.safetensors")
    model = load(tmp_path / "model.safetensors")
    for start in range(4000, 5500, 500):
        model.partial_fit(rows[start : start + 500], y[start : start + 500])
    assert model.n_samples_seen_ == 5500
    everything = kind(random_state=0).fit(rows[:5500], y[:5500])
    new, f = rows[5500:], truth[5500:]
    if labels:
        wanted, found = (log_loss(y[5500:], m.predict_proba(new)) for m in (everything, model))
        assert found < 1.03 * wanted
        return
    wanted, found = (np.mean((m.predict(new) - f) ** 2) for m in (everything, model))
    # Priors and earlier factors stay those of the first 4,000 rows.
    assert found < 1.3 * wanted


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_file_larger_than_memory_is_fitted_by_its_first_rows_and_then_as_a_stream(tmp_path):
    rows, truth, y = nights()
    rows[:5500].assign(y=y[:5500]).to_parquet(tmp_path / "rows.parquet")
    source = open_source(tmp_path / "rows.parquet", target="y")
    model = FactorizationMachineRegressor(random_state=0, max_memory=2_000_000).fit(source)
    assert model.n_samples_seen_ == 5500
    whole = FactorizationMachineRegressor(random_state=0).fit(rows[:5500], y[:5500])
    found, wanted = (np.mean((m.predict(rows[5500:]) - truth[5500:]) ** 2) for m in (model, whole))
    # About half of the rows are first ones, from which priors are learned.
    assert found < 1.3 * wanted


def test_a_warm_start_takes_fewer_sweeps_to_the_same_machine():
    model = FactorizationMachineRegressor(random_state=0, warm_start=True)
    model.fit(FRAME[TRAIN], Y[TRAIN])
    sweeps = len(model.history_)
    model.fit(FRAME[TRAIN], Y[TRAIN])
    assert len(model.history_) < 0.7 * sweeps
    assert error_of(model) < 1.1 * error_of(machine())


# Embeddings


def test_embeddings_make_up_the_predictions():
    model = machine()
    user, item = (model.embeddings(name).set_index("level") for name in ("user", "item"))
    factors = [name for name in user if name.startswith("v")]
    cells = model.intercept_ + user.bias.to_numpy()[:, None] + item.bias.to_numpy()
    signs = np.sign(model.eigenvalues_)
    cells = cells + (user[factors].to_numpy() * signs) @ item[factors].to_numpy().T
    np.testing.assert_allclose(cells.ravel(), model.predict(EVERY), atol=1e-8)


@pytest.mark.parametrize("dtype", ["int64", "float64", "bool", "str"])
def test_levels_of_embeddings_are_those_of_the_column(dtype):
    rng = np.random.default_rng(0)
    item = pd.Series(rng.integers(0, 2 if dtype == "bool" else 12, 400)).astype(dtype)
    rows = pd.DataFrame({"item": item, "user": rng.integers(0, 9, 400)})
    options = {"rank": 1, "alpha": 1.0, "categorical_features": ["item", "user"]}
    levels = fit(rows, rng.normal(size=400), **options).embeddings("item")["level"]
    assert levels.tolist() == sorted(set(item))


# Lists


PEOPLE = pd.DataFrame({"user": [f"u{u:03}" for u in range(0, USERS, 9)], "name": "someone"})
FILMS = pd.DataFrame({"item": [f"i{i:03}" for i in range(ITEMS)], "title": "a film"})


def grid(model, people=PEOPLE, films=FILMS):
    """Return the predictions of all pairs, one row per user."""
    pairs = people[["user"]].merge(films[["item"]], how="cross")
    return model.predict(pairs).reshape(len(people), len(films))


@pytest.mark.smoke
@pytest.mark.parametrize("options", [{}, {"rank": 2, "alpha": 1.0}, {"draws": 40}])
def test_lists_are_the_best_predictions_in_order(options):
    model = machine(**options)
    best = model.recommend(PEOPLE, FILMS, 5)
    cells = grid(model)
    np.testing.assert_allclose(
        best.prediction.to_numpy().reshape(-1, 5), -np.sort(-cells, axis=1)[:, :5], rtol=1e-6
    )
    assert best["rank"].tolist() == [1, 2, 3, 4, 5] * len(PEOPLE)
    assert best.user.tolist() == np.repeat(PEOPLE.user, 5).tolist()
    assert {"name", "title"} <= set(best.columns)
    np.testing.assert_allclose(model.predict(best[["user", "item"]]), best.prediction, rtol=1e-6)


def test_known_pairs_are_left_out_of_lists():
    model = machine()
    seen = set(FRAME[TRAIN].itertuples(index=False, name=None))
    best = model.recommend(PEOPLE, FILMS, ITEMS, exclude=FRAME[TRAIN])
    listed = set(zip(best.user, best.item, strict=True))
    every = {(u, i) for u in PEOPLE.user for i in FILMS.item}
    assert listed == every - seen
    by_position = model.recommend(PEOPLE, FILMS, 1, exclude=[[0, 3]])
    cells = grid(model)
    cells[0, 3] = -np.inf
    assert by_position.item.tolist() == FILMS.item[cells.argmax(axis=1)].tolist()


def test_lists_leave_the_model_and_the_tables_as_they_are():
    model = fit(FRAME[TRAIN], Y[TRAIN], rank=2, alpha=1.0)
    people, films = PEOPLE.copy(), FILMS.copy()
    films.loc[len(films)] = ["i999", "a new film"]
    before, copies = dict(vars(model)), (people.copy(), films.copy())
    quietly(model.recommend, people, films, 3)
    pd.testing.assert_frame_equal(people, copies[0])
    pd.testing.assert_frame_equal(films, copies[1])
    assert vars(model).keys() == before.keys()
    assert all(value is before[name] for name, value in vars(model).items())


@pytest.mark.parametrize("label", ["like", "no"])
def test_lists_of_labels_are_ranked_by_the_probability_of_one(label):
    liked = np.where(np.median(Y) < Y, "like", "no")
    model = FactorizationMachineClassifier(2, alpha=1.0, random_state=0)
    model.fit(FRAME[TRAIN], liked[TRAIN])
    best = model.recommend(PEOPLE, FILMS, 3, label=label)
    pairs = PEOPLE[["user"]].merge(FILMS[["item"]], how="cross")
    p = model.predict_proba(pairs)[:, list(model.classes_).index(label)]
    expected = -np.sort(-p.reshape(-1, ITEMS), axis=1)[:, :3]
    listed = best[f"probability={label}"].to_numpy().reshape(-1, 3)
    np.testing.assert_allclose(listed, expected, rtol=1e-6)


WRONG = {
    "a column is missing": (lambda p, f: (p[["name"]], f), {}, "user"),
    "a table has no rows": (lambda p, f: (p[:0], f), {}, "user_rows"),
    "no number of items": (lambda p, f: (p, f), {"n": 0}, "n=0"),
    "two libraries": (lambda p, f: (p, pl.from_pandas(f)), {}, "library"),
    "known pairs without items": (lambda p, f: (p, f), {"exclude": FRAME[["user"]]}, "item"),
    "positions beyond the end": (lambda p, f: (p, f), {"exclude": [[0, 999]]}, "50"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("case", WRONG)
def test_tables_that_do_not_fit_the_model_raise_an_error(case):
    change, options, words = WRONG[case]
    with pytest.raises(ValueError, match=words):
        machine().recommend(*change(PEOPLE, FILMS), **options)


@pytest.mark.parametrize("seed", range(3))
def test_ratings_without_noise_are_fitted(seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, [90, 3, 2, 40, 5, 2, 2, 13], (300, 8))
    y = rng.standard_normal(90)[codes[:, 0]].round(1)  # that of one field alone
    model = FactorizationMachineRegressor(random_state=0).fit(codes, y)
    assert model.score(codes, y) > 0.99
