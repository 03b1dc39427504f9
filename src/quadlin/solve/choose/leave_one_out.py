r"""The error of each row when it is left out, without fitting again.

A model that is linear in its parameters, with a ridge R, predicts a row that was left out with the
error

.. math:: e_i = \frac{r_i}{1 - h_i}, \quad h_i = \omega_i \varphi_i^\top A^{-1} \varphi_i, \quad
          A = \Phi^\top \Omega \Phi + R

from its residual r and its leverage h. This is exact for ridge regression and for all products.
For a low rank it is exact on the tangent space; but the row took part in the choice of that space,
so the error is a little too small. It still shows whether a few extreme rows dominate the fit.

With the eigenvectors of :math:`R^{-1/2} \Phi^\top \Omega \Phi R^{-1/2}` the same pass gives the
errors for all multiples of the ridge.

A row whose weight is a whole number stands for that many observations, one of which is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotri, dtrtri

from quadlin.core.arrays import Array, moved, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import one_blas_thread
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.evidence import RowKernel, factored
from quadlin.solve.lowrank.exact import Alpha
from quadlin.solve.lowrank.observations import LEAST_FREEDOM, observed_squares
from quadlin.solve.lowrank.tangent_gram import Basis, TangentGram, chunk_parts, columns
from quadlin.solve.lowrank.types import Options

CLEARLY = 3.0  # log odds, 20 to 1, by which a structure must be better than ridge regression
LIKELY = 2.0  # log odds of products over a ridge, or a ridge over the mean: one standard error
BLOCK = 128  # columns of a triangular matrix multiplied at a time, without its zeros
SMALLEST_RIDGE = 1e-12  # of the weight: a smaller ridge does not matter, but rounding of A / R does


@dataclass(frozen=True)
class Inverses:
    """A⁻¹ = Q diag(s) Qᵀ for each multiple of the ridge, and the coefficients that it gives."""

    units: Units
    options: Options
    basis: Basis  # of the columns
    Q: Array  # (p, p)
    s: Array | None  # (p, f); None if Q is upper triangular and s is 1
    beta: Array  # (p, f), A⁻¹ΦᵀΩy
    mean: Array  # (p + 1,), of the columns and of y if there is an intercept, otherwise 0
    share: float  # of the intercept in the leverage of a row of weight 1

    @classmethod
    def of(
        cls,
        units: Units,
        gram: TangentGram,
        Q: np.ndarray,
        s: np.ndarray | None,
        beta: np.ndarray,
    ) -> "Inverses":
        """Return the inverses with the means that an intercept removes from the columns."""
        first, total = gram.options.fit_intercept, gram.products[0, 0]
        mean = gram.products[0, 1:] / total if first else np.zeros(len(gram.products))
        Q, beta, mean = (moved(a, units.scale) for a in (Q, beta, mean))
        s = None if s is None else moved(s, units.scale)
        share = float(1 / total) if first else 0.0
        return cls(units, gram.options, gram.basis, Q, s, beta, mean, share)

    def leverages(self, A: Array) -> Array:
        """Return φᵀA⁻¹φ of rows φ, (n, f)."""
        if self.s is not None:
            T = A @ self.Q
            return (T * T) @ self.s
        xp = namespace(A)
        total = 0 * A[:, :1]
        for start in range(0, self.Q.shape[1], BLOCK):
            T = A[:, : start + BLOCK] @ self.Q[: start + BLOCK, start : start + BLOCK]
            total = total + xp.sum(T * T, axis=1, keepdims=True)
        return total


def _row_parts(chunk: Chunk, at: Inverses) -> tuple[np.ndarray, ...]:
    """Return ω, r and h of the rows of positive weight of a chunk."""
    parts = chunk_parts(chunk.counting(), at.basis)
    each = zip(*(_parts_of(part, at) for part in parts), strict=True)
    return tuple(np.concatenate([to_numpy(a) for a in arrays]) for arrays in each)


def _parts_of(chunk: Chunk, at: Inverses) -> tuple[Array, Array, Array]:
    A = columns(chunk, at.units, at.options, at.basis)[:, 1:]
    A -= at.mean  # a new array, which may be changed
    xp = namespace(A)
    weight = xp.ones_like(A[:, :1])
    if chunk.weight is not None:
        weight = xp.astype(chunk.weight, xp.float64)[:, None]
    A, y = A[:, :-1], A[:, -1:]
    return weight, y - A @ at.beta, weight * (at.leverages(A) + at.share)


def residuals(rows: Rows, at: Inverses) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ω (n, 1), r and h (n, f) of the rows of positive weight: one pass, O(np²)."""
    weight, residual, leverage = zip(*rows.collect(_row_parts, at), strict=True)
    return np.concatenate(weight), np.concatenate(residual), np.concatenate(leverage)


def left_out_squares(rows: Rows, at: Inverses) -> np.ndarray:
    """Return ωe² of each observation when it is left out, for each multiple: one pass.

    The target is standardised.
    """
    weight, residual, leverage = residuals(rows, at)
    return observed_squares(weight[:, 0], residual, 1 - leverage)


def ridge_of(gram: TangentGram, alpha: Alpha, weight: float) -> np.ndarray:
    """Return the ridge of each parameter except the intercept."""
    ridge = gram.penalty(alpha)[int(gram.options.fit_intercept) :]
    return np.asarray(np.maximum(ridge, SMALLEST_RIDGE * weight))


def left_out_error(
    rows: Rows, units: Units, gram: TangentGram, alpha: Alpha, weight: float
) -> float:
    """Return the mean squared error of rows left out one at a time: one pass, O(np²).

    It is the mean of `left_out_squares`, without keeping a number per row.
    """
    return float(rows.reduce(_left_out, inverses_of(units, gram, alpha, weight))) / weight


def _left_out(chunk: Chunk, at: Inverses) -> float:
    """Sum over one chunk."""
    weight, residual, leverage = _row_parts(chunk, at)
    return float(observed_squares(weight[:, 0], residual, 1 - leverage).sum())


def inverses_of(
    units: Units, gram: TangentGram, alpha: Alpha, weight: float, factors: Sequence[float] = (1.0,)
) -> Inverses:
    """Return A⁻¹ for some multiples of the penalties of w and M; several need eigenvectors."""
    linear, ridge = gram.centred(weight), ridge_of(gram, alpha, weight)
    Q, s = None, None
    with one_blas_thread():
        if len(factors) == 1 and len(ridge):  # LAPACK refuses an empty matrix
            Q = _inverse_root(linear.products, factors[0] * ridge)
        if Q is None:
            Q, s = _eigen_inverses(linear.products, ridge, factors)
    right = Q.T @ linear.right
    return Inverses.of(units, gram, Q, s, Q @ ((1.0 if s is None else s) * right[:, None]))


def _inverse_root(products: np.ndarray, ridge: np.ndarray) -> np.ndarray | None:
    """Return an upper triangular Q with A⁻¹ = QQᵀ, where A is the products plus the ridge.

    None if the rounding errors of large columns exceed the ridge.
    """
    try:
        L = cho_factor(products + np.diag(ridge), lower=True)[0]
    except np.linalg.LinAlgError:
        return None
    return np.asarray(np.triu(dtrtri(L, lower=1)[0].T))


def _eigen_inverses(
    products: np.ndarray, ridge: np.ndarray, factors: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return Q and s for some multiples of the ridge, one column of s for each."""
    root = 1 / np.sqrt(ridge)
    values, V = np.linalg.eigh(root[:, None] * products * root)
    return root[:, None] * V, 1 / (np.maximum(values, 0.0)[:, None] + np.asarray(factors))


def surely_less(squares: np.ndarray, others: np.ndarray, log_odds: float = CLEARLY) -> bool:
    """Return whether a model is surely better than another at predicting left-out rows.

    With Gaussian noise, log odds of G for a model mean that it lowers the sum of squares by √(G/2)
    standard errors. If a few rows contribute most of that sum, they say less about new rows than
    the evidence assumes: a single row cannot gain more than one standard error.
    """
    saved = others - squares
    return float(saved.sum()) > sqrt(log_odds / 2) * float(np.linalg.norm(saved))


def left_out_squares_by_rows(
    kernel: RowKernel, alpha: Alpha, factors: Sequence[float] = (1.0,)
) -> np.ndarray:
    """Return ωe² from the products of rows: O(n³); several factors need eigenvectors."""
    weight = kernel.shares * (kernel.weight + 1)
    residual, freedom = residuals_by_rows(kernel, alpha, factors)
    residual = residual / np.sqrt(weight)[:, None]
    return observed_squares(weight, residual, freedom)


def residuals_by_rows(
    kernel: RowKernel, alpha: Alpha, factors: Sequence[float] = (1.0,)
) -> tuple[np.ndarray, np.ndarray]:
    """Return √ω r and 1 − h of each row, (n, f), from the products of rows.

    The intercept adds each row's share of the total weight to its leverage.
    """
    K, y = kernel.summed(alpha), kernel.y
    with one_blas_thread():
        L = factored(K / factors[0] + np.eye(len(y))) if len(factors) == 1 else None
        if L is not None:
            inverse = dpotri(L, lower=1)[0]
            residual = cho_solve((L, True), y, check_finite=False)[:, None]
            freedom = np.diag(inverse)[:, None]
        else:
            values, V = np.linalg.eigh(K)
            s = np.asarray(factors) / (np.maximum(values, 0.0)[:, None] + np.asarray(factors))
            residual, freedom = V @ (s * (V.T @ y)[:, None]), (V * V) @ s
    return residual, np.maximum(freedom - kernel.shares[:, None], LEAST_FREEDOM)
