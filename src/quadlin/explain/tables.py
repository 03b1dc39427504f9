"""Words and tables about a model: frames for programs, aligned text for people."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from sklearn.base import is_classifier

from quadlin.core.losses import LOSSES
from quadlin.core.messages import printable

Record = TypeVar("Record")  # a named tuple
SHOWN = 10  # lines of a printed table
ROUNDING = 1e-6  # what single precision may leave of zero, as a share of the largest
NUMBER = re.compile(r"[-+<]?[\d.]|$|n(an|one)$")  # the beginning of a cell that is flush right


def frame_of(columns: Mapping[str, Any], index: Any = None) -> Any:
    """Return columns as a pandas frame, or as a dict without pandas.

    Examples
    --------
    >>> frame_of({"a": [1, 2]})["a"][1]
    np.int64(2)
    """
    try:
        import pandas
    except ImportError:
        return dict(columns)
    return pandas.DataFrame(columns, index=index)


def columns_of(records: Sequence[Any], kind: Any) -> dict[str, list[Any]]:
    """Return named tuples of a kind by their fields."""
    return {name: [getattr(record, name) for record in records] for name in kind._fields}


class Records(Generic[Record]):
    """A sequence of named tuples; printing it shows them as text."""

    @property
    def records(self) -> Sequence[Record]:
        """Return what the sequence holds."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __getitem__(self, place: int) -> Record:
        return self.records[place]

    def __repr__(self) -> str:
        return str(self)


def text_table(
    head: Sequence[str] | None, rows: Sequence[Sequence[str]], indent: str = ""
) -> list[str]:
    """Return aligned lines; columns of numbers are flush right, with their heads if there are any.

    Examples
    --------
    >>> print("\\n".join(text_table(["", "estimate"], [["age", "1.5"], ["income", "-20"]])))
            estimate
    age          1.5
    income       -20
    """
    table = [[printable(cell) for cell in row] for row in ([] if head is None else [head])]
    cells = [[printable(cell) for cell in row] for row in rows]
    right = [all(NUMBER.match(cell) for cell in column) for column in zip(*cells, strict=True)]
    table += cells
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    layout = list(zip(widths, right or [False] * len(widths), strict=True))
    return [
        (
            indent + "  ".join(c.rjust(w) if flush else c.ljust(w) for c, (w, flush) in pairs)
        ).rstrip()
        for pairs in (list(zip(row, layout, strict=True)) for row in table)
    ]


def p_value(p: float) -> str:
    """Return a p-value with as many digits as mean something.

    Examples
    --------
    >>> p_value(0.0312), p_value(2.31e-7), p_value(0.0)
    ('0.031', '2e-07', '<1e-16')
    """
    return "<1e-16" if p < 1e-16 else f"{p:.1g}" if p < 0.001 else f"{p:.3f}"


def product_name(first: str, second: str) -> str:
    """Return the name of a product of features.

    Examples
    --------
    >>> product_name("a", "b"), product_name("a", "a")
    ('a × b', 'a²')
    """
    return f"{first}²" if first == second else f"{first} × {second}"


def eigenvalues_name(rank: int, features: int) -> str:
    """Return what to call the eigenvalues of a model, whose rank may be low or full."""
    return "eigenvalues" if rank == features > 1 else "eigenvalues of the low-rank part"


def found_pairs(model: Any) -> list[Any]:
    """Return the pairs that an estimator searched for and keeps, if it does."""
    report = getattr(model, "pairs_", None)
    return [] if report is None else list(report.pairs)


def pairs_are_named(model: Any) -> bool:
    """Tell whether the user listed the pairs, so that none was found."""
    pairs = model.get_params(deep=False).get("pairs")
    return isinstance(pairs, Collection) and not isinstance(pairs, str)


def rank_of(model: Any) -> str:
    """Return the rank of a fitted estimator, and what it means."""
    features, pairs = len(model.interactions_.names), len(found_pairs(model))
    rank = int(model.rank_)
    words = f"{rank}"
    if not rank and not pairs:
        words += ", a linear model"
    if rank == features > 1:
        words += f", all products of the {features} features"
        words += ", shrunk by the penalty" if model.alpha_[1] else ""
    return words + (f", plus {pairs} pair{'s' * (pairs > 1)} of features" if pairs else "")


def left_side(model: Any, target: str | None = None) -> str:
    """Return what the formula is of: the target, the log-odds of a class, or the log of a mean."""
    if is_classifier(model):
        label = str(getattr(model, "label_", model.classes_[-1]))
        return f"log-odds of {target} = {label}" if target else f"log-odds of {label!r}"
    return f"log E[{target or 'y'}]" if predicts_through_link(model) else target or "y"


def prediction_name(model: Any, target: str | None = None) -> str:
    """Return what contributions sum to, in words: the log-odds of a class, or the prediction."""
    return left_side(model, target) if predicts_through_link(model) else target or "prediction"


def predicts_through_link(model: Any) -> bool:
    """Tell whether a model is of log-odds, or of the logarithms of means, and not of targets."""
    return bool(LOSSES[model.loss].linked)
