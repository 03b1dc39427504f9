"""Arrow batches of whatever pyarrow walks: datasets, streams, CSV text."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import narwhals as nw

from quadlin.sources.base import Piece
from quadlin.sources.errors import SourceError, explained, first_line, some
from quadlin.sources.files import File

BATCH_ELEMENTS = 1 << 22  # entries decoded at once: 16 MB of float32
BUFFER = 1 << 16  # bytes of each column read at once; whole column chunks would fill the memory
CSV_BLOCK = 1 << 23  # bytes; the columns' types are guessed from the first block
ADVICE = {
    "parquet": "Is it a complete Parquet file? Write it again.",
    "csv": "Check that line, the separator (format='tsv' for tabs) and the encoding (UTF-8).",
    "tsv": "Check that line, the separator (format='csv' for commas) and the encoding (UTF-8).",
    "arrow": "Is it a complete Arrow (Feather version 2) file? Write it again.",
}


def arrow() -> Any:
    """Import pyarrow, or say how to get it."""
    try:
        import pyarrow

        return pyarrow
    except ImportError:
        raise ImportError('Reading tables needs pyarrow: pip install "quadlin[table]".') from None


@dataclass(frozen=True)
class BatchFeed:
    """Batches of something that pyarrow or a frame library walks: a dataset, a stream."""

    walk: Callable[[Sequence[Any]], Iterator[Any]]  # columns → tables
    columns: tuple[Any, ...]
    title: str
    key: Any
    again: bool = True
    rows: int | None = None
    ahead = True

    def only(self, columns: Sequence[Any]) -> "BatchFeed":
        """Return a feed that reads no more than these columns."""
        return replace(self, columns=tuple(columns))

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield tables of whatever size they come in."""
        start = 0
        with explained(self.title, "Check it."):
            for table in self.walk(self.columns):
                yield Piece(table, start=start)
                start += len(table)

    def parts(self, count: int) -> list["BatchFeed"]:
        """Return this feed: it cannot be cut."""
        return [self]

    def identity(self) -> Any:
        """Return what the opener found to tell it from others."""
        return self.key


def open_dataset(dataset: Any) -> tuple[nw.DataFrame[Any], BatchFeed]:
    """Read a pyarrow.dataset.Dataset."""
    files = tuple(map(File.of, getattr(dataset, "files", ())))
    schema = dataset.schema
    walk = _DatasetWalk(dataset)
    feed = BatchFeed(
        walk, tuple(schema.names), "Arrow dataset", (files, str(schema)) if files else None
    )
    return nw.from_native(schema.empty_table(), eager_only=True), feed


@dataclass(frozen=True)
class _DatasetWalk:
    """Batches of a dataset, few at a time: its own defaults hold hundreds of megabytes."""

    dataset: Any

    def __call__(self, columns: Sequence[Any]) -> Iterator[Any]:
        from pyarrow.dataset import ParquetFragmentScanOptions

        slim = None
        if type(getattr(self.dataset, "format", None)).__name__ == "ParquetFileFormat":
            slim = ParquetFragmentScanOptions(
                pre_buffer=False, use_buffered_stream=True, buffer_size=BUFFER
            )
        for batch in self.dataset.to_batches(
            columns=list(columns),
            batch_size=max(1, BATCH_ELEMENTS // max(1, len(columns))),
            batch_readahead=1,
            fragment_readahead=1,
            fragment_scan_options=slim,
        ):
            yield arrow().Table.from_batches([valid(batch)])


def open_stream(handle: Any, format: str, text: Sequence[Any]) -> tuple[Any, BatchFeed]:
    """Read an open binary file that holds CSV or an Arrow stream, once."""
    pa = arrow()
    delimiter = {"csv": ",", "tsv": "\t"}.get(format)
    with explained(f"The {format} stream", ADVICE[format]):
        if delimiter is None:
            opened = pa.ipc.open_stream(handle)
            schema = opened.schema
        else:
            head = _head(handle)
            guessed = open_csv(
                BytesIO(head[: head.rfind(b"\n") + 1] or head), delimiter, None, None
            )
            schema, types = csv_types(guessed.schema, text)
            opened = open_csv(pa.PythonFile(_Replay(head, handle), "r"), delimiter, None, types)
        names = schema.names
    if len(set(names)) < len(names):
        raise SourceError(f"The stream has columns of the same name, of {some(names)}. Rename one.")
    state = {"used": False}

    def walk(columns: Sequence[Any]) -> Iterator[Any]:
        if state["used"]:
            raise SourceError(
                "The stream has been read and cannot be read again. Save it to a file first."
            )
        state["used"] = True
        with explained(f"The {format} stream", ADVICE[format]):
            for batch in selected(opened, columns):
                yield pa.Table.from_batches([batch])

    feed = BatchFeed(walk, tuple(schema.names), f"{format} stream", str(schema), again=False)
    return nw.from_native(schema.empty_table(), eager_only=True), feed


def _head(handle: Any) -> bytes:
    """Read the first block of a stream, which may come in drops."""
    head = b""
    while len(head) < CSV_BLOCK:
        data = handle.read(CSV_BLOCK - len(head))
        if isinstance(data, str):
            raise SourceError('The stream is of text. Open it as bytes (mode "rb").')
        if not data:
            break
        head += data
    return head


class _Replay:
    """A stream whose first bytes have been read already."""

    closed = False

    def __init__(self, head: bytes, rest: Any) -> None:
        self.head, self.rest = head, rest

    def read(self, size: int = -1) -> bytes:
        if not self.head:
            return bytes(self.rest.read(size))
        size = len(self.head) if size < 0 else size
        data, self.head = self.head[:size], self.head[size:]
        return data

    def close(self) -> None:
        self.closed = True


def selected(batches: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yield some columns of each batch."""
    for batch in batches:
        yield valid(batch).select(list(columns))


def valid(batch: Any) -> Any:
    """Return a batch whose text is text and whose offsets stay inside; numbers cost nothing."""
    batch.validate(full=True)
    return batch


def open_csv(file: Any, delimiter: str, columns: Any, types: dict[str, str] | None) -> Any:
    """Open CSV text as a stream of batches."""
    arrow()
    from pyarrow import csv

    return csv.open_csv(
        file,
        # One thread: only then does an error name its row, and there is one reading ahead anyway.
        read_options=csv.ReadOptions(block_size=CSV_BLOCK, use_threads=False),
        # A quoted line break may stand at the end of a block.
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            include_columns=None if columns is None else list(columns),
            column_types=types,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def csv_types(schema: Any, text: Sequence[Any]) -> tuple[Any, dict[str, str]]:
    """Read numbers as float64: whole numbers in the first block may have fractions later."""
    pa = arrow()
    fields = []
    for field in schema:
        kind = pa.string() if field.name in text else field.type
        number = pa.types.is_integer(kind) or pa.types.is_null(kind)
        fields.append(pa.field(field.name, pa.float64() if number else kind))
    schema = pa.schema(fields)
    return schema, {field.name: field.type for field in schema}


def csv_error(error: BaseException, path: str, names: Sequence[str]) -> str:
    """Say which cell cannot be read, in names instead of numbers where Arrow gives them."""
    found = re.search(
        r"column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+): invalid value '(.*)",
        str(error),
    )
    if found is None or int(found[1]) >= len(names):
        return f"File {path} cannot be read: {first_line(error)} {ADVICE['csv']}"
    name, kind = names[int(found[1])], {"double": "a number"}.get(found[3], found[3])
    row = f" in row {int(found[2]) - 2} (counted from 0)" if found[2] else ""
    return (
        f"Column {name!r} of {path} looks like {kind} in its first rows, but{row} it holds "
        f"'{found[4][:80]}. Correct it, or give levels={{{name!r}: [...]}} if it is text."
    )
