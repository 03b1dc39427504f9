"""Engines that compute sums over chunks of rows, in this thread or in several."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from threading import Lock
from typing import Any, Protocol, Self, TypeVar

from threadpoolctl import ThreadpoolController

from quadlin.core.arrays import unflagged

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
# The parts that threads sum depend on the rows alone, so that any number of threads adds the same
# sums in the same order. A part must be worth the start of a thread, and larger than its sums.
PART_ENTRIES = 1 << 22
ENTRIES_PER_COLUMN = 8
SMALL_MATRIX = 1000  # columns, up to which one thread is enough for the matrices between sums
MOST_PARTS = 64  # also of rows of unknown number: more would hardly be spread more evenly


class Additive:
    """A frozen dataclass of sums over rows: the sums of two chunks add field by field."""

    def __add__(self, other: Self) -> Self:
        a, b = vars(self), vars(other)
        return type(self)(*(a[name] + b[name] for name in self.__dataclass_fields__))  # type: ignore[attr-defined]  # all are dataclasses


def in_wide_blocks(fn: F) -> F:
    """Mark a sum that allocates nothing as large as a block: it is given fewer, larger blocks."""
    fn.in_wide_blocks = True  # type: ignore[attr-defined]
    return fn


def takes_wide_blocks(fn: Callable[..., Any]) -> bool:
    """Tell whether a sum is marked by `in_wide_blocks`."""
    return getattr(fn, "in_wide_blocks", False)


def by_products(fn: F) -> F:
    """Mark a sum that uses only products of the rows, so that a device can compute it."""
    fn.by_products = True  # type: ignore[attr-defined]
    return fn


def uses_products_only(fn: Callable[..., Any]) -> bool:
    """Tell whether a sum is marked by `by_products` or by `in_wide_blocks`."""
    return takes_wide_blocks(fn) or getattr(fn, "by_products", False)


class Engine(Protocol):
    """Computes sums over the rows of its source, by default on the host."""

    source: Any
    sample_entries: tuple[int, ...] = ()  # numbers of a sample that is worth fitting first
    elsewhere: bool = False  # whether an accelerator computes the sums
    hosted: "Engine | None" = None  # brings sums of rows on an accelerator to a solver on the host

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return Σ fn(chunk, *params), None without rows; `folded` explains values per row."""

    def over(self, source: Any) -> "Engine":
        """Return an engine for a sample of the rows, which this process holds in memory."""
        ...


@dataclass(eq=False)
class Serial(Engine):
    """One chunk after the other, in this thread."""

    source: Any

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return the sum over all chunks."""
        return folded(fn, self.source, params, per_row)[0]

    def over(self, source: Any) -> Engine:
        """Return this engine for other rows."""
        return Serial(source)


@dataclass(eq=False)
class Threads(Engine):
    """Sums parts of the rows in threads, and adds the sums of the parts in the order of the rows.

    The parts do not depend on the number of threads, so the result is always the same to the last
    bit. Each thread uses one thread of the linear algebra library. Threads end with each sum, so
    that a fork loses none and none spins while it waits. A single part needs no other thread.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin.core.chunks import MemorySource
    >>> engine = Threads(MemorySource(np.ones((10, 3)), np.arange(10.0)), workers=2)
    >>> float(engine.carry(lambda chunk: chunk.y.sum(), ()))
    45.0
    """

    source: Any
    workers: int
    _heights: list[int] | None = field(default=None, init=False)  # of the parts, after one pass

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return the sum over all chunks."""
        parts = self.source.parts(part_count(self.source))
        if len(parts) == 1:
            with one_blas_thread():
                return folded(fn, parts[0], params, per_row)[0]
        shares = [None] * len(parts)
        if per_row is not None:
            if self._heights is None:
                self.carry(height, ())
            shares = cut(per_row, self._heights or [])
        heights: list[int] = []

        def sums() -> Iterator[T | None]:
            for total, rows in self._mapped(
                lambda part, share: folded(fn, part, params, share), parts, shares
            ):
                heights.append(rows)
                yield total

        with one_blas_thread():
            total = summed(sums())
        self._heights = heights  # once all are known: Ctrl-C leaves those of the last pass
        self.source.absorb(parts)
        return total

    def over(self, source: Any) -> Engine:
        """Return as many threads for other rows."""
        return Threads(source, self.workers)

    def _mapped(self, fn: Callable[..., Any], *columns: Sequence[Any]) -> Iterator[Any]:
        """Yield what `map` yields, computed in threads if there is work for several."""
        workers = min(self.workers, len(columns[0]))
        if workers < 2:
            yield from map(fn, *columns)
            return
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(fn, *columns)


def part_count(source: Any) -> int:
    """Return into how many parts rows are cut for threads."""
    if source.entries is None:
        return MOST_PARTS
    least = max(PART_ENTRIES, ENTRIES_PER_COLUMN * source.width)
    return max(1, min(MOST_PARTS, int(source.entries // least)))


@unflagged  # threads and other processes do not inherit it
def folded(
    fn: Callable[..., T], chunks: Iterable[Any], params: tuple[Any, ...], per_row: Any = None
) -> tuple[T | None, int]:
    """Return the sum, one chunk at a time, and the number of rows; None if there are none.

    With `per_row`, which has a value for each row, `fn` is given pairs of a chunk and its part.
    """
    total: T | None = None
    rows = 0
    if takes_wide_blocks(fn) and hasattr(chunks, "in_wide_blocks"):
        chunks = chunks.in_wide_blocks()
    for item in chunks if per_row is None else paired(chunks, per_row):
        rows += height(item if per_row is None else item[0])
        value = fn(item, *params)
        total = value if total is None else total + value  # type: ignore[operator]
    return total, rows


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
    """Return the sum of sums, ignoring None; None if there are none."""
    total: T | None = None
    for part in sums:
        if part is not None:
            total = part if total is None else total + part  # type: ignore[operator]
    return total


@cache
def _libraries() -> Any:
    """Return the linear algebra libraries that are loaded; looking for them takes 10 ms."""
    return ThreadpoolController()


class _OneBlasThread:
    """Keeps the linear algebra library at one thread, from the first request to the last release.

    The setting belongs to the process, and requests overlap. If each restored the value that it
    found, the last one could leave a wrong value behind for good. Changing it takes 0.1 ms.
    """

    def __init__(self) -> None:
        self.lock, self.depth = Lock(), 0
        self.limits: Any = None

    def __enter__(self) -> None:
        with self.lock:
            if self.depth == 0:
                self.limits = _libraries().limit(limits=1, user_api="blas")
            self.depth += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                self.limits.restore_original_limits()


_one_blas_thread = _OneBlasThread()


def one_blas_thread() -> AbstractContextManager[None]:
    """Keep the linear algebra library to one thread, since other threads are at work."""
    return _one_blas_thread


def blas_between_sums(engine: Engine) -> AbstractContextManager[Any]:
    """Limit BLAS to one thread during a fit whose sums other threads or devices compute.

    Threads of BLAS wait for each other by spinning. With matrices of d×k numbers, that takes as
    much CPU time as the rest of a fit, and more if other programs need the cores.
    """
    by_others = engine.elsewhere or isinstance(engine, Threads)
    small = by_others and engine.source.width <= SMALL_MATRIX
    return one_blas_thread() if small else nullcontext()
