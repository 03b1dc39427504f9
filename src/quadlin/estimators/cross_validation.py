r"""Ranks and penalties chosen by cross-validation along a path.

Rank 0 is ridge regression and rank d has no restriction; both are linear in their parameters and
are solved exactly where a p×p or n×n matrix fits. In between every model starts from a neighbour.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log10
from numbers import Integral
from typing import Any, Self

import numpy as np
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import check_scoring, get_scorer
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, indexable

from quadlin.core.arrays import Array, moved, namespace, to_numpy, unflagged
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Serial
from quadlin.core.model import predict
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.survey import survey
from quadlin.core.units import Units
from quadlin.data import Source, is_dask
from quadlin.data.names import Name
from quadlin.estimators.columns import checked
from quadlin.estimators.fitted import Fitted
from quadlin.estimators.fitting import Task, law_of
from quadlin.estimators.parameters import alphas as checked_alphas
from quadlin.estimators.parameters import check_options
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.solve.exact import Alpha, rows_of
from quadlin.solve.fit_state import fit_state
from quadlin.solve.path import Path, Point
from quadlin.solve.rank import MOST_RANK
from quadlin.solve.types import Solution, Status
from quadlin.solve.whitening import Identity, Whitener
from quadlin.storage import checkpointed

FOLDS = 5
LOW_RANKS = (1, 2, 4, 8)
TIE = 1e-6  # of the score: what is closer counts as equal
PERFECT = 1e-10  # of the target's variance: of smaller mean squares the lowest rank is the best
OWN = ("ranks", "alphas", "cv", "scoring")  # parameters that are not those of the estimator


@dataclass(frozen=True)
class Fold:
    """The training rows of a split, which count by their weight, and its test rows outright."""

    number: int  # among the splits
    path: Path
    index: np.ndarray  # of the test rows
    test: Chunk


class Search:
    """Cross-validated scores of ranks and penalties, and the order in which they are tried."""

    def __init__(
        self,
        task: Task,
        chunk: Chunk,
        rows: Rows,
        given: tuple[Any, Any],  # X and y in the user's form
        cv: Any,
        scoring: Any,
        params: dict[str, Any],  # of the estimators that a callable scorer is given
    ) -> None:
        self.task, self.chunk, self.rows, self.seed = task, chunk, rows, task.seed
        self.given, self.scoring, self.params = indexable(*given), scoring, params
        self.n, self.d = chunk.X.shape
        self.options, self.maker = task.options, task.make_units
        self.whole = self._path(rows, self.n, self.maker)
        estimator = SecondOrderRegressor()
        self.scorer: Any = (
            None if scoring is None else check_scoring(estimator, get_scorer(scoring))
        )
        self.scores: dict[Point, list[float]] = {}
        self.errors: dict[Point, list[float]] = {}  # mean squares, whatever the scorer
        splitter = check_cv(min(FOLDS, self.n) if cv is None else cv)
        self.folds = list(self._folds(splitter.split(*self.given)))
        if not self.folds:
            raise ValueError(
                "No fold of cv has test rows of positive weight. (A generator yields its folds "
                "only once: give a list of them.)"
            )

    def _folds(self, splits: Iterable[tuple[Any, Any]]) -> Iterator[Fold]:
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
            path = self._path(self.rows.reweighted(times), len(kept), self._fold_units)
            yield Fold(number, path, held, rows_of(self.chunk, held))

    def _path(
        self,
        rows: Rows,
        n_rows: int,  # that were given, whatever their weights
        make_units: Callable[[Moments, Moments], Units],
    ) -> Path:
        surveyed = survey(rows)
        units, tally = make_units(surveyed.features, surveyed.target), surveyed.tally
        surveyed = replace(surveyed, tally=replace(tally, rows=n_rows))
        counts = (tally.counting, tally.weight)
        return Path(rows, units, self.options, *counts, self.seed, surveyed)

    def _fold_units(self, features: Moments, target: Moments) -> Units:
        """Return the units of a fold, with the squares that are modelled for all rows."""
        units = replace(self.maker, diagonal="zero")(features, target)
        varies = namespace(units.scale).astype(units.scale > 0, units.scale.dtype)
        return replace(units, free=self.whole.units.free * varies)

    def grid(self, ranks: Sequence[int], alphas: Sequence[Alpha]) -> None:
        """Score every pair of a rank and a penalty."""
        self.score([(rank, alpha) for rank in ranks for alpha in alphas])

    def automatic(self, ranks: Sequence[int] | None) -> None:
        """Score ridge regression, then all products, then low ranks, then what is near the best."""
        d, first_path = self.d, self.folds[0].path
        n_rows, weight = first_path.n_rows, first_path.weight
        exact = d > 0 and first_path.exact(linear=False) is not None
        most = min(d - 1, max(1, n_rows // d))
        limit = min(most, MOST_RANK) if ranks is None else 0  # of ranks that come by themselves
        if ranks is None:
            ranks = [0, *(k for k in LOW_RANKS if k <= most)] + [d] * exact
        highest = max(1.0, log10(d) + 1)
        if 0 in ranks:
            grid = weight * 10.0 ** np.arange(-5, highest + 0.1, 0.5)
            self.score([(0, (a, a)) for a in grid.tolist()])
            if self.best(0)[1][0] == grid[0]:  # hardly any noise
                self.nearby(0, first=(1e-3, 1e-2, 0.1))
        second = weight * 0.1
        low = [k for k in ranks if k > 0]
        if d in ranks and exact:
            low.remove(d)
            grid = weight * 10.0 ** np.arange(-4, highest + 0.1)
            self.score([(d, (a, a)) for a in grid.tolist()])
            self.nearby(d, first=(1e-3, 1e-2, 0.1, 10.0, 100.0))
            self.nearby(d, second=(0.1, 0.3, 3.0, 10.0))
            second = self.best(d)[1][1]
        first = self.best()[1][0] if self.scores else weight * 1e-3
        self.score([(k, (first, second * f)) for k in low for f in (10.0, 1.0, 0.1, 0.01)])
        while low and self.best()[0] == low[-1] and 2 * low[-1] <= limit:
            low.append(2 * low[-1])
            _, (first, second) = self.best()
            self.score([(low[-1], (first, second * f)) for f in (1.0, 0.1)])
        self.nearby(self.best()[0], first=(0.3, 3.0))
        self.nearby(self.best()[0], second=(0.3, 3.0))

    def nearby(
        self, rank: int, first: Sequence[float] = (1.0,), second: Sequence[float] = (1.0,)
    ) -> None:
        """Score multiples of the best penalties of a rank."""
        _, (a, b) = self.best(rank)
        self.score([(rank, (a * f, b * g)) for f in first for g in (second if rank else (1.0,))])

    def score(self, points: list[Point]) -> None:
        """Score points that have no score yet: one fold after the other, high ranks first."""
        new = [p for p in dict.fromkeys(points) if p not in self.scores]
        new.sort(key=lambda p: (-p[0], p[1][0], -p[1][1]))
        self.scores.update({p: [] for p in new})
        self.errors.update({p: [] for p in new})
        for i, fold in enumerate(self.folds):
            rows = self._rows(fold)
            for point in new:
                f = self._predicted(fold, point)
                error = _mean_square(f - fold.test.y, fold.test.weight)
                score = -error if self.scorer is None else self._score(fold, point, f, *rows)
                self.errors[point].append(error)
                self.scores[point].append(score if isfinite(score) else -float("inf"))
            fold.path.forget()
            if not any(isfinite(scores[i]) for scores in self.scores.values()):
                self._refuse_undefined(fold)

    def _rows(self, fold: Fold) -> tuple[Any, Any]:
        """Return the test rows and targets of a fold as the scorer expects them."""
        if callable(self.scoring):
            X, y = (_safe_indexing(rows, fold.index) for rows in self.given)
            return X, y
        return fold.test.X, fold.test.y

    def _score(self, fold: Fold, point: Point, f: Array, X: Any, y: Any) -> float:
        model = self._estimator(fold, point) if callable(self.scoring) else Predicted(f)
        return _number(self._asked(model, X, y, fold.test.weight))

    def _predicted(self, fold: Fold, point: Point) -> Array:
        """Return the predictions of the test rows of a fold."""
        units, xp = fold.path.units, namespace(fold.test.y)
        f = xp.astype(predict(fold.path.model(*point), Block(fold.test.X, units)), xp.float64)
        return units.target.mean + units.target.scale * f

    def _estimator(self, fold: Fold, point: Point) -> SecondOrderRegressor:
        """Return an estimator fitted to the training rows of a fold."""
        rank, alpha = point
        params = {**self.params, "rank": rank, "alpha": alpha, "uncertainty": False}
        estimator = SecondOrderRegressor(**params)
        solution = fold.path.recorded(rank, alpha)
        estimator.adopt(self._fitted(fold.path, point, solution, Identity()))
        return estimator

    def _asked(self, model: Any, X: Any, y: Any, weight: Array | None) -> Any:
        """Return what the scorer says, weights and all."""
        more = {} if weight is None else {"sample_weight": weight}
        with warnings.catch_warnings():  # a score that is not defined is seen by its value
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            try:
                return self.scorer(model, X, y, **more)
            except TypeError as error:
                if weight is None:
                    raise
                raise ValueError(
                    f"The scorer refused the rows ({error}). One that takes no sample_weight can "
                    "only be used without weights."
                ) from error

    def _refuse_undefined(self, fold: Fold) -> None:
        raise ValueError(
            f"scoring={self.scoring!r} gives no finite number for any model on fold {fold.number} "
            f"of cv (counted from 0; test rows: {len(fold.index)}). Some scores, such as r2, are "
            "not defined for fewer than two: use larger folds or scoring='neg_mean_squared_error'."
        )

    def best(self, rank: int | None = None) -> Point:
        """Return the point of the best mean score, of those as good the smallest model."""
        means = {p: np.mean(v) for p, v in self.scores.items() if rank is None or p[0] == rank}
        top = max(means, key=lambda p: means[p])
        if rank is None and not callable(self.scoring) and self._perfect(top):
            return self.best(min(p[0] for p in means if self._perfect(p)))
        good = [p for p in means if means[p] >= means[top] - TIE * abs(means[top])]
        return min(good, key=lambda p: (p[0], -p[1][1], -p[1][0]))

    def _perfect(self, point: Point) -> bool:
        """Tell whether the errors of a point are no more than rounding beside the target."""
        eps = float(namespace(self.whole.units.scale).finfo(self.chunk.X.dtype).eps)
        rounding = max(PERFECT, (1e3 * eps) ** 2)
        variance = float(self.whole.surveyed.target.var[0])
        return bool(np.mean(self.errors[point]) <= rounding * variance)

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

    def refit(self, rank: int, alpha: Alpha) -> Fitted:
        """Fit all rows, along the path that led to the choice."""
        path = self.whole
        walked = [p for p in self.scores if p[0] == rank and p[1][0] == alpha[0]]
        for point in walked if 0 < rank < self.d else []:
            if point[1][1] > alpha[1]:
                path.model(*point)
        path.model(rank, alpha)
        solution, white = path.solution(self.options, rank, alpha)
        fitted = self._fitted(path, (rank, alpha), solution, white)
        if self.task.uncertainty:
            law = law_of(fitted.state, self.rows, fitted.options, self.task)
            fitted = replace(fitted, law=law)
        return fitted.with_passes(self.rows)

    def _fitted(self, path: Path, point: Point, solution: Solution, white: Whitener) -> Fitted:
        """Return what an estimator has learned from the rows of a path."""
        rank, alpha = point
        options, surveyed = replace(self.options, rank=rank, alpha=alpha), path.surveyed
        state = fit_state(solution, surveyed, options, self.maker, white)
        return self.task.fitted(self.task.stream(options, state).counted(surveyed.tally))


class Predicted(RegressorMixin, BaseEstimator):
    """What a scorer known by its name asks once for predictions that are there already."""

    def __init__(self, f: Array) -> None:
        self.f = f

    def predict(self, X: Any) -> Array:
        """Return the predictions."""
        return self.f


class SecondOrderRegressorCV(SecondOrderRegressor):
    r"""Second order linear model with rank and penalties chosen by cross-validation.

    .. math:: \min\; \sum_i \omega_i (f(x_i) - y_i)^2 + \alpha_1 |w|^2 + 2 \alpha_2 \|M\|_F^2,
              \qquad \mathrm{rank}\,M \le k

    for k from 0, which is ridge regression, to the number of features, which is ridge regression on
    all products of two features. As in `RidgeCV` the work is shared: features are standardised and
    whitened once a fold, both ends of the path are solved exactly for all penalties from one matrix
    where it fits, and every other model starts from its neighbours on the path.

    Parameters
    ----------
    ranks : sequence of int or None, default=None
        Ranks to try. None tries 0, 1, 2, 4, 8 as far as there are rows for them, more while that
        helps, and the number of features where the exact solution fits into memory: up to 500
        features with 3,000 rows, and 53 with any number. With `alphas` given it is 0, 1, 2, 4, 8.
    alphas : sequence of float or (float, float), or None, default=None
        Penalties to try with every rank, for w and M together or one each. None searches both:
        first along α₁ = α₂ for ridge regression without and with products, then apart.
    cv : int, splitter, iterable of (train, test) or None, default=None
        Folds. None makes five, without shuffling. For groups give the splits as an iterable. A
        fold whose test rows weigh nothing is left out.
    scoring : str, callable or None, default=None
        A scorer; None is minus the mean squared error, weighted. A callable is called with a
        fitted `SecondOrderRegressor`, the rows held out as they were given, and their targets.
    diagonal, fields, fit_linear, fit_intercept, psd, whiten, max_iter, tol, extrapolation, \
    uncertainty, random_state
        As for :class:`SecondOrderRegressor`.

    Attributes
    ----------
    rank_ : int
        The rank chosen: that of the best mean score, and of equal ones the lowest. Errors that
        are nothing but rounding beside the target count as equal.
    alpha_ : (float, float)
        The penalties chosen, for w and for M.
    best_score_ : float
        Mean score of the choice over the folds.
    cv_results_ : dict
        What was tried, as in `GridSearchCV`: "params", "param_rank", "param_alpha", the scores
        of the splits with mean, standard deviation and rank.
    n_passes_ : int
        Passes over the rows that everything together took.
    coef_, intercept_, components_, eigenvalues_ and all others of SecondOrderRegressor
        Of the model refitted to all rows.

    Notes
    -----
    Time: a fold takes for each low rank and penalty some 5 to 30 passes of O(nnz(X)·k), and where
    the exact solution fits some 20 systems of min(n, d²/2) unknowns. Memory beside X: that of one
    fit for each fold, and three matrices of that size.

    Examples
    --------
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(600, 6, rank=2, noise=0.5, n_test=100, random_state=0)
    >>> model = SecondOrderRegressorCV(random_state=0).fit(data.X, data.y)
    >>> model.rank_
    2
    >>> model.score(data.X_test, data.y_test) > 0.98
    True
    """

    loss, polish, step, batch_size = "squared", True, "guarded", "auto"  # not parameters
    rank, alpha, warm_start = 1, 0.0, False

    def __init__(
        self,
        ranks: Sequence[int] | None = None,
        alphas: Sequence[float | Alpha] | None = None,
        cv: Any = None,
        *,
        scoring: Any = None,
        diagonal: str | Sequence[bool] = "auto",
        fields: str | Sequence[Sequence[Name]] | None = "auto",
        fit_linear: bool = True,
        fit_intercept: bool = True,
        psd: bool = False,
        whiten: str = "auto",
        max_iter: int = 50,
        tol: float = 1e-6,
        extrapolation: str = "clip",
        uncertainty: bool | str = False,
        random_state: Any = None,
    ) -> None:
        self.ranks = ranks
        self.alphas = alphas
        self.cv = cv
        self.scoring = scoring
        self.diagonal = diagonal
        self.fields = fields
        self.fit_linear = fit_linear
        self.fit_intercept = fit_intercept
        self.psd = psd
        self.whiten = whiten
        self.max_iter = max_iter
        self.tol = tol
        self.extrapolation = extrapolation
        self.uncertainty = uncertainty
        self.random_state = random_state

    @property
    def set_callbacks(self) -> Any:
        """Not here: there is no single fit to watch."""
        raise AttributeError("SecondOrderRegressorCV has no callbacks: see cv_results_ afterwards.")

    @property
    def partial_fit(self) -> Any:
        """Not here: rows that are gone cannot be held out."""
        raise AttributeError("SecondOrderRegressorCV has no partial_fit. Use SecondOrderRegressor.")

    @unflagged
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, checkpoint: Any = None
    ) -> Self:
        """Choose the rank and the penalties, then fit to all rows.

        Parameters
        ----------
        X : array, sparse matrix or frame (n_samples, n_features)
            Rows.
        y : array (n_samples,)
            Targets.
        sample_weight : array (n_samples,) or None
            Weights, in the fits and in the scores.
        checkpoint : path or None
            As for `SecondOrderRegressor.fit`.

        Returns
        -------
        self
        """
        if isinstance(X, Source) or is_dask(X):
            raise TypeError(
                "Cross-validation holds its rows in memory: give arrays or a frame, or use "
                'SecondOrderRegressor with rank="auto" for a Source or Dask.'
            )
        params = {k: v for k, v in self.get_params(deep=False).items() if k not in OWN}
        check_options(SecondOrderRegressor(rank=1, **params))
        chunk, columns = checked(self, X, y, sample_weight, None, least=2)
        ranks = _checked_ranks(self.ranks, chunk.X.shape[1])
        table = MemorySource(chunk.X, chunk.y, chunk.weight)
        names = columns.names_in
        with checkpointed(checkpoint, table, self, self._seed(), None, names) as (seed, journal):
            rows = Rows(Serial(table), journal)
            task = self._task(table, columns, self._known_fields(rows, table, columns), seed)
            search = Search(task, chunk, rows, (X, y), self.cv, self.scoring, params)
            return self._search(search, ranks)

    def _search(self, search: "Search", ranks: list[int] | None) -> Self:
        if self.alphas is None:
            search.automatic(ranks)
        else:
            alphas = _checked_alphas(self.alphas)
            search.grid(ranks or [0, *(k for k in LOW_RANKS if k <= search.d)], alphas)
        rank, alpha = search.best()
        self.adopt(search.refit(rank, alpha))
        self.n_passes_ = search.rows.walks
        self.best_score_ = float(np.mean(search.scores[rank, alpha]))
        self.cv_results_ = search.results()
        if self.status_ is not Status.converged:
            self._warn_of_status()
        return self


def _mean_square(r: Array, weight: Array | None) -> float:
    xp = namespace(r)
    weight = xp.ones_like(r) if weight is None else weight
    return float(weight @ r**2) / float(xp.sum(weight))


def _number(score: Any) -> float:
    try:
        return float(score)
    except (TypeError, ValueError):
        raise ValueError(f"scoring must return one number, not {score!r}.") from None


def _checked_alphas(alphas: Any) -> list[Alpha]:
    if not isinstance(alphas, Sequence | np.ndarray) or len(alphas) == 0:
        raise ValueError(f"alphas={alphas!r} must be a list of penalties, at least one.")
    return [checked_alphas(alpha) for alpha in alphas]


def _checked_ranks(ranks: Sequence[int] | None, d: int) -> list[int] | None:
    if ranks is None:
        return None
    if not isinstance(ranks, Sequence | np.ndarray):
        raise ValueError(f"ranks={ranks!r} must be a list of whole numbers ≥ 0.")
    whole = [isinstance(k, Integral) and not isinstance(k, bool) and k >= 0 for k in ranks]
    if not whole or not all(whole):
        raise ValueError(f"ranks={ranks!r} must be whole numbers ≥ 0, at least one.")
    return sorted({min(int(k), d) for k in ranks})
