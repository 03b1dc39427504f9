"""The shared library of the compiled kernel: where it is, and whether it can be used.

`_passes.c` is compiled when the package is built, where there is a compiler.
``QUADLIN_KERNEL=numpy`` in the environment switches the compiled kernel off.
"""

import ctypes
import os
from collections.abc import Mapping
from ctypes import c_int64
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

SOURCES = sorted(Path(__file__).parent.glob("_passes*.[ch]"))
NUMBERS = (np.dtype(np.float32), np.dtype(np.float64))


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernel; None without one, or where it was made of another source."""
    try:
        loaded = ctypes.CDLL(str(Path(__file__).with_name("_passes.so")))
        loaded.source_digest.restype = ctypes.c_char_p
        if loaded.source_digest().decode() != source_digest():
            return None
        loaded.memory_needed.restype = loaded.sparse_memory_needed.restype = c_int64
        loaded.moments_memory_needed.restype = c_int64
        loaded.run_pass.restype = loaded.run_sparse_pass.restype = None
        loaded.run_moments.restype = loaded.run_sparse_moments.restype = None
    except (OSError, AttributeError):
        return None
    return loaded


def source_digest() -> str:
    """Return what tells one version of the C sources from another."""
    return blake2b(b"".join(path.read_bytes() for path in SOURCES), digest_size=16).hexdigest()


@cache
def instruction_level() -> int:
    """Return how wide the vector instructions of this machine are: 0, 1 or 2."""
    loaded = library()
    return 0 if loaded is None else int(loaded.instruction_level())


def takes(dtype: Any) -> bool:
    """Tell whether there is a compiled kernel that takes such numbers."""
    in_use = os.environ.get("QUADLIN_KERNEL") != "numpy"
    return dtype in NUMBERS and in_use and library() is not None


def address(array: np.ndarray) -> int:
    """Return where an array begins, faster than `ctypes` says."""
    begins: int = array.__array_interface__["data"][0]
    return begins


def point(structure: ctypes.Structure, arrays: Mapping[str, np.ndarray | None]) -> None:
    """Set the pointers of a structure to arrays, which the caller keeps alive."""
    for name, array in arrays.items():
        if array is not None:
            setattr(structure, name, address(array))
