"""How far a walk over the rows is: rows a second and the time left, on a terminal."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from quadlin.cli.interrupt import check_interrupt
from quadlin.data import Source

SAMPLE = 1 << 20  # bytes of a CSV file that tell how long its lines are


@contextmanager
def watched(source: Source, doing: str, quiet: bool, again: bool = False) -> Iterator[Source]:
    """Yield the source, with a bar that follows it; `again` if it is walked many times."""
    if quiet or not sys.stderr.isatty():
        yield replace(source, watch=lambda n: check_interrupt())
        return
    with _bar() as bar:
        yield replace(source, watch=_Follower(bar, source, doing, again))


class _Follower:
    """Moves a bar as chunks are read, in whatever thread."""

    def __init__(self, bar: Any, source: Source, doing: str, again: bool) -> None:
        self.bar, self.doing, self.again = bar, doing, again
        self.rows, self.passes, self.seen, self.total = source.rows, 1, 0, 0
        self.lock = threading.Lock()
        self.task = bar.add_task(doing, total=self.rows or _estimated(source), seen=0)

    def __call__(self, n: int) -> None:
        check_interrupt()
        with self.lock:
            self.seen += n
            self.total += n
            if n == 0 or (self.rows and self.again and self.seen > self.rows):
                self.rows = self.rows or self.seen
                self.passes, self.seen = self.passes + 1, n
            told = f"{self.doing}, pass {self.passes}" if self.again else self.doing
            total = {} if self.rows is None else {"total": self.rows}
            done = self.seen if self.again or n else self.total
            self.bar.update(self.task, completed=done, seen=self.total, description=told, **total)


@contextmanager
def waiting(doing: str, quiet: bool) -> Iterator[None]:
    """Show that something is going on whose end is not known."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    with _bar() as bar:
        bar.add_task(doing, total=None, seen=0)
        yield


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
    from rich.text import Text

    class Pace(ProgressColumn):
        """Rows a second over all passes, the time so far and that to the end of the walk.

        Rich's own columns stop at the end of the first pass.
        """

        def render(self, task: Any) -> Any:
            return Text(pace(task.fields["seen"], task.completed, task.total, task.elapsed or 0.0))

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), Pace())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def pace(seen: int, done: float, total: float | None, elapsed: float) -> str:
    """Return rows a second, the time so far and the time left, as far as they are known.

    Examples
    --------
    >>> pace(3000, 1000, 2000, 10.0)
    '300 rows/s, 0:00:10, 0:00:03 left'
    """
    words = [f"{seen / elapsed:,.0f} rows/s"] if seen and elapsed > 0 else []
    words.append(str(timedelta(seconds=int(elapsed))))
    if words[1:] and total is not None:
        left = max(0.0, total - done) * elapsed / seen
        words.append(f"{timedelta(seconds=int(left))} left")
    return ", ".join(words)


def _estimated(source: Source) -> int | None:
    """Estimate the rows of plain CSV files by the length of the first lines."""
    units = getattr(source.feed, "units", None)
    if getattr(source.feed, "format", None) not in ("csv", "tsv") or not units:
        return None
    path = Path(units[0].file.path)
    if path.suffix.lower() in (".gz", ".bz2"):
        return None
    with path.open("rb") as file:
        head = file.read(SAMPLE)
    lines = head.count(b"\n")
    return int(sum(unit.file.size for unit in units) * lines / len(head)) or None
