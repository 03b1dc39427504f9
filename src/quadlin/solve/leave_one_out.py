r"""The error of each row when it is left out, without fitting again.

A model that is linear in its parameters, with a ridge R, predicts a row that was left out with the
error

.. math:: e_i = \frac{r_i}{1 - h_i}, \quad h_i = \omega_i \varphi_i^\top A^{-1} \varphi_i, \quad
          A = \Phi^\top \Omega \Phi + R

from its residual r and its leverage h. That is exact for ridge regression and for all products.
For a low rank it is so on the tangent space, whose directions were chosen with the row at hand: a
little too small then, but it tells where a few extreme rows carry the fit.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, solve_triangular

from quadlin.core.arrays import Array, moved, namespace
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.evidence import Kernel
from quadlin.solve.exact import Alpha
from quadlin.solve.tangent_gram import Basis, TangentGram, columns, in_parts
from quadlin.solve.types import Options

LARGEST_LEVERAGE = 1 - 1e-9  # a row that alone decides a parameter: its error is unbounded


@dataclass(frozen=True)
class LeftOut(Additive):
    """Σω e² of rows that were left out one at a time."""

    squares: Array  # (1,)


def _left_out(
    chunk: Chunk, units: Units, options: Options, basis: Basis, theta: Array, root: Array
) -> LeftOut:
    """Sum over one chunk; A⁻¹ = root rootᵀ."""
    return in_parts(_left_out_part, chunk, units, options, basis, theta, root)


def _left_out_part(
    chunk: Chunk, units: Units, options: Options, basis: Basis, theta: Array, root: Array
) -> LeftOut:
    A = columns(chunk, units, options, basis)
    A, xp = A if options.fit_intercept else A[:, 1:], namespace(A)
    weight = xp.ones_like(A[:, 0])
    if chunk.weight is not None:
        weight = xp.astype(chunk.weight, xp.float64)
    leverage = weight * xp.sum((A[:, :-1] @ root) ** 2, axis=1)
    error = (A[:, -1] - A[:, :-1] @ theta) / (1 - xp.clip(leverage, max=LARGEST_LEVERAGE))
    return LeftOut(xp.sum(weight * error**2, keepdims=True))


def left_out_error(
    rows: Rows, units: Units, gram: TangentGram, alpha: Alpha, weight: float
) -> float:
    """Return the mean squared error of rows left out one at a time: one pass, O(np²).

    In units of the standardised target. `alpha` are the penalties of w and M.
    """
    penalty = gram.penalty(alpha)
    L, _ = cho_factor(gram.products[:-1, :-1] + np.diag(penalty), lower=True)
    root = solve_triangular(L, np.eye(len(L)), lower=True).T
    theta = root @ (root.T @ gram.products[:-1, -1])
    on_device = (moved(a, units.scale) for a in (theta, root))
    total = rows.reduce(_left_out, units, gram.options, gram.basis, *on_device)
    return float(total.squares[0]) / weight


def left_out_error_by_rows(kernel: Kernel, alpha: Alpha) -> float:
    """Return the same from the products of rows: O(n³).

    The intercept adds each row's share of all weight to its leverage.
    """
    total = kernel.weight + 1
    K = sum(k / a for k, a in zip(kernel.kernels, alpha, strict=True))
    inverse = np.linalg.inv(np.eye(len(kernel.y)) + K)
    left = np.maximum(np.diag(inverse) - kernel.shares, 1 - LARGEST_LEVERAGE)
    return float(np.sum((inverse @ kernel.y / left) ** 2)) / total
