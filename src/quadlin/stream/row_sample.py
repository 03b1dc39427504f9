r"""A small sample of all rows that a stream has seen, which keeps it from showing a useless model.

The rows whose numbers have the smallest hashes are kept: a uniform sample, however the rows come.
While a stream is short the sample is all of its rows, so that the model it shows is no worse than
the constant on the rows that were learned.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.losses import value_and_slope
from quadlin.core.model import Model, predict
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.observations import row_hash
from quadlin.solve.lowrank.sample import stacked
from quadlin.stream.verdict import constant_of, shortened


@dataclass
class Buffer:
    """Copies of the rows so far (the caller's arrays may change); dense rows fill one array.

    The first rows decide whether all rows are kept dense or sparse. Rows are only appended, so that
    a shallow copy does not change.
    """

    rows: int = 0
    X: Array = None  # (capacity, d), or a list of sparse pieces
    y: Array = None  # (capacity,)
    weight: Array = None  # (capacity,)
    _filled: list[int] = field(default_factory=[0].copy)  # rows in the arrays; copies share it

    def append(self, chunk: Chunk, capacity: int) -> None:
        """Append a copy of a chunk; `capacity` is the number of rows expected in all."""
        start, stop = self.rows, self.rows + chunk.X.shape[0]
        if self._filled[0] != start:  # a shallow copy has appended rows
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
        """Return an array with room for `capacity` rows that holds those of the old one."""
        if old is not None and old.shape[0] >= capacity:
            return old
        xp = namespace(like)
        new = xp.empty((capacity, *like.shape[1:]), dtype=like.dtype, device=like.device)
        if old is not None:
            new[: self.rows, ...] = old[: self.rows, ...]
        return new


def alike(X: Array, kept: Array) -> Array:
    """Return rows as dense or sparse ones, like those that are kept."""
    wanted = issparse(kept) or isinstance(kept, list)
    if issparse(X) == wanted:
        return X
    return csr_array(X) if wanted else X.toarray()


NUMBERS = 2**15  # numbers in a sample: 256 KiB
FEWEST, MOST_NUMBERS = 64, 2**18  # rows of a useful sample; no sample if they hold more numbers
SHARES = (0.75, 0.5, 0.25, 0.1)  # factors that shorten a model that goes too far


@dataclass(frozen=True)
class RowSample:
    """Some of the rows so far; `fed` returns the sample that includes further rows."""

    most: int  # rows to keep
    seen: int = 0  # rows so far
    rows: Chunk | None = None
    numbers: np.ndarray | None = None  # (m,), the positions of the kept rows in the stream
    largest: int = 0  # the largest hash of a kept row

    @classmethod
    def of_features(cls, d: int) -> "RowSample | None":
        """Return an empty sample for rows of d features; None if they are too many to keep."""
        rows = max(FEWEST, NUMBERS // (d + 2))
        return cls(rows) if rows * (d + 2) <= MOST_NUMBERS else None

    def fed(self, chunk: Chunk) -> "RowSample":
        """Return the sample of all rows so far and these."""
        seen = self.seen + chunk.X.shape[0]
        numbers = np.arange(self.seen, seen)
        full = self.numbers is not None and len(self.numbers) == self.most
        if full and not (row_hash(numbers) < self.largest).any():
            return replace(self, seen=seen)  # no new row is kept
        if self.numbers is not None:
            numbers = np.concatenate([self.numbers, numbers])
        before = len(numbers) - chunk.X.shape[0]
        hashes = row_hash(numbers)
        kept = np.sort(np.argsort(hashes, kind="stable")[: self.most])
        new = _weighted(chunk).at(kept[kept >= before] - before)  # copies
        if before:
            old = self._rows.at(kept[kept < before])
            X, y, weight = (old.X, alike(new.X, old.X)), (old.y, new.y), (old.weight, new.weight)
            new = Chunk(*(stacked(parts) for parts in (X, y, weight)))
        return RowSample(self.most, seen, new, numbers[kept], int(hashes[kept].max(initial=0)))

    @property
    def _rows(self) -> Chunk:
        assert self.rows is not None
        return self.rows

    def shrunk(self, state: FitState, loss: str) -> FitState:
        """Return the state with its model shortened if the constant is better on these rows."""
        if self.rows is None:
            return state
        model, c = state.model, constant_of(state.units, loss)
        best, least = 0.0, self._loss(shortened(model, c, 0.0), state, loss)
        if self._loss(model, state, loss) <= least:
            return state
        for share in SHARES:
            reached = self._loss(shortened(model, c, share), state, loss)
            if reached < least:
                best, least = share, reached
        return replace(state, model=shortened(model, c, best))

    def _loss(self, model: Model, state: FitState, loss: str) -> float:
        rows, xp = self._rows, namespace(model.U)
        f = xp.astype(predict(model, Block(rows.X, state.units)), xp.float64)
        y = xp.astype(state.units.standardised_target(rows.y), xp.float64)
        total = float(xp.astype(rows.weight, xp.float64) @ value_and_slope(loss, f, y)[0])
        return total if np.isfinite(total) else np.inf


def _weighted(chunk: Chunk) -> Chunk:
    """Return the rows with weights; rows without weights get weights of one."""
    if chunk.weight is not None:
        return chunk
    return replace(chunk, weight=namespace(chunk.y).ones_like(chunk.y))
