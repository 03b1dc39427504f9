"""The regressor: its parameters, attributes and cost; most of what it does is in `base`.

Long because its docstring is the reference of every parameter and attribute, which the other
estimators refer to.
"""

from collections.abc import Sequence
from typing import Any

from sklearn.base import RegressorMixin

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.data.columns.names import Name
from quadlin.estimators.regression.base import SecondOrderModel
from quadlin.estimators.regression.predicting import d2_of, interval, r2_of, source_to_score
from quadlin.estimators.regression.streaming import as_array


class SecondOrderRegressor(RegressorMixin, SecondOrderModel):
    r"""Second order linear model with a low-rank, signed quadratic part, and a few pairs beside it.

    .. math:: y = b + x^\top w + x^\top M x + \text{noise},
              \qquad M = M^\top = L + S,\ \mathrm{rank}\,L \le k,\ S \text{ of few entries}

    fitted by least squares, optionally penalised,

    .. math:: \min\; \sum_i \omega_i (f(x_i) - y_i)^2 + \alpha_1 |w|^2 + 2 \alpha_2 \|L\|_F^2

    (and S like L if `alpha` is a number; learned penalties leave S free). The fit starts from
    moment estimates and needs no learning rate; the objective never rises. By default the rank, the
    penalties and the pairs are learned from the rows. Features are standardised internally and the
    penalty applies to standardised features; all results are in the user's units.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Rank k of the low-rank part: 0 is a linear model (plus pairs, if `pairs` asks for them), and
        a rank above the number of features means no restriction. "auto" chooses the rank of largest
        evidence (marginal likelihood), from a linear model to all products of two features. With
        more than 1,500 parameters, or with an explicit `alpha`, it compares ranks on a fifth of the
        rows instead (with at most 5,000 rows on each fifth in turn). A stream chooses its rank in
        its first batch.
    diagonal : {"auto", "free", "zero"} or array of bool, default="auto"
        Whether the squares :math:`x_j^2` are modelled: "auto" wherever they can be distinguished
        from :math:`x_j`, which is impossible for a feature with two values (unless
        ``fit_linear=False``); "free" everywhere; "zero" nowhere (factorization machine); or one
        boolean per feature. In sparse rows in memory with more than 1,500 columns and fewer rows
        than parameters, "auto" models no squares, and the fit takes a tenth of the time; see
        `has_diagonal_`.
    alpha : "auto", float or (float, float), default="auto"
        Ridge penalty, one number for both w and M or one for each. It applies to the coefficients
        of standardised features and of their products, relative to a sum over rows, as in `Ridge`.
        The penalty of a one-hot column of standard deviation s is multiplied by 1/s, and that of
        any other two-valued column with s < 0.1 by 0.1/s, so that rare levels shrink more. "auto"
        chooses the penalties of largest evidence, which are 0 without noise; see `alpha_`. With
        ``polish=False`` there is no penalty. A stream is penalised in its first batch.
    rarity : "auto", None or float from 0 to 1, default="auto"
        How much more strongly rare columns are shrunk than common ones: those with the same value
        in most rows, such as the words of a text. With a number p the penalty of a column outside
        fields is proportional to v^(−2p), where v = 1/√(kurtosis + 3) is the standard deviation of
        a 0/1 column, and about that of rare counts. The mean of its inverse is 1, so that `alpha`
        keeps its size. 0 is the ridge on standardised columns, 1 about that on raw ones, except
        that common words count alike. None applies the fixed rule described under `alpha`. "auto"
        chooses None, 0.5 or 1 by the evidence of ridge regression on up to 800 rows if
        ``alpha="auto"`` (except with ``loss="huber"`` or ``max_memory="minimal"``), and is None if
        `alpha` is given; see `rarity_`.
    loss : {"squared", "huber", "poisson"}, default="squared"
        "huber" is for gross errors in y: residuals beyond 1.345 standard deviations count linearly,
        not quadratically. It takes as long as a few fits. Streams minimise squared errors.
        "poisson" is for counts and other targets ≥ 0: the model is the logarithm of their mean, log
        E y = b + xᵀw + xᵀMx, fitted by Poisson's likelihood; there are no pairs and no streams.
        `predict` returns means; everything else is on the scale of logarithms.
    fields : "auto", None or list of lists of features, default="auto"
        Groups of 0/1 columns of which exactly one is 1 in each row (one-hot). Products within a
        group are always zero, so M has no entries there. "auto" detects such groups (in numpy and
        sparse rows). Text and categorical columns of a frame become such groups automatically. The
        coefficients of levels and of their products are differences from their mean over the rows,
        and a level that was never seen is treated as that mean.
    categorical_features : "from_dtype", None, list of str or int, or mask, default="from_dtype"
        Columns whose values are categories, such as ids and codes: each value becomes a level.
        "from_dtype" takes the text and categorical columns of a frame; names, positions or one
        boolean per column add others. None refuses text. For a Source, use
        ``open_source(..., categorical_features=[...])``.
    missing : {"error", "mean"}, default="error"
        Whether missing values of X raise an error or are replaced: numbers by the mean of the
        fitted rows (of the first batch of a stream), in `fit` and in `predict`; values of
        categorical columns by the level "missing". See `fill_`. With `uncertainty`, the noise is
        estimated from complete rows if there are at least 50, and the standard deviations of
        `predict(X, return_std=True)` include the possible effect of missing numbers, whose columns
        are assumed to be independent.
    pairs : "auto", int, list of pairs of features or None, default="auto"
        A few products beside the low-rank part, M = L + S: S has an entry for each pair, and L has
        rank k. A number searches for at most that many pairs; a list, such as
        ``[("age", "income"), (3, 7), ("age", "age")]``, fits exactly these, where a text column
        stands for all its levels. "auto" searches if ``rank="auto"``, or if ``rank=0`` and
        ``alpha="auto"``, among at most 1,000 features, and chooses what has the largest evidence:
        more rank, pairs (at most 32), both or neither. Not with ``psd=True``, ``polish=False``, or
        without w or b. A stream searches its first batch. See `pairs_`.
    hierarchy : None, "weak" or "strong", default=None
        Whether the search only admits pairs in which one feature ("weak") or both features
        ("strong") have a linear effect, |t| > 2 in the linear model.
    fit_linear : bool, default=True
        Whether to fit w; otherwise it is zero.
    fit_intercept : bool, default=True
        Whether to fit b; otherwise it is zero.
    psd : bool, default=False
        Whether to keep the low-rank part positive semi-definite.
    whiten : {"auto", "full", "lowrank", "none"}, default="auto"
        Whether correlated features are decorrelated inside `fit`: "full" by a d×d matrix, "lowrank"
        by O(50 d) numbers, "auto" if random probes in one pass detect correlation ("full" up to
        2,000 features). It changes the path, not the optimum.
    polish : bool, default=True
        Whether `fit` continues to the least-squares optimum by Gauss–Newton steps. False is the
        moment estimation sequence alone, for many rows of independent features.
    step : {"guarded", "plain"}, default="guarded"
        The step with ``polish=False``: "guarded" takes the step length of least squares and never
        raises the training loss; "plain" is the paper's step of full length, which diverges unless
        there are many rows and independent features.
    max_iter : int, default=50
        Maximum number of steps of `fit`. A Gauss–Newton step takes about twelve passes over the
        rows at most, a step of the moment estimation sequence takes two.
    tol : float, default=1e-6
        `fit` stops when a step would lower the objective by less than this fraction of it. With
        noise and more than 24 rows per parameter it also stops when the distance to the optimum is
        10⁴·`tol`, at most 1%, of the statistical error; with fewer rows, when steps are slow and
        the next one promises less than that. With rank 0, or all products, it comes closer:
        predictions are within this fraction of the optimum.
    batch_size : int or "auto", default="auto"
        Number of rows that `partial_fit` collects for a step; the first batch has at least two rows
        per parameter. "auto" takes ten per parameter, at most 2²⁵ entries of X, and doubles the
        first batch until its quadratic part stands out of the noise.
    max_memory : {"auto", "minimal"} or int, default="auto"
        How much memory `partial_fit` may use for a first batch of rows, which it fits before it
        continues in O(kd) memory. "auto" keeps that batch, at most 2²⁵ entries. "minimal" keeps no
        rows, so memory is O(kd) from the first row on; there is no penalty, ``rank="auto"`` means
        5, and a useful model takes some 50 rows per parameter more (150 if features are
        correlated). A number of bytes means "auto" with a first batch that fits into them, or
        "minimal" if that batch would be too short. A search for pairs and their regression take
        O(d²) numbers, or O((kd)²) beside a low-rank part; if these do not fit, there is no search.
    extrapolation : {"clip", "free"}, default="clip"
        What `predict` does with rows far outside the training rows, where squares and products grow
        without bound. "clip" limits each feature to one training range beyond its training range,
        with a warning; for a linear model, which grows only as fast as its features, to ten ranges
        (with ``loss="poisson"``, where means grow exponentially, to one, and means to twice the
        largest count). With fewer than 20 rows per parameter the limit is tighter, down to a tenth
        of a range, but only rows beyond one range raise the warning; `extrapolates` reports all of
        them. Predictions by squares or products are limited as well, to one range of the training
        targets beyond them for every four standard deviations in that range. "free" sets no limits.
        A model that fits many rows without any error has no limits in any case.
    uncertainty : bool or "robust", default=False
        Whether `fit` also computes standard errors: `noise_`, `coef_std_`, `intercept_std_`,
        `interaction_std` and `predict(X, return_std=True)`. True assumes equal noise in all rows;
        "robust" gives sandwich standard errors (HC3), which do not. Up to 1,500 parameters this
        takes three or four passes and a matrix of their size, and beyond some 30 or 60 passes and
        400·k·d numbers. For sparse rows that are fewer than the parameters, True takes five or
        six sweeps over the columns and k²d/2 numbers. See Notes for what intervals promise.
    warm_start : bool, default=False
        Whether `fit` starts from the model of the last fit.
    random_state : int, RandomState or None, default=None
        Seed of the random matrix that the first estimate starts from. With None it is fixed, so the
        same rows give the same model.

    Attributes
    ----------
    coef_ : array (n_features,)
        w. A text column has one entry per level: ``interactions_.names`` names the entries.
    intercept_ : float
        b.
    components_ : array (rank, n_features)
        Orthonormal rows.
    eigenvalues_ : array (rank,)
        Signed, in order of decreasing size. The low-rank part of M is
        ``components_.T @ diag(eigenvalues_) @ components_``; these are the eigenvalues of M if
        every feature has a diagonal entry and there are no pairs.
    rank_ : int
        The fitted rank of the low-rank part, at most the number of features.
    pairs_ : PairReport or None
        The pairs in the model, as :func:`quadlin.find_pairs` reports them: ``pairs_.pairs`` with
        the coefficient of each product, robust standard error, t, p, share of the variance of y and
        order of entry; ``pairs_.to_frame()``; printing it shows a table. Pairs were chosen on the
        same rows, so weak ones look stronger than they are. They are part of `interactions_` and of
        every prediction. None if there was no search for pairs. After `partial_fit` the pairs are
        those of the first batch of the stream, or of the `fit` that it continues, while their
        coefficients, standard errors (which assume equal noise in all rows) and tests come from all
        rows so far. A stream with more than 1,500 parameters of L, or one that continues a fit with
        more than 512 parameters, continues with M as a whole, and this attribute is None.
    alpha_ : (float, float)
        The penalties of w and of M.
    rarity_ : float or None
        The `rarity` that was given or chosen. To fit again with the same penalties, give it
        together with `alpha_`.
    has_diagonal_ : array of bool (n_features,)
        Which features have a diagonal entry in M; the others' entries are left out of the low-rank
        part.
    interactions_ : Interactions
        A view of M. ``interactions_["a", "b"]``, ``interactions_.row("a")`` and
        ``interactions_.top(10)`` give coefficients of x_i·x_j in y, as do `interaction` and
        `interaction_std`: 2 M_ij, or M_ii for a square. ``interactions_.matrix()`` is M.
    moments_ : Moments
        Mean, variance, skewness and kurtosis of the features.
    target_moments_ : Moments
        The same of the target.
    history_ : tuple of Record
        The objective after each step (mean squared error plus penalty; in a stream the error on
        each new batch) and the passes over the rows so far; passes over samples count as their
        share, rounded up.
    status_ : Status
        How the fit ended; its value is advice.
    n_iter_ : int
        Steps taken.
    n_samples_seen_ : int
        Rows learned from.
    noise_, intercept_std_ : float
        With ``uncertainty=True``: the standard deviation of the noise, the standard error of b.
    coef_std_ : array (n_features,)
        With ``uncertainty=True``: the standard errors of w.
    encoder_ : TableEncoder or None
        The encoder of the text columns: ``open_source(..., encoder=model.encoder_)`` reads new rows
        in the same way.
    fill_ : dict or None
        The replacements of missing numbers by column, with ``missing="mean"`` here or in
        ``open_source(..., missing="mean")``: the mean, or a number next to it if the mean is a
        round number that a value could equal. `predict` fills missing values only with
        ``missing="mean"`` here; those of a Source are filled by
        ``open_source(rows, encoder=model.encoder_, fill=model.fill_)``.
    fitted_ : Fitted
        Everything above in one immutable object, for tools such as `save`.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    Intervals (`summary`, `predict_interval`) are those of Student's t with as many degrees of
    freedom as rows minus the effective number of parameters, or ±1.96 standard errors with many
    rows. 95% intervals cover 95% if the model holds, the rank is given and the quadratic part
    stands out of the noise. They do not allow for a rank that was chosen on the same rows, or that
    exceeds the true one. With a penalty they are posterior intervals: correct with
    ``alpha="auto"`` unless rows are so few (fewer than about three per parameter) that the penalty
    is hardly known (90% for w then), and too short with a given penalty that shrinks the true
    coefficients a lot. Intervals for new observations assume equal noise in all rows, even with
    "robust".

    Time: O(nnz(X)·k) per pass. With given rank and penalties a fit takes about 12 passes at 30 rows
    per parameter (most steps use a sample), 70 at four and 170 at two; about 6 with at most 25
    features. Choosing them takes a few fits to a loose tolerance, and O(p³) for each rank tried,
    with p ≤ 1,500 the number of its parameters; with few features it takes one pass. A search for
    pairs takes eight passes if nothing interacts, one of them O(n·d²), and two of O(n·d²) for each
    round of pairs; if pairs explain everything, no rank is tried, which saves most of the time.
    Memory beside X: O((k + 8)d), a block of rows, p×p while rank and penalties are chosen, and d×d
    with full whitening or a search for pairs. X is copied only if it is CSC, or CSR that is
    unsorted or has duplicate entries. float32 stays float32.

    Examples
    --------
    >>> from quadlin import SecondOrderRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(3000, 10, rank=2, n_test=100, random_state=0)
    >>> model = SecondOrderRegressor(random_state=0).fit(data.X, data.y)
    >>> round(model.score(data.X_test, data.y_test), 6), model.rank_, model.alpha_
    (1.0, 2, (0.0, 0.0))
    >>> sorted(model.eigenvalues_.round(6).tolist())
    [-1.0, 1.0]

    Two products of features are a matrix of rank four, but two numbers as pairs.

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
        diagonal: str | Sequence[bool] = "auto",
        alpha: float | tuple[float, float] | str = "auto",
        rarity: float | str | None = "auto",
        loss: str = "squared",
        fields: str | Sequence[Sequence[Name]] | None = "auto",
        categorical_features: str | Sequence[Name] | Sequence[bool] | None = "from_dtype",
        missing: str = "error",
        pairs: str | int | Sequence[tuple[Name, Name]] | None = "auto",
        hierarchy: str | None = None,
        fit_linear: bool = True,
        fit_intercept: bool = True,
        psd: bool = False,
        whiten: str = "auto",
        polish: bool = True,
        step: str = "guarded",
        max_iter: int = 50,
        tol: float = 1e-6,
        batch_size: int | str = "auto",
        max_memory: int | str = "auto",
        extrapolation: str = "clip",
        uncertainty: bool | str = False,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.diagonal = diagonal
        self.alpha = alpha
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
        self.polish = polish
        self.step = step
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.max_memory = max_memory
        self.extrapolation = extrapolation
        self.uncertainty = uncertainty
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
