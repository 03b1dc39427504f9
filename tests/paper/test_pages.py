"""The pages say what the committed results say, and the laboratory's examples run."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from quadlin.paper.page import BEGIN, END, results_as_markdown
from quadlin.paper.results import read_about, slug
from quadlin.paper.runner import reproduce
from quadlin.paper.settings import Settings
from quadlin.paper.studies import studies

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "reproduction" / "full"


def page():
    return (DOCS / "reproduction.md").read_text(encoding="utf-8")


def read(name):
    return pd.read_parquet(RESULTS / f"{name}.parquet")


def last_error(panel, solver, noise=0.0):
    """Geometric mean over the trials of the last NMSE, from the Parquet file and nothing else."""
    frame = read(panel)
    frame = frame[(frame["solver"] == solver) & (frame["noise"] == noise)]
    ends = [t.sort_values("iteration")["nmse_clean"].iloc[-1] for _, t in frame.groupby("trial")]
    return float(np.exp(np.mean(np.log(ends))))


def cell(panel, noise, solver):
    """A number of the page's table of panels."""
    lines = [line.split("|")[1:-1] for line in page().splitlines() if line.startswith("| ")]
    header = next(row for row in lines if row[0].strip() == "panel")
    column = [name.strip() for name in header].index(solver)
    rows = [row for row in lines if row[0].strip() == panel and row[2].strip() == f"{noise:g}"]
    return float(rows[0][column])


def test_every_study_of_the_page_has_full_size_and_its_tasks():
    about = {path.stem: read_about(path) for path in RESULTS.glob("*.parquet")}
    assert set(about) == set(studies())
    for name, study in studies().items():
        assert about[name]["size"] == "full"
        assert set(about[name]["tasks"]) == {slug(task) for task in study.tasks("full")}, name


def test_five_numbers_of_the_page_are_those_of_the_results():
    for panel, noise, key, name in (
        ("a", 0.0, "plain", "authors' MES"),
        ("a", 0.0, "gd_printed", "printed GD"),
        ("d", 0.0, "guarded", "quadlin MES"),
        ("e", 1.0, "polished", "quadlin polished"),
        ("h", 0.0, "literal", "literal MES"),
    ):
        assert np.isclose(cell(panel, noise, name), last_error(panel, key, noise), rtol=0.06)


def test_exponents_of_the_page_are_those_of_the_results():
    frame = read("tau")
    frame = frame[(frame["part"] == "G") & (frame["tau"] <= 0.25)]
    slope = np.polyfit(np.log(frame["tau"]), np.log(frame["value"]), 1)[0]
    stated = re.search(r"errors of G and H grow as τ\^\((.[\d.]+)", page())[1]
    assert abs(float(stated.replace("−", "-")) - slope) < 0.006


def test_the_tables_are_written_from_the_results():
    text = page()
    stated = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()
    assert stated == results_as_markdown(RESULTS).strip()


def test_pictures_of_the_page_are_there():
    pictures = re.findall(r"\]\((reproduction/[^)]*\.png)\)", page())
    assert len(pictures) >= 10
    assert all((DOCS / picture).is_file() for picture in pictures)


def test_the_examples_of_the_laboratory_run(tmp_path):
    text = (DOCS / "laboratory.md").read_text(encoding="utf-8")
    for name in ("mine.py", "laplace.py"):
        block = re.search(rf"```python\n(# {re.escape(name)}\n.*?)```", text, re.DOTALL)[1]
        (tmp_path / name).write_text(block)
    settings = Settings(
        features=12,
        rank=1,
        rows="60kd",
        trials=1,
        iterations=20,
        distribution=str(tmp_path / "laplace.py"),
        solvers=(str(tmp_path / "mine.py"),),
    )
    reproduce("tiny", "a", tmp_path / "out", settings=settings, progress=False, say=str)
    frame = pd.read_parquet(tmp_path / "out" / "a.parquet")
    mine = frame[frame["solver"] == "my solver"].sort_values("iteration")["nmse"]
    assert len(mine) > 5
    assert mine.iloc[-1] < 0.1 * mine.iloc[0]
