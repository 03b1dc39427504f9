"""Displays show the numbers of a model under its names, and a report is one page with all of it."""

import re
from functools import cache
from html import unescape

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from quadlin import SecondOrderClassifier, SecondOrderRegressor, open_source
from quadlin.plot import (
    ContributionDisplay,
    InteractionDisplay,
    PairDisplay,
    SpectrumDisplay,
)

mpl.use("Agg")
import matplotlib.pyplot as plt  # after the choice of the backend

COST = "cost in $ a $"  # a name that matplotlib would take for a formula
EVIL = "<script>alert(1)</script>&"
N = 300


@pytest.fixture(autouse=True)
def _closed_figures():
    plt.close("all")  # those of other tests
    yield
    plt.close("all")


@cache
def flats():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": rng.choice(["Bonn", "Oslo", "Rome"], N),
            "kind": rng.choice(["flat", "house"], N),
            "area": rng.normal(70, 20, N),
            COST: rng.uniform(0, 2, N),
        }
    )
    y = 0.1 * frame.area * frame[COST] - 3 * (frame.city == "Rome") * frame[COST]
    return frame, y + (frame.kind == "flat") + 0.3 * rng.standard_normal(N)


@cache
def model():
    return SecondOrderRegressor(3, alpha=0.0, random_state=0).fit(*flats())


DISPLAYS = {
    "interactions": lambda: InteractionDisplay.from_estimator(model(), flats()[0]),
    "surface": lambda: PairDisplay.from_estimator(model(), flats()[0], ("area", COST)),
    "lines": lambda: PairDisplay.from_estimator(model(), flats()[0], ("area", "city")),
    "levels": lambda: PairDisplay.from_estimator(model(), flats()[0], ("kind", "city")),
    "contributions": lambda: ContributionDisplay.from_estimator(model(), flats()[0], row=3),
    "spectrum": lambda: SpectrumDisplay.from_estimator(model()),
}
EXPECTED = {  # what a reader must find in the picture
    "interactions": ["city", "kind", "area", COST],
    "surface": ["area", COST],
    "lines": ["area", "Bonn", "Oslo", "Rome"],
    "levels": ["flat", "house", "Bonn", "Oslo", "Rome"],
    "contributions": ["area", COST, "city"],
}


def texts_of(display):
    display.figure_.canvas.draw()
    shown = (text.get_text() for text in display.figure_.findobj(mpl.text.Text))
    return " | ".join(shown).replace(r"\$", "$")


@pytest.mark.parametrize("kind", DISPLAYS)
def test_a_display_is_drawn_on_its_own_axes_or_on_those_given(kind):
    display = DISPLAYS[kind]()
    assert plt.get_fignums() == []  # computed, and not yet drawn
    assert display.plot() is display
    assert display.ax_.figure is display.figure_
    texts = texts_of(display)
    for name in EXPECTED.get(kind, []):
        assert name in texts
    assert len(plt.get_fignums()) == 1
    _, axes = plt.subplots()
    assert display.plot(ax=axes).ax_ is axes
    assert len(plt.get_fignums()) == 2
    display.figure_.canvas.draw()


@pytest.mark.smoke
def test_the_heat_map_shows_the_strengths_and_signs_of_pairs():
    rows = flats()[0]
    display = InteractionDisplay.from_estimator(model(), rows)
    names = list(display.names)
    assert set(names) == set(rows)
    effects = model().effects(rows)
    for effect in (*effects.columns, *effects.pairs):
        i, j = names.index(effect.first), names.index(effect.second or effect.first)
        strength = pytest.approx(effect.strength)
        assert display.strength[i, j] == strength
        assert display.strength[j, i] == strength
    sign = display.signs[names.index("area"), names.index(COST)]
    assert sign == np.sign(model().interaction("area", COST))
    assert display.signs[names.index("city"), names.index(COST)] == 0  # levels share no sign
    few = InteractionDisplay.from_estimator(model(), rows, columns=2)
    assert set(few.names) == {"area", COST}  # those that interact most


@pytest.mark.smoke
@pytest.mark.parametrize("columns", [("area", COST), ("city", "area"), ("kind", "city")])
def test_the_picture_of_a_pair_is_what_the_model_predicts(columns):
    rows = flats()[0]
    place = {"area": 60.0, COST: 1.0, "city": "Oslo", "kind": "flat"}
    display = PairDisplay.from_estimator(model(), rows, columns, reference=place)
    assert set(display.names) == set(columns)
    first, second = display.names
    for i in (0, len(display.y) - 1):
        for j in (0, 1):
            row = pd.DataFrame({c: [place[c]] for c in rows})
            row[first], row[second] = display.x[j], display.y[i]
            assert display.prediction[i, j] == pytest.approx(model().predict(row)[0])


def test_a_pair_is_drawn_over_the_range_of_its_rows():
    rows = flats()[0]
    for X in (rows, None):
        display = PairDisplay.from_estimator(model(), X, ("area", COST))
        for values, name in ((display.x, display.names[0]), (display.y, display.names[1])):
            assert rows[name].min() <= min(values) < max(values) <= rows[name].max()
    default = PairDisplay.from_estimator(model(), rows)
    strongest = model().effects(rows).pairs[0]
    assert set(default.names) == {strongest.first, strongest.second}


def test_what_cannot_be_drawn_is_named():
    rows, y = flats()
    with pytest.raises(KeyError, match="town"):
        PairDisplay.from_estimator(model(), rows, ("town", "area"))
    linear = SecondOrderRegressor(0, alpha=0.0, pairs=None).fit(rows, y)
    with pytest.raises(ValueError, match="interactions"):
        PairDisplay.from_estimator(linear, rows)
    with pytest.raises(IndexError, match="300"):
        ContributionDisplay.from_estimator(model(), rows, row=300)


@pytest.mark.parametrize("row", [0, 17, -1])
def test_the_bars_of_one_prediction_sum_to_it(row):
    rows = flats()[0]
    display = ContributionDisplay.from_estimator(model(), rows, row=row, top=4)
    expected = model().predict(rows)[row]
    assert display.prediction == pytest.approx(expected)
    assert display.baseline + display.values.sum() == pytest.approx(expected)
    parts = model().contributions(rows.iloc[[row]])
    assert np.abs(display.values[0]) == pytest.approx(np.abs(parts.values[0, 1:]).max())


def test_displays_of_a_classifier_name_the_class_of_the_log_odds():
    rows, y = flats()
    labels = np.where(y > y.median(), "dear", "cheap")
    fit = SecondOrderClassifier(1, alpha=1.0, pairs=None).fit(rows, labels)
    display = ContributionDisplay.from_estimator(fit, rows)
    assert display.prediction == pytest.approx(fit.decision_function(rows)[0])
    assert "dear" in texts_of(display.plot())
    assert "dear" in texts_of(PairDisplay.from_estimator(fit, rows).plot())


def test_the_spectrum_stands_beside_the_noise():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1000, 5))
    noise = rng.standard_normal(1000)
    strong = SecondOrderRegressor(2, alpha=0.0, random_state=0)
    strong.fit(X, 3 * X[:, 0] * X[:, 1] + noise)
    display = SpectrumDisplay.from_estimator(strong)
    # x₀x₁ has eigenvalues ±1/2 for features of deviation 1; their error is about √(5/1000).
    np.testing.assert_allclose(sorted(display.eigenvalues), [-1.5, 1.5], atol=0.3)
    assert np.abs(display.eigenvalues).min() > 5 * display.noise
    weak = SecondOrderRegressor(2, alpha=0.0, random_state=0).fit(X, noise)
    shown = SpectrumDisplay.from_estimator(weak)
    assert np.abs(shown.eigenvalues).max() < 3 * shown.noise


# The report.


def words_of(page):
    """Return what a reader sees, without pictures."""
    page = re.sub(r"<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(page).split())


@cache
def evil():
    """Return a model of a table whose names and levels are pieces of HTML, and its rows."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": rng.choice(["Bonn", EVIL], 200),
            EVIL: rng.standard_normal(200),
            "b": rng.uniform(size=200),
        }
    )
    y = (5 * frame[EVIL] * frame["b"] + rng.standard_normal(200)).rename("rent")
    fit = SecondOrderRegressor(1, alpha=0.0, uncertainty=True, random_state=0).fit(frame, y)
    return fit, frame, y


def test_a_report_stands_alone_and_escapes_names(tmp_path):
    fit, frame, y = evil()
    path = fit.report(tmp_path / "page.html", frame, y)
    assert path == tmp_path / "page.html"
    page = path.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in page
    assert not re.search(r"""(src|href)=["']?(?!["']?data:)|@import|url\((?!["']?data:)""", page)
    assert page.count("<img ") == page.count("data:image/png;base64,") >= 3
    assert page.count(" alt=") == page.count("<img ")  # for those who do not see pictures
    assert plt.get_fignums() == []


def test_every_number_of_a_report_is_one_and_every_term_has_its_bar(tmp_path):
    fit, frame, y = evil()
    page = fit.report(tmp_path / "page.html", frame, y).read_text()
    assert "nan" not in re.sub(r"base64,[^\"]*", "", page).split()
    assert not re.search(r">[-+]?nan<", page)
    terms = page[page.index("<h2>Terms</h2>") :]
    terms = terms[: terms.index("</table>")]
    moved = [t for t in fit.summary(top=10).shown_terms if t.strength]
    assert terms.count('<div class="bar ') == len(moved) > 3


def test_a_report_has_the_target_the_score_and_the_effects_of_its_rows(tmp_path):
    fit, frame, y = evil()
    words = words_of(fit.report(tmp_path / "page.html", frame, y).read_text())
    for part in ("rent", "SecondOrderRegressor", "200", fit.status_.name, EVIL, "city", "b"):
        assert part in words
    assert f"{fit.score(frame, y):.6f}"[:5] in words
    for effect in fit.effects(frame).columns:
        assert f"{effect.strength:.4g}" in words
    assert f"{fit.interaction(EVIL, 'b'):+.4g}" in words


@pytest.mark.parametrize("rows", ["none", "without targets", "a source"])
def test_a_report_needs_neither_rows_nor_targets(tmp_path, rows):
    fit, frame, y = evil()
    source = open_source(frame.assign(rent=y), target="rent", encoder=fit.encoder_)
    given = {"none": [], "without targets": [frame], "a source": [source]}[rows]
    words = words_of(fit.report(tmp_path / "page.html", *given, target="price").read_text())
    assert "price" in words
    assert EVIL in words


def test_a_report_replaces_the_file_and_an_error_leaves_it(tmp_path):
    fit, frame, y = evil()
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises((ValueError, KeyError)):
        fit.report(path, frame[["b"]], y)
    assert path.read_text() == "old"
    fit.report(path)
    assert "SecondOrderRegressor" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_says_how_many_columns_its_heat_map_leaves_out(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 14))
    y = np.sum(X[:, 1:] * X[:, :-1], axis=1) + 0.3 * rng.standard_normal(N)
    fit = SecondOrderRegressor(0, alpha=1.0, pairs=[(j, j + 1) for j in range(13)]).fit(X, y)
    page = fit.report(tmp_path / "page.html", X, y).read_text()
    # Some caption counts the columns: all 14, those that are drawn, or those left out.
    captions = " ".join(re.findall(r'alt="([^"]*)"', page))
    assert {int(number) for number in re.findall(r"\b\d+\b", captions)} & set(range(2, 15))
