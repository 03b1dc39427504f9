r"""Bounds of the errors of rows left out, for a fraction of the work that the errors take.

The leverage of a row is :math:`h = \omega |A^{-1/2} \varphi|^2`, and the mean of the squares of its
products with m random directions :math:`A^{-1/2} g` is :math:`\tilde h = h \chi^2_m/m`. The error
r/(1 − h) is then bounded by :math:`r/(1 - \tilde h - 3 \tilde h^2)`. Where leverages are small,
what is too much and what is too little make up for each other in a sum, which errs by √(2/mp) only;
a large leverage, of which one row may have most of a sum, is doubled. Where rows are many, a low
rank that is there shows in such bounds already: O(npm) in place of O(np²).
"""

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from quadlin.core.arrays import namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import one_blas_thread
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.expected_errors import LARGEST_LEVERAGE, ridge_of
from quadlin.solve.choose.leave_one_out import Inverses, inverses_with, residuals
from quadlin.solve.lowrank.exact import Alpha
from quadlin.solve.lowrank.tangent_gram import Basis, TangentGram, chunk_parts
from quadlin.solve.lowrank.types import Options

DIRECTIONS = 48
MORE = 3.0  # h̃² that is added to h̃: a leverage of .6 is larger than that in one of 1,000 draws
LEAST_COLUMNS = 4 * DIRECTIONS  # from which on bounds cost less than what they bound
LEAST_ROWS = 7  # per column: with fewer, leverages are too large for bounds to say much


def bounds_of_squares(
    rows: Rows, units: Units, gram: TangentGram, alpha: Alpha, weight: float, seed: int
) -> np.ndarray | None:
    """Return bounds of ωe² of each row of positive weight, from below and from above, (n, 2).

    One pass; None where rounding of large columns is more than the ridge.
    """
    linear = gram.centred(weight)
    A = linear.products + np.diag(ridge_of(gram, alpha, weight))
    directions = np.random.default_rng(seed).standard_normal((len(A), DIRECTIONS))
    with one_blas_thread():
        try:
            L = cho_factor(A, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            return None
        Q = solve_triangular(L[0], directions, trans=1, lower=True, check_finite=False)
        beta = cho_solve(L, linear.right, check_finite=False)[:, None]
    inverses = inverses_with(units, gram, Q, np.full((DIRECTIONS, 1), 1 / DIRECTIONS), beta)
    return np.concatenate(rows.collect(_row_bounds, units, gram.options, gram.basis, inverses))


def _row_bounds(
    chunk: Chunk, units: Units, options: Options, basis: Basis, inverses: Inverses
) -> np.ndarray:
    parts = chunk_parts(chunk.counting(), basis)
    return np.concatenate([_bounds(part, units, options, basis, inverses) for part in parts])


def _bounds(
    chunk: Chunk, units: Units, options: Options, basis: Basis, inverses: Inverses
) -> np.ndarray:
    weight, residual, leverage = residuals(chunk, units, options, basis, inverses)
    most = leverage + MORE * leverage**2
    left = 1 - namespace(leverage).clip(most, max=LARGEST_LEVERAGE)
    squares = weight * residual**2
    return np.column_stack([to_numpy(squares)[:, 0], to_numpy(squares / left**2)[:, 0]])
