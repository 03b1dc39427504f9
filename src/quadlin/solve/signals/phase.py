r"""Phase retrieval: a signal from the squares of its products with known vectors.

.. math:: y_i = |\langle a_i, z \rangle|^2 + \text{noise}

A spectral start finds the direction, reweighted amplitude flow leads into the basin, and
Levenberg–Marquardt goes to the optimum of the loss, a sum of squares r² of one of these residuals:

- "squared" and "huber", for intensities: μ − y, with μ = |⟨a, z⟩|²;
- "amplitude", for noise that was added to amplitudes before they were squared: √μ − √y;
- "poisson", for counts: r² is the deviance 2(μ − y − y log(μ/y)), whose minimum is that of the
  likelihood.

A complex row a is equivalent to two real rows, [Re a, −Im a] and [Im a, Re a], of the signal
[Re z, Im z], because a and i·a measure the same. The real matrices that a start forms from both of
them are those that complex arithmetic forms from a, so complex rows are used as they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from quadlin.metrics import signal_error
from quadlin.solve.lowrank.types import Record, Status
from quadlin.solve.signals.search import (
    CLAIMED,
    DIRECTIONS,
    SAME,
    TYPICAL,
    Effort,
    End,
    LinearisedResidual,
    Majority,
    Measurements,
    Problem,
    conditioned,
    search,
    typical_size,
)

SPECTRAL_STEPS, MIXED_STEPS = 200, 20  # of power iteration: the leading direction, or a mixture
STILL = 1e-4  # the change of the direction that ends power iteration, and the loss that ends a flow
TRUNCATED = 5.0  # times the largest residual of a majority: larger ones have no influence
FLOW_STEPS, FLOW_STEP, FLOW_WEIGHT = 200, 3.0, 10.0
DARK = 0.1  # counts added to y and μ: without them no step lets ⟨a, z⟩ pass through 0

Residual = Callable[[np.ndarray, np.ndarray, float], tuple[np.ndarray, np.ndarray]]


def amplitude_residual(mu: np.ndarray, y: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """Return r = √μ − √y and dr/dμ."""
    size = np.sqrt(mu)
    return size - np.sqrt(np.maximum(y, 0)), 0.5 / np.maximum(size, np.finfo(size.dtype).tiny)


def poisson_residual(mu: np.ndarray, y: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the signed root of the deviance and its derivative; a count is 1/`unit` of y."""
    mu, y = mu + DARK / unit, np.maximum(y, 0) + DARK / unit
    u = mu / y - 1
    near = np.abs(u) < STILL  # where u − log(1 + u) is cancelled by rounding, and a series is exact
    half = np.where(near, u * u * (0.5 - u / 3), u - np.log1p(u))  # of the deviance, over y
    r = np.sign(u) * np.sqrt(2 * y * half)
    return r, np.where(near, (1 - 2 * u / 3) / np.sqrt(y), u * y / mu / np.where(near, 1.0, r))


RESIDUALS: dict[str, Residual] = {"amplitude": amplitude_residual, "poisson": poisson_residual}


@dataclass(frozen=True)
class PhaseProblem(Problem):
    """Intensities in units of `unit`, and their vectors."""

    measure: Measurements
    loss: str = "squared"
    unit: float = 1.0

    def linearise(self, v: np.ndarray) -> LinearisedResidual:
        r"""Return r of :math:`\mu = |p|^2`, p = ABv, and its derivative 2 dr/dμ Re(p̄ ∘ ABh)."""
        p = self.measure.forward(v)
        r, mu = squared(p) - self.y, squared(p)
        if self.loss in RESIDUALS:
            r, slope = RESIDUALS[self.loss](mu, self.y, self.unit)
            p = slope * p
        return LinearisedResidual(
            r,
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

    def flow(self, v: np.ndarray, robust: bool) -> np.ndarray:
        r"""Follow the gradient of Σ(|p| − √y)²; rows that fit badly have less weight.

        The weight |p|/(|p| + β·||p| − √y|) bounds the influence of any row (reweighted amplitude
        flow, Wang, Giannakis, Saad and Chen). If `robust`, rows far beyond the majority have none
        (as in median-truncated flows, Zhang, Chi and Liang). Returns the best point on the way.
        """
        amplitude, total = np.sqrt(self.y), float(self.weight @ self.y)
        best, least = v, np.inf
        for _ in range(FLOW_STEPS):
            p = self.measure.forward(v)
            size = np.abs(p)
            excess, weight = size - amplitude, self.weight
            if robust:
                limit = TRUNCATED * self.majority.largest(np.abs(excess), weight)
                excess = np.clip(excess, -limit, limit)
                weight = weight * (np.abs(excess) < limit)
            loss = float(self.weight @ excess**2)
            if loss < least:
                best, least = v, loss
            if not loss > STILL * total:
                break
            # The weight, times the gradient's (|p| − √y)·p/|p|.
            bounded = size + FLOW_WEIGHT * np.abs(excess)
            pull = excess / np.maximum(bounded, np.finfo(size.dtype).tiny)
            v = v - FLOW_STEP * self.measure.adjoint(weight * pull * p)
        return best


def retrieve(
    A: Any, y: np.ndarray, weight: np.ndarray, n: int, real: bool, effort: Effort, seed: int
) -> tuple[End, int]:
    """Find the signal, which is real if `real`, from n different measurements.

    The first start is the spectral one; the others are mixtures of leading directions. Also return
    the rank of A: below the number of columns, the signal is the smallest that fits.
    """
    rng = np.random.default_rng(seed)
    measure = conditioned(A, weight, real, rng)
    measure.walks.count += DIRECTIONS if isinstance(A, LinearOperator) else 1
    unit = typical_size(np.maximum(y, 0), weight)
    if not unit > 0:
        only = Record(0, 0, float(np.average(y**2, weights=weight)))
        zero = np.zeros(A.shape[1], measure.dtype)
        return End(zero, only.loss, True, Status.converged, (only,)), measure.rank
    # In units of the intensities no square overflows, even in single precision.
    majority = Majority.of(n, measure.width if real else 2 * measure.width)
    problem = PhaseProblem(y / unit, weight, measure.walks, majority, measure, effort.loss, unit)
    starts = _starts(problem, effort.robust, rng)
    best = search(problem, starts, effort, lambda v, other: signal_error(v, other) < SAME)
    scale = unit if effort.loss in RESIDUALS else unit**2
    history = tuple(replace(record, loss=record.loss * scale) for record in best.history)
    signal = np.asarray(measure.signal(best.z) * np.sqrt(unit), dtype=measure.dtype)
    history = (*history[:-1], replace(history[-1], passes=measure.walks.rounded))
    return replace(best, z=signal, history=history), measure.rank


def _starts(problem: PhaseProblem, robust: bool, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield starts; with gross errors, they leave out the largest intensities."""
    y, steps = np.maximum(problem.y, 0), SPECTRAL_STEPS  # noise made small intensities negative
    weight = problem.weight * (y <= TYPICAL) if robust else problem.weight
    start = replace(problem, y=y, weight=weight)
    while True:
        yield start.flow(start.spectral(problem.measure.random(rng), steps), robust)
        steps = MIXED_STEPS


def squared(p: np.ndarray) -> np.ndarray:
    """Return |p|²."""
    return np.asarray(p.real**2 + p.imag**2 if np.iscomplexobj(p) else p**2)


def intercept(fitted: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float] | None:
    """Return the intercept of the line of y over the intensities, and its standard error.

    None where noise may explain it. Amplitudes that were mistaken for intensities, and a
    background, bend the relation of y to the intensities, so that the line does not pass through 0.
    """
    total = weight.sum()
    centre = weight @ fitted / total
    spread = weight @ (fitted - centre) ** 2
    if not spread > 0:
        return None
    slope = weight @ ((fitted - centre) * y) / spread
    size = float(weight @ y / total - slope * centre)
    rest = weight @ (y - size - slope * fitted) ** 2 / total
    error = float(np.sqrt(rest / np.count_nonzero(weight) * (1 + centre**2 * total / spread)))
    return (size, error) if size > CLAIMED * error else None
