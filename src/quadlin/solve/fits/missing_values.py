r"""The mean square error that missing values and new levels add to predictions.

A missing number is replaced by its mean. If it is δ standard deviations from there, the prediction
changes by gδ + mδ², where g is the slope and m the coefficient of the square, so that

.. math:: E (g \delta + m \delta^2)^2 = g^2 + 2 g m \kappa + m^2 \varphi

with the third and fourth moments of the column. A row without a level of a field, since it is
missing or new, is predicted as one with the average level. With level l the prediction would
change by :math:`\Delta_l = a_l^\top h, h = (1, U^\top z)`, and its mean square over the levels of
the fitted rows is :math:`h^\top E[a a^\top] h`. Columns count as independent.

Rows with a gap also have a part in a fit. With v the error above, their residuals have the variance

.. math:: E r_i^2 = \sigma^2 + \lambda v_i

and those of complete rows σ². Both are estimated by maximum likelihood from the rows of the fit: σ²
is then the noise of a complete row, and λ corrects v for columns that are not independent, and for
the variance that a column has lost by being filled with its mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.fits.uncertainty import Uncertainty

SIZES = np.arange(-40, 21)  # of v in units of the target's variance, as powers of two
PRIOR = 4.0  # rows that have λ = 1: so few rows with a gap say little about it
SMALLEST = 1e-12  # σ² as a share of the mean square of the residuals


@dataclass(frozen=True)
class GapSums(Additive):
    """Sums over complete rows, and over rows whose v has about the same size."""

    weight: np.ndarray  # (1 + sizes,), Σω
    squares: np.ndarray  # Σω r²
    variances: np.ndarray  # Σω v


def gap_sums(chunk: Chunk, model: Model, units: Units) -> GapSums:
    """Sum the residuals of a chunk, apart for each size of v."""
    f = predict(model, Block(chunk.X, units)) - units.standardised_target(chunk.y)
    squares, omega = to_numpy(f).astype(np.float64) ** 2, chunk.weights
    v = missing_variance(model, units, chunk.X, chunk.absent, ())
    v = np.zeros(len(omega)) if v is None else v
    size = np.where(v > 0, 1 + np.searchsorted(2.0 ** SIZES[1:], v), 0)
    each = (omega, omega * squares, omega * v)
    return GapSums(*(np.bincount(size, values, 1 + len(SIZES)) for values in each))


def with_noise_of_complete_rows(law: Uncertainty, rows: Rows, model: Model) -> Uncertainty:
    """Return the law with the noise of complete rows, and with λ: one pass."""
    sums = rows.reduce(gap_sums, model, law.units)
    seen = sums.weight > 0
    omega, v = sums.weight[seen], sums.variances[seen] / sums.weight[seen]
    squares = sums.squares[seen] / omega * (1 + law.dof / max(law.left, 1.0))
    mean = float(omega @ squares / omega.sum())
    if not (v.any() and mean > 0 and law.left >= 1):
        return law

    def deviance(logs: np.ndarray) -> float:
        variance = exp(logs[0]) * mean + exp(logs[1]) * v
        fit = float(omega @ (np.log(variance) + squares / variance))
        return fit + PRIOR * float(logs[1] + exp(-logs[1]))

    bounds = [(log(SMALLEST), 0.0), (-10.0, 10.0)]
    found = minimize(deviance, [log(0.5), 0.0], bounds=bounds, method="L-BFGS-B").x
    return replace(law, noise=float(np.sqrt(exp(found[0]) * mean)), of_gaps=exp(found[1]))


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
    # What a level adds beside none of its field: products within a field are zero.
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
