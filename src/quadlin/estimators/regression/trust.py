"""Which rows a model takes, and how far they and their predictions are trusted."""

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import Array, namespace, unflagged
from quadlin.core.pieces import with_data
from quadlin.solve.fits.fit_state import (
    FitState,
    is_exact,
    trusted_predictions,
    trusted_range,
)
from quadlin.solve.lowrank.types import Options

Bounds = tuple[Array, Array]


@dataclass(frozen=True)
class Trust:
    """The bounds of features and predictions; None where they are not limited."""

    features: Bounds | None = None
    far: Bounds | None = None  # beyond these is worth a warning, however many rows the model had
    predictions: tuple[float, float] | None = None
    is_exact: bool = False  # whether many rows were fitted without an error: nothing is clipped

    def outside(self, X: Array) -> Array:
        """Tell which rows have a feature beyond its bounds; zeros of sparse rows never are."""
        return _beyond(X, self.features)

    @unflagged
    def clipped(self, X: Array) -> tuple[Array, int]:
        """Return rows with each feature within its bounds, and how many rows lie far outside."""
        if self.is_exact or self.features is None or not X.shape[0]:
            return X, 0
        xp = namespace(X)
        low, high = (xp.astype(bound, X.dtype) for bound in self.features)
        if issparse(X):
            data = np.clip(X.data, low[X.indices], high[X.indices])
            same = np.array_equal(data, X.data)
            if same:
                return X, 0
            return with_data(X, data), int(_beyond(X, self.far).sum())
        if not bool(xp.any((xp.min(X, axis=0) < low) | (xp.max(X, axis=0) > high))):
            return X, 0
        far = int(xp.count_nonzero(_beyond(X, self.far)))
        return xp.minimum(xp.maximum(X, low), high), far

    def limited(self, f: Array) -> Array:
        """Return predictions within their bounds."""
        if self.predictions is None:
            return f
        low, high = self.predictions
        return namespace(f).clip(f, min=low, max=high)


@unflagged
def trust_of(state: FitState, options: Options, n_rows: int, may_be_exact: bool) -> Trust:
    """Return how far the model of a state is trusted; an exact one predicts without limits.

    Linear terms grow only as their features do. Squares and products may be absurd at a row that is
    not even far outside in any of its features, if these are correlated: their predictions have
    bounds of their own. Means of counts have bounds on the scale of logarithms.
    """
    lines = state.model.s.shape[0] == 0 and options.loss != "poisson"
    rows_per_parameter = n_rows / max(1, state.n_parameters(options))
    exact = may_be_exact and options.loss == "squared" and is_exact(state, options, n_rows)
    bounded = not (lines or exact) and options.loss in ("squared", "huber")
    return Trust(
        trusted_range(state.features, lines, rows_per_parameter),
        _worth_a_warning(trusted_range(state.features, lines, inf)),
        trusted_predictions(state.target) if bounded else None,
        exact,
    )


def _worth_a_warning(bounds: Bounds | None) -> Bounds | None:
    """Leave out columns of zeros, such as words that only new texts have: they have no effect."""
    if bounds is None:
        return None
    xp, (low, high) = namespace(bounds[0]), bounds
    empty = (low == 0) & (high == 0)
    return xp.where(empty, -inf, low), xp.where(empty, inf, high)


@unflagged
def _beyond(X: Array, bounds: Bounds | None) -> Array:
    xp, n = namespace(X), X.shape[0]
    if bounds is None:
        device = None if issparse(X) else X.device
        return xp.zeros(n, dtype=xp.bool, device=device)
    low, high = (xp.astype(bound, X.dtype) for bound in bounds)
    if not issparse(X):
        return xp.any((low > X) | (high < X), axis=1)
    beyond = (X.data < low[X.indices]) | (X.data > high[X.indices])
    return np.bincount(np.repeat(np.arange(n), np.diff(X.indptr))[beyond], minlength=n) > 0


@unflagged
def in_model_dtype(X: Array, caller: str, example: Array, dtype: Any) -> Array:
    """Return rows in a dtype; refuse those of another namespace or device than the example."""
    xp, device = namespace(X), "cpu" if issparse(X) else X.device
    if example is not None and (xp, device) != (namespace(example), example.device):
        raise ValueError(
            f"Inputs passed to {caller}() must use the same namespace and the same device as those "
            f"passed to fit(): {namespace(example).__name__} on {example.device}, but they are "
            f"{xp.__name__} on {device}."
        )
    return X.astype(dtype, copy=False) if issparse(X) else xp.astype(X, dtype, copy=False)
