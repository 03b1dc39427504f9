"""What is one observation, and samples of the rows, drawn by a hash and kept in memory.

Weights that are whole numbers count observations (`Tally`), and so do rows: equal rows are as many
observations, and their agreement is evidence of little noise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import issparse, vstack

from quadlin.core.arrays import Array, is_numpy, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource, RowSource
from quadlin.core.rows import Rows
from quadlin.core.units import Units

MOST_REPEATED = 1e7  # observations up to which each counts by itself
LEAST_FREEDOM = 1e-12  # 1 − h: a row that alone determines a parameter has an unbounded error
NO_WEIGHT = np.iinfo(np.uint64).max  # the key of rows without weight
DIGITS = 5  # of random projections by which rows are compared: as many as float32 has
ODD = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio
COLUMNS = 16  # in which rows are compared that are not numpy's
BLOCK = 4096  # rows whose bits are computed together
SALT = 71  # so that other uses of row numbers draw other rows


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


def sample_of(rows: Rows, share: float, n_rows: int | None, salt: int = 0) -> Rows:
    """Return about this share of the rows; a pass over them counts as their share of a pass.

    Rows are drawn by the hash of their number, so a sorted table does no harm. If `n_rows` is None,
    they are drawn by the hash of their content, so that the order does not matter at all. Weights
    are 1 on average then, and a row that has as much weight as all the rows for which one is drawn
    is always drawn, with its share of the weight. Rows of weight zero are left out. Rows in memory
    are selected, which counts as one pass over the sample; other rows are collected in one pass
    over all. Nothing is collected before the first sum. Memory: the sample.

    Examples
    --------
    >>> import numpy as np
    >>> rows = Rows.of(MemorySource(np.ones((10_000, 3)), np.arange(10_000.0)))
    >>> few = sample_of(rows, 0.1, 10_000)
    >>> bool(abs(few.reduce(lambda chunk: len(chunk.y)) - 1000) < 100), round(few.counter.count, 3)
    (True, 0.2)
    """
    source = SampleSource(rows, share, n_rows, salt)
    rows.counter.count += rows.share * (share if source.in_memory else 1.0)
    return replace(
        rows,
        engine=rows.engine.over(source),
        values=None,
        share=share * rows.share,
    )


@dataclass(frozen=True)
class SampleSource(RowSource):
    """The rows of a sample, which are collected when they are first read."""

    all_rows: Rows
    share: float
    n_rows: int | None
    salt: int

    @property
    def in_memory(self) -> bool:
        """Return whether the rows can be selected without a pass."""
        return isinstance(self.all_rows.engine.source, MemorySource | SampleSource)

    @cached_property
    def table(self) -> MemorySource:
        """Collect the rows."""
        before, by_content = self.all_rows.counter.count, self.n_rows is None
        if not self.in_memory:
            params = (self.share, self.salt, by_content)
            chunks = self.all_rows.collect(_drawn, *params, beside=range(self.n_rows or 0))
        else:
            chunks = [self._at_places(self._whole)]
        self.all_rows.counter.count = before  # the pass was counted on request
        X, y, weight = zip(*((c.X, c.y, c.weight) for c in chunks), strict=True)
        return MemorySource(*(stacked(parts) for parts in (X, y, weight)))

    @cached_property
    def places(self) -> np.ndarray | None:
        """Return the positions of the sample in rows in memory; None if rows are elsewhere."""
        if not self.in_memory:
            return None
        if self.n_rows is None:
            whole = self._whole
            return _places((whole, range(int(whole.X.shape[0]))), self.share, self.salt, True)
        around = self._around  # without collecting the rows themselves
        return _places((around, range(int(around.y.shape[0]))), self.share, self.salt, False)

    @cached_property
    def values(self) -> Chunk:
        """Return the targets and weights of the sample, without its rows."""
        if self.places is None:
            return Chunk(None, self.table.y, self.table.weight)
        return self._at_places(self._around)

    def _at_places(self, chunk: Chunk) -> Chunk:
        drawn = chunk.at(self.places)
        return _with_shares(drawn, self.share) if self.n_rows is None else drawn

    @property
    def _around(self) -> Chunk:
        """Return the targets and weights of all rows in memory, without the rows."""
        source, values = self.all_rows.engine.source, self.all_rows.values
        kept = source.values if isinstance(source, SampleSource) else source
        around = Chunk(None, kept.y, kept.weight)
        return around if values is None else values.replaced(around)

    @property
    def _whole(self) -> Chunk:
        """Return all rows in memory, with their replaced weights and targets."""
        source = self.all_rows.engine.source
        X = source.table.X if isinstance(source, SampleSource) else source.X
        return replace(self._around, X=X)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.table)

    def parts(self, count_hint: int) -> list[MemorySource]:
        """Cut into at most `count_hint` runs of rows."""
        return self.table.parts(count_hint)

    def in_wide_blocks(self) -> MemorySource:
        """Return the same rows in larger blocks."""
        return self.table.in_wide_blocks()

    @property
    def entries(self) -> int:
        """Return how many numbers the rows store."""
        return self.table.entries

    @property
    def width(self) -> int:
        """Return the number of features."""
        return self.table.width

    @property
    def dtype(self) -> Any:
        """Return the dtype of the features."""
        return self.table.dtype

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.table.rows


def _drawn(numbered: tuple[Chunk, range], share: float, salt: int, by_content: bool) -> Chunk:
    """Return the rows of a chunk that are in the sample."""
    chunk = numbered[0].at(_places(numbered, share, salt, by_content))
    return _with_shares(chunk, share) if by_content else chunk


def _places(numbered: tuple[Chunk, range], share: float, salt: int, by_content: bool) -> np.ndarray:
    """Return the positions of the rows of a chunk that are in the sample."""
    chunk, places = numbered
    keys = told_apart(row_content(chunk)) if by_content else np.arange(places.start, places.stop)
    chosen = row_hash(keys, SALT + salt) < np.uint64(min(1.0, share) * (2**64 - 2**12))
    if chunk.weight is not None:
        weight = to_numpy(chunk.weight)
        chosen = (chosen & (weight > 0)) | (by_content & (weight * share >= 1))
    return np.nonzero(chosen)[0]


def _with_shares(chunk: Chunk, share: float) -> Chunk:
    """Return drawn rows, with their share of the weight where they stand for themselves only."""
    if chunk.weight is None:
        return chunk
    xp, weight = namespace(chunk.weight), chunk.weight
    return replace(chunk, weight=xp.where(weight * share >= 1, weight * share, weight))


def row_content(chunk: Chunk) -> np.ndarray:
    """Return a hash of the target and the columns of each row, exact to the last bit.

    Arrays of other libraries than numpy are compared in a few columns only.
    """
    X, y = chunk.X, _bits(to_numpy(chunk.y))
    d = X.shape[1]
    if issparse(X):
        terms = _bits(X.data) * _factors(d)[X.indices]
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        return row_hash(y ^ row_hash(np.diff(sums[X.indptr])))
    if not is_numpy(X):
        places = np.unique(np.linspace(0, d - 1, min(d, COLUMNS)).astype(np.int64))
        xp = namespace(X)
        X = to_numpy(xp.take(X, xp.asarray(places, device=X.device), axis=1))
    factors, content = _factors(X.shape[1]), np.empty(X.shape[0], dtype=np.uint64)
    for start in range(0, len(content), BLOCK):  # a copy of all rows would take too much memory
        content[start : start + BLOCK] = _bits(X[start : start + BLOCK]) @ factors
    return row_hash(y ^ row_hash(content))


def _factors(d: int) -> np.ndarray:
    """Return an odd number for each of d columns."""
    return row_hash(np.arange(d), SALT) | np.uint64(1)


def _bits(values: np.ndarray) -> np.ndarray:
    """Return the bits of numbers, mixed: small whole numbers differ in the highest ones only.

    Those of zero are zero; 0.0 + x turns −0 into 0.
    """
    bits = np.ascontiguousarray(0.0 + values.astype(np.float64)).view(np.uint64)
    return np.asarray(bits ^ (bits >> np.uint64(51)))


def stacked(parts: tuple[Array, ...]) -> Array:
    """Return pieces of an array, dense or sparse, as one; None if the pieces are None."""
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    return vstack(parts, format="csr") if issparse(parts[0]) else namespace(parts[0]).concat(parts)
