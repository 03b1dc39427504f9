"""The moments of columns by the compiled kernel, which reads the rows from memory once."""

import ctypes
from ctypes import c_double, c_int64, c_void_p
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array
from quadlin.core.kernel import scratch
from quadlin.core.library import SparseStructure, address, instruction_level, library, point, takes

COLUMNS = ("mean", "var", "kappa", "phi", "low", "high")


class MomentsStructure(ctypes.Structure):
    """Rows and where their moments go: `moments` in `_passes.c`, in the same order."""

    _fields_ = [
        *((name, c_int64) for name in ("n", "d")),
        ("x", c_void_p),
        *((name, c_int64) for name in ("x_row", "x_column")),
        ("weight", c_void_p),
        ("total", c_double),
        *((name, c_void_p) for name in (*COLUMNS, "memory")),
    ]


class ColumnMoments(NamedTuple):
    """The weight of the rows, and per column what `Moments` has."""

    weight: float
    mean: np.ndarray
    var: np.ndarray
    kappa: np.ndarray
    phi: np.ndarray
    low: np.ndarray
    high: np.ndarray


def column_moments(X: Array, weight: Array | None) -> ColumnMoments | None:
    """Return the moments of numpy rows, dense or canonical CSR; None where the kernel must not."""
    if not isinstance(X, np.ndarray | csr_array) or not takes(X.dtype):
        return None
    if not issparse(X) and not X.flags.aligned:
        return None
    n, d = X.shape
    omega = None if weight is None else np.ascontiguousarray(weight, np.float64)
    sums = np.zeros((len(COLUMNS), d))
    sums[COLUMNS.index("phi")] = 1.0
    sums[COLUMNS.index("low")], sums[COLUMNS.index("high")] = np.inf, -np.inf
    table = MomentsStructure(n=n, d=d)
    point(table, {"weight": omega, **dict(zip(COLUMNS, sums, strict=True))})
    _run(X, table)
    return ColumnMoments(table.total, *sums)


def _run(X: Array, table: MomentsStructure) -> None:
    loaded, at = library(), ctypes.byref(table)
    assert loaded is not None
    if not issparse(X):
        table.x, (table.x_row, table.x_column) = address(X), X.strides
    memory = scratch("compiled", loaded.moments_memory_needed(at))
    table.memory = address(memory)
    if not issparse(X):
        loaded.run_moments(at, X.itemsize, instruction_level())
        return
    rows = SparseStructure(index_bytes=X.indices.itemsize)
    arrays = {
        "pointers": np.ascontiguousarray(X.indptr, X.indices.dtype),
        "indices": np.ascontiguousarray(X.indices),
        "data": np.ascontiguousarray(X.data),
    }
    point(rows, arrays)
    loaded.run_sparse_moments(at, ctypes.byref(rows), X.dtype.itemsize, instruction_level())
