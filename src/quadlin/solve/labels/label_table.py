r"""Few labels or counts as one dense matrix: Newton steps, evidence and left-out rows, no passes.

A model that is linear in its parameters, f = Φθ with Φ = (1, z, products), has the optimum of

.. math:: \sum_i \omega_i\, \mathrm{deviance}(f_i, y_i) + \theta^\top R\, \theta

by Newton's method: each step solves a system with the matrix Φᵀ(ωh)Φ + R. For a low rank the steps
are taken on its tangent space, and each result is truncated to the rank. The rows are copied once,
standardised and with their products, and are not read again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from quadlin.core.arrays import lead, moved, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.losses import FLATTEST, curvature, log_likelihood, value_and_slope
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.design import Alpha, Basis, Design, dense
from quadlin.solve.lowrank.linear_model import Gram, factored, with_ridge
from quadlin.solve.lowrank.observations import LEAST_FREEDOM
from quadlin.solve.lowrank.types import Options

MOST_ENTRIES = 1 << 22  # of the copy: 32 MB
MOST_COLUMNS = 700  # of a matrix that is factored at every step
MOST_PRODUCTS = 1e9  # multiplications of a step
TOL = 1e-9  # the relative decrease of the objective that ends Newton's method
LEAST_RIDGE = 1e-12  # of the weight, so that columns may be dependent
STEPS = 50
SIZES = tuple(0.25**i for i in range(7))  # of a step; the first that lowers the objective is used


class HasObjective(Protocol):
    """A point of Newton's method."""

    @property
    def objective(self) -> float:
        """Return the value that is minimised."""


P = TypeVar("P", bound=HasObjective)
Line = Callable[[float], P]  # the size of a step → its end point


@dataclass(frozen=True)
class TableFit:
    """A fit of a rank: its parameters on a tangent space, and its predictions."""

    basis: Basis
    theta: np.ndarray  # (1 + d + size,)
    f: np.ndarray  # (n,)
    objective: float
    table: "LabelTable"

    @property
    def model(self) -> Model:
        """Return the fit as a model."""
        return self.table.model_of(self.theta, self.basis)


@dataclass(frozen=True)
class LabelTable:
    """Rows of positive weight, as one matrix."""

    Z: np.ndarray  # (n, d), z/ρ
    y: np.ndarray  # (n,)
    omega: np.ndarray  # (n,)
    units: Units
    options: Options
    loss: str

    @classmethod
    def of(cls, rows: Rows, units: Units, options: Options, loss: str) -> "LabelTable":
        """Copy the rows: one pass."""
        parts = zip(*rows.collect(_standardised, units), strict=True)
        Z, y, omega = (np.concatenate(part) for part in parts)
        return cls(Z, y, omega, units, options, loss)

    def reweighted(self, factor: float) -> "LabelTable":
        """Return the same rows with weights multiplied."""
        table = replace(self, omega=factor * self.omega)
        if "all_products" in self.__dict__:
            table.__dict__["all_products"] = self.all_products
        return table

    @property
    def weight(self) -> float:
        """Return Σω."""
        return float(self.omega.sum())

    @property
    def fixed(self) -> np.ndarray:
        """Return which squares are not modelled."""
        return np.asarray(to_numpy(self.units.free) == 0)

    @staticmethod
    def holds(n: int, d: int) -> bool:
        """Return whether a copy of n rows of d features is small."""
        return 0 < n * (d + 1) <= MOST_ENTRIES

    def takes(self, k: int) -> bool:
        """Return whether steps of a rank are cheap."""
        n, d = self.Z.shape
        p = 1 + d + d * k - k * (k - 1) // 2
        return bool(p <= MOST_COLUMNS and n * p <= MOST_ENTRIES and n * p * p <= MOST_PRODUCTS)

    @cached_property
    def all_products(self) -> np.ndarray:
        """Return Φ of rank d."""
        d = self.Z.shape[1]
        return self._columns(Basis(np.eye(d), d))

    def columns(self, basis: Basis) -> np.ndarray:
        """Return Φ, (n, 1 + d + size)."""
        d = self.Z.shape[1]
        if basis.rank == d:
            return self.all_products
        if basis.rank == 0 and "all_products" in self.__dict__:
            return self.all_products[:, : d + 1]
        return self._columns(basis)

    def _columns(self, basis: Basis) -> np.ndarray:
        ones = np.ones((len(self.Z), 1))
        return np.concatenate([ones, self.Z, basis.quadratic(self.Z, self.fixed)], axis=1)

    def ridge(self, basis: Basis, alpha: Alpha) -> np.ndarray:
        """Return R of each parameter."""
        d = self.Z.shape[1]
        least = LEAST_RIDGE * self.weight
        sizes = (1, d, basis.size)
        return np.repeat([0.0, max(alpha[0], least), 2 * max(alpha[1], least)], sizes)

    def basis(self, model: Model) -> Basis:
        """Return a basis of the tangent space at a model."""
        return Basis.at(to_numpy(model.U), replace(self.units, penalty_scale=self._rho))

    def theta_of(self, model: Model, basis: Basis) -> np.ndarray:
        """Return the parameters of a model on its tangent space."""
        rho = self._rho
        U, s, w = (to_numpy(a).astype(np.float64) for a in (model.U, model.s, model.w))
        diagonal = (U * U) @ s
        c = model.c - float(np.sum(diagonal * ~self.fixed))
        V = basis.W.T @ (rho[:, None] * U)
        C = (V * s) @ V.T
        parts = [np.zeros(0)]
        for i in range(basis.rank):
            parts += [C[i, i : i + 1], np.sqrt(2) * C[i, i + 1 :]]
        return np.concatenate([[c], rho * w, *parts])

    def model_of(self, theta: np.ndarray, basis: Basis) -> Model:
        """Return the model of some parameters, with M truncated to the rank of the basis."""
        d, k, rho = self.Z.shape[1], basis.rank, self._rho
        M = self._lifted(theta, basis) / rho[:, None] / rho
        s, U = lead(M, k)
        diagonal = (U * U) @ s
        c = float(theta[0] + np.sum(diagonal * ~self.fixed))
        like = self.units.scale
        xp = namespace(like)
        U, s, w = (xp.astype(moved(a, like), like.dtype) for a in (U, s, theta[1 : d + 1] / rho))
        return Model(U, s, w, c, self.units.free)

    @cached_property
    def _rho(self) -> np.ndarray:
        return to_numpy(self.units.penalty_scale).astype(np.float64)

    def _lifted(self, theta: np.ndarray, basis: Basis) -> np.ndarray:
        """Return M on the tangent space, for z/ρ."""
        d, k, W = self.Z.shape[1], basis.rank, basis.W
        C, stop = np.zeros((d, d)), d + 1
        for i in range(k):
            stop, start = stop + d - i, stop
            C[i, i:] = theta[start:stop] / np.sqrt(2)
            C[i, i] /= np.sqrt(2)
        C = C + C.T
        if k == d:
            C[self.fixed, self.fixed] = 0.0
            return np.asarray(C)
        return np.asarray(W @ C @ W.T)

    def fitted(self, start: Model | TableFit, alpha: Alpha, tol: float = TOL) -> TableFit:
        """Return the optimum near a model, of the same rank."""
        start = self.at(start) if isinstance(start, Model) else start

        def line(at: TableFit) -> Line[TableFit]:
            A, R = self.columns(at.basis), self.ridge(at.basis, alpha)
            h, slope = self.curvature(at.f), value_and_slope(self.loss, at.f, self.y)[1]
            down = -(A.T @ (self.omega * slope) + R * at.theta)
            step = cho_solve((self._factor(A, h, R), True), down, check_finite=False)
            return lambda size: self._at(*self._cut_back(at.theta + size * step, at.basis), alpha)

        return descended(self._at(start.theta, start.basis, alpha), line, tol)

    def at(self, model: Model) -> TableFit:
        """Return a model as a fit without penalties."""
        basis = self.basis(model)
        return self._at(self.theta_of(model, basis), basis)

    def _cut_back(self, theta: np.ndarray, basis: Basis) -> tuple[np.ndarray, Basis]:
        """Return the nearest parameters of the rank, on their tangent space."""
        if basis.rank in (0, self.Z.shape[1]):
            return theta, basis
        model = self.model_of(theta, basis)
        basis = self.basis(model)
        return self.theta_of(model, basis), basis

    def _at(self, theta: np.ndarray, basis: Basis, alpha: Alpha | None = None) -> TableFit:
        f = self.columns(basis) @ theta
        value = float(self.omega @ value_and_slope(self.loss, f, self.y)[0])
        if alpha is not None:
            value += float(self.ridge(basis, alpha) @ theta**2)
        return TableFit(basis, theta, f, value if np.isfinite(value) else np.inf, self)

    def _factor(self, A: np.ndarray, h: np.ndarray, R: np.ndarray) -> np.ndarray:
        root = np.sqrt(self.omega * h)[:, None] * A
        L = factored(with_ridge(root.T @ root, R))
        assert L is not None
        return L

    def curvature(self, f: np.ndarray) -> np.ndarray:
        """Return h of the rows."""
        return np.asarray(np.clip(curvature(f, self.loss), FLATTEST, None))

    def linear(self, fit: TableFit) -> tuple[Gram, float, float]:
        """Return the least squares around a fit, its weight and its excess log-likelihood."""
        h, slope = self.curvature(fit.f), value_and_slope(self.loss, fit.f, self.y)[1]
        z = fit.f - slope / h
        root = np.sqrt(self.omega * h)[:, None]
        A = np.concatenate([root * self.columns(fit.basis), root * z[:, None]], axis=1)
        excess = log_likelihood(self.loss, fit.f, self.y) + slope**2 / h / 2
        gram = Gram.from_products(A.T @ A, Design(self.units, self.options, fit.basis), noise=1.0)
        return gram, float(self.omega @ h), float(self.omega @ excess)

    def evidence(self, fit: TableFit, alpha: Alpha) -> float:
        """Return the log evidence at an optimum, up to a constant of the rows: O(np²)."""
        A, R = self.columns(fit.basis), self.ridge(fit.basis, alpha)
        L = self._factor(A, self.curvature(fit.f), R)
        return float(np.log(R[1:]).sum() / 2 - np.log(np.diag(L)).sum() - fit.objective / 2)

    def left_out(self, fit: TableFit, alpha: Alpha, times: np.ndarray) -> np.ndarray:
        """Return f of each row when it is left out once."""
        A, R = self.columns(fit.basis), self.ridge(fit.basis, alpha)
        h, slope = self.curvature(fit.f), value_and_slope(self.loss, fit.f, self.y)[1]
        L = self._factor(A, h, R)
        v = np.sum(solve_triangular(L, A.T, lower=True, check_finite=False) ** 2, axis=0)
        share = self.omega / times
        leverage = np.minimum(share * h * v, 1 - LEAST_FREEDOM)
        return np.asarray(fit.f + share * v * slope / (1 - leverage))


def _standardised(chunk: Chunk, units: Units) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    chunk = chunk.counting()
    Z = to_numpy(dense(chunk, units)) / to_numpy(units.penalty_scale).astype(np.float64)
    y = to_numpy(chunk.y).astype(np.float64)
    omega = chunk.weights
    return Z, y, omega


def descended(at: P, line: Callable[[P], Line[P]], tol: float) -> P:
    """Take Newton steps from a point until the objective decreases by less than `tol`, relatively.

    `line` returns the step to take from a point.
    """
    for _ in range(STEPS):
        ends = map(line(at), SIZES)
        new = next((end for end in ends if end.objective < at.objective), None)
        if new is None:
            break
        before, at = at, new
        if before.objective - at.objective <= tol * at.objective:
            break
    return at
