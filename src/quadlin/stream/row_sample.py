r"""A small sample of all rows that a stream has seen, which keeps it from showing a useless model.

The rows whose numbers have the smallest hashes are kept: a uniform sample, however the rows come.
While a stream is short the sample is all of its rows, so that the model it shows is no worse than
the constant on the rows that were learned.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from quadlin.core.arrays import Array, moved, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.losses import value_and_slope
from quadlin.core.model import Model, predict
from quadlin.core.units import Units
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.observations import row_hash


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
    seen: int  # rows so far
    numbers: np.ndarray  # (m,), the positions of the kept rows in the stream
    X: np.ndarray  # (m, d)
    y: np.ndarray  # (m,)
    weight: np.ndarray  # (m,)

    @classmethod
    def of_features(cls, d: int) -> "RowSample | None":
        """Return an empty sample for rows of d features; None if they are too many to keep."""
        rows, none = max(FEWEST, NUMBERS // (d + 2)), np.zeros(0)
        fits = rows * (d + 2) <= MOST_NUMBERS
        return cls(rows, 0, none.astype(int), np.zeros((0, d)), none, none) if fits else None

    def fed(self, chunk: Chunk) -> "RowSample":
        """Return the sample of all rows so far and these."""
        new = np.arange(self.seen, self.seen + chunk.X.shape[0])
        if len(self.numbers) == self.most:  # only rows of smaller hashes than the largest enter
            new = new[row_hash(new) < row_hash(self.numbers).max()]
        at = new - self.seen
        X = chunk.X[at, ...].toarray() if issparse(chunk.X) else to_numpy(chunk.X[at, ...])
        y, weight = to_numpy(chunk.y[at]), chunk.weights[at]
        numbers = np.concatenate([self.numbers, new])
        kept = np.sort(np.argsort(row_hash(numbers), kind="stable")[: self.most])
        parts = ((self.X, X), (self.y, y), (self.weight, weight))
        rows = (np.concatenate(part)[kept] for part in parts)
        return RowSample(self.most, self.seen + chunk.X.shape[0], numbers[kept], *rows)

    def shrunk(self, state: FitState, loss: str) -> FitState:
        """Return the state with its model shortened if the constant is better on these rows."""
        if not len(self.y):
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
        X, y, weight = (moved(a, state.units.scale) for a in (self.X, self.y, self.weight))
        f = namespace(y).astype(predict(model, Block(X, state.units)), y.dtype)
        total = float(weight @ value_and_slope(loss, f, state.units.standardised_target(y))[0])
        return total if np.isfinite(total) else np.inf


def constant_of(units: Units, loss: str) -> float:
    """Return the best constant, as a standardised prediction."""
    return 0.0 if loss == "squared" else units.target.centre


def shortened(model: Model, c: float, theta: float) -> Model:
    """Return c + θ·(f − c), where f is the model."""
    return replace(model, s=theta * model.s, w=theta * model.w, c=c + theta * (model.c - c))
