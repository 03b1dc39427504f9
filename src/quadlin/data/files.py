"""Files on disk: which files a path means, their format, and whether they change while in use."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from glob import glob, has_magic
from os import fspath
from pathlib import Path
from typing import Any, NamedTuple

from quadlin.data.names import SourceError, explained, shortened
from quadlin.data.source import Unit

PACKED = (".gz", ".bz2", ".xz")


class Format(NamedTuple):
    """A format of files. The module that reads one adds it to `FORMATS`."""

    suffixes: tuple[str, ...]
    # (files, options of `open_source`) → the feed, and the reader or, of tables, an empty frame
    open: Callable[..., tuple[Any, Any]]
    title: str
    packed: tuple[str, ...] = ()  # how files may be compressed
    is_table: bool = False


FORMATS: dict[str, Format] = {}


@dataclass(frozen=True)
class File:
    """A file as it was when it was first seen.

    A later fit recognises the file by its size and its time of modification. Within a fit, a
    rewrite that keeps both is noticed by the time of the inode's last change.
    """

    path: str
    size: int
    mtime: int  # nanoseconds
    ctime: int | None = field(default=None, compare=False, repr=False)  # None on another machine

    @classmethod
    def of(cls, path: str) -> "File":
        """Return a file in its present state."""
        with explained(f"File {path}", "Check the path."):
            status = Path(path).stat()
        return cls(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ctime": None}  # a copy on a worker's disk has another ctime

    def check(self) -> None:
        """Raise an error for a file that has changed."""
        now = File.of(self.path)
        touched = self.ctime is not None and now.ctime != self.ctime
        if now != self or touched:
            raise SourceError(
                f"File {self.path} has changed since it was opened. Open it again when it is "
                "complete."
            )


@dataclass(frozen=True)
class FileUnit(Unit):
    """Rows of a file."""

    file: File

    @property
    def place(self) -> str:  # type: ignore[override]
        """Return the path, for messages."""
        return f"file {self.file.path}"

    @property
    def size(self) -> int:
        """Return the size of the file."""
        return max(1, self.file.size)

    def check(self) -> None:
        """Raise an error for a file that has changed."""
        self.file.check()


@dataclass(frozen=True)
class FileSet:
    """The files that a path means."""

    files: tuple[File, ...]
    format: str
    title: str  # "Parquet folder sales/, 12 files"


def find(given: Any, format: str | None) -> FileSet:
    """Return the files that a path, a folder, a pattern or a list of paths means.

    Parameters
    ----------
    given : str, path-like, or a list of them
        What the user gave.
    format : str or None
        The format. If None, the suffix decides.

    Returns
    -------
    FileSet
    """
    if isinstance(given, list | tuple):
        shown, paths, kind = f"{len(given)} paths", [_text(path) for path in given], "files"
    else:
        shown = _text(given)
        paths, kind = _expanded(shown, format)
    chosen = format or _common_format(paths, shown)
    if chosen not in FORMATS:
        raise SourceError(f"format={format!r} is not one of {', '.join(FORMATS)}.")
    files = tuple(map(File.of, paths))
    for file in files:
        if not (file.size and Path(file.path).is_file()):
            raise SourceError(f"{file.path} is empty (0 bytes), or no file. Write it again.")
    title = f"{FORMATS[chosen].title} {kind} {shown}"
    count = f", {len(files)} file{'s' * (len(files) != 1)}" if kind != "file" else ""
    return FileSet(files, chosen, title + count)


def format_of(path: str) -> str | None:
    """Return the format that the name of a file suggests; None if it suggests none."""
    name = Path(path)
    packed = name.suffix.lower() in PACKED
    suffix = (name.with_suffix("") if packed else name).suffix.lower()
    format = next((key for key, each in FORMATS.items() if suffix in each.suffixes), None)
    if format is None or not packed or name.suffix.lower() in FORMATS[format].packed:
        return format
    raise SourceError(f"{path}: a {format} file cannot be read compressed. Decompress it first.")


def _text(path: Any) -> str:
    text = fspath(path)
    text = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    if re.match(r"[a-zA-Z][a-zA-Z0-9+]+://", text):
        raise SourceError(
            f"{text} is not a file on this machine. Download it first, or give a "
            "pyarrow.dataset or a Dask frame that reads it."
        )
    return text


def _expanded(shown: str, format: str | None) -> tuple[list[str], str]:
    with explained(f"Path {shown}", "Check the path."):
        path = Path(shown)
        if path.is_dir():
            return _inside(path, format), "folder"
        if has_magic(shown) and not path.exists():
            matched = sorted(p for p in glob(shown, recursive=True) if Path(p).is_file())
            if not matched:
                raise SourceError(f"No file matches {shown}. Check the pattern.")
            return matched, "files"
        if not path.exists():
            raise SourceError(f"File {shown} does not exist. Check the path.")
        return [shown], "file"


def _inside(folder: Path, format: str | None) -> list[str]:
    paths = []
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder).parts
        if any(part.startswith((".", "_")) for part in inner) or not path.is_file():
            continue
        if format is None and format_of(path.name) is None:
            continue
        if keyed := [part for part in inner[:-1] if re.fullmatch(r"\w+=.*", part)]:
            raise SourceError(
                f"The names of the folders in {folder} hold values ({keyed[0]}). Give "
                f'pyarrow.dataset.dataset({str(folder)!r}, partitioning="hive") instead.'
            )
        paths.append(str(path))
    if not paths:
        raise SourceError(
            f"Folder {folder!s} holds no files of rows ({', '.join(FORMATS)}). "
            "Check the path, or give `format` if the files have other names."
        )
    return paths


def _common_format(paths: list[str], shown: str) -> str:
    formats = {format_of(path): path for path in paths}
    if None in formats or len(formats) != 1:
        raise SourceError(
            f"The names of {shown} do not show one format ({shortened(formats.values())}). Give "
            f"files of one of {', '.join(FORMATS)}, and `format` if their names are others."
        )
    return str(next(iter(formats)))
