"""Arrays and a flat JSON header in one safetensors file, written and read without that library.

A safetensors file is the length of a JSON text (8 bytes), the text, and the bytes of the arrays.
The header is one JSON object in its `__metadata__`, under the key "quadlin". It has the version of
the format, the kind of file and the SHA-256 of everything in it, so that a file that was cut short
or damaged is never mistaken for a good one. The digest protects against accidents, not against
forgers: readers must check every value.
"""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from quadlin.files.atomic import atomic_write, kind_of

JSON = Any  # None, bool, int, float, str, and lists and dicts of them
FORMAT_VERSION = 4
KEY = "quadlin"
HEADER_LIMIT = 64 << 20  # bytes of JSON; as Python objects they take a few times as much
DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
DAMAGED = "It is damaged or was cut short: use another copy of it, or save the model again."
FOREIGN = "It is not a file of quadlin, or it is damaged: give a file that quadlin saved."


class FileFormatError(ValueError):
    """A file that cannot be read: which one, what is wrong with it, and what to do."""

    def __init__(self, path: Any, wrong: str, advice: str = DAMAGED) -> None:
        super().__init__(f"{os.fspath(path)}: {wrong} {advice}")
        self.path, self.wrong, self.advice = path, wrong, advice

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.wrong, self.advice)


def write_tensors(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    header: Mapping[str, JSON],
    kind: str = "model",
) -> None:
    """Write arrays and a header so that `path` holds the old file or the new one, never a part.

    Parameters
    ----------
    path : path
        The file. An existing file is replaced.
    arrays : mapping of names to arrays
        Arrays of float64, float32, int64, int32, uint8 or bool, all finite.
    header : mapping
        Values that JSON can hold, without NaN and infinity.
    kind : str, default="model"
        What the file holds, such as "model" or "checkpoint"; `read_tensors` checks it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_tensors(f"{folder}/a", {"x": np.arange(3.0)}, {"name": "three"})
    ...     read_tensors(f"{folder}/a")
    ({'x': array([0., 1., 2.])}, {'name': 'three'})
    """
    plain = {name: _writable(name, arrays[name]) for name in sorted(arrays)}
    index: dict[str, JSON] = {}
    end = 0
    for name, a in plain.items():
        start, end = end, end + a.nbytes
        index[name] = {
            "dtype": NAMES[a.dtype.str],
            "shape": list(a.shape),
            "data_offsets": [start, end],
        }
    whole = {**header, "format_version": FORMAT_VERSION, "kind": kind}
    whole["sha256"] = _digest(whole, plain)
    text = _canonical({"__metadata__": {KEY: _canonical(whole)}, **index}).encode()
    if len(text) > HEADER_LIMIT:
        largest = max(header, key=lambda name: len(_canonical(header[name])))
        raise ValueError(
            f"The header of the file takes {len(text) >> 20} MiB of text, and its largest part is "
            f"{largest!r}; the limit is {HEADER_LIMIT >> 20} MiB. Merge rare levels of text "
            "columns, or shorten the names of the features."
        )
    text += b" " * (-len(text) % 8)
    with atomic_write(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for a in plain.values():
            file.write(a.reshape(-1).view(np.uint8).data)


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
    arrays : dict of names to arrays
    header : dict

    Raises
    ------
    FileFormatError
        If it is not such a file, of another kind or version, or damaged in any way.
    FileNotFoundError, IsADirectoryError
        If it does not exist, or is a folder.
    """
    found = kind_of(path)
    if found == "nothing":
        raise FileNotFoundError(f"There is no file {path}. Check its name and its folder.")
    if found == "stream":  # reading from a pipe might never end
        advice = "Give a file that quadlin saved."
        raise FileFormatError(path, "It is a device or a pipe.", advice)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > HEADER_LIMIT or length > os.fstat(file.fileno()).st_size - 8:
            raise FileFormatError(path, "Its header is cut short or too long.", FOREIGN)
        text, data = file.read(length), file.read()
    try:
        index = json.loads(text)
        whole = json.loads(index.pop("__metadata__")[KEY])
        _canonical(whole)  # NaN is not JSON; 1e999 is, and infinite
        version, actual = whole["format_version"], whole["kind"]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise FileFormatError(path, f"Its header cannot be read ({error}).", FOREIGN) from error
    if version != FORMAT_VERSION:
        raise FileFormatError(
            path,
            f"It has version {str(version)[:20]} of the format, and this quadlin reads version "
            f"{FORMAT_VERSION}.",
            "Fit the model again, or use the quadlin that saved it.",
        )
    if actual != kind:
        advice = f"Give a file that holds a {kind}."
        raise FileFormatError(path, f"It holds a {str(actual)[:40]!r}.", advice)
    try:
        arrays = _arrays(index, data)
        sealed = whole.pop("sha256", None) == _digest(whole, arrays)
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise FileFormatError(path, f"Its arrays cannot be read ({error}).") from error
    if not sealed:
        raise FileFormatError(path, "Its contents do not match its checksum.")
    del whole["format_version"], whole["kind"]
    return arrays, whole


def _writable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if array.dtype.str not in NAMES:
        raise TypeError(f"{name!r} has dtype {array.dtype}, which a file cannot hold.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name!r} has values that are not finite, which a file cannot hold.")
    return array


def _arrays(index: dict[str, JSON], data: bytes) -> dict[str, np.ndarray]:
    """Cut the bytes into arrays, one after another; a forged index raises an error."""
    arrays, end = {}, 0
    for name, about in sorted(index.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = np.dtype(DTYPES[about["dtype"]]), about["shape"]
        if any(type(n) is not int or not 0 <= n < 1 << 48 for n in shape) or len(shape) > 8:
            raise ValueError(f"{name!r} has an impossible shape")
        start, end = end, end + dtype.itemsize * prod(shape)
        if about["data_offsets"] != [start, end] or end > len(data):
            raise ValueError(f"{name!r} has another size")
        array = np.frombuffer(data, dtype, prod(shape), start).reshape(shape).copy()
        if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
            raise ValueError(f"{name!r} has values that are neither 0 nor 1")
        if not np.isfinite(array).all():
            raise ValueError(f"{name!r} has values that are not finite")
        arrays[name] = array
    if end != len(data):
        raise ValueError("the arrays are smaller than the file")
    return arrays


def _canonical(value: JSON) -> str:
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _digest(header: Mapping[str, JSON], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the header and of every array with its name, type and shape."""
    digest = sha256(_canonical(header).encode())
    for name, a in sorted(arrays.items()):
        digest.update(_canonical([name, a.dtype.str, list(a.shape)]).encode())
        digest.update(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
