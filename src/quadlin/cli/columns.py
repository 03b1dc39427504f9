"""Columns that are not what they seem: names and numbers of rows, ids and codes."""

import shlex
import warnings
from collections.abc import Iterable
from typing import NamedTuple

from quadlin.cli.column_scan import ColumnScan, columns_of_codes, row_number_columns
from quadlin.cli.options import TableOptions, join_names, names_in
from quadlin.cli.reading import input_columns
from quadlin.core.chunks import Chunk
from quadlin.data import Source
from quadlin.explain.diagnosis import listed


class Columns(NamedTuple):
    """Columns that are not what they seem."""

    useless: list[str]  # names or numbers of the rows, or nothing
    codes: list[str]  # whole numbers that look like ids or codes


def useless_columns(source: Source, scan: ColumnScan) -> list[str]:
    """Return columns that name or number the rows, or are empty."""
    useless = [name for name, count in scan.missing.items() if count == scan.rows]
    useless += scan.row_numbers
    encoder = source.encoder
    if encoder is not None:
        for name, levels in zip(encoder.input_names, encoder.levels, strict=True):
            if levels is not None and 2 * len(levels) > scan.complete > 0:
                useless.append(name)
    inputs = input_columns(source)
    return [name for name in inputs if name in useless] if set(inputs) - set(useless) else []


def codes_text(codes: list[str]) -> str:
    """Say that columns look like ids or codes, and what to do about it."""
    names = shlex.quote(join_names(codes))
    return (
        f"{listed(codes)}: whole numbers that look like ids or codes, whose order means nothing. "
        f"To take each value as a level: --categorical {names}; to leave them out: "
        f"--exclude {names}"
    )


def warn_of_columns(rows: Iterable[Chunk], source: Source, read: TableOptions) -> None:
    """Warn of columns that number the rows, unless --columns names them, and of ids and codes."""
    columns = input_columns(source)
    if not columns:
        return
    numbers = row_number_columns(rows, source) if read.columns is None else []
    if numbers and set(columns) - set(numbers):
        names = shlex.quote(join_names([*(names_in(read.exclude) or []), *numbers]))
        warnings.warn(
            f"{listed(numbers)}: whole numbers that increase from row to row, like row numbers. "
            f"To leave them out: --exclude {names}",
            stacklevel=2,
        )
    codes = [name for name in columns_of_codes(rows, source) if name not in numbers]
    if codes:
        warnings.warn(codes_text(codes), stacklevel=2)
