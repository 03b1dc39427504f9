"""Columns of frames and arrays: whether they hold numbers or text, and rows that are refused."""

from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from numbers import Real
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.data.columns.errors import ColumnError

Values = nw.Series[Any] | np.ndarray  # text of a frame, or numbers and Python's objects
TEXT = (nw.String, nw.Categorical, nw.Enum)
TIMES = (nw.Date, nw.Datetime, nw.Duration, nw.Time)
DATES_AS_NUMBERS = (
    "Turn them into numbers, such as the days since a start, the month or the weekday"
)
FITS_FLOAT32 = {"Float32", "Float16", "Boolean", "Bool", "Int8", "Int16", "Uint8", "Uint16"}


def check_frame(rows: Any, may_be_dates: Callable[[Any], bool] | None = None) -> None:
    """Refuse a frame that is lazy, has two columns with the same name, or one of dates.

    Dates in arrays are refused, too: as numbers they would count nanoseconds or another unit.
    `may_be_dates` takes the name of a column, and returns True if the column is not a feature or
    if its values are levels.
    """
    if isinstance(rows, np.ndarray):
        if rows.dtype.kind in "mM":
            raise ValueError(dates_in("X", str(rows.dtype)))
        return
    try:
        table = nw.from_native(rows, pass_through=True)
    except nw.exceptions.DuplicateError:
        names = Counter(getattr(rows, "column_names", rows.columns))
        repeated = [name for name, count in names.items() if count > 1]
        raise ValueError(f"Two columns are called {repeated[0]!r}. Rename or drop one.") from None
    if isinstance(table, nw.LazyFrame):
        raise TypeError(
            f"A {type(rows).__name__} is a query, not a table. Collect it, or read it in pieces: "
            "quadlin.open_source(frame, target=...)."
        )
    if isinstance(table, nw.DataFrame):
        for name, dtype in table.schema.items():
            if dtype in TIMES and not (may_be_dates and may_be_dates(name)):
                raise _column_of_dates(name, dtype)


def dates_in(what: str, dtype: str) -> str:
    """Return a message that values are dates, and how to turn them into numbers."""
    kind = dtype.partition("(")[0]
    return (
        f"{what} holds dates or times ({kind}). The numbers that they are stored as mean nothing "
        f"to a model. {DATES_AS_NUMBERS}."
    )


def identifier_advice(name: Any, levels: int, rows: int, once: bool) -> str:
    """Return a message that a text column has too many levels, perhaps a new one in every row."""
    little = "nothing from levels that occur once" if once else "little from levels so rare"
    return (
        f"Column {str(name)!r} has {levels} levels in {rows} rows and looks like an identifier: "
        f"the model learns {little}. Drop the column, or merge its levels."
    )


def _column_of_dates(name: Any, dtype: Any) -> ColumnError:
    reason = dates_in(f"Column {name!r}", str(dtype)).removesuffix(".")
    message = (
        f"{reason}, or drop the column. If each date is a category, give "
        f"categorical_features={[str(name)]!r}."
    )
    return ColumnError(str(name), message)


def number_dtype(kinds: Iterable[Any]) -> np.dtype:
    """Return float32 if it can hold columns of all these dtypes and one of them is float32."""
    dtypes = {str(kind).capitalize() for kind in kinds}  # numpy's float32 is Float32 elsewhere
    single = "Float32" in dtypes and dtypes <= FITS_FLOAT32
    return np.dtype(np.float32 if single else np.float64)


def is_text(column: Values) -> bool:
    """Return whether a column is text rather than numbers, and refuse one that is neither."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind == "O" and any(isinstance(value, str) for value in column)
    dtype = column.dtype
    if dtype.is_numeric() or dtype in (nw.Boolean, *TEXT):
        return dtype in TEXT
    if dtype in (nw.Object, nw.Unknown):  # it may still hold numbers only
        values = column.drop_nulls().to_numpy()
        types = set(map(type, values)) if values.dtype.kind == "O" else {values.dtype.type}
        if all(issubclass(t, Real | np.bool_ | Decimal) for t in types):
            return False
    if dtype in TIMES:
        raise _column_of_dates(column.name, dtype)
    raise ColumnError(
        str(column.name),
        f"Column {column.name!r} has dtype {dtype} and holds neither only numbers nor only text. "
        "Drop it, or turn it into numbers (dates into days since a start, lists of labels into 0/1 "
        "columns) or into strings.",
    )


def is_category(column: Values, has_levels: bool) -> bool:
    """Return whether a column is text, or holds dates or objects that were declared categorical."""
    others = (*TIMES, nw.Object, nw.Unknown, nw.List)
    in_array = isinstance(column, np.ndarray)
    return (has_levels and (in_array or column.dtype in others)) or is_text(column)


def values_of(column: Values) -> Values:
    """Return the values of a column: text as it is, dates as objects, others as a numpy array."""
    if isinstance(column, np.ndarray):
        return column
    if column.dtype in (*TIMES, nw.List):  # numpy would make integers or ragged arrays of them
        values = np.empty(len(column), dtype=object)
        for i, value in enumerate(column.to_list()):
            values[i] = value
        return values
    return column if column.dtype in TEXT else np.asarray(column.to_numpy())


def missing_in(values: Values) -> np.ndarray:
    """Return which values are missing: null, None or NaN."""
    if not isinstance(values, np.ndarray):
        return np.asarray(values.is_null().to_numpy())
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind != "O":
        return np.zeros(len(values), dtype=bool)
    # NaN is the only value that differs from itself; a comparison with pandas' NA gives NA.
    absent = [v is None or type(v).__name__ in ("NAType", "NaTType") or v != v for v in values]
    return np.array(absent, dtype=bool)


def refuse_rows(name: Any, bad: np.ndarray, what: str) -> None:
    """Refuse a column in which some rows are bad, and name the first of them."""
    if bad.any():
        raise ValueError(
            f"Column {name!r} contains {what}, first in row {int(bad.argmax())} (counted from 0). "
            "Correct or clip it, or drop such rows."
        )


def refuse_missing_rows(name: Any, absent: np.ndarray) -> None:
    """Refuse a column in which some values are missing, and name the first of them."""
    if absent.any():
        raise ValueError(
            f"Column {str(name)!r} contains NaN (a missing value), first in row "
            f'{int(absent.argmax())} (counted from 0). Use missing="mean", which '
            "replaces missing numbers by their mean and missing text by the level "
            "'missing', or drop such rows."
        )


def numbers_of(values: Values, absent: np.ndarray, name: str, dtype: np.dtype) -> np.ndarray:
    """Return a column as numbers, NaN where they are missing."""
    values = np.where(absent, np.nan, values) if absent.any() else np.asarray(values)
    with np.errstate(over="ignore"):
        numbers = values.astype(dtype)
    refuse_rows(name, np.isinf(numbers), f"infinity or a value too large for {dtype}")
    return numbers


def is_frame(rows: Any) -> bool:
    """Return whether rows are a frame in memory."""
    return isinstance(nw.from_native(rows, eager_only=True, pass_through=True), nw.DataFrame)


def columns_in(rows: Any) -> dict[Any, Values] | None:
    """Return the columns of a frame, or x0, x1, … of an array, by name; None for other rows."""
    table = nw.from_native(rows, eager_only=True, pass_through=True)
    if isinstance(table, nw.DataFrame):
        return {column.name: column for column in table.iter_columns()}
    if not isinstance(rows, np.ndarray | list) or issparse(rows):
        return None
    try:
        values = np.asarray(rows)
        if values.dtype.kind == "U" and isinstance(rows, list):  # numbers and text
            values = np.asarray(rows, dtype=object)
    except ValueError:  # rows of different lengths: scikit-learn explains what is wrong
        return None
    if values.ndim != 2 or values.dtype.kind not in "fiubO":
        return None
    return {f"x{j}": values[:, j] for j in range(values.shape[1])}
