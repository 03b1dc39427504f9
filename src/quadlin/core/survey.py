"""A survey of the rows before a fit: their moments, number and weight, from one pass."""

from dataclasses import dataclass

import numpy as np

from quadlin.core.arrays import namespace
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, in_wide_blocks
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows


@dataclass(frozen=True)
class Tally(Additive):
    """The number of rows, and their weight."""

    rows: int
    counting: int  # rows whose weight is not zero
    weight: float  # Σω
    squared_weight: float  # Σω²

    @classmethod
    def of(cls, chunk: Chunk) -> "Tally":
        """Count the rows of a chunk."""
        n, omega = chunk.X.shape[0], chunk.weight
        if omega is None:
            return cls(n, n, float(n), float(n))
        xp = namespace(omega)
        counting = int(xp.sum(xp.astype(omega > 0, xp.int64)))
        return cls(n, counting, float(xp.sum(omega)), float(xp.sum(omega**2)))

    @property
    def effective(self) -> float:
        """Return the effective number of rows, (Σω)²/Σω²."""
        return self.weight**2 / max(self.squared_weight, 1e-300)


@dataclass(frozen=True)
class Survey(Additive):
    """The moments of the features and of the target, and the rows they are taken from."""

    features: Moments
    target: Moments
    tally: Tally


@in_wide_blocks
def surveyed(chunk: Chunk) -> Survey:
    """Survey one chunk."""
    X, y, weight = chunk.X, chunk.y[:, None], chunk.weight
    return Survey(Moments.of(X, weight), Moments.of(y, weight), Tally.of(chunk))


def survey(rows: Rows) -> Survey:
    """Return all that must be known before a fit: one pass."""
    return rows.reduce(surveyed)


def moments_of(rows: Rows) -> tuple[Moments, Moments]:
    """Return the moments of the features and of the target: one pass."""
    total = survey(rows)
    return total.features, total.target


def whole_unit(weight: np.ndarray) -> int | None:
    """Return the greatest common divisor of weights, None where they are not whole numbers.

    Examples
    --------
    >>> whole_unit(np.array([0.0, 20.0, 30.0])), whole_unit(np.array([0.5, 1.0]))
    (10, None)
    """
    if not np.all((weight == np.floor(weight)) & (weight < 2**53)):
        return None
    return int(np.gcd.reduce(weight.astype(np.int64))) if len(weight) else 0
