"""The README and the pages of docs/: their examples run and print what is written below them."""

import re
import shlex
import sys
from importlib import metadata, util
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import r2_score

import quadlin
from contract.test_command_line import call
from quadlin import SecondOrderRegressor, exceptions, load, plot, save
from quadlin.datasets import make_second_order

ROOT = Path(__file__).parents[2]
WRITTEN = (page for page in (ROOT / "docs").rglob("*.md") if "generated" not in page.parts)
PAGES = sorted([*ROOT.glob("*.md"), *WRITTEN])


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def with_blocks(language):
    return [str(page.relative_to(ROOT)) for page in PAGES if blocks(page.read_text(), language)]


def words(text):
    """Return a text without its digits, which depend on the machine."""
    return re.sub(r"[-+]?[\d.,]+(e[-+]\d+)?|\s+", " ", text).split()


@pytest.mark.filterwarnings("ignore::UserWarning")  # they go where the pages do not show them
@pytest.mark.parametrize("page", with_blocks("python"))
def test_examples_print_what_is_written_below_them(page, capsys, tmp_path, monkeypatch):
    """Run the blocks of a page in order; a block is followed by its output, if it has any."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    for code in blocks(read(page)):  # a block that begins with the name of a file is that file
        if name := re.match(r"# (\w+\.py)\n", code):
            Path(name[1]).write_text(code, encoding="utf-8")
    names = {}
    pattern = r"```python\n(.*?)```(?:\s*```(?:text)?\n(.*?)```)?"
    for code, output in re.findall(pattern, read(page), re.DOTALL):
        exec(compile(code, page, "exec"), names)
        assert capsys.readouterr().out == output


def test_a_model_file_is_read_without_quadlin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(blocks(read("docs/reference/model_files.md"))[0], "model_files.md", "exec"), names)
    data = make_second_order(300, 6, distribution="mixed", noise=0.1, random_state=0)
    model = SecondOrderRegressor(rank=2, random_state=0).fit(data.X, data.y)
    save(model, "m.safetensors")
    ours, expected = names["predict"]("m.safetensors", data.X), model.predict(data.X)
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Work where the tables of docs/reference/commands.md are."""
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(read("docs/reference/commands.md"))[0], "commands.md", "exec"), {})


def test_the_commands_of_the_docs_print_what_the_docs_say(tables, capsys):
    consoles = "".join(blocks(read("docs/reference/commands.md"), "console"))
    shown = re.findall(r"\$ quadlin (.*)\n((?:(?!\$ ).*\n)*)", consoles)
    assert len(shown) >= 7
    for line, output in shown:
        assert call(shlex.split(line)) == 0, line
        assert words(capsys.readouterr().out) == words(output), line


def test_the_commands_of_the_readme_run_one_after_the_other(tables):
    listing = read("README.md").partition('pip install ".[cli]"\n')[2].partition("```")[0]
    lines = re.findall(r"^quadlin (.*)$", listing.replace("\\\n", ""), re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        assert call(shlex.split(line, comments=True)) == 0, line
    assert {"houses.safetensors", "houses.html", "prices.parquet"} <= {
        path.name for path in Path().iterdir()
    }


@pytest.mark.parametrize("problem", ["five pairs", "rank 3", "wine"])
def test_the_table_of_alternatives_has_the_scores_of_this_version(problem):
    """R² is an average over thousands of new rows; the last digit may differ with the machine."""
    page = read("docs/project/benchmarks.md")
    written = float(re.search(rf"\| {problem} \| quadlin \| (0\.\d+) \|", page)[1])
    if problem == "five pairs":
        assert f"| `PolynomialFeatures(2)` and `RidgeCV` | {written} |" in read("README.md")
    path = ROOT / "benchmarks" / "alternatives.py"
    spec = util.spec_from_file_location("alternatives", path)
    alternatives = util.module_from_spec(spec)
    spec.loader.exec_module(alternatives)
    scores = []
    for seed in range(3):
        true, predicted = [], []
        for X, y, X_new, y_new in alternatives.PROBLEMS[problem](seed):
            true.append(y_new)
            predicted.append(alternatives.METHODS["quadlin"]().fit(X, y).predict(X_new))
        scores.append(r2_score(np.concatenate(true), np.concatenate(predicted)))
    assert np.mean(scores) == pytest.approx(written, abs=0.005)


FAMILIES = {
    "numbers": "public numbers",
    "frames with text": "public frames",
    "labels": "public labels",
    "counts": "public counts",
    "categories": "public categories",
    '`loss="huber"`': "public robust",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_table_of_public_tables_is_that_of_the_record(name):
    pandas = pytest.importorskip("pandas")
    row = re.search(
        rf"^\| {re.escape(name)} \|.*$", read("docs/project/benchmarks.md"), re.MULTILINE
    )
    splits, _, mean, worse, far, second = (cell.strip() for cell in row[0].split("|")[2:-1])
    ratios = {}
    for file in ("corpus", "corpus_reserved"):
        record = pandas.read_parquet(ROOT / "benchmarks" / f"{file}.parquet")
        record = record[record["family"] == FAMILIES[name]]
        floor = record["floor"]
        ratios[file] = np.maximum(record["error"], floor) / np.maximum(record["reference"], floor)
    averages = {k: np.exp(np.log(r.clip(0.5, 2)).mean()) for k, r in ratios.items()}
    first = ratios["corpus"]
    assert int(splits) == len(first)
    assert [mean, second] == [f"{averages[k]:.3f}" for k in ("corpus", "corpus_reserved")]
    assert [worse, far] == [f"{100 * (first > bound).mean():.1f}%" for bound in (1.05, 1.2)]


@pytest.mark.smoke
@pytest.mark.parametrize("page", [page.relative_to(ROOT) for page in PAGES], ids=str)
def test_links_between_pages_resolve(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    generated = ("docs/gallery/", "docs/reference/generated/")  # Sphinx checks links to these
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        target = ((ROOT / page).parent / link).resolve() if link else ROOT / page
        if str(target.relative_to(ROOT)).startswith(generated):
            continue
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, (link, anchor)


@pytest.mark.smoke
def test_the_reference_lists_every_public_name_and_every_warning():
    listed = read("docs/reference/api.rst").split()
    warning_classes = [name for name in vars(exceptions) if name.endswith("Warning")]
    for name in [*quadlin.__all__, *plot.__all__, *(f"exceptions.{n}" for n in warning_classes)]:
        assert name in listed
    messages = read("docs/reference/messages.md")  # which includes the table of statuses
    for name in warning_classes:
        assert f"| `{name}` |" in messages


@pytest.mark.smoke
def test_files_that_contributing_names_exist():
    for path in re.findall(r"`([\w/]+/(?:\w+\.py)?)`", read("CONTRIBUTING.md")):
        assert (ROOT / path).exists() or (ROOT / "src" / "quadlin" / path).exists(), path


@pytest.mark.smoke
def test_the_pages_have_at_most_thirty_thousand_words():
    """Words of prose, without blocks of code and tables."""
    count = 0
    for page in PAGES:
        text = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
        count += len(re.sub(r"^(\||    ).*$", "", text, flags=re.MULTILINE).split())
    assert count <= 30_000


@pytest.mark.smoke
def test_the_readme_has_at_most_120_lines():
    assert len(read("README.md").splitlines()) <= 120


@pytest.mark.smoke
def test_the_changelog_names_the_version_or_what_comes_next():
    text = read("CHANGELOG.md")
    assert metadata.version("quadlin") in text or re.search("unreleased", text, re.IGNORECASE)


@pytest.mark.smoke
def test_a_plain_installation_saves_the_model_of_the_readme(tmp_path, monkeypatch):
    """The README saves a model to a safetensors file after `pip install .`, without extras."""
    assert 'quadlin.save(model, "wine.safetensors")' in read("README.md")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    model = SecondOrderRegressor(1, alpha=1.0).fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 4, 9])
    save(model, tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").coef_ == model.coef_
