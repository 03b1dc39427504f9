r"""What a level that is not known, new or missing, costs a prediction.

A row that has no level of a field is predicted as one of the average level. With its level l it
would be higher by

.. math:: \Delta_l = \sigma_l^{-1} (\tilde w_l + 2 M_l z) = a_l^\top h, \qquad h = (1, U^\top z),

which is quadratic in h on average over levels. Over the levels of the fitted rows, of shares p, its
mean square is hᵀ(V + āāᵀ)h, with ā the mean of a_l (zero by the convention of `levels`) and V the
covariance. That is the cost of a level that is missing. A level that no row had is drawn from the
population of which these are a sample. With :math:`q = \sum_l p_l^2` (1/K for K equal shares) V is
on average 1 − q of its variance, and the new level 1 + q of it away from their mean, so that

.. math:: h^\top \Big( \frac{1 + q}{1 - q} V + \bar a \bar a^\top \Big) h

is the mean square. Effects that a penalty has shrunk vary less than those of the population do: the
variances of their errors are added, since with the prior that the penalty stands for the mean
square of an effect is that of its estimate and of its error together. The sum is unbiased, but from
few levels it is itself hardly known: from two levels as the square of one normal number.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.model import Model
from quadlin.core.units import Units
from quadlin.solve.lowrank.levels import Fields

FEW = 1e-9  # of 1 − Σp²: there is one level, and nothing is known of others


@dataclass(frozen=True)
class LevelSpread:
    """What the levels of fields change, on average: of each field if new, then if missing."""

    fields: Fields
    mark: float  # stands in the first column of a field for a missing level
    squares: np.ndarray  # (2F, k + 1, k + 1), E aaᵀ
    factors: np.ndarray  # (2F, k, k), E vvᵀ, v_l = U_l/σ_l: for products with other fields

    @classmethod
    def of(
        cls, model: Model, units: Units, fields: Fields, mark: float, errors: np.ndarray | None
    ) -> "LevelSpread":
        """Return the spread of the levels of a model's fields.

        `errors` (d,) are the variances of what levels add, where they are shrunk.
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
            more = (1 + q) / (1 - q) if 1 - q > FEW else 1.0
            new.append(more * covariance + offset)
            missing.append(covariance + offset)
        k = len(s)
        both = np.array(new + missing).reshape(-1, 2 * k + 1, 2 * k + 1)
        return cls(fields, mark, both[:, : k + 1, : k + 1], both[:, k + 1 :, k + 1 :])

    def absent_in(self, X: Array) -> csr_array:
        """Return 1 where a row has a new level of a field, then where it has a missing one."""
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
