"""A symmetric matrix from measurements aᵀMa: a second order model without w and b."""

from typing import Any

import numpy as np

from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.estimators.rows.parameters import checked_weight, is_auto
from quadlin.estimators.signals.sensing_rows import in_words_for_measurements
from quadlin.solve.lowrank.types import Status

EXACT = 1e-12  # of the mean square of y: a loss that is only rounding


def fitted_symmetric(
    sensing: Any, A: Any, y: np.ndarray, weight: Any
) -> tuple[SecondOrderRegressor, Status]:
    """Return the model, and how its fit and the search for its rank ended."""
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


def symmetric_model(sensing: Any, rank: int | str) -> SecondOrderRegressor:
    """Return the model of a rank, with the options of `MatrixSensing`."""
    return SecondOrderRegressor(
        rank=rank,
        alpha="auto" if is_auto(rank) else 0.0,
        fields=None,
        loss=sensing.loss,
        psd=sensing.psd,
        fit_linear=False,
        fit_intercept=False,
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
        return sensing.loss == "squared" and bool(model.history_[-1].loss <= EXACT * power)

    while exact(model) and model.rank_ > 1:
        lower = symmetric_model(sensing, model.rank_ - 1)
        with in_words_for_measurements():
            lower.fit(A, y, sample_weight)
        if not exact(lower):
            break
        model = lower
    return model
