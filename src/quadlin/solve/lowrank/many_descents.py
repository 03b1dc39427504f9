"""Levenberg–Marquardt from many starts at once, in stacks of small matrices."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

import numpy as np
from scipy.linalg.lapack import dposv

ENTRIES = 1 << 20  # numbers of a stack of matrices: those of a step nearly fit in the cache
STACKED = 48  # unknowns: larger equations are solved one by one, by Cholesky's factors
# A step that lowers the loss by a smaller share is the last. The parameters are exact only to the
# root of it, so it is rounding: otherwise rows that are summed in another order would give a
# different eighth digit.
GAIN = 1e-16
FIRST, LEAST, MOST = 1e-3, 1e-12, 1e6  # of damping, in units of the mean of the diagonal
ROUNDING = 1e-15  # of the loss: if Newton's step changes it by less, nothing remains to be gained
NEAR = 1e-3  # after a step that lowers the loss by a smaller share, Newton's steps follow
SHIFTS = (1e-10, 1e-7, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)  # in units of the mean diagonal
EASE, WORSEN = 5.0, 4.0  # factors by which damping falls after a step, and grows after a failure


@dataclass(frozen=True)
class SignedFactors:
    """M = L diag(signs) Lᵀ and its loss."""

    L: np.ndarray  # (d, k)
    signs: np.ndarray  # (k,), ±1
    loss: float
    damping: float = FIRST  # of the next step


class Quadratic(Protocol):
    """The loss |R β(M) − t|² + `unexplained` of a symmetric M."""

    R: np.ndarray  # (p, pairs)
    t: np.ndarray  # (p,)
    unexplained: float
    pairs: tuple[np.ndarray, np.ndarray]
    slope: np.ndarray  # (p, d, d), ∂(Rβ)/∂L_ia = 2σ_a Σ_j slope_ij L_ja
    rounding: np.ndarray  # (d,), what L²_ia may add to |Rβ − t| by rounding

    @property
    def curvature(self) -> np.ndarray:
        """Return 4 Σ_p slope_iu slope_jv, (d³, d): at (i, u, j) and v."""


def residuals(loss: Quadratic, L: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return R β(M) − t (m, p) of m factors (m, d, k)."""
    i, j = loss.pairs
    M = (L * signs[:, None, :]) @ L.transpose(0, 2, 1)
    beta = np.where(i == j, 1.0, 2.0) * M[:, i, j]
    r: np.ndarray = beta @ loss.R.T - loss.t
    return r


def losses(loss: Quadratic, L: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Return upper bounds (m,) of |r|² of m factors (m, d, k), which allow for rounding.

    Without them M would grow forever in directions in which the rows do not vary: R is only
    rounding there, and M would be fitted to it.
    """
    size = np.linalg.norm(r, axis=1)
    bounds: np.ndarray = (size + np.sum(L**2, axis=2) @ loss.rounding) ** 2
    return bounds


def descended(
    loss: Quadratic, starts: Sequence[SignedFactors], steps: int, gain: float = GAIN
) -> list[SignedFactors]:
    """Take at most `steps` steps from each start, until one lowers the loss by no more than `gain`.

    Returns the points that they reach, the best first. `gain` is a share of the loss. All starts
    have the same rank. Memory: a stack of matrices with at most 2²⁰ numbers, or one larger one.
    """
    if not starts:
        return []
    d, k = starts[0].L.shape
    stack = max(1, ENTRIES // max(1, d**3 * k))
    stacks = (starts[i : i + stack] for i in range(0, len(starts), stack))
    ends = [reached for group in stacks for reached in _descended(loss, group, steps, gain)]
    return sorted(ends, key=attrgetter("loss"))


def _descended(
    loss: Quadratic, starts: Sequence[SignedFactors], steps: int, gain: float
) -> list[SignedFactors]:
    L, signs = np.stack([f.L for f in starts]), np.stack([f.signs for f in starts])
    value, damping = (np.array(a) for a in zip(*((f.loss, f.damping) for f in starts), strict=True))
    taken, near = np.zeros(len(starts), dtype=np.int64), np.zeros(len(starts), dtype=bool)
    r = residuals(loss, L, signs)
    moving = np.flatnonzero(taken < steps)
    while len(moving):
        at, scale = L[moving], damping[moving]
        H, g = _equations(loss, at * signs[moving, None, :], r[moving])
        bent = near[moving]
        if bent.any():
            H[bent] += _bend(loss, r[moving[bent]], signs[moving[bent]])
        diagonal = np.einsum("mii->mi", H)  # a view
        size = diagonal.sum(axis=1) / max(1, H.shape[1])
        if bent.any():
            H[bent] += size[bent, None, None] * _turns(at[bent], signs[moving[bent]])
        still = ~(size > 0)  # no direction has curvature
        diagonal += np.where(still, 1.0, scale * size)[:, None]
        tried = at - _solved(H, g, bent).reshape(at.shape)
        residual = residuals(loss, tried, signs[moving])
        after, before = losses(loss, tried, residual), value[moving]
        better = (after < before) & ~still
        L[moving[better]], value[moving[better]] = tried[better], after[better]
        r[moving[better]] = residual[better]
        damping[moving] = np.where(better, np.maximum(scale / EASE, LEAST), WORSEN * scale)
        taken[moving] += better
        near[moving] = np.where(better, before - after <= NEAR * (after + loss.unexplained), False)
        ended = better & (before - after <= gain * (after + loss.unexplained))
        ended |= bent & (np.abs(before - after) <= ROUNDING * (after + loss.unexplained))
        ended |= still | (taken[moving] >= steps) | (~better & (damping[moving] >= MOST))
        moving = moving[~ended]
    ends = zip(L, signs, value.tolist(), damping.tolist(), strict=True)
    return [SignedFactors(*reached) for reached in ends]


def _equations(loss: Quadratic, signed: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return JᵀJ (m, dk, dk) and Jᵀr (m, dk), where J is the derivative by L of m residuals.

    JᵀJ = Σ_uv L_ua curvature_iujv L_vb takes d³k(d + k) products; with J it would take d⁴k²/4.
    """
    (p, d, _), (m, _, k) = loss.slope.shape, signed.shape
    half = (loss.curvature @ signed).reshape(m, d, d, d * k)  # i, u, (j, b)
    H = (signed.transpose(0, 2, 1)[:, None] @ half).reshape(m, d * k, d * k)
    S = (r @ loss.slope.reshape(p, d * d)).reshape(m, d, d)
    return H, (2 * S @ signed).reshape(m, d * k)


def _solved(H: np.ndarray, g: np.ndarray, bent: np.ndarray) -> np.ndarray:
    """Return H⁻¹g (m, dk) of symmetric matrices (m, dk, dk), some of which may be indefinite."""
    steps, alone = np.empty_like(g), bent | (H.shape[1] > STACKED)
    steps[~alone] = np.linalg.solve(H[~alone], g[~alone, :, None])[:, :, 0]
    for m in np.flatnonzero(alone):
        steps[m] = _downwards(H[m], g[m])
    return steps


def _downwards(H: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return (H + shift)⁻¹g with the smallest of some shifts that gives a descent.

    If Newton's matrix has negative curvature, its own step would end at a saddle point.
    """
    _, step, failure = dposv(H.T, g, lower=1)
    unit = float(np.trace(H)) / len(H)
    for shift in SHIFTS:
        if not failure:
            break
        _, step, failure = dposv((H + shift * unit * np.eye(len(H))).T, g, lower=1)
    return np.asarray(step)


def _bend(loss: Quadratic, r: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return Σ_p r_p ∂²(Rβ)_p (m, dk, dk), which turns the Gauss–Newton matrix into Newton's.

    If M explains little, residuals stay large, and without this term convergence is only linear.
    """
    (p, d, _), (m, k) = loss.slope.shape, signs.shape
    S = (r @ loss.slope.reshape(p, d * d)).reshape(m, d, 1, d, 1)
    bend: np.ndarray = 2 * S * signs[:, None, :, None, None] * np.eye(k)[:, None, :]
    return bend.reshape(m, d * k, d * k)


def _turns(L: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return Σ vvᵀ (m, dk, dk) of the directions v that do not change M, with mean diagonal 1.

    They are L·B·diag(signs) with B antisymmetric. The loss is flat along them, but Newton's matrix
    has curvature of either sign there until all slopes are zero. Without this term, its steps along
    them would be arbitrary.
    """
    m, d, k = L.shape
    P, signed = L @ L.transpose(0, 2, 1), L * signs[:, None, :]
    turns = P[:, :, None, :, None] * np.eye(k)[:, None, :]
    turns = turns - signed[:, :, None, None, :] * signed.transpose(0, 2, 1)[:, None, :, :, None]
    turns = turns.reshape(m, d * k, d * k)
    size = np.einsum("mii->m", turns) / max(1, d * k)
    return np.asarray(turns / np.where(size > 0, size, 1.0)[:, None, None])
