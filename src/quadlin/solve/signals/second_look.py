"""A second look at a recovered signal: its residual, and whether y holds something else.

Amplitudes that were mistaken for intensities, and a background, both bend the relation of y to the
intensities of the signal: a line through them does not pass through 0. In that case the signal is
searched for again with the squares of y, and without the background; if one of these fits far
better, it is the cause.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quadlin.solve.lowrank.types import finished
from quadlin.solve.signals.phase import Retrieval, retrieve
from quadlin.solve.signals.search import FAR, Effort, Majority

BENT = 5.0  # standard errors of the line's intercept: noise of mean 0 never reaches it
LITTLE = 1e-6  # of the variance of y: less needs no explanation
AMPLITUDES, BACKGROUND = 0.25, 0.5  # of the unexplained part: the most that another y may leave
ROUNDS, STARTS = 4, 3  # of a fit without the background; starts of a fit


@dataclass(frozen=True)
class SecondLook:
    """The shares of y that a signal does not explain, and what y seems to hold instead."""

    unexplained: float  # of the variance of y, over the rows that were not left out
    left_out: float  # rows that count as gross errors
    amplitudes: float | None = None  # the unexplained share if y holds amplitudes
    background: tuple[float, float] | None = None  # its size, and the unexplained share without it


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
        """Return the weights without those of gross errors."""
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
        rest *= rows / max(rows - self.unknowns, 1)  # the unknowns fit a part of the noise
        return float(rest / variance) if variance > 0 else float(rest > 0)

    def line(self, fitted: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
        """Return the intercept of the line of y over the intensities, and its standard error."""
        total = weight.sum()
        centre = weight @ fitted / total
        spread = weight @ (fitted - centre) ** 2
        if not spread > 0:
            return 0.0, np.inf
        slope = weight @ ((fitted - centre) * self.y) / spread
        intercept = float(weight @ self.y / total - slope * centre)
        rest = weight @ (self.y - intercept - slope * fitted) ** 2 / total
        rows = max(np.count_nonzero(weight), 1)
        return intercept, float(np.sqrt(rest / rows * (1 + centre**2 * total / spread)))


def second_look(
    A: Any, y: np.ndarray, weight: np.ndarray, real: bool, effort: Effort, result: Retrieval
) -> SecondLook:
    """Judge a signal by its residual; if that is bent, search again at most five times."""
    assert result.fitted is not None
    unknowns = result.rank if real else 2 * result.rank
    majority = Majority.of(result.n_distinct, unknowns)
    rows = _Rows(A, y, weight, real, effort, unknowns, majority)
    kept = rows.kept(result.fitted)
    look = SecondLook(rows.unexplained(result.fitted, kept), 1 - float(kept.sum() / weight.sum()))
    intercept, error = rows.line(result.fitted, kept)
    if not look.unexplained > LITTLE or not intercept > BENT * error:
        return look
    size = np.sqrt(rows.again(np.maximum(y, 0) ** 2))
    amplitudes = rows.unexplained(size, rows.kept(size))
    before = min(look.unexplained, 1.0)
    if amplitudes < AMPLITUDES * before:
        return replace(look, amplitudes=amplitudes)
    return replace(look, background=_background(rows, intercept, kept, before))


def _background(
    rows: _Rows, size: float, kept: np.ndarray, unexplained: float
) -> tuple[float, float] | None:
    """Return a background without which a signal explains y far better, and the rest."""
    best: tuple[float, float] | None = None
    for _ in range(ROUNDS):
        fitted = rows.again(rows.y - size)
        rest = rows.unexplained(fitted + size, kept)
        if rest < (BACKGROUND * unexplained if best is None else best[1]):
            best = size, rest
        size, _ = rows.line(fitted, kept)
    return best
