"""Ranks and penalties chosen by cross-validation, with scikit-learn's grid search."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from math import sqrt
from typing import Any, Self

import numpy as np
from sklearn import config_context
from sklearn.metrics import check_scoring
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, check_cv

from quadlin.core.arrays import to_numpy
from quadlin.core.losses import LOSSES
from quadlin.data import Source, is_dask
from quadlin.data.names import Categories, Name
from quadlin.estimators.base import SecondOrderModel
from quadlin.estimators.checks import alphas as penalties
from quadlin.estimators.checks import check_options, is_auto, is_whole
from quadlin.estimators.columns import RowsLike, Vector, checked
from quadlin.estimators.regressor import Regressing, SecondOrderRegressor
from quadlin.estimators.tasks import seed_of
from quadlin.solve.lowrank.design import Alpha

SEARCH_PARAMS = "ranks", "alphas", "cv", "scoring"  # that the estimator itself lacks
RANKS = 0, 1, 2, 3, 4, 6, 8
MOST_FEATURES = 53  # with which all products together are tried as well
SAME = 0.01  # of the standard error of the best score: fits themselves are no more precise
EXACT = 1e-9  # of the variance of y: mean squared errors below are rounding


@dataclass(eq=False, repr=False)
class SecondOrderRegressorCV(Regressing, SecondOrderModel):
    r"""Second order linear model with rank and penalties chosen by cross-validation.

    A grid search (:class:`sklearn.model_selection.GridSearchCV`) over the `rank` and `alpha` of
    :class:`SecondOrderRegressor`, which is then fitted to all rows with the best of them, and with
    the lowest rank of those whose scores hardly differ.

    Parameters
    ----------
    ranks : sequence of int or None, default=None
        Ranks to try. None tries 0, 1, 2, 3, 4, 6 and 8, and with up to 53 features all products.
    alphas : sequence of "auto", float or (float, float), or None, default=None
        Penalties to try with every rank, as `alpha` of :class:`SecondOrderRegressor`. None lets
        every fit choose its penalties from its training rows (``alpha="auto"``).
    cv : int, splitter, iterable of (train, test) or None, default=None
        Folds: a number means that many shuffled folds, and None five. For time series use
        `TimeSeriesSplit`; for groups, such as repeated rows, see `fit`.
    scoring : str, callable or None, default=None
        A scorer of scikit-learn. None is minus the mean squared error, or minus the mean deviance
        with ``loss="poisson"``.
    pairs : None, "auto", int or list of pairs, default=None
        Pairs to add to every rank. They are searched in the training rows of each fold.
    squares : {"auto", True, False}, default="auto"
        Whether M has a diagonal. "auto" models squares where they differ from linear terms.
    loss : {"squared", "huber", "poisson"}, default="squared"
        "huber" limits the influence of gross errors in y. "poisson" models the logarithm of the
        mean of counts.
    categorical_features : "from_dtype", None or list, default="from_dtype"
        Columns of levels: text and categorical ones of a frame, and those listed by name, position
        or booleans. A list in the list is a group of one-hot columns.
    missing : {"error", "mean"}, default="error"
        Whether missing values raise an error or are replaced by the mean of the training rows, or
        by the level "missing".
    extrapolation : {"clip", "free"}, default="clip"
        "clip" limits each feature in `predict` to one training range beyond its training range,
        with a warning; rows held out are predicted in the same way. "free" sets no limits.
    uncertainty : bool or "robust", default=False
        Whether the last fit also computes standard errors. They take the choice as given.
    fit_intercept : bool, default=True
        Whether to fit b. Without it predictions at zero are zero.
    max_iter : int, default=50
        Maximum number of steps of a fit.
    tol : float, default=1e-6
        A fit stops when a step would lower the objective by less than this fraction of it.
    random_state : int, RandomState or None, default=None
        Seed of the folds and of the starts. With None it is fixed, and so are the folds.

    Attributes
    ----------
    cv_results_ : dict
        Parameters, times and scores of every candidate, as in `GridSearchCV`.
    best_index_ : int
        The candidate with the best mean score. Among equal ones, and among models without an error,
        it is the one of the lowest rank.
    best_params_ : dict
        Its rank and penalties.
    best_score_ : float
        Its mean score over the folds.
    coef_, intercept_, components_, eigenvalues_ and all others of SecondOrderRegressor
        Attributes of the model fitted to all rows.

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

    ranks: Sequence[int] | None = None
    alphas: Sequence[str | float | Alpha] | None = None
    cv: Any = None
    _: KW_ONLY
    scoring: Any = None
    pairs: str | int | Sequence[tuple[Name, Name]] | None = None
    squares: bool | str = "auto"
    loss: str = "squared"
    categorical_features: Categories = "from_dtype"
    missing: str = "error"
    extrapolation: str = "clip"
    uncertainty: bool | str = False
    fit_intercept: bool = True
    max_iter: int = 50
    tol: float = 1e-6
    random_state: Any = None

    def fit(
        self, X: RowsLike, y: Vector = None, sample_weight: Vector = None, *, groups: Vector = None
    ) -> Self:
        """Choose the rank and the penalties, then fit to all rows.

        Parameters
        ----------
        X : array, sparse matrix or frame (n_samples, n_features)
            Rows.
        y : array (n_samples,)
            Targets.
        sample_weight : array (n_samples,) or None
            Weights, in the fits and in the scores of scikit-learn's scorers.
        groups : array (n_samples,) or None
            Rows of the same group are held out together; `cv` is then a number of folds, or a
            splitter for groups. The score is then about rows of new groups.

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
        params["random_state"] = seed = seed_of(self)
        model = SecondOrderRegressor(rank=1, **params)
        check_options(model)
        chunk, _ = checked(self, X, y, sample_weight, None, least=2)
        grid = {"rank": self._ranks(chunk.X.shape[1]), "alpha": self._alphas()}
        cv = 5 if self.cv is None else self.cv
        if is_whole(cv, 2):
            cv = KFold(cv, shuffle=True, random_state=seed) if groups is None else GroupKFold(cv)
        folds = list(check_cv(cv).split(chunk.X, chunk.y, groups))
        if any(len(part) == 0 for fold in folds for part in fold):
            raise ValueError("A fold of `cv` has no training rows or no test rows.")
        scoring = self.scoring or LOSSES[self.loss].scorer
        floor = -EXACT * float(np.var(to_numpy(chunk.y))) if self.scoring is None else np.inf

        def best(results: dict[str, Any]) -> int:
            scores = np.minimum(results["mean_test_score"], floor)
            top = np.argmax(scores)
            least = scores[top] - SAME * results["std_test_score"][top] / sqrt(len(folds))
            ranks = np.where(scores >= least, results["param_rank"].astype(int), np.inf)
            return int(np.lexsort((-scores, ranks))[0])

        with config_context(enable_metadata_routing=True):
            model.set_fit_request(sample_weight=True)
            scorer = check_scoring(model, scoring=scoring)
            if hasattr(scorer, "set_score_request") and sample_weight is not None:
                scorer = scorer.set_score_request(sample_weight=True)
            search = GridSearchCV(model, grid, scoring=scorer, cv=folds, refit=best)
            search.set_params(error_score="raise")
            weights = {} if sample_weight is None else {"sample_weight": sample_weight}
            search.fit(X, y, **weights)
        results = dict(search.cv_results_)
        results["param_rank"] = results["param_rank"].astype(int).filled()  # no value is masked
        results["param_alpha"] = [point["alpha"] for point in results["params"]]
        score = float(results["mean_test_score"][search.best_index_])
        self.adopt(search.best_estimator_.fitted_)
        self.best_index_, self.best_params_ = search.best_index_, search.best_params_
        self.best_score_, self.cv_results_ = score, results
        return self

    def _ranks(self, d: int) -> list[int]:
        """Return the ranks to try."""
        if self.ranks is None:
            return [*(rank for rank in RANKS if rank < d), *([d] if d <= MOST_FEATURES else [])]
        ranks = sorted({*self.ranks})
        if not ranks or not all(is_whole(rank, 0) for rank in ranks):
            raise ValueError(f"ranks={self.ranks!r} must be a list of whole numbers ≥ 0.")
        return ranks

    def _alphas(self) -> list[Any]:
        """Return the penalties to try."""
        given = ["auto"] if self.alphas is None else list(self.alphas)
        if not given:
            raise ValueError("alphas=[] must list at least one penalty.")
        return [alpha if is_auto(alpha) else penalties(alpha) for alpha in given]


def shared_params(estimator: SecondOrderRegressorCV) -> dict[str, Any]:
    """Return the parameters that SecondOrderRegressor has, too, except for the rank."""
    params = estimator.get_params(deep=False)
    return {name: value for name, value in params.items() if name not in SEARCH_PARAMS}
