"""The command line: `quadlin check | fit | predict | inspect | evaluate | export | …`.

Imports every room below; no room imports it.
Gives users a command per file, which parses, calls the library and prints.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from signal import SIG_DFL, SIGINT, signal
else:  # a part of the interpreter, which is there before anything is imported
    from _signal import SIG_DFL, SIGINT, signal

__all__ = ["command", "main"]


def main(argv: "Sequence[str] | None" = None) -> int:
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
    try:
        before = signal(SIGINT, end_at_once)
    except ValueError:  # signals reach the main thread alone
        return _run(argv)
    try:
        return _run(argv)
    finally:
        signal(SIGINT, before)


def command() -> None:
    """Run the command of this process and end the process.

    A thread of Arrow may still hold a stream of Python, such as the standard input. If it let go of
    the stream while the interpreter shuts down, it would abort the process after all its work. So
    where Arrow was used, the process ends without that.
    """
    status = main()
    signal(SIGINT, SIG_DFL)  # what was to be saved is saved
    if "pyarrow" not in sys.modules:
        sys.exit(status)
    import atexit
    from contextlib import suppress

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(status)


def _run(argv: "Sequence[str] | None") -> int:
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


def end_at_once(number: int, frame: object) -> None:
    """End the process by Ctrl-C before a command begins: while modules are imported.

    Nothing is lost then, and an exception would surface inside a module that is half imported.
    """
    os.write(2, b"quadlin: Stopped; nothing was saved.\n")
    os._exit(130)


# From the first line on, where the process is the command and not one that imports this package.
if os.path.basename(sys.argv[0]) in ("quadlin", "quadlin.exe", "-m"):
    signal(SIGINT, end_at_once)
