"""The rows of a first batch, copied as they come."""

from scipy.sparse import csr_array, issparse, vstack

from quadlin.core.arrays import Array, namespace
from quadlin.core.chunks import Chunk, MemorySource


class Buffer:
    """Rows copied as they come (the caller's arrays may change), dense ones into one array.

    The first rows decide whether all are kept dense or sparse. Rows are only ever added behind
    those there are, so that a shallow copy stays as it was.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._filled = [0]  # rows in the arrays, which copies share
        self.X: Array = None  # (capacity, d), or a list of sparse pieces
        self.y: Array = None  # (capacity,)
        self.weight: Array = None  # (capacity,)

    def append(self, chunk: Chunk, capacity: int) -> None:
        """Copy a chunk to the end; `capacity` is how many rows are to come in all."""
        start, stop = self.rows, self.rows + chunk.X.shape[0]
        if self._filled[0] != start:  # a copy has added rows of its own
            self._separate()
        self.y = self._room(self.y, chunk.y, capacity)
        self.weight = self._room(self.weight, chunk.y, capacity)
        self.y[start:stop] = chunk.y
        self.weight[start:stop] = 1.0 if chunk.weight is None else chunk.weight
        X = alike(chunk.X, chunk.X if self.X is None else self.X)
        if issparse(X):
            self.X = [*(self.X or []), X.copy()]
        else:
            self.X = self._room(self.X, X, capacity)
            self.X[start:stop, ...] = X
        self.rows = self._filled[0] = stop

    def _separate(self) -> None:
        """Stop sharing arrays with copies."""
        xp, self._filled = namespace(self.y), [self.rows]
        self.y, self.weight = xp.asarray(self.y, copy=True), xp.asarray(self.weight, copy=True)
        if not isinstance(self.X, list):
            self.X = xp.asarray(self.X, copy=True)

    def source(self) -> MemorySource:
        """Return the rows gathered so far."""
        X = vstack(self.X).tocsr() if isinstance(self.X, list) else self.X[: self.rows, ...]
        return MemorySource(X, self.y[: self.rows], self.weight[: self.rows])

    def _room(self, old: Array, like: Array, capacity: int) -> Array:
        """Return an array for so many rows, with those of the old one in it."""
        if old is not None and old.shape[0] >= capacity:
            return old
        xp = namespace(like)
        new = xp.empty((capacity, *like.shape[1:]), dtype=like.dtype, device=like.device)
        if old is not None:
            new[: self.rows, ...] = old[: self.rows, ...]
        return new


def alike(X: Array, kept: Array) -> Array:
    """Return rows as dense or sparse as those that are kept."""
    wanted = issparse(kept) or isinstance(kept, list)
    if issparse(X) == wanted:
        return X
    return csr_array(X) if wanted else X.toarray()
