"""Columns of whole numbers that look like ids or codes, whose order and distances mean nothing."""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.stats import f as f_distribution

from quadlin.core.arrays import to_numpy
from quadlin.core.rows import Rows

LOOKED_AT = 100_000  # rows, which are enough to tell
MOST_VALUES = 20_000  # different ones of a column; more of them are hardly ever seen twice
FEWEST_VALUES = 4  # a parabola through three means says all that levels can
REPEATED = 2.0  # rows per value, on average, that are needed to tell
SURE = 1e-6  # chance of a false alarm by noise
PARABOLA = (
    0.5  # share of what the values say; where a parabola says more, the order means something
)
# Of the residual means in the order of their values, squared steps over squares: 2 without order.
ROUGH, MANY = 1.2, 8  # needed where a column has at least this many values
# user_id, userId, zip, postal_code, SKU; not width, paid or kids.
NAMED = re.compile(
    r"(?:^|[\W_])(?i:id|ids|code|codes|zip|zipcode|postcode|postalcode|sku|isbn|fips)$"
    r"|[a-z](?:Id|ID|Code|Zip)$"
    r"|^(?i:user|customer|item|product|film|movie)$",
)


@dataclass
class ValueSums:
    """What the target does at each value of a column."""

    values: np.ndarray = field(default_factory=lambda: np.empty(0))
    sums: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))  # of 1, y and y²

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Add rows."""
        values, place = np.unique(np.concatenate([self.values, x]), return_inverse=True)
        rows = np.concatenate([self.sums, np.column_stack([np.ones(len(y)), y, y**2])])
        self.sums = np.column_stack(
            [np.bincount(place, part, minlength=len(values)) for part in rows.T]
        )
        self.values = values


def whole_numbers(rows: Rows, place: dict[str, int]) -> dict[str, ValueSums]:
    """Return the sums for each value of the columns that have few, all of them whole numbers."""
    looked_at = {name: ValueSums() for name in place}
    seen = 0
    for chunk in rows.walk():
        if seen >= LOOKED_AT or not looked_at:
            break
        kept = slice(0, LOOKED_AT - seen)
        y = to_numpy(chunk.y).astype(np.float64)[kept]
        X: Any = chunk.X if issparse(chunk.X) else to_numpy(chunk.X)
        X = X[kept][:, [place[name] for name in looked_at]]
        X = X.toarray() if issparse(X) else X
        for name, x in zip(list(looked_at), X.T.astype(np.float64), strict=True):
            whole = bool(np.all(x == np.floor(x)))
            if whole:
                looked_at[name].add(x, y)
            if not whole or len(looked_at[name].values) > MOST_VALUES:
                del looked_at[name]
        seen += len(y)
    return looked_at


def is_code(name: str, column: ValueSums) -> bool:
    """Tell whether the values of a column look like ids or codes."""
    count, m = column.sums[:, 0], len(column.values)
    if m < FEWEST_VALUES or count.sum() < REPEATED * m:
        return False
    if NAMED.search(name):
        return True
    left = _residual_means(column.values, column.sums)
    if left is None or m < MANY:
        return left is not None
    # One value may well be apart from all others, as 0 is from amounts.
    others = np.arange(m) != np.argmax(count * left**2)
    return _residual_means(column.values[others], column.sums[others]) is not None


def _residual_means(values: np.ndarray, sums: np.ndarray) -> np.ndarray | None:
    """Return what a parabola leaves of the mean of y at each value; None where that is in order."""
    count, total, squares = sums.T
    n, m = float(count.sum()), len(values)
    means, mean = total / count, total.sum() / n
    within = float(np.sum(squares - total * means))
    noise = max(within, 1e-12 * float(np.sum(squares))) / max(n - m, 1.0)
    powers = np.vander((values - values.mean()) / values.std(), 3)
    root = np.sqrt(count)
    fit, *_ = np.linalg.lstsq(powers * root[:, None], (means - mean) * root, rcond=None)
    left = means - mean - powers @ fit
    between, lacking = float(count @ (means - mean) ** 2), float(count @ left**2)
    if f_distribution.sf(lacking / (m - 3) / noise, m - 3, max(n - m, 1.0)) > SURE:
        return None
    # Both without what noise alone would give.
    if between - lacking - 2 * noise > PARABOLA * (between - (m - 1) * noise):
        return None
    sizes = np.minimum(count[1:], count[:-1])  # means of few rows say little
    steps = float(sizes @ np.diff(left) ** 2)
    level = float(sizes @ (left[1:] ** 2 + left[:-1] ** 2)) / 2
    return left if m < MANY or steps > ROUGH * level else None
