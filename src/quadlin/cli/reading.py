"""Opening the rows that a command names: files, or the standard input."""

import atexit
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from quadlin.cli.options import (
    MODEL_SUFFIX,
    STANDARD,
    LabelledRowOptions,
    OutputOptions,
    RowOptions,
    TableOptions,
    UsageError,
    lists_in,
    names_in,
)
from quadlin.cli.printing import print_note
from quadlin.cli.progress import waiting, watched
from quadlin.data import Source, SourceError, open_source
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.errors import ReadOnceError
from quadlin.data.opening.cached import cached
from quadlin.data.sources.csv_text import Dialect
from quadlin.data.sources.files import FORMATS

CSV = ("csv", "tsv")
KEPT = (
    "The rows of the standard input are kept in a temporary file, because they are read more than "
    "once."
)


def open_rows(
    data: str,
    read: RowOptions,
    output: OutputOptions,
    *,
    missing: str = "error",
    need_target: bool = True,
    encoder: TableEncoder | None = None,
    columns: list[str] | None = None,
    fill: Mapping[str, float] | None = None,
    keep: Sequence[str] = (),
    classes: str | Sequence[str] | None = "auto",
) -> Source:
    """Open rows as the options say; `classes` are the labels of a target that is text."""
    _check_row_options(data, read)
    exclude, categorical, lists = [], [], {}
    if isinstance(read, TableOptions):
        columns = columns if read.columns is None else names_in(read.columns)
        exclude, categorical = names_in(read.exclude) or [], names_in(read.categorical) or []
        lists = lists_in(read)
    labels = read if isinstance(read, LabelledRowOptions) else LabelledRowOptions()
    reading_once = data == STANDARD and read.format in (*CSV, "arrow")
    rows = Recorded() if reading_once else "-" if data == STANDARD else data

    def opened(given: Any) -> Source:
        return open_source(
            given,
            target=labels.target,
            weight=labels.weight or None,
            columns=None if encoder is not None else columns,
            exclude=exclude,
            categorical_features=categorical,
            multi_hot=lists,
            missing=read.missing or missing,
            format=read.format,
            encoder=encoder,
            fill=fill,
            n_features=read.features,
            zero_based="auto" if read.zero_based is None else read.zero_based,
            keep=keep,
            labels=classes,
            **read.csv,
        )

    try:
        with waiting("looking at the columns", output.silent):
            if isinstance(rows, str):
                source = opened(rows)
            else:
                source = _opened_stream(rows, opened, read, output)
    except SourceError as error:  # about a column that may well be the target
        if need_target and labels.target is None and error.column is not None:
            raise UsageError(
                f"Name the target column with --target: it cannot be {error.column!r}."
            ) from None
        raise
    if need_target and not source.has_target:
        chosen = encoder is not None or columns is not None  # these do not include the target
        names = [] if chosen else input_columns(source)
        has = f"; the columns are {', '.join(names[:12])}" if names else ""
        raise UsageError(f"Name the target column with --target{has}.")
    return source


def held(source: Source, most_bytes: float, answer: OutputOptions) -> Source:
    """Read the rows once, where they fit: 100,000 mixed rows of CSV take 13 s to fit, not 30."""
    if most_bytes <= 0:
        return source
    with watched(source, "reading", answer.silent) as rows:
        near = cached(rows, most_bytes)
    return source if near is rows else near


def input_columns(source: Source) -> list[str]:
    """Return the columns of a table that become features; none where rows have no names."""
    return [str(name) for name in source.columns]


def stored_rows(data: str, read: RowOptions, output: OutputOptions) -> str:
    """Return where rows are that a command opens again: of the standard input, a temporary file."""
    if data != STANDARD:
        return data
    check_format(read)
    print_note(KEPT, output.silent)
    return str(Recorded().stored(str(read.format)))


class Recorded:
    """The standard input, and what was read of it before it was clear whether once is enough."""

    closed = False

    def __init__(self, handle: Any = None) -> None:
        self.handle = sys.stdin.buffer if handle is None else handle
        self.parts: list[bytes] | None = []

    def read(self, size: int = -1) -> bytes:
        """Read as a file does, and remember it."""
        part = bytes(self.handle.read(size))
        if self.parts is not None:
            self.parts.append(part)
        return part

    def forget(self) -> None:
        """Let go of what was read: nobody will ask for it again."""
        self.parts = None

    def stored(self, format: str) -> Path:
        """Write all rows to a file, which is removed when the program ends.

        Examples
        --------
        >>> from io import BytesIO
        >>> rows = Recorded(BytesIO(b"a,y\\n1,2\\n"))
        >>> rows.read(3)
        b'a,y'
        >>> rows.stored("csv").read_text()
        'a,y\\n1,2\\n'
        """
        folder = TemporaryDirectory(prefix="quadlin-")
        atexit.register(folder.cleanup)
        path = Path(folder.name) / f"standard-input.{format}"
        with path.open("wb") as file:
            file.writelines(self.parts or [])
            shutil.copyfileobj(self.handle, file)
        self.forget()
        return path

    def close(self) -> None:
        """Do nothing: the standard input stays open."""


def _opened_stream(
    rows: Recorded, opened: Callable[[Any], Source], read: RowOptions, output: OutputOptions
) -> Source:
    """Open the standard input, by way of a file where its rows are needed more than once."""
    try:
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            source = opened(rows)
    except ReadOnceError:  # what was noticed will be noticed again
        print_note(KEPT, output.silent)
        return opened(rows.stored(str(read.format)))
    for warning in noticed:
        warnings.warn(warning.message, warning.category, stacklevel=2)
    rows.forget()
    return source


def check_format(read: RowOptions) -> None:
    """Refuse the standard input without --format: no name tells the format."""
    if read.format is None:
        raise UsageError("The standard input needs --format, such as --format csv.")


def _check_row_options(data: str, read: RowOptions) -> None:
    if data == STANDARD:
        check_format(read)
    if read.format is None and data.endswith(MODEL_SUFFIX):
        raise UsageError(
            f"{data} is a model, not a table of rows. The model comes before the data."
        )
    if read.format is not None and read.format not in FORMATS:
        raise UsageError(f"--format {read.format} is not one of {', '.join(FORMATS)}.")
    if read.features is not None and read.features < 1:
        raise UsageError(f"--features {read.features} must be a whole number ≥ 1.")
    try:
        Dialect.of(**read.csv)
    except SourceError as error:
        raise UsageError(error.args[0]) from None
