"""Columns of whole numbers that look like ids or codes, whose order and distances mean nothing."""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.stats import f as f_distribution

from quadlin.core.arrays import to_numpy
from quadlin.core.rows import Rows

LOOKED_AT = 100_000  # rows that are examined; they are enough
MOST_VALUES = 20_000  # distinct values of a column; if there are more, hardly any occurs twice
FEWEST_VALUES = 4  # a parabola fits three means exactly, as levels do
REPEATED = 2.0  # rows per value needed, on average
SURE = 1e-6  # chance of a false alarm because of noise
PARABOLA = 0.5  # share explained by the values; if a parabola explains more, the order matters
# Squared steps between neighbouring residual means over their squares: 2 if they have no order.
ROUGH, MANY = 1.2, 8  # the ratio needed, and from how many values on
# user_id, userId, zip, postal_code, SKU; not width, paid or kids.
NAMED = re.compile(
    r"(?:^|[\W_])(?i:id|ids|code|codes|zip|zipcode|postcode|postalcode|sku|isbn|fips)$"
    r"|[a-z](?:Id|ID|Code|Zip)$"
    r"|^(?i:user|customer|item|product|film|movie)$",
)


@dataclass
class ValueSums:
    """Sums of the target at each value of a column."""

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
    """Return the sums of the columns that hold whole numbers only, and few distinct ones."""
    candidates = {name: ValueSums() for name in place}
    seen = 0
    for chunk in rows.walk():
        if seen >= LOOKED_AT or not candidates:
            break
        kept = slice(0, LOOKED_AT - seen)
        y = to_numpy(chunk.y).astype(np.float64)[kept]
        X: Any = chunk.X if issparse(chunk.X) else to_numpy(chunk.X)
        X = X[kept][:, [place[name] for name in candidates]]
        X = X.toarray() if issparse(X) else X
        for name, x in zip(list(candidates), X.T.astype(np.float64), strict=True):
            are_integers = bool(np.all(x == np.floor(x)))
            if are_integers:
                candidates[name].add(x, y)
            if not are_integers or len(candidates[name].values) > MOST_VALUES:
                del candidates[name]
        seen += len(y)
    return candidates


def is_code(name: str, column: ValueSums) -> bool:
    """Return whether the values of a column look like ids or codes."""
    count, m = column.sums[:, 0], len(column.values)
    if m < FEWEST_VALUES or count.sum() < REPEATED * m:
        return False
    if NAMED.search(name):
        return True
    residual = _residual_means(column.values, column.sums)
    if residual is None or m < MANY:
        return residual is not None
    # One value may well differ from all others, as 0 often does among amounts.
    others = np.arange(m) != np.argmax(count * residual**2)
    return _residual_means(column.values[others], column.sums[others]) is not None


def _residual_means(values: np.ndarray, sums: np.ndarray) -> np.ndarray | None:
    """Return the mean of y at each value less a parabola; None if the order of values matters."""
    count, total, squares = sums.T
    n, m = float(count.sum()), len(values)
    means, mean = total / count, total.sum() / n
    within = float(np.sum(squares - total * means))
    noise = max(within, 1e-12 * float(np.sum(squares))) / max(n - m, 1.0)
    powers = np.vander((values - values.mean()) / values.std(), 3)
    root = np.sqrt(count)
    fit, *_ = np.linalg.lstsq(powers * root[:, None], (means - mean) * root, rcond=None)
    residual = means - mean - powers @ fit
    between, lacking = float(count @ (means - mean) ** 2), float(count @ residual**2)
    if f_distribution.sf(lacking / (m - 3) / noise, m - 3, max(n - m, 1.0)) > SURE:
        return None
    # Both sums of squares less what noise alone would give.
    if between - lacking - 2 * noise > PARABOLA * (between - (m - 1) * noise):
        return None
    sizes = np.minimum(count[1:], count[:-1])  # means of few rows are uncertain
    steps = float(sizes @ np.diff(residual) ** 2)
    level = float(sizes @ (residual[1:] ** 2 + residual[:-1] ** 2)) / 2
    return residual if m < MANY or steps > ROUGH * level else None
