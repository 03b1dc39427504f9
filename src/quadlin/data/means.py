"""Means of columns, which fill missing values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import namespace, to_numpy
from quadlin.core.messages import Message, Option, Phrase
from quadlin.data.errors import SourceError
from quadlin.data.feeds import Feed
from quadlin.data.missing import UncheckedRows, refuse_infinite_entry
from quadlin.data.readers import ArrayReader
from quadlin.data.source import default_rows


def array_means(feed: Feed, reader: ArrayReader) -> ArrayReader:
    """Learn the means of the features in one walk, zeros of sparse rows included."""
    if not feed.again:
        raise SourceError(means_unknown(feed.title))
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

    def add(self, X: Any, weight: np.ndarray | None = None) -> None:
        """Add the values of some rows; a weight of 2 counts as the row given twice."""
        n, d = X.shape
        weight = np.ones(n) if weight is None else np.asarray(weight, dtype=np.float64)
        if issparse(X):
            each = np.repeat(weight, np.diff(X.indptr))
            there = ~np.isnan(X.data)
            self.total += np.bincount(X.indices[there], (each * X.data)[there], minlength=d)
            self.count += weight.sum() - np.bincount(X.indices[~there], each[~there], minlength=d)
        else:
            there = ~np.isnan(X)
            self.total += np.sum(weight[:, None] * X, axis=0, where=there, dtype=np.float64)
            self.count += weight @ there

    def fill(self, names: Sequence[str], title: str) -> dict[str, float]:
        """Return the means by name; refuse a column without any value."""
        if not (self.count > 0).all():
            empty = names[int((self.count <= 0).argmax())]
            raise SourceError(f"{title}: column {empty!r} has no value at all. Leave it out.")
        return dict(zip(names, (self.total / self.count).tolist(), strict=True))


def array_fill(X: Any, names: Sequence[str], weight: Any = None) -> dict[str, float]:
    """Return the means of the features of rows in memory, zeros of sparse rows included."""
    means = Means(X.shape[1])
    weight = None if weight is None else to_numpy(weight)
    means.add(X if issparse(X) else to_numpy(X), weight)
    return means.fill(names, "X")


def filled(X: Any, fill: Mapping[str, float], names: Sequence[str]) -> Any:
    """Return rows in memory whose missing values are filled; a copy only if there are any."""
    values = X.data if issparse(X) else X
    xp = namespace(values)
    absent = xp.isnan(values)
    if not bool(xp.any(absent)):
        return X
    means = np.asarray([fill[name] for name in names])
    if issparse(X):
        X = X.copy()
        X.data[absent] = means[X.indices[absent]]
        return X
    return xp.where(absent, xp.asarray(means, dtype=X.dtype, device=X.device), X)


def means_unknown(title: str) -> Message:
    """Say that rows which are walked once cannot be filled with means."""
    return Message(
        "{title} can be walked only once, but {mean} needs the means first. {python}se {drop}, or "
        "save the rows to a file first.",
        title=title,
        mean=Option("missing", "mean"),
        python=Phrase("Give fill={column: value}, u", "U"),
        drop=Option("missing", "drop"),
    )
