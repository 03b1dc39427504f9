"""Streams of ratings and likes: levels by their posterior, whatever comes later."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss
from sklearn.preprocessing import OneHotEncoder

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    load,
    open_source,
    save,
)
from quadlin.core.chunks import MemorySource
from quadlin.solve.fields.running_machine import LevelPlan, learned
from quadlin.stream.field_stream import FieldStream
from quadlin.stream.restore import state_of, stream_of
from quadlin.stream.state import InvalidContentError

USERS, FILMS, ROWS = 80, 60, 16000
KINDS = [FactorizationMachineRegressor, FactorizationMachineClassifier]


def ratings(seed=0):
    """Return rows in which users and films come later and later, ratings and what is held out."""
    rng = np.random.default_rng(seed)
    user, film = rng.integers(USERS, size=ROWS), rng.integers(FILMS, size=ROWS)
    taste, style = rng.standard_normal((USERS, 2)), rng.standard_normal((FILMS, 2))
    y = 3.5 + 0.5 * rng.standard_normal(USERS)[user] + 0.5 * rng.standard_normal(FILMS)[film]
    y = y + 0.5 * np.sum(taste[user] * style[film], axis=1) + 0.8 * rng.standard_normal(ROWS)
    age, genres = rng.integers(18, 80, USERS), rng.choice(["a", "a|b", "b|c", "d"], FILMS)
    # Half of the users and films are there from the start, the others come one by one.
    first = [np.maximum(0, 2 * rng.permutation(n) / n - 1) for n in (USERS, FILMS)]
    time = np.maximum(first[0][user], first[1][film])
    order = np.argsort(time + (1 - time) * rng.random(ROWS))
    user, film, y = user[order], film[order], y[order]
    rows = pd.DataFrame({"user": user, "film": film, "age": age[user], "genres": genres[film]})
    return rows, y, rng.random(ROWS) < 0.1


FRAME, Y, TEST = ratings()
ROWS_IN, Y_IN = FRAME[~TEST].reset_index(drop=True), Y[~TEST]


def machine(kind, **options):
    columns = {"categorical_features": ["user", "film"], "multi_hot": ["genres"]}
    return kind(random_state=0, **columns, **options)


def targets_of(kind):
    return Y_IN if kind is FactorizationMachineRegressor else (Y_IN > 3.5).astype(int)


def streamed(kind, size, path=None, **options):
    """Learn the rows in chunks; with a path, save and load the stream after each."""
    model, y = machine(kind, **options), targets_of(kind)
    classes = {} if kind is FactorizationMachineRegressor else {"classes": [0, 1]}
    for start in range(0, len(y), size):
        model.partial_fit(ROWS_IN[start : start + size], y[start : start + size], **classes)
        if path is not None:
            save(model, path)
            model = load(path)
    return model


def rmse(prediction):
    return float(np.sqrt(np.mean((prediction - Y[TEST]) ** 2)))


@pytest.mark.parametrize("batch_size", ["auto", 4000])
def test_a_stream_of_ratings_is_near_a_fit_and_better_than_biases(batch_size):
    stream = streamed(FactorizationMachineRegressor, 1000, batch_size=batch_size)
    assert isinstance(stream.fitted_.stream, FieldStream)
    assert stream.fitted_.stream.state is not None  # later batches were learned as sums
    fit = rmse(machine(FactorizationMachineRegressor).fit(ROWS_IN, Y_IN).predict(FRAME[TEST]))
    encoder = OneHotEncoder().fit(FRAME[["user", "film"]])
    X, X_test = (encoder.transform(rows[["user", "film"]]) for rows in (ROWS_IN, FRAME[TEST]))
    biases = min(rmse(Ridge(alpha).fit(X, Y_IN).predict(X_test)) for alpha in (1.0, 3.0, 10.0))
    # 1% is what the sums of early batches, at factors that were not settled yet, may cost.
    assert rmse(stream.predict(FRAME[TEST])) < min(1.01 * fit, 0.95 * biases)


def test_a_stream_of_likes_is_near_a_fit():
    stream = streamed(FactorizationMachineClassifier, 1000, batch_size=4000)
    fit = machine(FactorizationMachineClassifier).fit(ROWS_IN, Y_IN > 3.5)
    loss, best = (log_loss(Y[TEST] > 3.5, m.predict_proba(FRAME[TEST])) for m in (stream, fit))
    assert loss < 1.01 * best


@pytest.mark.parametrize("kind", KINDS)
def test_neither_chunks_nor_files_change_a_stream_whose_levels_come_later(kind, tmp_path):
    whole = streamed(kind, ROWS, batch_size=4000)
    expected = whole.decision_function if kind is KINDS[1] else whole.predict
    for size, path in ((700, None), (2900, tmp_path / "model.safetensors")):
        again = streamed(kind, size, path, batch_size=4000)
        predict = again.decision_function if kind is KINDS[1] else again.predict
        np.testing.assert_allclose(predict(FRAME[TEST]), expected(FRAME[TEST]), atol=1e-9)
        assert again.encoder_ == whole.encoder_
        assert again.n_samples_seen_ == len(Y_IN)


def test_a_stream_that_fits_into_its_first_batch_is_a_fit():
    rows, y = ROWS_IN[:9000], Y_IN[:9000]  # ten rows per parameter would be 10,350
    stream = machine(FactorizationMachineRegressor)
    for start in range(0, 9000, 1000):
        stream.partial_fit(rows[start : start + 1000], y[start : start + 1000])
    fit = machine(FactorizationMachineRegressor).fit(rows, y)
    np.testing.assert_allclose(stream.predict(FRAME[TEST]), fit.predict(FRAME[TEST]), atol=1e-9)


def test_sources_with_new_levels_go_on_as_frames_do():
    options = {"batch_size": 4000}
    parts = [slice(0, 6000), slice(6000, None)]
    columns = {"categorical_features": ["user", "film"], "multi_hot": ["genres"]}
    model = machine(FactorizationMachineRegressor, **options)
    for part in parts:
        model.partial_fit(open_source(ROWS_IN[part], target=Y_IN[part], **columns))
    frames = streamed(FactorizationMachineRegressor, 6000, **options)
    np.testing.assert_allclose(model.predict(FRAME[TEST]), frames.predict(FRAME[TEST]), atol=1e-9)


def test_the_sums_of_batches_count_rows_and_their_memory_does_not_grow():
    fields = [np.arange(USERS), USERS + np.arange(FILMS)]
    user, film = FRAME["user"].to_numpy(), FRAME["film"].to_numpy()
    at = np.stack([user, USERS + film], axis=1).ravel()
    X = csr_matrix((np.ones(2 * ROWS), at, 2 * np.arange(ROWS + 1)), shape=(ROWS, USERS + FILMS))
    plan, levels, sizes = LevelPlan(2, False, False, 0, 50, 1e-5), None, []
    for start in range(0, ROWS, 4000):
        part = slice(start, start + 4000)
        levels = learned(levels, MemorySource(X[part], Y[part], None), fields, plan)
        sizes.append(levels.G.shape)
    assert levels.weight == ROWS
    patterns = levels.columns[levels.patterns.indices]
    counts = np.bincount(at, minlength=USERS + FILMS)
    np.testing.assert_allclose(levels.G[0], counts[patterns])  # Σ1 for each level
    assert sizes[-1] == (6, USERS + FILMS)


def test_columns_that_change_for_a_level_are_patterns_of_it():
    older = ROWS_IN.assign(age=ROWS_IN["age"] + (np.arange(len(Y_IN)) > 8000))
    y = Y_IN + 0.05 * older["age"]
    model = machine(FactorizationMachineRegressor, batch_size=4000)
    for start in range(0, len(y), 3000):
        model.partial_fit(older[start : start + 3000], y[start : start + 3000])
    levels = model.fitted_.stream.levels
    assert levels.counts.max() > USERS
    new = pd.DataFrame({"user": [-1, -1], "film": [-1, -1], "age": [30, 60], "genres": ["a", "a"]})
    with pytest.warns(UserWarning, match="average level"):
        low, high = model.predict(new)
    assert abs((high - low) / 30 - 0.05) < 0.02  # 80 users with a spread of .5 about the line


def test_labels_that_a_later_film_is_the_first_to_have_are_learned():
    rng = np.random.default_rng(0)
    genres = ROWS_IN["genres"].where(ROWS_IN["film"] > 5, "new")
    y = Y_IN + 2.0 * (genres == "new")
    old = np.flatnonzero(genres != "new")
    later = np.concatenate([old[:6000], rng.permutation(np.arange(len(Y_IN)))])
    model = machine(FactorizationMachineRegressor, batch_size=4000)
    for start in range(0, len(later), 3000):
        part = later[start : start + 3000]
        model.partial_fit(ROWS_IN.iloc[part].assign(genres=genres.iloc[part]), y.iloc[part])
    rows = pd.DataFrame({"user": [-1] * 2, "film": [-1] * 2, "age": 40, "genres": ["new", "a"]})
    with pytest.warns(UserWarning, match="average level"):
        new, usual = model.predict(rows)
    assert new > usual + 1


def test_rows_that_have_no_posterior_are_left_to_least_squares_with_a_warning():
    rng = np.random.default_rng(0)
    order = rng.permutation(len(Y_IN))  # all levels come at once
    rows = ROWS_IN[["user", "film"]].iloc[order].assign(hour=rng.random(len(Y_IN)))
    model = FactorizationMachineRegressor(
        1, categorical_features=["user", "film"], random_state=0, batch_size=2000
    )
    with pytest.warns(UserWarning, match="partial_fit learns these rows by least squares"):
        model.partial_fit(rows[:3000], Y_IN[:3000])
    assert not isinstance(model.fitted_.stream, FieldStream)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.partial_fit(rows[3000:4000], Y_IN[3000:4000])  # once is enough
    assert model.n_samples_seen_ == 4000


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_look_at_the_first_ratings_says_nothing_of_least_squares(cut, tmp_path):
    """In two rows each film follows its user, which says nothing of the rows to come."""
    rows = pd.DataFrame({"user": list("aabbcaca"), "film": list("xxyyxzzy")})
    y = np.array([3.0, 4.0, 2.0, 3.0, 5.0, 1.0, 4.0, 2.0])
    saved, whole = (FactorizationMachineRegressor(random_state=0) for _ in range(2))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="partial_fit learns these rows by least squares")
        saved.partial_fit(rows[:cut], y[:cut])
        save(saved, tmp_path / "model.safetensors")
        saved = load(tmp_path / "model.safetensors").partial_fit(rows[cut:], y[cut:])
        whole.partial_fit(rows, y)
        assert saved.predict(rows) == pytest.approx(whole.predict(rows), rel=1e-12)


def test_columns_that_follow_no_field_have_slopes_beside_many_levels(tmp_path):
    rng = np.random.default_rng(0)
    user, film, hour = (
        rng.integers(250, size=12000),
        rng.integers(100, size=12000),
        rng.random(12000),
    )
    y = rng.standard_normal(250)[user] * rng.standard_normal(100)[film] + 2 * hour
    y = y + rng.standard_normal(12000)
    rows = pd.DataFrame({"user": user, "film": film, "hour": hour})

    def after(size):
        columns = {"categorical_features": ["user", "film"]}
        model = FactorizationMachineRegressor(2, **columns, random_state=0, batch_size=5000)
        for start in range(0, 12000, size):
            model.partial_fit(rows[start : start + size], y[start : start + size])
            save(model, tmp_path / "model.safetensors")
            model = load(tmp_path / "model.safetensors")
        return model

    model = after(4500)
    assert model.fitted_.stream.levels.beside is not None
    slope = model.coef_[model.interactions_.names.index("hour")]
    assert abs(slope - 2) < 4 * np.sqrt(12 / 12000)  # four standard errors of a uniform column
    np.testing.assert_allclose(model.predict(rows), after(7000).predict(rows), atol=1e-9)
    fit = FactorizationMachineRegressor(2, categorical_features=["user", "film"], random_state=0)
    errors = [np.mean((m.predict(rows) - y) ** 2) for m in (model, fit.fit(rows, y))]
    assert errors[0] < 1.01 * errors[1]


def test_a_stream_may_begin_with_equal_ratings():
    model = machine(FactorizationMachineRegressor, batch_size=4000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(ROWS_IN[:4500], np.full(4500, 3.0))
        np.testing.assert_allclose(model.predict(ROWS_IN[:50]), 3.0)
        few = machine(FactorizationMachineRegressor).partial_fit(ROWS_IN[:500], np.ones(500))
        np.testing.assert_allclose(few.predict(ROWS_IN[:50]), 1.0)
    model.partial_fit(ROWS_IN[4500:], Y_IN[4500:])
    assert isinstance(model.fitted_.stream, FieldStream)
    alone = machine(FactorizationMachineRegressor).fit(ROWS_IN[4500:], Y_IN[4500:])
    # A third of the ratings say nothing about the others and are not forgotten.
    error, best = (rmse(m.predict(FRAME[TEST])) for m in (model, alone))
    assert best < error < 1.15 * best


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("columns", lambda a: a + 1000),
        ("indices", lambda a: a + 1000),
        ("indices", lambda a: 0 * a),
        ("indptr", lambda a: a[::-1].copy()),
        ("G", lambda a: 0 * a),
        ("h", lambda a: a + 1e200),
        ("target_scale", lambda a: 1e200),
        ("counts", lambda a: a + 1),
        ("signs", lambda a: 0 * a),
        ("rates", lambda a: -a),
        ("G", lambda a: a - 1e6),
        ("table", lambda a: a * np.nan),
        ("share", lambda a: 0.0),
        ("entities", lambda a: a[:1]),
    ],
)
def test_levels_that_no_stream_can_have_are_refused(name, wrong):
    model = machine(FactorizationMachineRegressor, batch_size=4000)
    model.partial_fit(ROWS_IN[:4500], Y_IN[:4500])
    stream = model.fitted_.stream
    state, fitted = state_of(stream), model.fitted_
    stream_of(state, fitted.names, fitted.fields)
    levels = replace(state.levels, **{name: wrong(getattr(state.levels, name))})
    with pytest.raises(InvalidContentError, match="cannot be right"):
        stream_of(replace(state, levels=levels), fitted.names, fitted.fields)


def test_a_stream_says_once_what_it_does_not_do():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.integers(0, 9, size=(400, 2)).astype(str), columns=["user", "film"])
    rows["age"] = rng.standard_normal(400)
    y = rows.age + rng.standard_normal(400)
    machine = FactorizationMachineRegressor(loss="huber", random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for start in range(0, 400, 100):
            machine.partial_fit(rows[start : start + 100], y[start : start + 100])
            machine.predict(rows[:3])
    texts = [str(warning.message) for warning in caught]
    for beginning in ("partial_fit learns these rows by least", "partial_fit minimises squared"):
        assert sum(text.startswith(beginning) for text in texts) == 1
