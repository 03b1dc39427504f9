"""Tables that pyarrow reads: Parquet, CSV and Arrow files, datasets and streams, bit by bit."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import narwhals as nw

from quadlin.core.messages import warn
from quadlin.data.csv_text import ADVICE as CSV_ADVICE
from quadlin.data.csv_text import CsvText, Dialect, Replay, arrow, head_of, in_utf8
from quadlin.data.files import FORMATS, File, FileSet, FileUnit, Format
from quadlin.data.names import SourceError, explained, shortened
from quadlin.data.source import Feed, Unit, spread

BATCH_ELEMENTS = 1 << 22  # entries decoded at once: 16 MB of float32
BUFFER = 1 << 16  # bytes of each column read at once; whole column chunks would fill the memory
INDEX = re.compile(r"__index_level_\d+__")  # the name that pandas gives to an index without one


def open_files(files: FileSet, options: Any) -> tuple[Feed, nw.DataFrame[Any]]:
    """Return the feed of files, and an empty frame with all columns, from their schemas."""
    arrow()  # if it is missing, say so before anything else
    text, dialect = options.text, options.dialect_of(files.format)
    units, schemas = list[Unit](), []
    for file in files.files:
        with explained(f"File {file.path}", ADVICE[files.format]):
            unit, schema = UNITS[files.format](file, text, dialect)
        refuse_repeated(schema, f"File {file.path}")
        units.append(unit)
        schemas.append(schema)
    schema = without_index(_one_schema(schemas, files), files.title)
    for unit in units:
        if isinstance(unit, CsvFile):  # a column of numbers and text is text in all files
            unit.layout.types.update({each.name: each.type for each in schema})
    is_csv = any(isinstance(unit, CsvFile) for unit in units)
    feed = Feed(tuple(units), files.title, tuple(schema.names), is_csv=is_csv)
    with explained(files.title, ADVICE[files.format]):
        return feed, nw.from_native(schema.empty_table(), eager_only=True)


@dataclass(frozen=True)
class ParquetFile(FileUnit):
    """Some row groups of a Parquet file."""

    groups: tuple[int, ...]
    counts: tuple[int, ...]  # rows of each group
    row: int = 0

    @property
    def rows(self) -> int:  # type: ignore[override]
        """Return the number of rows."""
        return sum(self.counts)

    @classmethod
    def opened(cls, file: File, *_: Any) -> tuple[Unit, Any]:
        """Return a file and its schema."""
        from pyarrow import parquet

        with parquet.ParquetFile(file.path) as opened:
            meta = opened.metadata
            counts = tuple(meta.row_group(i).num_rows for i in range(meta.num_row_groups))
            return cls(file, tuple(range(len(counts))), counts), opened.schema_arrow

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Any]:
        """Yield batches of a bounded size."""
        from pyarrow import parquet

        size, names = batch_rows(columns), list(columns or ())
        # Without these two options all columns of a row group are in memory at once.
        with parquet.ParquetFile(self.file.path, buffer_size=BUFFER, pre_buffer=False) as opened:
            for batch in opened.iter_batches(size, row_groups=list(self.groups), columns=names):
                yield table_of(batch)

    def cut(self, count: int) -> "Sequence[ParquetFile]":
        """Cut between row groups."""
        row, parts = self.row, []
        for run in spread([max(1, n) for n in self.counts], max(1, count)):
            parts.append(replace(self, groups=self.groups[run], counts=self.counts[run], row=row))
            row += parts[-1].rows
        return parts

    @property
    def size(self) -> int:
        """Return the number of rows."""
        return max(1, self.rows)


@dataclass(frozen=True)
class ArrowFile(FileUnit):
    """A file of Arrow batches, or one that holds a stream of them."""

    is_stream: bool

    @classmethod
    def opened(cls, file: File, *_: Any) -> tuple[Unit, Any]:
        """Return a file and its schema."""
        ipc = arrow().ipc
        with arrow().OSFile(file.path) as handle:
            is_stream = handle.read(6) != b"ARROW1"
            handle.seek(0)
            opened = ipc.open_stream(handle) if is_stream else ipc.open_file(handle)
            return cls(file, is_stream), opened.schema

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Any]:
        """Yield batch after batch."""
        ipc, names = arrow().ipc, list(columns or ())
        # A mapped file would count as memory in use, and truncating it would kill the process.
        with arrow().OSFile(self.file.path) as handle:
            if self.is_stream:
                for batch in ipc.open_stream(handle):
                    yield table_of(batch.select(names))
                return
            schema = ipc.open_file(handle).schema
            positions = sorted(schema.get_field_index(name) for name in names)
            options = ipc.IpcReadOptions(included_fields=positions)
            opened = ipc.open_file(handle, options=options)
            for i in range(opened.num_record_batches):
                yield table_of(opened.get_batch(i).select(names))


@dataclass(frozen=True)
class CsvFile(FileUnit):
    """A file of CSV text."""

    layout: CsvText

    @classmethod
    def opened(cls, file: File, text: Sequence[Any], dialect: Dialect) -> tuple[Unit, Any]:
        """Return a file and its schema."""
        with in_utf8(file.path, dialect) as stream:
            layout = CsvText.of(head_of(stream), dialect, text, f"file {file.path}")
        return cls(file, layout), layout.schema

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Any]:
        """Yield block after block."""
        with in_utf8(self.file.path, self.layout.dialect) as stream:
            for table in self.layout.tables(stream, self.place, columns or ()):
                yield (table,)


ADVICE = {
    "parquet": "Is it a complete Parquet file? Write it again.",
    "csv": CSV_ADVICE,
    "tsv": CSV_ADVICE,
    "arrow": "Is it a complete Arrow (Feather version 2) file? Write it again.",
}
# (file, columns that are text, dialect) → the file and its schema
UNITS: dict[str, Callable[..., tuple[Unit, Any]]] = {
    "parquet": ParquetFile.opened,
    "arrow": ArrowFile.opened,
    "csv": CsvFile.opened,
    "tsv": CsvFile.opened,
}
FORMATS |= {
    "parquet": Format((".parquet", ".pq"), open_files, "Parquet", is_table=True),
    "csv": Format((".csv",), open_files, "CSV", (".gz", ".bz2"), is_table=True),
    "tsv": Format((".tsv", ".tab"), open_files, "TSV", (".gz", ".bz2"), is_table=True),
    "arrow": Format((".arrow", ".feather", ".ipc", ".arrows"), open_files, "Arrow", is_table=True),
}


@dataclass(frozen=True)
class Batches(Unit):
    """Batches of a dataset, a query or a stream."""

    walk: Callable[[Sequence[Any]], Any] = field(repr=False)  # columns → tables or batches
    key: Any = None  # what distinguishes them

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Any]:
        """Yield tables of any size."""
        for batch in self.walk(list(columns or ())):
            yield table_of(batch) if hasattr(batch, "validate") else (batch,)

    def identity(self, columns: Sequence[Any] | None) -> Any:
        """Return what distinguishes these batches."""
        return self.key


def table_of(batch: Any) -> tuple[Any]:
    """Check the text and the offsets of a batch, and return a table; numbers cost nothing."""
    batch.validate(full=True)
    pa = arrow()
    return (pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch,)


def batch_rows(columns: Sequence[Any] | None) -> int:
    """Return how many rows to decode at once."""
    return max(1, BATCH_ELEMENTS // max(1, len(columns or ())))


def open_dataset(dataset: Any) -> tuple[nw.DataFrame[Any], Feed]:
    """Read a pyarrow.dataset.Dataset, few batches at a time: its defaults hold hundreds of MB."""
    from pyarrow.dataset import ParquetFragmentScanOptions

    files, schema, slim = tuple(map(File.of, getattr(dataset, "files", ()))), dataset.schema, None
    if type(getattr(dataset, "format", None)).__name__ == "ParquetFileFormat":
        slim = ParquetFragmentScanOptions(
            pre_buffer=False, use_buffered_stream=True, buffer_size=BUFFER
        )

    def walk(columns: Sequence[Any]) -> Any:
        return dataset.to_batches(
            columns=columns,
            batch_size=batch_rows(columns),
            batch_readahead=1,
            fragment_readahead=1,
            fragment_scan_options=slim,
        )

    unit = Batches(walk, (files, str(schema)) if files else None)
    sample = nw.from_native(schema.empty_table(), eager_only=True)
    return sample, Feed((unit,), "Arrow dataset", tuple(schema.names))


def open_query(query: Any) -> tuple[nw.DataFrame[Any], Feed]:
    """Read a lazy polars frame."""
    if not hasattr(query, "collect_batches"):
        raise SourceError(
            f"A lazy {type(query).__module__.split('.')[0]} frame cannot be read in pieces. "
            "Collect it, or write it to Parquet and give the file."
        )
    sample = nw.from_native(query.head(0).collect(), eager_only=True)
    unit = Batches(lambda columns: query.select(columns).collect_batches(maintain_order=True))
    return sample, Feed((unit,), "polars LazyFrame", tuple(sample.columns))


def open_stream(
    handle: Any, format: str, text: Sequence[Any], dialect: Dialect
) -> tuple[nw.DataFrame[Any], Feed]:
    """Read an open binary file that holds CSV or an Arrow stream, once."""
    pa, what = arrow(), f"the {format} stream"
    with explained(what, ADVICE[format]):
        if format == "arrow":
            opened = pa.ipc.open_stream(handle)
            layout, schema = None, opened.schema
        else:
            stream = in_utf8(handle, dialect)
            head = head_of(stream)
            layout = CsvText.of(head, dialect, text, what)
            schema = layout.schema
    refuse_repeated(schema, "The stream")
    schema = without_index(schema, what)
    batches = [opened if layout is None else pa.PythonFile(Replay(head, stream), "r")]

    def walk(columns: Sequence[Any]) -> Iterator[Any]:
        if not batches:
            raise SourceError(
                "The stream has been read and cannot be read again. Save it to a file first."
            )
        items = batches.pop()
        for batch in items if layout is None else layout.tables(items, what, columns):
            yield batch.select(columns)

    names = tuple(schema.names)
    feed = Feed((Batches(walk),), what, names, again=False, is_csv=layout is not None)
    return nw.from_native(schema.empty_table(), eager_only=True), feed


def refuse_repeated(schema: Any, what: str) -> None:
    """Refuse a table with two columns of the same name."""
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise SourceError(f"{what} has two columns named {name!r}. Rename one.")


def without_index(schema: Any, title: str) -> Any:
    """Leave out the index that pandas writes as an extra column, and columns without a name."""
    for name in schema.names:
        if INDEX.fullmatch(name) or not name.strip():
            shown = f"column {name!r}" if name.strip() else "a column without a name"
            warn(
                f"{title}: {shown} is the index of a frame, or a separator ends each line; it is "
                "not a feature and is left out. Write the file with index=False, or name the "
                "column to keep it."
            )
            schema = schema.remove(schema.get_field_index(name))
    return schema


def _one_schema(schemas: list[Any], files: FileSet) -> Any:
    """Return a schema that fits all files: numbers may differ in width, but nothing else."""
    pa, first = arrow(), schemas[0]
    for schema, file in zip(schemas, files.files, strict=True):
        lacking = sorted(set(first.names) - set(schema.names))
        extra = sorted(set(schema.names) - set(first.names))
        if lacking or extra:
            differences = [f"lacks {shortened(lacking)}"] * bool(lacking)
            differences += [f"has {shortened(extra)}"] * bool(extra)
            raise SourceError(
                f"File {file.path} does not have the columns of {files.files[0].path}: it "
                f"{' and '.join(differences)}. Give files of one table."
            )
    plain = [pa.schema([(each.name, _plain(each.type)) for each in schema]) for schema in schemas]
    with explained(files.title, "Write each column with one type."):
        merged = pa.unify_schemas(plain, promote_options="permissive")
    # A column of nothing but missing values is one of numbers.
    return pa.schema(
        [(f.name, pa.float64() if pa.types.is_null(f.type) else f.type) for f in merged]
    )


def _plain(kind: Any) -> Any:
    """Return the type of a dictionary's values, which merges with others."""
    return kind.value_type if arrow().types.is_dictionary(kind) else kind
