r"""The error that missing values, filled with the means of their columns, add to predictions.

With δ_j the distance of a missing value from the mean that replaces it, S the missing columns of a
row and g = w + 2Mz the slope there, the error of the prediction is

.. math:: \sum_{j \in S} g_j \delta_j + \sum_{j \in S \cap F} M_{jj} \delta_j^2
          + 2 \sum_{i < j \in S} M_{ij} \delta_i \delta_j

If columns are independent, its mean square follows from their moments
:math:`v = E δ^2, t = E δ^3, q = E δ^4`:

.. math:: \sum_j g_j^2 v_j + 2 g_j M_{jj} t_j + M_{jj}^2 (q_j - v_j^2)
          + \Big(\sum_j M_{jj} v_j\Big)^2 + 4 \sum_{i < j} M_{ij}^2 v_i v_j

A value counts as missing if it equals the number that fills its column exactly;
`data/sources/means.py` chooses a number that nobody would type. So rows of arrays, files, Dask and
GPUs are treated alike, and need no mask.

Text columns with a new or missing level count as further missing columns. A row without a level of
a field is predicted as one with the average level. With its level l the prediction would be higher
by

.. math:: \Delta_l = \sigma_l^{-1} (\tilde w_l + 2 M_l z) = a_l^\top h, \qquad h = (1, U^\top z),

whose mean square over levels is quadratic in h. For the levels of the fitted rows, with shares p,
it is hᵀ(V + āāᵀ)h, where ā is the mean of a_l (zero by the convention of `levels`) and V the
covariance. This is the cost of a missing level. A level that no row had is drawn from the
population that these levels are a sample of. With :math:`q = \sum_l p_l^2` (1/K for K equal
shares), V is on average 1 − q of the population's variance, and the mean squared distance of a new
level from the mean of the others is 1 + q of it, so that

.. math:: h^\top \Big( \frac{1 + q}{1 - q} V + \bar a \bar a^\top \Big) h

is the mean square. Effects that a penalty has shrunk vary less than those of the population. So the
variances of their errors are added: under the prior of the penalty, the mean square of an effect is
that of its estimate plus that of its error. The sum is unbiased, but with few levels it is very
uncertain: with two levels, as uncertain as the square of one normal number.
"""

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.fits.uncertainty import Gaps, Uncertainty
from quadlin.solve.lowrank.levels import Fields

ENOUGH = 50.0  # complete rows beyond their parameters, which determine the noise to 10%
LEAST = 0.25  # of the residual variance of all rows: the smallest plausible noise
SMALLEST_SHARE = 1e-3  # of a column that is present: moments of fewer rows are useless
FEW = 1e-9  # of 1 − Σp²: there is only one level, which says nothing about others
NEAR_MEAN = 0.1  # standard deviations: the user chose a fill that is further from the mean


@dataclass(frozen=True)
class LevelSpread:
    """The mean square that a new level of each field adds, and then a missing level of each."""

    fields: Fields
    mark: float  # marks a missing level in the first column of a field
    squares: np.ndarray  # (2F, k + 1, k + 1), E aaᵀ
    factors: np.ndarray  # (2F, k, k), E vvᵀ, v_l = U_l/σ_l: for products with other fields

    @classmethod
    def of(
        cls, model: Model, units: Units, fields: Fields, mark: float, errors: np.ndarray | None
    ) -> "LevelSpread":
        """Return the spread of the levels of a model's fields.

        `errors` (d,) are the variances of the errors of effects of levels, if they are shrunk.
        """
        parts = (model.U, model.s, model.w, units.free, units.mean, units.scale, units.nu)
        U, s, w, free, mean, scale, nu = (to_numpy(a).astype(np.float64) for a in parts)
        m = (U * U) @ s
        w = w + 2 * (1 - free) * m * nu + free * m * scale  # products within a field are zero
        new, missing = [], []
        for field in fields:
            p = np.maximum(mean[field], 0.0)
            p = p / max(p.sum(), np.finfo(float).tiny)
            V = scale[field, None] * U[field]
            a = np.column_stack([scale[field] * w[field], 2 * V * s, V])
            centre, q = p @ a, float(p @ p)
            covariance = ((a - centre) * p[:, None]).T @ (a - centre)
            covariance[0, 0] += 0.0 if errors is None else p @ errors[field]
            offset = np.outer(centre, centre)
            inflation = (1 + q) / (1 - q) if 1 - q > FEW else 1.0
            new.append(inflation * covariance + offset)
            missing.append(covariance + offset)
        k = len(s)
        stacked = np.array(new + missing).reshape(-1, 2 * k + 1, 2 * k + 1)
        return cls(fields, mark, stacked[:, : k + 1, : k + 1], stacked[:, k + 1 :, k + 1 :])

    def absent_in(self, X: Array) -> csr_array:
        """Return 1 for each row with a new level of a field, then for each with a missing level."""
        F = len(self.fields)
        columns = np.concatenate(self.fields)
        of_column = np.repeat(np.arange(F), [len(field) for field in self.fields])
        part = csr_array(X[:, columns] if issparse(X) else to_numpy(X)[:, columns])
        row = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr))
        cell = row * F + of_column[part.indices]
        shape, is_mark = (part.shape[0], F), part.data == self.mark
        levels = np.bincount(cell[(part.data != 0) & ~is_mark], minlength=shape[0] * F)
        marks = np.bincount(cell[is_mark], minlength=shape[0] * F)
        missing = ((marks > 0) & (levels == 0)).reshape(shape)
        new = ((marks == 0) & (levels == 0)).reshape(shape)
        return csr_array(np.concatenate([new, missing], axis=1).astype(np.float64))


@dataclass(frozen=True)
class GapSums(Additive):
    """Sums over rows with and without missing values."""

    weight: float  # Σω
    complete: float  # Σω of complete rows
    squares: float  # Σωr² of complete rows
    absent: Array  # (d,), Σω of the rows in which a column is missing


def filled_columns(units: Units, fill: np.ndarray) -> np.ndarray:
    """Return the fills (d,), NaN for columns that are never filled, or not with their mean.

    A constant column equals its fill in every row, so nothing is lost if it is missing.
    """
    mean, scale = (to_numpy(a).astype(np.float64) for a in (units.mean, units.scale))
    return np.where((np.abs((fill - mean) * scale) <= NEAR_MEAN) & (scale > 0), fill, np.nan)


def absent_in(X: Array, fill: np.ndarray) -> csr_array:
    """Return 1 for each value that fills its column, otherwise 0 (n, d)."""
    if issparse(X):
        same = X.data == fill.astype(X.dtype)[X.indices]
        indptr = np.concatenate([[0], np.cumsum(same)])[X.indptr]
        return csr_array((np.ones(indptr[-1]), X.indices[same], indptr), shape=X.shape)
    rows = to_numpy(X)
    return csr_array((rows == fill.astype(rows.dtype)).astype(np.float64))


def missing_variance(
    model: Model,
    units: Units,
    X: Array,
    fill: np.ndarray,
    gaps: Gaps | None,
    levels: LevelSpread | None = None,
) -> np.ndarray:
    """Return the mean squared error (n,) that missing values add to predictions, in scale_y².

    Parameters
    ----------
    model, units
        The model that predicts.
    X : array (n, d)
        Rows whose missing values are filled.
    fill : array (d,)
        What fills each column, NaN for columns that are never filled.
    gaps : Gaps or None
        The share of each column that was missing in the fit; None for none.
    levels : LevelSpread or None
        The spread of the fields that a row may have no level of; None if that adds no error.

    Cost: that of a prediction, plus O(k²) for each missing value.
    """
    absent, variance = absent_in(X, fill), np.zeros(X.shape[0])
    levelless = csr_array((X.shape[0], 0)) if levels is None else levels.absent_in(X)
    rows = np.flatnonzero(np.diff(absent.indptr) + np.diff(levelless.indptr))
    if not len(rows):
        return variance
    absent, levelless = absent[rows], levelless[rows]
    row, j = absent.nonzero()
    xp = namespace(X)
    selected = X[rows] if issparse(X) else xp.take(X, xp.asarray(rows, device=X.device), axis=0)
    parts = (model.U, model.s, model.w, model.free, Block(selected, units).matmul(model.U))
    U, s, w, free, ZU = (to_numpy(a).astype(np.float64) for a in parts)
    v, t, q = _moments(units, gaps)
    diagonal = (U * U) @ s
    g = w[j] + 2 * np.sum((ZU * s)[row] * U[j], axis=1)
    m = (free * diagonal)[j]
    alone = g**2 * v[j] + 2 * g * m * t[j] + m**2 * (q - v**2)[j]
    shift = np.bincount(row, m * v[j], len(rows))
    alone, itself = (np.bincount(row, e, len(rows)) for e in (alone, (diagonal * v)[j] ** 2))
    factors = np.zeros((0, len(s), len(s)))
    if levels is not None:
        h, factors = np.column_stack([np.ones(len(rows)), ZU]), levels.factors
        row, f = levelless.nonzero()
        squares = np.einsum("ra,rab,rb->r", h[row], levels.squares[f], h[row])
        within = np.einsum("fab,fab,a,b->f", factors, factors, s, s)[f]
        alone = alone + np.bincount(row, squares, len(rows))
        itself = itself + np.bincount(row, within, len(rows))
    both = sum(  # Σ_ij M_ij² v_i v_j, i = j included
        s[a] * ((absent @ ((v * U[:, a])[:, None] * U) + levelless @ factors[:, a]) ** 2 @ s)
        for a in range(len(s))
    )
    variance[rows] = np.maximum(alone + shift**2 + 2 * (both - itself), 0.0)
    return variance


def with_gaps(
    law: Uncertainty, rows: Rows, model: Model, fill: np.ndarray, least_squares: bool
) -> Uncertainty:
    """Return a law with the missing share of each column, and the noise of complete rows.

    One pass. With `least_squares` and fewer than `ENOUGH` complete rows there is a second one; the
    noise is then the part of all residuals that missing values do not explain.
    """
    sums = rows.reduce(gap_sums, model, law.units, fill)
    absent = to_numpy(sums.absent)
    if not (absent > 0).any():
        return law
    gaps = Gaps(absent / sums.weight, law.noise)
    if least_squares and np.isfinite(law.noise):
        freedom = law.left / (law.left + law.dof)  # of each row, on average
        if sums.complete * freedom >= ENOUGH:
            variance = sums.squares / (sums.complete * freedom)
        else:
            rest = rows.reduce(unexplained, model, law.units, fill, gaps)
            variance = max(rest / (sums.weight * freedom), LEAST * law.noise**2)
        gaps = replace(gaps, noise=sqrt(variance))
    return replace(law, gaps=gaps)


def gap_sums(chunk: Chunk, model: Model, units: Units, fill: np.ndarray) -> GapSums:
    """Sum over one chunk."""
    absent, omega, r = absent_in(chunk.X, fill), *_residuals(chunk, model, units)
    complete = np.diff(absent.indptr) == 0
    of_complete = float(omega[complete] @ r[complete] ** 2)
    return GapSums(float(omega.sum()), float(omega[complete].sum()), of_complete, absent.T @ omega)


def unexplained(chunk: Chunk, model: Model, units: Units, fill: np.ndarray, gaps: Gaps) -> float:
    """Return Σω(r² − v) of one chunk, where missing values explain v of the residual of a row."""
    omega, r = _residuals(chunk, model, units)
    return float(omega @ (r**2 - missing_variance(model, units, chunk.X, fill, gaps)))


def complete_rows(chunk: Chunk, fill: np.ndarray) -> np.ndarray:
    """Return which rows of a chunk have no missing value."""
    return np.asarray(np.diff(absent_in(chunk.X, fill).indptr) == 0)


def _residuals(chunk: Chunk, model: Model, units: Units) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of rows and their residuals."""
    f = to_numpy(predict(model, Block(chunk.X, units))).astype(np.float64)
    r = f - to_numpy(units.standardised_target(chunk.y))
    weight = chunk.weight
    return np.ones(len(r)) if weight is None else to_numpy(weight).astype(np.float64), r


def _moments(units: Units, gaps: Gaps | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return E δ², E δ³ and E δ⁴ of each column, from moments in which a filled value has δ = 0."""
    kappa, phi = (to_numpy(a).astype(np.float64) for a in (units.kappa, units.phi))
    share = np.zeros(len(phi)) if gaps is None else to_numpy(gaps.share)
    present = np.maximum(1 - share, SMALLEST_SHARE)
    v = np.where(to_numpy(units.scale) > 0, 1 / present, 0.0)
    return v, kappa * v, np.maximum(phi * v, v**2)
