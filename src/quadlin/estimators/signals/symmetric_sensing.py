"""A symmetric matrix from measurements aᵀMa: a second order model without w."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.estimators.rows.parameters import is_auto
from quadlin.estimators.rows.validation import checked_weight
from quadlin.estimators.signals.sensing_rows import FEW, in_words_for_measurements
from quadlin.solve.lowrank.types import Status
from quadlin.solve.signals.measurements import distinct_rows
from quadlin.solve.signals.search import Majority, robust_factor, usual_limit

ROUNDS = 10  # of a fit whose rows are weighted anew
BETTER = 0.85  # of σ: what a higher rank must bring to find gross errors that another does not
ROUNDED = 1e-9  # of a typical y: a residual of a fit that is exact
EXACT = 1e-12  # of the mean square of y: a loss that is only rounding


def fitted_symmetric(
    sensing: Any, A: Any, y: np.ndarray, weight: Any
) -> tuple[SecondOrderRegressor, Status]:
    """Return the model, and how its fit and the search for its rank ended."""
    if sensing.loss == "huber":
        return fitted_robustly(sensing, A, y, weight)
    model = symmetric_model(sensing, sensing.rank)
    try:
        with in_words_for_measurements():
            model.fit(A, y, weight)
        if is_auto(sensing.rank):
            model = _lowest_exact(sensing, model, A, y, weight)
    except KeyboardInterrupt:
        if not hasattr(model, "fitted_"):
            raise
        return model, Status.interrupted
    return model, model.status_


@dataclass(frozen=True)
class RobustFit:
    """A model of some rank, and the noise and weights of its rows: gross errors have none."""

    model: SecondOrderRegressor
    sigma: float
    weight: np.ndarray


def fitted_robustly(
    sensing: Any, A: Any, y: np.ndarray, weight: Any
) -> tuple[SecondOrderRegressor, Status]:
    """Return the model of Huber's loss without gross errors, and how its fit ended.

    A rank that is not given is chosen, by least squares, from rows weighted by a fit of each rank:
    the one beyond which the noise of a majority of the rows hardly falls.
    """
    y = np.asarray(y, dtype=np.float64)
    given = checked_weight(weight, y)
    given = np.ones(len(y)) if given is None else given
    search = RobustSearch(sensing, A, y, given, distinct_rows(A, given))
    best: RobustFit | None = None
    try:
        if not is_auto(sensing.rank):
            best = search.fit(sensing.rank, None)
            return best.model, best.model.status_
        for rank in range(1, A.shape[1] + 1):
            if best is not None and search.n < FEW * unknowns(A.shape[1], rank):
                break
            fit = search.fit(rank, best)
            if best is not None and not fit.sigma < BETTER * best.sigma:
                break
            best = fit
            if best.sigma <= search.rounding:
                break
        assert best is not None
        model = symmetric_model(sensing, "auto")
        with in_words_for_measurements():
            model.fit(A, y, best.weight)
        model = _lowest_exact(sensing, model, A, y, best.weight)
    except KeyboardInterrupt:
        if best is None:
            raise
        return best.model, Status.interrupted
    return model, model.status_


@dataclass(frozen=True)
class RobustSearch:
    """Measurements with gross errors, of which n are different."""

    sensing: Any
    A: Any
    y: np.ndarray
    given: np.ndarray
    n: int

    @property
    def rounding(self) -> float:
        """Return a residual that is none."""
        return float(ROUNDED * np.median(np.abs(self.y)))

    def fit(self, rank: int, before: RobustFit | None) -> RobustFit:
        """Fit, leave out the rows that do not fit, and fit again until they are the same."""
        size = np.abs(self.y)
        usual = size <= usual_limit(size, self.given) if np.any(size[self.given > 0]) else size == 0
        kept = np.where(usual, self.given, 0.0) if before is None else before.weight
        for _ in range(ROUNDS):
            model = symmetric_model(self.sensing, rank, "huber")
            with in_words_for_measurements():
                model.fit(self.A, self.y, self.given * (kept > 0))
            size = np.abs(model.predict(self.A) - self.y)
            majority = Majority.of(self.n, unknowns(self.A.shape[1], rank))
            sigma = max(majority.sigma(size, self.given), self.rounding)
            last, kept = kept, self.given * robust_factor(size, sigma)
            if np.array_equal(kept > 0, last > 0):
                break
        return RobustFit(model, sigma, kept)


def unknowns(d: int, rank: int) -> int:
    """Return how many numbers a symmetric matrix of some rank has."""
    return rank * d - rank * (rank - 1) // 2


def symmetric_model(sensing: Any, rank: int | str, loss: str = "squared") -> SecondOrderRegressor:
    """Return the model of a rank, with the options of `MatrixSensing`."""
    return SecondOrderRegressor(
        rank=rank,
        alpha="auto" if is_auto(rank) else 0.0,
        fields=None,
        loss=loss,
        psd=sensing.psd,
        fit_linear=False,
        fit_intercept=sensing.fit_intercept,
        max_iter=sensing.max_iter,
        tol=sensing.tol,
        random_state=sensing.random_state,
    )


def _lowest_exact(
    sensing: Any, model: SecondOrderRegressor, A: Any, y: np.ndarray, sample_weight: Any
) -> SecondOrderRegressor:
    """Return the model of the lowest rank that explains y exactly, if the model given does."""
    weight = checked_weight(sample_weight, np.asarray(y, dtype=np.float64))
    power = np.average(np.square(y, dtype=np.float64), weights=weight)

    def exact(model: SecondOrderRegressor) -> bool:
        return bool(model.history_[-1].loss <= EXACT * power)

    while exact(model) and model.rank_ > 1:
        lower = symmetric_model(sensing, model.rank_ - 1)
        with in_words_for_measurements():
            lower.fit(A, y, sample_weight)
        if not exact(lower):
            break
        model = lower
    return model
