"""Open files that can be read only once: CSV text and Arrow streams."""

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

import narwhals as nw

from quadlin.data.columns.errors import SourceError, explained
from quadlin.data.columns.names import shortened
from quadlin.data.sources.arrow_batches import ADVICE, BatchFeed, arrow, selected, without_index
from quadlin.data.sources.csv_text import (
    CSV_BLOCK,
    Dialect,
    csv_error,
    csv_schema,
    in_utf8,
    open_csv,
)


def open_stream(
    handle: Any, format: str, text: Sequence[Any], dialect: Dialect
) -> tuple[nw.DataFrame[Any], BatchFeed]:
    """Read an open binary file that holds CSV or an Arrow stream, once."""
    pa, what = arrow(), f"the {format} stream"
    opened: Any  # columns → batches
    with explained(f"The {format} stream", ADVICE[format]):
        if format == "arrow":
            batches = pa.ipc.open_stream(handle)
            schema, opened = batches.schema, lambda columns: batches
        else:
            schema, opened = _open_text(handle, what, text, dialect)
        names = schema.names
    if len(set(names)) < len(names):
        raise SourceError(
            f"Two columns of the stream have the same name, among {shortened(names)}. Rename one."
        )
    schema = without_index(schema, f"{format} stream")
    state = {"used": False}

    def walk(columns: Sequence[Any]) -> Iterator[Any]:
        if state["used"]:
            raise SourceError(
                "The stream has been read and cannot be read again. Save it to a file first."
            )
        state["used"] = True
        with explained(f"The {format} stream", ADVICE[format]):
            try:
                for batch in selected(opened(columns), columns):
                    yield pa.Table.from_batches([batch])
            except pa.ArrowInvalid as error:
                if format == "arrow":
                    raise
                raise SourceError(csv_error(error, what, names, dialect)) from None

    feed = BatchFeed(
        walk, tuple(schema.names), f"{format} stream", (str(schema), dialect), again=False
    )
    return nw.from_native(schema.empty_table(), eager_only=True), feed


def _open_text(handle: Any, what: str, text: Sequence[Any], dialect: Dialect) -> Any:
    """Return the schema of CSV text, and a function that opens columns."""
    pa, stream = arrow(), handle
    if dialect.encoding != "utf8":
        stream = in_utf8(pa.PythonFile(handle, "r"), dialect)
    head = _head(stream)
    lines = head[: head.rfind(b"\n") + 1] or head
    schema, types = csv_schema(open_csv(BytesIO(lines), head, dialect, None, None, what), text)

    def opened(columns: Sequence[Any]) -> Any:
        replay = pa.PythonFile(_Replay(head, stream), "r")
        return open_csv(replay, head, dialect, columns, types, what)

    return schema, opened


def _head(handle: Any) -> bytes:
    """Read the first block of a stream, which may arrive in small parts."""
    head = b""
    while len(head) < CSV_BLOCK:
        data = handle.read(CSV_BLOCK - len(head))
        if isinstance(data, str):
            raise SourceError('The stream is in text mode. Open it in binary mode ("rb").')
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
