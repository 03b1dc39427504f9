r"""The Gaussian posterior of the levels of a field, given everything else.

Levels are :math:`\varphi_l = (w_l, v_l) \sim N(\mu, \Lambda^{-1})`, with a mean and a precision per
group and component. Given everything else they are independent, each a ridge regression in
:math:`K = k + 1` unknowns,

.. math:: \varphi_l \sim N(P_l^{-1}(\alpha r_l + \Lambda\mu),\; P_l^{-1}),
          \qquad P_l = \alpha A_l + \Lambda,

and :math:`\mu` is drawn or solved for with the levels integrated out. Sampling and variational
inference differ in one thing: whether the rest has a covariance. Levels are the last axis of all
arrays.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, gammaln

from quadlin.core.compiled_levels import gathered, takes_levels
from quadlin.solve.fields.field_rows import Member, summed
from quadlin.solve.fields.field_sums import LevelMoments, Statistics
from quadlin.solve.fields.level_systems import (
    covariances,
    factorised,
    inverse_cholesky,
    remainder,
    solved,
    spread_out,
)

MEAN_WEIGHT = 1.0  # the prior of a group's mean counts as one level at zero
SHAPE, RATE = 0.5, 0.05  # of the gamma prior of a precision, in units of the target's variance
NOISE_SHAPE, NOISE_RATE = 1e-3, 1e-9
REFLECTED = 0.7  # minus the correlation of a draw of the levels with the previous one


class Levels(NamedTuple):
    """Independent normal distributions of the levels, and the mean of their group."""

    mean: np.ndarray  # (K, L)
    factor: np.ndarray  # (K, K, L), inverse of the Cholesky factor of each precision
    group_mean: np.ndarray  # (K,)

    @property
    def log_determinant(self) -> float:
        """The sum over levels of the logarithm of the determinant of the covariance."""
        return 2 * float(np.sum(np.log(np.einsum("aal->al", self.factor))))

    @property
    def cov(self) -> np.ndarray:
        """The covariance of each level (K, K, L)."""
        return covariances(self.factor)

    def draw(self, rng: np.random.Generator, deviation: np.ndarray | None = None) -> np.ndarray:
        """Return a draw of every level (K, L).

        With `deviation` (K, L), that of an earlier draw from the mean of the same conditional, the
        new draw tends to the other side of the mean, so that averages over draws vary less.
        """
        z = rng.standard_normal(self.mean.shape)
        spread = spread_out(self.factor, z)
        if deviation is not None:
            spread = np.sqrt(1 - REFLECTED**2) * spread - REFLECTED * deviation
        return np.asarray(self.mean + spread)


def evidence(stats: Statistics, rest: np.ndarray, member: Member) -> tuple[np.ndarray, np.ndarray]:
    """Return A (K, K, L) and r (K, L) of the levels; `rest` (K, m) is the entity without them.

    For the patterns that have a level, θ = rest + x φ, so A = Σ x²G and r = Σ x(h − G rest).
    """
    if member.level is None:  # one pattern per level
        return stats.G, remainder(stats.G, stats.h, rest)
    if takes_levels(len(stats.G)):
        where = np.arange(stats.h.shape[1])[member.where]
        x = np.broadcast_to(member.x, where.shape)
        return gathered(stats.G, stats.h, where, member.level, x, rest, len(member.columns))
    G, h = stats.G[:, :, member.where], stats.h[:, member.where]
    return member.total(member.x**2 * G), member.total(member.x * remainder(G, h, rest))


@dataclass(frozen=True)
class MarginalEvidence:
    """The evidence about a member at noise one, with the key of its entity integrated out.

    Given the level of the key, which explains most of what the other members could, they would
    hardly move.
    """

    stats: Statistics
    key: Member
    noise: float
    precision: np.ndarray  # of the key's group
    mean: np.ndarray

    def of(self, member: Member, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return A and r; `rest` (K, p) is the entity without the member and without the key."""
        if self.key.level is not None:
            return self._of_several(member, rest, self.key.level)
        return evidence(self._of_one_each, rest[:, member.where] + self.mean[:, None], member)

    @cached_property
    def _of_one_each(self) -> Statistics:
        """Return G and h if each level of the key has one pattern: Λ − ΛP⁻¹Λ and αΛP⁻¹h."""
        stats, precision = self.stats, self.precision
        factors = factorised(stats.G, stats.h, self.noise, precision)
        G = covariances(factors.factor)
        G *= -(precision[:, None] * precision)[:, :, None]
        G[np.arange(len(G)), np.arange(len(G))] += precision[:, None]
        h = precision[:, None] * solved(factors.factor, self.noise * stats.h)
        return Statistics(G, h, stats.rest)

    def _of_several(
        self, member: Member, rest: np.ndarray, key_level: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        r"""Return A and r if levels of the key have several patterns.

        With :math:`P_l = \alpha \sum G_p + \Lambda`, :math:`B_l = \alpha \sum x_p G_p` and
        :math:`D_l = \alpha \sum (h_p - G_p\,\text{rest}_p) + \Lambda\mu` over the patterns of a
        level l of the key,

        .. math:: A = \alpha \sum x_p^2 G_p - \sum_l B_l P_l^{-1} B_l, \qquad
                  r = \alpha \sum x_p (h_p - G_p\,\text{rest}_p) - \sum_l B_l P_l^{-1} D_l.
        """
        G, h, _ = self.stats
        where, K = member.where, len(self.precision)
        levels, of_level = np.unique(key_level[where], return_inverse=True)
        at = np.flatnonzero(np.isin(key_level, levels))  # the other patterns of these levels too
        group, L = np.searchsorted(levels, key_level[at]), len(levels)
        gap = self.noise * (h[:, at] - np.einsum("abp,bp->ap", G[:, :, at], rest[:, at]))
        D = summed(gap, group, L) + (self.precision * self.mean)[:, None]
        P = summed(self.noise * G[:, :, at], group, L)
        P[np.arange(K), np.arange(K)] += self.precision[:, None]
        B = summed(self.noise * member.x * G[:, :, where], of_level.ravel(), L)
        factor = inverse_cholesky(P)
        half = np.einsum("abl,bcl->acl", factor, B)  # L⁻¹B, so that BP⁻¹B is its square
        A, r = evidence(self.stats, rest[:, where], member)
        lost = np.einsum("bal,bcl->acl", half, half)
        lost_r = np.einsum("bal,bl->al", half, np.einsum("abl,bl->al", factor, D))
        # A level of the key has the same level of the member in all its patterns.
        of_member = np.empty(L, dtype=int)
        of_member[of_level.ravel()] = member.level
        inner = member._replace(level=of_member)
        return self.noise * A - inner.total(lost), self.noise * r - inner.total(lost_r)


def at_patterns(member: Member, levels: LevelMoments) -> LevelMoments:
    """Return what a member adds to its patterns: x φ, and x² times its covariance."""
    x = member.x
    if member.level is not None:
        levels = levels.at(member.level)
    return LevelMoments(x * levels.mean, None if levels.cov is None else x**2 * levels.cov)


def conditional(
    A: np.ndarray, r: np.ndarray, noise: float, precision: np.ndarray,
    group_mean: np.ndarray | None = None, rng: np.random.Generator | None = None,
) -> Levels:  # fmt: skip
    """Return the distribution of the levels, given `noise`, the precision α of a row.

    If no mean of the group is given, it is drawn with the levels integrated out; without `rng`, it
    is the most probable one.
    """
    L = r.shape[1]
    factors = factorised(A, r, noise, precision)
    if group_mean is None:
        spread = np.diag(precision * (L + MEAN_WEIGHT))
        spread -= precision[:, None] * factors.spread * precision
        root = np.linalg.cholesky(spread)
        half_mean = np.linalg.solve(root, precision * factors.pull)
        if rng is not None:
            half_mean += rng.standard_normal(len(half_mean))
        group_mean = np.linalg.solve(root.T, half_mean)
    mean = solved(factors.factor, noise * r + (precision * group_mean)[:, None])
    return Levels(mean, factors.factor, group_mean)


class Gamma(NamedTuple):
    """A gamma distribution of precisions."""

    shape: np.ndarray | float
    rate: np.ndarray | float

    @property
    def mean(self) -> np.ndarray:
        """The mean precision."""
        return np.asarray(self.shape / self.rate)

    @property
    def mean_log(self) -> np.ndarray:
        """The mean of the logarithm."""
        return np.asarray(digamma(self.shape) - np.log(self.rate))

    def divergence(self, prior: "Gamma") -> float:
        """Return the Kullback–Leibler divergence from a prior, summed."""
        a, b, a0, b0 = self.shape, self.rate, prior.shape, prior.rate
        gap = (a - a0) * digamma(a) - gammaln(a) + gammaln(a0) + a0 * np.log(b / b0)
        return float(np.sum(gap + a * (b0 / b - 1)))


def precision_given(levels: int, square: np.ndarray, group_mean: np.ndarray) -> Gamma:
    """Return the distribution of a group's precisions; `square` (K,) is Σ E(φ − μ)²."""
    rate = RATE + (square + MEAN_WEIGHT * group_mean**2) / 2
    return Gamma(SHAPE + (levels + 1) / 2, rate)


def noise_given(n: float, squared_error: float) -> Gamma:
    """Return the distribution of the precision of a row."""
    return Gamma(NOISE_SHAPE + n / 2, NOISE_RATE + max(squared_error, 0.0) / 2)
