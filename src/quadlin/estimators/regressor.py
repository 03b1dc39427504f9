"""The regressor: its parameters, attributes and cost; what it does is in `base`."""

from collections.abc import Sequence
from typing import Any

from quadlin.data.names import Name
from quadlin.estimators.base import SecondOrderModel


class SecondOrderRegressor(SecondOrderModel):
    r"""Second order linear model with a low-rank, signed quadratic part.

    .. math:: y = b + x^\top w + x^\top M x + \text{noise},
              \qquad M = M^\top,\ \mathrm{rank}\,M \le k

    fitted by least squares, optionally penalised,

    .. math:: \min\; \sum_i \omega_i (f(x_i) - y_i)^2 + \alpha_1 |w|^2 + 2 \alpha_2 \|M\|_F^2

    from a start by moment estimates, without a learning rate; the objective never rises. By default
    the rank and the penalties are learned from the rows. Features are standardised internally and
    the penalty applies to standardised features; all results are in the user's units.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Rank k of the quadratic part: 0 is a linear model, and a rank above the number of features
        means no restriction. "auto" takes the rank of largest evidence (marginal likelihood), from
        a linear model to all products of two features. With more than 1,500 parameters, or with
        an explicit `alpha`, it compares ranks on a fifth of the rows instead. A stream chooses
        its rank in its first batch.
    diagonal : {"auto", "free", "zero"} or array of bool, default="auto"
        Whether the squares :math:`x_j^2` are modelled: "auto" wherever they can be told from
        :math:`x_j`, which they cannot for a feature with two values (unless ``fit_linear=False``);
        "free" everywhere; "zero" nowhere (factorization machine); or one boolean per feature.
    alpha : "auto", float or (float, float), default="auto"
        Ridge penalty, one number for w and M or one for each. It weighs the coefficients of
        standardised features, and of their products, against a sum over rows, as in `Ridge`;
        those of a one-hot column by 1/√(standard deviation) more, so that rare levels shrink more.
        "auto" takes the penalties of largest evidence, which are 0 without noise; see `alpha_`.
        With ``polish=False`` there is no penalty. A stream is penalised in its first batch.
    loss : {"squared", "huber"}, default="squared"
        "huber" is for gross errors in y: residuals beyond 1.345 standard deviations count
        linearly, not quadratically. It takes a few fits. Streams minimise squared errors.
    fields : "auto", None or list of lists of features, default="auto"
        Groups of 0/1 columns of which exactly one is 1 in each row (one-hot). Products within a
        group are always zero, so M has no entries there. "auto" finds them (in numpy and sparse
        rows). Text and categorical columns of a frame become such groups automatically. The
        coefficients of levels and of their products are differences from their mean over the rows,
        and a level that was never seen is treated as that mean.
    fit_linear : bool, default=True
        Whether to fit w; otherwise it is zero.
    fit_intercept : bool, default=True
        Whether to fit b; otherwise it is zero.
    psd : bool, default=False
        Whether to keep the low-rank part positive semi-definite.
    whiten : {"auto", "full", "lowrank", "none"}, default="auto"
        Whether correlated features are decorrelated inside `fit`: "full" by a d×d matrix,
        "lowrank" by O(50 d) numbers, "auto" if one pass of random probes finds any correlation
        ("full" up to 2,000 features). It changes the path, not the optimum.
    polish : bool, default=True
        Whether `fit` goes on to the least-squares optimum by Gauss–Newton. False is the moment
        estimation sequence alone, for many rows of independent features.
    step : {"guarded", "plain"}, default="guarded"
        The step with ``polish=False``: "guarded" goes to the least-squares best along each step
        and never raises the training loss; "plain" is the paper's step of full length, which
        needs many rows and independent features and diverges otherwise.
    max_iter : int, default=50
        Maximum number of steps of `fit`. A Gauss–Newton step takes about twelve passes over the
        rows at most, a step of the moment estimation sequence takes two.
    tol : float, default=1e-6
        `fit` stops when a step would lower the objective by less than this fraction of it.
    batch_size : int or "auto", default="auto"
        Number of rows that `partial_fit` gathers for a step; the first batch has at least two rows
        per parameter. "auto" takes ten per parameter, at most 2²⁵ entries of X, and doubles the
        first batch while noise hides the quadratic part in it.
    extrapolation : {"clip", "free"}, default="clip"
        What `predict` does with rows far outside the training rows, where squares and products
        grow without bound: "clip" holds each feature at one training range beyond its training
        range, with a warning; "free" takes rows as they are. Nothing else is changed.
    uncertainty : bool or "robust", default=False
        Whether `fit` also finds how sure it is: `noise_`, `coef_std_`, `intercept_std_`,
        `interaction_std` and `predict(X, return_std=True)`. True takes the noise as equal in all
        rows; "robust" gives sandwich standard errors (HC3), which hold when it is not. They take
        three or four passes and a matrix of the size of the parameters up to 1,500 of them, some 30
        or 60 passes and 400·k·d numbers beyond. See Notes for what intervals promise.
    warm_start : bool, default=False
        Whether `fit` starts from the model of the last fit.
    random_state : int, RandomState or None, default=None
        Seed of the random matrix that the first estimate starts from.

    Attributes
    ----------
    coef_ : array (n_features,)
        w. Text columns count by their levels: ``interactions_.names`` names the entries.
    intercept_ : float
        b.
    components_ : array (rank, n_features)
        Orthonormal rows.
    eigenvalues_ : array (rank,)
        Signed, by falling size. The low-rank part of M is
        ``components_.T @ diag(eigenvalues_) @ components_``; its eigenvalues are those of M where
        every feature has a diagonal.
    rank_ : int
        The rank fitted, at most the number of features.
    alpha_ : (float, float)
        The penalties of w and of M.
    has_diagonal_ : array of bool (n_features,)
        Where M has a diagonal: elsewhere the diagonal of the low-rank part is left out of M.
    interactions_ : Interactions
        A view of M. ``interactions_["a", "b"]``, ``interactions_.row("a")`` and
        ``interactions_.top(10)`` speak of the coefficient of x_i·x_j in y, as do `interaction` and
        `interaction_std`: it is 2 M_ij, or M_ii for a square. ``interactions_.matrix()`` is M.
    moments_ : Moments
        Mean, variance, skewness and kurtosis of the features.
    target_moments_ : Moments
        The same of the target.
    history_ : tuple of Record
        The objective after each step (mean squared error plus penalty; in a stream the error on
        each new batch) and the passes taken so far.
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
        Of the text columns: ``open_source(..., encoder=model.encoder_)`` reads others like them.
    fill_ : dict or None
        What stood for missing numbers, by column, where the rows came from
        ``open_source(..., missing="mean")``. `predict` fills nothing by itself:
        ``predict(open_source(rows, encoder=model.encoder_, fill=model.fill_))`` does.
    fitted_ : Fitted
        Everything above in one immutable object, for tools such as `save`.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    Intervals of ±1.96 standard errors cover 95% where the model holds, the rank is given and the
    quadratic part stands out of the noise. They do not allow for a rank that was chosen on the same
    rows, or that exceeds the true one. With a penalty they are those of the posterior: right with
    ``alpha="auto"``, and too short with a given penalty that shrinks the true coefficients a lot.
    Intervals for new observations take the noise as equal in all rows, with "robust" too.

    Time: O(nnz(X)·k) per pass. With given rank and penalties a fit takes about 50 passes at 30 rows
    per parameter, 80 at four, 150 at two. Choosing them takes a few fits to a loose tolerance, and
    O(p³) for each rank that is tried, p ≤ 1,500 the number of its parameters.
    Memory beside X: O((k + 8)d), a block of rows, p×p while rank and penalties are chosen, and d×d
    with full whitening. X is copied only if it is CSC, or CSR that is not sorted or has duplicate
    entries. float32 stays float32.

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
    """

    def __init__(
        self,
        rank: int | str = "auto",
        *,
        diagonal: str | Sequence[bool] = "auto",
        alpha: float | tuple[float, float] | str = "auto",
        loss: str = "squared",
        fields: str | Sequence[Sequence[Name]] | None = "auto",
        fit_linear: bool = True,
        fit_intercept: bool = True,
        psd: bool = False,
        whiten: str = "auto",
        polish: bool = True,
        step: str = "guarded",
        max_iter: int = 50,
        tol: float = 1e-6,
        batch_size: int | str = "auto",
        extrapolation: str = "clip",
        uncertainty: bool | str = False,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.diagonal = diagonal
        self.alpha = alpha
        self.loss = loss
        self.fields = fields
        self.fit_linear = fit_linear
        self.fit_intercept = fit_intercept
        self.psd = psd
        self.whiten = whiten
        self.polish = polish
        self.step = step
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.extrapolation = extrapolation
        self.uncertainty = uncertainty
        self.warm_start = warm_start
        self.random_state = random_state
