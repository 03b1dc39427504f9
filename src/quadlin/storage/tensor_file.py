"""Arrays and a JSON header in one safetensors file.

The header is one JSON object in the file's `__metadata__`, under the key "quadlin". It names the
format, its version, the kind of file and the SHA-256 of everything in it, so that a file that was
cut short or damaged is never mistaken for a good one. The digest protects against accidents, not
against forgers: readers must check every value.
"""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NoReturn

import numpy as np

from quadlin.storage.atomic import NotRegularFileError, atomic_write, require_regular_file

JSON = Any  # None, bool, int, float, str, and lists and dicts of them
FORMAT_VERSION = 1  # what is written
OLDEST_VERSION = 1  # that is read
KEY = "quadlin"
HEADER_LIMIT = 64 << 20  # bytes of JSON; as Python objects they take a few times as much
DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
DAMAGED = "It is damaged or was cut short: use another copy of it, or save the model again."


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
        The file. An existing file is replaced.
    tensors : mapping of names to arrays
        Arrays of float64, float32, int64, int32, uint8 or bool, all finite.
    header : mapping
        Values that JSON can hold, without NaN and infinity.
    kind : str, default="model"
        What the file holds, such as "model" or "checkpoint"; `read_tensors` checks it.

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
        raise ValueError(_too_large(header, len(text)))
    with atomic_write(path) as file:
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
        What the file must hold.

    Returns
    -------
    tensors : dict of names to arrays
    header : dict

    Raises
    ------
    FileFormatError
        If it is not such a file, of another kind or version, or damaged in any way.
    FileNotFoundError, IsADirectoryError
        If it does not exist, or is a folder.

    Notes
    -----
    Memory: no array is larger than the part of the file that it is read from.
    """
    safetensors = _safetensors()
    try:
        require_regular_file(path)
    except NotRegularFileError:
        advice = "Give a file that quadlin saved."
        raise FileFormatError(path, "It is a device or a pipe.", advice) from None
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


def _writable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if array.dtype.str not in DTYPES.values():
        raise TypeError(f"{name!r} has dtype {array.dtype}, which a file cannot hold.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name!r} has values that are not finite, which a file cannot hold.")
    return array


def _too_large(header: Mapping[str, JSON], size: int) -> str:
    """Return a message that names the largest part of a header, which is the one to shorten."""
    largest = max(header, key=lambda name: len(_canonical(header[name])), default="")
    share = len(_canonical(header.get(largest)))
    advice = {
        "encoder": "Merge rare levels of text columns.",
        "feature_names_in": "Shorten the names of the features.",
        "state": "Its history is too long. Fit again in fewer steps.",
    }
    return (
        f"The header of the file takes {size >> 20} MiB of text, of which {largest!r} takes "
        f"{share >> 20} MiB; the limit is {HEADER_LIMIT >> 20} MiB. {advice.get(largest, '')}"
    ).rstrip()


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
    version, actual = whole.get("format_version"), whole.get("kind")
    if type(version) is not int or version < 1:
        raise FileFormatError(path, "Its header does not name the version of the format.")
    if version > FORMAT_VERSION:
        raise FileFormatError(
            path,
            f"It has version {version} of the format, and this quadlin reads up to version "
            f"{FORMAT_VERSION}.",
            "Upgrade quadlin.",
        )
    if version < OLDEST_VERSION:
        raise FileFormatError(
            path,
            f"It has version {version} of the format, and this quadlin reads version "
            f"{OLDEST_VERSION} and later.",
            "Fit the model again, or use the quadlin that saved it.",
        )
    if not isinstance(actual, str) or not isinstance(whole.get("content"), dict):
        raise FileFormatError(path, "Its header does not say what it holds.")
    if actual != kind:
        raise FileFormatError(
            path,
            f"It holds a {actual[:40]!r}, not a {kind!r}.",
            f"Give a file that holds a {kind}.",
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
