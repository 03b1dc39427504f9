"""Runs tasks one at a time or in processes, completely or not at all, with a progress bar."""

import importlib.util
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from types import FrameType

from threadpoolctl import threadpool_limits

from quadlin.paper.results import Part, Results, versions
from quadlin.paper.studies import studies
from quadlin.paper.study import Study, Task

LINE_SECONDS = 10.0  # between two lines of progress where there is no terminal


@contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor | None]:
    """Yield processes that run tasks, or None for one job at a time."""
    if jobs == 1:
        yield None
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def started(
    study: Study, task: Task, results: Results, device: str, pool: ProcessPoolExecutor | None
) -> Callable[[], Part]:
    """Return a function that waits for the result of a task, or raises its error."""
    if pool is None:
        return partial(run_task, study, task, results, device)
    try:
        place = (str(results.folder), results.size)
        return pool.submit(_in_worker, study.name, task, *place, device).result
    except RuntimeError as error:  # a worker died, of memory for example
        failed: Future[Part] = Future()
        failed.set_exception(error)
        return failed.result


def run_task(study: Study, task: Task, results: Results, device: str) -> Part:
    """Run a task and keep its rows."""
    # With small matrices, threads of BLAS spend most of their time waiting.
    small = device == "cpu" and results.size != "full"
    start = perf_counter()
    with _no_swallowed_interrupt(), threadpool_limits(1 if small else None):
        rows = study.run(task, device)
    part = Part(task, rows, perf_counter() - start, device, versions())
    results.write(study.name, part)
    return part


def _in_worker(name: str, task: Task, folder: str, size: str, device: str) -> Part:
    results = Results(Path(folder), size, say=lambda line: None)
    return run_task(studies()[name], task, results, device)


@contextmanager
def _no_swallowed_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if a solver treated it as a request to stop early.

    A fit that is interrupted returns its best model so far, which is no result of the task.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach only the main thread
        return
    before = signal.getsignal(signal.SIGINT)
    seen = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if seen:
        raise KeyboardInterrupt


@contextmanager
def progress_bar(total: int, shown: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that counts a task as done: in a bar, or in a line every ten seconds."""
    if not shown:
        yield lambda name: None
        return
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        done, last = 0, perf_counter()

        def count(name: str) -> None:
            nonlocal done, last
            done += 1
            if perf_counter() - last >= LINE_SECONDS or done == total:
                last = perf_counter()
                print(f"{name}: {done} of {total} tasks", file=sys.stderr, flush=True)

        yield count
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=total)
        yield lambda name: progress.update(bar, advance=1, description=name)
