"""Files of svmlight (libsvm) and libffm lines, read in blocks of whole lines, also compressed."""

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from quadlin.data.csv_text import TEXT_BLOCK
from quadlin.data.files import FORMATS, PACKED, FileSet, FileUnit, Format
from quadlin.data.names import SourceError, explained, first_line
from quadlin.data.reader import Reader
from quadlin.data.source import Feed

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
LINES = {
    "svmlight": "A line is “target index:value index:value …”, with increasing indices.",
    "libffm": "A line is “target field:index:value …”.",
}
NO_MARKS = bytes(set(range(256)).difference(b" :\n"))
Parsed = tuple[csr_array, np.ndarray, Any]  # rows, targets, and the field of each entry


def parse_svmlight(block: bytes) -> Parsed:
    """Parse lines of “target index:value …”."""
    from sklearn.datasets import load_svmlight_file  # slow to import

    if b"\0" in block:
        raise ValueError("it contains a NUL byte")
    X, y = load_svmlight_file(BytesIO(block), zero_based=True)
    return csr_array(X), y, None


def parse_libffm(block: bytes) -> Parsed:
    """Parse lines of “target field:index:value …”."""
    lines = [b" ".join(line.split()) for line in block.splitlines() if line.strip()]
    text = b"\n".join([*lines, b""])
    marks = text.translate(None, NO_MARKS)
    if marks.replace(b" ::", b"") != b"\n" * len(lines):  # a space and two colons for each entry
        raise ValueError("an entry is not “field:index:value”")
    line_ends = np.flatnonzero(np.frombuffer(marks, np.uint8) == ord("\n"))
    ends = np.append(0, (line_ends - np.arange(len(lines))) // 3)
    words = text.replace(b":", b" ").split()
    numbers = np.fromiter(map(float, words), np.float64, len(words))
    places = ends[:-1] * 3 + np.arange(len(lines))  # of the targets
    fields, indices, values = np.delete(numbers, places).reshape(-1, 3).T.copy()
    for whole in (fields, indices):
        if not np.all((whole >= 0) & (whole < 1 << 31) & (whole % 1 == 0)):
            raise ValueError("a field or an index is not a whole number from 0 to 2³¹")
    X = csr_array((values, indices.astype(np.int64), ends), shape=(len(lines), 1 << 31))
    keys = np.sort((_rows_of(X) << 31) + X.indices)
    if (keys[1:] == keys[:-1]).any():
        raise ValueError("an index occurs twice in a row")
    return X, numbers[places], fields.astype(np.int64)


PARSERS = {"svmlight": parse_svmlight, "libffm": parse_libffm}


@dataclass(frozen=True)
class Lines(FileUnit):
    """The lines of a file that begin from byte `first` on and before byte `last`."""

    format: str
    first: int = 0
    last: int | None = None
    width: int | None = None  # features; None until they are known
    base: int = 0  # the number of the first feature in the file
    rows: int | None = None

    @property
    def place(self) -> str:  # type: ignore[override]
        """Return the path, and where in the file the lines begin."""
        return f"file {self.file.path}" + (f" after byte {self.first}" if self.first else "")

    @property
    def advice(self) -> str:  # type: ignore[override]
        """Return what a line looks like."""
        return LINES[self.format]

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return max(1, (self.file.size if self.last is None else self.last) - self.first)

    def blocks(self) -> Iterator[Parsed]:
        """Yield parsed blocks of whole lines, with the indices of the file."""
        opener = next((o for suffix, o in OPENERS.items() if self.file.path.endswith(suffix)), open)
        with opener(self.file.path, "rb") as handle:
            if self.first:
                handle.seek(self.first - 1)
                handle.readline()  # of the lines before
            row, last = 0, np.inf if self.last is None else self.last
            while handle.tell() < last and (
                lines := handle.readlines(int(min(TEXT_BLOCK, last - handle.tell())))
            ):
                try:
                    parsed = PARSERS[self.format](b"".join(lines))
                except MemoryError:
                    raise
                except Exception:
                    self._refuse_line(lines, row)
                    raise
                yield parsed
                row += len(parsed[1])

    def _refuse_line(self, lines: list[bytes], row: int) -> None:
        """Raise an error that shows the first bad line of a block, whose first row is `row`."""
        for text in lines:
            try:
                row += len(PARSERS[self.format](text)[1])
            except Exception as error:
                shown = text[:60].rstrip().decode(errors="replace")
                raise SourceError(
                    f"Row {row} of {self.place} (counted from 0) is not {self.format}: {shown!r}: "
                    f"{first_line(error)} {self.advice}"
                ) from None

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Any]:
        """Yield the rows and targets of each block."""
        for X, y, _ in self.blocks():
            yield placed(X, self.width or 0, self.base, self.file.path), y

    def cut(self, count: int) -> "Sequence[Lines]":
        """Cut at about equal distances; a compressed file cannot be cut."""
        if self.file.path.endswith(tuple(OPENERS)) or count < 2:
            return [self]
        ends = np.linspace(self.first, self.first + self.size, count + 1).astype(int).tolist()
        return [replace(self, first=a, last=b, rows=None) for a, b in pairwise(ends)]


def placed(X: csr_array, width: int, base: int, path: str) -> csr_array:
    """Return rows of `width` features with indices from 0; in the file they start at `base`."""
    indices = X.indices - base
    if X.nnz and indices.min() < 0:
        raise SourceError(
            f"{path} has an index 0, but its indices start at 1. Use zero_based=True."
        )
    if X.nnz and indices.max() >= width:
        raise SourceError(
            f"{path} has index {int(indices.max()) + base}, but there are {width} "
            "features. Raise `n_features`, or check the file."
        )
    kind = np.int32 if max(width, X.nnz) < np.iinfo(np.int32).max else np.int64
    parts = X.data, indices.astype(kind), X.indptr.astype(kind)
    return csr_array(parts, shape=(X.shape[0], width))


def open_lines(files: FileSet, options: Any) -> tuple[Feed, Reader]:
    """Open files; a scan finds what is not given: the number of features, their base, the fields.

    If `n_features` is None, the largest index decides. `zero_based` tells whether the first feature
    has index 0; "auto" means yes if 0 occurs in any file.
    """
    if options.target is not None or options.weight is not None:
        raise SourceError(
            f"{files.title} contains its own target: leave out `target` and `weight`."
        )
    width, zero_based, per_row = options.n_features, options.zero_based, 64.0
    fields: tuple[np.ndarray, ...] = ()
    units = [Lines(file, files.format) for file in files.files]
    if width is None or zero_based == "auto" or files.format == "libffm":
        scan = Scan()
        for i, unit in enumerate(units):
            before = scan.rows
            with explained(unit.place, unit.advice):
                for block in unit.blocks():
                    scan.add(*block)
            units[i] = replace(unit, rows=scan.rows - before)
        if not scan.rows:
            raise SourceError(f"{files.title} holds no rows. At least one is needed.")
        if not scan.entries and width is None:
            raise SourceError(f"{files.title} has no entries, so no features. Give `n_features`.")
        if zero_based == "auto":
            zero_based = files.format == "libffm" or scan.low == 0
            if not zero_based and scan.entries and width is not None and scan.high < width:
                raise SourceError(
                    f"{files.title}: the indices {scan.low:.0f} to {scan.high} of {width} features "
                    "may start at 0 or at 1. Give zero_based=True or zero_based=False."
                )
        width = scan.high + bool(zero_based) if width is None else width
        fields, per_row = scan.one_hot(1 - bool(zero_based)), scan.entries / scan.rows
    units = [replace(unit, width=int(width), base=1 - bool(zero_based)) for unit in units]
    feed = Feed(tuple(units), files.title, per_row=per_row)
    return feed, Reader.of_array(int(width), np.float64, True, True, options.missing, fields)


@dataclass
class Scan:
    """Counts of the entries of files, and which fields of libffm are one-hot."""

    rows: int = 0
    entries: int = 0
    low: float = np.inf  # least index
    high: int = -1
    pairs: set[tuple[int, int]] = field(default_factory=set)  # fields, and features in them
    mixed: set[int] = field(default_factory=set)  # fields that are not one-hot

    def add(self, X: csr_array, y: np.ndarray, fields: np.ndarray | None) -> None:
        """Add a block of rows."""
        self.rows, self.entries = self.rows + len(y), self.entries + X.nnz
        self.low = min(self.low, X.indices.min() if X.nnz else np.inf)
        self.high = max(self.high, int(X.indices.max(initial=-1)))
        if fields is None:
            return
        used, width = X.data != 0, int(fields.max(initial=0)) + 1
        in_row = np.sort((_rows_of(X) * width + fields)[used])
        self.mixed.update((in_row[1:][in_row[1:] == in_row[:-1]] % width).tolist())
        self.mixed.update(fields[used & (X.data != 1)].tolist())
        features, numbers = np.divmod(np.unique(X.indices * width + fields), width)
        self.pairs.update(zip(numbers.tolist(), features.tolist(), strict=True))

    def one_hot(self, base: int) -> tuple[np.ndarray, ...]:
        """Return the features of each field that has one 1 per row at most."""
        numbers, features = np.array(sorted(self.pairs), dtype=np.int64).reshape(-1, 2).T
        once = np.unique(features, return_counts=True)
        shared = numbers[np.isin(features, once[0][once[1] > 1])]
        good = ~np.isin(numbers, [*self.mixed, *shared])
        groups = (features[good & (numbers == number)] - base for number in np.unique(numbers))
        return tuple(group for group in groups if len(group) > 1)


def _rows_of(X: csr_array) -> np.ndarray:
    """Return the row of each entry."""
    return np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))


FORMATS |= {
    "svmlight": Format((".svm", ".svmlight", ".libsvm"), open_lines, "svmlight", PACKED),
    "libffm": Format((".ffm", ".libffm"), open_lines, "libffm", PACKED),
}
