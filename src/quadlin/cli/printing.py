"""Printing: numbers and tables for people, JSON for machines, errors as one sentence.

Whatever is printed passes `printable`: names of columns, levels and files come from strangers.
"""

import json
import math
import re
import shlex
import sys
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from cyclopts.exceptions import UnusedCliTokensError

from quadlin.cli.options import ModelOptions, TableOptions, join_names
from quadlin.core.messages import printable

# Options of the library whose flags have other names; all others only turn _ into -.
FLAGS = {
    "n_features": "--features",
    "fit_linear": "--linear",
    "fit_intercept": "--intercept",
    "categorical_features": "--categorical",
}
OPPOSITES = {"zero_based": "--one-based"}  # flags for False that are not --no-…
EXPECTED = (ValueError, OSError, ImportError, MemoryError, Warning, KeyboardInterrupt)


PARAMETERS = {
    *(field.name for kind in (TableOptions, ModelOptions) for field in fields(kind)),
    *(
        *FLAGS,
        "classify",
        "cv",
        "draws",
        "fm",
        "folder",
        "jobs",
        "keep",
        "label",
        "level",
        "noise",
        "rows",
        "size",
    ),
}
# `name`, or name=value with a value in quotes, in brackets, or of one word.
WRITTEN = re.compile(r"""`([a-z_]+)`|\b([a-z_]+)=("[^"]*"|'[^']*'|\[[^]]*\]|[\w.+-]*\w)""")


class Option(NamedTuple):
    """An option of the library: its name, and its value if one is meant."""

    name: str
    value: Any = None


def as_flags(text: str) -> str:
    """Return a sentence of the library with its parameters written as options.

    Examples
    --------
    >>> as_flags("Lower `rank`, or use alpha=1 and missing='drop'; city=Oslo is a level.")
    'Lower --rank, or use --alpha 1 and --missing drop; city=Oslo is a level.'
    """

    def written(match: re.Match[str]) -> str:
        name, value = match[1] or match[2], match[3]
        if name not in PARAMETERS:
            return match[0]
        try:
            return flag(Option(name, literal_eval(value) if value else None))
        except (SyntaxError, ValueError):
            return flag(Option(name, value))

    return WRITTEN.sub(written, text.replace('labels="learn"', "classify=True"))


def flag(option: Option) -> str:
    """Return an option of the library as this command line writes it.

    Examples
    --------
    >>> flag(Option("max_iter")), flag(Option("missing", "drop")), flag(Option("polish", False))
    ('--max-iter', '--missing drop', '--no-polish')
    >>> flag(Option("delimiter", ";")), flag(Option("zero_based", False))
    ('--delimiter ";"', '--one-based')
    >>> flag(Option("na", ["?", "-"])), flag(Option("categorical_features", ["zip"]))
    ("--na '?,-'", '--categorical zip')
    """
    name, *values = arguments(option)
    if isinstance(option.value, list | dict):
        return " ".join([name, *map(shlex.quote, values)])
    shown = [v if re.fullmatch(r"[\w.,+-]*\w", v) else f'"{v}"' for v in values]
    return " ".join([name, *shown])


def arguments(option: Option) -> list[str]:
    """Return an option of the library as arguments of a command."""
    name, value = FLAGS.get(option.name, "--" + option.name.replace("_", "-")), option.value
    if value is None or value is True:
        return [name]
    if value is False:
        return [OPPOSITES.get(option.name, name.replace("--", "--no-", 1))]
    if isinstance(value, dict):  # columns of lists, and the separator that they share
        separator = Option("separator", next(iter(value.values())))
        return [*arguments(Option(option.name, list(value))), *arguments(separator)]
    if isinstance(value, tuple):
        return [name, ",".join(map(str, value))]
    if isinstance(value, list):
        return [name, join_names(map(str, value))]
    return [name, "tab" if value in ("\t", r"\t") else str(value)]


def message_text(message: Any) -> str:
    """Return an error, a warning or a message of the library as one printable line."""
    text = " ".join(_text(message).split())
    unexpected = isinstance(message, BaseException) and not isinstance(message, EXPECTED)
    if unexpected and type(message).__module__.split(".")[0] not in ("quadlin", "cyclopts"):
        text = f"unexpected {type(message).__name__}: {text} (--debug shows where)"
    return printable(text)


def message_lines(message: str) -> list[str]:
    """Return a message of several lines as printable lines."""
    return [printable(line) for line in _text(message).splitlines()]


def _text(message: Any) -> str:
    if not isinstance(message, BaseException):
        return as_flags(str(message))
    if isinstance(message, UnusedCliTokensError):
        tokens = ", ".join(repr(str(token)) for token in message.unused_tokens or ())
        return (
            f"Unexpected argument {tokens}: quote patterns of files and names that contain spaces, "
            "and separate names by commas. A column is named by an option, such as --target."
        )
    if isinstance(message, MemoryError) and not str(message):
        return "There is not enough memory. Use --one-pass, or fewer --columns."
    if isinstance(message, OSError) and message.strerror:
        return f"{message.filename or ''}: {message.strerror}.".removeprefix(": ")
    if isinstance(message, KeyError) and message.args:
        return as_flags(str(message.args[0]))
    return as_flags(str(message)) or type(message).__name__


def print_answer(content: dict[str, Any], lines: Sequence[str], as_json: bool) -> None:
    """Print an answer: one JSON object, or lines."""
    if as_json:
        text = json.dumps(json_value(content), allow_nan=False, ensure_ascii=False)
        sys.stdout.write(UNSAFE_IN_JSON.sub(lambda c: f"\\u{ord(c[0]):04x}", text) + "\n")
    elif lines:
        sys.stdout.write("\n".join(map(printable, lines)) + "\n")


# What `printable` would escape and JSON leaves as it is: C1 controls, bidi marks, line separators.
UNSAFE_IN_JSON = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)


def print_note(text: str, quiet: bool) -> None:
    """Print a remark to the standard error."""
    if not quiet:
        sys.stderr.write(printable(text) + "\n")


def json_value(value: Any) -> Any:
    """Return a value of plain JSON: no numpy, and null for what is not a finite number."""
    if isinstance(value, dict):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and its like
        return json_value(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def aligned(table: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Return lines of aligned cells; columns of numbers are aligned to the right."""
    if not table:
        return []
    rows = [[printable(cell) for cell in row] for row in table]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = [
        all(re.match(r"[-+]?[\d.,]|$|n(an|one)$", row[i]) for row in rows)
        for i in range(len(widths))
    ]
    return [
        (
            indent
            + "  ".join(
                cell.rjust(width) if flush else cell.ljust(width)
                for cell, width, flush in zip(row, widths, right, strict=True)
            )
        ).rstrip()
        for row in rows
    ]


def number(value: float | None, sign: bool = False) -> str:
    """Return a number with four significant digits."""
    if value is None or not math.isfinite(value):
        return "nan"
    return f"{value:{'+' if sign else ''}.4g}"


def byte_count(size: float) -> str:
    """Return a number of bytes for people.

    Examples
    --------
    >>> byte_count(3_200_000)
    '3.2 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
