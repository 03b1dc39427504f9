r"""Levenberg–Marquardt with conjugate gradients, for residuals with matrix-free Jacobians.

.. math:: \min_z \sum_i \omega_i\, r_i(z)^2

Each step solves :math:`(J^\top \Omega J + \lambda P^{-1}) h = -J^\top \Omega r` without forming J;
λ falls while steps succeed and rises when one fails, so the loss never rises.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from quadlin.solve.lowrank.krylov import conjugate_gradients
from quadlin.solve.lowrank.types import Status

FIRST_DAMPING, LAST_DAMPING = 1e-2, 1e8  # of the curvature along the first gradient
INNER_TOL, INNER_CAP = 0.03, 30  # of the conjugate gradients of a step


@dataclass(frozen=True)
class LinearisedResidual:
    """The residual near a point z: r(z + h) ≈ residual + forward(h)."""

    residual: np.ndarray  # (n,)
    forward: Callable[[np.ndarray], np.ndarray]  # J h
    adjoint: Callable[[np.ndarray], np.ndarray]  # Jᵀu, for the inner product Re⟨·, ·⟩
    precondition: Callable[[np.ndarray], np.ndarray] | None = None


@dataclass(frozen=True)
class Place:
    """A point of a search: the unknowns, and the weighted sum of squares there."""

    z: np.ndarray
    loss: float


def inner(u: np.ndarray, v: np.ndarray) -> float:
    """Return Re⟨u, v⟩, in which complex unknowns are pairs of real ones."""
    return float(np.vdot(u, v).real)


def levenberg(
    linearise: Callable[[np.ndarray], LinearisedResidual],
    z: np.ndarray,
    weight: np.ndarray,
    tol: float,
    nothing: float,
    max_iter: int,
) -> Generator[Place, None, Status]:
    """Yield the start and every better point, until a step gains less than `tol` of the loss.

    A loss of at most `nothing` is an exact solution. A step takes about 20 products, at most 60.
    """
    local = linearise(z)
    loss = float(weight @ local.residual**2)
    yield Place(z, loss)
    damping, unit = FIRST_DAMPING, 0.0
    for _ in range(max_iter):
        if loss <= nothing:
            return Status.converged
        downhill = -local.adjoint(weight * local.residual)
        unit = unit or _curvature(local, weight, downhill)
        while True:
            h, _ = conjugate_gradients(
                lambda v, local=local: local.adjoint(weight * local.forward(v)),  # type: ignore[misc]
                downhill,
                inner,
                INNER_TOL,
                INNER_CAP,
                local.precondition,
                damping * unit,
            )
            trial = linearise(z + h)
            lower = float(weight @ trial.residual**2)
            if lower < loss:
                break
            damping = max(10 * damping, 1e-4)
            if damping > LAST_DAMPING or not unit:
                return Status.converged  # as far as rounding allows
        gain, z, local, loss = loss - lower, z + h, trial, lower
        yield Place(z, loss)
        if gain <= tol * loss:
            return Status.converged
        damping = damping / 10 if damping > 1e-6 else 0.0
    return Status.out_of_steps


def _curvature(local: LinearisedResidual, weight: np.ndarray, direction: np.ndarray) -> float:
    """Return the curvature of the loss along a direction, in units of the preconditioner."""
    step = direction if local.precondition is None else local.precondition(direction)
    size = inner(direction, step)
    return float(weight @ local.forward(step) ** 2) / size if size > 0 else 0.0
