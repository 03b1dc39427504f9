"""Numbers that are written with a sign or a unit, so that readers take them for text."""

import re
from collections.abc import Iterable

AMOUNT = r"[-+]?\s*(\d{1,3}([ ,.'’]\d{3})+|\d+)?([.,]\d+)?"
CURRENCY = r"([$€£¥₹]|USD|EUR|GBP|CHF|JPY)"
PLAIN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
# $1,200.50, -€3, 12 EUR, 7.5%, (300) as accountants write −300; each has a digit.
MARKED = re.compile(
    rf"(?=.*\d)([-+(]?\s*{CURRENCY}\s*{AMOUNT}\)?|{AMOUNT}\s*({CURRENCY}|%)|\({AMOUNT}\))"
)
WITH_UNIT = re.compile(rf"(?=.*\d){AMOUNT} ?(?P<unit>[^\W\d_]{{1,3}})")  # 12.5 kg
MANY = 20  # amounts with a unit: fewer may be sizes, such as 500 ml, which are categories


def written_numbers(labels: Iterable[str]) -> str | None:
    """Return an example if all labels are numbers, and some have a currency, a percent or a unit.

    A unit is a word after the number, the same in all labels, of which there are many.
    """
    labels = [label.strip() for label in labels]
    odd = [label for label in labels if not PLAIN.fullmatch(label)]
    if odd and all(MARKED.fullmatch(label) for label in odd):
        return odd[0]
    units = {match["unit"] if (match := WITH_UNIT.fullmatch(label)) else None for label in odd}
    if len(units) == 1 and None not in units and len(odd) == len(labels) > MANY:
        return odd[0]
    return None
