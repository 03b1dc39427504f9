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

    from a start by moment estimates: no learning rate, and the objective never rises. Features are
    standardised internally, and the penalty is on standardised ones; whatever is fitted is
    reported in the user's units.

    Parameters
    ----------
    rank : int or "auto", default=5
        Rank k of the quadratic part. A rank above the number of features means no restriction, 0
        a linear model. "auto" chooses it in `fit`: by the eigenvalues that stand out of the noise,
        confirmed on rows held out, at the cost of two or three fits; advised, like
        :class:`SecondOrderRegressorCV`, where the rank is not known.
    diagonal : {"auto", "free", "zero"} or array of bool, default="auto"
        Whether the squares :math:`x_j^2` are modelled: "auto" wherever they can be told from
        :math:`x_j`, which they cannot for a feature with two values (unless ``fit_linear=False``);
        "free" everywhere; "zero" nowhere (factorization machine); or one boolean a feature.
    alpha : float or (float, float), default=0.0
        Ridge penalty, for w and M together or one each. It weighs the coefficients of
        standardised features, and of their products, against a sum over rows, as in `Ridge`;
        those of a one-hot column by 1/√(standard deviation) more, so that rare levels shrink more.
        A stream is penalised in its first batch, which in the end comes to the same.
    loss : {"squared", "huber"}, default="squared"
        "huber" is for gross errors in y: residuals beyond 1.345 standard deviations count
        linearly, not quadratically. It takes a few fits. Streams are fitted by squares.
    fields : "auto", None or list of lists of features, default="auto"
        Groups of 0/1 columns of which exactly one is 1 in each row (one-hot). Products within a
        group are always zero, so M has no entries there. "auto" finds them (in numpy and sparse
        rows). Text and categorical columns of a frame become such groups by themselves. Without a
        penalty, coefficients of the levels and of their products are told from their mean over
        the rows, which a level that was never seen counts as.
    fit_linear : bool, default=True
        Whether w is fitted, else it is zero.
    fit_intercept : bool, default=True
        Whether b is fitted, else it is zero.
    psd : bool, default=False
        Whether the low-rank part is held positive semi-definite.
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
        Most steps of `fit`; a Gauss–Newton step may take some twelve passes over the rows, one of
        the moment estimation sequence takes two.
    tol : float, default=1e-6
        `fit` stops when a step promises to lower the objective by less than this share of it.
    batch_size : int or "auto", default="auto"
        Rows that `partial_fit` gathers for a step. "auto" takes ten a parameter, at most 2²⁵
        entries of X, and doubles the first batch while noise hides the quadratic part in it.
    uncertainty : bool, default=False
        Whether `fit` also finds how sure it is: `noise_`, `coef_std_`, `intercept_std_`,
        `interaction_std` and `predict(X, return_std=True)`. It takes three passes and a matrix of
        the size of the parameters up to 1,500 of them, some 30 passes and 400·k·d numbers beyond.
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
    has_diagonal_ : array of bool (n_features,)
        Where M has a diagonal: elsewhere the diagonal of the low-rank part is left out of M.
    interactions_ : Interactions
        A view of M: ``interactions_["a", "b"]`` and ``interactions_.row("a")`` are entries M_ij,
        as are `interaction` and `interaction_std`; ``interactions_.top(10)`` lists the strongest
        by the coefficient that x_i·x_j has in y, which is 2 M_ij.
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
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    Time: O(nnz(X)·k) a pass; some 50 passes with 30 rows a parameter, 80 with four, 150 with two.
    Memory beside X: O((k + 8)d), a block of rows, and d×d with full whitening; X is never copied
    (but once where it is CSC, or CSR that is not sorted or has several entries in one place).
    float32 stays float32.

    Examples
    --------
    >>> from quadlin import SecondOrderRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(3000, 10, rank=2, n_test=100, random_state=0)
    >>> model = SecondOrderRegressor(rank=2, random_state=0).fit(data.X, data.y)
    >>> round(model.score(data.X_test, data.y_test), 6)
    1.0
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
        uncertainty: bool = False,
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
        self.uncertainty = uncertainty
        self.warm_start = warm_start
        self.random_state = random_state
