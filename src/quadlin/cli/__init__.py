"""The command line: `quadlin check | fit | predict | inspect | evaluate | export | …`.

Imports every room below; no room imports it.
Gives users a command per file, which parses, calls the library and prints.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 1 (data or model), 2 (usage) or 130 (Ctrl-C).

    Parameters
    ----------
    argv : sequence of str or None
        The arguments after the program's name; None takes those of the process.

    Returns
    -------
    int
        The exit code.
    """
    with _silent_interrupt():
        try:
            import cyclopts  # noqa: F401
            import rich  # noqa: F401
        except ImportError as error:
            sys.stderr.write(
                f'quadlin: the command line needs {error.name}: pip install "quadlin[cli]".\n'
            )
            return 1
        from quadlin.cli.app import run

        return run(sys.argv[1:] if argv is None else list(argv))


@contextmanager
def _silent_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once until a command begins: while modules are imported.

    Nothing is lost then, and an exception would surface inside whichever module is half imported.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
