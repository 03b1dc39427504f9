"""The regressor: its parameters, attributes and cost; most of what it does is in `base`."""

from collections.abc import Sequence
from typing import Any

from sklearn.base import RegressorMixin

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.data.names import Categories, Name
from quadlin.estimators.regression.base import SecondOrderModel
from quadlin.estimators.regression.scores import d2_of, interval, r2_of, source_to_score
from quadlin.estimators.regression.streaming import as_array


class SecondOrderRegressor(RegressorMixin, SecondOrderModel):
    r"""Second order linear model with a low-rank, signed quadratic part, and a few pairs beside it.

    .. math:: y = b + x^\top w + x^\top M x + \text{noise},
              \qquad M = M^\top = L + S,\ \mathrm{rank}\,L \le k,\ S \text{ of few entries}

    fitted by least squares, optionally penalised,

    .. math:: \min\; \sum_i \omega_i (f(x_i) - y_i)^2 + \alpha_1 |w|^2 + 2 \alpha_2 \|L\|_F^2

    (and S like L if `alpha` is a number; learned penalties leave S free). By default the rank, the
    penalties and the pairs are learned from the rows. The penalty applies to standardised features;
    all results are in the user's units. Parameters are those of the model (`rank` to `loss`), of
    columns (to `extrapolation`), of inference (to `fit_intercept`) and of the computation;
    :doc:`/start/choosing` is their guide.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Rank k of L: 0 is a linear model. "auto" chooses the rank of largest evidence, or the one
        that best predicts held-out rows beyond 1,500 parameters or if `alpha` is given.
    alpha : "auto", float or (float, float), default="auto"
        Ridge penalty of w and M, or one for each, as in `Ridge`; rare levels have a larger one.
        "auto" chooses the penalties of largest evidence.
    pairs : "auto", int, list of pairs of features or None, default="auto"
        The entries of S: at most so many that a search finds, or exactly those of a list such as
        ``[("age", "income"), (3, 7)]``. "auto" searches if the rank is chosen, or is 0 with chosen
        penalties (:doc:`/guide/interactions`).
    squares : {"auto", True, False}, default="auto"
        Whether squares are modelled: everywhere, nowhere, or where they differ from linear terms.
    loss : {"squared", "huber", "poisson"}, default="squared"
        "huber" limits the influence of gross errors in y. "poisson" models the logarithm of the
        mean of counts (:doc:`/guide/counts`).
    categorical_features : "from_dtype", None or list, default="from_dtype"
        Columns whose values are levels: text and categorical columns of a frame, and those listed
        by name, position or booleans. A list in the list is a group of one-hot columns; adjacent
        ones are also detected, unless None takes all columns as numbers.
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
        Whether to fit b.
    solver : {"auto", "moments", "paper"}, default="auto"
        "auto" takes Gauss–Newton steps from the moment estimate to the optimum. "moments" is
        moment estimation alone, for many rows of independent features, and "paper" that with the
        authors' step of full length; neither has a penalty.
    max_iter : int, default=50
        Maximum number of steps. A Gauss–Newton step takes up to twelve passes over the rows.
    tol : float, default=1e-6
        `fit` stops when a step would lower the objective by less than this fraction of it, or
        when the optimum is nearer than 10⁴·`tol`, at most 1%, of the statistical error.
    max_memory : {"auto", "minimal"} or int, default="auto"
        Bytes for the first batch of `partial_fit`, which then continues in O(kd) memory. "auto"
        keeps ten rows per parameter or more; "minimal" keeps none, and has no penalty
        (:doc:`/guide/streams`).
    warm_start : bool, default=False
        Whether `fit` starts from the model of the last fit.
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
        A view of M: ``interactions_["a", "b"]`` and ``interactions_.top(10)`` are coefficients of
        products.
    noise_, coef_std_, intercept_std_
        With `uncertainty`: the standard deviation of the noise, and standard errors.
    moments_, target_moments_ : Moments
        Mean, variance, skewness and kurtosis.
    history_, status_, n_iter_, n_samples_seen_
        Objective and passes after each step, how the fit ended, and the numbers of steps and rows.
    encoder_, fill_
        The encoder of text columns and the replacements of missing numbers, for `open_source`.
    fitted_ : Fitted
        All of it in one immutable object.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    A pass takes O(nnz(X)·k) time; a fit takes 12 to 170 of them, the more rows per parameter, the
    fewer. What intervals promise is in :doc:`/guide/uncertainty`.

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

    def __init__(
        self,
        rank: int | str = "auto",
        *,
        alpha: float | tuple[float, float] | str = "auto",
        pairs: str | int | Sequence[tuple[Name, Name]] | None = "auto",
        squares: bool | str = "auto",
        loss: str = "squared",
        categorical_features: Categories = "from_dtype",
        missing: str = "error",
        extrapolation: str = "clip",
        uncertainty: bool | str = False,
        fit_intercept: bool = True,
        solver: str = "auto",
        max_iter: int = 50,
        tol: float = 1e-6,
        max_memory: int | str = "auto",
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.alpha = alpha
        self.pairs = pairs
        self.squares = squares
        self.loss = loss
        self.categorical_features = categorical_features
        self.missing = missing
        self.extrapolation = extrapolation
        self.uncertainty = uncertainty
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.max_memory = max_memory
        self.warm_start = warm_start
        self.random_state = random_state

    losses = ("squared", "huber", "poisson")

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[Array, Array]:
        """Return the ends of intervals for new observations.

        The intervals are those of `predict` with its standard deviations: of Student's distribution
        with as many degrees of freedom as rows minus the effective number of parameters, so that
        they also hold for few rows. For counts (``loss="poisson"``) the ends are counts.

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
        return interval(self.fitted_, mean, std, level)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
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
        source = source_to_score(self, X, y, sample_weight, "targets")
        if source is not None:
            of = d2_of if self.loss == "poisson" else r2_of
            return of(self.predict_chunks(source))
        if self.loss == "poisson":
            mean = to_numpy(self.predict(X))
            weight = None if sample_weight is None else as_array(sample_weight)
            return d2_of([(Chunk(mean, as_array(y), weight), mean, None)])
        return float(super().score(X, y, sample_weight))
