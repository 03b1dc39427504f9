r"""The covariance of the error of a model of wide sparse rows, column by column.

The coefficients of a column, :math:`\theta_j = (w_j, h_j)` in w and in M = E Hᵀ + H Eᵀ, have a
covariance :math:`S_j`; those of different columns are independent (see `column_spread`). With
p = Eᵀz and :math:`e_j` the j-th row of E, the variance of the prediction for a row is

.. math:: \sum_j z_j^2 \, a_j^\top S_j a_j, \quad a_j = (1, 2(p - z_j e_j))

which needs the entries of the row only: columns without an entry have the same z_j in all rows. It
is too large for rows that were fitted, and for columns that always come together.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from quadlin.core.arrays import remembered, to_numpy
from quadlin.core.block import Block
from quadlin.core.column_spread import spread_of
from quadlin.core.model import Model
from quadlin.core.sums import ELEMENTS
from quadlin.core.units import Units
from quadlin.solve.lowrank.column_rows import ColumnFit
from quadlin.solve.lowrank.levels import Fields, whole
from quadlin.solve.lowrank.row_hash import merged_weights
from quadlin.solve.lowrank.types import Problem


@dataclass(frozen=True)
class ColumnCovariances:
    """The covariances of (w_j, h_j) for each column j, and the variance of c.

    Those of a one-hot group with a level in every row are not yet measured from their mean.
    """

    E: np.ndarray  # (d, k), the model's factor
    triangles: np.ndarray  # (d, (k + 1)(k + 2)/2), the lower triangles of S, row by row
    group: np.ndarray  # (d,), the number of a column's group; -1 if it has none
    of_c: float

    def of_predictions(self, block: Block, units: Units) -> np.ndarray:
        """Return the variances of f(z), (n,)."""
        D, nu = _numbers(units)
        X, p = csr_array(block.X), to_numpy(block.matmul(self.E))
        square, linear, constant = self._absent(units)
        q = _along(p)
        variances = np.asarray(_squares(q) @ square + q @ linear + constant, np.float64)
        size = max(1, ELEMENTS // self.triangles.shape[1])
        for first in range(0, X.nnz, size):
            at = np.arange(first, min(first + size, X.nnz))
            row, j = np.searchsorted(X.indptr, at, side="right") - 1, X.indices[at]
            z, e, absent = X.data[at] * D[j] - nu[j], self.E[j], -nu[j]
            change = _squares(_of_entry(p[row], z, e)) - _squares(_of_entry(p[row], absent, e))
            grown = np.sum(self.triangles[j] * change, axis=1)
            variances += np.bincount(row, grown, len(variances))
        return np.asarray(np.maximum(variances, 0.0) + self.of_c)  # or negative, by rounding

    def of_coefficients(self, units: Units) -> tuple[np.ndarray, float]:
        """Return the variances of D(w − 2Mν), (d,), and of the value at x = 0."""
        D, nu = _numbers(units)
        z = self._from_means(-nu, units)
        change = _squares(_of_entry(z @ self.E, z, self.E))
        value = float(np.sum(self.triangles * change))
        return D**2 * self._of_slopes(z, slice(None), units), max(value, 0.0) + self.of_c

    def of_slopes(self, x: np.ndarray, units: Units, fields: Fields) -> np.ndarray:
        """Return the variances of D(w + 2Mz − 2M_F Dx), (d,)."""
        D, nu = _numbers(units)
        z = D * x - nu
        slopes = self._of_slopes(self._from_means(z, units), slice(None), units)
        for field in fields:
            outside = z.copy()
            outside[field] = -nu[field]
            slopes[field] = self._of_slopes(self._from_means(outside, units), field, units)
        return np.asarray(D**2 * slopes)

    def of_interaction(self, i: int, j: int, units: Units) -> float:
        """Return the variance of the entry ij of M."""
        pair = np.array([i, j])
        factors = np.concatenate([np.zeros((2, 1)), self.E[pair[::-1]]], axis=1)
        return float(np.sum(self._settled(units)[pair] * _squares(factors)))

    def _of_slopes(self, z: np.ndarray, columns: slice | np.ndarray, units: Units) -> np.ndarray:
        """Return the variances of w_j + 2Σ_l M_jl z_l, l ≠ j, for some columns j."""
        E, z_j = self.E[columns], z[columns][:, None]
        beside = np.concatenate([np.zeros((len(E), 1)), 2 * E], axis=1)
        others = _squares(beside) @ (z**2 @ self.triangles)  # Σ_l z_l² (0, 2e_j)ᵀ S_l (0, 2e_j)
        others -= z_j[:, 0] ** 2 * np.sum(self.triangles[columns] * _squares(beside), axis=1)
        square = _squares(_along(z @ self.E - z_j * E))
        slopes = others + np.sum(self._settled(units)[columns] * square, axis=1)
        return np.asarray(np.maximum(slopes, 0.0))  # rounding may make them negative

    def _from_means(self, z: np.ndarray, units: Units) -> np.ndarray:
        """Return by which z the coefficients go if those of groups are measured from their means.

        They are θ − aνᵀθ with a = σ, see `levels`.
        """
        grouped = self.group >= 0
        (D, nu), group = _numbers(units), self.group[grouped]
        sums = np.bincount(group, (z * _inverse(D))[grouped])
        settled = z.copy()
        settled[grouped] -= sums[group] * nu[grouped]
        return settled

    @remembered
    def _settled(self, units: Units) -> np.ndarray:
        """Return the triangles of coefficients that are measured from the means of groups."""
        grouped = np.flatnonzero(self.group >= 0)
        if not len(grouped):
            return self.triangles
        (D, nu), group, S = _numbers(units), self.group[grouped], self.triangles[grouped]
        weighted = (nu[grouped] ** 2)[:, None] * S
        of_mean = np.stack([np.bincount(group, column) for column in weighted.T], axis=1)
        a, settled = _inverse(D)[grouped, None], self.triangles.copy()
        settled[grouped] = (1 - 2 * a * nu[grouped, None]) * S + a**2 * of_mean[group]
        return settled

    @remembered
    def _absent(self, units: Units) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the coefficients of q = (1, 2p) in Σ_j z_j² a_jᵀ S_j a_j with z = −ν.

        a_j is q + (0, 2ν_j e_j).
        """
        _, nu = _numbers(units)
        e = np.concatenate([np.zeros((len(nu), 1)), 2 * nu[:, None] * self.E], axis=1)
        Se = nu[:, None] ** 2 * _product(self.triangles, e)
        return nu**2 @ self.triangles, 2 * Se.sum(axis=0), float(np.sum(Se * e))


def _numbers(units: Units) -> tuple[np.ndarray, np.ndarray]:
    """Return D and ν."""
    D, nu = (to_numpy(a).astype(np.float64) for a in (units.scale, units.nu))
    return D, nu


def _inverse(D: np.ndarray) -> np.ndarray:
    """Return 1/D, and 0 for constant columns."""
    return np.where(D > 0, 1 / np.where(D > 0, D, 1.0), 0.0)


def _of_entry(p: np.ndarray, z: np.ndarray, e: np.ndarray) -> np.ndarray:
    """Return z (1, 2(p − z e)) of some entries."""
    z = z[:, None]
    return np.asarray(z * _along(np.broadcast_to(p, e.shape) - z * e))


def _along(p: np.ndarray) -> np.ndarray:
    """Return (1, 2p) of some p (n, k)."""
    return np.concatenate([np.ones((len(p), 1)), 2 * p], axis=1)


def _squares(a: np.ndarray) -> np.ndarray:
    """Return what lower triangles of symmetric S are multiplied by in aᵀSa; for a (n, k + 1)."""
    i, j = np.tril_indices(a.shape[1])
    return np.asarray(a[:, i] * a[:, j] * np.where(i == j, 1.0, 2.0))


def _product(triangles: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return Sa for lower triangles (n, …) of symmetric S and a (n, k + 1)."""
    product = np.zeros(a.shape)
    for c, (i, j) in enumerate(zip(*np.tril_indices(a.shape[1]), strict=True)):
        product[:, i] += triangles[:, c] * a[:, j]
        if i != j:
            product[:, j] += triangles[:, c] * a[:, i]
    return product


def column_covariances(
    problem: Problem, model: Model, fields: Fields
) -> tuple[ColumnCovariances, float]:
    """Return the covariances of a model of rows in memory, for noise 1, and the dof.

    Cost: about five sweeps over the columns. Memory: a copy of the rows by columns, and twice what
    is returned.
    """
    units, (d, k) = problem.units, model.U.shape
    columns = ColumnFit.of(replace(problem, options=replace(problem.options, rank=k)))
    D, order = columns.units.scale, columns.order
    columns.table.V[:, :k] = (D[:, None] * model.U)[order]
    groups = whole(units, fields) if problem.options.levels_are_ambiguous else []
    group = np.full(d, -1)
    for number, members in enumerate(groups):
        group[members] = number
    given = np.ones(len(columns.y)) if columns.weights is None else columns.weights
    omega = merged_weights(columns.X, given)
    columns.table.weights[:] = omega
    spread = spread_of(columns.table, group[order] >= 0)
    problem.rows.counter.count += spread.walks * problem.rows.share
    triangles = np.empty((d, (k + 1) * (k + 2) // 2), spread.covariances.dtype)
    triangles[order] = spread.covariances[:, : triangles.shape[1]]
    triangles *= (columns.inverse**2).astype(triangles.dtype)[:, None]
    v = omega * spread.variances
    dof = 1 + float(np.sum(v / (1 + v)))
    return ColumnCovariances(model.U, triangles, group, 1 / spread.precision), dof
