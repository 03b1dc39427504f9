"""Errors about rows that cannot be read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class ColumnError(ValueError):
    """A column that cannot be a feature; the others can be read without it."""

    def __init__(self, column: str, text: str) -> None:
        super().__init__(text)
        self.column = column

    def __reduce__(self) -> Any:
        return type(self), (self.column, *self.args)


class SourceError(ValueError):
    """Rows that cannot be read; the text says which rows, why, and what to do."""

    column: str | None = None  # the column at fault, if the others can be read without it

    @classmethod
    def about(cls, title: str, error: ValueError) -> "SourceError":
        """Return an error that says where the rows are, and keeps the column at fault."""
        located = cls(" ".join([f"{title}:", *error.args]))
        located.column = getattr(error, "column", None)
        return located


class ReadOnceError(SourceError):
    """Rows that would have to be read twice, but can be read only once."""


class IdentifierWarning(UserWarning):
    """A text column most of whose levels occur only once."""


@contextmanager
def explained(what: str, advice: str) -> Iterator[None]:
    """Turn a library's error about broken data into a one-sentence SourceError."""
    try:
        yield
    except (SourceError, ImportError):
        raise
    except FileNotFoundError:
        raise SourceError(f"{what} does not exist. Check the path.") from None
    except PermissionError:
        raise SourceError(f"{what} cannot be read. Check its permissions.") from None
    except Exception as error:  # each library raises other errors for broken bytes
        memory = isinstance(error, MemoryError)
        problem = "needs more memory than there is" if memory else "cannot be read"
        text = f"{what} {problem}: {first_line(error)}"
        raise SourceError(" ".join([text, advice])) from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text as a sentence, shortened if it is long."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = "".join(c if c.isprintable() else "?" for c in lines[0])
    text = text[:300] + "…" if len(text) > 300 else text
    return text if text.endswith((".", "…")) else text + "."
