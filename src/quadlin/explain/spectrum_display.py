"""The display of a spectrum: the eigenvalues of the low-rank part, beside what noise would be."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.losses import LINKED
from quadlin.explain.drawing import COLOURS, Display, finish, legend_above
from quadlin.stream.field_stream import FieldStream

LEAST = 4  # places along the axis, so that a bar alone is not a wall


@dataclass
class SpectrumDisplay(Display):
    """The signed eigenvalues of the low-rank part of M for standardised features, in units of y.

    Parameters
    ----------
    eigenvalues : array (rank,)
        By falling size.
    noise : float
        About how large the largest eigenvalue of noise alone would be; NaN where that is not
        known.

    Examples
    --------
    >>> from quadlin import SecondOrderRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(1000, 5, rank=2, noise=0.1, random_state=0)
    >>> model = SecondOrderRegressor(2, random_state=0).fit(data.X, data.y)
    >>> display = SpectrumDisplay.from_estimator(model)
    >>> bool(abs(display.eigenvalues).min() > 10 * display.noise)
    True
    """

    eigenvalues: np.ndarray
    noise: float
    title: str | None = None

    @classmethod
    def from_estimator(cls, estimator: Any) -> Self:
        """Take the eigenvalues of a fitted estimator, for features of standard deviation 1."""
        state = estimator.fitted_.state
        values = to_numpy(state.model.s).astype(float) * state.units.target.scale
        d, n = len(estimator.interactions_.names), max(1, estimator.n_samples_seen_)
        # A posterior has shrunk what could be noise, so that its eigenvalues cannot be compared.
        fitted = estimator.fitted_
        shrunk = fitted.noise is not None or isinstance(fitted.learned, FieldStream)
        no_band = shrunk or estimator.loss in LINKED
        error = float("nan") if no_band else estimator.history_[-1].loss ** 0.5
        noise = float(error) * (d / n) ** 0.5
        return cls(values[np.argsort(-np.abs(values), kind="stable")], noise)

    @property
    def size(self) -> tuple[float, float]:
        """Return the size of a figure of its own, in inches."""
        return 4.8, 3.4

    def _draw(self, ax: Any) -> None:
        """Draw a bar per eigenvalue, and the size of noise as a band."""
        places = np.arange(1, len(self.eigenvalues) + 1)
        if np.isfinite(self.noise):
            label = "noise alone"
            ax.axhspan(-self.noise, self.noise, color="#999999", alpha=0.3, lw=0, label=label)
        for sign, colour, label in ((1, COLOURS[0], "positive"), (-1, COLOURS[1], "negative")):
            mine = np.sign(self.eigenvalues) == sign
            if mine.any():
                hatch = "" if sign > 0 else "//"
                style = {"color": colour, "label": label, "hatch": hatch, "edgecolor": "white"}
                ax.bar(places[mine], self.eigenvalues[mine], width=0.7, **style)
        ax.axhline(0, color="black", linewidth=0.8)
        if len(places) <= 20:
            ax.set_xticks(places)
        ax.set_xlim(0.4, max(len(places), LEAST) + 0.6)
        finish(ax, "component", "eigenvalue (units of the prediction)", None, legend=False)
        legend_above(ax)
        ax.set_title(self.title or "", pad=22)
