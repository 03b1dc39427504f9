"""Rows that are read and encoded once, and then cached in memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.chunks import Chunk
from quadlin.core.rows import Rows
from quadlin.data.sources.feeds import Feed, Piece, spread
from quadlin.data.sources.missing import Counts
from quadlin.data.sources.source import Source


def cached(source: Source, max_bytes: float) -> Source:
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
    feed = CachedFeed(tuple(chunks), source.feed, source.title)
    return replace(source, feed=feed, rows=feed.rows, counts=Counts())


@dataclass(frozen=True)
class CachedFeed(Feed):
    """Chunks that were read before."""

    chunks: tuple[Chunk, ...]
    origin: Feed
    title: str
    again, ahead, is_read = True, False, True

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(chunk.X.shape[0] for chunk in self.chunks)

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield the chunks."""
        for chunk in self.chunks:
            yield Piece(chunk.X, chunk.y, chunk.weight, start=None)

    def parts(self, count: int) -> list["CachedFeed"]:
        """Cut between chunks."""
        sizes = [chunk.X.shape[0] for chunk in self.chunks]
        return [replace(self, chunks=self.chunks[run]) for run in spread(sizes, count)]

    def identity(self) -> Any:
        """Return the identity of the feed that the chunks were read from."""
        return self.origin.identity()


def _bytes(chunk: Chunk) -> int:
    X = chunk.X
    arrays = [X.data, X.indices, X.indptr] if issparse(X) else [X]
    return sum(a.nbytes for a in (*arrays, chunk.y, chunk.weight) if a is not None)
