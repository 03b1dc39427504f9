r"""Rows made of one-hot fields, and the sums that a posterior over their levels needs.

Columns that are a function of the level of a field, such as the age of a user or the genres of a
film, belong to that field's *entity*: its rows take as many patterns as the field has levels. With
:math:`\theta_p = (\omega_p, t_p)`, the linear part and the factor of a pattern, a row is

.. math:: f = o + \omega_p + \langle t_p, q \rangle, \qquad q = s \circ \sum_{e' \neq e} t_{e'},

so that :math:`G_p = \sum \tilde q \tilde q^\top`, :math:`h_p = \sum (y - o)\,\tilde q`,
:math:`\tilde q = (1, q)`, is all that the rows say about one entity, given the others. Where there
are two entities both are products of a sparse matrix of counts with a small table, and no array is
as long as the rows. Arrays keep the patterns last, so that small systems are solved for all of them
at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

BLOCK = 8192  # rows of a block where there are more than two entities


class Member(NamedTuple):
    """Columns of an entity that take part as x_p φ[level_p]: a one-hot field, or one column."""

    columns: np.ndarray  # (L,), of X
    level: np.ndarray  # (p,), the level of each pattern
    x: np.ndarray  # (p,), 1 for a level, the value for a column, 0 where a pattern lacks it
    group: int  # whose mean and precision its levels have

    @property
    def is_key(self) -> bool:
        """Whether the patterns are its levels."""
        return len(self.columns) == len(self.level) > 1

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sums over patterns (…, p) of each level (…, L)."""
        if self.is_key:
            return values
        if len(self.columns) == 1:
            return values.sum(axis=-1, keepdims=True)
        p, L = len(self.level), len(self.columns)
        selection = csr_matrix((np.ones(p), (self.level, np.arange(p))), shape=(L, p))
        flat = selection @ values.reshape(-1, p).T
        return np.asarray(flat.T).reshape(*values.shape[:-1], L)


class Entity(NamedTuple):
    """Columns whose values are a function of the level of one field, the first member."""

    members: tuple[Member, ...]
    of_row: np.ndarray  # (n,), the pattern of each row
    size: int  # number of patterns


class Statistics(NamedTuple):
    """What the rows say about an entity, given the others."""

    G: np.ndarray  # (K, K, p), K = rank + 1
    h: np.ndarray  # (K, p)
    rest: float  # Σ weight (y − o)²


class Moments(NamedTuple):
    """Mean and covariance of (ω, t) of each pattern; no covariance where they are numbers."""

    mean: np.ndarray  # (K, p)
    cov: np.ndarray | None  # (K, K, p)


@dataclass(frozen=True)
class FieldRows:
    """Rows in memory, split into entities and loose columns; the targets are standardised."""

    entities: tuple[Entity, ...]
    loose: tuple[int, ...]  # columns that are a function of no field
    values: csr_matrix  # (loose, n), by column
    y: np.ndarray  # (n,)
    weight: np.ndarray  # (n,)
    counts: csr_matrix | None  # (p₀, p₁), Σ weight where there are two entities and nothing else
    targets: csr_matrix | None  # (p₀, p₁), Σ weight·y
    n_groups: int
    n_columns: int
    shift: float
    scale: float

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
    free, entities, groups = np.ones(X.shape[1], dtype=bool), [], 0
    for i, (field, level) in enumerate(zip(by_size, levels, strict=True)):
        if not free[field].any():
            continue
        first = np.full(len(field), -1)
        first[level[::-1]] = np.arange(len(y))[::-1]
        free[field] = False
        nested = np.zeros_like(free)
        if 2 * len(field) <= len(y):  # else each row is a pattern of its own
            changes = (X - X[first[level]]).tocoo()
            nested = free.copy()
            nested[changes.col[changes.data != 0]] = False
        members = [Member(field, np.arange(len(field)), np.ones(len(field)), groups)]
        groups += 1
        seen = first >= 0
        for other, its in zip(by_size[i + 1 :], levels[i + 1 :], strict=True):
            if nested[other].all():
                nested[other] = free[other] = False
                at = np.where(seen, its[first], 0)
                members.append(Member(other, at, seen.astype(float), groups))
                groups += 1
        for other in by_size[i + 1 :]:
            nested[other] = False  # a constant level alone does not make a member
        values = X[np.where(seen, first, 0)].T.tocsr()[np.flatnonzero(nested)].toarray() * seen
        for column, x in zip(np.flatnonzero(nested), values, strict=True):
            members.append(Member(np.array([column]), np.zeros(len(field), dtype=int), x, groups))
        groups += bool(nested.any())
        free &= ~nested
        entities.append(Entity(tuple(members), level, len(field)))
    loose = np.flatnonzero(free)
    counts = targets = None
    if len(entities) == 2 and not len(loose):
        at, shape = tuple(e.of_row for e in entities), tuple(e.size for e in entities)
        counts = csr_matrix((weight, at), shape=shape)
        targets = csr_matrix((weight * y, at), shape=shape)
    return FieldRows(
        tuple(entities),
        tuple(int(j) for j in loose),
        X[:, loose].T.tocsr(),
        y,
        weight,
        counts,
        targets,
        groups + bool(len(loose)),
        X.shape[1],
        shift,
        scale,
    )


def _levels(X: csr_matrix, field: np.ndarray) -> np.ndarray:
    """Return the level of each row; exactly one of the columns must be 1."""
    own = X[:, field]
    if (np.diff(own.indptr) != 1).any() or (own.data != 1).any():
        raise ValueError(
            f"The {len(field)} columns from {int(field[0])} on are not a one-hot field: every row "
            "must have a 1 in exactly one of them."
        )
    return own.indices.astype(np.intp)


def statistics(
    rows: FieldRows, e: int, state: Sequence[Moments], signs: np.ndarray, b: float,
    loose: np.ndarray | None = None,
) -> Statistics:  # fmt: skip
    """Return what the rows say about entity e, given the moments of the others.

    `loose` (K, n) is the part of the loose columns, as (ω, t) of each row.
    """
    if rows.counts is None:
        return _of_rows(rows, e, state, signs, b, loose)
    counts, targets, other = rows.counts, rows.targets, state[1 - e]
    if e == 1:
        counts, targets = counts.T, targets.T
    K = len(signs) + 1
    o = other.mean[0] + b
    q = np.concatenate([np.ones((1, o.size)), signs[:, None] * other.mean[1:]])
    i, j = np.triu_indices(K)
    products, offsets, square = q[i] * q[j], o * q, o * o
    if other.cov is not None:
        signed = np.concatenate([[0.0], signs])
        products += (signed[i] * signed[j])[:, None] * other.cov[i, j]
        offsets += signed[:, None] * other.cov[0]
        square = square + other.cov[0, 0]
    sums = np.asarray(counts @ np.concatenate([products, offsets]).T).T
    h = np.asarray(targets @ q.T).T - sums[len(i) :]
    totals = np.asarray(counts.sum(axis=0)).ravel(), np.asarray(targets.sum(axis=0)).ravel()
    rest = rows.weight @ rows.y**2 - 2 * totals[1] @ o + totals[0] @ square
    return Statistics(_square(sums[: len(i)], K), h, float(rest))


def _of_rows(
    rows: FieldRows, e: int, state: Sequence[Moments], signs: np.ndarray, b: float,
    loose: np.ndarray | None,
) -> Statistics:  # fmt: skip
    """Return the statistics by blocks of rows."""
    K, size = len(signs) + 1, rows.entities[e].size
    i, j = np.triu_indices(K)
    signed = np.concatenate([[0.0], signs])
    sums, rest = np.zeros((size, len(i) + K)), 0.0
    for block in blocks(len(rows.y)):
        others = [
            (state[a].mean[:, entity.of_row[block]], state[a].cov, entity.of_row[block])
            for a, entity in enumerate(rows.entities)
            if a != e
        ]
        if loose is not None:
            others.append((loose[:, block], None, None))
        total, cross = joined([mean for mean, _, _ in others], signs)
        q = np.concatenate([np.ones((1, total.shape[1])), signs[:, None] * total[1:]])
        r = rows.y[block] - b - total[0] - cross
        products, targets, square = q[i] * q[j], r * q, r * r
        for mean, cov, at in others:
            if cov is None:
                continue
            C = cov[:, :, at]
            g = np.concatenate([np.ones((1, r.size)), signs[:, None] * (total - mean)[1:]])
            products += (signed[i] * signed[j])[:, None] * C[i, j]
            along = np.einsum("abn,bn->an", C, g)  # Cov(θ, ω + ⟨t, the others⟩)
            targets -= signed[:, None] * along
            square = square + np.einsum("an,an->n", g, along)
        for a, (_, cov, at) in enumerate(others):  # the variance of ⟨t, t′⟩ beyond that of its mean
            for _, other, its in others[:a]:
                if cov is not None and other is not None:
                    S = np.outer(signs, signs)[:, :, None]
                    square = square + (S * cov[1:, 1:, at] * other[1:, 1:, its]).sum(axis=(0, 1))
        weight, at = rows.weight[block], rows.entities[e].of_row[block]
        selection = csr_matrix((weight, (at, np.arange(len(at)))), shape=(size, len(at)))
        sums += selection @ np.concatenate([products, targets]).T
        rest += float(weight @ square)
    flat = np.ascontiguousarray(sums.T)
    return Statistics(_square(flat[: len(i)], K), flat[len(i) :], rest)


def joined(parts: Sequence[np.ndarray], signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of several (ω, t) (K, n) and the products of their factors, pair by pair."""
    total = np.zeros_like(parts[0])
    cross = np.zeros(total.shape[1])
    for part in parts:
        cross += np.einsum("an,an->n", signs[:, None] * total[1:], part[1:])
        total += part
    return total, cross


def squared_error(stats: Statistics, theta: Moments) -> float:
    """Return Σ weight E(y − f)²."""
    product = np.einsum("abp,bp->ap", stats.G, theta.mean)
    error = stats.rest + float(np.sum(theta.mean * (product - 2 * stats.h)))
    if theta.cov is not None:
        error += float(np.sum(stats.G * theta.cov))
    return error


def blocks(n: int) -> Iterator[slice]:
    """Yield the slices of n rows, block by block."""
    for start in range(0, n, BLOCK):
        yield slice(start, min(n, start + BLOCK))


def _square(packed: np.ndarray, K: int) -> np.ndarray:
    """Return symmetric matrices (K, K, p) from their upper triangles."""
    i, j = np.triu_indices(K)
    G = np.empty((K, K, packed.shape[1]))
    G[i, j] = packed
    G[j, i] = packed
    return G
