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


def told_apart(keys: np.ndarray, most: float = 1, copies: int = 1) -> np.ndarray:
    """Return keys of rows, with other ones for equal rows where there are more than `most`.

    A sample, or a fold, of rows with few different values would otherwise have either all or none
    of the most frequent ones. Equal rows are numbered, so their order does not matter; so many
    `copies` of each have the same key.

    Examples
    --------
    >>> keys = told_apart(np.array([5, 7, 5, 5, 7], dtype=np.uint64), most=2)
    >>> len(set(keys[[0, 2, 3]].tolist())), len(set(keys[[1, 4]].tolist()))
    (3, 1)
    """
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    sizes = np.diff(first, append=len(keys))
    number = np.empty(len(keys), dtype=np.int64)
    number[order] = (np.arange(len(keys)) - np.repeat(first, sizes)) % np.repeat(
        np.maximum(sizes // copies, 1), sizes
    )
    many = np.empty(len(keys), dtype=bool)
    many[order] = np.repeat(sizes > most, sizes)
    return np.where(many, row_hash(keys ^ row_hash(number)), keys)


def observations(features: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return keys that are equal for rows of the same observation, from keys of features and rows.

    Equal rows are one observation that was repeated, unless rows of equal features often have other
    targets: then features and target just have few values, and equal rows are different
    observations. If the whole table was repeated, its copies still count once.

    Examples
    --------
    >>> features, target = np.arange(12) // 4, np.array([0, 0, 1, 0] * 3)
    >>> len(np.unique(observations(features, 10 * features)))
    3
    >>> len(np.unique(observations(features, 10 * features + target)))
    12
    >>> twice = np.tile(features, 2)
    >>> len(np.unique(observations(twice, 10 * twice + np.tile(target, 2))))
    12
    """
    rows = np.asarray(rows).astype(np.uint64)
    _, first, group, sizes = np.unique(
        features, return_index=True, return_inverse=True, return_counts=True
    )
    differ = np.bincount(group, rows != rows[first][group]) > 0
    if sizes[differ].sum() <= CHANGED * sizes[sizes > 1].sum():
        return rows
    copies = int(np.gcd.reduce(np.unique(rows, return_counts=True)[1]))
    return told_apart(rows, copies=copies)


MOST_ROWS = 200_000  # beyond this number, a few repeated rows do not matter
NO_WEIGHT = np.iinfo(np.uint64).max  # the key of rows without weight
CHANGED = 0.05  # of repeated rows: those whose target was corrected in one of them
DIGITS = 5  # of random projections by which rows are compared: as many as float32 has


def counted_once(rows: Rows, units: Units, n_rows: int) -> tuple[int, np.ndarray | None]:
    """Return the number of distinct rows, and factors of the weights that merge repeated rows.

    The first row of an observation gets the weight of all, the others get none; None if each row is
    another observation. One pass, four numbers per row.
    """
    if n_rows > MOST_ROWS:
        return n_rows, None
    table = np.concatenate(rows.collect(_projected, units, _directions(units)))
    weight = table[:, -1]
    counts = np.flatnonzero(weight > 0)
    keys = _hashed(table[counts, :-1])  # comparing numbers takes a tenth of the time
    if len(np.unique(keys)) == len(counts):
        return len(counts), None
    keys = observations(_hashed(table[counts, :-2]), keys)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == len(counts):
        return len(counts), None
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

    It is the same for rows of the same observation, and the largest number for rows of no weight.
    """
    table = np.concatenate(rows.collect(_projected, units, _directions(units)))
    counts = table[:, -1] > 0
    keys = np.full(len(table), NO_WEIGHT)
    keys[counts] = observations(*(_hashed(table[counts, :stop]) for stop in (-2, -1)))
    return keys


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
