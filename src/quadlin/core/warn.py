"""Warnings that point at the user's own line."""

import sys
import warnings
from types import FrameType

PASSED_THROUGH = {"quadlin", "sklearn", "numpy", "contextlib", "joblib"}


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
