"""What was recovered from measurements, and what it leaves of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from quadlin.solve.lowrank.types import Record, Status
from quadlin.solve.signals.search import FAR, Majority

EXACT = 1e-12  # of the mean square of y: a loss that is only rounding


@dataclass(frozen=True)
class Sensed:
    """M = U diag(s) Vᵀ and c, how the search ended, and the path from the start that led to it."""

    U: np.ndarray  # (d, k), orthonormal columns
    s: np.ndarray  # (k,), by decreasing size
    V: np.ndarray  # (e, k), orthonormal columns; U for a symmetric M
    status: Status
    history: tuple[Record, ...]
    intercept: float = 0.0

    def predict(self, A: Any, B: Any) -> np.ndarray:
        """Return aᵀMb + c of each pair of rows."""
        return np.asarray((A @ self.U) * (B @ self.V) @ self.s + self.intercept)


def symmetric_unknowns(d: int, rank: int) -> int:
    """Return how many numbers a symmetric d×d matrix of some rank has."""
    return rank * d - rank * (rank - 1) // 2


def pair_unknowns(d: int, e: int, rank: int) -> int:
    """Return how many numbers a d×e matrix of some rank has."""
    return rank * (d + e - rank)


@dataclass(frozen=True)
class Rest:
    """What a result leaves of y, over the rows that are no gross errors."""

    n: int  # rows that count
    unknowns: int
    left: float  # of the variance of y
    exact: bool  # whether that is only rounding
    left_out: float  # the share of gross errors
    kept: np.ndarray  # (n,), weights without them

    @classmethod
    def of(
        cls,
        y: np.ndarray,
        fitted: np.ndarray,
        weight: np.ndarray,
        unknowns: int,
        robust_of: int | None = None,
    ) -> "Rest":
        """Return what fitted values leave; `robust_of` rows differ if some are to be left out."""
        size, kept = np.abs(fitted - y), weight
        if robust_of is not None:
            sigma = Majority.of(robust_of, unknowns).sigma(size, weight)
            kept = weight * (size <= FAR * sigma)
        loss, power = (float(np.average(v**2, weights=kept)) for v in (size, y))
        variance = power - float(np.average(y, weights=kept)) ** 2
        left = loss / variance if variance > 0 else float(loss > 0)
        left_out = 1 - float(kept.sum() / weight.sum())
        n = int(np.count_nonzero(kept))
        return cls(n, unknowns, left, loss <= EXACT * power, left_out, kept)

    @property
    def noise(self) -> float:
        """Return the variance of the noise, as a share of that of y: unknowns fit a part of it."""
        return self.left * self.n / max(self.n - self.unknowns, 1)

    @property
    def criterion(self) -> float:
        """Return Schwarz's criterion: the lower, the better."""
        return float(self.n * np.log(max(self.left, EXACT)) + self.unknowns * np.log(self.n))
