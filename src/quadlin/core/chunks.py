"""The protocol of row sources, and rows in memory, cut into views of a cache-friendly size."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array, is_numpy, namespace, to_numpy

BLOCK_ELEMENTS = 1 << 19  # a block of this many entries stays in the cache between its products
WIDE_ROWS = 1 << 13  # of a block, for sums whose cost per block outweighs that per row
DEVICE_ELEMENTS = 1 << 26  # on an accelerator a block must be worth the launch of its kernels


@dataclass(frozen=True)
class Chunk:
    """Some rows, their targets and weights, in the user's units."""

    X: Array  # (n, d), dense or CSR
    y: Array  # (n,), or None where there are only rows to predict
    weight: Array | None  # (n,)
    kept_columns: Any = None  # a frame of n rows of the columns that the user wants back
    absent: csr_array | None = None  # (n, d), which values were missing and have been filled

    @property
    def weights(self) -> np.ndarray:
        """Return the weights in numpy and float64, ones where there are none."""
        if self.weight is None:
            return np.ones(self.X.shape[0])
        return to_numpy(self.weight).astype(np.float64, copy=False)

    @property
    def total_weight(self) -> float:
        """Return Σω."""
        if self.weight is None:
            return float(self.X.shape[0])
        return float(namespace(self.weight).sum(self.weight))

    def between(self, start: int, stop: int) -> "Chunk":
        """Return the rows [start, stop), as views."""
        part = slice(start, stop)
        y, weight = (None if v is None else v[part] for v in (self.y, self.weight))
        absent = None if self.absent is None else self.absent[part]
        return Chunk(_rows(self.X, part), y, weight, absent=absent)

    def at(self, index: Array) -> "Chunk":
        """Return the rows at these positions, copied."""

        def taken(A: Array) -> Array:
            if A is None:
                return A
            if issparse(A) or is_numpy(A):  # `take` would copy all of an A in Fortran order
                return A[index]
            xp = namespace(A)
            return xp.take(A, xp.asarray(index, device=A.device), axis=0)

        absent = None if self.absent is None else self.absent[to_numpy(index)]
        return Chunk(taken(self.X), taken(self.y), taken(self.weight), absent=absent)

    def counting(self) -> "Chunk":
        """Return the rows whose weight is not zero."""
        if self.weight is None:
            return self
        kept = namespace(self.weight).nonzero(self.weight)[0]
        return self if kept.shape[0] == self.X.shape[0] else self.at(kept)


class Table(Protocol):
    """A frame, a sparse matrix, a tensor or a Dask collection."""

    @property
    def shape(self) -> Any:
        """Return the numbers of rows and columns."""
        ...


class RowSource(Protocol):
    """Rows that are read as chunks: everything that solvers and engines may ask for.

    The defaults are those of rows that can be read any time, and are not in memory.
    """

    y: Array = None  # targets that are in memory

    def __iter__(self) -> Iterator[Chunk]:
        """Read all rows in order."""
        ...

    def parts(self, count_hint: int) -> "Sequence[RowSource]":
        """Cut into about `count_hint` disjoint sources, in order; ``[self]`` if that is impossible.

        Parts can be pickled.
        """
        ...

    @property
    def width(self) -> int:
        """Return the number of features."""
        ...

    @property
    def dtype(self) -> Any:
        """Return the dtype of the features."""
        ...

    @property
    def rows(self) -> int | None:
        """Return the number of rows; None if it is unknown before they are read."""
        ...

    @property
    def entries(self) -> int | None:
        """Return how many numbers the rows store; None if they are not in memory."""
        return None

    @property
    def again(self) -> bool:
        """Tell whether the rows can be read more than once."""
        return True

    @property
    def fields(self) -> tuple[Array, ...]:
        """Return the one-hot groups that are known beforehand, such as those of text columns."""
        return ()

    @property
    def unseen(self) -> Mapping[str, int]:
        """Return how many rows of the last pass had an unknown level, by column."""
        return {}

    def fingerprint(self) -> str | None:
        """Return an identity of the rows and of how they are read; None if there is none."""
        return None

    def absorb(self, parts: Any) -> None:
        """Take over the counts of passes over its parts, as `parts` returned them."""
        return

    def client(self) -> Any:
        """Return the `distributed.Client` of the cluster that holds the rows, None without one."""
        return None


@dataclass(frozen=True)
class MemorySource(RowSource):
    """Rows of one table in memory, read as blocks of views; nothing is copied.

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
    absent: csr_array | None = None  # as in a chunk

    @property
    def width(self) -> int:
        """Return the number of features."""
        return int(self.X.shape[1])

    @property
    def dtype(self) -> Any:
        """Return the dtype of the features."""
        return self.X.dtype

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self.X.shape[0])

    @property
    def entries(self) -> int:
        """Return how many numbers the rows store."""
        return int(self.X.nnz) if issparse(self.X) else self.rows * self.width

    def __iter__(self) -> Iterator[Chunk]:
        table = Chunk(self.X, self.y, self.weight, absent=self.absent)
        step = self.block_rows or _block_rows(self.X)
        for start in range(0, self.rows, step):
            yield table.between(start, min(start + step, self.rows))

    def in_wide_blocks(self) -> "MemorySource":
        """Return the same rows in blocks of up to 16 times the size, for sums that copy none."""
        if self.block_rows is not None:
            return self
        rows = _block_rows(self.X)
        if issparse(self.X):
            return replace(self, block_rows=_sparse_rows(self.X, 8 * BLOCK_ELEMENTS, 32))
        return replace(self, block_rows=max(rows, min(16 * rows, WIDE_ROWS)))

    def parts(self, count_hint: int) -> list["MemorySource"]:
        """Cut into at most `count_hint` runs of rows, none of them empty if there are several."""
        if count_hint < 2:
            return [self]
        table = Chunk(self.X, self.y, self.weight, absent=self.absent)
        chunks = (table.between(a, b) for a, b in even_cuts(self.rows, count_hint))
        return [MemorySource(c.X, c.y, c.weight, self.block_rows, c.absent) for c in chunks]

    def fingerprint(self) -> str:
        """Return a digest of all rows."""
        digest = blake2b(digest_size=16)
        X = self.X
        stored = [X.data, X.indices, X.indptr] if issparse(X) else [X]
        digest.update(str(tuple(X.shape)).encode())
        for values in (*stored, self.y, self.weight):
            array = np.empty(0) if values is None else to_numpy(values)
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            step = max(1, (1 << 24) // max(1, array[:1].nbytes))
            for start in range(0, len(array), step):  # without a second copy of X
                digest.update(np.ascontiguousarray(array[start : start + step]).data)
        return digest.hexdigest()


def even_cuts(n: int, count: int) -> list[tuple[int, int]]:
    """Cut n rows into at most `count` runs of about the same length, none of them empty.

    Examples
    --------
    >>> even_cuts(5, 2), even_cuts(2, 5)
    ([(0, 2), (2, 5)], [(0, 1), (1, 2)])
    """
    ends = [n * i // count for i in range(count + 1)]
    return [(a, b) for a, b in pairwise(ends) if a < b]


def is_dask(given: Any) -> bool:
    """Tell whether something is a Dask array or frame, without importing Dask."""
    return hasattr(given, "__dask_graph__") and hasattr(given, "npartitions")


def in_main_memory(X: Array) -> bool:
    """Tell whether dense rows are in main memory, and not on an accelerator."""
    return "cpu" in str(getattr(X, "device", "cpu")).lower()


def _block_rows(X: Array) -> int:
    d = X.shape[1]
    if not issparse(X):
        elements = BLOCK_ELEMENTS if in_main_memory(X) else DEVICE_ELEMENTS
        return max(1, elements // max(int(d), 1))
    return _sparse_rows(X, BLOCK_ELEMENTS, 4)


def _sparse_rows(X: Array, entries: int, per_column: int) -> int:
    """Return how many rows a block has: enough to outweigh the d numbers it is reduced to."""
    n, d = X.shape
    return max(1, int(max(entries, per_column * d) // max(X.nnz / max(n, 1), 1e-3)))


def _rows(X: Array, part: slice) -> Array:
    if not issparse(X):
        return X[part, :]
    first, last = X.indptr[part.start], X.indptr[part.stop]
    # The constructor of scipy would copy the entries of a small part of a large table.
    rows = csr_array((part.stop - part.start, X.shape[1]), dtype=X.dtype)
    rows.data, rows.indices = X.data[first:last], X.indices[first:last]
    rows.indptr = X.indptr[part.start : part.stop + 1] - first
    return rows


RowsLike = ArrayLike | Table | RowSource  # whatever estimators take as X
