r"""What a pass over the rows says of a regression with products: errors, leverages, moments.

The leverage of a row is that without products, which is the same for all of them, and what the
products add: tᵀSt with t the row of the products less their projections, S the inverse of their
Gram matrix.
"""

from dataclasses import dataclass

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.solve.pairs.pair_projection import Coefficients
from quadlin.solve.pairs.pair_sums import RegressionColumns, residual_moments, total


@dataclass(frozen=True)
class Scores(Additive):
    """What the residual says of every product, and how sure the rows are of the products taken."""

    loss: float  # Σω r²
    moments: Array  # (d, d), Σω r z_i z_j
    spread: Array  # (m,), Σω (a_m r / (1 − h))², a_m the influence of a row on β_m, h its leverage
    squares: Array  # (m,), Σω a_m²
    fourths: Array  # (m,), Σω a_m⁴


def scores(
    chunk_and_leverages: tuple[Chunk, np.ndarray],
    columns: RegressionColumns,
    fit: Coefficients,
    look: bool,
) -> Scores:
    """Sum over one chunk, with the leverages of its rows without products.

    Moments are summed to `look` at all products; else only errors are.
    """

    def of(Z: Array, A: Array, response: Array, omega: Array, base: Array) -> Scores:
        r, influence, leverage = _influences(A, response, base, fit)
        left_out = r / (1 - namespace(Z).clip(leverage, max=1 - 1e-9))  # of a fit without the row
        squared = influence**2
        spread, squares = (omega * left_out**2) @ squared, omega @ squared
        loss, moments = residual_moments(Z, r, omega, look)
        return Scores(loss, moments, spread, squares, omega @ squared**2)

    return total(of(*piece) for piece in columns.pieces_beside(*chunk_and_leverages))


def base_leverages(chunk: Chunk, columns: RegressionColumns, inverse: Array) -> np.ndarray:
    """Return the leverages of rows of weight 1; `inverse` is that of the columns' Gram matrix."""

    def of(A: Array) -> np.ndarray:
        xp = namespace(A)
        return to_numpy(xp.sum(A * (A @ xp.asarray(inverse, device=A.device)), axis=1))

    return np.concatenate([of(A) for _, A, _, _ in columns.pieces(chunk)])


def _influences(
    A: Array, response: Array, base: Array, fit: Coefficients
) -> tuple[Array, Array, Array]:
    """Return the residuals, the influences of rows on products, and leverages with products."""
    xp = namespace(A)
    beta, apart, inverse = (
        xp.asarray(a, device=A.device) for a in (fit.beta, fit.apart, fit.inverse)
    )
    left = A @ apart
    influence = left @ inverse
    return response - A @ beta, influence, base + xp.sum(left * influence, axis=1)


def left_out_squares(
    chunk_and_leverages: tuple[Chunk, np.ndarray], columns: RegressionColumns, fit: Coefficients
) -> list[np.ndarray]:
    """Return ωe² of the rows of positive weight, given their leverages without products."""

    def of(A: Array, response: Array, omega: Array, base: Array) -> np.ndarray:
        r, _, leverage = _influences(A, response, base, fit)
        share = namespace(A).clip(omega * leverage, max=1 - 1e-9)
        return to_numpy(omega * (r / (1 - share)) ** 2)[to_numpy(omega) > 0]

    return [of(*piece[1:]) for piece in columns.pieces_beside(*chunk_and_leverages)]
