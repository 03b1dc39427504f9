"""Fields: groups of 0/1 columns, with exactly one 1 per row in each group.

The search needs only sums over chunks of rows, so an engine can compute them where the rows are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.entries import ones_of_columns
from quadlin.data.columns.names import position_of

Reduce = Callable[..., Any]  # (fn, *params) → the sum of fn(chunk, *params) over all chunks
SCATTERED = 1000  # most 0/1 columns that are searched for fields of columns that are not adjacent
FIRST_ROWS = 64  # of a chunk: enough to show cheaply that most columns are not 0/1
TELLING_ROWS = 256  # of a chunk: enough to show that most 0/1 columns belong to no field
MOST_TELLING_ROWS = 2048  # of a table in memory: more rows would take as long as the pass they save


@dataclass(frozen=True)
class FieldCounts:
    """What the search for fields needs to know about some rows; the counts of two chunks add.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]])
    >>> both = field_counts(Chunk(rows[:1], None, None)) + field_counts(Chunk(rows[1:], None, None))
    >>> both.rows, both.ones, both.eligible
    (2, array([1, 1, 0]), array([ True,  True, False]))
    """

    rows: int
    eligible: np.ndarray  # (d,), whether all entries are 0 or 1, and no row rules a field out
    ones: np.ndarray  # (d,), ones of each such column
    after: np.ndarray  # (d,), the nearest later column that is 1 in a row where this one is

    def __add__(self, other: "FieldCounts") -> "FieldCounts":
        return FieldCounts(
            self.rows + other.rows,
            self.eligible & other.eligible,
            self.ones + other.ones,
            np.minimum(self.after, other.after),
        )


@dataclass(frozen=True)
class Flags(Additive):
    """Whether something was seen in any row: booleans add as "or"."""

    seen: np.ndarray  # (m,)


def field_counts(chunk: Chunk, columns: np.ndarray | None = None) -> FieldCounts:
    """Count the ones of the 0/1 columns of a chunk, and which of them occur together.

    With `columns`, only these can be in a field.
    """
    d = int(chunk.X.shape[1])
    if columns is None:
        columns = _candidates(chunk, TELLING_ROWS)
    B = rows_that_count(chunk, columns)
    counted = ones_of_columns(B)
    if len(columns) == d:
        return FieldCounts(int(B.shape[0]), *counted)
    eligible, ones, after = np.zeros(d, dtype=bool), np.zeros(d, dtype=np.int64), np.full(d, d)
    eligible[columns], ones[columns] = counted.eligible, counted.ones
    after[columns] = np.append(columns, d)[counted.after]
    return FieldCounts(int(B.shape[0]), eligible, ones, after)


def _candidates(chunk: Chunk, most: int) -> np.ndarray:
    """Return the columns that may be in a field, judged by at most `most` first rows of a chunk.

    The number of rows doubles, so columns that few rows rule out cost little.
    """
    n, rows = int(chunk.X.shape[0]), TELLING_ROWS
    columns = np.flatnonzero(
        _zero_or_one(rows_that_count(chunk, None, slice(0, min(FIRST_ROWS, n))))
    )
    while 0 < len(columns) <= SCATTERED and not issparse(chunk.X) and rows <= most:
        first = rows_that_count(chunk, columns, slice(0, min(rows, n)))
        columns = columns[_may_have_partners(first)]
        rows = 2 * rows if rows < n else most + 1
    return columns


def columns_that_meet(chunk: Chunk, columns: np.ndarray) -> Flags:
    """Return which pairs of m 0/1 columns are both 1 in some row, (m²,)."""
    B = rows_that_count(chunk, columns).astype(np.float32)
    G = B.T @ B
    return Flags(np.asarray((G.toarray() if issparse(G) else G) > 0).reshape(-1))


def fields_among(reduce: Reduce, d: int, some: Chunk | None = None) -> tuple[np.ndarray, ...]:
    """Find full one-hot groups: groups of 0/1 columns with exactly one 1 in each row.

    All groups of adjacent columns are found, and encoders write groups that way. If at most
    `SCATTERED` other 0/1 columns remain, they are searched greedily, the most frequent first.
    Columns that are never or always 1 belong to no group, and rows of weight 0 do not count.

    Parameters
    ----------
    reduce : callable
        ``reduce(fn, *params)`` returns the sum of ``fn(chunk, *params)`` over all rows.
    d : int
        Number of columns.
    some : Chunk or None
        Rows in memory. If the first of them rule out every group, no pass is made.

    Returns
    -------
    tuple of array
        The columns of each group, at least two, sorted by the first column.

    Notes
    -----
    At most one pass, and a second one if columns that are not adjacent may still form a group.
    Memory: O(d) and a block of rows; in the second pass also one boolean for each pair of at most
    `SCATTERED` columns.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin.core.chunks import MemorySource
    >>> from quadlin.core.rows import Rows
    >>> X = np.array([[1, 0, 0, 0.5, 1], [0, 1, 0, 0.1, 0], [0, 0, 1, 0.2, 1]])
    >>> fields_among(Rows.of(MemorySource(X)).reduce, 5)
    (array([0, 1, 2]),)
    """
    columns = None if some is None else _candidates(some, MOST_TELLING_ROWS)
    if d < 2 or (columns is not None and len(columns) < 2):
        return ()
    counts: FieldCounts = reduce(field_counts, columns)
    n, ones = counts.rows, counts.ones.copy()
    ones[~counts.eligible] = n + 1  # no group can contain them
    fields = _adjacent(ones, counts.after, n)
    free = (ones > 0) & (ones < n)
    for field in fields:
        free[field] = False
    if 2 <= free.sum() <= SCATTERED and ones[free].sum() >= n:
        columns = np.flatnonzero(free)
        meet = reduce(columns_that_meet, columns).seen.reshape(len(columns), -1)
        fields += _scattered(columns, meet, ones, n)
    return tuple(sorted(fields, key=lambda field: int(field[0])))


def given_fields(fields: Any, names: Sequence[str]) -> tuple[np.ndarray, ...]:
    """Return the positions of the features in each group that the user named."""
    try:
        groups = [
            np.array([position_of(names, f) for f in field], dtype=int) for field in fields or ()
        ]
    except TypeError:
        raise ValueError(
            f"fields={fields!r} must be a list of groups, each a list of positions or names."
        ) from None
    members = np.concatenate(groups) if groups else np.empty(0, dtype=int)
    if len(np.unique(members)) < len(members):
        raise ValueError("A feature occurs twice in `fields`; the groups must not overlap.")
    return tuple(groups)


def check_one_hot(reduce: Reduce, groups: Sequence[np.ndarray], names: Sequence[str]) -> None:
    """Refuse a group with more than one 1 in some row, or with numbers other than 0 and 1.

    Parameters
    ----------
    reduce : callable
        As in `fields_among`.
    groups : sequence of arrays
        Positions of the features of each group.
    names : sequence of str
        The names of all features.
    """
    if not len(groups):
        return
    broken = reduce(groups_not_one_hot, tuple(groups)).seen
    if broken.any():
        first = ", ".join(names[j] for j in groups[int(broken.argmax())][:3])
        raise ValueError(
            f"The field of {first} is not one-hot: each row must have 0 or 1 in every column of "
            "the field, and at most one 1."
        )


def groups_not_one_hot(chunk: Chunk, groups: Sequence[np.ndarray]) -> Flags:
    """Return which groups of columns are not one-hot in some row."""
    broken = []
    for group in groups:
        B = rows_that_count(chunk, group)
        broken.append(not _zero_or_one(B).all() or np.any(B.sum(axis=1) > 1))
    return Flags(np.array(broken, dtype=bool))


def field_numbers(fields: Sequence[np.ndarray], d: int) -> np.ndarray:
    """Return the number of the field of each of d features, −1 for none."""
    numbers = np.full(d, -1)
    for number, field in enumerate(fields):
        numbers[field] = number
    return numbers


def rows_that_count(
    chunk: Chunk, columns: np.ndarray | None = None, rows: slice = slice(None)
) -> Any:
    """Return some columns of the rows whose weight is not 0, as a numpy array or CSR matrix."""
    B = chunk.X[rows] if issparse(chunk.X) else chunk.X[rows, :]
    if columns is not None and len(columns) < B.shape[1]:
        xp = namespace(B)
        where = columns if issparse(B) else xp.asarray(columns, device=B.device)
        B = B[:, where] if issparse(B) else xp.take(B, where, axis=1)
    B = B if issparse(B) else to_numpy(B)
    return B if chunk.weight is None else B[to_numpy(chunk.weight[rows]) > 0]


def _zero_or_one(B: Any) -> np.ndarray:
    if not issparse(B):
        return np.asarray(((B == 0) | (B == 1)).all(axis=0))
    binary = np.ones(B.shape[1], dtype=bool)
    binary[B.indices[(B.data != 0) & (B.data != 1)]] = False
    return binary


def _may_have_partners(B: np.ndarray) -> np.ndarray:
    """Return which columns may belong to a field, judged by some rows.

    In every row the column must be 1, or another column that is never 1 together with it.
    """
    B = (B != 0).astype(np.float32)
    disjoint = (B.T @ B == 0).astype(np.float32)
    return np.asarray(((B @ disjoint + B) > 0).all(axis=0))


def _adjacent(ones: np.ndarray, after: np.ndarray, n: int) -> list[np.ndarray]:
    """Return the runs of adjacent columns with n ones in n rows, no two ones in the same row."""
    columns = np.flatnonzero(ones)
    total = np.concatenate([[0], np.cumsum(ones[columns])])
    stop = np.minimum(np.searchsorted(total, total[:-1] + n), len(columns))
    # Some row has two ones between a and b if and only if some column p ≥ a has after[p] ≤ b.
    reach = np.minimum.accumulate(after[columns][::-1])[::-1]
    good = (total[stop] == total[:-1] + n) & (stop - np.arange(len(columns)) > 1)
    good &= columns[stop - 1] < reach
    fields: list[np.ndarray] = []
    end = 0
    for a in np.flatnonzero(good):
        if a >= end:
            end = int(stop[a])
            fields.append(columns[a:end])
    return fields


def _scattered(columns: np.ndarray, meet: np.ndarray, ones: np.ndarray, n: int) -> list[np.ndarray]:
    """Return groups of columns with n ones, no two ones of a group in the same row."""
    order = np.argsort(-ones[columns], kind="stable")
    columns, meet = columns[order], meet[np.ix_(order, order)]
    possible = ones[columns] + ~meet @ ones[columns] >= n  # enough ones to make a group at all
    columns, meet = columns[possible], meet[np.ix_(possible, possible)]
    fields, free = [], np.ones(len(columns), dtype=bool)
    for seed in range(len(columns)):
        if not free[seed]:
            continue
        group, apart, missing = [seed], free & ~meet[seed], n - ones[columns[seed]]
        while missing and np.any(fits := apart & (ones[columns] <= missing)):
            group.append(int(np.argmax(fits)))
            apart &= ~meet[group[-1]]
            missing -= ones[columns[group[-1]]]
        if not missing:
            free[group] = False
            fields.append(np.sort(columns[group]))
    return fields
