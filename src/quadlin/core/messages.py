"""Messages that name options as data, and warnings that point at the user's own line."""

import sys
import unicodedata
import warnings
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any

PASSED_THROUGH = {"quadlin", "sklearn", "numpy", "contextlib", "joblib"}


@dataclass(frozen=True)
class Option:
    """An option that a message advises to set: by name, and to which value where there is one.

    Examples
    --------
    >>> str(Option("rank")), str(Option("whiten", "full")), str(Option("alpha", 1))
    ('`rank`', 'whiten="full"', 'alpha=1')
    """

    name: str
    value: Any = None  # None: the option itself, whatever its value

    def __str__(self) -> str:
        if self.value is None:
            return f"`{self.name}`"
        shown = f'"{self.value}"' if isinstance(self.value, str) else repr(self.value)
        return f"{self.name}={shown}"


@dataclass(frozen=True)
class Phrase:
    """Words that only make sense in Python, with what to say on the command line instead.

    Examples
    --------
    >>> cv = Phrase("SecondOrderRegressorCV", Option("cv", True))
    >>> str(cv), cv.command_line
    ('SecondOrderRegressorCV', Option(name='cv', value=True))
    """

    python: str
    command_line: "str | Option" = ""

    def __str__(self) -> str:
        return self.python


class Message(str):
    """A text whose ``{placeholders}`` may be options: as a `str` it is written for Python.

    ``{rank=}`` is the option `rank`, with the value `rank` if that is given, and ``{alpha=1}`` an
    option with its value (a text, or a number without a point). Another front end, such as the
    command line, renders the same options in its own way. Control characters in names and paths are
    escaped.

    Examples
    --------
    >>> advice = Message("Lower {rank=}, or use {alpha=1}.")
    >>> print(advice)
    Lower `rank`, or use alpha=1.
    >>> print(Message("{level=} must lie between 0 and 1.", level=2))
    level=2 must lie between 0 and 1.
    >>> print(advice.rendered(lambda option: f"--{option.name}"))
    Lower --rank, or use --alpha.
    >>> print(Message("{file} is empty. {advice}", file="a\\x1bb", advice=advice))
    a\\x1bb is empty. Lower `rank`, or use alpha=1.
    """

    template: str
    values: dict[str, Any]

    def __new__(cls, template: str, **values: Any) -> "Message":
        """Fill the placeholders with options, phrases, messages, or values as in `str.format`."""
        message = super().__new__(cls, template.format_map(_Shown(values, str)))
        message.template, message.values = template, values
        return message

    @classmethod
    def joined(cls, parts: Iterable[str], separator: str = " ") -> "Message":
        """Return sentences, some of which may be messages, as one."""
        values = {f"part{i}": part for i, part in enumerate(parts)}
        return cls(separator.join(f"{{{name}}}" for name in values), **values)

    def rendered(self, show: Callable[[Option], str]) -> str:
        """Return the text for the command line, with every option as `show` writes it."""
        return self.template.format_map(_Shown(self.values, show))

    def __reduce__(self) -> Any:
        return _message, (self.template, self.values)


class _Shown(dict[str, Any]):
    """The values of a template as they are shown, and the options that it names."""

    def __init__(self, values: dict[str, Any], show: Callable[[Option], str]) -> None:
        super().__init__({name: _shown(value, show) for name, value in values.items()})
        self.values_given, self.show = values, show

    def __missing__(self, placeholder: str) -> str:
        name, is_option, text = placeholder.partition("=")
        if not is_option:
            raise KeyError(placeholder)
        try:
            value = literal_eval(text) if text else self.values_given.get(name)
        except (SyntaxError, ValueError):
            value = text
        return self.show(Option(name, value))


def _shown(value: Any, show: Callable[[Option], str]) -> Any:
    if isinstance(value, Option):
        return show(value)
    if isinstance(value, Phrase):
        return value.python if show is str else _shown(value.command_line, show)
    if isinstance(value, Message):
        return str(value) if show is str else value.rendered(show)
    return printable(value) if isinstance(value, str) else value


def _message(template: str, values: dict[str, Any]) -> Message:
    return Message(template, **values)


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


def warn(message: str, category: type[Warning] = UserWarning) -> None:
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
