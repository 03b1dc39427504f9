"""`quadlin check`: what cannot be a feature is a finding, not the end."""

import json
import shlex

import numpy as np
import pandas as pd

from quadlin.cli.app import run
from quadlin.data.sources.table_files import FileFeed


def test_check_reports_dates_and_goes_on_without_them(tmp_path, capsys):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=300).strftime("%m/%d/%Y")})
    table["when"] = pd.date_range("2023-01-01", periods=300)
    table["a"], table["b"] = rng.normal(size=300), rng.normal(size=300)
    table["y"] = table.a * table.b + 0.1 * rng.normal(size=300)
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)
    for name in ("t.csv", "t.parquet"):
        assert run(["check", str(tmp_path / name), "--target", "y", "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        texts = [finding["text"] for finding in content["findings"]]
        assert any("'day' holds dates as text" in text for text in texts)
        assert any("'when'" in text for text in texts)
        assert content["features"] == 2
        assert "--exclude day,when" in content["command"] or "when,day" in content["command"]


def test_the_command_that_check_suggests_suits_the_target(tmp_path, capsys):
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(400, 3)), columns=["a", "b", "c"])
    table["clicked"] = (rng.uniform(size=400) < 0.02).astype(int)  # its kurtosis is that of 0/1
    table["heavy"] = rng.standard_t(1.2, size=400) + table.a
    table["plain"] = table.a * table.b + rng.normal(size=400)
    table["typo"] = np.where(table.index == 7, 1e9, table.plain)  # no second value beside one
    table["name"] = np.where(table.a > 0, "up", "down")
    table.to_csv(tmp_path / "t.csv", index=False)
    expected = {"clicked": "--classify", "heavy": "--loss huber", "plain": "", "name": ""}
    expected["typo"] = "--loss huber"
    targets = list(expected)
    for target in targets:
        others = ",".join(name for name in targets if name != target)
        given = ["--target", target, "--exclude", others, "--json"]
        assert run(["check", str(tmp_path / "t.csv"), *given]) == 0
        command = json.loads(capsys.readouterr().out)["command"]
        for option in ("--classify", "--loss huber", "--rank", "--cv"):
            assert (option in command) == (option == expected[target]), (target, command)


def test_check_leaves_out_no_column_of_numbers_that_one_word_makes_text(tmp_path, capsys):
    rng = np.random.default_rng(2)
    lines = [f"{a:.3f},{2 * a:.3f}\n" for a in rng.normal(size=200)]
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(lines) + "Total,\n")
    assert run(["check", str(tmp_path / "t.csv"), "--target", "y", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["useless_columns"] == []
    assert any("'Total' in row 200" in finding["text"] for finding in content["findings"])
    assert "--na Total --missing drop" in content["command"]
    words = "".join(lines) + "closed,1\nTotal,\n?,2\n"
    (tmp_path / "t.csv").write_text("a,y\n" + words)
    assert run(["check", str(tmp_path / "t.csv"), "--target", "y", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["useless_columns"] == []
    command = shlex.split(content["command"])
    assert sorted(command[command.index("--na") + 1].split(",")) == ["?", "Total", "closed"]
    assert run([*command[1:-1], str(tmp_path / "m.safetensors"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["r2_train"] > 0.99


def test_fit_and_inspect_call_a_full_rank_all_products(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    table = pd.DataFrame(rng.normal(size=(100, 3)), columns=["a", "b", "c"])
    table.assign(y=table.a * table.b + rng.normal(size=100)).to_csv("t.csv", index=False)
    line = "fit t.csv --target y --rank 3 --alpha 20 --pairs none -o m.safetensors"
    words = "3, all products of the 3 features, shrunk by the penalty"
    for command in (line, "inspect m.safetensors"):
        assert run(command.split()) == 0
        out = capsys.readouterr().out
        assert words in out
        assert "low-rank" not in out


def test_check_advises_nothing_that_the_suggested_command_does_by_itself(tmp_path, capsys):
    rng = np.random.default_rng(4)
    table = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    table["city"] = [f"city {i}" for i in np.arange(60) % 25]
    for rows in (60, 52):
        table.assign(y=table.a).head(rows).to_csv(tmp_path / "t.csv", index=False)
        assert run(["check", str(tmp_path / "t.csv"), "--target", "y", "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        told = {f["topic"]: f for f in content["findings"] if f["topic"] in ("levels", "rows")}
        assert [finding["kind"] for finding in told.values()] == ["note", "note"]
        assert "fit shrinks them" in told["levels"]["text"]
        assert "fit chooses penalties" in told["rows"]["text"]
        assert not any(o in content["command"] for o in ("--alpha", "--cv", "--rank"))


def test_rows_without_a_target_are_left_out_where_other_gaps_are_filled(tmp_path, capsys):
    rng = np.random.default_rng(5)
    table = pd.DataFrame(rng.normal(size=(200, 2)), columns=["a", "b"])
    table["y"] = table.a + table.b
    table.loc[::10, "y"] = np.nan
    table.loc[1::4, "a"] = np.nan
    table.to_csv(tmp_path / "t.csv", index=False)
    data, model = str(tmp_path / "t.csv"), str(tmp_path / "m.safetensors")
    assert run(["check", data, "--target", "y", "--json"]) == 0
    assert "--missing mean" in json.loads(capsys.readouterr().out)["command"]
    assert run(["fit", data, "--target", "y", "--missing", "mean", "-o", model]) == 0
    out, err = capsys.readouterr()
    assert "rows           180" in out
    assert "20 rows with a missing target were left out." in err


def test_an_empty_column_is_no_missing_value_of_the_others(tmp_path, capsys):
    lines = "".join(f"{i % 7},,{i % 5}\n" for i in range(50))
    (tmp_path / "t.csv").write_text("a,empty,y\n" + lines)
    assert run(["check", str(tmp_path / "t.csv"), "--target", "y"]) == 0
    out = capsys.readouterr().out
    assert "no value is missing." in out
    assert "--exclude empty" in out


def test_check_reads_on_with_the_signs_of_numbers_that_are_beyond_doubt(tmp_path, capsys):
    rng = np.random.default_rng(4)
    rows = [
        (a, int(b)) for a, b in zip(rng.normal(size=99), rng.integers(1e4, 1e6, 99), strict=True)
    ]
    european = "".join(f"{a:.2f};{b:_};{a + b / 1e6:.3f}\n" for a, b in rows)
    text = european.replace(".", ",").replace("_", ".")
    (tmp_path / "e.csv").write_text("a;b;y\n" + text)
    (tmp_path / "u.csv").write_text("a;b;y\n" + european.replace("_", ","))
    for name, given, signs in (
        ("e.csv", [], "--decimal , --thousands ."),
        ("e.csv", ["--decimal", ","], "--decimal , --thousands ."),
        ("u.csv", [], "--thousands ,"),
    ):
        assert run(["check", str(tmp_path / name), "--target", "y", "--json", *given]) == 0
        content = json.loads(capsys.readouterr().out)
        assert content["features"] == 2
        assert f"--target y {signs} -o" in content["command"]
        assert any("--thousands" in finding["text"] for finding in content["findings"])


def test_an_argument_that_is_wrong_is_followed_by_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"2024-01-{i},{i},{2 * i}\n" for i in range(10, 29))
    (tmp_path / "t.csv").write_text("day,a,y\n" + rows)
    (tmp_path / "u.csv").write_text("b,y\n1,2\n2,3\n")
    fit = ["fit", "t.csv", "--target", "y"]
    assert run([*fit, "--exclude", "day", "-q"]) == 0
    for line, advice in {
        "fit t.csv --target y": "give --exclude day. If each date is a category, give",
        "fit t.csv": "Name the target column with --target: it cannot be 'day'",
        "fit t.csv y": "A column is named by an option, such as --target",
        "fit t.csv --target z": "Name one of them with --target.",
        "fit t.csv --target y --weight w": "Name one of them with --weight.",
        "fit t.csv --target y --exclude b": "Correct --exclude.",
        "fit t.csv --target y --columns b": "Correct --columns, or give rows",
        "fit t.csv --target y --exclude day,a": "Leave out --exclude, or name fewer columns.",
        "predict model.safetensors t.csv -o p.csv --keep b": "Correct --keep.",
        "predict model.safetensors u.csv -o p.csv": "or give rows with that column.",
        "evaluate model.safetensors t.csv --target z": "Name one of them with --target.",
    }.items():
        assert run(line.split()) in (1, 2), line
        assert advice in capsys.readouterr().err, line


def test_a_text_that_differs_in_every_row_is_refused_and_check_leaves_it_out(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = "".join(f"ORD-{i},{a:.2f},{2 * a:.2f}\n" for i, a in enumerate(rng.normal(size=60)))
    (tmp_path / "t.csv").write_text("order,a,y\n" + rows)
    data, model = str(tmp_path / "t.csv"), str(tmp_path / "m.safetensors")
    assert run(["fit", data, "--target", "y", "-o", model]) == 1
    told = capsys.readouterr().err
    assert "nothing from levels that occur once" in told
    assert "give --exclude order." in told
    assert run(["check", data, "--target", "y"]) == 0
    *_, command = capsys.readouterr().out.splitlines()
    assert "--exclude order" in command
    assert run([*shlex.split(command)[1:-1], model]) == 0


def test_check_names_levels_that_differ_only_in_case_or_spaces(tmp_path, capsys):
    rng = np.random.default_rng(7)
    table = pd.DataFrame({"a": rng.normal(size=300)})
    table["city"] = rng.choice(["Oslo", "oslo", "Rome", " New  York", "New York"], 300)
    table["size"] = rng.choice(["S", "M"], 300)
    table["kind"] = rng.choice(["Yes", "yes", "no"], 300)
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)  # of which spaces around texts are not read
    pairs = {"t.csv": "'New  York' and 'New York'", "t.parquet": "' New  York' and 'New York'"}
    for name, pair in pairs.items():
        assert run(["check", str(tmp_path / name), "--target", "kind", "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        texts = {
            line["topic"]: line["text"] for line in content["findings"] if "spaces" in line["text"]
        }
        assert texts == {
            "levels": f"city: {pair}; 'Oslo' and 'oslo' differ only in case or spaces, and count "
            "as different levels. If they mean the same, write them the same way.",
            "target": "'Yes' and 'yes' differ only in case or spaces, and count as different "
            "classes. If they mean the same, write them the same way.",
        }
        assert "--exclude" not in content["command"]
    assert run(["check", str(tmp_path / "t.csv"), "--target", "a", "--exclude", "city,kind"]) == 0
    assert "spaces" not in capsys.readouterr().out


def test_a_small_file_is_read_a_few_times_only(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(300, 3)), columns=["a", "b", "y"])
    table.to_csv(tmp_path / "plain.csv", index=False)
    table.assign(id=np.arange(300), city="Oslo").to_csv(tmp_path / "mixed.csv", index=False)
    reads, pieces = [], FileFeed.pieces
    monkeypatch.setattr(
        FileFeed, "pieces", lambda feed, rows: reads.append(feed) or pieces(feed, rows)
    )
    for name, most in (("plain", 2), ("mixed", 5)):
        reads.clear()
        assert run(["check", str(tmp_path / f"{name}.csv"), "--target", "y", "--json"]) == 0
        assert len(reads) <= most
