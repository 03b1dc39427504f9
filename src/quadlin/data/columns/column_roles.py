"""What the columns of a table are to each other: ids, properties of them, ratings of pairs of them.

A column whose value follows from an id is a property of that id: the age of a user, the year of a
film. Its rows repeat the same few facts, so by themselves they do not show that it is a code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, takewhile
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix, issparse

from quadlin.core.arrays import to_numpy
from quadlin.core.rows import Rows
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.id_columns import LOOKED_AT, NAMED, ValueSums, is_code, whole_numbers

MOST_COLUMNS = 30  # of a table that is looked at for ratings
FEWEST_IDS = 20  # users or items
FOLLOWS = 0.98  # smallest share of rows that have the commonest value of their id
CHANCE = 0.1  # most exceptions, as a share of the rows without the commonest value of the column
SAMPLE = 2000  # rows that rule out most columns
MOST_GRADES = 101  # different ratings, such as whole percents
MOST_LOOSE = 5  # columns of numbers that are not a property of any id
ONCE = 0.5  # pairs per row: a rating is hardly ever given twice
SECONDS = (6e8, 2.6e9)  # since 1970, of the years 1989 to 2052


class ColumnRoles(NamedTuple):
    """Columns that are not what they seem; `ids` only where the rows are ratings of pairs."""

    codes: tuple[str, ...]  # whole numbers that look like ids or codes
    ids: tuple[str, ...] = ()  # of raters and of what they rate, in the order of the table
    copies: tuple[str, ...] = ()  # the same information as an id, written differently
    times: tuple[str, ...] = ()  # seconds or milliseconds since 1970


def column_roles(
    rows: Rows,
    columns: Sequence[str],
    names: Sequence[str],
    fields: Sequence[np.ndarray] = (),
    titles: Sequence[str] | None = None,
) -> ColumnRoles:
    """Return which columns look like ids or codes, and whether the rows are ratings.

    Codes are columns of whole numbers whose values explain the target far better than a parabola
    does, and in no order. Columns that are named like ids and have repeated values are codes, too.
    Rows are ratings if they have two or more columns of ids (codes or text) whose pairs hardly
    ever occur twice, and a target that takes few values.

    Parameters
    ----------
    rows : Rows
        Rows with targets. Only the first 100,000 are examined.
    columns : sequence of str
        The columns of numbers to examine.
    names : sequence of str
        The names of all features, in the order of the rows.
    fields : sequence of int array
        The features of each one-hot field.
    titles : sequence of str or None
        The names of the fields. If None, the rows are not examined for ratings.

    Returns
    -------
    ColumnRoles

    Examples
    --------
    >>> from quadlin.core.chunks import Chunk
    >>> rng = np.random.default_rng(0)
    >>> region, age = rng.integers(1, 9, 500), rng.integers(18, 80, 500)
    >>> y = np.array([0, 3, -2, 5, 1, -4, 2, 0, 4])[region] + 0.01 * (age - 40) ** 2
    >>> chunk = Chunk(np.column_stack([region, age]), y + rng.normal(size=500), None)
    >>> column_roles(Rows.of([chunk]), ["region", "age"], ["region", "age"]).codes
    ('region',)
    """
    examined = set(columns)
    place = {name: j for j, name in enumerate(names) if name in examined}
    sums = whole_numbers(rows, place)
    codes = [name for name, column in sums.items() if is_code(name, column)]
    wide = titles is None or len(place) + len(fields) > MOST_COLUMNS
    if len(codes) + len(fields) < 2 or (wide and not codes):
        return ColumnRoles(tuple(codes))
    kept = {name: place[name] for name in codes} if wide else place
    table = _Table.of(rows, kept, fields, codes, titles)
    codes = [name for name in codes if not table.explains(name)]
    roles = ColumnRoles(tuple(codes))
    return roles if wide else table.ratings(roles)


def field_names(encoder: TableEncoder | None) -> list[str]:
    """Return the column of each field of an encoder."""
    if encoder is None:
        return []
    return [name for name in encoder.text if name not in encoder.separators]


def code_advice(name: str) -> str:
    """Return a message that a column looks like ids or codes, with advice."""
    return (
        f"columns: {name} holds whole numbers that look like ids or codes, whose "
        f"order means nothing. Give categorical_features={([name])!r}, so that "
        "each value becomes a level, or drop the column."
    )


def ratings_advice(roles: ColumnRoles, machine: str, codes: Sequence[Any] | None = None) -> str:
    """Return a message that the rows are ratings, and how the class `machine` fits them.

    `codes` are the ids that are still numbers, as the user would name them.
    """
    codes = roles.codes if codes is None else codes
    sentences: list[str] = [
        (
            "The rows look like ratings: pairs of {ids}, and a target of few values. "
            "A factorization machine predicts them better: use {machine}"
        ).format(ids=" and ".join([", ".join(roles.ids[:-1]), roles.ids[-1]]), machine=machine)
    ]
    if codes:
        declared = f"categorical_features={list(codes)!r}"
        sentences.append(f"with {declared}")
    if out := [*roles.times, *roles.copies]:
        without = f"without {', '.join(map(repr, out))}"
        sentences.append(f"{without}")
    return f"{' '.join(sentences)}."


def are_times(x: np.ndarray) -> bool:
    """Tell whether numbers are seconds or milliseconds since 1970.

    Examples
    --------
    >>> are_times(np.array([1700000015.0, 1716531781])), are_times(np.array([3.0, 1700000015]))
    (True, False)
    """
    low, high = SECONDS
    are_integers = len(x) > 0 and bool(np.all(x == np.floor(x)))
    return are_integers and any(bool(np.all((x >= low * u) & (x <= high * u))) for u in (1, 1000))


@dataclass(frozen=True)
class _Column:
    """A column as its sorted distinct values, and the position of each row's value among them."""

    of_row: np.ndarray  # (n,)
    values: np.ndarray  # (levels,)

    @classmethod
    def of(cls, values: np.ndarray) -> "_Column":
        distinct, of_row = np.unique(values, return_inverse=True)
        return cls(of_row.ravel(), distinct)

    def follows(self, other: "_Column") -> bool:
        """Tell whether the value of this column follows from that of another, or nearly so."""
        n, levels, values = len(self.of_row), len(other.values), len(self.values)
        if 2 * levels > n or not 2 <= values <= levels / FOLLOWS:
            return False
        sample = slice(None, None, max(1, n // SAMPLE))  # a few rows rule out most columns
        if _exceptions(other.of_row[sample], self.of_row[sample]) > 2 * (1 - FOLLOWS) * SAMPLE:
            return False
        exceptions = _exceptions(other.of_row, self.of_row)
        rare = n - np.bincount(self.of_row).max()
        return bool(exceptions <= (1 - FOLLOWS) * n and exceptions <= CHANCE * rare)


def _exceptions(levels: np.ndarray, values: np.ndarray) -> float:
    """Return how many rows do not have the commonest value of their level."""
    counts = coo_matrix((np.ones(len(levels)), (levels, values))).tocsr()
    return float(len(levels) - counts.max(axis=1).sum())


@dataclass(frozen=True)
class _Table:
    """The first rows, column by column."""

    y: np.ndarray
    numbers: Mapping[str, np.ndarray]
    columns: Mapping[str, _Column]  # codes and fields, in the order of the table
    codes: frozenset[str]
    answers: dict[tuple[str, str], bool] = field(default_factory=dict)  # of `follows`

    @classmethod
    def of(
        cls,
        rows: Rows,
        place: Mapping[str, int],
        fields: Sequence[np.ndarray],
        codes: Sequence[str],
        titles: Sequence[str] | None,
    ) -> "_Table":
        parts, seen = [], 0
        for chunk in rows.walk():
            if seen >= LOOKED_AT:
                break
            X = csr_matrix(chunk.X if issparse(chunk.X) else to_numpy(chunk.X))[: LOOKED_AT - seen]
            lines = _lines(X, list(place.values()), fields)
            parts.append(np.vstack([to_numpy(chunk.y)[: X.shape[0]], lines]))
            seen += X.shape[0]
        y, *others = np.concatenate(parts, axis=1, dtype=np.float64)
        numbers = dict(zip(place, others, strict=False))
        titles = [f"field {i}" for i in range(len(fields))] if titles is None else titles
        texts = dict(zip(titles, others[len(place) :], strict=True))
        at = {name: place[name] for name in codes}
        at |= {title: int(field[0]) for title, field in zip(titles, fields, strict=True)}
        columns = {
            name: _Column.of((numbers | texts)[name]) for name in sorted(at, key=at.__getitem__)
        }
        return cls(y, numbers, columns, frozenset(codes))

    def follows(self, name: str, other: str) -> bool:
        """Tell whether the value of a column follows from that of another."""
        if (name, other) not in self.answers:
            answer = name != other and self.columns[name].follows(self.columns[other])
            self.answers[name, other] = answer
        return self.answers[name, other]

    def is_copy(self, name: str) -> bool:
        """Return whether an earlier column holds the same information."""
        before = takewhile(lambda other: other != name, self.columns)
        return any(self.follows(name, other) and self.follows(other, name) for other in before)

    def is_property(self, name: str, other: str) -> bool:
        """Return whether a column follows from another, but not the other way round."""
        return self.follows(name, other) and not self.follows(other, name)

    def explains(self, name: str) -> bool:
        """Return whether a code is a property of an id, and does not look like a code by id."""
        if NAMED.search(name):
            return False
        for other, column in self.columns.items():
            if self.is_property(name, other):
                first = np.unique(column.of_row, return_index=True)[1]
                means = np.bincount(column.of_row, self.y) / np.bincount(column.of_row)
                sums = ValueSums()
                sums.add(self.numbers[name][first], means)
                if not is_code(name, sums):
                    return True
        return False

    def ratings(self, roles: ColumnRoles) -> ColumnRoles:
        """Add ids, copies of them and times, if the rows are ratings."""
        n, grades = len(self.y), len(np.unique(self.y))
        if not 2 <= grades <= min(MOST_GRADES, n / 10):
            return roles
        named = [name for name in self.columns if name in roles.codes or name not in self.codes]
        ids = [
            name
            for name in named
            if FEWEST_IDS <= len(self.columns[name].values) <= n / 2
            and not any(self.is_property(name, other) for other in self.columns)
        ]
        copies = [name for name in ids if self.is_copy(name)]
        ids = [name for name in ids if name not in copies]
        if len(ids) < 2:
            return roles
        times = [name for name, x in self.numbers.items() if are_times(x)]
        rest = [name for name in self.numbers if name not in {*roles.codes, *times, *copies}]
        keys = [self.columns[name] for name in ids]
        loose = [
            name
            for name in rest
            if not any(_Column.of(self.numbers[name]).follows(k) for k in keys)
        ]
        once = any(_pairs(a, b) >= ONCE * n for a, b in combinations(keys, 2))
        if len(loose) > MOST_LOOSE or not once:
            return roles
        codes = tuple(name for name in roles.codes if name not in {*copies, *times})
        return ColumnRoles(codes, tuple(ids), tuple(copies), tuple(times))


def _lines(X: csr_matrix, numbers: list[int], fields: Sequence[np.ndarray]) -> np.ndarray:
    """Return a line per column of numbers, then a line per field with its level, 0 for none."""
    width, n = X.shape[1], X.shape[0]
    line, level = np.full(width, -1), np.zeros(width)
    line[numbers] = np.arange(len(numbers))
    for i, columns in enumerate(fields):
        line[columns], level[columns] = len(numbers) + i, 1 + np.arange(len(columns))
    rows = np.repeat(np.arange(n), np.diff(X.indptr))
    needed = line[X.indices] >= 0
    columns, rows, values = X.indices[needed], rows[needed], X.data[needed]
    table = np.zeros((len(numbers) + len(fields), n))
    in_field, nonzero = level[columns] > 0, values != 0
    table[line[columns], rows] = np.where(in_field, level[columns] * nonzero, values)
    return table


def _pairs(a: _Column, b: _Column) -> int:
    return len(np.unique(a.of_row * len(b.values) + b.of_row))
