"""Columns whose cells list several labels: each label is a 0/1 column, wherever the rows are."""

import io
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest

from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    load,
    open_source,
    save,
    to_onnx,
)
from quadlin.cli.app import run
from quadlin.data.columns.encoder import TableEncoder

CELLS = ["war|drama", "war", "", None, "comedy | war|war", "drama"]
EXPECTED = [[0, 1, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0]]
LABELS = ["drama", "comedy", "war"]


def films(n=300, seed=0):
    """Films with some of three genres, and a number that is a sum of what each adds."""
    rng = np.random.default_rng(seed)
    B = rng.random((n, 3)) < 0.4
    genres = ["|".join(np.array(LABELS)[row]) for row in B]
    age = rng.normal(size=n)
    y = B @ [1.0, -2.0, 3.0] + age * B[:, 2] + 0.1 * rng.normal(size=n)
    return pd.DataFrame({"genres": genres, "age": age}), y, B


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_each_label_becomes_a_column_of_zeros_and_ones(frame):
    table = frame({"genres": CELLS, "x": [0.0, 1, 2, 3, 4, 5]})
    encoder = TableEncoder.learn(table, separators={"genres": "|"})
    assert encoder.names == ("genres=comedy", "genres=drama", "genres=war", "x")
    assert encoder.fields == ()
    X, unseen = encoder.encode(table)
    np.testing.assert_array_equal(X.toarray()[:, :3], EXPECTED)
    assert X.has_sorted_indices
    assert unseen == {}
    new, unseen = encoder.encode(frame({"genres": ["war|opera", "opera"], "x": [1.0, 2.0]}))
    np.testing.assert_array_equal(new.toarray(), [[0, 0, 1, 1], [0, 0, 0, 2]])
    assert unseen == {"genres": 2}
    assert unseen.lists == {"genres"}
    assert not unseen.all_new
    assert pickle.loads(pickle.dumps(encoder)) == encoder
    with pytest.warns(UserWarning, match="No value"):
        assert encoder != TableEncoder.learn(table, separators={"genres": ";"})


def test_new_labels_are_not_called_levels_and_known_ones_beside_them_are_noticed(tmp_path):
    rows, y, _ = films()
    model = SecondOrderRegressor(0, alpha=1.0, multi_hot=["genres"]).fit(rows, y)
    new = rows.assign(genres="opera|war")
    with pytest.warns(UserWarning, match="Labels of lists that fit did not see") as caught:
        model.predict(new)
    assert str(caught[0].message).endswith("are left out; rows: 300 in 'genres'.")
    with pytest.warns(UserWarning, match="No value of 'genres' occurred in fit"):
        model.predict(rows.assign(genres="opera"))
    new.to_csv(tmp_path / "t.csv", index=False)
    source = open_source(str(tmp_path / "t.csv"), encoder=model.encoder_)
    with pytest.warns(UserWarning, match="left out; rows: 300 in 'genres'.$"):
        model.predict(source)


def test_a_label_adds_what_it_adds_whatever_stands_beside_it():
    rows, y, B = films()
    model = SecondOrderRegressor(random_state=0, multi_hot=["genres"]).fit(rows, y)
    by_hand = pd.DataFrame(B.astype(float)[:, [1, 0, 2]]).assign(age=rows.age.to_numpy())
    oracle = SecondOrderRegressor(random_state=0, fields=None).fit(by_hand.to_numpy(), y)
    np.testing.assert_allclose(model.predict(rows), oracle.predict(by_hand.to_numpy()), atol=1e-6)
    effect = dict(zip(model.interactions_.names, model.coef_, strict=True))
    assert effect["genres=comedy"] == pytest.approx(-2, abs=0.1)  # five standard errors
    parts = model.contributions(rows)
    assert {"genres", "age"} <= set(parts.to_frame().columns)


def test_files_frames_and_streams_give_the_same_rows(tmp_path):
    rows, y, _ = films(60)
    rows = rows.assign(y=y)
    rows.to_csv(tmp_path / "films.csv", index=False)
    rows.to_parquet(tmp_path / "films.parquet")
    sources = [
        open_source(tmp_path / "films.csv", target="y", multi_hot=["genres"]),
        open_source(tmp_path / "films.parquet", target="y", multi_hot={"genres": "|"}),
        open_source(rows, target="y", multi_hot="genres"),
        open_source(
            io.BytesIO((tmp_path / "films.csv").read_bytes()),
            format="csv",
            target="y",
            multi_hot=["genres"],
            levels={"genres": sorted(LABELS)},
        ),
    ]
    blocks = [np.vstack([chunk.X.toarray() for chunk in source]) for source in sources]
    for block in blocks[1:]:
        np.testing.assert_allclose(block, blocks[0], rtol=1e-12)
    model = SecondOrderRegressor(1, alpha=0.1, random_state=0, multi_hot=["genres"])
    of_file = model.fit(sources[0]).predict(rows.drop(columns="y"))
    of_frame = model.fit(rows.drop(columns="y"), y).predict(rows.drop(columns="y"))
    np.testing.assert_allclose(of_file, of_frame, rtol=1e-6)
    with pytest.warns(UserWarning, match="holds lists"):
        undeclared = open_source(rows, target="y")
    with pytest.raises(ValueError, match=r"multi_hot=\['genres'\]"):
        model.fit(undeclared)


def test_model_files_keep_the_separator(tmp_path):
    rows, y, _ = films(80)
    rows["genres"] = rows.genres.str.replace("|", ";")
    model = SecondOrderClassifier(1, alpha=1.0, random_state=0, multi_hot={"genres": ";"})
    model.fit(rows, y > 0)
    save(model, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert again.encoder_ == model.encoder_
    assert again.multi_hot == {"genres": ";"}
    np.testing.assert_array_equal(again.predict_proba(rows), model.predict_proba(rows))
    with pytest.raises(ValueError, match="0/1 columns"):
        to_onnx(model)


def test_cross_validation_takes_lists_and_a_machine_has_vectors_of_labels():
    rows, y, _ = films(120)
    model = SecondOrderRegressorCV(ranks=[1], cv=2, random_state=0, multi_hot=[0]).fit(rows, y)
    assert len(model.coef_) == 4
    rows["film"] = [f"f{i % 20}" for i in range(120)]
    machine = FactorizationMachineRegressor(1, alpha=0.1, multi_hot=["genres"], random_state=0)
    machine.fit(rows, y)
    assert machine.embeddings("genres")["level"].tolist() == ["comedy", "drama", "war"]


def test_lists_that_are_not_declared_are_noticed_and_so_is_a_wrong_separator():
    rows, y, _ = films(100)
    with pytest.warns(UserWarning, match=r"holds lists.*multi_hot=\['genres'\]"):
        SecondOrderRegressor(1, alpha=0.1).fit(rows, y)
    with pytest.warns(UserWarning, match="No value of column 'genres' contains ';'"):
        SecondOrderRegressor(1, alpha=0.1, multi_hot={"genres": ";"}).fit(rows, y)
    with pytest.raises(ValueError, match=r"no column 'genre' of multi_hot.*Did you mean 'genres'"):
        SecondOrderRegressor(multi_hot=["genre"]).fit(rows, y)
    with pytest.raises(ValueError, match="is not a separator"):
        SecondOrderRegressor(multi_hot={"genres": ""}).fit(rows, y)


def test_the_command_line_splits_lists(tmp_path, capsys):
    rows, y, _ = films()
    rows.assign(y=y).to_csv(tmp_path / "films.csv", index=False)
    data, model = str(tmp_path / "films.csv"), str(tmp_path / "m.safetensors")
    options = ["--missing", "mean", "--alpha", "0.1", "--rank", "2", "-o", model]
    assert run(["fit", data, "--target", "y", *options]) == 0
    assert "--multi-hot genres" in capsys.readouterr().err
    options = ["--multi-hot", "genres", "--alpha", "0.1", "--rank", "2", "-o", model]
    assert run(["fit", data, "--target", "y", *options]) == 0
    assert "holds lists" not in capsys.readouterr().err
    assert load(model).multi_hot == {"genres": "|"}
    assert run(["evaluate", model, data, "--json"]) == 0
    assert '"r2": 0.99' in capsys.readouterr().out
    assert run(["fit", data, "--target", "y", "--separator", ";"]) == 2
