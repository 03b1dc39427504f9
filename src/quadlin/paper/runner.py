"""Runs studies: each finished task is kept, so that a run that was stopped goes on from there."""

import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

from threadpoolctl import threadpool_limits

from quadlin.paper.results import Part, Results, versions
from quadlin.paper.studies import studies
from quadlin.paper.study import SIZES, Study, Task

Say = Callable[[str], None]


class UnknownNameError(ValueError):
    """A study, size or device that does not exist; the message lists those that do."""


class TaskFailedError(RuntimeError):
    """Some tasks ended with an error; all others are kept."""


@dataclass
class Outcome:
    """How a run ended."""

    folder: Path
    complete: list[str] = field(default_factory=list)  # studies whose Parquet file is written
    left: dict[str, str] = field(default_factory=dict)  # other studies, and why


def reproduce(
    size: str = "quick",
    only: Sequence[str] | str | None = None,
    folder: str | Path = "results",
    device: str = "cpu",
    *,
    jobs: int | None = None,
    report: Callable[[Path], Path] | None = None,
    progress: bool = True,
    say: Say = print,
) -> Outcome:
    """Run the studies, or go on with them, and combine each whole one into a Parquet file.

    Parameters
    ----------
    size : {"tiny", "quick", "full"}
        For tests; under three minutes in all; the paper's.
    only : sequence of str, or str with commas, or None
        Names of studies, as `quadlin.paper.studies.studies` lists them. None means all.
    folder : path
        Where results go. Tasks found there are not run again.
    device : str
        "cpu" for numpy, or a device of torch such as "cuda".
    jobs : int or None
        Tasks at a time, each in a process of its own. None takes one for each core at size
        "quick", else 1: tasks of the paper's size need a gigabyte or more each.
    report : callable or None
        Called with the folder at the end, e.g. `quadlin.paper.report.write_report`.
    progress : bool
        Whether to show a bar, where rich is installed.
    say : callable
        What to do with a line of words for the user.

    Returns
    -------
    Outcome
        Which studies are complete, and why others are not.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcome = reproduce("tiny", "a", folder, progress=False, say=lambda line: None)
    >>> outcome.complete
    ['a']
    """
    chosen = chosen_studies(only)
    check_size(size)
    check_device(device)
    jobs = _checked_jobs(jobs, size, device)
    results = Results(Path(folder), size, say)
    results.open()
    outcome, failed = Outcome(results.folder), []
    try:
        with _bar(chosen, size, progress) as advance, _workers(jobs) as pool:
            for study in chosen:
                failed += _run_study(study, results, device, outcome, advance, pool)
    except KeyboardInterrupt:
        say(
            f"\nStopped. Everything finished so far is kept in {str(results.folder)!r}; "
            "the same command goes on from there."
        )
        raise
    for name, reason in outcome.left.items():
        say(f"{name}: {reason}")
    if report is not None and any(results.folder.glob("*.parquet")):
        say(f"The report is {str(report(results.folder))!r}.")
    if failed:
        raise TaskFailedError(
            f"{len(failed)} task(s) failed, the first with: {failed[0]!r}. All others are kept in "
            f"{str(results.folder)!r}; the same command tries the failed ones again."
        ) from failed[0]
    return outcome


def _run_study(
    study: Study,
    results: Results,
    device: str,
    outcome: Outcome,
    advance: Callable[[str], None],
    pool: ProcessPoolExecutor | None,
) -> list[Exception]:
    """Run what is missing of a study; return the errors."""
    tasks, failed = study.tasks(results.size), []
    parts: list[Part] = []
    if results.is_combined(study, tasks):
        for _ in tasks:
            advance(study.name)
        outcome.complete.append(study.name)
        return []
    known = [results.read(study.name, task) for task in tasks]
    running: list[Callable[[], Part]] = []
    for task, part in zip(tasks, known, strict=True):
        if part is not None:
            running.append(partial(_same, part))
        elif pool is None:
            running.append(partial(_run_task, study, task, results, device))
        else:
            given = (study.name, task, str(results.folder), results.size, device)
            running.append(_submitted(pool, *given))
    for result in running:
        try:
            parts.append(result())
        except ImportError as error:
            outcome.left[study.name] = f"not run here. {error}"
        except Exception as error:
            failed.append(error)
            outcome.left[study.name] = f"a task failed: {error!r}"
        advance(study.name)
    if len(parts) == len(tasks):
        try:
            results.combine(study, parts)
            outcome.complete.append(study.name)
        except ImportError:
            outcome.left[study.name] = (
                "all its tasks are done and kept as parts; combining them needs pyarrow: "
                'pip install "quadlin[reproduce]", then run the same command again.'
            )
        except Exception as error:
            failed.append(error)
            outcome.left[study.name] = f"its rows do not make one table: {error!r}"
    return failed


def _same(part: Part) -> Part:
    return part


def _submitted(pool: ProcessPoolExecutor, *given: Any) -> Callable[[], Part]:
    """Return what waits for a task's result, or raises why there is none."""
    try:
        return pool.submit(_work, *given).result
    except RuntimeError as error:  # a worker died, of memory say
        return partial(_raise, error)


def _raise(error: Exception) -> Part:
    raise error


def _work(name: str, task: Task, folder: str, size: str, device: str) -> Part:
    """Run a task in a worker."""
    return _run_task(studies()[name], task, Results(Path(folder), size, _say_nothing), device)


def _say_nothing(line: str) -> None:
    pass


@contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor | None]:
    """Yield processes that run tasks, none for one job at a time."""
    if jobs == 1:
        yield None
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _checked_jobs(jobs: int | None, size: str, device: str) -> int:
    if jobs is None:
        return (os.cpu_count() or 1) if size == "quick" and device == "cpu" else 1
    if not isinstance(jobs, int) or jobs < 1:
        raise UnknownNameError(f"jobs={jobs!r} must be a whole number ≥ 1.")
    return jobs


def _run_task(study: Study, task: Task, results: Results, device: str) -> Part:
    # On small matrices threads of BLAS wait for one another more than they work.
    small = device == "cpu" and results.size != "full"
    start = perf_counter()
    with _no_swallowed_interrupt(), threadpool_limits(1 if small else None):
        rows = study.run(task, device)
    part = Part(task, rows, perf_counter() - start, device, versions())
    results.write(study.name, part)
    return part


@contextmanager
def _no_swallowed_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if a solver took one for a wish to stop early.

    A fit that is interrupted returns its best model so far, which is no result of the task.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
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


def chosen_studies(only: Sequence[str] | str | None) -> list[Study]:
    """Return the studies of these names, in the order of the report."""
    known = studies()
    if only is None:
        return list(known.values())
    names = only.split(",") if isinstance(only, str) else list(only)
    names = [name.strip() for name in names if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"There is no study {unknown[0]!r}." if unknown else "No study is named."
        raise UnknownNameError(f"{what} Choose from: {', '.join(known)}.")
    return [study for name, study in known.items() if name in names]


def check_size(size: str) -> None:
    """Refuse a size that does not exist."""
    if size not in SIZES:
        raise UnknownNameError(f"There is no size {size!r}. Choose from: {', '.join(SIZES)}.")


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    if device == "cpu":
        return
    if importlib.util.find_spec("torch") is None:
        raise UnknownNameError(f"Device {device!r} needs torch. Install it, or use device 'cpu'.")
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UnknownNameError(
            f"Device {device!r} cannot be used ({reason}). Use 'cpu', or 'cuda' where there is one."
        ) from error


@contextmanager
def _bar(chosen: Sequence[Study], size: str, shown: bool) -> Iterator[Callable[[str], None]]:
    """Yield what moves the bar on by a task; silent where rich is missing."""
    if not shown or importlib.util.find_spec("rich") is None:
        yield lambda name: None
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
        total = sum(len(study.tasks(size)) for study in chosen)
        bar = progress.add_task("", total=total)
        yield lambda name: progress.update(bar, advance=1, description=name)
