"""Rows that lie in memory, cut into views of a cache-friendly size; nothing is copied."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array

BLOCK_ELEMENTS = 1 << 19  # a block of this many entries stays in the cache between its products
DEVICE_ELEMENTS = 1 << 26  # on an accelerator a block must be worth the launch of its kernels


@dataclass(frozen=True)
class Chunk:
    """Some rows, their targets and weights, in the user's units."""

    X: Array  # (n, d), dense or CSR
    y: Array  # (n,), or None where there are only rows to predict
    weight: Array | None  # (n,)
    along: Any = None  # a frame of n rows that goes with them and is not looked at


@dataclass(frozen=True)
class MemorySource:
    """Rows of one table in memory, walked as blocks of views.

    Examples
    --------
    >>> import numpy as np
    >>> source = MemorySource(np.ones((10, 3)), np.arange(10.0), block_rows=4)
    >>> [len(chunk.y) for chunk in source]
    [4, 4, 2]
    """

    X: Array
    y: Array = None
    weight: Array | None = None
    block_rows: int | None = None

    again = True  # can be walked more than once

    @property
    def width(self) -> int:
        """Return the number of features."""
        return int(self.X.shape[1])

    @property
    def dtype(self) -> Any:
        """Return the dtype of the features."""
        return self.X.dtype

    def __iter__(self) -> Iterator[Chunk]:
        n = self.X.shape[0]
        step = self.block_rows or _block_rows(self.X)
        for start in range(0, n, step):
            yield self._cut(start, min(start + step, n))

    def parts(self, count_hint: int) -> list["MemorySource"]:
        """Cut into so many runs of rows, none of them empty."""
        n = self.X.shape[0]
        cuts = [n * i // count_hint for i in range(count_hint + 1)]
        chunks = (self._cut(a, b) for a, b in pairwise(cuts) if a < b)
        return [MemorySource(c.X, c.y, c.weight, self.block_rows) for c in chunks]

    def _cut(self, start: int, stop: int) -> Chunk:
        part = slice(start, stop)
        return Chunk(
            _rows(self.X, part),
            None if self.y is None else self.y[part],
            None if self.weight is None else self.weight[part],
        )


def _block_rows(X: Array) -> int:
    n, d = X.shape
    if not issparse(X):
        near = "cpu" in str(getattr(X, "device", "cpu")).lower()
        return max(1, (BLOCK_ELEMENTS if near else DEVICE_ELEMENTS) // max(int(d), 1))
    # A sparse block must outweigh the d-sized results it is turned into.
    per_row = max(X.nnz / max(n, 1), 1e-3)
    return max(1, int(max(BLOCK_ELEMENTS, 4 * d) // per_row))


def _rows(X: Array, part: slice) -> Array:
    if not issparse(X):
        return X[part, :]
    first, last = X.indptr[part.start], X.indptr[part.stop]
    return csr_array(
        (X.data[first:last], X.indices[first:last], X.indptr[part.start : part.stop + 1] - first),
        shape=(part.stop - part.start, X.shape[1]),
    )
