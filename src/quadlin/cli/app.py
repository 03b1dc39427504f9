"""The program: its commands, its configuration file, and what becomes of errors."""

import os
import sys
import tomllib
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.config import Dict

from quadlin.cli.check import check
from quadlin.cli.demonstrations import demo, reproduce
from quadlin.cli.evaluate import evaluate
from quadlin.cli.export import export
from quadlin.cli.fit import fit
from quadlin.cli.inspection import inspect
from quadlin.cli.interrupt import Interrupted, interruptible
from quadlin.cli.messages import STANDARD, UsageError, spoken
from quadlin.cli.options import joined
from quadlin.cli.predict import predict

COMMANDS = (check, fit, predict, evaluate, inspect, export, demo, reproduce)
HELP = """Second order linear models, y = b + x'w + x'Mx with M low-rank.

DATA is a CSV, TSV, Parquet, Arrow, .npy, .npz, svmlight or libffm file, a
folder or a quoted pattern of such files, or - for the standard input (with
--format). Tables may be larger than memory.

  quadlin check houses.csv --target price
  quadlin fit houses.csv --target price -o houses.safetensors
  quadlin inspect houses.safetensors
  quadlin predict houses.safetensors new.csv -o prices.csv

A file that a command writes replaces one of that name, at once, and only when
the new one is complete.

Exit codes: 0 done; 1 something is wrong with the data, the model or a file;
2 the command line makes no sense; 130 stopped by Ctrl-C.
"""
ALWAYS = Group("With every command", sort_key=100)
OK, FAILED, USAGE, STOPPED = 0, 1, 2, 130


def build() -> App:
    """Return the program, with a `meta` that takes the options of every command."""
    app = App(
        name="quadlin",
        help=HELP,
        help_format="plaintext",
        version=_version,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        exit_on_error=False,
        print_error=False,
    )
    for command in COMMANDS:
        app.command(command)

    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[Path | None, Parameter(group=ALWAYS)] = None,
        debug: Annotated[bool, Parameter(group=ALWAYS, negative="", show_default=False)] = False,
    ) -> Any:
        """Take what every command takes.

        Parameters
        ----------
        config
            A TOML file of options, a table for each command. The command line goes before it.
        debug
            Show where in the code an error arose.
        """
        app.config = () if config is None else (_configuration(config),)
        # A lone hyphen would be taken for an option.
        return app([STANDARD if token == "-" else token for token in tokens])

    app.meta.suppress_keyboard_interrupt = False
    app.meta.default(launch)
    return app


def _configuration(path: Path) -> Any:
    """Return a configuration file whose tables are all commands."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf8"))
    except FileNotFoundError:
        raise UsageError(f"There is no configuration file {path}.") from None
    except ValueError as error:  # no TOML, or not even text
        raise UsageError(f"{path} is no TOML: {error}.") from None
    commands = [command.__name__ for command in COMMANDS]
    for name, table in tables.items():
        if name not in commands or not isinstance(table, dict):
            raise UsageError(
                f"{path} has {name!r}, which is no command. It takes a table for each of "
                f"{', '.join(commands)}, such as [fit]."
            )
    options = {
        name: {option: _in_words(value, option, path) for option, value in table.items()}
        for name, table in tables.items()
    }
    return Dict(options, source=str(path))


def _in_words(value: Any, option: str, path: Path) -> Any:
    """Return a list as the command line has it, with commas between the names."""
    if not isinstance(value, list):
        return value
    if not all(isinstance(item, str | int | float) for item in value):
        raise UsageError(f"{path}: {option} is a list of more than names and numbers.")
    return joined(map(str, value))


def run(argv: Sequence[str]) -> int:
    """Run a command and return the exit code; errors become a sentence on stderr."""
    debug = "--debug" in argv
    _print_anywhere()
    try:
        with _plain_warnings(), interruptible():
            code = build().meta(list(argv), result_action="return_value")
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except (CycloptsError, UsageError) as error:
        return _said(error, USAGE, debug, _hint(argv))
    except BrokenPipeError:  # whoever reads what we print has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Interrupted as error:
        return _said(error, STOPPED, debug)
    except KeyboardInterrupt:
        return _said(Interrupted("Stopped; nothing was written."), STOPPED, debug)
    except Exception as error:
        return _said(error, FAILED, debug)


def _print_anywhere() -> None:
    """Let letters that a terminal does not know be escaped, where they would be an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")


def _said(error: BaseException, code: int, debug: bool, hint: str = "") -> int:
    if debug:
        traceback.print_exception(error)
    sys.stderr.write(f"quadlin: {spoken(error)}{hint}\n")
    return code


def _hint(argv: Sequence[str]) -> str:
    names = [command.__name__ for command in COMMANDS]
    command = next((f" {token}" for token in argv if token in names), "")
    return f" See: quadlin{command} --help"


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each warning once, as a line for people."""
    seen: set[str] = set()

    def show(message: Any, *where: Any, **more: Any) -> None:
        text = spoken(message)
        if text not in seen:
            seen.add(text)
            sys.stderr.write(f"warning: {text}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for kind in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        warnings.showwarning = show
        yield


def _version() -> str:
    try:
        return version("quadlin")
    except PackageNotFoundError:  # run from a folder
        return "unknown"
