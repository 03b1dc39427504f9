"""Every source of the same rows gives the same chunks."""

import gzip
import io
import pickle
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from quadlin.data import SourceError, open_source
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.opening.cached import cached
from quadlin.data.sources.prefetch import read_ahead
from quadlin.data.sources.table_files import FileFeed

pytestmark = pytest.mark.filterwarnings("ignore:.*looks like an identifier")


def gathered(source):
    """Return all chunks as one, once their form has been checked."""
    chunks = list(source)
    sizes = [chunk.X.shape[0] for chunk in chunks]
    assert sizes[:-1] == [source.chunk_rows] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= source.chunk_rows
    for chunk in chunks:
        assert chunk.X.shape[1] == len(source.names)
        assert chunk.X.dtype == source.dtype
        assert sparse.issparse(chunk.X) == source.sparse
        if source.sparse:
            assert chunk.X.format == "csr"
            assert chunk.X.has_sorted_indices
        else:
            assert chunk.X.flags.c_contiguous
        assert (chunk.y is not None) == source.has_target
        for values in (chunk.y, chunk.weight):
            assert values is None or (
                values.dtype == np.float64 and values.shape == chunk.X.shape[:1]
            )
    dense = [chunk.X.toarray() if source.sparse else chunk.X for chunk in chunks]
    y = np.concatenate([chunk.y for chunk in chunks]) if source.has_target else None
    w = None if chunks[0].weight is None else np.concatenate([chunk.weight for chunk in chunks])
    return np.concatenate(dense), y, w


def same(rows, wanted):
    for one, other in zip(rows, wanted, strict=True):
        if other is None:
            assert one is None
        else:
            np.testing.assert_array_equal(one, other)


def table(n=50, seed=0, text=True, dtype=np.float64):
    rng = np.random.default_rng(seed)
    columns = {
        "a": rng.integers(-2, 3, n).astype(dtype) / 2,
        "n": rng.integers(0, 9, n).astype(np.int16),
        "m": rng.uniform(size=n) < 0.5,
    }
    if text:
        columns["city"] = [("Oslo", "Rome", "Bonn", "Ålesund")[i] for i in rng.integers(4, size=n)]
    return {**columns, "y": rng.integers(-9, 9, n) / 4, "w": rng.integers(1, 5, n) / 2}


def parquet_folder(columns, where, files=3, group=7):
    data, folder = pa.table(columns), where / "folder"
    folder.mkdir()
    for i, rows in enumerate(np.array_split(np.arange(len(data)), files)):
        part = data.slice(rows[0], len(rows))
        pq.write_table(part, folder / f"{i}.parquet", row_group_size=group)
    (folder / "_SUCCESS").touch()
    return folder


def csv_file(columns, where, name="t.csv", delimiter=","):
    options = pyarrow.csv.WriteOptions(delimiter=delimiter)
    pyarrow.csv.write_csv(pa.table(columns), where / name, options)
    return where / name


def arrow_file(columns, where):
    with pa.OSFile(str(where / "t.arrow"), "wb") as out:
        data = pa.table(columns)
        with pa.ipc.new_file(out, data.schema) as writer:
            writer.write_table(data, max_chunksize=11)
    return where / "t.arrow"


def gzipped(columns, where):
    path = csv_file(columns, where)
    packed = where / "packed.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return packed


def feather(columns, where):
    pyarrow.feather.write_feather(pa.table(columns), where / "t.feather", chunksize=13)
    return where / "t.feather"


def frames(columns):
    frame = pl.DataFrame(columns)
    return lambda: iter([frame[:20], frame[20:21], frame[21:]])


TABLES = {
    "pandas": lambda columns, where: pd.DataFrame(columns),
    "pandas categories": lambda c, w: pd.DataFrame(c).astype({"city": "category"}),
    "pandas with an index": lambda c, w: pd.DataFrame(c).set_index(np.arange(len(c["a"])) / 2),
    "polars": lambda columns, where: pl.DataFrame(columns),
    "lazy polars": lambda columns, where: pl.LazyFrame(columns),
    "pyarrow": lambda columns, where: pa.table(columns),
    "dictionary": lambda columns, where: pa.table(
        {**columns, "city": pa.array(columns["city"]).dictionary_encode()}
    ),
    "batch": lambda columns, where: pa.RecordBatch.from_pydict(columns),
    "Parquet folder": parquet_folder,
    "Parquet pattern": lambda c, where: str(parquet_folder(c, where)) + "/*.parquet",
    "Parquet paths": lambda c, where: sorted(parquet_folder(c, where).glob("*.parquet")),
    "dataset": lambda c, where: pyarrow.dataset.dataset(
        [str(path) for path in sorted(parquet_folder(c, where).glob("*.parquet"))]
    ),
    "CSV": csv_file,
    "CSV packed": gzipped,
    "TSV": lambda columns, where: csv_file(columns, where, "t.tsv", "\t"),
    "Arrow": arrow_file,
    "Feather": feather,
    "functions of frames": lambda columns, where: frames(columns),
    "Dask": lambda columns, where: dd.from_pandas(pd.DataFrame(columns), npartitions=3),
}


@pytest.mark.parametrize("chunk_rows", [1, 7, 1000])
@pytest.mark.parametrize("kind", TABLES)
def test_every_table_gives_the_rows_that_the_encoder_gives_in_memory(kind, chunk_rows, tmp_path):
    columns = table()
    features = {name: columns[name] for name in ("a", "n", "m", "city")}
    encoder = TableEncoder.learn(pl.DataFrame(features))
    source = open_source(
        TABLES[kind](columns, tmp_path), target="y", weight="w", chunk_rows=chunk_rows
    )
    assert source.names == encoder.names
    assert source.encoder == encoder
    assert [list(field) for field in source.fields] == [list(field) for field in encoder.fields]
    wanted = encoder.encode(pl.DataFrame(features))[0].toarray(), columns["y"], columns["w"]
    same(gathered(source), wanted)
    assert source.rows in (50, None)
    parts = source.parts(3)
    if len(parts) > 1:
        parts = pickle.loads(pickle.dumps(parts))
        assert [part.rows for part in parts if part.rows is None] or sum(
            p.rows for p in parts
        ) == 50
    read = [gathered(part) for part in parts]
    same([np.concatenate(values) for values in zip(*read, strict=True)], wanted)
    assert source.again
    same(gathered(source), wanted)
    assert source.fingerprint() == source.fingerprint()


@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 99),
    files=st.integers(1, 3),
    group=st.integers(1, 20),
    chunk_rows=st.integers(1, 45),
    text=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
    hint=st.integers(1, 9),
)
def test_how_parquet_files_are_cut_changes_nothing(
    tmp_path_factory, n, seed, files, group, chunk_rows, text, dtype, hint
):
    columns = table(n, seed, text, dtype)
    folder = parquet_folder(columns, tmp_path_factory.mktemp("f"), min(files, n), group)
    source = open_source(folder, target="y", weight="w", chunk_rows=chunk_rows)
    whole = open_source(pa.table(columns), target="y", weight="w", chunk_rows=n)
    assert (source.names, source.dtype, source.rows) == (whole.names, whole.dtype, n)
    assert source.dtype == dtype
    wanted = gathered(whole)
    same(gathered(source), wanted)
    read = [gathered(part) for part in source.parts(hint)]
    assert len(read) <= hint
    same([np.concatenate([f[i] for f in read]) for i in (0, 1)], wanted[:2])


def numbers(n=30, d=4, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    X = np.round(rng.standard_normal((n, d)) * 4) / 4 * (rng.uniform(size=(n, d)) < 0.6)
    X[0, -1] = X[1, 0] = 1
    return X.astype(dtype), np.round(rng.standard_normal(n), 2)


def npy(X, y, where):
    np.save(where / "X.npy", X)
    np.save(where / "y.npy", y)
    return open_source(where / "X.npy", target=where / "y.npy", chunk_rows=7)


def npz(X, y, where):
    np.savez(where / "X.npz", X=X, y=y)
    return open_source(where / "X.npz", chunk_rows=7)


def mapped(X, y, where):
    raw = np.memmap(where / "raw", X.dtype, "w+", shape=X.shape)
    raw[:] = X
    return open_source(raw, target=y, chunk_rows=7)


def hdf5(X, y, where):
    file = h5py.File(where / "t.h5", "w")
    file["X"], file["y"] = X, y
    return open_source(file["X"], target=file["y"], chunk_rows=7)


def zarred(X, y, where):
    store = zarr.open(str(where / "z"), mode="w")
    rows = store.create_array("X", shape=X.shape, dtype=X.dtype, chunks=(5, 2))
    rows[:] = X
    return open_source(rows, target=y, chunk_rows=7)


def svmlight(X, y, where):
    dump_svmlight_file(X, y, str(where / "t.svm"), zero_based=False)
    return open_source(where / "t.svm", chunk_rows=7)


def packed_svmlight(X, y, where):
    svmlight(X, y, where)
    (where / "t.svm.gz").write_bytes(gzip.compress((where / "t.svm").read_bytes()))
    return open_source(where / "t.svm.gz", chunk_rows=7)


def libffm(X, y, where):
    lines = [
        " ".join([repr(float(t)), *(f"{j % 2}:{j}:{float(row[j])!r}" for j in np.flatnonzero(row))])
        for row, t in zip(X, y, strict=True)
    ]
    (where / "t.ffm").write_text("\n".join(lines))
    return open_source(where / "t.ffm", chunk_rows=7)


ARRAYS = {
    "numpy": lambda X, y, w: open_source(X, target=y, chunk_rows=7),
    "fortran": lambda X, y, w: open_source(np.asfortranarray(X), target=y, chunk_rows=7),
    "csr": lambda X, y, w: open_source(sparse.csr_array(X), target=y, chunk_rows=7),
    "csc": lambda X, y, w: open_source(sparse.csc_array(X), target=y, chunk_rows=7),
    "memmap": mapped,
    "npy": npy,
    "npz": npz,
    "h5py": hdf5,
    "zarr": zarred,
    "svmlight": svmlight,
    "packed svmlight": packed_svmlight,
    "libffm": libffm,
    "function": lambda X, y, w: open_source(
        lambda: iter([(X[:9], y[:9]), (X[9:], y[9:])]), chunk_rows=7
    ),
    "list of pairs": lambda X, y, w: open_source([(X[:9], y[:9]), (X[9:], y[9:])], chunk_rows=7),
    "iterator": lambda X, y, w: open_source(iter([(X[:9], y[:9]), (X[9:], y[9:])]), chunk_rows=7),
    "Dask": lambda X, y, w: open_source(
        da.from_array(X, chunks=(8, 2)), target=da.from_array(y, chunks=10), chunk_rows=7
    ),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
@pytest.mark.parametrize("kind", ARRAYS)
def test_every_array_gives_its_rows(kind, dtype, tmp_path):
    X, y = numbers(dtype=dtype)
    source = ARRAYS[kind](X, y, tmp_path)
    wanted = X.astype(np.float64), y, None
    assert source.names == ("x0", "x1", "x2", "x3")
    if kind not in ("svmlight", "packed svmlight", "libffm"):  # text has no dtype
        assert source.dtype == (np.float32 if dtype == np.float32 else np.float64)
    same(gathered(source), wanted)
    if not source.again:
        with pytest.raises(SourceError, match="exhausted"):
            list(source)
        return
    parts = source.parts(4)
    if kind != "h5py" and "list" not in kind and kind != "function":  # an open file has no pickle
        parts = pickle.loads(pickle.dumps(parts))
    read = [gathered(part) for part in parts]
    same([np.concatenate([f[i] for f in read]) for i in (0, 1)], wanted[:2])
    assert source.rows in (30, None)
    # What a function or an iterable will yield the next time, nobody knows.
    untold = source.feed.title == "Iterator"
    assert source.fingerprint() is None if untold else len(source.fingerprint()) == 32


def test_arrays_in_memory_are_not_copied():
    X, y = numbers()
    for chunk in open_source(X, target=y, chunk_rows=7):
        assert np.shares_memory(chunk.X, X)
        assert np.shares_memory(chunk.y, y)


def test_svmlight_is_cut_between_lines_and_keeps_one_base(tmp_path, monkeypatch):
    monkeypatch.setattr("quadlin.data.sources.sparse_lines.BLOCK", 100)
    X, y = numbers(60)
    X[:40, 0] = 0  # index 0 occurs only late
    X[59, 0] = 5
    dump_svmlight_file(X, y, str(tmp_path / "t.svm"), zero_based=True)
    source = open_source(tmp_path / "t.svm", chunk_rows=13)
    same(gathered(source), (X, y, None))
    parts = source.parts(4)
    assert len(parts) == 4
    read = [gathered(part) for part in parts]
    same([np.concatenate([f[i] for f in read]) for i in (0, 1)], (X, y))
    given = open_source(tmp_path / "t.svm", chunk_rows=13, n_features=4, zero_based=True)
    assert given.rows is None
    same(gathered(given), (X, y, None))


def test_fields_of_libffm_are_fields_when_they_are_one_hot(tmp_path):
    (tmp_path / "t.ffm").write_text("1 0:2:1 1:3:1 2:5:0.5\n0 1:4:1 0:1:1 2:5:2 2:6:1\n")
    source = open_source(tmp_path / "t.ffm")
    assert [field.tolist() for field in source.fields] == [[1, 2], [3, 4]]
    X, y, _ = gathered(source)
    assert X.tolist() == [[0, 0, 1, 1, 0, 0.5, 0], [0, 1, 0, 0, 1, 2, 1]]
    assert y.tolist() == [1, 0]


@pytest.mark.parametrize("format", ["csv", "arrow", "svmlight"])
def test_streams_are_read_once(format, tmp_path):
    columns = {"a": [1, 2, 3], "b": [0.5, 0, 1], "y": [1, 2, 3]}
    data, options = io.BytesIO(), {}
    if format == "csv":
        pyarrow.csv.write_csv(pa.table(columns), data)
    elif format == "arrow":
        with pa.ipc.new_stream(data, pa.table(columns).schema) as writer:
            writer.write_table(pa.table(columns))
    else:
        data.write(b"1 1:1 2:0.5\n2 1:2\n3 1:3 2:1\n")
        options = {"n_features": 2, "zero_based": False}
    data.seek(0)
    target = None if format == "svmlight" else "y"
    source = open_source(data, format=format, target=target, chunk_rows=2, **options)
    assert not source.again
    same(gathered(source), (np.array([[1, 0.5], [2, 0], [3, 1]]), np.array([1, 2, 3]), None))
    with pytest.raises(SourceError, match=r"exhausted|read again"):
        list(source)


def test_text_that_is_walked_once_needs_its_levels():
    data = b"city,y\nOslo,1\nRome,2\nOslo,3\n"
    with pytest.raises(SourceError, match=r"read only once.*'city'.*levels="):
        open_source(io.BytesIO(data), format="csv", target="y")
    source = open_source(
        io.BytesIO(data), format="csv", target="y", levels={"city": ["Rome", "Oslo"]}
    )
    assert source.names == ("city=Rome", "city=Oslo")
    same(gathered(source), (np.array([[0, 1], [1, 0], [0, 1]]), np.array([1, 2, 3]), None))


def test_a_known_encoder_counts_levels_it_does_not_know(tmp_path):
    first = open_source(pl.DataFrame({"city": ["Oslo", "Rome"] * 3, "a": range(6)}))
    path = csv_file({"a": [1, 2, 3], "z": [0, 0, 0], "city": ["Rome", "Bonn", "Kiel"]}, tmp_path)
    source = open_source(path, encoder=first.encoder)
    same(gathered(source), (np.array([[0, 1, 1], [0, 0, 2], [0, 0, 3]]), None, None))
    assert source.unseen == {"city": 2}
    list(source)
    assert source.unseen == {"city": 2}


def test_numbers_in_later_lines_may_have_fractions(tmp_path, monkeypatch):
    monkeypatch.setattr("quadlin.data.sources.csv_text.CSV_BLOCK", 64)
    lines = ["a,y"] + ["1,2"] * 100 + ["1.5,2.5"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    X, y, _ = gathered(open_source(tmp_path / "t.csv", target="y"))
    assert (X[-1, 0], y[-1]) == (1.5, 2.5)
    text = io.BytesIO("\n".join(lines).encode())
    assert gathered(open_source(text, format="csv", target="y"))[0][-1, 0] == 1.5


def test_quoted_line_breaks_stay_inside_their_cell(tmp_path):
    (tmp_path / "t.csv").write_text('s,y\n"a\nb",1\nc,2\n"a\nb",3\nc,4\n')
    assert open_source(tmp_path / "t.csv", target="y").names == ("s=a\nb", "s=c")


CITIES = [("Malmö", 1.5, 2), ("Århus", -0.25, 3), ("Malmö", 4, 5)]


def written(delimiter=",", decimal=".", encoding="utf8", header=("city", "a", "y")):
    """Return CSV text of a few cities."""
    lines = [
        header,
        *([city, *(f"{v:g}".replace(".", decimal) for v in vs)] for city, *vs in CITIES),
    ]
    return "\r\n".join(map(delimiter.join, lines)).encode(encoding)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (written(), {}),
        (written(";"), {}),
        (written("\t"), {}),
        (written("|"), {}),
        (written("~"), {"delimiter": "~"}),
        (written("\t"), {"format": "tsv"}),
        (written(";"), {"format": "tsv", "delimiter": ";"}),
        (written(";", encoding="utf-8-sig"), {}),
        (written(";", header=('"city"', '"a"', '"y"')), {"encoding": "UTF-8"}),
        (written(";", ",", "latin1"), {"decimal": ",", "encoding": "latin1"}),
        (written("\t", encoding="utf-16"), {"encoding": "utf-16"}),
    ],
)
def test_csv_is_read_however_it_is_written(tmp_path, text, options):
    wish = {"format": "csv", "target": "y", "columns": ["city", "a"]} | options
    (tmp_path / "t.csv").write_bytes(text)
    with gzip.open(tmp_path / "t.csv.gz", "wb") as file:
        file.write(text)
    wanted = (np.array([[1, 0, 1.5], [0, 1, -0.25], [1, 0, 4]]), np.array([2, 3, 5]), None)
    for place in (tmp_path / "t.csv", tmp_path / "t.csv.gz", str(tmp_path / "*.csv")):
        source = open_source(place, **wish)
        assert source.names == ("city=Malmö", "city=Århus", "a")
        same(gathered(source), wanted)
        same(gathered(pickle.loads(pickle.dumps(source))), wanted)
    levels = {"city": ["Malmö", "Århus"]}
    same(gathered(open_source(io.BytesIO(text), levels=levels, **wish)), wanted)


def test_each_file_may_have_its_own_delimiter(tmp_path):
    (tmp_path / "a.csv").write_bytes(written(";"))
    (tmp_path / "b.csv").write_bytes(written("|"))
    source = open_source(tmp_path, target="y", columns=["a"])
    same(gathered(source)[:1], [np.array([[1.5], [-0.25], [4]] * 2)])


def test_how_csv_is_written_is_part_of_its_fingerprint(tmp_path):
    (tmp_path / "t.csv").write_text("a;y\n1;2\n3;4\n")
    plain = open_source(tmp_path / "t.csv", target="y")
    assert plain.fingerprint() == open_source(tmp_path / "t.csv", target="y").fingerprint()
    other = open_source(tmp_path / "t.csv", target="y", decimal=",")
    assert plain.fingerprint() != other.fingerprint()


def test_numbers_with_commas_are_text_if_that_is_said_and_no_matter_if_not_used(tmp_path):
    (tmp_path / "t.csv").write_text("s;a;y\n1,5;1;2\n2,5;3;4\n1,5;2;2\n2,5;0;1\n")
    source = open_source(tmp_path / "t.csv", target="y", decimal=".")
    assert source.names == ("s=1,5", "s=2,5", "a")
    assert open_source(tmp_path / "t.csv", target="y", columns=["a"]).names == ("a",)
    (tmp_path / "l.csv").write_bytes("s,a,y\né,1,2\n".encode("latin1"))
    for place in (tmp_path / "l.csv", io.BytesIO((tmp_path / "l.csv").read_bytes())):
        source = open_source(place, format="csv", target="y", columns=["a"])
        same(gathered(source)[:1], [np.array([[1]])])


def test_columns_are_chosen_by_name(tmp_path):
    folder = parquet_folder(table(), tmp_path)
    source = open_source(folder, target="y", columns=["n", "a"])
    assert source.names == ("n", "a")
    same(gathered(source)[:1], [np.stack([table()["n"], table()["a"]], axis=1)])


def test_a_column_without_a_name_is_the_index_of_a_frame(tmp_path):
    pd.DataFrame({"a": [1.0, 2], "y": [3.0, 4]}).to_csv(tmp_path / "t.csv")
    for place in (tmp_path / "t.csv", io.BytesIO((tmp_path / "t.csv").read_bytes())):
        with pytest.warns(UserWarning, match="a column without a name is the index"):
            source = open_source(place, format="csv", target="y")
        assert source.names == ("a",)
        same(gathered(source)[:2], (np.array([[1], [2]]), np.array([3, 4])))


KEPT = {"id": ["007", "8", "9", "10"], "a": [1.0, 2, None, 4], "s": list("xyxy"), "y": [1, 2, 3, 4]}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
@pytest.mark.parametrize("chunk_rows", [1, 2, 10])
def test_columns_that_are_kept_go_along_with_the_rows(make, chunk_rows):
    wish = {"target": "y", "missing": "drop", "chunk_rows": chunk_rows}
    source = open_source(make(KEPT), keep=["id", "y"], **wish)
    assert source.names == ("a", "s=x", "s=y")  # what is kept is no feature
    chunks = list(source)
    frames = [chunk.kept_columns for chunk in chunks]
    assert all(type(frame) is type(make(KEPT)) for frame in frames)
    assert [str(v) for frame in frames for v in frame["id"]] == ["007", "8", "10"]
    assert [int(v) for frame in frames for v in frame["y"].__array__()] == [1, 2, 4]
    assert cached(source, 1e9) is source
    source = open_source(make(KEPT), columns=["a", "s"], keep="a", **wish)
    assert source.names == ("a", "s=x", "s=y")
    assert all(len(chunk.kept_columns.columns) == 1 for chunk in source)
    assert all(
        chunk.kept_columns is None for chunk in open_source(make(KEPT), columns=["a"], **wish)
    )


def test_what_is_kept_of_csv_is_text_and_large_numbers_of_files_stay_whole(tmp_path):
    (tmp_path / "t.csv").write_text("id,a,y\n007,1,2\n8,2,3\n")
    for place in (tmp_path / "t.csv", io.BytesIO((tmp_path / "t.csv").read_bytes())):
        source = open_source(place, format="csv", target="y", keep=["id", "a"], columns=["a"])
        source = pickle.loads(pickle.dumps(source)) if source.again else source
        (chunk,) = list(source)
        assert chunk.kept_columns.to_pydict() == {"id": ["007", "8"], "a": [1.0, 2.0]}
    large = 2**60 + 1
    for name, ids in (("1", pa.array([5], pa.int32())), ("2", pa.array([large], pa.int64()))):
        pq.write_table(pa.table({"id": ids, "a": [1.0]}), tmp_path / f"{name}.parquet")
    source = open_source(tmp_path / "*.parquet", keep=["id"], chunk_rows=10)
    (chunk,) = list(source)
    assert chunk.kept_columns["id"].to_pylist() == [5, large]


def test_reading_ahead_stops_when_the_caller_does():
    before, seen = threading.active_count(), []

    def items():
        try:
            for i in range(1000):
                seen.append(i)
                yield i
        finally:
            seen.append("closed")

    walk = read_ahead(items())
    assert next(walk) == 0
    walk.close()
    assert seen[-1] == "closed"
    assert len(seen) < 10
    assert threading.active_count() == before


def test_a_walk_left_early_leaves_no_thread(tmp_path):
    folder = parquet_folder(table(500), tmp_path)
    before = threading.active_count()
    for _ in open_source(folder, target="y", chunk_rows=3):
        break
    for _ in range(100):
        if threading.active_count() == before:
            break
        time.sleep(0.05)
    assert threading.active_count() == before


def test_errors_of_the_other_thread_come_to_the_caller():
    def items():
        yield 1
        raise SourceError("broken")

    walk = read_ahead(items())
    assert next(walk) == 1
    with pytest.raises(SourceError, match="broken"):
        next(walk)


def test_a_walk_holds_few_batches_whatever_the_length(tmp_path, monkeypatch):
    monkeypatch.setattr("quadlin.data.sources.arrow_batches.BATCH_ELEMENTS", 1 << 16)
    monkeypatch.setattr("quadlin.data.sources.table_files.BATCH_ELEMENTS", 1 << 16)
    rng = np.random.default_rng(0)
    columns = {f"f{j}": rng.standard_normal(200_000).astype(np.float32) for j in range(20)}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", use_dictionary=False)  # 16 MB
    base, top = pa.total_allocated_bytes(), 0
    for _ in open_source(tmp_path / "t.parquet", chunk_rows=1000):
        top = max(top, pa.total_allocated_bytes() - base)
    assert top < 6e6


def test_parts_may_be_walked_side_by_side(tmp_path):
    source = open_source(parquet_folder(table(300), tmp_path, 3, 20), target="y", weight="w")
    parts = source.parts(6)
    assert len(parts) == 6
    with ThreadPoolExecutor(3) as pool:
        read = list(pool.map(gathered, parts))
    wanted = gathered(source)
    same([np.concatenate(values) for values in zip(*read, strict=True)], wanted)


def test_a_reader_that_is_not_installed_is_named(tmp_path, monkeypatch):
    path = csv_file(table(), tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"quadlin\[table\]"):
        open_source(path)


def test_weights_come_with_all_rows_or_with_none():
    X, y = numbers()
    assert gathered(open_source([(X, y, y**2), (X, y, y**2)]))[2].shape == (60,)
    with pytest.raises(SourceError, match="Give weights for all rows or for none"):
        list(open_source([(X, y, y**2), (X, y)]))


def test_many_features_have_names_without_a_list_of_them(tmp_path):
    (tmp_path / "t.svm").write_text("1 1:1 90000000:1\n2 3:1\n")
    source = open_source(tmp_path / "t.svm")
    assert source.names[-1] == "x89999999"
    assert [chunk.X.shape for chunk in source] == [(2, 90_000_000)]


def test_the_description_is_for_people(tmp_path):
    source = open_source(parquet_folder(table(text=False), tmp_path), target="y")
    assert source.description == f"Parquet folder {tmp_path}/folder, 3 files, 50 rows × 4 features"


def test_a_source_is_opened_once():
    source = open_source(np.ones((3, 2)))
    assert open_source(source) is source
    assert not source.has_target


def test_fingerprints_tell_data_apart(tmp_path):
    X, y = numbers()
    Z = X.copy()
    Z[0, 0] += 1
    assert open_source(X, target=y).fingerprint() == open_source(X.copy(), target=y).fingerprint()
    assert open_source(X, target=y).fingerprint() != open_source(Z, target=y).fingerprint()
    path = csv_file(table(), tmp_path)
    first = open_source(path, target="y").fingerprint()
    assert open_source(path, target="y").fingerprint() == first
    assert open_source(path, target="w").fingerprint() != first


def test_levels_are_warned_of_once(tmp_path):
    path = csv_file({"id": list("abcdef"), "y": range(6)}, tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        open_source(path, target="y")
    assert len(caught) == 1
    assert "identifier" in str(caught[0].message)


def test_a_walk_can_be_watched_also_in_parts_but_not_from_a_cluster():
    seen = []
    source = replace(
        open_source(np.ones((10, 2)), target=np.ones(10), chunk_rows=4), watch=seen.append
    )
    list(source)
    assert seen == [4, 4, 2, 0]
    seen.clear()
    for part in source.parts(2):
        list(part)
    assert sum(seen) == 10
    assert 0 not in seen
    assert pickle.loads(pickle.dumps(source)).watch is None


@pytest.mark.parametrize("missing", ["error", "drop"])
def test_rows_that_are_held_are_the_same_rows(tmp_path, missing):
    rows = "".join(f"{i},{'uvw'[i % 3]},{i % 7}\n" for i in range(50))
    gap = ",u,1\n" if missing == "drop" else ""
    (tmp_path / "t.csv").write_text("a,b,y\n" + rows + gap)
    source = open_source(tmp_path / "t.csv", target="y", missing=missing, chunk_rows=8)
    near = cached(source, 1e6)
    assert near is not source
    assert near.fingerprint() == source.fingerprint()
    assert (near.names, near.rows, near.encoder) == (source.names, 50, source.encoder)
    for walk in (near, near, [c for part in near.parts(3) for c in part]):
        for a, b in zip(source, walk, strict=True):
            np.testing.assert_array_equal(a.X.toarray(), b.X.toarray())
            np.testing.assert_array_equal(a.y, b.y)
    assert len(near.parts(3)) == 3
    assert cached(source, 100) is source
    array = open_source(np.ones((4, 2)))
    assert cached(array, 1e9) is array


def test_an_iterator_may_use_its_arrays_again():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 3)), rng.standard_normal(200)

    def rows():
        block, target = np.empty((50, 3)), np.empty(50)
        for start in range(0, 200, 50):
            block[:], target[:] = X[start : start + 50], y[start : start + 50]
            yield block, target

    chunks = list(open_source(rows, chunk_rows=120))
    np.testing.assert_array_equal(np.concatenate([chunk.X for chunk in chunks]), X)
    np.testing.assert_array_equal(np.concatenate([chunk.y for chunk in chunks]), y)


def test_the_index_of_pandas_is_no_feature(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [1.0, 0.0, 2.0]})
    frame.iloc[[0, 2, 1]].to_parquet(tmp_path / "some.parquet")
    with pytest.warns(UserWarning, match="__index_level_0__"):
        source = open_source(tmp_path / "some.parquet", target="y")
    assert list(source.names) == ["a"]


@pytest.mark.parametrize("missing", [None, "mean", "error", "drop"])
def test_values_to_fill_with_are_filled_in_unless_something_else_is_said(missing):
    X = np.array([[1.0, np.nan], [2.0, 5.0], [3.0, 7.0]])
    source = open_source(X, fill={"x0": 0.0, "x1": 9.0}, missing=missing)
    if missing == "error":
        with pytest.raises(SourceError, match="'x1' contains NaN"):
            list(source)
        return
    rows = np.vstack([chunk.X for chunk in source])
    filled = missing != "drop"
    np.testing.assert_array_equal(rows, [[1.0, 9.0], *X[1:]] if filled else X[1:])
    assert (source.fill is not None) == filled


def test_labels_levels_and_means_are_learned_in_one_pass(tmp_path, monkeypatch):
    lines = ["city,a,kind", "Oslo,1,up", "Rome,,down", "Oslo,3,up", "Bonn,5,odd", ",7,up"]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    walked, pieces = [], FileFeed.pieces

    def counted(feed, rows):
        walked.append(feed.columns)
        return pieces(feed, rows)

    monkeypatch.setattr(FileFeed, "pieces", counted)
    options = {"target": "kind", "labels": "learn"}
    source = open_source(tmp_path / "t.csv", missing="mean", **options)
    assert walked == [("city", "a", "kind")]
    assert source.labels == ("down", "odd", "up")
    assert source.fill == {"a": pytest.approx(4)}
    assert source.names == ("city=Bonn", "city=Oslo", "city=Rome", "city=missing", "a")
    walked.clear()
    dropped = open_source(tmp_path / "t.csv", missing="drop", **options)
    assert walked == [("city", "a", "kind")]
    assert dropped.labels == source.labels  # also of rows that are dropped
    assert dropped.names == ("city=Bonn", "city=Oslo", "a")
    assert gathered(dropped)[1].tolist() == [2, 2, 1]
    walked.clear()
    (tmp_path / "t.csv").write_text("\n".join(lines[:2] + lines[3:5]) + "\n")
    assert open_source(tmp_path / "t.csv", **options).labels == ("odd", "up")
    assert walked == [("city", "kind")]
