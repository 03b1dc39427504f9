r"""Phase retrieval: a signal from the squares of its products with known vectors.

.. math:: y_i = |\langle a_i, z \rangle|^2 + \text{noise}

A spectral start finds the direction, reweighted amplitude flow leads into the basin, and
Levenberg–Marquardt goes to the least-squares optimum of the intensities.

A complex row a is equivalent to two real rows, [Re a, −Im a] and [Im a, Re a], of the signal
[Re z, Im z], because a and i·a measure the same. The real matrices that a start forms from both of
them are those that complex arithmetic forms from a, so complex rows are used as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from quadlin.core.rows import Walks
from quadlin.metrics import signal_error
from quadlin.solve.lowrank.types import Record, Status
from quadlin.solve.signals.levenberg import LinearisedResidual
from quadlin.solve.signals.measurements import (
    DIRECTIONS,
    Measurements,
    conditioned,
    distinct_rows,
    in_double,
)
from quadlin.solve.signals.search import (
    ALL_ROWS,
    Effort,
    Majority,
    best_of,
    typical_size,
    usual_limit,
)

SPECTRAL_STEPS, MIXED_STEPS = 200, 20  # of power iteration: the leading direction, or a mixture
STILL = 1e-4  # the change of the direction that ends power iteration
FLOW_STEPS, FLOW_STEP, FLOW_WEIGHT = 200, 3.0, 10.0
ALMOST_EXACT = 1e-4  # a loss of amplitudes, in units of Σy, at which the flow ends
SAME = 1e-2  # signals that differ by less are the same optimum
TINY = 1e-30
TRUNCATED = 5.0  # times the largest residual of a majority: larger ones have no influence


@dataclass(frozen=True)
class Retrieval:
    """A signal, how the search for it ended, and the path from the start that led to it."""

    signal: np.ndarray
    status: Status
    history: tuple[Record, ...]
    rank: int  # of A: below the number of columns, the signal is the smallest that fits
    n_distinct: int  # measurements that differ
    fitted: np.ndarray | None  # (n,), the intensities of the signal; None after an interruption


@dataclass(frozen=True)
class PhaseProblem:
    """Measurements, intensities and weights, for any unknowns that represent the signal."""

    measure: Measurements
    y: np.ndarray
    weight: np.ndarray
    majority: Majority = ALL_ROWS

    @property
    def walks(self) -> Walks:
        """Return the count of products with A."""
        return self.measure.counter

    def linearise(self, v: np.ndarray) -> LinearisedResidual:
        r"""Return :math:`|p|^2 - y`, p = ABv, and its derivative 2 Re(p̄ ∘ ABh)."""
        p = self.measure.forward(v)
        return LinearisedResidual(
            squared(p) - self.y,
            lambda h: 2 * (p.conj() * self.measure.forward(h)).real,
            lambda u: 2 * self.measure.adjoint(p * u),
        )

    def spectral(self, v: np.ndarray, steps: int) -> np.ndarray:
        r"""Return v moved towards the top of :math:`\sum_i \omega_i T(y_i) a_i a_i^H`, T = 1 − 1/y.

        y is in units of its mean. T is optimal for Gaussian rows (Mondelli and Montanari); here it
        is kept away from −∞. A shift makes the largest eigenvalue also the largest in size.
        """
        T = 1 - 1 / (self.y / np.average(self.y, weights=self.weight) + 0.3)
        v = v / np.linalg.norm(v)
        for _ in range(steps):
            u = self.measure.adjoint(self.weight * T * self.measure.forward(v)) + v
            before, v = v, u / np.linalg.norm(u)
            if np.linalg.norm(v - before) <= STILL:
                break
        power = float(self.weight @ squared(self.measure.forward(v)))
        return v * np.sqrt(float(self.weight @ self.y) / power) if power > 0 else v

    def flow(self, v: np.ndarray, robust: bool = False) -> np.ndarray:
        r"""Follow the gradient of Σ(|p| − √y)²; rows that fit badly have less weight.

        The weight |p|/(|p| + β·||p| − √y|) bounds the influence of any row (reweighted amplitude
        flow, Wang, Giannakis, Saad and Chen). If `robust`, rows far beyond the majority have none
        (as in median-truncated flows, Zhang, Chi and Liang). Returns the best point on the way.
        """
        amplitude = np.sqrt(self.y)
        best, least = v, np.inf
        for _ in range(FLOW_STEPS):
            p = self.measure.forward(v)
            size = np.abs(p)
            excess = size - amplitude
            weight = self.weight
            if robust:
                limit = TRUNCATED * self.majority.largest(np.abs(excess), weight)
                excess = np.clip(excess, -limit, limit)
                weight = weight * (np.abs(excess) < limit)
            loss = float(self.weight @ excess**2)
            if loss < least:
                best, least = v, loss
            if not loss > ALMOST_EXACT * float(self.weight @ self.y):
                break
            # The weight, times the gradient's (|p| − √y)·p/|p|.
            pull = excess / np.maximum(size + FLOW_WEIGHT * np.abs(excess), TINY)
            v = v - FLOW_STEP * self.measure.adjoint(weight * pull * p)
        return best


def retrieve(
    A: Any, y: np.ndarray, weight: np.ndarray, real: bool, effort: Effort, seed: int
) -> Retrieval:
    """Find the signal, which is real if `real`.

    The first start is the spectral one; the others are mixtures of leading directions.
    """
    rng = np.random.default_rng(seed)
    measure = conditioned(A, weight, real, rng)
    n = distinct_rows(A, weight)
    measure.counter.count += DIRECTIONS if isinstance(A, LinearOperator) else 1
    unit = typical_size(np.maximum(y, 0), weight, effort.robust)
    if not unit > 0:
        zero = np.zeros(A.shape[1], measure.dtype)
        only = Record(0, 0, float(np.average(y**2, weights=weight)))
        return Retrieval(zero, Status.converged, (only,), measure.rank, n, np.zeros(len(y)))
    # In units of the intensities no square overflows, even in single precision.
    majority = Majority.of(n, measure.width if real else 2 * measure.width)
    problem = PhaseProblem(measure, y / unit, weight, majority)
    best = best_of(
        _starts(problem, effort.robust, rng),
        problem,
        effort,
        lambda v, other: signal_error(v, other) < SAME,
    )
    status, fitted = best.status, None
    if status is not Status.interrupted:
        try:
            fitted = squared(in_double(measure.forward(best.z))) * unit
        except KeyboardInterrupt:
            status = Status.interrupted
    history = tuple(replace(record, loss=record.loss * unit**2) for record in best.history)
    last = replace(history[-1], passes=measure.counter.rounded)
    signal = np.asarray(measure.signal(best.z) * np.sqrt(unit), dtype=measure.dtype)
    return Retrieval(signal, status, (*history[:-1], last), measure.rank, n, fitted)


def _starts(problem: PhaseProblem, robust: bool, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield starts; with gross errors, every second start leaves out the largest intensities."""
    y, steps = np.maximum(problem.y, 0), SPECTRAL_STEPS  # noise made small intensities negative
    most = usual_limit(y, problem.weight) if robust else np.inf
    everything = replace(problem, y=np.minimum(y, most))
    usual = replace(everything, weight=problem.weight * (y <= most))
    while True:
        for start in (usual, everything) if robust else (everything,):
            v = start.spectral(problem.measure.random(rng), steps)
            yield start.flow(v, robust)
            steps = MIXED_STEPS


def squared(p: np.ndarray) -> np.ndarray:
    """Return |p|²."""
    return np.asarray(p.real**2 + p.imag**2 if np.iscomplexobj(p) else p**2)
