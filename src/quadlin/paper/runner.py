"""Runs studies: each finished task is a line of one file, so that a run can continue."""

import gzip
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, CalledProcessError, check_output
from time import perf_counter, process_time
from typing import Any

from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from quadlin.core.version import __version__
from quadlin.paper.studies import SIZES, Row, Study, Task, studies
from quadlin.paper.studies.panels import SettingError, Settings, customised

RESULTS = "results.jsonl"  # committed results are compressed, with .gz behind
PACKAGES = {name: name for name in ("numpy", "scipy", "torch")} | {"scikit-learn": "sklearn"}
LINE_SECONDS = 10.0  # between two lines of progress
DIGITS = 6  # of a number in the results


class FolderError(OSError):
    """The folder of the results cannot be used; the message says why and what to do."""


class TaskFailedError(RuntimeError):
    """Some tasks ended with an error; all others are kept."""


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
    say: Callable[[str], None] = print,
) -> list[str]:
    """Run the studies, or continue them: every finished task is a line of `results.jsonl`.

    Parameters
    ----------
    size : {"tiny", "quick", "full"}
        For tests; some minutes in all; the paper's.
    only : sequence of str, or str with commas, or None
        Names of studies, as `quadlin.paper.studies.studies` lists them. None means all.
    folder : path
        Where results go. Tasks found there are not run again.
    device : str
        "cpu" for numpy, or a device of torch such as "cuda", for the panels.
    settings : Settings or None
        Other settings for the panels, such as your own solver or distribution.
    jobs : int or None
        Tasks at a time, each in a process of its own. None takes one for each core at size
        "quick", else 1: a panel of the paper's size needs several gigabytes.
    report : callable or None
        Called with the folder at the end, e.g. `quadlin.paper.report.write_report`.
    progress : bool
        Whether to write a line of progress every ten seconds.
    say : callable
        Called with each message for the user.

    Returns
    -------
    list of str
        Names of the studies, all of whose tasks are done.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     reproduce("tiny", "a", folder, progress=False, say=lambda line: None)
    ['a']
    """
    check(size, device, jobs)
    settings = settings or Settings()
    chosen = chosen_studies(only)
    if settings.changed():
        chosen = [customised(study, settings, size) for study in chosen]
    if jobs is None:
        jobs = (os.cpu_count() or 1) if size == "quick" and device == "cpu" else 1
    path = opened(Path(folder), {"size": size, "settings": settings.changed()})
    done = {_key(line["study"], line["task"]) for line in lines_of(path.parent)}
    todo = [
        (study, task)
        for study in chosen
        for task in study.tasks(size)
        if _key(study.name, task) not in done
    ]
    failed: dict[str, BaseException] = {}
    # With small matrices, threads of BLAS spend most of their time waiting.
    threads = 1 if jobs > 1 or size != "full" else None
    # With several processes the longest tasks begin first, so that none is left for the end.
    work = Parallel(n_jobs=jobs, return_as="generator_unordered")(
        delayed(_run)(study.name if not settings.changed() else study, task, device, threads)
        for study, task in todo
    )
    told = perf_counter()
    try:
        with path.open("a", encoding="utf-8") as file:
            for count, line in enumerate(work, 1):
                if isinstance(line["rows"], BaseException):
                    failed.setdefault(line["study"], line["rows"])
                else:
                    file.write(json.dumps(line, default=_number, ensure_ascii=False) + "\n")
                    file.flush()
                if progress and (perf_counter() - told >= LINE_SECONDS or count == len(todo)):
                    told = perf_counter()
                    text = f"{line['study']}: {count} of {len(todo)} tasks"
                    print(text, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        say(
            f"\nStopped. Everything finished so far is kept in {str(path)!r}; the same command "
            "continues from there."
        )
        raise
    if report is not None and any(lines_of(path.parent)):
        say(f"The report is {str(report(path.parent))!r}.")
    if failed:
        name, error = next(iter(failed.items()))
        raise TaskFailedError(
            f"{len(failed)} of {len(chosen)} studies failed; {name} with {type(error).__name__}: "
            f"{error}. All finished tasks are kept in {str(path)!r}; the same command tries the "
            "failed ones again."
        ) from error
    return [study.name for study in chosen]


def _run(study: Study | str, task: Task, device: str, threads: int | None) -> Row:
    """Run a task; return its line of the results, with the error for rows if it failed."""
    study = studies()[study] if isinstance(study, str) else study
    start, cpu = perf_counter(), process_time()
    try:
        with threadpool_limits(threads):
            rows: Any = _columns(study.run(task, device))
    except Exception as error:
        rows = error
    line = {"study": study.name, "task": dict(task), "rows": rows, "device": device}
    return line | {
        "seconds": round(perf_counter() - start, 3), "cpu": round(process_time() - cpu, 3),
        "versions": versions(),
    }  # fmt: skip


def opened(folder: Path, head: dict[str, Any]) -> Path:
    """Return the file of results, with its size and settings as the first line."""
    path, head = folder / RESULTS, json.loads(json.dumps(head))
    folder.mkdir(parents=True, exist_ok=True)
    there = head_of(folder)
    if there is None:
        path.write_text(json.dumps(head) + "\n", encoding="utf-8")
    elif path.exists() and not path.read_text(encoding="utf-8").endswith("\n"):
        with path.open("a", encoding="utf-8") as file:  # an interrupted line ends here
            file.write("\n")
    if there not in (None, head):
        raise FolderError(
            f"{str(folder)!r} holds results of size and settings {there}, not {head}. Choose "
            "another `folder`."
        )
    return path


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    path, packed = folder / RESULTS, folder / f"{RESULTS}.gz"
    if path.exists():
        text = path.read_text(encoding="utf-8")
    elif packed.exists():
        text = gzip.decompress(packed.read_bytes()).decode()
    else:
        return
    for line in text.split("\n"):
        try:
            yield json.loads(line)
        except ValueError:  # a line that was cut off: its task is run again
            continue


def head_of(folder: Path) -> dict[str, Any] | None:
    """Return the size and the settings of the results, or None where there are none."""
    return next((line for line in _lines(folder) if "size" in line), None)


def lines_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of finished tasks."""
    return (line for line in _lines(folder) if "rows" in line)


def frames(folder: Path) -> dict[str, Any]:
    """Return a frame of pandas for each study, a line per row, with the task's own entries."""
    import pandas as pd

    tables: dict[str, list[Any]] = {}
    # In an order that does not depend on which task ended first.
    for line in sorted(lines_of(folder), key=lambda line: _key(line["study"], line["task"])):
        table, task = pd.DataFrame(line["rows"]), line["task"]
        plain = {key: value for key, value in task.items() if not isinstance(value, list)}
        tables.setdefault(line["study"], []).append(table.assign(**plain))
    return {name: pd.concat(found, ignore_index=True) for name, found in tables.items()}


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the columns of some rows, with numbers of six digits."""

    def short(value: Any) -> Any:
        value = _number(value)
        return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value

    return {name: [short(row[name]) for row in rows] for name in (rows[0] if rows else ())}


def _number(value: Any) -> Any:
    """Return a numpy number as a Python number."""
    return value.item() if hasattr(value, "item") else value


def _key(study: str, task: Mapping[str, Any]) -> str:
    return study + json.dumps(dict(task), sort_keys=True, default=_number)


@cache
def versions() -> dict[str, str]:
    """Return the versions that results depend on, with the commit of a checkout."""
    packages = {"quadlin": __version__, "python": platform.python_version(), "commit": _commit()}
    used = {name: module for name, module in PACKAGES.items() if module in sys.modules}
    return packages | {name: sys.modules[module].__version__ for name, module in used.items()}


def _commit() -> str:
    """Return the commit that the environment names, or that of the checkout."""
    if "GIT_COMMIT" in os.environ:  # of a copy without its history
        return os.environ["GIT_COMMIT"]
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        commit = check_output([*git, "rev-parse", "HEAD"], text=True, stderr=DEVNULL).strip()
        changes = check_output([*git, "status", "--porcelain", "--", ".."], text=True)
    except (OSError, CalledProcessError):
        return "unknown"
    return commit + " with changes" * bool(changes)


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
        raise SettingError(f"{what} Choose from: {', '.join(by_name)}.")
    return [study for name, study in by_name.items() if name in names]


def check(size: str, device: str, jobs: int | None) -> None:
    """Raise an error for a size or a device that does not exist."""
    if size not in SIZES:
        raise SettingError(f"There is no size {size!r}. Choose from: {', '.join(SIZES)}.")
    if jobs is not None and jobs < 1:
        raise SettingError(f"`jobs` must be a whole number ≥ 1, not {jobs!r}.")
    if device == "cpu":
        return
    try:
        import torch

        torch.zeros(1, device=device)
    except (ImportError, RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(
            f"Device {device!r} cannot be used ({reason}). Install torch, or use device 'cpu'."
        ) from error
