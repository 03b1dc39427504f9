"""Factorization machines on the command line: fitted from files, asked for the best items."""

import io
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    load,
    open_source,
)
from quadlin.cli.app import run
from quadlin.cli.outputs import _cells

USERS, FILMS = 20, 15


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ratings, users and films as files; users are called 007, 008, …"""
    folder = tmp_path_factory.mktemp("films")
    rng = np.random.default_rng(0)
    users = pd.DataFrame({"user": [f"{7 + i:03}" for i in range(USERS)]})
    films = pd.DataFrame({"film": np.arange(FILMS), "title": [f"No. {i}" for i in range(FILMS)]})
    films["genres"] = rng.choice(["war", "war|fun", "fun", ""], FILMS)
    u, i = rng.integers(USERS, size=500), rng.integers(FILMS, size=500)
    rating = rng.normal(size=USERS)[u] * rng.normal(size=FILMS)[i] + 0.2 * rng.normal(size=500)
    rows = users.iloc[u].reset_index(drop=True)
    rows = rows.join(films.drop(columns="title").iloc[i].reset_index(drop=True))
    rows.assign(rating=rating.round(3)).to_csv(folder / "ratings.csv", index=False)
    users.to_csv(folder / "users.csv", index=False)
    films.to_csv(folder / "films.csv", index=False)
    options = ["--fm", "--categorical", "user,film", "--multi-hot", "genres", "-q"]
    target = ["--target", "rating", "-o", str(folder / "m.safetensors")]
    assert run(["fit", str(folder / "ratings.csv"), *target, *options]) == 0
    return folder


def test_dates_beside_the_columns_of_the_model_are_only_copied(folder, tmp_path):
    for name in ("ratings", "films"):
        table = pd.read_csv(folder / f"{name}.csv", dtype=str)
        day = pd.Timestamp("2024-06-15") + pd.to_timedelta(np.arange(len(table)) % 28, "D")
        table.assign(**{f"day of {name}": day}).to_parquet(tmp_path / f"{name}.parquet")
    line = ["recommend", str(folder / "m.safetensors"), str(folder / "users.csv")]
    line += [str(tmp_path / "films.parquet"), "-n", "2", "-q"]
    line += ["-o", str(tmp_path / "top.csv")]
    assert run(line) == 0
    assert str(pd.read_csv(tmp_path / "top.csv")["day of films"][0]).startswith("2024-0")
    rated = pd.read_parquet(tmp_path / "ratings.parquet").astype({"film": str})
    model, users = load(folder / "m.safetensors"), pd.read_csv(folder / "users.csv", dtype=str)
    films = pd.read_parquet(tmp_path / "films.parquet")
    pairs = rated[["user", "film"]].assign(**{"day of films": pd.Timestamp("2030-01-01")})
    best = model.recommend(users, films, 2, exclude=pairs)  # the ids count, whatever the day
    rated = set(zip(rated.user, rated.film, strict=True))
    assert not rated & set(zip(best.user, best.film, strict=True))
    assert set(best.film) <= set(films.film)


def test_a_file_of_ratings_is_fitted_as_the_frame_is(folder):
    model = load(folder / "m.safetensors")
    rows = pd.read_csv(folder / "ratings.csv", dtype={"user": str, "film": str})
    X, y = rows.drop(columns="rating"), rows.rating
    oracle = FactorizationMachineRegressor(random_state=0, multi_hot=["genres"]).fit(X, y)
    assert oracle.rank_ < 8  # of the posterior; least squares chooses by evidence
    np.testing.assert_allclose(model.predict(X), oracle.predict(X), atol=1e-6)
    source = open_source(
        folder / "ratings.csv",
        target="rating",
        categorical_features=["user", "film"],
        multi_hot=["genres"],
    )
    drawn = FactorizationMachineRegressor(draws=2, random_state=0).fit(source)
    assert drawn.noise_ > 0
    labels = FactorizationMachineClassifier(draws=2, random_state=0)
    likes = open_source(X.assign(like=(y > 0).astype(int)), target="like", multi_hot=["genres"])
    labels.fit(likes)
    assert labels.fitted_.draws is not None
    again = FactorizationMachineClassifier(draws=2, random_state=0, multi_hot=["genres"])
    again.fit(X, (y > 0).astype(int))
    np.testing.assert_allclose(labels.predict_proba(X), again.predict_proba(X), atol=1e-6)


def test_the_best_items_of_each_user_are_written(folder, capsys):
    data = [str(folder / name) for name in ("m.safetensors", "users.csv", "films.csv")]
    seen = str(folder / "ratings.csv")
    command = ["recommend", *data, "-n", "3", "--exclude", seen]
    assert run([*command, "-o", str(folder / "top.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["users"] == USERS
    top = pd.read_csv(folder / "top.csv", dtype={"user": str})
    assert list(top.columns) == ["user", "rank", "film", "title", "genres", "prediction"]
    assert top.user[0] == "007"
    model = load(folder / "m.safetensors")
    users = pd.read_csv(folder / "users.csv", dtype=str)
    films = pd.read_csv(folder / "films.csv", dtype=str)
    ratings = pd.read_csv(seen, dtype=str)[["user", "film"]]
    oracle = model.recommend(users, films, 3, exclude=ratings)
    assert top.title.tolist() == oracle.title.tolist()
    np.testing.assert_allclose(top.prediction, oracle.prediction)
    assert run([*command, "-o", "-"]) == 0
    assert capsys.readouterr().out == (folder / "top.csv").read_text()


def test_the_table_of_ratings_may_be_both_tables(folder, capsys):
    model, ratings = str(folder / "m.safetensors"), str(folder / "ratings.csv")
    columns = ["--user-columns", "user", "--item-columns", "film,genres"]
    assert run(["recommend", model, ratings, ratings, *columns, "-n", "1", "-o", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + USERS
    assert run(["recommend", model, ratings, ratings, "-o", "-"]) == 2
    assert "--user-columns" in capsys.readouterr().err


def test_what_is_no_machine_is_said(folder, capsys):
    ratings, target = str(folder / "ratings.csv"), ["--target", "rating", "--multi-hot", "genres"]
    assert run(["fit", ratings, *target, "--fm"]) == 2
    assert "--categorical" in capsys.readouterr().err
    assert run(["fit", ratings, *target, "--draws", "5"]) == 2
    assert "add --fm" in capsys.readouterr().err
    assert run(["fit", ratings, *target, "--fm", "--cv"]) == 2
    assert run(["fit", ratings, *target, "--fm", "--diagonal", "free"]) == 2
    plain = str(folder / "plain.safetensors")
    assert run(["fit", ratings, *target, "--rank", "0", "--alpha", "1", "-q", "-o", plain]) == 0
    capsys.readouterr()
    assert run(["recommend", plain, ratings, ratings, "-o", "-"]) == 2
    assert "fit it with --fm" in capsys.readouterr().err


def test_whole_numbers_beside_predictions_are_written_as_such():
    table = pa.table({"year": [1999.0, None, 2001.5, 1e300], "title": ["a", "b", "c", "d"]})
    assert _cells(table["year"]) == [1999, None, 2001.5, 1e300]
    assert [type(v) for v in _cells(table["year"])] == [int, type(None), float, float]
    assert _cells(table["title"]) == ["a", "b", "c", "d"]


def test_marks_of_missing_values_are_those_of_the_fit(folder, tmp_path):
    rng = np.random.default_rng(1)
    people = pd.DataFrame({"user": [*"abcdef"], "age": ["31", "-9", "45", "28", "-9", "60"]})
    u, i = rng.integers(6, size=200), rng.integers(5, size=200)
    rows = people.iloc[u].reset_index(drop=True).assign(film=[f"f{j}" for j in i])
    rows["rating"] = (rng.normal(size=5)[i] + rng.normal(size=200)).round(2)
    rows.to_csv(tmp_path / "r.csv", index=False)
    people.to_csv(tmp_path / "u.csv", index=False)
    pd.DataFrame({"film": [f"f{j}" for j in range(5)]}).to_csv(tmp_path / "f.csv", index=False)
    options = ["--fm", "--na=-9", "--missing", "mean", "--target", "rating", "-q", "-o"]
    assert run(["fit", str(tmp_path / "r.csv"), *options, str(tmp_path / "m.safetensors")]) == 0
    tables = [str(tmp_path / name) for name in ("m.safetensors", "u.csv", "f.csv")]
    assert run(["recommend", *tables, "-n", "5", "-q", "-o", str(tmp_path / "top.csv")]) == 0
    top = pd.read_csv(tmp_path / "top.csv").set_index(["user", "film"]).iloc[:, -1]
    asked = rows.assign(age=rows.age.astype(float).replace(-9, np.nan)).drop(columns="rating")
    expected = load(tmp_path / "m.safetensors").predict(asked)
    given = [top[key] for key in zip(asked.user, asked.film, strict=True)]
    np.testing.assert_allclose(given, expected, atol=1e-6)


def test_labels_that_are_text_are_ranked_by_the_one_that_is_named(folder, capsys):
    rows = pd.read_csv(folder / "ratings.csv", dtype={"user": str})
    rows["rating"] = np.where(rows.rating > 0, "like", "no")
    rows.to_csv(folder / "likes.csv", index=False)
    model = str(folder / "likes.safetensors")
    options = ["--fm", "--categorical", "user,film", "--multi-hot", "genres", "-q", "-o", model]
    assert run(["fit", str(folder / "likes.csv"), "--target", "rating", *options]) == 0
    command = ["recommend", model, str(folder / "users.csv"), str(folder / "films.csv"), "-o", "-"]
    assert run(command) == 1
    error = capsys.readouterr().err
    assert "'like' and 'no'" in error
    assert "--label" in error
    assert run([*command, "--label", "like"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("probability=like")
    assert run([*command, "--label", "likes"]) == 2
    assert "not one of like, no" in capsys.readouterr().err


def test_a_table_with_a_header_and_no_rows_is_refused_in_words(folder, capsys):
    (folder / "none.csv").write_text("film,title,genres\n")
    model, users = str(folder / "m.safetensors"), str(folder / "users.csv")
    assert run(["recommend", model, users, str(folder / "none.csv"), "-o", "-"]) == 2
    assert "none.csv holds no rows" in capsys.readouterr().err


def test_messages_of_the_command_speak_of_tables_and_flags(folder, capsys):
    model, users, films = (str(folder / f) for f in ("m.safetensors", "users.csv", "films.csv"))
    assert run(["recommend", model, users, films, "--exclude", films, "-o", "-"]) == 1
    error = capsys.readouterr().err
    assert "--exclude has no column in common with the table of users" in error
    assert "user_rows" not in error
    assert run(["recommend", model, films, users, "-n", "1", "-o", "-"]) == 0
    assert "the table of items has the column 'user'" in capsys.readouterr().err


def test_tables_come_through_a_pipe(folder, tmp_path, monkeypatch, capsys):
    pd.read_csv(folder / "films.csv").to_parquet(tmp_path / "films.parquet")
    line = ["recommend", str(folder / "m.safetensors")]

    def printed(tables, piped=None, more=()):
        if piped is not None:
            content = io.BytesIO((folder / piped).read_bytes())
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(content))
        given = [str(folder / name) if name.endswith(".csv") else str(name) for name in tables]
        assert run([*line, *given, "-n", "2", "-q", "-o", "-", *more]) == 0
        return capsys.readouterr().out

    wanted = printed(["users.csv", "films.csv"])
    assert printed(["-", "films.csv"], "users.csv", ["--format", "csv"]) == wanted
    assert printed(["users.csv", "-"], "films.csv", ["--format", "csv"]) == wanted
    files = ["-", str(tmp_path / "films.parquet")]  # whose format is not that of the pipe
    assert printed(files, "users.csv", ["--format", "csv"]).count("\n") == wanted.count("\n")
    sides = ["--user-columns", "user", "--item-columns", "film,genres"]
    left_out = [*sides, "--exclude", str(folder / "ratings.csv")]
    twice = printed(["ratings.csv", "ratings.csv"], None, left_out)
    more = ["--format", "csv", *sides, "--exclude", "-"]
    assert printed(["-", "-"], "ratings.csv", more) == twice
    capsys.readouterr()
    assert run([*line, "-", str(folder / "films.csv"), "-o", "-"]) == 2
    assert "needs --format, such as --format csv" in capsys.readouterr().err
