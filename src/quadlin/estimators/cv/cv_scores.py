"""Scores of ranks and penalties on rows held out."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import check_scoring, get_scorer
from sklearn.utils import indexable

from quadlin.core.arrays import Array, moved, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.moments import Moments, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.estimators.cv.cv_folds import (
    Fold,
    Predicted,
    mean_square,
    number_of,
    predicted,
    rows_at,
)
from quadlin.estimators.cv.splitting import Split
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import outcome_of
from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.estimators.regression.tasks import Task
from quadlin.solve.composite.pair_composite import PairRequest
from quadlin.solve.fits.fit_state import FitState, fit_state
from quadlin.solve.fits.grid import Cells, Point
from quadlin.solve.lowrank.types import FIXED, Solution, finished
from quadlin.solve.lowrank.whitening import Identity

TIE = 1e-6  # of the score: what is closer counts as equal
PERFECT = 1e-10  # of the target's variance: of smaller mean squares the lowest rank is the best


class CVScores:
    """The scores of points on every fold; each score is independent of what else is scored."""

    def __init__(
        self,
        task: Task,
        chunk: Chunk,
        rows: Rows,
        given: tuple[Any, Any],  # X and y in the user's form
        splits: Iterable[Split],
        scoring: Any,
        params: dict[str, Any],  # of the estimators that a callable scorer is given
    ) -> None:
        self.task, self.chunk, self.rows = task, chunk, rows
        self.given, self.scoring, self.params = indexable(*given), scoring, params
        self.n, self.d = chunk.X.shape
        self.whole = self._cells(rows, self.n, task.make_units)
        estimator = SecondOrderRegressor()
        self.scorer: Any = (
            None if scoring is None else check_scoring(estimator, get_scorer(scoring))
        )
        self.scores: dict[Point, list[float]] = {}
        self.errors: dict[Point, list[float]] = {}  # mean squares, whatever the scorer
        self._residuals: dict[Point, list[np.ndarray]] = {}  # of the test rows, at the best point
        self.pairs: PairRequest | None = None  # that every point has beside it
        self._last: tuple[tuple[int, Point], Fitted] | None = None
        self._first: dict[Point, Fitted | Solution] = {}  # on the first fold, at the best point
        self.rows = rows
        self.folds = list(self.folds_of(splits))
        if not self.folds:
            raise ValueError(
                "No fold of cv has test rows of positive weight. (A generator yields its folds "
                "only once: give a list of them.)"
            )

    def beside(self, pairs: PairRequest) -> "CVScores":
        """Return scores on the same folds of points with pairs, each fold searched by itself."""
        other = copy(self)
        other.pairs, other.scores, other.errors, other._residuals = pairs, {}, {}, {}
        other._first = {}
        return other

    def folds_of(self, splits: Iterable[Split]) -> Iterator[Fold]:
        """Yield the folds; those without test rows of positive weight are left out."""
        everyone, weight = np.arange(self.n), self.chunk.weight
        counts = np.ones(self.n, dtype=bool) if weight is None else to_numpy(weight) > 0
        for number, (train, test) in enumerate(splits):
            held, kept = everyone[test], everyone[train]
            held = held[counts[held]]
            if len(held) == 0:
                continue
            if not counts[kept].any():
                raise ValueError(
                    f"Fold {number} of cv (counted from 0) has no training rows of positive "
                    "weight. Give other folds, or weight to more rows."
                )
            times = moved(np.bincount(kept, minlength=self.n).astype(float), self.chunk.y)
            cells = self._cells(self.rows.reweighted(times), len(kept), self._fold_units)
            clips = self.params["extrapolation"] == "clip"
            yield Fold(number, cells, held, self.chunk.at(held), clips)

    def _cells(
        self,
        rows: Rows,
        n_rows: int,  # that were given, whatever their weights
        make_units: Callable[[Moments, Moments], Units],
    ) -> Cells:
        surveyed = rows.reduce(survey)
        units = make_units(surveyed.features, surveyed.target)
        surveyed = replace(surveyed, tally=replace(surveyed.tally, rows=n_rows))
        return Cells(rows, units, self.task.options, surveyed, self.task.seed)

    def _fold_units(self, features: Moments, target: Moments) -> Units:
        """Return the units of a fold, with the squares that are modelled for all rows."""
        units = replace(self.task.make_units, diagonal="zero")(features, target)
        varies = namespace(units.scale).astype(units.scale > 0, units.scale.dtype)
        return replace(units, free=self.whole.units.free * varies)

    def score(self, points: Iterable[Point]) -> None:
        """Score points that have no score yet."""
        new = [p for p in dict.fromkeys(points) if p not in self.scores]
        if not new:
            return
        self.scores.update({p: [] for p in new})
        self.errors.update({p: [] for p in new})
        self._residuals.update({p: [] for p in new})
        try:
            self._score_on_folds(new)
        except KeyboardInterrupt:  # points have a score of every fold, or none
            for kept in (self.scores, self.errors, self._residuals):
                for p in new:
                    del kept[p]
            raise
        best = self.best()
        self._residuals = {p: r for p, r in self._residuals.items() if p == best}
        self._first = {p: fitted for p, fitted in self._first.items() if p == best}

    def _score_on_folds(self, new: list[Point]) -> None:
        for i, fold in enumerate(self.folds):
            for point in new:
                self._judge(fold, point)
            fold.cells.forget()
            if not any(isfinite(scores[i]) for scores in self.scores.values()):
                self._refuse_undefined(fold)

    def _judge(self, fold: Fold, point: Point) -> None:
        f = self.predicted(fold, point)
        r = f - fold.test.y
        error = mean_square(r, fold.test.weight)
        score = -error if self.scorer is None else self._score(fold, point, f)
        self.errors[point].append(error)
        self.scores[point].append(score if isfinite(score) else -float("inf"))
        self._residuals[point].append(to_numpy(r))
        if fold is self.folds[0]:
            beside = self.pairs is not None
            kept = self._fitted_beside(fold, point) if beside else fold.cells.solution(*point)
            self._first[point] = kept

    def _score(self, fold: Fold, point: Point, f: Array) -> float:
        if not callable(self.scoring):
            return number_of(self._asked(Predicted(f), fold.test.X, fold.test.y, fold.test.weight))
        X, y = (rows_at(rows, fold.index) for rows in self.given)
        return number_of(self._asked(self._estimator(fold, point), X, y, fold.test.weight))

    def _estimator(self, fold: Fold, point: Point) -> SecondOrderRegressor:
        """Return an estimator fitted to the training rows of a fold."""
        rank, alpha = point
        params = {**self.params, "rank": rank, "alpha": alpha, "uncertainty": False}
        estimator = SecondOrderRegressor(**params)
        beside = self.pairs is not None
        estimator.adopt(self._fitted_beside(fold, point) if beside else self._fitted(fold, point))
        return estimator

    def _fitted(self, fold: Fold, point: Point) -> Fitted:
        """Return the fit without pairs to the training rows of a fold."""
        state, options = self.state(fold.cells, point), self.task_at(point).options
        return Fitted.of(self.task, state, options, fold.cells.surveyed.tally)

    def best_of_first_fold(self) -> Fitted | None:
        """Return the best point so far as fitted to the training rows of the first fold.

        That takes no fit, and a pass at most; None where no point has been scored.
        """
        if not self.scores:
            return None
        point = self.best()
        kept = self._first[point]
        if isinstance(kept, Fitted):
            return kept
        self.folds[0].cells.solutions[point] = kept
        return self._fitted(self.folds[0], point)

    def predicted(self, fold: Fold, point: Point) -> Array:
        """Return the predictions of the test rows of a fold."""
        if self.pairs is None:
            return predicted(fold, point)
        f = self._fitted_beside(fold, point).predict(fold.test.X, clip=fold.clips)
        return namespace(f).astype(f, namespace(f).float64)

    def _fitted_beside(self, fold: Fold, point: Point) -> Fitted:
        """Return the fit with pairs, as an estimator would have it of the rows of a fold."""
        key = (fold.number, point)
        if self._last is None or self._last[0] != key:
            task = self.task_at(point)
            rows = fold.cells.rows  # those held out weigh nothing
            surveyed = rows.reduce(survey)
            # Rows that judge have the weights of Huber's loss, if that was asked for.
            outcome = outcome_of(replace(task, robust=False), rows, surveyed)
            finished(outcome.state)
            fitted = Fitted.of(task, outcome.state, outcome.options, surveyed.tally)
            self._last = key, replace(fitted, pairs=outcome.report)
        return self._last[1]

    def task_at(self, point: Point) -> Task:
        """Return what is to be learned with a rank and penalties, and the pairs of these scores."""
        rank, alpha = point
        options = replace(self.task.options, rank=rank, alpha=alpha)
        return replace(self.task, options=options, automatic=FIXED, pairs=self.pairs)

    def state(self, cells: Cells, point: Point) -> FitState:
        """Return the fit of a fold, or of all rows, at a point."""
        options, make_units = self.task_at(point).options, self.task.make_units
        return fit_state(cells.recorded(*point), cells.surveyed, options, make_units, Identity())

    def _asked(self, model: Any, X: Any, y: Any, weight: Array | None) -> Any:
        """Return the score of the scorer, with weights if there are any."""
        more = {} if weight is None else {"sample_weight": weight}
        with warnings.catch_warnings():  # a score that is not defined is seen by its value
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            try:
                return self.scorer(model, X, y, **more)
            except TypeError as error:
                if weight is None:
                    raise
                raise ValueError(
                    f"The scorer raised an error ({error}). A scorer without a sample_weight "
                    "parameter can only be used without weights."
                ) from error

    def _refuse_undefined(self, fold: Fold) -> None:
        raise ValueError(
            f"scoring={self.scoring!r} is not a finite number for any model on fold {fold.number} "
            f"of cv (counted from 0; test rows: {len(fold.index)}). Some scores, such as r2, are "
            "not defined for fewer than two rows: use larger folds, or "
            "scoring='neg_mean_squared_error'."
        )

    def mean(self, point: Point) -> float:
        """Return the mean score of a point."""
        return float(np.mean(self.scores[point]))

    def best(self, rank: int | None = None) -> Point:
        """Return the point of the best mean score, of those as good the smallest model."""
        means = {p: self.mean(p) for p in self.scores if rank is None or p[0] == rank}
        top = max(means, key=lambda p: means[p])
        if rank is None and not callable(self.scoring) and self.perfect(top):
            return self.best(min(p[0] for p in means if self.perfect(p)))
        good = [p for p in means if means[p] >= means[top] - TIE * abs(means[top])]
        return min(good, key=lambda p: (p[0], -p[1][1], -p[1][0]))

    def perfect(self, point: Point) -> bool:
        """Tell whether the errors of a point are no more than rounding beside the target."""
        eps = float(namespace(self.whole.units.scale).finfo(self.chunk.X.dtype).eps)
        rounding = max(PERFECT, (1e3 * eps) ** 2)
        variance = float(self.whole.surveyed.target.var[0])
        return bool(np.mean(self.errors[point]) <= rounding * variance)

    def squares(self, point: Point) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the rows held out and their weighted squared errors, at best."""
        index = np.concatenate([fold.index for fold in self.folds])
        r = np.concatenate(self._residuals[point])
        weight = self.chunk.weight
        return index, r**2 if weight is None else to_numpy(weight)[index] * r**2

    def results(self) -> dict[str, Any]:
        """Return the scores as GridSearchCV does."""
        table = np.asarray(list(self.scores.values()))
        mean = table.mean(axis=1)
        return {
            "params": [{"rank": rank, "alpha": alpha} for rank, alpha in self.scores],
            "param_rank": np.asarray([rank for rank, _ in self.scores]),
            "param_alpha": np.asarray([alpha for _, alpha in self.scores]),
            **{f"split{i}_test_score": table[:, i] for i in range(table.shape[1])},
            "mean_test_score": mean,
            "std_test_score": table.std(axis=1),
            "rank_test_score": rankdata(-mean, method="min").astype(int),
        }
