r"""A small sample of all rows that a stream has seen, by which no model is shown that is useless.

The rows of least hash of their number are kept: a uniform sample, whatever the sizes of the calls.
While a stream is short it is all of its rows, and then what `not_worse` returns is, on the rows
that were learned, no worse than the constant.
"""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import value_and_slope
from quadlin.core.model import Model, predict
from quadlin.core.sums import standardised_target
from quadlin.solve.exact import rows_of
from quadlin.solve.fit_state import FitState
from quadlin.solve.row_hash import row_hash
from quadlin.solve.sample import stacked
from quadlin.stream.buffer import alike
from quadlin.stream.verdict import constant_of, shortened

NUMBERS = 2**15  # that are kept, 256 KiB
FEWEST, MOST_NUMBERS = 64, 2**18  # rows that say anything, unless these are too many numbers
SHARES = (0.75, 0.5, 0.25, 0.1)  # of a model that goes too far


def capacity(d: int) -> int:
    """Return how many rows of d features are kept; 0 where features are too many."""
    rows = max(FEWEST, NUMBERS // (d + 2))
    return rows if rows * (d + 2) <= MOST_NUMBERS else 0


@dataclass(frozen=True)
class RowSample:
    """Some of the rows so far; with the rows of a chunk it is another sample."""

    most: int  # rows that are kept
    seen: int = 0
    rows: Chunk | None = None
    numbers: np.ndarray | None = None  # (m,), of the rows that are kept

    def fed(self, chunk: Chunk) -> "RowSample":
        """Return the sample of all rows so far and these."""
        numbers = np.arange(self.seen, self.seen + chunk.X.shape[0])
        if self.numbers is not None:
            numbers = np.concatenate([self.numbers, numbers])
        before = len(numbers) - chunk.X.shape[0]
        kept = np.sort(np.argsort(row_hash(numbers), kind="stable")[: self.most])
        seen = self.seen + chunk.X.shape[0]
        if before and len(kept) == before and kept[-1] == before - 1:
            return replace(self, seen=seen)  # none of these
        new = rows_of(_weighted(chunk), kept[kept >= before] - before)  # copies
        if before:
            old = rows_of(self._rows, kept[kept < before])
            X, y, weight = (old.X, alike(new.X, old.X)), (old.y, new.y), (old.weight, new.weight)
            new = Chunk(*(stacked(parts) for parts in (X, y, weight)))
        return RowSample(self.most, seen, new, numbers[kept])

    @property
    def _rows(self) -> Chunk:
        assert self.rows is not None
        return self.rows

    def not_worse(self, state: FitState, loss: str) -> FitState:
        """Return the state, its model shortened if the constant is better on these rows."""
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
        y = xp.astype(standardised_target(rows, state.units), xp.float64)
        total = float(xp.astype(rows.weight, xp.float64) @ value_and_slope(loss, f, y)[0])
        return total if np.isfinite(total) else np.inf


def _weighted(chunk: Chunk) -> Chunk:
    """Return the rows with weights, of one where they had none."""
    if chunk.weight is not None:
        return chunk
    return replace(chunk, weight=namespace(chunk.y).ones_like(chunk.y))
