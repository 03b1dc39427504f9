r"""The regression of features, a low-rank part that moves, and products, with robust errors.

It is a linear model (`Gram`) whose design has chosen products. A row's influence on a product is
its part of φᵀA⁻¹, and its residual that of a fit without the row, r/(1 − h), with h = φᵀA⁻¹φ (HC3).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import stdtr

from quadlin.core.arrays import Array, moved, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, folded
from quadlin.core.rows import Rows
from quadlin.solve.lowrank.design import Design
from quadlin.solve.lowrank.linear_model import Gram, inverse_root, with_ridge

LEAST_FREEDOM = 0.1  # rows behind a standard error, less one
Penalties = tuple[float, float, float]  # on w, on L and on the products


@dataclass(frozen=True)
class Regression:
    """The optimum of a linear model with products, in float64: A⁻¹ = T Tᵀ, θ = A⁻¹ φᵀΩy."""

    gram: Gram
    alpha: Penalties

    @classmethod
    def of(cls, G: np.ndarray, design: Design, alpha: Penalties) -> "Regression":
        """Return the regression of the products of (1, φ, y)."""
        return cls(Gram.from_products(G, design), alpha)

    @cached_property
    def ridge(self) -> np.ndarray:
        """Return the ridge of each parameter, (p,)."""
        return self.gram.ridge(self.gram.of_groups(self.alpha))

    @cached_property
    def root(self) -> np.ndarray:
        """Return T, (p, r), without directions that rows and ridge do not determine."""
        return inverse_root(with_ridge(self.gram.products, self.ridge))

    @cached_property
    def theta(self) -> np.ndarray:
        """Return the coefficients of all columns."""
        return np.asarray(self.root @ (self.root.T @ self.gram.right))

    @property
    def constant(self) -> float:
        """Return the intercept."""
        return float(self.gram.mean[-1] - self.gram.mean[:-1] @ self.theta)

    @property
    def dof(self) -> float:
        """Return the effective number of parameters."""
        return float(1 + self.root.shape[1] - self.ridge @ np.sum(self.root**2, axis=1))

    @property
    def objective(self) -> float:
        """Return Σω r² and the penalties."""
        return self.loss + float(self.ridge @ self.theta**2)

    @property
    def loss(self) -> float:
        """Return Σω r²; rounding would make that of an exact fit negative."""
        gram, theta = self.gram, self.theta
        return max(gram.power + float(theta @ (gram.products @ theta - 2 * gram.right)), 0.0)

    @cached_property
    def products(self) -> np.ndarray:
        """Return the rows of T of the products, for z_i z_j, (m, r)."""
        assert self.gram.design is not None
        i, j = self.gram.design.i, self.gram.design.j
        rho = to_numpy(self.gram.design.units.penalty_scale).astype(np.float64)
        return np.asarray(self.root[len(self.root) - len(i) :] / (rho[i] * rho[j])[:, None])

    @property
    def coef(self) -> np.ndarray:
        """Return the coefficients of the products z_i z_j."""
        return np.asarray(self.products @ (self.root.T @ self.gram.right))

    @property
    def variance(self) -> np.ndarray:
        """Return their variances for noise of variance 1."""
        return np.asarray(np.sum(self.products**2, axis=1))

    def rest(self, base: "Regression") -> np.ndarray:
        """Return the Gram matrix of products and response, all of the base projected out of them.

        The base has the same columns without the products.
        """
        gram, b = self.gram, len(base.theta)
        A = with_ridge(gram.products, self.ridge)
        whole = np.block([[A, gram.right[:, None]], [gram.right, gram.power]])
        onto = base.root.T @ whole[:b, b:]
        return np.asarray(whole[b:, b:] - onto.T @ onto)

    def still(self, fixed: np.ndarray) -> "Regression":
        """Return the regression with the tangent directions at some coefficients."""
        gram, d = self.gram, self.gram.sizes[0]
        at = np.arange(d, d + len(fixed))
        kept = np.setdiff1d(np.arange(len(gram.right)), at)
        along, mean = gram.products[:, at] @ fixed, gram.mean.copy()
        mean[-1] -= mean[at] @ fixed
        left = Gram(
            gram.products[np.ix_(kept, kept)],
            (gram.right - along)[kept],
            gram.power - 2 * float(gram.right[at] @ fixed) + float(along[at] @ fixed),
            gram.weight,
            [len(kept)],
            self.ridge[kept],
            mean=mean[[*kept, -1]],
        )
        return replace(self, gram=left, alpha=(1.0, 0.0, 0.0))

    def errors(
        self, rows: Rows, contrast: np.ndarray | None = None, noise: float | None = None
    ) -> "Errors":
        """Return the standard errors of the products: one pass.

        Or of the rows of `contrast` times their coefficients; not robust if `noise` is known.
        """
        gram = self.gram
        assert gram.design is not None
        ends = self.products if contrast is None else contrast @ self.products
        arrays = (self.root, self.theta, gram.mean, ends.T)
        like = gram.design.units.scale
        args = (moved(a, like) for a in arrays)
        sums = rows.reduce(error_sums, gram.design, *args, gram.share)
        return Errors.of(sums, noise)


@dataclass(frozen=True)
class ErrorSums(Additive):
    """Sums for the errors of products."""

    spread: Array  # (m,), Σω (a_m r / (1 − h))²: a_m influence of a row on β_m, h its leverage
    squares: Array  # (m,), Σω a_m²
    fourths: Array  # (m,), Σω a_m⁴


def error_sums(chunk: Chunk, design: Design, *numbers: Any) -> ErrorSums:
    """Sum over one chunk."""
    return folded(_error_sums, design.parts(chunk), (design, *numbers))[0]  # type: ignore[return-value]


def _error_sums(
    chunk: Chunk, design: Design, root: Array, theta: Array, mean: Array, ends: Array, share: float
) -> ErrorSums:
    A = design.columns(chunk)[:, 1:] - mean
    A, y, xp = A[:, :-1], A[:, -1], namespace(A)
    omega = xp.asarray(chunk.weights, device=A.device)
    along = A @ root
    squared = (along @ ends) ** 2
    # Of a fit without the row, or without one of the observations that it stands for.
    leverage = xp.clip(omega, max=1.0) * (xp.sum(along * along, axis=1) + share)
    left_out = (y - A @ theta) / (1 - xp.clip(leverage, max=1 - 1e-9))
    return ErrorSums((omega * left_out**2) @ squared, omega @ squared, omega @ squared**2)


@dataclass(frozen=True)
class Errors:
    """Standard errors of coefficients, and how sure these are."""

    std: np.ndarray  # (m,)
    freedom: np.ndarray  # (m,), the number of rows that determine the standard error, less one

    @classmethod
    def of(cls, sums: ErrorSums, noise: float | None = None) -> "Errors":
        """Return the standard errors from the sums of a pass; not robust if `noise` is known.

        With a the influence of the rows on a coefficient, (Σa²)²/Σa⁴ is the number of rows that
        determine it: all of them if their influences are equal, one if the others have none.
        """
        spread, squares, fourths = (
            np.maximum(to_numpy(a), 1e-300) for a in (sums.spread, sums.squares, sums.fourths)
        )
        spread = spread if noise is None else noise * squares
        return cls(np.sqrt(spread), np.maximum(squares**2 / fourths - 1, LEAST_FREEDOM))

    def log_tail(self, coef: np.ndarray) -> np.ndarray:
        """Return log P(T > |t|) of each coefficient, T of Student's distribution."""
        with np.errstate(divide="ignore"):
            tail: np.ndarray = np.log(stdtr(self.freedom, -np.abs(coef) / self.std))
        return tail
