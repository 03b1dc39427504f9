"""Rows that Python holds or yields: arrays, NumPy files, zarr, HDF5, frames and iterators."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from typing import Any

import joblib
import narwhals as nw
import numpy as np
from array_api_compat import is_array_api_obj
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import refuse_broken_sparse, to_numpy
from quadlin.core.chunks import BLOCK_ELEMENTS, Chunk, even_cuts
from quadlin.data.names import SourceError, explained
from quadlin.data.reader import Reader, check_lengths
from quadlin.data.source import FORMATS, Feed, File, FileSet, Format, Unit


@dataclass(frozen=True)
class Mapped:
    """An array in a .npy file, mapped again wherever it is read."""

    path: str
    shape: tuple[int, ...]
    dtype: Any

    def __getitem__(self, part: slice) -> Any:
        return np.load(self.path, mmap_mode="r", allow_pickle=False)[part]


def map_numpy(path: Any) -> Mapped:
    """Map an array in a file; pickles raise an error."""
    with explained(f"File {path}", "Write numbers by numpy.save."):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return Mapped(str(path), array.shape, array.dtype)


def open_numpy(files: FileSet, options: Any) -> tuple[Feed, Reader]:
    """Open an array in a file; targets and weights may be in files of their own."""
    if len(files.files) > 1:
        raise SourceError(f"{files.title}: give one NumPy file at a time.")
    file = files.files[0]
    y, weight = (
        map_numpy(v) if isinstance(v, str | PathLike) else v
        for v in (options.target, options.weight)
    )
    return open_array(map_numpy(file.path), y, weight, options.missing, files.title, file)


FORMATS["npy"] = Format((".npy",), open_numpy, "NumPy")


@dataclass(frozen=True)
class Window:
    """Some rows of an array that have not been read yet."""

    array: Any
    first: int
    last: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape."""
        return (self.last - self.first, *self.array.shape[1:])

    @property
    def dtype(self) -> Any:
        """Return the dtype."""
        return self.array.dtype

    @property
    def chunks(self) -> Any:
        """Return how many rows and columns are stored together, None if that is unknown."""
        return getattr(self.array, "chunks", None)

    def __getitem__(self, part: slice) -> Any:
        first, last, _ = part.indices(self.last - self.first)
        return self.array[self.first + first : self.first + last]


@dataclass(frozen=True)
class Slice(Unit):
    """Rows of an array or of a frame; an array on disk is read when needed."""

    X: Any  # a frame, or anything with shape, dtype and slices of rows
    y: Any
    weight: Any
    row: int = 0
    file: File | None = None  # from which X is loaded or mapped

    def __post_init__(self) -> None:
        check_lengths(self.rows, self.y, self.weight)

    @property
    def rows(self) -> int:  # type: ignore[override]
        """Return the number of rows."""
        return int(self.X.shape[0])

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Any]:
        """Yield slices, of at least as many rows as are stored together."""
        X = self.X if columns is None else self.X.select(list(columns))
        stored = getattr(X, "chunks", None)
        if isinstance(stored, tuple) and stored and isinstance(stored[0], int):
            rows = max(rows, stored[0])
        for start in range(0, self.rows, rows):
            part = slice(start, min(start + rows, self.rows))
            yield tuple(None if v is None else rows_of(v, part) for v in (X, self.y, self.weight))

    def cut(self, count: int) -> "Sequence[Slice]":
        """Cut between rows; those that are not in memory are not read."""
        parts = []
        for first, last in even_cuts(self.rows, max(1, count)):
            held = (windowed(v, slice(first, last)) for v in (self.X, self.y, self.weight))
            X, y, weight = held
            parts.append(Slice(X, y, weight, self.row + first, self.file))
        return parts

    def check(self) -> None:
        """Raise an error for a file that has changed."""
        if self.file is not None and not is_held(self.X):
            self.file.check()

    def identity(self, columns: Sequence[Any] | None) -> Any:
        """Return a hash of the rows, or the file that they are in."""
        digests = [None if v is None else digest_of(v) for v in (self.y, self.weight)]
        if isinstance(self.X, nw.DataFrame):
            return digest_of(self.X.select(list(columns or self.X.columns))), digests
        if self.file is not None:
            return self.file, self.row, self.rows, digests
        return digest_of(self.X), digests


def windowed(values: Any, part: slice) -> Any:
    """Return some rows of an array, without reading those that are not in memory."""
    if values is None:
        return None
    held = isinstance(values, np.memmap) or is_held(values)
    return rows_of(values, part) if held else Window(values, part.start, part.stop)


def is_held(values: Any) -> bool:
    """Return whether an array or a frame is in memory, rather than on disk."""
    held = isinstance(values, np.ndarray | csr_array | nw.DataFrame)
    return held and not isinstance(values, np.memmap)


def open_array(
    X: Any, y: Any, weight: Any, missing: str, title: str, file: File | None = None
) -> tuple[Feed, Reader]:
    """Return the feed and the reader of an array, without reading it.

    Parameters
    ----------
    X, y, weight : arrays
        Rows, their targets and their weights.
    missing : str
        How NaN is handled.
    title : str
        The name of the array in messages.
    file : File or None
        The file that the array is mapped from.

    Returns
    -------
    feed, reader
    """
    X = _plain(X)
    if len(X.shape) != 2 or 0 in X.shape:
        raise SourceError(
            f"{title} has shape {tuple(X.shape)}, but rows × features, at least one of each, are "
            "needed."
        )
    n, d = X.shape
    dtype = np.dtype(X.dtype)
    if dtype.kind not in "fiubO":
        raise SourceError(
            f"{title} has dtype {dtype}, but numbers are needed. Give text as a frame with named "
            "columns."
        )
    y, weight = vector_of(y), vector_of(weight)
    reader = Reader.of_array(d, dtype, issparse(X), y is not None, missing)
    unit, held = Slice(X, y, weight, file=file), is_held(X)
    per_row = X.nnz / n if issparse(X) else None
    return Feed((unit,), title, ahead=not held, per_row=per_row, is_array=True), reader


def _plain(X: Any) -> Any:
    """Return a numpy array or CSR if the rows are in memory."""
    if issparse(X):
        refuse_broken_sparse(X)
        return csr_array(X.tocsr())
    if isinstance(X, np.ndarray) or not is_array_api_obj(X):
        return X
    return to_numpy(X)


def open_frame(frame: nw.DataFrame[Any], y: Any, weight: Any, title: str) -> Feed:
    """Return the feed of a frame in memory."""
    unit = Slice(frame, y, weight)
    return Feed((unit,), title, tuple(frame.columns), ahead=False)


def rows_of(X: Any, part: slice) -> Any:
    """Return some rows of an array or of a frame."""
    if issparse(X):
        return Chunk(X, None, None).between(part.start, part.stop).X  # views, unlike scipy's slices
    return X[part] if isinstance(X, nw.DataFrame) else np.asarray(X[part])


def digest_of(values: Any) -> str:
    """Return a hash of an array or a frame; one that is not in memory is read in pieces."""
    if isinstance(values, nw.DataFrame):
        return str(joblib.hash(values.to_native()))
    if is_held(values):
        return str(joblib.hash(values))
    n, d = int(values.shape[0]), int(np.prod(values.shape[1:]))
    rows = max(1, BLOCK_ELEMENTS // max(1, d))
    parts = (np.asarray(values[i : min(i + rows, n)]) for i in range(0, n, rows))
    return str(joblib.hash([values.shape, *map(joblib.hash, parts)]))


@dataclass(frozen=True)
class Items(Unit):
    """Items that an iterator yields: X, (X, y) or (X, y, weight)."""

    make: Callable[[], Iterator[Any]]
    again: bool  # whether `make` returns a new iterator each time
    opened: Any = None  # the iterator whose first item was read: another one must come next
    advice = ""  # errors in the user's code are the user's

    @classmethod
    def once(cls, items: Iterator[Any]) -> "Items":
        """Return the items of an iterator that can be read only once."""
        left = [items]

        def make() -> Iterator[Any]:
            if not left:
                raise SourceError(
                    "The iterator is exhausted: its rows have been read. Give a function that "
                    "returns a new iterator each time, or save the rows to a file."
                )
            return left.pop()

        return cls(make, False)

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Any]:
        """Yield what the iterator yields, and close it if it can be closed."""
        items = self.make()
        if items is self.opened:
            raise SourceError(
                "The function returned the same iterator twice. Return a new one each time."
            )
        try:
            for item in items:
                # A copy: the iterator may reuse the arrays of an item for the next one.
                X, y, weight = (
                    v.copy() if isinstance(v, np.ndarray) or issparse(v) else v
                    for v in unpacked(item)
                )
                yield nw.from_native(X, eager_only=True, pass_through=True), y, weight
        finally:
            if self.again and hasattr(items, "close"):
                items.close()

    def identity(self, columns: Sequence[Any] | None) -> Any:
        """Return None: another call may yield other rows."""
        return None


def unpacked(item: Any) -> tuple[Any, Any, Any]:
    """Return X, y and weight of an item; y and weight are None if they are not given."""
    if not isinstance(item, tuple | list):
        item = (item,)
    if not 1 <= len(item) <= 3:
        raise SourceError(
            f"The iterator yields {len(item)} items at a time; (X, y) or (X, y, weight) is needed."
        )
    X, y, weight = [*item, None, None, None][:3]
    X = without_batches(X)
    if is_array_api_obj(X) and not isinstance(X, np.ndarray):
        X = to_numpy(X)
    elif not any(hasattr(X, name) for name in ("shape", "columns", "column_names")):
        with explained("an item of the iterator", "Yield (X, y), X an array or a frame."):
            X = np.asarray(X, dtype=np.float64)
    return X, vector_of(y), vector_of(weight)


def without_batches(X: Any) -> Any:
    """Return an Arrow batch as a table, and other rows as they are."""
    if type(X).__name__ != "RecordBatch":
        return X
    import pyarrow

    return pyarrow.Table.from_batches([X])


def vector_of(values: Any) -> Any:
    """Return targets or weights as an array, on disk or of numpy; None if there are none."""
    if values is None or isinstance(values, np.ndarray):
        return values
    if is_array_api_obj(values):
        return to_numpy(values)
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    return values if hasattr(values, "shape") else np.asarray(values)


def open_iterator(given: Any) -> tuple[Feed, tuple[Any, Any, Any]]:
    """Open an iterator, an iterable, or a function that returns one, by its first item.

    Parameters
    ----------
    given : iterator, iterable or callable
        The object that yields rows. The iterator that a function returns is closed after its first
        item; each pass calls the function again.

    Returns
    -------
    feed, first
        The feed, and the first X, y and weight.
    """
    once = hasattr(given, "__next__")
    make = given if callable(given) and not once else lambda: iter(given)
    walk = make()
    items = iter(walk)
    try:
        first = next(items)
    except StopIteration:
        raise SourceError("The iterator yields nothing. At least one row is needed.") from None
    finally:
        if not once and hasattr(walk, "close"):
            walk.close()
    unit = Items.once(chain([first], items)) if once else Items(make, True, walk)
    X, *vectors = unpacked(first)
    per_row = X.nnz / max(1, X.shape[0]) if issparse(X) else None
    feed = Feed((unit,), "Iterator", None, unit.again, ahead=False, per_row=per_row)
    return feed, (X, *vectors)
