"""The command line: exit codes, files, JSON answers, pipes, and errors that name what is wrong."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import (
    accuracy_score,
    log_loss,
    mean_absolute_error,
    mean_squared_error,
    r2_score,
    roc_auc_score,
)

import quadlin
from quadlin import (
    SecondOrderClassifier,
    SecondOrderRegressor,
    load,
    open_source,
)

COMMANDS = (*("fit", "predict", "evaluate", "inspect", "pairs", "check", "export", "demo"),)
FEATURES = ["city", "area", "age", "garden"]


def call(argv):
    """Run a command in this process, by the entry of the console script; return its exit code."""
    from quadlin.cli import main

    return main(argv)


def houses(n=400, seed=0):
    """Prices with one interaction of numbers, one with a level, and noise of 5."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"city": rng.choice(["Oslo", "Rome", "Bonn"], n)})
    table["area"], table["age"] = rng.gamma(4, 25, n).round(2), rng.uniform(0, 100, n).round(2)
    table["garden"] = (rng.random(n) < 0.3).astype(int)
    price = 50 + 2 * table.area - 0.5 * table.age + 0.02 * table.area * table.age
    price += 30 * table.garden * (table.city == "Rome") + rng.normal(0, 5, n)
    table["price"] = price.round(3)
    table["dear"] = np.where(table.price > table.price.median(), "yes", "no")
    table["weight"] = rng.integers(1, 9, n)
    return table


TABLE = houses()
USED = TABLE[[*FEATURES, "price"]]
GAPS = USED.assign(area=TABLE.area.mask(TABLE.index % 50 == 3))  # 8 of 400 areas are missing


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with tables, a regression and a classification, which no test changes."""
    home = tmp_path_factory.mktemp("cli")
    USED.to_csv(home / "houses.csv", index=False)
    USED.to_parquet(home / "houses.parquet")
    TABLE.to_csv(home / "all.csv", index=False)
    GAPS.to_csv(home / "gaps.csv", index=False)
    USED.drop(columns=["city", "garden"]).to_csv(home / "numbers.csv", index=False)
    TABLE[FEATURES].to_csv(home / "new.csv", index=False)
    fit = ["--rank", "1", "-q", "-o"]
    model = [*fit, str(home / "model.safetensors"), "--uncertainty"]
    assert call(["fit", str(home / "houses.csv"), "--target", "price", *model]) == 0
    chosen = ["--target", "dear", "--columns", ",".join(FEATURES)]
    labels = [*fit, str(home / "labels.safetensors"), "--alpha", "1"]
    assert call(["fit", str(home / "all.csv"), *chosen, *labels]) == 0
    return home


class Said(NamedTuple):
    """What a command printed."""

    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def run(folder, tmp_path, monkeypatch, capsys):
    """Run a line in an empty folder, where F/ is the folder of tables; check its exit code."""
    monkeypatch.chdir(tmp_path)
    os.symlink(folder, tmp_path / "F")

    def line(text, code=0, *, stdin=None):
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        status = call(shlex.split(text))
        said = Said(*capsys.readouterr())
        assert status == code, said.err
        assert "Traceback" not in said.err
        return said

    return line


def shell(*argv, **more):
    """Run `python -m quadlin` in a process of its own."""
    command = [sys.executable, "-m", "quadlin", *argv]
    return subprocess.run(command, capture_output=True, timeout=120, **more)


def predictions(path):
    """Return the numbers of a file of predictions."""
    if path.endswith(".npy"):
        return np.load(path)
    read = pd.read_csv if path.endswith(".csv") else pd.read_parquet
    return read(path).to_numpy().squeeze()


def test_help_names_every_command_and_the_exit_codes():
    done = shell("--help")
    assert done.returncode == 0
    text = done.stdout.decode()
    assert all(command in text for command in (*COMMANDS, "reproduce"))
    assert all(code in text for code in ("0", "1", "2", "130"))


@pytest.mark.parametrize("command", [*COMMANDS, "reproduce"])
def test_each_command_has_help_with_an_example(run, command):
    text = run(f"{command} --help").out
    assert "Usage" in text
    assert text.count(f"quadlin {command}") >= 2  # the usage, and an example


@pytest.mark.smoke
def test_the_version_is_that_of_the_library(run):
    assert run("--version").out.strip() == quadlin.__version__


KINDS = {"s": str, "i": int, "f": float, "l": list, "d": dict, "n": type(None)}
ANSWERS = {  # the keys of each answer, with the first letter of their types
    "fit F/houses.csv --target price --rank 1 -o m.st": "model:s status:s rows:i dropped:i "
    "features:i rank:i seconds:f r2_train:f eigenvalues:l pairs:l",
    "fit F/all.csv --target dear --columns area,age --rank 1 --alpha 1 -o m.st": "model:s rows:i "
    "features:i status:s classes:l",
    "predict F/model.safetensors F/new.csv -o p.csv": "output:s rows:i dropped:i unseen_levels:d",
    "evaluate F/model.safetensors F/houses.csv": "rows:i r2:f nmse:f rmse:f mae:f "
    "rmse_constant:f coverage_95:f weight:n",
    "evaluate F/labels.safetensors F/all.csv": "rows:i auc:f log_loss:f log_loss_constant:f "
    "accuracy:f accuracy_constant:f classes:l",
    "inspect F/model.safetensors": "model:s class:s version:s target:s status:s rows:i rank:i "
    "features:i intercept:f noise:f r2:f terms:l notes:l eigenvalues:l diagnosis:l",
    "pairs F/houses.csv --target price": "rows:i features:i candidates:i pairs:l",
    "check F/houses.csv --target price": "data:s command:s rows:i complete_rows:i features:i "
    "missing:d findings:l",
    "export F/model.safetensors -o m.onnx": "output:s inputs:l outputs:l",
}


@pytest.mark.parametrize("line", ANSWERS)
def test_json_is_one_object_with_documented_keys_and_types(run, line):
    said = run(f"{line} --json -q")
    page = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text()
    (row,) = (text for text in page.splitlines() if text.startswith(f"| `{line.split()[0]}` |"))
    assert said.json.keys() <= set(re.findall(r"`(\w+)`", row))
    assert said.err == ""
    for name, kind in (part.split(":") for part in ANSWERS[line].split()):
        assert type(said.json[name]) is KINDS[kind], name
    assert not re.search("NaN|Infinity", said.out)


@pytest.mark.smoke
def test_a_fit_writes_the_model_that_python_fits(run, folder):
    run("fit F/houses.csv --target price --rank 1")
    source = open_source(str(folder / "houses.csv"), target="price")
    expected = SecondOrderRegressor(rank=1, random_state=0).fit(source).predict(TABLE[FEATURES])
    ours = load("model.safetensors").predict(TABLE[FEATURES])
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


def test_options_are_parameters_of_the_estimator(run):
    run("fit F/numbers.csv --target price --rank 1 --alpha 0.5,2 --loss huber")
    params = load("model.safetensors").get_params()
    wanted = {"rank": 1, "alpha": (0.5, 2.0), "loss": "huber"}
    assert {name: params[name] for name in wanted} == wanted


@pytest.mark.parametrize("way", ["F/houses.parquet", "F/houses.csv --missing drop"])
def test_other_files_and_engines_fit_the_same_model(run, way):
    for name, data in (("a.st", "F/houses.csv"), ("b.st", way)):
        run(f"fit {data} --target price --rank 1 --alpha 1 -q -o {name}")
    ours, theirs = (load(name).predict(TABLE[FEATURES]) for name in ("a.st", "b.st"))
    np.testing.assert_allclose(theirs, ours, rtol=1e-6)


@pytest.mark.parametrize("options", ["--rank 2 --alpha 300", "--loss huber --rank 1"])
def test_the_r2_of_a_fit_is_what_evaluate_says_of_its_rows(run, options):
    data = "F/all.csv --target price --weight weight"
    said = run(f"fit {data} --columns area,age {options} --json -q").json
    scores = run("evaluate model.safetensors F/all.csv --json").json
    assert scores["weight"] == "weight"
    assert said["r2_train"] == pytest.approx(scores["r2"], abs=1e-9)


def test_columns_are_chosen_and_left_out_by_name(run):
    for options in (
        "--columns area,age",
        "--exclude city,garden",
        "--exclude city --exclude garden",
    ):
        run(f"fit F/houses.csv --target price {options} --rank 0 --alpha 1 -q")
        assert load("model.safetensors").feature_names_in_.tolist() == ["area", "age"]


def test_names_with_commas_and_spaces_are_quoted(run):
    names = {"area": "size, net", "age": "age of house"}
    TABLE[["area", "age", "price"]].rename(columns=names).to_csv("t.csv", index=False)
    run("""fit t.csv --target price --columns '"size, net",age of house' --rank 0 -q""")
    assert load("model.safetensors").feature_names_in_.tolist() == list(names.values())


def test_pairs_are_given_by_name(run):
    pairs = "--pairs area:age,garden:city=Rome"
    run(f"fit F/houses.csv --target price --rank 0 {pairs} --uncertainty -q")
    found = {(p.first, p.second): p for p in load("model.safetensors").pairs_.pairs}
    from_mean = 1 - (USED.city == "Rome").mean()  # coefficients of levels differ from their mean
    for names, truth in ((("area", "age"), 0.02), (("garden", "city=Rome"), 30 * from_mean)):
        pair = found.get(names) or found[names[::-1]]
        # Five robust standard errors, plus 2% for the shrinkage of a ridge penalty.
        assert abs(pair.coefficient - truth) < 5 * pair.std_error + 0.02 * truth


def test_counts_are_scored_by_their_deviance(run):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    n = rng.poisson(np.exp(0.5 * X[:, 0] + 0.5))
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "n": n}).to_csv("t.csv", index=False)
    fitted = run("fit t.csv --target n --loss poisson --rank 0 --json -q").json
    scores = run("evaluate model.safetensors t.csv --json").json
    assert scores["d2"] == pytest.approx(fitted["d2_train"])
    assert 0 < scores["d2"] < 1


@pytest.mark.smoke
def test_a_text_target_is_classified_with_probabilities(run):
    run("predict F/labels.safetensors F/all.csv --keep dear -o p.csv -q")
    table = pd.read_csv("p.csv")
    assert list(table) == ["dear", "prediction", "probability=no", "probability=yes"]
    model = load("F/labels.safetensors")
    assert isinstance(model, SecondOrderClassifier)
    proba = model.predict_proba(TABLE[FEATURES])
    np.testing.assert_allclose(table.iloc[:, 2:], proba, rtol=1e-9)
    assert table["prediction"].tolist() == model.predict(TABLE[FEATURES]).tolist()


def test_labels_are_evaluated_as_scikit_learn_does(run):
    scores = run("evaluate F/labels.safetensors F/all.csv --json").json
    model = load("F/labels.safetensors")
    proba = model.predict_proba(TABLE[FEATURES])
    assert scores["classes"] == ["no", "yes"]
    assert scores["auc"] == pytest.approx(roc_auc_score(TABLE.dear, proba[:, 1]))
    assert scores["log_loss"] == pytest.approx(log_loss(TABLE.dear, proba))
    predicted = model.predict(TABLE[FEATURES])
    assert scores["accuracy"] == pytest.approx(accuracy_score(TABLE.dear, predicted))
    share = np.mean(TABLE.dear == "yes")
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert scores["log_loss_constant"] == pytest.approx(entropy)


def test_three_classes_are_inspected_one_by_one(run):
    run("fit F/all.csv --target city --columns area,age --rank 0 --alpha 1 -q")
    assert load("model.safetensors").classes_.tolist() == ["Bonn", "Oslo", "Rome"]
    assert "--label" in run("inspect model.safetensors", 2).err
    run("inspect model.safetensors --label Oslo")
    err = run("inspect model.safetensors --label Paris", 2).err
    assert all(name in err for name in ("Paris", "Bonn", "Oslo", "Rome"))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_true_and_false_are_classes_and_zero_and_one_are_if_asked(run, kind):
    high = TABLE.price > TABLE.price.median()
    table = TABLE[["area", "age"]].assign(high=high, one=high.astype(int))
    getattr(table, f"to_{kind}")(f"t.{kind}", index=False)
    for options, classes in (
        ("--target high --exclude one", [False, True]),
        ("--target one --exclude high --classify", [0, 1]),
    ):
        run(f"fit t.{kind} {options} --rank 1 --alpha 1 -q")
        assert load("model.safetensors").classes_.tolist() == classes
    run(f"fit t.{kind} --target one --exclude high --rank 1 --alpha 1 -q")
    assert isinstance(load("model.safetensors"), SecondOrderRegressor)


@pytest.mark.smoke
def test_missing_values_are_refused_by_column_until_an_option_says_what_to_do(run):
    err = run("fit F/gaps.csv --target price", 1).err
    assert "area" in err
    assert "--missing" in err
    assert not Path("model.safetensors").exists()


@pytest.mark.smoke
def test_incomplete_rows_are_left_out_and_counted(run):
    answer = run("fit F/gaps.csv --target price --missing drop --rank 1 --json").json
    assert (answer["rows"], answer["dropped"]) == (392, 8)
    err = run("predict model.safetensors F/gaps.csv --missing drop -o p.csv").err
    assert "8" in err
    assert len(pd.read_csv("p.csv")) == 392


def test_missing_values_are_filled_with_the_means_of_the_fit(run):
    run("fit F/gaps.csv --target price --missing mean --rank 1 -q")
    mean = float(GAPS.area.mean())
    Path("t.csv").write_text(f"city,area,age,garden\nOslo,,50,0\nOslo,{mean!r},50,0\n")
    first, second = run("predict model.safetensors t.csv -o -").out.split()[1:]
    assert float(first) == pytest.approx(float(second), rel=1e-9)


def test_levels_that_the_model_does_not_know_are_counted_by_column(run):
    Path("t.csv").write_text("city,area,age,garden\nParis,80,50,0\nOslo,80,50,0\n")
    assert run("predict F/model.safetensors t.csv -o p.csv --json").json["unseen_levels"] == {
        "city": 1
    }
    assert "city" in run("predict F/model.safetensors t.csv -o p.csv").err


@pytest.mark.parametrize("output", ["p.csv", "p.parquet", "p.npy"])
def test_predictions_are_those_of_the_model(run, output):
    model = load("F/model.safetensors")
    y, std = model.predict(TABLE[FEATURES], return_std=True)
    run(f"predict F/model.safetensors F/new.csv -o {output}")
    np.testing.assert_allclose(predictions(output), y, rtol=1e-9)
    run(f"predict F/model.safetensors F/new.csv --std -o {output}")
    np.testing.assert_allclose(predictions(output), np.column_stack([y, std]), rtol=1e-6)
    run(f"predict F/model.safetensors F/new.csv --interval 0.9 -o {output}")
    ends = np.column_stack([y, *model.predict_interval(TABLE[FEATURES], 0.9)])
    np.testing.assert_allclose(predictions(output), ends, rtol=1e-6)
    assert sorted(os.listdir()) == ["F", output]


def test_columns_are_kept_beside_predictions_as_they_are_written(run):
    rows = TABLE[FEATURES].assign(key=[f"{i:04d}" for i in TABLE.index])
    rows.to_csv("t.csv", index=False)
    run("predict F/model.safetensors t.csv --keep key,city -o p.csv -q")
    table = pd.read_csv("p.csv", dtype={"key": str})
    assert list(table) == ["key", "city", "prediction"]
    assert table["key"].tolist() == rows["key"].tolist()
    assert table["city"].tolist() == rows["city"].tolist()


@pytest.mark.smoke
def test_predictions_go_to_the_standard_output_as_csv(run):
    lines = run("predict F/model.safetensors F/new.csv --keep city -o -").out.splitlines()
    assert lines[0] == "city,prediction"
    assert len(lines) == 401


@pytest.mark.smoke
def test_evaluation_agrees_with_scikit_learn(run):
    scores = run("evaluate F/model.safetensors F/houses.csv --json").json
    y, f = TABLE.price, load("F/model.safetensors").predict(TABLE[FEATURES])
    assert scores["rows"] == 400
    assert scores["r2"] == pytest.approx(r2_score(y, f))
    assert scores["nmse"] == pytest.approx(1 - scores["r2"])
    assert scores["rmse"] == pytest.approx(mean_squared_error(y, f) ** 0.5)
    assert scores["mae"] == pytest.approx(mean_absolute_error(y, f))
    # The share of 400 rows has a standard deviation of 1.1%.
    assert 0.91 < scores["coverage_95"] < 0.99


def test_scores_without_meaning_are_null(run):
    rows = "".join(f"{i * i % 7},{i % 5},3\n" for i in range(40))
    Path("t.csv").write_text("a,b,y\n" + rows)
    assert "3" in run("fit t.csv --target y").err  # the target is 3 in every row
    scores = run("evaluate model.safetensors t.csv --json").json
    assert scores["r2"] is scores["nmse"] is None
    assert scores["rmse"] == pytest.approx(0, abs=1e-9)


@pytest.mark.smoke
def test_a_command_that_fails_leaves_the_old_file(run):
    for output in ("p.csv", "m.st"):
        Path(output).write_text("old")
    run("predict F/model.safetensors F/gaps.csv -o p.csv", 1)
    run("fit F/gaps.csv --target price -o m.st", 1)
    assert Path("p.csv").read_text() == Path("m.st").read_text() == "old"
    assert sorted(os.listdir()) == ["F", "m.st", "p.csv"]


def test_inspect_names_the_interactions_and_their_errors(run):
    said = run("inspect F/model.safetensors --top 3")
    assert "area" in said.out
    answer = run("inspect F/model.safetensors --top 3 --json").json
    assert all(term["std_error"] > 0 for term in answer["terms"])
    pairs = [term for term in answer["terms"] if "pair" in term["kind"]]
    assert len(pairs) >= 3
    assert answer["class"] == "SecondOrderRegressor"
    model = load("F/model.safetensors")
    for term in pairs:
        pair = model.interaction(term["first"], term["second"])
        assert term["estimate"] == pytest.approx(pair, rel=1e-9)


@pytest.mark.smoke
def test_inspect_with_rows_scores_these_rows(run):
    score = run("evaluate F/model.safetensors F/gaps.csv --missing drop --json").json["r2"]
    answer = run("inspect F/model.safetensors F/gaps.csv --missing drop --json").json
    assert answer["r2"] == pytest.approx(score)


def test_a_page_stands_alone_and_escapes_names(run):
    evil = "<script>alert(1)</script>&"
    TABLE[["area", "age", "price"]].rename(columns={"area": evil}).to_parquet("t.parquet")
    run("fit t.parquet --target price --rank 1 -q")
    run("inspect model.safetensors --html page.html -q")
    page = Path("page.html").read_text()
    assert not re.search(r"<script|https?:|<link", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in page


def test_control_characters_of_names_are_never_printed(run, capsys):
    evil, unsafe = "a\x1b[31mb\x9bd\u202ee", re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
    table = TABLE[["area", "city", "price"]].rename(columns={"area": evil})
    table.assign(city=table.city.replace({"Rome": evil})).to_parquet("t.parquet")
    for argv in (
        ["check", "t.parquet", "--target", "price"],
        ["fit", "t.parquet", "--target", "price", "--rank", "1", "-o", f"{evil}.st"],
        ["inspect", f"{evil}.st"],
        ["fit", "t.parquet", "--target", evil + "?"],
        ["fit", f"{evil}.csv", "--target", "y"],
        ["predict", f"{evil}.st", "t.parquet", "--keep", evil + "!", "-o", "p.csv"],
    ):
        call(argv)
        said = "".join(capsys.readouterr())
        assert r"\x1b" in said, argv
        assert not unsafe.search(said), argv


def test_pairs_finds_those_that_interact(run):
    houses(1200).drop(columns=["dear", "weight"]).to_csv("t.csv", index=False)
    found = run("pairs t.csv --target price --json").json["pairs"]
    assert {frozenset((p["first"], p["second"])) for p in found} >= {frozenset(("area", "age"))}
    assert any({"city=Rome", "garden"} == {p["first"], p["second"]} for p in found)
    best = run("pairs t.csv --target price --max-pairs 1 --json").json["pairs"]
    assert [{p["first"], p["second"]} for p in best] == [{"area", "age"}]
    assert "area" in run("pairs t.csv --target price").out


def test_an_onnx_graph_predicts_the_same(run):
    runtime = pytest.importorskip("onnxruntime")
    run("export F/model.safetensors -o m.onnx -q")
    session = runtime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    kinds = {node.name: str if "string" in node.type else float for node in session.get_inputs()}
    feed = {
        name: TABLE[name].to_numpy(dtype=object if kinds[name] is str else np.float64)
        for name in FEATURES
    }
    expected = load("F/model.safetensors").predict(TABLE[FEATURES])
    ours = np.squeeze(session.run(None, feed)[0])
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_the_demo_recovers_known_models_and_draws_two_pictures(run):
    from matplotlib import pyplot as plt

    try:
        out = run("demo").out
    finally:
        plt.close("all")
    errors = [
        float(line.split()[2]) for line in out.splitlines() if re.search(r"e-\d\d .*\+1", line)
    ]
    assert len(errors) == 4
    assert max(errors) < 1e-12  # exact without noise
    assert {path.suffix for path in Path("demo").iterdir()} == {".png"}
    assert len(list(Path("demo").iterdir())) == 2


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (USED, {"rows": 400, "complete_rows": 400, "missing": {}}),
        (GAPS, {"rows": 400, "complete_rows": 392, "missing": {"area": 8}}),
        (USED.assign(id=TABLE.index), {"rows": 400, "complete_rows": 400}),
        (USED.assign(price=TABLE.dear), {"rows": 400, "complete_rows": 400}),
    ],
    ids=["plain", "missing values", "identifiers", "labels"],
)
def test_the_command_that_check_suggests_fits_the_table(run, table, expected):
    table.to_csv("t.csv", index=False)
    answer = run("check t.csv --target price --json").json
    assert {name: answer[name] for name in expected} == expected
    assert all(finding.keys() >= {"kind", "topic", "text"} for finding in answer["findings"])
    program, *command = shlex.split(answer["command"])
    assert program == "quadlin"
    assert command[:2] == ["fit", "t.csv"]
    run(shlex.join([*command, "-q"]))
    assert "id" not in load("model.safetensors").feature_names_in_
    assert answer["command"] in run("check t.csv --target price").out


def test_check_finds_a_use_for_every_column_or_leaves_it_out(run):
    rng, n = np.random.default_rng(0), 300
    table = pd.DataFrame({"number": range(n), "user": rng.integers(0, 40, n), "empty": np.nan})
    table["city"] = rng.choice(["Oslo", "Rome", None], n)
    table["day"] = pd.date_range("2024-01-01", periods=n).astype(str)
    table["key"] = [f"k{i}" for i in range(n)]
    table["age"] = np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n))
    table["y"] = np.where(table.index < 6, np.nan, rng.normal(size=n))
    table.to_csv("t.csv", index=False)
    answer = run("check t.csv --target y --json").json
    gaps = {name: int(table[name].isna().sum()) for name in ("age", "city", "y")}
    # Values that are missing in rows without a target are not counted.
    assert answer["missing"]["y"] == gaps["y"]
    assert all(gaps[name] - 6 <= answer["missing"][name] <= gaps[name] for name in ("age", "city"))
    assert answer["complete_rows"] == len(table[["age", "city", "y"]].dropna())
    run(shlex.join([*shlex.split(answer["command"])[1:], "-q"]))
    model = load("model.safetensors")
    assert model.feature_names_in_.tolist() == ["user", "city", "age"]
    assert model.n_samples_seen_ == n - 6
    assert any(name.startswith("user=") for name in model.interactions_.names)


def test_a_constant_column_is_named(run):
    USED.assign(same=1.0).to_csv("t.csv", index=False)
    answer = run("check t.csv --target price --json").json
    assert answer["constant"] == ["same"]
    assert any("same" in finding["text"] for finding in answer["findings"])


def test_check_and_inspect_agree_on_the_condition_number(run):
    printed = run("check F/houses.csv --target price").out
    run("fit F/houses.csv --target price -q")
    printed += run("inspect model.safetensors").out
    numbers = [float(n) for n in re.findall(r"condition number ([\d.]+(?:e[+-]\d+)?)", printed)]
    assert not numbers or max(numbers) < 2 * min(numbers)


def suggested(run, table):
    """Return the command that check suggests for a table with the target y."""
    table.round(3).to_csv("t.csv", index=False)
    return run("check t.csv --target y --json").json["command"]


@pytest.mark.parametrize(
    ("name", "effects"),
    [
        ("rpm", {900: 1, 1800: 0, 2400: 9, 3000: 1, 3600: 1}),  # a resonance at 2400
        ("area", {48: 0, 52: 9, 61: 1, 70: 10, 85: 2, 96: 9}),  # six flats of better or worse site
    ],
)
def test_check_takes_quantities_for_numbers(run, name, effects):
    rng = np.random.default_rng(0)
    x, e = rng.choice(list(effects), 300), rng.normal(size=(2, 300))
    table = pd.DataFrame({name: x, "other": e[0], "y": [effects[v] for v in x] + e[0] + e[1] / 2})
    assert "--categorical-features" not in suggested(run, table)


def test_check_declares_no_large_value_as_missing(run):
    rng = np.random.default_rng(0)
    income = rng.integers(20_000, 50_000, 300)
    income[:6] = 99_999
    y = income / 20_000 + rng.normal(size=300)
    assert "--na" not in suggested(run, pd.DataFrame({"income": income, "y": y}))


def test_what_check_advises_in_words_is_in_its_command(run):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 300)).round(3)
    table = pd.DataFrame({"a": a, "b": b, "y": np.where(a * b > 0, 1, 2)})
    table.to_csv("t.csv", index=False)
    answer = run("check t.csv --target y --json").json
    words = any("--classify" in finding["text"] for finding in answer["findings"])
    assert words == ("--classify" in answer["command"])


def test_check_counts_rows_that_its_command_fits(run):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 20)).round(3)
    table = pd.DataFrame(np.where(rng.random(X.shape) < 0.18, np.nan, X)).add_prefix("f")
    table.assign(y=X[:, 0] + X[:, 1]).to_csv("t.csv", index=False)
    answer = run("check t.csv --target y --json").json
    assert "--missing mean" in answer["command"]  # so that every row is fitted
    rows = " ".join(f["text"] for f in answer["findings"] if f["topic"] == "rows")
    assert "300" in rows


def test_standard_errors_must_be_asked_for_in_the_fit(run):
    fit = "fit F/numbers.csv --target price --rank 1 --alpha 1 -q"
    run(fit)
    err = run("predict model.safetensors F/numbers.csv --std -o p.csv", 1).err
    assert "--uncertainty" in err
    run(f"{fit} --uncertainty")
    run("predict model.safetensors F/numbers.csv --std -o p.csv -q")


@pytest.mark.parametrize("decimal", [",", "."])
def test_files_are_read_as_that_of_the_fit_was(run, decimal):
    def write(name, decimal):
        columns = ["area", "age", "price", "weight"]
        TABLE[columns].to_csv(name, index=False, sep=";", decimal=decimal)

    other = ",."[decimal == ","]
    write("t.csv", decimal)
    write("other.csv", other)
    run(f"fit t.csv --decimal {decimal} --target price --weight weight --rank 0 -q")
    scores = run("evaluate model.safetensors t.csv --json").json
    line = f"evaluate model.safetensors other.csv --decimal {other} --json"
    assert run(line).json == scores  # what is given overrules what the model remembers
    assert "--decimal" in run("evaluate model.safetensors other.csv", 1).err
    assert scores["weight"] == "weight"
    assert run("evaluate model.safetensors t.csv --weight '' --json").json["weight"] is None
    predicted = run("predict model.safetensors t.csv -o -").out.split()[1:]
    expected = load("model.safetensors").predict(TABLE[["area", "age"]])
    np.testing.assert_allclose(np.array(predicted, dtype=float), expected, rtol=1e-9)


def test_csv_of_other_countries_is_read_and_remembered(run):
    table = TABLE[["area", "age", "city", "price"]].replace({"Bonn": "Köln"})
    table.to_csv("t.csv", index=False, sep=";", decimal=",", encoding="latin1")
    fit = "fit t.csv --target price --rank 0 --pairs none -q"
    assert "--encoding" in run(fit, 1).err
    assert "--decimal" in run(f"{fit} --encoding latin1", 1).err
    run(f"{fit} --decimal , --encoding latin1")
    ours = run("predict model.safetensors t.csv --encoding latin1 -o -").out.split()[1:]
    expected = load("model.safetensors").predict(table[["area", "age", "city"]])
    np.testing.assert_allclose(np.array(ours, dtype=float), expected, rtol=1e-9)


def test_a_file_without_a_header_is_read_with_an_option(run):
    TABLE[["area", "age", "price"]].to_csv("t.csv", index=False, header=False)
    assert "--no-header" in run("fit t.csv --target price", 1).err
    run("fit t.csv --no-header --target x2 --rank 1 -q")
    assert run("evaluate model.safetensors t.csv --json").json["rows"] == 400


def test_marks_of_missing_values_are_declared(run):
    rows = "".join(f"{'?' if i % 9 == 4 else i % 7},{i % 5},{i % 3}\n" for i in range(60))
    Path("t.csv").write_text("a,b,y\n" + rows)
    assert run("check t.csv --target y --json").json["missing"] == {"a": 7}
    answer = run("fit t.csv --target y --na '?' --missing drop --rank 0 --json").json
    assert answer["dropped"] == 7


@pytest.mark.parametrize("kind", ["npy", "svm"])
def test_arrays_and_svmlight_files_are_tables_too(run, kind):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = X[:, 0] * X[:, 1]
    np.save("X.npy", X)
    np.save("y.npy", y)
    lines = [f"{t!r} " + " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(x)) for t, x in
             zip(y.tolist(), X.tolist(), strict=True)]  # fmt: skip
    Path("rows.svm").write_text("\n".join(lines) + "\n")
    data = "X.npy --target y.npy" if kind == "npy" else "rows.svm"
    run(f"check {data}")
    run(f"fit {data} --rank 2 -q")
    assert run(f"evaluate model.safetensors {data} --json").json["r2"] > 0.999999


# The exit code, the line, and what the message mentions.
WRONG = """
2 | fitt | fitt
2 | fit | data
1 | fit nothing.csv --target y | nothing.csv
2 | fit F/houses.csv | --target city price
1 | fit F/houses.csv --target prise | 'prise' 'price' --target
1 | fit F/houses.csv --target price --columns aera | 'aera' 'area' --columns
1 | fit F/houses.csv --target price --exclude aera | 'aera' --exclude
1 | fit F/houses.csv --target price --categorical-features aera | 'aera' --categorical-features
1 | fit F/houses.csv --target price --weight w | 'w' --weight
1 | fit F/houses.csv --target price --weight price | 'price' target weight
1 | fit F/houses.csv --target price --columns area,price | 'price' --columns
1 | fit F/houses.csv --target city --no-classify | city number
2 | fit F/houses.csv --targt price | --targt --target
2 | fit F/houses.csv --target price --rank many | --rank many
2 | fit F/houses.csv --target price --rank 2.7 | --rank 2.7
2 | fit F/houses.csv --target price --alpha 1,2,3 | --alpha 1,2,3
2 | fit F/houses.csv --target price --loss cubic | --loss cubic
2 | fit F/houses.csv --target price --format xls | --format xls
2 | fit F/houses.csv --target price --pairs area:ag | --pairs 'ag'
1 | fit F/houses.csv --target price -o no/m.st | no folder
2 | fit F/houses.csv --target price -o F/houses.csv | F/houses.csv input
2 | fit F/houses.csv --target price -o m.pkl | m.pkl m.safetensors
2 | fit F/houses.csv --target price -o m.onnx | m.onnx export
2 | fit F/model.safetensors --target price | F/model.safetensors model
2 | fit a.csv b.csv --target y | b.csv
2 | fit - --target price | --format
1 | predict nothing.st F/new.csv -o p.csv | nothing.st
2 | predict F/houses.csv F/new.csv -o p.csv | F/houses.csv model
2 | predict F/model.safetensors F/new.csv | -o
2 | predict F/model.safetensors F/new.csv -o p.xls | p.xls .parquet .csv
1 | predict F/model.safetensors F/numbers.csv -o p.csv | 'city'
1 | predict F/model.safetensors F/new.csv --keep prise -o p.csv | 'prise' --keep
2 | predict F/model.safetensors F/new.csv --interval 95 -o p.csv | --interval 95
2 | predict F/labels.safetensors F/new.csv --std -o p.csv | --std probabilities
1 | evaluate F/model.safetensors F/new.csv | 'price' target
1 | evaluate F/model.safetensors F/houses.csv --target area | 'area' --target
2 | inspect F/houses.parquet | F/houses.parquet model
2 | inspect F/model.safetensors --top 2.5 | --top 2.5
1 | pairs F/houses.csv --target city | city
1 | check F/houses.csv --target prise | 'prise' 'price'
2 | export F/model.safetensors -o m.txt | m.txt .onnx
2 | fit F/numbers.csv --target price --fm | --fm --categorical-features
2 | reproduce --only zebra | zebra
2 | reproduce --only a --noise=-1 | --noise -1
"""


@pytest.mark.parametrize("row", WRONG.strip().splitlines())
def test_what_is_wrong_is_one_sentence_that_names_it(run, row):
    code, line, mentioned = row.split(" | ")
    said = run(line, int(code))
    assert said.out == ""
    assert said.err.startswith("quadlin: ")
    assert said.err.count("\n") == 1
    assert [words for words in mentioned.split() if words not in said.err] == []
    assert os.listdir() == ["F"]


@pytest.mark.parametrize(
    ("text", "mentioned"),
    [
        ("", "t.csv"),
        ("a,y\n", "t.csv"),
        ("a,y\n1,2\n", "2"),
        ("day,a,y\n" + "".join(f"2024-01-{i},{i},{i * i}\n" for i in range(10, 29)), "day"),
        ("a,y\n" + "".join(f"{i},{'four' if i == 12 else i % 9}\n" for i in range(60)), "row 12"),
    ],
    ids=["empty", "no rows", "one row", "dates", "a word among numbers"],
)
def test_tables_that_cannot_be_fitted_are_refused_by_name(run, text, mentioned):
    Path("t.csv").write_text(text)
    err = run("fit t.csv --target y", 1).err
    assert mentioned in err
    assert not Path("model.safetensors").exists()


def test_a_missing_library_is_named_with_how_to_install_it(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    err = run("export F/model.safetensors -o m.onnx", 1).err
    assert "onnx" in err
    assert "pip install" in err


def test_rows_come_and_predictions_go_through_pipes(run, folder):
    data = (folder / "houses.csv").read_bytes()
    options = "--format csv --target price --rank 1 --alpha 1 -q"
    run(f"fit - {options} -o piped.st", stdin=data)
    run("fit F/houses.csv --target price --rank 1 --alpha 1 -q -o named.st")
    piped, named = (load(name).predict(TABLE[FEATURES]) for name in ("piped.st", "named.st"))
    np.testing.assert_allclose(piped, named, rtol=1e-6)
    done = shell("predict", "piped.st", "-", "--format", "csv", "-o", "-", input=data)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.array(done.stdout.split()[1:], dtype=float), piped, rtol=1e-9)


@pytest.mark.parametrize("command", ["check", "pairs"])
def test_the_standard_input_is_read_like_a_file(run, folder, command):
    data = (folder / "houses.csv").read_bytes()
    piped = run(f"{command} - --format csv --target price --json", stdin=data).json
    named = run(f"{command} F/houses.csv --target price --json").json
    for answer in (piped, named):
        for name in ("data", "command"):
            answer.pop(name, None)
    assert piped == named


def test_a_reader_that_stops_early_is_no_error(folder):
    for argv in (["--help"], ["inspect", str(folder / "model.safetensors")]):
        reading, writing = os.pipe()
        os.close(reading)  # nobody reads any more
        command = [sys.executable, "-m", "quadlin", *argv]
        with os.fdopen(writing, "wb") as output:
            done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")


def test_predictions_end_quietly_where_nobody_reads_them(folder):
    table = pd.concat([TABLE[FEATURES]] * 500)  # more than a pipe holds
    command = [sys.executable, "-m", "quadlin", "predict", str(folder / "model.safetensors"), "-"]
    command += ["--format", "csv", "-o", "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        process.stdin.write(table.to_csv(index=False).encode())
        process.stdin.close()
        assert process.stdout.readline() == b"prediction\n"
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")


def test_names_that_a_terminal_cannot_show_are_escaped(folder, tmp_path):
    TABLE.rename(columns={"area": "größe"})[["größe", "age", "price"]].to_csv(
        tmp_path / "t.csv", index=False
    )
    env = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    model = str(tmp_path / "m.st")
    fit = ["fit", str(tmp_path / "t.csv"), "--target", "price", "-o", model]
    for argv in (fit, ["inspect", model]):
        done = shell(*argv, env=env)
        assert done.returncode == 0, done.stderr
        done.stdout.decode("ascii")
    assert load(model).feature_names_in_.tolist() == ["größe", "age"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_files_with_a_byte_order_mark_are_read(run, encoding):
    table = TABLE[["area", "age", "price"]].rename(columns={"area": "größe"})
    text = table.to_csv(index=False)
    data = text.encode(encoding) if encoding != "utf-16-be" else b"\xfe\xff" + text.encode(encoding)
    Path("t.csv").write_bytes(data)
    fit = "fit t.csv --target price --rank 0 --pairs none -q"
    if encoding != "utf-8-sig":
        assert "--encoding utf-16" in run(fit, 1).err
        fit += " --encoding utf-16"
    run(fit)
    assert load("model.safetensors").feature_names_in_.tolist() == ["größe", "age"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_there_is_a_model_ends_in_one_line(tmp_path, number):
    argv = ["fit", "-", "--format", "csv", "--target", "price", "-o", "m.st"]
    process = subprocess.Popen(
        [sys.executable, "-m", "quadlin", *argv],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    rows = USED.to_csv(index=False).encode()
    # More than a pipe holds: once it is written, the command is reading, and waits for the rest.
    process.stdin.write(rows + b"".join(rows.splitlines(keepends=True)[1:]) * 20)
    process.stdin.flush()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == b""
    assert err.count(b"\n") == 1
    assert b"Traceback" not in err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("module", ["typing", "numpy"])
def test_ctrl_c_during_imports_ends_in_one_line(tmp_path, module):
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit('too late')\n"
    (tmp_path / f"{module}.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = shell("fit", "t.csv", "--target", "y", env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (130, b"", 1)
