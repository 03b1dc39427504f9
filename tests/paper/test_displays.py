"""Displays of measurements compute shares, powers and curves, and are drawn when asked."""

import matplotlib as mpl
import numpy as np
import pytest

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.paper.displays import (
    ConvergenceDisplay,
    LevelDisplay,
    PhaseTransitionDisplay,
    ScalingDisplay,
)

mpl.use("Agg")
import matplotlib.pyplot as plt  # after the choice of the backend

CURVE = {"ours": ([1.0, 2.0, 4.0], [1.0, 0.5, 0.25])}


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize("display", [ScalingDisplay.from_points(CURVE), LevelDisplay(CURVE)])
def test_a_display_of_measurements_is_drawn(display):
    display.plot().figure_.canvas.draw()
    assert any("ours" in t.get_text() for t in display.ax_.get_legend().get_texts())


def test_a_curve_of_convergence_is_the_history_of_the_fit():
    data = make_second_order(300, 4, rank=1, random_state=0)
    model = SecondOrderRegressor(1, random_state=0).fit(data.X, data.y)
    display = ConvergenceDisplay.from_estimators({"a": model, "b": model}).plot()
    passes, errors = display.curves["a"]
    assert len(passes) == len(errors) == len(model.history_)
    assert display.ax_.get_yscale() == "log"
    assert {"a", "b"} <= {t.get_text() for t in display.ax_.get_legend().get_texts()}
    trials = {"lost": [([0, 1, 2], [1, np.inf, np.inf]), ([0, 1, 2], [1, 0.0, 0.0])]}
    ConvergenceDisplay.from_trials(trials, limits=(None, 10.0)).plot().figure_.canvas.draw()


def test_displays_of_trials_compute_shares_and_powers():
    x, y = np.repeat([1.0, 2.0], 4), np.tile([1, 1, 3, 3], 2)
    display = PhaseTransitionDisplay.from_trials(x, y, [0, 1, 0, 0, 1, 1, 1, 0])
    assert display.success.tolist() == [[0.5, 1.0], [0.0, 0.5]]
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    power = ScalingDisplay.from_points({"p": (sizes, 3 * sizes**-0.5), "q": (sizes, 0 * sizes)})
    assert power.exponents["p"] == pytest.approx(-0.5)
    assert "q" not in power.exponents  # zeros have no power
