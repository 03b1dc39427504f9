"""Rows in memory, or of a source that fits there, that may be made of one-hot fields."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from quadlin.core.arrays import is_numpy, to_numpy
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.solve.choose.rank_climb import too_wide
from quadlin.solve.fields.field_rows import may_follow

GATHERED = 2**30  # bytes of a source that is read into memory


def may_qualify(source: Any, fields: Sequence[np.ndarray], loose: bool) -> bool:
    """Tell without a pass whether rows can be a `FieldTable`."""
    in_memory = isinstance(source, MemorySource) and is_numpy(source.X)
    return in_memory and len(fields) > 1 and _may_fit(source.X, fields, loose)


def _may_fit(X: Any, fields: Sequence[np.ndarray], loose: bool) -> bool:
    return (loose and too_wide(X.shape[1])) or may_follow(X, fields)


def gathered(
    rows: Rows, source: Source, fields: Sequence[np.ndarray], loose: bool = False
) -> MemorySource | None:
    """Read encoded rows of a source into memory; None if they do not qualify or are too many."""
    if len(fields) < 2 or not source.sparse or source.client() is not None:
        return None
    chunks: list[Chunk] = []
    size = 0
    for chunk in rows.walk():
        if not chunks and not _may_fit(chunk.X, fields, loose):
            return None
        chunks.append(chunk)
        size += 16 * chunk.X.nnz  # a number and where it stands, a target and a weight
        if size > GATHERED:
            return None
    X = csr_array(vstack([chunk.X for chunk in chunks], "csr"))
    weighted = chunks[0].weight is not None
    y, weight = (
        np.concatenate([to_numpy(part) for part in parts]) if parts else None
        for parts in ([c.y for c in chunks], [c.weight for c in chunks] if weighted else [])
    )
    return MemorySource(X, y, weight)
