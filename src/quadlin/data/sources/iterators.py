"""Rows that a Python iterator yields, as (X, y) or (X, y, weight)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import narwhals as nw
import numpy as np
from array_api_compat import is_array_api_obj
from scipy.sparse import issparse

from quadlin.core.arrays import to_numpy
from quadlin.data.columns.errors import SourceError, first_line
from quadlin.data.sources.feeds import Feed, Piece


class Once:
    """An iterator that can be read only once."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.items: Iterator[Any] | None = items

    def __call__(self) -> Iterator[Any]:
        """Start reading."""
        if self.items is None:
            raise SourceError(
                "The iterator is exhausted: its rows have been read. Give a function that "
                "returns a new iterator each time, or save the rows to a file."
            )
        items, self.items = self.items, None
        return items

    def peeked(self) -> Any:
        """Return the first item without consuming it."""
        items = self()
        try:
            first = next(items)
        except StopIteration:
            raise SourceError("The iterator yields nothing. At least one row is needed.") from None
        self.items = chain([first], items)
        return first


@dataclass(frozen=True)
class IteratorFeed(Feed):
    """Items of an iterator, as pieces."""

    make: Callable[[], Iterator[Any]]
    title: str
    columns: tuple[Any, ...] | None  # of frames
    again: bool  # whether `make` returns a new iterator each time
    per_row: float | None = None
    opened: Any = None  # the iterator whose first item was read: another one must come next
    ahead = False  # the iterator may have to run in the caller's thread

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield what the iterator yields, and close it if it can be closed."""
        items = self.make()
        if items is self.opened:
            raise SourceError(
                "The function returned the same iterator twice. Return a new one each time."
            )
        try:
            yield from self._pieces(items)
        finally:
            if self.again and hasattr(items, "close"):
                items.close()

    def _pieces(self, items: Iterator[Any]) -> Iterator[Piece]:
        start = 0
        for item in items:
            # A copy: the iterator may reuse the arrays of an item for the next one.
            X, y, weight = (
                v.copy() if isinstance(v, np.ndarray) or issparse(v) else v for v in unpacked(item)
            )
            if self.columns is not None:
                X = self._frame(X, start)
            if len(X.shape) == 1:
                raise SourceError(f"Item at row {start}: X has one dimension; two are needed.")
            piece = Piece(X, y, weight, start=start)
            for values, role in ((y, "y"), (weight, "weight")):
                if values is not None and len(values) != len(piece):
                    raise SourceError(
                        f"Item at row {start}: {role} has {len(values)} entries, but X has "
                        f"{len(piece)} rows."
                    )
            yield piece
            start += len(piece)

    def _frame(self, X: Any, start: int) -> Any:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if not isinstance(frame, nw.DataFrame):
            raise SourceError(
                f"Item at row {start} is a {type(X).__name__}, but earlier items were frames."
            )
        if absent := [name for name in self.columns or () if name not in frame.columns]:
            raise SourceError(f"The frame at row {start} has no column {absent[0]!r}.")
        return frame.select(list(self.columns or ()))


def unpacked(item: Any) -> tuple[Any, Any, Any]:
    """Return X, y and weight of an item; y and weight are None if they are not given."""
    if not isinstance(item, tuple | list):
        item = (item,)
    if not 1 <= len(item) <= 3:
        raise SourceError(
            f"The iterator yields {len(item)} items at a time; (X, y) or (X, y, weight) is needed."
        )
    X, y, weight = [*item, None, None, None][:3]
    if not (issparse(X) or isinstance(X, np.ndarray)):
        if is_array_api_obj(X):
            X = to_numpy(X)
        elif not hasattr(X, "columns") and not hasattr(X, "column_names"):
            try:
                X = np.asarray(X, dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise SourceError(
                    f"The iterator yields {type(X).__name__}: {first_line(error)} (X, y) or "
                    "(X, y, weight) is needed, X an array or a frame."
                ) from None
    return X, vector_of(y), vector_of(weight)


def vector_of(values: Any) -> Any:
    """Return targets or weights as a numpy array, None if there are none."""
    if values is None or isinstance(values, np.ndarray):
        return values
    if is_array_api_obj(values):
        return to_numpy(values)
    return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)


def open_iterator(given: Any) -> tuple[IteratorFeed, tuple[Any, Any, Any]]:
    """Open an iterator, an iterable, or a function that returns one, by its first item.

    Parameters
    ----------
    given : iterator, iterable or callable
        The object that yields rows.

    Returns
    -------
    feed, first
        The feed, and the first X, y and weight.
    """
    if hasattr(given, "__next__"):
        once = Once(given)
        first = unpacked(once.peeked())
        return IteratorFeed(once, "Iterator", None, False, _per_row(first[0])), first
    make = given if callable(given) else _Again(given)
    walk = make()
    if not hasattr(walk, "__iter__"):
        raise SourceError(
            f"The function returned a {type(walk).__name__}; an iterator of (X, y) is needed."
        )
    first = unpacked(Once(iter(walk)).peeked())
    if hasattr(walk, "close"):
        walk.close()
    return IteratorFeed(make, "Iterator", None, True, _per_row(first[0]), walk), first


@dataclass(frozen=True)
class _Again:
    """An iterable, as a function that returns its iterator."""

    items: Any

    def __call__(self) -> Iterator[Any]:
        return iter(self.items)


def _per_row(X: Any) -> float | None:
    return X.nnz / max(1, X.shape[0]) if issparse(X) else None
