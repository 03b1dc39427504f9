r"""The sums over rows that the posterior of the levels of a field needs.

With :math:`\theta_p = (\omega_p, t_p)`, the linear part and the factor of a pattern of an entity,
and s the signs of the components, a row is

.. math:: f = o + \omega_p + \langle t_p, q \rangle, \qquad q = s \circ \sum_{e' \neq e} t_{e'},

so :math:`G_p = \sum \tilde q \tilde q^\top` and :math:`h_p = \sum (y - o)\,\tilde q`, with
:math:`\tilde q = (1, q)`, are sufficient statistics for one entity, given the others. With two
entities, both are products of a sparse matrix of counts with a small table, and no array is as long
as the rows. Patterns are the last axis of arrays, so that small systems are solved for all of them
at once.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from quadlin.core.compiled_levels import Meetings, expected_products, meet, takes_levels
from quadlin.solve.fields.field_rows import FieldRows
from quadlin.solve.fields.level_systems import remainder

BLOCK = 8192  # rows of a block, if there are more than two entities


class Statistics(NamedTuple):
    """The sufficient statistics of the rows for an entity, given the others."""

    G: np.ndarray  # (K, K, p), K = rank + 1
    h: np.ndarray  # (K, p)
    rest: float  # Σ weight (y − o)²


class LevelMoments(NamedTuple):
    """Mean and covariance of (ω, t) of each pattern; no covariance for a draw."""

    mean: np.ndarray  # (K, p)
    cov: np.ndarray | None = None  # (K, K, p)

    def at(self, where: Any) -> "LevelMoments":
        """Return the moments of some patterns."""
        return LevelMoments(
            self.mean[:, where], None if self.cov is None else self.cov[:, :, where]
        )


def statistics(
    rows: FieldRows, e: int, state: Sequence[LevelMoments], signs: np.ndarray, b: float
) -> Statistics:
    """Return the statistics for entity e, given the moments of the others."""
    if rows.pairs is None:
        return _of_rows(rows, e, state, signs, b)
    other, meetings, total = state[1 - e], rows.pairs.by[e], rows.pairs.total[1 - e]
    o, square = other.mean[0] + b, (other.mean[0] + b) ** 2
    if other.cov is not None:
        square += other.cov[0, 0]
    rest = rows.pairs.square - 2 * total.targets @ o + total.counts @ square
    of_pairs = meet if takes_levels(len(signs) + 1) else _of_pairs
    return Statistics(*of_pairs(meetings, other.mean, other.cov, signs, b), float(rest))


def _of_pairs(
    meetings: Meetings, mean: np.ndarray, cov: np.ndarray | None, signs: np.ndarray, b: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return G and h of an entity, given the moments of the other one."""
    (K, others), p = mean.shape, len(meetings.starts) - 1
    counts, targets = (
        csr_matrix((values, meetings.at, meetings.starts), shape=(p, others))
        for values in (meetings.counts, meetings.targets)
    )
    q = np.concatenate([np.ones((1, others)), signs[:, None] * mean[1:]])
    i, j = np.triu_indices(K)
    products, offsets = q[i] * q[j], (mean[0] + b) * q
    if cov is not None:
        signed = np.concatenate([[0.0], signs])
        products += (signed[i] * signed[j])[:, None] * cov[i, j]
        offsets += signed[:, None] * cov[0]
    sums = np.asarray(counts @ np.concatenate([products, offsets]).T).T
    h = np.asarray(targets @ q.T).T - sums[len(i) :]
    return unpacked(sums[: len(i)], K), h


def _of_rows(
    rows: FieldRows, e: int, state: Sequence[LevelMoments], signs: np.ndarray, b: float
) -> Statistics:
    """Return the statistics by blocks of rows."""
    K, size = len(signs) + 1, rows.entities[e].size
    i, j = np.triu_indices(K)
    signed = np.concatenate([[0.0], signs])
    sums, rest = np.zeros((size, len(i) + K)), 0.0
    others = [(state[a], entity.of_row) for a, entity in enumerate(rows.entities) if a != e]
    spreads = [
        (_spread(moments, signs), of_row) for moments, of_row in others if moments.cov is not None
    ]
    for start in range(0, len(rows.y), BLOCK):
        block = slice(start, start + BLOCK)
        total, cross = joined([m.mean[:, of_row[block]] for m, of_row in others], signs)
        q = np.concatenate([np.ones((1, total.shape[1])), signs[:, None] * total[1:]])
        r = rows.y[block] - b - total[0] - cross
        products, targets, square = q[i] * q[j], r * q, r * r
        if spreads:
            packed, along, variance = _uncertainty(spreads, block, q, signs)
            products += (signed[i] * signed[j])[:, None] * packed
            targets -= signed[:, None] * along
            square = square + variance
        weight, at = rows.weight[block], rows.entities[e].of_row[block]
        selection = csr_matrix((weight, (at, np.arange(len(at)))), shape=(size, len(at)))
        sums += selection @ np.concatenate([products, targets]).T
        rest += float(weight @ square)
    flat = np.ascontiguousarray(sums.T)
    return Statistics(unpacked(flat[: len(i)], K), flat[len(i) :], rest)


def _uncertainty(
    spreads: Sequence[tuple[np.ndarray, np.ndarray]], block: slice, q: np.ndarray, signs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return upper triangles of Cov θ, Cov(θ, f) and Var f of some entities together, by rows."""
    i, K = np.triu_indices(len(q))[0], len(q)
    spread = sum(of_levels[:, of_row[block]] for of_levels, of_row in spreads)
    packed, turned, (quadratic, traces) = np.split(spread, [len(i), len(i) + K])
    C = unpacked(packed, K)
    # Cov(θ, ω + ⟨t, the others⟩); for each entity, q is reduced by the entity's own part.
    along = np.einsum("abn,bn->an", C, q) - turned
    variance = np.einsum("an,an->n", q, along - turned) + quadratic
    # The variance of ⟨t, t′⟩ beyond that of its mean, pair by pair.
    return packed, along, variance + (_signed_trace(C, signs) - traces) / 2


def row_moments(
    rows: FieldRows, state: Sequence[LevelMoments], signs: np.ndarray, b: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of f of each row (n,).

    Where there are `pairs`, the rows must be one for each of them, in their order.
    """
    if rows.pairs is None or not takes_levels(len(signs) + 1):
        return _moments_of_rows(rows, state, signs, b)
    (one, other), meetings, K = state, rows.pairs.by[0], len(signs) + 1
    i, j = np.triu_indices(K)
    moments, o = np.zeros((len(i) + K, one.mean.shape[1])), other.mean[0] + b
    moments[:K] = one.mean  # the upper triangle of qqᵀ begins with q
    given = (other.mean, other.cov, signs, b)
    mean = expected_products(meetings, moments.T, *given) + o[meetings.at]
    if one.cov is None or other.cov is None:
        return mean, np.zeros(len(mean))
    moments[: len(i)], moments[len(i) :] = one.mean[i] * one.mean[j] + one.cov[i, j], 2 * one.mean
    moments[: len(i)][i != j] *= 2
    square = expected_products(meetings, moments.T, *given) + (o**2 + other.cov[0, 0])[meetings.at]
    return mean, np.maximum(square - mean**2, 0.0)


def _moments_of_rows(
    rows: FieldRows, state: Sequence[LevelMoments], signs: np.ndarray, b: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of f by blocks of rows."""
    n = len(rows.entities[0].of_row)
    mean, variance = np.empty(n), np.zeros(n)
    parts = [(theta, entity.of_row) for theta, entity in zip(state, rows.entities, strict=True)]
    spreads = [(_spread(theta, signs), of_row) for theta, of_row in parts if theta.cov is not None]
    for start in range(0, n, BLOCK):
        block = slice(start, start + BLOCK)
        total, cross = joined([theta.mean[:, of_row[block]] for theta, of_row in parts], signs)
        mean[block] = b + total[0] + cross
        if spreads:
            q = np.concatenate([np.ones((1, total.shape[1])), signs[:, None] * total[1:]])
            variance[block] = _uncertainty(spreads, block, q, signs)[2]
    return mean, np.maximum(variance, 0.0)


def _spread(moments: LevelMoments, signs: np.ndarray) -> np.ndarray:
    """Return C, C m, mᵀC m and tr(sCsC) of each pattern, m = (0, s∘t), which add over entities.

    Sums over pairs of entities are those of the totals, less those of each entity.
    """
    C = moments.cov
    assert C is not None
    i, j = np.triu_indices(len(C))
    m = np.concatenate([np.zeros((1, moments.mean.shape[1])), signs[:, None] * moments.mean[1:]])
    turned = np.einsum("abp,bp->ap", C, m)
    quadratic = np.einsum("ap,ap->p", m, turned)
    return np.concatenate([C[i, j], turned, quadratic[None], _signed_trace(C, signs)[None]])


def _signed_trace(C: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return tr(sCsC) (p,) of the factors' part of some covariances (K, K, p)."""
    factors = C[1:, 1:]
    return np.asarray(np.einsum("a,b,abp->p", signs, signs, factors**2))


def joined(parts: Sequence[np.ndarray], signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of several (ω, t) (K, n) and the products of their factors, pair by pair."""
    total = np.zeros_like(parts[0])
    cross = np.zeros(total.shape[1])
    for part in parts:
        cross += np.einsum("an,an->n", signs[:, None] * total[1:], part[1:])
        total += part
    return total, cross


def squared_error(stats: Statistics, theta: LevelMoments) -> float:
    """Return Σ weight E(y − f)²."""
    left = remainder(stats.G, stats.h, theta.mean)
    error = stats.rest - float(np.vdot(theta.mean, left + stats.h))
    if theta.cov is not None:
        error += float(np.vdot(stats.G, theta.cov))
    return error


def unpacked(packed: np.ndarray, K: int) -> np.ndarray:
    """Return symmetric matrices (K, K, p) from their upper triangles."""
    i, j = np.triu_indices(K)
    G = np.empty((K, K, packed.shape[1]))
    G[i, j] = packed
    G[j, i] = packed
    return G
