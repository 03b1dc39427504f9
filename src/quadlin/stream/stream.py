"""Rows that are seen once: the first batch is fitted, every later one is a single step of its sums.

From the second batch on no row is kept, only its O(kd) sums, so that how the caller cuts the stream
changes nothing but rounding.
"""

import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from quadlin.core.arrays import Array, namespace
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import Tally
from quadlin.solve.fit_state import Learned, learn_table
from quadlin.solve.types import Options, Status
from quadlin.stream.batch import Pending, gather, learn

SIGNIFICANT = 1.5


class Buffer:
    """Rows copied as they come (the caller's arrays may change), dense ones into one array.

    The first rows decide whether all are kept dense or sparse.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.X: Array = None  # (capacity, d), or a list of sparse pieces
        self.y: Array = None  # (capacity,)
        self.weight: Array = None  # (capacity,)

    def append(self, chunk: Chunk, capacity: int) -> None:
        """Copy a chunk to the end; `capacity` is how many rows are to come in all."""
        start, stop = self.rows, self.rows + chunk.X.shape[0]
        self.y = self._room(self.y, chunk.y, capacity)
        self.weight = self._room(self.weight, chunk.y, capacity)
        self.y[start:stop] = chunk.y
        self.weight[start:stop] = 1.0 if chunk.weight is None else chunk.weight
        X = _alike(chunk.X, chunk.X if self.X is None else self.X)
        if issparse(X):
            self.X = [*(self.X or []), X.copy()]
        else:
            self.X = self._room(self.X, X, capacity)
            self.X[start:stop, ...] = X
        self.rows = stop

    def shorten(self, rows: int) -> None:
        """Keep the first rows only."""
        if isinstance(self.X, list):
            while self.rows > rows:
                self.rows -= self.X.pop().shape[0]
        self.rows = rows

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


def _alike(X: Array, kept: Array) -> Array:
    """Return rows as dense or sparse as those that are kept."""
    wanted = issparse(kept) or isinstance(kept, list)
    if issparse(X) == wanted:
        return X
    return csr_array(X) if wanted else X.toarray()


def stands_out(learned: Learned, rows: int) -> bool:
    """Tell whether every eigenvalue of M is above what noise alone makes of this many rows.

    The estimate's noise, ½ Σ r z zᵀ/n, has spectral norm sd(r)·√(d/n).
    """
    xp = namespace(learned.model.s)
    d, k = learned.model.U.shape
    if k == 0:
        return True
    sd = learned.history[-1].loss ** 0.5 / learned.units.target.scale
    weakest = float(xp.min(xp.abs(learned.model.s)))
    return bool(weakest > SIGNIFICANT * sd * (d / rows) ** 0.5)


class Stream:
    """A model that learns from batches of `batch_size` rows, each row seen once.

    Later batches only refine what the first one found, so where noise hides some of M in it, the
    first batch is doubled until M stands out, at most to `first_limit` rows.

    Memory: O(kd), and the rows of the first batch until it is complete.
    """

    def __init__(
        self,
        options: Options,
        batch_size: int,
        first_limit: int,
        make_units: UnitsMaker,
        seed: int,
        learned: Learned | None = None,
    ) -> None:
        self.options = options
        self.batch_size = self.goal = batch_size
        self.first_limit = first_limit
        self.make_units = make_units
        self.seed = seed
        self.learned = learned
        self.waiting = Buffer()  # rows of the first batch
        self.pending: Pending | None = None  # sums of a later one
        self.rows, self.weight, self.squared_weight = 0, 0.0, 0.0
        self._current: Learned | None = learned

    def feed(self, chunk: Chunk) -> None:
        """Take in some rows, learning whenever a batch is complete."""
        chunk = counting(chunk)
        n, start = chunk.X.shape[0], 0
        while start < n:
            stop = min(n, start + self.goal - self._gathered)
            part = slice(start, stop)
            self._take(
                Chunk(
                    chunk.X[part, :],
                    chunk.y[part],
                    None if chunk.weight is None else chunk.weight[part],
                )
            )
            start = stop
        self.count(Tally.of(chunk))

    def count(self, tally: Tally) -> None:
        """Count rows that were learned from, and their weights."""
        self.rows += tally.counting
        self.weight += tally.weight
        self.squared_weight += tally.squared_weight

    @property
    def effective_rows(self) -> float:
        """Return (Σω)²/Σω², the number of equally weighted rows that say as much."""
        return self.weight**2 / self.squared_weight if self.squared_weight else 0.0

    @property
    def current(self) -> Learned:
        """Return what is known now, the incomplete batch included."""
        if self._current is None:
            self._current = self._learn_pending()
        return self._current

    @property
    def example(self) -> Array:
        """Return an array that lives where the model lives."""
        return self.waiting.y if self.learned is None else self.learned.model.w

    @property
    def _gathered(self) -> int:
        if self.learned is None:
            return self.waiting.rows
        return 0 if self.pending is None else self.pending.rows

    def _take(self, chunk: Chunk) -> None:
        before = self._current, self.waiting.rows, self.pending
        try:
            self._current = None
            if self.learned is None:
                self.waiting.append(chunk, self.goal)
            else:
                self.pending = self._with_sums_of(_source(chunk))
            rows = self._gathered
            if rows < self.goal:
                return
            self._current = self._learn_pending()
        except BaseException:  # rows that nothing can be learned from must not stay
            self._current, self.pending = before[0], before[2]
            self.waiting.shorten(before[1])
            raise
        may_grow = self.learned is None and 2 * rows <= self.first_limit
        if may_grow and not stands_out(self._current, rows):
            self.goal = 2 * rows
            return
        self.learned, self.goal = self._current, self.batch_size
        self.waiting, self.pending = Buffer(), None

    def _with_sums_of(self, source: MemorySource) -> Pending:
        """Return what waits with these rows, unless they are too large to be squared."""
        assert self.learned is not None
        pending = gather(self.pending, source, self.learned)
        self.make_units.refuse_overflow(pending.features, pending.target)
        if not np.isfinite(pending.sums.loss + pending.rise_squares):
            raise ValueError(
                "Some rows are so far from all before that their errors cannot be squared. "
                "Look for wrong units or typing errors in X and y."
            )
        return pending

    def _learn_pending(self) -> Learned:
        if self.learned is None:
            source = self.waiting.source()
            learned = learn_table(source, self.options, self.make_units, self.seed)
            if learned.status is Status.interrupted:  # half a fit is not what is known
                raise KeyboardInterrupt(learned.status.value)
            return learned
        if self.pending is None or self.pending.sums.weight == 0:
            return self.learned
        return learn(self.learned, self.pending, self.options, self.make_units)


def counting(chunk: Chunk) -> Chunk:
    """Leave out the rows of weight zero."""
    if chunk.weight is None:
        return chunk
    xp = namespace(chunk.weight)
    kept = xp.nonzero(chunk.weight > 0)[0]
    if kept.shape[0] == chunk.weight.shape[0]:
        return chunk
    X = chunk.X[kept, :] if issparse(chunk.X) else xp.take(chunk.X, kept, axis=0)
    return Chunk(X, xp.take(chunk.y, kept), xp.take(chunk.weight, kept))


def _source(chunk: Chunk) -> MemorySource:
    return MemorySource(chunk.X, chunk.y, chunk.weight)
