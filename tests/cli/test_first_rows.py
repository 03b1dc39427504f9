"""Codes of missing values, dates as numbers, numbers of rows and leaks, in the first rows."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest

from quadlin.cli.app import run
from quadlin.cli.first_rows import FirstRows

RNG = np.random.default_rng(0)
N = 300


def table():
    frame = pd.DataFrame({"a": RNG.normal(50, 9, N).round(1), "b": RNG.normal(5, 1, N)})
    return frame.assign(y=2 * frame.a + 5 * frame.b + RNG.normal(size=N))


@pytest.fixture
def told(tmp_path, capsys):
    def tell(frame, command="check"):
        data, model = str(tmp_path / "t.csv"), str(tmp_path / "m.safetensors")
        frame.to_csv(data, index=False)
        if command == "fit":
            assert run(["fit", data, "--target", "y", "-o", model]) == 0
            return capsys.readouterr().err
        assert run(["check", data, "--target", "y", "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        return "\n".join(f["text"] for f in content["findings"] if f["kind"] != "good")

    return tell


@pytest.mark.parametrize("command", ["check", "fit"])
def test_a_code_of_missing_values_is_named(told, command):
    frame = table()
    frame.loc[::10, "a"] = -999
    assert "a: -999 lies far from all other values" in told(frame, command)
    assert "--na=-999" in told(frame, command)
    frame["a"] = np.where(frame.a < 0, 9, frame.a)  # as far as values are from each other
    assert "lies far from" not in told(frame, command)


def test_the_code_can_be_declared_as_the_remark_says(tmp_path, capsys):
    frame = table()
    frame.loc[::10, "a"] = -999
    frame.to_csv(tmp_path / "t.csv", index=False)
    line = f"fit {tmp_path}/t.csv --target y --na=-999 --missing drop -o {tmp_path}/m.safetensors"
    assert run([*line.split(), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["dropped"] == N // 10
    assert content["r2_train"] > 0.99


def advised(folder, capsys, frame):
    """Return the scores of the model that the command of check fits."""
    frame.to_csv(folder / "t.csv", index=False)
    assert run(["check", str(folder / "t.csv"), "--target", "y"]) == 0
    *_, command = capsys.readouterr().out.splitlines()
    assert run([*shlex.split(command)[1:-1], str(folder / "m.safetensors"), "--json"]) == 0
    return command, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("gaps", [10, 60])  # many, and few enough to be dropped
@pytest.mark.parametrize("column", ["a", "y"])
def test_the_command_of_check_declares_the_code(tmp_path, capsys, gaps, column):
    frame = table()
    frame.loc[::gaps, column] = -999
    frame.loc[3, "b"] = np.nan
    frame["kind"] = np.where(np.arange(N) % 7 == 2, "?", "k")
    command, content = advised(tmp_path, capsys, frame)
    assert "--na '?,-999'" in command
    frame.loc[::gaps, "b"] = -9  # two codes
    command, content = advised(tmp_path, capsys, frame.drop(columns="kind"))
    assert "--na=-999,-9" in command
    # The mean stands for 10% of the values of a, of which the noise is a small part.
    assert content["r2_train"] > (0.85 if gaps == 10 else 0.99)


def test_a_code_that_is_a_value_of_another_column_is_not_declared(told):
    frame = table()
    frame.loc[::10, "a"] = 999
    frame["b"] = np.where(np.arange(N) % 2, 999, np.arange(N) + 800)
    text = told(frame)
    assert "999 lies far from" in text
    assert "leave such cells empty" in text
    assert "--na" not in text


@pytest.mark.parametrize("command", ["check", "fit"])
@pytest.mark.parametrize("unit", [1, 1000])
@pytest.mark.parametrize("order", [1, -1])
def test_seconds_since_1970_are_named(told, command, unit, order):
    frame = table()
    frame["at"] = (1_700_000_000 + np.arange(N)[::order] * 5000) * unit
    text = told(frame, command)
    assert "at: whole numbers like seconds or milliseconds since 1970" in text
    assert "row numbers" not in text
    assert "numbers of the rows" not in text
    frame["at"] = frame["at"] - 1_600_000_000 * unit
    assert "1970" not in told(frame, command)


@pytest.mark.parametrize("command", ["check", "fit"])
def test_shuffled_row_numbers_are_named_and_ranks_are_not(told, command):
    frame = table()
    frame["rownames"] = RNG.permutation(N) + 1
    assert "rownames: a different whole number in each row" in told(frame, command)
    frame["rownames"] = frame.y.rank().astype(int)  # a permutation, too
    assert "a different whole number" not in told(frame, command)


@pytest.mark.parametrize("command", ["check", "fit"])
def test_a_column_that_tells_the_target_by_itself_is_named(told, command):
    frame = table()
    frame["log"] = np.log(frame.y)
    text = told(frame, command)
    assert "log alone explains 99." in text or "log alone explains 100.0%" in text
    assert "--exclude log" in text
    assert "alone explains" not in told(frame.drop(columns="log"), command)


@pytest.mark.parametrize("command", ["check", "fit"])
def test_dates_as_numbers_and_months_are_no_row_numbers_and_no_silent_levels(told, command):
    frame = table()
    days = pd.date_range("2023-01-01", periods=N)
    frame["day"] = days.strftime("%Y%m%d").astype(int)
    frame["month"] = days.strftime("%Y-%m")
    text = told(frame, command)
    assert "day: dates written as numbers" in text
    assert "like row numbers" not in text
    assert "Column 'month' holds months, quarters or weeks, such as '2023-01'" in text


def test_labels_and_few_rows_are_not_judged():
    x = np.arange(10.0)
    few = FirstRows(("a", "b"), np.column_stack([x, x]), x, whole=True)
    assert few.remarks(csv=True) == []
    many = np.arange(100.0)
    labels = FirstRows(("a", "b"), np.column_stack([many, many]), None, whole=True)
    assert labels.remarks(csv=True) == []


@pytest.mark.parametrize("command", ["check", "fit"])
def test_numbers_too_large_to_square_are_refused_without_warnings_of_numpy(
    command, tmp_path, capsys
):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 150))
    path = tmp_path / "huge.csv"
    pd.DataFrame({"a": 1e300 * a, "b": b, "y": b}).to_csv(path, index=False)
    code = run([command, str(path), "--target", "y"])
    err = capsys.readouterr().err
    assert code == 1
    assert "too large to square" in err
    assert "encountered" not in err
