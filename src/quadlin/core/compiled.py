"""The compiled kernel: passes over dense numpy rows that read them from memory once.

`_passes.c` is compiled when the package is built, where there is a compiler; without it, the
reference in `block.py` does the same in numpy. ``QUADLIN_KERNEL=numpy`` in the environment switches
the compiled kernel off.
"""

import ctypes
import os
from collections.abc import Callable
from ctypes import c_int64, c_void_p
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np

from quadlin.core.arrays import Array
from quadlin.core.kernel import pieces, scratch
from quadlin.core.response import Passed, Response
from quadlin.core.units import Units

NUMBERS = (np.dtype(np.float32), np.dtype(np.float64))


class Pass(ctypes.Structure):
    """What `run_pass` does: the struct of that name in `_passes.c`, in the same order."""

    _fields_ = [
        *((name, c_int64) for name in ("n", "d")),
        ("x", c_void_p),
        *((name, c_int64) for name in ("x_row", "x_column", "x_bytes")),
        *((name, c_void_p) for name in ("mean", "scale", "rest")),
        *((name, c_int64) for name in ("q", "s")),
        *((name, c_void_p) for name in ("Q", "S", "products", "squares")),
        *((name, c_int64) for name in ("respond", "m", "k", "right", "action", "actions")),
        *((name, c_void_p) for name in ("constant", "factor", "y", "weight", "total", "loss")),
        *((name, c_int64) for name in ("columns", "square_columns")),
        *((name, c_void_p) for name in ("R", "back", "back_squares", "memory")),
    ]


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernel; None without one, or where it was made of another source."""
    source = Path(__file__).with_name("_passes.c")
    try:
        loaded = ctypes.CDLL(str(source.with_name("_passes.so")))
        loaded.source_digest.restype = ctypes.c_char_p
        loaded.memory_needed.restype = c_int64
        loaded.run_pass.restype = None
        made_of = loaded.source_digest().decode()
        return loaded if made_of == digest_of(source.read_bytes()) else None
    except (OSError, AttributeError):
        return None


def digest_of(source: bytes) -> str:
    """Return what tells one version of the C source from another."""
    return blake2b(source, digest_size=16).hexdigest()


@cache
def instruction_level() -> int:
    """Return how wide the vector instructions of this machine are: 0, 1 or 2."""
    loaded = library()
    return 0 if loaded is None else int(loaded.instruction_level())


def kernel_of(X: Array, units: Units) -> "Kernel | None":
    """Return the compiled kernel for some rows; None where the reference must do."""
    if not isinstance(X, np.ndarray) or X.dtype not in NUMBERS or not X.flags.aligned:
        return None
    if units.scale.dtype not in NUMBERS or os.environ.get("QUADLIN_KERNEL") == "numpy":
        return None
    return None if library() is None else Kernel(X, units)


class Kernel:
    """Products with the standardised rows of one block; the names are those of `Block`."""

    def __init__(self, X: np.ndarray, units: Units) -> None:
        self.X, self.units, self.dtype = X, units, units.scale.dtype

    def products(self, Q: Array, S: Array | None) -> tuple[Array, Array | None]:
        """Return Z Q and (Z∘Z) S, None without S."""
        n, columns = self.X.shape[0], self._rows_of(Q)
        weights = None if S is None else self._rows_of(S)
        products = np.empty((columns.shape[0], n), self.dtype)
        squares = None if S is None else np.empty((S.shape[1], n), self.dtype)
        self._run(Q=columns, S=weights, products=products, squares=squares)
        return products.T, None if squares is None else squares.T

    def sums(self, R: Array, square_columns: int) -> tuple[Array, Array]:
        """Return Zᵀ R, and (Z∘Z)ᵀ R for the first columns of R."""
        columns, d = self._rows_of(R), self.X.shape[1]
        back = np.empty((columns.shape[0], d), self.dtype)
        squares = np.empty((square_columns, d), self.dtype)
        self._run(R=columns, back=back, back_squares=squares)
        return back.T, squares.T

    def through(
        self,
        Q: Array,
        respond: Callable[[Array, Array | None, slice], tuple[Array, Array]],
        S: Array | None,
        squares: bool,
    ) -> tuple[Array, Array, Array | None]:
        """Return Zᵀ A, Zᵀ R and, if `squares`, (Z∘Z)ᵀ R, where A, R = respond(Z Q, (Z∘Z) S)."""
        (n, d), total, total_squares = self.X.shape, None, None
        for part in pieces(n, d * self.dtype.itemsize) if n else [slice(0, 0)]:
            some = Kernel(self.X[part], self.units)
            A, R = respond(*some.products(Q, S), part)
            m = R.shape[1]
            back, second = some.sums(np.concatenate([R, A], axis=1), m if squares else 0)
            total = back if total is None else total + back
            total_squares = second if total_squares is None else total_squares + second
        assert total is not None
        return total[:, m:], total[:, :m], total_squares if squares else None

    def passed(self, Q: Array, response: Response, S: Array | None, squares: bool) -> Passed:
        """Return what the residuals of a response say of the rows."""
        m, actions = response.assembly.constant.shape[0], response.action
        count, d = actions.stop - actions.start, self.X.shape[1]
        back = np.empty((m + m * count, d), self.dtype)
        back_squares = np.empty((m if squares else 0, d), self.dtype)
        total, loss = np.zeros(m), np.zeros(1)
        vectors = (response.assembly.constant, response.factor, response.y, response.weight)
        constant, factor, y, weight = (None if v is None else self._vector(v) for v in vectors)
        self._run(
            {
                "respond": 1,
                "m": m,
                "k": response.factor.shape[0],
                "right": response.right,
                "action": actions.start,
                "actions": count,
            },
            Q=self._rows_of(Q),
            S=None if S is None else self._rows_of(S),
            constant=constant,
            factor=factor,
            y=y,
            weight=weight,
            total=total,
            loss=loss,
            back=back,
            back_squares=back_squares,
        )
        p2 = back_squares.T if squares else None
        return Passed(back[m:].T, back[:m].T, p2, total, float(loss[0]))

    def _run(self, numbers: dict[str, int] | None = None, **arrays: np.ndarray | None) -> None:
        """Run one pass; `arrays` stay alive meanwhile."""
        X, heights = self.X, {"Q": "q", "S": "s", "back": "columns"}
        heights["back_squares"] = "square_columns"
        units = {
            name: self._vector(getattr(self.units, name)) for name in ("mean", "scale", "rest")
        }
        what = Pass(n=X.shape[0], d=X.shape[1], x=X.ctypes.data, x_bytes=X.itemsize)
        what.x_row, what.x_column = X.strides
        for name, array in {**units, **arrays}.items():
            if array is not None:
                setattr(what, name, array.ctypes.data)
            if array is not None and name in heights:
                setattr(what, heights[name], array.shape[0])
        for name, number in (numbers or {}).items():
            setattr(what, name, number)
        loaded = library()
        assert loaded is not None
        address, size = ctypes.byref(what), self.dtype.itemsize
        memory = scratch("compiled", loaded.memory_needed(address, size))
        what.memory = memory.ctypes.data
        loaded.run_pass(address, size, instruction_level())

    def _rows_of(self, Q: Array) -> np.ndarray:
        """Return Qᵀ, contiguous."""
        return np.ascontiguousarray(Q.T, self.dtype)

    def _vector(self, v: Array) -> np.ndarray:
        return np.ascontiguousarray(v, self.dtype)
