r"""The Gaussian posterior of the levels of a field, given all else.

Levels are :math:`\varphi_l = (w_l, v_l) \sim N(\mu, \Lambda^{-1})`, with a mean and a precision per
group and component. Given all else they are independent, each a ridge regression in
:math:`K = k + 1` unknowns,

.. math:: \varphi_l \sim N(P_l^{-1}(\alpha r_l + \Lambda\mu),\; P_l^{-1}),
          \qquad P_l = \alpha A_l + \Lambda,

and :math:`\mu` is drawn or solved for with the levels integrated out. Sampling and variational
inference differ in one thing: whether the rest has a covariance. All arrays keep the levels last.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import digamma, gammaln

from quadlin.solve.fields.field_rows import Member
from quadlin.solve.fields.field_sums import LevelMoments, Statistics

MEAN_WEIGHT = 1.0  # the prior of a group's mean counts as one level at zero
SHAPE, RATE = 0.5, 0.05  # of the gamma prior of a precision, in units of the target's variance
NOISE_SHAPE, NOISE_RATE = 1e-3, 1e-9


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
        cov: np.ndarray = np.einsum("cal,cbl->abl", self.factor, self.factor)
        return cov

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return a draw of every level (K, L)."""
        z = rng.standard_normal(self.mean.shape)
        return np.asarray(self.mean + np.einsum("cal,cl->al", self.factor, z))


def evidence(stats: Statistics, rest: np.ndarray, member: Member) -> tuple[np.ndarray, np.ndarray]:
    """Return A (K, K, L) and r (K, L) of the levels; `rest` (K, m) is the entity without them.

    All are of the patterns that have the member: θ = rest + x φ, so that A = Σ x²G and
    r = Σ x(h − G rest) over the patterns of a level.
    """
    r = stats.h - np.einsum("abp,bp->ap", stats.G, rest)
    return member.total(member.x**2 * stats.G), member.total(member.x * r)


def marginal(stats: Statistics, noise: float, precision: np.ndarray) -> Statistics:
    """Return what the rows say about the rest of an entity, its key's levels integrated out.

    A key's level takes up most of what the other members of its pattern could say. Given it, they
    would hardly move; without it, G becomes Λ − ΛP⁻¹Λ and h becomes αΛP⁻¹h, at noise one.
    """
    P = noise * stats.G
    P[np.arange(len(P)), np.arange(len(P))] += precision[:, None]
    factor = inverse_cholesky(P)
    scaled = factor * precision[:, None]
    G = -np.einsum("cal,cbl->abl", scaled, scaled)
    G[np.arange(len(P)), np.arange(len(P))] += precision[:, None]
    half = np.einsum("abl,bl->al", factor, noise * stats.h)
    return Statistics(G, np.einsum("cal,cl->al", scaled, half), stats.rest)


class MarginalEvidence:
    """What the rows say about a member at noise one, the key of its entity integrated out."""

    def __init__(
        self, stats: Statistics, key: Member, noise: float, precision: np.ndarray, mean: np.ndarray
    ) -> None:
        self.stats, self.key, self.noise = stats, key, noise
        self.precision, self.mean = precision, mean
        self._marginal: Statistics | None = None

    def of(self, member: Member, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return A and r; `rest` (K, p) is the entity without the member and without the key."""
        if self.key.level is not None:
            args = (self.key, self.noise, self.precision, self.mean)
            return shared_evidence(self.stats, rest, member, *args)
        if self._marginal is None:
            self._marginal = marginal(self.stats, self.noise, self.precision)
        rest = rest[:, member.where] + self.mean[:, None]
        return evidence(self._marginal.at(member.where), rest, member)


def shared_evidence(
    stats: Statistics, rest: np.ndarray, member: Member, key: Member, noise: float,
    precision: np.ndarray, mean: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    r"""Return A and r of a member at noise one, where levels of the key have several patterns.

    The key is integrated out: with :math:`P_l = \alpha \sum G_p + \Lambda`,
    :math:`B_l = \alpha \sum x_p G_p` and
    :math:`D_l = \alpha \sum (h_p - G_p\,\text{rest}_p) + \Lambda\mu` over the patterns of a level l
    of the key,

    .. math:: A = \alpha \sum x_p^2 G_p - \sum_l B_l P_l^{-1} B_l, \qquad
              r = \alpha \sum x_p (h_p - G_p\,\text{rest}_p) - \sum_l B_l P_l^{-1} D_l.

    `rest` (K, p) is the entity without the member and without the key.
    """
    assert key.level is not None
    where, K = member.where, len(precision)
    its = key.level[where]
    levels, of_level = np.unique(its, return_inverse=True)
    at = np.flatnonzero(np.isin(key.level, levels))  # the other patterns of these levels too
    all_of_level = np.searchsorted(levels, key.level[at])
    gap = noise * (stats.h[:, at] - np.einsum("abp,bp->ap", stats.G[:, :, at], rest[:, at]))
    D = _summed(gap, all_of_level, len(levels)) + (precision * mean)[:, None]
    P = _summed(noise * stats.G[:, :, at], all_of_level, len(levels))
    P[np.arange(K), np.arange(K)] += precision[:, None]
    B = _summed(noise * member.x * stats.G[:, :, where], of_level.ravel(), len(levels))
    factor = inverse_cholesky(P)
    half = np.einsum("abl,bcl->acl", factor, B)  # L⁻¹B, so that BP⁻¹B is its square
    A, r = evidence(stats.at(where), rest[:, where], member)
    lost = np.einsum("bal,bcl->acl", half, half)
    lost_r = np.einsum("bal,bl->al", half, np.einsum("abl,bl->al", factor, D))
    if member.is_field:
        assert member.level is not None
        of_member = np.empty(len(levels), dtype=int)
        of_member[of_level.ravel()] = member.level
        L = len(member.columns)
        return (
            noise * A - _summed(lost, of_member, L),
            noise * r - _summed(lost_r, of_member, L),
        )
    return noise * A - lost.sum(axis=-1, keepdims=True), noise * r - lost_r.sum(
        axis=-1, keepdims=True
    )


def _summed(values: np.ndarray, group: np.ndarray, size: int) -> np.ndarray:
    """Return the sums of (…, m) over the members of each of `size` groups (…, size)."""
    m = len(group)
    selection = csr_matrix((np.ones(m), (group, np.arange(m))), shape=(size, m))
    return np.asarray(selection @ values.reshape(-1, m).T).T.reshape(*values.shape[:-1], size)


def at_patterns(member: Member, levels: LevelMoments) -> LevelMoments:
    """Return what the levels of a member are to its patterns: x φ and x² times its covariance."""
    x = member.x
    if member.level is not None:
        levels = levels.at(member.level)
    return LevelMoments(x * levels.mean, None if levels.cov is None else x**2 * levels.cov)


def conditional(
    A: np.ndarray, r: np.ndarray, noise: float, precision: np.ndarray,
    group_mean: np.ndarray | None = None, rng: np.random.Generator | None = None,
) -> Levels:  # fmt: skip
    """Return the distribution of the levels, given `noise`, the precision α of a row.

    Where no mean of the group is given, it is drawn with the levels integrated out, or without
    `rng` the most probable one is taken.
    """
    K, L = r.shape
    P = noise * A
    P[np.arange(K), np.arange(K)] += precision[:, None]
    factor = inverse_cholesky(P)
    half = np.einsum("abl,bl->al", factor, noise * r)
    if group_mean is None:
        flat = factor.transpose(1, 0, 2).reshape(K, -1)
        spread = np.diag(precision * (L + MEAN_WEIGHT))
        spread -= precision[:, None] * (flat @ flat.T) * precision
        rhs = precision * (flat @ half.ravel())
        root = np.linalg.cholesky(spread)
        half_mean = np.linalg.solve(root, rhs)
        if rng is not None:
            half_mean += rng.standard_normal(K)
        group_mean = np.linalg.solve(root.T, half_mean)
    half += np.einsum("abl,b->al", factor, precision * group_mean)
    return Levels(np.einsum("cal,cl->al", factor, half), factor, group_mean)


def inverse_cholesky(P: np.ndarray) -> np.ndarray:
    """Return inverses of the Cholesky factors of positive definite matrices (K, K, L)."""
    K = len(P)
    factor = P.copy()
    inverse = np.zeros_like(P)
    for j in range(K):
        column = factor[j:, j]
        column /= np.sqrt(column[0])
        for i in range(j + 1, K):
            factor[i, j + 1 : i + 1] -= column[i - j] * column[1 : i - j + 1]
    for j in range(K):
        row = inverse[j, : j + 1]
        row[j] = 1
        for i in range(j):
            row[: i + 1] -= factor[j, i] * inverse[i, : i + 1]
        row /= factor[j, j]
    return inverse


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
