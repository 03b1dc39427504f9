"""Objects as flat names and values, and back again: their type hints are the schema of a file.

`flatten` follows the values, `Reader` the type hints of dataclasses and named tuples: a file gives
the values of their fields, never the class. A part of a part is called ``"part.part"``. New classes
and fields need no change here, except that arrays which are not one number per feature need a line
in `SHAPES`. `packed` and `unpacked` are for what users give: parameters, labels and scores.
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

LARGEST_INTEGER = 2**63 - 1
ORDER = ":order"  # after the name of an array: its axes in memory, if they are not in C order
PARTS = object()  # in place of a value that has parts of its own


class AnyJSON:
    """A type hint for JSON that the reader of the object checks."""


# The shapes of the array fields of classes, where they are not (d,). A letter stands for the same
# number in the whole model. A field that holds an object gives its shape to the object's arrays.
SHAPES: dict[str, dict[str, str]] = {
    "ColumnCovariances": {"E": "dx", "triangles": "do"},
    "Draws": {"intercepts": "s", "noises": "s", "signs": "g", "tables": "slf"},
    "Evidence": {"prior": "dKK", "pull": "dK"},
    "ErrorSteps": {"E": "dx", "H": "dmx", "w": "dm", "c": "m"},
    "FitRecord": {"factor": "dk", "factor_weights": "k"},
    "FitState": {"target": "1"},
    "Full": {"V": "dd"},
    "Learned": {"table": "dK", "means": "GK", "precisions": "GK", "signs": "R"},
    "LowRank": {"P": "dr", "t": "r"},
    "Model": {"U": "dk", "s": "k"},
    "PairPending": {"gram": "yy", "target": "1"},
    "PairTerms": {"i": "e", "j": "e", "coef": "e"},
    "Parts": {"U": "dh", "s": "h"},
    "Pending": {"target": "1"},
    "RunningPairs": {"U": "dh", "s": "h", "i": "e", "j": "e", "order": "e", "gram": "yy"},
    "SampledRows": {"numbers": "c", "X": "cd", "y": "c", "weight": "c"},
    "SignalRecord": {"signal": "d", "imaginary": "d", "left": "dk", "right": "ek", "values": "k"},
    "SparseRows": {"data": "z", "indices": "z", "indptr": "p"},
    "Start": {"Q": "dv"},
    "Sums": {"p0": "m", "p1": "dm", "p2": "dm", "action": "dmq"},
    "Waiting": {"X": "nd", "y": "n", "weight": "n"},
}
HINTS = {("UnitsMaker", "dtype"): np.dtype}  # that the class itself does not give
# Classes whose numbers may be infinite or unknown: a step that diverged, too few rows for a test.
NOT_FINITE = {"Record", "Uncertainty", "Pair", "PairBlock", "PathStep", "Exchange"}


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
    if _is_array(value):
        a = arrays[name] = to_numpy(value)
        order = sorted(range(a.ndim), key=lambda i: (-abs(a.strides[i]), i))
        if order != list(range(a.ndim)) and not a.flags.c_contiguous:
            header[name + ORDER] = order  # sums in another order round differently
        return
    if hints := _parts(value):
        named: Any = [(part, getattr(value, part)) for part in hints]
    else:
        plain = _plain(value)
        header[name] = len(value) if plain is PARTS else plain
        named = enumerate(value) if plain is PARTS else ()
    for part, item in named:
        flatten(item, f"{name}.{part}" if name else str(part), header, arrays)


def _plain(value: Any) -> JSON:
    """Return a value as JSON, or PARTS for a list of arrays or of records with arrays."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Enum):
        return value.name
    if _is_array(value):
        return PARTS
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hints := _parts(value):  # one row of a table
        value = [getattr(value, part) for part in hints]
    if isinstance(value, list | tuple):
        items = list(map(_plain, value))
        return PARTS if PARTS in items else items
    dtype = str(value).rpartition(".")[2] if not isinstance(value, type) else np.dtype(value).name
    if dtype in ("float32", "float64"):
        return dtype
    raise TypeError(f"{value!r} cannot be written to a file.")


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and not isinstance(value, np.dtype | np.generic | type)


def _parts(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    return _hints(kind)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass or named tuple; {} for all other types."""
    record = isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))
    if not record:
        return {}
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        hints = {f.name: hints[f.name] for f in fields(kind)}
    return {name: HINTS.get((kind.__name__, name), hint) for name, hint in hints.items()}


class Reader:
    """Turns what `flatten` has written back into objects, with every value and shape checked."""

    def __init__(self, header: Mapping[str, JSON], arrays: Mapping[str, np.ndarray]) -> None:
        if twice := header.keys() & arrays.keys():
            raise InvalidContentError(f"{min(twice)!r} is there twice")
        self.values = {**header, **arrays}
        self.unread = set(self.values)
        self.sizes: dict[str, int] = {}  # of the letters of shapes

    def read(self, hint: Any, name: str = "") -> Any:
        """Return the part of this name, of type `hint`, or raise an InvalidContentError."""
        self.sizes = {"1": 1}
        return self._value(hint, self._at(name), name)

    def finish(self) -> None:
        """Raise an error if the file has parts that nothing has read."""
        if self.unread:
            raise InvalidContentError(f"{min(self.unread)!r} has no place")

    def _at(self, name: str) -> Any:
        """Return the value of a name, arrays in their order; PARTS if only its parts are there."""
        value = self.values.get(name, PARTS)
        self.unread.discard(name)
        order = self.values.get(name + ORDER)
        if order is None or not isinstance(value, np.ndarray):
            return value
        self.unread.discard(name + ORDER)
        integers = isinstance(order, list) and all(type(i) is int for i in order)
        if not integers or sorted(order) != list(range(value.ndim)):
            raise InvalidContentError(f"the order of the axes of {name!r} is not a permutation")
        return np.ascontiguousarray(value.transpose(order)).transpose(np.argsort(order))

    def _value(
        self, hint: Any, value: Any, name: str, shape: str | None = None, finite: bool = True
    ) -> Any:
        """Return a value of type `hint`; arrays have the shape, unless `SHAPES` has another."""
        origin, args = get_origin(hint), get_args(hint)
        if hint is Any or hint is np.ndarray:
            return self._array(value, name, shape, "f" if hint is Any and shape else "fiub")
        if origin in (Union, UnionType):
            return self._one_of(args, value, name, shape, finite)
        if hints := _hints(hint):
            return self._record(hint, hints, value, name, shape or "d")
        if hint is AnyJSON and value is not PARTS:
            return value
        if origin in (tuple, list, Sequence):
            return self._sequence(origin, args, value, name, finite)
        return _checked(hint, value, name, finite)

    def _record(self, kind: Any, hints: dict[str, Any], value: Any, name: str, shape: str) -> Any:
        places = [f"{name}.{part}" if name else part for part in hints]
        if value is PARTS:
            value = list(map(self._at, places))
        if not isinstance(value, list) or len(value) != len(hints):
            raise InvalidContentError(f"{name!r} does not have the parts of {kind.__name__}")
        shapes, finite = SHAPES.get(kind.__name__, {}), kind.__name__ not in NOT_FINITE
        parts = {
            part: self._value(hint, item, place, shapes.get(part, shape), finite)
            for (part, hint), item, place in zip(hints.items(), value, places, strict=True)
        }
        return kind(**parts)

    def _sequence(self, origin: Any, args: Any, value: Any, name: str, finite: bool) -> Any:
        if type(value) is int and 0 <= value <= len(self.values):  # of items with names
            value = [self._at(f"{name}.{i}") for i in range(value)]
        any_length = origin is not tuple or args[-1] is Ellipsis
        if not isinstance(value, list) or not (any_length or len(value) == len(args)):
            raise InvalidContentError(f"{name!r} is not a list of the right length")
        kinds = [args[0]] * len(value) if any_length else args
        items = [
            self._value(kind, item, f"{name}.{i}", None, finite)
            for i, (kind, item) in enumerate(zip(kinds, value, strict=True))
        ]
        return items if origin is list else tuple(items)

    def _one_of(
        self, kinds: tuple[Any, ...], value: Any, name: str, shape: str | None, finite: bool
    ) -> Any:
        if value is None and NoneType in kinds:
            return None
        wrong = InvalidContentError(f"{name!r} is missing")
        for kind in (kind for kind in kinds if kind is not NoneType):
            try:
                return self._value(kind, value, name, shape, finite)
            except InvalidContentError as error:
                wrong = error
        raise wrong

    def _array(self, a: Any, name: str, shape: str | None, kinds: str) -> np.ndarray:
        if not isinstance(a, np.ndarray):
            raise InvalidContentError(f"the array {name!r} is missing")
        sizes = list(a.shape)
        if shape is not None:
            sizes = [self.sizes.setdefault(x, n) for x, n in zip(shape, a.shape, strict=False)]
        if list(a.shape) != sizes or len(shape or sizes) != a.ndim or a.dtype.kind not in kinds:
            raise InvalidContentError(f"the array {name!r} has type {a.dtype} and shape {a.shape}")
        return a


def _checked(hint: Any, value: JSON, name: str, finite: bool) -> Any:
    """Return a number, text, a dtype or None; raise an error if it is not of the given type."""
    if hint is float and type(value) is int and abs(value) <= LARGEST_INTEGER:
        value = float(value)
    if hint is float and not finite and value in ("nan", "inf", "-inf"):
        return float(value)
    if hint is np.dtype and value in ("float32", "float64"):
        return np.dtype(value)
    if isinstance(hint, type) and issubclass(hint, Enum) and value in list(hint.__members__):
        return hint[value]
    good = type(value) is hint or (hint is NoneType and value is None)
    if hint in (int, float):
        good = good and abs(value) <= LARGEST_INTEGER if hint is int else good and isfinite(value)
    if not good:
        raise InvalidContentError(f"{name!r} is not a {getattr(hint, '__name__', hint)}")
    return value


def packed(value: Any) -> JSON:
    """Return numbers, text, arrays, and lists, tuples and dicts of them as JSON.

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
            if np.dtype(kind).kind == "U":
                return np.array(list(map(str, items)), dtype=str)
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
