import matplotlib
import pytest

from quadlin import SecondOrderRegressor, demo
from quadlin.datasets import make_second_order
from quadlin.plot import ConvergenceDisplay

matplotlib.use("Agg")


def test_the_display_draws_one_curve_a_fit():
    data = make_second_order(500, 5, rank=1, random_state=0)
    model = SecondOrderRegressor(rank=1, random_state=0).fit(data.X, data.y)
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
    assert (tmp_path / demo.PICTURE).stat().st_size > 10_000
    out = capsys.readouterr().out
    assert "+1.000, +1.000, -1.000" in out
    assert "cross-validated" in out


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    matplotlib.pyplot.close("all")
