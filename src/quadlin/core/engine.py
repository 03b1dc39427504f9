"""How a sum over chunks of rows is carried out; the only place that knows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, Protocol, Self, TypeVar

from threadpoolctl import ThreadpoolController

from quadlin.core.arrays import unflagged

T = TypeVar("T")
PARTS_PER_WORKER = 4  # so that a slow part does not keep the others waiting

Asked = tuple[str, tuple[Any, ...], str]  # the name of a sum, its parameters, what rows it is over
Recorder = Callable[[Asked, Callable[[], Any]], Any]  # what is asked, and how to carry it out
_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


class Additive:
    """A frozen dataclass of sums over rows: the sums of two chunks add field by field."""

    def __add__(self, other: Self) -> Self:
        own = fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in own))


class Cut(Protocol):
    """Rows that can be cut into parts, in order."""

    def parts(self, count_hint: int) -> Any:
        """Return about so many parts, each an iterable of chunks."""

    def __iter__(self) -> Iterator[Any]: ...


def reduce(fn: Callable[..., T], chunks: Iterable[Any], *params: Any) -> T:
    """Return Σ fn(chunk, *params) over the chunks.

    Chunks that have a `carry` (threads, a cluster) carry the sum out themselves; others are added
    up one at a time. Where a recorder is set, it is asked first: it may know the sum already.
    """
    recorder = _recorder.get()
    if recorder is None:
        return _carried(fn, chunks, params)
    token = _recorder.set(None)  # what `fn` itself adds up is not recorded
    asked = (fn.__name__, params, getattr(chunks, "token", ""))
    try:
        total: T = recorder(asked, lambda: _carried(fn, chunks, params))
        return total
    finally:
        _recorder.reset(token)


@contextmanager
def recorded(recorder: Recorder | None) -> Iterator[None]:
    """Let a recorder see every sum that is carried out meanwhile."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def collect(fn: Callable[..., T], chunks: Iterable[Any], *params: Any) -> list[T]:
    """Return fn(chunk, *params) of each chunk, in the order of the rows.

    Carried out as a sum is, but nothing that a recorder should keep: it grows with the rows.
    """
    return _carried(_listed, chunks, (fn, *params))


def _listed(chunk: Any, fn: Callable[..., T], *params: Any) -> list[T]:
    return [fn(chunk, *params)]


@unflagged  # threads and other processes do not inherit it
def folded(
    fn: Callable[..., T], chunks: Iterable[Any], params: tuple[Any, ...], own: Any = None
) -> T | None:
    """Return the sum, one chunk at a time; None where there are none.

    With `own`, a value for each row, `fn` is given pairs of a chunk and its part of them.
    """
    items = chunks if own is None else paired(chunks, own)
    return summed(fn(item, *params) for item in items)


def paired(chunks: Iterable[Any], own: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each chunk with its part of the rows' own values."""
    start = 0
    for chunk in chunks:
        stop = start + height(chunk)
        yield chunk, own[start:stop]
        start = stop


def height(chunk: Any) -> int:
    """Return the number of rows."""
    return int(chunk.X.shape[0])


def cut(own: Any, heights: Sequence[int]) -> list[Any]:
    """Cut the rows' own values into those of parts of such heights."""
    return [own[stop - n : stop] for n, stop in zip(heights, accumulate(heights), strict=True)]


def summed(sums: Iterable[T | None]) -> T | None:
    """Return the sum of sums, those of no chunks left out; None where there are none."""
    total: T | None = None
    for some in sums:
        if some is not None:
            total = some if total is None else total + some  # type: ignore[operator]
    return total


def _carried(fn: Callable[..., T], chunks: Iterable[Any], params: tuple[Any, ...]) -> T:
    carry = getattr(chunks, "carry", None)
    total: T | None = folded(fn, chunks, params) if carry is None else carry(fn, params)
    if total is None:
        raise ValueError("There are no rows.")
    return total


@cache
def _libraries() -> Any:
    """Return the linear algebra libraries that are loaded: to look for them takes 10 ms."""
    return ThreadpoolController()


def one_blas_thread() -> Any:
    """Keep the linear algebra library to one thread meanwhile: there are others at work."""
    return _libraries().limit(limits=1, user_api="blas")


@dataclass(frozen=True)
class Threads:
    """Rows whose parts are summed in threads, and the parts' sums in the order of the rows.

    How the rows are cut depends on the number of workers alone, so the same number gives the same
    result to the last bit. Each thread has one thread of the linear algebra library to itself.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin.core.chunks import MemorySource
    >>> rows = Threads(MemorySource(np.ones((10, 3)), np.arange(10.0)), workers=2)
    >>> float(reduce(lambda chunk: chunk.y.sum(), rows))
    45.0
    """

    source: Cut
    workers: int

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)

    @cached_property
    def heights(self) -> list[int]:
        """Count the rows of the parts: a pass."""
        return [folded(height, part, ()) or 0 for part in self._parts()]

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], own: Any = None) -> T | None:
        """Return the sum over all chunks; see `folded` for the rows' own values."""
        parts = self._parts()
        shares = [None] * len(parts) if own is None else cut(own, self.heights)
        with one_blas_thread(), ThreadPoolExecutor(self.workers) as pool:
            sums = pool.map(lambda part, share: folded(fn, part, params, share), parts, shares)
            total = summed(sums)
        absorb = getattr(self.source, "absorb", None)
        if absorb is not None:
            absorb(parts)
        return total

    def _parts(self) -> Any:
        return self.source.parts(PARTS_PER_WORKER * self.workers)
