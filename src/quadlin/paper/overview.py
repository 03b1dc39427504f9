"""The eight panels as one figure, laid out as in the paper, and all levels of a in one picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from quadlin.explain.displays import ConvergenceDisplay
from quadlin.paper.laws import law_of
from quadlin.paper.methods import name_of, styles
from quadlin.paper.studies.panels import PANELS, VIEWS, curves
from quadlin.paper.study import Frame

# The paper draws MES and GD against iterations; the pictures of the panels have the rest.
SHOWN = {
    "iteration": ("plain", "guarded", "gd_printed", "gd_standardised", "gd_centred"),
    "passes": ("plain", "literal", "guarded", "polished", "gd_printed", "gd_centred"),
}
ERRORS = {"iteration": "nmse", "passes": "nmse_clean"}  # against y as drawn, and without noise
LOWEST, HIGHEST = 1e-14, 10.0
PALE = 0.4


@dataclass
class OverviewDisplay:
    """Panels (a) to (h) in four rows of two: test NMSE against iterations or passes."""

    frames: Mapping[str, Frame]  # by the name of the panel
    x: str = "iteration"
    figure_: Any = None

    def plot(self) -> Self:
        """Draw the figure; a panel with two noise levels shows noise 1 in paler lines."""
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(4, 2, figsize=(6.4, 9.2), sharex="row", layout="constrained")
        handles: dict[str, Any] = {}
        for ax, name in zip(axes.ravel(), PANELS, strict=True):
            frame = self.frames[name]
            for noise, part in frame.groupby("noise"):
                pale = len(frame["noise"].unique()) > 1 and noise > 0
                handles = self._curves(ax, part, PALE if pale else 1.0) | handles
            words = law_of(frame["distribution"].iloc[0]).words.split(", x̂")[0]
            words = words.replace("x is 1 with probability", "P(x = 1) =").split(", else")[0]
            noises = " and ".join(f"{v:g}" for v in sorted(frame["noise"].unique()))
            ax.set_title(f"({name}) {words}\nnoise {noises}", fontsize="small")
            if frame["noise"].min() == 0:
                ax.set_ylim(LOWEST, HIGHEST)
        for ax in axes[:, 0]:
            ax.set_ylabel("test NMSE")
        for ax in axes[-1]:
            ax.set_xlabel(VIEWS[self.x])
        place = {"loc": "outside lower center", "ncols": 2, "frameon": False}
        figure.legend(handles.values(), handles.keys(), fontsize="small", **place)
        self.figure_ = figure
        return self

    def _curves(self, ax: Any, frame: Frame, alpha: float) -> dict[str, Any]:
        """Draw the mean curve of each solver; return a handle for each name."""
        y = ERRORS[self.x]
        trials = {k: t for k, t in curves(frame, self.x, y).items() if k in SHOWN[self.x]}
        look = {name: {**style, "alpha": alpha} for name, style in styles(trials).items()}
        drawn = ConvergenceDisplay.from_trials(
            {name_of(key): runs for key, runs in trials.items()},
            x_label="",
            y_label="",
            styles=look,
            stepwise=self.x == "passes",
        )
        drawn.bands = None  # eight small pictures have no room for them
        drawn.plot(ax)
        ax.get_legend().remove()
        return dict(zip(drawn.curves, ax.lines, strict=False))
