"""What the README and the docs show is what happens."""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/classification.md",
        "docs/counts.md",
        "docs/model_files.md#onnx",
        "docs/pairs.md",
        "docs/reading_a_model.md",
        "docs/recommender.md",
        "docs/signals.md",
        "docs/special_cases.md",
    ],
)
def test_examples_print_what_is_written_below_them(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, _, section = page.partition("#")
    text, names = (ROOT / file).read_text(), {}
    text = text.partition("## ONNX\n")[2] if section else text  # the rest has a test of its own
    examples = re.findall(r"```python\n(.*?)```\s*```\n(.*?)```", text, re.DOTALL)
    assert len(examples) == text.count("```python")
    for code, output in examples:
        exec(compile(code, page, "exec"), names)
        assert capsys.readouterr().out == output


def test_the_lines_about_sources_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page, names = (ROOT / "docs/scale.md").read_text(), {}
    first, weekly = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(first, "scale.md", "exec"), names)
    assert np.isfinite(names["y"]).all()
    assert names["model"].score(names["new"]) > 0.95  # the noise leaves .99
    capsys.readouterr()
    exec(compile(weekly, "scale.md", "exec"), names)
    assert capsys.readouterr().out == "6000\n"
    assert names["model"].score(names["rows"]) > 0.95


def test_every_page_that_is_linked_is_there():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), (page.name, link)
