"""The report: one page that stands alone, with names escaped."""

import re

import numpy as np
import pandas as pd
import polars as pl
import pytest

from quadlin import SecondOrderRegressor, open_source
from quadlin.explain import pictures
from quadlin.explain.html import html_page
from quadlin.explain.whole_columns import column_values

EVIL = "<script>alert(1)</script>&"
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "city": RNG.choice(["Bonn", EVIL], 200),
        EVIL: RNG.standard_normal(200),
        "b": RNG.uniform(size=200),
    }
)
Y = (FRAME[EVIL] * FRAME["b"] * 5 + RNG.standard_normal(200)).rename("rent")
MODEL = SecondOrderRegressor(1, alpha=0.0, uncertainty=True, random_state=0).fit(FRAME, Y)


@pytest.fixture(autouse=True)
def small_pictures(monkeypatch):
    monkeypatch.setattr(pictures, "DPI", 20)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "DPI", 20)
        path = MODEL.report(tmp_path_factory.mktemp("page") / "page.html", FRAME, Y)
    return path.read_text()


def test_a_report_says_what_the_model_is_and_how_it_was_validated(page):
    text = re.sub(r"<[^>]*>|\s+", " ", page)
    for words in (
        "What the model says about rent",
        "rent = b + xᵀw + xᵀMx",
        f"{MODEL.score(FRAME, Y):.4f}",
        "on the 200 rows given",
        "converged. A step no longer lowers the objective",
        "quadlin 0",
        "measured from the mean of the fitted rows",
        "over the 200 rows given",
        "lowers the prediction",
        "multiplies the product x_i·x_j",
        "differences from their mean over the fitted rows",
    ):
        assert " ".join(words.split()) in " ".join(text.split()), words


def test_a_report_stands_alone_and_escapes_names(page):
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert page.count("data:image/png;base64,") == 4
    assert page.count("<img ") == page.count(" alt=") == 4
    assert "viewport" in page


def test_numbers_are_flush_right_and_bars_have_a_side(page):
    cells = re.findall(r"<td([^>]*)>\s*([+-]?\d[\d.e+-]*%?)\s*</td>", page)
    assert cells
    assert all('class="number"' in attributes for attributes, _ in cells)
    for effect in MODEL.effects(FRAME).levels:
        assert f"{effect.effect:+.4g}" in page
    assert re.search(r'class="bar level positive"', page)
    assert re.search(r'class="bar level negative"', page)


def test_a_report_without_rows_shows_what_the_fit_knows(tmp_path):
    text = MODEL.report(tmp_path / "page.html", target="price").read_text()
    assert "What the model says about price" in text
    assert "on the fitted rows (training)" in text
    assert "if the columns were independent" in text
    assert "One prediction" not in text


def test_rows_without_targets_measure_effects(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    text = MODEL.report(tmp_path / "page.html", FRAME).read_text()
    assert "on the fitted rows (training)" in text
    assert "over the 200 rows given" in text


def test_a_report_of_a_source_has_no_points_but_all_numbers(tmp_path):
    rows = FRAME.assign(rent=Y)
    source = open_source(rows, target="rent", encoder=MODEL.encoder_)
    text = MODEL.report(tmp_path / "page.html", source).read_text()
    assert "on the rows given" in text
    assert "over the 200 rows given" in text


def test_without_matplotlib_a_report_has_no_pictures_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    text = MODEL.report(tmp_path / "page.html", FRAME, Y).read_text()
    assert "<img" not in text
    assert "Pictures need matplotlib" in text


def test_a_value_with_a_newline_cannot_leave_its_line():
    assert r"a\nb" in html_page("t", "", "<p>{{ v }}</p>", {"v": "a\nb"})


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_a_report_of_rows_with_lists_of_labels_names_those_of_the_row(library, tmp_path):
    rng = np.random.default_rng(0)
    genres = rng.choice(["war", "war|fun", "fun", None], 300)
    age = rng.normal(40, 9, 300)
    y = np.array(["war" in (g or "") for g in genres]) * 2.0 + 0.1 * age + rng.normal(size=300)
    rows = library({"genres": genres.tolist(), "age": age})
    model = SecondOrderRegressor(1, alpha=1.0, multi_hot=["genres"], random_state=0).fit(rows, y)
    page = model.report(tmp_path / "r.html", rows, y).read_text()
    assert "genres=war" in page  # among the levels
    columns = model.decomposition().columns
    values = {c.name: column_values(rows, c) for c in columns}
    war = columns[0].levels.index("war")
    np.testing.assert_array_equal(
        (values["genres"] == war).any(axis=1), ["war" in (g or "") for g in genres]
    )
    np.testing.assert_allclose(values["age"], age)


def test_the_caption_says_how_rows_are_shown(tmp_path):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"a": rng.choice(list("pqr"), 400), "b": rng.choice(list("uvw"), 400)})
    rows["x"], rows["z"] = rng.normal(size=(2, 400))
    both = (rows.a == "p") & (rows.b == "u")
    y = 5.0 * both + 0.1 * rng.normal(size=400)
    page = SecondOrderRegressor(random_state=0).fit(rows, y).report(tmp_path / "a", rows, y)
    assert "Numbers of rows are in brackets." in page.read_text()
    assert "Points are rows" not in page.read_text()
    page = SecondOrderRegressor(random_state=0).fit(rows, rows.x * rows.z)
    assert "Points are rows of the data." in page.report(tmp_path / "b", rows, y).read_text()
