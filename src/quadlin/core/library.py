"""The shared library of the compiled kernel: whether it can be used, its memory and its moments.

`_passes.c` is compiled when the package is built (`kernel/CMakeLists.txt`).
``QUADLIN_KERNEL=numpy`` in the environment switches the compiled kernel off. The kernels for torch
tensors on a GPU are found here, too.
"""

import ctypes
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from ctypes import c_double, c_int64, c_void_p
from functools import cache
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array

SOURCES = sorted(Path(__file__).parent.glob("_passes*.[ch]"))  # none in a wheel
NUMBERS = (np.dtype(np.float32), np.dtype(np.float64))
LINE = 64  # bytes of a line of the cache
TENSOR_UNITS = (8, 0)  # compute capability of a GPU that has those which the kernels use
FUNCTIONS_THAT_COUNT = ("memory_needed", "sparse_memory_needed", "moments_memory_needed")


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernel; None if there is none, or with a warning if it does not match."""
    path = Path(__file__).with_name("_passes.dll" if sys.platform == "win32" else "_passes.so")
    if not path.exists():
        return None
    try:
        loaded = ctypes.CDLL(str(path))
        mismatch = _mismatch(loaded)
    except (OSError, AttributeError) as error:
        mismatch = str(error)
    if mismatch is not None:
        message = (
            f"The compiled kernel of quadlin cannot be used: {mismatch}. numpy does its work, in "
            "several times the time; install quadlin again to compile it."
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None
    for name in FUNCTIONS_THAT_COUNT:
        getattr(loaded, name).restype = c_int64
    return loaded


def _mismatch(loaded: ctypes.CDLL) -> str | None:
    """Return how a library differs from its sources or from the structures of this package."""
    loaded.source_digest.restype = ctypes.c_char_p
    if SOURCES and loaded.source_digest().decode() != source_digest():
        return "it was compiled from other sources"
    for name, structure in _mirrors().items():
        size, expected = getattr(loaded, f"{name}_size")(), ctypes.sizeof(structure)
        if size != expected:
            return f"its structure {name!r} has {size} bytes in place of {expected}"
    return None


def _mirrors() -> dict[str, type[ctypes.Structure]]:
    """Return the structures that are written down here and in `_passes.c`, by their name there."""
    from quadlin.core import sweeps  # which imports this module

    return {
        "pass": Pass,
        "sparse": SparseStructure,
        "moments": MomentsStructure,
        "column_sweep": sweeps.SweepStructure,
    }


def source_digest() -> str:
    """Return a digest of the C sources, as `kernel/CMakeLists.txt` computes it."""
    digests = "".join(sha256(path.read_bytes()).hexdigest() for path in SOURCES)
    return sha256(digests.encode()).hexdigest()


@cache
def instruction_level() -> int:
    """Return how wide the vector instructions of this machine are: 0, 1 or 2."""
    loaded = library()
    return 0 if loaded is None else int(loaded.instruction_level())


def takes(dtype: Any) -> bool:
    """Tell whether there is a compiled kernel for numbers of this dtype."""
    in_use = os.environ.get("QUADLIN_KERNEL") != "numpy"
    return dtype in NUMBERS and in_use and library() is not None


_memory = threading.local()


def scratch(size: int) -> np.ndarray:
    """Return uninitialised bytes of this thread, valid until the next call."""
    memory: np.ndarray | None = getattr(_memory, "bytes", None)  # as large as the largest so far
    if memory is None or memory.size < size:
        memory = _memory.bytes = np.empty(size, np.uint8)
    return memory[:size]


def address(array: np.ndarray) -> int:
    """Return the address of an array, faster than `ctypes` does."""
    first: int = array.__array_interface__["data"][0]
    return first


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return zeros that start at a line of the cache."""
    size = prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + LINE, np.uint8)
    start = -address(memory) % LINE
    return np.asarray(memory[start : start + size].view(dtype).reshape(shape))


def point(structure: ctypes.Structure, arrays: Mapping[str, np.ndarray | None]) -> None:
    """Set the pointers of a structure to arrays, which the caller keeps alive."""
    for name, array in arrays.items():
        if array is not None:
            setattr(structure, name, address(array))


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


class SparseStructure(ctypes.Structure):
    """Sparse rows and what their products need: `sparse` in `_passes.c`, in the same order."""

    _fields_ = [
        *((name, c_void_p) for name in ("pointers", "indices")),
        ("index_bytes", c_int64),
        ("data", c_void_p),
        *((name, c_int64) for name in ("width", "square_width")),
        *((name, c_void_p) for name in ("weights", "square_weights", "constant")),
        *((name, c_int64) for name in ("back_width", "back_square_width")),
        *((name, c_void_p) for name in ("back", "back_squares", "totals", "scale", "shift")),
        ("levelled", c_int64),
        ("level", ctypes.c_double),
    ]


def entries_of(X: csr_array, dtype: np.dtype) -> tuple[SparseStructure, dict[str, np.ndarray]]:
    """Return a structure of sparse rows, and the arrays of theirs that the caller keeps alive."""
    rows = SparseStructure(index_bytes=X.indices.itemsize)
    arrays = {
        "pointers": np.ascontiguousarray(X.indptr, X.indices.dtype),
        "indices": np.ascontiguousarray(X.indices),
        "data": np.ascontiguousarray(X.data, dtype),
    }
    point(rows, arrays)
    return rows, arrays


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


def column_moments(X: Array, weight: Array | None) -> tuple[Any, ...] | None:
    """Return the fields of `Moments` of numpy rows, dense or canonical CSR; None without a kernel.

    The rows are read from memory once.
    """
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
    return table.total, *sums


def _run(X: Array, table: MomentsStructure) -> None:
    loaded, at = library(), ctypes.byref(table)
    assert loaded is not None
    if not issparse(X):
        table.x, (table.x_row, table.x_column) = address(X), X.strides
    memory = scratch(loaded.moments_memory_needed(at))
    table.memory = address(memory)
    if not issparse(X):
        loaded.run_moments(at, X.itemsize, instruction_level())
        return
    rows, _arrays = entries_of(X, X.dtype)
    loaded.run_sparse_moments(at, ctypes.byref(rows), X.dtype.itemsize, instruction_level())


def triton_kernels() -> Any:
    """Return the module of kernels for float32 rows on a GPU; None if they cannot be used.

    They need Triton and a GPU with tensor units. ``QUADLIN_KERNEL=torch`` in the environment leaves
    everything to plain torch.
    """
    return None if os.environ.get("QUADLIN_KERNEL") == "torch" else _triton()


@cache
def _triton() -> Any:
    try:
        import torch

        from quadlin.core import triton_passes
    except ImportError:  # plain torch will do
        return None
    has_units = torch.cuda.is_available() and torch.cuda.get_device_capability() >= TENSOR_UNITS
    return triton_passes if has_units or triton_passes.INTERPRETED else None


def gpu_kernels(X: Array) -> Any:
    """Return the module of kernels that take such rows; None if there is none."""
    kernels = triton_kernels() if type(X).__module__.startswith("torch") else None
    return kernels if kernels is not None and kernels.takes(X) else None
