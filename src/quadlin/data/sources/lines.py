"""Files of svmlight (libsvm) and libffm lines, read in blocks of whole lines, also compressed."""

import bz2
import gzip
import itertools
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from quadlin.data.columns.errors import SourceError, explained, first_line
from quadlin.data.sources.feeds import Feed, Piece, spread
from quadlin.data.sources.files import File, FileSet
from quadlin.data.sources.readers import Reader

BLOCK = 1 << 22  # bytes parsed at once
LONGEST = 1 << 28  # bytes of a line; a file with longer lines is not text
MOST = 1 << 27  # features, unless the user gives more: a model then takes 1 GB per component
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
ADVICE = {
    "svmlight": "A line is “target index:value index:value …”, with increasing indices.",
    "libffm": "A line is “target field:index:value …”.",
}


class Parsed(NamedTuple):
    """Rows of a block of lines."""

    X: csr_array  # with the indices of the file
    y: np.ndarray
    fields: np.ndarray | None = None  # of each entry


def parse_svmlight(block: bytes) -> Parsed:
    """Parse lines of “target index:value …”."""
    if b"\0" in block:
        raise ValueError("it contains a NUL byte")
    from sklearn.datasets import load_svmlight_file  # slow to import

    X, y = load_svmlight_file(BytesIO(block), zero_based=True)
    return Parsed(csr_array(X), y)


def parse_libffm(block: bytes) -> Parsed:
    """Parse lines of “target field:index:value …”."""
    rows = [line.split() for line in block.splitlines() if line.strip()]
    entries = [entry.split(b":") for row in rows for entry in row[1:]]
    if any(len(entry) != 3 for entry in entries):
        raise ValueError("an entry is not field:index:value")
    places = np.array([[int(a), int(b)] for a, b, _ in entries], np.int64).reshape(-1, 2)
    if places.min(initial=0) < 0:
        raise ValueError("a field or an index is negative")
    ends = np.cumsum([0, *(len(row) - 1 for row in rows)])
    parts = np.array([float(c) for *_, c in entries]), places[:, 1], ends
    X = csr_array(parts, shape=(len(rows), int(places[:, 1].max(initial=-1)) + 1))
    if len(np.unique(_rows_of(X) * (X.shape[1] + 1.0) + X.indices)) < X.nnz:
        raise ValueError("an index occurs twice in a row")
    return Parsed(X, np.array([float(row[0]) for row in rows]), places[:, 0])


PARSERS: dict[str, Callable[[bytes], Parsed]] = {
    "svmlight": parse_svmlight,
    "libffm": parse_libffm,
}


def parse(block: bytes, format: str, where: str, row: int) -> Parsed:
    """Parse a block whose first line is this row, or raise an error that shows the bad line."""
    try:
        return PARSERS[format](block)
    except MemoryError:
        raise
    except Exception:  # parse line by line to find the one to name
        for text in block.splitlines():
            try:
                row += len(PARSERS[format](text + b"\n").y)
            except Exception as error:
                shown = text[:60].decode(errors="replace")
                raise SourceError(
                    f"Row {row} of {where} (counted from 0) is not {format}: {shown!r}: "
                    f"{first_line(error)} {ADVICE[format]}"
                ) from None
        raise


def read_blocks(handle: Any, last: int | None = None) -> Iterator[bytes]:
    """Yield blocks of whole lines, up to the line that contains the byte before `last`."""
    while last is None or handle.tell() < last:
        block = handle.read(BLOCK if last is None else min(BLOCK, last - handle.tell()))
        if isinstance(block, str):
            raise SourceError('The stream is in text mode. Open it in binary mode ("rb").')
        if not block:
            return
        if not block.endswith(b"\n"):
            block += handle.readline(LONGEST)
            if len(block) > LONGEST:
                raise SourceError("A line is longer than 256 MB, so these are not lines of rows.")
        yield block


def place(X: csr_array, width: int | None, base: int, path: str) -> csr_array:
    """Return rows of `width` features with indices from 0; in the file they start at `base`."""
    indices = X.indices - base
    if X.nnz and indices.min() < 0:
        raise SourceError(
            f"{path} has an index 0, but its indices start at 1. Use zero_based=True."
        )
    if X.nnz and width is not None and indices.max() >= width:
        raise SourceError(
            f"{path} has index {int(indices.max()) + base}, but there are {width} "
            "features. Raise `n_features`, or check the file."
        )
    width = width or X.shape[1]
    kind = np.int32 if max(width, X.nnz) < np.iinfo(np.int32).max else np.int64
    parts = X.data, indices.astype(kind), X.indptr.astype(kind)
    return csr_array(parts, shape=(X.shape[0], width))


class Span(NamedTuple):
    """The lines of a file that begin from byte `first` on and before byte `last`."""

    file: File
    first: int = 0
    last: int | None = None

    @property
    def title(self) -> str:
        """Return the path, and where in the file the lines begin."""
        return self.file.path + (f" after byte {self.first}" if self.first else "")

    def blocks(self) -> Iterator[bytes]:
        """Yield blocks of whole lines."""
        opener = next((o for suffix, o in OPENERS.items() if self.file.path.endswith(suffix)), open)
        with opener(self.file.path, "rb") as handle:
            if self.first:
                handle.seek(self.first - 1)
                handle.readline()  # of the span before
            yield from read_blocks(handle, self.last)

    def cut(self, size: float) -> "list[Span]":
        """Cut into spans of about this many bytes; a compressed file cannot be cut."""
        if self.file.path.endswith(tuple(OPENERS)):
            return [self]
        first, last = self.first, self.file.size if self.last is None else self.last
        ends = np.linspace(first, last, max(1, round((last - first) / size)) + 1).astype(int)
        return [Span(self.file, int(a), int(b)) for a, b in itertools.pairwise(ends)]


@dataclass(frozen=True)
class LineFeed(Feed):
    """Rows of text files with sparse entries."""

    format: str
    spans: tuple[Span, ...]
    title: str
    width: int | None = None
    base: int = 0  # the number of the first feature in the files
    per_row: float = 64.0  # average number of entries of a row
    rows: int | None = None
    start: int | None = 0  # number of the first row, if known
    again = ahead = True

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield the rows of each block of bytes."""
        for span, row, start, block in self.parsed():
            X = place(block.X, self.width, self.base, span.file.path)
            yield Piece(X, block.y, None, span.title, row, start)

    def parsed(self) -> Iterator[tuple[Span, int, int | None, Parsed]]:
        """Yield each block's span, its first row in the span and in all, and its rows."""
        start = self.start
        for span in self.spans:
            span.file.check()
            row = 0
            with explained(f"File {span.file.path}", ADVICE[self.format]):
                for block in span.blocks():
                    parsed = parse(block, self.format, span.title, row)
                    yield span, row, start, parsed
                    row += len(parsed.y)
                    start = None if start is None else start + len(parsed.y)
            span.file.check()

    def parts(self, count: int) -> list["LineFeed"]:
        """Cut files into runs of lines."""
        total = sum((s.last or s.file.size) - s.first for s in self.spans)
        spans = [part for span in self.spans for part in span.cut(max(1.0, total / count))]
        runs = spread([max(1, (s.last or s.file.size) - s.first) for s in spans], count)
        if len(runs) < 2:
            return [self]
        return [replace(self, spans=tuple(spans[r]), rows=None, start=None) for r in runs]

    def identity(self) -> Any:
        """Return the files as they were when they were opened."""
        return self.format, self.spans, self.width, self.base


def open_lines(
    files: FileSet, n_features: int | None, zero_based: bool | str, missing: str
) -> tuple[LineFeed, Reader]:
    """Open files; a scan finds what is not given: the number of features, their base, the fields.

    Parameters
    ----------
    files : FileSet
        The files.
    n_features : int or None
        Number of features. If None, the largest index decides.
    zero_based : bool or "auto"
        Whether the first feature has index 0; "auto" means yes if 0 occurs in any file.
    missing : str
        What to do with NaN.

    Returns
    -------
    feed, reader
    """
    for file in files.files:
        if not file.size:
            raise SourceError(f"File {file.path} is empty (0 bytes). Write it again.")
    feed = LineFeed(files.format, tuple(map(Span, files.files)), files.title)
    fields: tuple[np.ndarray, ...] = ()
    if n_features is None or zero_based == "auto" or files.format == "libffm":
        feed, fields = _scan(feed, n_features, zero_based)
    else:
        feed = replace(feed, width=int(n_features), base=0 if zero_based else 1)
    assert feed.width is not None
    return feed, Reader.of_array(feed.width, np.float64, True, True, missing, fields)


def open_line_stream(
    handle: Any, format: str, n_features: int | None, zero_based: bool | str, missing: str
) -> tuple[Any, Reader]:
    """Read the lines of an open binary file once; the user must give what a scan would find."""
    from quadlin.data.sources.iterators import IteratorFeed, Once

    if n_features is None or zero_based == "auto":
        raise SourceError(
            f"A {format} stream can be read only once. Give `n_features` and "
            "zero_based=True or zero_based=False, or save the stream to a file."
        )
    base, width = 0 if zero_based else 1, int(n_features)

    def rows() -> Iterator[tuple[Any, Any]]:
        row = 0
        with explained(f"The {format} stream", ADVICE[format]):
            for block in read_blocks(handle):
                X, y, _ = parse(block, format, "the stream", row)
                row += len(y)
                yield place(X, width, base, "the stream"), y

    feed = IteratorFeed(Once(rows()), f"{format} stream", None, False, 64.0)
    return feed, Reader.of_array(width, np.float64, True, True, missing)


def _scan(
    feed: LineFeed, n_features: int | None, zero_based: bool | str
) -> tuple[LineFeed, tuple[np.ndarray, ...]]:
    """Return the feed with its size and its base, and the fields that are one-hot."""
    rows, entries, low, high, groups = 0, 0, np.inf, -1, _Groups()
    for _, _, _, block in feed.parsed():
        rows, entries = rows + len(block.y), entries + block.X.nnz
        low = min(low, block.X.indices.min(initial=block.X.shape[1]) if block.X.nnz else np.inf)
        high = max(high, int(block.X.indices.max(initial=-1)))
        if block.fields is not None:
            groups.add(block.X, block.fields)
    if not rows:
        raise SourceError(f"{feed.title} holds no rows. At least one is needed.")
    if not entries and n_features is None:
        raise SourceError(f"{feed.title} has no entries, so no features. Give `n_features`.")
    if zero_based != "auto":
        base = 1 - bool(zero_based)
    else:
        base = 0 if feed.format == "libffm" or low == 0 else 1
        if base and entries and n_features is not None and high < n_features:
            raise SourceError(
                f"{feed.title}: the indices {low:.0f} to {high} of {n_features} features "
                "may start at 0 or at 1. Give zero_based=True or zero_based=False."
            )
    width = high + 1 - base if n_features is None else int(n_features)
    if width > MOST and n_features is None:
        raise SourceError(
            f"{feed.title}: index {high} would make a model of {width:,} "
            "features. Check that line, or give `n_features` if this is intended."
        )
    per_row = entries / rows
    return replace(feed, width=width, base=base, per_row=per_row, rows=rows), groups.one_hot(base)


@dataclass
class _Groups:
    """The features of each field, and the fields that are not one-hot."""

    field_of: dict[int, int] = field(default_factory=dict)  # by feature
    mixed: set[int] = field(default_factory=set)

    def add(self, X: csr_array, fields: np.ndarray) -> None:
        used = X.data != 0
        self.mixed.update(np.unique(fields[used & (X.data != 1)]).tolist())
        pairs, counts = np.unique([_rows_of(X)[used], fields[used]], axis=1, return_counts=True)
        self.mixed.update(np.unique(pairs[1][counts > 1]).tolist())
        for feature, number in np.unique([X.indices, fields], axis=1).T.tolist():
            if (first := self.field_of.setdefault(feature, number)) != number:
                self.mixed.update((first, number))

    def one_hot(self, base: int) -> tuple[np.ndarray, ...]:
        members: dict[int, list[int]] = {}
        for feature, number in sorted(self.field_of.items()):
            if number not in self.mixed:
                members.setdefault(number, []).append(feature - base)
        return tuple(np.array(group) for _, group in sorted(members.items()) if len(group) > 1)


def _rows_of(X: csr_array) -> np.ndarray:
    """Return the row of each entry."""
    return np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
