"""Displays of a model: interactions, one pair, one prediction and the spectrum, drawn when asked.

Colours are Okabe and Ito's, with a marker and a line style each, for the colour-blind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple, Self

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.losses import LOSSES
from quadlin.core.messages import printable
from quadlin.data.columns import ABSENT
from quadlin.data.names import position_of
from quadlin.explain.diagnosis import noise_eigenvalue
from quadlin.explain.effects import Decomposition, Effects, WholeColumn, column_values, value_pairs
from quadlin.explain.tables import ROUNDING, prediction_name
from quadlin.stream.field_stream import FieldStream

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^v<P"
LINES = ("-", "--", "-.", ":")
USUAL = 1e-2, 1e4  # numbers beyond do not fit into a cell; multiples of a power of ten do
GRID = 41  # points along a column of numbers
POINTS = 1000  # rows that are drawn
TAILS = (1, 99)  # percent of the rows that the grid reaches between


class Display:
    """A picture whose numbers are computed once and drawn by `plot`, on the axes `ax_`."""

    ax_: Any = None
    figure_: Any = None
    size: Any  # of a figure of its own, in inches

    def plot(self, ax: Any = None) -> Self:
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib axes or None
            Where to draw; None makes a new figure.

        Returns
        -------
        self
            With the axes as `ax_` and their figure as `figure_`.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:  # pragma: no cover
            raise ImportError('Plots need matplotlib: pip install "quadlin[plot]".') from error
        ax = plt.subplots(figsize=self.size, layout="constrained")[1] if ax is None else ax
        self._draw(ax)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _draw(self, ax: Any) -> None:
        raise NotImplementedError


def label_axes(ax: Any, x_label: str, y_label: str) -> None:
    """Put words and a grid on the axes."""
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.grid(True, which="major", alpha=0.3)


def plain(name: str, most: int = 28) -> str:
    r"""Return a name that matplotlib draws as it is: no formula between dollars, no controls.

    Of a name with more than `most` letters the middle is left out.

    Examples
    --------
    >>> print(plain("cost in $ per $"))
    cost in \$ per \$
    >>> plain("the number of rooms in the building")
    'the number of room… building'
    """
    name = printable(name)
    if len(name) > most:
        start = 2 * most // 3
        name = f"{name[:start]}…{name[start + 1 - most :]}"
    return name.replace("$", r"\$")


def colours_of(values: np.ndarray) -> list[str]:
    """Return the colours of positive and of negative bars."""
    return [COLOURS[int(value < 0)] for value in values]


def readable(values: np.ndarray, largest: float, digits: int) -> tuple[np.ndarray, int, int]:
    """Return numbers in a power of ten, that power, and the decimals that show `largest`.

    Examples
    --------
    >>> [readable(np.array([v]), v, 2)[1:] for v in (0.76, 12.0, 3400.0, 1.27e6, 3e-5, 0.0)]
    [(0, 2), (0, 0), (0, 0), (6, 1), (-6, 0), (0, 0)]
    """
    if not 0 < largest < np.inf:
        return values, 0, 0
    size = np.log10(largest)
    power = 0 if USUAL[0] <= largest < USUAL[1] else 3 * int(np.floor(size / 3))
    return values / 10.0**power, power, max(0, digits - 1 - int(np.floor(size - power)))


@dataclass
class InteractionDisplay(Display):
    """The strongest interactions between columns, in units of y.

    Parameters
    ----------
    names : sequence of str
        The columns.
    strength : array (len(names), len(names))
        Strength of each pair, the standard deviation over rows of what it contributes. The diagonal
        is the strength of each column alone.
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
    n_columns: int = 0  # of the table, of which the names are the strongest

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any = None, *, columns: int = 8) -> Self:
        """Take the columns of a fitted estimator whose pairs are strongest.

        Parameters
        ----------
        estimator : fitted estimator
            The model.
        X : rows or None
            The rows that the standard deviations are over, as in `effects`.
        columns : int, default=8
            How many columns to show at most.

        Returns
        -------
        InteractionDisplay
        """
        effects: Effects = estimator.effects(X)
        whole, table = estimator.decomposition().columns, effects.table
        pairs = table - np.diag(np.diag(table))
        shown = np.sort(np.argsort(-np.sum(pairs**2, axis=0), kind="stable")[:columns])
        signs, view = np.zeros((len(shown), len(shown))), estimator.interactions_
        numbers = [i for i, at in enumerate(shown) if whole[at].levels is None]
        for i, j in permutations(numbers, 2):
            first, second = (int(whole[shown[at]].features[0]) for at in (i, j))
            signs[i, j] = np.sign(view[first, second])
        names = [whole[at].name for at in shown]
        return cls(names, table[np.ix_(shown, shown)], signs, effects.rows, n_columns=len(whole))

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
        shown, power, digits = readable(self.strength, largest, 2)
        largest /= 10.0**power
        pairs = np.ma.masked_array(shown, alone)
        image = ax.imshow(pairs, cmap="Blues", vmin=0, vmax=largest or 1.0, alpha=0.6)
        ax.set_facecolor("#eeeeee")
        for (i, j), strength in np.ndenumerate(shown):
            sign = {1.0: "+", -1.0: "−"}.get(float(self.signs[i, j]), "")
            size = f"{strength:.{digits}f}"
            text = f"{sign if float(size) else ''}{size}"
            ax.text(j, i, text, ha="center", va="center", fontsize=8)
        labels = [plain(name) for name in self.names]
        ax.set_xticks(range(count), labels, rotation=45, ha="right", rotation_mode="anchor")
        ax.set_yticks(range(count), labels)
        ax.tick_params(labelsize="small")
        bar = ax.figure.colorbar(image, ax=ax, shrink=0.75)
        unit = f"in 1e{power} units" if power else "units"
        bar.set_label(f"strength ({unit} of the prediction)", fontsize="small")
        bar.ax.tick_params(labelsize="small")
        which = f", {count} of {self.n_columns} columns" if self.shown else ""
        ax.set_title(f"strength of pairs (grey: columns alone){which}", fontsize="medium")


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

    @classmethod
    def from_estimator(cls, estimator: Any) -> Self:
        """Take the eigenvalues of a fitted estimator, for features of standard deviation 1."""
        fitted, state = estimator.fitted_, estimator.fitted_.state
        values = to_numpy(state.model.s).astype(float) * state.units.target.scale
        # A posterior has shrunk what could be noise, so that its eigenvalues cannot be compared.
        shrunk = fitted.noise is not None or isinstance(fitted.learned, FieldStream)
        no_band = shrunk or LOSSES[estimator.loss].linked
        noise = np.nan if no_band else noise_eigenvalue(fitted)
        return cls(values[np.argsort(-np.abs(values), kind="stable")], noise)

    size = 4.8, 3.4

    def _draw(self, ax: Any) -> None:
        """Draw a bar per eigenvalue, and the size of noise as a band."""
        places = np.arange(1, len(self.eigenvalues) + 1)
        if np.isfinite(self.noise):
            band = ax.axhspan(-self.noise, self.noise, color="#999999", alpha=0.3, lw=0)
            ax.legend([band], ["noise alone"], frameon=False, fontsize="small")
        ax.bar(places, self.eigenvalues, color=colours_of(self.eigenvalues))
        ax.axhline(0, color="black", linewidth=0.8)
        ax.xaxis.get_major_locator().set_params(integer=True)
        label_axes(ax, "component", "eigenvalue (units of the prediction)")


@dataclass
class PairDisplay(Display):
    """The prediction over two columns, all others at the reference, with the data over it.

    Two columns of numbers make a surface; with a text column there is a line per level.

    Parameters
    ----------
    names : (str, str)
        The two columns; a text column comes second, and of two that with more levels.
    x, y : arrays of numbers or names of levels
        The values of the two columns.
    prediction : array (len(y), len(x))
        The prediction for each pair of values.
    points : array (n_points, 2)
        Values of the two columns in the data; of a text column, the position in `x` or `y`.
    reference : str
        Where all other columns are, in words.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin import SecondOrderRegressor
    >>> X = np.random.default_rng(0).standard_normal((300, 3))
    >>> model = SecondOrderRegressor(2, random_state=0).fit(X, X[:, 0] + X[:, 1] * X[:, 2])
    >>> display = PairDisplay.from_estimator(model, X)
    >>> display.names, display.prediction.shape, display.points.shape
    (('x1', 'x2'), (41, 41), (300, 2))
    """

    names: tuple[str, str]
    x: np.ndarray | Sequence[str]
    y: np.ndarray | Sequence[str]
    prediction: np.ndarray
    points: np.ndarray
    reference: str
    target: str = "prediction"

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any = None,
        columns: tuple[str, str] | None = None,
        *,
        reference: Any = "mean",
    ) -> Self:
        """Take the prediction of a fitted estimator over two columns.

        Parameters
        ----------
        estimator : fitted estimator
            The model.
        X : frame, array, sparse matrix or None
            Rows in memory, of which up to 1,000 are drawn. Without them the surface reaches over
            the range of the fitted rows.
        columns : (str, str) or None
            Names of the two columns; None takes the strongest pair by `effects`.
        reference : "mean", "zero" or mapping, default="mean"
            Where all other columns are: at their means, at zero, or at the given values.

        Returns
        -------
        PairDisplay
        """
        model: Decomposition = estimator.decomposition(reference)
        if columns is None:
            pairs = estimator.effects(X).pairs
            if not pairs:
                raise ValueError("The model has no interactions. Name two columns to plot.")
            columns = (pairs[0].first, pairs[0].second)
        names = [column.name for column in model.columns]
        numbers = [position_of(names, name) for name in columns]
        numbers.sort(key=lambda i: len(model.columns[i].levels or ()))  # more levels: upwards
        first, second = (model.columns[i] for i in numbers)
        points = np.empty((0, 2)) if X is None else value_pairs(X, first, second)
        points = points[:: max(1, -(-len(points) // POINTS))]
        x, y = (Axis.of(model, i, points[:, a]) for a, i in enumerate(numbers))
        (alone_x, P_x), (alone_y, P_y) = (model.along(axis.number, axis.rows) for axis in (x, y))
        surface = model.baseline + alone_x + alone_y[:, None] + 2 * (P_y * model.s) @ P_x.T
        points = np.stack([x.points, y.points], axis=1)
        words, unit = model.reference, prediction_name(estimator)
        return cls((first.name, second.name), x.values, y.values, surface, points, words, unit)

    size = 4.8, 3.7

    @property
    def points_are(self) -> str:
        """Return how the rows are shown, in words."""
        if not len(self.points):
            return " No rows were given, so there may be none in parts of the picture."
        return " Points are rows of the data: where there are none, the model extrapolates."

    def _draw(self, ax: Any) -> None:
        """Draw the surface, or a line per level."""
        if isinstance(self.y[0], str):
            self._lines(ax)
        else:
            self._surface(ax)
        ax.set_title(plain(f"all other columns at {self.reference}", 70), fontsize="small")

    def _surface(self, ax: Any) -> None:
        image = ax.contourf(self.x, self.y, self.prediction, levels=14, cmap="viridis")
        ax.figure.colorbar(image, ax=ax, label=plain(self.target))
        if len(self.points):
            dots = {"s": 9, "facecolor": "white", "edgecolor": "black", "linewidth": 0.4}
            ax.scatter(*self.points.T, alpha=0.6, label="data", **dots)
            ax.set_xlim(self.x[0], self.x[-1])
            ax.set_ylim(self.y[0], self.y[-1])
        label_axes(ax, plain(self.names[0]), plain(self.names[1]))

    def _lines(self, ax: Any) -> None:
        levels = isinstance(self.x[0], str)
        x = np.arange(len(self.x)) if levels else np.asarray(self.x, dtype=float)
        for i, level in enumerate(self.y):
            colour, line = COLOURS[i % len(COLOURS)], LINES[i % len(LINES)]
            here = self.points[self.points[:, 1] == i, 0]
            here = here[(here >= x[0]) & (here <= x[-1])]
            values = np.interp(here, x, self.prediction[i])
            label = plain(str(level))
            ax.plot(x, self.prediction[i], line, color=colour, lw=1.4, label=label)
            ax.plot(here, values, MARKERS[i % len(MARKERS)], color=colour, ms=4.5, alpha=0.4)
        if levels:
            ax.set_xticks(x, [plain(str(v)) for v in self.x], rotation=30, ha="right")
        label_axes(ax, plain(self.names[0]), plain(self.target))
        beside = {"loc": "upper left", "bbox_to_anchor": (1, 1), "frameon": False}
        ax.legend(title=plain(self.names[1]), fontsize="small", **beside)


class Axis(NamedTuple):
    """The values along a column, their features, and where the data are among them."""

    number: int  # of the column
    values: np.ndarray | Sequence[str]
    rows: np.ndarray  # (len(values), features of the column)
    points: np.ndarray  # numbers, or positions of levels, −1 for levels that are not shown

    @classmethod
    def of(cls, model: Decomposition, number: int, points: np.ndarray) -> "Axis":
        """Return the axis of a column whose values in the data are `points`."""
        column: WholeColumn = model.columns[number]
        if column.levels is not None:
            share = model.mean[column.features]
            shown = np.sort(
                np.argsort(-share, kind="stable")[: len(COLOURS)]
            )  # the most frequent ones
            rows = (shown[:, None] == np.arange(len(share))).astype(float)
            place = np.full(len(share) + 1, -1)  # the last is for all that is no level
            place[shown] = np.arange(len(shown))
            names = [column.levels[i] for i in shown]
            return cls(number, names, rows, place[np.maximum(points.astype(int), -1)])
        j = int(column.features[0])
        present = points[np.isfinite(points)]  # a missing value is nowhere
        low, high = (seen[j] for seen in model.seen)
        if len(present):
            low, high = np.percentile(present, TAILS)
        grid = np.linspace(low, high if high > low else low + 1.0, GRID)
        return cls(number, grid, grid[:, None], points)


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
            Where contributions are measured from: the mean of the fitted rows, zero in every
            column, or a mapping such as ``{"city": "Oslo"}``.

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
        values, power, digits = readable(self.values, largest, 3)
        bars = ax.barh(places, values, color=colours_of(values))
        labels = [f"{value:+z.{digits}f}" for value in values]  # z: no negative zero
        ax.bar_label(bars, labels, padding=3, fontsize="small")
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set_yticks(places, [plain(name) for name in self.names])
        ax.invert_yaxis()
        ax.margins(x=0.35)
        ax.tick_params(axis="y", labelsize="small")
        unit = plain(self.target)
        words = f"{unit}: {self.prediction:.4g} = {self.baseline:.4g} + the bars"
        scale = f" (in 1e{power})" if power else ""
        label_axes(ax, f"added to the {unit}{scale}", "")
        ax.set_title(words, loc="right", fontsize="medium")


def _value(row: Any, column: Any) -> str:
    value = column_values(row, column)[0]
    if column.levels is None:
        return f"{value:.4g}" if np.isfinite(value) else "missing"
    if value >= 0:
        return str(column.levels[int(value)])
    return "missing" if value == ABSENT else "unseen"
