"""Regressors: their parameters, predictions of targets, and the choice by cross-validation."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from math import sqrt
from typing import Any, Literal, Self, overload

import numpy as np
from sklearn import config_context
from sklearn.base import RegressorMixin
from sklearn.metrics import check_scoring
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, check_cv
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.losses import LOSSES, Loss
from quadlin.core.moments import Moments
from quadlin.data import Source, is_dask
from quadlin.data.dask_rows import lazily, lazily_with_std
from quadlin.data.names import Categories, Name
from quadlin.estimators.base import SecondOrderModel
from quadlin.estimators.checks import alphas as penalties
from quadlin.estimators.checks import check_options, is_auto, is_whole
from quadlin.estimators.columns import NO_WEIGHT, RowsLike, Vector, checked, source_to_score
from quadlin.estimators.fitted import Fitted, require_law, seed_of
from quadlin.estimators.learning import Learning
from quadlin.explain.tables import ROUNDING
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Alpha

SEARCH_PARAMS = "ranks", "alphas", "cv", "scoring"  # of a search, that its fits lack
RANKS = 0, 1, 2, 3, 4, 6, 8
SAME = 0.01  # of the standard error of the best score: fits themselves are no more precise


class Regressing(RegressorMixin):
    """A mixin of estimators that predict targets."""

    fitted_: Fitted
    loss: str
    _chunks: Any

    @property
    def noise_(self) -> float:
        """Return the standard deviation of the noise.

        Needs ``uncertainty=True``, draws, or a factorization machine fitted by its posterior.
        """
        fitted: Fitted = self._fitted("noise_")
        if fitted.loss.linked:
            raise AttributeError(
                f"noise_ is not defined for {fitted.loss.kind}: their variance follows from their "
                "mean."
            )
        if fitted.draws is not None:
            return fitted.draws.noise
        if fitted.law is None and fitted.noise is not None:
            return fitted.noise
        return require_law(fitted, self).noise * fitted.state.units.target.scale

    @overload
    def predict(self, X: RowsLike, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def predict(self, X: RowsLike, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...

    def predict(self, X: RowsLike, return_std: bool = False) -> Any:
        """Predict targets.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows. A Source is read in chunks. For a Dask collection the result is a lazy Dask array.
        return_std : bool, default=False
            Whether to also return the standard deviation of a new observation, including noise, if
            the noise is equal in all rows and has no heavy tails (or with ``loss="huber"``). A 95%
            interval is ±1.96 standard deviations with many rows, more with few: see
            `predict_interval`. For counts (``loss="poisson"``) the variance
            of the noise is the mean. What missing values could change is included, and the spread
            of the known levels where a row has a new level. Needs ``uncertainty=True``, or draws.

        Returns
        -------
        array (n_samples,), or a pair of them
            Of the library of X: numpy's, unless X is a tensor or a Dask collection.
        """
        check_is_fitted(self)
        fitted = self.fitted_
        if is_dask(X):
            if return_std:
                _require_spread(self)
            collection: Any = X
            fitted.columns.check_inputs(getattr(X, "columns", None), collection.shape[1])
            dtype = np.dtype(fitted.state.units.scale.dtype)
            return (lazily_with_std if return_std else lazily)(self.predict, X, dtype)
        parts = ((y, std) for _, y, std in self.predict_chunks(X, return_std))  # chunks are large
        y, std = zip(*parts, strict=True)
        xp = namespace(fitted.state.model.U)
        return (xp.concat(y), xp.concat(std)) if return_std else xp.concat(y)

    def predict_chunks(
        self, source: RowsLike, return_std: bool = False
    ) -> Iterator[tuple[Chunk, Array, Array | None]]:
        """Predict the rows of a source chunk by chunk: memory does not grow with their number.

        Parameters
        ----------
        source : Source
            Rows, opened with ``encoder=model.encoder_``.
        return_std : bool, default=False
            Whether to also return standard deviations, as `predict` does.

        Yields
        ------
        chunk, y, std
            The rows as numbers, their predictions, and standard deviations or None.

        Examples
        --------
        >>> import numpy as np
        >>> from quadlin import SecondOrderRegressor, open_source
        >>> X = np.random.default_rng(0).standard_normal((300, 2))
        >>> model = SecondOrderRegressor(1, random_state=0).fit(X, X[:, 0] * X[:, 1])
        >>> rows = open_source(X, chunk_rows=200)
        >>> [len(y) for chunk, y, std in model.predict_chunks(rows)]
        [200, 100]
        """
        check_is_fitted(self)
        if return_std:
            _require_spread(self)
        fitted, free = self.fitted_, self.extrapolation == "free"
        for chunk, inside in self._chunks(source, "predict"):
            std = fitted.predict_std(inside, chunk.absent, free) if return_std else None
            yield chunk, fitted.predict_mean(inside, free), std

    def predict_interval(self, X: RowsLike, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of intervals for new observations.

        They are quantiles of Student's distribution around `predict`, with its standard deviations
        and as many degrees of freedom as rows minus the effective number of parameters, so that
        they are wider with few rows. For counts (``loss="poisson"``) the ends are counts.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows.
        level : float, default=0.95
            Probability of the intervals.

        Returns
        -------
        low, high : arrays (n_samples,)
            NaN if no rows are left to estimate the noise.

        Examples
        --------
        >>> import numpy as np
        >>> from quadlin import SecondOrderRegressor
        >>> x = np.arange(8.0)[:, None]
        >>> y = 2 * x[:, 0] + [0.1, -0.2, 0.2, -0.1, 0.0, 0.1, -0.2, 0.1]
        >>> model = SecondOrderRegressor(0, alpha=0, uncertainty=True).fit(x, y)
        >>> low, high = model.predict_interval([[3.5]])
        >>> low.round(1), high.round(1)
        (array([6.6]), array([7.4]))
        """
        mean, std = self.predict(X, return_std=True)
        return self.fitted_.interval(mean, std, level)

    def score(self, X: RowsLike, y: Vector = None, sample_weight: Vector = None) -> float:
        """Return R², the share of the variance of the targets that is predicted.

        With ``loss="poisson"`` it is D², the same share of Poisson's deviance.

        Parameters
        ----------
        X : array, sparse matrix, frame or Source (n_samples, n_features)
            Rows. A Source that was opened with its target needs no y: it is read once, chunk by
            chunk.
        y : array (n_samples,)
            Targets.
        sample_weight : array (n_samples,) or None
            Weights; a Source has its own.

        Returns
        -------
        float
        """
        source, loss = source_to_score(self, X, y, sample_weight, "targets"), LOSSES[self.loss]
        if source is not None:
            return explained(loss, self.predict_chunks(source))
        if loss.linked:
            mean = to_numpy(self.predict(X))
            weight = None if sample_weight is None else to_numpy(sample_weight)
            return explained(loss, [(Chunk(mean, to_numpy(y), weight), mean, None)])
        return float(super().score(X, y, sample_weight))


def _require_spread(estimator: Any) -> None:
    """Raise where the standard deviations of predictions are not known."""
    if estimator.fitted_.draws is None:
        require_law(estimator.fitted_, estimator, "Standard deviations of predictions")


def explained(loss: Loss, predicted: Iterable[tuple[Chunk, Array, Any]]) -> float:
    """Return R² or D² of chunks and their predicted means: 1 − loss/loss of the best constant.

    Of a constant target it is 1 if exact, else 0.
    """
    left = entropy = 0.0
    target: Moments | None = None
    for chunk, mean, _ in predicted:
        y, mean = (to_numpy(a).astype(np.float64) for a in (chunk.y, mean))
        if loss.nonnegative and (y < 0).any():
            raise ValueError(f"Counts are ≥ 0, but the targets go down to {y.min():.4g}.")
        omega = chunk.weights
        left += float(omega @ loss.value_and_slope(loss.link(mean), y)[0])
        entropy += float(omega @ loss.entropy(y))
        moments = Moments.of(y[:, None], omega)
        target = moments if target is None else target + moments
    assert target is not None  # a Source without rows raises an error
    if not target.weight > 0:
        raise ValueError(NO_WEIGHT)
    mean, variance = float(target.mean[0]), float(target.var[0])
    varies = bool(target.varies(np.float64)[0])
    if not varies:
        exact = ROUNDING * target.weight * mean if loss.linked else 0.0
        return 0.0 if left > exact else 1.0
    return 1 - left / loss.null(target.weight, mean, variance, entropy)


@dataclass(eq=False, repr=False)
class SecondOrderRegressor(Regressing, Learning, SecondOrderModel):
    r"""Second order linear model: a signed quadratic part of low rank, and a few pairs.

    .. math:: y = b + x^\top w + x^\top (L + S)\, x + \text{noise}

    with a symmetric L of rank k and an S of few entries, fitted by penalised least squares,

    .. math:: \min\; \sum_i \omega_i (f(x_i) - y_i)^2 + \alpha_1 |w|^2 + 2 \alpha_2 \|L\|_F^2

    (and S like L if `alpha` is a number; learned penalties leave S free). By default the rank, the
    penalties and the pairs are chosen. The penalty applies to standardised features;
    results are in the user's units. Parameters of the model: `rank` to `loss`; of columns:
    `categorical_features` to `extrapolation`; of inference: `uncertainty`, `fit_intercept`; of the
    computation: the others (:doc:`/start/choosing`).

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Rank k of L: 0 is a linear model. "auto" chooses the rank of largest evidence, also if
        `alpha` is given.
    alpha : "auto", float or (float, float), default="auto"
        Ridge penalty of w and M, or one for each; rare levels have a larger one.
        "auto" chooses the penalties of largest evidence.
    pairs : "auto", int, list of pairs of features or None, default="auto"
        The entries of S: at most so many that a search finds, or exactly a list of pairs such as
        ``[("age", "income"), (3, 7)]``. "auto" searches if the rank is chosen, or is 0 with chosen
        penalties (:doc:`/guide/interactions`).
    squares : {"auto", True, False}, default="auto"
        Whether M has a diagonal, so that a feature can have a curved effect. "auto" models squares
        where they differ from linear terms (:doc:`/start/choosing`).
    loss : {"squared", "huber", "poisson"}, default="squared"
        "huber" limits the influence of gross errors in y. "poisson" models the logarithm of the
        mean of counts (:doc:`/guide/counts`).
    categorical_features : "from_dtype", None or list, default="from_dtype"
        Columns of levels: text and categorical ones of a frame, and those listed by name, position
        or booleans. A list in the list is a group of one-hot columns; adjacent ones are also
        detected, unless None takes all columns as numbers.
    missing : {"error", "mean"}, default="error"
        Whether missing values raise an error or are replaced by the mean, or by the level
        "missing". Standard deviations of predictions include what they could change.
    extrapolation : {"clip", "free"}, default="clip"
        "clip" limits each feature in `predict` to one training range beyond its training range,
        with a warning. "free" sets no limits.
    uncertainty : bool or "robust", default=False
        Whether `fit` also computes standard errors, for `summary` and intervals of predictions.
        True assumes equal noise in all rows, "robust" (HC3) does not.
    fit_intercept : bool, default=True
        Whether to fit b. Without it predictions at zero are zero, and no pairs are searched.
    solver : {"auto", "moments", "paper"}, default="auto"
        "auto" takes Gauss–Newton steps from the moment estimate to the optimum. "moments" is
        moment estimation alone, for independent features, and "paper" takes its steps with full
        length; neither has a penalty.
    max_iter : int, default=50
        Maximum number of steps, of up to twelve passes over the rows each.
    tol : float, default=1e-6
        `fit` stops when a step would lower the objective by less than this fraction of it. It also
        stops nearer to the optimum than 10⁴·`tol` (at most 1%) of its statistical error.
    max_memory : {"auto", "minimal"} or int, default="auto"
        Bytes for the first batch of `partial_fit`; the rest of the stream needs O(kd) memory.
        "auto" keeps ten rows per parameter; "minimal" keeps none, and has no penalty
        (:doc:`/guide/streams`).
    warm_start : bool, default=False
        Whether `fit` starts from the last model. It pays with a given rank and penalty.
    random_state : int, RandomState or None, default=None
        Seed of the start. With None it is fixed, so fits are deterministic.

    Attributes
    ----------
    coef_, intercept_
        w (n_features,) and b. A text column has one entry per level, see ``interactions_.names``.
    components_, eigenvalues_
        L is ``components_.T @ diag(eigenvalues_) @ components_``.
    rank_, alpha_
        The fitted rank of L, and the penalties of w and of M.
    pairs_ : PairReport or None
        The pairs in the model, with coefficients, standard errors and tests.
    has_diagonal_ : array of bool (n_features,)
        Which squares are in the model.
    interactions_ : Interactions
        Coefficients of products: ``interactions_["a", "b"]``, ``interactions_.top(10)``.
    noise_, coef_std_, intercept_std_
        With `uncertainty`: the standard deviation of the noise, and standard errors.
    moments_, target_moments_ : Moments
        Their means, variances, skewness, kurtosis.
    history_, status_, n_iter_, n_samples_seen_
        Objective and passes after each step, how the fit ended, and the numbers of steps and rows.
    encoder_, fill_
        The encoder of text columns and the replacements of missing numbers, for `open_source`.
    fitted_ : Fitted
        All of it, immutable.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    A pass takes O(nnz(X)·k) time, and a fit of given rank 12 passes with 30 rows per parameter, 45
    with four and more with fewer (:doc:`/guide/large_data`). What intervals promise is in
    :doc:`/guide/uncertainty`.

    Examples
    --------
    >>> from quadlin import SecondOrderRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(3000, 10, rank=2, n_test=100, random_state=0)
    >>> model = SecondOrderRegressor(random_state=0).fit(data.X, data.y)
    >>> round(model.score(data.X_test, data.y_test), 6), model.rank_
    (1.0, 2)

    Two products are a matrix of rank four, but two pairs.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((500, 10))
    >>> y = X[:, 0] + X[:, 1] * X[:, 2] - 2 * X[:, 3] * X[:, 4] + rng.standard_normal(500)
    >>> model = SecondOrderRegressor().fit(X, y)
    >>> [(p.first, p.second, round(p.coefficient)) for p in model.pairs_.pairs], model.rank_
    ([('x3', 'x4', -2), ('x1', 'x2', 1)], 0)
    """

    rank: int | str = "auto"
    _: KW_ONLY
    alpha: float | tuple[float, float] | str = "auto"
    pairs: str | int | Sequence[tuple[Name, Name]] | None = "auto"
    squares: bool | str = "auto"
    loss: str = "squared"
    categorical_features: Categories = "from_dtype"
    missing: str = "error"
    extrapolation: str = "clip"
    uncertainty: bool | str = False
    fit_intercept: bool = True
    solver: str = "auto"
    max_iter: int = 50
    tol: float = 1e-6
    max_memory: int | str = "auto"
    warm_start: bool = False
    random_state: Any = None


@dataclass(eq=False, repr=False)
class SecondOrderRegressorCV(Regressing, SecondOrderModel):
    r"""Second order linear model with rank and penalties chosen by cross-validation.

    A grid search (:class:`sklearn.model_selection.GridSearchCV`) over the `rank` and `alpha` of
    :class:`SecondOrderRegressor`. The best candidate is then fitted to all rows: among candidates
    whose scores hardly differ, the one of the lowest rank.

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
        exact = ROUNDING**2 * float(np.var(to_numpy(chunk.y)))  # less is the square of rounding
        floor = -exact if self.scoring is None else np.inf

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
            every = [d] if d * (d + 3) // 2 <= EXACT_COLUMNS else []  # all products
            return [*(rank for rank in RANKS if rank < d), *every]
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
