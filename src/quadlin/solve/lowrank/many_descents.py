"""Levenberg–Marquardt from many starts at once, in stacks of small matrices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

ENTRIES = 1 << 22  # numbers of a stack of Jacobians
# A step that lowers the loss by a smaller share is the last. Places differ by the root of it, so
# it is rounding: else rows that are summed in another order end elsewhere in the eighth digit.
GAIN = 1e-16
FIRST, LEAST, MOST = 1e-3, 1e-12, 1e6  # of damping, in units of the mean of the diagonal
NEAR = 1e-3  # a step that lowers the loss by a smaller share is near the end: Newton's follow
EASE, WORSEN = 5.0, 4.0  # by what it falls after a step, and grows after a failure


@dataclass(frozen=True)
class SignedFactors:
    """M = L diag(signs) Lᵀ and its loss."""

    L: np.ndarray  # (d, k)
    signs: np.ndarray  # (k,), ±1
    loss: float


class Quadratic(Protocol):
    """The loss |R β(M) − t|² + `unexplained` of a symmetric M."""

    R: np.ndarray  # (p, pairs)
    t: np.ndarray  # (p,)
    unexplained: float
    pairs: tuple[np.ndarray, np.ndarray]
    slope: np.ndarray  # (p, d, d), ∂(Rβ)/∂L_ia = 2σ_a Σ_j slope_ij L_ja
    rounding: np.ndarray  # (d,), what L²_ia may add to |Rβ − t| by rounding


def residuals(loss: Quadratic, L: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return R β(M) − t (m, p) of m factors (m, d, k)."""
    i, j = loss.pairs
    M = (L * signs[:, None, :]) @ L.transpose(0, 2, 1)
    beta = np.where(i == j, 1.0, 2.0) * M[:, i, j]
    r: np.ndarray = beta @ loss.R.T - loss.t
    return r


def losses(loss: Quadratic, L: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Return bounds (m,) of |r|², which allow for rounding, of m factors (m, d, k).

    Without them M would grow for ever in directions in which the rows do not vary: there, R is
    nothing but rounding, which M could be fitted to.
    """
    size = np.linalg.norm(r, axis=1)
    bounds: np.ndarray = (size + np.sum(L**2, axis=2) @ loss.rounding) ** 2
    return bounds


def descended(
    loss: Quadratic, starts: Sequence[SignedFactors], steps: int, gain: float = GAIN
) -> list[SignedFactors]:
    """Take so many steps from each start at most, until one lowers the loss by a share `gain`.

    All starts have the same rank. Memory: a stack of Jacobians, at most 2²² numbers of them.
    """
    if not starts:
        return []
    (d, k), p = starts[0].L.shape, loss.R.shape[0]
    stack = max(1, ENTRIES // max(1, p * d * k))
    stacks = (starts[i : i + stack] for i in range(0, len(starts), stack))
    return [reached for some in stacks for reached in _descended(loss, some, steps, gain)]


def _descended(
    loss: Quadratic, starts: Sequence[SignedFactors], steps: int, gain: float
) -> list[SignedFactors]:
    L, signs = np.stack([f.L for f in starts]), np.stack([f.signs for f in starts])
    value, damping = np.array([f.loss for f in starts]), np.full(len(starts), FIRST)
    taken, near = np.zeros(len(starts), dtype=np.int64), np.zeros(len(starts), dtype=bool)
    r = residuals(loss, L, signs)
    moving = np.flatnonzero(taken < steps)
    while len(moving):
        at, scale = L[moving], damping[moving]
        H, g = _equations(loss, at * signs[moving, None, :], r[moving])
        if near[moving].any():
            H[near[moving]] += _bend(loss, r[moving[near[moving]]], signs[moving[near[moving]]])
        diagonal = np.einsum("mii->mi", H)  # a view
        size = diagonal.sum(axis=1) / max(1, H.shape[1])
        still = ~(size > 0)  # there is nothing to learn in any direction
        diagonal += np.where(still, 1.0, scale * size)[:, None]
        tried = at - np.linalg.solve(H, g[:, :, None]).reshape(at.shape)
        left = residuals(loss, tried, signs[moving])
        after, before = losses(loss, tried, left), value[moving]
        better = (after < before) & ~still
        L[moving[better]], value[moving[better]] = tried[better], after[better]
        r[moving[better]] = left[better]
        damping[moving] = np.where(better, np.maximum(scale / EASE, LEAST), WORSEN * scale)
        taken[moving] += better
        near[moving] = np.where(better, before - after <= NEAR * (after + loss.unexplained), False)
        ended = better & (before - after <= gain * (after + loss.unexplained))
        ended |= still | (taken[moving] >= steps) | (~better & (damping[moving] >= MOST))
        moving = moving[~ended]
    return [SignedFactors(*reached) for reached in zip(L, signs, value.tolist(), strict=True)]


def _equations(loss: Quadratic, signed: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return JᵀJ (m, dk, dk) and Jᵀr (m, dk), J the derivatives by L of m residuals."""
    (p, d, _), (m, _, k) = loss.slope.shape, signed.shape
    J = 2 * (loss.slope.reshape(p * d, d) @ signed).reshape(m, p, d * k)
    Jt = J.transpose(0, 2, 1)
    return Jt @ J, (Jt @ r[:, :, None])[:, :, 0]


def _bend(loss: Quadratic, r: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return Σ_p r_p ∂²(Rβ)_p (m, dk, dk), which makes Newton's matrix of that of Gauss.

    Residuals stay large where M explains little, and without it steps only become shorter by a
    factor each.
    """
    (p, d, _), (m, k) = loss.slope.shape, signs.shape
    S = (r @ loss.slope.reshape(p, d * d)).reshape(m, d, 1, d, 1)
    bend: np.ndarray = 2 * S * signs[:, None, :, None, None] * np.eye(k)[:, None, :]
    return bend.reshape(m, d * k, d * k)
