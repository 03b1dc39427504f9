"""The convention for coefficients of one-hot levels: each is a difference from the field's mean.

The columns of a field sum to one in every row, so a constant can be moved from the coefficients of
all its levels to the intercept, or from their products with x_j to the coefficient of x_j. Of all
models that make the same predictions for such rows, this module selects the one in which the
coefficients of the levels, and of their products with any feature, have mean zero over the rows. A
level that was never seen has no column, so it counts as the mean of all levels.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from quadlin.core.arrays import Array, diagonal, lead, namespace, qr
from quadlin.core.model import Model, Steps
from quadlin.core.units import Units

WHOLE = 1e-6  # if the shares of a field sum to one up to this, every row has a level

Fields = Sequence[np.ndarray]  # positions of the features of each field


def whole(units: Units, fields: Fields) -> list[np.ndarray]:
    """Return the fields that have a level in every row."""
    xp, share = namespace(units.mean), units.mean

    def total(field: np.ndarray) -> float:
        shares = xp.take(share, xp.asarray(field, device=share.device))
        return float(xp.sum(xp.astype(shares, xp.float64)))

    return [field for field in fields if abs(total(field) - 1) < WHOLE]


def measured_from_mean(A: Array, units: Units, fields: Fields) -> Array:
    """Return PᵀA, A (d, …): P = I − νaᵀ in each field, a = σ, maps z to itself if aᵀz = 0."""
    if not len(fields):
        return A
    xp = namespace(A)
    varies = units.scale > 0
    a = xp.where(varies, 1 / xp.where(varies, units.scale, 1.0), 0.0)
    flat = xp.reshape(A, (A.shape[0], -1))
    outside = np.ones(A.shape[0], dtype=bool)
    outside[np.concatenate(fields)] = False
    others = np.flatnonzero(outside)

    def taken(v: Array, index: np.ndarray) -> Array:
        return xp.take(v, xp.asarray(index, device=A.device), axis=0)

    parts = [taken(flat, others)]
    for field in fields:
        rows = taken(flat, field)
        parts.append(rows - taken(a, field)[:, None] * (taken(units.nu, field) @ rows))
    order = np.argsort(np.concatenate([others, *fields]))
    return xp.reshape(taken(xp.concat(parts), order), A.shape)


def settled(model: Model, units: Units, fields: Fields) -> Model:
    """Return the model with the same predictions for complete rows that obeys the convention."""
    fields = whole(units, fields)
    if not fields:
        return model
    V, R = qr(measured_from_mean(model.U, units, fields))
    s, vectors = lead(R @ diagonal(model.s) @ R.T, model.s.shape[0])
    new = replace(model, U=V @ vectors, s=s)
    m, before = (_member(q.w, fields) * ((q.U * q.U) @ q.s) for q in (new, model))
    w, c = _linear(model.w[:, None], m[:, None], before[:, None], units, fields)
    return replace(new, w=w[:, 0], c=model.c + float(c[0]))


def settled_steps(steps: Steps, units: Units, fields: Fields) -> Steps:
    """Return small changes of a model as changes of the model that `settled` returns."""
    fields = whole(units, fields)
    if not fields:
        return steps
    E, H = (measured_from_mean(A, units, fields) for A in (steps.E, steps.H))
    new = replace(steps, E=E, H=H)
    member = _member(steps.w, fields)[:, None]
    w, c = _linear(steps.w, member * new.diagonals(), member * steps.diagonals(), units, fields)
    return replace(new, w=w, c=steps.c + c)


def _linear(w: Array, m: Array, before: Array, units: Units, fields: Fields) -> tuple[Array, Array]:
    """Return w (d, …) and what to add to c, where m are the diagonals that are left out.

    Changes of m are compensated by z² = 1 + κz. Also, w_raw = D(w − 2M̄ν) must have mean zero, where
    M̄ν lacks the diagonal: so νᵀw is not zero but −2Σmν².
    """
    xp = namespace(w)
    nu, gain = units.nu[:, None], m - before
    mean = -2 * m * nu
    w = measured_from_mean(w + units.kappa[:, None] * gain - mean, units, fields) + mean
    return w, xp.sum(gain, axis=0)


def _member(like: Array, fields: Fields) -> Array:
    """Return 1 for the features of the fields, 0 for others."""
    member = np.zeros(like.shape[0])
    member[np.concatenate(fields)] = 1
    return namespace(like).asarray(member, dtype=like.dtype, device=like.device)
