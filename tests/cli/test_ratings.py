"""Ratings on the command line: what `check` and `fit` say of them, and what comes of it."""

import json
import shlex
import warnings

import numpy as np
import pandas as pd
import pytest

from quadlin import FactorizationMachineRegressor, SecondOrderClassifier, SecondOrderRegressor
from quadlin.cli.app import run


@pytest.fixture
def ratings(tmp_path, monkeypatch):
    """Write ratings of 150 users and 80 films by taste; 6,000 to fit and 2,000 to predict."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    user, film = rng.integers(150, size=8000), rng.integers(80, size=8000)
    of_genre = rng.random((80, 3)) < 0.4
    table = pd.DataFrame({"user": user, "film": film + 1000})
    table["genres"] = ["|".join(np.array(["war", "drama", "comedy"])[of_genre[f]]) for f in film]
    table["age"] = rng.integers(18, 78, 150)[user].astype(float)
    table.loc[user % 10 == 0, "age"] = np.nan
    table["timestamp"] = 1_700_000_000 + np.sort(rng.integers(10**7, size=8000))
    taste = np.sum(rng.normal(size=(150, 2))[user] * rng.normal(size=(80, 2))[film], axis=1)
    truth = 3.4 + 0.4 * rng.normal(size=150)[user] + 0.3 * rng.normal(size=80)[film] + 0.7 * taste
    table["rating"] = np.round(2 * (truth + 0.6 * rng.normal(size=8000)).clip(1, 5)) / 2
    table[:6000].to_csv("ratings.csv", index=False)
    table[6000:].to_csv("new.csv", index=False)
    return table


def score(command, capsys):
    assert run([*shlex.split(command)[1:], "-q"]) == 0
    capsys.readouterr()
    assert run(["evaluate", "model.safetensors", "new.csv", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["rmse"]


def test_the_command_that_check_suggests_for_ratings_predicts_as_well_as_the_right_one(
    ratings, capsys
):
    assert run(["check", "ratings.csv", "--target", "rating", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["code_columns"] == ["user", "film"]
    assert "genres" not in content["missing"]  # a film without labels lacks nothing
    for part in ("--fm", "--multi-hot genres", "--exclude timestamp", "--missing mean"):
        assert part in content["command"]
    texts = [finding["text"] for finding in content["findings"]]
    advice = "add --fm --categorical user,film --exclude timestamp."
    assert any("look like ratings: pairs of user and film" in t and advice in t for t in texts)
    right = FactorizationMachineRegressor(
        categorical_features=["user", "film"], multi_hot=["genres"], missing="mean", random_state=0
    )
    train, new = ratings[:6000], ratings[6000:]
    columns = ["user", "film", "genres", "age"]
    error = right.fit(train[columns], train.rating).predict(new[columns]) - new.rating
    wanted = float(np.sqrt(np.mean(error**2)))
    assert score(content["command"], capsys) < 1.001 * wanted
    assert wanted < 0.75 * new.rating.std()


def test_fit_says_that_rows_are_ratings_unless_it_fits_a_machine(ratings, capsys):
    given = ["--target", "rating", "--missing", "mean", "--rank", "0"]
    assert run(["fit", "ratings.csv", *given, "--pairs", "none"]) == 0
    err = capsys.readouterr().err
    assert "warning: The rows look like ratings" in err
    assert "ids or codes" not in err
    given += ["--fm", "--categorical", "user,film", "--multi-hot", "genres"]
    assert run(["fit", "ratings.csv", *given]) == 0
    assert "look like" not in capsys.readouterr().err


def test_python_says_the_same(ratings):
    X, y = ratings[["user", "film"]], ratings.rating
    advice = r"use FactorizationMachineRegressor with categorical_features=\['user', 'film'\]\."
    with pytest.warns(UserWarning, match=advice):
        model = SecondOrderRegressor(0, pairs=None).fit(X, y)
    assert "columns: The rows look like ratings" in model.diagnose(X, y)
    with pytest.warns(UserWarning, match=r"categorical_features=\[0, 1\]"):
        SecondOrderRegressor(0, pairs=None).fit(X.to_numpy(), y)
    with pytest.warns(UserWarning, match="use FactorizationMachineClassifier"):
        SecondOrderClassifier(0, pairs=None).fit(X, y >= 4)
    beside = X.assign(film=X.film.astype(str), sex=np.where(X.user % 2, "m", "f"))
    with pytest.warns(UserWarning, match=r"like ids.*categorical_features=\['user'\]"):
        FactorizationMachineRegressor(0).fit(beside, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FactorizationMachineRegressor(0, categorical_features=["user", "film"]).fit(X, y)


def test_a_model_of_categories_alone_remembers_that_values_may_be_missing(ratings, capsys):
    given = ["--fm", "--categorical", "user,film,age", "--columns", "user,film,age"]
    command = shlex.join(["quadlin", "fit", "ratings.csv", "--target", "rating", *given])
    assert score(f"{command} --missing mean", capsys) < 0.8
