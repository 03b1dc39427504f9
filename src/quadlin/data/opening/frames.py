"""Frames in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw

from quadlin.data.columns.digests import column_digest, digest_of
from quadlin.data.sources.feeds import BaseFeed, Piece


@dataclass(frozen=True)
class FrameFeed(BaseFeed):
    """Slices of a frame in memory."""

    frame: nw.DataFrame[Any]
    y: Any
    weight: Any
    title: str
    first: int = 0
    again, ahead = True, False

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.frame)

    def only(self, columns: Sequence[Any]) -> "FrameFeed":
        """Return a feed that reads only these columns."""
        return replace(self, frame=self.frame.select(list(columns)))

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield slices."""
        for start in range(0, self.rows, rows):
            part = slice(start, start + rows)
            yield Piece(
                self.frame[part],
                None if self.y is None else self.y[part],
                None if self.weight is None else self.weight[part],
                start=self.first + start,
            )

    def parts(self, count: int) -> list["FrameFeed"]:
        """Cut between rows."""
        step = max(1, -(-self.rows // count))
        return [
            replace(
                self,
                frame=self.frame[a : a + step],
                y=None if self.y is None else self.y[a : a + step],
                weight=None if self.weight is None else self.weight[a : a + step],
                first=self.first + a,
            )
            for a in range(0, self.rows, step)
        ]

    def identity(self) -> Any:
        """Return shape, dtypes and a hash of all columns."""
        vectors = [None if v is None else digest_of(v) for v in (self.y, self.weight)]
        columns = [column_digest(column) for column in self.frame.iter_columns()]
        return self.frame.shape, str(self.frame.schema), columns, vectors
