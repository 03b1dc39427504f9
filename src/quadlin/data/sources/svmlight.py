"""Files of svmlight (libsvm) and libffm lines, read in blocks of bytes, also if compressed."""

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from quadlin.data.columns.errors import SourceError, explained, first_line
from quadlin.data.columns.names import NumberedNames
from quadlin.data.sources.feeds import Feed, Piece, spread
from quadlin.data.sources.files import File, FileSet
from quadlin.data.sources.readers import ArrayReader

BLOCK = 1 << 22  # bytes parsed at once
LONGEST = 1 << 28  # bytes of a line; a file with longer lines is not text
ADVICE = {
    "svmlight": "A line is “target index:value index:value …”, with increasing indices.",
    "libffm": "A line is “target field:index:value …”.",
}


def whole_lines(handle: Any, limit: int | None) -> Iterator[bytes]:
    """Yield blocks of whole lines."""
    rest = b""
    while limit is None or limit > 0:
        data = handle.read(BLOCK if limit is None else min(BLOCK, limit))
        if not data:
            break
        if isinstance(data, str):
            raise SourceError('The stream is in text mode. Open it in binary mode ("rb").')
        limit = None if limit is None else limit - len(data)
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = data[end:]
        else:
            rest += data
            if len(rest) > LONGEST:
                raise SourceError("A line is longer than 256 MB, so these are not lines of rows.")
    if rest:
        yield rest


def parsed_block(block: bytes, format: str, path: str, line: int) -> tuple[csr_array, np.ndarray]:
    """Return the rows and targets of a block of lines, or refuse a line that cannot be read."""
    parse = _svmlight if format == "svmlight" else _libffm
    try:
        return parse(block)
    except MemoryError:
        raise
    except Exception:  # parse line by line to find the one to name
        for text in block.splitlines():
            try:
                line += len(parse(text + b"\n")[1])
            except Exception as error:
                shown = text[:60].decode(errors="replace")
                raise SourceError(
                    f"Row {line} of {path} (counted from 0) is not {format}: {shown!r}: "
                    f"{first_line(error)} {ADVICE[format]}"
                ) from None
        raise


def _svmlight(block: bytes) -> tuple[csr_array, np.ndarray]:
    if b"\0" in block:
        raise ValueError("it contains a NUL byte")
    from sklearn.datasets import load_svmlight_file  # slow to import

    X, y = load_svmlight_file(BytesIO(block), zero_based=True)
    return csr_array(X), y


def _libffm(block: bytes) -> tuple[csr_array, np.ndarray]:
    lines = [line for line in block.splitlines() if line.strip()]
    tokens = [line.split() for line in lines]
    counts = np.array([len(entries) - 1 for entries in tokens], dtype=np.int64)
    y = np.array([float(entries[0]) for entries in tokens])
    fields, indices, data = _triples([entry for entries in tokens for entry in entries[1:]])
    row = np.repeat(np.arange(len(y)), counts)
    order = np.lexsort((indices, row))
    row, indices, fields, data = row[order], indices[order], fields[order], data[order]
    if np.any((row[1:] == row[:-1]) & (indices[1:] == indices[:-1])):
        raise ValueError("an index occurs twice in a row")
    width = int(indices.max(initial=0)) + 1
    X = csr_array((data, indices, np.concatenate([[0], np.cumsum(counts)])), shape=(len(y), width))
    X.fields = fields
    return X, y


def _triples(entries: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the fields, indices and values of entries such as 3:17:0.5."""
    triples = [entry.split(b":") for entry in entries]
    if any(len(triple) != 3 for triple in triples):
        raise ValueError("an entry is not field:index:value")
    places = [(int(a), int(b)) for a, b, _ in triples]
    data = np.array([float(c) for _, _, c in triples], dtype=np.float64)
    if min((min(place) for place in places), default=0) < 0:
        raise ValueError("a field or an index is negative")
    if max((max(place) for place in places), default=0) > np.iinfo(np.int64).max // 2:
        raise ValueError("a field or an index is too large")
    fields, indices = (np.array([place[i] for place in places], dtype=np.int64) for i in (0, 1))
    return fields, indices, data


def placed(X: csr_array, width: int | None, base: int, path: str) -> csr_array:
    """Return rows of `width` features with indices from 0; in the text they start at `base`.

    An index of a feature that does not exist is refused. Indices have 32 bits if that is enough.
    """
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
    kind = np.int32 if max(width or X.shape[1], X.nnz) < np.iinfo(np.int32).max else np.int64
    parts = X.data, indices.astype(kind), X.indptr.astype(kind)
    return csr_array(parts, shape=(X.shape[0], width or X.shape[1]))


MOST = 1 << 27  # features, unless the user gives more: a model then takes 1 GB per component
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclass(frozen=True)
class Span:
    """Whole lines of a file."""

    file: File
    first: int = 0  # byte
    last: int | None = None
    line: int = 0  # number of rows before it in its file
    start: int | None = 0  # and in the whole source
    rows: int | None = None


@dataclass(frozen=True)
class LineFeed(Feed):
    """Rows of text files with sparse entries."""

    format: str
    spans: tuple[Span, ...]
    title: str
    width: int | None = None
    base: int = 0  # the number of the first feature in the files
    per_row: float = 64.0  # average number of entries of a row
    again = ahead = True

    @property
    def rows(self) -> int | None:
        """Return the number of rows, None if it is unknown."""
        rows = [span.rows for span in self.spans]
        return None if None in rows else sum(count or 0 for count in rows)

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield the rows of each block of bytes."""
        for span, y, X in self.parsed():
            X = placed(X, self.width, self.base, span.file.path)
            yield Piece(X, y, None, span.file.path, span.line, span.start)

    def parsed(self) -> Iterator[tuple[Span, np.ndarray, csr_array]]:
        """Yield each block's span, targets and rows, with the indices of the file."""
        start = self.spans[0].start if self.spans else 0
        for span in self.spans:
            span.file.check()
            line, at = span.line, span.first
            with explained(f"File {span.file.path}", ADVICE[self.format]):
                for block in _blocks(span):
                    X, y = parsed_block(block, self.format, span.file.path, line)
                    block_span = Span(span.file, at, at + len(block), line, start, len(y))
                    yield block_span, y, X
                    line, at = line + len(y), at + len(block)
                    start = None if start is None else start + len(y)
            span.file.check()

    def parts(self, count: int) -> list["LineFeed"]:
        """Cut between blocks of lines if a scan has found them, otherwise between files."""
        sizes = [max(1, span.file.size if span.rows is None else span.rows) for span in self.spans]
        return [replace(self, spans=self.spans[run]) for run in spread(sizes, count)]

    def identity(self) -> Any:
        """Return the files as they were when they were opened."""
        files = tuple(dict.fromkeys(span.file for span in self.spans))
        first, last = self.spans[0], self.spans[-1]
        return self.format, files, first.first, last.last, self.width, self.base


def open_lines(
    files: FileSet, n_features: int | None, zero_based: bool | str, missing: str
) -> tuple[LineFeed, ArrayReader]:
    """Find the number of features, the base of the indices and the fields by a scan.

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
    spans = tuple(Span(file, start=None if i else 0) for i, file in enumerate(files.files))
    feed = LineFeed(files.format, spans, files.title)
    fields: tuple[np.ndarray, ...] = ()
    if n_features is None or zero_based == "auto" or files.format == "libffm":
        scan = _Scan(files.format == "libffm")
        for span, _, X in feed.parsed():
            scan.add(span, X)
        feed, fields = scan.settled(feed, n_features, zero_based)
    else:
        feed = replace(feed, width=int(n_features), base=0 if zero_based else 1)
    assert feed.width is not None
    return feed, ArrayReader(
        NumberedNames(feed.width), np.dtype(np.float64), True, True, fields, missing
    )


def open_line_stream(
    handle: Any, format: str, n_features: int | None, zero_based: bool | str, missing: str
) -> tuple[Any, ArrayReader]:
    """Read the lines of an open binary file once; the user must give what a scan would find."""
    from quadlin.data.sources.iterators import IteratorFeed, Once

    if n_features is None or zero_based == "auto":
        raise SourceError(
            f"A {format} stream can be read only once. Give `n_features` and "
            "zero_based=True or zero_based=False, or save the stream to a file."
        )
    base, width = 0 if zero_based else 1, int(n_features)

    def rows() -> Iterator[tuple[Any, Any]]:
        line = 0
        with explained(f"The {format} stream", ADVICE[format]):
            for block in whole_lines(handle, None):
                X, y = parsed_block(block, format, "the stream", line)
                line += len(y)
                yield placed(X, width, base, "the stream"), y

    reader = ArrayReader(NumberedNames(width), np.dtype(np.float64), True, True, (), missing)
    return IteratorFeed(Once(rows()), f"{format} stream", None, False, 64.0), reader


@dataclass
class _Scan:
    """What a scan of all lines shows."""

    with_fields: bool
    spans: list[Span] = field(default_factory=list)
    least: int | None = None
    most: int = -1
    entries: int = 0
    field_of: dict[int, int] = field(default_factory=dict)  # by feature
    mixed: set[int] = field(default_factory=set)  # fields that are not one-hot

    def add(self, span: Span, X: csr_array) -> None:
        self.spans.append(span)
        self.entries += X.nnz
        if not X.nnz:
            return
        low, high = int(X.indices.min()), int(X.indices.max())
        self.least = low if self.least is None else min(self.least, low)
        self.most = max(self.most, high)
        if self.with_fields:
            self._note_fields(X, X.fields)

    def _note_fields(self, X: csr_array, fields: np.ndarray) -> None:
        self.mixed.update(np.unique(fields[(X.data != 0) & (X.data != 1)]).tolist())
        row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[X.data != 0]
        pairs = np.stack([row, fields[X.data != 0]])
        values, counts = np.unique(pairs, axis=1, return_counts=True)
        self.mixed.update(np.unique(values[1][counts > 1]).tolist())
        for feature, number in np.unique(np.stack([X.indices, fields]), axis=1).T.tolist():
            first = self.field_of.setdefault(feature, number)
            if first != number:
                self.mixed.update((first, number))

    def settled(
        self, feed: LineFeed, n_features: int | None, zero_based: bool | str
    ) -> tuple[LineFeed, tuple[np.ndarray, ...]]:
        """Return the feed with the results of the scan, and the fields that are one-hot."""
        rows = sum(span.rows or 0 for span in self.spans)
        if not rows:
            raise SourceError(f"{feed.title} holds no rows. At least one is needed.")
        if self.least is None and n_features is None:
            raise SourceError(f"{feed.title} has no entries, so no features. Give `n_features`.")
        base = self._base(feed.title, n_features, zero_based)
        width = self.most + 1 - base if n_features is None else int(n_features)
        if width > MOST and n_features is None:
            raise SourceError(
                f"{feed.title}: index {self.most} would make a model of {width:,} "
                "features. Check that line, or give `n_features` if this is intended."
            )
        packed = any(span.file.path.endswith(tuple(OPENERS)) for span in feed.spans)
        # A compressed file cannot be read from the middle.
        spans = self._files() if packed else [span for span in self.spans if span.rows]
        per_row = self.entries / rows
        feed = replace(feed, spans=tuple(spans), width=width, base=base, per_row=per_row)
        return feed, self._one_hot_fields(base)

    def _base(self, title: str, n_features: int | None, zero_based: bool | str) -> int:
        """Return the index of the first feature, 0 or 1."""
        if zero_based != "auto":
            return 1 - bool(zero_based)
        if self.with_fields or self.least == 0:
            return 0
        if n_features is not None:
            self._refuse_either(title, int(n_features))
        return 1

    def _one_hot_fields(self, base: int) -> tuple[np.ndarray, ...]:
        """Return the features of each field with at most one feature per row, of value 1."""
        members: dict[int, list[int]] = {}
        for feature, number in sorted(self.field_of.items()):
            if number not in self.mixed:
                members.setdefault(number, []).append(feature - base)
        return tuple(np.array(group) for _, group in sorted(members.items()) if len(group) > 1)

    def _refuse_either(self, title: str, width: int) -> None:
        """Refuse indices that may start at 0 or at 1: a wrong guess would shift the features."""
        if self.least is not None and self.most < width:
            raise SourceError(
                f"{title}: the indices {self.least} to {self.most} of {width} features "
                "may start at 0 or at 1. Give zero_based=True or zero_based=False."
            )

    def _files(self) -> list[Span]:
        """Return whole files instead of blocks."""
        whole: dict[File, Span] = {}
        for span in self.spans:
            first = whole.get(span.file, replace(span, last=None, rows=0))
            whole[span.file] = replace(first, rows=(first.rows or 0) + (span.rows or 0))
        return list(whole.values())


def _blocks(span: Span) -> Iterator[bytes]:
    suffix = next((s for s in OPENERS if span.file.path.endswith(s)), None)
    with (open if suffix is None else OPENERS[suffix])(span.file.path, "rb") as handle:
        if span.first:
            handle.seek(span.first)
        yield from whole_lines(handle, None if span.last is None else span.last - span.first)
