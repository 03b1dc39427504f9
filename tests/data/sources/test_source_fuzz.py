"""Readers meet random bytes and damaged files: they give rows or a SourceError, nothing else.

QUADLIN_FUZZ_EXAMPLES=20000 runs as many examples of each kind.
"""

import io
import os
import warnings
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from quadlin.data import SourceError, open_source

EXAMPLES = int(os.environ.get("QUADLIN_FUZZ_EXAMPLES", "20"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="QUADLIN_FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
COLUMNS = {
    "a": [1.5, 2.0, -3.25, 0.0, 7.0, 1.0],
    "i": [1, 2, 3, 4, 5, 6],
    "s": ["Oslo", "Rome", "Åre", "Rome", "", "Oslo"],
    "y": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0],
}


def valid_parquet():
    out = io.BytesIO()
    table = pa.table({**COLUMNS, "c": pa.array(COLUMNS["s"]).dictionary_encode()})
    pq.write_table(table, out, row_group_size=4, compression="snappy")
    return out.getvalue()


def valid_csv():
    out = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(COLUMNS), out)
    return out.getvalue()


def valid_arrow(make):
    out = io.BytesIO()
    table = pa.table({**COLUMNS, "c": pa.array(COLUMNS["s"]).dictionary_encode()})
    with make(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return out.getvalue()


def valid_npy():
    out = io.BytesIO()
    np.save(out, np.arange(12.0).reshape(4, 3))
    return out.getvalue()


def valid_npz():
    out = io.BytesIO()
    sparse.save_npz(out, sparse.csr_array(np.eye(4)), compressed=False)
    return out.getvalue()


VALID = {
    "t.parquet": valid_parquet(),
    "t.csv": valid_csv(),
    "t.arrow": valid_arrow(pa.ipc.new_file),
    "t.arrows": valid_arrow(pa.ipc.new_stream),
    "t.npy": valid_npy(),
    "t.npz": valid_npz(),
    "t.svm": b"1 1:2 3:4.5 # said\n-1 2:1\n0.5 1:1 2:1 3:1\n",
    "t.ffm": b"1 0:1:1 1:3:1\n0 0:2:1 1:4:0.5\n",
}
WORDS = ["nan", "inf", "-1", "99999999999", "1e999", ":", "\n", '"', ",", "\0", " ", "é"]
PIECES = [*(word.encode() for word in WORDS), b"\xff"]


@st.composite
def mutated(draw, data):
    """Cut a file short, or change, remove, repeat or insert some of its bytes."""
    data = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["flip", "set", "cut", "remove", "repeat", "insert"]))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at:]
        elif kind == "remove":
            del data[at : at + draw(st.integers(1, 16))]
        elif kind == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
        else:
            data[at:at] = draw(st.sampled_from(PIECES))
    return bytes(data)


def read(path, content, **options):
    """Walk a file: rows that come must be as promised."""
    path.write_bytes(content)
    named = path.suffix in (".parquet", ".csv", ".arrow", ".arrows")
    with warnings.catch_warnings(), suppress(SourceError):
        warnings.simplefilter("ignore")
        source = open_source(path, target="y" if named else None, chunk_rows=3, **options)
        for chunk in source:
            data = chunk.X.data if source.sparse else chunk.X
            assert np.isfinite(data).all()
            assert chunk.X.shape[1] == len(source.names)


@pytest.mark.parametrize("name", VALID)
def test_files_that_are_not_damaged_are_read(name, tmp_path):
    (tmp_path / name).write_bytes(VALID[name])
    target = "y" if name.endswith(("parquet", "csv", "arrow", "arrows")) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert list(open_source(tmp_path / name, target=target))


@pytest.mark.parametrize("name", VALID)
@fuzz
@given(data=st.data())
def test_damaged_files_give_rows_or_a_source_error(tmp_path_factory, name, data):
    path = tmp_path_factory.getbasetemp() / name
    missing = data.draw(st.sampled_from(["error", "drop", "mean"]))
    read(path, data.draw(mutated(VALID[name])), missing=missing)


@pytest.mark.parametrize("name", VALID)
@fuzz
@given(content=st.binary(max_size=200))
def test_random_bytes_give_rows_or_a_source_error(tmp_path_factory, name, content):
    path = tmp_path_factory.getbasetemp() / name
    read(path, content)
    read(path, VALID[name][:12] + content)


@fuzz
@given(text=st.text(st.sampled_from(list('ay,"\n\r\t 19.-exé')), max_size=120))
def test_random_text_as_csv(tmp_path_factory, text):
    read(tmp_path_factory.getbasetemp() / "t.csv", b"a,y\n" + text.encode())


@fuzz
@given(text=st.text(st.sampled_from(list("01239:.- \n#e")), max_size=120))
def test_random_text_as_lines(tmp_path_factory, text):
    for name in ("t.svm", "t.ffm"):
        read(tmp_path_factory.getbasetemp() / name, text.encode())


@fuzz
@given(data=st.data(), format=st.sampled_from(["csv", "arrow", "svmlight", "libffm"]))
def test_damaged_streams(data, format):
    name = {"csv": "t.csv", "arrow": "t.arrows", "svmlight": "t.svm", "libffm": "t.ffm"}[format]
    stream = io.BytesIO(data.draw(mutated(VALID[name])))
    lines = format in ("svmlight", "libffm")
    options = {"n_features": 5, "zero_based": False} if lines else {"target": "y"}
    if not lines:
        options["levels"] = {"s": ["Oslo", "Rome"], "c": ["Oslo"]}
    with warnings.catch_warnings(), suppress(SourceError):
        warnings.simplefilter("ignore")
        list(open_source(stream, format=format, **options))
