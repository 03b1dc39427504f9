"""Rows made of one-hot fields, split into entities.

Columns that follow the level of a field, such as the age of a user or the genres of a film, belong
to that field's *entity*: its rows have as many patterns as the field has levels, or a few more if
some columns follow only nearly (see `field_patterns`). Products of columns of one entity are
functions of that level, too, so its own coefficient covers them: only products across entities are
modelled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from quadlin.core.compiled_levels import Meetings
from quadlin.solve.fields.field_patterns import (
    FIRST_ROWS,
    NEARLY,
    Patterns,
    exact_followers,
    levels_as_patterns,
    near_followers,
    patterns_of,
)


class Member(NamedTuple):
    """Columns of an entity that take part as x_p φ[level_p]: a one-hot field, or one column."""

    columns: np.ndarray  # (L,), of X
    group: int  # the group whose mean and precision its levels share
    where: Any = slice(None)  # the patterns that have it, all or (m,)
    level: np.ndarray | None = None  # (m,), the level of each of them; None for one level each
    x: np.ndarray | float = 1.0  # (m,), the value of a column, 1 for a field

    @property
    def is_field(self) -> bool:
        """Whether it is a one-hot field, whose levels have a mean of their own."""
        return len(self.columns) > 1

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sums over patterns (…, m) of each level (…, L)."""
        if self.level is None:
            return values
        if not self.is_field:
            return np.asarray(values.sum(axis=-1, keepdims=True))
        return summed(values, self.level, len(self.columns))


def summed(values: np.ndarray, group: np.ndarray, size: int) -> np.ndarray:
    """Return the sums of (…, m) over the members of each of `size` groups (…, size)."""
    m = len(group)
    selection = csr_matrix((np.ones(m), (group, np.arange(m))), shape=(size, m))
    return np.asarray(selection @ values.reshape(-1, m).T).T.reshape(*values.shape[:-1], size)


class Entity(NamedTuple):
    """Columns whose values follow the level of one field, the key, which is the last member."""

    members: tuple[Member, ...]
    of_row: np.ndarray  # (n,), the pattern of each row
    size: int  # number of patterns

    @property
    def unseen(self) -> np.ndarray:
        """The levels of the key without rows."""
        key = self.members[-1]
        seen = self.of_row if key.level is None else key.level
        return np.flatnonzero(np.bincount(seen, minlength=len(key.columns)) == 0)


class PatternTotals(NamedTuple):
    """Sums over the rows that have a pattern of an entity."""

    counts: np.ndarray  # (p,), Σ weight
    targets: np.ndarray  # (p,), Σ weight·y


class PatternPairs(NamedTuple):
    """Sums over the rows with a given pattern of one entity and a given pattern of the other."""

    by: tuple[Meetings, Meetings]  # by the patterns of each entity
    total: tuple[PatternTotals, PatternTotals]
    square: float  # Σ weight·y²


@dataclass(frozen=True)
class FieldRows:
    """Rows in memory, split into entities; the targets are standardised."""

    entities: tuple[Entity, ...]
    loose: tuple[int, ...]  # columns that follow no field: no machine can be fitted to them
    y: np.ndarray  # (n,)
    weight: np.ndarray  # (n,)
    pairs: PatternPairs | None  # if there are two entities and nothing else
    n_groups: int
    n_columns: int
    shift: float
    scale: float

    @property
    def parts(self) -> tuple[np.ndarray, ...]:
        """The columns of each entity."""
        return tuple(np.concatenate([m.columns for m in e.members]) for e in self.entities)

    @property
    def n(self) -> float:
        """The number of rows, including repetitions."""
        return float(self.weight.sum())


def field_rows(
    X: Any, y: np.ndarray, fields: Sequence[np.ndarray], weight: np.ndarray | None = None
) -> FieldRows:
    """Split the columns of X, CSR or dense, into entities by the fields, and loose columns.

    Raises
    ------
    ValueError
        If a row has no level, or two levels, of a field.
    """
    X = csr_matrix(X, dtype=np.float64)
    X.sum_duplicates()
    X.eliminate_zeros()
    y = np.asarray(y, dtype=np.float64)
    weight = np.ones(len(y)) if weight is None else np.asarray(weight, dtype=np.float64)
    if not weight.all():
        keep = np.flatnonzero(weight)
        X, y, weight = X[keep], y[keep], weight[keep]
    shift = float(weight @ y / weight.sum())
    scale = float(np.sqrt(weight @ (y - shift) ** 2 / weight.sum())) or 1.0
    y = (y - shift) / scale
    by_size = sorted((np.asarray(field) for field in fields), key=lambda field: -len(field))
    splits = [_split(X, field) for field in by_size]
    occurs = X.getnnz(axis=0) > 0  # a column without entries does not matter
    free = occurs.copy()
    entities: list[Entity] = []
    groups = 0
    while splits:
        split = splits.pop(0)
        free[split.field] = False
        nested = [bool((split.exact | ~occurs)[other.field].all()) for other in splits]
        inside = list(compress(splits, nested))
        splits = [other for other, inner in zip(splits, nested, strict=True) if not inner]
        exact, near = split.exact & free, split.near & free
        for other in (*inside, *splits):
            exact[other.field] = near[other.field] = False
        for other in splits:  # a column that follows another field exactly belongs to that field
            near &= ~other.exact
        entity = _entity(X, split, inside, exact, near, groups)
        groups = max(member.group for member in entity.members) + 1
        for member in entity.members:
            free[member.columns] = False
        entities.append(entity)
    loose = np.flatnonzero(free)
    pairs = None
    if len(entities) == 2 and not len(loose):
        pairs = pattern_pairs(entities, y, weight)
    return FieldRows(
        tuple(entities),
        tuple(int(j) for j in loose),
        y,
        weight,
        pairs,
        groups,
        X.shape[1],
        shift,
        scale,
    )


def pattern_pairs(entities: Sequence[Entity], y: np.ndarray, weight: np.ndarray) -> PatternPairs:
    """Return the sums over the rows of each pair of patterns of two entities."""
    at, shape = tuple(e.of_row for e in entities), tuple(e.size for e in entities)
    counts, targets = (csr_matrix((values, at), shape=shape) for values in (weight, weight * y))

    def by_rows(counts: csr_matrix, targets: csr_matrix) -> tuple[Meetings, PatternTotals]:
        starts, places = counts.indptr.astype(np.int64), counts.indices.astype(np.int32)
        totals = [np.asarray(sums.sum(axis=1)).ravel() for sums in (counts, targets)]
        return Meetings(starts, places, counts.data, targets.data), PatternTotals(*totals)

    first, second = by_rows(counts, targets), by_rows(counts.T.tocsr(), targets.T.tocsr())
    return PatternPairs((first[0], second[0]), (first[1], second[1]), float(weight @ y**2))


def _entity(
    X: Any,
    split: "_Split",
    inside: Sequence["_Split"],
    exact: np.ndarray,
    near: np.ndarray,
    first: int,
) -> Entity:
    """Return a field with the fields nested in it and the columns that follow it, its key last.

    Each field is a separate group, numbered from `first` on; the single columns are one group.
    """
    patterns, near = _patterns(X, split, near)
    key = Member(split.field, first, level=patterns.level)
    fields = [
        Member(other.field, group, patterns.at, other.level[patterns.rows])
        for group, other in enumerate(inside, first + 1)
    ]
    columns, group = np.flatnonzero(exact | near), first + 1 + len(fields)
    singles = []
    for column, single in zip(columns, X[patterns.rows][:, columns].T.tocsr(), strict=True):
        where, none = patterns.at[single.indices], np.zeros(single.nnz, dtype=int)
        singles.append(Member(np.array([column]), group, where, none, single.data))
    return Entity((*fields, *singles, key), patterns.of_row, patterns.size)


class _Split(NamedTuple):
    """The levels of a field, and the columns that follow it."""

    field: np.ndarray
    level: np.ndarray  # (n,)
    exact: np.ndarray  # (d,), functions of the level
    near: np.ndarray  # (d,), nearly but not exactly


def _split(X: csr_matrix, field: np.ndarray) -> _Split:
    level, L = _levels(X, field), len(field)
    if 2 * np.count_nonzero(np.bincount(level)) > len(level):  # each row is a level of its own
        none = np.zeros(X.shape[1], dtype=bool)
        return _Split(field, level, none, none)
    exact = exact_followers(X, level, L)
    return _Split(field, level, exact, near_followers(X, level, L) & ~exact)


def _patterns(X: csr_matrix, split: _Split, near: np.ndarray) -> tuple[Patterns, np.ndarray]:
    """Return the patterns of a field and its near followers; none if patterns were too many."""
    if near.any():
        patterns = patterns_of(X[:, np.flatnonzero(near)], split.level)
        if 2 * patterns.size <= len(split.level):
            return patterns, near
    return levels_as_patterns(split.level, len(split.field)), np.zeros_like(near)


def may_follow(X: Any, fields: Sequence[np.ndarray]) -> bool:
    """Return whether every column may follow the level of a field, judged by the first rows."""
    X = csr_matrix(X[:FIRST_ROWS], dtype=np.float64)
    loose = np.ones(X.shape[1], dtype=bool)
    loose[np.concatenate([[], *fields]).astype(int)] = False
    for field in fields:
        level = np.asarray(X[:, field].argmax(axis=1)).ravel()
        loose &= ~exact_followers(X, level, len(field))
        loose &= ~near_followers(X, level, len(field), 3 * NEARLY)
    return not loose.any()


def has_many_entities(X: Any, fields: Sequence[np.ndarray]) -> bool:
    """Return whether at least three fields do not follow another field; O(nnz) per field.

    Every row of X, CSR, must have a level of each field.
    """
    field_of = np.full(X.shape[1], -1)
    for number, field in enumerate(fields):
        field_of[field] = number
    of_entry = field_of[X.indices]
    kept: list[np.ndarray] = []
    for number in sorted(range(len(fields)), key=lambda i: -len(fields[i])):
        level = X.indices[of_entry == number].astype(np.int64)
        if not any(_follows(level, other, X.shape[1]) for other in kept):
            kept.append(level)
        if len(kept) == 3:
            return True
    return False


def _follows(level: np.ndarray, other: np.ndarray, d: int) -> bool:
    """Return whether levels are a function of those of another field with repeated levels."""
    levels = len(np.unique(other))
    return 2 * levels <= len(other) and len(np.unique(other * d + level)) == levels


def _levels(X: csr_matrix, field: np.ndarray) -> np.ndarray:
    """Return the level of each row; exactly one of the columns must be 1."""
    levels = X[:, field]
    if (np.diff(levels.indptr) != 1).any() or (levels.data != 1).any():
        raise ValueError(
            f"The {len(field)} columns from {int(field[0])} on are not a one-hot field: every row "
            "must have a 1 in exactly one of them."
        )
    return np.asarray(levels.indices, dtype=np.intp)


def default_signs(rows: FieldRows, rank: int) -> np.ndarray:
    """Return alternating signs, or only +1 for two entities, where signs do not matter."""
    alike = len(rows.entities) == 2
    return np.ones(rank) if alike else np.where(np.arange(rank) % 2, -1.0, 1.0)
