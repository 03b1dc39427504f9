"""Names of features, and errors about rows that cannot be read, which name columns and rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral
from typing import Any

import numpy as np

Name = int | str  # a feature, by position or by name
# Columns that are categories, and groups of 0/1 columns; "from_dtype"; or none.
Categories = str | Sequence[Name | Sequence[Name]] | Sequence[bool] | None


@dataclass(frozen=True, eq=False, repr=False)
class NumberedNames(Sequence[str]):
    """The names x0, x1, … of any number of features, each made only when it is needed.

    Examples
    --------
    >>> names = NumberedNames(10**12)
    >>> names[-1]
    'x999999999999'
    >>> NumberedNames(2) == ("x0", "x1"), ["x0", "x1"] != NumberedNames(2)
    (True, False)
    """

    n_features: int

    def __len__(self) -> int:
        return self.n_features

    def __getitem__(self, at: Any) -> Any:
        numbers = range(self.n_features)[at]
        if isinstance(at, slice):
            return tuple(f"x{j}" for j in numbers)
        return f"x{numbers}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NumberedNames):
            return self.n_features == other.n_features
        return (
            isinstance(other, Sequence) and len(self) == len(other) and tuple(self) == tuple(other)
        )

    def __hash__(self) -> int:
        return hash(self.n_features)

    def __repr__(self) -> str:
        return f"Numbered({len(self)})"  # part of fingerprints, so it must not change


def position_of(names: Sequence[str], feature: Name) -> int:
    """Return the position of a feature that is given by position or by name.

    Examples
    --------
    >>> position_of(["age", "city"], "city"), position_of(["age", "city"], -2)
    (1, 0)
    """
    d = len(names)
    if not isinstance(feature, str | Integral):
        raise TypeError(f"A feature is given by its position or its name, not by {feature!r}.")
    if isinstance(feature, str):
        if feature not in names:
            near = did_you_mean(feature, names)
            raise KeyError(
                f"There is no feature {feature!r}; the features are {shortened(names)}.{near}"
            )
        return list(names).index(feature)
    if not -d <= feature < d:
        raise IndexError(f"There is no feature {feature}: the model has {d} features.")
    return int(feature) % d


def positions_of(
    names: Sequence[str], wholes: Mapping[str, np.ndarray], feature: Name
) -> np.ndarray:
    """Return the position of a feature, or those of all levels of a text column.

    Examples
    --------
    >>> positions_of(["age", "city=Oslo", "city=Rome"], {"city": np.array([1, 2])}, "city")
    array([1, 2])
    """
    if isinstance(feature, str) and feature in wholes:
        return np.asarray(wholes[feature], np.int64)
    return np.array([position_of(names, feature)])


def shortened(names: Iterable[Any], most: int = 8) -> str:
    """Return the first few names, quoted, and how many more there are.

    Examples
    --------
    >>> shortened("abc", most=2)
    "'a', 'b' and 1 more"
    """
    quoted = [repr(str(name)) for name in names]
    more = f" and {len(quoted) - most} more" if quoted[most:] else ""
    return ", ".join(quoted[:most]) + more


def did_you_mean(name: Any, names: Iterable[Any]) -> str:
    """Return a question that suggests the nearest name, or "" if none is near.

    Examples
    --------
    >>> did_you_mean("Citty", ["age", "city"])
    " Did you mean 'city'?"
    """
    by_lower_case = {str(candidate).lower(): str(candidate) for candidate in names}
    close = get_close_matches(str(name).lower(), list(by_lower_case), 1)
    return f" Did you mean {by_lower_case[close[0]]!r}?" if close else ""


def other_names(names: Sequence[str], fitted: Sequence[str]) -> str:
    """Return how column names differ from the names at the fit, in the words of scikit-learn."""
    sentences = ["The feature names should match those that were passed during fit."]
    if extra := [name for name in names if name not in fitted]:
        sentences.append(f"Feature names unseen at fit time: {shortened(extra, 5)}.")
    if absent := [name for name in fitted if name not in names]:
        missing = shortened(absent, 5)
        sentences.append(f"Feature names seen at fit time, yet now missing: {missing}.")
    if not extra and not absent:
        sentences.append("Feature names must be in the same order as they were in fit.")
    return " ".join(sentences)


class SourceError(ValueError):
    """Rows that cannot be read; the text says which rows, why, and what to do.

    `column` is the column at fault, if the others can be read without it.
    """

    def __init__(self, text: str, column: str | None = None) -> None:
        super().__init__(text)
        self.column = column


@contextmanager
def explained(what: str, advice: str) -> Iterator[None]:
    """Turn a library's error about broken data into a one-sentence SourceError."""
    try:
        yield
    except (SourceError, ImportError):
        raise
    except FileNotFoundError:
        raise SourceError(f"{capital(what)} does not exist. Check the path.") from None
    except PermissionError:
        raise SourceError(f"{capital(what)} cannot be read. Check its permissions.") from None
    except Exception as error:  # each library raises other errors for broken bytes
        memory = isinstance(error, MemoryError)
        problem = "needs more memory than there is" if memory else "cannot be read"
        raise SourceError(f"{capital(what)} {problem}: {first_line(error)} {advice}") from None


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text as a sentence, shortened if it is long."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = "".join(c if c.isprintable() else "?" for c in lines[0])
    text = text[:300] + "…" if len(text) > 300 else text
    return text if text.endswith((".", "…")) else text + "."


def missing_value(name: Any, where: str, or_drop: bool = False) -> str:
    """Return a message that a value is missing, and what to do."""
    drop = 'use missing="drop"' if or_drop else "drop such rows"
    return (
        f"Column {str(name)!r} contains NaN (a missing value), first in {where}. Use "
        'missing="mean", which replaces missing numbers by their mean and missing text by the '
        f"level 'missing', or {drop}."
    )


def infinite_value(name: Any, where: str, dtype: Any) -> str:
    """Return a message that a value is infinite, and what to do."""
    return (
        f"Column {str(name)!r} contains infinity or a value too large for {dtype}, first in "
        f"{where}. Correct or clip it, or drop such rows."
    )


def row_in_words(row: int) -> str:
    """Return the position of a row in words."""
    return f"row {row} (counted from 0)"
