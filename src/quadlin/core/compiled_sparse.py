"""The compiled kernel for sparse rows: products as sums over the entries that are stored."""

import ctypes
from collections.abc import Mapping
from functools import cache

import numpy as np
from scipy.sparse import csr_array

from quadlin.core.arrays import Array, remembered
from quadlin.core.compiled import CompiledKernel, usable
from quadlin.core.kernels import far_columns
from quadlin.core.library import (
    Pass,
    SparseStructure,
    address,
    aligned_zeros,
    instruction_level,
    library,
    point,
    scratch,
)
from quadlin.core.units import Units

FIRST = 64  # entries of sparse rows: if any differ, these usually do
UNIT = 16  # bytes of the narrowest vector: rows of several weights or sums are whole ones


class SparseKernel(CompiledKernel):
    """CSR rows that are centred inside the products.

    .. math:: Z Q = X (D Q) - 1 (\\nu^\\top Q), \\quad
              (Z \\circ Z) S = (X \\circ X) D^2 S - 2 X D\\nu S + 1 (\\nu \\circ \\nu)^\\top S
    """

    def __init__(self, X: csr_array, units: Units) -> None:
        super().__init__(X, units.scale.dtype)
        self.units, self.level = units, _level(X, self.dtype)

    @classmethod
    def of(cls, X: csr_array, units: Units) -> "SparseKernel | None":
        """Return the kernel for some rows; None if some columns are standardised outright."""
        takes = isinstance(X, csr_array) and usable(X, units)
        return cls(X, units) if takes and not _outright(units) else None

    def run(
        self,
        what: Pass,
        given: Mapping[str, np.ndarray | None],
        Q: Array | None,
        S: Array | None,
        columns: int,
        square_columns: int,
    ) -> tuple[Array, Array]:
        """Run a pass, and return the sums (d, columns) and those of squares (d, square_columns)."""
        X, (n, d), level, units = self.X, self.X.shape, self.level, self.units
        q, s = (0 if weights is None else weights.shape[1] for weights in (Q, S))
        # What cannot be written to stays as it is, such as the columns of a model that predicts.
        make = _weights if any(w is not None and w.flags.writeable for w in (Q, S)) else _remembered
        weights, square_weights, constant = make(Q, S, units.scale, units.nu, level)
        back = _lines(d, columns, self.dtype)
        back_squares = _lines(d, square_columns, self.dtype)
        totals = np.zeros(columns)
        rows = SparseStructure(index_bytes=X.indices.itemsize, levelled=level is not None)
        rows.level = 0 if level is None else float(level[0])
        rows.width, rows.square_width = weights.shape[1], square_weights.shape[1]
        rows.back_width, rows.back_square_width = back.shape[1], back_squares.shape[1]
        arrays = {
            "pointers": np.ascontiguousarray(X.indptr, X.indices.dtype),
            "indices": np.ascontiguousarray(X.indices),
            "data": self.vector(X.data),
            "weights": weights,
            "square_weights": square_weights,
            "constant": constant,
            "back": back,
            "back_squares": back_squares,
            "totals": totals,
            "scale": self.vector(units.scale),
            "shift": self.vector(units.nu),
        }
        point(rows, arrays)
        what.n, what.d, what.q, what.s = n, d, q, s
        what.columns, what.square_columns = columns, square_columns
        point(what, given)
        loaded, size = library(), self.dtype.itemsize
        assert loaded is not None
        what_at, rows_at = ctypes.byref(what), ctypes.byref(rows)
        memory = scratch("compiled", loaded.sparse_memory_needed(what_at, rows_at, size))
        what.memory = address(memory)
        loaded.run_sparse_pass(what_at, rows_at, size, instruction_level())
        return back[:, :columns], back_squares[:, :square_columns]


def _weights(
    Q: Array | None, S: Array | None, scale: np.ndarray, shift: np.ndarray, level: Array | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the factors of entries and of their squares, and what is subtracted."""
    (d,), dtype = scale.shape, scale.dtype
    q, s = (0 if weights is None else weights.shape[1] for weights in (Q, S))
    weights, constant = _lines(d, q + s, dtype), np.zeros(q + s, dtype)
    square_weights = _lines(d, s if level is None else 0, dtype)
    by_scale, by_shift = scale[:, None], shift[:, None]
    if Q is not None:
        np.multiply(by_scale, Q, out=weights[:, :q])
        constant[:q] = shift @ Q
    if S is not None:
        slope = -2 * by_shift if level is None else level * by_scale - 2 * by_shift
        weights[:, q : q + s] = slope * by_scale * S
        constant[q:] = -(shift**2 @ S)
        if level is None:
            square_weights[:, :s] = by_scale**2 * S
    return weights, square_weights, constant


_remembered = remembered(_weights)


def _lines(rows: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """Return zeros that start at a line of the cache, in rows of whole vectors or of one."""
    unit = UNIT // dtype.itemsize
    width = columns if columns == 1 else -(-columns // unit) * unit
    return aligned_zeros((rows, width), dtype)


@remembered
def _outright(units: Units) -> bool:
    """Tell whether columns are standardised outright.

    They are far from zero, or their squares, in the user's units, may leave the range of numbers.
    """
    root, scale = float(np.finfo(units.scale.dtype).max) ** (1 / 3), units.scale
    small = (scale > 0) & (scale < 1 / root)
    wild = small | (scale > root) | (np.abs(units.mean) > root)
    return bool(np.any(far_columns(units) | wild))


def _level(X: csr_array, dtype: np.dtype) -> Array:
    """Return the value of all entries that are stored, as of one-hot rows; None if they differ."""
    if not X.nnz:
        return None
    for entries in (X.data[:FIRST], X.data):  # where they differ, the first ones tell
        if entries.min() != entries.max():
            return None
    level = X.data[:1].astype(dtype)
    return _ones(level.dtype) if level == 1 else level


@cache
def _ones(dtype: np.dtype) -> np.ndarray:
    """Return the level of one-hot rows, always the same array: see `remembered`."""
    return np.ones(1, dtype)
