r"""The mean square error that missing values and new levels add to predictions.

A missing number is replaced by its mean. If it is δ standard deviations from there, the prediction
changes by gδ + mδ², where g is the slope and m the coefficient of the square, so that

.. math:: E (g \delta + m \delta^2)^2 = g^2 + 2 g m \kappa + m^2 \varphi

with the third and fourth moments of the column. A row without a level of a field, since it is
missing or new, is predicted as one with the average level. With level l the prediction would
change by :math:`\Delta_l = a_l^\top h, h = (1, U^\top z)`, and its mean square over the levels of
the fitted rows is :math:`h^\top E[a a^\top] h`. Columns count as independent.

The residuals of rows with a gap contain that error, so the noise is estimated from complete rows,
as long as they are more than the parameters.
"""

from collections.abc import Sequence
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
from quadlin.solve.fits.uncertainty import Uncertainty


@dataclass(frozen=True)
class ResidualSums(Additive):
    """Sums over rows, over all and over complete ones."""

    weight: np.ndarray  # (2,), Σω
    squares: np.ndarray  # (2,), Σω r²


def residual_sums(chunk: Chunk, model: Model, units: Units) -> ResidualSums:
    """Sum the squares of the residuals of a chunk."""
    r = predict(model, Block(chunk.X, units)) - units.standardised_target(chunk.y)
    has_gap = 0 if chunk.absent is None else np.diff(chunk.absent.indptr)
    omega = np.stack([chunk.weights, chunk.weights * (has_gap == 0)])
    return ResidualSums(omega.sum(axis=1), omega @ to_numpy(r).astype(np.float64) ** 2)


def with_noise_of_complete_rows(law: Uncertainty, rows: Rows, model: Model) -> Uncertainty:
    """Return the law with the noise of complete rows: one pass."""
    sums = rows.reduce(residual_sums, model, law.units)
    if sums.weight[1] <= law.dof or not law.left >= 1:
        return law
    every, complete = sums.squares / sums.weight
    return replace(law, noise=law.noise * sqrt(complete / every) if every else law.noise)


def missing_variance(
    model: Model,
    units: Units,
    X: Array,
    absent: csr_array | None,
    fields: Sequence[np.ndarray],
) -> np.ndarray | None:
    """Return the mean square error (n,) that missing values add, in scale_y²; None for none.

    `absent` (n, d) tells which values are missing, and `fields` are groups of one-hot columns.
    """
    n, d = X.shape
    gaps = csr_array((n, d), dtype=bool) if absent is None else absent
    number = np.repeat(np.arange(len(fields)), [len(field) for field in fields])
    members = np.concatenate([np.empty(0, dtype=int), *fields])
    member = csr_array((np.ones(len(members)), (members, number)), shape=(d, len(fields)))
    has_level = (X if issparse(X) else to_numpy(X)) @ member
    has_level = has_level.toarray() if issparse(has_level) else np.asarray(has_level)
    rows = np.flatnonzero((np.diff(gaps.indptr) > 0) | (has_level == 0).any(axis=1))
    if not len(rows):
        return None
    xp = namespace(X)
    selected = X[rows] if issparse(X) else xp.take(X, xp.asarray(rows, device=X.device), axis=0)
    parts = (model.U, model.s, model.w, model.free, Block(selected, units).matmul(model.U))
    U, s, w, free, ZU = (to_numpy(a).astype(np.float64) for a in parts)
    parts = (units.kappa, units.phi, units.mean, units.scale, units.nu)
    kappa, phi, mean, scale, nu = (to_numpy(a).astype(np.float64) for a in parts)
    diagonal = (U * U) @ s
    row, j = gaps[rows].nonzero()
    g, m = w[j] + 2 * np.sum((ZU * s)[row] * U[j], axis=1), (free * diagonal)[j]
    squares = np.where(scale[j] > 0, g**2 + 2 * g * m * kappa[j] + m**2 * phi[j], 0.0)
    total = np.bincount(row, squares, len(rows)).astype(np.float64)
    # What a level adds to none of its field: products within a field are zero.
    w = w + 2 * (1 - free) * diagonal * nu + free * diagonal * scale
    for f, field in enumerate(fields):
        at = np.flatnonzero(has_level[rows, f] == 0)
        if len(at):
            share = np.maximum(mean[field], 0.0) / max(mean[field].sum(), np.finfo(float).tiny)
            a = scale[field, None] * np.column_stack([w[field], 2 * U[field] * s])
            h = np.column_stack([np.ones(len(at)), ZU[at]])
            total[at] += np.einsum("ra,ab,rb->r", h, (a * share[:, None]).T @ a, h)
    variance = np.zeros(n)
    variance[rows] = total
    return variance
