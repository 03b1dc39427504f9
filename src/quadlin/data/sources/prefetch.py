"""Reading ahead: a thread fetches a few items while the caller works on the previous one."""

from collections.abc import Iterable, Iterator
from queue import Empty, Full, Queue
from threading import Event, Thread
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")
DEPTH = 2  # items that may wait; more would only take memory
LAST = 2.0  # seconds that the thread is given to end
PATIENCE = 0.05  # seconds after which a blocked thread checks whether it should stop


def read_ahead(items: Iterable[T], depth: int = DEPTH) -> Iterator[T]:
    """Yield the items, fetched in a background thread that ends when the caller stops.

    Parameters
    ----------
    items : iterable
        Iterated over in the other thread.
    depth : int
        How many items may wait.

    Yields
    ------
    item
        The items in order. An error in the other thread is raised here.

    Examples
    --------
    >>> list(read_ahead(range(5)))
    [0, 1, 2, 3, 4]
    """
    queue: Queue[tuple[str, Any]] = Queue(depth)
    stop = Event()
    thread = Thread(
        target=_fetch, args=(items, queue, stop), name="quadlin-read-ahead", daemon=True
    )
    thread.start()
    try:
        while True:
            kind, value = queue.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        stop.set()
        end = monotonic() + LAST
        # Make room for a blocked put, so that the thread can end. A thread that waits for input,
        # which may never come, is abandoned.
        while thread.is_alive() and monotonic() < end:
            try:
                queue.get(timeout=PATIENCE)
            except Empty:
                thread.join(PATIENCE)


def _fetch(items: Iterable[Any], queue: "Queue[tuple[str, Any]]", stop: Event) -> None:
    walk = iter(items)
    try:
        for item in walk:
            if not _put(queue, ("item", item), stop):
                return
            del item  # otherwise this thread would keep alive what the caller has released
        _put(queue, ("end", None), stop)
    except BaseException as error:  # raised in the caller's thread
        _put(queue, ("error", error), stop)
    finally:
        close = getattr(walk, "close", None)  # files are closed by the thread that opened them
        if close is not None:
            close()


def _put(queue: "Queue[tuple[str, Any]]", entry: tuple[str, Any], stop: Event) -> bool:
    while not stop.is_set():
        try:
            queue.put(entry, timeout=PATIENCE)
            return True
        except Full:
            continue
    return False
