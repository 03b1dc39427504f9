"""What is one observation, and pseudo-random bits by which observations are drawn.

Weights that are whole numbers count observations (`Tally`), and so do rows: equal rows are as many
observations, and their agreement is evidence of little noise.
"""

import numpy as np

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.rows import Rows
from quadlin.core.units import Units

MOST_REPEATED = 1e7  # observations up to which each counts by itself
LEAST_FREEDOM = 1e-12  # 1 − h: a row that alone determines a parameter has an unbounded error
NO_WEIGHT = np.iinfo(np.uint64).max  # the key of rows without weight
DIGITS = 5  # of random projections by which rows are compared: as many as float32 has
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


def told_apart(keys: np.ndarray) -> np.ndarray:
    """Return keys of rows, with other ones for equal rows.

    A sample, or a fold, of rows with few different values would otherwise have either all or none
    of the most frequent ones. Equal rows are numbered, so their order does not matter.

    Examples
    --------
    >>> keys = told_apart(np.array([5, 7, 5, 5, 7], dtype=np.uint64))
    >>> len(set(keys.tolist()))
    5
    """
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    sizes = np.diff(first, append=len(keys))
    number = np.empty(len(keys), dtype=np.int64)
    number[order] = np.arange(len(keys)) - np.repeat(first, sizes)
    return np.where(number > 0, row_hash(keys ^ row_hash(number)), keys)


def repetitions(weight: np.ndarray) -> np.ndarray:
    """Return how many observations each row of positive weight stands for, as whole numbers.

    Examples
    --------
    >>> repetitions(np.array([1.0, 3.0])), repetitions(np.array([0.5, 3.0]))
    (array([1, 3]), array([1, 1]))
    """
    whole = np.rint(weight)
    counts = np.all((np.abs(weight - whole) <= 1e-9 * whole) & (whole > 0))
    counted = counts and weight.sum() <= MOST_REPEATED
    return np.asarray(whole if counted else np.ones_like(whole), dtype=np.int64)


def observed_squares(weight: np.ndarray, residual: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Return ωe² of each observation: e = r/(1 − h) is its error when it is left out.

    `freedom` is 1 − h. A row of whole weight ω stands for ω observations, each of which has 1/ω of
    its leverage h.
    """
    times = repetitions(weight)
    shape = (-1, *(1,) * (residual.ndim - 1))
    share, omega = 1 / times.reshape(shape), weight.reshape(shape)
    error = residual / np.maximum(1 - share + share * freedom, LEAST_FREEDOM)
    return np.asarray(np.repeat(share * omega * error**2, times, axis=0))


def content_keys(rows: Rows, units: Units) -> np.ndarray:
    """Return a number for the content of each row, whatever the units of its columns: one pass.

    It is the largest number for rows of no weight.
    """
    table = np.concatenate(rows.collect(_projected, units, _directions(units)))
    counts = table[:, -1] > 0
    keys = np.full(len(table), NO_WEIGHT)
    keys[counts] = told_apart(_hashed(table[counts, :-1]))
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
