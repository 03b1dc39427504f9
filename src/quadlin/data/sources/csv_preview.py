"""What the first block of CSV text shows: types, a missing header, missing values, odd numbers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quadlin.core.messages import warn
from quadlin.data.columns.errors import SourceError
from quadlin.data.columns.level_codes import PLAIN
from quadlin.data.columns.names import shortened
from quadlin.data.columns.numbers_as_text import marks_in
from quadlin.data.sources.arrow_batches import arrow
from quadlin.data.sources.csv_cells import grouped_number
from quadlin.data.sources.csv_text import ENCODINGS, Dialect
from quadlin.data.sources.odd_numbers import odd_numbers

SHOWN_ROWS = 1000  # that show whether a column holds odd numbers


@dataclass(frozen=True)
class Look:
    """What the first block shows about CSV text."""

    schema: Any
    dialect: Dialect  # with the markers of missing values that were noticed
    commas: dict[str, str]  # columns of numbers such as "1,5", each with advice


def look_at_csv(
    opened: Callable[[Dialect], Any], what: str, dialect: Dialect, text: Sequence[Any]
) -> Look:
    """Preview CSV text by its first block.

    Parameters
    ----------
    opened : callable
        Opens the text again, as a stream of batches in a dialect.
    what : str
        The name of the text in messages.
    dialect : Dialect
        The dialect that the user declared.
    text : sequence of str
        Columns that are text even if they look like numbers.

    Returns
    -------
    Look
    """
    schema, first = _first_block(opened, what, dialect)
    if dialect.header is None:
        _refuse_missing_header(schema, first, what)
    given = dialect
    if dialect.na is None:
        markers = _markers(first, text, dialect)
        dialect = replace(dialect, na=tuple(markers))
        if markers:
            _warn_of_markers(markers, what)
    dialect = replace(dialect, padded=_padded(first, dialect))
    if dialect.null_values != given.null_values:
        schema, first = _first_block(opened, what, dialect)
    pa = arrow()
    dialect = replace(dialect, grouped=_grouped(schema, first, text, dialect))
    fields = [
        # Arrow reads text that is not UTF-8 as bytes; as text it is refused if it is used.
        pa.field(field.name, pa.string())
        if field.name in text or pa.types.is_binary(field.type)
        else (pa.field(field.name, pa.float64()) if field.name in dialect.grouped else field)
        for field in schema
    ]
    odd = dialect.decimal != "." or dialect.thousands is not None
    commas = _odd_columns(first, text, dialect) if odd else {}
    return Look(pa.schema(fields), dialect, commas)


def _first_block(opened: Callable[[Dialect], Any], what: str, dialect: Dialect) -> tuple[Any, Any]:
    """Return the schema and the first batch, None if it cannot be read."""
    with opened(dialect) as batches:
        try:
            names = batches.schema.names  # they are first decoded here
        except UnicodeDecodeError:
            raise SourceError(f"The header of {what} is not UTF-8. {ENCODINGS}") from None
        schema = batches.schema
        if len(set(names)) < len(names):
            return schema, None
        try:
            return schema, batches.read_next_batch()
        except StopIteration:
            return schema, None


def _refuse_missing_header(schema: Any, first: Any, what: str) -> None:
    """Refuse a first row that is data: each cell is a number, or a text that recurs below it."""
    names = [name.strip() for name in schema.names]
    if not all(names) or _count_up(names):
        return
    numbers = [bool(PLAIN.fullmatch(name)) for name in names]
    if not any(numbers) and (len(names) < 2 or len(set(names)) < len(names)):
        return
    for name, column, number in zip(names, schema.names, numbers, strict=True):
        if not number and (first is None or name not in _distinct(first.column(column))):
            return
    raise SourceError(
        f"The first row of {what} looks like data, not like the names of columns: "
        f"{shortened(names)}. Give header=False if there is no header, so the "
        "columns will be called x0, x1, …, or header=True if these are names."
    )


def _count_up(names: list[str]) -> bool:
    """Return whether names are 0, 1, … as in an array, or three or more consecutive numbers.

    Examples
    --------
    >>> _count_up(["0", "1"]), _count_up(["2023", "2024", "2025"]), _count_up(["1", "2"])
    (True, True, False)
    """
    if not all(name.isdecimal() for name in names):
        return False
    numbers = [int(name) for name in names]
    rising = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return rising and (numbers[0] == 0 or len(numbers) > 2)


def _padded(first: Any, dialect: Dialect) -> tuple[str, ...]:
    """Return the cells that mark missing values, including the spaces around them."""
    pa, padded = arrow(), dict[str, None]()
    for column in () if first is None else first.columns:
        if pa.types.is_string(column.type):
            cells = column.unique().drop_null().to_pylist()
            padded.update(dict.fromkeys(cell for cell in cells if cell.strip() in dialect.missing))
    return tuple(padded)


def _markers(first: Any, text: Sequence[Any], dialect: Dialect) -> dict[str, str]:
    """Return the marks of missing values, each with a column that has it."""
    pa, missing = arrow(), set(dialect.missing)
    number = re.compile(grouped_number(dialect.thousands or "", dialect.decimal))
    markers: dict[str, str] = {}
    for field, column in zip(first.schema, first.columns, strict=True) if first is not None else ():
        if field.name in text or not pa.types.is_string(field.type):
            continue
        marks = marks_in(_distinct(column) - missing, number)
        markers.update(dict.fromkeys(sorted(marks), field.name))
    return markers


def _warn_of_markers(markers: dict[str, str], what: str) -> None:
    marker, name = next(iter(markers.items()))
    warn(
        (
            "{what} uses {markers} for missing values, such as {marker!r} in column "
            "{name!r}. Give na={na!r} to declare which values are missing, or {none} "
            "if none of them are."
        ).format(
            what=what[0].upper() + what[1:],
            markers=shortened(markers),
            marker=marker,
            name=name,
            na=list(markers),
            none=f"na={[]!r}",
        )
    )


def _distinct(column: Any) -> set[str]:
    from pyarrow import compute

    pa = arrow()
    if not pa.types.is_string(column.type):
        return set()
    return set(compute.utf8_trim_whitespace(column.unique().drop_null()).to_pylist())


def _grouped(schema: Any, first: Any, text: Sequence[Any], dialect: Dialect) -> tuple[str, ...]:
    """Return the columns of numbers, if numbers may have thousands separators."""
    if dialect.thousands is None or first is None:
        return ()
    from pyarrow import compute

    types, names = arrow().types, []
    form = grouped_number(dialect.thousands, dialect.decimal)
    for field, column in zip(schema, first.columns, strict=True):
        number = types.is_integer(field.type) or types.is_floating(field.type)
        if types.is_string(field.type):
            cells = compute.utf8_trim_whitespace(column.drop_null())
            number = (
                len(cells) > 0 and compute.all(compute.match_substring_regex(cells, form)).as_py()
            )
        if number and field.name not in text:
            names.append(field.name)
    return tuple(names)


def _odd_columns(first: Any, text: Sequence[Any], dialect: Dialect) -> dict[str, str]:
    """Return text columns that are numbers with commas or points, each with advice."""
    from pyarrow import compute

    pa = arrow()
    columns: dict[str, str] = {}
    if first is None:
        return columns
    points = any(pa.types.is_floating(field.type) for field in first.schema)
    for field, column in zip(first.schema, first.slice(0, SHOWN_ROWS).columns, strict=True):
        if field.name in (*text, *dialect.grouped) or not pa.types.is_string(field.type):
            continue
        cells = compute.utf8_trim_whitespace(column.drop_null().unique()).to_pylist()
        if (message := odd_numbers(field.name, cells, dialect, points)) is not None:
            columns[field.name] = message
    return columns
