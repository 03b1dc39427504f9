"""Columns that are not what they seem: names and numbers of rows, ids and codes, missing values."""

import shlex
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.cli.first_rows import FirstRows, are_dates, number_columns
from quadlin.cli.options import TableOptions, join_names, lists_in, names_in
from quadlin.cli.reading import CSV, input_columns
from quadlin.core.chunks import Chunk
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.data.columns.column_roles import (
    ColumnRoles,
    are_times,
    column_roles,
    field_names,
    ratings_advice,
)
from quadlin.data.columns.label_sets import SEPARATOR, LabelSets, list_separator
from quadlin.data.columns.numbers_as_text import are_numbers, strays
from quadlin.data.sources.feeds import Piece
from quadlin.explain.diagnosis import listed

MIN_ROWS = 20  # after which numbers that increase in every row are no accident


class SuspectColumns(NamedTuple):
    """Columns that are not what they seem."""

    useless: list[str]  # names or numbers of the rows, or nothing
    roles: ColumnRoles = ColumnRoles(())

    @property
    def codes(self) -> list[str]:
        """Return the columns of whole numbers that look like ids or codes."""
        return list(self.roles.codes)


@dataclass
class ColumnScan:
    """Numbers of rows and of missing values, and the columns that increase in every row."""

    rows: int = 0
    complete: int = 0
    missing: dict[str, int] = field(default_factory=dict)  # by column, where any is
    rising: dict[str, float] = field(default_factory=dict)  # whole numbers that rise: the last one
    dates: set[str] = field(default_factory=set)  # of those, dates such as 20230131, and times

    @property
    def row_numbers(self) -> list[str]:
        """Return the columns that only number the rows."""
        return [n for n in self.rising if n not in self.dates] if self.rows >= MIN_ROWS else []


def useless_columns(source: Source, scan: ColumnScan) -> list[str]:
    """Return columns that name or number the rows, or are empty."""
    useless = [name for name, count in scan.missing.items() if count == scan.rows]
    useless += scan.row_numbers
    encoder = source.encoder
    written = is_csv(source)  # where codes of digits are not text
    if encoder is not None:
        for name, levels in zip(encoder.input_names, encoder.levels, strict=True):
            labels = list(levels or ())
            if levels is None or are_numbers(labels, written) or strays(labels):
                continue  # numbers that are text by mistake, of which opening them has warned
            if 2 * len(levels) > scan.complete > 0:
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


def warn_of_columns(
    rows: Iterable[Chunk], source: Source, read: TableOptions, machine: bool = False
) -> None:
    """Warn of columns that number the rows, unless --columns names them, and of ids and codes.

    Ratings are named as such, unless a `machine` is fitted to them.
    """
    columns = input_columns(source)
    if not columns:
        return
    numbers = row_number_columns(rows, source) if read.columns is None else []
    if numbers and set(columns) - set(numbers):
        names = shlex.quote(join_names([*(names_in(read.exclude) or []), *numbers]))
        warnings.warn(
            f"{listed(numbers)}: whole numbers that increase from row to row, like row numbers. To "
            f"ignore them, use --exclude {names}",
            stacklevel=2,
        )
    roles = roles_of(rows, source)
    codes = [name for name in roles.codes if name not in numbers]
    if roles.ids and not machine:
        warnings.warn(ratings_advice(roles, ""), stacklevel=2)
    elif codes:
        warnings.warn(codes_text(codes), stacklevel=2)
    if read.columns is None:
        for text in remarks_on(rows, source, [*numbers, *codes, *roles.times]):
            warnings.warn(text, stacklevel=2)


def remarks_on(rows: Iterable[Chunk], source: Source, but: Iterable[str]) -> list[str]:
    """Return what the first rows show of columns, `but` some, in words."""
    return FirstRows.of(rows, source).remarks(is_csv(source), but)


def missing_marks(source: Source) -> tuple[str, ...]:
    """Return the marks of missing values in CSV that were noticed, or declared."""
    dialect = getattr(source.feed, "dialect", None)
    return () if dialect is None else dialect.na or ()


def is_csv(source: Source) -> bool:
    """Tell whether rows are those of CSV files."""
    return getattr(source.feed, "format", None) in CSV


def scan_columns(source: Source) -> ColumnScan:
    """Read the rows as they are, with their missing values."""
    scan, reader = ColumnScan(), source.reader
    for piece in source.feed.pieces(source.chunk_rows):
        if source.watch is not None:
            source.watch(len(piece))
        bad = np.zeros(len(piece), dtype=bool)
        if source.columns:
            _scan_table(piece, reader, scan, bad)
        else:
            _scan_array(piece, scan, bad)
        for role, values in (("target", piece.y), ("weight", piece.weight)):
            if values is not None:
                _count(scan, role, np.isnan(np.asarray(values, dtype=float)), bad)
        scan.rows += len(piece)
        scan.complete += int((~bad).sum())
    return scan


def row_number_columns(rows: Iterable[Chunk], source: Source) -> list[str]:
    """Return the columns of a table that hold whole numbers which increase from row to row.

    One pass, which stops as soon as no column is left. Rows that are dropped are not seen.
    """
    places = number_columns(source)
    scan, first = ColumnScan(), True
    for chunk in Rows.of(rows).walk():
        left = [name for name in places if first or name in scan.rising]
        if not left:
            return []
        X = chunk.X[:, [places[name] for name in left]]
        X = X.toarray() if issparse(X) else np.asarray(X)
        for name, values in zip(left, X.T.astype(np.float64), strict=True):
            _follow(scan, name, values)
        scan.rows, first = scan.rows + len(X), False
    return scan.row_numbers


def roles_of(rows: Iterable[Chunk], source: Source) -> ColumnRoles:
    """Return what the columns of a table are, by its first rows: ids, codes, or as they seem."""
    numbers, titles = list(number_columns(source)), None
    if source.encoder is not None or not len(source.fields):
        titles = field_names(source.encoder)
    return column_roles(Rows.of(rows), numbers, source.names, source.fields, titles)


def with_lists(source: Source, read: TableOptions) -> TableOptions | None:
    """Return the options with --multi-hot for columns that hold lists; None where there is none."""
    encoder, given = source.encoder, lists_in(read)
    if encoder is None:
        return None
    separators = {
        name: separator
        for name, levels in zip(encoder.input_names, encoder.levels, strict=True)
        if levels is not None
        and not isinstance(levels, LabelSets)
        and name not in (names_in(read.categorical) or [])
        and (separator := list_separator(list(levels))) is not None
    }
    if not separators:
        return None
    shared = next(iter((given | separators).values()))  # the command line has one for all
    names = [name for name, separator in (given | separators).items() if separator == shared]
    if len(names) == len(given):
        return None
    return replace(
        read, multi_hot=[join_names(names)], separator=None if shared == SEPARATOR else shared
    )


def _scan_table(piece: Piece, reader: Any, scan: ColumnScan, bad: np.ndarray) -> None:
    frame = nw.from_native(piece.X, eager_only=True)
    wanted = [*reader.columns, *(n for n in (reader.target, reader.weight) if n is not None)]
    for name in wanted:
        column = frame.get_column(name)
        if name in reader.separators:
            continue  # a cell without labels is not missing
        if name in reader.text or (name == reader.target and reader.labels is not None):
            null = column.is_null().to_numpy() if column.null_count() else None
        else:
            values = np.asarray(column.cast(nw.Float64()).to_numpy())
            null = np.isnan(values)
            if name in reader.columns:
                _follow(scan, str(name), values)
        if null is not None:
            _count(scan, str(name), null, bad)


def _scan_array(piece: Piece, scan: ColumnScan, bad: np.ndarray) -> None:
    X = piece.X
    if issparse(X):
        where = np.isnan(X.data)
        rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[where]
        entries = X.indices[where]
    else:
        rows, entries = np.nonzero(np.isnan(np.asarray(X, dtype=float)))
    bad[rows] = True
    for j, times in zip(*np.unique(entries, return_counts=True), strict=True):
        scan.missing[f"x{j}"] = scan.missing.get(f"x{j}", 0) + int(times)


def _count(scan: ColumnScan, name: str, null: np.ndarray, bad: np.ndarray) -> None:
    if null.any():
        scan.missing[name] = scan.missing.get(name, 0) + int(null.sum())
        bad |= null


def _follow(scan: ColumnScan, name: str, values: np.ndarray) -> None:
    """Keep a column as long as it holds whole numbers, each above the one before."""
    last = scan.rising.get(name, -np.inf)
    if scan.rows and name not in scan.rising:
        return
    steps = np.diff(values, prepend=last)
    if len(values) and np.all(steps > 0) and np.all(values == np.floor(values)):
        scan.rising[name] = float(values[-1])
        first = not scan.rows or name in scan.dates
        date = first and (are_dates(values) or are_times(values))
        scan.dates = scan.dates | {name} if date else scan.dates - {name}
    else:
        scan.rising.pop(name, None)
