"""The options that commands share, and answers as text for people or JSON for programs.

Whatever is printed passes `printable`: names of columns, levels and files come from strangers.
"""

import csv
import json
import math
import re
import shlex
import sys
from ast import literal_eval
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from quadlin.core.messages import printable

READING = Group("Reading rows", sort_key=10)
OUTPUT = Group("Output", sort_key=20)
MODEL_SUFFIX = ".safetensors"
STANDARD = "(standard input or output)"  # what a lone hyphen becomes
# Of all options: none has a negative unless it says so, and defaults are in the words of the help.
EVERY_OPTION = Parameter(negative="", show_default=False)
OUTPUT_FILE = Parameter(name=["--output", "-o"])
OutputPath = Annotated[Path, OUTPUT_FILE, Parameter(show_default=True)]
# Parameters of the library that are options of a command.
PARAMETERS = (
    *("target", "weight", "columns", "exclude", "categorical_features", "missing", "format"),
    *("delimiter", "decimal", "encoding", "header", "na", "rank", "alpha", "loss", "pairs"),
    *("uncertainty", "classify", "max_pairs", "squares", "stability", "test_on", "keep", "std"),
    *("interval", "top", "label", "folder", "jobs", "noise", "rows", "size", "dtype", "only"),
)
# `name`, or name=value with a value in quotes, in brackets or parentheses, or of one word.
WRITTEN = re.compile(
    rf"""`({"|".join(PARAMETERS)})`|\b({"|".join(PARAMETERS)})"""
    r"""=("[^"]*"|'[^']*'|\[[^]]*\]|\([^)]*\)|[\w.+-]*\w)"""
)


class UsageError(ValueError):
    """A command line that makes no sense: exit code 2."""


def read_names(kind: Any, tokens: Sequence[Any]) -> list[str]:
    """Read the names of an option that may be repeated and may list several."""
    texts = ("-" if token.value == STANDARD else token.value for token in tokens)
    return [name for text in texts for name in split_names(text)]


def whole_number(kind: Any, tokens: Sequence[Any]) -> int | str:
    """Read a whole number, or "auto" where that is a choice."""
    text = str(tokens[0].value)
    if text == "auto" and "auto" in str(kind):
        return text
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number.") from None


WHOLE = Parameter(converter=whole_number)
Names = Annotated[list[str] | None, Parameter(converter=read_names)]


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True)
class OutputOptions:
    """How a command answers."""

    json: bool = False
    """Print one JSON object instead of text."""
    quiet: Annotated[bool, Parameter(alias="-q")] = False
    """Print warnings and errors only: no progress and no remarks."""

    @property
    def silent(self) -> bool:
        """Tell whether progress and remarks are left out."""
        return self.json or self.quiet


@Parameter(name="*", group=READING)
@dataclass(frozen=True)
class RowOptions:
    """How rows are read."""

    missing: Literal["error", "drop", "mean"] | None = None
    """Missing values: error stops; drop skips rows; mean fills them, and skips rows without y."""
    format: Literal["csv", "tsv", "parquet", "arrow", "npy", "svmlight", "libffm"] | None = None
    """The format of the files. Default: from the file name."""
    delimiter: str | None = None
    """The column separator of CSV files, such as ";" or tab. Default: as in the header."""
    decimal: Literal[".", ","] | None = None
    """The decimal mark of CSV numbers. Default: a point."""
    encoding: str | None = None
    """The encoding of CSV text, such as latin1. Default: UTF-8."""
    header: Annotated[bool | None, Parameter(negative="--no-header")] = None
    """Whether CSV files start with a header. Without one, the columns are called x0, x1, …"""
    na: Annotated[Names, Parameter(allow_leading_hyphen=True)] = None
    """CSV values that mean missing, such as "?,-", in addition to empty cells, NA and the like."""

    @property
    def csv(self) -> dict[str, Any]:
        """Return how CSV is written, as options of `open_source`."""
        delimiter = "\t" if self.delimiter in ("tab", r"\t") else self.delimiter  # hard to type
        options = {name: getattr(self, name) for name in ("decimal", "encoding", "header", "na")}
        return options | {"delimiter": delimiter}


@dataclass(frozen=True)
class LabelledRowOptions(RowOptions):
    """How rows with a target are read."""

    target: str | None = None
    """The target column (for a .npy file: another .npy file). svmlight files contain the target."""
    weight: str | None = None
    """A column of row weights. The default for a model is the column of its fit; '' is none."""


@dataclass(frozen=True)
class TableOptions(LabelledRowOptions):
    """How rows with a target are read, and which columns of them."""

    columns: Names = None
    """The features, separated by commas. Default: all other columns."""
    exclude: Names = None
    """Columns to ignore, separated by commas; all others are features."""
    categorical_features: Names = None
    """Columns of ids or codes, separated by commas: each value becomes a level, like text."""


def split_names(text: str) -> list[str]:
    """Return names that are separated by commas; a name that contains a comma is quoted.

    Examples
    --------
    >>> split_names('area, "size, net"')
    ['area', 'size, net']
    """
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [name for row in rows for name in row if name]


def join_names(names: Iterable[str]) -> str:
    """Return names as `split_names` reads them.

    Examples
    --------
    >>> join_names(["area", "size, net", " old"])
    'area,"size, net"," old"'
    """
    quoted = []
    for name in names:
        odd = name != name.strip() or "," in name or name.startswith('"')
        quoted.append('"{}"'.format(name.replace('"', '""')) if odd else name)
    return ",".join(quoted)


def flag(name: str, value: Any = None) -> str:
    """Return a parameter of the library as an option.

    Examples
    --------
    >>> flag("test_on"), flag("missing", "drop"), flag("header", False), flag("delimiter", ";")
    ('--test-on', '--missing drop', '--no-header', "--delimiter ';'")
    >>> flag("na", ["?", "-"]), flag("categorical_features", ["zip"])
    ("--na '?,-'", '--categorical-features zip')
    """
    dashed = name.replace("_", "-")
    if value is None or value is True:
        return f"--{dashed}"
    if value is False:
        return f"--no-{dashed}"
    if isinstance(value, list | tuple):
        value = join_names(map(str, value))
    return f"--{dashed} {shlex.quote('tab' if value == chr(9) else str(value))}"


def as_flags(text: str) -> str:
    """Return a sentence of the library with its parameters written as options.

    Examples
    --------
    >>> as_flags("Lower `rank`, or use alpha=1 and missing='drop'; city=Oslo is a level.")
    'Lower --rank, or use --alpha 1 and --missing drop; city=Oslo is a level.'
    """

    def written(match: re.Match[str]) -> str:
        name, value = match[1] or match[2], match[3]
        try:
            return flag(name, literal_eval(value) if value else None)
        except (SyntaxError, ValueError):
            return flag(name, value)

    return WRITTEN.sub(written, text)


def print_answer(content: dict[str, Any], lines: Sequence[str], answer: OutputOptions) -> None:
    """Print an answer: one JSON object, or lines."""
    if answer.json:
        text = json.dumps(json_value(content), allow_nan=False)
        sys.stdout.write(text.replace("\x7f", "\\u007f") + "\n")
    elif lines and not answer.quiet:
        sys.stdout.write("\n".join(map(printable, lines)) + "\n")


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


def number(value: float | None) -> str:
    """Return a number with four significant digits, or "none"."""
    return "none" if value is None else f"{value:.4g}"
