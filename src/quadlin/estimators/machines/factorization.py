"""The factorization machine: a second order linear model without squares."""

from collections.abc import Sequence
from typing import Any

from quadlin.data.names import Categories, Name
from quadlin.estimators.fitted import Fitted, Job
from quadlin.estimators.machines.by_posterior import ByPosterior, with_levels
from quadlin.estimators.machines.field_fit import fit_fields
from quadlin.estimators.machines.recommending import Recommending
from quadlin.estimators.regressor import SecondOrderRegressor


class FactorizationMachineRegressor(ByPosterior, Recommending, SecondOrderRegressor):
    r"""Factorization machine: a second order linear model without squares.

    .. math:: y = b + x^\top w + \sum_{i < j} 2 \langle v_i, v_j \rangle_s\, x_i x_j + \text{noise},
              \qquad \langle v_i, v_j \rangle_s = \sum_a s_a v_{ia} v_{ja}

    The same as :class:`SecondOrderRegressor` with ``squares=False``. The signs s are free,
    whereas a classical factorization machine has only positive ones and cannot
    represent an interaction matrix with negative eigenvalues.

    Parameters
    ----------
    rank, alpha, loss, missing, pairs, \
    fit_intercept, solver, max_iter, tol, max_memory, extrapolation, uncertainty, warm_start, \
    random_state
        As for :class:`SecondOrderRegressor`, with no squares among the pairs; for rows of one-hot
        fields see the notes.
    categorical_features : "from_dtype", None or list, default="from_dtype"
        Columns of levels: text and categorical ones of a frame, integers other than 0 and 1 (ids of
        users, hours, years), and those listed by name, position or booleans. A list in the list is
        a group of one-hot columns. None takes all columns as numbers; with a list, integers that it
        does not name are numbers.
    draws : int or None, default=None
        With a number, `fit` draws that many models from the posterior by Gibbs sampling, and
        `predict` returns the mean of their predictions; ``predict(X, return_std=True)`` and
        `noise_` use them too. Draws give intervals and slightly better predictions. They need rows
        of one-hot fields, as in the notes, and ``alpha="auto"``. ``coef_``, ``components_`` and
        ``interactions_`` describe the fit without draws.

    Attributes
    ----------
    coef_, intercept_, components_, eigenvalues_, rank_, alpha_, pairs_, interactions_, \
    moments_, target_moments_, history_, status_, n_iter_, n_samples_seen_, encoder_, fill_, fitted_
        As for :class:`SecondOrderRegressor`.
    noise_ : float
        The standard deviation of the noise, after a fit by the posterior (see the notes), with
        draws, or with ``uncertainty=True``.

    Notes
    -----
    Without one-hot fields, cost and memory are those of :class:`SecondOrderRegressor`. Rows with at
    least two one-hot fields (users, items, hours, devices), perhaps with numbers and lists of
    labels as well, are fitted by their posterior if ``alpha="auto"`` and they are in memory, or a
    Source that takes up to 1 GB there: up to 60 sampled and then up to 40 variational sweeps over
    all columns (24 and 16 for 100,000 rows and more), in O(nnz(X)·k² + d·k³) time each, with
    O(n·k² + d·k²) memory. Every column has a coefficient and a factor with a normal prior; each
    field and each number has a prior of its own and all other columns share one. Means and
    precisions of the priors and the noise are learned. ``rank="auto"`` starts with 8 components and
    drops those that are not needed. There is no
    search for pairs; if you ask for pairs, the rows are fitted by least squares. An unseen level is
    treated as the mean of its field.

    Two sweeps count as one step of ``max_iter``. `history_` has the mean squared error after each
    sweep, which may rise as levels are shrunk. With ``warm_start``, 10 sampled sweeps go on from
    the last fit to the same columns. `partial_fit` goes on from a fit without draws, with the
    posterior of its rows as the prior of new ones; a model file does not keep it. With
    ``loss="huber"`` rows have weights by their residuals, and those more than five standard
    deviations off are left out. With ``uncertainty=True`` (and squared errors) the model is the
    same; its standard errors are those of 100 draws. Draws go on from the sampled sweeps; each
    takes a sweep and 8·(k + 1)·d bytes, at most 256 MB: beyond that, only every second draw is
    kept, or every third, and so on.

    A stream of such rows (`partial_fit` from the first row on) keeps its first rows, about a
    million or what `max_memory` allows, and learns all of them again as their number grows by a
    tenth. Later rows, and those in between, are learned with the posterior of earlier ones as their
    prior, in time proportional to their number and O(k²d) memory. Levels need not be named
    beforehand: they are learned when they come. With ``max_memory="minimal"`` the stream is left to
    least squares, with a warning.

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
        pairs: str | int | Sequence[tuple[Name, Name]] | None = "auto",
        loss: str = "squared",
        categorical_features: Categories = "from_dtype",
        missing: str = "error",
        extrapolation: str = "clip",
        uncertainty: bool | str = False,
        draws: int | None = None,
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
        self.loss = loss
        self.categorical_features = categorical_features
        self.missing = missing
        self.extrapolation = extrapolation
        self.uncertainty = uncertainty
        self.draws = draws
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.max_memory = max_memory
        self.warm_start = warm_start
        self.random_state = random_state

    def _fitted_rows(self, job: Job) -> Fitted:
        """Fit rows of one-hot fields by their posterior where that is possible."""
        fields, before = job.task.make_units.fields, self._learned_before(job)
        fitted = self._fitted_by_posterior(
            fields, lambda: fit_fields(job, self.draws, before=before)
        )
        return super()._fitted_rows(job) if fitted is None else fitted

    def _with_levels(self, fitted: Fitted, X: Any) -> tuple[Fitted, Any]:
        return with_levels(fitted, X)
