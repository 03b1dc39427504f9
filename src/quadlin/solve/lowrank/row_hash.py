"""Pseudo-random bits for rows, by their positions, and the distinct rows of a table."""

import numpy as np
from scipy.sparse import csr_array

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.rows import Rows
from quadlin.core.units import Units

ODD = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio


def row_hash(numbers: np.ndarray, salt: int = 0) -> np.ndarray:
    """Return 64 pseudo-random bits for each row number; another `salt` gives other bits.

    There is no generator and no seed: rows get the same bits on any number of threads and machines.

    Examples
    --------
    >>> bits = row_hash(np.arange(10_000))
    >>> bool(abs(np.mean(bits < 2**63) - 0.5) < 0.02)
    True
    """
    bits = np.asarray(numbers, dtype=np.uint64) * ODD + np.uint64(salt + 1)
    for shift in (32, 29, 32):
        bits = (bits ^ (bits >> np.uint64(shift))) * ODD
    hashed: np.ndarray = bits ^ (bits >> np.uint64(32))
    return hashed


MOST_ROWS = 200_000  # beyond this number, a few repeated rows do not matter
DIGITS = 5  # of random projections by which rows are compared: as many as float32 has


def counted_once(rows: Rows, units: Units, n_rows: int) -> tuple[int, np.ndarray | None]:
    """Return the number of distinct rows, and factors of the weights that merge equal rows.

    The first of equal rows gets the weight of all, the others get none; None if all rows are
    different. One pass, four numbers per row.
    """
    if n_rows > MOST_ROWS:
        return n_rows, None
    table = np.concatenate(rows.collect(_projected, units, _directions(units)))
    weight = table[:, -1]
    counts = np.flatnonzero(weight > 0)
    keys = _hashed(table[counts, :-1])  # comparing numbers takes a tenth of the time
    if len(np.unique(keys)) == len(counts):
        return len(counts), None
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    totals, factors = np.bincount(group, weight[counts]), np.zeros(len(weight))
    factors[counts[first]] = totals / weight[counts[first]]
    return len(first), factors


def merged_weights(X: csr_array, weight: np.ndarray) -> np.ndarray:
    """Return weights with which equal rows count once: the first has the weight of all of them.

    Examples
    --------
    >>> X = csr_array(np.array([[1.0, 0, 2], [0, 1, 0], [1, 0, 2], [2, 0, 1]]))
    >>> merged_weights(X, np.array([1.0, 1.0, 3.0, 1.0]))
    array([4., 1., 0., 1.])
    """
    bits = (X.data.astype(np.float64) + 0.0).view(np.uint64)
    sums = np.cumsum(row_hash(bits ^ row_hash(X.indices)), dtype=np.uint64)  # modulo 2⁶⁴
    sums = np.concatenate([np.zeros(1, np.uint64), sums])
    _, first, group = np.unique(np.diff(sums[X.indptr]), return_index=True, return_inverse=True)
    if len(first) == len(weight):
        return weight
    merged = np.zeros(len(weight))
    merged[first] = np.bincount(group, weight)
    return merged


def content_keys(rows: Rows, units: Units) -> np.ndarray:
    """Return a number for the content of each row, whatever the units of its columns: one pass."""
    table = np.concatenate(rows.collect(_projected, units, _directions(units)))
    return _hashed(table[:, :-1])


def _hashed(table: np.ndarray) -> np.ndarray:
    """Return 64 pseudo-random bits for each row of numbers: the same for the same numbers."""
    keys = np.zeros(len(table), dtype=np.uint64)
    for column in (table + 0.0).T:  # + 0.0 turns −0 into 0
        keys = row_hash(keys ^ np.ascontiguousarray(column).view(np.uint64))
    return keys


def _directions(units: Units) -> Array:
    """Return two fixed random directions, along which rows are compared."""
    directions = np.random.default_rng(0).standard_normal((units.scale.shape[0], 2))
    return units.array(directions / np.sqrt(max(1, len(directions))))


def _projected(chunk: Chunk, units: Units, Q: Array) -> np.ndarray:
    """Return two projections and the target of each row, rounded, and its weight."""
    columns = [to_numpy(Block(chunk.X, units).matmul(Q))]
    columns.append(to_numpy(units.standardised_target(chunk.y))[:, None])
    values = np.round(np.concatenate(columns, axis=1).astype(np.float64), DIGITS)
    return np.concatenate([values, chunk.weights[:, None]], axis=1)
