"""How far beyond the training rows features are followed, and rows in the dtype of a model."""

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import Array, namespace, unflagged
from quadlin.core.moments import Moments
from quadlin.core.pieces import with_data

REACH = 1.0  # training ranges beyond the training range, up to which features are followed


@dataclass(frozen=True)
class Reach:
    """The bounds of each feature: one training range beyond its training range."""

    low: Array  # (d,)
    high: Array

    @classmethod
    def of(cls, features: Moments) -> "Reach":
        """Return the bounds of rows with these moments."""
        xp, low, high = namespace(features.mean), features.low, features.high
        if low is None or high is None:
            infinite = xp.full_like(features.mean, inf)
            return cls(-infinite, infinite)
        return cls(low - REACH * (high - low), high + REACH * (high - low))

    @unflagged
    def outside(self, X: Array) -> Array:
        """Tell which rows have a feature beyond its bounds.

        Columns of zeros, such as words that only new texts have, do not count: they have no effect.
        """
        xp, n = namespace(X), X.shape[0]
        empty = (self.low == 0) & (self.high == 0)
        low = xp.astype(xp.where(empty, -inf, self.low), X.dtype)
        high = xp.astype(xp.where(empty, inf, self.high), X.dtype)
        if not issparse(X):
            return xp.any((low > X) | (high < X), axis=1)
        beyond = (X.data < low[X.indices]) | (X.data > high[X.indices])
        return np.bincount(np.repeat(np.arange(n), np.diff(X.indptr))[beyond], minlength=n) > 0

    @unflagged
    def clipped(self, X: Array) -> tuple[Array, int]:
        """Return rows with each feature within its bounds, and how many rows lie outside."""
        if not X.shape[0]:
            return X, 0
        xp = namespace(X)
        low, high = (xp.astype(bound, X.dtype) for bound in (self.low, self.high))
        if issparse(X):
            data = np.clip(X.data, low[X.indices], high[X.indices])
            if np.array_equal(data, X.data):
                return X, 0
            return with_data(X, data), int(self.outside(X).sum())
        if not bool(xp.any((xp.min(X, axis=0) < low) | (xp.max(X, axis=0) > high))):
            return X, 0
        return xp.minimum(xp.maximum(X, low), high), int(xp.count_nonzero(self.outside(X)))


@unflagged
def in_model_dtype(X: Array, caller: str, example: Array, dtype: Any) -> Array:
    """Return rows in a dtype; raise an error for another namespace or device than the example."""
    xp, device = namespace(X), "cpu" if issparse(X) else X.device
    if example is not None and (xp, device) != (namespace(example), example.device):
        raise ValueError(
            f"Inputs passed to {caller}() must use the same namespace and the same device as those "
            f"passed to fit(): {namespace(example).__name__} on {example.device}, but they are "
            f"{xp.__name__} on {device}."
        )
    return X.astype(dtype, copy=False) if issparse(X) else xp.astype(X, dtype, copy=False)
