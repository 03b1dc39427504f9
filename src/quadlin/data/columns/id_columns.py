"""Columns of whole numbers that look like ids, whose order and distances mean nothing."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import to_numpy
from quadlin.core.rows import Rows

MIN_VALUES = 20  # distinct whole numbers that are no accident
DENSE = 1.5  # whole numbers per row in the range of a column that numbers its rows
# user_id, userId, zip, postal_code, SKU; not width, paid or kids.
NAMED = re.compile(
    r"(?:^|[\W_])(?i:id|ids|code|codes|zip|zipcode|postcode|postalcode|sku|isbn|fips)$"
    r"|[a-z](?:Id|ID|Code|Zip)$"
    r"|^(?i:user|customer|item|product|film|movie)$",
)


def are_ids(name: str, values: np.ndarray) -> bool:
    """Return whether many different whole numbers are named like ids, or number the rows.

    Examples
    --------
    >>> are_ids("user", np.arange(90) % 30), are_ids("area", np.arange(90) % 30)
    (True, False)
    >>> are_ids("area", np.arange(1, 91))
    True
    """
    values = values[np.isfinite(values)]
    if not np.array_equal(values, np.floor(values)):
        return False
    distinct = np.unique(values)
    if len(distinct) < MIN_VALUES:
        return False
    n, rising = len(values), bool(np.all(np.diff(values) > 0))
    dense = bool(len(distinct) == n and distinct[-1] - distinct[0] < DENSE * n)
    return bool(NAMED.search(name)) or rising or dense


def find_ids(rows: Rows, numbers: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns of numbers that look like ids in the first chunk of the rows."""
    X: Any = next(iter(rows.walk())).X
    place = {name: j for j, name in enumerate(names)} if len(numbers) < len(names) else None
    ids = []
    for number, name in enumerate(numbers):
        j = number if place is None else place[name]
        values = X[:, [j]].toarray()[:, 0] if issparse(X) else to_numpy(X[:, j])
        if are_ids(str(name), values.astype(np.float64)):
            ids.append(str(name))
    return ids
