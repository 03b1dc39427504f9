"""Arrow batches: from datasets, and from everything else that pyarrow reads."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw

from quadlin.core.messages import warn
from quadlin.data.columns.errors import explained
from quadlin.data.sources.feeds import Feed, Piece
from quadlin.data.sources.files import File

BATCH_ELEMENTS = 1 << 22  # entries decoded at once: 16 MB of float32
BUFFER = 1 << 16  # bytes of each column read at once; whole column chunks would fill the memory
INDEX = re.compile(r"__index_level_\d+__")  # the name that pandas gives to an index without one
ADVICE = {
    "parquet": "Is it a complete Parquet file? Write it again.",
    "csv": "Check that line, the separator (`delimiter`) and the `encoding`.",
    "tsv": "Check that line, the separator (a tab, or `delimiter`) and the `encoding`.",
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
