"""The factorization machine: a second order linear model without squares."""

from collections.abc import Sequence
from typing import Any

from quadlin.data.columns.names import Name
from quadlin.estimators.machines.by_posterior import ByPosterior, with_levels
from quadlin.estimators.machines.field_fit import fit_fields
from quadlin.estimators.machines.recommending import Recommending
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import Job
from quadlin.estimators.regression.regressor import SecondOrderRegressor


class FactorizationMachineRegressor(ByPosterior, Recommending, SecondOrderRegressor):
    r"""Factorization machine: a second order linear model without squares.

    .. math:: y = b + x^\top w + \sum_{i < j} 2 \langle v_i, v_j \rangle_s\, x_i x_j + \text{noise},
              \qquad \langle v_i, v_j \rangle_s = \sum_a s_a v_{ia} v_{ja}

    The same as :class:`SecondOrderRegressor` with ``diagonal="zero"``. The signs s are free,
    whereas a classical factorization machine has only positive ones (``psd=True``) and cannot
    represent an interaction matrix with negative eigenvalues.

    Parameters
    ----------
    rank, alpha, rarity, loss, fields, categorical_features, missing, pairs, \
    hierarchy, fit_linear, fit_intercept, psd, whiten, polish, step, max_iter, tol, \
    batch_size, max_memory, extrapolation, uncertainty, warm_start, random_state
        As for :class:`SecondOrderRegressor`, with no squares among the pairs; for rows of one-hot
        fields see the notes.
    draws : int or None, default=None
        With a number, `fit` draws that many machines from their posterior by Gibbs sampling, and
        `predict` returns the mean of their predictions; ``predict(X, return_std=True)`` and
        `noise_` use them too. Draws give intervals and slightly better predictions. They need rows
        of one-hot fields, as in the notes, and ``alpha="auto"``. ``coef_``, ``components_`` and
        ``interactions_`` are those of the variational fit that the draws start from.

    Attributes
    ----------
    noise_ : float
        The standard deviation of the noise, after a fit by the posterior (see the notes), with
        draws, or with ``uncertainty=True``.

    Notes
    -----
    Cost and memory are as for :class:`SecondOrderRegressor`, with one exception. Rows with at least
    two one-hot fields, in which every other column depends on the level of one of them (ratings by
    user and item, with the age of the user and the genres of the item), are fitted by variational
    inference if ``alpha="auto"`` and they are in memory, or a Source that takes up to 1 GB there.
    Each level has a normal distribution, and the means and precisions of fields and the noise are
    learned. The model has products of columns of different fields only, since a level can represent
    all products of its own columns. ``rank="auto"`` starts with 8 components and drops those that
    the rows do not need. There is no search for pairs; if you ask for pairs, the rows are fitted by
    least squares. An unseen level is treated as the mean of its field. If there are columns beside
    the fields, M has up to ``rank`` components per field. Four sweeps over the fields count as one
    step of ``max_iter``. `history_` then has the mean squared error after each sweep, which may
    rise as levels are shrunk: sweeps raise a bound of the evidence. Such a fit does not start from
    an earlier one (``warm_start``), and `partial_fit` cannot go on from it: fit old and new rows
    together. With ``loss="huber"`` the posterior is that of rows with weights by their residuals,
    and rows more than five standard deviations off are left out. With ``uncertainty=True`` (and
    squared errors) the model is the same; its standard errors are those of least squares, scaled so
    that the mean variance of predictions is that of 50 draws.

    A stream of such rows (`partial_fit` from the first row on) keeps ten rows for each parameter of
    the levels so far, or `batch_size` if that is a number (the first time at least two per
    parameter), and learns them together with the sums of all earlier rows, in O(k²d) memory. Levels
    need not be named beforehand: they are learned when they come. Columns that follow no field
    have slopes as in `fit`; where these are not enough, or with ``max_memory="minimal"``, the
    stream is left to least squares, with a warning.

    A sweep takes O(p·k² + l·k³) time for l levels and p pairs of levels that occur together, or
    O(n·k²) per field if there are more than two groups of columns; memory beside X is O(nnz(X) +
    l·k²). Draws take 30 more sweeps in all and one per draw, and 8·(k + 1)·(d + fields) bytes per
    draw, at most 256 MB: beyond that, only every second draw is kept, or every third, and so on.

    Rows of more than two such groups (contexts: users, items, hours, devices), and rows of more
    than 500 columns with numbers or lists of labels beside two groups, are fitted by 30 sampled and
    then 15 variational sweeps over all columns, in O(nnz(X)·k² + d·k³) time each. Each field and
    each number has a prior of its own, other columns share one, and every column has factors; draws
    go on from the sampler. A sweep is one step of ``max_iter``. With ``uncertainty=True`` or
    ``loss="huber"`` such rows are fitted as those of two groups, which takes far longer.

    Examples
    --------
    >>> from quadlin import FactorizationMachineRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(4000, 12, rank=2, distribution="bernoulli", parameter=0.3,
    ...                          n_test=100, random_state=0)
    >>> machine = FactorizationMachineRegressor(rank=2, random_state=0).fit(data.X, data.y)
    >>> round(machine.score(data.X_test, data.y_test), 6)
    1.0

    Ratings of films by users, as a frame; predictions have standard deviations.

    >>> import numpy as np
    >>> import pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> user, film = rng.integers(40, size=3000), rng.integers(30, size=3000)
    >>> taste, kind = rng.standard_normal((40, 2)), rng.standard_normal((30, 2))
    >>> y = np.sum(taste[user] * kind[film], axis=1) + 0.5 * rng.standard_normal(3000)
    >>> ratings = pd.DataFrame({"user": user.astype(str), "film": film.astype(str)})
    >>> machine = FactorizationMachineRegressor(draws=100, random_state=0).fit(ratings, y)
    >>> machine.rank_, bool(abs(machine.noise_ - 0.5) < 0.05)
    (2, True)
    >>> _, std = machine.predict(ratings[:1], return_std=True)
    >>> bool(std[0] < 0.6)
    True
    """

    def __init__(
        self,
        rank: int | str = "auto",
        *,
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
        draws: int | None = None,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
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
        self.draws = draws
        self.warm_start = warm_start
        self.random_state = random_state

    def _fitted_rows(self, job: Job) -> Fitted:
        """Fit rows of one-hot fields by their posterior where that is possible."""
        fields = job.task.make_units.fields
        fitted = self._fitted_by_posterior(fields, lambda: fit_fields(job, self.draws, loose=True))
        return super()._fitted_rows(job) if fitted is None else fitted

    def _with_levels(self, fitted: Fitted, X: Any) -> tuple[Fitted, Any]:
        return with_levels(fitted, X)
