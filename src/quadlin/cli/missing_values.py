"""What of a table is missing, column by column, and which columns only number the rows."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.core.chunks import Chunk
from quadlin.data import Source
from quadlin.data.feeds import Piece

NUMBERED = 20  # rows after which numbers that rise by no accident number them


@dataclass
class Gaps:
    """Rows, complete rows, and what is missing of each column."""

    rows: int = 0
    complete: int = 0
    missing: dict[str, int] = field(default_factory=dict)  # of the columns that miss any
    rising: dict[str, float] = field(default_factory=dict)  # whole numbers that rise: the last one


def gaps_of(source: Source) -> Gaps:
    """Walk the rows as they are, whatever is missing."""
    gaps, reader = Gaps(), source.reader
    text: frozenset[Any] = getattr(reader, "text", frozenset())
    for piece in source.feed.pieces(source.chunk_rows):
        if source.watch is not None:
            source.watch(len(piece))
        bad = np.zeros(len(piece), dtype=bool)
        if hasattr(reader, "columns"):
            _of_table(piece, reader, text, gaps, bad)
        else:
            _of_array(piece, gaps, bad)
        for role, values in (("target", piece.y), ("weight", piece.weight)):
            if values is not None:
                _count(gaps, role, np.isnan(np.asarray(values, dtype=float)), bad)
        gaps.rows += len(piece)
        gaps.complete += int((~bad).sum())
    return gaps


def numbering(rows: Iterable[Chunk], source: Source) -> list[str]:
    """Return the columns of a table that hold whole numbers which rise from row to row.

    One walk, that ends where there can be none. What is filled or dropped is not looked at.
    """
    places = _number_columns(source)
    gaps, first = Gaps(), True
    for chunk in rows:
        left = [name for name in places if first or name in gaps.rising]
        if not left:
            return []
        X = chunk.X[:, [places[name] for name in left]]
        X = X.toarray() if issparse(X) else np.asarray(X)
        for name, values in zip(left, X.T.astype(np.float64), strict=True):
            _follow(gaps, name, values)
        gaps.rows, first = gaps.rows + len(X), False
    return list(gaps.rising) if gaps.rows >= NUMBERED else []


def _number_columns(source: Source) -> dict[str, int]:
    """Return where the columns of numbers stand among the features."""
    numbers = {str(name) for name in getattr(source.reader, "numbers", ())}
    return {name: j for j, name in enumerate(source.names) if name in numbers}


def _of_table(piece: Piece, reader: Any, text: frozenset[Any], gaps: Gaps, bad: np.ndarray) -> None:
    frame = nw.from_native(piece.X, eager_only=True)
    wanted = [*reader.columns, *(n for n in (reader.target, reader.weight) if n is not None)]
    for name in wanted:
        column = frame.get_column(name)
        if name in text:
            null = column.is_null().to_numpy() if column.null_count() else None
        else:
            values = np.asarray(column.cast(nw.Float64()).to_numpy())
            null = np.isnan(values)
            if name in reader.columns:
                _follow(gaps, str(name), values)
        if null is not None:
            _count(gaps, str(name), null, bad)


def _of_array(piece: Piece, gaps: Gaps, bad: np.ndarray) -> None:
    X = piece.X
    if issparse(X):
        where = np.isnan(X.data)
        rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[where]
        entries = X.indices[where]
    else:
        rows, entries = np.nonzero(np.isnan(np.asarray(X, dtype=float)))
    bad[rows] = True
    for j, times in zip(*np.unique(entries, return_counts=True), strict=True):
        gaps.missing[f"x{j}"] = gaps.missing.get(f"x{j}", 0) + int(times)


def _count(gaps: Gaps, name: str, null: np.ndarray, bad: np.ndarray) -> None:
    if null.any():
        gaps.missing[name] = gaps.missing.get(name, 0) + int(null.sum())
        bad |= null


def _follow(gaps: Gaps, name: str, values: np.ndarray) -> None:
    """Keep a column as long as it holds whole numbers of which each is above the one before."""
    last = gaps.rising.get(name, -np.inf)
    if gaps.rows and name not in gaps.rising:
        return
    steps = np.diff(values, prepend=last)
    if len(values) and np.all(steps > 0) and np.all(values == np.floor(values)):
        gaps.rising[name] = float(values[-1])
    else:
        gaps.rising.pop(name, None)
