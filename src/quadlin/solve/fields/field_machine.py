"""A factorization machine on fields under inference: sampled, or by its variational posterior.

Both walk the same conditionals, field by field. A sampler draws from each and goes on with the
numbers; variational inference goes on with means and covariances: each level has a normal
distribution with a (k + 1)×(k + 1) covariance, independent of all others, and precisions and noise
have gamma distributions. The bound of the log evidence rises with every update. Components that the
rows do not need are shrunk to nothing, so that the rank is an upper bound.

A sweep costs O((number of pairs of levels that meet)·k² + levels·k³) where all columns are
functions of two fields, else O(n·k²) per field. Memory: O(levels·k²) beside the rows.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from quadlin.solve.fields.field_rows import Entity, FieldRows, Member
from quadlin.solve.fields.field_sums import LevelMoments, Statistics, squared_error, statistics
from quadlin.solve.fields.level_posterior import (
    MEAN_WEIGHT,
    NOISE_RATE,
    NOISE_SHAPE,
    RATE,
    SHAPE,
    Gamma,
    Levels,
    MarginalEvidence,
    at_patterns,
    conditional,
    evidence,
    noise_given,
    precision_given,
)
from quadlin.solve.fields.level_systems import solved

FAINTEST = 1e-8  # precision: draws of rows that together weigh less than one may be 0 otherwise
START = 0.1  # standard deviation of the factors at the start
LOG_2PI = float(np.log(2 * np.pi))


class Sweep(NamedTuple):
    """One line of the history."""

    sweep: int
    loss: float  # mean squared error on the training rows: of this draw, or expected
    noise: float  # standard deviation of the noise
    bound: float = np.nan  # of the log evidence, where inference is variational


class FieldMachine:
    """The state of inference: levels, means and precisions of groups, noise."""

    held_precision = 4.0  # of factors at the start, in units of the target's variance
    intercept_precision = 0.0  # of the prior of b, which has mean 0

    def __init__(
        self, rows: FieldRows, signs: np.ndarray, rng: np.random.Generator, sampled: bool
    ) -> None:
        self.rows, self.signs, self.rng = rows, np.asarray(signs, dtype=float), rng
        self.sampled = sampled
        K = len(signs) + 1
        self.b, self.noise, self.error = 0.0, Gamma(1.0, 1.0), rows.n
        self.means = np.zeros((rows.n_groups, K))
        self.precisions = [Gamma(1.0, np.full(K, 0.1)) for _ in range(rows.n_groups)]
        start = np.concatenate([[0.0], np.full(K - 1, START)])[:, None]

        def levels(L: int) -> LevelMoments:
            cov = None if sampled else np.zeros((K, K, L))
            return LevelMoments(start * rng.standard_normal((K, L)), cov)

        self.levels = [
            [levels(len(member.columns)) for member in entity.members] for entity in rows.entities
        ]
        self.centre = np.zeros((K, 0))  # mean, given all else, of the key's levels drawn last
        self.entropy: dict[int, float] = {}  # of the levels of each member, by its first column
        self.state = [self._patterns(e, entity.members) for e, entity in enumerate(rows.entities)]

    @property
    def n(self) -> float:
        """The number of rows."""
        return self.rows.n

    def members(self) -> Iterator[tuple[Member, LevelMoments]]:
        """Yield the members of all entities with their levels."""
        for entity, levels in zip(self.rows.entities, self.levels, strict=True):
            yield from zip(entity.members, levels, strict=True)

    def statistics(self, e: int) -> Statistics:
        """Return what the rows say about an entity, given the others."""
        return statistics(self.rows, e, self.state, self.signs, self.b)

    def start_sampling(self) -> None:
        """Go on as a sampler from the means of the variational posterior."""
        self.sampled = True
        self.levels = [[LevelMoments(levels.mean) for levels in group] for group in self.levels]
        self.state = [LevelMoments(theta.mean) for theta in self.state]

    def stop_sampling(self) -> None:
        """Go on by variational inference from the last draw."""
        self.sampled = False

        def certain(levels: LevelMoments) -> LevelMoments:
            K, L = levels.mean.shape
            return LevelMoments(levels.mean, np.zeros((K, K, L)))

        self.levels = [[certain(levels) for levels in members] for members in self.levels]
        self.state = [certain(theta) for theta in self.state]

    def hold_factors(self) -> None:
        """Fix the precision of the factors until the next sweep ends."""
        for group, gamma in enumerate(self.precisions):
            mean = np.append(gamma.mean[0], np.full(len(self.signs), self.held_precision))
            self.precisions[group] = Gamma(gamma.shape, gamma.shape / mean)

    def line(self, number: int) -> Sweep:
        """Return the line of the history after a sweep."""
        rows, noise = self.rows, self.rows.scale / np.sqrt(float(self.noise.mean))
        bound = np.nan if self.sampled else self.bound()
        return Sweep(number, rows.scale**2 * self.error / self.n, noise, bound)

    def sweep(self) -> None:
        """Update every unknown once, given the others."""
        for e, entity in enumerate(self.rows.entities):
            stats = self.statistics(e)
            self._update_entity(e, entity, stats)
            self.error = squared_error(stats, self.state[e])
            along = float(np.vdot(stats.G[0], self.state[e].mean))
            self._update_intercept(float(stats.h[0].sum()) - along)
        for group in range(self.rows.n_groups):
            levels, square = self._spread(group)
            self.precisions[group] = self._or_draw(
                precision_given(levels, square, self.means[group])
            )
        self.noise = self._or_draw(noise_given(self.n, self.error))

    def _or_draw(self, gamma: Gamma) -> Gamma:
        """Return the distribution itself, or a draw as one whose mean it is."""
        if not self.sampled:
            return gamma
        draw = np.maximum(self.rng.gamma(gamma.shape, 1 / np.asarray(gamma.rate)), FAINTEST)
        return Gamma(gamma.shape, gamma.shape / draw)

    def _settled(
        self, levels: Levels, first: int, deviation: np.ndarray | None = None
    ) -> LevelMoments:
        """Return the distribution of the levels, or a draw."""
        if self.sampled:
            return LevelMoments(levels.draw(self.rng, deviation))
        self.entropy[first] = (levels.log_determinant + levels.mean.size * (1 + LOG_2PI)) / 2
        return LevelMoments(levels.mean, levels.cov)

    def _update_entity(self, e: int, entity: Entity, stats: Statistics) -> None:
        """Update the levels of one entity: the members of a pattern first, its key last."""
        noise, key = float(self.noise.mean), entity.members[-1]
        precision = self.precisions[key.group].mean
        rng = self.rng if self.sampled else None
        theta, single = self._patterns(e, entity.members[:-1]), None
        A, r = evidence(stats, theta.mean, key)
        r_before = r  # beside the other members as they were
        without_key = MarginalEvidence(stats, key, noise, precision, self.means[key.group])
        for i, member in enumerate(entity.members[:-1]):
            group, where = member.group, member.where
            rest = theta.mean[:, where] - at_patterns(member, self.levels[e][i]).mean
            theta.mean[:, where] = rest
            A, r = without_key.of(member, theta.mean)
            mean = None if member.is_field else self.means[group]
            levels = conditional(A, r, 1.0, self.precisions[group].mean, mean, rng)
            if not self.sampled:  # means are those of both, covariances of each given the other
                A, r = evidence(stats, rest, member)
                given = conditional(A, r, noise, self.precisions[group].mean, levels.group_mean)
                levels = levels._replace(factor=given.factor)
            self.levels[e][i] = self._settled(levels, int(member.columns[0]))
            theta.mean[:, where] = rest + at_patterns(member, self.levels[e][i]).mean
            self.means[group] = levels.group_mean
            single = single if member.is_field else group
        if single is not None:
            self._update_mean(single)
        if len(entity.members) > 1:
            A, r = evidence(stats, theta.mean, key)
        levels, deviation = conditional(A, r, noise, precision, None, rng), None
        if self.sampled:  # from the mean given what has just been drawn anew: independent of that
            pull = noise * r_before + (precision * self.means[key.group])[:, None]
            deviation = self.levels[e][-1].mean - solved(levels.factor, pull)
        self.levels[e][-1] = self._settled(levels, int(key.columns[0]), deviation)
        self.means[key.group] = levels.group_mean
        self.centre = levels.mean
        self.state[e] = self._patterns(e, entity.members)

    def _patterns(self, e: int, members: Sequence[Member]) -> LevelMoments:
        """Return (ω, t) of the patterns of an entity, by its first members."""
        K, size = len(self.signs) + 1, self.rows.entities[e].size
        theta = LevelMoments(np.zeros((K, size)), None if self.sampled else np.zeros((K, K, size)))
        for member, levels in zip(members, self.levels[e], strict=False):
            part = at_patterns(member, levels)
            theta.mean[:, member.where] += part.mean
            if theta.cov is not None:
                theta.cov[:, :, member.where] += part.cov
        return theta

    def _update_intercept(self, residual: float) -> None:
        """Update b; `residual` is the sum over the rows."""
        n, prior = self.rows.n, self.intercept_precision
        step = (residual - prior * self.b) / (n + prior)
        if self.sampled:
            step += self.rng.standard_normal() / np.sqrt(float(self.noise.mean) * (n + prior))
        self.b += step
        self.error += n * step**2 - 2 * step * residual

    def _update_mean(self, group: int) -> None:
        """Update the mean of a group whose levels were updated one by one."""
        levels = self._levels_of(group)
        weight = MEAN_WEIGHT + sum(part.mean.shape[1] for part in levels)
        mean = sum(part.mean.sum(axis=1) for part in levels) / weight
        if self.sampled:
            spread = 1 / np.sqrt(self.precisions[group].mean * weight)
            mean = mean + spread * self.rng.standard_normal(len(spread))
        self.means[group] = mean

    def _levels_of(self, group: int) -> list[LevelMoments]:
        """Return the levels of a group, member by member."""
        return [levels for member, levels in self.members() if member.group == group]

    def _spread(self, group: int) -> tuple[int, np.ndarray]:
        """Return the number of levels of a group and Σ E(φ − μ)² per component."""
        count, square = 0, np.zeros(len(self.signs) + 1)
        for part in self._levels_of(group):
            count += part.mean.shape[1]
            square += np.sum((part.mean - self.means[group][:, None]) ** 2, axis=1)
            if part.cov is not None:
                square += np.einsum("aal->a", part.cov)
        return count, square

    def bound(self) -> float:
        """Return the lower bound of the log evidence, where inference is variational."""
        value = self._rows_bound() + sum(self.entropy.values())
        for group in range(self.rows.n_groups):
            count, square = self._spread(group)
            precision = self.precisions[group]
            square = square + MEAN_WEIGHT * self.means[group] ** 2
            logs = precision.mean_log - LOG_2PI
            value += float(np.sum((count + 1) * logs - precision.mean * square)) / 2
            value -= precision.divergence(Gamma(SHAPE, RATE))
        return value

    def _rows_bound(self) -> float:
        """Return the part of the bound that is due to the rows and their noise."""
        noise, error = self.noise, float(self.noise.mean) * self.error
        value = self.n * (float(noise.mean_log) - LOG_2PI) - error
        return value / 2 - noise.divergence(Gamma(NOISE_SHAPE, NOISE_RATE))

    def table(self, fields: Sequence[np.ndarray]) -> tuple[float, np.ndarray]:
        """Return b and (w, v) of each column (d + fields, K), in the target's units.

        The last rows are the means of the fields, which stand for levels that were never seen.
        """
        rows = self.rows
        table = np.zeros((rows.n_columns + len(fields), len(self.signs) + 1))
        for member, levels in self.members():
            table[member.columns] = levels.mean.T
        for row, group in self._unseen(fields):
            table[row] = self.means[group]
        return rows.shift + rows.scale * self.b, table * self._units()

    def _unseen(self, fields: Sequence[np.ndarray]) -> Iterator[tuple[int, int]]:
        """Yield the row of the table and the group of an unseen level of each field."""
        of_first = {int(field[0]): i for i, field in enumerate(fields, self.rows.n_columns)}
        for member, _ in self.members():
            if int(member.columns[0]) in of_first:
                yield of_first[int(member.columns[0])], member.group

    def _units(self) -> np.ndarray:
        """Return what turns (w, v) into the target's units (K,)."""
        units = np.full(len(self.signs) + 1, np.sqrt(self.rows.scale))
        units[0] = self.rows.scale
        return units

    def with_unseen(self, table: np.ndarray, fields: Sequence[np.ndarray]) -> np.ndarray:
        """Return a table of draws in which a level of each field that was never seen is drawn too.

        It has the spread of the levels of its field, which the mean of the field lacks.
        """
        drawn = table.copy()
        for row, group in self._unseen(fields):
            spread = self._units() / np.sqrt(self.precisions[group].mean)
            drawn[row] += spread * self.rng.standard_normal(len(spread))
        return drawn

    def centred(self, table: np.ndarray) -> np.ndarray:
        """Return a table of draws with the key's levels drawn last at their mean, given all else.

        Levels without rows are at the mean of their field. Predictions have the same expectation
        and vary less from draw to draw.
        """
        rows, centred = self.rows, table.copy()
        centred[rows.entities[-1].members[-1].columns] = self.centre.T * self._units()
        for entity in rows.entities:
            key = entity.members[-1]
            centred[key.columns[entity.unseen]] = self.means[key.group] * self._units()
        return centred
