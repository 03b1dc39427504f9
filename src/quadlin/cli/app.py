"""The program: its commands, and how errors become sentences and exit codes."""

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

from cyclopts import App, CycloptsError
from cyclopts.exceptions import UnusedCliTokensError

from quadlin import __version__
from quadlin.cli.options import EVERY_OPTION, STANDARD, UsageError, as_flags
from quadlin.core.messages import printable

HELP = """Second order linear models, y = b + x'w + x'Mx with M low-rank.

DATA is a CSV, TSV, Parquet, Arrow, .npy, svmlight or libffm file, a
folder or a quoted pattern of such files, or - for the standard input (with
--format). Tables may be larger than memory.

Exit codes: 0 success; 1 something is wrong with the data, the model or a file;
2 the command line cannot be parsed; 130 stopped by Ctrl-C or SIGTERM.
"""
# The module of each command is imported when the command is called; the list needs its first line.
COMMANDS = {
    "check": ("quadlin.cli.check", "Check a table, and suggest how to fit it."),
    "fit": ("quadlin.cli.fit", "Fit a model to a table and save it."),
    "pairs": ("quadlin.cli.inspection", "Find the pairs of features that interact."),
    "predict": ("quadlin.cli.predict", "Predict the rows of a table, in their order."),
    "evaluate": ("quadlin.cli.predict", "Measure how well a model predicts rows with a target."),
    "inspect": ("quadlin.cli.inspection", "Show what a model has learned."),
    "export": ("quadlin.cli.inspection", "Write a model as an ONNX graph."),
    "demo": ("quadlin.cli.reproduction", "Show the method on problems with a known answer."),
    "reproduce": ("quadlin.cli.reproduction", "Run the experiments of the paper."),
}
OK, FAILED, USAGE, STOPPED = 0, 1, 2, 130
EXPECTED = (ValueError, OSError, ImportError, MemoryError, Warning, KeyboardInterrupt)


def run(argv: Sequence[str]) -> int:
    """Run a command and return the exit code; errors become a sentence on stderr."""
    for stream in (sys.stdout, sys.stderr):  # letters that a terminal cannot show are escaped
        if isinstance(stream, TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _plain_warnings():
            code = _run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _run(argv: Sequence[str]) -> int:
    try:
        # A lone hyphen would be taken for an option.
        tokens = [STANDARD if token == "-" else token for token in argv]
        command, bound, _ = build(argv).parse_args(tokens)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):  # all is imported
                signal.signal(number, signal.default_int_handler)
        command(*bound.args, **bound.kwargs)
        return OK
    except BrokenPipeError:
        raise
    except SystemExit as error:  # how rich ends where the reader of its output is gone
        if isinstance(error.__context__, BrokenPipeError):
            return OK
        raise
    except (CycloptsError, UsageError) as error:
        name = next((f" {token}" for token in argv if token in COMMANDS), "")
        return _failed(error, USAGE, f" See: quadlin{name} --help")
    except KeyboardInterrupt as error:
        told = error if error.args else KeyboardInterrupt("Stopped; nothing was saved.")
        return _failed(told, STOPPED)
    except Exception as error:
        advised = "pip install" in str(error)  # cyclopts only says that a command is not importable
        if isinstance(error, ImportError) and isinstance(error.__cause__, ImportError):
            error = error if advised else error.__cause__
        return _failed(error, FAILED)


def build(argv: Sequence[str]) -> App:
    """Return the program."""
    app = App(
        name="quadlin",
        help=HELP,
        help_format="plaintext",
        default_parameter=EVERY_OPTION,
        version=__version__,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )
    for name, (module, summary) in COMMANDS.items():
        # A summary would replace the whole help of a command that is loaded.
        app.command(f"{module}:{name}", name=name, help=None if name in argv else summary)

    return app


def sentence(message: Any) -> str:
    """Return an error or a warning as one printable line."""
    if isinstance(message, UnusedCliTokensError):
        tokens = ", ".join(repr(str(token)) for token in message.unused_tokens or ())
        return (
            f"Unexpected argument {printable(tokens)}: quote patterns of files and names that "
            "contain spaces, and separate names by commas. A column is named by an option, such "
            "as --target."
        )
    if isinstance(message, OSError) and message.strerror:
        text = f"{message.filename or ''}: {message.strerror}.".removeprefix(": ")
    elif isinstance(message, MemoryError) and not str(message):
        text = "There is not enough memory. Use fewer `columns`."
    else:
        text = str(message.args[0] if isinstance(message, KeyError) else message)
    text = as_flags(" ".join(text.split())) or type(message).__name__
    unexpected = isinstance(message, BaseException) and not isinstance(message, EXPECTED)
    if unexpected and type(message).__module__.split(".")[0] not in ("quadlin", "cyclopts"):
        text = f"unexpected {type(message).__name__}: {text} (QUADLIN_DEBUG=1 shows where)"
    return printable(text)


def _failed(error: BaseException, code: int, hint: str = "") -> int:
    if os.environ.get("QUADLIN_DEBUG"):
        traceback.print_exception(error)
    sys.stderr.write(f"quadlin: {sentence(error)}{hint}\n")
    return code


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each warning once, as a line for people."""
    shown: set[str] = set()

    def show(message: Any, *where: Any, **more: Any) -> None:
        text = sentence(message)
        if text not in shown:
            shown.add(text)
            sys.stderr.write(f"warning: {text}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for kind in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        warnings.showwarning = show
        yield
