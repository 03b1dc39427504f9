"""What the README and the docs show is what happens."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/special_cases.md"])
def test_examples_print_what_is_written_below_them(page, capsys):
    text, names = (ROOT / page).read_text(), {}
    examples = re.findall(r"```python\n(.*?)```\s*```\n(.*?)```", text, re.DOTALL)
    assert len(examples) == text.count("```python")
    for code, output in examples:
        exec(compile(code, page, "exec"), names)
        assert capsys.readouterr().out == output


def test_the_lines_about_sources_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sales").mkdir()
    rng = np.random.default_rng(0)
    for path in ("sales/a.parquet", "sales/b.parquet", "new.parquet", "test.parquet"):
        size, city = rng.normal(size=500), rng.choice(["Oslo", "Rome"], 500)
        gaps = [None if i % 50 == 0 else v for i, v in enumerate(size.tolist())]
        price = size * (city == "Rome") + rng.normal(size=500)
        columns = {"size": gaps, "city": city, "price": price}
        pl.DataFrame(columns).write_parquet(path)
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/scale.md").read_text(), re.DOTALL)[1]
    names = {}
    exec(compile(code, "scale.md", "exec"), names)
    assert np.isfinite(names["y"]).all()


def test_every_page_that_is_linked_is_there():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), (page.name, link)
