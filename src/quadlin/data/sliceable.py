"""Arrays and frames that can be sliced: in memory, mapped from disk, or behind zarr and HDF5."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import narwhals as nw
import numpy as np
from array_api_compat import is_array_api_obj
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import to_numpy
from quadlin.data.errors import SourceError, explained
from quadlin.data.files import File
from quadlin.data.readers import ArrayReader
from quadlin.data.source import Numbered, Piece

SAMPLE = 64  # rows that are hashed to tell data in memory from others


@dataclass(frozen=True)
class ArrayFeed:
    """Slices of an array."""

    X: Any  # (n, d): numpy, memmap, CSR, or anything with shape, dtype and slices of rows
    y: Any
    weight: Any
    title: str
    file: File | None = None
    first: int = 0  # number of the first row of X in the whole
    again = True

    @property
    def ahead(self) -> bool:
        """Tell whether it pays to fetch pieces in the background."""
        return not isinstance(self.X, np.ndarray | csr_array) or isinstance(self.X, np.memmap)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self.X.shape[0])

    @property
    def per_row(self) -> float | None:
        """Return the entries of a sparse row, about."""
        return self.X.nnz / max(1, self.rows) if issparse(self.X) else None

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield slices; those of numpy's arrays are views."""
        if self.file is not None:
            self.file.check()
        step = _aligned(self.X, rows)
        for start in range(0, self.rows, step):
            part = slice(start, min(start + step, self.rows))
            with explained(self.title, "Is the file complete?"):
                X = self.X[part] if issparse(self.X) else np.asarray(self.X[part])
            yield Piece(
                X,
                None if self.y is None else self.y[part],
                None if self.weight is None else self.weight[part],
                start=self.first + start,
            )

    def parts(self, count: int) -> list["ArrayFeed"]:
        """Cut between rows."""
        n = self.rows
        cuts = [n * i // count for i in range(count + 1)]
        return [_array_part(self, slice(a, b)) for a, b in itertools.pairwise(cuts) if a < b]

    def identity(self) -> Any:
        """Return shape, dtype and a hash of the rows, or the file."""
        if self.file is not None:
            beside = [None if v is None else digest_of(v) for v in (self.y, self.weight)]
            return self.file, self.first, self.rows, beside
        found = [None if v is None else digest_of(v) for v in (self.X, self.y, self.weight)]
        return tuple(self.X.shape), str(self.X.dtype), found


@dataclass(frozen=True)
class FrameFeed:
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
        """Return a feed that reads no more than these columns."""
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
        found = [None if v is None else digest_of(v) for v in (self.y, self.weight)]
        said = [_column_digest(column) for column in self.frame.iter_columns()]
        return self.frame.shape, str(self.frame.schema), said, found


@dataclass(frozen=True)
class Window:
    """Some rows of an array that is not to be read yet."""

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

    def __getitem__(self, part: slice) -> Any:
        first, last, _ = part.indices(self.last - self.first)
        return self.array[self.first + first : self.first + last]


@dataclass(frozen=True)
class Mapped:
    """An array in a .npy file, mapped anew wherever it is unpickled."""

    path: str
    shape: tuple[int, ...]
    dtype: Any

    def __getitem__(self, part: slice) -> Any:
        return np.load(self.path, mmap_mode="r", allow_pickle=False)[part]


def open_array(
    X: Any, y: Any, weight: Any, missing: str, title: str, file: File | None = None
) -> tuple[ArrayFeed, ArrayReader]:
    """Look at an array before any of it is read.

    Parameters
    ----------
    X, y, weight : arrays
        Rows, and what goes with them.
    missing : str
        What to do with NaN.
    title : str
        What the array is called.
    file : File or None
        Where it is mapped from.

    Returns
    -------
    feed, reader
    """
    X = _plain(X)
    if len(X.shape) != 2:
        raise SourceError(
            f"{title} has shape {tuple(X.shape)}, but rows × features are needed. Reshape it."
        )
    n, d = X.shape
    if not n or not d:
        raise SourceError(
            f"{title} has shape {tuple(X.shape)}: no {'rows' if not n else 'features'}."
        )
    dtype = np.dtype(X.dtype)
    if dtype.kind == "O":
        with explained(title, "Give numbers, or a frame where there is text."):
            X = np.asarray(X[:], dtype=np.float64)
    elif dtype.kind not in "fiub":
        raise SourceError(
            f"{title} has dtype {dtype}, but numbers are needed. Give text as a frame with named "
            "columns."
        )
    y, weight = (_beside(values, n, role) for values, role in ((y, "target"), (weight, "weight")))
    single = np.dtype(np.float32) if dtype == np.float32 else np.dtype(np.float64)
    reader = ArrayReader(Numbered(d), single, issparse(X), y is not None, (), missing)
    return ArrayFeed(X, y, weight, title, file), reader


def load_numpy(path: str, format: str) -> tuple[Any, Any, Any]:
    """Return X and, from an archive that has them, y and weight; no pickles."""
    with explained(f"File {path}", "Write it again with numpy.save, without Python objects."):
        if format == "npy":
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
            if not isinstance(mapped, np.ndarray):
                raise SourceError(f"File {path} is an archive, not an array. Call it .npz.")
            if mapped.dtype.kind not in "fiub":
                raise SourceError(f"File {path} has dtype {mapped.dtype}; numbers are needed.")
            return mapped, None, None
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise SourceError(f"File {path} is no archive of arrays.")
            names = archive.files
            if {"indices", "indptr", "shape", "data"} <= set(names):
                return _sparse_archive(archive, path), None, None
            if "X" not in names:
                raise SourceError(
                    f"File {path} holds {', '.join(names) or 'nothing'}, but needs an array called "
                    "X, and y and weight if there are any; or what scipy.sparse.save_npz writes."
                )
            return tuple(archive[n] if n in names else None for n in ("X", "y", "weight"))  # type: ignore[return-value]


def _sparse_archive(archive: Any, path: str) -> csr_array:
    kind = archive["format"].item() if "format" in archive.files else b"csr"
    if kind not in (b"csr", "csr"):
        raise SourceError(f"File {path} holds {kind!r}; save it as CSR, whose rows can be cut.")
    X = csr_array(
        (archive["data"], archive["indices"], archive["indptr"]), shape=tuple(archive["shape"])
    )
    X.check_format(full_check=True)
    return X


def _plain(X: Any) -> Any:
    """Return numpy's array or CSR where the rows are in memory."""
    if issparse(X):
        return csr_array(X.tocsr())
    if isinstance(X, np.ndarray) or not is_array_api_obj(X):
        return X
    return to_numpy(X)


def _beside(values: Any, n: int, role: str) -> Any:
    """Check what goes with the rows: one number for each."""
    if values is None:
        return None
    if not hasattr(values, "shape") or not hasattr(values, "dtype"):
        with explained(f"The {role}", "Give one number a row."):
            values = np.asarray(values)
    elif not isinstance(values, np.ndarray) and hasattr(values, "to_numpy"):
        values = values.to_numpy()
    shape = tuple(values.shape)
    if not shape or shape[0] != n or len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
        raise SourceError(f"The {role} has shape {shape}, but there are {n} rows. Give one a row.")
    if np.dtype(values.dtype).kind not in "fiubO":
        raise SourceError(f"The {role} has dtype {values.dtype}, but must be numbers.")
    return values


def _aligned(X: Any, rows: int) -> int:
    """Return rows to fetch at once: no less than what the storage keeps together."""
    stored = getattr(X, "chunks", None)
    if isinstance(X, Window):
        stored = getattr(X.array, "chunks", None)
    if isinstance(stored, tuple) and stored and isinstance(stored[0], int):
        return max(rows, int(stored[0]))
    return rows


def _array_part(feed: ArrayFeed, part: slice) -> ArrayFeed:
    def cut(values: Any) -> Any:
        if values is None or issparse(values):
            return None if values is None else values[part]
        if isinstance(values, np.memmap):
            return _remapped(values, part)
        if isinstance(values, np.ndarray):
            return values[part]
        if isinstance(values, Window):
            return Window(values.array, values.first + part.start, values.first + part.stop)
        return Window(values, part.start, part.stop)

    X, y, weight = (cut(values) for values in (feed.X, feed.y, feed.weight))
    return replace(feed, X=X, y=y, weight=weight, first=feed.first + part.start)


def _remapped(values: np.memmap, part: slice) -> Any:
    """Return a slice that is pickled as the name of its file, where it has one."""
    path = getattr(values, "filename", None)
    if path is None or not str(path).endswith(".npy") or not _is_whole_file(values, str(path)):
        return values[part]
    mapped = Mapped(str(path), values.shape, values.dtype)
    return Window(mapped, part.start, part.stop)


def _is_whole_file(values: np.memmap, path: str) -> bool:
    """Tell whether a memory map is all of a file: a slice of one keeps its name."""
    try:
        whole = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return False
    same = (values.shape, values.dtype, values.strides) == (whole.shape, whole.dtype, whole.strides)
    # The whole file begins where its header ends; a slice of the same shape is impossible.
    return same and values.offset == whole.offset


def _sampled(n: int) -> np.ndarray:
    return np.unique(np.linspace(0, n - 1, min(SAMPLE, n)).astype(int))


def _column_digest(column: Any) -> str:
    if column.dtype.is_numeric():
        values = column.to_numpy()
        if values.dtype.kind != "O":
            return digest_of(values)
    return sha256(repr(column.to_list()).encode()).hexdigest()[:32]


def digest_of(values: Any) -> str:
    """Return a hash of an array: of all of it where it is in memory, else of some rows."""
    found: Iterable[Any]
    if issparse(values):
        found = [np.asarray(values.shape), values.indptr, values.indices, values.data]
    elif isinstance(values, np.ndarray) and not isinstance(values, np.memmap):
        step = max(1, (1 << 24) // max(1, values[:1].nbytes))  # without a second copy
        found = (values[i : i + step] for i in range(0, len(values), step))
    else:
        found = (values[i : i + 1] for i in _sampled(int(values.shape[0])).tolist())
    digest = sha256(f"{values.shape}{values.dtype}".encode())
    for part in found:
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()[:32]
