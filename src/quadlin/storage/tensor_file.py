"""Arrays and a JSON header in one safetensors file, written whole or not at all.

The header is one JSON object in the file's `__metadata__`, under the key "quadlin". It names the
format, its version, the kind of file and the SHA-256 of everything in it, so that a torn or flipped
file is never taken for a good one. The digest guards against accidents, not against forgers: who
reads a file must check what it says.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, NoReturn

import numpy as np

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

JSON = Any  # None, bool, int, float, str, and lists and dicts of them
FORMAT_VERSION = 1
KEY = "quadlin"
BINARY = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
TEMPORARY = ".quadlin-tmp"  # how the name of a file ends that is being written
HEADER_LIMIT = 64 << 20  # bytes of JSON; as Python objects they take a few times as much
DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
DAMAGED = "It is damaged or was cut short: take a copy of it, or save the model again."


class FileFormatError(ValueError):
    """A file that cannot be read: which one, what is wrong with it, and what to do."""

    def __init__(self, path: Any, wrong: str, advice: str = DAMAGED) -> None:
        super().__init__(f"{os.fspath(path)}: {wrong} {advice}")
        self.path, self.wrong, self.advice = path, wrong, advice

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.wrong, self.advice)


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, np.ndarray],
    header: Mapping[str, JSON],
    kind: str = "model",
) -> None:
    """Write arrays and a header so that `path` holds the old file or the new one, never a part.

    Parameters
    ----------
    path : path
        The file. One that is there is replaced.
    tensors : mapping of names to arrays
        Arrays of float64, float32, int64, int32, uint8 or bool, all finite.
    header : mapping
        What JSON can hold, without NaN or infinity.
    kind : str, default="model"
        What the file is, such as "model" or "checkpoint"; it must be read as the same.

    Notes
    -----
    Memory: one copy of the arrays.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_tensors(f"{folder}/a", {"x": np.arange(3.0)}, {"name": "three"})
    ...     read_tensors(f"{folder}/a")
    ({'x': array([0., 1., 2.])}, {'name': 'three'})
    """
    save = _safetensors().numpy.save
    arrays = {name: _writable(name, array) for name, array in tensors.items()}
    whole = {"format": KEY, "format_version": FORMAT_VERSION, "kind": kind, "content": dict(header)}
    text = _canonical({**whole, "sha256": _digest(whole, arrays)})
    if len(text) > HEADER_LIMIT:
        raise ValueError(
            f"The names and levels take {len(text) >> 20} MiB of text, and a file has room for "
            f"{HEADER_LIMIT >> 20}. Shorten the names, or merge rare levels."
        )
    with replacing(path) as file:
        file.write(save(arrays, metadata={KEY: text}))


def read_tensors(
    path: str | os.PathLike[str], kind: str = "model"
) -> tuple[dict[str, np.ndarray], dict[str, JSON]]:
    """Read a file of `write_tensors`, without running anything in it.

    Parameters
    ----------
    path : path
        The file.
    kind : str, default="model"
        What it must be.

    Returns
    -------
    tensors : dict of names to arrays
    header : dict

    Raises
    ------
    FileFormatError
        If it is not such a file, of another kind or version, or damaged in any way.
    FileNotFoundError, IsADirectoryError
        If it is not there, or a folder.

    Notes
    -----
    Memory: no array is larger than the part of the file that it is read from.
    """
    safetensors = _safetensors()
    _refuse_what_is_no_file(path)
    other = "It is not a file of quadlin, or it is damaged: give a file that quadlin saved."
    try:
        with safetensors.safe_open(os.fspath(path), framework="numpy") as file:
            text = (file.metadata() or {}).get(KEY)
            if text is None:
                raise FileFormatError(path, "The header of quadlin is missing.", other)
            whole = _parsed(path, text)
            _check_kind(path, whole, kind)
            arrays = {name: _read(path, file, name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        if isinstance(error, PermissionError):
            raise
        raise FileFormatError(path, f"It cannot be read ({error}).", other) from error
    if whole.pop("sha256", None) != _digest(whole, arrays):
        raise FileFormatError(path, "Its contents do not match its checksum.")
    return arrays, whole["content"]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once it is complete and on the disk.

    What processes that were killed have left beside `path` is removed first. A lock tells it from
    what others are writing at this moment; the last of several writers wins.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file in it.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {target.parent} to write to. Make it first.")
    _remove_stale(target)
    file, temporary = _new_file(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:  # elsewhere an open file cannot be renamed
                os.replace(temporary, target)
        if fcntl is None:
            os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def _new_file(target: Path) -> tuple[BinaryIO, Path]:
    """Create and lock a temporary file beside the target, with the rights any new file has."""
    while True:
        temporary = target.with_name(f".{target.name}.{token_hex(6)}{TEMPORARY}")
        file = os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | BINARY, 0o666), "wb")
        if fcntl is None:
            return file, temporary
        with suppress(OSError):  # there are file systems without locks
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        # Between its creation and its lock another writer may have taken it for a stale one.
        if os.fstat(file.fileno()).st_nlink:
            return file, temporary
        file.close()


def _remove_stale(target: Path) -> None:
    """Remove the temporary files of the target that nobody is writing."""
    for name in os.listdir(target.parent):
        if not (name.startswith(f".{target.name}.") and name.endswith(TEMPORARY)):
            continue
        with suppress(OSError):  # locked by its writer, or gone
            if fcntl is None:
                target.with_name(name).unlink()
                continue
            descriptor = os.open(target.with_name(name), BINARY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                target.with_name(name).unlink()
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Bring the new name to the disk, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _writable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if array.dtype.str not in DTYPES.values():
        raise TypeError(f"{name!r} has dtype {array.dtype}, which a file cannot hold.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name!r} has values that are not finite, which a file cannot hold.")
    return array


def _read(path: Any, file: Any, name: str) -> np.ndarray:
    kind = file.get_slice(name).get_dtype()
    if kind not in DTYPES:
        raise FileFormatError(path, f"The array {name!r} has the unknown type {kind}.")
    try:
        array = file.get_tensor(name)
    except (ValueError, OverflowError) as error:  # a shape that numpy cannot have
        raise FileFormatError(path, f"The array {name!r} cannot be read ({error}).") from error
    if kind == "BOOL" and (array.view(np.uint8) > 1).any():
        raise FileFormatError(path, f"The array {name!r} has values that are neither 0 nor 1.")
    if not np.isfinite(array).all():
        raise FileFormatError(path, f"The array {name!r} has values that are not finite.")
    return np.asarray(array)


def _refuse_what_is_no_file(path: Any) -> None:
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"There is no file {path}. Check its name and folder.") from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file in it.")
    if not stat.S_ISREG(mode):  # reading from a pipe might never end
        raise FileFormatError(path, "It is a device or a pipe.", "Give a file that quadlin saved.")


def _parsed(path: Any, text: str) -> dict[str, JSON]:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    if len(text) > HEADER_LIMIT:
        raise FileFormatError(path, f"Its header is larger than {HEADER_LIMIT >> 20} MiB.")
    try:
        whole = json.loads(text, parse_constant=refuse)
        _canonical(whole)  # 1e999 is JSON, and infinite
    except (ValueError, RecursionError) as error:
        raise FileFormatError(path, f"Its header is not valid JSON ({error}).") from error
    if not isinstance(whole, dict) or whole.get("format") != KEY:
        raise FileFormatError(path, "Its header does not name the format.")
    return whole


def _check_kind(path: Any, whole: dict[str, JSON], kind: str) -> None:
    version, found = whole.get("format_version"), whole.get("kind")
    if type(version) is not int or version < 1:
        raise FileFormatError(path, "Its header does not name the version of the format.")
    if version > FORMAT_VERSION:
        raise FileFormatError(
            path,
            f"It has version {version} of the format, and this quadlin reads up to version "
            f"{FORMAT_VERSION}.",
            "Upgrade quadlin.",
        )
    if not isinstance(found, str) or not isinstance(whole.get("content"), dict):
        raise FileFormatError(path, "Its header does not say what it holds.")
    if found != kind:
        raise FileFormatError(
            path, f"It holds a {found[:40]!r}, not a {kind!r}.", f"Give a file that holds a {kind}."
        )


def _canonical(value: JSON) -> str:
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _digest(whole: Mapping[str, JSON], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the header and of every array with its name, type and shape."""
    digest = sha256(_canonical(whole).encode())
    for name in sorted(arrays):
        array = arrays[name]
        about = [name, array.dtype.newbyteorder("<").str, list(array.shape)]
        digest.update(_canonical(about).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            'Saving and loading need safetensors: pip install "quadlin[save]".'
        ) from error
    return safetensors
