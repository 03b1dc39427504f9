"""What is said where rows cannot be read."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from typing import Any

from quadlin.core.messages import Message


class SourceError(ValueError):
    """Rows that cannot be read; the text says which, why, and what to do."""


def explained(what: str, advice: str) -> AbstractContextManager[None]:
    """Turn what a library says about broken data into a SourceError in one sentence."""

    @contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except SourceError:
            raise
        except ImportError:
            raise
        except FileNotFoundError:
            raise SourceError(f"{what} is not there. Check the path.") from None
        except PermissionError:
            raise SourceError(f"{what} may not be read. Check its permissions.") from None
        except MemoryError as error:
            said = first_line(error)
            raise SourceError(
                Message.joined([f"{what} asks for more memory than there is: {said}", advice])
            ) from None
        except Exception as error:  # whatever the library thinks of broken bytes
            raise SourceError(
                Message.joined([f"{what} cannot be read: {first_line(error)}", advice])
            ) from None

    return guard()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, as a sentence of sane length."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = "".join(c if c.isprintable() else "?" for c in lines[0])
    text = text[:300] + "…" if len(text) > 300 else text
    return text if text.endswith((".", "…")) else text + "."


def meant(name: Any, names: Any) -> str:
    """Return a question for the name that may have been meant, or nothing."""
    known = {str(known).lower(): str(known) for known in names}
    close = get_close_matches(str(name).lower(), list(known), 1)
    return f" Did you mean {known[close[0]]!r}?" if close else ""


def some(names: Any) -> str:
    """Return the first few names."""
    said = [repr(str(name)) for name in names]
    return ", ".join(said[:8]) + (f" and {len(said) - 8} more" if said[8:] else "")
