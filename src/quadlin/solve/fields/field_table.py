"""Rows made of one-hot fields as a table to which a posterior can be fitted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from quadlin.core.moments import Moments
from quadlin.solve.fields.field_predict import Layout, in_raw_columns
from quadlin.solve.fields.field_rows import FieldRows, field_rows
from quadlin.solve.fields.loose_columns import LooseColumns


@dataclass(frozen=True)
class FieldTable:
    """Rows of one-hot fields and functions of them, with numbers on a common scale."""

    rows: FieldRows
    fields: Sequence[np.ndarray]
    mean: np.ndarray  # (d,), subtracted from the columns
    scale: np.ndarray  # (d,), by which they were multiplied
    beside: LooseColumns | None = None  # columns that follow no field

    @property
    def layout(self) -> Layout:
        """Return which columns are levels of which field."""
        return Layout(tuple(np.asarray(field) for field in self.fields), self.rows.parts)

    def raw(self, table: np.ndarray) -> np.ndarray:
        """Return tables of coefficients for the user's columns."""
        return in_raw_columns(table, self.layout, self.mean, self.scale)


def field_table(
    source: Any, fields: Sequence[np.ndarray], features: Moments, loose: bool = False
) -> FieldTable | None:
    """Return rows in memory whose columns are all levels of fields or functions of them.

    None if they are not, or if there is only one entity and so no products. With `loose` there may
    be other columns, which have slopes.
    """
    X = csr_matrix(source.X, dtype=np.float64)
    mean, scale = standard(X, features)
    X = standardised(X, mean, scale)
    rows, beside = field_rows(X, source.y, fields, source.weight), None
    if rows.loose and loose:
        beside = LooseColumns.of(X, source.y, source.weight, rows.loose)
        rows = field_rows(*beside.without(X, source.y), fields, source.weight)
    if rows.loose or len(rows.entities) < 2:
        return None
    return FieldTable(rows, fields, mean, scale, beside)


def standardised(X: csr_matrix, mean: np.ndarray, scale: np.ndarray) -> csr_matrix:
    """Return (X − mean)∘scale; few columns have a mean that is not zero."""
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
    return X.multiply(scale).tocsr()


def standard(X: csr_matrix, moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Return the means and scales that standardise columns; 0/1 columns stay 0/1.

    Columns of numbers get standard deviation one, and mean zero unless most entries are zero.
    """
    n = X.shape[0]
    one_zero = np.isclose(moments.var, moments.mean * (1 - moments.mean))  # E x² = E x
    varies = moments.varies(np.float64) & ~one_zero
    entries = X.getnnz(axis=0)
    scale = np.where(varies, 1 / np.sqrt(np.where(varies, moments.var, 1.0)), 1.0)
    return np.where(varies & (2 * entries > n), moments.mean, 0.0), scale
