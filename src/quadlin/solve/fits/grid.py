"""The errors of a model on rows."""

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units


def squared_errors(model: Model, units: Units, rows: Rows) -> tuple[Array, Array]:
    """Return (r², ω) for the rows, in standardised units: one pass."""
    xp = namespace(model.w)
    errors, weights = zip(*rows.collect(_squared_errors, model, units), strict=True)
    return xp.concat(list(errors)), xp.concat(list(weights))


def _squared_errors(chunk: Chunk, model: Model, units: Units) -> tuple[Array, Array]:
    xp = namespace(model.w)
    r = predict(model, Block(chunk.X, units)) - units.standardised_target(chunk.y)
    squares = xp.astype(r, xp.float64) ** 2
    return squares, xp.ones_like(squares) if chunk.weight is None else chunk.weight
