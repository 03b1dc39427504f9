"""The columns of a linear model: features, the directions of a space of matrices, chosen products.

The tangent space of the rank-k matrices at M = U diag(s) Uᵀ depends only on the span of U and
contains M, so on it the model is linear in its parameters. With k = 0 it is ridge regression,
and with k = d ridge regression on all products of two features. A few products z_i·z_j may be added
to either.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import sqrt

import numpy as np

from quadlin.core.arrays import Array, lead, moved, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model, Steps, tied
from quadlin.core.units import Units
from quadlin.solve.lowrank.types import Options

EXACT_ROWS, EXACT_COLUMNS = 3000, 1500  # the largest matrix that is factored: 0.1 s
EXACT_ENTRIES = 1 << 25  # of dense rows or products at a time: 256 MB
EXACT_FEATURES = 500  # the maximum for an M of full rank
CACHED_ENTRIES = 1 << 18  # of columns at a time: more would not stay in the cache

Alpha = tuple[float, float]  # the penalties of w and M
NONE = np.zeros(0, np.int64)  # products


def dense(chunk: Chunk, units: Units) -> Array:
    """Return standardised rows as a dense array, in float64."""
    Z = units.standardised(chunk.X)
    xp = namespace(Z)
    return xp.astype(Z, xp.float64)


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

    @property
    def corner(self) -> np.ndarray:
        """Return the first k columns E of W."""
        return to_numpy(self.W)[:, : self.rank]

    def factors(self, theta: np.ndarray) -> np.ndarray:
        """Return H (d, m, k) with E Hᵀ + H Eᵀ the sums of the directions with coefficients θ."""
        W = to_numpy(self.W)
        C, stop = np.zeros((self.rank, len(W), theta.shape[1])), 0
        for a in range(self.rank):
            stop, start = stop + len(W) - a, stop
            C[a, a:] = theta[start:stop] / sqrt(2)
            C[a, a] *= sqrt(2) / 2
        return np.moveaxis(np.tensordot(W, C, axes=(1, 1)), 1, 2)

    def matrix(self, theta: np.ndarray) -> np.ndarray:
        """Return the sum of the directions with coefficients θ (size,)."""
        EH = self.corner @ self.factors(theta[:, None])[:, 0, :].T
        return np.asarray(EH + EH.T)

    def quadratic(self, Z: Array, fixed: Array) -> Array:
        """Return zᵀBz, (size, n), for every direction B; squares are left out if `fixed`."""
        xp = namespace(Z)
        # W is the identity for all products.
        values = self._pairs(self.W.T @ Z.T if 0 < self.rank < self.W.shape[0] else Z.T)
        if bool(xp.any(fixed)):
            places = xp.nonzero(fixed)[0]
            squares = xp.take(Z, places, axis=1).T ** 2
            values = values - self._pairs(xp.take(self.W, places, axis=0).T) @ squares
        return values

    def _pairs(self, A: Array) -> Array:
        """Return the products of rows i < k and j ≥ i, times √2 if i ≠ j."""
        rows = [A[:0, :]]
        for i in range(self.rank):
            rows += [A[i : i + 1, :] ** 2, sqrt(2) * A[i : i + 1, :] * A[i + 1 :, :]]
        return namespace(A).concat(rows, axis=0)


@dataclass(frozen=True)
class Design:
    r"""Columns φ = (1, z/ρ, zᵀBz/ρ², z_i z_j/ρ_i ρ_j) of rows, parameters θ as models: f = φᵀθ.

    Without a linear part, M acts on z + ν, the features relative to their own zero. Without an
    intercept, w acts on it, and M predicts zero there. An intercept absorbs what is constant.
    """

    units: Units
    options: Options
    basis: Basis
    i: np.ndarray = field(default_factory=lambda: NONE)  # (m,), chosen products, i ≤ j
    j: np.ndarray = field(default_factory=lambda: NONE)  # (m,)

    @classmethod
    def at(cls, U: Array, units: Units, options: Options) -> "Design":
        """Return the design of the tangent space at the span of U (d, k), in standardised units."""
        return cls(units, options, Basis.at(U, units))

    @classmethod
    def of_rank(cls, k: int, units: Units, options: Options) -> "Design":
        """Return the design without M (k = 0), or with all products (k = d)."""
        d, like = int(units.scale.shape[0]), units.scale
        identity = namespace(like).eye(d, dtype=namespace(like).float64, device=like.device)
        return cls(units, options, Basis(identity, k))

    @property
    def sizes(self) -> list[int]:
        """Return the numbers of parameters of w and of M, if there are any, and of products."""
        sizes = [self.basis.W.shape[0] * self.options.fit_linear, self.basis.size]
        if len(self.i):
            return [*sizes, len(self.i)]
        return [size for size in sizes if size] or [0]

    @property
    def unit(self) -> np.ndarray:
        """Return r of each parameter but the intercept: the ridge is α₁|w|² + 2α₂|M|²."""
        linear = self.basis.W.shape[0] * self.options.fit_linear
        parts = np.repeat([1.0, 2.0], [linear, self.basis.size])
        return np.concatenate([parts, 1.0 + (self.i == self.j)])

    def columns(self, chunk: Chunk) -> Array:
        """Return φ and the target of the rows, (n, 1 + p + 1), in float64."""
        units, options = self.units, self.options
        Z = dense(chunk, units)
        xp = namespace(Z)
        y = xp.astype(units.standardised_target(chunk.y), xp.float64)
        z, zero = Z / xp.astype(units.penalty_scale, xp.float64), moved(self.zero[None, :], Z)
        rows = [xp.ones_like(y[None, :])]
        if options.fit_linear:
            rows.append(z.T if options.fit_intercept else (z + zero).T)
        quadratic = self.basis.quadratic(z if options.fit_linear else z + zero, units.free == 0)
        if options.fit_linear != options.fit_intercept:
            quadratic = quadratic - self.basis.quadratic(zero, units.free == 0)
        i, j = (xp.take(z.T, xp.asarray(at, device=z.device), axis=0) for at in (self.i, self.j))
        return xp.concat([*rows, quadratic, i * j, y[None, :]], axis=0).T

    @property
    def zero(self) -> np.ndarray:
        """Return ν/ρ: the distance of the mean from the zero of the features."""
        return np.asarray(to_numpy(self.units.nu / self.units.penalty_scale), np.float64)

    def ties(self) -> np.ndarray:
        """Return what φ has of 1 and z (1 + d, p) besides its own columns, if parts are tied."""
        options, d = self.options, len(self.zero)
        q, fixed = d * options.fit_linear, to_numpy(self.units.free == 0)
        ties = np.zeros((1 + d, q + self.basis.size))
        of_zero = self.basis.quadratic(self.zero[None, :], fixed)
        if not options.fit_linear:
            each = np.eye(d)
            near = self.basis.quadratic(self.zero + each, fixed) - of_zero
            ties[1:] = (near - self.basis.quadratic(each, fixed)).T
        if not options.fit_intercept:
            ties[0, :q], ties[0, q:] = self.zero[:q], (1 - 2 * options.fit_linear) * of_zero[:, 0]
        return ties

    def parts(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the rows of a chunk in small parts; at least one, which may be empty."""
        return small_parts(chunk, chunk.X.shape[1] + 2 + self.basis.size + len(self.i))

    def steps(self, theta: np.ndarray, constant: np.ndarray) -> Steps:
        """Return changes of the parameters (p, m) and of the intercept (m,) as those of a model."""
        units, fit_linear, (d, k) = self.units, self.options.fit_linear, self.basis.corner.shape
        rho, free, nu = (
            to_numpy(a).astype(np.float64) for a in (units.penalty_scale, units.free, units.nu)
        )
        w, parts, products = np.split(theta, np.cumsum([d * fit_linear, self.basis.size]))
        H = self.basis.factors(parts) / rho[:, None, None]
        w = w / rho[:, None] if fit_linear else np.zeros((d, theta.shape[1]))
        E, first = self.basis.corner, np.unique(self.i)
        if len(first):  # z_i z_j is the step E Hᵀ + H Eᵀ with e_i in E and e_j/2 in H
            E = np.concatenate([E, np.eye(d)[:, first]], axis=1)
            H = np.concatenate([H, np.zeros((d, H.shape[1], len(first)))], axis=2)
            for i, j, part in zip(self.i, self.j, products, strict=True):
                H[j, :, k + int(np.searchsorted(first, i))] += part / (2 * rho[j])
        steps = Steps(E / rho[:, None], H, w, constant)
        if not fit_linear:
            steps = replace(steps, w=2 * steps.times(nu, free))
        c = free @ steps.diagonals()
        if self.options.fit_intercept:
            c = c + constant
        else:
            c = c + nu @ steps.w - nu @ steps.times(nu, free)
        return Steps(*(units.array(a) for a in (steps.E, steps.H, steps.w, c)))

    def model(self, theta: np.ndarray, constant: float) -> Model:
        """Return the model of parameters and an intercept, with M truncated to the rank.

        Chosen products are no part of it. Parts that are not fitted are tied to M, in float64: with
        means far from zero, float32 would be too inexact.
        """
        units, options, d = self.units, self.options, self.basis.W.shape[0]
        rho, free = (to_numpy(a).astype(np.float64) for a in (units.penalty_scale, units.free))
        size = d * options.fit_linear
        w = theta[:size] / rho if size else np.zeros(d)
        M = self.basis.matrix(theta[size : size + self.basis.size]) / np.outer(rho, rho)
        s, U = lead(M, self.basis.rank, options.psd)
        xp, like = namespace(units.scale), units.scale
        plain = options.fit_linear and options.fit_intercept

        def array(a: np.ndarray) -> Array:
            dtype = like.dtype if plain else xp.float64
            return xp.asarray(a, dtype=dtype, device=like.device)

        c = constant + float((U * U @ s) @ free)
        model = Model(array(U), array(s), array(w), c, array(free))
        return tied(model, units, options.fit_linear, options.fit_intercept)

    def parameters(self, model: Model) -> np.ndarray:
        """Return θ of the w and M of a model, M in the space: what `model` makes a model of."""
        rho, U, s, w = (
            to_numpy(a).astype(np.float64)
            for a in (self.units.penalty_scale, model.U, model.s, model.w)
        )
        C = to_numpy(self.basis.W).T @ (rho[:, None] * U)
        M = (C * s) @ C.T
        above = [(M[a, a:] * np.where(np.arange(len(M) - a), sqrt(2), 1)) for a in range(len(s))]
        return np.concatenate([rho * w, *above])


def small_parts(chunk: Chunk, columns: int) -> Iterator[Chunk]:
    """Yield the rows of a chunk in parts for dense columns; at least one, which may be empty."""
    n, most = chunk.X.shape[0], max(CACHED_ENTRIES // columns, 2 * columns)
    step = max(1, min(EXACT_ENTRIES // 8 // columns, most))
    if n <= step:
        yield chunk
    else:
        yield from (chunk.at(np.arange(n)[i : i + step]) for i in range(0, n, step))
