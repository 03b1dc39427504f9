"""Rows of the standard input that have to be read more than once, kept in a temporary file."""

import atexit
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from quadlin.cli.options import STANDARD, OutputOptions, RowOptions, UsageError
from quadlin.cli.printing import print_note

KEPT = (
    "The rows of the standard input are kept in a temporary file, because they are read more than "
    "once."
)


class Recorded:
    """The standard input, and what was read of it before it was clear whether once is enough."""

    closed = False

    def __init__(self, handle: Any = None) -> None:
        self.handle = sys.stdin.buffer if handle is None else handle
        self.parts: list[bytes] | None = []

    def read(self, size: int = -1) -> bytes:
        """Read as a file does, and remember it."""
        part = bytes(self.handle.read(size))
        if self.parts is not None:
            self.parts.append(part)
        return part

    def forget(self) -> None:
        """Let go of what was read: nobody will ask for it again."""
        self.parts = None

    def stored(self, format: str) -> Path:
        """Write all rows to a file, which is removed when the program ends.

        Examples
        --------
        >>> from io import BytesIO
        >>> rows = Recorded(BytesIO(b"a,y\\n1,2\\n"))
        >>> rows.read(3)
        b'a,y'
        >>> rows.stored("csv").read_text()
        'a,y\\n1,2\\n'
        """
        folder = TemporaryDirectory(prefix="quadlin-")
        atexit.register(folder.cleanup)
        path = Path(folder.name) / f"standard-input.{format}"
        with path.open("wb") as file:
            file.writelines(self.parts or [])
            shutil.copyfileobj(self.handle, file)
        self.forget()
        return path

    def close(self) -> None:
        """Do nothing: the standard input stays open."""


def check_format(read: RowOptions) -> None:
    """Refuse the standard input without --format: no name tells the format."""
    if read.format is None:
        raise UsageError("The standard input needs --format, such as --format csv.")


def stored_rows(data: str, read: RowOptions, output: OutputOptions) -> str:
    """Return where rows are that a command opens again: of the standard input, a temporary file."""
    if data != STANDARD:
        return data
    check_format(read)
    print_note(KEPT, output.silent)
    return str(Recorded().stored(str(read.format)))
