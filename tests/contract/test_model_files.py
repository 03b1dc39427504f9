"""A saved model is the model: files hold all of it, are written whole, and are read with care."""

import copy
import hashlib
import json
import os
import pickle
import resource
import stat
import struct
import sys
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from scipy.sparse import csr_array
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold

from contract.interrupting import calls_of, moments
from contract.tables import labels_of, low_rank
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    load,
    open_source,
    save,
    to_onnx,
)

TABLE = low_rank(300, 4, 2, sigma=0.3)
X, Y = TABLE.X, TABLE.y
LABELS = labels_of(TABLE)
RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(np.exp(TABLE.truth / 4))
THREE = np.array(["high", "low", "middle"])[np.digitize(Y, np.quantile(Y, [0.3, 0.7]))]
RATINGS = pd.DataFrame(
    {"user": RNG.integers(0, 12, 400).astype(str), "film": RNG.integers(0, 8, 400).astype(str)}
)
STARS = 0.3 * RATINGS["user"].astype(int).to_numpy() + RNG.standard_normal(400)
FRAME = pd.DataFrame(
    {
        "city": RNG.choice(["Oslo", "Rome", "Zürich"], 300),
        "age": np.where(np.arange(300) % 9, X[:, 0], np.nan),
        "größe": X[:, 1],
    }
)
COMPLEX = RNG.standard_normal((90, 4, 2)) @ [1, 1j]
SIGNAL, OTHER = np.arange(1.0, 5.0), RNG.standard_normal((300, 3))


def stream(model, rows, target, **more):
    for part in np.array_split(np.arange(len(target)), 4):
        model.partial_fit(rows[part], target[part], **more)
    return model


def second_order(**options):
    return SecondOrderRegressor(random_state=0, **options)


# Of each: a fitted model and rows that it predicts.
MODELS = {
    "regressor": lambda: (second_order().fit(X, Y), X),
    "standard errors": lambda: (second_order(rank=2, alpha=1.0, uncertainty=True).fit(X, Y), X),
    "robust errors": lambda: (second_order(rank=2, uncertainty="robust").fit(X, Y), X),
    "huber": lambda: (second_order(loss="huber").fit(X, Y), X),
    "poisson": lambda: (second_order(loss="poisson").fit(X, COUNTS), X),
    "text": lambda: (second_order(rank=1, missing="mean", uncertainty=True).fit(FRAME, Y), FRAME),
    "sparse": lambda: (second_order(rank=1).fit(csr_array(X), Y), csr_array(X)),
    "float32": lambda: (second_order(rank=2).fit(X.astype("f4"), Y), X.astype("f4")),
    "pairs": lambda: (second_order(rank=0, pairs=[(0, 1), (2, 2)]).fit(X, Y), X),
    "stream": lambda: (stream(second_order(rank=2), X, Y), X),
    "strict stream": lambda: (stream(second_order(rank=1, max_memory="minimal"), X, Y), X),
    "cross-validation": lambda: (
        SecondOrderRegressorCV([0, 2], [1.0, (2.0, 3.0)], cv=3, random_state=0).fit(X, Y),
        X,
    ),
    "classifier": lambda: (SecondOrderClassifier(random_state=0).fit(X, LABELS), X),
    "three classes": lambda: (SecondOrderClassifier(random_state=0).fit(X, THREE), X),
    "labels in a stream": lambda: (
        stream(SecondOrderClassifier(1, random_state=0), X, THREE, classes=np.unique(THREE)),
        X,
    ),
    "ratings": lambda: (FactorizationMachineRegressor().fit(RATINGS, STARS), RATINGS),
    "draws": lambda: (FactorizationMachineRegressor(2, draws=20).fit(RATINGS, STARS), RATINGS),
    "likes": lambda: (FactorizationMachineClassifier(1).fit(RATINGS, STARS > 1.5), RATINGS),
    "phase": lambda: (PhaseRetriever(random_state=0).fit(X, (X @ SIGNAL) ** 2), X),
    "complex phase": lambda: (
        PhaseRetriever(random_state=0).fit(COMPLEX, np.abs(COMPLEX @ SIGNAL) ** 2),
        COMPLEX,
    ),
    "matrix": lambda: (MatrixSensing(2, random_state=0).fit(X, X[:, 0] ** 2 - X[:, 1] ** 2), X),
    "matrix of pairs": lambda: (
        MatrixSensing(1, random_state=0).fit((X, OTHER), X[:, 0] * OTHER[:, 1]),
        (X, OTHER),
    ),
}
ATTRIBUTES = (
    *("coef_", "intercept_", "components_", "eigenvalues_", "rank_", "alpha_", "classes_"),
    *("status_", "history_", "n_iter_", "n_samples_seen_", "n_features_in_", "fill_", "noise_"),
    *("feature_names_in_", "coef_std_", "signal_", "best_score_", "cv_results_"),
)


@cache
def fitted(name):
    with np.errstate(all="ignore"):
        return MODELS[name]()


def readings(model, rows):
    """Everything that a user can read from a model, by name."""
    found = {"type": type(model), "params": model.get_params(), "prediction": model.predict(rows)}
    for name in ("predict_proba", "decision_function"):
        if hasattr(model, name):
            found[name] = getattr(model, name)(rows)
    if getattr(model, "uncertainty", False) or getattr(model, "draws", None):
        found["spread"] = model.predict(rows, return_std=True)[1]
    if len(getattr(model, "classes_", ())) < 3 and hasattr(model, "summary"):
        found |= {"summary": str(model.summary()), "diagnosis": model.diagnose()}
    if hasattr(model, "pairs_"):
        found["pairs"] = str(model.pairs_)
    found |= {name: getattr(model, name) for name in ATTRIBUTES if hasattr(model, name)}
    return found


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_equal(a[name], b[name], err_msg=name)
        assert getattr(a[name], "dtype", None) == getattr(b[name], "dtype", None), name


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


# ---- The same model


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.smoke)
        if name in ("regressor", "text", "three classes", "complex phase")
        else name
        for name in MODELS
    ],
)
def test_what_is_loaded_is_what_was_saved(name, path):
    model, rows = fitted(name)
    before = readings(model, rows)
    save(model, path)
    assert_same(readings(load(path), rows), before)
    assert_same(readings(model, rows), before)  # and saving changed nothing


@pytest.mark.parametrize("name", ["text", "stream", "three classes", "draws", "matrix of pairs"])
@pytest.mark.parametrize(
    "duplicate",
    [lambda m: pickle.loads(pickle.dumps(m)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_pickles_and_copies_are_the_same_model(name, duplicate):
    model, rows = fitted(name)
    assert_same(readings(duplicate(model), rows), readings(model, rows))


def test_copies_of_a_stream_go_their_own_ways():
    model = second_order(rank=1, alpha=0.0).partial_fit(X[:30], Y[:30])
    other = copy.copy(model)
    model.partial_fit(X[30:60], Y[30:60])
    other.partial_fit(X[60:], Y[60:])
    alone = second_order(rank=1, alpha=0.0).partial_fit(X[:60], Y[:60])
    np.testing.assert_allclose(model.predict(X), alone.predict(X), rtol=1e-8)
    assert other.n_samples_seen_ == 270


@pytest.mark.parametrize(
    "labels",
    [
        np.where(LABELS, "yes", "no"),
        np.where(LABELS, "yes", "no").astype(object),
        LABELS.astype(bool),
        10 * LABELS - 3,
    ],
    ids=["text", "objects", "truths", "numbers"],
)
def test_labels_keep_their_kind(labels, path):
    model = SecondOrderClassifier(1, alpha=1.0, class_weight={labels.tolist()[0]: 2.0})
    save(model.fit(X, labels), path)
    again = load(path)
    assert again.classes_.dtype == model.classes_.dtype
    assert again.predict(X).tolist() == model.predict(X).tolist()


def test_text_columns_and_their_names_are_in_the_file(path):
    model, _ = fitted("text")
    save(model, path)
    again = load(path)
    assert list(again.feature_names_in_) == ["city", "age", "größe"]
    assert again.interaction("city=Zürich", "age") == model.interaction("city=Zürich", "age")
    with pytest.warns(UserWarning, match="city"):
        assert np.isfinite(again.predict(FRAME[:2].assign(city="Bergen"))).all()
    with pytest.raises(ValueError, match="age"):
        again.predict(FRAME.rename(columns={"age": "years"}))


@pytest.mark.parametrize(
    "names", [range(3), [0.5, 1.5, 2.5], pd.MultiIndex.from_product([["u"], ["a", "b", "c"]])]
)
def test_names_that_are_no_text_are_kept(names, path):
    frame = FRAME.assign(age=X[:, 0]).set_axis(names, axis=1)
    model = second_order(rank=1, alpha=1.0).fit(frame, Y)
    save(model, path)
    np.testing.assert_array_equal(load(path).predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="order"):
        load(path).predict(frame[frame.columns[::-1]])


def test_a_loaded_model_reads_tables_as_the_saved_one_did(path):
    source = {"target": "y", "missing": "mean"}
    table = pl.DataFrame(
        {"a": [1.0, None, 3.0, 5.0] * 9, "b": ["u", "v", None] * 12, "y": range(36)}
    )
    model = second_order(rank=1, alpha=1.0).fit(open_source(table, **source))
    save(model, path)
    again = load(path)
    assert again.fill_ == model.fill_ == {"a": pytest.approx(3.0)}
    rows = [
        open_source(table, encoder=m.encoder_, fill=m.fill_, target="y") for m in (model, again)
    ]
    np.testing.assert_array_equal(model.predict(rows[0]), again.predict(rows[1]))


def test_rows_of_torch_make_a_file_for_numpy(path):
    torch = pytest.importorskip("torch")
    rows = torch.asarray(X, dtype=torch.float32)
    with sklearn.config_context(array_api_dispatch=True):
        model = second_order(rank=2, alpha=0.0).fit(rows, torch.asarray(Y))
        expected = model.predict(rows).numpy()
        save(model, path)
    got = load(path).predict(rows.numpy())
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (SecondOrderRegressor(1, alpha=1.0, random_state=np.random.RandomState(0)), "random_state"),
        (SecondOrderRegressorCV([1], [1.0], cv=KFold(3)), "cv"),
    ],
    ids=["seed", "folds"],
)
def test_a_parameter_that_no_file_can_hold_is_none_with_a_warning(model, name, path):
    model.fit(X, Y)
    with pytest.warns(UserWarning, match=name):
        save(model, path)
    again = load(path)
    assert getattr(again, name) is None
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize("name", ["regressor", "classifier", "cross-validation", "ratings"])
def test_a_loaded_model_can_be_fitted_again(name, path):
    model, rows = fitted(name)
    target = STARS if name == "ratings" else LABELS if name == "classifier" else Y
    save(model, path)
    again = load(path).fit(rows, target)
    np.testing.assert_allclose(again.predict(rows), model.predict(rows), rtol=1e-7, atol=1e-7)


def test_the_formula_of_the_documentation_predicts_from_the_file_alone(path):
    rows = X + 1e4 * np.arange(4)
    model = second_order(rank=2, extrapolation="free").fit(rows, Y)
    save(model, path)
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["quadlin"])
        mean, slope, factor, weights, has_diagonal = map(
            file.get_tensor,
            ["feature_mean", "slope_at_mean", "factor", "factor_weights", "has_diagonal"],
        )
    E = rows - mean
    left_out = np.where(has_diagonal, 0, factor**2 @ weights)
    quadratic = (E @ factor) ** 2 @ weights - E**2 @ left_out
    y = header["value_at_mean"] + E @ slope + quadratic
    np.testing.assert_allclose(y, model.predict(rows), rtol=1e-9, atol=1e-9)


# ---- Where files go


@pytest.mark.smoke
@pytest.mark.parametrize("form", [str, Path])
def test_a_path_is_text_or_a_path(form, path):
    model, rows = fitted("regressor")
    save(model, form(path))
    np.testing.assert_array_equal(load(form(path)).predict(rows), model.predict(rows))
    assert os.listdir(path.parent) == [path.name]


def test_the_same_model_makes_the_same_bytes(path):
    for name in ("one", "two"):
        save(second_order(rank=2).fit(X, Y), path.with_name(name))
    assert path.with_name("one").read_bytes() == path.with_name("two").read_bytes()


@pytest.mark.parametrize("write", [save, to_onnx])
def test_a_missing_folder_is_named(write, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write(fitted("regressor")[0], tmp_path / "nowhere" / "model")
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        write(fitted("regressor")[0], tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="absent"):
        load(tmp_path / "absent" / "below")
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        load(tmp_path)


@pytest.mark.parametrize("name", ["model.pkl", "model.pickle", "model.JOBLIB"])
def test_names_of_pickles_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=name):
        save(fitted("regressor")[0], tmp_path / name)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs Unix")
def test_links_stay_links_and_devices_stay_devices(tmp_path):
    model, rows = fitted("regressor")
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    for _ in range(2):  # the target is new, and then it is replaced
        save(model, link)
        assert link.is_symlink()
        np.testing.assert_array_equal(load(target).predict(rows), model.predict(rows))
    save(model, "/dev/null")
    to_onnx(model, "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs Unix")
def test_a_pipe_carries_the_bytes_of_the_file(tmp_path, path):
    model, _ = fitted("matrix")
    save(model, path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    save(model, pipe)
    received = b"".join(iter(lambda: os.read(reader, 1 << 16), b""))
    os.close(reader)
    assert received == path.read_bytes()
    with pytest.raises(ValueError, match="pipe"):
        load(pipe)


# ---- Whole or not at all


class Mine(SecondOrderRegressor):
    """A class that no file can name."""


@pytest.mark.parametrize(
    ("make", "error", "mentions"),
    [
        (SecondOrderRegressor, NotFittedError, "SecondOrderRegressor"),
        (lambda: Mine(1, alpha=1.0).fit(X, Y), TypeError, "Mine"),
        (lambda: second_order(alpha=1.0).fit(X, Y).set_params(rank=-1), ValueError, "rank"),
    ],
    ids=["unfitted", "subclass", "parameter"],
)
def test_what_cannot_be_saved_is_refused_and_the_old_file_stays(make, error, mentions, path):
    path.write_bytes(b"old")
    with pytest.raises(error, match=mentions):
        save(make(), path)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


@contextmanager
def room_for(size):
    """Let files grow to a number of bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.smoke
@pytest.mark.parametrize("write", [save, to_onnx])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(write, path):
    path.write_bytes(b"old")
    model, _ = fitted("regressor")
    with room_for(1000), pytest.raises(OSError):
        write(model, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("write", [save, to_onnx])
def test_ctrl_c_at_any_moment_leaves_the_old_file_or_the_new_one(write, path):
    model, _ = fitted("regressor")
    write(model, path)
    new = path.read_bytes()
    for moment in moments(lambda: partial(write, model, path), 40):
        path.write_bytes(b"old")
        with pytest.raises(KeyboardInterrupt):
            calls_of(lambda: write(model, path), moment)
        assert path.read_bytes() in (b"old", new)
        assert os.listdir(path.parent) == [path.name]


# ---- Files that were damaged


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "model"
    save(fitted("standard errors")[0], path)
    return path.read_bytes()


def refused(path, data, mentions=None):
    path.write_bytes(data)
    with pytest.raises(ValueError, match=mentions) as caught:
        load(path)
    assert str(path) in str(caught.value)


def loaded_or_refused(path):
    try:
        return load(path)
    except ValueError as error:
        told = str(error)
    assert str(path) in told
    return None


@pytest.mark.parametrize("share", [0, 1e-3, 0.2, 0.5, 0.99, 1])
def test_a_file_that_was_cut_is_refused(share, good, path):
    refused(path, good[: min(int(share * len(good)), len(good) - 1)])


@pytest.mark.parametrize("share", [0, 0.1, 0.3, 0.5, 0.7, 0.999])
def test_a_flipped_bit_is_refused(share, good, path):
    data = bytearray(good)
    data[int(share * len(good))] ^= 0x10
    refused(path, bytes(data))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_of_any_kind_is_refused_or_without_effect(good, path, data):
    place = st.integers(0, len(good) - 1)
    start, stop = sorted((data.draw(place), data.draw(place)))
    piece = data.draw(st.binary(max_size=40))
    path.write_bytes(good[:start] + piece + good[stop if data.draw(st.booleans()) else start :])
    model = loaded_or_refused(path)
    if model is None:
        return
    original, rows = fitted("standard errors")
    assert_same(readings(model, rows), readings(original, rows))


class Payload:
    """Code that an unpickler would run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(7),
        b"PK\x03\x04 as a zip file begins",
        b"class,SecondOrderRegressor\n",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 100_000) + b"[" * 100_000,
    ],
    ids=["empty", "zeros", "zip", "text", "huge", "braces", "brackets", "deep"],
)
def test_other_files_are_refused(data, path):
    refused(path, data)


@pytest.mark.smoke
def test_loading_a_pickle_runs_no_code(path):
    trace = path.with_name("trace")
    refused(path, pickle.dumps(Payload(trace)))
    assert not trace.exists()


def test_a_file_of_another_program_is_refused(path):
    save_file({"coef": np.ones(3)}, path)
    refused(path, path.read_bytes())
    save_file({"coef": np.ones(3)}, path, metadata={"quadlin": "[]"})
    refused(path, path.read_bytes())


# ---- Files that lie: sealed as the documentation describes, with other contents


def unsealed(path):
    """Return the header without its digest, and the arrays."""
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["quadlin"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header.pop("sha256")
    return header, arrays


def sealed(path, header, arrays):
    """Write a file with a digest that is right, as docs/reference/model_files.md describes it."""

    def text(value):
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")

    digest = hashlib.sha256(text(header))
    for name, array in sorted(arrays.items()):
        digest.update(text([name, array.dtype.str, list(array.shape)]))
        digest.update(array.tobytes())
    whole = {**header, "sha256": digest.hexdigest()}
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(arrays, path, metadata={"quadlin": json.dumps(whole)})


@pytest.fixture
def honest(good, path):
    path.write_bytes(good)
    return unsealed(path)


@pytest.mark.smoke
def test_a_file_that_is_sealed_as_documented_is_read(honest, path):
    sealed(path, *honest)
    model, rows = fitted("standard errors")
    assert_same(readings(load(path), rows), readings(model, rows))


@pytest.mark.parametrize("version", [1, 3, 99])
def test_a_file_of_another_format_is_refused_by_its_version(version, honest, path):
    header, arrays = honest
    sealed(path, {**header, "format_version": version}, arrays)
    refused(path, path.read_bytes(), f"version {version}")


def test_a_file_of_another_release_that_does_not_fit_names_it(honest, path):
    header, arrays = honest
    sealed(path, {**header, "quadlin_version": "7.8.9", "more": 1}, arrays)
    refused(path, path.read_bytes(), "7.8.9")


LIES = {
    "class": ["os.system", "object", "PhaseRetriever", None, ["a"], {}],
    "params": [{}, None, {"rank": 1, "bogus": 2}],
    "columns.n_features_in": ["4", None, 4.5],
    "columns.names_in": [{}, "abcd", 4],
    "columns.fill": [[0.0] * 3, "x"],
    "value_at_mean": [None, "x"],
    "state": [{}, None, "learned"],
    "law": [{}, 1],
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_with_another_kind_of_value_is_refused(name, honest, path):
    header, arrays = honest
    for lie in LIES[name]:
        sealed(path, {**header, name: lie}, arrays)
        refused(path, path.read_bytes())


def test_numbers_that_are_not_finite_are_refused(honest, path):
    header, arrays = honest
    for name, array in arrays.items():
        if array.dtype.kind == "f" and array.size:
            sealed(path, header, {**arrays, name: np.full_like(array, np.inf)})
            refused(path, path.read_bytes())


def test_arrays_that_are_missing_or_too_many_are_refused(honest, path):
    header, arrays = honest
    sealed(path, header, {**arrays, "more": np.ones(1)})
    refused(path, path.read_bytes())
    for name in arrays:
        sealed(path, header, {k: v for k, v in arrays.items() if k != name})
        refused(path, path.read_bytes())


def leaves(value, place=()):
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield (*place, key)
            yield from leaves(inner, (*place, key))


def replaced(value, place, junk):
    if not place:
        return junk
    changed = copy.copy(value)
    changed[place[0]] = replaced(value[place[0]], place[1:], junk)
    return changed


JUNK = [None, True, -1, 10**6, 2**64, 1e308, "", "x", [], {}, [[0, 1]], {"array": "coef"}]


@pytest.mark.parametrize("name", ["regressor", "stream", "text", "three classes", "ratings"])
def test_whatever_a_header_says_is_refused_or_is_a_model(name, path):
    model, _ = fitted(name)
    save(model, path)
    header, arrays = unsealed(path)
    places = [place for place in leaves(header) if place[0] not in ("kind", "format_version")]
    rng = np.random.default_rng(0)
    for k in rng.choice(len(places), min(60, len(places)), replace=False):
        junk = JUNK[int(rng.integers(len(JUNK)))]
        sealed(path, replaced(header, places[k], junk), arrays)
        again = loaded_or_refused(path)
        assert again is None or type(again) is type(model)


def test_models_are_saved_and_loaded_without_further_libraries(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    model, rows = fitted("regressor")
    save(model, path)
    np.testing.assert_array_equal(load(path).predict(rows), model.predict(rows))
