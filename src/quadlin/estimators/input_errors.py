"""Rows and targets that cannot be fitted, told in one sentence that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from quadlin.core.messages import Message, Option

MISSING = Message(
    "Input X contains NaN (missing values). Use {mean}, which replaces them by the means of the "
    "fitted rows, or fill or drop them beforehand.",
    mean=Option("missing", "mean"),
)
COMPLEX = (
    "Complex data not supported: X holds complex numbers. Give their real and imaginary parts as "
    "columns: np.hstack([X.real, X.imag])."
)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Say what to do where scikit-learn only says what is wrong."""
    try:
        yield
    except ValueError as error:
        if "Input X contains NaN" in str(error):
            raise ValueError(MISSING) from None
        if "Complex data not supported" in str(error):
            raise ValueError(COMPLEX) from None
        raise


def refuse_text_targets(y: Any) -> None:
    """Refuse targets that are classes."""
    label = next((value for value in _objects(y) if isinstance(value, str)), None)
    if label is not None:
        raise ValueError(
            f"The targets are text, such as {label!r}, but a regressor predicts numbers. Use "
            "SecondOrderClassifier to predict classes, or replace the targets by numbers."
        )


def _objects(values: Any) -> list[Any]:
    """Return the values of a list, or of a vector that does not hold numbers."""
    if isinstance(values, list | tuple):
        return list(values)
    if not isinstance(values, np.ndarray) and hasattr(values, "to_numpy"):
        values = values.to_numpy()
    text = isinstance(values, np.ndarray) and values.dtype.kind in "OUT"
    return values.ravel().tolist() if text else []
