"""The classifier: its parameters, attributes and cost; what it does is in `logistic_model`."""

from collections.abc import Mapping, Sequence
from typing import Any

from quadlin.data.names import Categories, Name
from quadlin.estimators.labels.logistic_model import LogisticModel


class SecondOrderClassifier(LogisticModel):
    r"""Classifier whose log-odds are a second order linear model, of low rank and a few pairs.

    .. math:: \log \frac{P(y = 1 \mid x)}{P(y = 0 \mid x)} = b + x^\top w + x^\top M x,
              \qquad M = M^\top = L + S,\ \mathrm{rank}\,L \le k,\ S \text{ of few entries}

    fitted by maximum likelihood, optionally penalised,

    .. math:: \min\; 2 \sum_i \omega_i \log\left(1 + e^{\mp f(x_i)}\right)
              + \alpha_1 |w|^2 + 2 \alpha_2 \|L\|_F^2

    from a start by moment estimates, by Newton steps that never raise the objective. By default the
    rank, the penalties and the pairs are learned from the rows. Features are standardised
    internally and the penalty applies to standardised features; all results are in the user's
    units.

    With more than two classes there is one such model per class against all others, with its own
    rank, penalties and pairs, and a joint fit of scores of all classes, whose softmax gives the
    probabilities. With ``alpha="auto"`` and few rows, all scores share one prior and are linear or
    have all products; otherwise they have the ranks and pairs of the one-vs-rest models. With fewer
    than 30 rows per parameter, leave-one-out predictions decide between the scores and the
    one-vs-rest log-odds. Without a penalty there is no joint fit.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Rank k of the quadratic part: 0 is logistic regression, and a rank above the number of
        features means no restriction. "auto" chooses the low rank of largest evidence (marginal
        likelihood, by Laplace's approximation) if leave-one-out predictions confirm it; otherwise a
        linear model, all products, or a constant. With more than 1,500 parameters, or with an
        explicit `alpha`, ranks are compared by how well least-squares fits predict a held-out fifth
        of the rows, and held-out likelihoods confirm the rank and the size of its penalties.
    squares, categorical_features, missing, fit_intercept, extrapolation
        As for :class:`SecondOrderRegressor`.
    alpha : "auto", float or (float, float), default="auto"
        Ridge penalty, one number for w and M or one for each: 1/C of scikit-learn's
        `LogisticRegression` on standardised features. "auto" uses the posterior mean of log α if
        rows are few (by evidence and leave-one-out predictions), otherwise the penalties of largest
        evidence. The prior makes log-odds with a standard deviation above 10 unlikely, so separable
        rows have finite log-odds. With ``alpha=0`` the steps stop on such rows when the log-loss is
        0.5% of that of a constant, with status `separated` and a warning.
    pairs
        As for :class:`SecondOrderRegressor`, for the log-odds: the search uses the scores of the
        likelihood, and pairs are fitted by Newton steps. The coefficient of a standardised product
        has a prior of standard deviation 10 (or the penalty of L if `alpha` is given), so it is
        finite even if a product separates the rows.
    class_weight : dict, "balanced" or None, default=None
        Factors for the weights of the rows of each class; "balanced" gives all classes the same
        total weight. Probabilities then refer to the weighted rows.
    max_iter : int, default=50
        Maximum number of steps of `fit`.
    tol : float, default=1e-6
        `fit` stops when a step would lower the objective by less than this fraction of it. With
        rank 0, or all products, a few more steps bring log-odds that close to the optimum, too.
    max_memory : {"auto", "minimal"} or int, default="auto"
        As for :class:`SecondOrderRegressor`, per model: there is one for two classes, and otherwise
        one per class.
    uncertainty : bool or "robust", default=False
        Whether `fit` also computes standard errors: `coef_std_`, `intercept_std_`,
        `interaction_std`, ``decision_function(X, return_std=True)``, and z, p and intervals in
        `summary`. True uses the Fisher information, which is correct if the model is; "robust"
        gives sandwich standard errors. Cost as for :class:`SecondOrderRegressor`.
    warm_start : bool, default=False
        Whether `fit` starts from the model of the last fit; only with two classes and given rank
        and alpha.
    random_state : int, RandomState or None, default=None
        Seed of the random matrix that the first estimate starts from. With None it is fixed, so the
        same rows give the same model.

    Attributes
    ----------
    classes_ : array (n_classes,)
        The labels, sorted.
    coef_, intercept_, components_, eigenvalues_, rank_, alpha_, has_diagonal_, \
    interactions_, moments_, target_moments_, history_, n_iter_, n_samples_seen_, encoder_, \
    fill_, fitted_
        As for :class:`SecondOrderRegressor`, on the scale of the log-odds of `classes_[1]`. With
        more than two classes each class has its own: ``one_vs_rest(label).coef_``. The loss in
        `history_` is the log-loss plus half the penalty per row.
    n_passes_ : int
        Number of passes of `fit` over the rows, for all classes together.
    pairs_ : PairReport or None
        The pairs in the model. Their standard errors come from the information matrix and are not
        robust; shares and the path refer to the deviance, D² = 1 − deviance/deviance of the
        constant.
    status_ : Status
        How the fit ended; its value is advice.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    Time: O(nnz(X)·k) per pass and some 40 passes with given rank and penalties.
    Choosing them takes some hundred Newton steps of O(np²) on a dense copy of the rows (at most 32
    MB, p ≤ 700 parameters); otherwise a few fits to a loose tolerance, and O(p³) for each rank
    tried, p ≤ 1,500. With more than two classes this is done once per class, and once for the joint
    fit. `n_passes_` counts passes over X, not steps on the copy. Memory beside X: O((k + 8)d), a
    block of rows, two numbers per row (and one per class), the copy and p×p while rank and
    penalties are chosen, and d×d with full whitening.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin import SecondOrderClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((2000, 5))
    >>> log_odds = 2 * X[:, 0] * X[:, 1] + X[:, 2]
    >>> y = np.where(rng.uniform(size=2000) < 1 / (1 + np.exp(-log_odds)), "yes", "no")
    >>> model = SecondOrderClassifier(random_state=0).fit(X, y)
    >>> model.classes_.tolist(), model.rank_
    (['no', 'yes'], 0)
    >>> [(pair.first, pair.second) for pair in model.pairs_.pairs]
    [('x0', 'x1')]
    >>> model.interactions_.top(1)[0][:2]
    ('x0', 'x1')
    >>> model.predict_proba([[1.5, 1.5, 0, 0, 0], [1.5, -1.5, 0, 0, 0]]).round(1).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    def __init__(
        self,
        rank: int | str = "auto",
        *,
        alpha: float | tuple[float, float] | str = "auto",
        pairs: str | int | Sequence[tuple[Name, Name]] | None = "auto",
        squares: bool | str = "auto",
        class_weight: Mapping[Any, float] | str | None = None,
        categorical_features: Categories = "from_dtype",
        missing: str = "error",
        extrapolation: str = "clip",
        uncertainty: bool | str = False,
        fit_intercept: bool = True,
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
        self.class_weight = class_weight
        self.categorical_features = categorical_features
        self.missing = missing
        self.extrapolation = extrapolation
        self.uncertainty = uncertainty
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.max_memory = max_memory
        self.warm_start = warm_start
        self.random_state = random_state
