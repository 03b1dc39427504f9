"""Ctrl-C before a fit has a model: the estimator stays as it was, and the error says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NO_MODEL = "The fit was interrupted before there was a model; the estimator is as it was."


@contextmanager
def no_model_yet(estimator: Any) -> Iterator[None]:
    """Undo what a fit has noted in its estimator if Ctrl-C ends it meanwhile."""
    before = dict(vars(estimator))
    try:
        yield
    except KeyboardInterrupt as error:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise KeyboardInterrupt(NO_MODEL) from error
