"""Classes on the command line: fit, predict, evaluate, inspect, check."""

import json

import numpy as np
import pandas as pd
import pytest

from quadlin import load
from quadlin.cli import main

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 3))
F = 2 * X[:, 0] * X[:, 1] + RNG.logistic(size=300)
TABLE = pd.DataFrame(X, columns=list("abc")).assign(
    text=np.where(F > 0, "yes", "no"), number=(F > 0).astype(int), kind=np.digitize(F, [-1, 1])
)


@pytest.fixture
def quadlin(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("t.csv", index=False)

    def run(line, code=0):
        capsys.readouterr()
        assert main(line.split()) == code
        out, err = capsys.readouterr()
        return out if code == 0 and out else err

    run.capsys = capsys
    return run


def test_a_target_that_is_text_is_classified(quadlin):
    out = quadlin("fit t.csv --target text --columns a,b,c --rank 2 --alpha 1 -o m.safetensors")
    assert "classes             no, yes" in out
    quadlin("predict m.safetensors t.csv --keep number -o p.csv")
    predicted = pd.read_csv("p.csv")
    assert list(predicted) == ["number", "prediction", "probability=no", "probability=yes"]
    model = load("m.safetensors")
    np.testing.assert_allclose(predicted.iloc[:, 2:], model.predict_proba(TABLE[["a", "b", "c"]]))
    assert predicted["prediction"].tolist() == model.predict(TABLE[["a", "b", "c"]]).tolist()
    quadlin("predict m.safetensors t.csv -o p.npy")
    assert np.load("p.npy").shape == (300, 2)
    out = json.loads(quadlin("evaluate m.safetensors t.csv --target text --json"))
    assert out["auc"] > 0.75
    assert out["accuracy"] == pytest.approx(np.mean(predicted["prediction"] == TABLE["text"]))
    share = np.mean(TABLE["text"] == "yes")
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert out["log_loss_constant"] == pytest.approx(entropy)
    assert out["accuracy_constant"] == pytest.approx(max(share, 1 - share))
    text = quadlin("evaluate m.safetensors t.csv --target text")
    assert "AUC" in text
    assert "log-loss, constant" in text
    assert "a × b" in quadlin("inspect m.safetensors")
    for option in ("--std", "--interval .9"):
        text = quadlin(f"predict m.safetensors t.csv {option} -o p.csv", 2)
        assert "writes probabilities" in text


def test_pairs_of_classes_are_mentioned_beside_the_rank(quadlin):
    line = "fit t.csv --target text --columns a,b,c --pairs a:b --rank 0 -o m.safetensors"
    assert "beside 1 pair of features" in quadlin(line)
    pairs = json.loads(quadlin(f"{line} --json"))["pairs"]
    assert [(pair["first"], pair["second"]) for pair in pairs] == [("a", "b")]


def test_zero_and_one_are_numbers_unless_asked_otherwise(quadlin):
    quadlin("fit t.csv --target number --columns a,b,c --rank 1 --alpha 1 -o m.safetensors -q")
    assert type(load("m.safetensors")).__name__ == "SecondOrderRegressor"
    main(
        [
            "fit",
            "t.csv",
            "--target",
            "number",
            "--columns",
            "a,b,c",
            "--rank",
            "1",
            "--alpha",
            "1",
            "-o",
            "m.safetensors",
        ]
    )
    assert "use --classify" in quadlin.capsys.readouterr().err
    line = "fit t.csv --target number --columns a,b,c --rank 1 --alpha 1 -o m.safetensors"
    quadlin(f"{line} --no-classify")
    assert "--classify" not in quadlin.capsys.readouterr().err
    assert "0, 1" in quadlin(f"{line} --classify")
    assert load("m.safetensors").classes_.tolist() == [0, 1]


def test_several_classes_are_shown_one_by_one(quadlin):
    quadlin(
        "fit t.csv --target kind --classify --columns a,b,c --rank 1 --alpha 1 -o m.safetensors"
    )
    assert "--label" in quadlin("inspect m.safetensors", 2)
    assert "rank 1" in quadlin("inspect m.safetensors --label 2")
    assert "not one of 0, 1, 2" in quadlin("inspect m.safetensors --label 7", 2)
    out = json.loads(quadlin("evaluate m.safetensors t.csv --target kind --json"))
    assert out["auc"] is None
    shares = np.bincount(TABLE["kind"]) / 300
    assert out["log_loss_constant"] == pytest.approx(-shares @ np.log(shares))
    assert out["accuracy_constant"] == pytest.approx(shares.max())
    assert 0 < out["log_loss"] < out["log_loss_constant"]


def test_text_can_be_learned_in_one_pass(quadlin):
    quadlin("fit t.csv --target text --columns a,b,c --rank 1 --one-pass -o m.safetensors")
    assert load("m.safetensors").classes_.tolist() == ["no", "yes"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--target text --no-classify", 1, "must be numbers"),
        ("--target text --loss huber", 2, "cannot be combined with --loss. Leave it out."),
        ("--target text --cv", 2, "cannot be combined with --cv"),
        ("--target a --classify", 1, "Unknown label type"),
    ],
)
def test_what_cannot_be_classified_is_refused(quadlin, options, code, message):
    assert message in quadlin(f"fit t.csv {options} --columns b,c -o m.safetensors", code)


def test_labels_that_the_model_does_not_know_are_named(quadlin):
    quadlin("fit t.csv --target text --columns a,b,c --rank 1 --alpha 1 -o m.safetensors")
    TABLE.replace({"text": {"yes": "maybe"}}).to_csv("other.csv", index=False)
    assert "'maybe'" in quadlin("evaluate m.safetensors other.csv --target text", 1)
    told = quadlin("evaluate m.safetensors t.csv --target number", 1)
    assert "in row 0 (counted from 0), but the classes of the model are" in told
    assert "--target" in told


def test_check_says_what_fit_will_do(quadlin):
    assert "has 2 classes (no, yes), so fit trains a classifier." in quadlin(
        "check t.csv --target text --columns a,b,c"
    )
    assert "use --classify" in quadlin("check t.csv --target number --columns a,b,c")


def test_counts_are_fitted_and_evaluated_by_their_deviance(quadlin):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    table = np.column_stack([X, rng.poisson(np.exp(0.5 * X[:, 0] + 0.5))])
    np.savetxt("counts.csv", table, delimiter=",", header="a,b,n", comments="")
    line = "fit counts.csv --target n --loss poisson --rank 0 -o n.st --json"
    fitted, scores = (
        json.loads(quadlin(line)),
        json.loads(quadlin("evaluate n.st counts.csv --json")),
    )
    assert scores["d2"] == pytest.approx(fitted["d2_train"])
    assert 0 < scores["d2"] < 1


def test_a_stray_word_among_the_numbers_of_a_target_is_refused_by_its_row(quadlin):
    ratings = RNG.integers(1, 10, 500).astype(str)
    ratings[123] = "four"
    many = RNG.normal(size=1500).round(6).astype(str)
    many[777] = "oops"
    pd.DataFrame({"a": RNG.normal(size=500), "y": ratings}).to_csv("r.csv", index=False)
    pd.DataFrame({"a": RNG.normal(size=1500), "y": many}).to_csv("p.csv", index=False)
    words = "'y' holds numbers in 499 of 500 rows, but 'four' in row 123 of r.csv"
    for command in ("fit", "check"):
        err = quadlin(f"{command} r.csv --target y", 1)
        assert words in err
        assert "give --classify" in err
    err = quadlin("fit p.csv --target y", 1)
    assert "numbers in 1,499 of 1,500 rows, but 'oops' in row 777 of p.csv" in err
    assert "--classify" not in err  # nobody has that many classes
    line = "fit r.csv --target y --classify --rank 0 --alpha 1 --json"
    assert json.loads(quadlin(line))["classes"] == [*"123456789", "four"]


def test_a_text_target_with_a_value_for_every_other_row_is_refused(quadlin):
    frame = pd.DataFrame({"a": RNG.normal(size=60), "y": [f"name {i}" for i in range(60)]})
    frame.to_csv("n.csv", index=False)
    assert "'y' is text, with 60 different values in 60 rows" in quadlin("fit n.csv --target y", 1)
    frame.iloc[:20].to_csv("n.csv", index=False)
    assert "with 20 different values in 20 rows" in quadlin("check n.csv --target y", 1)
    frame.assign(y=[f"{v:.3f}" for v in frame.a]).to_parquet("n.parquet")
    err = quadlin("fit n.parquet --target y", 1)
    assert "'y' is numbers as text, with" in err
    assert "Convert it to numbers" in err


def test_fit_says_that_it_classifies_where_nobody_has_asked_for_it(quadlin):
    line = "fit t.csv --target text --columns a,b --rank 0 --alpha 1"
    quadlin.capsys.readouterr()
    for extra, told in (("", True), ("--classify", False), ("-q", False)):
        assert main([*line.split(), *extra.split()]) == 0
        err = quadlin.capsys.readouterr().err
        assert ("The target 'text' is text: classifying 2 classes (no, yes)." in err) == told


@pytest.mark.parametrize("way", ["t.csv", "t.csv --one-pass", "t.parquet"])
def test_a_target_of_true_and_false_is_classified(quadlin, way):
    TABLE.assign(is_high=F > 0).to_csv("t.csv", index=False)
    TABLE.assign(is_high=F > 0).to_parquet("t.parquet")
    assert main(f"fit {way} --target is_high --columns a,b,c --rank 2 --alpha 1".split()) == 0
    out, err = quadlin.capsys.readouterr()
    assert "The target 'is_high' is True or False: classifying" in err
    assert "classes             False, True" in out
    model = load("model.safetensors")
    assert model.classes_.tolist() == [False, True]
    assert model.score(TABLE[["a", "b", "c"]], F > 0) > 0.7
    quadlin("predict model.safetensors t.csv --keep is_high -o p.csv")
    predicted = pd.read_csv("p.csv")
    assert list(predicted)[1:] == ["prediction", "probability=False", "probability=True"]
    assert np.mean(predicted.prediction == predicted.is_high) > 0.7
    assert "AUC" in quadlin("evaluate model.safetensors t.csv")


def test_true_and_false_may_be_fitted_as_numbers(quadlin):
    TABLE.assign(is_high=F > 0).to_csv("t.csv", index=False)
    out = quadlin("check t.csv --target is_high --columns a,b,c")
    assert "is True or False, so fit trains a classifier" in out
    assert "--classify" not in out
    quadlin("fit t.csv --target is_high --columns a,b,c --no-classify")
    assert not hasattr(load("model.safetensors"), "classes_")
