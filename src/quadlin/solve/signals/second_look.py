"""A second look at a recovered signal: what it leaves of y, and whether y is something else.

Amplitudes taken for intensities, and a background, both bend the relation of y to the intensities
of the signal: a line through them does not pass through 0. Where that is so, the signal is searched
for again with the squares of y, and without the background; what fits far better is the cause.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quadlin.solve.lowrank.types import finished
from quadlin.solve.signals.phase import Retrieval, retrieve
from quadlin.solve.signals.search import FAR, Effort, Majority

BENT = 5.0  # standard errors of where the line meets 0: noise of mean 0 does not do that
LITTLE = 1e-6  # of the variance of y: less needs no explanation
AMPLITUDES, BACKGROUND = 0.25, 0.5  # of what was unexplained: what another y may leave of it
ROUNDS, STARTS = 4, 3  # of a fit without the background; starts of a fit


@dataclass(frozen=True)
class SecondLook:
    """What a signal leaves of y, as shares, and what y seems to hold instead of intensities."""

    unexplained: float  # of the variance of y, over the rows that were not left out
    left_out: float  # rows that count as gross errors
    amplitudes: float | None = None  # what is unexplained if y holds amplitudes
    background: tuple[float, float] | None = None  # its size, and what is unexplained without it


@dataclass(frozen=True)
class _Rows:
    """Measurements, and which of them a fit by Huber's loss leaves out."""

    A: Any
    y: np.ndarray
    weight: np.ndarray
    real: bool
    effort: Effort
    unknowns: int
    majority: Majority

    def again(self, y: np.ndarray) -> np.ndarray:
        """Return the intensities of the signal of another y, after a brief search."""
        effort = replace(self.effort, n_starts=min(STARTS, self.effort.n_starts))
        other = finished(retrieve(self.A, y, self.weight, self.real, effort, 0))
        assert other.fitted is not None
        return other.fitted

    def kept(self, fitted: np.ndarray) -> np.ndarray:
        """Return the weights of rows that are no gross errors."""
        size = np.abs(fitted - self.y)
        if not self.effort.robust:
            return self.weight
        return np.asarray(self.weight * (size <= FAR * self.majority.sigma(size, self.weight)))

    def unexplained(self, fitted: np.ndarray, weight: np.ndarray) -> float:
        """Return the variance of the noise, as a share of that of y."""
        mean = np.average(self.y, weights=weight)
        variance = np.average((self.y - mean) ** 2, weights=weight)
        rest = np.average((self.y - fitted) ** 2, weights=weight)
        rows = int(np.count_nonzero(weight))
        rest *= rows / max(rows - self.unknowns, 1)  # what the unknowns fit of the noise
        return float(rest / variance) if variance > 0 else float(rest > 0)

    def line(self, fitted: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
        """Return where the line of y over the intensities meets 0, and its standard error."""
        total = weight.sum()
        centre = weight @ fitted / total
        spread = weight @ (fitted - centre) ** 2
        if not spread > 0:
            return 0.0, np.inf
        slope = weight @ ((fitted - centre) * self.y) / spread
        meets = float(weight @ self.y / total - slope * centre)
        rest = weight @ (self.y - meets - slope * fitted) ** 2 / total
        rows = max(np.count_nonzero(weight), 1)
        return meets, float(np.sqrt(rest / rows * (1 + centre**2 * total / spread)))


def second_look(
    A: Any, y: np.ndarray, weight: np.ndarray, real: bool, effort: Effort, result: Retrieval
) -> SecondLook:
    """Judge a signal by what it leaves of y; if that is bent, search five times again at most."""
    assert result.fitted is not None
    unknowns = result.rank if real else 2 * result.rank
    majority = Majority.of(result.n_distinct, unknowns)
    rows = _Rows(A, y, weight, real, effort, unknowns, majority)
    kept = rows.kept(result.fitted)
    look = SecondLook(rows.unexplained(result.fitted, kept), 1 - float(kept.sum() / weight.sum()))
    meets, error = rows.line(result.fitted, kept)
    if not look.unexplained > LITTLE or not meets > BENT * error:
        return look
    size = np.sqrt(rows.again(np.maximum(y, 0) ** 2))
    amplitudes = rows.unexplained(size, rows.kept(size))
    before = min(look.unexplained, 1.0)
    if amplitudes < AMPLITUDES * before:
        return replace(look, amplitudes=amplitudes)
    return replace(look, background=_background(rows, meets, kept, before))


def _background(
    rows: _Rows, meets: float, kept: np.ndarray, unexplained: float
) -> tuple[float, float] | None:
    """Return a background without which a signal explains y far better, and what it leaves."""
    best: tuple[float, float] | None = None
    for _ in range(ROUNDS):
        fitted = rows.again(rows.y - meets)
        left = rows.unexplained(fitted + meets, kept)
        if left < (BACKGROUND * unexplained if best is None else best[1]):
            best = meets, left
        meets, _ = rows.line(fitted, kept)
    return best
