"""A factorization machine on fields as the library's model: a level never seen has no column."""

import numpy as np

from quadlin.core.arrays import lead
from quadlin.core.model import Model, in_units
from quadlin.core.units import Target, Units
from quadlin.solve.field_predict import Layout

ROUNDING = 1e-12  # eigenvalues below this share of the largest are zero


def in_raw_columns(
    table: np.ndarray, layout: Layout, mean: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Return tables (…, d + fields, K) for x, given those for (x − mean)∘scale.

    What the means add to the rows of an entity, they add to every level of its largest field.
    """
    d, table = len(mean), table.copy()
    table[..., :d, :] *= scale[:, None]
    for part, unseen in _with_fields(layout):
        shift = np.einsum("j,...jk->...k", mean[part], table[..., part, :])
        key = max(unseen, key=lambda i: len(layout.fields[i]))
        levels = np.append(layout.fields[key], d + key)
        table[..., levels, :] -= shift[..., None, :]
    return table


def field_model(
    b: float, table: np.ndarray, layout: Layout, signs: np.ndarray, units: Units
) -> Model:
    r"""Return the model of a table (d + fields, k + 1), with all levels measured from their mean.

    With :math:`m_e` the mean of the fields of entity e, :math:`m = \sum_e m_e` and
    :math:`v' = v - \text{mean of the field}`,

    .. math:: \sum_{e < f} \langle t_e, t_f \rangle = \sum_{e < f} \langle t'_e, t'_f \rangle
              + \sum_e \langle t'_e, m - m_e \rangle + \sum_{e < f} \langle m_e, m_f \rangle,

    so that a row without a level of a field counts as one of the mean of the field.
    """
    d = table.shape[0] - len(layout.fields)
    columns, means = table[:d].copy(), table[d:]
    for field, mean in zip(layout.fields, means, strict=True):
        columns[field] -= mean
    w, V = columns[:, 0], columns[:, 1:]
    parts = _with_fields(layout)
    of_entity = np.array([means[unseen].sum(axis=0) for _, unseen in parts])[:, 1:]
    total = of_entity.sum(axis=0)
    b = b + float(means[:, 0].sum() + signs @ (total**2 - np.sum(of_entity**2, axis=0)) / 2)
    for (part, _), mean in zip(parts, of_entity, strict=True):
        w[part] += V[part] @ (signs * (total - mean))
    if all(len(part) == len(layout.fields[unseen[0]]) for part, unseen in parts):
        U, s = V, signs / 2  # products within a field are zero in every row
    else:
        U, s = _across(V, signs, [part for part, _ in parts])
    zeros, ones = np.zeros(d), np.ones(d)
    raw = Units(zeros, ones, zeros, ones, zeros, Target(0.0, 1.0, 0.0, 1.0), ones, zeros)
    return in_units(Model(U, s, w, b, zeros), raw, units)


def _across(
    V: np.ndarray, signs: np.ndarray, parts: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return U and s of ½ V diag(signs) Vᵀ without the products within a part."""
    k, E = len(signs), len(parts)
    blocks = np.zeros((len(V), E, k))
    for e, part in enumerate(parts):
        blocks[part, e] = V[part]
    Q, R = np.linalg.qr(blocks.reshape(len(V), -1))
    pairs = np.kron(1 - np.eye(E), np.diag(signs)) / 2
    values, vectors = lead(R @ pairs @ R.T, len(R))
    kept = np.abs(values) > ROUNDING * np.max(np.abs(values), initial=0.0)
    return Q @ vectors[:, kept], values[kept]


def _with_fields(layout: Layout) -> list[tuple[np.ndarray, list[int]]]:
    """Return the columns of each entity and the numbers of its fields."""
    return [
        (part, [i for i, field in enumerate(layout.fields) if field[0] in part])
        for part in layout.parts
    ]
