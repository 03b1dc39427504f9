"""A pass over the rows as the user sees it: how far it is, and how Ctrl-C ends it."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from quadlin.cli import end_at_once
from quadlin.data import Source
from quadlin.data.sources.prefetch import read_ahead

SAMPLE = 1 << 20  # bytes of a CSV file that show how long its lines are
PATIENCE = 3  # the signal after which the process ends wherever it is


@contextmanager
def watched(source: Source, doing: str, quiet: bool, again: bool = False) -> Iterator[Source]:
    """Yield the source with a progress bar that follows it; `again` if it is read many times."""
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
        self.task = bar.add_task(doing, total=self.rows or _estimated_rows(source), seen=0)

    def __call__(self, n: int) -> None:
        check_interrupt()
        with self.lock:
            self.seen += n
            self.total += n
            if n == 0 or (self.rows and self.again and self.seen > self.rows):
                self.rows = self.rows or self.seen
                self.passes, self.seen = self.passes + 1, n
            doing = f"{self.doing}, pass {self.passes}" if self.again else self.doing
            total = {} if self.rows is None else {"total": self.rows}
            done = self.seen if self.again or n else self.total
            self.bar.update(self.task, completed=done, seen=self.total, description=doing, **total)


@contextmanager
def waiting(doing: str, quiet: bool) -> Iterator[None]:
    """Show that something is going on that takes an unknown time."""
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
        """Rows per second over all passes, the time so far and the time left in this pass.

        Rich's own columns stop at the end of the first pass.
        """

        def render(self, task: Any) -> Any:
            return Text(pace(task.fields["seen"], task.completed, task.total, task.elapsed or 0.0))

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), Pace())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def pace(seen: int, done: float, total: float | None, elapsed: float) -> str:
    """Return rows per second, the time so far and the time left, as far as they are known.

    Examples
    --------
    >>> pace(3000, 1000, 2000, 10.0)
    '300 rows/s, 0:00:10, 0:00:03 left'
    """
    parts = [f"{seen / elapsed:,.0f} rows/s"] if seen and elapsed > 0 else []
    parts.append(str(timedelta(seconds=int(elapsed))))
    if parts[1:] and total is not None:
        left = max(0.0, total - done) * elapsed / seen
        parts.append(f"{timedelta(seconds=int(left))} left")
    return ", ".join(parts)


def _estimated_rows(source: Source) -> int | None:
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


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what to tell the user."""


@contextmanager
def on_interrupt(text: str) -> Iterator[None]:
    """Tell the user this text if Ctrl-C interrupts the block."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(text) from None


class _Signals:
    """The signals of the command under way."""

    count = 0
    deferred = False


_signals = _Signals()


@contextmanager
def interruptible() -> Iterator[None]:
    """Count Ctrl-C during a command; the first raises KeyboardInterrupt, unless deferred."""
    _signals.count, _signals.deferred = 0, False
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    before = signal.signal(signal.SIGINT, _handle)
    try:
        yield
    finally:  # what was to be saved is saved, so `end_at_once` would not tell the truth
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is end_at_once else before)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Let the first Ctrl-C wait for `check_interrupt`, where a stream would be torn."""
    _signals.deferred = True
    try:
        yield
    finally:
        _signals.deferred = False


def check_interrupt() -> None:
    """Raise if Ctrl-C came: between chunks, and again where a solver took it as a wish to stop."""
    if _signals.count:
        raise KeyboardInterrupt


def _handle(number: int, frame: FrameType | None) -> None:
    _signals.count += 1
    if _signals.count >= PATIENCE:
        os._exit(130)  # a thread may be waiting for a stream that never ends
    if not (_signals.deferred and _signals.count == 1) or _waits_for_rows(frame):
        raise KeyboardInterrupt


def _waits_for_rows(frame: FrameType | None) -> bool:
    """Tell whether the interrupt came while the command only waited for the next chunk."""
    while frame is not None:
        if frame.f_code is read_ahead.__code__:
            return True
        frame = frame.f_back
    return False
