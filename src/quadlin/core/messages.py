"""Messages that name options as data, and warnings that point at the user's own line."""

import sys
import warnings
from collections.abc import Callable
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


class Message(str):
    """A text whose ``{placeholders}`` are options: as a `str` it speaks Python.

    Whoever speaks another language, such as the command line, renders the same options its own way.

    Examples
    --------
    >>> advice = Message("Lower {rank}, or use {alpha}.", rank=Option("rank"),
    ...                  alpha=Option("alpha", 1))
    >>> print(advice)
    Lower `rank`, or use alpha=1.
    >>> print(advice.rendered(lambda option: f"--{option.name}"))
    Lower --rank, or use --alpha.
    """

    template: str
    values: dict[str, Any]

    def __new__(cls, template: str, **values: Any) -> "Message":
        """Fill the placeholders with options, or with numbers and names as in `str.format`."""
        message = super().__new__(cls, template.format(**values))
        message.template, message.values = template, values
        return message

    def rendered(self, show: Callable[[Option], str]) -> str:
        """Return the text with every option as `show` writes it."""
        shown = {k: show(v) if isinstance(v, Option) else v for k, v in self.values.items()}
        return self.template.format(**shown)

    def __reduce__(self) -> Any:
        return _message, (self.template, self.values)


def _message(template: str, values: dict[str, Any]) -> Message:
    return Message(template, **values)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn as of the line that called the library, however deep in it the matter was found.

    Examples
    --------
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn("Mind the gap.")
    >>> str(caught[0].message)
    'Mind the gap.'
    """
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _package(frame) in PASSED_THROUGH:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
