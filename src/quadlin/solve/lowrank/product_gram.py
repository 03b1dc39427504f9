r"""Fits of every rank and penalty from one pass: the Gram matrix of all products of two features.

If G are the products of φ = (1, z, z_i z_j, y), the linear model on any tangent space has the
matrix TᵀGT, and a Gauss–Newton step is its solution, without conjugate gradients or another pass.
"""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from quadlin.core.arrays import Array, lead, moved, namespace, to_numpy
from quadlin.core.model import Model
from quadlin.core.units import Units
from quadlin.solve.lowrank.evidence import ColumnGram
from quadlin.solve.lowrank.exact import Alpha
from quadlin.solve.lowrank.tangent import orthonormalised
from quadlin.solve.lowrank.tangent_gram import Basis, TangentGram
from quadlin.solve.lowrank.types import Options

SHARES = (1.0, 0.3, 0.1, 0.03)  # of a step
ROUNDING = 1e-12  # of the mean of a diagonal, added so that singular matrices can be solved


@dataclass(frozen=True)
class Symmetric:
    """M = U diag(s) Uᵀ, in units with the same ridge for all features, and its objective."""

    U: np.ndarray  # (d, k), orthonormal
    s: np.ndarray  # (k,)
    objective: float

    @property
    def M(self) -> np.ndarray:
        """Return the matrix."""
        return np.asarray((self.U * self.s) @ self.U.T)


class ProductGram:
    """All models of few features, from one pass: with w and b, and M of either sign."""

    def __init__(self, gram: np.ndarray, units: Units, options: Options) -> None:
        self.units, self.options, self.gram = units, options, gram
        rho = to_numpy(units.penalty_scale).astype(np.float64)
        self.d = d = len(rho)
        self.i, self.j = np.triu_indices(d)
        scale = np.concatenate([[1.0], 1 / rho, 1 / (rho[self.i] * rho[self.j]), [1.0]])
        self.G = scale[:, None] * gram * scale  # of z/ρ
        self.rho, self.weight = rho, float(gram[0, 0])
        self._factor: tuple[float, Any] | None = None  # of the features with the last ridge

    @cached_property
    def centred(self) -> np.ndarray:
        """Return the products of the centred columns (z, z_i z_j, y)."""
        G = self.G - np.outer(self.G[0], self.G[0]) / self.weight
        return np.asarray(G[1:, 1:])

    def tangent(self, U: np.ndarray) -> TangentGram:
        """Return the linear model on the tangent space at the span of U (d, k), in units z/ρ."""
        G, q, W = self.G, self.d + 1, self._basis(U)
        basis = Basis(moved(W, self.units.scale), U.shape[1])
        if U.shape[1] == self.d:  # the directions are the products, at length 1
            length = np.where(self.i == self.j, 1.0, sqrt(2))
            scale = np.concatenate([np.ones(q), length, [1.0]])
            return TangentGram(basis, scale[:, None] * G * scale, self.options)
        T = self._directions(W, U.shape[1])
        p = q + T.shape[1]
        products, across = np.empty((p + 1, p + 1)), G[:, q:-1] @ T
        products[:q, :q], products[:q, q:p] = G[:q, :q], across[:q]
        products[q:p, :q], products[q:p, q:p] = across[:q].T, T.T @ across[q:-1]
        products[p, :q], products[p, q:p], products[p, p] = G[-1, :q], across[-1], G[-1, -1]
        products[:p, p] = products[p, :p]
        return TangentGram(basis, products, self.options)

    def _directions(self, W: np.ndarray, k: int) -> np.ndarray:
        """Return T (pairs, size): the coefficients of all products in the directions of a basis."""
        if k == 0:
            return np.zeros((len(self.i), 0))
        A, B = W[self.i], W[self.j]
        columns = []
        for a in range(k):
            mixed = A[:, a : a + 1] * B[:, a + 1 :] + B[:, a : a + 1] * A[:, a + 1 :]
            columns += [A[:, a : a + 1] * B[:, a : a + 1], mixed / sqrt(2)]
        multiplicity = np.where(self.i == self.j, 1.0, 2.0)[:, None]
        return np.asarray(multiplicity * np.concatenate(columns, axis=1))

    def _basis(self, U: np.ndarray) -> np.ndarray:
        if U.shape[1] == self.d:
            return np.eye(self.d)
        return np.asarray(np.linalg.qr(U, mode="complete")[0])

    def lifted(self, U: np.ndarray, gram: ColumnGram, alpha: Alpha) -> np.ndarray:
        """Return the M of the tangent space at U that solves its linear model."""
        k, W, C = U.shape[1], self._basis(U), np.zeros((self.d, self.d))
        theta = gram.solved(np.log(np.maximum(alpha, 1e-300)))[self.d :]
        stop = 0
        for a in range(k):
            stop, start = stop + self.d - a, stop
            C[a, a:] = theta[start:stop] / sqrt(2)
            C[a, a] *= sqrt(2) / 2
        return np.asarray(W @ (C + C.T) @ W.T)

    def point(self, M: np.ndarray, rank: int, alpha: Alpha) -> Symmetric:
        """Return the rank-k part of M, and its objective with the best linear part."""
        s, U = lead(M, rank)
        M = (U * s) @ U.T
        beta = self._beta(M)
        d, G = self.d, self.centred
        b = G[:d, -1] - G[:d, d:-1] @ beta
        w = self._linear(b, alpha[0])
        rest = G[-1, -1] + beta @ (G[d:-1, d:-1] @ beta - 2 * G[d:-1, -1]) - b @ w
        return Symmetric(U, s, float(rest + 2 * alpha[1] * np.sum(M * M)) / self.weight)

    def _beta(self, M: np.ndarray) -> np.ndarray:
        return np.asarray(np.where(self.i == self.j, 1.0, 2.0) * M[self.i, self.j])

    def _linear(self, b: np.ndarray, first: float) -> np.ndarray:
        if self._factor is None or self._factor[0] != first:  # needed at every point of a fit
            A = self.centred[: self.d, : self.d]
            ridge = max(first + ROUNDING * np.trace(A) / max(1, self.d), 1e-300)
            self._factor = first, cho_factor(A + ridge * np.eye(self.d))
        return np.asarray(cho_solve(self._factor[1], b, check_finite=False))

    def descended(
        self, p: Symmetric, alpha: Alpha, weight: float, steps: int, tol: float
    ) -> Symmetric:
        """Take Gauss–Newton steps until their gain is negligible."""
        rank = len(p.s)
        p = self.point(p.M, rank, alpha)
        for _ in range(steps):
            M, before = p.M, p.objective
            step = self.lifted(p.U, self.tangent(p.U).centred(weight), alpha) - M
            tries = (self.point(M + share * step, rank, alpha) for share in SHARES)
            p = next((q for q in tries if q.objective < before), p)
            if before - p.objective <= tol * before:
                break
        return p

    def extended(self, p: Symmetric, rank: int, alpha: Alpha) -> Symmetric:
        """Return a start of higher rank: M with the leading directions of the residual."""
        slope = self._slope(p.M, alpha)
        s, U = lead(-slope, rank - len(p.s))
        step = (U * s) @ U.T
        beta, d = self._beta(step), self.d
        along = self.centred[d:-1, d:-1] @ beta
        b = self.centred[:d, d:-1] @ beta
        curvature = beta @ along - b @ self._linear(b, alpha[0]) + 2 * alpha[1] * np.sum(step**2)
        size = -np.sum(slope * step) / max(float(curvature), 1e-300)
        return self.point(p.M + size * step, rank, alpha)

    def _slope(self, M: np.ndarray, alpha: Alpha) -> np.ndarray:
        """Return half the gradient of the objective by M, a symmetric matrix."""
        beta, d, G = self._beta(M), self.d, self.centred
        w = self._linear(G[:d, -1] - G[:d, d:-1] @ beta, alpha[0])
        by_product = G[d:-1, d:-1] @ beta + G[d:-1, :d] @ w - G[d:-1, -1]
        slope = 2 * alpha[1] * M
        slope[self.i, self.j] += by_product
        slope[self.j, self.i] += np.where(self.i == self.j, 0.0, by_product)
        return np.asarray(slope)

    def model(self, p: Symmetric, alpha: Alpha) -> Model:
        """Return the model with the best linear part, in standardised units."""
        beta, d, units = self._beta(p.M), self.d, self.units
        w = self._linear(self.centred[:d, -1] - self.centred[:d, d:-1] @ beta, alpha[0])
        mean = self.G[0, 1:] / self.weight
        c = mean[-1] - mean[:d] @ w - mean[d:-1] @ beta
        E = p.U / self.rho[:, None]
        c += float(((E * E) @ p.s) @ to_numpy(units.free))
        xp, like = namespace(units.scale), units.scale

        def array(a: np.ndarray) -> Array:
            return xp.asarray(a, dtype=like.dtype, device=like.device)

        return orthonormalised(
            Model(array(E), array(p.s), array(w / self.rho), float(c), units.free)
        )

    def of(self, model: Model, alpha: Alpha) -> Symmetric:
        """Return the M of a model."""
        E = self.rho[:, None] * to_numpy(model.U).astype(np.float64)
        s = to_numpy(model.s).astype(np.float64)
        return self.point((E * s) @ E.T, len(s), alpha)
