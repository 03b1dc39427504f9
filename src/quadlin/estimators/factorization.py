"""The factorization machine: a second order linear model without squares."""

from collections.abc import Sequence
from typing import Any

from quadlin.data.names import Name
from quadlin.estimators.regressor import SecondOrderRegressor


class FactorizationMachineRegressor(SecondOrderRegressor):
    r"""Factorization machine: a second order linear model without squares.

    .. math:: y = b + x^\top w + \sum_{i < j} 2 \langle v_i, v_j \rangle_s\, x_i x_j + \text{noise},
              \qquad \langle v_i, v_j \rangle_s = \sum_a s_a v_{ia} v_{ja}

    The same as :class:`SecondOrderRegressor` with ``diagonal="zero"``. The signs s are free, where
    a classical factorization machine has only positive ones (``psd=True``) and cannot express an
    interaction matrix with negative eigenvalues.

    Parameters
    ----------
    rank, alpha, loss, fields, fit_linear, fit_intercept, psd, whiten, polish, step, max_iter, \
    tol, batch_size, uncertainty, warm_start, random_state
        As for :class:`SecondOrderRegressor`.

    Notes
    -----
    Cost and memory as for :class:`SecondOrderRegressor`.

    Examples
    --------
    >>> from quadlin import FactorizationMachineRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(4000, 12, rank=2, distribution="bernoulli", parameter=0.3,
    ...                          n_test=100, random_state=0)
    >>> machine = FactorizationMachineRegressor(rank=2, random_state=0).fit(data.X, data.y)
    >>> round(machine.score(data.X_test, data.y_test), 6)
    1.0
    """

    diagonal = "zero"  # not a parameter

    def __init__(
        self,
        rank: int | str = "auto",
        *,
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
