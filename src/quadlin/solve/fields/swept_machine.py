r"""A factorization machine on groups of columns under inference: sampled, or variational.

The unknowns :math:`\theta_j` of the columns of group g are :math:`N(\mu_g, 1/\lambda_g)`, with a
mean and a precision per component; :math:`\mu_g` counts as one more column around zero. Labels 0
and 1 are the signs of :math:`z = f + N(0, 1)`, so that z takes the place of y (probit).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from quadlin.core.sweeps import Columns, Point

SHAPE, RATE = 0.5, 0.05  # of the gamma prior of precisions, for targets of variance one
NOISE_SHAPE, NOISE_RATE = 1e-3, 1e-9  # of the precision of the noise
START = 0.1  # standard deviation of factors before the first sweep
EXPLORED = 30  # sampled sweeps: the bound alone has a local optimum without products
HELD = 5  # of these, with factors of a fixed size, which cannot vanish yet
HELD_PRECISION = 4.0  # of such factors
REFINED = 15  # variational sweeps at most: the optimum of the bound overfits where rows are few
LOG_ODDS = 1.702  # log-odds per standard deviation: Φ(f) is about 1/(1 + exp(−1.702 f))


class Evidence(NamedTuple):
    """What earlier rows say about each column: precisions, and precisions times means."""

    prior: np.ndarray  # (d, K, K)
    pull: np.ndarray  # (d, K)


@dataclass
class Priors:
    """The learned distribution of the columns of each group, of the noise, and b."""

    mean: np.ndarray  # (groups, K)
    precision: np.ndarray  # (groups, K)
    noise: float
    intercept: float


class Machine:
    """Groups of columns with targets of variance one, or labels 0 and 1."""

    def __init__(
        self,
        columns: Columns,
        y: np.ndarray,
        weight: np.ndarray | None,
        signs: np.ndarray,
        rng: np.random.Generator,
        labels: bool = False,
        priors: Priors | None = None,
        evidence: Evidence | None = None,
        table: np.ndarray | None = None,
    ) -> None:
        self.columns, self.rng, self.labels, K = columns, rng, labels, len(signs) + 1
        self.weight = None if weight is None else np.ascontiguousarray(weight, dtype=np.float64)
        self.n = float(columns.n if self.weight is None else self.weight.sum())
        self.target = np.asarray(y, dtype=np.float64)
        self.sign = 2 * self.target - 1  # of labels
        groups = len(columns.bounds) - 1
        if priors is None:
            share = np.clip(np.average(self.target, weights=self.weight), 1e-3, 1 - 1e-3)
            b = float(ndtri(share)) if labels else 0.0
            priors = Priors(np.zeros((groups, K)), np.full((groups, K), 10.0), 1.0, b)
        self.priors = priors
        if table is None:
            table = START * rng.standard_normal((columns.d, K))
            table[:, 0] = 0.0
        self.point = Point.of(columns, self.target - priors.intercept, self.weight, signs, table)
        if evidence is not None:
            self.point.prior, self.point.pull = map(np.ascontiguousarray, evidence)
        self.order = np.argsort(-np.diff(columns.bounds), kind="stable")
        self.sampled = True
        self.fixed = False  # whether precisions and noise stay as they are
        self.bound = self.error = np.nan

    @property
    def signs(self) -> np.ndarray:
        """The sign of each component (k,)."""
        return self.point.signs[1:]

    def begin_variational(self) -> None:
        """Follow the bound from the present point."""
        self.sampled = False
        self.point.begin_covariances()

    def sweep(self, hold: bool = False) -> None:
        """Visit all columns of all groups, then learn their distributions."""
        priors, point, K = self.priors, self.point, self.point.table.shape[1]
        if hold:
            priors.precision[:, 1:] = HELD_PRECISION
        groups = self.columns.groups
        for g in self.order:
            if self.labels:
                self._augment()
            z = None
            if self.sampled:
                z = np.empty((self.columns.d, K))
                z[groups[g]] = self.rng.standard_normal((groups[g].stop - groups[g].start, K))
            point.sweep(groups[g], priors.mean[g], priors.precision[g], priors.noise, z)
            self._move_intercept()
        if not self.fixed:
            for g, group in enumerate(groups):
                self._learn_group(g, group)
        self._learn_noise()

    def _augment(self) -> None:
        """Put z in the place of labels: drawn, or expected."""
        f, sign = self.target - self.point.residual, self.sign
        along = sign * f
        if self.sampled:
            low = ndtr(-along)
            u = np.clip(low + (1 - low) * self.rng.uniform(size=len(f)), 1e-300, 1 - 1e-16)
            z = f + sign * np.maximum(ndtri(u), -along)
        else:
            mills = np.exp(-(along**2) / 2 - log_ndtr(along)) / np.sqrt(2 * np.pi)
            z = f + sign * mills
        self.target = z
        self.point.residual = z - f

    def _move_intercept(self) -> None:
        residual, noise = self.point.residual, self.priors.noise
        step = float(np.average(residual, weights=self.weight))
        if self.sampled:
            step += float(self.rng.standard_normal()) / np.sqrt(noise * self.n)
        self.priors.intercept += step
        residual -= step

    def _learn_group(self, g: int, group: slice) -> None:
        """Learn the mean and the precisions of a group from its columns."""
        priors, point = self.priors, self.point
        table = point.table[group]
        L, K = table.shape
        priors.mean[g] = table.sum(axis=0) / (L + 1)
        if self.sampled:
            z = self.rng.standard_normal(K)
            priors.mean[g] += z / np.sqrt(priors.precision[g] * (L + 1))
        squares = self._squares(g, group)
        shape, rate = SHAPE + (L + 1) / 2, RATE + squares / 2
        drawn = self.rng.standard_gamma(shape, K) if self.sampled else shape
        priors.precision[g] = np.maximum(drawn / rate, 1e-8)

    def _squares(self, g: int, group: slice) -> np.ndarray:
        """Return the expected squares of the columns of a group around its mean, with its own."""
        mean, cov = self.priors.mean[g], self.point.cov
        squares = np.sum((self.point.table[group] - mean) ** 2, axis=0) + mean**2
        return np.asarray(squares if cov is None else squares + np.einsum("jaa->a", cov[group]))

    def _learn_noise(self) -> None:
        """Learn the precision of the noise, and the bound where sweeps are variational."""
        priors, residual = self.priors, self.point.residual
        omega = np.ones(self.columns.n) if self.weight is None else self.weight
        self.error = expected = float(omega @ residual**2)
        if not self.sampled:
            self.variance = self.point.variance()
            expected += float(omega @ self.variance)
        if not self.labels and not self.fixed:
            shape = NOISE_SHAPE + self.n / 2
            drawn = self.rng.standard_gamma(shape) if self.sampled else shape
            priors.noise = float(drawn / (NOISE_RATE + expected / 2))
        self.bound = np.nan if self.sampled else self._bound(expected)

    def _bound(self, expected: float) -> float:
        """Return the bound of the log evidence, up to a constant, for targets that are numbers."""
        priors, point = self.priors, self.point
        assert point.cov is not None
        bound = (NOISE_SHAPE + self.n / 2) * np.log(priors.noise)
        bound -= (NOISE_RATE + expected / 2) * priors.noise
        for g, group in enumerate(self.columns.groups):
            L, precision = group.stop - group.start, priors.precision[g]
            bound += np.sum((SHAPE + (L + 1) / 2) * np.log(precision))
            bound -= precision @ (RATE + self._squares(g, group) / 2)
        bound += np.sum(np.linalg.slogdet(point.cov)[1]) / 2
        if point.prior is not None:
            second = point.cov + point.table[:, :, None] * point.table[:, None, :]
            bound += np.sum(point.pull * point.table) - np.sum(point.prior * second) / 2
        return float(bound)

    def evidence(self) -> Evidence:
        """Return what the rows, and earlier ones, say about each column."""
        assert self.point.cov is not None
        precision = np.linalg.inv(self.point.cov)
        pull = np.einsum("jab,jb->ja", precision, self.point.table)
        for g, group in enumerate(self.columns.groups):
            precision[group] -= np.diag(self.priors.precision[g])
            pull[group] -= self.priors.precision[g] * self.priors.mean[g]
        return Evidence(precision, pull)


def infer(
    machine: Machine,
    explored: int = EXPLORED,
    refined: int = REFINED,
    draw: Callable[[int], None] | None = None,
    draws: int | None = None,
) -> Iterator[int]:
    """Sweep, sampled and then variational, and yield the number of each sweep.

    `draw` is called with the number of draws where the sampler has settled.
    """
    for number in range(explored):
        machine.sweep(hold=number < HELD)
        yield number + 1
    if draw is not None and draws is not None:
        draw(draws)
    machine.begin_variational()
    for number in range(refined):
        machine.sweep()
        yield explored + number + 1
