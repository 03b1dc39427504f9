"""Values of categorical columns as levels, and the codes of those levels."""

import re
from collections.abc import Iterable
from datetime import datetime
from numbers import Integral
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.data.columns.columns import Values, missing_in

Levels = dict[str, int]  # the position of each level in its field
MISSING_LEVEL = "missing"  # the level of missing text, where that is allowed
UNSEEN, ABSENT = -1, -2  # in place of the number of a level: a new level, and a missing value
# Marks a missing value in the first column of a field, to distinguish it from a level that was
# never seen, whose columns are all zero. Predictions are the same as with a zero.
MISSING_MARK = 2.0**-126
NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*|[-+]?(nan|inf(inity)?)", re.I)


class Unseen(dict[str, int]):
    """Number of rows with an unknown level, by column; `missing` counts rows without a value."""

    def __init__(self) -> None:
        super().__init__()
        self.missing: dict[str, int] = {}
        self.known: set[str] = set()  # columns in which some level was known

    def __bool__(self) -> bool:
        return len(self) > 0 or len(self.missing) > 0

    @property
    def all_new(self) -> list[str]:
        """Return the columns of several unknown levels, none of whose rows has a known one."""
        return sorted(name for name, count in self.items() if count > 1 and name not in self.known)

    def count(self, name: str, codes: np.ndarray) -> None:
        """Add the rows of a column."""
        for counts, mark in ((self, UNSEEN), (self.missing, ABSENT)):
            if more := int(np.sum(codes == mark)):
                counts[name] = counts.get(name, 0) + more
        if np.any(codes >= 0):
            self.known.add(name)

    def add(self, other: "Unseen") -> None:
        """Add the counts of other rows."""
        for counts, more in ((self, other), (self.missing, other.missing)):
            for name, count in more.items():
                counts[name] = counts.get(name, 0) + count
        self.known |= other.known

    def clear(self) -> None:
        """Reset all counts to zero."""
        super().clear()
        self.missing.clear()
        self.known.clear()


def label_of(value: Any) -> str:
    """Return the name of a value as a level: 3 and 3.0 are the same level.

    Examples
    --------
    >>> label_of("Oslo"), label_of(3), label_of(3.0), label_of(2.5), label_of(True)
    ('Oslo', '3', '3', '2.5', 'True')
    >>> label_of(datetime(2024, 6, 15)), label_of(datetime(2024, 6, 15, 8, 30))
    ('2024-06-15', '2024-06-15 08:30:00')
    """
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    if isinstance(value, datetime) and value == datetime(value.year, value.month, value.day):
        return str(value.date())  # written as a date; a value with a time zone never gets here
    return str(value)


def kind_of(values: Values) -> str | None:
    """Return the dtype of levels that are numbers or booleans; None for text, dates and objects.

    Examples
    --------
    >>> kind_of(np.array([3, 1])), kind_of(np.array([3.0])), kind_of(np.array(["a"], dtype=object))
    ('int64', 'float64', None)
    """
    if isinstance(values, np.ndarray):
        return values.dtype.name if values.dtype.kind in "iufb" else None
    if values.dtype == nw.Categorical:  # the categories of pandas may be numbers
        categories = np.asarray(values.unique().to_list())
        return categories.dtype.name if categories.dtype.kind in "iufb" else None
    return None


def common_kind(kinds: set[str | None]) -> str | None:
    """Return the dtype of the levels of several parts of a column."""
    numbers = [np.dtype(kind) for kind in kinds if kind is not None]
    return np.result_type(*numbers).name if numbers and None not in kinds else None


def typed_levels(labels: Iterable[str], kind: str | None) -> Any:
    """Return levels as the values that they had in the table, so that tables can be joined by them.

    Examples
    --------
    >>> typed_levels(["3", "10"], "int64"), typed_levels(["a"], None)
    (array([ 3, 10]), ['a'])
    """
    labels = list(labels)
    if kind is None:
        return labels
    if np.dtype(kind).kind == "f":
        return np.array([np.nan if label == MISSING_LEVEL else label for label in labels], kind)
    if MISSING_LEVEL in labels:
        return labels
    if np.dtype(kind).kind == "b":
        return np.array([label == "True" for label in labels])
    return np.array([int(label) for label in labels], kind)


def filtered(values: Values, keep: np.ndarray) -> Any:
    """Return the values to keep."""
    if isinstance(values, np.ndarray):
        return values[keep]
    return values.filter(keep.tolist()) if len(keep) else values  # narwhals refuses an empty list


def level_codes(values: Values, levels: Levels) -> np.ndarray:
    """Return the number of each row's level, `UNSEEN` if it is not among the levels.

    A missing value is the level "missing", or `ABSENT` where there is no such level.
    """
    absent = missing_in(values)
    if absent.any():
        codes = np.full(len(absent), levels.get(MISSING_LEVEL, ABSENT), dtype=np.int64)
        codes[~absent] = level_codes(filtered(values, ~absent), levels)
        return codes
    if not len(absent):
        return np.empty(0, dtype=np.int64)
    if isinstance(values, np.ndarray):
        if values.dtype.kind == "O":
            return np.array([levels.get(label_of(value), UNSEEN) for value in values])
        distinct, place = np.unique(values, return_inverse=True)
        return np.array([levels.get(label_of(value), UNSEEN) for value in distinct.tolist()])[place]
    column = values.cast(nw.String())
    labels = column.unique().to_list()
    numbers = [levels.get(label, UNSEEN) for label in labels]
    # A join by the library of the frame: 0.1 to 0.8 s for 10⁶ rows and 10⁵ levels.
    return np.asarray(column.replace_strict(labels, numbers, return_dtype=nw.Int64()).to_numpy())
