"""The eight panels as one figure, laid out as in the paper, and all levels of a in one picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from quadlin.paper.laws import law_of
from quadlin.paper.methods import name_of, styles
from quadlin.paper.studies.panels import PANELS, curves
from quadlin.paper.study import Frame

# The paper draws MES and GD; the rest is in the panels' own pictures.
SHOWN = ("plain", "guarded", "gd_printed", "gd_standardised", "gd_centred")
LOWEST, HIGHEST = 1e-14, 10.0


@dataclass
class OverviewDisplay:
    """Panels (a) to (h) in two rows of four: test NMSE against iterations."""

    frames: Mapping[str, Frame]  # by the name of the panel
    figure_: Any = None

    def plot(self) -> Self:
        """Draw the figure; a panel with two noise levels shows noise 1 in paler lines."""
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(2, 4, figsize=(13, 6.4), sharey=True, layout="constrained")
        handles: dict[str, Any] = {}
        for ax, name in zip(axes.ravel(), PANELS, strict=True):
            frame = self.frames[name]
            for noise, part in frame.groupby("noise"):
                handles |= _curves(ax, part, pale=len(frame["noise"].unique()) > 1 and noise > 0)
            words = law_of(frame["distribution"].iloc[0]).words.split(", x̂")[0]
            noises = " and ".join(f"{v:g}" for v in sorted(frame["noise"].unique()))
            ax.set_title(f"({name}) {words}\nnoise {noises}", fontsize="small")
            ax.set_yscale("log")
            ax.set_ylim(LOWEST, HIGHEST)
            ax.grid(True, alpha=0.3)
        for ax in axes[:, 0]:
            ax.set_ylabel("test NMSE")
        for ax in axes[1]:
            ax.set_xlabel("iteration")
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False
        )
        self.figure_ = figure
        return self


def _curves(ax: Any, frame: Frame, pale: bool) -> dict[str, Any]:
    """Draw the mean curve of each solver; return a handle for each name."""
    trials = {k: t for k, t in curves(frame, "iteration", "nmse").items() if k in SHOWN}
    look = styles(trials)
    handles = {}
    for number, (key, runs) in enumerate(trials.items()):
        longest = max(len(x) for x, _ in runs)
        padded = [np.pad(y, (0, longest - len(y)), "edge") for _, y in runs]
        logs = np.log(np.clip(padded, 1e-60, 1e60))
        mean = np.exp(np.mean(logs, axis=0))
        every = (number, max(5, longest // 6))
        (handle,) = ax.plot(
            np.arange(longest),
            mean,
            markersize=4,
            linewidth=1.3,
            markevery=every,
            alpha=0.45 if pale else 1.0,
            **look[name_of(key)],
        )
        if not pale:
            handles[name_of(key)] = handle
    return handles
