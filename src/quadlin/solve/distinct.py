"""How many rows of a table are different: rows that stand several times tell no more than once."""

import numpy as np

from quadlin.core.arrays import namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.rows import Rows
from quadlin.core.sums import standardised_target
from quadlin.core.units import Units

MOST_ROWS = 200_000  # beyond, a few rows that stand twice cannot matter
DIGITS = 5  # of random projections by which rows are compared: those that float32 has


def distinct_rows(rows: Rows, units: Units, n_rows: int) -> int:
    """Return the number of different rows of positive weight: one walk, three numbers per row."""
    if n_rows > MOST_ROWS:
        return n_rows
    directions = np.random.default_rng(0).standard_normal((units.scale.shape[0], 2))
    like = {"dtype": units.scale.dtype, "device": units.scale.device}
    Q = namespace(units.scale).asarray(directions / np.sqrt(max(1, len(directions))), **like)
    return len(np.unique(np.concatenate(rows.collect(_projected, units, Q)), axis=0))


def _projected(chunk: Chunk, units: Units, Q: np.ndarray) -> np.ndarray:
    """Return two projections and the target of the rows that count, rounded."""
    columns = [to_numpy(Block(chunk.X, units).matmul(Q))]
    columns.append(to_numpy(standardised_target(chunk, units))[:, None])
    values = np.round(np.concatenate(columns, axis=1).astype(np.float64), DIGITS)
    return values if chunk.weight is None else values[to_numpy(chunk.weight) > 0]
