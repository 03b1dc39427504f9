"""Thousands separators in CSV: declared, noticed, refused."""

import io

import numpy as np
import pytest

from quadlin import SecondOrderRegressor
from quadlin.data import SourceError, open_source
from quadlin.data.sources import csv_text
from quadlin.data.sources.csv_text import Dialect
from quadlin.data.sources.odd_numbers import odd_numbers

NUMBERS = [71742.0, 812.0, 52237.25, -1234567.5]
FORMS = {
    ",": ['"71,742"', "812", '"52,237.25"', '"-1,234,567.5"'],
    ".": ["71.742", "812", "52.237,25", "-1.234.567,5"],
    " ": ["71 742", "812", "52\u00a0237,25", "-1\u202f234 567,5"],
    "'": ["71'742", "812", "52'237.25", "-1'234'567.5"],
}


def written(tmp_path, thousands, rows=1):
    delimiter, cells = "," if thousands == "," else ";", FORMS[thousands]
    lines = [f"{cell}{delimiter}{i}\n" for i, cell in enumerate(cells)]
    path = tmp_path / "t.csv"
    path.write_text(f"a{delimiter}y\n" + "".join(lines) * rows)
    return path


@pytest.mark.parametrize("thousands", FORMS)
def test_declared_separators_of_thousands_are_read(tmp_path, thousands):
    decimal = "," if thousands == " " else None  # of a point and a comma, each tells the other
    path = written(tmp_path, thousands)
    signs = {"thousands": thousands, "decimal": decimal, "target": "y"}
    for rows in (path, io.BytesIO(path.read_bytes())):
        source = open_source(rows, format="csv", **signs)
        [chunk] = list(source)
        np.testing.assert_array_equal(np.asarray(chunk.X).ravel(), NUMBERS)
        np.testing.assert_array_equal(chunk.y, np.arange(4.0))


@pytest.mark.parametrize("thousands", FORMS)
def test_what_was_not_declared_is_refused_with_the_option(tmp_path, thousands):
    path = written(tmp_path, thousands)
    with pytest.raises(SourceError, match=rf'column .a. holds numbers.*thousands="{thousands}"'):
        open_source(path, target="y")
    with pytest.raises(SourceError, match="does not separate groups"):
        open_source(io.BytesIO(b"a;y\n1,23;1\n4,567;2\n"), format="csv", target="y", thousands=",")


def test_separators_may_come_after_the_first_block(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_text, "CSV_BLOCK", 64)
    path = tmp_path / "t.csv"
    lines = [f"{i};{i}\n" for i in range(40)]
    path.write_text("a;y\n" + "".join(lines) + "1.234;1\n")
    chunks = list(open_source(path, target="y", thousands="."))
    assert float(chunks[-1].X[-1, 0]) == 1234
    path.write_text("a;y\n" + "".join(lines) + "1.23;1\n")
    with pytest.raises(SourceError, match=r"in row 40 \(counted from 0\) it holds '1\.23'"):
        list(open_source(path, target="y", thousands="."))


def test_missing_values_and_codes_beside_separators(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;code;y\n1.234;10.500;1\nNA;10.501;2\n5.678;10.500;3\n-;10.501;4\n")
    with pytest.warns(UserWarning, match="uses '-' for missing values"):
        source = open_source(
            path, target="y", thousands=".", missing="mean", categorical_features=["code"]
        )
    [chunk] = list(source)
    assert source.names == ("a", "code=10.500", "code=10.501")
    np.testing.assert_allclose(chunk.X.toarray()[:, 0], [1234, 3456, 5678, 3456])


@pytest.mark.parametrize(
    ("cells", "dialect", "points", "remedy"),
    [
        (["53,50", "1,234"], Dialect(), False, "decimal ,"),
        (["71,742", "98,475"], Dialect(), True, "thousands ,"),
        (["71,742", "98,475"], Dialect(), False, None),  # three decimals, or thousands
        (["1,234,567", "98,475"], Dialect(), False, "thousands ,"),
        (["1.234,5", "7"], Dialect(), False, "thousands ."),
        (["1.234.567", "2.345.678"], Dialect(), False, "thousands ."),
        (["71.742", "98.475"], Dialect(decimal=","), False, "thousands ."),
        (["1.5", "98.475"], Dialect(decimal=","), False, None),
        (["1 234,5", "5 678"], Dialect(), False, "thousands  "),
        (["1 234,5", "5 678"], Dialect(thousands=" "), False, "decimal ,"),
    ],
)  # fmt: skip
def test_the_option_that_is_beyond_doubt_is_the_remedy(cells, dialect, points, remedy):
    message = odd_numbers("a", cells, dialect, points)
    option = message.values.get("remedy")
    assert remedy == (None if option is None else f"{option.name} {option.value}")


@pytest.mark.parametrize(
    "cells", [["15.06.2024", "16.06.2024"], ["10 a", "1 234"], ["12 34 56", "1"], ["1", "2.5"]]
)
def test_what_is_no_number_is_not_refused(cells):
    assert odd_numbers("a", cells, Dialect(), False) is None


def test_signs_that_cannot_be_told_apart_are_refused(tmp_path):
    path = written(tmp_path, ",")
    with pytest.raises(SourceError, match="cannot be the same"):
        open_source(path, target="y", thousands=",", decimal=",")
    with pytest.raises(SourceError, match="must be a comma, a point, a space"):
        open_source(path, target="y", thousands="x")
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    with pytest.raises(SourceError, match=r"`thousands`.*for CSV only"):
        open_source(tmp_path / "x.npy", target=np.ones(3), thousands=",")


def test_a_fit_of_grouped_digits_is_that_of_numbers(tmp_path):
    rng = np.random.default_rng(0)
    a = rng.integers(1000, 10**6, 200)
    y = a / 1e5 + rng.normal(size=200)
    grouped, plain = tmp_path / "g.csv", tmp_path / "p.csv"
    pairs = list(zip(a.tolist(), y.tolist(), strict=True))
    grouped.write_text("a;y\n" + "".join(f"{x:_};{t:.6f}\n" for x, t in pairs).replace("_", "'"))
    plain.write_text("a;y\n" + "".join(f"{x};{t:.6f}\n" for x, t in pairs))
    models = [
        SecondOrderRegressor(1, alpha=0).fit(open_source(path, target="y", thousands=sign))
        for path, sign in ((grouped, "'"), (plain, None))
    ]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
