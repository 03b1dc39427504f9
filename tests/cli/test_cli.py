"""The command line, as a user meets it."""

import importlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from quadlin import SecondOrderRegressor
from quadlin.cli import main, progress
from quadlin.cli.app import COMMANDS
from quadlin.cli.options import join_names, split_names
from quadlin.cli.printing import aligned, json_value, message_text
from quadlin.data import open_source
from quadlin.export.model_file import load
from quadlin.paper import demo


def frame(n=1200, seed=0):
    rng = np.random.default_rng(seed)
    city = rng.choice(["Oslo", "Rome", "Bonn"], n)
    area, age = rng.gamma(4, 25, n), rng.uniform(0, 100, n)
    garden = (rng.random(n) < 0.3).astype(float)
    price = 50 + 2 * area - 0.5 * age + 0.02 * area * age + 30 * garden * (city == "Rome")
    return {
        "id": np.arange(n),
        "city": city,
        "area": area,
        "age": age,
        "garden": garden,
        "price": price + rng.normal(0, 5, n),
    }


COLUMNS = "city,area,age,garden"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with tables and a model, which no test changes."""
    home = tmp_path_factory.mktemp("cli")
    table = pa.table(frame())
    pa.csv.write_csv(table, home / "houses.csv")
    pa.parquet.write_table(table, home / "houses.parquet")
    area = [None if i % 50 == 3 else v for i, v in enumerate(table["area"].to_pylist())]
    gaps = table.set_column(2, "area", pa.array(area))
    pa.csv.write_csv(gaps, home / "gaps.csv")
    pa.csv.write_csv(table.select(["area", "age", "garden", "price"]), home / "numbers.csv")
    pa.csv.write_csv(table.drop_columns(["price"]), home / "new.csv")
    pa.csv.write_csv(
        table.select(["area", "age", "price"]),
        home / "bare.csv",
        pa.csv.WriteOptions(include_header=False),
    )
    code = main(
        [
            *("fit", str(home / "houses.csv"), "--target", "price", "--columns", COLUMNS),
            *("--rank", "2", "--uncertainty", "-q", "-o", str(home / "model.safetensors")),
        ]
    )
    assert code == 0
    return home


@pytest.fixture
def quadlin(folder, tmp_path, monkeypatch, capsys):
    """Run a command in a folder of its own; F/ is the folder of tables."""
    monkeypatch.chdir(tmp_path)
    os.symlink(folder, tmp_path / "F")

    def run(line, code=0):
        capsys.readouterr()
        status = main(line.split())
        out, err = capsys.readouterr()
        assert status == code, err
        assert "Traceback" not in err
        return out if code == 0 else err

    run.capsys = capsys
    return run


def shell(*argv, **more):
    return subprocess.run(
        [sys.executable, "-m", "quadlin", *argv], capture_output=True, timeout=60, **more
    )


def test_help_tells_of_every_command_and_of_exit_codes():
    done = shell("--help")
    text = done.stdout.decode()
    assert done.returncode == 0
    assert all(command in text for command in COMMANDS)
    assert "Exit codes" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_an_example(quadlin, command):
    text = quadlin(f"{command} --help")
    assert f"quadlin {command}" in text.split("╭")[0].split("Usage")[1].split("\n", 1)[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_text_of_a_command_fits_a_terminal_of_80_columns(command):
    about = getattr(importlib.import_module(COMMANDS[command][0]), command).__doc__
    about = about.split("Parameters\n")[0]
    assert max(len(line.removeprefix("    ")) for line in about.splitlines()) < 80


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_of_commands_repeats_the_first_line_of_their_help(command):
    module, summary = COMMANDS[command]
    assert getattr(importlib.import_module(module), command).__doc__.splitlines()[0] == summary


def test_help_does_not_load_the_libraries_of_the_commands():
    code = (
        "import sys; from quadlin.cli import main; main(['--help']); "
        "sys.exit(repr({'numpy', 'scipy', 'sklearn', 'pyarrow', 'pandas'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.stderr.decode().strip() == "set()"


def closed_pipe(*argv):
    """Run a command whose output nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        return subprocess.run(
            [sys.executable, "-m", "quadlin", *argv],
            stdout=output,
            stderr=subprocess.PIPE,
            timeout=60,
        )


def test_output_that_nobody_reads_is_no_error(folder):
    for argv in (["--help"], ["inspect", str(folder / "model.safetensors")]):
        done = closed_pipe(*argv)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("module", ["typing", "cyclopts", "numpy", "sklearn"])
def test_ctrl_c_during_imports_ends_in_one_line(tmp_path, module):
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit('too late')\n"
    (tmp_path / f"{module}.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = shell("fit", "rows.csv", "--target", "y", env={**os.environ, "PYTHONPATH": path})
    expected = (130, b"", b"quadlin: Stopped; nothing was saved.\n")
    assert (done.returncode, done.stdout, done.stderr) == expected


def test_without_its_dependencies_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    assert main(["--help"]) == 1
    assert 'pip install "quadlin[cli]"' in capsys.readouterr().err


def test_what_an_export_misses_is_named_with_how_to_install_it(quadlin, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    told = quadlin("export F/model.safetensors -o m.onnx", 1)
    assert 'ONNX models need onnx: pip install "quadlin[onnx]"' in told


def test_the_fit_is_that_of_the_estimator(quadlin, folder):
    printed = json.loads(
        quadlin(f"fit F/houses.csv --target price --columns {COLUMNS} --rank 2 --json -o m.st")
    )
    assert printed["rank"] == 2
    assert printed["status"] == "converged"
    source = open_source(str(folder / "houses.csv"), target="price", columns=COLUMNS.split(","))
    in_python = SecondOrderRegressor(rank=2, random_state=0).fit(source)
    np.testing.assert_array_equal(load("m.st").predict(source), in_python.predict(source))


def test_the_rank_is_chosen_by_default(quadlin):
    text = quadlin("fit F/numbers.csv --target price")
    assert "converged" in text
    assert load("model.safetensors").rank == "auto"


def test_options_reach_the_estimator(quadlin):
    quadlin(
        "fit F/numbers.csv --target price --rank 1 --alpha 0.5,2 --diagonal zero --loss huber "
        "--psd --whiten none --max-iter 7 --tol 1e-3 --batch-size 99 --random-state 3 --weight age "
        "--max-memory minimal"
    )
    params = load("model.safetensors").get_params()
    wanted = {"alpha": (0.5, 2.0), "diagonal": "zero", "loss": "huber", "psd": True, "rank": 1}
    wanted |= {"whiten": "none", "max_iter": 7, "tol": 1e-3, "batch_size": 99, "random_state": 3}
    wanted |= {"max_memory": "minimal"}
    assert {name: params[name] for name in wanted} == wanted
    assert load("model.safetensors").n_features_in_ == 2
    quadlin("fit F/numbers.csv --target price --rank 1 --no-polish")
    assert load("model.safetensors").polish is False
    for text, wanted in {"none": None, "0.5": 0.5, "auto": "auto"}.items():
        quadlin(f"fit F/numbers.csv --target price --rank 1 --rarity {text}")
        assert load("model.safetensors").rarity == wanted


def test_pairs_are_given_as_words_numbers_and_names(quadlin):
    fit = "fit F/houses.csv --target price --columns city,area,age,garden --rank 0 -q"
    for text, wanted in {
        "none": None,
        "1": 1,
        "area:age,age:age": [["area", "age"], ["age"] * 2],
    }.items():
        quadlin(f"{fit} --pairs {text}")
        given = load("model.safetensors").pairs
        assert (given if wanted is None or wanted == 1 else [*map(list, given)]) == wanted
    quadlin(f"{fit} --pairs area:age,garden:city=Rome --hierarchy weak")
    model = load("model.safetensors")
    assert model.hierarchy == "weak"
    # the truth of the table: 0.02·area·age + 30·garden in Rome, noise 5
    a, b = (model.pairs_.pairs[m].coefficient for m in (0, 1))
    assert abs(a - 0.02) < 0.002
    assert abs(b - 30) < 4
    told = json.loads(quadlin(f"{fit} --pairs 5 --json"))["pairs"]
    assert {(p["first"], p["second"]) for p in told} == {
        ("area", "age"),
        ("city=Rome", "garden"),
    }


def test_the_pairs_that_interact_are_printed(quadlin):
    line = "pairs F/houses.csv --target price --exclude id"
    text = quadlin(line)
    assert "2 pairs among" in text
    assert "area × age" in text
    half = json.loads(quadlin(f"{line} --test-on half --max-pairs 1 --no-squares --json"))
    assert half["at_limit"]
    assert half["test_on"] == "half"
    assert [p["order"] for p in half["pairs"]] == [1]


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--alpha 300",
        "--alpha 0,300 --hold 0",
        "--loss huber --rank 2",
        "--no-intercept",
        "--cv",
    ],
)
def test_the_r2_of_the_training_rows_is_what_evaluate_says(quadlin, options):
    Path("few.csv").write_text("".join(Path("F/numbers.csv").read_text().splitlines(True)[:300]))
    weights = "--target price --weight age"
    fitted = json.loads(quadlin(f"fit few.csv {weights} --columns area,garden {options} --json"))
    evaluated = json.loads(quadlin(f"evaluate model.safetensors few.csv {weights} --json"))
    assert fitted["r2_train"] == pytest.approx(evaluated["r2"], abs=1e-9)


def test_the_linear_term_and_the_intercept_can_be_left_out(quadlin):
    quadlin("fit F/numbers.csv --target price --rank 2 --no-linear --no-intercept")
    model = load("model.safetensors")
    assert (model.fit_linear, model.fit_intercept) == (False, False)
    assert not np.any(model.coef_)
    assert model.intercept_ == 0


@pytest.mark.parametrize("options", ["--rank 1", "--rank 1 --hold 0", "--cv"])
def test_a_fit_warns_of_columns_that_number_the_rows(quadlin, options):
    Path("few.csv").write_text("".join(Path("F/houses.csv").read_text().splitlines(True)[:200]))
    capsys = quadlin.capsys
    for chosen, warned in (("", True), ("--columns id,area", False)):
        assert main(f"fit few.csv --target price {chosen} {options} -q".split()) == 0
        err = capsys.readouterr().err
        assert ("warning: id: whole numbers that increase" in err) == warned
        assert ("--exclude id\n" in err) == warned


def test_threads_fit_the_same_model(quadlin):
    for engine in ("serial", "threads", "2"):
        quadlin(f"fit F/houses.parquet --target price --rank 1 --engine {engine} -o {engine}.st")
    coefs = [load(f"{engine}.st").coef_ for engine in ("serial", "threads", "2")]
    np.testing.assert_allclose(coefs[1], coefs[0], rtol=1e-6)
    np.testing.assert_allclose(coefs[2], coefs[0], rtol=1e-6)


def test_cross_validation_keeps_names_and_levels(quadlin):
    quadlin(f"fit F/gaps.csv --target price --columns {COLUMNS} --missing mean --cv -o cv.st")
    model = load("cv.st")
    assert model.encoder_.input_names == tuple(COLUMNS.split(","))
    assert model.fill_.keys() == {"area", "age", "garden"}
    scores = json.loads(quadlin("evaluate cv.st F/gaps.csv --target price --json"))
    assert scores["r2"] > 0.9


def test_cross_validation_tells_the_noise_of_rows_that_are_complete(quadlin):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(300, 3)).round(4), columns=[*"abc"]).assign(one=1.0)
    y = 3 * X.a + X.b + rng.standard_normal(300)
    X = X.mask(rng.random(X.shape) < np.array([0.2, 0.1, 0.0, 0.0]))
    X.assign(y=y).to_csv("t.csv", index=False)
    quadlin("fit t.csv --target y --missing mean --cv --uncertainty -o cv.st")
    quadlin("fit t.csv --target y --missing mean --rank 0 --uncertainty -o m.st")
    # The noise is 1, known to 5% from 216 complete rows; of an average row it is 1.7.
    assert load("cv.st").noise_ == pytest.approx(1.0, rel=0.15)
    assert load("cv.st").noise_ == pytest.approx(load("m.st").noise_, rel=0.1)


def test_missing_values_are_filled_with_the_means_of_the_fit(quadlin):
    quadlin(f"fit F/gaps.csv --target price --columns {COLUMNS} --missing mean --rank 1 -o m.st")
    fill = load("m.st").fill_
    assert fill["area"] == pytest.approx(np.nanmean(np.array(fill["area"])))
    one = "city,area,age,garden\nOslo,,50,0\nOslo,{},50,0\n".format(repr(fill["area"]))
    Path("one.csv").write_text(one)
    lines = quadlin("predict m.st one.csv -o -").splitlines()
    assert lines[0] == "prediction"
    assert lines[1] == lines[2]


def test_rows_with_missing_values_are_dropped_or_refused(quadlin):
    err = quadlin("fit F/gaps.csv --target price", code=1)
    assert "'area' contains NaN" in err
    assert "--missing drop or --missing mean" in err
    printed = json.loads(quadlin("fit F/gaps.csv --target price --missing drop --rank 1 --json"))
    assert printed["dropped"] == 24
    assert printed["rows"] == 1176
    err = quadlin("predict F/model.safetensors F/gaps.csv -o p.csv", code=1)
    assert "row 3" in err
    assert not os.path.exists("p.csv")


def read_predictions(path):
    if path.endswith(".npy"):
        return np.load(path)
    table = pa.csv.read_csv(path) if path.endswith(".csv") else pa.parquet.read_table(path)
    return np.column_stack([table[name].to_numpy() for name in table.column_names])


@pytest.mark.parametrize("output", ["p.csv", "p.parquet", "p.npy"])
def test_predictions_are_those_of_the_model(quadlin, folder, output):
    model = load(folder / "model.safetensors")
    source = open_source(str(folder / "houses.csv"), encoder=model.encoder_)
    y, std = model.predict(source, return_std=True)
    assert "1,200 predictions" in quadlin(f"predict F/model.safetensors F/houses.csv -o {output}")
    np.testing.assert_array_equal(read_predictions(output).reshape(-1), y)
    quadlin(f"predict F/model.safetensors F/houses.parquet --std -o {output} --json")
    np.testing.assert_array_equal(read_predictions(output), np.column_stack([y, std]))
    quadlin(f"predict F/model.safetensors F/houses.csv --interval 0.9 -o {output}")
    ends = np.column_stack([y, *model.predict_interval(source, 0.9)])
    np.testing.assert_array_equal(read_predictions(output), ends)
    assert sorted(os.listdir()) == ["F", output]


def test_columns_are_kept_beside_the_predictions(quadlin):
    head, *rows = Path("F/gaps.csv").read_text().splitlines()
    rows = [f'{row},"N° {i:04d}, ""new"""' for i, row in enumerate(rows)]
    Path("t.csv").write_text("\n".join([f'{head},"its name"', *rows]))
    for output in ("p.csv", "p.parquet"):
        line = f"predict F/model.safetensors t.csv --missing drop --std -o {output}"
        quadlin(line)
        alone = read_predictions(output)
        assert main([*line.split(), "--keep", "its name,id,area"]) == 0
        read = pa.csv.read_csv if output == "p.csv" else pa.parquet.read_table
        table = read(output)
        assert table.column_names == ["its name", "id", "area", "prediction", "std"]
        left = [i for i in range(1200) if i % 50 != 3]
        assert table["its name"].to_pylist() == [f'N° {i:04d}, "new"' for i in left]
        assert [int(v) for v in table["id"].to_pylist()] == left
        np.testing.assert_array_equal(table["prediction"], alone[:, 0])
        np.testing.assert_array_equal(table["std"], alone[:, 1])
    lines = quadlin("predict F/model.safetensors F/houses.csv --keep id -o -").splitlines()
    assert lines[0] == "id,prediction"
    assert lines[1200].startswith("1199,")


def test_what_is_kept_is_written_as_it_comes(quadlin, monkeypatch):
    monkeypatch.setattr("quadlin.data.sources.source.BLOCK_ELEMENTS", 400)  # chunks of 100 rows
    monkeypatch.setattr("quadlin.cli.outputs.ROW_GROUP", 150)
    quadlin("predict F/model.safetensors F/houses.parquet --keep id -o p.parquet")
    groups = pa.parquet.ParquetFile("p.parquet").metadata
    assert {groups.row_group(i).num_rows for i in range(groups.num_row_groups)} == {200}
    assert pa.parquet.read_table("p.parquet")["id"].to_pylist() == list(range(1200))


def test_what_csv_cannot_hold_is_kept_in_parquet_only(quadlin):
    table = pa.table(frame(8)).append_column("day", pa.array([19000] * 8, pa.date32()))
    table = table.append_column("list", pa.array([[1]] * 8)).append_column("std", table["id"])
    pa.parquet.write_table(table, "t.parquet")
    line = "predict F/model.safetensors t.parquet"
    assert "2022-01-08," in quadlin(f"{line} --keep day -o -")
    assert "Write a .parquet file" in quadlin(f"{line} --keep list -o p.csv", 1)
    quadlin(f"{line} --keep list,std -o p.parquet")
    assert pa.parquet.read_table("p.parquet")["list"].to_pylist() == [[1]] * 8
    assert "--keep std would be" in quadlin(f"{line} --std --keep std -o p.parquet", 2)
    assert "--interval 95 must lie" in quadlin(f"{line} --interval 95 -o p.parquet", 2)
    assert sorted(os.listdir()) == ["F", "p.parquet", "t.parquet"]


@pytest.mark.parametrize("output", ["p.csv", "-"])
def test_what_cannot_be_predicted_leaves_no_output(quadlin, output):
    quadlin("fit F/numbers.csv --target price --rank 1 -o m.st")
    lines = Path("F/numbers.csv").read_text().splitlines()
    Path("text.csv").write_text("\n".join([lines[0], *("big" + line for line in lines[1:])]))
    Path("gap.csv").write_text(f"{lines[0]}\n,1,1,1\n")
    np.save("three.npy", np.ones((3, 3)))
    for line, words in (
        ("m.st text.csv", "area holds text, but the model was fitted to numbers."),
        ("m.st gap.csv", "--missing drop"),
        ("F/model.safetensors three.npy", "the model has text columns: it needs city, area"),
    ):
        assert main([*f"predict {line} -o {output}".split()]) == 1
        out, err = quadlin.capsys.readouterr()
        assert words in err
        assert "model." not in err.replace("model.safetensors", "")
        assert out == ""
        assert not Path("p.csv").exists()


@pytest.mark.parametrize("way", ["", "--cv "])
def test_gross_errors_choose_no_rank_with_hubers_loss(quadlin, way):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(150)
    y = np.where(np.arange(150) % 50 == 7, 1e5, x**2)
    Path("gross.csv").write_text("\n".join(["x,y", *map("{},{}".format, x, y)]))
    quadlin(f"fit gross.csv --target y {way}--loss huber -o gross.st")
    model = load("gross.st")
    assert (model.loss, model.rank_) == ("huber", 1)
    assert abs(model.predict([[2.0]])[0] - 4) < 0.1


def test_levels_that_the_model_does_not_know_are_told(quadlin):
    Path("new.csv").write_text("city,area,age,garden\nParis,80,50,0\nOslo,80,50,0\n")
    printed = json.loads(quadlin("predict F/model.safetensors new.csv -o p.csv --json"))
    assert printed == {
        "output": "p.csv",
        "rows": 2,
        "dropped": 0,
        "unseen_levels": {"city": 1},
        "missing_text": {},
    }
    main(["predict", "F/model.safetensors", "new.csv", "-o", "p.csv"])
    assert "warning: Levels that fit did not see are treated" in quadlin.capsys.readouterr().err


def test_evaluation_agrees_with_scikit_learn(quadlin, folder):
    scores = json.loads(quadlin("evaluate F/model.safetensors F/houses.csv --target price --json"))
    model = load(folder / "model.safetensors")
    source = open_source(str(folder / "houses.csv"), target="price", encoder=model.encoder_)
    y, f = np.concatenate([chunk.y for chunk in source]), model.predict(source)
    assert scores["rows"] == 1200
    assert scores["r2"] == pytest.approx(1 - np.sum((f - y) ** 2) / np.sum((y - y.mean()) ** 2))
    assert scores["nmse"] == pytest.approx(1 - scores["r2"])
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((f - y) ** 2)))
    assert scores["mae"] == pytest.approx(np.mean(np.abs(f - y)))
    assert scores["rmse_constant"] == pytest.approx(y.std())
    assert 0.92 < scores["coverage_95"] < 0.98
    assert "coverage" in quadlin("evaluate F/model.safetensors F/houses.csv --target price")


def test_a_constant_target_is_told_and_scored_by_null(quadlin):
    rows = "".join(f"{i * i % 7},{i % 5},3\n" for i in range(40))
    Path("constant.csv").write_text("a,b,y\n" + rows)
    assert main(["fit", "constant.csv", "--target", "y", "-o", "c.st"]) == 0
    assert "The target is 3 in every row" in quadlin.capsys.readouterr().err
    scores = json.loads(quadlin("evaluate c.st constant.csv --target y --json"))
    assert scores["r2"] is None
    assert scores["nmse"] is None
    assert scores["rmse"] == pytest.approx(0, abs=1e-12)
    text = quadlin("evaluate c.st constant.csv --target y")
    assert re.search(r"R² +none  not defined: the target is the same in all these rows", text)
    assert "nan" not in text
    text = quadlin("fit constant.csv --target y -o c.st")
    assert "none: not defined for a constant target" in text
    assert "nothing to learn" in quadlin("check constant.csv --target y")


def test_a_model_is_shown_with_names_and_errors(quadlin):
    text = quadlin("inspect F/model.safetensors --top 4")
    assert "area × age" in text
    assert "±" in text
    assert "status: converged" in text
    printed = json.loads(quadlin("inspect F/model.safetensors --json --top 3"))
    assert len(printed["interactions"]) == len(printed["linear"]) == 3
    assert printed["interactions"][0]["std_error"] > 0
    assert printed["rank"] == len(printed["eigenvalues"]) == 2
    assert printed["history"][-1]["passes"] > 1


EVIL = "a\x1b[31mb\nc\x9bd\u202ee\u2028f"
SAFE = r"a\x1b[31mb\nc\x9bd\u202ee\u2028f"
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


def test_control_characters_of_names_levels_and_files_are_never_printed(quadlin):
    table = frame(300)
    levels = [EVIL if city == "Rome" else city for city in table["city"]]
    rows = {EVIL: table["area"], "level": levels, "y": table["price"]}
    file = f"{EVIL}.parquet"
    pa.parquet.write_table(pa.table(rows), file)

    def outputs(*argv):
        code = main([str(part) for part in argv])
        out, err = quadlin.capsys.readouterr()
        assert not UNSAFE.search(out + err), argv
        assert all(len(line) < 400 for line in err.splitlines())
        return code, out, err

    code, out, _ = outputs("check", file, "--target", "y")
    assert code == 0
    assert f"file {SAFE}.parquet" in out
    assert f"level={SAFE}" in out
    assert outputs("fit", file, "--target", "y", "--rank", 1, "-o", f"{EVIL}.st")[0] == 0
    _, out, _ = outputs("inspect", f"{EVIL}.st", "--html", "page.html")
    assert SAFE in out
    assert f"level={SAFE}" in out
    page = Path("page.html").read_text()
    assert not UNSAFE.search(page)
    assert SAFE in page
    _, out, _ = outputs("inspect", f"{EVIL}.st", "--json")
    assert EVIL in [term["feature"] for term in json.loads(out)["linear"]]
    for argv, words in (
        (["fit", file, "--target", EVIL + "?"], "has no column"),
        (["fit", EVIL + ".csv", "--target", "y"], "No file matches"),
        (["fit", file], "with --target"),
        (["predict", f"{EVIL}.st", file, "--keep", EVIL + "!", "-o", "p.csv"], "has no column"),
        (["inspect", EVIL], "There is no model"),
        (["fit", file, EVIL], "Unexpected argument"),
        (["fit", file, "--target", "y", "--config", EVIL], "no configuration file"),
    ):
        code, out, err = outputs(*argv)
        assert code in (1, 2)
        assert words in err
        assert err.count("\n") == 1


def test_the_bars_of_a_page_grow_to_their_own_side(quadlin):
    quadlin("inspect F/model.safetensors --html page.html -q")
    page = Path("page.html").read_text()
    model = json.loads(quadlin("inspect F/model.safetensors --json"))
    signs = [term["strength"] for kind in ("interactions", "linear") for term in model[kind]]
    signs += model["eigenvalues"]
    bars = re.findall(r'class="bar (positive|negative)"\s+style="width: ([\d.]+)%"', page)
    assert [side == "positive" for side, _ in bars] == [value > 0 for value in signs]
    assert max(float(width) for _, width in bars) == 50  # half of the track, from its centre
    assert "lowers the prediction" in page


def test_a_model_is_inspected_with_rows_that_it_has_not_seen(quadlin):
    rows = "F/model.safetensors F/gaps.csv --target price --missing drop"
    seen = json.loads(quadlin("inspect F/model.safetensors --json"))
    content = json.loads(quadlin(f"inspect {rows} --json --html page.html"))
    assert content["r2"] == pytest.approx(json.loads(quadlin(f"evaluate {rows} --json"))["r2"])
    assert content["r2_of"] == "on the rows given"
    assert seen["r2_of"] == "on the fitted rows (training)"
    assert "rows given" in content["effects"]["rows"]
    page = Path("page.html").read_text()
    assert "price = b + xᵀw + xᵀMx" in page
    assert page.count("data:image/png") == 3
    without = "inspect F/model.safetensors F/gaps.csv --missing drop --json"
    assert json.loads(quadlin(without))["r2"] == content["r2"]  # the model knows its target
    assert "no column 'price' for" in quadlin("inspect F/model.safetensors F/new.csv", 1)
    assert "is an input" in quadlin(f"inspect {rows} --html F/gaps.csv", 2)


def test_a_page_of_a_model_stands_alone_and_escapes_names(quadlin):
    evil = "<script>alert(1)</script>&"
    table = frame(300)
    pa.parquet.write_table(
        pa.table({evil: table["area"], "b": table["age"], "y": table["price"]}), "evil.parquet"
    )
    quadlin("fit evil.parquet --target y --rank 1 -o evil.st")
    quadlin("inspect evil.st --html evil.html -q")
    page = Path("evil.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in page
    assert "http" not in page


def test_an_onnx_graph_predicts_the_same(quadlin, folder):
    runtime = pytest.importorskip("onnxruntime")
    assert "to y" in quadlin("export F/model.safetensors -o model.onnx")
    session = runtime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    table = frame()
    feed = {name: table[name][:5] for name in COLUMNS.split(",")}
    feed["city"] = feed["city"].astype(object)
    model = load(folder / "model.safetensors")
    source = open_source(str(folder / "houses.csv"), encoder=model.encoder_)
    np.testing.assert_allclose(session.run(None, feed)[0], model.predict(source)[:5], rtol=1e-9)


def codes(name):
    """Write a table whose target depends on a store, by its number, and on a size."""
    rng = np.random.default_rng(0)
    store, size = rng.integers(1, 21, 500), rng.integers(1, 9, 500)
    effect = rng.normal(0, 3, 21)
    with open(name, "w") as file:
        file.write("store, size, y\n")
        for a, b, e in zip(store, size, rng.normal(size=500), strict=True):
            file.write(f"{a}, {b}, {effect[a] + b + e:.3f}\n")


def test_columns_of_codes_are_named_and_become_levels(quadlin):
    codes("t.csv")
    printed = json.loads(quadlin("check t.csv --target y --json"))
    assert printed["code_columns"] == ["store"]
    assert "--categorical store" in printed["command"]
    assert main(["fit", "t.csv", "--target", "y", "--rank", "0"]) == 0
    err = quadlin.capsys.readouterr().err
    assert "warning: store: whole numbers that look like ids or codes" in err
    assert "--categorical store; to leave them out: --exclude store\n" in err
    assert main(["fit", "t.csv", "--target", "y", "--rank", "0", "--categorical", "store"]) == 0
    assert "ids or codes" not in quadlin.capsys.readouterr().err
    model = load("model.safetensors")
    assert model.categorical_features == ["store"]
    assert len(model.encoder_.levels[0]) == 20
    assert json.loads(quadlin("evaluate model.safetensors t.csv --json"))["r2"] > 0.9
    quadlin("fit t.csv --target y --rank 0 --categorical store --exclude size")
    assert load("model.safetensors").feature_names_in_.tolist() == ["store"]


def test_lists_of_names_may_be_repeated(quadlin):
    quadlin("fit F/houses.csv --target price --rank 0 --exclude id,city --exclude garden")
    assert load("model.safetensors").feature_names_in_.tolist() == ["area", "age"]


def test_a_file_without_a_header_is_fitted_and_predicted(quadlin):
    quadlin("fit F/bare.csv --no-header --target x2 --rank 1")
    scores = json.loads(quadlin("evaluate model.safetensors F/bare.csv --no-header --json"))
    assert scores["rows"] == 1200
    assert quadlin("predict model.safetensors F/bare.csv --no-header -o -").count("\n") == 1201


def test_marks_of_missing_values_are_told_and_given(quadlin):
    rows = "".join(f"{'?' if i % 9 == 4 else i % 7},{'-' if i == 3 else i % 5},{i % 3}\n"
                   for i in range(60))  # fmt: skip
    Path("t.csv").write_text("a,b,y\n" + rows)
    text = quadlin("check t.csv --target y")
    assert "note  reading" in text
    assert "Give --na '?,-' to declare which" in text
    assert "--na '?,-'" in text.splitlines()[-1]  # the command to try
    assert "--na '?,-' to declare" in quadlin("fit t.csv --target y", 1)
    for given in ("--na ?,-", "--na ? --na -", "--na=- --na=?"):
        assert main(f"fit t.csv --target y --missing mean --rank 0 {given}".split()) == 0
        assert "missing values" not in quadlin.capsys.readouterr().err
        model = load("model.safetensors")
        assert model.feature_names_in_.tolist() == ["a", "b"]
        assert sorted(model.fitted_.columns.csv.na) == ["-", "?"]
        for line in (
            "evaluate model.safetensors t.csv",
            "predict model.safetensors t.csv -o p.csv",
        ):
            assert main(line.split()) == 0
            assert "missing values" not in quadlin.capsys.readouterr().err
    assert (
        main(["fit", "t.csv", "--target", "y", "--missing", "mean", "--rank", "0", "--na", "?"])
        == 0
    )
    assert load("model.safetensors").encoder_.names[1].startswith("b=")


def test_a_model_fitted_with_means_fills_frames_in_python_too(quadlin):
    quadlin("fit F/gaps.csv --target price --columns area,age --rank 1 --missing mean")
    model = load("model.safetensors")
    assert model.missing == "mean"
    mean = model.fill_["area"]
    np.testing.assert_array_equal(model.predict([[np.nan, 3.0]]), model.predict([[mean, 3.0]]))


def test_a_table_is_checked_in_words_and_the_advice_runs(quadlin):
    text = quadlin("check F/gaps.csv --target price")
    assert "24 of 1,200 rows have a missing value (area 24)" in text
    assert "id: identifiers or numbers of the rows, or empty." in text
    command = text.splitlines()[-1].split("quadlin ")[1]
    assert "--exclude id --missing drop" in command
    quadlin(command)


def test_a_check_finds_what_is_wrong_with_features(quadlin):
    rng = np.random.default_rng(0)
    n = 500
    x = rng.standard_normal(n)
    table = {
        "x": x,
        "twin": x + 1e-3 * rng.standard_normal(n),
        "same": np.ones(n),
        "flag": (rng.random(n) < 0.5).astype(float),
        "heavy": np.exp(3 * rng.standard_normal(n)),
        "name": [f"customer {i}" for i in range(n)],
        "level": ["rare" if i < 3 else "often" for i in range(n)],
        "y": x**2 + np.exp(4 * rng.standard_normal(n)),
    }
    pa.parquet.write_table(pa.table(table), "odd.parquet")
    printed = json.loads(quadlin("check odd.parquet --target y --json"))
    assert printed["useless_columns"] == ["name"]
    assert printed["correlated_pairs"][0]["r"] > 0.99
    assert printed["heavy_tails"] == ["heavy"]
    assert printed["kinds_of_features"]["constant"] == 1
    texts = {item["topic"]: item["text"] for item in printed["findings"]}
    assert "level=rare" in texts["levels"]
    assert "--loss huber" in printed["command"]
    assert "--exclude name" in printed["command"]


def test_a_check_survives_a_table_without_a_complete_row(quadlin):
    rows = "".join(f"{i % 7},,{i}\n" if i % 2 else f",{i % 5},{i}\n" for i in range(40))
    Path("holes.csv").write_text("a,b,y\n" + rows)
    printed = json.loads(quadlin("check holes.csv --target y --json"))
    assert printed["missing"] == {"a": 20, "b": 20}
    assert printed["complete_rows"] == 0
    quadlin(printed["command"].removeprefix("quadlin "))


def test_a_check_leaves_out_a_column_without_values(quadlin):
    rows = "".join(f"{i * i % 7},{i % 5},,{i % 11}\n" for i in range(300))
    Path("hollow.csv").write_text('"a,1",b,void,y\n' + rows)
    printed = json.loads(quadlin("check hollow.csv --target y --json"))
    assert printed["useless_columns"] == ["void"]
    assert printed["complete_rows"] == 300
    assert main(shlex.split(printed["command"])[1:]) == 0
    assert load("model.safetensors").feature_names_in_.tolist() == ["a,1", "b"]


def test_svmlight_and_numpy_files_are_fitted_and_checked(quadlin):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = X[:, 0] * X[:, 1]
    np.save("X.npy", X)
    np.save("y.npy", y)
    rows = (" ".join(f"{j + 1}:{v!r}" for j, v in enumerate(row)) for row in X.tolist())
    Path("rows.svm").write_text(
        "".join(f"{t!r} {row}\n" for t, row in zip(y.tolist(), rows, strict=True))
    )
    for line in ("X.npy --target y.npy", "rows.svm"):
        assert "Enough up to" in quadlin(f"check {line}")
        quadlin(f"fit {line} --rank 2 -o m.st")
        scores = json.loads(quadlin(f"evaluate m.st {line} --json"))
        assert scores["r2"] > 0.999


def test_rows_come_and_predictions_go_through_pipes(folder, tmp_path):
    data = (folder / "numbers.csv").read_bytes()
    model = str(tmp_path / "m.st")
    done = shell("fit", "-", "--format", "csv", "--target", "price", "-o", model, input=data)
    assert done.returncode == 0, done.stderr
    done = shell("predict", model, "-", "--format", "csv", "-o", "-", input=data)
    assert done.returncode == 0, done.stderr
    y = np.array(done.stdout.decode().split()[1:], dtype=float)
    source = open_source(str(folder / "numbers.csv"), target="price")
    in_python = SecondOrderRegressor(random_state=0).partial_fit(source)
    np.testing.assert_array_equal(y, in_python.predict(source))


def test_text_and_means_of_the_standard_input_are_those_of_a_file(folder, tmp_path):
    rows, model = folder / "houses.csv", str(tmp_path / "m.st")
    for more in ("--target price --missing mean", "--target city --missing drop"):
        line = f"{more} --exclude id --rank 1".split()
        done = shell("fit", "-", "--format", "csv", *line, "-o", model, input=rows.read_bytes())
        assert done.returncode == 0, done.stderr
        assert b"kept in a temporary file" in done.stderr
        assert main(["fit", str(rows), *line, "-q", "-o", str(tmp_path / "file.st")]) == 0
        models = load(model), load(tmp_path / "file.st")
        assert models[0].encoder_ == models[1].encoder_
        if "city" in more:
            models = [several.one_vs_rest("Oslo") for several in models]
        np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    line += ["--checkpoint", str(tmp_path / "c.ckpt"), "-o", model]
    done = shell("fit", "-", "--format", "csv", *line, input=rows.read_bytes())
    assert done.returncode == 2
    assert b"Save them to a file first" in done.stderr


def test_check_pairs_and_inspect_read_the_standard_input_as_a_file(folder, tmp_path):
    rows, model = folder / "houses.csv", str(tmp_path / "m.st")
    line = ["--target", "price", "--format", "csv", "--exclude", "id"]
    for command, *more in (["check", *line], ["pairs", *line]):
        piped = shell(command, "-", *more, "--json", input=rows.read_bytes())
        assert piped.returncode == 0, piped.stderr
        named = shell(command, str(rows), *more, "--json")
        answers = [json.loads(done.stdout) for done in (piped, named)]
        if command == "check":
            assert answers[0].pop("data") == "-"
            assert answers[0].pop("command").startswith("quadlin fit - --target price --format csv")
            assert [answers[1].pop(name) for name in ("data", "command")]
        assert answers[0] == answers[1]
    told = shell("check", "-", *line, input=rows.read_bytes())
    assert told.stdout.startswith(b"The standard input, 1,200 rows")
    assert b"kept in a temporary file" in told.stderr
    assert main(["fit", str(rows), *line, "-q", "-o", model]) == 0
    piped = shell("inspect", model, "-", "--format", "csv", input=rows.read_bytes())
    named = shell("inspect", model, str(rows))
    assert piped.returncode == named.returncode == 0, piped.stderr
    assert piped.stdout == named.stdout
    done = shell("check", "-", "--target", "price", input=b"a,price\n1,2\n")
    assert done.returncode == 2
    assert b"needs --format" in done.stderr


def test_inspect_says_the_score_that_fit_has_printed(folder, tmp_path):
    rng = np.random.default_rng(0)  # counts, too, whose D² has a penalty
    numbers = pd.DataFrame(rng.normal(size=(300, 3)), columns=["a", "b", "c"])
    numbers["y"] = rng.poisson(np.exp(0.5 * numbers.a * numbers.b))
    numbers.to_csv(tmp_path / "t.csv", index=False)
    houses, model = f"{folder / 'houses.csv'} --target price --exclude id", str(tmp_path / "m.st")
    plain = f"{tmp_path / 't.csv'} --target y"
    for line in (
        houses,
        f"{houses} --rank 1 --alpha 3 --pairs none",
        f"{houses} --uncertainty",
        f"{plain} --cv",
        f"{houses} --one-pass",
        plain,
        f"{plain} --loss poisson",
        f"{plain} --loss huber",
    ):
        done = shell("fit", *line.split(), "-o", model)
        assert done.returncode == 0, done.stderr
        words = done.stdout.decode()
        kind = "cross-validation" if "--cv" in line else r"training|last batch"
        printed = re.search(rf"([RD]²) \((?:{kind})\) +(\S+)", words).groups()
        shown = shell("inspect", model).stdout.decode().splitlines()[1]
        assert shown.startswith(" ".join(printed) + " "), (line, words, shown)
        if (
            "poisson" in line
        ):  # of the standard input, too, whose rows `evaluate` needs twice for it
            rows = (tmp_path / "t.csv").read_bytes()
            done = shell("evaluate", model, "-", "--format", "csv", input=rows)
            assert re.search(r"D² +(\S+)", done.stdout.decode())[1] == printed[1]


def test_what_is_noticed_on_the_standard_input_is_told_once(tmp_path):
    rows = b"a,b,y\n" + b"".join(b"%d,%d,%d\n" % (i, i * i % 7, i) for i in range(40))
    line = ["fit", "-", "--format", "csv", "--target", "y", "-o", str(tmp_path / "m.st")]
    rows = rows.replace(b"\n3,", b"\n?,")
    for missing in ("drop", "mean"):  # in one pass, and by way of a file
        done = shell(*line, "--missing", missing, input=rows)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(b"'?' for missing values") == 1


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        ("fit nothing.csv --target y", "nothing.csv does not exist", 1),
        ("fit F/houses.csv --target prise", "Did you mean 'price'?", 1),
        ("fit F/houses.csv --target price --columns aera", "Did you mean 'area'?", 1),
        ("fit F/houses.csv", "with --target; the columns are id, city", 2),
        (
            "fit F/houses.csv --target city --no-classify",
            "must be numbers. Choose a numeric column",
            1,
        ),
        ("fit F/houses.csv --target price --rank many", "not a whole number or auto", 2),
        ("fit F/houses.csv --target price --rank -3", "--rank -3 must be", 2),
        ("fit F/houses.csv --target price --tol 3", "--tol 3.0 must be", 2),
        ("fit F/houses.csv --target price --alpha 1,2,3", "--alpha 1,2,3", 2),
        ("fit F/houses.csv --target price --format xls", "--format xls", 2),
        ("fit F/houses.csv --target price --delimiter ;;", '--delimiter ";;" must be', 2),
        ("fit F/houses.csv --target price --decimal x", "--decimal x must be", 2),
        ("fit F/houses.csv --target price --encoding x", "--encoding x is unknown", 2),
        ("fit F/houses.csv --target price --delimiter ;", "give their separator with", 1),
        ("fit F/houses.parquet --target price --delimiter ;", "is not CSV: --delimiter,", 1),
        (
            "fit F/houses.csv --target price --weight price",
            "cannot be both the target and the weight",
            1,
        ),
        (
            "fit F/houses.csv --target price --columns area,price",
            "'price' cannot be both a feature and the target. Leave it out of --columns.",
            1,
        ),
        (
            "fit F/houses.csv --target price --columns area --weight area",
            "'area' cannot be both a feature and the weight. Leave it out of --columns.",
            1,
        ),
        (
            "evaluate F/model.safetensors F/houses.csv --target area",
            "'area' cannot be both a feature and the target. Name another --target.",
            1,
        ),
        ("fit F/houses.csv --target price --engine fast", "--engine fast", 2),
        ("fit F/houses.csv --target price -o no/m.st", "no folder no", 1),
        ("fit F/houses.csv --target price -o F", "is a folder", 1),
        ("fit F/houses.csv --target price -o F/houses.csv", "is an input of this command", 2),
        ("fit F/houses.csv --target price -o m.st --checkpoint m.st", "is an input of this", 2),
        ("predict F/model.safetensors F/*.csv -o F/houses.csv", "is an input of this", 2),
        ("fit F/houses.csv --target price -o m.pkl", "Use -o m.safetensors.", 2),
        ("fit F/houses.csv --target price -o m.onnx", "use quadlin export", 2),
        ("fit F/model.safetensors --target price", "is a model, not a table of rows", 2),
        ("evaluate F/model.safetensors F/model.safetensors", "is a model, not a table", 2),
        ("fit F/houses.csv --target price --hold 2.5", "'2.5' is not a whole number", 2),
        ("fit F/houses.csv --target price --features 0", "--features 0 must be", 2),
        ("inspect F/model.safetensors --top 2.5", "'2.5' is not a whole number", 2),
        ("fit F/houses.csv --target price --cv --one-pass", "--cv cannot be combined with", 2),
        (
            "fit F/houses.csv --target price --cv --rank 2",
            "--cv cannot be combined with --rank.",
            2,
        ),
        ("fit F/houses.csv --target price --one-pass --uncertainty", "--uncertainty needs", 2),
        ("fit F/houses.csv --target price --one-pass --loss huber", "--loss huber needs", 2),
        ("fit F/houses.csv --target price --pairs -2", "--pairs", 2),
        ("fit F/houses.csv --target price --pairs area", '"area" is not a pair. Give auto', 2),
        ("fit F/houses.csv --target price --pairs area:ag", "names 'ag', but the features are", 2),
        ("fit F/houses.csv --target price --pairs 2 --psd", "--pairs cannot be combined", 2),
        ("fit F/houses.csv --target price --rarity 1.5", "--rarity 1.5 must be auto, none or", 2),
        ("fit F/houses.csv --target price --rarity much", "--rarity much must be auto, none", 2),
        ("fit F/houses.csv --target price --cv --pairs 2", "combined with --pairs", 2),
        ("fit F/houses.csv --target price --hierarchy some", "--hierarchy", 2),
        ("pairs F/houses.csv --target city", "city", 1),
        ("pairs - --target price", "The standard input needs --format", 2),
        ("fit F/houses.csv --targt price", "Did you mean --target?", 2),
        ("fit - --target price", "needs --format", 2),
        ("fit", "requires an argument", 2),
        ("fitt", 'Unknown command "fitt"', 2),
        ("predict F/houses.csv F/model.safetensors -o p.csv", "is a table of rows, not a model", 2),
        ("predict nothing.st F/houses.csv -o p.csv", "There is no model nothing.st", 1),
        ("predict F/model.safetensors F/houses.csv -o p.xls", "must end in .parquet", 2),
        ("predict F/model.safetensors F/houses.csv -o - --json", "both print", 2),
        ("predict F/model.safetensors F/houses.csv --keep prise -o p.csv", "mean 'price'?", 1),
        ("predict F/model.safetensors F/houses.csv --keep id -o p.npy", "no named columns", 2),
        ("predict F/model.safetensors F/houses.csv --keep , -o p.csv", "--keep is empty", 2),
        ("predict F/model.safetensors F/numbers.csv -o p.csv", "no column 'city'", 1),
        ("evaluate F/model.safetensors F/new.csv", "no column 'price' for the target", 1),
        ("predict F/houses.csv F/model.safetensors", "is a table of rows, not a model", 2),
        ("predict F/model.safetensors F/houses.csv", "Name a file for the predictions", 2),
        ("fit F/houses.csv --target price --exclude ag", "no column 'ag' of --exclude", 1),
        ("fit F/houses.csv --target price --categorical ag", "no column 'ag' of --categorical", 1),
        (
            "fit F/houses.csv --target price --exclude id --columns area",
            "--exclude cannot be combined with --columns",
            1,
        ),
        ("fit F/bare.csv --target price", "Give --no-header if there is no header", 1),
        ("inspect F/houses.parquet", "is a table of rows, not a model file", 2),
        ("export F/model.safetensors -o model.txt", "must end in .onnx", 2),
        ("check - --target y", "The standard input needs --format", 2),
        ("fit a.csv b.csv --target y", "Unexpected argument 'b.csv': quote patterns of files", 2),
        ("fit F/houses.csv --target price -o -", "writes to a file", 2),
        ("inspect F/model.safetensors --html -", "writes to a file", 2),
        ("fit F/houses.csv --target price --config no.toml", "no configuration file no.toml", 2),
    ],
)
def test_what_goes_wrong_is_one_sentence(quadlin, line, words, code):
    err = quadlin(line, code)
    assert words in err
    assert err.startswith("quadlin: ")
    assert err.count("\n") == 1
    assert os.listdir() == ["F"]


def test_csv_of_other_countries_and_programs_is_read_or_explained(quadlin):
    rows = [
        (f"{i % 7},5", f"{i % 5}", ("Malmö", "Oslo")[i % 2], f"{i % 7 * (i % 5)},25")
        for i in range(90)
    ]
    text = "\n".join(map(";".join, [("a", "b", "stad", "y"), *rows]))
    Path("t.csv").write_text(text, encoding="latin1")
    err = quadlin("fit t.csv --target y", 1)
    assert "'a' holds numbers with commas, such as '0,5'. Give --decimal \",\"" in err
    err = quadlin("fit t.csv --target y --decimal ,", 1)
    assert (
        "'stad' of file t.csv is not UTF-8 in row 0 (counted from 0). Give --encoding latin1" in err
    )
    printed = json.loads(quadlin("check t.csv --target y --decimal , --encoding latin1 --json"))
    assert "--decimal , --encoding latin1" in printed["command"]
    assert main(shlex.split(printed["command"])[1:]) == 0
    assert "stad=Malmö" in load("model.safetensors").encoder_.names
    quadlin("predict model.safetensors t.csv --decimal , --encoding latin1 -o p.csv")
    Path("u.csv").write_text(text.replace(",", ".").replace(";", "\t"))
    assert "Give others if this table differs" in quadlin("predict model.safetensors u.csv -o -", 1)
    for delimiter in ("", " --delimiter tab", " --delimiter \\t"):
        quadlin(f"predict model.safetensors u.csv --decimal . -o q.csv{delimiter}")
        assert Path("q.csv").read_bytes() == Path("p.csv").read_bytes()


@pytest.mark.parametrize("options", ["", "--one-pass", "--loss poisson", "--cv", "--fm"])
def test_one_row_is_refused_and_two_are_warned_of(quadlin, options):
    if options == "--fm":
        options = "--fm --categorical a,b"
    Path("one.csv").write_text("a,b,y\n1,2,3\n4,5,\n")  # with a row that is left out
    Path("two.csv").write_text("a,b,y\n1,2,3\n4,5,6\n")
    told = quadlin(f"fit one.csv --target y --missing drop {options} -o m.st", 1)
    assert "a fit needs at least 2" in told or "a minimum of 2 is required" in told
    assert not Path("m.st").exists()
    assert main(f"fit two.csv --target y {options} -o m.st".split()) == 0
    assert "warning: There are only 2 rows" in quadlin.capsys.readouterr().err
    assert "1, but a fit needs at least 2" in quadlin("check one.csv --target y")


def test_an_empty_table_and_a_folder_that_may_not_be_written_are_refused(quadlin):
    Path("empty.csv").write_text("a,y\n")
    for command in ("fit", "check"):
        assert "holds no rows" in quadlin(f"{command} empty.csv --target y", 1)
    Path("unfinished.csv").write_text("a,y")
    assert "is empty or holds no rows" in quadlin("fit unfinished.csv --target y", 1)
    Path("nothing.csv").touch()
    assert "is empty" in quadlin("fit nothing.csv --target y", 1)
    os.mkdir("locked", 0o500)
    if os.access("locked", os.W_OK):
        return  # root may write anywhere
    assert "is not writable" in quadlin("fit F/houses.csv --target price -o locked/m.st", 1)


def test_standard_deviations_need_a_model_that_knows_them(quadlin):
    quadlin("fit F/numbers.csv --target price --rank 1")
    err = quadlin("predict model.safetensors F/numbers.csv --std -o p.csv", 1)
    assert "fit it with --uncertainty" in err


def test_an_empty_path_is_not_the_folder_at_hand(quadlin):
    assert main(["fit", "", "--target", "y"]) == 1
    assert "The path is empty" in quadlin.capsys.readouterr().err


def test_names_with_commas_quotes_and_spaces_go_through_the_options():
    names = ["area", "size, net", " old", 'the "new"', '"quoted"', "größe m²", 'a",b']
    assert split_names(join_names(names)) == names
    assert split_names(' area , "size, net",,year built,') == ["area", "size, net", "year built"]
    assert split_names("") == split_names(" , ") == []


def test_letters_that_a_terminal_does_not_know_are_escaped(folder):
    model = str(folder / "model.safetensors")
    done = shell("inspect", model, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert b"area \\xd7 age" in done.stdout


def test_debug_shows_where(quadlin):
    assert main(["fit", "nothing.csv", "--target", "y", "--debug"]) == 1
    assert "Traceback" in quadlin.capsys.readouterr().err


def test_warnings_are_lines(quadlin):
    line = "fit F/numbers.csv --target price --rank 3 --max-iter 1 --json"
    assert main(line.split()) == 0
    out, err = quadlin.capsys.readouterr()
    assert json.loads(out)["status"] == "out_of_steps"
    assert err == (
        "warning: out_of_steps: All --max-iter steps were used while the objective was still "
        "falling. "
        "Raise --max-iter.\n"
    )


def test_a_configuration_file_gives_options_and_the_command_line_wins(quadlin):
    Path("q.toml").write_text(
        '[fit]\ntarget = "price"\nrank = 1\noutput = "c.st"\nmax-iter = 9\n[inspect]\ntop = 2\n'
    )
    quadlin("fit F/numbers.csv --config q.toml --max-iter 8")
    model = load("c.st")
    assert (model.rank, model.max_iter) == (1, 8)
    assert len(json.loads(quadlin("inspect c.st --config q.toml --json"))["linear"]) == 2
    Path("bad.toml").write_text("[fit]\nrnak = 1\n")
    err = quadlin("fit F/numbers.csv --target price --config bad.toml", 2)
    assert "rnak" in err
    assert "bad.toml" in err
    Path("bad.toml").write_text("[fitt]\nrank = 1\n")
    err = quadlin("fit F/numbers.csv --target price --config bad.toml", 2)
    assert "'fitt', which is not a command" in err
    for text, words in (
        ("[fit\n", "bad.toml is not valid TOML"),
        ("fit = 3\n", "'fit', which is not a command"),
        ("[fit]\ncolumns = [[1]]\n", "columns may list names and numbers only"),
        ("[fit]\nrank = [1, 2]\n", "'1,2' is not a whole number"),
    ):
        Path("bad.toml").write_text(text)
        assert words in quadlin("fit F/numbers.csv --target price --config bad.toml", 2)


def test_a_configuration_file_may_list_names_and_numbers(quadlin):
    Path("t.csv").write_text(
        '"a, net",b c,d,y\n' + "".join(f"{i % 7},{i % 5},{i % 3},{i % 11}\n" for i in range(99))
    )
    Path("q.toml").write_text(
        '[fit]\ntarget = "y"\ncolumns = ["a, net", "b c"]\nrank = 1\nalpha = [0.5, 2]\n'
    )
    quadlin("fit t.csv --config q.toml")
    model = load("model.safetensors")
    assert model.feature_names_in_.tolist() == ["a, net", "b c"]
    assert model.alpha == (0.5, 2)
    quadlin("fit t.csv --config q.toml --columns d")
    assert load("model.safetensors").feature_names_in_.tolist() == ["d"]


def hard(folder):
    """Rows that take a fit a few seconds."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 40))
    X[:, 1:] += 0.7 * X[:, :-1]
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", (X[:, :5] ** 2).sum(axis=1) + rng.standard_normal(6000))


def test_robust_errors_are_those_of_the_estimator(quadlin):
    line = f"fit F/houses.csv --target price --columns {COLUMNS} --rank 1 --alpha 0 -q -o"
    quadlin(f"{line} robust.st --robust-errors")
    quadlin(f"{line} plain.st --uncertainty")
    robust, plain = load("robust.st"), load("plain.st")
    assert (robust.uncertainty, plain.uncertainty) == ("robust", True)
    np.testing.assert_array_equal(robust.coef_, plain.coef_)
    assert np.all(np.isfinite(robust.coef_std_) & (robust.coef_std_ != plain.coef_std_))


def test_ctrl_c_leaves_a_checkpoint_from_which_the_same_command_goes_on(tmp_path):
    hard(tmp_path)
    line = ["fit", "X.npy", "--target", "y.npy", "--rank", "8", "--tol", "1e-9", "--uncertainty"]
    assert shell(*line, "-o", "straight.st", cwd=tmp_path).returncode == 0
    line += ["-o", "m.st", "--checkpoint", "it's.ckpt"]
    process = subprocess.Popen(
        [sys.executable, "-m", "quadlin", *line],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    checkpoint = tmp_path / "it's.ckpt"
    while process.poll() is None and not (
        checkpoint.exists() and checkpoint.stat().st_size > 100_000
    ):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.decode().count("\n") == 1
    assert not (tmp_path / "m.st").exists()
    again = err.decode().split("To continue: ")[1]
    assert "'it'\"'\"'s.ckpt'" in again
    size = checkpoint.stat().st_size
    assert shell(*line, cwd=tmp_path).returncode == 0
    assert size > 100_000
    assert not checkpoint.exists()
    a, b = load(tmp_path / "m.st"), load(tmp_path / "straight.st")
    np.testing.assert_array_equal(a.coef_, b.coef_)
    np.testing.assert_array_equal(a.components_, b.components_)
    np.testing.assert_array_equal(a.coef_std_, b.coef_std_)


def press(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_keeps_the_model_so_far(quadlin, monkeypatch):
    monkeypatch.setattr(SecondOrderRegressor, "score", press)  # which comes after the fit
    line = "fit F/numbers.csv --target price --rank 1 --alpha 1"
    err = quadlin(line, 130)
    assert "Stopped; the model of the last finished step is in model.safetensors." in err
    assert load("model.safetensors").rank_ == 1
    os.remove("model.safetensors")
    monkeypatch.setattr("quadlin.estimators.regression.base.check_options", press)
    assert "Stopped; nothing was saved." in quadlin(line, 130)
    assert os.listdir() == ["F"]


def test_ctrl_c_before_there_is_a_model_says_that_nothing_was_saved(quadlin, monkeypatch):
    monkeypatch.setattr("quadlin.cli.reading.open_source", press)
    assert "Stopped; nothing was saved." in quadlin("fit F/numbers.csv --target price", 130)
    assert os.listdir() == ["F"]


def test_ctrl_c_after_the_model_is_saved_says_where_it_is(quadlin, monkeypatch):
    monkeypatch.setattr("quadlin.cli.fit.report_fit", press)
    err = quadlin("fit F/numbers.csv --target price --rank 1 --alpha 1", 130)
    assert "Stopped; the model is in model.safetensors." in err
    assert load("model.safetensors").rank_ == 1


def test_ctrl_c_keeps_what_a_stream_has_learned(quadlin, monkeypatch):
    chunks = iter(range(1000))

    def check(real=progress.check_interrupt):
        if next(chunks) == 20:
            press()
        real()

    monkeypatch.setattr(progress, "check_interrupt", check)
    monkeypatch.setattr(
        "quadlin.data.sources.source.BLOCK_ELEMENTS", 90
    )  # 30 rows of three columns
    err = quadlin("fit F/numbers.csv --target price --rank 1 --one-pass --batch-size 60", 130)
    assert "the model of the last finished step is in model.safetensors" in err
    assert load("model.safetensors").n_samples_seen_ < 1200


def test_a_terminal_shows_how_far_a_walk_is(quadlin, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for line in (
        "fit F/numbers.csv --target price --rank 1 --hold 0",
        "fit F/numbers.csv --target price --rank 1 --one-pass",
        "predict model.safetensors F/numbers.csv -o p.csv",
        "check F/houses.parquet --target price",
    ):
        assert main(line.split()) == 0
        assert "rows/s" in quadlin.capsys.readouterr().err
        assert main([*line.split(), "--quiet"]) == 0
        assert quadlin.capsys.readouterr().err == ""


class Torn(io.RawIOBase):
    """A stream in which Ctrl-C is pressed at some byte."""

    def __init__(self, data, at):
        self.data, self.at, self.done = data, at, 0

    def read(self, size=-1):
        part = self.data[self.done : self.done + min(size, 1 << 16)]
        self.done += len(part)
        if self.at is not None and self.done > self.at:
            self.at = None
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return part


def test_a_stream_that_was_stopped_goes_on_with_the_same_rows(quadlin, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300_000, 3)).round(4)
    y = X[:, 0] * X[:, 1] + 0.1 * rng.standard_normal(len(X))
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y})
    pa.csv.write_csv(table, "rows.csv")
    data = Path("rows.csv").read_bytes()
    assert len(data) * 9 // 10 > 1 << 23  # more than is read to guess the columns' types
    line = "fit - --format csv --target y --rank 1 --batch-size 5000"

    def run(at, more):
        monkeypatch.setattr(sys, "stdin", type("", (), {"buffer": Torn(data, at)}))
        return main(f"{line} {more}".split())

    assert run(None, "-o whole.st") == 0
    assert run(len(data) * 49 // 50, "-o m.st --checkpoint s.ckpt") == 130
    err = quadlin.capsys.readouterr().err
    assert "To continue with the same rows: quadlin" in err
    assert os.path.exists("s.ckpt")
    assert not os.path.exists("m.st")
    assert run(None, "-o m.st --checkpoint s.ckpt") == 0
    assert not os.path.exists("s.ckpt")
    np.testing.assert_array_equal(load("m.st").coef_, load("whole.st").coef_)
    assert run(len(data) * 49 // 50, "-o n.st") == 130
    assert "With --checkpoint FILE a fit can be continued" in quadlin.capsys.readouterr().err


def test_a_demo_whose_reader_has_enough_is_no_error(monkeypatch, tmp_path):
    def main():
        raise BrokenPipeError

    monkeypatch.setattr(demo, "main", main)
    with open(tmp_path / "out", "w") as out:  # whose descriptor the demo may replace
        monkeypatch.setattr(sys, "stdout", out)
        assert demo.run() == 0


def test_the_demo_is_that_of_the_library(quadlin, monkeypatch):
    monkeypatch.setattr("quadlin.paper.demo.main", lambda: print("shown"))
    assert quadlin("demo") == "shown\n"


def test_experiments_are_run_by_their_runner(quadlin, monkeypatch):
    asked = []

    class Runner:
        SettingError = type("SettingError", (ValueError,), {})

        def reproduce(self, size, only, folder, device, *, settings, jobs, report, progress, say):
            asked.append((size, only, str(folder), device, jobs, progress, report))
            if device == "slow":
                raise KeyboardInterrupt
            if only == ["z"]:
                raise self.SettingError("There is no study 'z'.")
            return type("", (), {"folder": folder, "complete": ["a"], "left": {}})

    monkeypatch.setitem(sys.modules, "quadlin.paper.runner", Runner())
    pages = type("", (), {"write_report": "written"})
    monkeypatch.setitem(sys.modules, "quadlin.paper.report", pages)
    assert "a complete" in quadlin("reproduce --only a,b --folder r")
    quadlin("reproduce --full --device cuda --jobs 3 --quiet")
    assert asked == [
        ("quick", ["a", "b"], "r", "cpu", None, True, "written"),
        ("full", None, "results/full", "cuda", 3, False, "written"),
    ]
    assert "the same command continues" in quadlin("reproduce --device slow", 130)
    assert "no study 'z'" in quadlin("reproduce --only z", 2)

    real = importlib.import_module

    def lacking(name):
        if name.startswith("quadlin.paper"):
            raise ModuleNotFoundError("No module named 'cvxpy'", name="cvxpy")
        return real(name)

    monkeypatch.setattr("quadlin.cli.demonstrations.importlib.import_module", lacking)
    assert 'need cvxpy: pip install "quadlin[reproduce]"' in quadlin("reproduce", 1)


def test_settings_of_the_panels_are_refused_by_the_names_of_their_options(quadlin):
    assert "--noise must be a number" in quadlin("reproduce --only a --noise=-1 --folder r", 2)
    assert "--rows must be a number" in quadlin("reproduce --only a --rows many --folder r", 2)
    assert "--trials must be at least 1" in quadlin("reproduce --only a --trials 0 --folder r", 2)
    assert not Path("r").exists()
    Path("r").mkdir()
    Path("r/about.json").write_text('{"size": "full"}')
    assert "Choose another --folder" in quadlin("reproduce --only a --folder r", 1)


def test_the_report_is_made_of_results_that_are_there(quadlin):
    results = Path(__file__).parents[2] / "docs" / "reproduction" / "full"
    Path("r").mkdir()
    for name in ("about.json", "memory.parquet"):
        shutil.copy(results / name, "r")
    assert "report.html" in quadlin("reproduce --report-only --folder r")
    assert "<svg" in Path("r/report.html").read_text() or Path("r/figures").is_dir()
    assert "Memory" in Path("r/report.html").read_text()
    assert quadlin("reproduce --report-only --folder empty", 1)


def test_the_commands_in_the_docs_print_what_the_docs_say(quadlin):
    """But for digits, which depend on the machine."""
    docs = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text()
    exec(re.search(r"```python\n(.*?)```", docs, re.DOTALL)[1], {})
    blocks = re.findall(r"```console\n(.*?)```", docs, re.DOTALL)
    assert len(blocks) >= 5
    for line, shown in re.findall(r"\$ quadlin (.*)\n((?:(?!\$ ).*\n)*)", "".join(blocks)):
        printed = quadlin(line)
        assert words(printed) == words(shown)


def test_the_commands_in_the_readme_run_one_after_the_other(quadlin):
    root = Path(__file__).parents[2]
    docs, readme = ((root / name).read_text() for name in ("docs/command_line.md", "README.md"))
    exec(re.search(r"```python\n(.*?)```", docs, re.DOTALL)[1], {})
    commands = re.search(r'```\npip install "\.\[cli\]"(.*?)```', readme, re.DOTALL)[1].replace(
        "\\\n", ""
    )
    lines = re.findall(r"^quadlin (.*)$", commands, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        quadlin(line.split("  #")[0])
    assert {"houses.safetensors", "houses.html", "prices.parquet"} <= set(os.listdir())


def words(text):
    return re.sub(r"[-+]?[\d.,]+(e[-+]\d+)?|\s+", " ", text).split()


def test_answers_are_json_and_messages_are_one_line():
    assert json_value({"a": np.float64("nan"), "b": (np.int64(3), np.inf), 1: np.arange(2)}) == {
        "a": None,
        "b": [3, None],
        "1": [0, 1],
    }
    assert aligned([["a", "1.5"], ["bb", "10"]]) == ["  a   1.5", "  bb   10"]
    assert message_text(FileNotFoundError(2, "No such file", "x")) == "x: No such file."
    assert "unexpected ZeroDivisionError" in message_text(ZeroDivisionError("x"))


def test_svmlight_rows_tell_where_their_features_begin(quadlin):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    y = X[:, 0] + X[:, 1] * X[:, 2]
    lines = [f"{t} 0:{a} 1:{b} 2:{c}" for t, (a, b, c) in zip(y, X, strict=True)]
    Path("d.svm").write_text("\n".join(lines))
    Path("few.svm").write_text("0 1:5 2:3\n")
    quadlin("fit d.svm --rank 1 -o m.st")
    printed = json.loads(quadlin("check d.svm --features 4 --zero-based --json"))
    assert "d.svm --features 4 --zero-based" in printed["command"]
    quadlin("predict m.st few.svm --features 3 -o p.csv", 1)
    quadlin("predict m.st few.svm --features 3 --zero-based -o p.csv")
    got = float(Path("p.csv").read_text().split()[1])
    assert got == pytest.approx(float(load("m.st").predict([[0.0, 5.0, 3.0]])[0]), rel=1e-6)


def test_numbers_that_must_be_whole_are(quadlin):
    Path("t.csv").write_text("a,y\n" + "".join(f"{i % 7},{i % 5}\n" for i in range(40)))
    Path("q.toml").write_text("[fit]\nrank = 2.7\n")
    quadlin("fit t.csv --target y --rank 2.7 -o m.st", 2)
    quadlin("fit t.csv --target y --config q.toml -o m.st", 2)
    quadlin("fit t.csv --target y --rank 1 --max-iter 2.5 -o m.st", 2)
    quadlin("fit t.csv --target y --rank 1 --hold -5 -o m.st", 2)
    assert not Path("m.st").exists()
    quadlin("fit t.csv --target y --rank auto -o m.st")


@pytest.mark.parametrize(
    ("line", "owner", "name", "kept"),
    [
        ("--target city", "quadlin.estimators.regression.fitting", "fit", "last finished step"),
        (
            "--target price --cv",
            "quadlin.estimators.cv.cv_scores.CVScores",
            "score",
            "search so far",
        ),
    ],
)
def test_ctrl_c_in_several_classes_and_folds_keeps_a_model(
    quadlin, monkeypatch, line, owner, name, kept
):
    module, _, cls = owner.rpartition(".") if "CVScores" in owner else (owner, "", "")
    place = importlib.import_module(module)
    place = getattr(place, cls) if cls else place
    real, calls = getattr(place, name), []

    def pressed(*args, **more):
        calls.append(1)
        if len(calls) == 3:
            press()
        return real(*args, **more)

    monkeypatch.setattr(place, name, pressed)
    err = quadlin(f"fit F/houses.csv {line} --exclude id -q", 130)
    assert f"{kept} is in model.safetensors" in err
    assert err.startswith("quadlin: Stopped; ")
    assert err.count("\n") == 1
    model = load("model.safetensors")
    assert model.status_.name == "interrupted"
    assert quadlin("predict model.safetensors F/houses.csv -o -").count("\n") > 1000


def test_a_warning_of_far_rows_names_an_option_that_there_is(quadlin, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 300)
    table = pd.DataFrame({"x": x, "y": x**2 + 0.05 * rng.standard_normal(300)})
    table.to_csv(tmp_path / "near.csv", index=False)
    pd.DataFrame({"x": [30.0]}).to_csv(tmp_path / "far.csv", index=False)
    quadlin("fit near.csv --target y -o a.safetensors")
    limited = shell("predict", "a.safetensors", "far.csv", "-o", "-", cwd=tmp_path)
    assert b"--extrapolation free" in limited.stderr
    assert b"`extrapolates`" not in limited.stderr  # a method of Python
    quadlin("fit near.csv --target y --extrapolation free -o b.safetensors")
    free = shell("predict", "b.safetensors", "far.csv", "-o", "-", cwd=tmp_path)
    assert b"limit" not in free.stderr
    # The truth is 30² = 900, with a standard error of .05/(.07√300)·900 = 37.
    assert float(free.stdout.split()[-1]) > 500 > float(limited.stdout.split()[-1])
