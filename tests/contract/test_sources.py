"""What `open_source` promises: which columns, targets and weights, and how files fail."""

import functools
import gzip
import io
import os
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv
from sklearn.base import clone
from sklearn.metrics import accuracy_score, r2_score

from quadlin import SecondOrderClassifier, SecondOrderRegressor, load, open_source, save

N = 150
MODEL = SecondOrderRegressor(1, alpha=0.1, random_state=0)


@functools.cache
def frame():
    """Return a table with two numbers, a city, a target, a label and weights."""
    rng = np.random.default_rng(0)
    age, size = rng.integers(20, 60, N) / 2, rng.integers(-8, 9, N) / 4
    city = rng.choice(["Bonn", "Oslo", "Rome"], N)
    price = size * (age / 10 + (city == "Rome")) + 0.1 * rng.standard_normal(N)
    kind = np.where(price > 0, "up", "down")
    return pd.DataFrame(
        {
            "age": age,
            "size": size,
            "city": city,
            "price": price.round(3),
            "kind": kind,
            "w": rng.integers(1, 4, N).astype(float),
        }
    )


FEATURES = ["age", "size", "city"]


def rows_of(source):
    """Return the rows, targets and weights of a source."""
    chunks = list(source)
    X = [chunk.X.toarray() if hasattr(chunk.X, "toarray") else chunk.X for chunk in chunks]
    parts = [[getattr(chunk, name) for chunk in chunks] for name in ("y", "weight")]
    y, weight = (None if part[0] is None else np.concatenate(part) for part in parts)
    return np.vstack(X), y, weight


def written(where, text, name="t.csv"):
    path = where / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def near(actual, wanted):
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=2e-5)


# Columns, targets and weights.


@pytest.mark.smoke
def test_features_are_all_columns_but_the_target_the_weight_and_what_is_kept_or_excluded():
    table = frame()
    cities = ("city=Bonn", "city=Oslo", "city=Rome")
    source = open_source(table, target="price", weight="w", exclude=["kind"])
    assert tuple(source.names) == ("age", "size", *cities)
    X, y, weight = rows_of(source)
    np.testing.assert_array_equal(X[:, :2], table[["age", "size"]])
    np.testing.assert_array_equal(y, table["price"])
    np.testing.assert_array_equal(weight, table["w"])
    chosen = open_source(table, target="price", columns=["size", "age"])
    assert tuple(chosen.names) == ("size", "age")
    kept = open_source(table, target="price", columns=["age"], keep=["kind"], chunk_rows=40)
    assert [str(value) for chunk in kept for value in chunk.kept_columns["kind"]] == list(
        table["kind"]
    )


def test_a_target_and_a_weight_are_names_or_arrays():
    table = frame()
    by_name = open_source(table[[*FEATURES, "price", "w"]], target="price", weight="w")
    apart = open_source(table[FEATURES], target=table["price"], weight=table["w"].to_numpy())
    wanted = clone(MODEL).fit(table[FEATURES], table["price"], table["w"])
    for source in (by_name, apart):
        near(clone(MODEL).fit(source).predict(source), wanted.predict(table[FEATURES]))


def test_a_source_that_was_opened_is_itself():
    source = open_source(np.ones((3, 2)))
    assert open_source(source) is source
    assert "3" in source.description


def test_an_encoder_and_means_that_were_learned_are_used_for_new_rows(tmp_path):
    table = frame().copy()
    table.loc[::10, "age"] = np.nan
    table.loc[5::20, "city"] = None
    source = open_source(table[[*FEATURES, "price"]], target="price", missing="mean")
    model = clone(MODEL).fit(source)
    assert model.fill_["age"] == pytest.approx(table["age"].mean())
    save(model, tmp_path / "m.safetensors")
    model = load(tmp_path / "m.safetensors")
    new = pd.DataFrame({"city": ["Rome", None], "size": [0.5, 0.25], "age": [np.nan, 20.0]})
    new.to_csv(tmp_path / "new.csv", index=False)
    rows = open_source(tmp_path / "new.csv", encoder=model.encoder_, fill=model.fill_)
    whole = pd.DataFrame(
        {"age": [model.fill_["age"], 20.0], "size": [0.5, 0.25], "city": ["Rome", "missing"]}
    )
    near(model.predict(rows), model.predict(whole))


def test_rows_encoded_in_another_way_are_refused():
    table = frame()
    model = clone(MODEL).fit(table[FEATURES], table["price"])
    other = table[FEATURES].assign(city="Kiel")
    with pytest.raises(ValueError, match="encoder"):
        model.predict(open_source(other))
    with pytest.raises(ValueError, match="age"):
        open_source(table[["size", "city"]], encoder=model.encoder_)


def test_declared_columns_of_a_file_become_levels(tmp_path):
    rng = np.random.default_rng(0)
    code = rng.choice([3, 7, 20, 101], N)
    y = np.choose(code % 4, [2.0, -3.0, 4.0, -1.0]) + 0.1 * rng.standard_normal(N)
    table = pd.DataFrame({"code": code, "x": rng.standard_normal(N), "y": y})
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet", index=False)
    for name in ("t.csv", "t.parquet"):
        source = open_source(tmp_path / name, target="y", categorical_features=["code"])
        assert set(source.names) == {"code=3", "code=7", "code=20", "code=101", "x"}
        model = clone(MODEL).fit(source)
        declared = clone(MODEL).set_params(categorical_features=["code"])
        declared.fit(table[["code", "x"]], y)
        near(model.predict(source), declared.predict(table[["code", "x"]]))


def test_levels_can_be_named_for_rows_that_come_once():
    text = b"city,y\nOslo,1\nRome,2\nOslo,3\n"
    with pytest.raises(ValueError, match="city"):
        open_source(csv.open_csv(io.BytesIO(text)), target="y")
    levels = {"city": ["Rome", "Oslo"]}
    source = open_source(csv.open_csv(io.BytesIO(text)), target="y", levels=levels)
    X, y, _ = rows_of(source)
    assert tuple(source.names) == ("city=Rome", "city=Oslo")
    np.testing.assert_array_equal(X, [[0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(y, [1, 2, 3])


# Missing values.


@pytest.mark.parametrize("form", ["pandas", "polars", "csv", "parquet", "array", "csr"])
def test_missing_values_raise_are_dropped_or_are_filled(form, tmp_path):
    table = frame()[["age", "size", "price"]].copy()
    table.loc[[7, 30], "age"] = np.nan
    if form in ("array", "csr"):
        X = table[["age", "size"]].to_numpy()
        if form == "csr":
            X = pytest.importorskip("scipy.sparse").csr_array(X)
        name, rows = "x0", functools.partial(open_source, X, target=table["price"].to_numpy())
    else:
        place = {"csv": tmp_path / "t.csv", "parquet": tmp_path / "t.parquet"}.get(form)
        if form == "csv":
            table.to_csv(place, index=False)
        elif form == "parquet":
            table.to_parquet(place, index=False)
        elif form == "polars":
            place = pl.from_pandas(table)
        name = "age"
        rows = functools.partial(open_source, table if place is None else place, target="price")
    with pytest.raises(ValueError, match=rf"{name}.*row 7\b"):
        list(rows())
    complete = table.dropna()
    np.testing.assert_array_equal(rows_of(rows(missing="drop"))[0], complete[["age", "size"]])
    filled = rows_of(rows(missing="mean"))[0]
    np.testing.assert_allclose(filled, table[["age", "size"]].fillna(table["age"].mean()))
    own = rows_of(rows(fill={"age": 9.0, "x0": 9.0, "size": 0.0, "x1": 0.0}))[0]
    np.testing.assert_allclose(own, table[["age", "size"]].fillna(9.0))


def test_a_missing_target_or_weight_is_named_and_only_rows_without_target_are_dropped():
    table = pl.DataFrame({"a": [1.0, 2.0, 4.0], "y": [1.0, None, 3.0], "w": [1.0, 1.0, 1.0]})
    with pytest.raises(ValueError, match=r"'y'.*row 1\b"):
        list(open_source(table, target="y"))
    for missing in ("drop", "mean"):
        source = open_source(table, target="y", missing=missing, columns=["a"])
        np.testing.assert_array_equal(rows_of(source)[0], [[1.0], [4.0]])
    weightless = table.with_columns(y=pl.lit(1.0), w=pl.Series([1.0, None, 1.0]))
    with pytest.raises(ValueError, match=r"'w'.*row 1\b"):
        list(open_source(weightless, target="y", weight="w", missing="mean"))


@pytest.mark.parametrize("missing", ["error", "drop", "mean"])
def test_infinity_is_named_whatever_is_done_about_missing_values(missing):
    table = pl.DataFrame({"a": [1.0, np.inf, 4.0], "y": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=r"'a'.*row 1\b"):
        list(open_source(table, target="y", missing=missing))


def test_rows_of_which_none_is_left_are_refused():
    with pytest.raises(ValueError, match="2 rows"):
        list(open_source(np.full((2, 1), np.nan), missing="drop"))


# Scores and predictions chunk by chunk.


@pytest.mark.smoke
def test_the_score_of_a_source_is_the_score_of_its_rows():
    table = frame()
    model = clone(MODEL).fit(table[FEATURES], table["price"])
    source = open_source(table, target="price", weight="w", encoder=model.encoder_, chunk_rows=40)
    predicted = model.predict(table[FEATURES])
    wanted = r2_score(table["price"], predicted, sample_weight=table["w"])
    assert model.score(source) == pytest.approx(wanted, abs=1e-9)
    with pytest.raises(ValueError, match="target"):
        model.score(open_source(table, encoder=model.encoder_))


def test_predictions_come_chunk_by_chunk_with_standard_deviations():
    table = frame()
    model = clone(MODEL).set_params(uncertainty=True).fit(table[FEATURES], table["price"])
    source = open_source(table, encoder=model.encoder_, chunk_rows=40)
    mean, std = model.predict(table[FEATURES], return_std=True)
    chunks = list(model.predict_chunks(source, return_std=True))
    assert [len(y) for _, y, _ in chunks] == [40, 40, 40, 30]
    near(np.concatenate([y for _, y, _ in chunks]), mean)
    near(np.concatenate([s for _, _, s in chunks]), std)
    assert all(s is None for _, _, s in model.predict_chunks(source))


def test_a_classifier_learns_labels_of_text_and_yields_probabilities_and_labels():
    table = frame()
    model = SecondOrderClassifier(1, alpha=1.0, random_state=0)
    source = open_source(table[[*FEATURES, "kind"]], target="kind", labels="learn", chunk_rows=40)
    model.fit(source)
    assert list(model.classes_) == ["down", "up"]
    plain = clone(model).fit(table[FEATURES], table["kind"])
    near(model.predict_proba(table[FEATURES]), plain.predict_proba(table[FEATURES]))
    accuracy = accuracy_score(table["kind"], plain.predict(table[FEATURES]))
    assert model.score(source) == pytest.approx(accuracy)
    chunks = list(model.predict_chunks(source))
    near(np.vstack([p for _, p, _ in chunks]), plain.predict_proba(table[FEATURES]))
    labels = np.concatenate([np.asarray(label) for _, _, label in chunks])
    np.testing.assert_array_equal(labels, plain.predict(table[FEATURES]))


def test_a_table_that_grows_is_learned_file_by_file(tmp_path):
    table = frame()[[*FEATURES, "price"]]
    levels = {"city": ["Bonn", "Oslo", "Rome", "Wien"]}  # nobody lives in Vienna yet
    model = clone(MODEL)
    for week in range(3):
        path = tmp_path / f"{week}.parquet"
        table[50 * week : 50 * week + 50].to_parquet(path, index=False)
        if week == 0:
            rows = open_source(path, target="price", levels=levels)
        else:
            model = load(tmp_path / "model")
            rows = open_source(path, target="price", encoder=model.encoder_)
        model.partial_fit(rows)
        save(model, tmp_path / "model")
    assert model.n_samples_seen_ == N
    assert model.score(table[FEATURES], table["price"]) > 0.9  # R² of fit is above 0.95


# CSV as people write it.

CITIES = [("Malmö", 1.5, 2), ("Århus", -0.25, 3), ("Malmö", 4, 5)] * 2


def cities(delimiter=",", decimal=".", encoding="utf8", header=("city", "a", "y")):
    lines = [] if header is None else [delimiter.join(header)]
    for city, *values in CITIES:
        cells = [f"{value:g}".replace(".", decimal) for value in values]
        lines.append(delimiter.join([city, *cells]))
    return ("\r\n".join(lines) + "\r\n").encode(encoding)


DIALECTS = {
    "commas": (cities(), {}),
    "semicolons": (cities(";"), {}),
    "tabs": (cities("\t"), {}),
    "bars": (cities("|"), {}),
    "another delimiter": (cities("~"), {"delimiter": "~"}),
    "a byte order mark": (cities(encoding="utf-8-sig"), {}),
    "quotes": (cities(header=('"city"', '"a"', '"y"')), {}),
    "decimal commas and latin1": (
        cities(";", ",", "latin1"),
        {"decimal": ",", "encoding": "latin1"},
    ),
    "UTF-16": (cities("\t", encoding="utf-16"), {"encoding": "utf-16", "format": "csv"}),
    "no header": (
        cities(header=None),
        {"header": False, "columns": ["x0", "x1"], "target": "x2"},
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_csv_is_read_however_it_is_written(dialect, tmp_path):
    text, given_options = DIALECTS[dialect]
    options = {"target": "y", "columns": ["city", "a"]} | given_options
    path = written(tmp_path, text)
    packed = written(tmp_path, gzip.compress(text), "t.csv.gz")
    city = options["columns"][0]
    for place in (path, packed):
        source = open_source(place, **options)
        assert [str(n) for n in source.names][:2] == [f"{city}=Malmö", f"{city}=Århus"]
        X, y, _ = rows_of(source)
        np.testing.assert_array_equal(X, [[1, 0, 1.5], [0, 1, -0.25], [1, 0, 4]] * 2)
        np.testing.assert_array_equal(y, [2, 3, 5] * 2)


@pytest.mark.parametrize("cell", ["", "NA", "N/A", "null", "NaN", "-9"])
def test_marks_of_missing_values_are_missing(cell, tmp_path):
    path = written(tmp_path, f"a,b,y\n1,2.5,1\n3,{cell},2\n5,4,3\n")
    na = {"na": ["-9"]} if cell == "-9" else {}
    X, _, _ = rows_of(open_source(path, target="y", missing="mean", **na))
    np.testing.assert_allclose(X, [[1, 2.5], [3, 3.25], [5, 4]])
    with pytest.raises(ValueError, match=r"'b'.*row 1\b"):
        list(open_source(path, target="y", **na))


@pytest.mark.smoke
@pytest.mark.parametrize("cell", ["foo", "0x10"])
def test_a_cell_that_is_no_number_is_named_with_its_column(cell, tmp_path):
    ages = [str(age) for age in range(20, 70)] * 2
    ages[17] = cell
    path = written(tmp_path, "age,y\n" + "".join(f"{age},1\n" for age in ages))
    with pytest.raises((ValueError, UserWarning), match="'age'") as caught:
        list(open_source(path, target="y"))
    assert cell in str(caught.value)
    assert "17" in str(caught.value)  # the row
    with pytest.raises(ValueError, match="'age'"):  # as a target it cannot be text either
        list(open_source(path, target="age"))


def test_numbers_with_decimal_commas_are_not_taken_for_text(tmp_path):
    path = written(tmp_path, "a;y\n1,5;2\n2,5;3\n1,5;4\n2,5;4\n")
    with pytest.raises(ValueError, match=r"'a'.*1,5.*decimal"):
        list(open_source(path, target="y"))


def test_dates_in_a_file_are_refused_by_the_name_of_their_column(tmp_path):
    path = written(tmp_path, "when,y\n" + "2024-06-15,1\n2024-06-16,2\n" * 4)
    with pytest.raises(ValueError, match=r"'when'.*date"):
        open_source(path, target="y")
    source = open_source(path, target="y", categorical_features=["when"])
    assert set(source.names) == {"when=2024-06-15", "when=2024-06-16"}


BROKEN = {
    "empty.parquet": (b"", "empty"),
    "junk.parquet": (b"hello, this is not Parquet at all", "Parquet"),
    "empty.csv": (b"", "empty"),
    "header.csv": (b"a,y\n", "rows"),
    "ragged.csv": (b"a,y\n1,2\n1,2,3\n", "row 1.*2 .*3|2 columns.*3"),
    "twice.csv": (b"a,a,y\n1,2,3\n", "'a'"),
    "latin1.csv": (b"a,y\nx,2\n\xe9,3\n", "'a'.*row 1.*encoding"),
    "bare.csv": (b"1,2\n3,4\n", "header"),
    "gone.csv": (b"a,b\n1,2\n", "'y'"),
    "only.csv": (b"y\n1\n", "columns"),
    "zipped.csv": (gzip.compress(b"a,y\n1,2\n"), "gzip"),
    "junk.arrow": (b"ARROW1\0\0nothing", "Arrow"),
    "empty.svm": (b"", "empty"),
    "word.svm": (b"1 1:2\n2 1:x\n", "[Rr]ow 1"),
    "pair.ffm": (b"1 1:2:1\n1 1:2\n", "[Rr]ow 1"),
    "junk.npy": (b"\x93NUMPY junk", "npy"),
    "what.xyz": (b"1", "format"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named_with_what_is_wrong(name, tmp_path):
    content, mentioned = BROKEN[name]
    path = written(tmp_path, content, name)
    target = None if name.endswith(("svm", "ffm", "npy")) else "y"
    with pytest.raises(ValueError, match=mentioned) as caught:
        list(open_source(path, target=target))
    assert name in str(caught.value)


def test_rows_are_counted_from_the_first_one_below_blank_lines_and_the_header(tmp_path):
    path = written(tmp_path, "\n\na,y\n1,2\n3,4\n5,6,7\n")
    with pytest.raises(ValueError, match=r"row 2 \("):
        list(open_source(path, target="y"))


def test_files_that_are_not_there_or_do_not_belong_together_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.parquet"):
        open_source(tmp_path / "nowhere.parquet")
    with pytest.raises(ValueError, match=tmp_path.name):
        open_source(tmp_path)
    pl.DataFrame({"a": [1.0], "s": ["x"], "y": [1.0]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"a": [1.0], "z": [1.0], "y": [1.0]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet.*'s'.*'z'"):
        open_source(tmp_path, target="y")


def test_python_objects_in_files_are_not_loaded(tmp_path):
    np.save(tmp_path / "o.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"o\.npy"):
        list(open_source(tmp_path / "o.npy"))


@pytest.mark.parametrize("name", ["t.csv", "t.npy", "t.svm", "t.parquet"])
def test_a_file_that_changes_between_two_passes_is_noticed(name, tmp_path):
    path = tmp_path / name

    def write(value):
        if name == "t.npy":
            np.save(path, np.full((500, 2), float(value)))
        elif name == "t.parquet":
            pq.write_table(pa.table({"a": [float(value)] * 500}), path)
        else:
            lines = {"t.csv": ["a,b", f"{value},2"], "t.svm": [f"1 1:{value}"] * 2}[name]
            path.write_text("\n".join([lines[0], *[lines[1]] * 500]) + "\n")

    write(1)
    before = path.stat()
    source = open_source(path)
    list(source)
    write(3)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ValueError, match=rf"{name}.*changed"):
        list(source)
    path.unlink()
    with pytest.raises(ValueError, match=name):
        list(source)


X3, Y3 = np.ones((3, 2)), np.ones(3)
ODD_CALLS = {
    "one dimension": (lambda: np.ones(3), {}, "rows"),
    "a target of another length": (lambda: X3, {"target": np.ones(4)}, "target.*4"),
    "a target of text": (lambda: X3, {"target": list("abc")}, "numbers"),
    "a weight below zero": (lambda: X3, {"target": Y3, "weight": [1.0, -1.0, 1.0]}, "weight.*-1"),
    "names for an array": (lambda: X3, {"columns": ["a"]}, "name"),
    "complex numbers": (lambda: X3 * 1j, {}, "complex"),
    "text": (lambda: X3.astype(str), {}, "numbers"),
    "another way with missing values": (lambda: X3, {"missing": "guess"}, "missing.*guess"),
    "chunks of no rows": (lambda: X3, {"chunk_rows": 0}, "chunk_rows"),
    "a delimiter of an array": (lambda: X3, {"delimiter": ";"}, "CSV"),
    "a long delimiter": (lambda: "t.csv", {"delimiter": ";;"}, "delimiter"),
    "an unknown encoding": (lambda: "t.csv", {"encoding": "klingon"}, "klingon"),
    "a number": (lambda: 5, {}, "int"),
    "another computer": (lambda: "s3://bucket/t.parquet", {}, "s3://bucket"),
    "an open file": (lambda: io.BytesIO(b"a,y\n1,2\n"), {"format": "csv"}, "path"),
    "an iterator that grows thinner": (lambda: iter([(X3, Y3), (X3[:, :1], Y3)]), {}, "row 3"),
    "an iterator that loses its target": (lambda: iter([(X3, Y3), (X3,)]), {}, "target"),
    "an iterator of nothing": (lambda: iter([]), {}, "row"),
    "no rows": (lambda: np.empty((0, 3)), {}, "rows"),
    "no columns": (lambda: np.empty((3, 0)), {}, "features"),
    "a target that is a feature": (
        lambda: pl.DataFrame({"a": [1.0], "b": [2.0]}),
        {"target": "a", "columns": ["a"]},
        "'a'",
    ),
}


@pytest.mark.parametrize("what", ODD_CALLS)
def test_what_makes_no_sense_is_refused_by_name(what):
    make, options, mentioned = ODD_CALLS[what]
    with pytest.raises((ValueError, TypeError), match=mentioned):
        list(open_source(make(), **options))


def test_a_reader_that_is_not_installed_is_named(tmp_path, monkeypatch):
    path = written(tmp_path, "a,y\n1,2\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"quadlin.*table"):
        open_source(path, target="y")


# Laws of chunks.


@settings(max_examples=20)
@given(
    files=st.integers(1, 4),
    group=st.integers(1, 60),
    chunk_rows=st.integers(1, 160),
    single=st.booleans(),
)
def test_how_files_are_cut_changes_no_row(tmp_path_factory, files, group, chunk_rows, single):
    table = frame()[[*FEATURES, "price", "w"]]
    if single:
        table = table.astype({"age": np.float32, "size": np.float32})
    folder = tmp_path_factory.mktemp("cut")
    for i, part in enumerate(np.array_split(np.arange(N), files)):
        part_table = pa.Table.from_pandas(table.iloc[part], preserve_index=False)
        pq.write_table(part_table, folder / f"{i}.parquet", row_group_size=group)
    options = {"target": "price", "weight": "w"}
    source = open_source(folder, chunk_rows=chunk_rows, **options)
    wanted = rows_of(open_source(table, **options))
    assert [chunk.X.shape[0] for chunk in source][:-1] == [chunk_rows] * ((N - 1) // chunk_rows)
    for mine, theirs in zip(rows_of(source), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


def test_an_iterator_may_use_its_arrays_again():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 3)), rng.standard_normal(200)

    def rows():
        block, target = np.empty((50, 3)), np.empty(50)
        for start in range(0, 200, 50):
            block[:], target[:] = X[start : start + 50], y[start : start + 50]
            yield block, target

    got = rows_of(open_source(rows, chunk_rows=120))
    np.testing.assert_array_equal(got[0], X)
    np.testing.assert_array_equal(got[1], y)


@pytest.mark.parametrize("first_chunk_is_new", [False, True])
def test_where_the_new_levels_of_a_source_stand_does_not_change_the_warning(first_chunk_is_new):
    table = frame()
    model = clone(MODEL).fit(table[FEATURES], table["price"])
    new = table[FEATURES].head(40).copy()
    places = np.arange(10) if first_chunk_is_new else 4 * np.arange(10)
    new.loc[places, "city"] = "Kiel"
    with pytest.warns(UserWarning, match="10 in 'city'") as of_frame:
        model.predict(new)
    with pytest.warns(UserWarning, match="10 in 'city'") as of_source:
        model.predict(open_source(new, encoder=model.encoder_, chunk_rows=10))
    assert [str(w.message) for w in of_source] == [str(w.message) for w in of_frame]


class _Closable:
    """An iterator that holds something open from its first moment on."""

    def __init__(self, made):
        self.left, self.is_open = 2, True
        made.append(self)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            self.is_open = False
            raise StopIteration
        self.left -= 1
        return np.arange(20.0).reshape(10, 2), np.arange(10.0)

    def close(self):
        self.is_open = False


def test_iterators_that_a_function_has_opened_are_closed():
    made = []
    source = open_source(lambda: _Closable(made))
    assert len(made) == 1
    rows_of(source)
    assert not any(walk.is_open for walk in made)
