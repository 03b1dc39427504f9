r"""The covariance of the error of a model of wide sparse rows, column by column.

The coefficients of a column, :math:`\theta_j = (w_j, h_j)` in w and in M = E Hᵀ + H Eᵀ, have a
covariance :math:`S_j`; those of different columns are independent (see `column_spread`). With
p = Eᵀz and :math:`e_j` the j-th row of E, the variance of the prediction for a row is

.. math:: \sum_j z_j^2 \, a_j^\top S_j a_j, \quad a_j = (1, 2(p - z_j e_j))

which needs the entries of the row only: columns without an entry have the same z_j in all rows. It
is too large for rows that were fitted, and for columns that always come together.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

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
from quadlin.solve.lowrank.types import Problem

PAIRS = 4000  # of rows, to see whether columns come together


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
        for part in self._parts(X.nnz):
            at = np.arange(part.start, min(part.stop, X.nnz))
            row, j = np.searchsorted(X.indptr, at, side="right") - 1, X.indices[part]
            z, e, absent = X.data[part] * D[j] - nu[j], self.E[j], -nu[j]
            change = _squares(_of_entry(p[row], z, e)) - _squares(_of_entry(p[row], absent, e))
            grown = np.sum(self.triangles[j] * change, axis=1)
            variances += np.bincount(row, grown, len(variances))
        return np.asarray(np.maximum(variances, 0.0) + self.of_c)  # or negative, by rounding

    def of_coefficients(self, units: Units) -> tuple[np.ndarray, float]:
        """Return the variances of D(w − 2Mν), (d,), and of the value at x = 0."""
        D, nu = _numbers(units)
        z = self._from_means(-nu, units)
        p, value = z @ self.E, 0.0
        for j in self._parts(len(z)):
            value += float(np.sum(self.triangles[j] * _squares(_of_entry(p, z[j], self.E[j]))))
        slopes = self._slopes_of(np.arange(len(z)), z, p, self._total(z**2), units)
        return D**2 * slopes, max(value, 0.0) + self.of_c

    def of_interaction(self, i: int, j: int, units: Units) -> float:
        """Return the variance of the entry ij of M."""
        pair = np.array([i, j])
        factors = np.concatenate([np.zeros((2, 1)), self.E[pair[::-1]]], axis=1)
        return float(np.sum(self._settled(pair, units) * _squares(factors)))

    def _slopes_of(
        self, columns: np.ndarray, z: np.ndarray, p: np.ndarray, total: np.ndarray, units: Units
    ) -> np.ndarray:
        """Return the variances of w_j + 2Σ_l M_jl z_l, l ≠ j, for some columns j.

        From z of these columns, p = Eᵀz and Σ z²S of all columns.
        """
        slopes = np.empty(len(columns))
        for part in self._parts(len(columns)):
            j, z_j = columns[part], z[part, None]
            E, S = self.E[j], self.triangles[j]
            beside = _squares(np.concatenate([np.zeros((len(E), 1)), 2 * E], axis=1))
            others = beside @ total - z_j[:, 0] ** 2 * np.sum(S * beside, axis=1)
            square = _squares(_along(p - z_j * E))
            slopes[part] = others + np.sum(self._settled(j, units) * square, axis=1)
        return np.maximum(slopes, 0.0)  # rounding may make them negative

    def _parts(self, n: int) -> list[slice]:
        """Return parts of n entries or columns, whose triangles do not take much memory."""
        size = max(1, ELEMENTS // self.triangles.shape[1])
        return [slice(first, first + size) for first in range(0, n, size)]

    def _total(self, factors: np.ndarray) -> np.ndarray:
        """Return Σ_j f_j S_j for factors (d,), or for each column of factors (d, m)."""
        parts = self._parts(len(factors))
        return np.asarray(sum(factors[j].T @ self.triangles[j].astype(np.float64) for j in parts))

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

    def _settled(self, columns: np.ndarray, units: Units) -> np.ndarray:
        """Return the triangles of some columns, measured from the means of their groups."""
        S, group = self.triangles[columns], self.group[columns]
        grouped = group >= 0
        if not grouped.any():
            return np.asarray(S)
        D, nu = (a[columns][grouped, None] for a in _numbers(units))
        a = _inverse(D)
        S[grouped] = (1 - 2 * a * nu) * S[grouped] + a**2 * self._of_means(units)[group[grouped]]
        return np.asarray(S)

    @remembered
    def _of_means(self, units: Units) -> np.ndarray:
        """Return Σ ν²S of each group, the covariance of the mean of its coefficients."""
        grouped, (_, nu) = np.flatnonzero(self.group >= 0), _numbers(units)
        weighted = (nu[grouped] ** 2)[:, None] * self.triangles[grouped]
        group = self.group[grouped]
        return np.stack([np.bincount(group, column) for column in weighted.T], axis=1)

    @remembered
    def _absent(self, units: Units) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the coefficients of q = (1, 2p) in Σ_j z_j² a_jᵀ S_j a_j with z = −ν.

        a_j is q + (0, 2ν_j e_j).
        """
        _, nu = _numbers(units)
        e = 2 * nu[:, None] * self.E
        crossed, linear = self._total((nu**2)[:, None] * e), np.zeros(1 + e.shape[1])
        for c, (i, j) in enumerate(zip(*np.tril_indices(len(linear)), strict=True)):
            linear[i] += 2 * crossed[j - 1, c] if j else 0.0
            linear[j] += 2 * crossed[i - 1, c] if i > j else 0.0
        constant = 0.0
        for part in self._parts(len(nu)):
            squares = _squares(np.concatenate([np.zeros((len(e[part]), 1)), e[part]], axis=1))
            constant += float(nu[part] ** 2 @ np.sum(self.triangles[part] * squares, axis=1))
        return self._total(nu**2), linear, constant


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


class ColumnLaw(NamedTuple):
    """What single columns say about the error of a model, for noise 1."""

    covariances: ColumnCovariances
    dof: float
    together: float  # see `come_together`


def column_law(problem: Problem, model: Model, fields: Fields) -> ColumnLaw:
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
    omega = np.ones(len(columns.y)) if columns.weights is None else columns.weights
    columns.table.weights[:] = omega
    spread = spread_of(columns.table, group[order] >= 0)
    problem.rows.counter.count += spread.walks * problem.rows.share
    triangles = np.empty((d, (k + 1) * (k + 2) // 2), spread.covariances.dtype)
    triangles[order] = spread.covariances[:, : triangles.shape[1]]
    triangles *= (columns.inverse**2).astype(triangles.dtype)[:, None]
    v = omega * spread.variances
    dof = 1 + float(np.sum(v / (1 + v)))
    covariances = ColumnCovariances(model.U, triangles, group, 1 / spread.precision)
    return ColumnLaw(covariances, dof, come_together(columns, problem.rng))


def come_together(columns: ColumnFit, rng: np.random.Generator) -> float:
    """Return how many more other columns two rows share, on average, if they share a column.

    This is estimated from random pairs of rows. It is about zero if columns are independent, and
    one if each column is there twice.
    """
    if not columns.X.nnz:
        return 0.0
    starts, rows = columns.table.starts, columns.table.rows
    ones = csr_array(
        (np.ones(columns.X.nnz, np.int32), columns.X.indices, columns.X.indptr), columns.X.shape
    )
    entry = rng.integers(columns.X.nnz, size=PAIRS)
    column = np.searchsorted(starts, entry, side="right") - 1
    other = starts[column] + rng.integers(0, np.diff(starts)[column])
    entry, other = entry[other != entry], other[other != entry]

    def shared(one: np.ndarray, two: np.ndarray) -> float:
        return float(ones[one].multiply(ones[two]).sum()) / max(1, len(one))

    n = ones.shape[0]
    by_chance = shared(rng.integers(n, size=PAIRS), rng.integers(n, size=PAIRS))
    return shared(rows[entry], rows[other]) - 1 - by_chance
