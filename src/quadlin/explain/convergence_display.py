"""The display of fits: an error against passes, iterations or seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from quadlin.explain.drawing import TINY, Display, Styles, finish, style_of


@dataclass
class ConvergenceDisplay(Display):
    """An error against the passes over the rows, iterations or seconds, on a logarithmic scale.

    Parameters
    ----------
    curves : mapping of str to (x, y)
        One curve each.
    bands : mapping of str to (low, high), optional
        What lies around a curve, such as the least and the largest of several trials.
    x_label, y_label, title : str
        Words on the axes and above.
    limits : (float, float), optional
        Least and largest y shown: what diverges leaves the picture instead of flattening it.
    styles : mapping of str to keywords of matplotlib, optional
        How to draw the curve of a name, such as ``{"color": "black", "marker": "o"}``.
    stepwise : bool
        Whether a value holds until the next one, as an error does between two iterations.

    Examples
    --------
    >>> from quadlin import SecondOrderRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(1000, 5, rank=1, random_state=0)
    >>> model = SecondOrderRegressor(rank=1, random_state=0).fit(data.X, data.y)
    >>> display = ConvergenceDisplay.from_estimators({"guarded": model})
    >>> bool(display.curves["guarded"][1][-1] < 1e-12)
    True
    >>> trials = {"halving": [([0, 1, 2], [1, 0.5, 0.25]), ([0, 1], [4, 2])]}
    >>> ConvergenceDisplay.from_trials(trials).curves["halving"][1].tolist()
    [2.0, 1.0, 0.7071067811865476]
    """

    curves: Mapping[str, tuple[np.ndarray, np.ndarray]]
    bands: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None
    x_label: str = "passes over the rows"
    y_label: str = "training loss / loss of the constant"
    title: str | None = None
    limits: tuple[float | None, float | None] = (None, None)
    styles: Styles = field(default_factory=dict)
    stepwise: bool = False

    @classmethod
    def from_estimator(cls, estimator: Any, name: str | None = None) -> Self:
        """Take the history of one fitted estimator."""
        return cls.from_estimators({name or type(estimator).__name__: estimator})

    @classmethod
    def from_estimators(cls, estimators: Mapping[str, Any]) -> Self:
        """Take the histories of fitted estimators, by name."""

        def curve(history: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
            first = history[0].loss or 1.0
            passes = np.array([record.passes for record in history])
            return passes, np.array([record.loss for record in history]) / first

        return cls({name: curve(e.history_) for name, e in estimators.items()})

    @classmethod
    def from_trials(cls, trials: Mapping[str, Sequence[tuple[Any, Any]]], **labels: Any) -> Self:
        """Take the geometric mean over several (x, y) per name, and the least and the largest.

        The entries of a trial are its steps. One that ended early keeps its last value; x is the
        median over the trials that came as far.
        """
        curves, bands = {}, {}
        for name, runs in trials.items():
            longest = max(len(x) for x, _ in runs)
            x = np.full((len(runs), longest), np.nan)
            y = np.empty((len(runs), longest))
            for row, (xs, ys) in enumerate(runs):
                x[row, : len(xs)] = xs
                y[row, : len(ys)], y[row, len(ys) :] = ys, ys[-1]
            logs = np.log(np.clip(y, TINY, 1 / TINY))
            places = np.maximum.accumulate(np.nanmedian(x, axis=0))  # trials end, time does not
            curves[name] = (places, np.exp(logs.mean(axis=0)))
            bands[name] = (y.min(axis=0), y.max(axis=0))
        return cls(curves, bands, **{"x_label": "iteration", "y_label": "test NMSE", **labels})

    def _draw(self, ax: Any) -> None:
        """Draw the curves on a logarithmic scale."""
        for number, (name, (x, y)) in enumerate(self.curves.items()):
            style = style_of(number, name, self.styles)
            if self.stepwise:
                style["drawstyle"] = "steps-post"
            every = max(1, len(x) // 12)
            # Each curve has its markers in other places, so that none hides another.
            where = (number % every, every)
            ax.semilogy(x, np.clip(y, TINY, 1 / TINY), label=name, markevery=where, **style)
            if self.bands is not None and name in self.bands:
                low, high = (np.clip(b, TINY, 1 / TINY) for b in self.bands[name])
                step = "post" if self.stepwise else None
                fill = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
                ax.fill_between(x, low, high, step=step, **fill)
        low, high = self.limits
        values = np.concatenate([np.ravel(y) for _, y in self.curves.values()])
        values = values[np.isfinite(values)]
        if low is not None and (values < low).any():
            ax.set_ylim(bottom=low)
        if high is not None and (values > high).any():
            ax.set_ylim(top=high)
        finish(ax, self.x_label, self.y_label, self.title)
