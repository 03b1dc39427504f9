import re

import matplotlib
import numpy as np
import pytest

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.explain.displays import (
    ConvergenceDisplay,
    LevelDisplay,
    PhaseTransitionDisplay,
    ScalingDisplay,
)
from quadlin.paper import demo

matplotlib.use("Agg")


def test_the_display_draws_one_curve_a_fit():
    data = make_second_order(500, 5, rank=1, random_state=0)
    model = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).fit(data.X, data.y)
    assert list(ConvergenceDisplay.from_estimator(model).curves) == ["SecondOrderRegressor"]
    display = ConvergenceDisplay.from_estimators({"a": model, "b": model}).plot()
    assert len(display.ax_.lines) == 2
    assert display.ax_.get_yscale() == "log"
    assert display.curves["a"][1][0] == 1


def test_the_demo_runs_and_leaves_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def missing(caller):
        raise ImportError(f"{caller} requires pandas.")

    # The demo's environment has no pandas: scikit-learn must not be asked for a frame.
    monkeypatch.setattr("sklearn.datasets._base.check_pandas_support", missing)
    demo.main()
    for name in (demo.CONVERGENCE, demo.INTERACTIONS):
        assert (tmp_path / demo.FOLDER / name).stat().st_size > 10_000
    out = capsys.readouterr().out
    linear, quadratic = map(float, re.findall(r"(0\.\d+) (?:by|with)", out))
    assert quadratic > linear + 0.05  # the demo shows a case where interactions matter
    assert "+1.000, +1.000, -1.000" in out
    assert "cross-validated" in out


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    matplotlib.pyplot.close("all")


def test_trials_of_unequal_length_are_drawn_with_a_band():
    trials = {"ours": [([0, 1, 2], [1, 1e-2, 1e-4]), ([0, 1], [1, 1e-3])], "other": [([0], [1])]}
    display = ConvergenceDisplay.from_trials(trials, title="t", limits=(1e-3, None)).plot()
    assert np.allclose(display.curves["ours"][1], [1, 10**-2.5, 10**-3.5])
    assert len(display.ax_.collections) == 2
    assert display.ax_.get_ylim()[0] == 1e-3


def test_what_diverged_is_drawn_without_complaint():
    trials = {"lost": [([0, 1, 2], [1, np.inf, np.inf]), ([0, 1, 2], [1, 0.0, 0.0])]}
    ConvergenceDisplay.from_trials(trials, limits=(None, 10.0)).plot().figure_.canvas.draw()


def test_a_phase_transition_is_a_table_of_shares():
    x, y = np.repeat([1.0, 2.0], 4), np.tile([1, 1, 3, 3], 2)
    display = PhaseTransitionDisplay.from_trials(x, y, [0, 1, 0, 0, 1, 1, 1, 0]).plot()
    assert display.success.tolist() == [[0.5, 1.0], [0.0, 0.5]]
    assert [t.get_text() for t in display.ax_.texts] == ["50%", "100%", "0%", "50%"]


def test_a_power_law_is_fitted_and_named():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    display = ScalingDisplay.from_points({"p": (x, 3 * x**-0.5), "q": (x, 0 * x)}, x_label="n")
    assert np.isclose(display.exponents["p"], -0.5)
    assert "slope -0.50" in display.plot().ax_.get_legend_handles_labels()[1][0]
    assert "q" not in display.exponents


@pytest.mark.parametrize("x", [["b", "a", "a"], [10, 100, 100]])
def test_levels_are_drawn_for_words_and_numbers(x):
    display = LevelDisplay({"s": (x, [1.0, 2.0, 4.0])}, 1.0, log_y=True, log_x=x[0] == 10).plot()
    assert display.ax_.get_yscale() == "log"
    display.figure_.canvas.draw()


def test_means_on_a_logarithmic_axis_are_geometric():
    drawn = [
        LevelDisplay({"s": ([1, 1], [1e-4, 1.0])}, log_y=log_y).plot().ax_.lines[0].get_ydata()
        for log_y in (True, False)
    ]
    assert np.allclose(drawn, [[1e-2], [0.50005]])


def test_a_style_follows_the_name_in_every_display():
    styles = {"b": {"color": "red", "marker": "x"}}
    points = {"a": ([1, 2], [1.0, 2.0]), "b": ([1, 2], [2.0, 1.0])}
    displays = (
        ConvergenceDisplay(points, styles=styles, stepwise=True),
        ScalingDisplay.from_points(points, styles=styles),
        LevelDisplay(points, styles=styles),
    )
    for display in displays:
        lines = display.plot().ax_.lines
        assert {line.get_color() for line in lines if line.get_marker() == "x"} == {"red"}
        assert "red" not in {line.get_color() for line in lines if line.get_marker() == "o"}
    assert displays[0].ax_.lines[0].get_drawstyle() == "steps-post"


def test_an_axis_of_less_than_a_decade_has_several_ticks():
    display = LevelDisplay({"s": ([10, 20, 40], [0.9, 1.0, 1.3])}, log_x=True, log_y=True).plot()
    display.figure_.canvas.draw()
    for axis in (display.ax_.xaxis, display.ax_.yaxis):
        low, high = axis.get_view_interval()
        shown = [
            t
            for t, text in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
            if low <= t <= high and text.get_text()
        ]
        assert len(shown) >= 3


def test_a_legend_is_below_the_picture_and_hides_nothing():
    points = {"a": ([1, 2], [1.0, 2.0]), "b": ([1, 2], [2.0, 1.0])}
    for display in (ConvergenceDisplay(points), ScalingDisplay.from_points(points)):
        display.plot().figure_.canvas.draw()
        legend = display.ax_.get_legend().get_window_extent()
        assert legend.y1 < display.ax_.get_window_extent().y0
        assert legend.y0 >= 0


def test_a_measured_place_is_ticked_with_its_own_number():
    display = LevelDisplay({"s": ([64_000, 256_000], [1.0, 0.5])}, log_x=True).plot()
    display.figure_.canvas.draw()
    assert [text.get_text() for text in display.ax_.get_xticklabels()] == ["64000", "256000"]


def test_a_curve_does_not_go_back_where_slow_trials_end():
    trials = {"ours": [([0, 9, 10], [1, 0.5, 0.1]), ([0, 20], [1, 0.5])]}
    assert ConvergenceDisplay.from_trials(trials).curves["ours"][0].tolist() == [0, 14.5, 14.5]
