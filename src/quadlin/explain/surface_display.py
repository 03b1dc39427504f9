"""The display of two columns: the prediction over both of them, with the data over it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.spatial import KDTree

from quadlin.data.columns.names import position_of
from quadlin.explain.decomposition import Decomposition
from quadlin.explain.drawing import (
    Display,
    decimals,
    finish,
    legend_columns,
    plain,
    power_of,
    style_of,
)
from quadlin.explain.tables import prediction_name
from quadlin.explain.whole_columns import WholeColumn, value_pairs

GRID = 41  # points along a column of numbers
POINTS = 1000  # rows that are drawn
LEVELS_SHOWN = 8  # of a text column, the most frequent ones
TAILS = (1, 99)  # percent of the rows that the grid reaches between
FEW = 4  # columns of a table whose cells have room for three digits
LETTERS = 20  # of the name of a level of a table
NEAR = 0.1  # of the range of a column: a prediction further from all rows is not drawn


@dataclass
class PairDisplay(Display):
    """The prediction over two columns, all others at the reference, with the data over it.

    Two columns of numbers make a surface, a column of numbers and a text column a line per level,
    and two text columns a table.

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
    title: str | None = None

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
            Rows in memory, of which up to 1,000 are drawn. Without them the surface reaches two
            standard deviations to each side of the mean of the fitted rows, within their range.
        columns : (str, str) or None
            Names of the two columns; None takes the strongest pair by `effects`.
        reference : "mean", "zero" or mapping, default="mean"
            Where all other columns are, as for `contributions`.

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
        if first.levels is None:  # a table counts all rows
            points = points[:: max(1, -(-len(points) // POINTS))]
        x, y = (Axis.of(model, i, points[:, a]) for a, i in enumerate(numbers))
        (alone_x, P_x), (alone_y, P_y) = (model.along(axis.number, axis.rows) for axis in (x, y))
        surface = model.baseline + alone_x + alone_y[:, None] + 2 * (P_y * model.s) @ P_x.T
        points = np.stack([x.points, y.points], axis=1)
        words, unit = model.reference.words, prediction_name(estimator)
        return cls((first.name, second.name), x.values, y.values, surface, points, words, unit)

    @property
    def size(self) -> tuple[float, float]:
        """Return the size of a figure of its own, in inches."""
        width, height = 4.8, 3.7
        if self._is_table:
            height = max(height, 1.6 + 0.45 * len(self.y))
        elif self._has_lines:
            labels = [plain(str(level)) for level in self.y]
            height += 0.17 * -(-len(labels) // legend_columns(labels, width))
        return width, height

    @property
    def points_are(self) -> str:
        """Return how the rows are shown, in words."""
        if not len(self.points):
            return " No rows were given, so there may be none in parts of the picture."
        rows = (
            "Numbers of rows are in brackets"
            if self._is_table
            else "Points are rows of the data, and nothing is drawn where there are none"
        )
        return f" {rows}."

    @property
    def _is_table(self) -> bool:
        return isinstance(self.x[0], str)  # then the other column has levels, too

    @property
    def _has_lines(self) -> bool:
        return isinstance(self.y[0], str) and not self._is_table

    def _draw(self, ax: Any) -> None:
        """Draw the surface, the lines or the table."""
        if self._is_table:
            self._table(ax)
        elif self._has_lines:
            self._lines(ax)
        else:
            self._surface(ax)

    def _surface(self, ax: Any) -> None:
        prediction = np.ma.masked_array(self.prediction, ~self._is_near_rows())
        image = ax.contourf(self.x, self.y, prediction, levels=14, cmap="viridis")
        ax.set_facecolor("#eeeeee")
        ax.figure.colorbar(image, ax=ax, label=plain(self.target))
        if len(self.points):
            dots = {"s": 9, "facecolor": "white", "edgecolor": "black", "linewidth": 0.4}
            ax.scatter(*self.points.T, alpha=0.6, label="data", **dots)
            ax.set_xlim(self.x[0], self.x[-1])
            ax.set_ylim(self.y[0], self.y[-1])
        self._finish(ax, self.names[1])

    def _is_near_rows(self) -> np.ndarray:
        """Tell where on the grid the next row is near, everywhere without rows."""
        x, y = np.asarray(self.x, dtype=float), np.asarray(self.y, dtype=float)
        points = self.points[np.isfinite(self.points).all(axis=1)]
        if not len(points):
            return np.ones(self.prediction.shape, dtype=bool)
        wide, high = NEAR * (x[-1] - x[0]), NEAR * (y[-1] - y[0])
        grid = np.stack(np.meshgrid(x / wide, y / high), axis=-1)
        distance, _ = KDTree(points / (wide, high)).query(grid)
        return np.asarray(distance <= 1)

    def _lines(self, ax: Any) -> None:
        for i in range(len(self.y)):
            style = style_of(i, "", {})
            marker, size = style.pop("marker"), style.pop("markersize")
            x, here = np.asarray(self.x, dtype=float), self.points[self.points[:, 1] == i, 0]
            here = here[(here >= x[0]) & (here <= x[-1])]
            values = np.interp(here, x, self.prediction[i])
            shown = np.ones(len(x), dtype=bool)
            if len(self.points):  # a line ends where the level has no rows
                low, high = (here.min(), here.max()) if len(here) else (np.inf, -np.inf)
                shown = (x >= low - NEAR * (x[-1] - x[0])) & (x <= high + NEAR * (x[-1] - x[0]))
            ax.plot(x[shown], self.prediction[i][shown], label=plain(str(self.y[i])), **style)
            dots = {"marker": marker, "markersize": size, "alpha": 0.4, "linestyle": "none"}
            ax.plot(here, values, color=style["color"], **dots)
        self._finish(ax, self.target, legend=True)

    def _table(self, ax: Any) -> None:
        image = ax.imshow(self.prediction, cmap="viridis", aspect="auto")
        middle = (self.prediction.min() + self.prediction.max()) / 2
        largest = float(np.abs(self.prediction).max())
        power = power_of(largest)
        digits = decimals(largest / 10.0**power, digits=2 if len(self.x) > FEW else 3)
        for (i, j), value in np.ndenumerate(self.prediction):
            ink = "black" if value > middle else "white"
            text = f"{value / 10.0**power:z.{digits}f}"
            if len(self.points):
                text += f"\n({np.sum((self.points == (j, i)).all(axis=1))})"
            ax.text(j, i, text, ha="center", va="center", color=ink, fontsize=7)
        slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor", "fontsize": "small"}
        ax.set_xticks(range(len(self.x)), [plain(str(v), LETTERS) for v in self.x], **slanted)
        ax.set_yticks(range(len(self.y)), [plain(str(v), LETTERS) for v in self.y])
        words = plain(self.target) + (" (number of rows)" if len(self.points) else "")
        ax.figure.colorbar(image, ax=ax, label=words)
        if power:
            ax.text(1.0, -0.01, f"in 1e{power}", transform=ax.transAxes, va="top", fontsize=7)
        self._finish(ax, self.names[1])
        ax.grid(False)

    def _finish(self, ax: Any, y_label: str, legend: bool = False) -> None:
        title, (first, second) = self.title or f"all other columns at {self.reference}", self.names
        finish(ax, plain(first), plain(y_label), None, legend, plain(second))
        ax.set_title(plain(title, 70), fontsize="small")


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
            shown = np.sort(np.argsort(-share, kind="stable")[:LEVELS_SHOWN])
            rows = (shown[:, None] == np.arange(len(share))).astype(float)
            place = np.full(len(share) + 1, -1)  # the last is for all that is no level
            place[shown] = np.arange(len(shown))
            names = [column.levels[i] for i in shown]
            return cls(number, names, rows, place[np.maximum(points.astype(int), -1)])
        j = int(column.features[0])
        present = points[np.isfinite(points)]  # a missing value is nowhere
        if len(present):
            low, high = np.percentile(present, TAILS)
        else:
            sd = 1 / model.scale[j] if model.scale[j] else 1.0
            low = max(model.mean[j] - 2 * sd, model.seen[0][j])
            high = min(model.mean[j] + 2 * sd, model.seen[1][j])
        grid = np.linspace(low, high if high > low else low + 1.0, GRID)
        return cls(number, grid, grid[:, None], points)
