"""Rows made of one-hot fields as a table that a posterior can be fitted to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix, vstack

from quadlin.core.arrays import is_numpy, to_numpy
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.rows import Rows
from quadlin.core.survey import Survey
from quadlin.data import Source
from quadlin.estimators.machines.loose_columns import LooseColumns, too_wide
from quadlin.solve.fields.field_predict import Layout, in_raw_columns
from quadlin.solve.fields.field_rows import FieldRows, field_rows, may_follow

GATHERED = 2**30  # bytes of a source that is read into memory


@dataclass(frozen=True)
class FieldTable:
    """Rows of one-hot fields and functions of them, with numbers on a common scale."""

    rows: FieldRows
    fields: Sequence[np.ndarray]
    mean: np.ndarray  # (d,), taken off the columns
    scale: np.ndarray  # (d,), that they were multiplied by
    beside: LooseColumns | None = None  # columns that follow no field

    @property
    def layout(self) -> Layout:
        """Return which columns are levels of which field."""
        return Layout(tuple(np.asarray(field) for field in self.fields), self.rows.parts)

    def raw(self, table: np.ndarray) -> np.ndarray:
        """Return tables of coefficients for the user's columns."""
        return in_raw_columns(table, self.layout, self.mean, self.scale)


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


def field_table(
    source: Any, fields: Sequence[np.ndarray], surveyed: Survey, loose: bool = False
) -> FieldTable | None:
    """Return rows in memory whose columns are all levels of fields or functions of them.

    None where they are not, or where there is only one entity and so no products. With `loose`
    there may be other columns, which have slopes.
    """
    X = csr_matrix(source.X, dtype=np.float64)
    mean, scale = _standard(X, surveyed)
    shifted = np.flatnonzero(mean)
    if len(shifted):
        X = X - csr_matrix(
            (
                np.tile(mean[shifted], X.shape[0]),
                np.tile(shifted, X.shape[0]),
                np.arange(X.shape[0] + 1) * len(shifted),
            ),
            shape=X.shape,
        )
    X = X.multiply(scale).tocsr()
    rows, beside = field_rows(X, source.y, fields, source.weight), None
    if rows.loose and loose:
        beside = LooseColumns.of(X, source.y, source.weight, rows.loose)
        rows = field_rows(*beside.without(X, source.y), fields, source.weight)
    if rows.loose or len(rows.entities) < 2:
        return None
    return FieldTable(rows, fields, mean, scale, beside)


def _standard(X: csr_matrix, surveyed: Survey) -> tuple[np.ndarray, np.ndarray]:
    """Return what is taken off the columns and what they are multiplied by; 0/1 stays 0/1.

    Numbers get standard deviation one, and mean zero unless most of them are zero.
    """
    moments, n = surveyed.features, X.shape[0]
    one_zero = np.isclose(moments.var, moments.mean * (1 - moments.mean))  # E x² = E x
    varies = moments.varies(np.float64) & ~one_zero
    entries = X.getnnz(axis=0)
    scale = np.where(varies, 1 / np.sqrt(np.where(varies, moments.var, 1.0)), 1.0)
    return np.where(varies & (2 * entries > n), moments.mean, 0.0), scale
