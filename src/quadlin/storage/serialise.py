"""Objects as JSON and arrays by name, and back again with every value checked.

Model files, checkpoints of streams and journals of fits all use it. `serialise` follows the values;
`Deserialiser` follows the type hints of dataclasses and named tuples: a file can say what their
fields hold, but never which class to make. New classes and fields need no change here, except that
arrays which are not one number per feature need a line in `SHAPES`.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.model import Model
from quadlin.core.moments import Survey
from quadlin.core.sums import Sums
from quadlin.core.units import UnitsMaker
from quadlin.data.columns.fields import Flags
from quadlin.solve.fields.gibbs import Draws
from quadlin.solve.fields.running_levels import LEVEL_SHAPES
from quadlin.solve.fits.column_covariances import ColumnCovariances
from quadlin.solve.fits.error_steps import ErrorSteps
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.uncertainty import Gaps, Uncertainty
from quadlin.solve.lowrank.exact import Normal
from quadlin.solve.lowrank.step_length import Gram
from quadlin.solve.lowrank.tangent_gram import Products
from quadlin.solve.lowrank.types import Record
from quadlin.solve.lowrank.whitening import Covariance, Full, LowRank
from quadlin.solve.pairs import pair_sums
from quadlin.solve.pairs.pair_fit import Scores
from quadlin.solve.pairs.pair_remainder import BoundedMoments
from quadlin.solve.pairs.pair_running import RunningPairs
from quadlin.solve.pairs.pair_terms import PairTerms, Parts
from quadlin.storage.tensor_file import JSON
from quadlin.stream.batch import Pending
from quadlin.stream.pair_batches import PairPending
from quadlin.stream.power_iteration import Start
from quadlin.stream.state import InvalidContentError, SampledRows, SparseRows, Waiting

LARGEST_INTEGER = 2**63 - 1


class AnyJSON:
    """A type hint for JSON that the reader of the object checks."""


# The shapes of array fields, where they are not (d,). A letter stands for the same number in the
# whole file or record. A field that holds an object gives its shape to the arrays of the object.
SHAPES: dict[type, dict[str, str]] = {
    Covariance: {"action": "dv"},
    ColumnCovariances: {"E": "dx", "triangles": "do"},
    Draws: {"intercepts": "s", "noises": "s", "signs": "g", "tables": "slf", "centred": "slf"},
    Flags: {"seen": "b"},
    Full: {"V": "dd"},
    Gram: {"matrix": "aa", "terms": "b"},
    ErrorSteps: {"E": "dx", "H": "dmx", "w": "dm", "c": "m"},
    FitState: {"target": "1"},
    LowRank: {"P": "dr", "t": "r"},
    BoundedMoments: {"second": "qq", "fourth": "qq", "moments": "qq"},
    pair_sums.FirstLook: {"features": "dd", "moments": "dd"},
    pair_sums.FlippedMoments: {"moments": "sdd"},
    pair_sums.JointGram: {"gram": "tu"},
    pair_sums.LabelGram: {"gram": "tt"},
    Model: {"U": "dk", "s": "k"},
    Normal: {"gram": "pp"},
    PairTerms: {"i": "e", "j": "e", "coef": "e"},
    Parts: {"U": "dh", "s": "h"},
    PairPending: {"gram": "yy", "target": "1"},
    **LEVEL_SHAPES,
    RunningPairs: {"U": "dh", "s": "h", "i": "e", "j": "e", "order": "e", "gram": "yy"},
    Pending: {"target": "1"},
    pair_sums.ProductMoments: {"second": "dd", "third": "dd", "fourth": "dd"},
    Products: {"gram": "pp"},
    pair_sums.ResidualMoments: {"moments": "dd"},
    Scores: {"moments": "dd", "spread": "e", "squares": "e", "fourths": "e"},
    SampledRows: {"numbers": "c", "X": "cd", "y": "c", "weight": "c"},
    SparseRows: {"data": "z", "indices": "z", "indptr": "p"},
    Start: {"Q": "dv", "s": "v"},
    Sums: {"p0": "m", "p1": "dm", "p2": "dm", "action": "dmq"},
    Survey: {"target": "1"},
    Waiting: {"X": "nd", "y": "n", "weight": "n"},
}
HINTS = {(UnitsMaker, "dtype"): np.dtype}  # that the class itself does not give
MAY_BE_INFINITE = {  # a plain step that diverged; too few rows to estimate the noise
    (Record, "loss"),
    (Uncertainty, "noise"),
    (Uncertainty, "error"),
    (Gaps, "noise"),
}


def serialise(value: Any, name: str, arrays: dict[str, np.ndarray]) -> JSON:
    """Return a value as JSON, and put its arrays under their names into `arrays`.

    Parameters
    ----------
    value : object
        Numbers, text, arrays of any namespace, and dataclasses and named tuples of them.
    name : str
        Its name; the name of a part of it is ``"name.part"``.
    arrays : dict
        Where the arrays go.

    Returns
    -------
    JSON

    Examples
    --------
    >>> from quadlin.solve.lowrank.whitening import Identity
    >>> arrays = {}
    >>> serialise(Identity(0.5), "white", arrays), serialise(np.ones(2), "w", arrays)
    ({'size': 0.5}, {'array': 'w'})
    >>> arrays
    {'w': array([1., 1.])}
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Enum):
        return value.name
    if _is_record(type(value)):
        kind: Any = type(value)
        parts = {part: getattr(value, part) for part in _hints(kind)[0]}
        return {part: serialise(a, _joined(name, part), arrays) for part, a in parts.items()}
    if isinstance(value, dict):
        return {str(key): serialise(a, _joined(name, key), arrays) for key, a in value.items()}
    if isinstance(value, list | tuple):
        return [serialise(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]
    if hasattr(value, "shape") and not isinstance(value, np.dtype | type):
        return _serialise_array(to_numpy(value), name, arrays)
    return {"dtype": _dtype_name(value)}


def _serialise_array(a: np.ndarray, name: str, arrays: dict[str, np.ndarray]) -> JSON:
    """Also store the order of the axes in memory: sums in another order round differently."""
    arrays[name] = a
    order = sorted(range(a.ndim), key=lambda i: (-abs(a.strides[i]), i))
    plain = order == list(range(a.ndim)) or a.flags.c_contiguous
    return {"array": name} if plain else {"array": name, "order": order}


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).rpartition(".")[2] if not isinstance(dtype, type) else np.dtype(dtype).name
    if name not in ("float32", "float64"):
        raise TypeError(f"{dtype!r} cannot be written to a file.")
    return name


def _is_record(kind: Any) -> bool:
    named_tuple = isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
    return named_tuple or is_dataclass(kind)


def _joined(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


@cache
def _hints(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """Return the type of each field of a class, and which fields have a default."""
    hints = {name: HINTS.get((kind, name), hint) for name, hint in get_type_hints(kind).items()}
    if not is_dataclass(kind):
        return hints, set()
    return hints, {f.name for f in fields(kind) if f.default is not MISSING}


class Deserialiser:
    """Turns what `serialise` returned back into objects; every array is used at most once.

    Parameters
    ----------
    arrays : dict of names to arrays
        Those that `serialise` collected.
    d : int
        The number of features.
    convert : callable or None, default=None
        What turns a numpy array into one of the caller's namespace and device.

    Examples
    --------
    >>> arrays = {}
    >>> value = serialise(LowRank(np.ones(3), np.ones((3, 2)), np.zeros(2)), "white", arrays)
    >>> Deserialiser(arrays, d=3).read(LowRank, value, "white").t
    array([0., 0.])
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        d: int,
        convert: Callable[[np.ndarray], Array] | None = None,
    ) -> None:
        self.unused = dict(arrays)
        self.sizes = {"d": d, "1": 1}  # of the letters of shapes, as far as they are known
        self.convert = convert

    def read(self, hint: Any, value: JSON, name: str, shape: str | None = None) -> Any:
        """Return the value of type `hint`, or raise an InvalidContentError.

        Arrays must have the given shape, also those of an object, unless `SHAPES` has another.
        """
        if hint is Any or hint is np.ndarray:
            return self._array(value, name, shape, "f" if hint is Any and shape else "fiub")
        if hint is AnyJSON:
            return value
        if _is_record(hint):
            return self._object(hint, value, name, shape or "d")
        origin, args = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return self._one_of(args, value, name, shape)
        if origin is tuple or origin is Sequence:
            any_length = origin is Sequence or args[-1] is Ellipsis
            if not isinstance(value, list) or not (any_length or len(value) == len(args)):
                raise InvalidContentError(f"{name!r} is not a list of the right length")
            kinds = [args[0]] * len(value) if any_length else args
            parts = enumerate(zip(kinds, value, strict=True))
            return tuple(self.read(kind, item, f"{name}.{i}") for i, (kind, item) in parts)
        return _plain(hint, value, name)

    def _object(self, kind: Any, value: JSON, name: str, default: str) -> Any:
        hints, optional = _hints(kind)
        wrong = InvalidContentError(f"{name!r} does not have the parts of {kind.__name__}")
        if not isinstance(value, dict):
            raise wrong
        required = hints.keys() - optional
        if not required <= value.keys() <= hints.keys():
            raise wrong
        parts = {}
        for part, item in value.items():
            if (kind, part) in MAY_BE_INFINITE and item in ("nan", "inf", "-inf"):
                parts[part] = float(item)
            else:
                shape = SHAPES.get(kind, {}).get(part, default)
                parts[part] = self.read(hints[part], item, _joined(name, part), shape)
        return kind(**parts)

    def _one_of(self, kinds: tuple[Any, ...], value: JSON, name: str, shape: str | None) -> Any:
        if value is None and NoneType in kinds:
            return None
        wrong = InvalidContentError(f"{name!r} is missing")
        for kind in (kind for kind in kinds if kind is not NoneType):
            try:
                return self.read(kind, value, name, shape)
            except InvalidContentError as error:
                wrong = error
        raise wrong

    def _array(self, value: JSON, name: str, shape: str | None, kinds: str) -> Array:
        if not isinstance(value, dict) or value.get("array") != name or name not in self.unused:
            raise InvalidContentError(f"the array {name!r} is missing")
        a, order = self.unused.pop(name), value.get("order")
        sizes = list(a.shape)
        if shape is not None:
            sizes = [self.sizes.setdefault(x, n) for x, n in zip(shape, a.shape, strict=False)]
        if list(a.shape) != sizes or len(shape or sizes) != a.ndim or a.dtype.kind not in kinds:
            raise InvalidContentError(f"the array {name!r} has type {a.dtype} and shape {a.shape}")
        if order is not None:
            integers = isinstance(order, list) and all(type(i) is int for i in order)
            if not integers or sorted(order) != list(range(a.ndim)):
                raise InvalidContentError(f"the order of the axes of {name!r} is not a permutation")
            a = np.ascontiguousarray(a.transpose(order)).transpose(np.argsort(order))
        return a if self.convert is None else self.convert(a)


def _plain(hint: Any, value: JSON, name: str) -> Any:
    """Return a number, text, a dtype or None; refuse a value that is not of the given type."""
    good = type(value) is hint or (hint is NoneType and value is None)
    if hint is float:
        good = type(value) is float or (type(value) is int and abs(value) <= LARGEST_INTEGER)
        good = good and isfinite(value)
    elif hint is int:
        good = good and abs(value) <= LARGEST_INTEGER
    elif hint is np.dtype:
        good = value in ({"dtype": "float32"}, {"dtype": "float64"})
        value = np.dtype(value["dtype"]) if good else None
    elif isinstance(hint, type) and issubclass(hint, Enum):
        good = isinstance(value, str) and value in hint.__members__
        value = hint[value] if good else None
    if not good:
        raise InvalidContentError(f"{name!r} is not a {getattr(hint, '__name__', hint)}")
    return float(value) if hint is float else value
