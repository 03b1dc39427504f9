"""Displays of a model: computed once, drawn later, of what the model says."""

import re

import matplotlib
import matplotlib.pyplot
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from quadlin import SecondOrderClassifier, SecondOrderRegressor
from quadlin.explain.pictures import pictures_of
from quadlin.explain.surface_display import Axis
from quadlin.explain.whole_columns import column_values
from quadlin.plot import ContributionDisplay, InteractionDisplay, PairDisplay, SpectrumDisplay

matplotlib.use("Agg")

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "city": RNG.choice(["Bonn", "Oslo", "Rome"], 300),
        "kind": RNG.choice(["flat", "house"], 300),
        "area": RNG.normal(70, 20, 300),
        "cost in $ a $": RNG.uniform(0, 2, 300),
    }
)
COST = FRAME["cost in $ a $"]
Y = 0.1 * FRAME["area"] * COST - 3 * (FRAME["city"] == "Rome") * COST + (FRAME["kind"] == "flat")
Y += RNG.standard_normal(300) * 0.3
MODEL = SecondOrderRegressor(3, alpha=0.0, random_state=0).fit(FRAME, Y)
LINEAR = SecondOrderRegressor(0, alpha=0.0).fit(FRAME, Y)


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    matplotlib.pyplot.close("all")


def drawn(display):
    """Draw small and without a layout, which takes most of the time."""
    _, ax = matplotlib.pyplot.subplots(dpi=20)
    assert display.plot(ax=ax) is display
    assert display.ax_ is ax
    display.figure_.canvas.draw()
    return display


def test_a_display_makes_its_own_axes():
    display = SpectrumDisplay.from_estimator(MODEL).plot()
    assert display.ax_.figure is display.figure_
    assert display.figure_.get_size_inches().tolist() == list(display.size)


def test_the_heat_map_shows_the_strongest_columns_with_their_signs():
    display = drawn(InteractionDisplay.from_estimator(MODEL, FRAME, columns=3))
    effects = {(e.first, e.second): e.strength for e in MODEL.effects(FRAME).pairs}
    assert set(display.names) == {"city", "area", "cost in $ a $"}
    i, j = display.names.index("area"), display.names.index("cost in $ a $")
    assert display.strength[i, j] == display.strength[j, i] == effects["area", "cost in $ a $"]
    assert display.signs[i, j] == 1
    assert display.signs[display.names.index("city"), j] == 0  # levels have no sign in common
    assert display.rows == "the 300 rows given"
    texts = [text.get_text() for text in display.ax_.texts]
    assert len(texts) == 9
    assert sum(text.startswith("+") for text in texts) >= 2


def test_names_with_dollars_are_no_formulas():
    display = drawn(InteractionDisplay.from_estimator(MODEL))
    labels = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert r"cost in \$ a \$" in labels


@pytest.mark.parametrize("columns", [("area", "cost in $ a $"), ("city", "area"), ("kind", "city")])
def test_the_surface_of_a_pair_is_what_the_model_predicts(columns):
    display = drawn(PairDisplay.from_estimator(MODEL, FRAME, columns))
    assert len(display.points) == 300
    parts = MODEL.decomposition()
    # A row at the mean of all other columns: what other columns add there is nothing.
    others = [c.name for c in parts.columns if c.name not in display.names]
    row = FRAME.iloc[:1].copy()
    row[display.names[0]], row[display.names[1]] = display.x[1], display.y[0]
    whole = MODEL.contributions(row).to_frame().iloc[0]
    away = sum(v for name, v in whole.items() if any(o in name for o in others))
    assert display.prediction[0, 1] == pytest.approx(MODEL.predict(row)[0] - away)


def test_a_table_of_levels_counts_all_rows():
    many = pd.concat([FRAME] * 5)
    display = drawn(PairDisplay.from_estimator(MODEL, many, ("kind", "city")))
    counts = [
        int(c) for text in display.ax_.texts for c in re.findall(r"\((\d+)\)", text.get_text())
    ]
    assert sum(counts) == len(many) == 1500
    assert len(PairDisplay.from_estimator(MODEL, many, ("area", "city")).points) <= 1000


def test_the_strongest_pair_is_drawn_by_default_with_or_without_rows():
    first = MODEL.effects(FRAME).pairs[0]
    for rows in (FRAME, None):
        display = drawn(PairDisplay.from_estimator(MODEL, rows))
        assert set(display.names) == {first.first, first.second}
    with pytest.raises(ValueError, match="no interactions"):
        PairDisplay.from_estimator(LINEAR, FRAME)
    with pytest.raises(KeyError, match="'town'"):
        PairDisplay.from_estimator(MODEL, FRAME, ("town", "area"))


def test_of_many_levels_the_most_frequent_are_drawn():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.standard_normal(400), "b": rng.geometric(0.2, 400).astype(str)})
    model = SecondOrderRegressor(1, alpha=0.1, random_state=0).fit(frame, frame["a"])
    display = drawn(PairDisplay.from_estimator(model, frame, ("b", "a")))
    assert sorted(display.y) == list("12345678")
    assert set(display.points[:, 1]) == set(range(-1, 8))


def test_no_surface_reaches_beyond_the_fitted_rows():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 2, 400) * 3.0, rng.exponential(2.0, 400)])
    model = SecondOrderRegressor(2, alpha=0.1).fit(X, X[:, 0] * X[:, 1])
    display = PairDisplay.from_estimator(model)  # two standard deviations would be below zero
    assert (display.x[0], display.x[-1]) == (0.0, 3.0)
    assert display.y[0] == X[:, 1].min()
    assert display.y[-1] == pytest.approx(X[:, 1].mean() + 2 * X[:, 1].std())


def test_the_legend_of_lines_is_below_them_and_leaves_them_their_room():
    x, names = np.linspace(0, 1, 5), [f"a level with a long name {i}" for i in range(8)]
    lines = np.arange(8.0)[:, None] * x
    display = PairDisplay(("hour", "kind"), x, names, lines, np.empty((0, 2)), "the mean").plot()
    display.figure_.canvas.draw()
    axes, legend = display.ax_.get_window_extent(), display.ax_.get_legend().get_window_extent()
    assert 0 <= legend.y0 < legend.y1 < axes.y0
    assert axes.height > 2 * display.figure_.dpi  # inches


def test_the_texts_of_a_table_of_large_numbers_do_not_meet():
    rng = np.random.default_rng(0)
    rows = {f"the kind {c}": rng.choice([f"{c} no. {i}" for i in range(8)], 400) for c in "ab"}
    frame = pd.DataFrame(rows | {"the kind b": rng.choice(["one", "two", "three"], 400)})
    y = 1e6 * (1 + rng.random(400) + (frame["the kind b"] == "one"))
    model = SecondOrderRegressor(2, alpha=0.1).fit(frame, y)
    display = drawn(PairDisplay.from_estimator(model, frame, tuple(frame)))
    assert display.names == ("the kind b", "the kind a")  # eight levels upwards, three across
    display.figure_.canvas.draw()
    for texts in (display.ax_.texts, display.ax_.get_xticklabels(), display.ax_.get_yticklabels()):
        boxes = [text.get_window_extent() for text in texts if text.get_text()]
        pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]]
        assert not any(a.overlaps(b) for a, b in pairs)


def test_missing_values_are_not_drawn():
    rows = FRAME.copy()
    rows.loc[:9, "area"] = np.nan
    column = MODEL.decomposition().columns[2]
    assert np.isnan(column_values(rows, column)[:10]).all()
    axis = Axis.of(MODEL.decomposition(), 2, column_values(rows, column))
    assert np.isfinite(axis.values).all()


def test_one_prediction_is_taken_apart():
    display = drawn(ContributionDisplay.from_estimator(MODEL, FRAME, row=-1, top=3))
    assert len(display.names) == 4
    assert display.names[-1] == "7 others"
    assert display.baseline + display.values.sum() == pytest.approx(display.prediction)
    assert display.prediction == pytest.approx(MODEL.predict(FRAME)[-1])
    assert any(" = " in name for name in display.names)
    with pytest.raises(IndexError, match="X has 300 rows"):
        ContributionDisplay.from_estimator(MODEL, FRAME, row=300)


def test_parts_of_one_prediction_that_add_nothing_are_left_out():
    model = SecondOrderRegressor(0, pairs=[("area", "cost in $ a $")], alpha=0.0).fit(FRAME, Y)
    display = drawn(ContributionDisplay.from_estimator(model, FRAME))
    assert [name for name in display.names if "×" in name] == ["area × cost in $ a $"]
    assert len(display.names) == 5  # the four columns and the pair: no other pair is in the model


def test_displays_of_a_classifier_name_the_class_of_the_log_odds():
    labels = np.where(Y > 7.0, "dear", "cheap")
    model = SecondOrderClassifier(1, alpha=1.0, pairs=None).fit(FRAME, labels)
    display = drawn(ContributionDisplay.from_estimator(model, FRAME))
    assert display.ax_.get_xlabel() == "added to the log-odds of 'dear'"
    assert PairDisplay.from_estimator(model).target == "log-odds of 'dear'"
    assert str(model.summary()).splitlines()[0].endswith("log-odds of 'dear' = b + xᵀw + xᵀMx")
    several = np.where(Y > 9.0, "luxury", labels)
    model = SecondOrderClassifier(1, alpha=1.0, pairs=None).fit(FRAME, several)
    for label in model.classes_:  # against the rest
        one = model.one_vs_rest(label)
        assert PairDisplay.from_estimator(one).target == f"log-odds of '{label}'"


def test_the_spectrum_stands_beside_the_noise():
    display = drawn(SpectrumDisplay.from_estimator(MODEL))
    state = MODEL.fitted_.state
    expected = np.sort(np.abs(state.model.s) * state.units.target.scale)[::-1]
    np.testing.assert_allclose(np.abs(display.eigenvalues), expected)
    assert 0 < display.noise < expected[0]


def test_a_linear_model_has_displays_too():
    drawn(InteractionDisplay.from_estimator(LINEAR, FRAME))
    drawn(SpectrumDisplay.from_estimator(LINEAR))
    drawn(ContributionDisplay.from_estimator(LINEAR, FRAME))
    assert [p.heading for p in pictures_of(LINEAR, FRAME)] == ["One prediction"]


def test_values_of_columns_come_from_frames_arrays_and_sparse_rows():
    columns = MODEL.decomposition().columns
    city = FRAME["city"].map({"Bonn": 0, "Oslo": 1, "Rome": 2})
    np.testing.assert_array_equal(column_values(FRAME, columns[0]), city)
    np.testing.assert_array_equal(column_values(FRAME, columns[2]), FRAME["area"])
    X = np.column_stack([np.eye(3)[city], FRAME["area"]])
    for rows in (X, sparse.csr_array(X)):
        np.testing.assert_array_equal(column_values(rows, columns[0]), city)


def test_pictures_of_models_without_matplotlib_are_none(monkeypatch):
    monkeypatch.setattr("quadlin.explain.pictures.find_spec", lambda name: None)
    assert pictures_of(MODEL, FRAME) == []


def test_a_part_that_adds_next_to_nothing_has_no_sign_of_its_own():
    values = np.array([2.0, -1e-9, 1e-9])
    display = drawn(ContributionDisplay(["a", "b", "c"], values, 0.0, 2.0, "the mean"))
    assert [text.get_text() for text in display.ax_.texts] == ["+2.00", "+0.00", "+0.00"]


def _boxes(texts, figure):
    renderer = figure.canvas.get_renderer()
    return [text.get_window_extent(renderer) for text in texts if text.get_text()]


@pytest.mark.parametrize("size", [3e-5, 0.02, 1.0, 4e3, 6e4, 2.5e6, 1e12])
def test_numbers_fit_into_the_cells_of_heat_maps_whatever_their_units(size):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 8))
    y = size * (X[:, 0] * X[:, 1] - X[:, 2] * X[:, 3] + X[:, 4] * X[:, 5] + X[:, 6] + 0.3 * X[:, 7])
    model = SecondOrderRegressor(random_state=0, rank=6, pairs=None).fit(X, y)
    display = InteractionDisplay.from_estimator(model).plot()
    levels = ["a", "b", "c", "d", "e", "f", "g", "h"]
    table = PairDisplay(
        ("film", "user"), levels, levels, size * rng.standard_normal((8, 8)), np.empty((0, 2)), "0"
    ).plot()
    for shown in (display, table):
        shown.figure_.canvas.draw()
        width = shown.ax_.transData.transform((1, 0))[0] - shown.ax_.transData.transform((0, 0))[0]
        cells = [text for text in shown.ax_.texts if not text.get_text().startswith("in 1e")]
        assert max(box.width for box in _boxes(cells, shown.figure_)) < width


@pytest.mark.parametrize("size", [3e-5, 1.0, 6e4, 2.5e6])
def test_the_numbers_of_one_prediction_stand_clear_of_names_and_edges(size):
    names = [f"a rather long name, no. {i}" for i in range(6)]
    values = size * np.array([-5.8, 4.9, -2.7, 1.2, 0.4, -0.1])
    display = ContributionDisplay(names, values, 0.0, float(values.sum()), "the mean").plot()
    display.figure_.canvas.draw()
    inside = display.ax_.get_window_extent()
    for box in _boxes(display.ax_.texts, display.figure_):
        assert inside.x0 <= box.x0 < box.x1 <= inside.x1
    unit = display.ax_.get_xlabel()
    assert ("in 1e" in unit) == (size != 1.0)
