"""Cells of CSV text: spaces around them, missing values, and thousands separators."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from quadlin.data.columns.columns import as_codes
from quadlin.data.columns.errors import SourceError
from quadlin.data.sources.arrow_batches import arrow

SPACES = " \u00a0\u202f\u2009"  # a space, and non-breaking and thin spaces
SEPARATORS = (",", ".", " ", "'", "’", "_")


def checked_signs(decimal: Any, thousands: Any) -> tuple[Any, Any]:
    """Return the decimal point and the thousands separator, which must differ."""
    if thousands is None:
        return decimal, None
    if thousands not in SEPARATORS:
        raise SourceError(
            f"thousands={thousands!r} must be a comma, a point, a space, an "
            "apostrophe or an underscore."
        )
    decimal = decimal or {".": ",", ",": "."}.get(thousands)
    if decimal == thousands:
        raise SourceError(
            f"decimal={decimal!r} and thousands={thousands!r} cannot be the same. "
            "Give the decimal point with `decimal`."
        )
    return decimal, thousands


def grouped_number(thousands: str, decimal: str | None) -> str:
    """Return a pattern of numbers that may have a thousands separator; "" means none.

    Examples
    --------
    >>> form = re.compile(grouped_number(",", "."))
    >>> [bool(form.search(text)) for text in ("1,234.5", "-12", "98,475", "1,23", "0.5e3", ",5")]
    [True, True, True, False, True, False]
    """
    signs = SPACES if thousands == " " else re.escape(thousands)
    point = re.escape(decimal or ".")
    whole = rf"\d{{1,3}}([{signs}]\d{{3}})+|\d+" if thousands else r"\d+"
    return rf"^[-+]?(({whole})({point}\d*)?|{point}\d+)([eE][-+]?\d+)?$"


def converted(batches: Iterable[Any], dialect: Any, what: str) -> Iterator[Any]:
    """Yield batches without spaces around texts, and with numbers instead of grouped digits."""
    row = 0
    for batch in batches:
        yield _ungrouped(trimmed(batch, dialect.missing), dialect, what, row)
        row += len(batch)


def trimmed(batch: Any, missing: Sequence[str]) -> Any:
    """Return a batch without spaces around its texts; some texts are then missing values."""
    pa = arrow()
    columns = [
        _trimmed(column, missing) if pa.types.is_string(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _trimmed(column: Any, missing: Sequence[str]) -> Any:
    from pyarrow import compute

    pa = arrow()
    cells = compute.utf8_trim_whitespace(column)
    changed = compute.not_equal(cells, column)
    if not compute.any(changed).as_py():
        return cells
    absent = compute.and_(changed, compute.is_in(cells, pa.array(missing, cells.type)))
    return compute.if_else(absent, pa.scalar(None, cells.type), cells)


def _ungrouped(batch: Any, dialect: Any, what: str, row: int) -> Any:
    """Return a batch in which columns with thousands separators are numbers."""
    if not set(dialect.grouped) & set(batch.schema.names):
        return batch
    pa, columns, fields = arrow(), [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name in dialect.grouped and pa.types.is_string(column.type):
            column = _numbers(column, field.name, dialect, what, row)
        columns.append(column)
        fields.append(pa.field(field.name, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _numbers(column: Any, name: str, dialect: Any, what: str, row: int) -> Any:
    from pyarrow import compute

    form = grouped_number(dialect.thousands, dialect.decimal)
    wrong = compute.invert(compute.match_substring_regex(column, form))
    place = compute.index(wrong, True).as_py()
    if place >= 0:
        raise SourceError(
            f"Column {name!r} of {what} looks like a number in its first rows, but in "
            f"row {row + place} (counted from 0) it holds "
            f"{column[place].as_py()[:80]!r}. Correct it, or {as_codes(name)} if "
            "these are codes."
        )
    signs = SPACES if dialect.thousands == " " else dialect.thousands
    for sign in signs:
        column = compute.replace_substring(column, sign, "")
    if dialect.decimal == ",":
        column = compute.replace_substring(column, ",", ".")
    return compute.cast(column, arrow().float64())
