"""Several solvers on views of the same rows: one pass computes the sums that all wait for."""

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Thread, local
from typing import Any, NamedTuple, TypeVar

from quadlin.core.arrays import Array
from quadlin.core.engine import Engine, Serial
from quadlin.core.rows import Rows, Walks

T = TypeVar("T")


class Abandoned(BaseException):
    """Ends a solver that waits for a pass that will not take place."""


class WalkRequest(NamedTuple):
    """A sum that a solver asks for."""

    fn: Callable[..., Any]
    params: tuple[Any, ...]
    per_row: Any


@dataclass(frozen=True)
class SharedWalks:
    """Views of the same rows whose sums share passes during `run`.

    Each solver runs in a thread of its own until it needs a sum. Once all of them wait for one, one
    pass computes the sums of every view, chunk by chunk. The sums equal those of separate passes.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin.core.chunks import MemorySource
    >>> rows = Rows.of(MemorySource(np.ones((10, 3)), np.arange(10.0)))
    >>> both = SharedWalks(rows)
    >>> views = [both.view(np.full(10, w)) for w in (1.0, 2.0)]
    >>> weights = both.run([lambda v=v: v.reduce(lambda c: c.weight.sum()) for v in views])
    >>> [float(w) for w in weights], rows.walks
    ([10.0, 20.0], 1)
    """

    rows: Rows
    place: local = field(default_factory=local)  # the queues of each thread

    def view(self, weight: Array) -> Rows:
        """Return a view with multiplied weights; its counter counts the sums of its solver."""
        view = self.rows.reweighted(weight)
        if self.rows.journal is not None:  # a journal has one order, so views do not share passes
            return view
        return replace(view, engine=ViewEngine(self), counter=Walks())

    def run(self, solvers: Sequence[Callable[[], T]]) -> list[T]:
        """Return what the solvers return; each sums over its own view."""
        if len(solvers) < 2 or self.rows.journal is not None:
            return [solve() for solve in solvers]
        asked: SimpleQueue[tuple[int, WalkRequest | None]] = SimpleQueue()
        answers: list[SimpleQueue[Any]] = [SimpleQueue() for _ in solvers]
        results: dict[int, T] = {}
        errors: dict[int, BaseException] = {}

        def solve(i: int) -> None:
            self.place.queues = (i, asked, answers[i])
            try:
                results[i] = solvers[i]()
            except BaseException as error:  # raised again by the thread that waits for all
                errors[i] = error
            finally:
                asked.put((i, None))

        threads = [Thread(target=copy_context().run, args=(solve, i)) for i in range(len(solvers))]
        for thread in threads:
            thread.start()
        try:
            self._answer(set(range(len(solvers))), asked, answers)
        finally:
            for queue in answers:  # nobody waits any more, unless this thread was interrupted
                queue.put(Abandoned())
            for thread in threads:
                thread.join()
        for i in sorted(errors):
            raise errors[i]
        return [results[i] for i in range(len(solvers))]

    def _answer(
        self,
        busy: set[int],
        asked: "SimpleQueue[tuple[int, WalkRequest | None]]",
        answers: Sequence["SimpleQueue[Any]"],
    ) -> None:
        """Take a pass whenever all unfinished solvers wait for one."""
        waiting: dict[int, WalkRequest] = {}
        while busy:
            i, request = asked.get()
            if request is None:
                busy.discard(i)
            else:
                waiting[i] = request
            if waiting and len(waiting) == len(busy):
                order = sorted(waiting)
                for j, answer in zip(order, self.walk([waiting[j] for j in order]), strict=True):
                    answers[j].put(answer)
                waiting = {}

    def walk(self, requests: Sequence[WalkRequest]) -> Sequence[Any]:
        """Return the sums of some requests: one pass."""
        self.rows.counter.count += 1
        per_row = PerRow(tuple(request.per_row for request in requests))
        sums = self.rows.engine.carry(_answers, (requests,), per_row)
        return [None] * len(requests) if sums is None else sums.parts


@dataclass(frozen=True)
class ViewEngine(Engine):
    """The engine of a view, whose sums wait for those of the other views."""

    shared: SharedWalks

    @property
    def source(self) -> Any:
        """Return the rows themselves."""
        return self.shared.rows.engine.source

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return the sum over all chunks."""
        request = WalkRequest(fn, params, per_row)
        queues = getattr(self.shared.place, "queues", None)
        if queues is None:
            alone: T | None = self.shared.walk([request])[0]
            return alone
        i, asked, answers = queues
        asked.put((i, request))
        answer: Any = answers.get()
        if isinstance(answer, Abandoned):
            raise answer
        total: T | None = answer
        return total

    def over(self, source: Any) -> Engine:
        """Return an engine for a sample, which belongs to this view alone."""
        return Serial(source)


@dataclass(frozen=True)
class PerRow:
    """The values per row of several requests, cut together."""

    values: tuple[Any, ...]

    def __getitem__(self, part: slice) -> tuple[Any, ...]:
        return tuple(None if v is None else v[part] for v in self.values)


@dataclass(frozen=True)
class Answers:
    """The sums of several requests, which add one by one."""

    parts: list[Any]

    def __add__(self, other: "Answers") -> "Answers":
        return Answers([a + b for a, b in zip(self.parts, other.parts, strict=True)])


def _answers(pair: tuple[Any, tuple[Any, ...]], requests: Sequence[WalkRequest]) -> Answers:
    chunk, values = pair
    return Answers(
        [
            request.fn(chunk if value is None else (chunk, value), *request.params)
            for request, value in zip(requests, values, strict=True)
        ]
    )
