"""The command line: `quadlin check | fit | predict | inspect | evaluate | export | …`.

Imports every package below; no package imports it.
Gives users one function per command, which parses, calls the library and prints.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from signal import SIGINT, default_int_handler, signal
else:  # a part of the interpreter, which is there before anything is imported
    from _signal import SIGINT, default_int_handler, signal

__all__ = ["command", "main"]


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run a command; return 0, 1 (data or model), 2 (usage) or 130 (Ctrl-C).

    Parameters
    ----------
    argv : sequence of str or None
        The arguments after the program's name; None takes the arguments of the process.

    Returns
    -------
    int
        The exit code.
    """
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


def command() -> None:
    """Run the command of this process and end the process."""
    signal(SIGINT, _stop)
    sys.exit(main())


def _stop(number: int, frame: object) -> None:
    """End the process in one line, where Ctrl-C comes while modules are imported."""
    signal(SIGINT, default_int_handler)
    os.write(2, b"quadlin: Stopped; nothing was saved.\n")
    raise SystemExit(130)


# From the first line on, where the process is the command and not one that imports this package.
if os.path.basename(sys.argv[0]) in ("quadlin", "quadlin.exe", "-m"):
    signal(SIGINT, _stop)
