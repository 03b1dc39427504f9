r"""Ranks and penalties chosen by cross-validation.

Rank 0 is ridge regression and rank d has no restriction; both are linear in their parameters and
are solved exactly where a p×p or n×n matrix fits.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from quadlin.core.arrays import unflagged
from quadlin.core.chunks import MemorySource
from quadlin.core.engine import Serial
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.data import Source, is_dask
from quadlin.data.columns.names import Name
from quadlin.estimators.cv.cv_choice import judged_rows_of, refitted, searched
from quadlin.estimators.cv.cv_scores import CVScores
from quadlin.estimators.cv.cv_search import checked_alphas, checked_ranks
from quadlin.estimators.cv.cv_warnings import warn_of_edge, warn_of_heavy_rows, warn_of_order
from quadlin.estimators.cv.splitting import is_shuffled, splits
from quadlin.estimators.regression.base import no_model_yet, raise_or_warn
from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.estimators.regression.tasks import is_sparse, request_of, seed_of, task_of
from quadlin.estimators.rows.columns import Columns, checked
from quadlin.estimators.rows.parameters import check_options, is_auto
from quadlin.solve.choose.rarity import with_rarity
from quadlin.solve.composite.pair_composite import PairRequest
from quadlin.solve.lowrank.exact import Alpha
from quadlin.solve.lowrank.types import Automatic, Status
from quadlin.solve.pairs.pair_search import MOST_PAIRS

SEARCH_PARAMS = "ranks", "alphas", "cv", "scoring"  # that the estimator itself lacks


class SecondOrderRegressorCV(SecondOrderRegressor):
    r"""Second order linear model with rank and penalties chosen by cross-validation.

    .. math:: \min\; \sum_i \omega_i (f(x_i) - y_i)^2 + \alpha_1 |w|^2 + 2 \alpha_2 \|M\|_F^2,
              \qquad \mathrm{rank}\,M \le k

    for k from 0, which is ridge regression, to the number of features, which is ridge regression on
    all products of two features. The score of a rank and penalties is that of `cross_val_score` on
    the same folds, whatever other candidates are tried. Both ends are solved exactly for all
    penalties from one matrix if it fits into memory. With at most 25 features, or at most 3,000
    rows of 500 features, every rank is fitted by matrices as well; otherwise all folds share each
    pass over the rows.

    Parameters
    ----------
    ranks : sequence of int or None, default=None
        Ranks to try. None tries 0, the number of features if the exact solution fits into memory
        (up to 500 features with 3,000 rows, and 53 with any number), and low ranks, from 4 up or
        down while the score improves. If `alphas` is given, it tries 0, 1, 2, 4, 8.
    alphas : sequence of float or (float, float), or None, default=None
        Penalties to try with every rank, for both w and M or one for each. None searches both, in
        steps, as long as a step improves the score.
    cv : int, splitter, iterable of (train, test) or None, default=None
        Folds. None makes five folds, and a number that many. Rows are shuffled by their contents,
        so their order does not matter. There is a warning if blocks of consecutive rows are
        predicted much worse. For time series use `TimeSeriesSplit`, for groups, such as repeated
        rows, see `fit`. A fold whose test rows all have weight 0 is left out.
    scoring : str, callable or None, default=None
        A scorer; None is minus the mean squared error, weighted. A callable is called with a
        fitted `SecondOrderRegressor`, the rows held out as they were given, and their targets.
    loss : {"squared", "huber"}, default="squared"
        As for :class:`SecondOrderRegressor`. With "huber", a first fit identifies gross errors in
        y, which then have little weight in the comparison.
    pairs : None, "auto", int or list of pairs, default=None
        Pairs beside every rank: a maximum number, or a list of pairs. The search is repeated in the
        training rows of every fold, so a score is that of `cross_val_score` with the same `pairs`.
        "auto" compares models without pairs and with at most 32, shown as "param_pairs" in
        `cv_results_`. With `alphas` None, pairs are tried at the given ranks, or at rank 0 and the
        best low rank, near the best penalties without them.
    hierarchy : {None, "weak", "strong"}, default=None
        As for :class:`SecondOrderRegressor`.
    rarity : "auto", None or float from 0 to 1, default="auto"
        As for :class:`SecondOrderRegressor`; "auto" chooses on all rows, before they are divided
        into folds.
    diagonal, fields, categorical_features, missing, fit_linear, fit_intercept, \
    psd, whiten, max_iter, tol, extrapolation, uncertainty, random_state
        As for :class:`SecondOrderRegressor`. `random_state` also shuffles the rows; with None the
        same rows always get the same folds.

    Attributes
    ----------
    rank_ : int
        The chosen rank: the lowest rank with the best mean score. Errors that are due to rounding
        count as equal.
    alpha_ : (float, float)
        The penalties chosen, for w and for M.
    best_score_ : float
        Mean score of the choice over the folds.
    cv_results_ : dict
        What was tried, as in `GridSearchCV`: "params", "param_rank", "param_alpha", the scores
        of the splits with mean, standard deviation and rank.
    n_passes_ : int
        Number of passes over the rows, including the final fit.
    coef_, intercept_, components_, eigenvalues_ and all others of SecondOrderRegressor
        Those of the model refitted to all rows.

    Notes
    -----
    Time: each low rank takes some 40 passes and each of its penalties 10 to 30, all
    folds together, of O(nnz(X)·k) per fold. With at most 25 features, or 3,000 rows, it takes none
    but some 5 to 15 systems of (k + 1)d unknowns. With `pairs` each candidate and fold takes one
    more search of some ten passes, O(nd²) each, and another fit of the low rank; there are some six
    candidates of rank 0 and four of a low rank unless you give `alphas`. If the exact solution fits
    into memory, each fold takes some 20 systems of min(n, d²/2) unknowns. Memory beside X: that of
    one fit for each fold, and three matrices of that size.

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

    polish, step, batch_size = True, "guarded", "auto"  # not parameters
    rank, alpha, warm_start = 1, 0.0, False

    def __init__(
        self,
        ranks: Sequence[int] | None = None,
        alphas: Sequence[float | Alpha] | None = None,
        cv: Any = None,
        *,
        scoring: Any = None,
        diagonal: str | Sequence[bool] = "auto",
        rarity: float | str | None = "auto",
        loss: str = "squared",
        fields: str | Sequence[Sequence[Name]] | None = "auto",
        categorical_features: str | Sequence[Name] | Sequence[bool] | None = "from_dtype",
        missing: str = "error",
        pairs: str | int | Sequence[tuple[Name, Name]] | None = None,
        hierarchy: str | None = None,
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
        self.rarity = rarity
        self.loss = loss
        self.fields = fields
        self.categorical_features = categorical_features
        self.missing = missing
        self.pairs = pairs
        self.hierarchy = hierarchy
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
        """Raise: there is no single fit to watch."""
        raise AttributeError(
            "SecondOrderRegressorCV does not support callbacks: see cv_results_ after the fit."
        )

    @property
    def partial_fit(self) -> Any:
        """Raise: rows that are gone cannot be held out."""
        raise AttributeError("SecondOrderRegressorCV has no partial_fit. Use SecondOrderRegressor.")

    @unflagged
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
    ) -> Self:
        """Choose the rank and the penalties, then fit to all rows.

        Ctrl-C keeps the best rank and penalties scored so far, if there are any, as fitted to the
        training rows of the first fold: `status_` is `interrupted`, `cv_results_` has the scores so
        far, and KeyboardInterrupt is raised.

        Parameters
        ----------
        X : array, sparse matrix or frame (n_samples, n_features)
            Rows.
        y : array (n_samples,)
            Targets.
        sample_weight : array (n_samples,) or None
            Weights, in the fits and in the scores.
        groups : array (n_samples,) or None
            Rows of the same group are held out together; `cv` is then a number of folds, or a
            splitter for groups. The score then tells how well rows of new groups are predicted.

        Returns
        -------
        self
        """
        if isinstance(X, Source) or is_dask(X):
            raise TypeError(
                "Cross-validation holds its rows in memory: give arrays or a frame, or use "
                'SecondOrderRegressor with rank="auto" for a Source or Dask.'
            )
        params = shared_params(self)
        if self.loss == "poisson":
            raise ValueError(
                'loss="poisson" cannot be combined with cross-validation, which compares squared '
                'errors. Use SecondOrderRegressor(loss="poisson"): it chooses rank and penalties.'
            )
        check_options(SecondOrderRegressor(rank=1, **params))
        chunk, columns = checked(self, X, y, sample_weight, None, least=2)
        ranks = checked_ranks(self.ranks, chunk.X.shape[1])
        alphas = None if self.alphas is None else checked_alphas(self.alphas)
        table = MemorySource(chunk.X, chunk.y, chunk.weight)
        with no_model_yet():
            seed = seed_of(self)
            rows = Rows(Serial(table))
            task = task_of(self, rows, table, columns, seed)
            chosen = Automatic(rarity=is_auto(self.rarity) and not task.robust)
            task = replace(task, pairs=None, automatic=chosen)
            task = with_rarity(rows, task, rows.reduce(survey)) if chosen.rarity else task
            pairs = self._request(columns, table)
            folds = splits(self.cv, (X, y), chunk, rows, groups, seed)
            judged, judged_rows = judged_rows_of(task, chunk, rows)
            scores = CVScores(task, judged, judged_rows, (X, y), folds, self.scoring, params)
            both = is_auto(self.pairs)
            scores, results, whole = searched(scores, ranks, alphas, pairs, both)
            point = scores.best()
            fitted, text = refitted(scores, point, rows, whole)
            try:
                if fitted.status is not Status.interrupted and is_shuffled(self.cv, groups):
                    warn_of_order(scores, point)
            except KeyboardInterrupt:
                fitted = fitted.interrupted()
            fitted, walks, best = fitted.with_passes(rows), rows.walks, scores.mean(point)
        self.adopt(fitted)
        self.n_passes_, self.best_score_, self.cv_results_ = walks, best, results
        if fitted.status is Status.interrupted:
            raise KeyboardInterrupt(text)
        if alphas is not None:
            warn_of_edge(point, alphas)
        warn_of_heavy_rows(scores, point, task.robust)
        raise_or_warn(self, fitted.status, Status.stopped)
        return self

    def _request(self, columns: Columns, table: MemorySource) -> PairRequest | None:
        """Return which pairs every fold is searched for; None without a search."""
        pairs = MOST_PAIRS if is_auto(self.pairs) else self.pairs
        asking = SecondOrderRegressor(rank=1, pairs=pairs, hierarchy=self.hierarchy)
        return request_of(asking, columns, is_sparse(table))


def shared_params(estimator: SecondOrderRegressorCV) -> dict[str, Any]:
    """Return the parameters that SecondOrderRegressor has, too, except for the rank."""
    params = estimator.get_params(deep=False)
    return {name: value for name, value in params.items() if name not in SEARCH_PARAMS}
