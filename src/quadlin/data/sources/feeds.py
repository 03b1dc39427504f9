"""Feeds of pieces of rows; a piece is an array, CSR or a frame, as it was stored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np

from quadlin.core.chunks import BLOCK_ELEMENTS


@dataclass(frozen=True)
class Piece:
    """Some rows as they were stored: an array, CSR or a frame, and where they come from."""

    X: Any
    y: Any = None
    weight: Any = None
    file: str | None = None
    row: int = 0  # number of the first row in its file
    start: int | None = 0  # number of the first row in the whole source, if known

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def cut(self, first: int, last: int) -> "Piece":
        """Return the rows [first, last) of this piece."""
        if first == 0 and last == len(self):
            return self
        return replace(
            self,
            X=self.X.slice(first, last - first) if hasattr(self.X, "slice") else self.X[first:last],
            y=sliced(self.y, slice(first, last)),
            weight=sliced(self.weight, slice(first, last)),
            row=self.row + first,
            start=None if self.start is None else self.start + first,
        )

    def where(self, row: int) -> str:
        """Return the position of a row of this piece in words, for messages."""
        if self.file is None:
            return f"row {(self.start or 0) + row} (counted from 0)"
        inside = f"row {self.row + row} of {self.file} (counted from 0)"
        if self.start is None or self.start == self.row:
            return inside
        return f"row {self.start + row}, {inside}"


class Feed:
    """The origin of pieces: files, streams, iterators, arrays, frames or Dask."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # every feed is a dataclass
    title: str  # a short description
    again: bool  # whether `pieces` may be called more than once
    ahead: bool  # whether fetching pieces in the background saves time
    is_read = False  # whether the pieces are chunks that a reader has made before
    per_row: float | None = None  # average number of entries of a sparse row; None for dense rows

    @property
    def rows(self) -> int | None:
        """Return the number of rows, None if it is unknown."""
        return None

    @property
    def is_array(self) -> bool:
        """Return whether the rows are slices of an array, so that caching them gains nothing."""
        return False

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield all rows in order, in pieces of any size; `rows` of them make a chunk."""
        raise NotImplementedError

    def only(self, columns: Sequence[Any]) -> Self:
        """Return a feed that reads only these columns of a table."""
        return replace(self, columns=tuple(columns))

    def parts(self, count: int) -> Sequence[Self]:
        """Cut into feeds of about equal size, in order; [self] if that is impossible."""
        return [self]

    def identity(self) -> Any:
        """Return what distinguishes these data from others, None if nothing does."""
        return None

    def client(self) -> Any:
        """Return the `distributed.Client` of the cluster that holds the rows, None without one."""
        return None


def sliced(values: Any, part: slice) -> Any:
    """Return some of the targets or weights, None if there are none."""
    return None if values is None else values[part]


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
