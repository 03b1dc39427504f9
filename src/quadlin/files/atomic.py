"""Files that are written completely or not at all; devices and pipes are never replaced."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from tempfile import SpooledTemporaryFile
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

BINARY = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
TEMPORARY = ".quadlin-tmp"  # the end of the name of a file that is being written
IN_MEMORY = 64 << 20  # bytes for a device or a pipe that are kept in memory until they are complete


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file whose contents appear at `path` once they are complete.

    Parameters
    ----------
    path : path
        A new name or a regular file, which is replaced when the new contents are on the disk; a
        symbolic link stays one, and its target is replaced. A pipe or a character device such as
        ``/dev/null`` is written to. Folders, sockets and disks are refused.

    Yields
    ------
    file
        Writable and seekable. If the block raises, `path` is left as it was.

    Notes
    -----
    What killed processes left beside `path` is removed first. A lock distinguishes it from what
    other processes are writing at the same time; the last of several writers wins.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(f"{folder}/a") as file:
    ...         _ = file.write(b"complete")
    ...     Path(f"{folder}/a").read_bytes()
    b'complete'
    """
    if _is_stream(path):
        with SpooledTemporaryFile(IN_MEMORY) as file:
            yield file  # type: ignore[misc]  # it has every method of a binary file
            file.seek(0)
            # There is no O_CREAT, since some systems refuse it for pipes of other users.
            with os.fdopen(os.open(path, os.O_WRONLY), "wb") as stream:
                shutil.copyfileobj(file, stream)
    else:
        with _replacing(Path(os.path.realpath(path))) as file:
            yield file


def require_regular_file(path: str | os.PathLike[str]) -> None:
    """Raise an OSError unless `path` is a file that can be read again and again."""
    mode = _mode(path)
    if mode is None:
        raise FileNotFoundError(f"There is no file {path}. Check its name and its folder.")
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file in it.")
    if not stat.S_ISREG(mode):  # reading from a pipe might never end
        raise NotRegularFileError(f"{path} is a device or a pipe. Give the name of a file.")


class NotRegularFileError(OSError):
    """The path is a device, a pipe or a socket, but a regular file is needed."""


def _mode(path: str | os.PathLike[str]) -> int | None:
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """Tell whether `path` takes a stream of bytes; raise if nothing can be written to it."""
    mode = _mode(path)
    if mode is None or stat.S_ISREG(mode):
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file in it.")
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    raise NotRegularFileError(f"{path} is a disk or a socket. Give the name of a file.")


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    if not target.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {target.parent} to write to. Make it first.")
    _remove_stale(target)
    file, temporary = _new_file(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:  # elsewhere an open file cannot be renamed
                os.replace(temporary, target)
        if fcntl is None:
            os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def _new_file(target: Path) -> tuple[BinaryIO, Path]:
    """Create and lock a temporary file beside the target, with the permissions of any new file."""
    while True:
        temporary = target.with_name(f".{target.name}.{token_hex(6)}{TEMPORARY}")
        file = os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | BINARY, 0o666), "wb")
        if fcntl is None:
            return file, temporary
        with suppress(OSError):  # there are file systems without locks
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        # Between its creation and its lock another writer may have removed it as a stale one.
        if os.fstat(file.fileno()).st_nlink:
            return file, temporary
        file.close()


def _remove_stale(target: Path) -> None:
    """Remove temporary files of the target that no process is writing."""
    for name in os.listdir(target.parent):
        if not (name.startswith(f".{target.name}.") and name.endswith(TEMPORARY)):
            continue
        with suppress(OSError):  # locked by its writer, or gone
            if fcntl is None:
                target.with_name(name).unlink()
                continue
            descriptor = os.open(target.with_name(name), BINARY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                target.with_name(name).unlink()
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Write the new name to the disk, if the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
