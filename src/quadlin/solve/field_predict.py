"""Predictions of factorization machines on fields: products across entities only."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, hstack

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
        Rows. One without a level of a field counts as one of a level that was never seen.
    layout : Layout
        Fields and entities.
    table : array (S, d + fields, k + 1)
        The linear coefficient and the factor of each column, and of an unseen level of each field.
    signs : array (k,)
        Sign of each component.
    """
    S, d, K = table.shape
    X = _with_unseen(X, layout.fields).astype(table.dtype)
    signs = signs.astype(table.dtype)
    flat = np.ascontiguousarray(table.transpose(1, 0, 2)).reshape(d, -1)
    parts, loose = _parts(layout, d - len(layout.fields))
    squares = (table[:, loose, 1:] ** 2 @ signs).T
    f = np.empty((X.shape[0], S))
    step = max(1, PREDICTIONS // flat.shape[1])
    for start in range(0, X.shape[0], step):
        rows = X[start : start + step]
        alone = rows[:, loose]
        total = np.asarray(alone @ flat[loose])
        within = np.asarray(alone.multiply(alone) @ squares)
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
    """Return the sums of the factors of the columns of rows, (n, S, k), perhaps of some only."""
    S, d, K = table.shape
    rows = _with_unseen(X, layout.fields).astype(table.dtype)
    flat = np.ascontiguousarray(table.transpose(1, 0, 2)).reshape(d, -1)
    if among is not None:
        inside = np.isin(np.arange(d - len(layout.fields)), among)
        unseen = [bool(inside[field[0]]) for field in layout.fields]
        kept = np.flatnonzero(np.concatenate([inside, np.array(unseen, dtype=bool)]))
        rows, flat = rows[:, kept], flat[kept]
    return np.asarray(rows @ flat).reshape(-1, S, K)[:, :, 1:]


def _parts(layout: Layout, d: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the columns of each entity, unseen levels of its fields included, and the loose."""
    of_first = {int(field[0]): d + i for i, field in enumerate(layout.fields)}
    parts = []
    for part in layout.parts:
        unseen = [of_first[int(j)] for j in part if int(j) in of_first]
        parts.append(np.concatenate([part, unseen]).astype(int))
    return parts, np.setdiff1d(np.arange(d), np.concatenate([[-1], *parts]))


def _with_unseen(X: Any, fields: Sequence[np.ndarray]) -> csr_matrix:
    """Return the rows with a column per field that is 1 where a row has no level of it."""
    X = csr_matrix(X)
    if not len(fields):
        return X
    missing = [1 - np.asarray(X[:, field].sum(axis=1)) for field in fields]
    return csr_matrix(hstack([X, csr_matrix(np.concatenate(missing, axis=1))]))
