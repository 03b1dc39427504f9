"""Objects as arrays and a flat JSON header in one safetensors file, without that library.

A safetensors file is the length of a JSON text (8 bytes), the text, and the bytes of the arrays.
The header is one JSON object in its `__metadata__`, under the key "quadlin". It has the version of
the format, the kind of file and the SHA-256 of everything in it, so that a file that was cut short
or damaged is never mistaken for a good one. The digest protects against accidents, not against
forgers: readers must check every value.

Objects become flat names and values by `flatten`, and are read back by `Reader`: the type hints of
dataclasses and named tuples are the schema, and a file gives the values of their fields, never the
class. A part of a part is called ``"part.part"``. New classes and fields need no change here.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from hashlib import sha256
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.files.atomic import atomic_write, kind_of
from quadlin.stream.state import InvalidContentError

JSON = Any  # None, bool, int, float, str, and lists and dicts of them
FORMAT_VERSION = 4
KEY = "quadlin"
DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
DAMAGED = "It is damaged or was cut short: use another copy of it, or save the model again."
FOREIGN = "It is not a file of quadlin, or it is damaged: give a file that quadlin saved."

ORDER = ":order"  # after the name of an array: its axes in memory, if they are not in C order
HINTS = {("UnitsMaker", "dtype"): np.dtype}  # that the class itself does not give


class FileFormatError(ValueError):
    """A file that cannot be read: which one, what is wrong with it, and what to do."""


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
        raise FileFormatError(f"{path} is a device or a pipe. {FOREIGN}")
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(min(length, os.fstat(file.fileno()).st_size))
        data = memoryview(file.read())
    try:
        index = json.loads(text)
        whole = json.loads(index.pop("__metadata__")[KEY])
        _canonical(whole)  # NaN is not JSON; 1e999 is, and infinite
        version, actual = whole["format_version"], whole["kind"]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path}: its header cannot be read ({error}). {FOREIGN}") from error
    if version != FORMAT_VERSION:
        raise FileFormatError(
            f"{path} has version {str(version)[:20]} of the format, and this quadlin reads version "
            f"{FORMAT_VERSION}. Fit the model again, or use the quadlin that saved it."
        )
    if actual != kind:
        raise FileFormatError(f"{path} holds a {str(actual)[:40]!r}; a {kind} is needed.")
    try:
        arrays = _arrays(index, data)
        sealed = whole.pop("sha256", None) == _digest(whole, arrays)
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise FileFormatError(f"{path}: its arrays cannot be read ({error}). {DAMAGED}") from error
    if not sealed:
        raise FileFormatError(f"{path}: its contents do not match its checksum. {DAMAGED}")
    del whole["format_version"], whole["kind"]
    return arrays, whole


def _writable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if array.dtype.str not in NAMES:
        raise TypeError(f"{name!r} has dtype {array.dtype}, which a file cannot hold.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name!r} has values that are not finite, which a file cannot hold.")
    return array


def _arrays(index: dict[str, JSON], data: memoryview) -> dict[str, np.ndarray]:
    """Cut the bytes into arrays, one after another; a forged index raises an error."""
    arrays, end = {}, 0
    for name, about in sorted(index.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, start = np.dtype(DTYPES[about["dtype"]]), about["shape"], end
        end = about["data_offsets"][1]
        array = np.frombuffer(data[start:end], dtype).reshape(shape).copy()
        if about["data_offsets"] != [start, start + array.nbytes] or list(array.shape) != shape:
            raise ValueError(f"{name!r} has another size")
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


def flatten(value: Any, name: str, header: dict[str, JSON], arrays: dict[str, np.ndarray]) -> None:
    """Put a value under its name, or its parts under theirs, into a header and a dict of arrays.

    Parameters
    ----------
    value : object
        Numbers, text, arrays of any namespace, and dataclasses and named tuples of them.
    name : str
        Its name; "" for a record whose parts have names of their own.
    header, arrays : dict
        Where the values go.

    Examples
    --------
    >>> from quadlin.solve.lowrank.whitening import LowRank
    >>> header, arrays = {}, {}
    >>> flatten(LowRank(np.ones(3), np.ones((3, 2)), np.zeros(2)), "white", header, arrays)
    >>> sorted(arrays)
    ['white.P', 'white.h', 'white.t']
    >>> Reader(header, arrays).read(LowRank, "white").t
    array([0., 0.])
    """
    if hints := hints_of(value.__class__):
        for part in hints:
            flatten(getattr(value, part), f"{name}.{part}" if name else part, header, arrays)
    elif _is_array(value) and (a := to_numpy(value)).dtype.kind in "fiub":
        arrays[name] = a
        order = sorted(range(a.ndim), key=lambda i: (-abs(a.strides[i]), i))
        if order != list(range(a.ndim)) and not a.flags.c_contiguous:
            header[name + ORDER] = order  # sums in another order round differently
    else:
        header[name] = plain(value)


def plain(value: Any) -> JSON:
    """Return numbers, text, small arrays, records, and lists and dicts of them as JSON.

    Examples
    --------
    >>> plain((1, float("inf"), {"Oslo": 2.5}))
    [1, 'inf', [['Oslo', 2.5]]]
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Enum):
        return value.name
    if _is_array(value):
        return packed(to_numpy(value))
    if isinstance(value, Mapping):
        numbered = list(value.values()) == list(range(len(value)))  # such as levels
        return list(value) if numbered else [[plain(k), plain(v)] for k, v in value.items()]
    if hints := hints_of(value.__class__):  # one row of a table
        return [plain(getattr(value, part)) for part in hints]
    if isinstance(value, list | tuple | range):
        return list(map(plain, value))
    return np.dtype(str(value).rpartition(".")[2] if not isinstance(value, type) else value).name


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and not isinstance(value, np.dtype | np.generic | type)


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass or named tuple; {} for all other types."""
    if not (isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))):
        return {}
    names = [f.name for f in fields(kind)] if is_dataclass(kind) else kind._fields
    hints = get_type_hints(kind)
    return {name: HINTS.get((kind.__name__, name), hints[name]) for name in names}


class Reader:
    """Turns what `flatten` has written back into objects of the types that are asked for."""

    def __init__(self, header: Mapping[str, JSON], arrays: Mapping[str, np.ndarray]) -> None:
        self.values = {**header, **arrays}

    def read(self, hint: Any, name: str = "") -> Any:
        """Take the part of this name, of type `hint`, or raise an InvalidContentError."""
        if name in self.values:
            value = self.values.pop(name)
            order = self.values.pop(name + ORDER, None)
            if order is not None:
                value = np.ascontiguousarray(value.transpose(order)).transpose(np.argsort(order))
            return value_of(hint, value, name)
        prefix = f"{name}." if name else ""
        inner = [key.removeprefix(prefix) for key in self.values if key.startswith(prefix)]
        parts = {key.partition(".")[0].removesuffix(ORDER) for key in inner}
        for kind in _kinds(hint):
            hints = hints_of(kind)
            if hints and (parts == hints.keys() or (kind is hint and parts >= hints.keys())):
                return kind(**{part: self.read(hints[part], prefix + part) for part in hints})
        raise InvalidContentError(f"{name!r} is missing or has other parts")


def _kinds(hint: Any) -> Sequence[Any]:
    """Return the types that a hint allows."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def value_of(hint: Any, value: JSON, name: str) -> Any:
    """Return what `plain` has written, or an array, as a value of a type."""
    if (kinds := _kinds(hint)) != (hint,):
        if value is None and NoneType in kinds:
            return None
        for kind in kinds[:-1]:
            try:
                return value_of(kind, value, name)
            except InvalidContentError:
                pass
        return value_of(kinds[-1], value, name)
    origin, args = get_origin(hint), get_args(hint)
    if hint in (Any, np.ndarray):
        array = unpacked(value) if isinstance(value, dict) else value
        if isinstance(array, np.ndarray):
            return array
    elif isinstance(value, list) and origin is dict:
        numbered = not any(isinstance(item, list) for item in value)
        pairs = zip(value, range(len(value)), strict=True) if numbered else value
        return {value_of(args[0], k, name): value_of(args[1], v, name) for k, v in pairs}
    elif isinstance(value, list) and origin in (tuple, list, Sequence):
        any_length = origin is not tuple or args[-1] is Ellipsis
        kinds = [args[0]] * len(value) if any_length else args
        items = [value_of(kind, item, name) for kind, item in zip(kinds, value, strict=True)]
        return items if origin is list else tuple(items)
    elif isinstance(value, list) and (hints := hints_of(hint)):
        pairs = zip(hints.items(), value, strict=True)
        return hint(**{part: value_of(kind, item, name) for (part, kind), item in pairs})
    elif hint is float and (type(value) in (int, float) or value in ("nan", "inf", "-inf")):
        return float(value)
    elif hint is np.dtype and value in ("float32", "float64"):
        return np.dtype(value)
    elif isinstance(hint, type) and issubclass(hint, Enum) and value in hint.__members__:
        return hint[value]
    elif type(value) is hint:
        return value
    raise InvalidContentError(f"{name!r} is not of type {hint}")


def packed(value: Any) -> JSON:
    """Return what a user gave, numbers, text, arrays, lists, tuples and dicts, as JSON.

    Examples
    --------
    >>> packed((1, np.array([1.5, np.inf])))
    {'tuple': [1, {'array': '<f8', 'items': [1.5, {'float': 'inf'}]}]}
    >>> unpacked(packed((1, [None, {2: "b"}])))
    (1, [None, {2: 'b'}])
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if isfinite(value) else {"float": str(value)}
    if isinstance(value, np.ndarray):
        return {"array": value.dtype.str, "items": list(map(packed, value.tolist()))}
    if isinstance(value, tuple):
        return {"tuple": list(map(packed, value))}
    if isinstance(value, list | range):
        return list(map(packed, value))
    if isinstance(value, Mapping):
        return {"dict": [[packed(key), packed(item)] for key, item in value.items()]}
    raise TypeError(f"{value!r} is not a number, text or a list of these")


def unpacked(value: JSON) -> Any:
    """Return what `packed` was given; raise an InvalidContentError for any other JSON."""
    match value:
        case {"float": "nan" | "inf" | "-inf" as number}:
            return float(number)
        case {"array": str(kind), "items": list(items)} if np.dtype(kind).kind in "biufUO":
            array = np.empty(len(items), kind)
            array[:] = list(map(unpacked, items))
            return array
        case {"tuple": list(items)}:
            return tuple(map(unpacked, items))
        case {"dict": list(items)}:
            return {unpacked(key): unpacked(item) for key, item in items}
        case list():
            return list(map(unpacked, value))
        case dict():
            raise InvalidContentError("a parameter is neither a value nor a list")
    return value
