"""How a sum over chunks of rows is carried out; the only place that knows."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import reduce as fold
from operator import add
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Additive:
    """A frozen dataclass of sums over rows: the sums of two chunks add field by field."""

    def __add__(self, other: Self) -> Self:
        own = fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in own))


def reduce(fn: Callable[..., T], chunks: Iterable[Any], *params: Any) -> T:
    """Return Σ fn(chunk, *params) over the chunks, one chunk at a time."""
    return fold(add, (fn(chunk, *params) for chunk in chunks))
