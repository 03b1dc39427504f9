"""The parts of an experiment: tasks that yield rows of numbers, pictures, and a verdict."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

Task = dict[str, Any]  # plain numbers and strings only: it is written to the results as JSON
Row = dict[str, Any]  # one line of the results: plain numbers and strings
Pictures = dict[str, Any]  # by name: Displays, not yet drawn
Frame = Any  # a pandas DataFrame of the rows of all tasks, the task's own entries as columns

SIZES = ("tiny", "quick", "full")  # for tests; under three minutes in all; the paper's


@dataclass(frozen=True)
class Verdict:
    """The measurement in one line of words and numbers, and whether the claim holds."""

    measured: str
    holds: str  # "yes", "no" or "in part"
    words: str  # a frank paragraph: where the claim holds, where not, and why


class About(NamedTuple):
    """What a study is about, in words."""

    title: str
    claim: str  # what is claimed and where, in our own words
    setting: str  # how it is measured


@dataclass(frozen=True)
class Study:
    """One figure or claim.

    A task is the unit of resuming: it runs on its own, in any order, and the same task gives the
    same rows, except in measured columns, whose names begin with ``seconds`` or ``bytes``.
    """

    name: str  # of its files, and for `--only`
    about: About
    tasks: Callable[[str], Sequence[Task]]  # for a size
    run: Callable[[Task, str], list[Row]]  # a task, on a device: "cpu" or torch's name of another
    figures: Callable[[Frame], Pictures]
    verdict: Callable[[Frame], Verdict]


def grid(**axes: Any) -> list[Task]:
    """Return a task for every combination of values; a number or a text is the same in all.

    Examples
    --------
    >>> grid(law=("gaussian", "signs"), d=5, seed=range(1))
    [{'law': 'gaussian', 'd': 5, 'seed': 0}, {'law': 'signs', 'd': 5, 'seed': 0}]
    """
    plain = (
        v if isinstance(v, Iterable) and not isinstance(v, str) else [v] for v in axes.values()
    )
    return [dict(zip(axes, values, strict=True)) for values in product(*plain)]


def verdict_of(checks: Mapping[str, bool]) -> str:
    """Return "yes" if all hold, "no" if none, else "in part"."""
    held = list(checks.values())
    return "yes" if all(held) else "in part" if any(held) else "no"


def joined(items: Iterable[Any]) -> str:
    """Join words as a sentence does: a, b and c."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
