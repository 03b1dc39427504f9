"""Files as people have them: stray cells, no header, other marks for missing, spaces, dates."""

import io
import os
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from quadlin import SecondOrderRegressor
from quadlin.cli.printing import message_text
from quadlin.data import SourceError, open_source
from quadlin.data.columns.encoder import TableEncoder


def written(where, text, name="t.csv"):
    (where / name).write_text(text)
    return where / name


def rows_of(source):
    chunks = list(source)
    X = [c.X.toarray() if source.sparse else c.X for c in chunks]
    return np.vstack(X), np.concatenate([c.y for c in chunks])


@pytest.mark.parametrize("cell", ["foo", "0x10", "1_000"])
def test_one_bad_cell_among_many_numbers_is_refused_by_name(tmp_path, cell):
    values = [f"{x:.5f}" for x in np.random.default_rng(0).normal(size=20_000)]
    values[12_345] = cell
    path = written(tmp_path, "a,y\n" + "".join(f"{v},1\n" for v in values))
    words = rf"Column 'a' would be text with \d+ levels, because '{cell}' .*row 12345 of .*t\.csv"
    with pytest.raises(SourceError, match=words):
        open_source(path, target="y")
    with pytest.raises(ValueError, match=rf"Column 'a' would be text.*'{cell}'.*row 12345 "):
        TableEncoder.learn(pl.DataFrame({"a": values}))


def test_a_bad_cell_among_few_numbers_is_warned_of_by_name(tmp_path):
    values = [str(v) for v in range(50)]
    values[17] = "foo"
    path = written(tmp_path, "a,y\n" + "".join(f"{v},1\n" for v in values * 3))
    with pytest.warns(UserWarning, match=r"'a' is treated as text.*'foo'.*row 17 of .*t\.csv"):
        open_source(path, target="y")


def test_a_column_of_identifiers_with_too_many_levels_is_refused_unless_they_are_named():
    names = [f"user{i}" for i in range(10_001)]
    frame = pl.DataFrame({"id": names, "y": np.arange(10_001.0)})
    words = r"'id' has 10001 levels in 10001 rows.*categorical_features=\['id'\]"
    with pytest.raises(SourceError, match=words):
        open_source(frame, target="y")
    assert open_source(frame, target="y", categorical_features=["id"]).width == 10_001
    assert open_source(frame, target="y", levels={"id": names}).width == 10_001


def test_csv_without_a_header_is_noticed_and_read(tmp_path):
    path = written(tmp_path, "39, Oslo, 2.5\n50, Rome, 1.5\n38, Oslo, 3.5\n27, Rome, 0.5\n")
    with pytest.raises(SourceError, match=r"first row of .*looks like data.*header=False.*True"):
        open_source(path)
    source = open_source(path, target="x2", header=False)
    assert source.names == ("x0", "x1=Oslo", "x1=Rome")
    X, y = rows_of(source)
    np.testing.assert_array_equal(X, [[39, 1, 0], [50, 0, 1], [38, 1, 0], [27, 0, 1]])
    np.testing.assert_array_equal(y, [2.5, 1.5, 3.5, 0.5])
    stream = open_source(
        io.BytesIO(path.read_bytes()), format="csv", target="x2", header=False, columns=["x0"]
    )
    np.testing.assert_array_equal(rows_of(stream)[0][:, 0], [39, 50, 38, 27])


@pytest.mark.parametrize("head", ["0,1,2", "2019,2020,2021", "city,2019,2020", "a,b,c"])
def test_names_that_are_numbers_for_a_reason_are_names(tmp_path, head):
    path = written(tmp_path, f"{head}\n7,8,9\n")
    assert open_source(path).names == tuple(head.split(","))


def test_a_first_row_of_numbers_can_be_declared_names(tmp_path):
    path = written(tmp_path, "1.5,7\n1,2\n3,4\n")
    assert open_source(path, header=True).names == ("1.5", "7")


def test_a_bad_cell_of_a_file_without_a_header_is_counted_from_its_first_row(tmp_path, monkeypatch):
    monkeypatch.setattr("quadlin.data.sources.csv_text.CSV_BLOCK", 20)
    path = written(tmp_path, "1,2\n" * 9 + "x,2\n")
    with pytest.raises(SourceError, match=r"Column 'x0'.*row 9 .*'x'"):
        list(open_source(path, target="x1", header=False))


@pytest.mark.parametrize("marker", ["?", "-", ".", "none", "NA", "null", "n/a", "#DIV/0!"])
@pytest.mark.parametrize("space", ["", " "])
def test_marks_of_missing_values_are_noticed(tmp_path, marker, space):
    path = written(tmp_path, f"a,{space}b,y\n1,{space}2.5,1\n3,{space}{marker},2\n5,{space}4,3\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = open_source(path, target="y", missing="mean")
    is_marker = marker in ("NA", "null", "n/a")
    assert is_marker or any(f"'{marker}' in column 'b'" in str(w.message) for w in caught)
    np.testing.assert_allclose(rows_of(source)[0], [[1, 2.5], [3, 3.25], [5, 4]], rtol=1e-14)


@pytest.mark.parametrize("space", [" ", "   ", "\t"])
@pytest.mark.parametrize("na", [None, ["?", "NA"]])
def test_missing_values_are_noticed_whatever_spaces_are_around_them(tmp_path, space, na):
    rows = ["a,b,s,y", "?,NA,x,1", "1.5,2,?,2", "3,4,NA,3", "5,6,x,4", ",8,x,5", "6,9,z,6"]
    lines = [f"{space},{space}".join(row.split(",")) for row in rows]
    path = written(tmp_path, "".join(f"{space}{line}{space}\n" for line in lines))
    for given in (path, io.BytesIO(path.read_bytes())):
        options = {"target": "y", "missing": "mean", "format": "csv", "na": na}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "File|Csv|The csv")
            if given is path:
                source = open_source(path, **options)
                assert source.names == ("a", "b", "s=missing", "s=x", "s=z")
            else:  # which is read once: its levels and means are given
                fill, levels = {"a": 3.875, "b": 5.8}, {"s": ["missing", "x", "z"]}
                source = open_source(given, fill=fill, levels=levels, **options)
        X = rows_of(source)[0]
        np.testing.assert_allclose(X[:, 0], [3.875, 1.5, 3, 5, 3.875, 6], rtol=1e-14)
        np.testing.assert_allclose(X[:, 1], [5.8, 2, 4, 6, 8, 9], rtol=1e-14)
        np.testing.assert_array_equal(X[:, 2], [0, 1, 1, 0, 0, 0])


def test_text_with_spaces_that_is_missing_in_a_later_block_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("quadlin.data.sources.csv_text.CSV_BLOCK", 20)
    path = written(tmp_path, "s,y\n" + "x,2\n" * 9 + "z,1\n" * 9 + "   NA  ,2\n")
    assert open_source(path, target="y", missing="drop").names == ("s=x", "s=z")


def test_a_question_mark_is_missing_in_text_too_and_a_dash_is_a_level(tmp_path):
    path = written(tmp_path, "s,t,y\nx,-,1\n?,q,2\nx,-,3\nz,q,4\nx,-,5\nz,q,6\n")
    with pytest.warns(UserWarning, match=r"'\?' in column 's'"):
        source = open_source(path, target="y", missing="drop")
    assert source.names == ("s=x", "s=z", "t=-", "t=q")
    assert len(rows_of(source)[1]) == 5


def test_marks_of_missing_values_can_be_given(tmp_path):
    path = written(tmp_path, "a,s,y\n1,x,1\n-9,?,2\n3,x,3\n4,?,4\n5,x,5\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = open_source(path, target="y", na=[])
        given = open_source(path, target="y", na=["-9"], missing="drop")
    assert plain.names == ("a", "s=?", "s=x")
    assert given.names == ("a", "s=?", "s=x")
    assert len(rows_of(given)[1]) == 4
    with pytest.raises(SourceError, match="must be a list of texts"):
        open_source(path, na=[1])


def test_a_mark_that_comes_late_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr("quadlin.data.sources.csv_text.CSV_BLOCK", 20)
    path = written(tmp_path, "a,y\n" + "1,2\n" * 9 + "?,2\n")
    with pytest.raises(SourceError, match=r"row 9 .*give na=\['\?'\] if it is missing"):
        list(open_source(path, target="y"))
    source = open_source(path, target="y", na=["?"], missing="drop")
    assert len(rows_of(source)[1]) == 9


@pytest.mark.parametrize("blank", ["", "\n\n"])
def test_spaces_around_cells_and_names_are_stripped(tmp_path, blank):
    path = written(tmp_path, blank + "a, city , y\n1, Oslo, 1\n2,Oslo , 2\n3, Rome, 3\n4,Rome,4\n")
    source = open_source(path, target="y")
    assert source.names == ("a", "city=Oslo", "city=Rome")
    np.testing.assert_array_equal(rows_of(source)[0], [[1, 1, 0], [2, 1, 0], [3, 0, 1], [4, 0, 1]])
    stream = open_source(io.BytesIO(path.read_bytes()), format="csv", target="y", columns=["a"])
    np.testing.assert_array_equal(rows_of(stream)[0][:, 0], [1, 2, 3, 4])


@pytest.mark.parametrize(
    "date", ["06/{}/2024", "{}.06.2024", "2024/06/{}", "{} Jun 2024", "June {}, 2024", "6/{}/24"]
)
def test_dates_as_text_are_refused(tmp_path, date):
    days = [date.format(day) for day in (15, 16, 17)] * 3
    path = written(tmp_path, "when;y\n" + "".join(f"{day};1\n" for day in days))
    with pytest.raises(SourceError, match=r"'when' holds dates as text, such as .*days since"):
        open_source(path, target="y")
    with pytest.raises(ValueError, match="'when' holds dates as text"):
        TableEncoder.learn(pl.DataFrame({"when": days}))


def test_dates_that_the_reader_recognises_are_refused(tmp_path):
    path = written(tmp_path, "when,y\n2024-06-15,1\n2024-06-16,2\n")
    with pytest.raises(
        SourceError, match=r"'when' holds dates or times \(Date\).*days since a start"
    ):
        open_source(path, target="y")


def test_an_error_about_dates_names_the_options_that_avoid_it(tmp_path):
    days = [f"2024-06-{day}" for day in (15, 16, 17)] * 4
    iso = written(tmp_path, "when,y\n" + "".join(f"{day},1\n" for day in days))
    frame = pd.DataFrame({"when": pd.to_datetime(days), "y": 1.0})
    for rows in (iso, frame, frame.astype({"when": str})):
        with pytest.raises(SourceError) as refused:
            open_source(rows, target="y")
        assert "or drop the column" in str(refused.value)
        assert "give categorical_features=['when']" in str(refused.value)
        told = message_text(refused.value)
        assert "give --exclude when." in told
        assert "give --categorical when." in told
    for labels in (None, "learn"):  # a target cannot be a category, nor be left out
        with pytest.raises(SourceError, match="target 'when' has dtype Date, but must be numbers"):
            open_source(iso, target="when", labels=labels)


@pytest.mark.parametrize("kind", ["csv", "date", "datetime", "nanoseconds", "polars", "arrow"])
def test_dates_that_are_declared_as_categories_are_the_same_levels_in_every_form(tmp_path, kind):
    days = [f"2024-06-{day}" for day in (15, 16, 17)] * 4
    y = np.arange(12.0)
    text = pd.DataFrame({"when": days, "a": y % 5, "y": y})
    stamps = text.assign(when=pd.to_datetime(text.when))
    rows = {
        "csv": lambda: written(tmp_path, text.to_csv(index=False)),
        "date": lambda: stamps.assign(when=stamps.when.dt.date),
        "datetime": lambda: stamps,
        "nanoseconds": lambda: stamps.astype({"when": "datetime64[ns]"}),
        "polars": lambda: pl.from_pandas(stamps).with_columns(pl.col("when").cast(pl.Date)),
        "arrow": lambda: pa.Table.from_pandas(stamps),
    }[kind]()
    declared = {"categorical_features": ["when"]}
    source = open_source(rows, target="y", **declared)
    assert list(source.encoder.levels[0]) == days[:3]
    again = open_source(rows, target="y", encoder=source.encoder)  # as rows to predict are opened
    np.testing.assert_array_equal(rows_of(again)[0], rows_of(source)[0])
    if kind == "csv":
        return
    X = rows.select(["when", "a"]) if kind == "arrow" else rows[["when", "a"]]
    model = SecondOrderRegressor(0, random_state=0, **declared).fit(X, y)
    letters = pd.DataFrame({"when": list("abc") * 4, "a": y % 5})
    oracle = SecondOrderRegressor(0, random_state=0).fit(letters, y)
    np.testing.assert_allclose(model.predict(X), oracle.predict(letters))
    with pytest.raises(ValueError, match=r"dates or times|neither only numbers nor only text"):
        SecondOrderRegressor(0).fit(X, y)


def test_codes_that_only_resemble_dates_are_levels():
    codes = ["10-12", "1.2.3", "12/5", "2024", "10.0.0.1", "1.2.13"] * 2
    assert TableEncoder.learn(pl.DataFrame({"code": codes})) is not None


@pytest.mark.parametrize("name", ["t.csv", "t.npy", "t.svm"])
def test_a_file_rewritten_with_the_same_size_and_time_is_noticed(tmp_path, name):
    path = tmp_path / name

    def write(value):
        if name == "t.npy":
            np.save(path, np.full((50_000, 2), float(value)))
        else:
            row = f"1 1:{value} 2:2\n" if name == "t.svm" else f"{value},2\n"
            path.write_text(("" if name == "t.svm" else "a,y\n") + row * 20_000)

    write(1)
    before = path.stat()
    source = open_source(path, target=None if name != "t.csv" else "y")
    list(source)
    # Renewed contents at the same place, since a new file would have an inode of its own.
    write(3)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(SourceError, match="has changed since it was opened"):
        list(source)
    with pytest.raises(SourceError, match="has changed since it was opened"):
        list(pickle.loads(pickle.dumps(source)))  # by the digest of some blocks alone


@pytest.mark.parametrize(("header", "row"), [("a,y\n", 1), ("", 1)])
@pytest.mark.parametrize("block", [16, 1 << 20])
def test_a_row_of_another_length_is_counted_as_all_rows_are(
    tmp_path, monkeypatch, header, row, block
):
    monkeypatch.setattr("quadlin.data.sources.csv_text.CSV_BLOCK", block)
    (tmp_path / "t.csv").write_text(header + "1.5,2\n1,2,3\n3,4\n")
    with pytest.raises(SourceError, match=rf"row {row} \(counted from 0\): Expected 2 columns"):
        list(open_source(tmp_path / "t.csv", header=bool(header)))


WRITTEN = {
    "currency": ["$1164.34", "-$3", "$1,200.50", "$.5"],
    "symbol behind": ["12 €", "3,50 €", "1.200 €", "7 €"],
    "code": ["USD 12", "USD 1,000", "EUR 5.5", "CHF 1'000"],
    "percent": ["12%", "3.5 %", "-1%", "0"],
    "accounting": ["(300)", "(1,200)", "45.5", "12"],
    "unit": [f"{i / 2} kg" for i in range(24)],
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_numbers_with_a_currency_a_percent_sign_or_a_unit_are_refused(kind, tmp_path):
    cells = WRITTEN[kind] * (24 // len(WRITTEN[kind]))
    frame = pd.DataFrame({"amount": cells, "y": np.arange(24.0)})
    with pytest.raises(ValueError, match=r"'amount' holds numbers with .*categorical_features="):
        SecondOrderRegressor().fit(frame[["amount"]], frame["y"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(SourceError, match="'amount' holds numbers with"):
        open_source(tmp_path / "t.csv", target="y", delimiter=",", decimal=".")
    with pytest.raises(SourceError, match="target 'amount' holds numbers with"):
        open_source(frame, target="amount", labels="learn")
    open_source(frame, target="y", categorical_features=["amount"])  # so they are categories


@pytest.mark.parametrize(
    "cells",
    [["A1", "B2", "C3"], ["1st", "2nd", "3rd"], ["500 ml", "750 ml"], ["4WD", "2WD"], ["%", "$"]],
)
def test_codes_that_only_resemble_amounts_are_levels(cells):
    frame = pd.DataFrame({"code": cells * 10, "y": np.arange(10.0 * len(cells))})
    assert open_source(frame, target="y").encoder.levels[0] is not None


def test_dates_with_missing_ones_among_them_are_refused_too(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("d,y\n" + "".join(f"{i % 3 + 1:02d}/06/2024,{i}\n,{i}\n" for i in range(20)))
    with pytest.raises(SourceError, match="'d' holds dates as text, such as '01/06/2024'"):
        open_source(path, target="y", missing="mean")


def test_a_word_in_a_row_that_is_left_out_is_named_where_it_makes_numbers_levels(tmp_path):
    rows = "".join(f"{i}.5,{i}\n" for i in range(40))
    path = written(tmp_path, f"a,y\n{rows}Total,\n")
    words = r"'a' is treated as text.*'Total' in row {} of .*t\.csv.*left out"
    with pytest.raises(SourceError, match=words.format(40)):  # a level in every row
        open_source(path, target="y", missing="drop")
    path = written(tmp_path, f"a,y\n{rows}{rows}Total,\n")
    with pytest.warns(UserWarning, match=words.format(80)):
        assert open_source(path, target="y", missing="drop").width == 40


@pytest.mark.parametrize(
    "cells", [["1.234", "12.500,25", "7"], ["1.5", "2.5", "3.25"], ["71.742", "52.237", "42.277"]]
)
@pytest.mark.parametrize("target", ["a", "y"])
def test_points_are_refused_where_the_comma_is_the_decimal_point(tmp_path, cells, target):
    rows = "".join(f"{cell};{i},5\n" for i, cell in enumerate(cells))
    path = written(tmp_path, "a;y\n" + rows)
    words = rf"column 'a' holds numbers with points, such as '{cells[0]}', but decimal=\",\" says"
    with pytest.raises(SourceError, match=words):
        open_source(path, target=target, decimal=",", labels="auto")
    source = open_source(path, target="y", decimal=",", categorical_features=["a"])
    assert source.width == 3


@pytest.mark.parametrize(
    ("form", "advice"), [("{:,}", "after removing the thousands separators"), ("{:.1f}", "")]
)
def test_numbers_that_are_text_in_a_frame_are_told_to_be_converted(form, advice):
    cells = [form.format(1000 + 7 * i) for i in range(50)]
    words = rf"50 levels, but these look like numbers, such as '{cells[0]}'.*to_numeric.*{advice}"
    for table in (pl.DataFrame({"a": cells}), pd.DataFrame({"a": cells})):
        with pytest.raises(ValueError, match=words):
            TableEncoder.learn(table)
        with pytest.warns(UserWarning, match=words):
            TableEncoder.learn(type(table)({"a": cells * 2}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TableEncoder.learn(table, declared=["a"])
        TableEncoder.learn(pd.DataFrame({"a": cells * 3}, dtype="category"))
        TableEncoder.learn(pd.DataFrame({"a": ["1", "2", "3"] * 20}))


def test_a_line_above_the_header_is_suspected_where_it_has_fewer_columns(tmp_path):
    path = written(tmp_path, "# exported 2024\na,b,y\n1,2,3\n4,5,6\n")
    with pytest.raises(SourceError, match=r"first line is a title or a comment, remove it"):
        open_source(path, target="y")


def test_text_without_a_header_is_noticed_if_each_first_cell_is_a_value_of_its_column(tmp_path):
    path = written(tmp_path, "Oslo,cold,q\nRome,hot,p\nOslo,hot,q\nRome,cold,p\n")
    with pytest.raises(SourceError, match=r"first row of .*looks like data.*header=False"):
        open_source(path, target="kind", labels="learn")
    named = written(tmp_path, "city,cold,kind\nRome,hot,p\nOslo,cold,q\n", "n.csv")
    assert open_source(named, target="kind", labels="learn").has_target


def test_a_long_minus_does_not_make_numbers_levels(tmp_path):
    cells = [f"\u2212{i}" if i % 2 else str(i) for i in range(30)] * 3
    path = written(tmp_path, "a,y\n" + "".join(f"{cell},1\n" for cell in cells))
    with pytest.raises(SourceError, match="a typographic minus sign, such as '\u22121'"):
        open_source(path, target="y")
    ranges = written(tmp_path, "a,y\n" + "1\u20135,1\n6\u20139,2\n" * 30)  # which are levels
    assert open_source(ranges, target="y").width == 2


def test_commas_and_points_that_contradict_each_other_are_told_so(tmp_path):
    path = written(tmp_path, "a;y\n113,2;1\n228.2;2\n3,5;3\n")
    words = r"with commas, such as '113,2', and also '228\.2': no decimal point fits all of them"
    with pytest.raises(SourceError, match=words):
        open_source(path, target="y")
    grouped = written(tmp_path, "a;y\n1,113.2;1\n228.2;2\n3,500;3\n")
    with pytest.raises(SourceError, match='Give thousands=","'):
        open_source(grouped, target="y")


def test_words_among_numbers_are_declared_missing_or_codes(tmp_path):
    cells = [str(i) for i in range(40)] * 3
    cells[17] = "closed"
    path = written(tmp_path, "a,y\n" + "".join(f"{cell},1\n" for cell in cells))
    with pytest.warns(UserWarning, match=r"correct such values, or give na=\['closed'\] if they"):
        open_source(path, target="y")
    assert open_source(path, target="y", na=["closed"], missing="drop").names == ("a",)
    amounts = "".join(f"{i}.5,1\n" for i in range(90))  # of which each would be a level
    path = written(tmp_path, f"a,y\n{amounts}{amounts[:200]}closed,1\n")
    with pytest.raises(
        SourceError, match=r"would be text with 91 levels, because 'closed'"
    ) as told:
        open_source(path, target="y")
    assert (told.value.column, told.value.remedy.value) == ("a", ["closed"])
    cells[17] = "unknown"  # that stands for nothing else
    path = written(tmp_path, "a,y\n" + "".join(f"{cell},1\n" for cell in cells))
    with pytest.warns(UserWarning, match="uses 'unknown' for missing values"):
        assert open_source(path, target="y", missing="drop").names == ("a",)


def test_a_word_after_the_first_block_is_told_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("quadlin.data.sources.csv_text.CSV_BLOCK", 1 << 10)
    rows = "".join(f"{i % 7},{i}\n" for i in range(2000))
    path = written(tmp_path, f"code,y\n{rows}B7,1\n")
    words = r"row 2000 .*'B7'\. Correct it, give na=\['B7'\] if.*categorical_features=\['code'\]"
    with pytest.raises(SourceError, match=words):
        [*open_source(path, target="y")]
    assert open_source(path, target="y", categorical_features=["code"]).width == 8


def test_separators_that_end_rows_but_not_the_header_are_named(tmp_path):
    path = written(tmp_path, "a,y\n1,2,\n3,4,\n")
    with pytest.raises(
        SourceError, match="If each row ends with a separator, end the header with one"
    ):
        open_source(path, target="y")


def test_columns_without_names_are_left_out_however_many_there_are(tmp_path):
    path = written(tmp_path, "a,y,,,\n1,2,,,\n3,4,,,\n")  # as Excel writes them
    with pytest.warns(UserWarning, match="3 columns have no name, as if separators were repeated"):
        source = open_source(path, target="y")
    assert source.names == ("a",)
    with pytest.warns(UserWarning, match="3 columns have no name"):
        stream = open_source(io.BytesIO(path.read_bytes()), format="csv", target="y")
    for rows in (source, stream):
        np.testing.assert_array_equal(rows_of(rows)[0], [[1], [3]])
    path = written(tmp_path, "a  b   y\n1  5   2\n3  6   4\n")
    with pytest.warns(UserWarning, match="3 columns have no name"):
        source = open_source(path, target="y", delimiter=" ")
    np.testing.assert_array_equal(rows_of(source)[0], [[1, 5], [3, 6]])


def test_a_line_break_within_a_name_becomes_a_space(tmp_path):
    path = written(tmp_path, '"area\r\n(m2)",y\n1,2\n3,4\n')
    assert open_source(path, target="y", columns=["area (m2)"]).names == ("area (m2)",)


def test_a_table_of_the_target_alone_is_told_what_it_lacks(tmp_path):
    path = written(tmp_path, "y\n1\n2\n")
    with pytest.raises(SourceError, match="Give a table with at least one more column"):
        open_source(path, target="y")
