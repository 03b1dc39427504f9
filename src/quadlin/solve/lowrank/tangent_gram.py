"""The products of rows behind the evidence of a rank: those of its linear model, in one pass.

The tangent space of the rank-k matrices at M = U diag(s) Uᵀ depends only on the span of U and
contains M, so on it the model is linear in its parameters. With k = 0 it is ridge regression,
and with k = d ridge regression on all products of two features.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np

from quadlin.core.arrays import Array, is_numpy, moved, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, folded
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.evidence import ColumnGram, RowKernel
from quadlin.solve.lowrank.exact import EXACT_ENTRIES, Alpha, Exact, dense
from quadlin.solve.lowrank.types import Options
from quadlin.solve.lowrank.whitening import Covariance

MARGIN = 2.0  # of log evidence, to accept a quadratic part: noise reaches it in one of 20 tables
CACHED_ENTRIES = 1 << 18  # of columns at a time: more would not stay in the cache


@dataclass(frozen=True)
class Basis:
    """An orthonormal basis of the tangent space: w_i w_iᵀ, (w_i w_jᵀ + w_j w_iᵀ)/√2, i < k, i < j.

    In units z/ρ, with the same ridge for all features.
    """

    W: Array  # (d, d), orthonormal, the span of U first
    rank: int

    @classmethod
    def at(cls, U: Array, units: Units) -> "Basis":
        """Return the basis at the span of U (d, k) in standardised units."""
        xp, (d, k) = namespace(U), U.shape
        if k in (0, d):
            return cls(xp.eye(d, dtype=xp.float64, device=U.device), k)
        rho = xp.astype(units.penalty_scale, xp.float64)[:, None]
        return cls(xp.linalg.qr(rho * xp.astype(U, xp.float64), mode="complete")[0], k)

    @property
    def size(self) -> int:
        """Return the number of directions."""
        d, k = self.W.shape[0], self.rank
        return int(d * k - k * (k - 1) // 2)

    def quadratic(self, Z: Array, fixed: Array) -> Array:
        """Return zᵀBz, (n, size), for every direction B; squares are left out if `fixed`."""
        xp = namespace(Z)
        values = self._pairs(Z @ self.W if 0 < self.rank < self.W.shape[0] else Z)  # W may be I
        if bool(xp.any(fixed)):
            places = xp.nonzero(fixed)[0]
            squares = xp.take(Z, places, axis=1) ** 2
            values = values - squares @ self._pairs(xp.take(self.W, places, axis=0))
        return values

    def write_quadratic(self, Z: np.ndarray, fixed: np.ndarray, out: np.ndarray) -> None:
        """Write the same into `out` (size, n), one contiguous row per direction."""
        if not self.rank:
            return
        rows = np.ascontiguousarray((Z @ self.W if self.rank < len(self.W) else Z).T)
        start = 0
        for i in range(self.rank):
            stop = start + len(rows) - i
            np.multiply(sqrt(2) * rows[i], rows[i:], out=out[start:stop])
            np.square(rows[i], out=out[start])
            start = stop
        if fixed.any():
            out -= self._pairs(self.W[fixed]).T @ Z[:, fixed].T ** 2

    def _pairs(self, A: Array) -> Array:
        """Return the products of columns i < k and j ≥ i, times √2 if i ≠ j."""
        columns = [A[:, :0]]
        for i in range(self.rank):
            columns += [A[:, i : i + 1] ** 2, sqrt(2) * A[:, i : i + 1] * A[:, i + 1 :]]
        return namespace(A).concat(columns, axis=1)


@dataclass(frozen=True)
class Products(Additive):
    """Σω φφᵀ for φ = (1, z, the directions of a basis, y)."""

    gram: Array


def products(chunk: Chunk, units: Units, options: Options, basis: Basis) -> Products:
    """Sum over one chunk, in float64."""
    # In small parts, since there are many more columns than features.
    parts = chunk_parts(chunk, basis)
    return folded(_products, parts, (units, options, basis))[0]  # type: ignore[return-value]


def chunk_parts(chunk: Chunk, basis: Basis) -> Iterator[Chunk]:
    """Yield the rows of a chunk in small parts; at least one, which may be empty."""
    n, d = chunk.X.shape
    size = d + 2 + basis.size
    step = max(1, min(EXACT_ENTRIES // 8 // size, max(CACHED_ENTRIES // size, 2 * size)))
    if n <= step:
        yield chunk
    else:
        yield from (chunk.at(np.arange(n)[i : i + step]) for i in range(0, n, step))


def _products(chunk: Chunk, units: Units, options: Options, basis: Basis) -> Products:
    A = columns(chunk, units, options, basis)
    if chunk.weight is not None:
        xp = namespace(A)
        A = xp.sqrt(xp.astype(chunk.weight, xp.float64))[:, None] * A
    return Products(A.T @ A)


def columns(chunk: Chunk, units: Units, options: Options, basis: Basis) -> Array:
    """Return φ of the rows, with the parts that are tied to others.

    Without a linear part, M acts on z + ν, the features relative to their own zero. Without an
    intercept, w acts on it, and M predicts zero there. An intercept absorbs what is constant.
    """
    Z = dense(chunk, units)
    xp = namespace(Z)
    nu, rho = (xp.astype(a, xp.float64) for a in (units.nu, units.penalty_scale))
    fixed = units.free == 0
    z, zero = Z / rho, nu / rho
    y = xp.astype(units.standardised_target(chunk.y), xp.float64)
    if options.fit_linear and options.fit_intercept and is_numpy(z):
        rows, d = np.empty((1 + z.shape[1] + basis.size + 1, len(z))), z.shape[1]
        rows[0], rows[1 : d + 1], rows[-1] = 1.0, z.T, y
        basis.write_quadratic(z, fixed, rows[d + 1 : -1])
        return rows.T
    parts = [xp.ones_like(Z[:, :1])]
    if options.fit_linear:
        parts.append(z if options.fit_intercept else rotated(z, zero))
    if options.fit_linear and options.fit_intercept:
        quadratic = basis.quadratic(z, fixed)
    else:
        at_zero = basis.quadratic(zero[None, :], fixed)
        everywhere = -at_zero[0, :] if options.fit_linear else at_zero[0, :]
        quadratic = basis.quadratic(z, fixed)
        if not options.fit_linear:
            quadratic = basis.quadratic(z + zero, fixed) - at_zero
        if not options.fit_intercept:
            quadratic = rotated(quadratic, everywhere)
    return xp.concat([*parts, quadratic, y[:, None]], axis=1)


def rotated(A: Array, everywhere: Array) -> Array:
    """Return the rows a + a₀ in rotated coordinates, whose first axis is that of a₀.

    For features far from zero, a₀ is so large that rounding hides the rest in a sum of products. In
    these coordinates that happens only in one of them. The ridge is the same in all coordinates.
    """
    xp = namespace(A)
    size = float(xp.linalg.vector_norm(everywhere))
    if size == 0:
        return A
    first = xp.arange(A.shape[1], device=A.device) == 0
    sign = 1.0 if float(everywhere[0]) >= 0 else -1.0
    mirror = everywhere / size + xp.where(first, sign, 0.0)  # Householder: a₀ becomes −sign|a₀|e₁
    mirror = mirror / xp.linalg.vector_norm(mirror)
    return A - 2 * (A @ mirror)[:, None] * mirror - xp.where(first, sign * size, 0.0)


@dataclass(frozen=True)
class TangentGram:
    """The linear model on the tangent space: the products of (1, z, directions, y)."""

    basis: Basis
    products: np.ndarray  # (p + 2, p + 2), or (p + 1, p + 1) without an intercept
    options: Options

    @property
    def groups(self) -> list[tuple[int, float]]:
        """Return how many parameters w and M have, and their r: α₁|w|² + 2α₂|M|²."""
        return [(self.basis.W.shape[0] * self.options.fit_linear, 1.0), (self.basis.size, 2.0)]

    @property
    def unit(self) -> np.ndarray:
        """Return r of each parameter except the intercept."""
        return np.repeat([r for _, r in self.groups], [size for size, _ in self.groups])

    def penalty(self, alpha: Alpha) -> np.ndarray:
        """Return the ridge of each parameter, the intercept's first."""
        first = np.zeros(int(self.options.fit_intercept))
        return np.append(first, np.repeat(alpha, [size for size, _ in self.groups]) * self.unit)

    def of_products(self, units: Units) -> Array:
        """Return the products of (1, z, z_i z_j for i ≤ j, y), without z_i z_j for rank 0."""
        rho = to_numpy(units.penalty_scale).astype(np.float64)
        i, j = np.triu_indices(len(rho)) if self.basis.rank else (np.zeros(0, np.int64),) * 2
        pairs = rho[i] * rho[j] * np.where(i == j, 1.0, sqrt(0.5))
        scale = np.concatenate([[1.0], rho, pairs, [1.0]])
        return moved(scale[:, None] * self.products * scale, units.scale)

    def covariance(self, units: Units) -> Covariance:
        """Return Σω z zᵀ of the features, if nothing is tied and there is an intercept."""
        d, rho = self.basis.W.shape[0], to_numpy(units.penalty_scale).astype(np.float64)
        G = rho[:, None] * self.products[1 : d + 1, 1 : d + 1] * rho
        moments = namespace(units.scale).astype(moved(G, units.scale), units.scale.dtype)
        return Covariance(float(self.products[0, 0]), moments)

    def centred(self, weight: float) -> ColumnGram:
        """Return what the evidence needs, with the intercept eliminated."""
        G = self.products
        if self.options.fit_intercept:
            G = G[1:, 1:] - np.outer(G[0], G[0])[1:, 1:] / G[0, 0]
            weight = max(weight - 1, 1.0)  # if all rows are equal, nothing remains
        sizes = [size for size, _ in self.groups if size] or [0]
        return ColumnGram(G[:-1, :-1], G[:-1, -1], float(G[-1, -1]), weight, sizes, self.unit)


@dataclass(frozen=True)
class Candidate:
    """A rank with its best penalties."""

    rank: int
    evidence: float
    alpha: Alpha
    noise: float  # σ², of the standardised target
    gram: TangentGram | RowKernel  # from which the evidence was computed
    model: Model | None = None  # if it was fitted for that

    @property
    def key(self) -> tuple[int, Alpha]:
        """Return what distinguishes candidates on the same rows."""
        return self.rank, self.alpha

    @property
    def parameters(self) -> int:
        """Return the number of parameters except the intercept."""
        if isinstance(self.gram, RowKernel):
            return sum(self.gram.sizes)
        return sum(size for size, _ in self.gram.groups)

    @property
    def merit(self) -> float:
        """Return the evidence, less the advantage that a quadratic part must have."""
        return self.evidence - MARGIN * (self.rank > 0)


def tangent_gram(rows: Rows, units: Units, options: Options, U: Array) -> TangentGram:
    """Return the linear model on the tangent space at the span of U: one pass, O(p²) memory."""
    basis = Basis.at(U, units)
    G = to_numpy(rows.reduce(products, units, options, basis).gram)
    return TangentGram(basis, G if options.fit_intercept else G[1:, 1:], options)


def product_kernel(
    rows: Rows, units: Units, n_rows: int, weight: float, linear: bool = False
) -> tuple[RowKernel, Array]:
    """Return the model of all products, or the `linear` one, from products of rows; and the rows.

    One pass, O(n²) memory.
    """
    exact, d = Exact(rows, units, n_rows, linear), units.scale.shape[0]
    y = to_numpy(exact.root * (exact.y - exact.share @ exact.y))
    parts = [(exact.L, d)] if linear else [(exact.L, d), (exact.Q, d * (d + 1) // 2)]
    kernels, sizes = [to_numpy(K) for K, _ in parts], [size for _, size in parts]
    return RowKernel(kernels, y, to_numpy(exact.share), max(weight - 1, 1.0), sizes), exact.Z
