"""The display of one prediction: what raised it and what lowered it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from quadlin.data.columns.level_codes import ABSENT
from quadlin.explain.drawing import (
    Display,
    decimals,
    finish,
    legend_above,
    plain,
    power_of,
    signed_bars,
)
from quadlin.explain.tables import prediction_name
from quadlin.explain.whole_columns import column_values

LETTERS = 28  # of a name: two columns, or a column and its value
USUAL = 1e-2, 1e4  # numbers beyond are written in a power of ten, to fit beside the bars
ROUNDING = 1e-9  # parts that add less than this share of the largest add nothing


@dataclass
class ContributionDisplay(Display):
    """What the columns and pairs of columns add to one prediction.

    Parameters
    ----------
    names : sequence of str
        The parts, strongest first.
    values : array (len(names),)
        What they add.
    baseline, prediction : float
        Where they start and what they sum to.
    reference : str
        Where contributions are measured from, in words.
    target : str
        What they sum to: the prediction, or the log-odds of a class.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin import SecondOrderRegressor
    >>> X = np.random.default_rng(0).standard_normal((300, 3))
    >>> model = SecondOrderRegressor(2, random_state=0).fit(X, X[:, 0] + X[:, 1] * X[:, 2])
    >>> display = ContributionDisplay.from_estimator(model, X, row=5)
    >>> bool(np.isclose(display.baseline + display.values.sum(), model.predict(X)[5]))
    True
    """

    names: Sequence[str]
    values: np.ndarray
    baseline: float
    prediction: float
    reference: str
    target: str = "prediction"
    title: str | None = None

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, row: int = 0, *, top: int = 10, reference: Any = "mean"
    ) -> Self:
        """Take one row of X apart.

        Parameters
        ----------
        estimator : fitted estimator
            The model.
        X : frame, array or sparse matrix
            Rows in memory.
        row : int, default=0
            Which of them, by position.
        top : int, default=10
            How many parts to show; the others are summed.
        reference : "mean", "zero" or mapping, default="mean"
            As for `contributions`.

        Returns
        -------
        ContributionDisplay
        """
        n = int(X.shape[0])
        if not -n <= row < n:
            raise IndexError(f"There is no row {row}: X has {n:,} rows.")
        at = row % n
        one = X.iloc[at : at + 1] if hasattr(X, "iloc") else X[at : at + 1]
        parts = estimator.contributions(one, reference=reference)
        columns = estimator.decomposition().columns
        names = [f"{column.name} = {_value(one, column)}" for column in columns]
        names += parts.pair_names
        values = np.concatenate([parts.columns[0], parts.pairs[0]])
        order = np.argsort(-np.abs(values), kind="stable")
        order = order[np.abs(values[order]) > ROUNDING * np.max(np.abs(values), initial=0.0)]
        shown, rest = order[:top], order[top:]
        names = [names[i] for i in shown]
        if len(rest):
            names.append(f"{len(rest)} others")
        sizes = np.append(values[shown], [values[rest].sum()] * bool(len(rest)))
        prediction = float(parts.prediction[0])
        unit = prediction_name(estimator)
        return cls(names, sizes, parts.baseline, prediction, parts.reference, unit)

    @property
    def size(self) -> tuple[float, float]:
        """Return the size of a figure of its own, in inches."""
        return 4.8, 1.5 + 0.3 * len(self.names)

    def _draw(self, ax: Any) -> None:
        """Draw a bar per part: to the left what lowers, to the right what raises the prediction."""
        places, largest = np.arange(len(self.names)), float(np.max(np.abs(self.values), initial=0))
        power = power_of(largest, *USUAL)
        values = self.values / 10.0**power
        signed_bars(ax.barh, places, values, ("raises", "lowers"))
        digits = decimals(largest / 10.0**power, digits=3)
        for place, value in zip(places, values, strict=True):
            side = "left" if value >= 0 else "right"
            ax.annotate(
                f"{value:+z.{digits}f}",  # z: no negative zero
                (value, place),
                (3 if value >= 0 else -3, 0),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize="small",
            )
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set_yticks(places, [plain(name, LETTERS) for name in self.names])
        ax.invert_yaxis()
        ax.margins(x=0.35)
        ax.tick_params(axis="y", labelsize="small")
        unit = plain(self.target)
        words = f"{unit}: {self.prediction:.4g} = {self.baseline:.4g} + the bars"
        scale = f" (in 1e{power})" if power else ""
        finish(ax, f"added to the {unit}{scale}", "", None, legend=False)
        legend_above(ax)
        ax.set_title(self.title or words, loc="right", pad=22, fontsize="medium")


def _value(row: Any, column: Any) -> str:
    value = column_values(row, column)[0]
    if column.separator is not None:
        return column.separator.join(column.levels[int(i)] for i in value if i >= 0) or "none"
    if column.levels is None:
        return f"{value:.4g}" if np.isfinite(value) else "missing"
    if value >= 0:
        return str(column.levels[int(value)])
    return "missing" if value == ABSENT else "unseen"
