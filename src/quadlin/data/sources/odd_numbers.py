"""Numbers of CSV with signs that were not declared: decimal commas, thousands separators."""

import re
from collections.abc import Sequence
from typing import Any

from quadlin.data.columns.columns import as_codes
from quadlin.data.sources.csv_cells import SPACES, grouped_number

# Groups with spaces or apostrophes, and commas or points anywhere: 1 234,5 and 1,5 and 1.234,5.
NUMBER = re.compile(
    rf"^[-+]?(\d{{1,3}}([{SPACES}'’_]\d{{3}})+([.,]\d*)?|\d+([.,]\d+)*|[.,]\d+)([eE][-+]?\d+)?$"
)
UNUSUAL = re.compile(r"[^-+\deE]")
WORDS = {" ": "spaces", "'": "apostrophes", "’": "apostrophes", "_": "underscores"}


def odd_numbers(name: str, cells: Sequence[str], dialect: Any, points: bool) -> str | None:
    """Return advice about numbers that a dialect cannot read; None if the cells are not numbers.

    Parameters
    ----------
    name : str
        The column.
    cells : sequence of str
        Its values, without spaces around them.
    dialect : Dialect
        The notation of numbers that the user declared.
    points : bool
        Whether other columns have decimal points.

    Returns
    -------
    str or None
        What to give instead.

    Examples
    --------
    >>> from quadlin.data.sources.csv_text import Dialect
    >>> odd_numbers("a", ["53,50", "7"], Dialect(), points=False).split(". Give ")[1]
    'decimal="," if the comma is the decimal point, or decimal="." to read them as text.'
    """
    usual = dialect.decimal or "."
    odd = [cell for cell in cells if UNUSUAL.search(cell.replace(usual, "", 1))]
    if not odd or not all(NUMBER.search(cell) for cell in cells):
        return None
    codes = as_codes(name)
    if dialect.thousands is not None:
        return _wrong_groups(odd, dialect, codes)
    sign = next((sign for sign in "'’_" if sign in odd[0]), " ")
    if any(mark in odd[0] for mark in (*SPACES, sign)):
        return _with_spaces(odd, sign, dialect, codes)
    pointed = any("." in cell for cell in odd)
    if dialect.decimal == ",":
        return _with_points(odd, dialect, codes) if pointed else None
    if not any("," in cell for cell in odd):
        return _with_points(odd, dialect, codes)
    return _with_commas(odd, cells, points)


def _wrong_groups(cells: Sequence[str], dialect: Any, codes: str) -> str:
    if dialect.decimal is None and _are_grouped(cells, dialect.thousands, ","):
        return (
            f'holds numbers with commas, such as {cells[0]!r}. Give decimal="," if '
            "the comma is the decimal point."
        )
    return (
        "holds numbers such as {example!r}, in which {thousands} does not "
        "separate groups of three digits. Correct them, or {codes} if these are "
        "codes."
    ).format(example=cells[0], thousands=f"thousands={dialect.thousands!r}", codes=codes)


def _with_spaces(cells: Sequence[str], sign: str, dialect: Any, codes: str) -> str | None:
    point = _are_grouped(cells, sign, dialect.decimal or ".")
    if not point and (dialect.decimal is not None or not _are_grouped(cells, sign, ",")):
        return None
    comma = "" if point else " and {comma}"
    return (
        f"holds numbers with {WORDS[sign]}, such as {{example!r}}. Give {{remedy}}{comma} if these "
        "separate thousands, or {codes} if these are codes."
    ).format(example=cells[0], remedy=f"thousands={sign!r}", comma='decimal=","', codes=codes)


def _with_points(cells: Sequence[str], dialect: Any, codes: str) -> str | None:
    grouped = _are_grouped(cells, ".", ",")
    if dialect.decimal is None:  # 1.234.567, but not 15.06.2024
        text = "holds numbers with points, such as {example!r}. Give {remedy} if they separate "
        text += "thousands, or {codes} if these are codes."
        remedy = 'thousands="."'
        return text.format(example=cells[0], remedy=remedy, codes=codes) if grouped else None
    start = "Give {remedy} if they separate thousands, leave" if grouped else "Leave"
    return (
        "holds numbers with points, such as {example!r}, but {comma} says that the comma is the "
        f"decimal point. {start} out {{decimal}} if they are decimal points, or "
        "{codes} if these are codes."
    ).format(
        example=cells[0],
        comma='decimal=","',
        decimal="`decimal`",
        codes=codes,
        **{"remedy": 'thousands="."'} if grouped else {},
    )


def _with_commas(cells: Sequence[str], every: Sequence[str], points: bool) -> str:
    """Return advice about commas that are decimal points, separate thousands, or may do either."""
    if not any(_are_grouped(every, *signs) for signs in (("", ","), (",", "."), (".", ","))):
        pointed = next((cell for cell in every if "," not in cell and "." in cell), every[0])
        return (
            f"holds numbers with commas, such as {cells[0]!r}, and also {pointed!r}: "
            "no decimal point fits all of them. Write all numbers in the same way."
        )
    thousands, comma = 'thousands=","', 'decimal=","'
    options: dict[str, Any] = {"remedy": comma}
    how = "{remedy} if the comma is the decimal point"
    if any("." in cell for cell in cells) and _are_grouped(cells, ".", ","):
        options = {"remedy": 'thousands="."'}
        how = "{remedy} if the points separate thousands and the comma is the decimal point"
    elif _are_grouped(cells, ",", "."):
        unambiguous = points or any("." in cell or cell.count(",") > 1 for cell in cells)
        options = {"remedy" if unambiguous else "thousands": thousands, "comma": comma}
        how = "{remedy}" if unambiguous else "{thousands}"
        how += " if the comma separates thousands, {comma} if it is the decimal point"
    return (
        f"holds numbers with commas, such as {{example!r}}. Give {how}, or {{point}} to read them "
        "as text."
    ).format(example=cells[0], point='decimal="."', **options)


def _are_grouped(cells: Sequence[str], thousands: str, decimal: str) -> bool:
    """Return whether all cells can be read with these signs."""
    form = re.compile(grouped_number(thousands, decimal))
    return all(form.search(cell) for cell in cells)
