r"""A factorization machine on groups of columns under inference: sampled, or variational.

The unknowns :math:`\theta_j` of the columns of group g are :math:`N(\mu_g, 1/\lambda_g)`, with a
mean and a precision per component; :math:`\mu_g` counts as one more column around zero. Labels 0
and 1 are the signs of :math:`z = f + N(0, 1)` in sampled sweeps, where z takes the place of y
(probit). In variational ones their log-odds are 1.702 f, and the bound of Jaakkola and Jordan on
the logistic function makes them targets whose weights fall with :math:`\mathrm E f^2`: with probit
the z would all have the weight of a certain target, and the posterior would be too narrow.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, log_expit, ndtr, ndtri

from quadlin.core.sweeps import Columns, Point
from quadlin.solve.fits.robust import MAD, huber_factor, weighted_median

SHAPE, RATE = 0.5, 0.05  # of the gamma prior of precisions, for targets of variance one
NOISE_SHAPE, NOISE_RATE = 1e-3, 1e-9  # of the precision of the noise
LARGEST_NOISE = 1e6  # precision: covariances have single precision
START = 0.1  # standard deviation of factors before the first sweep
EXPLORED = 90  # sampled sweeps: the bound alone has a local optimum without products
HELD = 5  # of these, with factors of a fixed size, which cannot vanish yet
HELD_PRECISION = 4.0  # of such factors
REFINED = 40  # variational sweeps at most: the optimum of the bound overfits where rows are few
LABEL_REFINED = 3  # the same for labels: factors go on shrinking
MANY_ROWS = 30_000  # a sweep over more of them learns more, so there are fewer sweeps
FEWEST = 0.25  # share of the sweeps that is left: 0.2% more error than 0.4 (`contexts.py`)
MEASURED = 4  # variational sweeps, of which the last measures variances
GROSS = 5.0  # standard deviations of a gross error: a normal one is that large once in two million
LOG_ODDS = 1.702  # log-odds per standard deviation: Φ(f) is about 1/(1 + exp(−1.702 f))


class Evidence(NamedTuple):
    """What earlier rows say about each column: precisions, and precisions times means."""

    prior: np.ndarray  # (d, K, K)
    pull: np.ndarray  # (d, K)

    def moved(self, places: np.ndarray, d: int) -> "Evidence":
        """Return the same with more columns, where the old ones have these places."""
        K = self.pull.shape[1]
        prior, pull = np.zeros((d, K, K), self.prior.dtype), np.zeros((d, K))
        prior[places], pull[places] = self
        return Evidence(prior, pull)


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
        robust: bool = False,
    ) -> None:
        self.columns, self.rng, self.labels, K = columns, rng, labels, len(signs) + 1
        if weight is not None or robust:
            weight = np.ones(columns.n) if weight is None else np.array(weight, dtype=np.float64)
        self.weight, self.given = weight, weight
        self.robust = robust  # whether rows have weights by their residuals, as in Huber's loss
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
        self.used = (priors.mean, priors.precision)  # in the last sweep
        self.fixed = evidence is not None  # rows that go on from others have their priors
        self.bound = np.nan
        self.loss = np.nan  # the sum of squared errors, or of losses of labels
        self.variance = np.zeros(columns.n)  # of the predictions, in variational sweeps
        self.of_labels = 0.0  # what the bound has besides squared errors

    @property
    def signs(self) -> np.ndarray:
        """The sign of each component (k,)."""
        return self.point.signs[1:]

    @property
    def explored(self) -> int:
        """The number of sampled sweeps."""
        return round(EXPLORED * self._share)

    @property
    def refined(self) -> int:
        """The most variational sweeps."""
        return LABEL_REFINED if self.labels else round(REFINED * self._share)

    @property
    def _share(self) -> float:
        return min(1.0, max(FEWEST, MANY_ROWS / self.columns.n))

    def begin_variational(self) -> None:
        """Follow the bound from the present point."""
        self.sampled = False
        self.point.begin_covariances()

    def sweep(self, hold: bool = False, measure: bool = True) -> None:
        """Visit all columns of all groups, then learn their distributions.

        Variational sweeps learn the noise, and know their bound, only if they `measure` variances.
        Those of labels always do: the weights depend on them.
        """
        priors, point, K = self.priors, self.point, self.point.table.shape[1]
        if hold:
            priors.precision[:, 1:] = HELD_PRECISION
        if self.robust:
            self._reweigh()
        groups = self.columns.groups
        self.used = (priors.mean.copy(), priors.precision.copy())
        for g in self.order:
            if self.labels:
                self._augment()
            z = None
            if self.sampled:
                z = np.empty((self.columns.d, K))
                z[groups[g]] = self.rng.standard_normal((groups[g].stop - groups[g].start, K))
            point.sweep(groups[g], priors.mean[g], priors.precision[g], priors.noise, z)
            if not self.fixed:
                self._move_intercept()
        if not self.fixed:
            for g, group in enumerate(groups):
                self._learn_group(g, group)
        if self.sampled or measure or self.labels:
            self._learn_noise()

    def _reweigh(self) -> None:
        """Weigh rows as Huber's loss does; variational sweeps leave gross errors out.

        With a bounded pull these would still count as noise, and the noise decides which levels
        and components to believe in. In a sampled sweep a large residual may be the draw's fault.
        """
        assert self.given is not None
        size = np.abs(self.point.residual)
        scale = MAD * weighted_median(size, self.given)
        if scale > 0:
            factor = huber_factor(size / scale, np.inf)
            if not self.sampled:
                factor[size > GROSS * scale] = 0.0
            self.weight = self.point.weight = self.given * factor
            self.n = float(self.weight.sum())

    def _augment(self) -> None:
        """Put z in the place of labels: drawn, or the centre of the bound on their likelihood."""
        f, sign = self.target - self.point.residual, self.sign
        if self.sampled:
            along = sign * f
            low = ndtr(-along)
            u = np.clip(low + (1 - low) * self.rng.uniform(size=len(f)), 1e-300, 1 - 1e-16)
            z = f + sign * np.maximum(ndtri(u), -along)
        else:
            # log σ(±1.702 f) ≥ log σ(ξ) − ξ/2 ± 1.702 f/2 − ω (f² − ξ²/1.702²)/2 for any ξ.
            xi = np.maximum(LOG_ODDS * np.sqrt(f**2 + self.variance), 1e-6)
            omega = LOG_ODDS**2 * np.tanh(xi / 2) / (2 * xi)
            z = sign * LOG_ODDS / (2 * omega)
            given = np.ones(len(f)) if self.given is None else self.given
            self.weight = self.point.weight = given * omega
            offsets = log_expit(xi) - xi / 2 + omega * ((xi / LOG_ODDS) ** 2 + z**2) / 2
            self.of_labels = float(given @ offsets)
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
        self.loss = expected = float(omega @ residual**2)
        if not self.sampled:
            self.variance = self.point.variance()
            expected += float(omega @ self.variance)
        if self.labels:
            f = LOG_ODDS * (self.target - residual) / np.sqrt(1 + np.mean(self.variance))
            given = np.ones(len(f)) if self.given is None else self.given
            self.loss = -float(given @ log_expit(self.sign * f))
        if not self.labels and not self.fixed:
            shape = NOISE_SHAPE + self.n / 2
            drawn = self.rng.standard_gamma(shape) if self.sampled else shape
            priors.noise = min(float(drawn / (NOISE_RATE + expected / 2)), LARGEST_NOISE)
        self.bound = np.nan if self.sampled else self._bound(expected)

    def _bound(self, expected: float) -> float:
        """Return the bound of the log evidence, up to a constant of the rows."""
        priors, point = self.priors, self.point
        assert point.cov is not None
        bound = (NOISE_SHAPE + self.n / 2) * np.log(priors.noise)
        bound += self.of_labels - (NOISE_RATE + expected / 2) * priors.noise
        for g, group in enumerate(self.columns.groups):
            L, precision = group.stop - group.start, priors.precision[g]
            bound += np.sum((SHAPE + (L + 1) / 2) * np.log(precision))
            bound -= precision @ (RATE + self._squares(g, group) / 2)
        bound += priors.mean.size * (SHAPE * np.log(RATE) - gammaln(SHAPE))
        bound += (np.sum(np.linalg.slogdet(point.cov)[1]) + point.table.size) / 2
        if point.prior is not None:
            second = point.cov + point.table[:, :, None] * point.table[:, None, :]
            bound += np.sum(point.pull * point.table) - np.sum(point.prior * second) / 2
        return float(bound)

    def evidence(self) -> Evidence:
        """Return what the rows, and earlier ones, say about each column."""
        assert self.point.cov is not None
        precision = np.linalg.inv(self.point.cov)
        pull = np.einsum("jab,jb->ja", precision, self.point.table)
        for group, mean, each in zip(self.columns.groups, *self.used, strict=True):
            precision[group] -= np.diag(each)
            pull[group] -= each * mean
        return Evidence(precision, pull)


def infer(
    machine: Machine,
    explored: int | None = None,
    refined: int | None = None,
    tol: float = 0.0,
    between: Callable[[], None] | None = None,
    held: int = HELD,
) -> Iterator[bool]:
    """Sweep, sampled and then variational, and yield whether that was the last sweep.

    Sweeps end where the bound rises by less than `tol` per row. `between` is called where the
    sampler has settled. Factors have a fixed size in the sweeps that are `held`.
    """
    for number in range(machine.explored if explored is None else explored):
        machine.sweep(hold=number < held)
        yield False
    if between is not None:
        between()
    machine.begin_variational()
    yield from refine(machine, machine.refined if refined is None else refined, tol)


def refine(machine: Machine, refined: int, tol: float) -> Iterator[bool]:
    """Follow the bound, and yield whether that was the last sweep."""
    before = -np.inf
    for number in range(1, refined + 1):
        measure = number % MEASURED == 0 or number == refined
        machine.sweep(measure=measure)
        settled = measure and abs(machine.bound - before) < MEASURED * tol * machine.n
        yield settled or number == refined
        if settled:
            return
        before = machine.bound
