"""The products of rows behind the evidence of a rank: those of its linear model, in one pass.

The tangent space of the rank-k matrices at M = U diag(s) Uᵀ depends only on the span of U and
contains M, so on it the model is linear in its parameters. With k = 0 it is ridge regression,
and with k = d ridge regression on all products of two features.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt

import numpy as np
from scipy.linalg import cho_solve

from quadlin.core.arrays import Array, is_numpy, lead, moved, namespace, solved, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, folded
from quadlin.core.model import Model, tied
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.evidence import (
    ColumnGram,
    KernelRows,
    RowKernel,
    factored,
    with_ridge,
)
from quadlin.solve.lowrank.exact import (
    EXACT_COLUMNS,
    EXACT_ENTRIES,
    EXACT_FEATURES,
    EXACT_ROWS,
    Alpha,
    dense,
)
from quadlin.solve.lowrank.types import Options
from quadlin.solve.lowrank.whitening import Covariance

MARGIN = 2.0  # of log evidence, to accept a quadratic part: noise reaches it in one of 20 tables
ROUNDING = 1e-12  # of the largest eigenvalue of a Gram matrix: smaller ones count as zero
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

    def matrix(self, theta: np.ndarray) -> np.ndarray:
        """Return the sum of the directions with coefficients θ (size,)."""
        W = to_numpy(self.W)
        C, stop = np.zeros_like(W), 0
        for a in range(self.rank):
            stop, start = stop + len(W) - a, stop
            C[a, a:] = theta[start:stop] / sqrt(2)
            C[a, a] *= sqrt(2) / 2
        return np.asarray(W @ (C + C.T) @ W.T)

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


def rotated(A: Array, everywhere: Array, shifted: bool = True) -> Array:
    """Return the rows a + a₀ in rotated coordinates, whose first axis is that of a₀.

    For features far from zero, a₀ is so large that rounding hides the rest in a sum of products. In
    these coordinates that happens only in one of them. The ridge is the same in all coordinates.
    Unless `shifted`, return the rows a: coefficients in these coordinates, rotated back.
    """
    xp = namespace(A)
    size = float(xp.linalg.vector_norm(everywhere))
    if size == 0:
        return A
    first = xp.arange(A.shape[1], device=A.device) == 0
    sign = 1.0 if float(everywhere[0]) >= 0 else -1.0
    mirror = everywhere / size + xp.where(first, sign, 0.0)  # Householder: a₀ becomes −sign|a₀|e₁
    mirror = mirror / xp.linalg.vector_norm(mirror)
    A = A - 2 * (A @ mirror)[:, None] * mirror
    return A - xp.where(first, sign * size, 0.0) if shifted else A


def least_squares(A: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return the smallest solution of A θ = b, and whether all columns that vary determine it.

    In units in which the diagonal of A is 1, eigenvalues that are only rounding count as zero.
    """
    diagonal = np.diag(A)
    unit = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, V = np.linalg.eigh(unit[:, None] * A * unit) if len(A) else (np.zeros(0), A)
    kept = values > ROUNDING * values.max(initial=0.0)
    V = V[:, kept]
    theta = unit * (V @ ((V.T @ (unit * b)) / values[kept]))
    return theta, int(kept.sum()) == np.count_nonzero(diagonal)


@dataclass(frozen=True)
class TangentGram:
    """The linear model on the tangent space: the products of (1, z, directions, y)."""

    basis: Basis
    products: np.ndarray  # (p + 2, p + 2), or (p + 1, p + 1) without an intercept
    options: Options
    weight: float  # Σω

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

    def covariance(self, units: Units) -> Covariance | None:
        """Return Σω z zᵀ of the features; None if parts are tied, since the sums then differ."""
        if not (self.options.fit_linear and self.options.fit_intercept):
            return None
        d, rho = self.basis.W.shape[0], to_numpy(units.penalty_scale).astype(np.float64)
        G = rho[:, None] * self.products[1 : d + 1, 1 : d + 1] * rho
        moments = namespace(units.scale).astype(moved(G, units.scale), units.scale.dtype)
        return Covariance(float(self.products[0, 0]), moments)

    def everywhere(self, units: Units) -> np.ndarray | None:
        """Return what the directions have in every row without an intercept; None with one."""
        if self.options.fit_intercept:
            return None
        zero = to_numpy(units.nu / units.penalty_scale).astype(np.float64)
        at_zero = self.basis.quadratic(moved(zero, units.scale)[None, :], units.free == 0)
        return np.asarray((-1 if self.options.fit_linear else 1) * to_numpy(at_zero)[0, :])

    def matrix(self, theta: np.ndarray, units: Units) -> np.ndarray:
        """Return the M of the coefficients of the directions."""
        everywhere = self.everywhere(units)
        if everywhere is not None and len(theta):
            theta = rotated(theta[None, :], everywhere, shifted=False)[0]
        return self.basis.matrix(theta)

    def model(self, units: Units, alpha: Alpha) -> Model | None:
        """Return the optimum, cut to the rank of its basis; None if the rows do not determine M."""
        gram, ridge = self.centred(1.0), self.penalty(alpha)[int(self.options.fit_intercept) :]
        A = with_ridge(gram.products, ridge)
        L = factored(A) if ridge.min(initial=1.0) > 0 else None
        if L is not None:
            theta = np.asarray(cho_solve((L, True), gram.right, check_finite=False))
            return self.model_of(theta, self.basis.rank, units)
        theta, determined = least_squares(A, gram.right)
        if self.basis.rank and not determined:
            return None
        return self.model_of(theta, self.basis.rank, units)

    def model_of(self, theta: np.ndarray, rank: int, units: Units) -> Model:
        """Return the model of coefficients, with M truncated to a rank.

        Parts that are not fitted are tied to M, in float64: with means far from zero, float32 would
        be too inexact.
        """
        options, d = self.options, self.basis.W.shape[0]
        rho, free = (to_numpy(a).astype(np.float64) for a in (units.penalty_scale, units.free))
        size, w, c = d * options.fit_linear, np.zeros(d), 0.0
        if options.fit_intercept:
            c = float(self.products[0, -1] - self.products[0, 1:-1] @ theta)
            c /= float(self.products[0, 0])
        if size:
            w = theta[:size]
            if not options.fit_intercept:
                zero = to_numpy(units.nu).astype(np.float64) / rho
                w = rotated(w[None, :], zero, shifted=False)[0]
            w = w / rho
        M = self.matrix(theta[size:], units) / np.outer(rho, rho)
        s, U = lead(M, rank, options.psd)
        xp, like = namespace(units.scale), units.scale
        plain = options.fit_linear and options.fit_intercept

        def array(a: np.ndarray) -> Array:
            dtype = like.dtype if plain else xp.float64
            return xp.asarray(a, dtype=dtype, device=like.device)

        c += float((U * U @ s) @ free)
        model = Model(array(U), array(s), array(w), c, array(free))
        return tied(model, units, options.fit_linear, options.fit_intercept)

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
    return TangentGram(basis, G if options.fit_intercept else G[1:, 1:], options, float(G[0, 0]))


def product_kernel(rows: Rows, units: Units, weight: float, linear: bool = False) -> RowKernel:
    r"""Return the model of all products, or the `linear` one, from products of rows.

    The ridge α₁|w|² + 2α₂|M|² has the kernel :math:`z^\top z'/\alpha_1 + (z^\top z')^2/2\alpha_2`
    of features z/ρ, without the squares of those without a diagonal. One pass, O(n²) memory.
    """
    d, chunks = units.scale.shape[0], rows.collect(Chunk.counting)
    xp, rho = namespace(units.scale), units.penalty_scale
    Z = xp.concat([dense(c, units) for c in chunks]) / xp.astype(rho, xp.float64)
    y = np.concatenate([to_numpy(units.standardised_target(c.y)) for c in chunks])
    omega = np.concatenate([to_numpy(c.weights) for c in chunks]).astype(np.float64)
    root, share = np.sqrt(omega), omega / omega.sum()
    L = Z @ Z.T
    kernels, sizes = [L], [d]
    if not linear:
        Q = L * L
        fixed = units.free == 0
        if bool(xp.any(fixed)):
            squares = Z * Z * xp.astype(fixed, xp.float64)
            Q -= squares @ squares.T
        Q /= 2
        kernels, sizes = [L, Q], [d, d * (d + 1) // 2]
    centred = [_centred(to_numpy(K), root, share) for K in kernels]
    table = KernelRows(to_numpy(Z), root, float(share @ y))
    y = root * (y - table.mean)
    return RowKernel(centred, y, share, max(weight - 1, 1.0), sizes, table=table)


def _centred(K: np.ndarray, root: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return √ω (I − 1ω̄ᵀ) K (I − ω̄1ᵀ) √ω, in place: the intercept is not penalised."""
    mean = K @ share
    K -= mean[:, None]
    K -= mean[None, :]
    K += share @ mean
    if np.any(root != 1):
        K *= root[:, None]
        K *= root[None, :]
    return K


def kernel_model(kernel: RowKernel, units: Units, alpha: Alpha) -> Model:
    """Return the optimum of rank 0 or d from the products of rows."""
    assert kernel.table is not None
    (Z, root, mean), share = kernel.table, kernel.shares
    a = root * solved(kernel.summed(alpha) + np.eye(len(root)), kernel.y[:, None])[:, 0]
    a -= share * a.sum()
    rho, free = (to_numpy(v).astype(np.float64) for v in (units.penalty_scale, units.free))
    w = Z.T @ a / alpha[0]
    f, s, U = Z @ w, np.zeros(0), np.zeros((len(w), 0))
    if len(kernel.kernels) > 1:
        M = (Z * a[:, None]).T @ Z / (2 * alpha[1])
        M -= np.diag((1 - free) * np.diag(M))
        f += np.sum((Z @ M) * Z, axis=1)
        s, U = lead(M / np.outer(rho, rho), len(w))
    c = mean - float(share @ f) + float((U * U @ s) @ free)
    U, s, w = (units.array(v) for v in (U, s, w / rho))
    return Model(U, s, w, c, units.free)


def linear_solver(
    rows: Rows, units: Units, options: Options, n_rows: int, weight: float, linear: bool
) -> Callable[[Alpha], Model | None] | None:
    """Return the optimum of rank 0, if `linear`, or rank d, as a function of the penalties.

    From the smaller of two matrices: one pass. None if both are too large.
    """
    d = int(units.scale.shape[0])
    columns = d if linear else d + d * (d + 1) // 2
    if not options.plain or not (linear or d <= EXACT_FEATURES):
        return None
    if columns <= min(n_rows, EXACT_COLUMNS):
        like = units.scale
        identity = namespace(like).eye(d, dtype=like.dtype, device=like.device)
        gram = tangent_gram(rows, units, options, identity[:, : 0 if linear else d])
        return partial(gram.model, units)
    if n_rows <= EXACT_ROWS and n_rows * d <= EXACT_ENTRIES:
        return partial(kernel_model, product_kernel(rows, units, weight, linear), units)
    return None
