"""The display of a search for pairs: how each of them lowered the criterion and the error."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils import _safe_indexing, indexable

from quadlin.core.losses import constant_deviance, log_odds, value_and_slope
from quadlin.explain.drawing import COLOURS, Display, finish, new_axes, plain, style_of
from quadlin.explain.tables import product_name

LETTERS = 44  # of two columns


@dataclass
class PairPathDisplay(Display):
    """The criterion against the pairs, in the order of entry, from top to bottom.

    Parameters
    ----------
    labels : sequence of str
        What entered in each step; the first is the model without pairs.
    criterion : sequence of float
        The criterion after each step, less that of the model without pairs.
    r2 : sequence of float
        R² after each step, written beside the points, or what `measure` calls it.

    validated : sequence of float or None
        The same on rows that were left out, with pairs found on the others.

    Examples
    --------
    >>> PairPathDisplay(["linear model", "+ a × b"], [0.0, -120.0], [0.2, 0.9]).criterion[-1]
    -120.0
    """

    labels: Sequence[str]
    criterion: Sequence[float]
    r2: Sequence[float]
    validated: Sequence[float] | None = None
    x_label: str = "extended BIC, less that without pairs"
    title: str | None = None
    measure: str = "R²"

    @classmethod
    def from_report(cls, report: Any) -> Self:
        """Return the display of a `PairReport`, such as `pairs_` of an estimator."""
        labels = ["no pair"]
        for step in range(1, len(report.path)):
            entered = [p for p in report.pairs if p.order == step]
            more = f" and {len(entered) - 1} more" if len(entered) > 1 else ""
            labels.append(f"+ {product_name(entered[0].first, entered[0].second)}{more}")
        criterion, r2 = ([getattr(s, name) for s in report.path] for name in ("criterion", "r2"))
        return cls(labels, criterion, r2, report.validated, measure=report.measure)

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, cv: Any = 5) -> Self:
        """Return the display of the pairs of a fitted estimator, with the error on rows left out.

        Parameters
        ----------
        estimator : fitted estimator
            One whose `pairs_` has a report; of labels, one of two classes.
        X, y
            The rows that it was fitted to, as it takes them.
        cv : int or splitter
            The folds. Without the rows of each fold, the estimator is fitted as it is, its choice
            of rank, penalties and pairs included, and again with the first 0, 1, … of the pairs
            that it chose: at most (2 + number of pairs) fits per fold.

        Returns
        -------
        PairPathDisplay
        """
        report = estimator.pairs_
        if report is None:
            raise ValueError(
                f"{type(estimator).__name__} has not searched for pairs, so there is no path. "
                'Fit it with pairs="auto", a number or a list.'
            )
        validated = validated_path(estimator, X, y, cv, len(report.path) - 1)
        return cls.from_report(replace(report, validated=validated))

    @property
    def size(self) -> tuple[float, float]:
        """Return the size of a figure of its own, in inches."""
        return 5.4, 1.4 + 0.34 * len(self.labels)

    def plot(self, ax: Any = None) -> Self:
        """Draw one line per step: the criterion, and beside it the error on rows left out.

        On axes that are given, the criterion alone is drawn, with the errors as text.
        """
        if ax is None and self.validated is not None:
            ax, beside = new_axes(None, (9.0, self.size[1]), columns=2)
            self._draw(ax, texts=False)
            self._draw_errors(beside)
            self.ax_, self.figure_ = ax, ax.figure
            return self
        return super().plot(ax)

    def _draw(self, ax: Any, texts: bool = True) -> None:
        """Draw the criterion."""
        places = range(len(self.labels))
        ax.plot(self.criterion, places, color=COLOURS[0], marker="o", markersize=5, linewidth=1.4)
        for place, value, r2 in zip(places, self.criterion, self.r2 if texts else (), strict=texts):
            text = f"{self.measure} {r2:.3f}"
            if self.validated is not None:
                text += f", {self.validated[place]:.3f} on rows left out"
            # Above the line on its right half, below it on the left: so no text is cut or crossed.
            right = value > min(self.criterion) / 2
            offset, ha, va = ((-7, 2), "right", "bottom") if right else ((6, -2), "left", "top")
            ax.annotate(text, (value, place), offset, textcoords="offset points", ha=ha, va=va)
        ax.set_yticks(places, [plain(label, LETTERS) for label in self.labels])
        ax.invert_yaxis()
        ax.margins(x=0.22 if texts else 0.06, y=0.3 if texts else 0.1)
        finish(ax, "", "", self.title, legend=False)
        ax.set_xlabel(self.x_label, loc="right")  # longer than the axis beside long names
        ax.locator_params(axis="x", nbins=4)

    def _draw_errors(self, ax: Any) -> None:
        """Draw R² of the rows of the search and of rows left out, on the lines of the criterion."""
        assert self.validated is not None
        series = {"rows of the search": self.r2, "rows left out": self.validated}
        for number, (name, values) in enumerate(series.items()):
            ax.plot(values, range(len(values)), label=name, **style_of(number, name, {}))
        ax.margins(x=0.06)
        finish(ax, self.measure, "", None)


def validated_path(estimator: Any, X: Any, y: Any, cv: Any, steps: int) -> list[float]:
    """Return R² of rows left out, D² of labels, with 0, 1, … `steps` of the pairs.

    In every fold the estimator chooses as it does, pairs included, from the other rows. Then its
    rank and penalties stay, and the first 0, 1, … of its pairs are given.
    """
    X, y = indexable(X, y)
    labels = is_classifier(estimator)
    if isinstance(cv, int):
        folds = StratifiedKFold if labels else KFold
        cv = folds(cv, shuffle=True, random_state=0)
    loss, constant = np.zeros(steps + 1), 0.0
    for train, test in check_cv(cv, y, classifier=labels).split(X, y):
        kept = [_safe_indexing(rows, train) for rows in (X, y)]
        left_out, target = (_safe_indexing(rows, test) for rows in (X, y))
        for step, model in enumerate(_path(clone(estimator).fit(*kept), kept, steps)):
            loss[step] += _loss(model, left_out, target)
        constant += _constant_loss(model, kept[1], target)
    values: list[float] = (1 - loss / constant).tolist()
    return values


def _path(chosen: Any, rows: list[Any], steps: int) -> Iterator[Any]:
    """Yield models with the first 0, 1, … `steps` pairs of one; the last again if it has fewer."""
    pairs = [] if chosen.pairs_ is None else chosen.pairs_.pairs
    fixed = {"rank": chosen.rank_, "alpha": chosen.alpha_, "rarity": chosen.rarity_}
    model = chosen
    for step in range(steps + 1):
        first = [(p.first, p.second) for p in pairs if p.order <= step]
        if step == 0 or any(p.order == step for p in pairs):
            model = clone(chosen).set_params(**fixed, pairs=first or None).fit(*rows)
        yield model


def _loss(model: Any, X: Any, y: Any) -> float:
    """Return the squared error of rows, or the deviance of labels."""
    if not is_classifier(model):
        return float(np.sum((np.asarray(y) - np.asarray(model.predict(X))) ** 2))
    f, labels = np.asarray(model.decision_function(X)), np.asarray(y) == model.classes_[1]
    return float(value_and_slope("logistic", f, labels.astype(float))[0].sum())


def _constant_loss(model: Any, training: Any, y: Any) -> float:
    """Return this loss of the constant that fits the training rows best."""
    training, y = np.asarray(training), np.asarray(y)
    if not is_classifier(model):
        return float(np.sum((y - training.mean()) ** 2))
    share, f = (y == model.classes_[1]).mean(), log_odds((training == model.classes_[1]).mean())
    return len(y) * constant_deviance(float(share), float(f))
