"""Where rows come from: feeds of pieces, each an array, CSR or a frame as it was stored."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Piece:
    """Some rows as they came: an array, CSR or a frame, and where they are from."""

    X: Any
    y: Any = None
    weight: Any = None
    file: str | None = None
    row: int = 0  # number of the first row in its file
    start: int | None = 0  # number of the first row in the whole source, where that is known

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def cut(self, first: int, last: int) -> "Piece":
        """Return the rows [first, last) of this piece."""
        if first == 0 and last == len(self):
            return self
        return replace(
            self,
            X=self.X.slice(first, last - first) if hasattr(self.X, "slice") else self.X[first:last],
            y=None if self.y is None else self.y[first:last],
            weight=None if self.weight is None else self.weight[first:last],
            row=self.row + first,
            start=None if self.start is None else self.start + first,
        )

    def where(self, row: int) -> str:
        """Name a row of this piece for people."""
        if self.file is None:
            return f"row {(self.start or 0) + row} (counted from 0)"
        inside = f"row {self.row + row} of {self.file} (counted from 0)"
        if self.start is None or self.start == self.row:
            return inside
        return f"row {self.start + row}, {inside}"


class Feed(Protocol):
    """Where pieces come from."""

    @property
    def again(self) -> bool:
        """Tell whether `pieces` may be called more than once."""
        ...

    @property
    def ahead(self) -> bool:
        """Tell whether it pays to fetch pieces in the background."""
        ...

    @property
    def rows(self) -> int | None:
        """Return the number of rows, where it is known."""
        ...

    @property
    def title(self) -> str:
        """Return what this is, in a few words."""
        ...

    @property
    def is_array(self) -> bool:
        """Tell whether the rows are slices of an array, so that caching them gains nothing."""
        ...

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield all rows in order, in pieces of any size; `rows` of them make a chunk."""
        ...

    def parts(self, count: int) -> "Sequence[Feed]":
        """Cut into feeds of about equal size, in order; [self] where that cannot be done."""
        ...

    def identity(self) -> Any:
        """Return what distinguishes these data from others, None where nothing does."""
        ...

    def entries_per_row(self) -> float | None:
        """Return the approximate number of entries of a sparse row; None where rows are dense."""
        ...

    def numbers_with_commas(self) -> Mapping[str, str]:
        """Return columns of text that look like numbers with commas, and what to do about them."""
        ...

    def client(self) -> Any:
        """Return the `distributed.Client` of the cluster that holds the rows, None without one."""
        ...


class BaseFeed:
    """The members of `Feed` that have a default."""

    @property
    def is_array(self) -> bool:
        """Tell whether the rows are slices of an array."""
        return False

    def identity(self) -> Any:
        """Return None: nothing distinguishes these data from others."""
        return None

    def entries_per_row(self) -> float | None:
        """Return None: the rows are dense, or nothing is known about them."""
        return None

    def numbers_with_commas(self) -> Mapping[str, str]:
        """Return no columns: none are known to look like numbers with commas."""
        return {}

    def client(self) -> Any:
        """Return None: no cluster holds the rows."""
        return None


def spread(sizes: Sequence[int], count: int) -> list[slice]:
    """Cut a row of sizes into at most `count` runs of about the same total, none of them empty."""
    ends = np.cumsum(sizes)
    if not len(ends):
        return []
    count = min(count, len(ends))
    goals = ends[-1] * np.arange(1, count) / count
    cuts = np.unique(np.concatenate([[0], np.searchsorted(ends, goals) + 1, [len(ends)]]))
    return [slice(int(a), int(b)) for a, b in pairwise(cuts)]
