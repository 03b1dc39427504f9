"""Runs studies; finished tasks are kept, so that a run can continue after it was stopped."""

import importlib.util
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from quadlin.paper.execution import progress_bar, started, workers
from quadlin.paper.results import Part, Results
from quadlin.paper.settings import SettingError, Settings
from quadlin.paper.solver import SolverError
from quadlin.paper.studies import studies
from quadlin.paper.studies.panels import customised
from quadlin.paper.study import SIZES, Study

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
