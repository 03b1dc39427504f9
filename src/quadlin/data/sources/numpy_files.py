"""Arrays in .npy and .npz files: loaded or mapped, never unpickled."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from quadlin.data.columns.errors import SourceError, explained


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
