"""Slices of frames and arrays: in memory, mapped from disk, in NumPy files, zarr or HDF5."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import narwhals as nw
import numpy as np
from array_api_compat import is_array_api_obj
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import refuse_broken_sparse, to_numpy
from quadlin.core.chunks import Chunk, even_cuts
from quadlin.data.columns.errors import SourceError, explained
from quadlin.data.sources.feeds import Feed, Piece, sliced
from quadlin.data.sources.files import File
from quadlin.data.sources.readers import Reader


@dataclass(frozen=True)
class Mapped:
    """An array in a .npy file, mapped again wherever it is unpickled."""

    path: str
    shape: tuple[int, ...]
    dtype: Any

    def __getitem__(self, part: slice) -> Any:
        return np.load(self.path, mmap_mode="r", allow_pickle=False)[part]


def load_numpy(path: str, format: str) -> tuple[Any, Any, Any]:
    """Return X, and y and weight if an archive has them; pickles are refused."""
    with explained(f"File {path}", "Write it again with numpy.save, without Python objects."):
        if format == "npy":
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
            if not isinstance(mapped, np.ndarray):
                raise SourceError(
                    f"File {path} is an archive, not an array. Rename it to end in .npz."
                )
            if mapped.dtype.kind not in "fiub":
                raise SourceError(f"File {path} has dtype {mapped.dtype}; numbers are needed.")
            return mapped, None, None
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise SourceError(f"File {path} is not an archive of arrays.")
            names = archive.files
            if {"indices", "indptr", "shape", "data"} <= set(names):
                return _sparse_archive(archive, path), None, None
            if "X" not in names:
                raise SourceError(
                    f"File {path} holds {', '.join(names) or 'nothing'}, but needs an array called "
                    "X, and y and weight if there are any; or the arrays of scipy.sparse.save_npz."
                )
            return tuple(archive[n] if n in names else None for n in ("X", "y", "weight"))  # type: ignore[return-value]


def _sparse_archive(archive: Any, path: str) -> csr_array:
    kind = archive["format"].item() if "format" in archive.files else b"csr"
    if kind not in (b"csr", "csr"):
        raise SourceError(
            f"File {path} holds {kind!r}; save it as CSR, which can be read row by row."
        )
    X = csr_array(
        (archive["data"], archive["indices"], archive["indptr"]), shape=tuple(archive["shape"])
    )
    X.check_format(full_check=True)
    return X


def mapped_file(values: np.memmap) -> Mapped | None:
    """Return a memory map as a `Mapped` file, None if it is not a whole .npy file."""
    path = getattr(values, "filename", None)
    if path is None or not str(path).endswith(".npy") or not _is_whole_file(values, str(path)):
        return None
    return Mapped(str(path), values.shape, values.dtype)


def _is_whole_file(values: np.memmap, path: str) -> bool:
    """Return whether a memory map is a whole file; a slice of it keeps the file's name."""
    try:
        file = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return False
    same = (values.shape, values.dtype, values.strides) == (file.shape, file.dtype, file.strides)
    # The data of a whole file begin after its header; a slice of the same shape is impossible.
    return same and values.offset == file.offset


SAMPLE = 64  # rows that are hashed if an array is not in memory


@dataclass(frozen=True)
class SliceFeed(Feed):
    """Slices of an array or of a frame; slices of an array on disk are read when needed."""

    X: Any  # (n, d): a frame, or anything with shape, dtype and slices of rows
    y: Any
    weight: Any
    title: str
    file: File | None = None  # from which X is loaded or mapped
    ahead: bool = False
    per_row: float | None = None
    first: int = 0  # number of the first row of X in the whole source
    again = True

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self.X.shape[0])

    @property
    def is_array(self) -> bool:
        """Return whether the rows are slices of an array."""
        return not isinstance(self.X, nw.DataFrame)

    def only(self, columns: Sequence[Any]) -> "SliceFeed":
        """Return a feed that reads only these columns of a frame."""
        return replace(self, X=self.X.select(list(columns)))

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield slices."""
        self._check_file()
        step = _aligned(self.X, rows)
        for start in range(0, self.rows, step):
            part = slice(start, min(start + step, self.rows))
            with explained(self.title, "Is the file complete?"):
                X = _rows_of(self.X, part)
            vectors = sliced(self.y, part), sliced(self.weight, part)
            yield Piece(X, *vectors, start=self.first + start)
        self._check_file()

    def parts(self, count: int) -> list["SliceFeed"]:
        """Cut between rows."""
        return [self._part(slice(a, b)) for a, b in even_cuts(self.rows, count)]

    def identity(self) -> Any:
        """Return shape, dtypes and a hash of the rows (some of those on disk), or the file."""
        digests = [None if v is None else digest_of(v) for v in (self.y, self.weight)]
        if isinstance(self.X, nw.DataFrame):
            columns = [_column_digest(column) for column in self.X.iter_columns()]
            return self.X.shape, str(self.X.schema), columns, digests
        if self.file is not None:
            return self.file, self.first, self.rows, digests
        return tuple(self.X.shape), str(self.X.dtype), [digest_of(self.X), *digests]

    def _check_file(self) -> None:
        if self.ahead and self.file is not None:
            self.file.check()

    def _part(self, part: slice) -> "SliceFeed":
        X, y, weight = (_windowed(values, part) for values in (self.X, self.y, self.weight))
        return replace(self, X=X, y=y, weight=weight, first=self.first + part.start)


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

    def __getitem__(self, part: slice) -> Any:
        first, last, _ = part.indices(self.last - self.first)
        return self.array[self.first + first : self.first + last]


def open_array(
    X: Any, y: Any, weight: Any, missing: str, title: str, file: File | None = None
) -> tuple[SliceFeed, Reader]:
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
        with explained(title, "Give numbers, or a frame if there is text."):
            X = np.asarray(X[:], dtype=np.float64)
    elif dtype.kind not in "fiub":
        raise SourceError(
            f"{title} has dtype {dtype}, but numbers are needed. Give text as a frame with named "
            "columns."
        )
    y, weight = (
        _one_per_row(values, n, role) for values, role in ((y, "target"), (weight, "weight"))
    )
    reader = Reader.of_array(d, dtype, issparse(X), y is not None, missing)
    in_memory = isinstance(X, np.ndarray | csr_array) and not isinstance(X, np.memmap)
    per_row = X.nnz / n if issparse(X) else None
    return SliceFeed(X, y, weight, title, file, not in_memory, per_row), reader


def _plain(X: Any) -> Any:
    """Return a numpy array or CSR if the rows are in memory."""
    if issparse(X):
        refuse_broken_sparse(X)
        return csr_array(X.tocsr())
    if isinstance(X, np.ndarray) or not is_array_api_obj(X):
        return X
    return to_numpy(X)


def _one_per_row(values: Any, n: int, role: str) -> Any:
    """Check targets or weights: one number per row."""
    if values is None:
        return None
    if not hasattr(values, "shape") or not hasattr(values, "dtype"):
        with explained(f"The {role}", "Give one number per row."):
            values = np.asarray(values)
    elif not isinstance(values, np.ndarray) and hasattr(values, "to_numpy"):
        values = values.to_numpy()
    shape = tuple(values.shape)
    if not shape or shape[0] != n or len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
        raise SourceError(
            f"The {role} has shape {shape}, but there are {n} rows. Give one per row."
        )
    if np.dtype(values.dtype).kind not in "fiubO":
        raise SourceError(f"The {role} has dtype {values.dtype}, but must be numbers.")
    return values


def _aligned(X: Any, rows: int) -> int:
    """Return how many rows to fetch at once: at least as many as are stored together."""
    stored = getattr(X, "chunks", None)
    if isinstance(X, Window):
        stored = getattr(X.array, "chunks", None)
    if isinstance(stored, tuple) and stored and isinstance(stored[0], int):
        return max(rows, int(stored[0]))
    return rows


def _rows_of(X: Any, part: slice) -> Any:
    if issparse(X):
        return Chunk(X, None, None).between(part.start, part.stop).X  # views, unlike scipy's slices
    return X[part] if isinstance(X, nw.DataFrame) else np.asarray(X[part])


def _windowed(values: Any, part: slice) -> Any:
    """Return some rows of an array without reading them; a mapped file is pickled by its name."""
    if values is None:
        return None
    if isinstance(values, np.memmap):
        mapped = mapped_file(values)
        return values[part] if mapped is None else Window(mapped, part.start, part.stop)
    if isinstance(values, np.ndarray | csr_array | nw.DataFrame):
        return _rows_of(values, part)
    if isinstance(values, Window):
        return Window(values.array, values.first + part.start, values.first + part.stop)
    return Window(values, part.start, part.stop)


def _column_digest(column: Any) -> str:
    """Return a hash of all values of a column."""
    if column.dtype.is_numeric():
        values = column.to_numpy()
        if values.dtype.kind != "O":
            return digest_of(values)
    return sha256(repr(column.to_list()).encode()).hexdigest()[:32]


def digest_of(values: Any) -> str:
    """Return a hash of an array: of all rows if it is in memory, otherwise of some rows."""
    parts: Iterable[Any]
    if issparse(values):
        parts = [np.asarray(values.shape), values.indptr, values.indices, values.data]
    elif isinstance(values, np.ndarray) and not isinstance(values, np.memmap):
        step = max(1, (1 << 24) // max(1, values[:1].nbytes))  # without a second copy
        parts = (values[i : i + step] for i in range(0, len(values), step))
    else:
        n = int(values.shape[0])
        sample = np.unique(np.linspace(0, n - 1, min(SAMPLE, n)).astype(int))
        parts = (values[i : i + 1] for i in sample.tolist())
    digest = sha256(f"{values.shape}{values.dtype}".encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()[:32]
