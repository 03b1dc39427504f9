"""How a sum over chunks of rows is carried out: in this thread, or in several."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import cache
from itertools import accumulate
from typing import Any, Protocol, Self, TypeVar

from threadpoolctl import ThreadpoolController

from quadlin.core.arrays import unflagged

T = TypeVar("T")
PARTS_PER_WORKER = 4  # so that a slow part does not keep the others waiting


class Additive:
    """A frozen dataclass of sums over rows: the sums of two chunks add field by field."""

    def __add__(self, other: Self) -> Self:
        names = [f.name for f in fields(self)]  # type: ignore[arg-type]  # all are dataclasses
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in names))


class Engine(Protocol):
    """What carries out a sum over the rows of its source."""

    @property
    def source(self) -> Any:
        """Return where the rows come from."""

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return Σ fn(chunk, *params); see `folded` for values per row. None without rows."""


class Serial:
    """One chunk after the other, in this thread."""

    def __init__(self, source: Iterable[Any]) -> None:
        self.source = source

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return the sum over all chunks."""
        return folded(fn, self.source, params, per_row)[0]


class Threads:
    """Parts of the rows are summed in threads, and the sums of the parts in the order of the rows.

    How the rows are cut depends on the number of workers alone, so the same number gives the same
    result to the last bit. Each thread has one thread of the linear algebra library to itself.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin.core.chunks import MemorySource
    >>> engine = Threads(MemorySource(np.ones((10, 3)), np.arange(10.0)), workers=2)
    >>> float(engine.carry(lambda chunk: chunk.y.sum(), ()))
    45.0
    """

    def __init__(self, source: Any, workers: int) -> None:
        self.source, self.workers = source, workers
        self._heights: list[int] | None = None  # of the parts, known after the first walk

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return the sum over all chunks."""
        parts = self.source.parts(PARTS_PER_WORKER * self.workers)
        shares = [None] * len(parts)
        if per_row is not None:
            if self._heights is None:
                self.carry(height, ())
            shares = cut(per_row, self._heights or [])
        with one_blas_thread(), ThreadPoolExecutor(self.workers) as pool:
            sums = pool.map(lambda part, share: folded(fn, part, params, share), parts, shares)
            totals, self._heights = (list(each) for each in zip(*sums, strict=True))
        self.source.absorb(parts)
        return summed(totals)


@unflagged  # threads and other processes do not inherit it
def folded(
    fn: Callable[..., T], chunks: Iterable[Any], params: tuple[Any, ...], per_row: Any = None
) -> tuple[T | None, int]:
    """Return the sum, one chunk at a time, and the number of rows; None where there are none.

    With `per_row`, which has a value for each row, `fn` is given pairs of a chunk and its part.
    """
    total: T | None = None
    stop = 0
    for chunk in chunks:
        start, stop = stop, stop + height(chunk)
        item = chunk if per_row is None else (chunk, per_row[start:stop])
        value = fn(item, *params)
        total = value if total is None else total + value  # type: ignore[operator]
    return total, stop


def paired(chunks: Iterable[Any], per_row: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each chunk with its part of the values per row."""
    stop = 0
    for chunk in chunks:
        start, stop = stop, stop + height(chunk)
        yield chunk, per_row[start:stop]


def height(chunk: Any) -> int:
    """Return the number of rows of a chunk."""
    return int(chunk.X.shape[0])


def cut(per_row: Any, heights: Sequence[int]) -> list[Any]:
    """Cut values per row into those of parts of such heights."""
    return [per_row[stop - n : stop] for n, stop in zip(heights, accumulate(heights), strict=True)]


def summed(sums: Iterable[T | None]) -> T | None:
    """Return the sum of sums, those of no chunks left out; None where there are none."""
    total: T | None = None
    for part in sums:
        if part is not None:
            total = part if total is None else total + part  # type: ignore[operator]
    return total


@cache
def _libraries() -> Any:
    """Return the linear algebra libraries that are loaded: to look for them takes 10 ms."""
    return ThreadpoolController()


def one_blas_thread() -> Any:
    """Keep the linear algebra library to one thread meanwhile: there are others at work."""
    return _libraries().limit(limits=1, user_api="blas")
