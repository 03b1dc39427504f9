r"""Whitening as a change of coordinates on the d×k side: the rows themselves are never touched.

For features of covariance Σ and :math:`B \Sigma B^\top \approx I`, the model is written as
w = B v and M = (BU) diag(s) (BU)ᵀ. For a product with whitened rows, B is applied to a thin matrix,
which is then multiplied by the original rows; so sparse rows stay sparse.
"""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import Array, diagonal, lead, namespace, orthonormal
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, by_products, in_wide_blocks
from quadlin.core.model import in_dtype
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.krylov import block_krylov

FULL_LIMIT = 2000  # features up to which a d×d matrix is formed
SHRINKAGE = 0.01  # of the mean eigenvalue: less fails with rare levels, more slows fits down
SHARP = 1e-12  # of the mean eigenvalue: smaller ones count as zero
PROBES = 8
LOWRANK, LOWRANK_BLOCKS = 50, 3
LOWRANK_ELEMENTS = 1 << 25  # most entries of the low-rank factor
FLOOR = 0.02  # of the variance that the low-rank part leaves to each feature
ENERGY_RATIO, ENERGY_EXCESS = 1.5, 0.02  # above these the features count as correlated


@dataclass(frozen=True)
class Identity:
    """No whitening, except for the ridge: B = I/√(1 + ridge)."""

    size: float = 1.0

    def apply(self, Q: Array) -> Array:
        """Return B Q."""
        return self.size * Q

    transpose = apply  # B is symmetric

    def inverse(self, Q: Array) -> Array:
        """Return B⁻¹ Q."""
        return Q / self.size


@dataclass(frozen=True)
class Full:
    """B = V diag(size)^(−1) Vᵀ from the eigenvectors of the d×d covariance, size² ≈ e + ridge."""

    V: Array  # (d, d), orthonormal
    values: Array  # (d,), e, increasing
    size: Array  # (d,)

    def apply(self, Q: Array) -> Array:
        """Return B Q."""
        return self.V @ _scaled(1 / self.size, self.V.T @ Q)

    transpose = apply  # B is symmetric

    def inverse(self, Q: Array) -> Array:
        """Return B⁻¹ Q."""
        return self.V @ _scaled(self.size, self.V.T @ Q)


@dataclass(frozen=True)
class LowRank:
    """B = H (I − P diag(t) Pᵀ) for Σ ≈ H⁻¹ (I + P diag(g²) Pᵀ) H⁻¹: O(rd) memory."""

    h: Array  # (d,)
    P: Array  # (d, r), orthonormal
    t: Array  # (r,), 1 − 1/√(1 + g²)

    def apply(self, Q: Array) -> Array:
        """Return B Q."""
        return _scaled(self.h, self._inner(Q))

    def transpose(self, Q: Array) -> Array:
        """Return Bᵀ Q."""
        return self._inner(_scaled(self.h, Q))

    def inverse(self, Q: Array) -> Array:
        """Return B⁻¹ Q."""
        Q = _scaled(1 / self.h, Q)
        return Q + self.P @ _scaled(self.t / (1 - self.t), self.P.T @ Q)

    def _inner(self, Q: Array) -> Array:
        return Q - self.P @ _scaled(self.t, self.P.T @ Q)


Whitener = Identity | Full | LowRank


def in_float64(white: Whitener) -> Whitener:
    """Return the whitener in float64, with vectors that are orthonormal to its precision.

    B B⁻¹ is then the identity up to rounding of float64, not of their former dtype.
    """
    if isinstance(white, Identity):
        return white
    white = in_dtype(white, namespace(white.h if isinstance(white, LowRank) else white.V).float64)
    if isinstance(white, LowRank):
        return replace(white, P=orthonormal(white.P))
    return replace(white, V=orthonormal(white.V))


@dataclass(frozen=True)
class Covariance(Additive):
    """Σω z zᵀ Q over rows."""

    weight: float
    action: Array  # (d, q)


@by_products
def covariance(chunk: Chunk, units: Units) -> Covariance:
    """Sum z zᵀ over a chunk."""
    return Covariance(chunk.total_weight, Block(chunk.X, units).gram(chunk.weight))


@in_wide_blocks
def covariance_products(chunk: Chunk, units: Units, Q: Array) -> Covariance:
    """Sum z zᵀ Q over a chunk."""
    block = Block(chunk.X, units)
    ZQ = block.matmul(Q)
    if chunk.weight is not None:
        ZQ = namespace(ZQ).astype(chunk.weight, ZQ.dtype)[:, None] * ZQ
    return Covariance(chunk.total_weight, block.rmatmul(ZQ))


def whitener(
    rows: Rows,
    units: Units,
    ridge: float,
    rng: np.random.Generator,
    sigma: Covariance | None = None,
) -> Whitener:
    """Return the whitener for these rows with a ridge on Σ.

    It measures the energy ‖Σ − I‖²_F/d by random probes in one pass. Compared
    with (d−1)/n, its value for independent features, it shows whether there is anything to whiten.
    No pass is needed if `sigma`, Σω z zᵀ, is given.
    """
    none = Identity((1 + ridge) ** -0.5)
    energy, independent = correlation_energy(rows, units, rng, sigma)
    if not (energy >= ENERGY_RATIO * independent and energy - independent >= ENERGY_EXCESS):
        return none
    if units.scale.shape[0] > FULL_LIMIT:
        return estimate_low_rank(rows, units, ridge, rng)
    return full_whitener(units, ridge, rows.reduce(covariance, units) if sigma is None else sigma)


def correlation_energy(
    rows: Rows, units: Units, rng: np.random.Generator, sigma: Covariance | None = None
) -> tuple[float, float]:
    """Return ‖Σ − I‖²_F/d by random probes in one pass, and its value for independent features.

    Without a pass if `sigma`, Σω z zᵀ, is given.
    """
    Q = probes(units, PROBES, rng)
    if sigma is None:
        total = rows.reduce(covariance_products, units, Q)
    else:
        total = Covariance(sigma.weight, sigma.action @ Q)
    varies = namespace(Q).astype(units.scale > 0, Q.dtype)
    return off_diagonal_energy(total, varies, Q)


def probes(units: Units, width: int, rng: np.random.Generator) -> Array:
    """Return random signs (d, width), with which Σ is probed."""
    return units.array(rng.choice([-1.0, 1.0], (units.scale.shape[0], width)))


def off_diagonal_energy(total: Covariance, variances: Array, Q: Array) -> tuple[float, float]:
    """Return ‖Σ − diag variances‖²_F/d by probes Q, and its value for independent features."""
    xp = namespace(Q)
    d_eff = max(1.0, float(xp.sum(xp.astype(variances > 0, Q.dtype))))
    off = total.action / total.weight - variances[:, None] * Q
    energy = float(xp.sum(off * off)) / Q.shape[1] / d_eff
    return energy, (d_eff - 1) / total.weight


def full_whitener(units: Units, ridge: float, total: Covariance) -> Full:
    """Return the whitener for all of Σ, a d×d matrix, shrunk.

    A feature that is constant so far counts as one of variance 1, in case it begins to vary.
    """
    xp = namespace(units.scale)
    more = ridge * (units.penalty_scale**2 - 1)  # beyond the common ridge
    more = more + xp.astype(units.scale == 0, more.dtype)
    values, V = xp.linalg.eigh(total.action / total.weight + diagonal(more))
    values = xp.clip(values, min=0)
    mean = float(xp.mean(values))
    return Full(V, values, xp.sqrt(values + (SHRINKAGE * mean + ridge if mean > 0 else 1.0)))


def sharpened(white: Full) -> Full:
    """Return the whitener without shrinkage, for steps to an optimum that is near.

    Shrinkage makes a start safe, but underrates directions in which the rows hardly vary.
    Directions in which they do not vary at all are left unchanged.
    """
    xp = namespace(white.values)
    mean = float(xp.mean(white.values))
    exact = white.size * white.size - SHRINKAGE * mean
    sharp = xp.where(white.values > _floor(white.values), exact, white.size * white.size)
    sharp = xp.sqrt(sharp)
    return replace(white, size=sharp)


def with_ridge(white: Whitener, ridge: float) -> Whitener:
    """Return the whitener of the same rows, sharp, with another ridge.

    That of a low-rank part keeps its ridge, with which its directions were estimated.
    """
    if isinstance(white, Identity):
        return Identity((1 + ridge) ** -0.5)
    if isinstance(white, LowRank):
        return white
    xp, least = namespace(white.values), white.values > _floor(white.values)
    rest = SHRINKAGE * float(xp.mean(white.values)) or 1.0
    return replace(white, size=xp.sqrt(white.values + xp.where(least, 0.0, rest) + ridge))


def _floor(values: Array) -> float:
    """Return the eigenvalue below which rows do not vary, up to rounding."""
    xp = namespace(values)
    return max(SHARP, 64 * float(xp.finfo(values.dtype).eps)) * float(xp.mean(values))


def estimate_low_rank(rows: Rows, units: Units, ridge: float, rng: np.random.Generator) -> LowRank:
    """Return the whitener for the leading directions of Σ, in a few passes."""
    d = units.scale.shape[0]
    rank = min(d, LOWRANK, max(8, LOWRANK_ELEMENTS // d))

    def covariance_times(Q: Array) -> Array:
        total = rows.reduce(covariance_products, units, Q)
        return total.action / total.weight

    start = units.array(rng.standard_normal((d, rank)))
    basis, projected = block_krylov(covariance_times, start, LOWRANK_BLOCKS)
    values, vectors = lead(projected, rank, psd=True)
    varies = namespace(basis).astype(units.scale > 0, basis.dtype)
    return low_rank_whitener(basis @ vectors, values, varies, ridge * units.penalty_scale**2)


def low_rank_whitener(V: Array, values: Array, variances: Array, ridge: Array) -> LowRank:
    """Return the whitener for Σ ≈ V diag(values) Vᵀ + the rest of the variances (d,)."""
    xp = namespace(V)
    rest = xp.clip(variances - (V * V) @ values, min=FLOOR * variances) + ridge
    rest = xp.where(variances > 0, rest, 1.0)  # of a feature that may vary in later rows
    h = 1 / xp.sqrt(rest)
    P, g, _ = xp.linalg.svd(_scaled(h, V * xp.sqrt(values)), full_matrices=False)
    return LowRank(h, P, 1 - 1 / xp.sqrt(1 + g**2))


def _scaled(v: Array, Q: Array) -> Array:
    return v * Q if Q.ndim == 1 else v[:, None] * Q
