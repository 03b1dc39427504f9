"""The command line: `quadlin check | fit | predict | inspect | evaluate | export | …`."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 1 (data or model), 2 (usage) or 130 (Ctrl-C).

    Parameters
    ----------
    argv : sequence of str or None
        What follows the program's name; None takes that of the process.

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
