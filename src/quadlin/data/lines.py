"""Files of svmlight (libsvm) and libffm lines, read in blocks of whole lines, also compressed."""

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from quadlin.data.csv_text import TEXT_BLOCK
from quadlin.data.names import SourceError, explained, first_line
from quadlin.data.reader import Reader
from quadlin.data.source import FORMATS, PACKED, Feed, FileSet, FileUnit, Format

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
LINES = {
    "svmlight": "A line is “target index:value index:value …”, with increasing indices.",
    "libffm": "A line is “target field:index:value …”.",
}
Parsed = tuple[csr_array, np.ndarray]  # rows and targets


def parse_svmlight(block: bytes) -> Parsed:
    """Parse lines of “target index:value …”."""
    from sklearn.datasets import load_svmlight_file  # slow to import

    if b"\0" in block:
        raise ValueError("it contains a NUL byte")
    X, y = load_svmlight_file(BytesIO(block), zero_based=True)
    return csr_array(X), y


def parse_libffm(block: bytes) -> Parsed:
    """Parse lines of “target field:index:value …” without their fields, in any order."""
    lines = []
    for target, *entries in filter(None, map(bytes.split, block.splitlines())):
        parts = [entry.split(b":") for entry in entries]
        if any(len(part) != 3 for part in parts):
            raise ValueError("an entry is not “field:index:value”")
        parts.sort(key=lambda part: int(part[1]))
        lines.append(b" ".join([target, *(b":".join(part[1:]) for part in parts)]))
    return parse_svmlight(b"\n".join(lines))


PARSERS = {"svmlight": parse_svmlight, "libffm": parse_libffm}


@dataclass(frozen=True)
class Lines(FileUnit):
    """The lines of a file that begin from byte `first` on and before byte `last`."""

    format: str
    first: int = 0
    last: int | None = None
    width: int = 0  # features
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
        opener = OPENERS.get(Path(self.file.path).suffix, open)
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
        for X, y in self.blocks():
            yield placed(X, self.width, self.base, self.file.path), y

    def cut(self, count: int) -> "Sequence[Lines]":
        """Cut at about equal distances; a compressed file cannot be cut."""
        if Path(self.file.path).suffix in OPENERS or count < 2:
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
    """Open files; a scan finds the number of features and their base where they are not given.

    If `n_features` is None, the largest index decides. `zero_based` tells whether the first feature
    has index 0; "auto" means yes if 0 occurs in any file.
    """
    if options.target is not None or options.weight is not None:
        raise SourceError(
            f"{files.title} contains its own target: leave out `target` and `weight`."
        )
    width, zero_based, per_row = options.n_features, options.zero_based, 64.0
    units = [Lines(file, files.format) for file in files.files]
    if width is None or zero_based == "auto":
        total, entries, low, high = 0, 0, np.inf, -1
        for i, unit in enumerate(units):
            rows = 0
            with explained(unit.place, unit.advice):
                for X, _ in unit.blocks():
                    rows, entries = rows + X.shape[0], entries + X.nnz
                    low = min(low, X.indices.min() if X.nnz else np.inf)
                    high = max(high, int(X.indices.max(initial=-1)))
            units[i], total = replace(unit, rows=rows), total + rows
        if not entries and width is None:
            raise SourceError(f"{files.title} has no entries, so no features. Give `n_features`.")
        if zero_based == "auto":
            zero_based = files.format == "libffm" or low == 0
            if not zero_based and entries and width is not None and high < width:
                raise SourceError(
                    f"{files.title}: the indices {low:.0f} to {high} of {width} features "
                    "may start at 0 or at 1. Give zero_based=True or zero_based=False."
                )
        width = high + bool(zero_based) if width is None else width
        per_row = entries / max(1, total)
    units = [replace(unit, width=int(width), base=1 - bool(zero_based)) for unit in units]
    feed = Feed(tuple(units), files.title, per_row=per_row)
    return feed, Reader.of_array(int(width), np.float64, True, True, options.missing)


FORMATS |= {
    "svmlight": Format((".svm", ".svmlight", ".libsvm"), open_lines, "svmlight", PACKED),
    "libffm": Format((".ffm", ".libffm"), open_lines, "libffm", PACKED),
}
