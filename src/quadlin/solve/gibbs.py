r"""Posterior draws of a factorization machine on one-hot fields, by Gibbs sampling.

.. math:: y = b + x^\top w + \sum_{i < j} \langle v_i, v_j \rangle_s\, x_i x_j + \text{noise},
          \qquad \langle v_i, v_j \rangle_s = \sum_a s_a v_{ia} v_{ja}.

All levels of a field are independent given the rest, so a sweep is one pass per field of
(k + 1)×(k + 1) systems. Predictions are means over draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, hstack

from quadlin.solve.field_rows import (
    Entity,
    FieldRows,
    Moments,
    Statistics,
    field_rows,
    joined,
    squared_error,
    statistics,
)
from quadlin.solve.level_posterior import (
    MEAN_WEIGHT,
    conditional,
    evidence,
    noise_given,
    precision_given,
    with_levels,
)

BYTES = 2**28  # most memory that the kept draws may take
PREDICTIONS = 2**22  # numbers of a block of predictions: rows × (rank + 1) × draws


class Sweep(NamedTuple):
    """One line of the history."""

    sweep: int
    loss: float  # mean squared error of this draw on the training rows
    noise: float  # standard deviation of the noise
    bound: float = np.nan  # of the log evidence, where there is one


@dataclass(frozen=True)
class Draws:
    """Draws of a factorization machine, after those of burn-in, and how they came about."""

    intercepts: np.ndarray  # (S,)
    coefs: np.ndarray  # (S, d + fields), float32; the last are of levels that were never seen
    factors: np.ndarray  # (S, d + fields, k), float32
    signs: np.ndarray  # (k,)
    noises: np.ndarray  # (S,), standard deviations
    fields: tuple[np.ndarray, ...]
    history: tuple[Sweep, ...]

    @property
    def noise(self) -> float:
        """The standard deviation of the noise."""
        return float(np.sqrt(np.mean(self.noises**2)))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the posterior mean of new rows, and if asked for the predictive deviation.

        A row that has no level of a field counts as one of a level that was never seen.
        """
        X = with_unseen(X, self.fields)
        mean, std = np.empty(X.shape[0]), np.empty(X.shape[0])
        S, d, k = self.factors.shape
        tables = np.concatenate([self.coefs[:, :, None], self.factors], axis=2)
        squares = ((self.factors**2) @ self.signs.astype(np.float32)).T  # (d, S)
        flat = np.ascontiguousarray(tables.transpose(1, 0, 2)).reshape(d, -1)
        step = max(1, PREDICTIONS // flat.shape[1])
        for start in range(0, X.shape[0], step):
            rows = X[start : start + step]
            products = (rows @ flat).reshape(-1, S, k + 1)
            quadratic = (products[:, :, 1:] ** 2) @ self.signs.astype(np.float32)
            f = products[:, :, 0] + (quadratic - rows.multiply(rows) @ squares) / 2
            f = f + self.intercepts
            mean[start : start + step] = f.mean(axis=1)
            std[start : start + step] = np.sqrt(f.var(axis=1) + self.noise**2)
        return (mean, std) if return_std else mean


def with_unseen(X: Any, fields: Sequence[np.ndarray]) -> csr_matrix:
    """Return the rows with a column per field that is 1 where a row has no level of it."""
    X = csr_matrix(X, dtype=np.float32)
    if not len(fields):
        return X
    missing = [1 - np.asarray(X[:, field].sum(axis=1)) for field in fields]
    return csr_matrix(hstack([X, csr_matrix(np.concatenate(missing, axis=1))]))


def default_signs(rows: FieldRows, rank: int) -> np.ndarray:
    """Return +1 where signs do not matter, between two entities, else both signs in turn."""
    alike = len(rows.entities) == 2 and not rows.loose
    return np.ones(rank) if alike else np.where(np.arange(rank) % 2, -1.0, 1.0)


def sample(
    X: Any,
    y: np.ndarray,
    fields: Sequence[np.ndarray],
    rank: int,
    *,
    weight: np.ndarray | None = None,
    signs: np.ndarray | None = None,
    draws: int = 100,
    burn_in: int = 20,
    seed: Any = None,
    max_bytes: int = BYTES,
) -> Draws:
    """Draw factorization machines from their posterior, given the rows.

    Parameters
    ----------
    X : CSR matrix or array (n, d)
        Rows. Numeric columns should have a scale near one.
    y : array (n,)
        Targets.
    fields : sequence of int array
        The columns of each one-hot field; every row has exactly one level of each.
    rank : int
        Number of components.
    weight : array (n,) or None
        Repetitions of each row.
    signs : array (rank,) or None
        Sign of each component. By default +1 where they do not matter, else +1 and −1 in turn.
    draws, burn_in : int
        Sweeps that are kept and sweeps before them. Of the kept ones, only as many evenly spaced
        ones as fit into `max_bytes` are stored.
    seed : None, int or Generator
        Of the random numbers.
    max_bytes : int
        Most memory of the stored draws, 4·(d + fields)·(rank + 1) bytes each.

    Returns
    -------
    Draws

    Notes
    -----
    A sweep costs O((number of pairs of levels that meet)·k² + levels·k³) where all columns are
    functions of two fields, else O(n·k²) per field.
    """
    rows = field_rows(X, y, fields, weight)
    rng = np.random.default_rng(seed)
    chain = Chain(rows, default_signs(rows, rank) if signs is None else signs, rng)
    size = 4 * (rows.n_columns + len(fields)) * (rank + 1)
    stride = -(-draws // max(1, min(draws, max_bytes // size)))
    kept, history = [], []
    for t in range(burn_in + draws):
        chain.sweep()
        noise = rows.scale / np.sqrt(chain.noise)
        history.append(Sweep(t + 1, rows.scale**2 * chain.error / rows.n, noise))
        if t >= burn_in and (t - burn_in) % stride == stride - 1:
            kept.append((*chain.table(fields), noise))
    b, w, V, noises = zip(*kept, strict=True)
    return Draws(
        np.array(b), np.array(w), np.array(V), chain.signs, np.array(noises),
        tuple(np.asarray(field) for field in fields), tuple(history),
    )  # fmt: skip


class Chain:
    """The state of a Gibbs sampler: levels, means and precisions of groups, noise."""

    def __init__(self, rows: FieldRows, signs: np.ndarray, rng: np.random.Generator) -> None:
        self.rows, self.signs, self.rng = rows, np.asarray(signs, dtype=float), rng
        K = len(signs) + 1
        self.b, self.noise, self.error = 0.0, 1.0, rows.n
        self.means = np.zeros((rows.n_groups, K))
        self.precisions = np.full((rows.n_groups, K), 10.0)
        start = np.concatenate([[0.0], np.full(K - 1, 0.1)])[:, None]
        self.levels = [
            [start * rng.standard_normal((K, len(m.columns))) for m in entity.members]
            for entity in rows.entities
        ]
        self.loose = start * rng.standard_normal((K, len(rows.loose)))
        self.state = [self._patterns(e) for e in range(len(rows.entities))]

    def sweep(self) -> None:
        """Draw every unknown once, given the others."""
        loose = self._loose_part()
        for e, entity in enumerate(self.rows.entities):
            stats = statistics(self.rows, e, self.state, self.signs, self.b, loose)
            self._draw_entity(e, entity, stats)
            self.error = squared_error(stats, self.state[e])
            theta = self.state[e].mean
            self._draw_intercept(float(np.sum(stats.h[0] - np.sum(stats.G[0] * theta, axis=0))))
        if loose is not None:
            self._draw_loose(loose)
        for group in range(self.rows.n_groups):
            levels = self._levels_of(group)
            square = np.sum((levels - self.means[group][:, None]) ** 2, axis=1)
            gamma = precision_given(levels.shape[1], square, self.means[group])
            self.precisions[group] = self.rng.gamma(gamma.shape, 1 / np.asarray(gamma.rate))
        gamma = noise_given(self.rows.n, self.error)
        self.noise = self.rng.gamma(gamma.shape, 1 / gamma.rate)

    def _draw_entity(self, e: int, entity: Entity, stats: Statistics) -> None:
        """Draw the levels of one entity, member by member, and the means of their groups."""
        for i, member in enumerate(entity.members):
            A, r = stats.G, stats.h
            if len(entity.members) > 1:
                A, r = evidence(stats, self._patterns(e, i), member, self.signs)
            group, alone = member.group, len(member.columns) > 1
            levels = conditional(
                A, r, self.noise, self.precisions[group],
                None if alone else self.means[group], self.rng,
            )  # fmt: skip
            self.levels[e][i] = levels.draw(self.rng)
            if alone:
                self.means[group] = levels.group_mean
        if not alone:
            self._draw_mean(group)
        self.state[e] = self._patterns(e)

    def _draw_intercept(self, residual: float) -> None:
        """Draw b; `residual` is the sum over the rows."""
        n = self.rows.n
        step = residual / n + self.rng.standard_normal() / np.sqrt(self.noise * n)
        self.b += step
        self.error += n * step**2 - 2 * step * residual

    def _draw_mean(self, group: int) -> None:
        """Draw the mean of a group whose levels were drawn one by one."""
        levels, weight = self._levels_of(group), MEAN_WEIGHT
        weight += levels.shape[1]
        spread = 1 / np.sqrt(self.precisions[group] * weight)
        noise = self.rng.standard_normal(len(spread))
        self.means[group] = levels.sum(axis=1) / weight + spread * noise

    def _draw_loose(self, part: np.ndarray) -> None:
        """Draw the columns that are a function of no field, one by one, from the rows."""
        rows, group = self.rows, self.rows.n_groups - 1
        parts = [s.mean[:, e.of_row] for s, e in zip(self.state, rows.entities, strict=True)]
        total, cross = joined([*parts, part], self.signs)
        error = rows.y - self.b - total[0] - cross
        for j in range(len(rows.loose)):
            at = slice(rows.values.indptr[j], rows.values.indptr[j + 1])
            where, x = rows.values.indices[at], rows.values.data[at]
            phi = self.loose[:, j]
            total[1:, where] -= x * phi[1:, None]
            design = np.concatenate([x[None], x * self.signs[:, None] * total[1:, where]])
            error[where] += phi @ design
            weighted = design * rows.weight[where]
            levels = conditional(
                (weighted @ design.T)[:, :, None], (weighted @ error[where])[:, None],
                self.noise, self.precisions[group], self.means[group],
            )  # fmt: skip
            phi = levels.draw(self.rng)[:, 0]
            self.loose[:, j] = phi
            error[where] -= phi @ design
            total[1:, where] += x * phi[1:, None]
        self._draw_mean(group)
        self.error = float(rows.weight @ error**2)
        self._draw_intercept(float(rows.weight @ error))

    def _loose_part(self) -> np.ndarray | None:
        """Return (ω, t) of the loose columns for each row."""
        if not self.rows.loose:
            return None
        X, signs = self.rows.values, self.signs[:, None]
        part = np.asarray(X.T @ self.loose.T).T
        squares = X.multiply(X).T @ np.sum(signs * self.loose[1:] ** 2, axis=0)
        part[0] += (np.sum(signs * part[1:] ** 2, axis=0) - squares) / 2
        return part

    def _patterns(self, e: int, without: int | None = None) -> Moments:
        """Return (ω, t) of the patterns of an entity, one member left out if asked for."""
        entity = self.rows.entities[e]
        theta = Moments(np.zeros((len(self.signs) + 1, entity.size)), None)
        for i, member in enumerate(entity.members):
            if i != without:
                theta = with_levels(theta, member, Moments(self.levels[e][i], None), self.signs)
        return theta

    def _levels_of(self, group: int) -> np.ndarray:
        """Return the levels of a group (K, L)."""
        own = [
            levels
            for entity, drawn in zip(self.rows.entities, self.levels, strict=True)
            for member, levels in zip(entity.members, drawn, strict=True)
            if member.group == group
        ]
        return np.concatenate(own, axis=1) if own else self.loose

    def table(self, fields: Sequence[np.ndarray]) -> tuple[float, np.ndarray, np.ndarray]:
        """Return b, w (d + fields,) and V (d + fields, k) of this draw, in the target's units."""
        rows = self.rows
        d, K = rows.n_columns, len(self.signs) + 1
        table = np.zeros((d + len(fields), K), dtype=np.float32)
        of_first = {int(field[0]): d + i for i, field in enumerate(fields)}
        for entity, drawn in zip(rows.entities, self.levels, strict=True):
            for member, levels in zip(entity.members, drawn, strict=True):
                table[member.columns] = levels.T
                if int(member.columns[0]) in of_first:
                    table[of_first[int(member.columns[0])]] = self.means[member.group]
        table[list(rows.loose)] = self.loose.T
        scale = np.float32(rows.scale)
        b = rows.shift + rows.scale * self.b
        return b, scale * table[:, 0], np.sqrt(scale) * table[:, 1:]
