"""Laws of units: their parts are their rows, wherever these are."""

import io
import lzma
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from pyarrow import csv

from quadlin.data import open_source
from quadlin.data.source import cached

N = 500


def numbers():
    rng = np.random.default_rng(0)
    X = np.round(rng.standard_normal((N, 4)), 3) * (rng.uniform(size=(N, 4)) < 0.6)
    X[0] = 1  # every feature occurs in sparse files
    return X, np.arange(float(N))


def lines(X, y):
    rows = (" ".join(f"{j + 1}:{x}" for j, x in enumerate(row) if x) for row in X)
    return "".join(f"{t} {row}\n" for t, row in zip(y, rows, strict=True)).encode()


def table(X, y):
    return pa.table({"a": X[:, 0], "c": [f"l{i % 3}" for i in range(N)], "y": y})


def svmlight(where, X, y):
    (where / "t.svm").write_bytes(lines(X, y))
    return where / "t.svm", {}


def npy(where, X, y):
    np.save(where / "X.npy", X)
    np.save(where / "y.npy", y)
    return where / "X.npy", {"target": where / "y.npy"}


def mapped_slice(where, X, y):
    np.save(where / "X.npy", np.vstack([X[:7], X]))
    return np.load(where / "X.npy", mmap_mode="r")[7:], {"target": y}


def zarred(where, X, y):
    store = zarr.open(str(where / "z"), mode="w")
    rows = store.create_array("X", shape=X.shape, dtype=X.dtype, chunks=(60, 2))
    rows[:] = X
    return rows, {"target": y}


def parquet(where, X, y):
    pq.write_table(table(X, y), where / "t.parquet", row_group_size=90)
    return where / "t.parquet", {"target": "y"}


FORMS = [
    svmlight,
    npy,
    mapped_slice,
    zarred,
    parquet,
    lambda _, X, y: (table(X, y), {"target": "y"}),
]


def rows_of(source):
    chunks = list(source)
    X = [chunk.X.toarray() if hasattr(chunk.X, "toarray") else chunk.X for chunk in chunks]
    return np.vstack(X), np.concatenate([chunk.y for chunk in chunks])


@pytest.mark.parametrize("form", FORMS)
def test_parts_that_were_pickled_are_the_rows_in_order(form, tmp_path):
    rows, options = form(tmp_path, *numbers())
    source = open_source(rows, chunk_rows=60, **options)
    for whole in (source, cached(source, 1e9)):
        parts = [pickle.loads(pickle.dumps(part)) for part in whole.parts(4)]
        assert len(parts) > 2
        X, y = (np.concatenate(values) for values in zip(*map(rows_of, parts), strict=True))
        np.testing.assert_array_equal(X, rows_of(source)[0])
        np.testing.assert_array_equal(y, numbers()[1])


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_recognised_until_they_differ(form, tmp_path):
    rows, options = form(tmp_path, *numbers())
    source = open_source(rows, **options)
    before = source.fingerprint()
    assert before == open_source(rows, **options).fingerprint()
    assert before == cached(source, 1e9).fingerprint()
    X, y = numbers()
    X[0, 0] += 1  # of arrays that are not in memory some rows are compared, among them the first
    changed, options = form(tmp_path, X, y)
    assert before != open_source(changed, **options).fingerprint()


def test_tables_that_arrow_reads_from_a_stream_are_the_rows_in_order(tmp_path):
    options = {"target": "y", "levels": {"c": ["l0", "l1", "l2"]}}
    whole = table(*numbers())
    wanted = rows_of(open_source(whole, **options))
    with pa.ipc.new_stream(str(tmp_path / "t.arrows"), whole.schema) as writer:
        writer.write_table(whole, max_chunksize=77)
    frame: pd.DataFrame = whole.to_pandas()
    text = io.BytesIO(frame.to_csv(index=False).encode())
    for reader in (pa.ipc.open_stream(str(tmp_path / "t.arrows")), csv.open_csv(text)):
        got = rows_of(open_source(reader, **options))
        for mine, theirs in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_lines_are_read_from_a_compressed_file(tmp_path):
    X, y = numbers()
    (tmp_path / "t.svm.xz").write_bytes(lzma.compress(lines(X, y)))
    np.testing.assert_array_equal(rows_of(open_source(tmp_path / "t.svm.xz"))[0], X)
