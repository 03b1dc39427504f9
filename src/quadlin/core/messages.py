"""Warnings that point at the user's own line, and text that is safe to print."""

import sys
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from quadlin.exceptions import DataWarning

PASSED_THROUGH = {"quadlin", "sklearn", "numpy", "contextlib", "joblib"}


def printable(text: str) -> str:
    r"""Escape what could control a terminal or reverse the direction of text: names are untrusted.

    Examples
    --------
    >>> print(printable("re\x1b[31md\nline \u202eleft"))
    re\x1b[31md\nline \u202eleft
    """
    if text.isprintable():
        return text
    return "".join(c if _harmless(c) else c.encode("unicode_escape").decode() for c in text)


def _harmless(character: str) -> bool:
    """Tell whether a character only shows itself; ZWJ and ZWNJ are parts of words."""
    kind = unicodedata.category(character)
    return kind not in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in "\u200c\u200d"


_told: ContextVar[set[str] | None] = ContextVar("_told", default=None)


@contextmanager
def each_warning_once() -> Iterator[None]:
    """Give each warning once, of however many parts of the work it is true.

    Examples
    --------
    >>> with warnings.catch_warnings(record=True) as caught, each_warning_once():
    ...     warnings.simplefilter("always")
    ...     for label in range(3):
    ...         warn("Mind the gap.")
    >>> len(caught)
    1
    """
    token = _told.set(set())
    try:
        yield
    finally:
        _told.reset(token)


def warn(message: str, category: type[Warning] = DataWarning) -> None:
    """Warn at the line that called the library, however deep inside it the warning arises.

    Examples
    --------
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn("Mind the gap.")
    >>> str(caught[0].message)
    'Mind the gap.'
    """
    told = _told.get()
    if told is not None:
        if message in told:
            return
        told.add(message)
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _package(frame) in PASSED_THROUGH:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
