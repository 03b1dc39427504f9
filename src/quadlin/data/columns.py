"""Columns of a frame: whether they are numbers or text, and rows that cannot be used."""

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from numbers import Real
from typing import Any

import narwhals as nw
import numpy as np

TEXT = (nw.String, nw.Categorical, nw.Enum)
FITS_FLOAT32 = {"Float32", "Float16", "Boolean", "Int8", "Int16", "UInt8", "UInt16"}


def check_frame(rows: Any) -> None:
    """Refuse a frame that is lazy, or has two columns with the same name."""
    try:
        table = nw.from_native(rows, pass_through=True)
    except nw.exceptions.DuplicateError:
        names = Counter(getattr(rows, "column_names", rows.columns))
        twice = [name for name, times in names.items() if times > 1]
        raise ValueError(f"Two columns are called {twice[0]!r}. Rename or drop one.") from None
    if isinstance(table, nw.LazyFrame):
        raise TypeError(
            f"A {type(rows).__name__} is a query, not a table. Collect it, or read it in pieces: "
            "quadlin.open_source(frame, target=...)."
        )


def number_dtype(kinds: Iterable[Any]) -> np.dtype:
    """Return float32 if it can hold columns of all these dtypes and one of them is float32."""
    words = {str(kind) for kind in kinds}
    single = "Float32" in words and words <= FITS_FLOAT32
    return np.dtype(np.float32 if single else np.float64)


def is_text(column: nw.Series[Any]) -> bool:
    """Return whether a column is text rather than numbers, and refuse one that is neither."""
    dtype = column.dtype
    if dtype.is_numeric() or dtype in (nw.Boolean, *TEXT):
        return dtype in TEXT
    if dtype in (nw.Object, nw.Unknown):  # it may still hold numbers only
        values = column.drop_nulls().to_numpy()
        types = set(map(type, values)) if values.dtype.kind == "O" else {values.dtype.type}
        if all(issubclass(t, Real | np.bool_ | Decimal) for t in types):
            return False
    raise ValueError(
        f"Column {column.name!r} has dtype {dtype} and holds neither only numbers nor only text. "
        "Drop it, or turn it into numbers (a date into days since a start) or into strings."
    )


def refuse_rows(column: nw.Series[Any], bad: np.ndarray, what: str) -> None:
    """Refuse a column in which some rows are bad, by the first of them."""
    if bad.any():
        raise ValueError(
            f"Column {column.name!r} contains {what}, first in row {int(bad.argmax())} (counted "
            "from 0). Drop such rows or fill them: numbers with sklearn.impute.SimpleImputer, text "
            "with a separate level, such as 'missing'."
        )
