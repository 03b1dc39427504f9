"""Fields: groups of 0/1 columns of which exactly one is 1 in every row, found among the rows."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.chunks import Chunk, MemorySource

SCATTERED = 1000  # most 0/1 columns among which fields are sought that do not lie side by side


def find_fields(X: Array, weight: Array | None = None) -> tuple[np.ndarray, ...]:
    """Find the groups of 0/1 columns of which each row has exactly one: full one-hot groups.

    Groups that lie side by side, as encoders leave them, are all found. Among up to `SCATTERED`
    0/1 columns that remain, others are sought greedily, by falling frequency. Columns that are
    never or always one belong to no group.

    Parameters
    ----------
    X : array or CSR matrix (n_samples, n_features)
        Rows.
    weight : array (n_samples,) or None
        Rows of weight 0 do not count.

    Returns
    -------
    tuple of array
        The columns of each group, at least two, by their first column.

    Notes
    -----
    One pass, which ends as soon as fewer than two 0/1 columns are left; another where columns
    that are not side by side may still form a group. Memory: O(d), a block of rows, and in the
    second pass a few numbers for each pair of at most `SCATTERED` columns.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1, 0, 0, 0.5, 1], [0, 1, 0, 0.1, 0], [0, 0, 1, 0.2, 1]])
    >>> find_fields(X)
    (array([0, 1, 2]),)
    """
    X = X.tocsr() if issparse(X) else X
    return fields_among(MemorySource(X, weight=weight), X.shape[1])


def fields_among(source: Iterable[Chunk], d: int) -> tuple[np.ndarray, ...]:
    """Find the full one-hot groups among d columns of rows that can be walked again."""
    n = 0
    binary, count = np.ones(d, dtype=bool), np.zeros(d, dtype=np.int64)
    after = np.full(d, d)  # the nearest later column that is one in a row where this one is
    for chunk in source:
        columns = np.flatnonzero(binary)
        if len(columns) < 2:
            return ()
        B = counting(chunk, columns)
        # Five times as fast as B.nonzero() where B is dense.
        row, at = B.nonzero() if issparse(B) else np.divmod(np.flatnonzero(B != 0), B.shape[1])
        value = B.data[B.data != 0] if issparse(B) else B[row, at]
        binary[columns[at[value != 1]]] = False
        order = np.lexsort((at, row)) if issparse(B) and not B.has_sorted_indices else slice(None)
        row, at = row[order], columns[at[order]]
        same = row[1:] == row[:-1]
        p, q = at[:-1][same], at[1:][same]
        binary[p[p == q]] = False  # an entry stored twice is a two
        np.minimum.at(after, p, q)
        count += np.bincount(at, minlength=d)
        n += B.shape[0]
    count[~binary] = n + 1  # no group can contain them
    fields = _side_by_side(count, after, n)
    free = (count > 0) & (count < n)
    for field in fields:
        free[field] = False
    if 2 <= free.sum() <= SCATTERED and count[free].sum() >= n:
        fields += _scattered(source, np.flatnonzero(free), count, n)
    return tuple(sorted(fields, key=lambda field: int(field[0])))


def _side_by_side(count: np.ndarray, after: np.ndarray, n: int) -> list[np.ndarray]:
    """Return the runs of columns with n ones in n rows, no two of them in the same row."""
    columns = np.flatnonzero(count)
    total = np.concatenate([[0], np.cumsum(count[columns])])
    stop = np.minimum(np.searchsorted(total, total[:-1] + n), len(columns))
    # Two ones of a row lie between a and b if and only if some column p ≥ a has after[p] ≤ b.
    reach = np.minimum.accumulate(after[columns][::-1])[::-1]
    good = (total[stop] == total[:-1] + n) & (stop - np.arange(len(columns)) > 1)
    good &= columns[stop - 1] < reach
    fields: list[np.ndarray] = []
    end = 0
    for a in np.flatnonzero(good):
        if a >= end:
            end = int(stop[a])
            fields.append(columns[a:end])
    return fields


def _scattered(
    source: Iterable[Chunk], left: np.ndarray, count: np.ndarray, n: int
) -> list[np.ndarray]:
    """Return groups of the columns `left`, no two of a group in the same row, with n ones."""
    meet = np.eye(len(left), dtype=bool)  # which columns are ever one in the same row
    for chunk in source:
        B = counting(chunk, left).astype(np.float32)
        G = B.T @ B
        meet |= (G.toarray() if issparse(G) else G) > 0
        able = count[left] + ~meet @ count[left] >= n  # enough ones to make a group at all
        left, meet = left[able], meet[np.ix_(able, able)]
        if len(left) < 2:
            return []
    order = np.argsort(-count[left], kind="stable")
    left, meet = left[order], meet[np.ix_(order, order)]
    fields, free = [], np.ones(len(left), dtype=bool)
    for seed in range(len(left)):
        if not free[seed]:
            continue
        group, apart, missing = [seed], free & ~meet[seed], n - count[left[seed]]
        while missing and np.any(fits := apart & (count[left] <= missing)):
            group.append(int(np.argmax(fits)))
            apart &= ~meet[group[-1]]
            missing -= count[left[group[-1]]]
        if not missing:
            free[group] = False
            fields.append(np.sort(left[group]))
    return fields


def counting(chunk: Chunk, columns: np.ndarray) -> Any:
    """Return some columns of the rows that count, whose weight is not 0: numpy's array or CSR."""
    B = chunk.X
    if len(columns) < B.shape[1]:
        xp = namespace(B)
        where = columns if issparse(B) else xp.asarray(columns, device=B.device)
        B = B[:, where] if issparse(B) else xp.take(B, where, axis=1)
    B = B if issparse(B) else to_numpy(B)
    return B if chunk.weight is None else B[to_numpy(chunk.weight) > 0]
