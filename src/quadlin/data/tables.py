"""Tables that pyarrow reads: Parquet, CSV and Arrow files, and datasets, bit by bit."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import narwhals as nw

from quadlin.core.messages import warn
from quadlin.data.csv_text import ADVICE as CSV_ADVICE
from quadlin.data.csv_text import CsvText, arrow
from quadlin.data.names import SourceError, capital, explained, shortened
from quadlin.data.source import FORMATS, Feed, File, FileSet, FileUnit, Format, Unit, spread

CSV = ("csv", "tsv")
BATCH_ELEMENTS = 1 << 22  # entries decoded at once: 16 MB of float32
INDEX = re.compile(r"__index_level_\d+__")  # the name that pandas gives to an index without one


def open_files(files: FileSet, options: Any) -> tuple[Feed, nw.DataFrame[Any]]:
    """Return the feed of files, and an empty frame with all columns, from their schemas."""
    arrow()  # if it is missing, say so before anything else
    units, schemas = list[Unit](), []
    for file in files.files:
        where = f"file {file.path}"
        if files.format in CSV:
            dialect = options.dialect_of(files.format)
            with explained(where, CSV_ADVICE):
                layout = CsvText.of(file.path, dialect, options.text, where)
            units.append(CsvFile(file, layout))
            schema = layout.schema
        else:
            complete = f"Is it a complete {FORMATS[files.format].title} file? Write it again."
            with explained(where, complete):
                unit, schema = Fragments.opened(file, files.format)
            units.append(unit)
        refuse_repeated(schema, capital(where))
        schemas.append(schema)
    schema = without_index(_one_schema(schemas, files), files.title)
    for unit in units:
        if isinstance(unit, CsvFile):  # a column of numbers and text is text in all files
            unit.layout.types.update({each.name: each.type for each in schema})
    feed = Feed(tuple(units), files.title, tuple(schema.names), is_csv=files.format in CSV)
    return feed, nw.from_native(schema.empty_table(), eager_only=True)


@dataclass(frozen=True)
class Fragments(FileUnit):
    """A file of Arrow batches, or some row groups of a Parquet file."""

    format: str  # as `pyarrow.dataset` calls it
    groups: tuple[int, ...]  # of Parquet
    counts: tuple[int, ...]  # rows of each group
    row: int = 0

    @property
    def rows(self) -> int:  # type: ignore[override]
        """Return the number of rows."""
        return sum(self.counts)

    @classmethod
    def opened(cls, file: File, format: str) -> tuple[Unit, Any]:
        """Return a file and its schema."""
        whole = fragment_of(file, format)
        if format == "parquet":
            counts = tuple(group.num_rows for group in whole.row_groups)
        else:
            counts = (whole.count_rows(),)
        return cls(file, format, tuple(range(len(counts))), counts), whole.physical_schema

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Any]:
        """Yield batches of a bounded size."""
        fragment = fragment_of(self.file, self.format)
        if self.format == "parquet":
            fragment = fragment.subset(row_group_ids=list(self.groups))
        for batch in batches_of(fragment, columns):
            yield table_of(batch)

    def cut(self, count: int) -> "Sequence[Fragments]":
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


def fragment_of(file: File, format: str) -> Any:
    """Return a file as `pyarrow.dataset` reads it."""
    from pyarrow.dataset import dataset

    return next(dataset([file.path], format=format).get_fragments())


def batches_of(scanned: Any, columns: Sequence[Any] | None) -> Any:
    """Read a dataset or a fragment of it, few batches at a time: the default holds most of it."""
    from pyarrow.dataset import ParquetFragmentScanOptions

    names, slim = list(columns or ()), None
    if type(getattr(scanned, "format", None)).__name__ == "ParquetFileFormat":
        slim = ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
    return scanned.to_batches(
        columns=names,
        batch_size=max(1, BATCH_ELEMENTS // max(1, len(names))),
        batch_readahead=1,
        fragment_readahead=1,
        fragment_scan_options=slim,
    )


@dataclass(frozen=True)
class CsvFile(FileUnit):
    """A file of CSV text."""

    layout: CsvText

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Any]:
        """Yield block after block."""
        for table in self.layout.tables(self.file.path, self.place, columns or ()):
            yield (table,)


FORMATS |= {
    "parquet": Format((".parquet", ".pq"), open_files, "Parquet", is_table=True),
    "csv": Format((".csv",), open_files, "CSV", (".gz", ".bz2"), is_table=True),
    "tsv": Format((".tsv", ".tab"), open_files, "TSV", (".gz", ".bz2"), is_table=True),
    "arrow": Format((".arrow", ".feather", ".ipc"), open_files, "Arrow", is_table=True),
}


@dataclass(frozen=True)
class Batches(Unit):
    """Batches of a dataset or a query."""

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


def open_dataset(dataset: Any) -> tuple[nw.DataFrame[Any], Feed]:
    """Read a pyarrow.dataset.Dataset."""
    files, schema = tuple(map(File.of, getattr(dataset, "files", ()))), dataset.schema
    unit = Batches(partial(batches_of, dataset), (files, str(schema)) if files else None)
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


def refuse_repeated(schema: Any, what: str) -> None:
    """Raise an error for a table with two columns of the same name."""
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
