"""Columns of frames and arrays: numbers or categories, their values, and what raises an error."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import to_numpy
from quadlin.core.rows import Rows
from quadlin.data.names import SourceError

Values = nw.Series[Any] | np.ndarray  # text of a frame, or numbers and Python's objects
TEXT = (nw.String, nw.Categorical, nw.Enum)
TIMES = (nw.Date, nw.Datetime, nw.Duration, nw.Time)
OBJECTS = (nw.Object, nw.Unknown)
FITS_FLOAT32 = {"Float32", "Float16", "Boolean", "Bool", "Int8", "Int16", "Uint8", "Uint16"}
FEWEST_IDS = 20  # distinct values of a column that are no accident
# user_id, userId, zip, postal_code, SKU; not width, paid or kids.
NAMED_ID = re.compile(
    r"(?:^|[\W_])(?i:id|ids|code|codes|zip|zipcode|postcode|postalcode|sku|isbn|fips)$"
    r"|[a-z](?:Id|ID|Code|Zip)$"
    r"|^(?i:user|customer|item|product|film|movie)$",
)


def number_dtype(kinds: Iterable[Any]) -> np.dtype:
    """Return float32 if one column of numbers has this dtype, and all others fit in it."""
    dtypes = {str(kind).capitalize() for kind in kinds}  # numpy's float32 is Float32 elsewhere
    single = "Float32" in dtypes and dtypes <= FITS_FLOAT32
    return np.dtype(np.float32 if single else np.float64)


def check_frame(rows: Any, may_be_dates: Callable[[Any], bool] | None = None) -> None:
    """Raise an error for a frame that is lazy, has two columns with the same name, or one of dates.

    So do dates in arrays: as numbers they would count nanoseconds or another unit.
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
        "to a model. Turn them into numbers, such as the days since a start, the month or the "
        "weekday."
    )


def _column_of_dates(name: Any, dtype: Any) -> SourceError:
    reason = dates_in(f"Column {name!r}", str(dtype)).removesuffix(".")
    message = (
        f"{reason}, or drop the column. If each date is a category, give "
        f"categorical_features={[str(name)]!r}."
    )
    return SourceError(message, str(name))


def is_text(column: Values) -> bool:
    """Return whether a column is text rather than numbers; other types raise an error."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind == "O" and any(isinstance(value, str) for value in column)
    dtype = column.dtype
    if dtype.is_numeric() or dtype in (nw.Boolean, *TEXT):
        return dtype in TEXT
    if dtype in OBJECTS:  # it may still hold numbers only
        values = column.drop_nulls().to_numpy()
        types = set(map(type, values)) if values.dtype.kind == "O" else {values.dtype.type}
        if all(issubclass(t, Real | np.bool_ | Decimal) for t in types):
            return False
    if dtype in TIMES:
        raise _column_of_dates(column.name, dtype)
    raise SourceError(
        f"Column {column.name!r} has dtype {dtype} and holds neither only numbers nor only text. "
        "Drop it, or turn it into numbers (dates into days since a start, lists of labels into 0/1 "
        "columns) or into strings.",
        str(column.name),
    )


def is_whole(column: Values) -> bool:
    """Return whether a column has a dtype of whole numbers."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind in "iu"
    return bool(column.dtype.is_integer())


def in_unit(column: Values) -> bool:
    """Return whether the whole numbers of a column are all 0 or 1."""
    low, high = (None, None) if not len(column) else (column.min(), column.max())
    return low is None or high is None or bool(low >= 0 and high <= 1)


def columns_in(rows: Any) -> dict[Any, Values] | None:
    """Return the columns of a frame, or x0, x1, … of an array, by name; None for other rows."""
    table = nw.from_native(rows, eager_only=True, pass_through=True)
    if isinstance(table, nw.DataFrame):
        return {column.name: column for column in table.iter_columns()}
    becomes_array = hasattr(rows, "__array__") and not hasattr(rows, "shape")
    if not (isinstance(rows, np.ndarray | list) or becomes_array) or issparse(rows):
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


def numbers_of(column: Any) -> np.ndarray:
    """Return a column of a frame, an array or an Arrow table as numbers, NaN where missing."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "O" and (absent := missing_in(column)).any():
            column = np.where(absent, np.nan, column)
        return np.asarray(column, np.float64 if column.dtype.kind == "O" else None)
    if hasattr(column, "num_chunks"):  # Arrow itself is three times as fast as a frame library
        kind = str(column.type)
        whole = kind.strip("u").startswith("int") and not column.null_count
        if not whole and kind not in ("float", "double"):
            column = column.cast("float64")
        column = column.chunk(0) if column.num_chunks == 1 else column  # without a copy
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if column.dtype not in (nw.Float32, nw.Float64) or column.null_count():
        column = column.cast(nw.Float64())
    return np.asarray(column.to_numpy())


def are_ids(name: str, values: np.ndarray) -> bool:
    """Return whether many different whole numbers are named like ids, or number the rows.

    Examples
    --------
    >>> are_ids("user", np.arange(90) % 30), are_ids("area", np.arange(90) % 30)
    (True, False)
    >>> are_ids("area", np.arange(1, 91))
    True
    """
    values = values[np.isfinite(values)]
    if (values != np.floor(values)).any() or len(np.unique(values)) < FEWEST_IDS:
        return False
    return bool(NAMED_ID.search(name)) or bool(np.all(np.diff(values) > 0))


def column_of(X: Any, j: int) -> np.ndarray:
    """Return a column of dense or sparse rows."""
    return np.asarray(X[:, [j]].toarray()[:, 0] if issparse(X) else to_numpy(X[:, j]))


def find_ids(rows: Rows, numbers: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns of numbers that look like ids in the first chunk of the rows."""
    X: Any = next(iter(rows.walk())).X
    place = {name: j for j, name in enumerate(names)}
    columns = ((str(name), column_of(X, place[str(name)])) for name in numbers)
    return [name for name, values in columns if are_ids(name, values.astype(np.float64))]
