r"""Covariances of the coefficients of each column of sparse rows, by sweeps of the compiled kernel.

Around a model with factors E and slopes ℓ at the means, M may change by E Hᵀ + H Eᵀ and ℓ by w.
Belief propagation takes the coefficients :math:`\theta_j = (w_j, h_j)` of different columns as
independent, and what the other columns leave open in a row as additional noise of that row:

.. math:: S_j^{-1} = R_j + \sum_i \frac{\varphi_{ij} \varphi_{ij}^\top}
          {1/\omega_i + \sum_{l \ne j} c_{il}}

where :math:`\varphi_{il}^\top \theta_l` is what column l adds to the prediction for row i, with
:math:`\varphi = z (1, 2(p - z e))`, and :math:`c_{il}` its variance if row i is left out. This is
exact if rows and columns form a tree, and close if columns meet in few rows or by chance. Sweeps
begin with the ridges R alone, and the variances fall from there, so those of sweeps that end early
are too large rather than too small.
"""

from typing import NamedTuple

import numpy as np

from quadlin.core.compiled_columns import ColumnTable

SETTLED = 0.03  # relative change of the variances of predictions at which sweeps end
MOST_SWEEPS = 20


class Spread(NamedTuple):
    """What the rows and ridges leave open, in units of the noise."""

    covariances: np.ndarray  # (d, (k + 1)(k + 2)/2): lower triangles, zero for columns without rows
    variances: np.ndarray  # (n,): Σ_l c_il, of the prediction for a row, had it not been fitted
    precision: float  # of the intercept
    walks: int


def spread_of(table: ColumnTable, whole: np.ndarray) -> Spread:
    """Return what the rows of a table leave open about a model with its factors V.

    Cost: about five sweeps of O(nnz·k² + d·k³). Memory: (k + 1)(k + 2)/2 numbers per column and one
    per entry. The table's model is lost.

    Parameters
    ----------
    table : ColumnTable
    whole : array of bool, shape (d,)
        Which columns are in a one-hot group with a level in every row. The coefficients of these
        are relative to the mean of the group, so the intercept takes nothing from them.

    Returns
    -------
    Spread
    """
    k, width = table.k, table.factors.shape[1]
    table.signs[:k], table.linear[:] = 1.0, 0.0
    table.evaluate()
    table.run("run_survey")
    table.whole = np.ascontiguousarray(whole, np.uint8)
    table.beside = np.zeros(len(table.x), table.x.dtype)
    covariances = np.zeros((len(table.linear), (k + 1) * (k + 2) // 2), table.x.dtype)
    table.spread = covariances
    weight, variances = table.weights, table.state[:, width + 3]
    variances[:] = 0.0
    counting = np.flatnonzero(weight > 0)
    omega, p = weight[counting].astype(np.float64), table.state[counting, :k] - table.centre[:k]
    q = np.concatenate([np.ones((len(p), 1)), 2 * p], axis=1)
    table.all = np.zeros((k + 1) * (k + 2) // 2)
    before, now, sweeps = 0.0, np.inf, 0
    while sweeps == 0 or (abs(before - now) > SETTLED * now and sweeps <= MOST_SWEEPS):
        table.run("run_spread", begins=sweeps == 0)
        v = variances[counting].astype(np.float64)
        gram = q.T @ (q / (1 / omega + v)[:, None])
        table.all = gram[np.tril_indices(k + 1)]
        before, now, sweeps = now, float(v.sum()), sweeps + 1
    return Spread(covariances, variances.astype(np.float64), float(gram[0, 0]), sweeps + 1)
