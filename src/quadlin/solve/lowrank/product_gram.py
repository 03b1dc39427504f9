r"""Sums of residuals without a pass, for few features: from the Gram matrix of all products.

For φ = (1, z, all z_i z_j, y) a residual is φᵀθ with θ = (c, w, M, −1): Σ φφᵀ θ holds its moments
P0, P1 and Σ r z zᵀ; and TᵀΣφφᵀT is the matrix of the linear model on any tangent space.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np

from quadlin.core.arrays import moved, to_numpy
from quadlin.core.model import Model, Steps
from quadlin.core.rows import Rows
from quadlin.core.sums import Sums
from quadlin.core.units import Units
from quadlin.solve.lowrank.design import Basis, Design
from quadlin.solve.lowrank.linear_model import GRAM_WORK, Gram, check_products, column_products
from quadlin.solve.lowrank.types import Options
from quadlin.solve.lowrank.whitening import Covariance

FEW = 25  # most features for which the Gram matrix of products costs less than the passes it saves


@dataclass(frozen=True)
class ProductGram:
    """Σω φφᵀ of φ = (1, z/ρ, all products of two of them, y); O(d⁴) memory, at most 1 MB."""

    gram: np.ndarray
    units: Units
    options: Options

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the features i ≤ j of the products."""
        return np.triu_indices(int(self.units.scale.shape[0]))

    @cached_property
    def length(self) -> np.ndarray:
        """Return the norms of the products as matrices: 1 for squares, √2 for others."""
        return np.where(np.equal(*self.pairs), 1.0, sqrt(2))

    @cached_property
    def rho(self) -> np.ndarray:
        """Return ρ."""
        return np.asarray(to_numpy(self.units.penalty_scale), np.float64)

    def tangent(self, U: np.ndarray) -> Gram:
        """Return the linear model on the tangent space at the span of U (d, k)."""
        units, options, (d, k) = self.units, self.options, U.shape
        design = Design.at(U, units, options)
        if k == d and options.plain:
            return Gram.from_products(self.gram, design)
        basis, (i, j), each = Basis(to_numpy(design.basis.W), k), self.pairs, np.eye(d)
        q, nothing = d * options.fit_linear, np.zeros(d, dtype=bool)
        squares = basis.quadratic(each, nothing)
        products = basis.quadratic(each[i] + each[j], nothing) - squares[:, i] - squares[:, j]
        T = np.zeros((len(self.gram), 2 + q + basis.size))
        T[0, 0] = T[-1, -1] = 1
        T[1 : 1 + q, 1 : 1 + q] = np.eye(q)
        T[1 + d : -1, 1 + q : -1] = self.length[:, None] / 2 * products.T
        T[: 1 + d, 1:-1] += replace(design, basis=basis).ties()
        return Gram.from_products(T.T @ (self.gram @ T), design)

    def covariance(self) -> Covariance:
        """Return Σω z zᵀ of the features."""
        d = len(self.rho)
        moments = self.rho[:, None] * self.gram[1 : 1 + d, 1 : 1 + d] * self.rho
        return Covariance(float(self.gram[0, 0]), self.units.array(moments))

    def sums(self, model: Model, Q: np.ndarray | None = None) -> Sums:
        """Return the sums of the residual of a model."""
        U, s, w, free = self._numbers(model.U, model.s, model.w, model.free)
        M = (U * s) @ U.T
        theta = self._theta(M[None, :, :], w[:, None], model.c - free @ np.diag(M), -1.0)
        return self._sums(theta, U if Q is None else to_numpy(Q))

    def changes(self, steps: Steps) -> Sums:
        """Return the sums of the changes of the predictions along steps."""
        E, H, w, c, free = self._numbers(steps.E, steps.H, steps.w, steps.c, self.units.free)
        EH = E @ H.transpose(1, 2, 0)
        M = EH + EH.transpose(0, 2, 1)
        return self._sums(self._theta(M, w, c - M.diagonal(axis1=1, axis2=2) @ free, 0.0), E)

    def _numbers(self, *arrays: np.ndarray) -> Sequence[np.ndarray]:
        return [np.asarray(to_numpy(a), np.float64) for a in arrays]

    @cached_property
    def factors(self) -> np.ndarray:
        """Return the factors by which entries of M become coefficients of the products."""
        i, j = self.pairs
        return np.asarray(self.length * self.rho[i] * self.rho[j])

    def _theta(self, M: np.ndarray, w: np.ndarray, c: float | np.ndarray, y: float) -> np.ndarray:
        """Return the coefficients (p, m) of φ of M (m, d, d), w (d, m) and a constant."""
        theta, d = np.empty((len(self.gram), len(M))), len(w)
        theta[0], theta[1 : 1 + d], theta[-1] = c, self.rho[:, None] * w, y
        theta[1 + d : -1] = (self.factors * M[:, *self.pairs]).T
        return theta

    def _sums(self, theta: np.ndarray, Q: np.ndarray) -> Sums:
        moments, (i, j), units = self.gram @ theta, self.pairs, self.units
        (d, _), m = Q.shape, theta.shape[1]
        S = np.zeros((m, d, d))
        S[:, i, j] = S[:, j, i] = moments[1 + d : -1].T * (self.factors / self.length**2)
        loss = float(theta[:, 0] @ moments[:, 0])
        rounding = len(theta) * np.finfo(np.float64).eps * float(self.gram[-1, -1])
        p1 = units.array(self.rho[:, None] * moments[1 : 1 + d])
        # Squares that are not modelled have no product here, so that P2 is not subtracted from it.
        action = units.array((S @ Q).transpose(1, 0, 2))
        weight, loss = float(self.gram[0, 0]), loss if loss > rounding else 0.0
        return Sums(weight, loss, moved(moments[0], units.scale), p1, 0 * p1, action)


def product_gram(rows: Rows, units: Units, options: Options) -> ProductGram:
    """Return the sums of all products of few features: one pass."""
    check_products(units, options)
    plain = replace(options, fit_linear=True, fit_intercept=True)
    design = Design.of_rank(units.scale.shape[0], units, plain)
    return ProductGram(to_numpy(rows.reduce(column_products, design).gram), units, options)


def products_pay(n_rows: float, d: int) -> bool:
    """Return whether summing the products of all rows pays for a fit of one rank and penalty.

    It takes n p² operations, p = (d + 1)(d + 2)/2; the fit by samples takes only 20 n d k. For
    100,000 rows with 20 features this is 0.7 s of CPU time, compared with 0.07 s.
    """
    p = (d + 1) * (d + 2) / 2
    return d <= FEW and n_rows * p**2 <= GRAM_WORK
