import json
import os
import re
import warnings
from dataclasses import replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold

from problems import changed, places
from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    __version__,
)
from quadlin.data import open_source
from quadlin.datasets import make_second_order
from quadlin.export.model_file import load, save
from quadlin.storage.tensor_file import FileFormatError, read_tensors, write_tensors

pytest.importorskip("safetensors")
DOCS = Path(__file__).parents[2] / "docs" / "model_files.md"
EXAMPLES = int(os.environ.get("QUADLIN_FUZZ_EXAMPLES", "100"))
DATA = make_second_order(1200, 6, rank=2, distribution="mixed", noise=0.3, random_state=0)
ATTRIBUTES = (
    *("coef_", "intercept_", "components_", "eigenvalues_", "has_diagonal_", "rank_", "status_"),
    *("history_", "n_iter_", "n_samples_seen_", "n_features_in_"),
)
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("models") / "model.safetensors"


@pytest.fixture(scope="module", autouse=True)
def without_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def reloaded(model, path):
    save(model, path)
    return load(path)


def assert_same(a, b, X):
    """The two are alike to the last bit."""
    assert type(a) is type(b)
    np.testing.assert_array_equal(a.predict(X), b.predict(X), strict=True)
    for name in ATTRIBUTES:
        np.testing.assert_equal(getattr(a, name), getattr(b, name))
        assert type(getattr(a, name)) is type(getattr(b, name))
    for name in ("weight", "mean", "var", "kappa", "phi"):
        np.testing.assert_array_equal(getattr(a.moments_, name), getattr(b.moments_, name))
    assert a.diagnose() == b.diagnose()
    assert a.interactions_.top(5) == b.interactions_.top(5)
    assert repr(a) == repr(b)


OPTIONS = st.fixed_dictionaries(
    {"rank": st.sampled_from([0, 1, 2, 6]), "max_iter": st.just(10)},
    optional={
        "diagonal": st.sampled_from(["zero", "auto", (False,) * 6]),
        "alpha": st.sampled_from([0.5, (0.1, 1.0), [0.0, 2.0]]),
        "fit_linear": st.booleans(),
        "fit_intercept": st.booleans(),
        "psd": st.booleans(),
        "whiten": st.sampled_from(["full", "lowrank", "none"]),
        "fields": st.sampled_from([None, "auto"]),
        "batch_size": st.sampled_from([150, 400]),
        "random_state": st.sampled_from([0, 7]),
    },
)
KINDS = st.sampled_from([np.float32, np.float64])
FORMS = st.sampled_from([np.asarray, np.asfortranarray, sparse.csr_array])


@settings(max_examples=max(12, EXAMPLES // 20))
@given(options=OPTIONS, kind=KINDS, form=FORMS, weighted=st.booleans())
def test_what_was_fitted_is_loaded_and_goes_on_the_same(path, options, kind, form, weighted):
    X, y = form(DATA.X[:600].astype(kind)), DATA.y[:600]
    weight = np.linspace(0.5, 2, 600) if weighted else None
    model = SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}).fit(X, y, weight)
    again = reloaded(model, path)
    assert_same(again, model, X)
    if "random_state" not in options:
        return
    for estimator in (model, again):
        estimator.partial_fit(X, y, weight)
    assert_same(again, model, X)
    for estimator in (model, again):
        estimator.set_params(warm_start=True, max_iter=1, fields=None).fit(X[:300], y[:300])
    assert_same(again, model, X)


@settings(max_examples=max(12, EXAMPLES // 20))
@given(
    options=OPTIONS,
    kind=KINDS,
    form=FORMS,
    cuts=st.lists(st.integers(1, 1199), min_size=1, max_size=5, unique=True),
    looks=st.booleans(),
)
def test_a_stream_saved_at_any_moment_goes_on_as_if_it_had_not_been(
    path, options, kind, form, cuts, looks
):
    options = {"random_state": 0, **options, "rank": min(options["rank"], 2)}
    X = form(DATA.X.astype(kind))
    model, other = (
        SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}),
        SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}),
    )
    for start, stop in pairwise([0, *sorted(cuts), 1200]):
        for estimator in (model, other):
            estimator.partial_fit(X[start:stop], DATA.y[start:stop])
        if looks:
            _ = model.coef_
        model = reloaded(model, path)
    assert_same(model, other, X)


def test_a_checkout_that_is_not_installed_saves_and_loads(path, tmp_path, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    model = SecondOrderRegressor(rank=1, alpha=0, pairs=None).fit(DATA.X[:200], DATA.y[:200])
    monkeypatch.setattr(metadata, "distribution", missing)  # what `metadata.version` asks
    save(model, path)
    np.testing.assert_array_equal(load(path).coef_, model.coef_)
    page = model.report(tmp_path / "page.html")
    assert __version__ in Path(page or tmp_path / "page.html").read_text(encoding="utf-8")


def test_standard_errors_are_loaded(path):
    model = SecondOrderRegressor(rank=1, uncertainty=True, random_state=0, alpha=0.0).fit(
        DATA.X, DATA.y
    )
    again = reloaded(model, path)
    for a, b in zip(*(m.predict(DATA.X, return_std=True) for m in (model, again)), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(again.coef_std_, model.coef_std_)
    assert again.noise_ == model.noise_
    assert again.interaction_std(0, 1) == model.interaction_std(0, 1)


def test_standard_errors_that_are_not_known_stay_unknown(path):
    model = SecondOrderRegressor(rank=1, uncertainty=True, random_state=0, alpha=0.0)
    with pytest.warns(UserWarning, match="not known"):
        model.fit(DATA.X, DATA.y, np.full(1200, 1e-3))
    assert np.isnan(reloaded(model, path).noise_)


def test_a_plain_step_that_diverged_is_saved_with_its_history(path):
    X = np.random.default_rng(0).standard_normal((40, 12))
    y = (X**2).sum(axis=1) ** 3
    model = SecondOrderRegressor(rank=4, step="plain", polish=False, random_state=0, alpha=0.0).fit(
        X, y
    )
    assert_same(reloaded(model, path), model, X)


def table(n=400):
    rng = np.random.default_rng(0)
    city, age = rng.choice(["Oslo", "Rome", "Zürich"], n), rng.integers(0, 90, n)
    return pl.DataFrame({"city": city, "age": age, "kind": rng.choice(["b", "a"], n)}), (
        (city == "Rome") * age + rng.standard_normal(n)
    )


@pytest.mark.parametrize("streamed", [False, True])
def test_text_columns_and_their_levels_are_loaded(path, streamed):
    frame, y = table()
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0)
    (model.partial_fit if streamed else model.fit)(frame, y)
    again = reloaded(model, path)
    assert_same(again, model, frame)
    assert list(again.feature_names_in_) == ["city", "age", "kind"]
    assert again.interaction("city=Rome", "age") == model.interaction("city=Rome", "age")
    for estimator in (model, again):
        estimator.partial_fit(frame, y)
    assert_same(again, model, frame)


def test_what_stood_for_missing_values_is_loaded(path):
    table = {"a": [1.0, None, 3.0, 5.0] * 9, "b": ["u", "v", None] * 12, "y": np.arange(36.0) % 5}
    source = open_source(pl.DataFrame(table), target="y", missing="mean")
    model = SecondOrderRegressor(rank=1, alpha=0.0).fit(source)
    # The mean, 3, is a value of the column; what is filled must be told from it.
    assert model.fill_ == {"a": pytest.approx(3.0, rel=1e-15)}
    assert model.fill_["a"] != 3.0
    again = reloaded(model, path)
    assert again.fill_ == model.fill_
    options = {"missing": "mean", "encoder": again.encoder_, "fill": again.fill_}
    row = {"a": [None, 3.0], "b": ["u", "u"]}
    y = again.predict(open_source(pl.DataFrame(row, schema_overrides={"a": float}), **options))
    assert y[0] == pytest.approx(y[1], rel=1e-14)
    model.fit(DATA.X, DATA.y)
    assert model.fill_ is None
    assert reloaded(model, path).fill_ is None


def test_names_and_fields_are_loaded(path):
    frame = pl.DataFrame(DATA.X, schema=list("abcdéf"))
    one_hot = np.eye(3)[np.random.default_rng(0).integers(0, 3, 1200)]
    frame = frame.hstack(pl.DataFrame(one_hot, schema=["u", "v", "w"]))
    model = FactorizationMachineRegressor(
        rank=2, fields=[["w", "u", "v"]], random_state=0, alpha=0.0
    )
    again = reloaded(model.fit(frame, DATA.y), path)
    assert_same(again, model, frame)
    assert again.fields == [["w", "u", "v"]]
    assert again.interaction("u", "v") == 0
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame.rename({"a": "z"}))


def test_cross_validation_is_loaded_with_its_scores(path):
    model = SecondOrderRegressorCV(ranks=[0, 2], alphas=[1.0, (2.0, 3.0)], random_state=0)
    model.fit(DATA.X[:300], DATA.y[:300])
    model.cv_results_["mean_test_score"][0] = -np.inf  # as where a fit failed
    again = reloaded(model, path)
    assert_same(again, model, DATA.X)
    assert again.alpha_ == model.alpha_
    assert (again.best_score_, again.n_passes_) == (model.best_score_, model.n_passes_)
    assert list(again.cv_results_) == list(model.cv_results_)
    for name, column in model.cv_results_.items():
        np.testing.assert_equal(again.cv_results_[name], column)
    assert again.alphas == [1.0, (2.0, 3.0)]


def test_parameters_that_no_file_can_hold_are_none_with_a_warning(path):
    model = SecondOrderRegressor(rank=np.int64(1), random_state=np.random.RandomState(0), alpha=0.0)
    model.set_params(diagonal=np.zeros(6, dtype=bool)).fit(DATA.X, DATA.y)
    with pytest.warns(UserWarning, match="random_state.*set it again"):
        again = reloaded(model, path)
    assert (again.random_state, again.rank, again.diagonal) == (None, 1, [False] * 6)
    model = SecondOrderRegressorCV([1], [1.0], KFold(3)).fit(DATA.X[:200], DATA.y[:200])
    with pytest.warns(UserWarning, match="cv=KFold"):
        assert reloaded(model, path).cv is None


def test_rows_of_torch_make_a_file_of_numpy(path):
    torch = pytest.importorskip("torch")
    from sklearn import config_context

    X, y = torch.asarray(DATA.X, dtype=torch.float32), torch.asarray(DATA.y)
    with config_context(array_api_dispatch=True):
        model = SecondOrderRegressor(
            rank=2, whiten="full", uncertainty=True, random_state=0, alpha=0.0
        )
        save(model.fit(X, y), path)
        expected = model.predict(X).numpy()
        unfinished = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).partial_fit(
            X[:50], y[:50]
        )
        save(unfinished, path.with_name("unfinished"))
    got = load(path).predict(X.numpy())
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    load(path.with_name("unfinished")).partial_fit(X.numpy(), y.numpy())


@pytest.mark.parametrize(
    "names", [[0, 1, 2], [0.5, 1.5, 2.5], pd.MultiIndex.from_product([["u"], ["a", "b", "c"]])]
)
def test_columns_whose_names_are_no_text_are_loaded(path, names):
    frame, y = table()
    frame = pd.DataFrame(frame.to_dict(as_series=False))
    frame.columns = names
    model = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).fit(frame, y)
    again = reloaded(model, path)
    assert_same(again, model, frame)
    with pytest.raises(ValueError, match="same order"):
        again.predict(frame[frame.columns[::-1]])


def test_what_load_would_refuse_is_not_written(tmp_path):
    model = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).fit(DATA.X, DATA.y)
    model.fitted_.stream.tally = replace(model.fitted_.stream.tally, squared_weight=np.inf)
    with pytest.raises(ValueError, match=r"'state.squared_weight'.*too large"):
        save(model, tmp_path / "model")
    model.fitted_.stream.tally = replace(model.fitted_.stream.tally, squared_weight=1e160)
    with pytest.raises(ValueError, match="a weight of rows"):
        save(model, tmp_path / "model")
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_saved_is_refused_and_nothing_is_written(tmp_path):
    class Mine(SecondOrderRegressor):
        pass

    with pytest.raises(NotFittedError):
        save(SecondOrderRegressor(rank=5, alpha=0.0), tmp_path / "model")
    with pytest.raises(TypeError, match="Mine cannot be saved"):
        save(Mine().fit(DATA.X, DATA.y), tmp_path / "model")
    model = SecondOrderRegressor(rank=1, alpha=0.0).fit(DATA.X, DATA.y).set_params(rank=-1)
    with pytest.raises(ValueError, match="rank=-1"):
        save(model, tmp_path / "model")
    assert os.listdir(tmp_path) == []


# ---- The file without quadlin


def reader():
    code = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.S)[1]
    names = {}
    exec(compile(code, "model_files.md", "exec"), names)
    return names["predict"]


@settings(max_examples=10)
@given(options=OPTIONS, shift=st.sampled_from([0.0, 1e4]), spread=st.sampled_from([0, 3]))
def test_the_reader_in_the_docs_predicts_the_same(path, options, shift, spread):
    X = (DATA.X + shift * np.arange(6)) * 10.0 ** (spread * np.arange(-3, 3))
    model = SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}).fit(X, DATA.y)
    save(model, path)
    expected = model.predict(X)
    np.testing.assert_allclose(
        reader()(path, X), expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max()
    )


def test_the_reader_in_the_docs_knows_the_mean_that_float32_does_not(path):
    X = (DATA.X + 3e6 * np.arange(1, 7)).astype(np.float32)
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(X, DATA.y)
    assert_same(reloaded(model, path), model, X)
    expected = model.predict(X)
    atol = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(reader()(path, X.astype(float)), expected, atol=atol)


def test_the_reader_in_the_docs_predicts_from_encoded_text(path):
    frame, y = table()
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(frame, y)
    save(model, path)
    X, _ = model.encoder_.encode(frame)
    np.testing.assert_allclose(reader()(path, X.toarray()), model.predict(frame), rtol=1e-10)


def test_the_entries_that_the_docs_list_are_those_of_the_file(path):
    save(SecondOrderRegressor(rank=1, alpha=0.0).fit(DATA.X, DATA.y), path)
    tensors, header = read_tensors(path)
    documented = {
        name
        for row in re.findall(r"^\| (`.*?) \|", DOCS.read_text(), re.M)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert documented == header.keys() | {name for name in tensors if "." not in name}


# ---- Files that lie: the checksum is right and what they say is not


@pytest.fixture(scope="module")
def honest(path):
    """The contents of several good files."""
    frame, y = table()
    models = [
        SecondOrderRegressor(rank=2, uncertainty=True, whiten="full", alpha=0.0).fit(
            DATA.X, DATA.y
        ),
        SecondOrderRegressor(rank=1, whiten="lowrank", alpha=0.0).fit(DATA.X, DATA.y),
        SecondOrderRegressor(rank=1, batch_size=500, alpha=0.0).partial_fit(DATA.X, DATA.y),
        SecondOrderRegressor(rank=1, alpha=0.0).partial_fit(
            sparse.csr_array(DATA.X[:40]), DATA.y[:40]
        ),
        FactorizationMachineRegressor(rank=2, alpha=0.0).fit(frame, y),
        SecondOrderRegressorCV([1], [1.0], cv=2).fit(DATA.X, DATA.y),
    ]
    contents = []
    for model in models:
        save(model, path)
        contents.append(read_tensors(path))
    return contents


def refused(path, tensors, header, match=None):
    write_tensors(path, tensors, header)
    with pytest.raises(FileFormatError, match=match):
        load(path)


LIES = {
    "class": ["os.system", "object", None, ["SecondOrderRegressor"], {}],
    "params": [{}, None, {"rank": 1, "bogus": 2}, []],
    "n_features_in": [5, 7, "6", None, 2**80, 6.5],
    "feature_names_in": [["a"], "abcdef", [1] * 6, ["a"] * 6],
    "encoder": [{}, {"columns": ["a"], "levels": [["x"]], "dtype": "float64"}, 3],
    "fields": [[[0, 6]], [[0, 0]], [0], [[True]], [["a"]], None],
    "fill": [[], [0.0] * 5, ["a"] * 6, [1] * 6, {"a": 1.0}, 3, "x"],
    "intercept": [0.0, 1e300, None, "nan", 3],
    "value_at_mean": [0.0, None],
    "state": [{}, None, [], "learned"],
    "uncertainty": [{}, 1, []],
    "cv": [{}, 1, {"alpha": 1}],
}
SCORE_LIES = {"param_rank": [1, [[1]], ["x"], [1, 2]], "param_alpha": [[1.0], [[1.0]]], "more": [1]}


@pytest.mark.parametrize(("name", "lie"), [(k, v) for k, lies in LIES.items() for v in lies])
def test_a_header_that_lies_is_refused(path, honest, name, lie):
    tensors, header = honest[0]
    refused(path, tensors, {**header, name: lie})


@pytest.mark.parametrize(("name", "lie"), [(k, v) for k, lies in SCORE_LIES.items() for v in lies])
def test_scores_that_lie_are_refused(path, honest, name, lie):
    tensors, header = honest[5]
    results = {**header["cv"]["results"], name: lie}
    refused(path, tensors, {**header, "cv": {**header["cv"], "results": results}})


def test_parameters_that_lie_are_refused(path, honest):
    tensors, header = honest[0]
    deep = []
    for _ in range(400):
        deep = [deep]
    lies = {"tol": [10**400, "x"], "rank": [-1, [2]], "alpha": [deep, {"tuple": [1.0]}, {}]}
    for name, lie in ((name, lie) for name, some in lies.items() for lie in some):
        refused(path, tensors, {**header, "params": {**header["params"], name: lie}})


def test_parts_that_are_missing_or_too_many_are_refused(path, honest):
    tensors, header = honest[0]
    for name in header:
        refused(path, tensors, {k: v for k, v in header.items() if k != name})
    refused(path, tensors, {**header, "more": 1})
    refused(path, {**tensors, "more": np.ones(1)}, header, "no part of the model uses")
    for name in tensors:
        refused(path, {k: v for k, v in tensors.items() if k != name}, header)


@pytest.mark.parametrize("which", range(6))
def test_arrays_of_another_shape_or_type_or_value_are_refused(path, honest, which):
    tensors, header = honest[which]
    for name, a in tensors.items():
        for other in (a[None], a.reshape(-1)[:-1], np.concatenate([a, a]), a.astype(np.int32)):
            different = other.shape != a.shape or other.dtype != a.dtype
            if different and (other.size or a.size):
                refused(path, {**tensors, name: other}, header)
        if "." not in name and a.size:
            refused(path, {**tensors, name: 1.01 * a + 0.5 if a.dtype != bool else ~a}, header)


def test_a_model_and_its_telling_in_raw_units_must_agree(path, honest):
    tensors, header = honest[0]
    for part in ("U", "s", "w"):
        name = f"state.state.model.{part}"
        refused(path, {**tensors, name: 1.01 * tensors[name]}, header, "contradicts itself")


JUNK = st.sampled_from(
    [
        *(None, True, -1, 0, 1, 2, 10**6, 2**64, 10**400, -0.5, 1e308, "", "nan", "x", "auto"),
        *([], {}, [1], [[0, 1]], {"array": "coef"}, {"dtype": "float32"}, {"tuple": [1, 2]}),
    ]
)


@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_whatever_a_header_says_it_is_loaded_or_refused(path, honest, data):
    tensors, header = honest[data.draw(st.integers(0, len(honest) - 1))]
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.sampled_from(list(places(header))[1:]))
        junk = data.draw(JUNK)
        try:
            header = changed(header, at, junk)
        except (KeyError, IndexError, TypeError):
            continue
    if data.draw(st.booleans()):
        first, second = (data.draw(st.sampled_from(sorted(tensors))) for _ in range(2))
        tensors = {**tensors, first: tensors[second]}
    write_tensors(path, tensors, header)
    try:
        model = load(path)
    except FileFormatError:
        return
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        assert model.diagnose()
        assert isinstance(json.dumps(model.get_params(), default=str), str)
        if model.encoder_ is None:
            assert model.predict(np.zeros((1, model.n_features_in_))).shape == (1,)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_model_file_is_refused(path, honest, data):
    write_tensors(path, *honest[2])
    good = path.read_bytes()
    place = st.integers(0, len(good) - 1)
    if data.draw(st.booleans()):
        bad = good[: data.draw(place)]
    else:
        at = data.draw(place)
        bad = good[:at] + bytes([good[at] ^ (1 << data.draw(st.integers(0, 7)))]) + good[at + 1 :]
    path.write_bytes(bad)
    try:
        load(path)
    except FileFormatError:
        return
    # Damage without a meaning, as to the digits of a number beyond its precision.
    tensors, header = read_tensors(path)
    assert header == honest[2][1]
    assert tensors.keys() == honest[2][0].keys()
    assert all((a == honest[2][0][name]).all() for name, a in tensors.items())


def test_a_checkpoint_is_not_a_model(path):
    write_tensors(path, {}, {}, kind="checkpoint")
    with pytest.raises(FileFormatError, match="'checkpoint', not a 'model'"):
        load(path)


@pytest.mark.parametrize("scale", [1e-30, 1e12, 1e20, 1e30])
def test_features_of_very_different_units_are_saved(tmp_path, scale):
    data = make_second_order(300, 3, rank=2, noise=0.01, random_state=0)
    far = np.array([0, max(1.0, min(scale, 1e12)), 0])
    for X in (data.X * [scale, 1, 1], data.X + far):
        model = SecondOrderRegressor(2, random_state=0, alpha=0.0).fit(X, data.y)
        save(model, tmp_path / "model")
        np.testing.assert_array_equal(load(tmp_path / "model").predict(X), model.predict(X))


def test_robust_errors_are_saved_and_other_words_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    y = X[:, 0] * X[:, 1] + np.abs(X[:, 2]) * rng.standard_normal(200)
    model = SecondOrderRegressor(1, uncertainty="robust", random_state=0).fit(X, y)
    assert "robust" in str(model.summary())
    save(model, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert loaded.uncertainty == "robust"
    assert loaded.fitted_.law.robust
    for a, b in zip(
        model.predict(X, return_std=True), loaded.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    for wrong in ("sandwich", None, 0.5):
        with pytest.raises(ValueError, match="robust"):
            SecondOrderRegressor(1, uncertainty=wrong).fit(X, y)
