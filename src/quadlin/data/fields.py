"""Fields: groups of 0/1 columns, with exactly one 1 per row in each group.

The search needs only sums over chunks of rows, so an engine can compute them where the rows are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import is_numpy, namespace, to_numpy
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive
from quadlin.data.names import position_of

Reduce = Callable[..., Any]  # (fn, *params) → the sum of fn(chunk, *params) over all chunks
FIRST_ROWS = 64  # of a chunk: enough to show cheaply that most columns are not 0/1


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
        columns = _candidates(chunk)
    B = rows_that_count(chunk, columns)
    counted = _ones_of_columns(B)
    if len(columns) == d:
        return FieldCounts(int(B.shape[0]), *counted)
    eligible, ones, after = np.zeros(d, dtype=bool), np.zeros(d, dtype=np.int64), np.full(d, d)
    eligible[columns], ones[columns] = counted[:2]
    after[columns] = np.append(columns, d)[counted[2]]
    return FieldCounts(int(B.shape[0]), eligible, ones, after)


def _ones_of_columns(B: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `eligible`, `ones` and `after` of rows, dense or CSR, as `FieldCounts` has them."""
    d = int(B.shape[1])
    if issparse(B):
        B = B if B.has_sorted_indices else B.sorted_indices()
        if not B.data.all():
            B = B.copy()
            B.eliminate_zeros()
        at, value, ends = B.indices.astype(np.intp), B.data, B.indptr[B.indptr > 0] - 1
    else:  # five times as fast as B.nonzero()
        row, at = np.divmod(np.flatnonzero(B != 0), d or 1)
        value, ends = B[row, at], np.flatnonzero(np.diff(row, append=-1))
    eligible, after = np.ones(d, dtype=bool), np.full(d, d)
    eligible[at[value != 1]] = False
    following = np.append(at, d)[1:]
    following[ends] = d  # of the last entry of a row
    eligible[at[at == following]] = False  # an entry stored twice is a two
    np.minimum.at(after, at, following)
    return eligible, np.bincount(at, minlength=d), after


def _candidates(chunk: Chunk) -> np.ndarray:
    """Return the columns that may be in a field, judged by the first rows of a chunk."""
    rows = slice(0, min(FIRST_ROWS, int(chunk.X.shape[0])))
    return np.flatnonzero(_zero_or_one(rows_that_count(chunk, None, rows)))


def fields_among(reduce: Reduce, d: int, some: Chunk | None = None) -> tuple[np.ndarray, ...]:
    """Find full one-hot groups: groups of adjacent 0/1 columns with exactly one 1 in each row.

    Encoders write groups that way. Columns that are never or always 1 belong to no group, and rows
    of weight 0 do not count.

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
    At most one pass, in O(d) memory and the memory of a block of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin.core.chunks import MemorySource
    >>> from quadlin.core.rows import Rows
    >>> X = np.array([[1, 0, 0, 0.5, 1], [0, 1, 0, 0.1, 0], [0, 0, 1, 0.2, 1]])
    >>> fields_among(Rows.of(MemorySource(X)).reduce, 5)
    (array([0, 1, 2]),)
    """
    columns = None if some is None else _candidates(some)
    if d < 2 or (columns is not None and len(columns) < 2):
        return ()
    counts: FieldCounts = reduce(field_counts, columns)
    n, ones = counts.rows, counts.ones.copy()
    ones[~counts.eligible] = n + 1  # no group can contain them
    return tuple(_adjacent(ones, counts.after, n))


def fields_of(
    given: Any, source: Any, encoder: Any, names: Sequence[str], reduce: Reduce | None
) -> tuple[np.ndarray, ...]:
    """Return the positions of the features of each field of some rows.

    Parameters
    ----------
    given : "from_dtype", None or list
        `categorical_features`: the groups that it lists, or None for no search.
    source : MemorySource or Source
        The rows.
    encoder : TableEncoder or None
        Of their text columns.
    names : sequence of str
        Of the features.
    reduce : callable or None
        As in `fields_among`; None in a stream, whose first rows prove nothing.
    """
    if encoder is not None:
        if groups_in(given):
            raise ValueError(
                "categorical_features lists a group of 0/1 columns, and there are text columns or "
                "single columns of categories. Give one kind only."
            )
        return tuple(encoder.fields)
    if groups := given_fields(given, names):
        if reduce is not None:
            check_one_hot(reduce, groups, names)
        return groups
    in_memory = isinstance(source, MemorySource)
    if given is None or reduce is None or (in_memory and not is_numpy(source.X)):
        return ()
    some = Chunk(source.X, source.y, source.weight) if in_memory else None
    return fields_among(reduce, source.width, some)


def groups_in(given: Any) -> list[Any]:
    """Return the groups of 0/1 columns that `categorical_features` lists besides columns."""
    if given is None or isinstance(given, str):
        return []
    return [x for x in given if isinstance(x, Sequence | np.ndarray) and not isinstance(x, str)]


def given_fields(given: Any, names: Sequence[str]) -> tuple[np.ndarray, ...]:
    """Return the positions of the features in each group that the user listed."""
    groups = [
        np.array([position_of(names, feature) for feature in group], dtype=int)
        for group in groups_in(given)
    ]
    members = np.concatenate(groups) if groups else np.empty(0, dtype=int)
    if len(np.unique(members)) < len(members):
        raise ValueError("A feature occurs in two groups of `categorical_features`.")
    return tuple(groups)


def check_one_hot(reduce: Reduce, groups: Sequence[np.ndarray], names: Sequence[str]) -> None:
    """Check that the rows of a group have at most one 1, and no number but 0 and 1.

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
