"""Sources of rows: files and other units, a feed of their pieces, and chunks of equal size."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from glob import glob, has_magic
from hashlib import sha256
from itertools import pairwise
from os import fspath
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

import narwhals as nw
import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from quadlin.core.chunks import BLOCK_ELEMENTS, Chunk, RowSource
from quadlin.core.rows import Rows
from quadlin.data.columns import Counts, TableEncoder
from quadlin.data.csv_text import Dialect
from quadlin.data.names import SourceError, explained, shortened
from quadlin.data.reader import Piece, Reader

T = TypeVar("T")
END: Any = object()  # follows the last item
HELD = 2e9  # bytes of rows that are kept in memory instead of being read again in every pass


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; while one is in use, the next is fetched in a background thread.

    Parameters
    ----------
    items : iterable
        Iterated over, and closed, in the other thread.

    Yields
    ------
    item
        The items in order. An error in the other thread is raised here.

    Examples
    --------
    >>> list(read_ahead(range(5)))
    [0, 1, 2, 3, 4]
    """
    walk, pool = iter(items), ThreadPoolExecutor(1, "quadlin-read-ahead")
    coming = pool.submit(next, walk, END)
    try:
        while (item := coming.result()) is not END:
            coming = pool.submit(next, walk, END)
            yield item
            del item  # otherwise it would be kept while the next one is fetched
    finally:
        pool.submit(getattr(walk, "close", int))
        pool.shutdown(wait=False)  # nobody waits for input, which may never come


class Unit:
    """Rows that are read one after the other: a slice, a file or a part of it, a partition.

    A format of files is a subclass, a frozen dataclass: `read` is all that it must have.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    place: str | None = None  # what its rows are counted in, in messages; None for the source
    row: int = 0  # number of its first row there
    rows: int | None = None  # the number of rows, if it is known
    advice: str = "Check it."  # what to do if it cannot be read; "" leaves errors as they are

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Any]:
        """Yield (X,), (X, y) or (X, y, weight), of tables only these columns.

        The items may have any size; `rows` rows make a chunk.
        """
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Return a measure of the work of reading it."""
        return self.rows or 1

    def cut(self, count: int) -> "Sequence[Unit]":
        """Cut into about `count` units of equal size, in order."""
        return [self]

    def check(self) -> None:
        """Raise an error if the rows have changed since they were opened."""
        return

    def identity(self, columns: Sequence[Any] | None) -> Any:
        """Return what distinguishes these rows from others; None if nothing does."""
        return self

    def client(self) -> Any:
        """Return the `distributed.Client` of the cluster that holds the rows, None without one."""
        return None


@dataclass(frozen=True)
class Feed:
    """The origin of rows: pieces of any size, unit by unit."""

    units: Sequence[Unit]
    title: str  # a short description
    columns: tuple[Any, ...] | None = None  # of a table
    again: bool = True  # whether `pieces` may be called more than once
    ahead: bool = True  # whether fetching pieces in the background saves time
    per_row: float | None = None  # average number of entries of a sparse row; None for dense rows
    is_array: bool = False  # whether its pieces are slices, so that caching gains nothing
    is_csv: bool = False  # whether options of CSV can change what is read
    key: Any = None  # its identity, if the units do not show it

    @property
    def rows(self) -> int | None:
        """Return the number of rows, None if it is unknown."""
        counts = [unit.rows for unit in self.units]
        return None if None in counts else sum(count or 0 for count in counts)

    def pieces(self, rows: int) -> Iterator[Any]:
        """Yield all rows in order, in pieces or in chunks that were made before."""
        for unit in self.units:
            row = unit.row
            unit.check()
            where = unit.place or self.title
            with explained(where, unit.advice) if unit.advice else nullcontext():
                for item in unit.read(self.columns, rows):
                    if isinstance(item, Chunk):
                        yield item
                        continue
                    X, y, weight = (*item, None, None)[:3]
                    piece = Piece(X, y, weight, unit.place, row)
                    yield piece
                    row += len(piece)
            unit.check()

    def only(self, columns: Sequence[Any]) -> "Feed":
        """Return a feed that reads only these columns of a table."""
        return replace(self, columns=tuple(columns))

    def parts(self, count: int) -> "list[Feed]":
        """Cut into feeds of about equal size, in order."""
        share = sum(unit.size for unit in self.units) / count
        units = [part for unit in self.units for part in unit.cut(round(unit.size / share))]
        return [replace(self, units=units[run]) for run in spread([u.size for u in units], count)]

    def identity(self) -> Any:
        """Return what distinguishes these data from others, None if nothing does."""
        units = [unit.identity(self.columns) for unit in self.units]
        return self.key if self.key or None in units else (self.columns, units)


def spread(sizes: Sequence[int], count: int) -> list[slice]:
    """Cut a sequence of sizes into at most `count` nonempty runs with about the same total."""
    ends = np.cumsum(sizes)
    if not len(ends):
        return []
    count = min(count, len(ends))
    goals = ends[-1] * np.arange(1, count) / count
    cuts = np.unique(np.concatenate([[0], np.searchsorted(ends, goals) + 1, [len(ends)]]))
    return [slice(int(a), int(b)) for a, b in pairwise(cuts)]


def default_rows(per_row: float, width: int, sparse: bool) -> int:
    """Return the rows per chunk, such that it fits in the cache or outweighs results of size d."""
    entries = max(BLOCK_ELEMENTS, 4 * width) if sparse else BLOCK_ELEMENTS
    return max(1, int(entries / max(per_row, 1)))


@dataclass(frozen=True)
class Source(RowSource):
    """Rows from anywhere, read as chunks of equal size; made by :func:`open_source`.

    Attributes
    ----------
    names : sequence of str
        The names of the features, after text columns have been encoded ("city=Oslo").
    dtype : dtype
        The dtype of X: float32 or float64.
    rows : int or None
        Number of rows; None if it is unknown before they are read.
    again : bool
        Whether the rows can be read more than once.
    encoder : TableEncoder or None
        The encoder of the text columns.
    fields : tuple of arrays
        Positions of the features of each one-hot group.
    sparse : bool
        Whether X is CSR.
    has_target : bool
        Whether chunks have a y.
    fill : dict or None
        What missing numbers are filled with, by column, when ``missing="mean"``.
    dropped : int
        Number of rows that ``missing="drop"`` left out in the last or the current pass.
    unseen : dict
        Number of rows with a level that the encoder does not know, by column, in the last pass;
        its attribute `missing` counts missing values of columns that have no level for them.
    watch : callable or None
        Called with the number of rows of each chunk after it has been read, and with 0 at the end
        of a pass over all rows. The reading thread calls it; it is not sent to a cluster.
    """

    feed: Feed
    reader: Reader
    chunk_rows: int
    rows: int | None = None
    whole: bool = True  # not a part of another source
    counts: Counts = field(default_factory=Counts, compare=False)
    watch: Callable[[int], None] | None = field(default=None, compare=False, repr=False)
    csv: Dialect = field(default_factory=Dialect)  # how CSV was declared to be written

    @property
    def names(self) -> Sequence[str]:  # noqa: D102
        return self.reader.names

    @property
    def width(self) -> int:
        """Return the number of features."""
        return len(self.names)

    @property
    def dtype(self) -> np.dtype:  # noqa: D102
        return self.reader.dtype

    @property
    def again(self) -> bool:  # noqa: D102
        return self.feed.again

    @property
    def encoder(self) -> TableEncoder | None:  # noqa: D102
        return self.reader.encoder

    @property
    def fields(self) -> tuple[np.ndarray, ...]:  # noqa: D102
        return () if self.encoder is None else self.encoder.fields

    @property
    def sparse(self) -> bool:  # noqa: D102
        return self.reader.sparse

    @property
    def has_target(self) -> bool:  # noqa: D102
        return self.reader.has_target

    @property
    def fill(self) -> dict[str, float] | None:  # noqa: D102
        return self.reader.fill

    @property
    def dropped(self) -> int:  # noqa: D102
        return self.counts.dropped

    @property
    def unseen(self) -> Counts:  # noqa: D102
        return self.counts

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Return the labels of a text target, whose positions are y; None if y is numeric."""
        return self.reader.labels

    @property
    def boolean_target(self) -> bool:
        """Tell whether the target is a column of False and True, whose y are 0 and 1."""
        return self.reader.boolean_target

    @property
    def target(self) -> str | None:
        """Return the name of the target column; None if the target is not a column of a table."""
        return None if self.reader.target is None else str(self.reader.target)

    @property
    def weight(self) -> str | None:
        """Return the name of the weight column; None if the weights are not a column of a table."""
        return None if self.reader.weight is None else str(self.reader.weight)

    @property
    def title(self) -> str:
        """Return a short description of where the rows come from."""
        return self.feed.title

    @property
    def columns(self) -> tuple[Any, ...]:
        """Return the columns of a table that are the features; () if the rows are arrays."""
        return tuple(self.reader.columns) if self.reader.is_table else ()

    @property
    def description(self) -> str:
        """Return a description in one line."""
        rows = "unknown number of" if self.rows is None else f"{self.rows:,}"
        return f"{self.title}, {rows} rows × {self.width:,} features"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "watch": None}

    def __iter__(self) -> Iterator[Chunk]:
        return read_ahead(self._chunks()) if self.feed.ahead else self._chunks()

    def parts(self, count_hint: int) -> "Sequence[Source]":
        """Cut into disjoint sources that together, in order, are this one.

        Parameters
        ----------
        count_hint : int
            The number of parts; there may be fewer.

        Returns
        -------
        sequence of Source
            Sources that can be pickled; ``[self]`` if the rows cannot be cut.
        """
        feeds = self.feed.parts(max(1, int(count_hint)))
        if len(feeds) < 2:
            return [self]
        known = self.reader.missing == "error"
        return [
            replace(
                self, feed=feed, rows=feed.rows if known else None, whole=False, counts=Counts()
            )
            for feed in feeds
        ]

    def absorb(self, parts: Any) -> None:
        """Add up the counts of passes over its parts."""
        self.counts.clear()
        for part in parts:
            self.counts.add(part.counts)

    def fingerprint(self) -> str | None:
        """Return a hash of the data and of how they are read; None if the data have no identity."""
        reader, identity = self.reader, self.feed.identity()
        if identity is None:
            return None
        reading = (identity, reader.names, str(reader.dtype), reader.missing, reader.fill)
        return sha256(repr((reading, reader.has_target)).encode()).hexdigest()[:32]

    def client(self) -> Any:
        """Return the client of the cluster that holds the rows, if there is one."""
        return self.feed.units[0].client()

    def _chunks(self) -> Iterator[Chunk]:
        self.counts.clear()
        rows, have, total = self.chunk_rows, 0, 0
        parts: list[Chunk] = []  # of the next chunk
        for piece in self.feed.pieces(rows):
            first, height = 0, piece.X.shape[0]
            while first < height:
                last = min(height, first + rows - have)
                part = piece.between(first, last)
                if isinstance(part, Piece):
                    part = self.reader.read(part, self.counts)
                parts.append(part)
                first, have = last, have + part.X.shape[0]
                if have == rows:
                    yield self._joined(parts)
                    parts, have, total = [], 0, total + rows
        if have:
            yield self._joined(parts)
        elif self.whole and not total:
            self._refuse_nothing()
        if self.whole and self.watch is not None:
            self.watch(0)

    def _joined(self, chunks: list[Chunk]) -> Chunk:
        """Join the parts of a chunk; a single part is not copied."""
        kept = [chunk for chunk in chunks if chunk.X.shape[0]]
        if self.watch is not None:
            self.watch(sum(chunk.X.shape[0] for chunk in kept))
        if len(kept) == 1:
            return kept[0]
        if len({chunk.weight is None for chunk in kept}) > 1:
            raise SourceError(
                "Some rows have a weight and some do not. Give weights for all rows or for none."
            )
        sparse, first = issparse(kept[0].X), kept[0]
        X = [chunk.X for chunk in kept]
        y = None if first.y is None else np.concatenate([chunk.y for chunk in kept])
        weight = None if first.weight is None else np.concatenate([c.weight for c in kept])
        columns, absent = None, None
        if first.kept_columns is not None:
            frames = [nw.from_native(c.kept_columns, eager_only=True) for c in kept]
            columns = nw.concat(frames).to_native()
        if any(chunk.absent is not None for chunk in kept):
            none = (
                csr_array(c.X.shape, dtype=bool) if c.absent is None else c.absent for c in kept
            )
            absent = csr_array(vstack(list(none), "csr"))
        joined = csr_array(vstack(X, "csr")) if sparse else np.vstack(X)
        return Chunk(joined, y, weight, columns, absent)

    def _refuse_nothing(self) -> NoReturn:
        if self.dropped:
            raise SourceError(
                f"{self.title}: all {self.dropped} rows have missing values and were "
                'dropped. Use missing="mean", or leave the incomplete columns out with `exclude`.'
            )
        raise SourceError(f"{self.title} holds no rows. At least one is needed.")


def cached(source: Source, max_bytes: float = HELD) -> Source:
    """Return the same rows, cached in memory, or the source itself if they take too much.

    Parameters
    ----------
    source : Source
        Rows that can be read again. Slices of an array are not cached, nor are rows that were
        opened with ``keep``.
    max_bytes : float
        The most bytes that the rows may take.

    Returns
    -------
    Source
        A source with the same chunks and the same fingerprint.

    Examples
    --------
    >>> import polars as pl
    >>> from quadlin.data import open_source
    >>> source = open_source(pl.DataFrame({"a": [1.0, 2.0, 3.0]}), chunk_rows=2)
    >>> [chunk.X.shape for chunk in cached(source, 1e6)], cached(source, 10) is source
    ([(2, 1), (1, 1)], True)
    """
    if not source.again or source.feed.is_array or source.reader.kept_columns is not None:
        return source
    chunks, size = [], 0
    for chunk in Rows.of(source).walk():
        chunks.append(replace(chunk, y=None if chunk.y is None else np.array(chunk.y)))
        size += _bytes(chunk)
        if size > max_bytes:
            return source
    key = source.feed.identity()
    feed = Feed([ReadChunk(chunk) for chunk in chunks], source.title, ahead=False, key=key)
    return replace(source, feed=feed, rows=feed.rows, counts=Counts())


@dataclass(frozen=True)
class ReadChunk(Unit):
    """Rows that a reader has turned into numbers before."""

    chunk: Chunk

    @property
    def rows(self) -> int:  # type: ignore[override]
        """Return the number of rows."""
        return int(self.chunk.X.shape[0])

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Chunk]:
        """Yield the chunk."""
        yield self.chunk


def _bytes(chunk: Chunk) -> int:
    X = chunk.X
    arrays = [X.data, X.indices, X.indptr] if issparse(X) else [X]
    return sum(a.nbytes for a in (*arrays, chunk.y, chunk.weight) if a is not None)


PACKED = (".gz", ".bz2", ".xz")


class Format(NamedTuple):
    """A format of files. The module that reads one adds it to `FORMATS`."""

    suffixes: tuple[str, ...]
    # (files, options of `open_source`) → the feed, and the reader or, of tables, an empty frame
    open: Callable[..., tuple[Any, Any]]
    title: str
    packed: tuple[str, ...] = ()  # how files may be compressed
    is_table: bool = False


FORMATS: dict[str, Format] = {}


@dataclass(frozen=True)
class File:
    """A file as it was when it was first seen.

    A later fit recognises the file by its size and its time of modification. Within a fit, a
    rewrite that keeps both is noticed by the time of the inode's last change.
    """

    path: str
    size: int
    mtime: int  # nanoseconds
    ctime: int | None = field(default=None, compare=False, repr=False)  # None on another machine

    @classmethod
    def of(cls, path: str) -> "File":
        """Return a file in its present state."""
        with explained(f"File {path}", "Check the path."):
            status = Path(path).stat()
        return cls(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ctime": None}  # a copy on a worker's disk has another ctime

    def check(self) -> None:
        """Raise an error for a file that has changed."""
        now = File.of(self.path)
        touched = self.ctime is not None and now.ctime != self.ctime
        if now != self or touched:
            raise SourceError(
                f"File {self.path} has changed since it was opened. Open it again when it is "
                "complete."
            )


@dataclass(frozen=True)
class FileUnit(Unit):
    """Rows of a file."""

    file: File

    @property
    def place(self) -> str:  # type: ignore[override]
        """Return the path, for messages."""
        return f"file {self.file.path}"

    @property
    def size(self) -> int:
        """Return the size of the file."""
        return max(1, self.file.size)

    def check(self) -> None:
        """Raise an error for a file that has changed."""
        self.file.check()


@dataclass(frozen=True)
class FileSet:
    """The files that a path means."""

    files: tuple[File, ...]
    format: str
    title: str  # "Parquet folder sales/, 12 files"


def find(given: Any, format: str | None) -> FileSet:
    """Return the files that a path, a folder, a pattern or a list of paths means.

    Parameters
    ----------
    given : str, path-like, or a list of them
        What the user gave.
    format : str or None
        The format. If None, the suffix decides.

    Returns
    -------
    FileSet
    """
    if isinstance(given, list | tuple):
        shown, paths, kind = f"{len(given)} paths", [_text(path) for path in given], "files"
    else:
        shown = _text(given)
        paths, kind = _expanded(shown, format)
    chosen = format or _common_format(paths, shown)
    if chosen not in FORMATS:
        raise SourceError(f"format={format!r} is not one of {', '.join(FORMATS)}.")
    files = tuple(map(File.of, paths))
    for file in files:
        if not (file.size and Path(file.path).is_file()):
            raise SourceError(f"{file.path} is empty (0 bytes), or no file. Write it again.")
    title = f"{FORMATS[chosen].title} {kind} {shown}"
    count = f", {len(files)} file{'s' * (len(files) != 1)}" if kind != "file" else ""
    return FileSet(files, chosen, title + count)


def format_of(path: str) -> str | None:
    """Return the format that the name of a file suggests; None if it suggests none."""
    name = Path(path)
    packed = name.suffix.lower() in PACKED
    suffix = (name.with_suffix("") if packed else name).suffix.lower()
    format = next((key for key, each in FORMATS.items() if suffix in each.suffixes), None)
    if format is None or not packed or name.suffix.lower() in FORMATS[format].packed:
        return format
    raise SourceError(f"{path}: a {format} file cannot be read compressed. Decompress it first.")


def _text(path: Any) -> str:
    text = fspath(path)
    text = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    if re.match(r"[a-zA-Z][a-zA-Z0-9+]+://", text):
        raise SourceError(
            f"{text} is not a file on this machine. Download it first, or give a "
            "pyarrow.dataset or a Dask frame that reads it."
        )
    return text


def _expanded(shown: str, format: str | None) -> tuple[list[str], str]:
    with explained(f"Path {shown}", "Check the path."):
        path = Path(shown)
        if path.is_dir():
            return _inside(path, format), "folder"
        if has_magic(shown) and not path.exists():
            matched = sorted(p for p in glob(shown, recursive=True) if Path(p).is_file())
            if not matched:
                raise SourceError(f"No file matches {shown}. Check the pattern.")
            return matched, "files"
        if not path.exists():
            raise SourceError(f"File {shown} does not exist. Check the path.")
        return [shown], "file"


def _inside(folder: Path, format: str | None) -> list[str]:
    paths = []
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder).parts
        if any(part.startswith((".", "_")) for part in inner) or not path.is_file():
            continue
        if format is None and format_of(path.name) is None:
            continue
        if keyed := [part for part in inner[:-1] if re.fullmatch(r"\w+=.*", part)]:
            raise SourceError(
                f"The names of the folders in {folder} hold values ({keyed[0]}). Give "
                f'pyarrow.dataset.dataset({str(folder)!r}, partitioning="hive") instead.'
            )
        paths.append(str(path))
    if not paths:
        raise SourceError(
            f"Folder {folder!s} holds no files of rows ({', '.join(FORMATS)}). "
            "Check the path, or give `format` if the files have other names."
        )
    return paths


def _common_format(paths: list[str], shown: str) -> str:
    formats = {format_of(path): path for path in paths}
    if None in formats or len(formats) != 1:
        raise SourceError(
            f"The names of {shown} do not show one format ({shortened(formats.values())}). Give "
            f"files of one of {', '.join(FORMATS)}, and `format` if their names are others."
        )
    return str(next(iter(formats)))
