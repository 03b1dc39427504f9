"""What scorers are given and what they return: predictions that are there, one number."""

from typing import Any

from sklearn.base import BaseEstimator, RegressorMixin

from quadlin.core.arrays import Array, namespace


class Predicted(RegressorMixin, BaseEstimator):
    """An estimator whose predictions exist already, for scorers that are given by name."""

    def __init__(self, f: Array) -> None:
        self.f = f

    def predict(self, X: Any) -> Array:
        """Return the predictions."""
        return self.f


def mean_square(r: Array, weight: Array | None) -> float:
    """Return the weighted mean of squares."""
    xp = namespace(r)
    weight = xp.ones_like(r) if weight is None else weight
    return float(weight @ r**2) / float(xp.sum(weight))


def number_of(score: Any) -> float:
    """Return a score, if it is one number."""
    try:
        return float(score)
    except (TypeError, ValueError):
        raise ValueError(f"scoring must return one number, not {score!r}.") from None
