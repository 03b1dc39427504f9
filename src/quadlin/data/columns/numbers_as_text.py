"""Columns of numbers that are stored as text, so that each value would become a level."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from quadlin.core.messages import warn
from quadlin.data.columns.columns import MARKERS
from quadlin.data.columns.level_codes import NUMBER
from quadlin.data.columns.names import shortened

MANY, FEW = 20, 0.1  # fewest labels, and largest share that are not numbers, to be suspicious
THOUSANDS = re.compile(r"\s*[-+]?\d{1,3}((,\d{3})+(\.\d*)?|(\.\d{3})+(,\d*)?)\s*")
COMMA = re.compile(r"\s*[-+]?\d*,\d+\s*")


def strays(labels: Sequence[str]) -> list[str]:
    """Return the labels that are not numbers, if there are many labels and nearly all are."""
    if len(labels) < MANY:
        return []
    odd = [label for label in labels if not NUMBER.fullmatch(label)]
    return odd if len(odd) <= FEW * len(labels) else []


def stray_words(
    name: str, count: int, odd: list[str], place: str, absent: str | None, refused: bool
) -> str:
    """Return a message that a few words turn a column of numbers into text, with advice."""
    return (
        "Column {name!r} {is_text}, because {strays} among its {count} values "
        "cannot be read as a number{place}. If it should hold numbers, correct "
        "such values, or {absent} if they are missing."
    ).format(
        name=name,
        is_text=(
            f"would be text with {count} levels"
            if refused
            else "is treated as text, with one level per value"
        ),
        strays=shortened(odd, 5),
        count=count,
        place=place,
        absent="leave them empty" if absent is None else f"give {absent}",
    )


def is_number(label: str) -> bool:
    """Return whether a label is a number, perhaps with thousands separators or a decimal comma.

    Examples
    --------
    >>> [is_number(label) for label in ("0.53", "98,475", "1.234,5", "12,5", "1,2,3", "A7")]
    [True, True, True, True, False, False]
    """
    return any(form.fullmatch(label) for form in (NUMBER, THOUSANDS, COMMA))


def are_numbers(labels: Sequence[str], codes: bool = True) -> bool:
    """Return whether labels are numbers, and too many to be sizes.

    Labels of digits only may be codes: they count as numbers only if `codes` is true.
    """
    several = len(labels) >= MANY and (codes or not all(map(str.isdecimal, labels)))
    return several and all(map(is_number, labels))


def described(name: str, labels: Sequence[str], cell: str) -> str:
    """Return a message that numbers are stored as text, with advice."""
    if cell:
        return (
            f"Column {name!r} is treated as text, with one level per value, because "
            f"{cell} cannot be read as a number, even though that row is left out. If "
            "the column should hold numbers, correct or delete that row."
        )
    example = next((label for label in labels if not NUMBER.fullmatch(label)), labels[0])
    plain = NUMBER.fullmatch(example)
    return (
        "Column {name!r} is treated as text, with {count} levels, but these look "
        "like numbers, such as {example!r}. {convert}. If they are codes, give "
        "categorical_features={categorical_features!r}."
    ).format(
        name=name,
        count=len(labels),
        example=example,
        convert=(
            "Convert them with pandas.to_numeric(column) or polars' cast(pl.Float64)"
            + ("" if plain else ", after removing the thousands separators")
        ),
        categorical_features=[name],
    )


def marks_in(labels: Collection[str], number: re.Pattern[str] = NUMBER) -> list[str]:
    """Return the labels that usually stand for missing values.

    A question mark does so in any column. Other marks do so if nothing else in the column keeps it
    from being numeric.
    """
    odd = [label for label in labels if not number.fullmatch(label.strip())]
    if odd and len(odd) < len(labels) and all(label.strip() in MARKERS for label in odd):
        return odd
    return [label for label in odd if label.strip() == "?"]


def warn_of_marks(name: Any, labels: Sequence[str], marks: list[str]) -> None:
    """Warn of a mark of missing values that turns numbers into text, or is a level of text."""
    numbers = len(marks) < len(labels) and all(
        label in marks or NUMBER.fullmatch(label) for label in labels
    )
    if numbers:
        rest = (
            "all its other values are numbers, each of which becomes a level. Turn "
            "the column into numbers first, with pandas.to_numeric(column, "
            "errors='coerce') or polars' cast(pl.Float64, strict=False), and give "
            'missing="mean".'
        )
    else:
        rest = (
            "it is treated as a level. Replace it by None if it stands for a missing "
            'value, and give missing="mean".'
        )
    warn(
        f"Column {str(name)!r} has {shortened(marks)}, which usually stands for a "
        f"missing value: {rest}"
    )


def warn_of_periods(name: str, example: str) -> None:
    """Warn that months, quarters or weeks become levels, which have no order."""
    warn(
        f"Column {name!r} holds months, quarters or weeks, such as {example!r}, "
        "each of which becomes a level without an order. For a trend, turn them "
        "into numbers, such as the months since a start; if levels are meant, "
        f"give categorical_features={([name])!r}."
    )
