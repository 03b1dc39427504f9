"""The displays of M: which columns interact most, and the eigenvalues of its low-rank part."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.losses import LINKED
from quadlin.explain.drawing import (
    Display,
    decimals,
    finish,
    legend_above,
    plain,
    power_of,
    signed_bars,
)
from quadlin.explain.effects import Effects
from quadlin.stream.field_stream import FieldStream

INK_ABOVE = 0.6  # of the largest strength: white letters on dark cells
USUAL = 1e-2, 1e4  # numbers beyond do not fit into a cell, but those of a power of ten
WIDE = 5  # letters of a number that fit into a cell
LETTERS = 20  # of a name
LEAST = 4  # places along the axis of a spectrum, so that a bar alone is not a wall


@dataclass
class InteractionDisplay(Display):
    """The strongest interactions between columns, in units of y.

    Parameters
    ----------
    names : sequence of str
        The columns.
    strength : array (len(names), len(names))
        Strength of each pair, the standard deviation over rows of what it contributes. The diagonal
        is that of each column alone.
    signs : array (len(names), len(names))
        Sign of the coefficient of a product of two columns of numbers; 0 where there is none.
    rows : str
        Which rows the standard deviations are over.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin import SecondOrderRegressor
    >>> X = np.random.default_rng(0).standard_normal((300, 4))
    >>> model = SecondOrderRegressor(2, random_state=0).fit(X, X[:, 0] - 2 * X[:, 1] * X[:, 3])
    >>> display = InteractionDisplay.from_estimator(model, X, columns=2)
    >>> display.names, float(display.signs[0, 1])
    (['x1', 'x3'], -1.0)
    """

    names: Sequence[str]
    strength: np.ndarray
    signs: np.ndarray
    rows: str
    title: str | None = None
    n_columns: int = 0  # of the table, of which the names are the strongest

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any = None, *, columns: int = 10) -> Self:
        """Take the columns of a fitted estimator whose pairs are strongest.

        Parameters
        ----------
        estimator : fitted estimator
            The model.
        X : rows or None
            As for `effects`: the rows that the standard deviations are over.
        columns : int, default=10
            How many columns to show at most.

        Returns
        -------
        InteractionDisplay
        """
        effects: Effects = estimator.effects(X)
        size = {effect.first: 0.0 for effect in effects.columns}
        for first, second, strength in effects.pairs:
            for name in (first, str(second)):
                size[name] += strength**2
        strongest = set(sorted(size, key=lambda name: -size[name])[:columns])
        whole = [c for c in estimator.decomposition().columns if c.name in strongest]
        place = {column.name: i for i, column in enumerate(whole)}
        table, signs = (np.zeros((len(whole), len(whole))) for _ in range(2))
        numbers = {c.name: int(c.features[0]) for c in whole if c.levels is None}
        view = estimator.interactions_
        for first, second, strength in [*effects.columns, *effects.pairs]:
            if first not in place or (second or first) not in place:
                continue
            i, j = place[first], place[second or first]
            table[i, j] = table[j, i] = strength
            if second is not None and first in numbers and second in numbers:
                coefficient = view[numbers[first], numbers[second]]
                signs[i, j] = signs[j, i] = np.sign(coefficient)
        names = [column.name for column in whole]
        return cls(names, table, signs, effects.rows, n_columns=len(effects.columns))

    @property
    def shown(self) -> str:
        """Return which columns are shown, in words; "" if all are."""
        if self.n_columns <= len(self.names):
            return ""
        return f"The {len(self.names)} of {self.n_columns} columns with the strongest pairs."

    @property
    def size(self) -> tuple[float, float]:
        """Return the size of a figure of its own, in inches."""
        count = max(4, len(self.names))  # less is too narrow for the title
        return 2.4 + 0.42 * count, 1.7 + 0.42 * count  # small, so that letters are large on a page

    def _draw(self, ax: Any) -> None:
        """Draw the pairs as a heat map; the diagonal is written but not coloured."""
        count = len(self.names)
        alone = np.eye(count, dtype=bool)
        largest = float(np.max(self.strength[~alone], initial=0.0))
        power = power_of(largest, *USUAL)
        shown, largest = self.strength / 10.0**power, largest / 10.0**power
        pairs = np.ma.masked_array(shown, alone)
        image = ax.imshow(pairs, cmap="Blues", vmin=0, vmax=largest or 1.0)
        ax.set_facecolor("#eeeeee")
        digits = decimals(largest)
        for (i, j), strength in np.ndenumerate(shown):
            dark = i != j and largest and strength > INK_ABOVE * largest
            sign = {1.0: "+", -1.0: "−"}.get(float(self.signs[i, j]), "")
            ink = "white" if dark else "#666666" if i == j else "black"
            size = f"{strength:.{digits}f}"
            size = size if len(size) <= WIDE else f"{strength:.0e}"  # far larger than any pair
            text = f"{sign if float(size) else ''}{size}"
            ax.text(j, i, text, ha="center", va="center", color=ink, fontsize=8)
        labels = [plain(name, LETTERS) for name in self.names]
        ax.set_xticks(range(count), labels, rotation=45, ha="right", rotation_mode="anchor")
        ax.set_yticks(range(count), labels)
        ax.tick_params(labelsize="small")
        bar = ax.figure.colorbar(image, ax=ax, shrink=0.75)
        unit = f"in 1e{power} units" if power else "units"
        bar.set_label(f"strength ({unit} of the prediction)", fontsize="small")
        bar.ax.tick_params(labelsize="small")
        which = f", {count} of {self.n_columns} columns" if self.shown else ""
        title = self.title or f"strength of pairs (grey: columns alone){which}"
        finish(ax, "", "", title, legend=False)
        ax.title.set_fontsize("medium")
        ax.grid(False)


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
        fitted, state = estimator.fitted_, estimator.fitted_.state
        values = to_numpy(state.model.s).astype(float) * state.units.target.scale
        d, n = len(estimator.interactions_.names), max(1, estimator.n_samples_seen_)
        # A posterior has shrunk what could be noise, so that its eigenvalues cannot be compared.
        shrunk = fitted.noise is not None or isinstance(fitted.learned, FieldStream)
        no_band = shrunk or estimator.loss in LINKED
        error = float("nan") if no_band else estimator.history_[-1].loss ** 0.5
        noise = float(error) * (d / n) ** 0.5
        return cls(values[np.argsort(-np.abs(values), kind="stable")], noise)

    size = 4.8, 3.4

    def _draw(self, ax: Any) -> None:
        """Draw a bar per eigenvalue, and the size of noise as a band."""
        places = np.arange(1, len(self.eigenvalues) + 1)
        if np.isfinite(self.noise):
            label = "noise alone"
            ax.axhspan(-self.noise, self.noise, color="#999999", alpha=0.3, lw=0, label=label)
        signed_bars(ax.bar, places, self.eigenvalues, ("positive", "negative"), width=0.7)
        ax.axhline(0, color="black", linewidth=0.8)
        if len(places) <= 20:
            ax.set_xticks(places)
        ax.set_xlim(0.4, max(len(places), LEAST) + 0.6)
        finish(ax, "component", "eigenvalue (units of the prediction)", None, legend=False)
        legend_above(ax)
        ax.set_title(self.title or "", pad=22)
