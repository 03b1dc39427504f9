"""Tables of what a model says: as frames for programs, as aligned text for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from quadlin.core.messages import printable


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


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with a first column of names and columns of numbers flush right.

    Examples
    --------
    >>> print("\\n".join(text_table(["", "estimate"], [["age", "1.5"], ["income", "-20"]])))
            estimate
    age          1.5
    income       -20
    """
    table = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
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


def rank_words(rank: int, features: int, pairs: int, penalised: bool) -> str:
    """Return a rank, and what it means: a line, all products, or something between.

    Examples
    --------
    >>> rank_words(0, 5, 0, False), rank_words(2, 5, 1, True)
    ('0, a linear model', '2, beside 1 pair of features')
    >>> rank_words(22, 22, 0, True)
    '22, all products of the 22 features, shrunk by the penalty'
    """
    words = f"{rank}"
    if not rank and not pairs:
        words += ", a linear model"
    if rank == features > 1:
        words += f", all products of the {features} features"
        words += ", shrunk by the penalty" if penalised else ""
    return words + (f", beside {pairs} pair{'s' * (pairs > 1)} of features" if pairs else "")


def eigenvalues_name(rank: int, features: int) -> str:
    """Return what to call the eigenvalues of a model, whose rank may be low or full."""
    return "eigenvalues" if rank == features > 1 else "eigenvalues of the low-rank part"
