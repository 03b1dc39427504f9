"""The rows of a batch, split into entities that begin with the patterns of earlier batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, diags, vstack

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import Moments
from quadlin.solve.fields.field_patterns import exact_followers, near_followers
from quadlin.solve.fields.field_rows import Entity, FieldRows, Member, pattern_pairs
from quadlin.solve.fields.field_table import field_table, standardised
from quadlin.solve.fields.loose_columns import RunningSlopes
from quadlin.solve.fields.running_levels import RunningLevels, Structure, positions


class Frame(NamedTuple):
    """The columns that have occurred, and the patterns that they took."""

    entities: tuple[Structure, ...]
    columns: np.ndarray  # (D,), of X
    mean: np.ndarray  # (D,)
    scale: np.ndarray  # (D,)
    patterns: tuple[csr_matrix, ...]  # (p, D), of each entity
    beside: RunningSlopes | None = None  # of columns that follow no field; not among `columns`

    @classmethod
    def first(
        cls,
        X: csr_matrix,
        y: np.ndarray,
        weight: np.ndarray,
        fields: Sequence[np.ndarray],
        loose: bool,
    ) -> "Frame | None":
        """Return the frame of a first batch, without its patterns; None if no machine can fit it.

        With `loose`, some columns may follow no field.
        """
        columns = np.flatnonzero(X.getnnz(axis=0))
        X, among = X[:, columns], positions(columns, fields)
        if not X.shape[0] or not all(len(field) for field in among):
            return None
        table = field_table(MemorySource(X, y, weight), among, Moments.of(X, weight), loose)
        if table is None:
            return None
        entities = Structure.all_of(table.rows, among, columns)
        mean, scale = table.mean, table.scale
        kept, beside = np.ones(len(columns), dtype=bool), None
        if table.beside is not None:
            at, slopes = table.beside.columns, table.beside.slopes
            sums = np.zeros((len(at), len(at))), np.zeros(len(at))
            beside = RunningSlopes(columns[at], mean[at], scale[at], slopes, *sums)
            kept[at] = False
        none = csr_matrix((0, int(kept.sum())))
        frame = (columns[kept], mean[kept], scale[kept], (none,) * len(entities))
        return cls(entities, *frame, beside)

    @classmethod
    def after(cls, running: RunningLevels, X: csr_matrix, fields: Sequence[np.ndarray]) -> "Frame":
        """Return the frame of earlier batches, extended by the new columns of this one."""
        seen = np.flatnonzero(X.getnnz(axis=0))
        new = np.setdiff1d(seen, running.places)
        levels = np.isin(new, np.concatenate(fields))
        entities, singles = _with_followers(running.entities, X, new[~levels], fields)
        added = np.sort(np.concatenate([new[levels], singles])).astype(int)
        columns, none = np.concatenate([running.columns, added]), np.zeros(len(added))
        ends = np.cumsum(running.counts)[:-1]
        patterns = running.patterns
        patterns.resize((patterns.shape[0], len(columns)))
        parts = [patterns[part] for part in np.split(np.arange(patterns.shape[0]), ends)]
        mean, scale = np.append(running.mean, none), np.append(running.scale, none + 1)
        beside = None if running.beside is None else running.beside.renewed()
        return cls(entities, columns, mean, scale, tuple(parts), beside)


def _with_followers(
    entities: tuple[Structure, ...], X: csr_matrix, new: np.ndarray, fields: Sequence[np.ndarray]
) -> tuple[tuple[Structure, ...], np.ndarray]:
    """Let each new column, such as that of a new label, follow the first key that it can follow."""
    free, followed, result = np.ones(len(new), dtype=bool), X[:, new], []
    for entity in entities if len(new) else ():
        key = fields[entity.fields[0]]
        level = X[:, key].indices
        follows = exact_followers(followed, level, len(key))
        follows |= near_followers(followed, level, len(key))
        added = tuple(int(j) for j in new[follows & free])
        result.append(entity._replace(followers=(*entity.followers, *added)))
        free &= ~follows
    return tuple(result) if len(new) else entities, new[~free]


@dataclass(frozen=True)
class Batch:
    """Rows without targets, whose columns are those of a frame."""

    frame: Frame
    entities: tuple[Entity, ...]
    slots: tuple[np.ndarray, ...]  # the position of each pattern of the frame in its entity

    @classmethod
    def of(cls, frame: Frame, X: csr_matrix, fields: Sequence[np.ndarray]) -> "Batch":
        """Split rows into entities, and add their patterns to those of the frame."""
        X = standardised(X[:, frame.columns], frame.mean, frame.scale)
        among, group, parts = positions(frame.columns, fields), 0, []
        for structure, patterns in zip(frame.entities, frame.patterns, strict=True):
            parts.append(_entity(structure, patterns, X, frame.columns, among, group))
            group += len(structure.fields) + 1
        entities, slots, patterns = zip(*parts, strict=True)
        return cls(frame._replace(patterns=patterns), entities, slots)

    def rows(self, y: np.ndarray, weight: np.ndarray, shift: float, scale: float) -> FieldRows:
        """Return the rows with some targets."""
        y, groups = (y - shift) / scale, sum(len(e.fields) + 1 for e in self.frame.entities)
        pairs = pattern_pairs(self.entities, y, weight) if len(self.entities) == 2 else None
        width = len(self.frame.columns)
        return FieldRows(self.entities, (), y, weight, pairs, groups, width, shift, scale)


def _entity(
    structure: Structure,
    patterns: csr_matrix,
    X: csr_matrix,
    columns: np.ndarray,
    among: Sequence[np.ndarray],
    first: int,
) -> tuple[Entity, np.ndarray, csr_matrix]:
    """Return an entity of rows, the positions of its patterns in it, and the patterns."""
    fields = [among[number] for number in structure.fields]
    (followers,) = positions(columns, [np.array(structure.followers)])
    inside = np.zeros(len(columns))
    inside[np.concatenate([*fields, followers]).astype(int)] = 1.0
    entity_rows = csr_matrix(X @ diags(inside))
    entity_rows.eliminate_zeros()
    entity_rows.sort_indices()
    old, both = patterns.shape[0], vstack([patterns, entity_rows], "csr")
    # Rows are compared by a random projection, which differs for different rows.
    projected = both @ np.random.default_rng(0).standard_normal(len(columns))
    _, places, inverse = np.unique(projected, return_index=True, return_inverse=True)
    number = np.empty(len(places), dtype=int)
    number[np.argsort(places)] = np.arange(len(places))  # in order of appearance
    of_row, patterns = number[inverse.ravel()][old:], both[np.sort(places)]
    levels = [_levels(patterns, field) for field in fields]
    one_each = len(levels[0]) == len(fields[0])  # a pattern per level of the key
    slot = levels[0] if one_each else np.arange(len(levels[0]))
    members = [
        Member(field, first + i, slot, level)
        for i, (field, level) in enumerate(zip(fields, levels, strict=True))
    ]
    single = patterns[:, followers].tocsc()
    for i, column in enumerate(followers):
        entries = slice(single.indptr[i], single.indptr[i + 1])
        where, x = slot[single.indices[entries]], single.data[entries]
        none = np.zeros(len(x), dtype=int)
        members.append(Member(np.array([column]), first + len(fields), where, none, x))
    key = Member(fields[0], first, level=None if one_each else levels[0])
    return Entity((*members[1:], key), slot[of_row], len(slot)), slot, patterns


def _levels(X: csr_matrix, field: np.ndarray) -> np.ndarray:
    """Return the level of each row; each has exactly one."""
    return np.asarray(csr_matrix(X[:, field]).indices, dtype=np.intp)


def complete(X: csr_matrix, fields: Sequence[np.ndarray]) -> np.ndarray:
    """Return which rows have exactly one level of each field (n,)."""
    good = np.ones(X.shape[0], dtype=bool)
    for field in fields:
        levels = X[:, field]
        good &= (levels.getnnz(axis=1) == 1) & (np.asarray(levels.sum(axis=1)).ravel() == 1)
    return good
