r"""Rank 0 and rank d, both ends of the path: linear in their parameters, so solved directly."""

from dataclasses import dataclass

import numpy as np

from quadlin.core.arrays import Array, diagonal, is_numpy, lead, namespace, solved, to_numpy
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive, folded
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.types import Options
from quadlin.solve.lowrank.whitening import Covariance

EXACT_ROWS, EXACT_COLUMNS = 3000, 1500  # the largest matrix that is solved directly
EXACT_ENTRIES = 1 << 25  # of dense rows or products at a time
CACHED_PRODUCTS = 1 << 17  # that fit in the cache; but never fewer rows than columns
EXACT_FEATURES = 500  # the maximum for an M of full rank

Alpha = tuple[float, float]


@dataclass(frozen=True)
class ProductPairs:
    """The products z_i z_j, i ≤ j, in the order of their columns."""

    i: Array
    j: Array
    place: Array  # (d²,), the column that each entry of M comes from
    modelled: Array  # 0 for the squares of features without a diagonal, otherwise 1

    @classmethod
    def of(cls, units: Units) -> "ProductPairs":
        """Return all pairs of features."""
        free, d = units.free, units.free.shape[0]
        xp = namespace(free)
        i, j = np.triu_indices(d)
        place = np.zeros((d, d), dtype=np.int64)
        place[i, j] = place[j, i] = np.arange(len(i))
        i, j, place = (xp.asarray(a, device=free.device) for a in (i, j, place.reshape(-1)))
        modelled = xp.where(i == j, xp.astype(xp.take(free, i), xp.float64), 1.0)
        return cls(i, j, place, modelled)


@dataclass(frozen=True)
class Normal(Additive):
    """Σω φφᵀ for φ = (1, z, z_i z_j for i ≤ j, y): ridge regression for every penalty."""

    gram: Array  # (p + 2, p + 2)


def dense(chunk: Chunk, units: Units) -> Array:
    """Return standardised rows as a dense array, in float64."""
    Z = units.standardised(chunk.X)
    xp = namespace(Z)
    return xp.astype(Z, xp.float64)


def _normal(chunk: Chunk, units: Units, pairs: ProductPairs | None) -> Normal:
    (n, d), near = chunk.X.shape, is_numpy(units.scale)
    p = d + 2 + (0 if pairs is None else pairs.i.shape[0])
    step = max(p, CACHED_PRODUCTS // p) if near else max(1, EXACT_ENTRIES // 8 // p)
    if n > step:  # there are many more products than features
        parts = MemorySource(chunk.X, chunk.y, chunk.weight, step)
        return folded(_normal, parts, (units, pairs))[0]  # type: ignore[return-value]
    Z = dense(chunk, units)
    xp = namespace(Z)
    if near:
        A = _product_rows(Z, units.standardised_target(chunk.y), pairs)
        if chunk.weight is not None:
            A *= np.sqrt(chunk.weight)
        return Normal(A @ A.T)
    columns = [xp.ones_like(Z[:, :1]), Z]
    if pairs is not None:
        columns.append(xp.take(Z, pairs.i, axis=1) * xp.take(Z, pairs.j, axis=1) * pairs.modelled)
    columns.append(xp.astype(units.standardised_target(chunk.y), xp.float64)[:, None])
    A = xp.concat(columns, axis=1)
    weight = 1.0 if chunk.weight is None else xp.astype(chunk.weight, xp.float64)[:, None]
    return Normal(A.T @ (weight * A))


def _product_rows(Z: np.ndarray, y: np.ndarray, pairs: ProductPairs | None) -> np.ndarray:
    """Return φ (p + 2, n), one row per product, so that each is contiguous."""
    n, d = Z.shape
    A = np.empty((d + 2 + (0 if pairs is None else len(pairs.i)), n))
    A[0], A[1 : d + 1], A[-1] = 1.0, Z.T, y
    if pairs is not None:
        start = d + 1
        for i in range(d):  # in the order of `ProductPairs`
            np.multiply(A[1 + i], A[1 + i : 1 + d], out=A[start : start + d - i])
            A[start] *= pairs.modelled[start - d - 1]
            start += d - i
    return A


def products_of(rows: Rows, units: Units) -> np.ndarray:
    """Return the Gram matrix of (1, z, z_i z_j for i ≤ j, y), for few features: one pass."""
    return to_numpy(rows.reduce(_normal, units, ProductPairs.of(units)).gram)


def covariance_among(products: np.ndarray, units: Units) -> Covariance:
    """Return Σω z zᵀ, which is a part of what `products_of` returns."""
    d = units.scale.shape[0]
    return Covariance(float(products[0, 0]), units.array(products[1 : d + 1, 1 : d + 1]))


class Exact:
    r"""Ridge regression on standardised features and, unless `linear`, on all their products.

    .. math:: \min \sum_i \omega_i r_i^2 + \alpha_1 |\rho \circ w|^2
              + 2 \alpha_2 \|\rho\rho^\top \circ M\|_F^2

    has the kernel :math:`z^\top z'/\alpha_1 + (z^\top z')^2/2\alpha_2` of features z/ρ, without
    the squares of those without a diagonal. The system is p×p if there are fewer products than
    rows, otherwise n×n. Given the sums of `Normal`, no row is read.
    """

    def __init__(
        self, rows: Rows, units: Units, n_rows: int, linear: bool, gram: Array | None = None
    ) -> None:
        self.units, self.linear = units, linear
        xp, d = namespace(units.scale), units.scale.shape[0]
        self.rho = xp.astype(units.penalty_scale, xp.float64)
        columns = d if linear else d + d * (d + 1) // 2
        self.primal = columns <= min(n_rows, EXACT_COLUMNS)
        if self.primal:
            self.pairs = None if linear else ProductPairs.of(units)
            self.gram = rows.reduce(_normal, units, self.pairs).gram if gram is None else gram
            return
        chunks = rows.collect(Chunk.counting)
        Z = xp.concat([dense(c, units) for c in chunks]) / self.rho
        y = xp.concat([xp.astype(units.standardised_target(c.y), xp.float64) for c in chunks])
        weights = [xp.ones_like(c.y) if c.weight is None else c.weight for c in chunks]
        weight = xp.astype(xp.concat(weights), xp.float64)
        self.Z, self.y, self.root, self.share = Z, y, xp.sqrt(weight), weight / xp.sum(weight)
        L = Z @ Z.T
        if not linear:
            Q = L * L
            fixed = units.free == 0
            if bool(xp.any(fixed)):
                squares = Z * Z * xp.astype(fixed, xp.float64)
                Q -= squares @ squares.T
            Q /= 2
            self.Q = self._centred(Q)
        self.L = self._centred(L)

    @property
    def entries(self) -> int:
        """Return the number of entries of the matrices."""
        n = self.gram.shape[0] if self.primal else self.L.shape[0]
        return int(n * n if self.primal or self.linear else 2 * n * n)

    def _centred(self, K: Array) -> Array:
        """Return √ω (I − 1ω̄ᵀ) K (I − ω̄1ᵀ) √ω: the intercept is not penalised."""
        mean = K @ self.share
        K -= mean[:, None]  # in place: these matrices are the largest, and nobody else uses them
        K -= mean[None, :]
        K += self.share @ mean
        if bool(namespace(K).any(self.root != 1)):
            K *= self.root[:, None]
            K *= self.root[None, :]
        return K

    def model(self, alpha: Alpha, rank: int) -> Model:
        """Return the optimum with M truncated to a rank: exact for 0 if `linear`, or for d."""
        w, M, c = self._primal(*alpha) if self.primal else self._dual(*alpha)
        xp = namespace(w)
        like = self.units.scale
        if M is None:
            U, s = xp.zeros((w.shape[0], 0), dtype=w.dtype, device=like.device), w[:0]
        else:
            s, U = lead(M, rank)
        U, s, w = (xp.astype(a, like.dtype) for a in (U, s, w))
        return Model(U, s, w, float(c), self.units.free)

    def _primal(self, first: float, second: float) -> tuple[Array, Array | None, Array]:
        xp, d = namespace(self.gram), self.units.scale.shape[0]
        rho = self.rho**2
        parts = [0 * rho[:1], first * rho]
        if self.pairs is not None:
            i, j = self.pairs.i, self.pairs.j
            square = xp.astype(i == j, xp.float64)
            parts.append(second * (1 + square) * xp.take(rho, i) * xp.take(rho, j))
        A, b = self.gram[:-1, :-1], self.gram[:-1, -1:]
        beta = solved(A + diagonal(xp.concat(parts)), b)[:, 0]
        w, c = beta[1 : d + 1], beta[0]
        if self.pairs is None:
            return w, None, c
        M = xp.reshape(xp.take(beta[d + 1 :], self.pairs.place), (d, d))
        M = (M + diagonal(xp.linalg.diagonal(M))) / 2
        return w, M, c + xp.linalg.trace(M)

    def _dual(self, first: float, second: float) -> tuple[Array, Array | None, Array]:
        xp, Z = namespace(self.Z), self.Z
        K = self.L / first if self.linear else self.L / first + self.Q / second
        K = K + diagonal(xp.ones_like(self.y))
        mean = self.share @ self.y
        a = self.root * solved(K, (self.root * (self.y - mean))[:, None])[:, 0]
        a = a - self.share * xp.sum(a)
        w = Z.T @ a / first
        if self.linear:
            return w / self.rho, None, mean - self.share @ (Z @ w)
        M = (Z * a[:, None]).T @ Z / (2 * second)
        free = xp.astype(self.units.free, xp.float64)
        M = M - diagonal((1 - free) * xp.linalg.diagonal(M))
        f = Z @ w + xp.sum((Z @ M) * Z, axis=1)
        M = M / self.rho[:, None] / self.rho
        return w / self.rho, M, mean - self.share @ f + xp.linalg.trace(M)


def exact_solver(
    rows: Rows, units: Units, options: Options, n_rows: int, linear: bool
) -> Exact | None:
    """Return the solver for rank 0, if `linear`, or rank d: one pass; None if it is too large."""
    d = units.scale.shape[0]
    columns = d if linear else d + d * (d + 1) // 2
    dual = n_rows <= EXACT_ROWS and n_rows * d <= EXACT_ENTRIES
    fits = columns <= min(n_rows, EXACT_COLUMNS) or dual
    plain = options.fit_linear and options.fit_intercept and not options.psd
    fits = fits and plain and (linear or d <= EXACT_FEATURES)
    return Exact(rows, units, n_rows, linear) if fits else None
