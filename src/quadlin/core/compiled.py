"""The compiled kernel: passes over numpy rows, dense or sparse, that read them from memory once.

Without it, the references in `kernels.py` do the same in numpy.
"""

import ctypes
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import numpy as np
from scipy.sparse import csr_array

from quadlin.core.arrays import Array, remembered
from quadlin.core.kernels import Kernel, Passed, Residuals, Response, far_columns, runs
from quadlin.core.library import (
    Pass,
    SparseStructure,
    address,
    aligned_zeros,
    instruction_level,
    library,
    point,
    scratch,
    takes,
)
from quadlin.core.units import Units

FIRST = 64  # entries of sparse rows: if any differ, these usually do
UNIT = 16  # bytes of the narrowest vector: rows of several weights or sums are whole ones


def usable(X: Array, units: Units) -> bool:
    """Tell whether there is a compiled kernel for the dtypes of the rows and of the units."""
    return takes(X.dtype) and takes(units.scale.dtype)


class CompiledKernel(Kernel):
    """A kernel that carries out a pass as a whole."""

    # Runs a pass, and returns the sums (d, columns) and those of squares (d, square_columns).
    run: Callable[..., tuple[Array, Array]]

    def products(self, Q: Array, S: Array | None) -> tuple[Array, Array | None]:
        """Return Z Q and (Z∘Z) S, None without S."""
        n = self.X.shape[0]
        products = np.empty((Q.shape[1], n), self.dtype)
        squares = None if S is None else np.empty((S.shape[1], n), self.dtype)
        self.run(Pass(), {"products": products, "squares": squares}, Q, S, 0, 0)
        return products.T, None if squares is None else squares.T

    def sums(self, R: Array, square_columns: int) -> tuple[Array, Array]:
        """Return Zᵀ R, and (Z∘Z)ᵀ R for the first columns of R."""
        given = {"R": np.ascontiguousarray(R.T, self.dtype)}
        return self.run(Pass(), given, None, None, R.shape[1], square_columns)

    def passed(
        self, Q: Array, residuals: Response | Residuals, S: Array | None, squares: bool
    ) -> Passed:
        """Return the sums of residuals; those of a response in one call."""
        if not isinstance(residuals, Response):
            return super().passed(Q, residuals, S, squares)
        response, assembly, action = residuals, residuals.assembly, residuals.action
        m, actions = assembly.constant.shape[0], action.stop - action.start
        total, loss = np.zeros(m), np.zeros(1)
        vectors = {
            "constant": assembly.constant,
            "factor": response.factor,
            "y": response.y,
            "weight": response.weight,
        }
        arrays = {name: None if v is None else self.vector(v) for name, v in vectors.items()}
        given = {**arrays, "total": total, "loss": loss}
        what = Pass(respond=1, m=m, k=response.factor.shape[0], right=response.right)
        what.action, what.actions = action.start, actions
        back, p2 = self.run(what, given, Q, S, m + m * actions, m if squares else 0)
        return Passed(back[:, m:], back[:, :m], p2 if squares else None, total, float(loss[0]))

    def vector(self, v: Array) -> np.ndarray:
        """Return a vector, contiguous and in the dtype of the kernel."""
        return np.ascontiguousarray(v, self.dtype)


class DenseKernel(CompiledKernel):
    """Dense rows of any strides; each is standardised outright when it is read."""

    def __init__(self, X: np.ndarray, units: Units) -> None:
        super().__init__(X, units.scale.dtype)
        self.units = units

    @classmethod
    def of(cls, X: Array, units: Units) -> "DenseKernel | None":
        """Return the kernel for some rows; None if there is none."""
        dense = isinstance(X, np.ndarray) and X.flags.aligned
        return cls(X, units) if dense and usable(X, units) else None

    def parts(self) -> Iterable[slice]:
        """Return runs of rows that stay in the cache."""
        return runs(self.X, self.dtype)

    def rows(self, part: slice) -> Kernel:
        """Return the kernel of some rows."""
        return DenseKernel(self.X[part], self.units)

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
        X, units, d = self.X, self.units, self.X.shape[1]
        back = np.empty((columns, d), self.dtype)
        squares = np.empty((square_columns, d), self.dtype)
        arrays = {name: self.vector(getattr(units, name)) for name in ("mean", "scale", "rest")}
        arrays |= {"Q": rows_of(Q, self.dtype, d), "S": square_rows_of(S, self.dtype, d)}
        arrays |= {"back": back, "back_squares": squares}
        (what.n, what.d), what.x, what.x_bytes = X.shape, address(X), X.itemsize
        what.x_row, what.x_column = X.strides
        what.q, what.s = arrays["Q"].shape[0], arrays["S"].shape[0]
        what.columns, what.square_columns = columns, square_columns
        point(what, {**arrays, **given})
        loaded, size = library(), self.dtype.itemsize
        assert loaded is not None
        memory = scratch("compiled", loaded.memory_needed(ctypes.byref(what), size))
        what.memory = address(memory)
        loaded.run_pass(ctypes.byref(what), size, instruction_level())
        return back.T, squares.T


def _transposed(Q: Array | None, dtype: np.dtype, d: int) -> np.ndarray:
    """Return Qᵀ, contiguous; no rows without Q."""
    return np.empty((0, d), dtype) if Q is None else np.ascontiguousarray(Q.T, dtype)


rows_of, square_rows_of = remembered(_transposed), remembered(_transposed)


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
