"""Parquet, CSV and Arrow files, datasets and streams: batches of tables in bounded memory."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import groupby
from typing import Any

import narwhals as nw

from quadlin.core.messages import warn
from quadlin.data.columns.errors import SourceError, explained, first_line
from quadlin.data.columns.names import shortened
from quadlin.data.sources.csv_text import ADVICE as CSV_ADVICE
from quadlin.data.sources.csv_text import (
    CSV_BLOCK,
    Dialect,
    arrow,
    csv_error,
    csv_schema,
    in_utf8,
    open_csv,
    open_csv_file,
)
from quadlin.data.sources.feeds import Feed, Piece, spread
from quadlin.data.sources.files import File, FileSet

BATCH_ELEMENTS = 1 << 22  # entries decoded at once: 16 MB of float32
BUFFER = 1 << 16  # bytes of each column read at once; whole column chunks would fill the memory
INDEX = re.compile(r"__index_level_\d+__")  # the name that pandas gives to an index without one
ADVICE = {
    "parquet": "Is it a complete Parquet file? Write it again.",
    "csv": CSV_ADVICE,
    "tsv": CSV_ADVICE,
    "arrow": "Is it a complete Arrow (Feather version 2) file? Write it again.",
}


@dataclass(frozen=True)
class BatchFeed(Feed):
    """Batches that pyarrow or a frame library yields: of a dataset or a stream."""

    walk: Callable[[Sequence[Any]], Iterator[Any]]  # columns → tables
    columns: tuple[Any, ...]
    title: str
    key: Any
    again: bool = True
    ahead = True

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield tables of any size."""
        start = 0
        with explained(self.title, "Check it."):
            for table in self.walk(self.columns):
                yield Piece(table, start=start)
                start += len(table)

    def identity(self) -> Any:
        """Return what distinguishes the feed from others."""
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
    """Batches of a dataset, few at a time: Arrow's defaults hold hundreds of megabytes."""

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


def selected(batches: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yield some columns of each batch."""
    for batch in batches:
        yield valid(batch).select(list(columns))


def valid(batch: Any) -> Any:
    """Check the text and the offsets of a batch, and return it; checking numbers costs nothing."""
    batch.validate(full=True)
    return batch


def without_index(schema: Any, title: str) -> Any:
    """Leave out the index that pandas writes as an extra column."""
    index = [name for name in schema.names if INDEX.fullmatch(name)]
    unnamed = [name for name in schema.names if not name.strip()]
    texts = [f"column {name!r} is the index of a pandas frame; it is" for name in index]
    if len(unnamed) == 1:  # as pandas writes it to CSV
        reason = "a column without a name is the index of a frame, or a separator ends each line"
        texts += [f"{reason}; it is"]
    elif unnamed:
        texts += [f"{len(unnamed)} columns have no name, as if separators were repeated; each is"]
    for text in texts:
        warn(
            f"{title}: {text} not a feature and is left out. Write the file with index=False, or "
            "name the column to keep it."
        )
    for name in (*index, *unnamed):
        schema = schema.remove(schema.get_field_index(name))
    return schema


@dataclass(frozen=True)
class Unit:
    """The part of a file that is read: some of its row groups or batches, or all of it."""

    file: File
    groups: tuple[int, ...] | None = None
    row: int = 0  # number of the first row in the file
    start: int | None = 0  # and in the whole source, if known
    rows: int | None = None

    @property
    def size(self) -> int:
        """Return a measure of the work."""
        return max(1, self.file.size if self.rows is None else self.rows)


@dataclass(frozen=True)
class FileFeed(Feed):
    """Batches of files of one format."""

    format: str
    units: tuple[Unit, ...]
    title: str
    columns: tuple[str, ...]
    types: dict[str, Any] | None = None  # of CSV columns
    dialect: Dialect = field(default_factory=Dialect)  # of CSV files, except for their delimiters
    again = ahead = True

    @property
    def rows(self) -> int | None:
        """Return the number of rows, None if it is unknown."""
        rows = [unit.rows for unit in self.units]
        return None if None in rows else sum(count or 0 for count in rows)

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield batches of a bounded size."""
        pa = arrow()
        start = self.units[0].start if self.units else 0
        for unit in _by_file(self.units):
            unit.file.check()
            row = unit.row
            with explained(f"File {unit.file.path}", ADVICE[self.format]):
                for batch in WALKS[self.format](unit, self):
                    table = pa.Table.from_batches([batch])
                    yield Piece(table, file=unit.file.path, row=row, start=start)
                    row += len(table)
                    start = None if start is None else start + len(table)
            unit.file.check()

    def parts(self, count: int) -> list["FileFeed"]:
        """Cut between row groups or files."""
        sizes = [unit.size for unit in self.units]
        return [replace(self, units=self.units[run]) for run in spread(sizes, count)]

    def identity(self) -> Any:
        """Return the files as they were when they were opened."""
        return self.format, self.units, self.columns, self.dialect


def _by_file(units: Sequence[Unit]) -> Iterator[Unit]:
    """Join the units of the same file, so that its header is read only once."""
    for _, same in groupby(units, lambda unit: unit.file):
        first, *others = same
        groups = [unit.groups for unit in (first, *others) if unit.groups is not None]
        yield replace(first, groups=sum(groups, ()) if groups else None)


def open_files(
    files: FileSet, text: Sequence[Any], dialect: Dialect
) -> tuple[nw.DataFrame[Any], FileFeed]:
    """Read the schema of each file, and cut the files into units.

    Parameters
    ----------
    files : FileSet
        The files.
    text : sequence of str
        Columns of CSV files that are text even if they look like numbers.
    dialect : Dialect
        The dialect of CSV files.

    Returns
    -------
    sample, feed
        An empty frame with all columns, and the feed.
    """
    arrow()  # if it is missing, say so before anything else
    units = list[Unit]()
    schemas, start = [], 0 if files.format in ("parquet", "arrow") else None
    for file in files.files:
        with explained(f"File {file.path}", ADVICE[files.format]):
            if not file.size:
                raise SourceError(f"File {file.path} is empty (0 bytes). Write it again.")
            if files.format in CSV:
                with open_csv_file(file.path, dialect) as opened:
                    schema, groups = csv_schema(opened, text)[0], [(None, None)]
            else:
                schema, groups = LOOKS[files.format](file)
            schemas.append(schema)
            _check_names(schema, file)
        row = 0
        for group in groups:
            at = start if start is not None else (0 if not units else None)
            units.append(Unit(file, group[0], row, at, group[1]))
            row += group[1] or 0
            start = None if start is None or group[1] is None else start + group[1]
    schema = without_index(_one_schema(schemas, files), files.title)
    types = {each.name: each.type for each in schema} if files.format in CSV else None
    names = tuple(schema.names)
    feed = FileFeed(files.format, tuple(units), files.title, names, types, dialect)
    if feed.rows == 0:
        raise SourceError(f"{files.title} holds no rows. At least one is needed.")
    with explained(files.title, ADVICE[files.format]):
        return nw.from_native(schema.empty_table(), eager_only=True), feed


def _check_names(schema: Any, file: File) -> None:
    repeated = [name for name, count in Counter(schema.names).items() if count > 1]
    if repeated:
        raise SourceError(f"File {file.path} has two columns named {repeated[0]!r}. Rename one.")


def _one_schema(schemas: list[Any], files: FileSet) -> Any:
    """Return a schema that fits all files: numbers may differ in width, but nothing else."""
    pa, first = arrow(), schemas[0]
    for schema, file in zip(schemas, files.files, strict=True):
        expected, names = set(first.names), set(schema.names)
        if expected != names:
            lacking, extra = sorted(expected - names), sorted(names - expected)
            differences = [f"lacks {shortened(lacking)}"] * bool(lacking) + [
                f"has {shortened(extra)}"
            ] * bool(extra)
            raise SourceError(
                f"File {file.path} does not have the columns of {files.files[0].path}: it "
                f"{' and '.join(differences)}. Give files of one table."
            )
    mixed = {n for n in first.names if len({schema.field(n).type for schema in schemas}) > 1}
    plain = [
        pa.schema([(f.name, _plain(f.type) if f.name in mixed else f.type) for f in schema])
        for schema in schemas
    ]
    try:
        joint = pa.unify_schemas(plain, promote_options="permissive")
    except pa.ArrowException as error:
        raise SourceError(
            f"{files.title}: {first_line(error)} Write each column with one type."
        ) from None
    # A column of nothing but missing values is one of numbers.
    kinds = [
        (each.name, pa.float64() if pa.types.is_null(each.type) else each.type) for each in joint
    ]
    return pa.schema(kinds)


def _plain(kind: Any) -> Any:
    """Return a type that merges with others: that of a dictionary's values, booleans as numbers."""
    types = arrow().types
    if types.is_boolean(kind):
        return arrow().int8()
    return kind.value_type if types.is_dictionary(kind) else kind


def _look_parquet(file: File) -> tuple[Any, list[tuple[tuple[int, ...] | None, int | None]]]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file.path) as opened:
        meta = opened.metadata
        counts = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
        if min(counts, default=0) < 0:
            raise SourceError(f"File {file.path} is damaged: a row group has negative length.")
        return opened.schema_arrow, [((i,), count) for i, count in enumerate(counts)]


def _walk_parquet(unit: Unit, feed: FileFeed) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile

    size = max(1, BATCH_ELEMENTS // max(1, len(feed.columns)))
    # Without these two options all columns of a row group are in memory at once.
    with ParquetFile(unit.file.path, buffer_size=BUFFER, pre_buffer=False) as opened:
        groups = list(unit.groups or ())
        for batch in opened.iter_batches(size, row_groups=groups, columns=list(feed.columns)):
            yield valid(batch)


def _look_arrow(file: File) -> tuple[Any, list[tuple[tuple[int, ...] | None, int | None]]]:
    pa = arrow()
    with pa.OSFile(file.path) as handle:
        if handle.read(6) == b"ARROW1":
            opened = pa.ipc.open_file(handle)
            return opened.schema, [((i,), None) for i in range(opened.num_record_batches)]
        handle.seek(0)
        return pa.ipc.open_stream(handle).schema, [(None, None)]


def _walk_arrow(unit: Unit, feed: FileFeed) -> Iterator[Any]:
    pa = arrow()
    # A mapped file would count as memory in use, and truncating it would kill the process.
    with pa.OSFile(unit.file.path) as handle:
        if unit.groups is None:
            yield from selected(pa.ipc.open_stream(handle), feed.columns)
        else:
            schema = pa.ipc.open_file(handle).schema
            positions = sorted(schema.get_field_index(name) for name in feed.columns)
            options = pa.ipc.IpcReadOptions(included_fields=positions)
            opened = pa.ipc.open_file(handle, options=options)
            yield from selected((opened.get_batch(i) for i in unit.groups), feed.columns)


def _walk_csv(unit: Unit, feed: FileFeed) -> Iterator[Any]:
    path, dialect = unit.file.path, feed.dialect
    try:
        with open_csv_file(path, dialect, feed.columns, feed.types) as opened:
            yield from opened
    except arrow().ArrowInvalid as error:
        with open_csv_file(path, dialect) as opened:
            names = opened.schema.names
        raise SourceError(csv_error(error, f"file {path}", names, dialect)) from None


CSV = ("csv", "tsv")
LOOKS: dict[str, Callable[..., Any]] = {"parquet": _look_parquet, "arrow": _look_arrow}
WALKS: dict[str, Callable[..., Any]] = {
    "parquet": _walk_parquet,
    "arrow": _walk_arrow,
    "csv": _walk_csv,
    "tsv": _walk_csv,
}


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
