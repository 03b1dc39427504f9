"""Runs studies, completely or not at all: finished tasks are kept, so that a run can continue."""

import hashlib
import importlib.util
import json
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from subprocess import CalledProcessError, run
from tempfile import NamedTemporaryFile
from time import perf_counter
from types import FrameType
from typing import Any

from threadpoolctl import threadpool_limits

from quadlin.core.version import __version__
from quadlin.files.atomic import atomic_write
from quadlin.paper.race import SolverError
from quadlin.paper.settings import SettingError, Settings
from quadlin.paper.studies import studies
from quadlin.paper.studies.panels import customised
from quadlin.paper.study import SIZES, Row, Study, Task

ABOUT = "about.json"
PACKAGES = ("numpy", "scipy", "scikit-learn", "array-api-compat", "torch", "cvxpy")
METADATA = b"quadlin"


class FolderError(OSError):
    """The folder of the results cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Part:
    """The result of one finished task."""

    task: Task
    rows: list[Row]
    seconds: float
    device: str
    versions: dict[str, str]


@dataclass
class Results:
    """The results of one size in a folder. What cannot be read is moved aside, never deleted."""

    folder: Path
    size: str
    say: Callable[[str], None] = print
    moved: list[Path] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the panels, if they were changed

    def open(self) -> None:
        """Prepare the folder for writing, or explain why that is impossible."""
        try:
            (self.folder / "parts").mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            text = (
                "Results cannot be written to {place!r} ({reason}). "
                "Choose another `folder`, or make it writable."
            )
            raise self._refused(text, reason=error.strerror) from error
        self._refuse_mixing()
        about = {"size": self.size} | ({"settings": dict(self.settings)} if self.settings else {})
        write_text(self.folder / ABOUT, json.dumps(about))

    def _refuse_mixing(self) -> None:
        """Refuse a folder whose results have another size or other settings."""
        size, settings = self._contents()
        if size is None:
            return
        if size != self.size:
            text = (
                "{place!r} holds results of size {there!r}, not {here!r}, and the two must not be "
                "mixed. Choose another `folder`, or continue with that size."
            )
            raise self._refused(text, there=size, here=self.size)
        if settings != dict(self.settings):
            text = (
                "{place!r} holds results of other settings ({there}), not of these ({here}). "
                "Choose another `folder`."
            )
            raise self._refused(text, there=_words(settings), here=_words(self.settings))

    def _refused(self, text: str, **values: Any) -> FolderError:
        return FolderError(text.format(place=str(self.folder), **values))

    def _contents(self) -> tuple[str | None, dict[str, Any]]:
        """Return the size and the settings of the folder's results, if it has any."""
        try:
            about = json.loads((self.folder / ABOUT).read_text(encoding="utf-8"))
            return str(about["size"]), dict(about.get("settings", {}))
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError):
            self.set_aside(self.folder / ABOUT)
        for path in sorted(self.folder.glob("parts/*/*.json")):
            try:
                return str(json.loads(path.read_text(encoding="utf-8"))["size"]), {}
            except (ValueError, KeyError, TypeError):
                continue
        return None, {}

    def path(self, study: str, task: Task) -> Path:
        """Return the path of the part of a task."""
        return self.folder / "parts" / study / f"{slug(task)}.json"

    def write(self, study: str, part: Part) -> None:
        """Store a finished task, completely or not at all."""
        kept = {"study": study, "size": self.size, **part.__dict__, "task": dict(part.task)}
        path = self.path(study, part.task)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(kept, default=_number))

    def read(self, study: str, task: Task) -> Part | None:
        """Return the part of a task, or None if it has not been run."""
        path = self.path(study, task)
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            part = Part(**{name: kept[name] for name in Part.__dataclass_fields__})
            whole = isinstance(part.rows, list) and slug(part.task) == path.stem
            if whole and kept["size"] == self.size:
                return part
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        self.set_aside(path)
        return None

    def set_aside(self, path: Path) -> None:
        """Rename a file that cannot be read."""
        number = 1
        while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
            number += 1
        path.rename(aside)
        self.moved.append(aside)
        self.say(
            f"{path.name} in {str(path.parent)!r} is damaged. It is kept as {aside.name}, and its "
            "results are computed again."
        )

    def is_combined(self, study: Study, tasks: Sequence[Task]) -> bool:
        """Tell whether the Parquet file of the study exists and holds these tasks."""
        path = self.folder / f"{study.name}.parquet"
        if not path.exists():
            return False
        try:
            about = read_about(path)
        except ImportError:
            return False
        except (OSError, ValueError, KeyError):
            self.set_aside(path)
            return False
        return about["size"] == self.size and set(about["tasks"]) == set(map(slug, tasks))

    def combine(self, study: Study, parts: Sequence[Part]) -> Path:
        """Write all rows of a study into one Parquet file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [{**part.task, **row} for part in parts for row in part.rows]
        about = {
            "study": study.name,
            "size": self.size,
            "seconds": sum(part.seconds for part in parts),
            "tasks": [slug(part.task) for part in parts],
            "devices": sorted({part.device for part in parts}),
            "versions": {k: v for part in parts for k, v in part.versions.items()},
        }
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
        table = table.replace_schema_metadata({METADATA: json.dumps(about).encode()})
        path = self.folder / f"{study.name}.parquet"
        with atomic_write(path) as file:
            pq.write_table(table, file)
        return path


def settings_of(folder: Path) -> dict[str, Any]:
    """Return the changed settings with which the results of a folder were made."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # results without a note have the settings of their study
        return {}
    return dict(about.get("settings", {}))


def read_about(path: Path) -> dict[str, Any]:
    """Return the metadata of a Parquet file of results, all of which must be readable."""
    import pyarrow.parquet as pq

    schema = pq.read_table(path).schema
    about: dict[str, Any] = json.loads(schema.metadata[METADATA])
    return about


def slug(task: Task) -> str:
    """Return a short name for a task, the same for the same settings.

    Examples
    --------
    >>> slug({"trial": 0, "d": 5}) == slug({"d": 5, "trial": 0})
    True
    """
    text = json.dumps(dict(task), sort_keys=True, default=_number)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_text(path: Path, text: str) -> None:
    """Write a text file completely or not at all, even if the power fails."""
    with atomic_write(path) as file:
        file.write(text.encode())


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "the defaults"


def _number(value: Any) -> Any:
    """Return a numpy number as a Python number."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} is not a plain number or string.")


def versions() -> dict[str, str]:
    """Return the versions that results depend on, with the commit of a checkout."""
    packages = {"quadlin": __version__, "python": platform.python_version()} | _commit()
    for name in PACKAGES:
        if name.replace("scikit-learn", "sklearn").replace("-", "_") in sys.modules:
            try:
                packages[name] = version(name)
            except PackageNotFoundError:
                continue
    return packages


@cache
def _commit() -> dict[str, str]:
    """Return the commit of the checkout, marked where files of the package differ from it."""
    try:
        folder = Path(__file__).parent
        commands = (["rev-parse", "HEAD"], ["status", "--porcelain", "--", str(folder.parent)])
        commit, changes = (
            run(["git", "-C", str(folder), *c], capture_output=True, text=True, check=True).stdout
            for c in commands
        )
    except (OSError, CalledProcessError):
        return {}
    return {"commit": commit.strip() + (" with changes" if changes.strip() else "")}


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


Say = Callable[[str], None]


class UnknownNameError(SettingError):
    """A study, size or device that does not exist; the message lists those that do."""


class TaskFailedError(RuntimeError):
    """Some tasks ended with an error; all others are kept."""


@dataclass
class Outcome:
    """How a run ended."""

    folder: Path
    complete: list[str] = field(default_factory=list)  # studies whose Parquet file is written
    left: dict[str, str] = field(default_factory=dict)  # the other studies, with reasons


def reproduce(
    size: str = "quick",
    only: Sequence[str] | str | None = None,
    folder: str | Path = "results",
    device: str = "cpu",
    *,
    settings: Settings | None = None,
    jobs: int | None = None,
    report: Callable[[Path], Path] | None = None,
    progress: bool = True,
    say: Say = print,
) -> Outcome:
    """Run the studies, or continue them, and combine each complete one into a Parquet file.

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
    settings : Settings or None
        Other settings for the panels a to h, such as your own solver or distribution.
    jobs : int or None
        Tasks at a time, each in a process of its own. None takes one for each core at size
        "quick", else 1: tasks of the paper's size need several gigabytes each.
    report : callable or None
        Called with the folder at the end, e.g. `quadlin.paper.report.write_report`.
    progress : bool
        Whether to show a bar, where rich is installed.
    say : callable
        Called with each message for the user.

    Returns
    -------
    Outcome
        Which studies are complete, and the reason why others are not.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcome = reproduce("tiny", "a", folder, progress=False, say=lambda line: None)
    >>> outcome.complete
    ['a']
    """
    check_size(size)
    settings = settings or Settings()
    chosen = chosen_studies(only)
    if not settings.are_default:
        chosen = [customised(study, settings, size) for study in chosen]
    check_device(device)
    jobs = _checked_jobs(jobs, size, device)
    results = Results(Path(folder), size, say, settings=settings.plain())
    results.open()
    outcome: Outcome = Outcome(results.folder)
    failed: list[Exception] = []
    total = sum(len(study.tasks(size)) for study in chosen)
    try:
        with progress_bar(total, progress) as advance, workers(jobs) as pool:
            for study in chosen:
                failed += _run_study(study, results, device, outcome, advance, pool)
    except KeyboardInterrupt:
        say(
            f"\nStopped. Everything finished so far is kept in {str(results.folder)!r}; "
            "the same command continues from there."
        )
        raise
    for name, reason in outcome.left.items():
        say(f"{name}: {reason}")
    if report is not None and any(results.folder.glob("*.parquet")):
        say(f"The report is {str(report(results.folder))!r}.")
    if failed:
        if isinstance(failed[0], SolverError):
            raise TaskFailedError(str(failed[0])) from failed[0]
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
    """Run the missing tasks of a study; return the errors."""
    tasks = study.tasks(results.size)
    failed: list[Exception] = []
    if results.is_combined(study, tasks):
        for _ in tasks:
            advance(study.name)
        outcome.complete.append(study.name)
        return []
    waiting = [
        results.read(study.name, task) or started(study, task, results, device, pool)
        for task in tasks
    ]
    parts: list[Part] = []
    for result in waiting:
        try:
            parts.append(result if isinstance(result, Part) else result())
        except ImportError as error:
            outcome.left[study.name] = f"not run here. {error}"
        except SolverError as error:
            failed.append(error)
            outcome.left[study.name] = "the solver failed."
            break  # it would fail on every other task as well
        except Exception as error:
            failed.append(error)
            outcome.left[study.name] = f"a task failed: {error!r}"
        advance(study.name)
    if len(parts) == len(tasks):
        failed += _combined(study, results, parts, outcome)
    return failed


def _combined(
    study: Study, results: Results, parts: Sequence[Part], outcome: Outcome
) -> list[Exception]:
    """Write the Parquet file of a study whose tasks are all done; return the errors."""
    try:
        results.combine(study, parts)
        outcome.complete.append(study.name)
    except ImportError:
        outcome.left[study.name] = (
            "all its tasks are done and kept as parts; combining them needs pyarrow: "
            'pip install "quadlin[reproduce]", then run the same command again.'
        )
    except Exception as error:
        outcome.left[study.name] = f"its rows do not make one table: {error!r}"
        return [error]
    return []


def _checked_jobs(jobs: int | None, size: str, device: str) -> int:
    if jobs is None:
        return (os.cpu_count() or 1) if size == "quick" and device == "cpu" else 1
    if not isinstance(jobs, int) or jobs < 1:
        raise UnknownNameError(f"`jobs` must be a whole number ≥ 1, not {jobs!r}.")
    return jobs


def chosen_studies(only: Sequence[str] | str | None) -> list[Study]:
    """Return the studies of these names, in the order of the report."""
    by_name = studies()
    if only is None:
        return list(by_name.values())
    names = only.split(",") if isinstance(only, str) else list(only)
    names = [name.strip() for name in names if name.strip()]
    unknown = [name for name in names if name not in by_name]
    if unknown or not names:
        what = f"There is no study {unknown[0]!r}." if unknown else "No study is named."
        raise UnknownNameError(f"{what} Choose from: {', '.join(by_name)}.")
    return [study for name, study in by_name.items() if name in names]


def check_size(size: str) -> None:
    """Refuse a size that does not exist."""
    if size not in SIZES:
        raise UnknownNameError(f"There is no size {size!r}. Choose from: {', '.join(SIZES)}.")


def check_device(device: str) -> None:
    """Refuse a device that does not exist."""
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
