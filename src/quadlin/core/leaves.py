"""Nested parameters and sums, leaf by leaf."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from quadlin.core.arrays import Namespace, to_numpy


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return nested tuples, lists and dataclasses with `change` applied to what they hold.

    Examples
    --------
    >>> mapped(lambda leaf: -leaf, (1, [2, 3]))
    (-1, [-2, -3])
    """
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(mapped(change, getattr(value, f.name)) for f in fields(value)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(change, item) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(mapped(change, item) for item in value)
    return change(value)


def to_host(leaf: Any) -> Any:
    """Return an array of any library as numpy's, and everything else as it is."""
    return to_numpy(leaf) if hasattr(leaf, "__dlpack__") else leaf


def moved_to(leaf: Any, xp: Namespace, device: Any) -> Any:
    """Return an array of numpy's as one of another library, and everything else as it is."""
    return xp.asarray(leaf, device=device) if isinstance(leaf, np.ndarray) else leaf
