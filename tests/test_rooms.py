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
MOST_MODULES = 30  # of a room
HEADED = re.compile(r" *[A-Z][A-Za-z]+( [A-Z][a-z]+)? -{3,} ")  # a heading that is run in
EMPTY_NAMES = {"own", "found", "known", "said"}  # they do not say what the thing is
IN_FEEDS = {"source", "device", "cluster"}  # what a walk is made of
TEXTS = {".py", ".md", ".c", ".h"}
# Files that pages and tests make up, and one of other authors.
MADE_UP = {f"{name}.py" for name in ("mine", "laplace", "gFM", "none", "bad", "broken")}
PATH = "<!-- path -->\n", "<!-- end of path -->"
START, END = "<!-- rooms -->\n", "<!-- end of rooms -->"


def rooms(container="quadlin"):
    """Return the sub-packages from top to bottom, in the order of the import contract."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = [c["layers"] for c in contracts if c.get("containers") == [container]]
    names = [name.strip() for each in layers for layer in each for name in layer.split("|")]
    folder = ROOT / "src" / container.replace(".", "/")
    return [name for name in names if (folder / name / "__init__.py").exists()]


def written_map(container="quadlin", indent=""):
    """Return the map as CONTRIBUTING.md shows it, with the rooms inside of a room below it."""
    folder, lines = ROOT / "src" / container.replace(".", "/"), []
    for room in rooms(container):
        source = (folder / room / "__init__.py").read_text()
        text = " ".join(ast.get_docstring(ast.parse(source)).split())
        lines.append(f"{indent}- **`{room}/`**: {text}\n")
        lines.append(written_map(f"{container}.{room}", indent + "  "))
    return "".join(lines)


def test_the_map_of_the_rooms_is_up_to_date():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    shown = text.split(START)[1].split(END)[0]
    assert shown == written_map(), "Run `python tests/test_rooms.py`."


def test_the_path_of_a_row_is_the_one_that_a_fit_takes():
    steps = (ROOT / "CONTRIBUTING.md").read_text().split(PATH[0])[1].split(PATH[1])[0]
    listed = re.findall(r"^\d+\. `([a-z_/]+\.py)`", steps, flags=re.MULTILINE)
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
    for container in ("quadlin", "quadlin.solve", "quadlin.estimators", "quadlin.data"):
        folder = ROOT / "src" / container.replace(".", "/")
        folders = {path.parent.name for path in folder.glob("*/__init__.py")}
        assert folders == set(rooms(container)), container


def test_no_room_has_more_modules_than_one_can_survey():
    sizes = {
        str(folder.parent.relative_to(ROOT)): len(list(folder.parent.glob("*.py")))
        for folder in (ROOT / "src/quadlin").rglob("__init__.py")
    }
    assert not {folder: size for folder, size in sizes.items() if size > MOST_MODULES}


def test_the_tests_mirror_the_rooms():
    tests = {path.parent.relative_to(ROOT / "tests") for path in ROOT.glob("tests/*/**/test_*.py")}
    assert all((ROOT / "src/quadlin" / folder).is_dir() for folder in tests)
    assert {folder.parts[0] for folder in tests} == set(rooms())


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


def test_headings_of_docstrings_have_a_line_of_their_own():
    """As numpydoc asks for: a heading, a line of hyphens, and the text below them."""
    wrong = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        lines = path.read_text().splitlines()
        wrong += [
            f"{path.relative_to(ROOT)}: {line.strip()}" for line in lines if HEADED.match(line)
        ]
    assert not wrong


if __name__ == "__main__":
    page = ROOT / "CONTRIBUTING.md"
    before, rest = page.read_text().split(START)
    page.write_text(before + START + written_map() + END + rest.split(END)[1])
