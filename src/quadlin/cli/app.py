"""The program: its commands, its configuration file, and how errors become exit codes."""

import os
import sys
import tomllib
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.config import Dict

from quadlin import __version__
from quadlin.cli.options import STANDARD, UsageError, join_names

HELP = """Second order linear models, y = b + x'w + x'Mx with M low-rank.

DATA is a CSV, TSV, Parquet, Arrow, .npy, .npz, svmlight or libffm file, a
folder or a quoted pattern of such files, or - for the standard input (with
--format). Tables may be larger than memory.

  quadlin check houses.csv --target price
  quadlin fit houses.csv --target price -o houses.safetensors
  quadlin inspect houses.safetensors
  quadlin predict houses.safetensors new.csv -o prices.csv

An output file replaces an existing file of that name in one step, when the
new one is complete.

Exit codes: 0 success; 1 something is wrong with the data, the model or a file;
2 the command line is wrong; 130 stopped by Ctrl-C.
"""
# The module of each command is imported when the command is called; the list needs its first line.
COMMANDS = {
    "check": ("quadlin.cli.check", "Check a table, and suggest how to fit it."),
    "fit": ("quadlin.cli.fit", "Fit a model to a table and save it."),
    "pairs": ("quadlin.cli.pairs", "Find the pairs of features that interact."),
    "predict": ("quadlin.cli.predict", "Predict the rows of a table, in their order."),
    "evaluate": ("quadlin.cli.evaluate", "Measure how well a model predicts rows with a target."),
    "recommend": ("quadlin.cli.recommend", "Write the best items for each user."),
    "inspect": ("quadlin.cli.inspection", "Show what a model has learned."),
    "export": ("quadlin.cli.export", "Write a model as an ONNX graph."),
    "demo": ("quadlin.cli.demonstrations", "Show the method on problems with a known answer."),
    "reproduce": ("quadlin.cli.demonstrations", "Run the experiments of the paper."),
}
COMMON = Group("Common options", sort_key=100)
OK, FAILED, USAGE, STOPPED = 0, 1, 2, 130


def run(argv: Sequence[str]) -> int:
    """Run a command and return the exit code; errors become a sentence on stderr."""
    _print_anywhere()
    try:
        with _plain_warnings():
            code = _run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _run(argv: Sequence[str]) -> int:
    debug = "--debug" in argv
    try:
        build(argv).meta(list(argv), result_action="return_value")
        return OK
    except BrokenPipeError:
        raise
    except SystemExit as error:  # how rich ends where the reader of its output is gone
        if isinstance(error.__context__, BrokenPipeError):
            return OK
        raise
    except (CycloptsError, UsageError) as error:
        return _failed(error, USAGE, debug, _hint(argv))
    except KeyboardInterrupt as error:
        told = error if error.args else KeyboardInterrupt("Stopped; nothing was saved.")
        return _failed(told, STOPPED, debug)
    except Exception as error:
        advised = "pip install" in str(error)  # cyclopts only says that a command is not importable
        if isinstance(error, ImportError) and isinstance(error.__cause__, ImportError):
            error = error if advised else error.__cause__
        return _failed(error, FAILED, debug)


def build(argv: Sequence[str]) -> App:
    """Return the program, with a `meta` that takes the options of every command."""
    app = App(
        name="quadlin",
        help=HELP,
        help_format="plaintext",
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        exit_on_error=False,
        print_error=False,
    )
    for name, (module, summary) in COMMANDS.items():
        # A summary would replace the whole help of a command that is loaded.
        app.command(f"{module}:{name}", name=name, help=None if name in argv else summary)

    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[Path | None, Parameter(group=COMMON)] = None,
        debug: Annotated[bool, Parameter(group=COMMON, negative="", show_default=False)] = False,
    ) -> None:
        """Take what every command takes.

        Parameters
        ----------
        config
            A TOML file with a table of options per command. The command line overrides it.
        debug
            Show where in the code an error occurred.
        """
        app.config = () if config is None else (_configuration(config),)
        # A lone hyphen would be taken for an option.
        given = [STANDARD if token == "-" else token for token in tokens]
        command, bound, _ = app.parse_args(given)
        if command == app.help_print or command == app.version_print:
            command(*bound.args, **bound.kwargs)
            return
        from quadlin.cli.progress import interruptible

        with interruptible():
            command(*bound.args, **bound.kwargs)

    app.meta.suppress_keyboard_interrupt = False
    app.meta.default(launch)
    return app


def _configuration(path: Path) -> Any:
    """Return a configuration file whose tables are all commands."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf8"))
    except FileNotFoundError:
        raise UsageError(f"There is no configuration file {path}.") from None
    except ValueError as error:  # not TOML, or not even text
        raise UsageError(f"{path} is not valid TOML: {error}.") from None
    for name, table in tables.items():
        if name not in COMMANDS or not isinstance(table, dict):
            raise UsageError(
                f"{path} contains {name!r}, which is not a command. It may contain one table for "
                f"each of {', '.join(COMMANDS)}, such as [fit]."
            )
    options = {
        name: {option: _as_text(value, option, path) for option, value in table.items()}
        for name, table in tables.items()
    }
    return Dict(options, source=str(path))


def _as_text(value: Any, option: str, path: Path) -> Any:
    """Return a list as the command line has it, with commas between the names."""
    if not isinstance(value, list):
        return value
    if not all(isinstance(item, str | int | float) for item in value):
        raise UsageError(f"{path}: {option} may list names and numbers only.")
    return join_names(map(str, value))


def _print_anywhere() -> None:
    """Let letters that a terminal cannot show be escaped, where they would be an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")


def _failed(error: BaseException, code: int, debug: bool, hint: str = "") -> int:
    from quadlin.cli.printing import message_text

    if debug:
        traceback.print_exception(error)
    sys.stderr.write(f"quadlin: {message_text(error)}{hint}\n")
    return code


def _hint(argv: Sequence[str]) -> str:
    command = next((f" {token}" for token in argv if token in COMMANDS), "")
    return f" See: quadlin{command} --help"


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each warning once, as a line for people."""
    shown: set[str] = set()

    def show(message: Any, *where: Any, **more: Any) -> None:
        from quadlin.cli.printing import message_text

        text = message_text(message)
        if text not in shown:
            shown.add(text)
            sys.stderr.write(f"warning: {text}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for kind in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        warnings.showwarning = show
        yield
