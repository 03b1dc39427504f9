"""Digests of values, by which rows are recognised as the same ones."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import numpy as np
from scipy.sparse import issparse

SAMPLE = 64  # rows that are hashed where an array is not in memory


def column_digest(column: Any) -> str:
    """Return a hash of all values of a column."""
    if column.dtype.is_numeric():
        values = column.to_numpy()
        if values.dtype.kind != "O":
            return digest_of(values)
    return sha256(repr(column.to_list()).encode()).hexdigest()[:32]


def digest_of(values: Any) -> str:
    """Return a hash of an array: of all of it where it is in memory, else of some rows."""
    parts: Iterable[Any]
    if issparse(values):
        parts = [np.asarray(values.shape), values.indptr, values.indices, values.data]
    elif isinstance(values, np.ndarray) and not isinstance(values, np.memmap):
        step = max(1, (1 << 24) // max(1, values[:1].nbytes))  # without a second copy
        parts = (values[i : i + step] for i in range(0, len(values), step))
    else:
        n = int(values.shape[0])
        some = np.unique(np.linspace(0, n - 1, min(SAMPLE, n)).astype(int))
        parts = (values[i : i + 1] for i in some.tolist())
    digest = sha256(f"{values.shape}{values.dtype}".encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()[:32]
