"""Pictures of measurements compute means, shares and slopes, and are drawn when asked."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from quadlin.paper.studies import Curves, Map, convergence

mpl.use("Agg")
import matplotlib.pyplot as plt  # after the choice of the backend


@pytest.mark.parametrize("x", [[1.0, 2.0, 4.0, 4.0], ["a", "b", "c", "c"]])
def test_curves_are_drawn_with_their_level(x):
    picture = Curves({"ours": (x, [1, 2, 4, 16])}, "x", "y", "t", level=(3.0, "level"))
    ax = plt.figure().add_subplot()
    picture.draw(ax)
    y = ax.lines[0].get_ydata()
    assert np.allclose(y, [1, 2, 8])  # the geometric mean
    assert "level" in ax.get_legend_handles_labels()[1]
    plt.close("all")


def test_a_map_has_the_shares_of_its_cells():
    frame = pd.DataFrame({"n": [2, 1, 1, 2], "k": [3, 3, 3, 4], "found": [1, 0, 1, 1]})
    table = Map.of(frame, "n", "k", "found", x="n", y="k", title="t")
    assert table.columns == ["1", "2"]
    assert np.array_equal(table.shares, [[0.5, 1], [np.nan, 1]], equal_nan=True)
    table.draw(plt.figure().add_subplot())
    plt.close("all")


def test_a_trial_that_ended_early_keeps_its_last_error():
    lines = [(0, 0, 1.0), (0, 1, 0.1), (1, 0, 2.0), (1, 1, 0.2), (1, 2, 0.02)]
    frame = pd.DataFrame(lines, columns=["seed", "iteration", "nmse"])
    frame = frame.assign(solver="plain", passes=2 * frame["iteration"])
    x, y = convergence(frame, "passes", ["plain"])["plain MES"]
    assert x.tolist() == [0, 0, 2, 2, 4, 4]
    assert y.tolist() == [1.0, 2.0, 0.1, 0.2, 0.1, 0.02]
