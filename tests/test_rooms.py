"""The map in CONTRIBUTING.md is what the rooms say of themselves."""

import ast
import importlib.util
import os
import re
import tomllib
from pathlib import Path

import numpy as np

from quadlin import SecondOrderRegressor

ROOT = Path(__file__).parent.parent
LONGEST = 300  # lines of a module
EMPTY_NAMES = {"own", "found", "known", "said"}  # they do not say what the thing is
IN_FEEDS = {"source", "device", "cluster"}  # what a walk is made of
TEXTS = {".py", ".md", ".c", ".h"}
# Files that pages and tests make up, and one of other authors.
MADE_UP = {f"{name}.py" for name in ("mine", "laplace", "gFM", "none", "bad", "broken")}
PATH = "<!-- path -->\n", "<!-- end of path -->"
START, END = "<!-- rooms -->\n", "<!-- end of rooms -->"


def rooms():
    """Return the sub-packages from top to bottom, in the order of the import contract."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    names = [name.strip() for layer in layers for name in layer.split("|")]
    return [name for name in names if (ROOT / "src/quadlin" / name / "__init__.py").exists()]


def written_map():
    """Return the map as CONTRIBUTING.md shows it."""
    lines = []
    for room in rooms():
        source = (ROOT / "src/quadlin" / room / "__init__.py").read_text()
        text = " ".join(ast.get_docstring(ast.parse(source)).split())
        lines.append(f"- **`{room}/`**: {text}\n")
    return "".join(lines)


def test_the_map_of_the_rooms_is_up_to_date():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    shown = text.split(START)[1].split(END)[0]
    assert shown == written_map(), "Run `python tests/test_rooms.py`."


def test_the_path_of_a_row_is_the_one_that_a_fit_takes():
    steps = (ROOT / "CONTRIBUTING.md").read_text().split(PATH[0])[1].split(PATH[1])[0]
    listed = re.findall(r"^\d+\. `([a-z_]+/[a-z_]+\.py)`", steps, flags=re.MULTILINE)
    spec = importlib.util.spec_from_file_location("trace_of_a_fit", ROOT / "benchmarks/trace.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 6))
    model = SecondOrderRegressor(rank=3, alpha=0, pairs=None, random_state=0)
    trace = script.Trace().of(lambda: model.fit(X, X[:, 0] * X[:, 1] + rng.standard_normal(600)))
    visited = [file.replace(os.sep, "/") for file in trace.files]
    assert listed == [file for file in visited if file in listed]


def test_every_folder_of_the_package_is_a_room():
    folders = {path.parent.name for path in (ROOT / "src/quadlin").glob("*/__init__.py")}
    assert folders == set(rooms())


def test_the_tests_mirror_the_rooms():
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders == set(rooms())


def test_no_module_is_long_without_a_reason():
    """The docstring of a longer module says why, in a line that begins with "Long because"."""
    too_long = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        source = path.read_text()
        reason = "\nLong because " in (ast.get_docstring(ast.parse(source)) or "")
        if source.count("\n") > LONGEST and not reason:
            too_long.append(str(path.relative_to(ROOT)))
    assert not too_long


def test_no_two_classes_have_the_same_name():
    homes = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_chunks_of_rows_come_through_the_one_door():
    """Every loop over chunks outside of the door, its engines and the feeds asks `Rows.walk`."""
    others = []
    for path in sorted((ROOT / "src/quadlin").rglob("*.py")):
        if path.parent.name in ("core", "studies", "paper") or path.stem in IN_FEEDS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            loops = isinstance(node, ast.For | ast.comprehension)
            walked = ast.unparse(node.iter) if loops else ""
            past = walked.startswith("MemorySource(") or walked in ("source", "self.source")
            past = past or (loops and ast.unparse(node.target) == "chunk")
            if past and not walked.endswith(
                (".walk()", ".rest(Rows.of(source))", "chunks", "kept")
            ):
                others.append(f"{path.relative_to(ROOT)}: for chunk in {walked}")
    assert not others


def test_files_that_are_named_exist():
    """In comments, docstrings and pages, by their name or by the end of their path."""
    folders = [ROOT / name for name in ("src", "tests", "benchmarks", "docs")]
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*.py")]
    pages += [path for folder in folders for path in folder.rglob("*") if path.suffix in TEXTS]
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in pages]
    wrong = []
    for path in pages:
        if path.name == "CHANGELOG.md":  # it tells of files that are gone
            continue
        named = set(re.findall(r"[\w/]*\w\.(?:py|md)\b|_passes\w*\.[ch]\b", path.read_text()))
        missing = (n for n in named if not any(file.endswith(f"/{n.strip('/')}") for file in files))
        wrong += [f"{path.relative_to(ROOT)}: {n}" for n in missing if n not in MADE_UP]
    assert not wrong


def test_no_variable_has_a_name_that_says_nothing():
    """Names of variables and arguments, in the package, the tests and the benchmarks."""
    unclear = []
    for path in (p for root in ("src", "tests", "benchmarks") for p in (ROOT / root).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            stored = isinstance(getattr(node, "ctx", None), ast.Store)
            name = getattr(node, "id", getattr(node, "attr", "")) if stored else ""
            if isinstance(node, ast.arg):
                name = node.arg
            if name.strip("_") in EMPTY_NAMES:
                unclear.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
    assert not unclear


if __name__ == "__main__":
    page = ROOT / "CONTRIBUTING.md"
    before, rest = page.read_text().split(START)
    page.write_text(before + START + written_map() + END + rest.split(END)[1])
