"""A sample of the rows, drawn by a hash and kept in memory, for fits that start with few rows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import issparse, vstack

from quadlin.core.arrays import Array, is_numpy, namespace, to_numpy
from quadlin.core.chunks import Chunk, MemorySource, RowSource
from quadlin.core.rows import Rows
from quadlin.solve.lowrank.observations import row_hash, told_apart

COLUMNS = 16  # in which rows are compared that are not numpy's
BLOCK = 4096  # rows whose bits are computed together
SALT = 71  # so that other uses of row numbers draw other rows


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
