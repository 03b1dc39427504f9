"""Means of columns, which fill missing values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import to_numpy
from quadlin.data.columns.columns import fill_for
from quadlin.data.columns.errors import ReadOnceError, SourceError
from quadlin.data.sources.feeds import Feed
from quadlin.data.sources.missing import UncheckedRows, leave_out, refuse_infinite_entry
from quadlin.data.sources.readers import ArrayReader
from quadlin.data.sources.source import default_rows


def array_means(feed: Feed, reader: ArrayReader) -> ArrayReader:
    """Learn the means of the features in one pass, including the zeros of sparse rows."""
    if not feed.again:
        raise ReadOnceError(means_unknown(feed.title))
    means, probe = Means(len(reader.names)), replace(reader, missing="mean", fill={})
    for piece in feed.pieces(default_rows(len(reader.names), 0, sparse=False)):
        X = probe.raw(piece)
        refuse_infinite_entry(UncheckedRows(X, None, None, piece), reader.names)
        means.add(X, piece.weight)
    return replace(reader, fill=means.fill(reader.names, feed.title))


class Means:
    """Means of the values that are not missing, column by column."""

    def __init__(self, d: int) -> None:
        self.total, self.count = np.zeros(d), np.zeros(d)
        self.low, self.high = np.full(d, np.inf), np.full(d, -np.inf)
        self.dtype: Any = np.float64  # of the rows

    def add(self, X: Any, weight: np.ndarray | None = None) -> None:
        """Add the values of some rows; a weight of 2 counts as the row given twice."""
        n, d = X.shape
        self.dtype = X.dtype
        weight = np.ones(n) if weight is None else np.asarray(weight, dtype=np.float64)
        if issparse(X):
            each = np.repeat(weight, np.diff(X.indptr))
            present, absent = ~np.isnan(X.data), np.isnan(X.data)
            self.total += np.bincount(X.indices[present], (each * X.data)[present], minlength=d)
            self.count += weight.sum() - np.bincount(X.indices[absent], each[absent], minlength=d)
            np.minimum.at(self.low, X.indices[present], X.data[present])
            np.maximum.at(self.high, X.indices[present], X.data[present])
            zeros = np.bincount(X.indices, minlength=d) < n
            self.low[zeros] = np.minimum(self.low[zeros], 0)
            self.high[zeros] = np.maximum(self.high[zeros], 0)
        else:
            present = ~np.isnan(X)
            self.total += np.sum(weight[:, None] * X, axis=0, where=present, dtype=np.float64)
            self.count += weight @ present
            self.low = np.minimum(self.low, np.min(X, axis=0, where=present, initial=np.inf))
            self.high = np.maximum(self.high, np.max(X, axis=0, where=present, initial=-np.inf))

    def fill(self, names: Sequence[str], title: str) -> dict[str, float]:
        """Return what fills each column, by name (see `fill_for`); refuse one without values."""
        if not (self.count > 0).all():
            empty = names[int((self.count <= 0).argmax())]
            raise SourceError(f"{title}: column {empty!r} has no values. {leave_out(empty)}")
        means = zip((self.total / self.count).tolist(), self.low < self.high, strict=True)
        fills = [fill_for(mean, bool(varies), self.dtype) for mean, varies in means]
        return dict(zip(names, fills, strict=True))


def array_fill(X: Any, names: Sequence[str], weight: Any = None) -> dict[str, float]:
    """Return the means of the features of rows in memory, including the zeros of sparse rows."""
    means = Means(X.shape[1])
    weight = None if weight is None else to_numpy(weight)
    means.add(X if issparse(X) else to_numpy(X), weight)
    return means.fill(names, "X")


def emptied(X: Any, fill: Mapping[str, float], names: Sequence[str]) -> Any:
    """Return rows whose filled values are missing again: the inverse of `filled`.

    A column that equals the fill in all rows is constant and is kept.
    """
    fills = np.asarray([fill.get(name, np.nan) for name in names]).astype(X.dtype)
    same = X.data == fills[X.indices] if issparse(X) else fills == X
    if issparse(X):
        constant = np.bincount(X.indices[same], minlength=X.shape[1]) == X.shape[0]
        same &= ~constant[X.indices]
        X = X.copy()
        X.data[same] = np.nan
        return X
    return np.where(same & ~same.all(axis=0), np.nan, X)


def means_unknown(title: str) -> str:
    """Return a message that rows which can be read only once cannot be filled with means."""
    return (
        f'{title} can be read only once, but missing="mean" needs the means '
        'first. Give fill={column: value}, use missing="drop", or save the rows '
        "to a file first."
    )
