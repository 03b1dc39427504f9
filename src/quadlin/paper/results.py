"""A folder of results: a JSON part per finished task, a Parquet file per complete study."""

import hashlib
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from subprocess import CalledProcessError, run
from tempfile import NamedTemporaryFile
from typing import Any

from quadlin.core.version import __version__
from quadlin.files.atomic import atomic_write
from quadlin.paper.study import Row, Study, Task

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
