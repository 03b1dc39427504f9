"""Other settings, a user's solver and a user's distribution: one command, or one clear sentence."""

import re

import numpy as np
import pandas as pd
import pytest

from quadlin.cli import main
from quadlin.paper.page import results_as_markdown
from quadlin.paper.report import under_settings
from quadlin.paper.results import FolderError
from quadlin.paper.runner import TaskFailedError, reproduce
from quadlin.paper.settings import SettingError, Settings
from quadlin.paper.study import Verdict

SOLVER = '''
"""The best constant, and then least squares on the features alone."""
import numpy as np

NAME = "linear"


def solve(X, y, setting, report):
    mean = y.mean()
    report(1, lambda rows: np.full(len(rows), mean))
    design = np.column_stack([np.ones(len(X)), X])
    beta = np.linalg.lstsq(design, y)[0]
    report(2, lambda rows: beta[0] + rows @ beta[1:])
'''
DISTRIBUTION = """
NAME = "Laplace"


def draw(rng, n, d):
    return rng.laplace(size=(n, d))
"""


def tiny(folder, **settings):
    chosen = Settings(features=12, rank=1, iterations=5, trials=1, **settings)
    return reproduce("tiny", "a", folder, settings=chosen, progress=False, say=lambda line: None)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "mine.py").write_text(SOLVER)
    (tmp_path / "laplace.py").write_text(DISTRIBUTION)
    return tmp_path


def test_a_solver_and_a_distribution_of_the_user_are_run_and_drawn(files, capsys):
    command = ["reproduce", "--only", "a", "--features", "12", "--rank", "1", "--rows", "40kd"]
    command += ["--noise", ".5", "--trials", "2", "--iterations", "5", "--folder"]
    command += [str(files / "out"), "--solver", str(files / "mine.py"), "--jobs", "1"]
    command += ["--distribution", str(files / "laplace.py")]
    assert main(command) == 0
    frame = pd.read_parquet(files / "out" / "a.parquet")
    assert set(frame["d"]) == {12}
    assert set(frame["rows"]) == {480}
    assert set(frame["noise"]) == {0.5}
    assert set(frame["trial"]) == {0, 1}
    mine = frame[frame["solver"] == "linear"]
    assert set(mine["iteration"]) == {0, 1}
    # A linear fit leaves the quadratic part, and the others do not.
    ends = frame.sort_values("iteration").groupby("solver")["nmse_clean"].last()
    assert ends["linear"] > 10 * ends["polished"]
    page = (files / "out" / "report.html").read_text(encoding="utf-8")
    assert "x from Laplace" in page
    assert "not judged" in page  # the paper claims nothing about these settings
    assert "features" in page
    assert "linear at" in page


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank": 30, "features": 20}, "rank (30) must not exceed the number of features (20)"),
        ({"rank": 0}, "`rank` must be at least 1, not 0"),
        ({"rows": "many"}, "such as 30kd"),
        ({"noise": -1.0}, "`noise` must be a number ≥ 0, not -1.0"),
        ({"distribution": "zebra"}, "no distribution 'zebra'. Choose from: gaussian"),
        ({"distribution": "bernoulli:2"}, "between 0 and 1"),
        ({"distribution": "truncated:wide"}, "'wide' in 'truncated:wide' is not a number"),
        ({"solvers": ("none.py",)}, "There is no file 'none.py'"),
    ],
)
def test_settings_that_make_no_sense_get_one_clear_sentence(settings, words, tmp_path):
    with pytest.raises(SettingError, match=re.escape(words)) as error:
        reproduce("tiny", "a", tmp_path / "out", settings=Settings(**settings), progress=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_only_panels_have_settings(tmp_path):
    with pytest.raises(SettingError, match="the study 'rate' has its own"):
        reproduce("tiny", "rate", tmp_path, settings=Settings(rank=1), progress=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def solve(X, y, setting, report):\n    1 / 0\n", "line 2: ZeroDivisionError"),
        ("def solve(X, y, setting, report):\n    report(1, lambda X: X)\n", "line "),
        ("def solve(X, y, setting, report):\n    pass\n", "reported no iteration"),
    ],
)
def test_a_solver_that_fails_is_named_with_its_line(tmp_path, text, words):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(TaskFailedError, match=words):
        tiny(tmp_path / "out", solvers=(str(tmp_path / "bad.py"),))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = (\n", "cannot be imported"),
        ("x = 1\n", "must define a function named 'solve'"),
        ("NAME = 'printed GD'\nsolve = print\n", "called 'printed GD' already"),
    ],
)
def test_a_file_that_is_no_solver_is_refused(tmp_path, text, words):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(SettingError, match=words):
        tiny(tmp_path / "out", solvers=(str(tmp_path / "bad.py"),))


def test_results_of_other_settings_are_never_overwritten(files):
    tiny(files / "out")
    before = (files / "out" / "a.parquet").read_bytes()
    for other in (Settings(), Settings(features=13, rank=1)):
        with pytest.raises(FolderError, match="results of other settings"):
            reproduce("tiny", "a", files / "out", settings=other, progress=False)
    assert (files / "out" / "a.parquet").read_bytes() == before
    assert Settings().folder("quick") != Settings(rank=1).folder("quick")


def test_a_changed_solver_is_another_setting(files):
    first = Settings(solvers=(str(files / "mine.py"),)).plain()
    (files / "mine.py").write_text(SOLVER + "\n# changed\n")
    assert Settings(solvers=(str(files / "mine.py"),)).plain() != first


def test_a_distribution_that_draws_something_else_is_refused(tmp_path):
    (tmp_path / "bad.py").write_text("def draw(rng, n, d):\n    return [1.0, 2.0]\n")
    with pytest.raises(SettingError, match="must return"):
        tiny(tmp_path / "out", distribution=str(tmp_path / "bad.py"))


def test_rows_are_a_number_or_a_multiple_of_kd():
    assert Settings(rows="2.5kd").rows_for(10, 2) == 50
    assert Settings(rows=1234).rows_for(10, 2) == 1234
    assert Settings().rows_for(1000, 10) == 300_000
    assert np.isclose(Settings(rows="1e3").rows_for(10, 2), 1000)


def test_a_solver_that_predicts_nan_is_named(tmp_path):
    text = "import numpy as np\n\n\ndef solve(X, y, setting, report):\n"
    text += "    report(1, lambda rows: np.full(len(rows), np.nan))\n"
    (tmp_path / "broken.py").write_text(text)
    with pytest.warns(UserWarning, match="'broken' predicts NaN in iteration 0"):
        tiny(tmp_path / "out", solvers=(str(tmp_path / "broken.py"),))


def test_more_solvers_leave_the_paper_its_verdict():
    verdict = Verdict("measured", "yes", "words")
    assert under_settings(verdict, {"solvers": ["mine.py"]}) is verdict
    assert under_settings(verdict, {"noise": 1.0}).holds == "not judged"


def test_the_table_of_other_settings_judges_nothing_and_shows_the_users_solver(files):
    tiny(files / "own", noise=0.5, solvers=(str(files / "mine.py"),))
    header, _, row = results_as_markdown(files / "own").splitlines()
    assert "linear |" in header
    assert "not judged" in row
    assert "–" not in row.split("not judged")[0].split("|", 4)[4]  # every solver has a number
