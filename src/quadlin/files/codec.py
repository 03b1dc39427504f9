"""Objects as flat names and values, and back again: type hints are the schema of a file.

`flatten` follows the values, `Reader` the type hints of dataclasses and named tuples: a file gives
the values of their fields, never the class. A part of a part is called ``"part.part"``. New classes
and fields need no change here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.files.tensors import JSON
from quadlin.stream.state import InvalidContentError

ORDER = ":order"  # after the name of an array: its axes in memory, if they are not in C order
HINTS = {("UnitsMaker", "dtype"): np.dtype}  # that the class itself does not give


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
