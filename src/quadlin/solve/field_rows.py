"""Rows made of one-hot fields, split into entities.

Columns that are a function of the level of a field, such as the age of a user or the genres of a
film, belong to that field's *entity*: its rows take as many patterns as the field has levels. What
the columns of one entity do together is a function of that level too, and is left to it: products
are taken across entities only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

FIRST_ROWS = 1000  # that show cheaply that most columns are a function of no field


class Member(NamedTuple):
    """Columns of an entity that take part as x_p φ[level_p]: a one-hot field, or one column."""

    columns: np.ndarray  # (L,), of X
    group: int  # whose mean and precision its levels have
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
        m, L = len(self.level), len(self.columns)
        selection = csr_matrix((np.ones(m), (self.level, np.arange(m))), shape=(L, m))
        flat = selection @ values.reshape(-1, m).T
        return np.asarray(flat.T).reshape(*values.shape[:-1], L)


class Entity(NamedTuple):
    """Columns whose values are a function of the level of one field, the last member."""

    members: tuple[Member, ...]
    of_row: np.ndarray  # (n,), the pattern of each row
    size: int  # number of patterns


class PatternPairs(NamedTuple):
    """Sums over the rows that have a pattern of the one entity and one of the other."""

    counts: csr_matrix  # (p₀, p₁), Σ weight
    targets: csr_matrix  # (p₀, p₁), Σ weight·y


@dataclass(frozen=True)
class FieldRows:
    """Rows in memory, split into entities and loose columns; the targets are standardised."""

    entities: tuple[Entity, ...]
    loose: tuple[int, ...]  # columns that are a function of no field
    values: csr_matrix  # (loose, n), by column
    y: np.ndarray  # (n,)
    weight: np.ndarray  # (n,)
    pairs: PatternPairs | None  # where there are two entities and nothing else
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
        """The number of rows, repetitions counted."""
        return float(self.weight.sum())


def field_rows(
    X: Any, y: np.ndarray, fields: Sequence[np.ndarray], weight: np.ndarray | None = None
) -> FieldRows:
    """Split the columns of X, CSR or dense, into entities by the fields, and the loose rest.

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
    levels = [_levels(X, field) for field in by_size]
    occurs = X.getnnz(axis=0) > 0  # a column without an entry has no part in any row
    free = occurs.copy()
    entities: list[Entity] = []
    groups = 0
    while by_size:
        field, level = by_size.pop(0), levels.pop(0)
        free[field] = False
        first = np.full(len(field), -1)  # a row of each level
        first[level[::-1]] = np.arange(len(y))[::-1]
        members, patterns = [Member(field, groups)], np.flatnonzero(first >= 0)
        groups += 1
        follows = free & (2 * len(patterns) <= len(y))  # else each row is a pattern of its own
        if follows.any():
            follows[_changing(X, first[level])] = False
        nested = [
            bool(np.all(follows[other] | ~occurs[other]) and follows.any()) for other in by_size
        ]
        for other, its in compress(zip(by_size, levels, strict=True), nested):
            members.append(Member(other, groups, patterns, its[first[patterns]]))
            groups += 1
        for other in by_size:
            follows[other] = False
        singles = X[first[patterns]][:, np.flatnonzero(follows)].T.tocsr()
        for column, single in zip(np.flatnonzero(follows), singles, strict=True):
            where, none = patterns[single.indices], np.zeros(single.nnz, dtype=int)
            members.append(Member(np.array([column]), groups, where, none, single.data))
        groups += bool(follows.any())
        free &= ~follows
        by_size = [other for other, inside in zip(by_size, nested, strict=True) if not inside]
        levels = [its for its, inside in zip(levels, nested, strict=True) if not inside]
        for member in members:
            free[member.columns] = False
        entities.append(Entity(tuple(members[1:] + members[:1]), level, len(field)))
    loose = np.flatnonzero(free)
    pairs = None
    if len(entities) == 2 and not len(loose):
        at, shape = tuple(e.of_row for e in entities), tuple(e.size for e in entities)
        pairs = PatternPairs(
            csr_matrix((weight, at), shape=shape), csr_matrix((weight * y, at), shape=shape)
        )
    return FieldRows(
        tuple(entities),
        tuple(int(j) for j in loose),
        X[:, loose].T.tocsr(),
        y,
        weight,
        pairs,
        groups + bool(len(loose)),
        X.shape[1],
        shift,
        scale,
    )


def may_be_functions(X: Any, fields: Sequence[np.ndarray]) -> bool:
    """Tell from the first rows whether every column may be a function of the level of a field."""
    X = csr_matrix(X[:FIRST_ROWS], dtype=np.float64)
    loose = np.ones(X.shape[1], dtype=bool)
    loose[np.concatenate([[], *fields]).astype(int)] = False
    for field in fields:
        level = np.asarray(X[:, field].argmax(axis=1)).ravel()
        first = np.zeros(len(field), dtype=int)
        first[level[::-1]] = np.arange(len(level))[::-1]
        changes = np.zeros(len(loose), dtype=bool)
        changes[_changing(X, first[level])] = True
        loose &= changes
    return not loose.any()


def _changing(X: csr_matrix, like: np.ndarray) -> np.ndarray:
    """Return the columns in which a row differs from the one that it should be like."""
    changes = (X - X[like]).tocoo()
    return np.asarray(changes.col[changes.data != 0])


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
    """Return +1 where signs do not matter, between two entities, else both signs in turn."""
    alike = len(rows.entities) == 2 and not rows.loose
    return np.ones(rank) if alike else np.where(np.arange(rank) % 2, -1.0, 1.0)
