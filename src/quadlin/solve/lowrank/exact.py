"""The largest matrices that are formed, and standardised rows as dense arrays."""

from quadlin.core.arrays import Array, namespace
from quadlin.core.chunks import Chunk
from quadlin.core.units import Units

EXACT_ROWS, EXACT_COLUMNS = 3000, 1500  # the largest matrix that is solved directly
EXACT_ENTRIES = 1 << 25  # of dense rows or products at a time
EXACT_FEATURES = 500  # the maximum for an M of full rank

Alpha = tuple[float, float]


def dense(chunk: Chunk, units: Units) -> Array:
    """Return standardised rows as a dense array, in float64."""
    Z = units.standardised(chunk.X)
    xp = namespace(Z)
    return xp.astype(Z, xp.float64)
