"""Files that are written completely or not at all; devices and pipes are never replaced."""

import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import BinaryIO, Literal

TEMPORARY = ".quadlin-tmp"  # the end of the name of a file that is being written
STALE = 3600.0  # seconds since its writer wrote last: then it was killed


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file whose contents appear at `path` once they are complete.

    Parameters
    ----------
    path : path
        A new name or a regular file, which is replaced when the new contents are on the disk; a
        symbolic link stays one, and its target is replaced. A pipe or a character device such as
        ``/dev/null`` is written to. Folders, sockets and disks raise an error.

    Yields
    ------
    file
        Writable and seekable. If the block raises, `path` is left as it was.

    Notes
    -----
    What killed processes left next to `path` is removed after an hour. The last of several writers
    wins.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(f"{folder}/a") as file:
    ...         _ = file.write(b"complete")
    ...     Path(f"{folder}/a").read_bytes()
    b'complete'
    """
    if kind_of(path) == "stream":
        with TemporaryFile() as file:
            yield file
            file.seek(0)
            # There is no O_CREAT, which some systems do not allow for pipes of other users.
            with os.fdopen(os.open(path, os.O_WRONLY), "wb") as stream:
                shutil.copyfileobj(file, stream)
    else:
        with _replacing(Path(os.path.realpath(path))) as file:
            yield file


def kind_of(path: str | os.PathLike[str]) -> Literal["nothing", "file", "stream"]:
    """Return what is at a path; raise an OSError where no file can be written."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise FileNotFoundError(
                f"There is no folder {folder} to write to. Make it first."
            ) from None
        if not os.access(folder, os.W_OK):
            raise PermissionError(
                f"The folder {folder} is not writable. Choose another one."
            ) from None
        return "nothing"
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file in it.")
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return "stream"
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is a disk or a socket. Give the name of a file.")
    return "file"


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    for name in os.listdir(target.parent):
        if name.startswith(f".{target.name}.") and name.endswith(TEMPORARY):
            with suppress(OSError):  # gone, or not ours
                if time.time() - os.path.getmtime(target.with_name(name)) > STALE:
                    target.with_name(name).unlink()
    temporary = target.with_name(f".{target.name}.{token_hex(6)}{TEMPORARY}")
    try:
        with open(temporary, "x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    with suppress(OSError):  # the new name, on systems that can write a folder to the disk
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
