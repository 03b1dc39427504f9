"""Arrays some of whose columns are categories: text among Python's objects, or declared ids."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse


@dataclass(frozen=True)
class ArrayTable:
    """The columns of an array, called x0, x1, …"""

    values: np.ndarray  # (n, d)
    names: list[str]
    text: list[str]  # the columns that are categories

    def __len__(self) -> int:
        return len(self.values)

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype of the encoded rows."""
        return np.dtype(np.float32 if self.values.dtype == np.float32 else np.float64)

    def column(self, name: str) -> np.ndarray:
        """Return the values of a column."""
        return np.asarray(self.values[:, self.names.index(name)])

    def holds_text(self, name: str) -> bool:
        """Tell whether a column has text among its values."""
        return self.values.dtype.kind == "O" and _holds_text(self.column(name))


def array_table(rows: Any, declared: Collection[Any]) -> ArrayTable | None:
    """Return an array as a table; None where none of its columns is a category, or it is none."""
    if not isinstance(rows, np.ndarray | list) or issparse(rows):
        return None
    try:
        values = np.asarray(rows)
        if values.dtype.kind == "U" and isinstance(rows, list):  # numbers and text
            values = np.asarray(rows, dtype=object)
    except ValueError:  # rows of different lengths, which scikit-learn refuses in its own words
        return None
    if values.ndim != 2 or values.dtype.kind not in "fiubO":
        return None
    if values.dtype.kind != "O" and not declared:
        return None
    names, declared = [f"x{j}" for j in range(values.shape[1])], set(declared)
    text = [
        name
        for j, name in enumerate(names)
        if name in declared or (values.dtype.kind == "O" and _holds_text(values[:, j]))
    ]
    return ArrayTable(values, names, text) if text else None


def _holds_text(values: np.ndarray) -> bool:
    return any(isinstance(value, str) for value in values)
