"""The paper: its page agrees with the committed results, and the command runs."""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from contract.test_command_line import call
from quadlin.paper import runner
from quadlin.paper.report import BEGIN, END, results_as_markdown
from quadlin.paper.runner import frames, lines_of
from quadlin.paper.studies import studies
from quadlin.paper.studies.fits import fewest_rows
from quadlin.paper.studies.panels import Settings

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "reproduction" / "full"
PAGE = (DOCS / "reproduction.md").read_text(encoding="utf-8")
SOLVERS = {"published", "plain", "gaussian", "literal", "guarded", "polished"}
SOLVERS |= {"gd_printed", "gd_standardised"}


@cache
def results():
    """The rows of each study at full size."""
    return frames(RESULTS)


def test_the_tables_of_the_page_are_written_from_the_results():
    stated = PAGE[PAGE.index(BEGIN) + len(BEGIN) : PAGE.index(END)].strip()
    assert stated == results_as_markdown(RESULTS).strip()


@pytest.mark.smoke
def test_every_study_has_a_verdict_on_the_page():
    done = {line["study"] for line in lines_of(RESULTS)}
    assert done == set(studies())
    for study in studies().values():
        assert study.name in "abcd" or f"| {study.text['title']} |" in PAGE


@pytest.mark.smoke
@pytest.mark.parametrize(
    "title",
    [
        "Lemma 7: dependence on τ",
        "What two-valued features hide",
        "Section 5: gradient descent, skewness and the mean",
        "Panels (e) to (h): four truncation levels",
        "Theorem 5: the shifted CI-RIP, and its condition on d",
    ],
)
def test_claims_that_hold_in_part_are_not_called_true(title):
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {title} |"))
    assert line.endswith(("| no |", "| in part |"))


def test_the_readme_states_the_map_of_recovery():
    least = fewest_rows(results()["transition"])
    assert set(least) == {(k, r) for k in (1, 4, 20) for r in (1, 10, 100) if k > 1 or r == 1}
    stated = f"from {min(least.values())} to {max(least.values())} rows per parameter"
    assert stated in " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())


@pytest.mark.smoke
def test_results_name_their_commit_seeds_and_versions():
    for line in lines_of(RESULTS):
        assert re.fullmatch("[0-9a-f]{40}", line["versions"]["commit"])
        assert {"quadlin", "python", "numpy"} <= set(line["versions"])
        assert "seed" in line["task"]


# A study has to give its committed answer again, not its committed path: a better solver may take
# other steps, and rounding differs between machines. So the last line of a path is compared,
# numbers as ratios, and errors below EXACT count as equal.
EXACT, RATIO = 1e-8, 1.3


def answer(values, iterations):
    """The last values of a path, or all values, on a logarithmic scale; words as they are."""
    kept = values if iterations is None else [values[int(np.argmax(iterations))]]
    if isinstance(kept[0], str):
        return kept
    return np.log(np.maximum(np.abs(np.array(kept, dtype=float)), EXACT))


# All but the panels, whose 300,000 × 1,000 rows take minutes.
@pytest.mark.parametrize("name", sorted(set(studies()) - {"a", "b", "c", "d", "levels"}))
def test_a_cell_of_a_study_gives_its_committed_answer_again(name):
    study, lines = studies()[name], [li for li in lines_of(RESULTS) if li["study"] == name]
    line = sorted(lines, key=lambda line: line["cpu"])[len(lines) // 4]
    rows = study.run(line["task"], "cpu")
    again = {column: [row[column] for row in rows] for column in rows[0]}
    assert set(again) == set(line["rows"])
    for column in again:
        values, stored = (answer(c[column], c.get("iteration")) for c in (again, line["rows"]))
        if isinstance(stored, list):
            assert values == stored, column
        else:
            assert np.allclose(values, stored, rtol=0, atol=np.log(RATIO), equal_nan=True), column


@pytest.mark.parametrize("name", ["identifiability", "tau", "nearly_low_rank"])
def test_a_verdict_does_not_change_with_the_size(claims, name):
    study = studies()[name]
    assert study.verdict(claims(name)).holds == study.verdict(results()[name]).holds


def reproduce(folder, *options):
    return call(["reproduce", "--folder", str(folder), "--jobs", "1", "-q", *options])


QUIET = {"jobs": 1, "progress": False, "say": lambda line: None}
SMALL = ["--features", "12", "--rank", "1", "--rows", "60kd", "--trials", "1", "--iterations", "12"]


@pytest.fixture(scope="module")
def panels(tmp_path_factory):
    """The panels at a small size."""
    folder = tmp_path_factory.mktemp("panels")
    settings = Settings(features=12, rank=1, rows="60kd", trials=1, iterations=12)  # as in SMALL
    runner.reproduce("quick", "a,b,c,d,levels", folder, settings=settings, **QUIET)
    return folder


@pytest.mark.parametrize("panel", ["a", "b", "c", "d", "levels"])
def test_a_small_panel_shows_what_the_paper_claims(panels, panel):
    frame = frames(panels)[panel]
    frame = frame[frame["noise"] == frame["noise"].min()].sort_values("iteration")
    assert set(frame["d"]) == {12}
    assert set(frame["rows"]) == {720}
    assert set(frame["solver"]) == SOLVERS
    last = frame.groupby("solver")["nmse"].last()
    if panel == "b":  # noise: 1 + 12 + 12 parameters and 720 rows, an excess of 25/720
        assert last["polished"] * frame["power"].iloc[0] < 4 * 25 / 720
        return
    assert last["polished"] < 1e-9
    assert last["polished"] <= last["guarded"] < 1e-4
    if panel not in "cd":  # the mean of truncated features slows gradient descent down
        assert last["gd_printed"] > 100 * last["polished"]


def test_a_page_stands_alone_and_is_written_from_results_that_are_not_computed_again(
    tmp_path, panels
):
    lines = (panels / "results.jsonl").read_text().splitlines(keepends=True)
    kept = "".join(line for line in lines if json.loads(line).get("study", "a") == "a")
    results = tmp_path / "results.jsonl"
    results.write_text(kept)
    assert reproduce(tmp_path, "--only", "a", *SMALL) == 0
    assert results.read_text() == kept
    page = tmp_path / "report.html"
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"https?:|<script|<link", text)
    assert "data:image/" in text
    assert reproduce(tmp_path, "--only", "a") == 1  # other settings never replace these
    page.unlink()
    assert reproduce(tmp_path, "--report-only") == 0
    assert page.exists()
    assert reproduce(tmp_path / "empty", "--report-only") == 1


def test_the_truth_of_a_panel_may_be_changed(tmp_path):
    own = ["--signed", "--ratio", "10", "--coherent", "--methods", "plain,polished"]
    assert reproduce(tmp_path, "--only", "a", *SMALL, "--distribution", "ar1:0.5", *own) == 0
    frame = frames(tmp_path)["a"]
    assert set(frame["solver"]) == {"plain", "polished"}
    assert frame["signed"].all()


@pytest.fixture(scope="module")
def claims(tmp_path_factory):
    """The quickest claims at the size of --quick."""
    folder = tmp_path_factory.mktemp("claims")
    runner.reproduce("quick", "identifiability,tau,nearly_low_rank", folder, **QUIET)
    return lambda name: frames(folder)[name]


def test_two_valued_features_hide_a_diagonal_of_its_own_and_nothing_else(claims):
    frame = claims("identifiability")
    two_valued = frame[frame["case"] != "Gaussian"]
    own = two_valued["case"].str.endswith("any diagonal")
    for quantity in ("prediction", "off_diagonal", "folded", "twin"):
        assert two_valued[two_valued["quantity"] == quantity]["value"].max() < 1e-4
    assert two_valued[own].query("quantity == 'diagonal'")["value"].min() > 0.5
    # The entries off the diagonal of a low-rank M determine those on it.
    assert two_valued[~own].query("quantity == 'diagonal'")["value"].max() < 1e-4
    gaussian = frame[frame["case"] == "Gaussian"].groupby("quantity")["value"].max()
    assert gaussian["diagonal"] < 1e-4


def test_a_nearly_low_rank_matrix_costs_what_its_tail_does(claims):
    # The risk is a mean over 2,000 rows of a variable with heavy tails: a tenth either way.
    assert claims("nearly_low_rank")["ratio"].between(0.8, 1.3).all()


def test_a_solver_and_a_distribution_of_the_docs_run(tmp_path):
    text = (DOCS / "explanation" / "own_solver.md").read_text(encoding="utf-8")
    for name in ("mine.py", "laplace.py"):
        code = re.search(rf"```python\n(# {re.escape(name)}\n.*?)```", text, re.DOTALL)[1]
        (tmp_path / name).write_text(code)
    own = ["--solver", str(tmp_path / "mine.py"), "--distribution", str(tmp_path / "laplace.py")]
    assert reproduce(tmp_path / "out", "--only", "a", *SMALL, *own) == 0
    frame = frames(tmp_path / "out")["a"].sort_values("iteration")
    mine = frame[frame["solver"] == "my solver"]["nmse"]
    assert mine.iloc[-1] < 0.1 * mine.iloc[0]
    assert "Laplace" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("code", "mentioned"),
    [
        ("x = (\n", "bad.py"),
        ("x = 1\n", "solve"),
        ("def solve(X, y, setting, report):\n    1 / 0\n", "line 2"),
    ],
)
def test_a_solver_that_fails_is_named_with_its_line(tmp_path, capsys, code, mentioned):
    (tmp_path / "bad.py").write_text(code)
    own = ["--solver", str(tmp_path / "bad.py")]
    assert reproduce(tmp_path / "out", "--only", "a", *SMALL, *own) in (1, 2)
    err = capsys.readouterr().err
    assert mentioned in err
    assert "Traceback" not in err
