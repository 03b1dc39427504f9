"""A model remembers how the file of its fit was read."""

import json

import numpy as np
import pandas as pd
import pytest

from quadlin import open_source
from quadlin.cli import main
from quadlin.export.model_file import load


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def command(*argv, code=0):
        status = main(list(argv))
        out, err = capsys.readouterr()
        assert status == code, err
        return out if code == 0 else err

    return command


def table(n=200):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"area": rng.integers(1000, 90_000, n), "age": rng.normal(40, 5, n)})
    rows["city"] = rng.choice(["Köln", "Rome"], n)
    rows["price"] = rows.area / 1000 + rows.age * (1 + (rows.city == "Rome")) + rng.normal(size=n)
    rows["w"] = rng.integers(1, 9, n)
    return rows.round(2)


def grouped(rows, thousands, decimal):
    """Return numbers as text with separators of thousands and a decimal sign."""
    signs = str.maketrans({",": thousands, ".": decimal})
    numbers = rows[["area", "age", "price"]]
    return rows.assign(**numbers.map(lambda v: f"{v:,}".translate(signs)))


FIT = ("--target", "price", "--rank", "0", "--pairs", "none", "-q", "-o", "m.st")


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ({"thousands": ",", "decimal": "."}, ["--thousands", ","]),
        ({"thousands": ".", "decimal": ","}, ["--thousands", "."]),
        ({"thousands": "", "decimal": ","}, ["--decimal", ","]),
        ({"sep": ":"}, ["--delimiter", ":"]),
    ],
)
def test_files_are_read_like_that_of_the_fit(run, written, options):
    rows, plain = table(), table()
    if "decimal" in written:
        rows, written = grouped(rows, **written), {"sep": ";"}
    rows.drop(columns="w").to_csv("t.csv", index=False, **written)
    run("fit", "t.csv", *options, *FIT)
    predictions = pd.read_csv(_predicted(run))["prediction"]
    expected = load("m.st").predict(plain[["area", "age", "city"]])
    np.testing.assert_allclose(predictions, expected, rtol=1e-9)
    assert json.loads(run("evaluate", "m.st", "t.csv", "--json"))["rows"] == 200
    assert "on the rows given" in run("inspect", "m.st", "t.csv")
    plain.to_parquet("t.parquet")  # which is not CSV
    assert json.loads(run("evaluate", "m.st", "t.parquet", "--json"))["rows"] == 200


def _predicted(run):
    run("predict", "m.st", "t.csv", "-q", "-o", "p.csv")
    return "p.csv"


def test_what_is_given_overrules_the_options_of_the_fit(run):
    grouped(table(), ",", ".").to_csv("t.csv", index=False)
    grouped(table(), ".", ",").to_csv("german.csv", index=False, sep=";")
    run("fit", "t.csv", "--thousands", ",", "--exclude", "w", *FIT)
    scores = json.loads(run("evaluate", "m.st", "t.csv", "--json"))
    assert json.loads(run("evaluate", "m.st", "german.csv", "--thousands", ".", "--json")) == scores
    told = run("evaluate", "m.st", "german.csv", code=1)
    assert 'The options of the fit were used: --decimal "." --thousands ",". Give others' in told


def test_an_encoding_is_not_guessed(run):
    table().drop(columns="w").to_csv("t.csv", index=False, encoding="latin1")
    run("fit", "t.csv", "--encoding", "latin1", *FIT)
    assert "--encoding latin1" in run("predict", "m.st", "t.csv", "-o", "-", code=1)
    table().to_csv("utf8.csv", index=False)
    expected = run("predict", "m.st", "t.csv", "--encoding", "latin1", "-o", "-")
    assert run("predict", "m.st", "utf8.csv", "-o", "-") == expected


def test_the_delimiter_of_the_fit_is_not_that_of_tab_separated_files(run):
    table().drop(columns="w").to_csv("t.csv", index=False, sep="|")
    table().drop(columns="w").to_csv("t.tsv", index=False, sep="\t")
    run("fit", "t.csv", "--delimiter", "|", *FIT)
    first = run("evaluate", "m.st", "t.csv", "--json")
    assert run("evaluate", "m.st", "t.tsv", "--json") == first


def test_a_file_without_a_header_is_read_so_by_the_commands_that_follow(run):
    table().drop(columns="w").to_csv("t.csv", index=False, header=False)
    run("fit", "t.csv", "--no-header", "--target", "x3", *FIT[2:])
    assert json.loads(run("evaluate", "m.st", "t.csv", "--json"))["rows"] == 200
    assert run("predict", "m.st", "t.csv", "-o", "-").count("\n") == 201
    table().rename(columns={"area": "x0", "age": "x1", "city": "x2"}).to_csv("n.csv", index=False)
    assert "--no-header. Give others" in run("predict", "m.st", "n.csv", "-o", "-", code=1)
    assert run("predict", "m.st", "n.csv", "--header", "-o", "-").count("\n") == 201


def test_evaluate_and_inspect_weigh_rows_as_the_fit_did(run):
    table().to_csv("t.csv", index=False)
    run("fit", "t.csv", "--weight", "w", *FIT)
    weighted = json.loads(run("evaluate", "m.st", "t.csv", "--json"))
    assert weighted["weight"] == "w"
    assert "200  weighted by w\n" in run("evaluate", "m.st", "t.csv")
    assert "(training), weighted" not in run("inspect", "m.st")
    assert "on the rows given, weighted by w" in run("inspect", "m.st", "t.csv")
    plain = json.loads(run("evaluate", "m.st", "t.csv", "--weight", "", "--json"))
    assert plain["weight"] is None
    rows = table()
    error = rows.price - load("m.st").predict(rows[["area", "age", "city"]])
    np.testing.assert_allclose(plain["rmse"], np.mean(error**2) ** 0.5, rtol=1e-6)
    expected = np.average(error**2, weights=rows.w) ** 0.5
    np.testing.assert_allclose(weighted["rmse"], expected, rtol=1e-6)
    rows.drop(columns="w").to_csv("bare.csv", index=False)
    told = run("evaluate", "m.st", "bare.csv", code=1)
    assert "no column 'w' for the weight" in told
    assert "--weight '' for no weights" in told
    assert run("predict", "m.st", "bare.csv", "-o", "-").count("\n") == 201  # needs no weights


def test_recommend_reads_numbers_like_the_fit(run):
    rng = np.random.default_rng(1)
    users = pd.DataFrame(
        {"user": [*"abcdef"], "income": [f"{v:,}" for v in range(9900, 11100, 200)]}
    )
    u, i = rng.integers(6, size=200), rng.integers(5, size=200)
    rows = users.iloc[u].assign(film=[f"f{j}" for j in i], rating=rng.normal(size=200).round(2))
    rows.to_csv("r.csv", index=False)
    users.to_csv("u.csv", index=False)
    pd.DataFrame({"film": [f"f{j}" for j in range(5)]}).to_csv("f.csv", index=False)
    run("fit", "r.csv", "--fm", "--thousands", ",", "--target", "rating", "-q", "-o", "m.st")
    assert run("recommend", "m.st", "u.csv", "f.csv", "-n", "5", "-o", "-").count("\n") == 31


def test_a_model_fitted_in_python_remembers_its_source(run):
    grouped(table(), ",", ".").to_csv("t.csv", index=False)
    from quadlin import SecondOrderRegressor, save

    source = open_source("t.csv", target="price", weight="w", thousands=",")
    model = SecondOrderRegressor(rank=0, pairs=None).fit(source)
    save(model, "m.st")
    assert load("m.st").fitted_.columns.csv == source.csv
    assert json.loads(run("evaluate", "m.st", "t.csv", "--json"))["weight"] == "w"


def test_predict_advises_codes_for_the_fit_only(run, monkeypatch):
    table().drop(columns=["w", "city"]).to_csv("t.csv", index=False)
    run("fit", "t.csv", *FIT)
    rows = table().drop(columns=["w", "city"]).astype(object)
    rows.loc[190, "age"] = "B7"
    rows.to_csv("late.csv", index=False)
    monkeypatch.setattr("quadlin.data.sources.csv_text.CSV_BLOCK", 1 << 10)
    told = run("predict", "m.st", "late.csv", "-q", "-o", "p.csv", code=1)
    assert "give --na B7 if it is missing, or fit with --categorical age if these are codes" in told
