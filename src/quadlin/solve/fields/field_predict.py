"""Factorization machines on fields: their predictions, and the library's model that equals them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, hstack

from quadlin.core.arrays import lead
from quadlin.core.model import Model, in_units
from quadlin.core.units import Target, Units

PREDICTIONS = 2**22  # numbers of a block of predictions: rows × (rank + 1) × machines


class Layout(NamedTuple):
    """Which columns are levels of which field, and which have no products with each other."""

    fields: tuple[np.ndarray, ...]
    parts: tuple[np.ndarray, ...]  # the columns of each entity


def predict_all(X: Any, layout: Layout, table: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return the predictions (n, S) of S machines, without their intercepts.

    Parameters
    ----------
    X : CSR matrix or array (n, d)
        Rows. A row without a level of a field is treated as one with a level never seen.
    layout : Layout
        Fields and entities.
    table : array (S, d + fields, k + 1)
        The linear coefficient and the factor of each column, and of an unseen level of each field.
        They are zero for a column that no training row had, which is outside all entities.
    signs : array (k,)
        Sign of each component.
    """
    S, d, K = table.shape
    X = _with_unseen(X, layout.fields).astype(table.dtype)
    signs = signs.astype(table.dtype)
    flat = np.ascontiguousarray(table.transpose(1, 0, 2)).reshape(d, -1)
    parts = _parts(layout, d - len(layout.fields))
    f = np.empty((X.shape[0], S))
    step = max(1, PREDICTIONS // flat.shape[1])
    for start in range(0, X.shape[0], step):
        rows = X[start : start + step]
        total = np.zeros((rows.shape[0], flat.shape[1]), table.dtype)
        within = np.zeros((rows.shape[0], S), table.dtype)
        for part in parts:
            products = np.asarray(rows[:, part] @ flat[part])
            total += products
            within += products.reshape(-1, S, K)[:, :, 1:] ** 2 @ signs
        total = total.reshape(-1, S, K)
        f[start : start + step] = total[:, :, 0] + (total[:, :, 1:] ** 2 @ signs - within) / 2
    return f


def factor_sums(
    X: Any, layout: Layout, table: np.ndarray, among: np.ndarray | None = None
) -> np.ndarray:
    """Return the sums of the factors of the columns of each row, (n, S, k), or of some columns."""
    S, d, K = table.shape
    rows = _with_unseen(X, layout.fields).astype(table.dtype)
    flat = np.ascontiguousarray(table.transpose(1, 0, 2)).reshape(d, -1)
    if among is not None:
        inside = np.isin(np.arange(d - len(layout.fields)), among)
        unseen = [bool(inside[field[0]]) for field in layout.fields]
        kept = np.flatnonzero(np.concatenate([inside, np.array(unseen, dtype=bool)]))
        rows, flat = rows[:, kept], flat[kept]
    return np.asarray(rows @ flat).reshape(-1, S, K)[:, :, 1:]


def _parts(layout: Layout, d: int) -> list[np.ndarray]:
    """Return the columns of each entity, including unseen levels of its fields."""
    return [
        np.concatenate([part, [d + i for i in fields]]).astype(int)
        for part, fields in _with_fields(layout)
    ]


def _with_unseen(X: Any, fields: Sequence[np.ndarray]) -> csr_matrix:
    """Return the rows with an extra column per field, which is 1 if a row has no level of it."""
    X = csr_matrix(X)
    if not len(fields):
        return X
    missing = [1 - np.asarray(X[:, field].sum(axis=1)) for field in fields]
    return csr_matrix(hstack([X, csr_matrix(np.concatenate(missing, axis=1))]))


ROUNDING = 1e-12  # eigenvalues below this share of the largest are zero


def in_raw_columns(
    table: np.ndarray, layout: Layout, mean: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Return tables (…, d + fields, K) for x, given those for (x − mean)∘scale.

    What the means add to the rows of an entity is added to every level of its largest field.
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
    b: float,
    table: np.ndarray,
    layout: Layout,
    signs: np.ndarray,
    units: Units,
    places: np.ndarray | None = None,
) -> Model:
    r"""Return the model of a table (d + fields, k + 1), with all levels measured from their mean.

    With :math:`m_e` the mean of the fields of entity e, :math:`m = \sum_e m_e` and
    :math:`v' = v - \text{mean of the field}`,

    .. math:: \sum_{e < f} \langle t_e, t_f \rangle = \sum_{e < f} \langle t'_e, t'_f \rangle
              + \sum_e \langle t'_e, m - m_e \rangle + \sum_{e < f} \langle m_e, m_f \rangle,

    so a row without a level of a field is treated as the mean of the field. With `places` the table
    has only the columns at these places, and the others have no part in the model.
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
    if places is not None:
        d = len(units.scale)
        (U, w), given = (np.zeros((d, U.shape[1])), np.zeros(d)), (U, w)
        U[places], w[places] = given
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
