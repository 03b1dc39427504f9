"""What was learned, as arrays by name and JSON, and back again with everything checked.

`pack` follows the values, `Reader` follows the type hints of a fixed list of classes: a file can
say what their fields hold, never which class or attribute to take. A field that is added to one of
them needs nothing here, but for its shape in `SHAPES` where it is not one number a feature.
"""

from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.model import Model
from quadlin.core.moments import Moments
from quadlin.core.standardise import UnitsMaker
from quadlin.core.steps import Steps
from quadlin.core.sums import Sums
from quadlin.core.survey import Tally
from quadlin.core.units import Target, Units
from quadlin.solve.fit_state import FitState
from quadlin.solve.types import Options, Record
from quadlin.solve.uncertainty import Uncertainty
from quadlin.solve.whitening import Full, Identity, LowRank
from quadlin.storage.tensor_file import JSON
from quadlin.stream.batch import Pending
from quadlin.stream.state import MismatchError, SparseRows, StreamState, Waiting

LARGEST = 2**63 - 1  # of whole numbers
SHAPES = {  # of array fields, where it is not (d,); a letter is the same number everywhere
    (Model, "U"): "dk",
    (Model, "s"): "k",
    (Sums, "action"): "dk",
    (Full, "V"): "dd",
    (LowRank, "P"): "dr",
    (LowRank, "t"): "r",
    (Steps, "E"): "dk",
    (Steps, "H"): "dmk",
    (Steps, "w"): "dm",
    (Steps, "c"): "m",
    (FitState, "target"): "1",
    (Pending, "target"): "1",
    (Waiting, "X"): "nd",
    (Waiting, "y"): "n",
    (Waiting, "weight"): "n",
    (SparseRows, "data"): "z",
    (SparseRows, "indices"): "z",
    (SparseRows, "indptr"): "p",
}
HINTS = {(UnitsMaker, "dtype"): np.dtype}  # what the class itself leaves open
MAY_BE_INFINITE = {  # a plain step that diverged; no rows to tell the noise by
    (Record, "loss"),
    (Uncertainty, "noise"),
    (Uncertainty, "error"),
}
CLASSES = {
    Tally,
    *(Target, Units, Steps, Model, Moments, Options, Record, UnitsMaker, FitState, Pending, Sums),
    *(Uncertainty, Full, Identity, LowRank, SparseRows, Waiting, StreamState),
}


def pack(value: Any, at: str, tensors: dict[str, np.ndarray]) -> JSON:
    """Return a value as JSON, with its arrays put among the tensors under the name `at`.

    Parameters
    ----------
    value : object
        Numbers, text, arrays of any namespace, and the classes listed here.
    at : str
        The name, which the parts of the value prefix theirs with.
    tensors : dict
        Where arrays go.

    Returns
    -------
    JSON

    Examples
    --------
    >>> tensors = {}
    >>> pack(Identity(0.5), "white", tensors), pack(np.ones(2), "w", tensors)
    ({'size': 0.5}, {'array': 'w'})
    >>> tensors
    {'w': array([1., 1.])}
    """
    if value is None or isinstance(value, str | bool | np.bool_):
        return bool(value) if isinstance(value, np.bool_) else value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if isfinite(value) else str(float(value))
    if isinstance(value, Enum):
        return value.name
    if type(value) in CLASSES:
        kind: Any = type(value)
        names, _ = _hints(kind)
        return {name: pack(getattr(value, name), f"{at}.{name}", tensors) for name in names}
    if isinstance(value, list | tuple):
        return [pack(item, f"{at}.{i}", tensors) for i, item in enumerate(value)]
    if hasattr(value, "shape") and not isinstance(value, np.dtype | type):
        return _pack_array(to_numpy(value), at, tensors)
    return {"dtype": _dtype_name(value)}


def _pack_array(a: np.ndarray, at: str, tensors: dict[str, np.ndarray]) -> JSON:
    """Note the order of the axes in memory too: sums in another order round otherwise."""
    tensors[at] = a
    order = sorted(range(a.ndim), key=lambda i: (-abs(a.strides[i]), i))
    plain = order == list(range(a.ndim)) or a.flags.c_contiguous
    return {"array": at} if plain else {"array": at, "order": order}


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).rpartition(".")[2] if not isinstance(dtype, type) else np.dtype(dtype).name
    if name not in ("float32", "float64"):
        raise TypeError(f"{dtype!r} cannot be written to a file.")
    return name


@cache
def _hints(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """Return the type of each field of a class, and which fields have a default."""
    hints = {name: HINTS.get((kind, name), hint) for name, hint in get_type_hints(kind).items()}
    if not is_dataclass(kind):
        return hints, set()
    return hints, {f.name for f in fields(kind) if f.default is not MISSING}


class Reader:
    """Turns packed values back into objects, each array used once and of a shape that fits."""

    def __init__(self, tensors: dict[str, np.ndarray], d: int) -> None:
        self.tensors = dict(tensors)  # those not used yet
        self.sizes = {"d": d, "1": 1}  # of the letters of shapes, as they are met

    def unpack(self, hint: Any, value: JSON, at: str, shape: str | None = None) -> Any:
        """Return the value that `hint` promises, or raise a MismatchError.

        Arrays are of that shape; in an object it is that of the fields not in `SHAPES`.
        """
        if hint is Any or hint is np.ndarray:
            return self._array(value, at, shape, "f" if hint is Any and shape else "fiub")
        if hint in CLASSES:
            return self._object(hint, value, at, shape or "d")
        origin, args = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return self._one_of(args, value, at, shape)
        if origin is tuple or origin is Sequence:
            many = origin is Sequence or args[-1] is Ellipsis
            if not isinstance(value, list) or not (many or len(value) == len(args)):
                raise MismatchError(f"{at!r} is not a list of the right length")
            kinds = [args[0]] * len(value) if many else args
            parts = enumerate(zip(kinds, value, strict=True))
            return tuple(self.unpack(kind, item, f"{at}.{i}") for i, (kind, item) in parts)
        return _plain(hint, value, at)

    def _object(self, kind: Any, value: JSON, at: str, default: str) -> Any:
        hints, optional = _hints(kind)
        if not isinstance(value, dict) or not hints.keys() - optional <= value.keys() <= set(hints):
            raise MismatchError(f"{at!r} does not have the parts of {kind.__name__}")
        parts = {}
        for name, item in value.items():
            if (kind, name) in MAY_BE_INFINITE and item in ("nan", "inf", "-inf"):
                parts[name] = float(item)
            else:
                shape = SHAPES.get((kind, name), default)
                parts[name] = self.unpack(hints[name], item, f"{at}.{name}", shape)
        return kind(**parts)

    def _one_of(self, kinds: tuple[Any, ...], value: JSON, at: str, shape: str | None) -> Any:
        if value is None and NoneType in kinds:
            return None
        wrong = MismatchError(f"{at!r} is missing")
        for kind in kinds:
            try:
                return self.unpack(kind, value, at, shape)
            except MismatchError as error:
                wrong = error
        raise wrong

    def _array(self, value: JSON, at: str, shape: str | None, kinds: str) -> np.ndarray:
        if not isinstance(value, dict) or value.get("array") != at or at not in self.tensors:
            raise MismatchError(f"the array {at!r} is missing")
        a, order = self.tensors.pop(at), value.get("order")
        sizes = list(a.shape)
        if shape is not None:
            sizes = [self.sizes.setdefault(x, n) for x, n in zip(shape, a.shape, strict=False)]
        if list(a.shape) != sizes or len(shape or sizes) != a.ndim or a.dtype.kind not in kinds:
            raise MismatchError(f"the array {at!r} is of {a.dtype} and of shape {a.shape}")
        if order is None:
            return a
        whole = isinstance(order, list) and all(type(i) is int for i in order)
        if not whole or sorted(order) != list(range(a.ndim)):
            raise MismatchError(f"the order of the array {at!r} is not one of its axes")
        return np.ascontiguousarray(a.transpose(order)).transpose(np.argsort(order))


def _plain(hint: Any, value: JSON, at: str) -> Any:
    """Return a number, a word, a type or None, if that is what it is."""
    good = type(value) is hint or (hint is NoneType and value is None)
    if hint is float:
        good = type(value) is float or (type(value) is int and abs(value) <= LARGEST)
    elif hint is int:
        good = good and abs(value) <= LARGEST
    elif hint is np.dtype:
        good = value in ({"dtype": "float32"}, {"dtype": "float64"})
        value = np.dtype(value["dtype"]) if good else None
    elif isinstance(hint, type) and issubclass(hint, Enum):
        good = isinstance(value, str) and value in hint.__members__
        value = hint[value] if good else None
    if not good:
        raise MismatchError(f"{at!r} is not a {getattr(hint, '__name__', hint)}")
    return float(value) if hint is float else value
