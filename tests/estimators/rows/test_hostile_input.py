"""Input that looks like numbers but is not what it seems is refused in words."""

import multiprocessing
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    load,
    save,
)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3))
Y = X[:, 0] * X[:, 1] + 0.1 * RNG.standard_normal(60)


@pytest.mark.parametrize("size", [1e-150, 1e-200, 1e-300])
def test_numbers_whose_squares_are_rounded_to_zero_are_not_taken_for_constant(size):
    for model in (SecondOrderRegressor(), SecondOrderRegressor(rank=1, batch_size=10)):
        learn = model.fit if model.batch_size == "auto" else model.partial_fit
        with pytest.raises(ValueError, match="'y' varies by too little to be squared"):
            learn(X, size * Y)
        with pytest.raises(ValueError, match="'x1' varies by too little to be squared"):
            learn(X * [1, size, 1], Y)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e-300])
def test_constants_of_any_size_are_fitted(value):
    model = SecondOrderRegressor(rank=1, random_state=0).fit(X * [1, 0, 1] + [0, value, 0], 0 * Y)
    assert np.isfinite(model.predict(X)).all()


def test_masked_entries_are_refused_with_what_to_do():
    masked = np.ma.masked_array(X, mask=X > 2)
    count = int((X > 2).sum())
    with pytest.raises(ValueError, match=rf"X is a masked array with {count} masked.*missing="):
        SecondOrderRegressor().fit(masked, Y)
    with pytest.raises(ValueError, match="X is a masked array"):
        SecondOrderClassifier().fit(masked, Y > 0)
    with pytest.raises(ValueError, match="y is a masked array with 1 masked"):
        SecondOrderRegressor().fit(X, np.ma.masked_array(Y, mask=np.arange(60) == 3))
    with pytest.raises(ValueError, match="sample_weight is a masked array"):
        SecondOrderRegressor().fit(X, Y, np.ma.masked_array(np.ones(60), mask=np.arange(60) == 3))
    model = SecondOrderRegressor(rank=1, random_state=0).fit(np.ma.masked_array(X), Y)
    with pytest.raises(ValueError, match="X is a masked array"):
        model.predict(masked)
    filled = SecondOrderRegressor(rank=1, missing="mean").fit(masked.filled(np.nan), Y)
    assert np.isfinite(filled.predict(X)).all()


def test_complex_targets_are_named():
    with pytest.raises(ValueError, match="y holds complex numbers"):
        SecondOrderRegressor().fit(X, Y + 1j)


def fitted(X, y=Y, **options):
    return SecondOrderRegressor(rank=1, alpha=0.1, random_state=0, **options).fit(X, y)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"a": X[:, 0]}, "X is a dict, not a table"),
        ((row for row in X), "X is a generator, not a table"),
        (np.zeros(60, dtype=[("a", float), ("b", float)]), "structured array with the fields a, b"),
    ],
)
def test_what_is_no_table_is_refused_with_what_to_give_instead(rows, words):
    with pytest.raises(TypeError, match=words):
        fitted(rows)
    with pytest.raises(TypeError, match=words):
        fitted(X).predict(rows)


def test_a_frame_without_columns_is_refused():
    with pytest.raises(ValueError, match=r"0 feature\(s\) .*the frame has no columns"):
        fitted(pd.DataFrame(index=range(60)))


def test_integers_that_float64_would_round_to_a_few_values_are_refused():
    ids = 2**60 + np.arange(60)
    words = f"'x1' holds integers from {2**60} to {2**60 + 59}, .* multiples of 256. Subtract"
    with pytest.raises(ValueError, match=words):
        fitted(np.column_stack([np.arange(60), ids]))
    with pytest.raises(ValueError, match="'id' holds integers"):
        fitted(pd.DataFrame({"a": X[:, 0], "id": ids}))
    far = RNG.integers(2**60, 2**62, (60, 1))  # rounded by far less than they differ
    assert np.isfinite(fitted(far).predict(far)).all()
    assert (
        fitted(ids[:, None] - ids[0], ids - ids[0]).score(ids[:, None] - ids[0], ids - ids[0]) > 0
    )


def test_labels_of_text_and_numbers_are_refused_in_words():
    with pytest.raises(TypeError, match="all text or all numbers, not a mixture"):
        SecondOrderClassifier().fit(X, np.array(["a", 1] * 30, dtype=object))


@pytest.mark.parametrize("name", ["a\ud800", "\x00", "a\u202eb", "x" * 5000, ""])
def test_any_name_of_a_column_survives_a_file(tmp_path, name):
    frame = pd.DataFrame(X, columns=pd.Index([name, "b", "c"], dtype=object))
    save(fitted(frame), tmp_path / "model")
    assert load(tmp_path / "model").feature_names_in_[0] == name


def _nullable():
    return pd.DataFrame(
        {
            "whole": pd.array(RNG.integers(0, 9, 60), dtype="Int64"),
            "real": pd.array(X[:, 0], dtype="Float64"),
            "flag": pd.array(X[:, 1] > 0, dtype="boolean"),
            "text": pd.array(RNG.choice(["u", "v"], 60), dtype="string"),
            "arrow": pd.Series(X[:, 2], dtype="double[pyarrow]"),
            "kind": pd.Categorical(RNG.choice(["p", "q"], 60), categories=["p", "q", "never"]),
        }
    )


def test_nullable_arrow_and_categorical_columns_are_the_numbers_and_levels_they_hold():
    frame = _nullable()
    plain = pd.DataFrame({"whole": frame["whole"].to_numpy(int), "real": X[:, 0]})
    plain["flag"], plain["text"] = X[:, 1] > 0, frame["text"].astype(object)
    plain["arrow"], plain["kind"] = X[:, 2], frame["kind"].astype(object)
    np.testing.assert_allclose(
        fitted(frame).predict(frame), fitted(plain).predict(plain), rtol=1e-5
    )


@pytest.mark.parametrize(
    "made",
    [
        lambda A: A.astype(object),
        lambda A: A.astype(">f8"),
        lambda A: np.asfortranarray(A),
        lambda A: np.repeat(A, 2, axis=1)[:, ::2],
        lambda A: np.frombuffer(b"x" + A.tobytes(), np.uint8)[1:].view(float).reshape(A.shape),
        lambda A: A.astype(np.longdouble),
        lambda A: A.tolist(),
    ],
    ids=["object", "big-endian", "Fortran", "strided", "read-only, unaligned", "long", "lists"],
)
def test_the_same_numbers_in_any_layout_are_the_same_model(made):
    wanted = fitted(X).predict(X)
    np.testing.assert_allclose(fitted(made(X)).predict(made(X)), wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "made", [np.float16, bool, lambda y: [Decimal(repr(v)) for v in y.tolist()]]
)
def test_targets_of_any_kind_of_number_are_fitted(made):
    targets = Y.astype(made) if isinstance(made, type) else made(Y)
    wanted = fitted(X, np.asarray(targets, dtype=float)).predict(X)
    np.testing.assert_allclose(fitted(X, targets).predict(X), wanted, rtol=1e-6)


def test_one_row_that_counts_is_predicted_everywhere():
    weight = np.zeros(60)
    weight[4] = 2.0
    model = SecondOrderRegressor(random_state=0).fit(X, Y, sample_weight=weight)
    np.testing.assert_allclose(model.predict(X[:5]), Y[4])


def test_rows_one_at_a_time_are_a_stream_that_says_something():
    model = SecondOrderRegressor(rank=1, alpha=0.1, random_state=0)
    for i in range(60):
        model.partial_fit(X[i : i + 1], Y[i : i + 1])
    assert model.n_samples_seen_ == 60
    assert model.score(X, Y) > 0.5


def test_a_warm_start_with_other_columns_or_ranks_begins_anew():
    model = SecondOrderRegressor(rank=1, alpha=0.1, warm_start=True, random_state=0).fit(X, Y)
    model.fit(X[:, :2], Y)
    np.testing.assert_allclose(model.predict(X[:, :2]), fitted(X[:, :2]).predict(X[:, :2]), 1e-3)
    for rank in (3, 0, "auto"):
        model.set_params(rank=rank).fit(X, Y)
        assert np.isfinite(model.predict(X)).all()


def test_names_that_differ_by_normalisation_only_are_two_columns_also_in_a_file(tmp_path):
    frame = pd.DataFrame(X, columns=["é", "e\u0301", "b"])
    model = fitted(frame)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert list(loaded.feature_names_in_) == list(frame.columns)
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))


def test_a_process_forked_after_a_fit_predicts_and_fits_the_same():
    model = fitted(X)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(
        target=lambda: answers.put((model.predict(X), fitted(X).predict(X))), daemon=True
    )
    child.start()
    predicted, again = answers.get(timeout=120)
    child.join()
    np.testing.assert_array_equal(predicted, model.predict(X))
    np.testing.assert_array_equal(again, model.predict(X))


ESTIMATORS = [
    SecondOrderRegressor, SecondOrderRegressorCV, FactorizationMachineRegressor, MatrixSensing,
    PhaseRetriever, SecondOrderClassifier, FactorizationMachineClassifier,
]  # fmt: skip


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_dates_and_masked_entries_are_not_numbers_wherever_they_stand(Estimator):
    X = np.random.default_rng(0).standard_normal((40, 3))
    days = np.datetime64("2020-01-01", "us") + np.arange(40) * np.timedelta64(1, "D")
    target = (X[:, 0] > 0).astype(float)
    masked = np.ma.array(target, mask=np.arange(40) == 4)
    objects = days.astype(object)
    for y in (days, days - days[0], pl.Series(days), pd.Series(days), objects, list(objects)):
        with pytest.raises(ValueError, match="y holds dates or times"):
            Estimator().fit(X, y)
        with pytest.raises(ValueError, match="sample_weight holds dates or times"):
            Estimator().fit(X, target, sample_weight=y)
    with pytest.raises(ValueError, match="y is a masked array"):
        Estimator().fit(X, masked)
    with pytest.raises(ValueError, match="sample_weight is a masked array"):
        Estimator().fit(X, target, sample_weight=masked)
    for rows in (np.stack([days, days], axis=1), pl.DataFrame({"a": X[:, 0], "day": days})):
        with pytest.raises(ValueError, match="holds dates or times"):
            Estimator().fit(rows, target)
    with pytest.raises(ValueError, match="is a masked array"):
        Estimator().fit(np.ma.array(X, mask=X > 2), target)
    with pytest.raises(TypeError, match="is a query, not a table"):
        Estimator().fit(pl.LazyFrame({"a": X[:, 0], "b": X[:, 1]}), target)


def test_a_dictionary_of_keys_is_a_sparse_matrix():
    X = np.random.default_rng(0).standard_normal((60, 3))
    y = X[:, 0] * X[:, 1]
    model = SecondOrderRegressor(2, alpha=0, random_state=0).fit(X, y)
    other = SecondOrderRegressor(2, alpha=0, random_state=0).fit(sparse.dok_matrix(X), y)
    np.testing.assert_allclose(other.predict(sparse.dok_matrix(X)), model.predict(X), atol=1e-6)
