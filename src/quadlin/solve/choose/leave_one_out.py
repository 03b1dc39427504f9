r"""The error of each row when it is left out, without fitting again.

A model that is linear in its parameters, with a ridge R, predicts a row that was left out with the
error

.. math:: e_i = \frac{r_i}{1 - h_i}, \quad h_i = \omega_i \varphi_i^\top A^{-1} \varphi_i, \quad
          A = \Phi^\top \Omega \Phi + R

from its residual r and its leverage h. That is exact for ridge regression and for all products.
For a low rank it is so on the tangent space, whose directions were chosen with the row at hand: a
little too small then, but it tells where a few extreme rows carry the fit.

With the eigenvectors of :math:`R^{-1/2} \Phi^\top \Omega \Phi R^{-1/2}` the same pass tells the
errors for all multiples of the ridge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotri, dtrtri

from quadlin.core.arrays import Array, moved, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, one_blas_thread
from quadlin.core.rows import Rows
from quadlin.core.sums import standardised_target
from quadlin.core.units import Units
from quadlin.solve.choose.expected_errors import LARGEST_LEVERAGE, ridge_of
from quadlin.solve.lowrank.evidence import RowKernel, factored
from quadlin.solve.lowrank.exact import Alpha
from quadlin.solve.lowrank.tangent_gram import Basis, TangentGram, chunk_parts, columns, in_parts
from quadlin.solve.lowrank.types import Options

MOST = 0.99  # of the rows, beyond which none counts for more
BEYOND_DOUBT = 4.0  # standard errors
CLEARLY = 3.0  # log odds, 20 to 1: by which a structure must be better than ridge regression
LIKELY = 2.0  # of products beside a ridge and of a ridge beside the mean: one standard error
BLOCK = 128  # columns at a time of a triangular matrix, whose zeros are not multiplied


@dataclass(frozen=True)
class LeftOut(Additive):
    """Σω e² of rows that were left out one at a time."""

    squares: Array  # (1,)


@dataclass(frozen=True)
class Inverses:
    """A⁻¹ = Q diag(s) Qᵀ for each multiple of the ridge, and what it makes of the target."""

    Q: Array  # (p, p)
    s: Array | None  # (p, f); None if Q is upper triangular and s is 1
    beta: Array  # (p, f), A⁻¹ΦᵀΩy
    mean: Array  # (p + 1,), of the columns and of y, where there is an intercept, else 0
    share: float  # of the intercept in the leverage of a row of weight 1

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


def _left_out(
    chunk: Chunk, units: Units, options: Options, basis: Basis, inverses: Inverses
) -> LeftOut:
    """Sum over one chunk."""
    return in_parts(_left_out_part, chunk, units, options, basis, inverses)


def _left_out_part(
    chunk: Chunk, units: Units, options: Options, basis: Basis, inverses: Inverses
) -> LeftOut:
    squares = _squares(chunk, units, options, basis, inverses)
    return LeftOut(namespace(squares).sum(squares, axis=0))


def _row_squares(
    chunk: Chunk, units: Units, options: Options, basis: Basis, inverses: Inverses
) -> np.ndarray:
    """Return ωe² of the rows of positive weight, for each multiple of the ridge."""
    chunk = chunk.counting()
    parts = chunk_parts(chunk, basis)
    squares = [to_numpy(_squares(part, units, options, basis, inverses)) for part in parts]
    return np.concatenate(squares)


def _row_parts(
    chunk: Chunk, units: Units, options: Options, basis: Basis, inverses: Inverses
) -> np.ndarray:
    """Return residual and leverage of the rows of positive weight, (n, 2), for one ridge."""
    parts = chunk_parts(chunk.counting(), basis)
    both = [residuals(part, units, options, basis, inverses)[1:] for part in parts]
    return np.concatenate([np.column_stack([to_numpy(a)[:, 0] for a in part]) for part in both])


def _squares(
    chunk: Chunk, units: Units, options: Options, basis: Basis, inverses: Inverses
) -> Array:
    """Return ωe² of each row, for each multiple of the ridge."""
    weight, residual, leverage = residuals(chunk, units, options, basis, inverses)
    error = residual / (1 - namespace(leverage).clip(leverage, max=LARGEST_LEVERAGE))
    return weight * error**2


def residuals(
    chunk: Chunk, units: Units, options: Options, basis: Basis, inverses: Inverses
) -> tuple[Array, Array, Array]:
    """Return ω, r and h of each row, the latter for each multiple of the ridge."""
    A = columns(chunk, units, options, basis)[:, 1:]
    A -= inverses.mean  # they are ours
    xp = namespace(A)
    weight = xp.ones_like(A[:, :1])
    if chunk.weight is not None:
        weight = xp.astype(chunk.weight, xp.float64)[:, None]
    A, y = A[:, :-1], A[:, -1:]
    return weight, y - A @ inverses.beta, weight * (inverses.leverages(A) + inverses.share)


def left_out_squares(
    rows: Rows,
    units: Units,
    gram: TangentGram,
    alpha: Alpha,
    weight: float,
    factors: Sequence[float] = (1.0,),
    inverses: Inverses | None = None,
) -> np.ndarray:
    """Return ωe² of each row of positive weight when it is left out, for multiples of a penalty.

    `alpha` are the penalties of w and M; the target is standardised. One pass, O(np²) and a number
    per row and factor; for several factors O(p³) for eigenvectors as well, unless they are given.
    """
    if inverses is None:
        inverses = inverses_of(units, gram, alpha, weight, factors)
    return np.concatenate(rows.collect(_row_squares, units, gram.options, gram.basis, inverses))


def left_out_of_mean(rows: Rows, units: Units, gram: TangentGram) -> np.ndarray:
    """Return ωe² of each row of positive weight, predicted by the mean of the others: one pass."""
    G, first = gram.products, gram.options.fit_intercept
    mean, share = (G[0, -1] / G[0, 0], 1 / G[0, 0]) if first else (0.0, 0.0)
    return np.concatenate(rows.collect(_mean_squares, units, float(mean), float(share)))


def _mean_squares(chunk: Chunk, units: Units, mean: float, share: float) -> np.ndarray:
    chunk = chunk.counting()
    y = to_numpy(standardised_target(chunk, units)).astype(np.float64)
    weight = chunk.weights
    error = (y - mean) / (1 - np.minimum(share * weight, LARGEST_LEVERAGE))
    return np.asarray(weight * error**2)


def residuals_and_leverages(
    rows: Rows, units: Units, gram: TangentGram, alpha: Alpha, weight: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return r and h of each row of positive weight: one pass, O(np²)."""
    inverses = inverses_of(units, gram, alpha, weight, (1.0,))
    parts = rows.collect(_row_parts, units, gram.options, gram.basis, inverses)
    residual, leverage = np.concatenate(parts).T
    return residual, np.minimum(leverage, LARGEST_LEVERAGE)


def inverses_of(
    units: Units, gram: TangentGram, alpha: Alpha, weight: float, factors: Sequence[float]
) -> Inverses:
    """Return A⁻¹ for some multiples of a penalty."""
    linear, ridge = gram.centred(weight), ridge_of(gram, alpha, weight)
    Q, s = None, None
    with one_blas_thread():
        if len(factors) == 1 and len(ridge):  # LAPACK knows no empty matrix
            Q = _inverse_root(linear.products, factors[0] * ridge)
        if Q is None:
            Q, s = _eigen_inverses(linear.products, ridge, factors)
    right = Q.T @ linear.right
    beta = Q @ ((1.0 if s is None else s) * right[:, None])
    return inverses_with(units, gram, Q, s, beta)


def inverses_with(
    units: Units, gram: TangentGram, Q: np.ndarray, s: np.ndarray | None, beta: np.ndarray
) -> Inverses:
    """Return the inverses with the means that an intercept takes off columns."""
    first, total = gram.options.fit_intercept, gram.products[0, 0]
    mean = gram.products[0, 1:] / total if first else np.zeros(len(gram.products))
    Q, beta, mean = (moved(a, units.scale) for a in (Q, beta, mean))
    s = None if s is None else moved(s, units.scale)
    return Inverses(Q, s, beta, mean, float(1 / total) if first else 0.0)


def _inverse_root(products: np.ndarray, ridge: np.ndarray) -> np.ndarray | None:
    """Return Q, upper triangular, with A⁻¹ = QQᵀ, A the products with a ridge.

    None where rounding of large columns is more than the ridge.
    """
    try:
        L = cho_factor(products + np.diag(ridge), lower=True)[0]
    except np.linalg.LinAlgError:
        return None
    return np.asarray(np.triu(dtrtri(L, lower=1)[0].T))


def _eigen_inverses(
    products: np.ndarray, ridge: np.ndarray, factors: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return Q and s for some multiples of the ridge, a column of s each."""
    root = 1 / np.sqrt(ridge)
    values, V = np.linalg.eigh(root[:, None] * products * root)
    return root[:, None] * V, 1 / (np.maximum(values, 0.0)[:, None] + np.asarray(factors))


def surely_less(squares: np.ndarray, others: np.ndarray, log_odds: float = CLEARLY) -> bool:
    """Tell whether a model predicts rows left out surely better than another does.

    With Gaussian noise, log odds of G for a model show in the squares that it saves as a sum of
    √(G/2) standard errors. Where a few rows carry most of that sum, they say little about new rows,
    and less than the evidence believes: one row alone reaches one standard error.
    """
    saved = others - squares
    return float(saved.sum()) > sqrt(log_odds / 2) * float(np.linalg.norm(saved))


def mostly_less(squares: np.ndarray, others: np.ndarray) -> bool:
    """Tell whether all rows but a few say beyond doubt that a model predicts them better.

    What the most extreme rows save or lose counts as much as it does in others.
    """
    saved = others - squares
    most = float(np.quantile(np.abs(saved), MOST))
    saved = np.clip(saved, -most, most)
    return float(saved.sum()) > BEYOND_DOUBT * float(np.linalg.norm(saved))


def left_out_error(
    rows: Rows, units: Units, gram: TangentGram, alpha: Alpha, weight: float
) -> float:
    """Return the mean squared error of rows left out one at a time: one pass, O(np²).

    It is that of `left_out_squares`, without a number per row.
    """
    inverses = inverses_of(units, gram, alpha, weight, (1.0,))
    squares = rows.reduce(_left_out, units, gram.options, gram.basis, inverses).squares
    return float(squares[0]) / weight


def left_out_squares_by_rows(
    kernel: RowKernel, alpha: Alpha, factors: Sequence[float] = (1.0,)
) -> np.ndarray:
    """Return the same from the products of rows: O(n³), for several factors by eigenvectors."""
    solved, left = residuals_by_rows(kernel, alpha, factors)
    return np.asarray((solved / left) ** 2)


def residuals_by_rows(
    kernel: RowKernel, alpha: Alpha, factors: Sequence[float] = (1.0,)
) -> tuple[np.ndarray, np.ndarray]:
    """Return √ω r and 1 − h of each row, (n, f), from the products of rows.

    The intercept adds each row's share of all weight to its leverage.
    """
    K, y = kernel.summed(alpha), kernel.y
    with one_blas_thread():
        L = factored(K / factors[0] + np.eye(len(y))) if len(factors) == 1 else None
        if L is not None:
            inverse = dpotri(L, lower=1)[0]
            solved = cho_solve((L, True), y, check_finite=False)[:, None]
            left = np.diag(inverse)[:, None]
        else:
            values, V = np.linalg.eigh(K)
            s = np.asarray(factors) / (np.maximum(values, 0.0)[:, None] + np.asarray(factors))
            solved, left = V @ (s * (V.T @ y)[:, None]), (V * V) @ s
    return solved, np.maximum(left - kernel.shares[:, None], 1 - LARGEST_LEVERAGE)
