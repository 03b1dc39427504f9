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


def told_apart(keys: np.ndarray, most: float = 1) -> np.ndarray:
    """Return keys of rows, with other ones for equal rows where there are more than `most`.

    A sample, or a fold, of rows with few different values would otherwise have either all or none
    of the most frequent ones. Equal rows are numbered, so their order does not matter.

    Examples
    --------
    >>> keys = told_apart(np.array([5, 7, 5, 5, 7], dtype=np.uint64), most=2)
    >>> len(set(keys[[0, 2, 3]].tolist())), len(set(keys[[1, 4]].tolist()))
    (3, 1)
    """
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    sizes = np.diff(first, append=len(keys))
    before = np.empty(len(keys), dtype=np.int64)
    before[order] = np.arange(len(keys)) - np.repeat(first, sizes)
    many = np.empty(len(keys), dtype=bool)
    many[order] = np.repeat(sizes > most, sizes)
    return np.where(many, row_hash(keys ^ row_hash(before)), keys)


def are_repeated(features: np.ndarray, rows: np.ndarray) -> bool:
    """Tell whether equal rows are the same observation, by keys of their features and of all.

    If some rows of equal features have other targets than the rest, then features and target just
    have few values, and equal rows are different observations.

    Examples
    --------
    >>> features, target = np.array([1, 1, 2, 2, 3]), np.array([0, 0, 1, 1, 0])
    >>> are_repeated(features, 10 * features + target)
    True
    >>> are_repeated(features, 10 * features + np.array([0, 1, 1, 1, 0]))
    False
    """
    _, first, group, sizes = np.unique(
        features, return_index=True, return_inverse=True, return_counts=True
    )
    differ = np.bincount(group, rows != rows[first][group]) > 0
    return bool(sizes[differ].sum() <= CHANGED * sizes[sizes > 1].sum())


MOST_ROWS = 200_000  # beyond this number, a few repeated rows do not matter
CHANGED = 0.05  # of repeated rows: those whose target was corrected in one of them
DIGITS = 5  # of random projections by which rows are compared: as many as float32 has


def counted_once(rows: Rows, units: Units, n_rows: int) -> tuple[int, np.ndarray | None]:
    """Return the number of distinct rows, and factors of the weights that merge repeated rows.

    The first of equal rows gets the weight of all, the others get none; None if no row is repeated
    (see `are_repeated`). One pass, four numbers per row.
    """
    if n_rows > MOST_ROWS:
        return n_rows, None
    table = np.concatenate(rows.collect(_projected, units, _directions(units)))
    weight = table[:, -1]
    counts = np.flatnonzero(weight > 0)
    keys = _hashed(table[counts, :-1])  # comparing numbers takes a tenth of the time
    if len(np.unique(keys)) == len(counts) or not are_repeated(_hashed(table[counts, :-2]), keys):
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
    """Return a number for the content of each row, whatever the units of its columns: one pass.

    It is the same for rows that are repeated, but not for rows that are equal by chance.
    """
    table = np.concatenate(rows.collect(_projected, units, _directions(units)))
    keys = _hashed(table[:, :-1])
    return keys if are_repeated(_hashed(table[:, :-2]), keys) else told_apart(keys)


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
