"""Objects as flat names and values, and back again: their type hints are the schema of a file.

`flatten` follows the values, `Reader` the type hints of dataclasses and named tuples: a file gives
the values of their fields, never the class. A part of a part is called ``"part.part"``. New classes
and fields need no change here, except that arrays which are not one number per feature need a line
in `SHAPES`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from quadlin.core.arrays import Array, to_numpy
from quadlin.files.tensors import JSON
from quadlin.stream.state import InvalidContentError

LARGEST_INTEGER = 2**63 - 1
ORDER = ":order"  # after the name of an array: its axes in memory, if they are not in C order


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
    >>> Reader.of(header, arrays).read(LowRank, "white").t
    array([0., 0.])
    """
    if hasattr(value, "shape") and not isinstance(value, np.dtype | np.generic | type):
        a = arrays[name] = to_numpy(value)
        order = sorted(range(a.ndim), key=lambda i: (-abs(a.strides[i]), i))
        if order != list(range(a.ndim)) and not a.flags.c_contiguous:
            header[name + ORDER] = order  # sums in another order round differently
        return
    try:
        plain = _plain(value, row=False)
    except TypeError:
        parts = value if isinstance(value, list | tuple) and not _is_record(type(value)) else None
        if parts is not None:
            header[name] = len(parts)
            named: Any = enumerate(parts)
        else:
            named = ((part, getattr(value, part)) for part in _parts_of(value))
        for part, item in named:
            flatten(item, f"{name}.{part}" if name else str(part), header, arrays)
    else:
        header[name] = plain


def _plain(value: Any, row: bool = True) -> JSON:
    """Return a value as JSON; lists of records without arrays are tables, one row for each."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Enum):
        return value.name
    if _is_record(type(value)):
        if not row:
            raise TypeError("a record has parts")
        return [_plain(getattr(value, part)) for part in _parts_of(value)]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "shape") and not isinstance(value, np.dtype | type):
        raise TypeError("an array is no JSON")
    dtype = str(value).rpartition(".")[2] if not isinstance(value, type) else np.dtype(value).name
    if dtype in ("float32", "float64"):
        return dtype
    raise TypeError(f"{value!r} cannot be written to a file.")


def _is_record(kind: Any) -> bool:
    named_tuple = isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
    return named_tuple or (isinstance(kind, type) and is_dataclass(kind))


def _parts_of(record: Any) -> dict[str, Any]:
    kind: Any = type(record)
    return _hints(kind)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the type of each field of a class."""
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        hints = {f.name: hints[f.name] for f in fields(kind)}
    return {name: HINTS.get((kind.__name__, name), hint) for name, hint in hints.items()}


class Reader:
    """Turns what `flatten` has written back into objects, with every value and shape checked."""

    def __init__(self, tree: dict[str, Any], d: int | None = None) -> None:
        self.tree = tree  # parts by name, with dicts of their own parts
        self.sizes = {"1": 1} if d is None else {"1": 1, "d": d}  # of the letters of shapes

    @classmethod
    def of(cls, header: Mapping[str, JSON], arrays: Mapping[str, np.ndarray]) -> "Reader":
        """Return a reader of a flat header and arrays."""
        tree: dict[str, Any] = {}
        orders = {name: header[name + ORDER] for name in arrays if name + ORDER in header}
        values = {k: v for k, v in header.items() if k.removesuffix(ORDER) not in orders}
        for name, value in (*values.items(), *arrays.items()):
            if name in orders:
                value = _in_order(value, orders[name], name)
            *path, last = name.split(".")
            place = tree
            for part in path:
                inner = place.setdefault(part, {})
                if not isinstance(inner, dict):
                    inner = place[part] = {"": inner}  # the number of parts of a list
                place = inner
            if last in place and not isinstance(place[last], dict):
                raise InvalidContentError(f"{name!r} is there twice")
            if last in place:
                place[last][""] = value
            else:
                place[last] = value
        return cls(tree)

    def read(self, hint: Any, name: str) -> Any:
        """Return the part of this name, of type `hint`, or raise an InvalidContentError."""
        if name not in self.tree:
            raise InvalidContentError(f"{name!r} is missing")
        return self.value(hint, self.tree[name], name)

    def value(
        self, hint: Any, value: Any, name: str, shape: str | None = None, finite: bool = True
    ) -> Any:
        """Return a value of type `hint`; arrays have the shape, unless `SHAPES` has another."""
        if hint is Any or hint is np.ndarray:
            return self._array(value, name, shape, "f" if hint is Any and shape else "fiub")
        if hint is AnyJSON:
            return value
        if _is_record(hint):
            return self._record(hint, value, name, shape or "d")
        origin, args = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return self._one_of(args, value, name, shape, finite)
        if origin in (tuple, list, Sequence):
            return self._sequence(origin, args, value, name, finite)
        return _checked(hint, value, name, finite)

    def _record(self, kind: Any, value: Any, name: str, default: str) -> Any:
        hints = _hints(kind)
        if isinstance(value, list) and len(value) == len(hints):
            value = dict(zip(hints, value, strict=True))  # a row of a table
        if not isinstance(value, dict) or value.keys() != hints.keys():
            raise InvalidContentError(f"{name!r} does not have the parts of {kind.__name__}")
        shapes, finite = SHAPES.get(kind.__name__, {}), kind.__name__ not in NOT_FINITE
        parts = {
            part: self.value(hints[part], item, f"{name}.{part}", shapes.get(part, default), finite)
            for part, item in value.items()
        }
        return kind(**parts)

    def _sequence(self, origin: Any, args: Any, value: Any, name: str, finite: bool) -> Any:
        if isinstance(value, dict):  # of parts that are called 0, 1, …
            same = value.get("") == len(value) - 1
            value = [value.get(str(i)) for i in range(len(value) - 1)] if same else None
        any_length = origin is not tuple or args[-1] is Ellipsis
        if not isinstance(value, list) or not (any_length or len(value) == len(args)):
            raise InvalidContentError(f"{name!r} is not a list of the right length")
        kinds = [args[0]] * len(value) if any_length else args
        items = [
            self.value(kind, item, f"{name}.{i}", None, finite)
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
                return self.value(kind, value, name, shape, finite)
            except InvalidContentError as error:
                wrong = error
        raise wrong

    def _array(self, a: Any, name: str, shape: str | None, kinds: str) -> Array:
        if not isinstance(a, np.ndarray):
            raise InvalidContentError(f"the array {name!r} is missing")
        sizes = list(a.shape)
        if shape is not None:
            sizes = [self.sizes.setdefault(x, n) for x, n in zip(shape, a.shape, strict=False)]
        if list(a.shape) != sizes or len(shape or sizes) != a.ndim or a.dtype.kind not in kinds:
            raise InvalidContentError(f"the array {name!r} has type {a.dtype} and shape {a.shape}")
        return a


def _in_order(a: np.ndarray, order: JSON, name: str) -> np.ndarray:
    integers = isinstance(order, list) and all(type(i) is int for i in order)
    if not integers or sorted(order) != list(range(a.ndim)):
        raise InvalidContentError(f"the order of the axes of {name!r} is not a permutation")
    return np.ascontiguousarray(a.transpose(order)).transpose(np.argsort(order))


def _checked(hint: Any, value: JSON, name: str, finite: bool) -> Any:
    """Return a number, text, a dtype or None; raise an error if it is not of the given type."""
    good = type(value) is hint or (hint is NoneType and value is None)
    if hint is float:
        if not finite and value in ("nan", "inf", "-inf"):
            return float(value)
        good = type(value) is float or (type(value) is int and abs(value) <= LARGEST_INTEGER)
        good = good and isfinite(value)
    elif hint is int:
        good = good and abs(value) <= LARGEST_INTEGER
    elif hint is np.dtype:
        good = value in ("float32", "float64")
        value = np.dtype(value) if good else None
    elif isinstance(hint, type) and issubclass(hint, Enum):
        good = isinstance(value, str) and value in hint.__members__
        value = hint[value] if good else None
    if not good:
        raise InvalidContentError(f"{name!r} is not a {getattr(hint, '__name__', hint)}")
    return float(value) if hint is float else value
