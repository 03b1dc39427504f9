"""What is missing, broken or absurd is named: file, column, row, and what to do."""

import datetime
import decimal
import gzip
import io
import os

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from quadlin.cli.printing import message_text
from quadlin.data import SourceError, open_source
from quadlin.data.columns.encoder import TableEncoder

pytestmark = pytest.mark.filterwarnings("ignore:.*looks like an identifier")


def walked(*given, **options):
    return list(open_source(*given, **options))


def two_files(where, second, first=None):
    """Write two Parquet files with 6 rows in the first."""
    first = first or {"a": np.arange(6.0), "s": list("xyxyxy"), "y": np.arange(6.0)}
    pq.write_table(pa.table(first), where / "a.parquet", row_group_size=4)
    pq.write_table(pa.table(second), where / "b.parquet", row_group_size=2)
    return where


HOLES = {"a": [1.0, 2, None, 4], "s": ["x", "y", "x", None], "y": [1.0, 2, 3, 4]}


def test_a_missing_number_is_named_with_its_row_and_file(tmp_path):
    folder = two_files(tmp_path, {**HOLES, "s": list("xyxy")})
    with pytest.raises(SourceError, match=r"'a' contains NaN.*row 8, row 2 of .*b\.parquet"):
        walked(folder, target="y", columns=["a"])
    with pytest.raises(SourceError, match=r"'a' contains NaN.*row 8, row 2 of .*b\.parquet"):
        walked(folder, target="y")
    parts = open_source(folder, target="y").parts(9)
    assert len(parts) == 4
    with pytest.raises(SourceError, match=r"row 8, row 2 of .*b\.parquet"):
        list(parts[3])


def test_a_missing_text_is_named_with_its_row_and_file(tmp_path):
    folder = two_files(tmp_path, {**HOLES, "a": np.ones(4)})
    with pytest.raises(SourceError, match=r"'s' contains NaN.*row 9, row 3 of .*b\.parquet"):
        walked(folder, target="y")


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
@pytest.mark.parametrize("chunk_rows", [1, 3, 10])
def test_rows_with_holes_are_dropped_and_counted(make, chunk_rows):
    columns = {
        "a": [1.0, None, 3, 4, 5],
        "s": ["x", "only", "y", None, "x"],
        "y": [1.0, 2, 3, 4, 5],
    }
    source = open_source(make(columns), target="y", missing="drop", chunk_rows=chunk_rows)
    assert source.names == ("a", "s=x", "s=y")  # a level of dropped rows is no level
    chunks = list(source)
    assert source.dropped == 2
    assert source.rows == 3
    X = np.concatenate([chunk.X.toarray() for chunk in chunks])
    assert X.tolist() == [[1, 1, 0], [3, 0, 1], [5, 1, 0]]
    assert np.concatenate([chunk.y for chunk in chunks]).tolist() == [1, 3, 5]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_holes_are_filled_with_the_mean_and_a_level(make):
    columns = {"a": [1.0, None, 3, 5], "s": ["x", "y", None, "x"], "y": [1.0, 2, 3, 4]}
    source = open_source(make(columns), target="y", missing="mean", chunk_rows=3)
    assert source.names == ("a", "s=missing", "s=x", "s=y")
    fill = source.fill["a"]
    assert source.fill == {"a": pytest.approx(3.0, rel=1e-15)}
    assert fill != 3.0  # a value of the column, which is not missing
    X = np.concatenate([chunk.X.toarray() for chunk in source])
    assert X.tolist() == [[1, 0, 1, 0], [fill, 0, 0, 1], [3, 1, 0, 0], [5, 0, 1, 0]]
    new = open_source(
        make({"a": [None, 2.0], "s": ["x", None]}),
        missing="mean",
        encoder=source.encoder,
        fill=source.fill,
    )
    assert next(iter(new)).X.toarray().tolist() == [[fill, 0, 1, 0], [2, 1, 0, 0]]


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_holes_in_arrays(form):
    X = np.array([[1.0, 0], [np.nan, 2], [3, 0], [2, np.nan]])
    y = np.arange(4.0)
    with pytest.raises(SourceError, match=r"'x0' contains NaN.*row 1 "):
        walked(form(X), target=y, chunk_rows=1)
    with pytest.raises(SourceError, match=r"'x0' contains NaN.*row 1 "):
        list(open_source(form(X), target=y).parts(4)[1])
    dropped = open_source(form(X), target=y, missing="drop")
    (chunk,) = list(dropped)
    assert chunk.y.tolist() == [0, 2]
    assert dropped.dropped == 2
    filled = open_source(form(X), missing="mean", chunk_rows=3)
    chunks = [chunk.X if form is np.asarray else chunk.X.toarray() for chunk in filled]
    np.testing.assert_allclose(np.concatenate(chunks), [[1, 0], [2, 2], [3, 0], [2, 2 / 3]])
    assert np.isnan(X).sum() == 2  # the user's rows stay as they are


@pytest.mark.parametrize("missing", ["error", "drop", "mean"])
def test_infinity_is_always_refused(missing, tmp_path):
    second = {"a": [1.0, None, np.inf, 4], "s": list("xyxy"), "y": np.arange(4.0)}
    folder = two_files(tmp_path, second)
    if missing == "error":
        second["a"][1] = 2.0
        folder = two_files(tmp_path, second)
    with pytest.raises(SourceError, match=r"'a' .*infini.*row 8, row 2 of .*b\.parquet"):
        walked(folder, target="y", missing=missing)
    X = np.array([[1e300, 1.0], [1, 1]], dtype=object)
    assert walked(X.astype(float))
    with pytest.raises(SourceError, match="The target is infinite"):
        walked(np.ones((2, 1)), target=[1, -np.inf])


def test_a_missing_target_is_refused_or_dropped():
    frame = pl.DataFrame({"a": [1.0, 2, None], "y": [1.0, None, 3], "w": [1.0, 1, 1]})
    with pytest.raises(SourceError, match="target 'y' is missing in row 1"):
        walked(frame, target="y")
    (chunk,) = walked(frame, target="y", missing="drop")
    assert chunk.y.tolist() == [1]
    source = open_source(frame, target="y", missing="mean", columns=["a"])
    (chunk,) = source
    assert chunk.y.tolist() == [1, 3]
    assert chunk.X.tolist() == [[1], [1]]  # the mean of the rows that are kept
    assert source.dropped == 1
    frame = frame.with_columns(y=pl.lit(1.0), w=pl.Series([1.0, None, 1]))
    with pytest.raises(SourceError, match="weight 'w' is missing in row 1"):
        walked(frame, target="y", weight="w", missing="mean")


@pytest.mark.parametrize("missing", ["error", "drop", "mean"])
def test_an_empty_column_is_named_whatever_is_done_about_missing_values(tmp_path, missing):
    (tmp_path / "t.csv").write_text("a,b,y\n1,,2\n3,,4\n5,,6\n")
    with pytest.raises(SourceError, match=r"'b' (is empty|has no values)") as told:
        walked(tmp_path / "t.csv", target="y", missing=missing)
    assert "--exclude b" in message_text(told.value)


def test_weights_are_not_negative():
    with pytest.raises(SourceError, match=r"weight is -1 in row 1 .*≥ 0"):
        walked(np.ones((2, 1)), target=np.ones(2), weight=[1, -1])


def test_what_is_neither_number_nor_text_is_refused(tmp_path):
    day = datetime.date(2020, 1, 1)
    values = {
        "date": [day],
        "moment": [datetime.datetime(2020, 1, 1)],
        "list": [[1, 2]],
        "struct": [{"a": 1}],
        "bytes": [b"x"],
    }
    for name, column in values.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({name: column, "a": [1.0], "y": [1.0]}), path)
        with pytest.raises(
            SourceError, match=f"{name}.parquet.*Column '{name}' (has dtype|holds dates)"
        ):
            open_source(path, target="y")
        assert walked(path, target="y", columns=["a"])
        with pytest.raises(SourceError, match=f"target '{name}' has dtype.*must be numbers"):
            open_source(path, target=name)


def test_decimals_booleans_and_whole_numbers_are_numbers(tmp_path):
    columns = {
        "d": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(5, 2)),
        "b": pa.array([None, True]),
        "i": pa.array([None, 2**40], pa.int64()),
        "u": pa.array([255, 0], pa.uint8()),
        "h": pa.array(np.array([0.5, 1], np.float16)),
        "o": pa.nulls(2),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    source = open_source(tmp_path / "t.parquet", columns=list("dbiuh"), missing="mean")
    assert next(iter(source)).X.tolist() == [[1.25, 1, 2**40, 255, 0.5], [1.25, 1, 2**40, 0, 1]]
    with pytest.raises(SourceError, match="'o' has no values"):
        open_source(tmp_path / "t.parquet", missing="mean")


def test_a_target_of_text_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,good\n2,bad\n")
    with pytest.raises(SourceError, match="target 'y' has dtype String"):
        open_source(tmp_path / "t.csv", target="y")


BROKEN = {
    "empty.parquet": (b"", "empty"),
    "junk.parquet": (b"hello, this is not Parquet at all", "Parquet"),
    "empty.csv": (b"", "empty"),
    "header.csv": (b"a,y\n", "no rows"),
    "ragged.csv": (b"a,y\n1,2\n1,2,3\n", "Expected 2 columns, got 3"),
    "twice.csv": (b"a,a,y\n1,2,3\n", "two columns named 'a'"),
    "utf8.csv": (b"a,y\n\xff\xfe,2\n", r"'a' of .*not UTF-8 in row 0 .*encoding=\"latin1\".*iconv"),
    "late8.csv": (b"a,y\n" + b"x,2\n" * 9 + b"\xe9,2\n", r"'a' of .*not UTF-8 in row 9"),
    "header8.csv": (b"\xe9,y\n1,2\n", 'header of .*not UTF-8.*encoding="latin1"'),
    "utf16.csv": ("a,y\n1,2\n".encode("utf-16"), 'encoding="utf-16"'),
    "packed.csv": (gzip.compress(b"a,y\n1,2\n"), "compressed with gzip"),
    "excel.csv": (b"PK\x03\x04", "Excel"),
    "comma.csv": (b"a;y\n1,5;2\n-,5;3\n", r"'a' holds numbers with commas, such as '1,5'.*decimal"),
    "target.csv": (b"a;y\n1;1,5\n", r"'y' holds numbers with commas"),
    "both.csv": (b"a,b;y\n1,2;3\n", "If ';' separates them, give delimiter=\";\""),
    "case.csv": (b"a, Y\n1,2\n", "Did you mean 'Y'"),
    "bare.csv": (b"1,2\n3,4\n", "looks like data, not like the names of columns: '1', '2'"),
    "unfinished.csv": (b"a,y", "holds no rows"),
    "lines.csv": (b"\n\n", "is empty"),
    "table.xlsx": (b"PK", "Save its table as CSV"),
    "tilde.csv": (b"a~y\n1~2\n", "give their separator with `delimiter`"),
    "only.csv": (b"y\n1\n", "no columns left"),
    "gone.csv": (b"a,b\n1,2\n", "no column 'y'"),
    "late.csv": (
        b"a,y\n" + b"1,2\n" * 5 + b"x,2\n",
        "Column 'a'.*row 5 .*'x'.*categorical_features=",
    ),
    "junk.arrow": (b"ARROW1\0\0nothing", "Arrow"),
    "empty.svm": (b"", "empty"),
    "blank.svm": (b"\n\n", "no rows"),
    "word.svm": (b"1 1:2\n2 1:x\n", "Row 1 .*word.svm.*'2 1:x'"),
    "huge.svm": (b"1 1:2\n1 1000000000000:1\n", "Row 1 .*huge.svm"),
    "large.svm": (b"1 1:2\n1 2000000000:1\n", "2,000,000,000 features.*`n_features`"),
    "order.svm": (b"1 3:2 1:1\n", "sorted"),
    "pair.ffm": (b"1 1:2:1\n1 1:2\n", "Row 1 .*pair.ffm"),
    "huge.ffm": (b"1 1:1000000000000:1\n", "`n_features`"),
    "big.ffm": (b"1 1:100000000000000000000:1\n", "too large"),
    "nothing.npy": (b"", "nothing.npy"),
    "junk.npy": (b"\x93NUMPY junk", "junk.npy"),
    "what.xyz": (b"1", "does not show its format"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named(name, tmp_path, monkeypatch):
    monkeypatch.setattr("quadlin.data.sources.csv_text.CSV_BLOCK", 20)
    content, words = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    target = None if name.endswith(("svm", "ffm", "npy")) else "y"
    with pytest.raises(SourceError, match=words) as caught:
        walked(tmp_path / name, target=target)
    assert name in str(caught.value)


def test_pickles_are_not_loaded(tmp_path):
    np.save(tmp_path / "o.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "o.npz", X=np.array([[{}]], dtype=object), allow_pickle=True)
    for name in ("o.npy", "o.npz"):
        with pytest.raises(SourceError, match=f"{name}.*(pickle|Python objects)"):
            open_source(tmp_path / name)


def test_truncated_parquet_is_refused(tmp_path):
    two_files(tmp_path, HOLES)
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match=r"a\.parquet.*complete Parquet"):
        open_source(tmp_path, target="y")


def test_files_of_another_table_are_refused(tmp_path):
    folder = two_files(tmp_path, {"a": [1.0], "y": [1.0], "z": [1.0]})
    with pytest.raises(
        SourceError, match=r"b\.parquet does not have the columns of .*lacks 's' and has 'z'"
    ):
        open_source(folder, target="y")
    folder = two_files(tmp_path, {"a": ["1"], "s": ["x"], "y": [1.0]})
    with pytest.raises(
        SourceError, match=r"'a' holds double in .*a\.parquet, but string in .*b\.pa"
    ):
        open_source(folder, target="y")


def test_widths_of_numbers_and_order_of_columns_may_differ(tmp_path):
    folder = two_files(
        tmp_path,
        {"y": [1], "a": np.array([7], np.int8)},
        {"a": np.arange(3, dtype=np.float32), "y": [1.0, 2, 3]},
    )
    source = open_source(folder, target="y", chunk_rows=10)
    (chunk,) = list(source)
    assert source.dtype == np.float32
    assert chunk.X.tolist() == [[0], [1], [2], [7]]


def test_files_that_change_or_vanish_are_noticed(tmp_path):
    folder = two_files(tmp_path, {**HOLES, "a": np.ones(4), "s": list("xyxy")})
    source = open_source(folder, target="y")
    list(source)
    os.utime(tmp_path / "b.parquet", ns=(1, 1))
    with pytest.raises(SourceError, match=r"b\.parquet has changed since"):
        list(source)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(SourceError, match=r"a\.parquet does not exist"):
        list(source)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permissions(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,y\n1,2\n")
    path.chmod(0)
    with pytest.raises(SourceError, match="permissions"):
        open_source(path, target="y")


def test_folders_without_rows(tmp_path):
    with pytest.raises(SourceError, match="holds no files"):
        open_source(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(SourceError, match="holds no files"):
        open_source(tmp_path)
    (tmp_path / "t.csv").write_text("a\n1\n")
    assert walked(tmp_path)
    (tmp_path / "t.tsv").write_text("a\n1\n")
    with pytest.raises(SourceError, match="mixes formats"):
        open_source(tmp_path)
    with pytest.raises(SourceError, match="No file matches"):
        open_source(tmp_path / "*.parquet")
    (tmp_path / "year=2020").mkdir()
    (tmp_path / "year=2020" / "t.csv").write_text("a\n1\n")
    with pytest.raises(SourceError, match="partitioning"):
        open_source(tmp_path)


def test_zero_rows():
    for given in (
        np.empty((0, 3)),
        np.empty((3, 0)),
        pl.DataFrame({"a": []}),
        iter([]),
        lambda: iter([]),
        [],
    ):
        with pytest.raises(SourceError, match=r"no rows|no features|yields nothing"):
            walked(given)
    with pytest.raises(SourceError, match="all 2 rows have missing values"):
        walked(np.full((2, 1), np.nan), missing="drop")


def test_shapes_and_types_that_make_no_sense():
    X, y = np.ones((3, 2)), np.ones(3)
    for given, options, words in [
        (np.ones(3), {}, "rows × features"),
        (X, {"target": np.ones(4)}, "The target has shape"),
        (X, {"target": list("abc")}, "must be numbers"),
        (X, {"columns": ["a"]}, "named columns"),
        (X, {"keep": ["a"]}, "named columns"),
        (pl.DataFrame({"a": [1.0]}), {"keep": ["b"]}, "no column 'b' to keep"),
        (pl.DataFrame({"a": [1.0], "b": [1.0]}), {"keep": ["b", "b"]}, "`keep` names 'b' twice"),
        (X.astype(complex), {}, "complex"),
        (X.astype(str), {}, "numbers are needed"),
        (X, {"missing": "guess"}, "'error', 'drop', 'mean'"),
        (X, {"chunk_rows": 0}, "whole number"),
        (5, {}, "cannot be read from a int"),
        ("nowhere.parquet", {}, "does not exist"),
        ("s3://bucket/t.parquet", {}, "not a file on this machine"),
        (io.BytesIO(b""), {}, "`format`"),
        (io.BytesIO(b""), {"format": "parquet"}, "needs a file with a path"),
        (io.BytesIO(b""), {"format": "csv"}, "Empty|empty"),
        (io.StringIO("a\n1\n"), {"format": "csv"}, "in binary mode"),
        (
            io.BytesIO("a,y\né,1\n".encode("latin1")),
            {"format": "csv", "levels": {"a": ["é"]}},
            "'a' of the csv stream is not UTF-8 in row 0",
        ),
        (io.BytesIO(b"a;y\n1,5;1\n"), {"format": "csv"}, "'a' holds numbers with commas"),
        (io.BytesIO(b"a,y\n1,2,3\n"), {"format": "csv"}, "Expected 2 columns.*`delimiter`"),
        (X, {"delimiter": ";"}, "is not CSV"),
        (io.BytesIO(b""), {"format": "arrow", "encoding": "latin1"}, "is not CSV"),
        ("t.csv", {"delimiter": ";;"}, "one character"),
        ("t.csv", {"delimiter": "\n"}, "one character"),
        ("t.csv", {"decimal": "x"}, r'must be "\." or ","'),
        ("t.csv", {"encoding": "klingon"}, '"klingon" is unknown'),
        ("t.csv", {"encoding": "hex"}, '"hex" is unknown'),
        (io.BytesIO(b""), {"format": "svmlight"}, "`n_features`"),
        (iter([(X, y), (X[:, :1], y)]), {}, "row 3.*shape"),
        (iter([(X, y), (X,)]), {}, "have no target"),
        (iter([(X, y[:2])]), {}, "target|y has 2"),
        (iter([(X, y, y, y)]), {}, "4 items"),
        (pl.DataFrame({"a": [1.0]}), {"target": "b"}, "no column 'b'"),
        (pl.DataFrame({"a": [1.0]}), {"target": "a"}, "no columns left"),
        (
            pl.DataFrame({"a": [1.0], "b": [2.0]}),
            {"target": "a", "columns": ["a"]},
            "both a feature and the target",
        ),
        (
            pl.DataFrame({"a": [1.0], "b": [2.0]}),
            {"target": "a", "weight": "a"},
            "'a' cannot be both the target and the weight",
        ),
        (
            pl.DataFrame({"a": [1.0], "b": [2.0]}),
            {"target": "a", "weight": "b", "columns": ["b"]},
            "'b' cannot be both a feature and the weight. Leave it out of `columns`",
        ),
        (pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), {}, "'a'|unique"),
        (dd.from_pandas(pd.DataFrame({"a": [1.0]})), {"target": y}, "partitions"),
    ]:
        with pytest.raises(SourceError, match=words):
            walked(given, **options)


def test_an_encoder_refuses_columns_of_another_kind():
    encoder = TableEncoder.learn(pl.DataFrame({"s": ["x", "y"] * 2, "a": [1.0, 2, 3, 4]}))
    with pytest.raises(SourceError, match="'s' holds numbers, but it held text"):
        open_source(pl.DataFrame({"s": [1, 2], "a": [1.0, 2]}), encoder=encoder)
    with pytest.raises(SourceError, match="no column 'a'"):
        open_source(pl.DataFrame({"s": ["x"]}), encoder=encoder)
