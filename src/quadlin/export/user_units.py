"""A model in the user's units, for readers without quadlin, and a check that both forms agree."""

from typing import Any

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.solve.fits.fit_state import FitState
from quadlin.stream.state import InvalidContentError, require

ARRAYS = (
    *("coef", "components", "eigenvalues", "has_diagonal"),
    *("feature_mean", "feature_sd", "slope_at_mean", "factor", "factor_weights"),
)
ROUNDING = 1e-5  # by which the two forms of a model may differ, relative to the size of their terms


def in_user_units(state: FitState) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return b, w and M, and the value and the slope at the mean, where nothing cancels.

    M is given twice: by orthonormal components, for people, and by the factor of the model itself.
    """
    raw, units, target = state.raw, state.units, state.units.target
    model = state.model
    U, s, w, free, scale, mean, rest = (
        to_numpy(a).astype(np.float64)
        for a in (model.U, model.s, model.w, units.free, units.scale, units.mean, units.rest)
    )
    value = model.c - float(np.sum(free * ((U * U) @ s)))
    arrays = {
        "coef": to_numpy(raw.coef),
        "components": to_numpy(raw.components),
        "eigenvalues": to_numpy(raw.eigenvalues),
        "has_diagonal": free > 0,
        "feature_mean": mean + rest / np.where(scale > 0, scale, 1.0),
        "feature_sd": np.sqrt(to_numpy(state.features.var)),
        "slope_at_mean": target.scale * scale * w,
        "factor": scale[:, None] * U,
        "factor_weights": target.scale * s,
    }
    value_at_mean = target.mean + target.scale * value
    return arrays, {"intercept": float(raw.intercept), "value_at_mean": float(value_at_mean)}


def require_agreement(
    given: dict[str, Any], intercept: float, value_at_mean: float, state: FitState
) -> None:
    """Refuse a file whose model in the user's units is not the one that will predict.

    Parameters
    ----------
    given : dict of names to arrays, or None where they are missing
        The arrays in the file.
    intercept, value_at_mean : float
        The numbers in the file.
    state : FitState
        The model that will predict.
    """
    try:
        arrays, numbers = in_user_units(state)
    except np.linalg.LinAlgError as error:
        raise InvalidContentError("the model has entries that are not finite") from error
    for name, a in arrays.items():
        b = given[name]
        require(b is not None and b.shape == a.shape and b.dtype == a.dtype, repr(name))
    require(all(map(np.isfinite, numbers.values())), "the intercept")
    require(bool((given["has_diagonal"] == arrays["has_diagonal"]).all()), "the diagonal")
    for name in ("feature_mean", "feature_sd", "slope_at_mean", "factor", "factor_weights"):
        _require_close(given[name], arrays[name], np.abs(arrays[name]), repr(name))
    mean, slope, value = arrays["feature_mean"], arrays["slope_at_mean"], numbers["value_at_mean"]
    _require_close(value_at_mean, value, abs(value), "'value_at_mean'")
    # Eigenvectors of equal eigenvalues are not unique, but a product with M is.
    factor = (arrays["factor"], arrays["factor_weights"], arrays["has_diagonal"])
    for probe in (np.cos(np.arange(len(mean))), mean):
        product, size = _times(*factor, probe)
        other = _times(given["components"].T, given["eigenvalues"], factor[2], probe)[0]
        # Earlier versions rounded all components relative to the largest, whatever the units.
        largest = np.max(np.abs(given["components"]), initial=0.0) ** 2
        slack = np.max(np.abs(given["eigenvalues"]), initial=0.0) * largest * np.abs(probe).sum()
        slack *= 1e3 * np.finfo(given["components"].dtype).eps / ROUNDING
        _require_close(other, product, np.max(size) + slack, "'components' or 'eigenvalues'")
    # With large means, b and w are small differences of large terms: allow for their rounding.
    _require_close(given["coef"], slope - 2 * product, np.abs(slope) + 2 * size, "'coef'")
    about_zero = value_at_mean - mean @ slope + mean @ product
    terms = abs(value_at_mean) + np.abs(mean) @ (np.abs(slope) + size)
    _require_close(intercept, about_zero, terms, "'intercept'")


def _times(A: Any, s: Any, has_diagonal: Any, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return A diag(s) Aᵀv without the diagonal that is not modelled, and the size of its terms."""
    A = A.astype(np.float64)
    size = np.abs(A) @ (np.abs(s) * (np.abs(A.T) @ np.abs(v)))
    return A @ (s * (A.T @ v)) - ((A * A) @ s) * (~has_diagonal * v), 2 * size


def _require_close(given: Any, expected: Any, size: Any, what: str) -> None:
    require(bool(np.all(np.abs(given - expected) <= ROUNDING * size)), what)
