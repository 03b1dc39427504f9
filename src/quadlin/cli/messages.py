"""What commands say: numbers and tables for people, JSON for machines, errors as one sentence."""

import json
import math
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

STANDARD = "(standard input or output)"  # what a lone hyphen becomes
IN_QUOTES = "put patterns of files and names with spaces in quotes, and commas between names."
# The library's advice speaks Python; here the same things are options.
TRANSLATIONS = (
    (r"Give them by levels=\{column: \[\.\.\.\]\} or encoder=, leave", "Leave"),
    (r"Give fill=\{(?:name|column): value\}, use", "Use"),
    (r", or give levels=\{[^}]*\} if it is text", ""),
    (r", or give a pyarrow\.dataset[^.]*", ""),
    (r"(?:Give pyarrow\.dataset\.dataset\(.*?\) instead)", "Give the files one by one"),
    (r"Open it with target=\.", "Name its column by --target."),
    (r"with target=", "with --target"),
    (r"format='(\w+)'", r"--format \1"),
    (r"\bformat= ", "--format "),
    (r"\b(missing|loss|diagonal|whiten|rank|encoding)=\"([\w-]+)\"", r"--\1 \2"),
    (r"\b(delimiter)=\"\\t\"", r"--\1 tab"),
    (r"\b(delimiter|decimal|encoding)=(\"[^\"]*\"|'[^']*')", r"--\1 \2"),
    (r"\bzero_based=True\b", "--zero-based"),
    (r"\bzero_based=False\b", "--one-based"),
    (r"\bzero_based=", "--zero-based or --one-based"),
    (r"\bn_features=(\d*)", r"--features \1"),
    (r"\b(rank|alpha)=(-?\d+)", r"--\1 \2"),
    (r"\bbatch_size=", "--batch-size "),
    (r"`(rank|alpha|tol)`", r"--\1"),
    (r"`max_iter`", "--max-iter"),
    (r"\bmax_iter=", "--max-iter "),
    (r"\btol=", "--tol "),
    (r"\buncertainty=True", "--uncertainty"),
    (r"\bpolish=True", "--polish"),
    (r"alpha > 0", "--alpha above 0"),
    (r"use `fit`, or give a rank", "give a --rank"),
    (r"\bcolumns= ", "--columns "),
    (r"\b(columns|keep|target|weight|format|delimiter|decimal|encoding)=(?=[\s.,;:)]|$)", r"--\1"),
    (r"SecondOrderRegressorCV", "--cv"),
    (r"Unused Tokens: \[(.*)\]\.", rf"There is no place for \1: {IN_QUOTES}"),
)


class UsageError(ValueError):
    """A command line that makes no sense: exit code 2."""


def spoken(error: Any) -> str:
    """Return an error or a piece of advice as one line in the language of the command line."""
    if isinstance(error, MemoryError) and not str(error):
        text = "there is not enough memory. Use --one-pass, or fewer --columns."
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or ''}: {error.strerror}.".removeprefix(": ")
    elif isinstance(error, KeyError):
        text = str(error.args[0]) if error.args else "a key is missing"
    else:
        text = str(error) or type(error).__name__
    expected = ValueError | OSError | ImportError | MemoryError | Warning | KeyboardInterrupt | str
    if isinstance(error, BaseException) and not isinstance(error, expected):
        module = type(error).__module__.split(".")[0]
        if module not in ("quadlin", "cyclopts"):
            text = f"unexpected {type(error).__name__}: {text} (--debug shows where)"
    text = " ".join(text.split())
    for pattern, instead in TRANSLATIONS:
        text = re.sub(pattern, instead, text)
    return text


def emit(content: dict[str, Any], lines: Sequence[str], as_json: bool) -> None:
    """Print an answer: one JSON object, or lines."""
    if as_json:
        text = json.dumps(plain(content), allow_nan=False, ensure_ascii=False)
        sys.stdout.write(text + "\n")
    elif lines:
        sys.stdout.write("\n".join(lines) + "\n")


def note(text: str, quiet: bool) -> None:
    """Say something beside the answer."""
    if not quiet:
        sys.stderr.write(text + "\n")


def plain(value: Any) -> Any:
    """Return what JSON knows: no numpy, and null for what is not a number."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Return lines of aligned cells; cells that look like numbers go to the right."""
    if not rows:
        return []
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
    """Return a number with four digits that count."""
    if value is None or not math.isfinite(value):
        return "nan"
    return f"{value:{'+' if sign else ''}.4g}"


def amount(size: float) -> str:
    """Return a number of bytes for people.

    Examples
    --------
    >>> amount(3_200_000)
    '3.2 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
