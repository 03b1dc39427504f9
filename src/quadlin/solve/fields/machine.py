r"""Rows of any number of fields, numbers and lists, as a factorization machine under inference.

The unknowns :math:`\theta_j` of the columns of group g are :math:`N(\mu_g, 1/\lambda_g)`, with a
mean and a precision per component; :math:`\mu_g` counts as one more column around zero. Labels 0
and 1 are the signs of :math:`z = f + N(0, 1)` in sampled sweeps, where z takes the place of y
(probit). In variational ones their log-odds are 1.702 f, and the bound of Jaakkola and Jordan on
the logistic function makes them targets whose weights fall with :math:`\mathrm E f^2`: with probit
the z would all have the weight of a certain target, and the posterior would be too narrow.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix
from scipy.special import log_expit, ndtr, ndtri

from quadlin.core.chunks import MemorySource
from quadlin.core.model import Model, in_units
from quadlin.core.moments import Moments
from quadlin.core.sweeps import Columns, Point
from quadlin.core.units import Target, Units
from quadlin.solve.fits.robust import FAR, MAD, huber_factor, weighted_median

LARGEST_NOISE = 1e6  # precision of the noise: covariances have single precision
SHAPE, RATE = 0.5, 0.05  # of the gamma prior of precisions, for targets of variance one
START = 0.1  # standard deviation of factors before the first sweep
HELD_PRECISION = 4.0  # of factors in the first round of sampled sweeps: they cannot vanish yet
EXPLORED = 90  # sampled sweeps: the bound alone has a local optimum without products
REFINED = 32  # variational sweeps at most: the optimum of the bound overfits where rows are few
ROUND = 4  # sweeps; the last of a round of variational ones measures variances
MANY_ROWS = 40_000  # a sweep over more of them learns more, so there are fewer sweeps
FEWEST = 0.3  # share of the sweeps that is left
LOG_ODDS = 1.702  # log-odds per standard deviation: Φ(f) is about 1/(1 + exp(−1.702 f))
DOUBLE, SINGLE = (float(np.finfo(kind).eps) for kind in (np.float64, np.float32))


@dataclass(frozen=True)
class Frame:
    """How columns become groups, a field each, a number each, all others together; their units."""

    group: np.ndarray  # (d,), int64: fields first, then numbers; the last group has the others
    mean: np.ndarray  # (d,), subtracted from the columns
    scale: np.ndarray  # (d,), by which they are multiplied
    groups: int
    shift: float  # of the target; 0 for labels
    unit: float  # its standard deviation; 1 for labels

    @classmethod
    def of(
        cls,
        source: MemorySource,
        fields: Sequence[np.ndarray],
        features: Moments,
        labels: bool = False,
        robust: bool = False,
    ) -> "Frame":
        """Return the frame of some rows; with `robust`, the target is measured by its median."""
        X = csr_matrix(source.X, dtype=np.float64)
        n, d = X.shape
        entries = X.getnnz(axis=0)
        # 0/1 columns stay; numbers get standard deviation one, and mean zero if most are not zero.
        one_zero = np.isclose(features.var, features.mean * (1 - features.mean))
        varies = features.varies(np.float64) & ~one_zero
        scale = np.where(varies, 1 / np.sqrt(np.where(varies, features.var, 1.0)), 1.0)
        mean = np.where(varies & (2 * entries > n), features.mean, 0.0)
        others = np.setdiff1d(np.arange(d), np.concatenate([np.empty(0, int), *fields]))
        is_number = 2 * entries[others] > n
        numbers, lists = others[is_number], others[~is_number]
        # Lists share a scale, so that rare columns are no larger.
        squares = float(X[:, lists].multiply(X[:, lists]).sum()) / max(1, X[:, lists].nnz)
        scale[lists] = 1 / np.sqrt(squares) if squares > 0 else 1.0
        groups = len(fields) + len(numbers) + 1
        group = np.full(d, groups - 1)
        for g, columns in enumerate([*fields, *numbers[:, None]]):
            group[columns] = g
        if labels:
            return cls(group, mean, scale, groups, 0.0, 1.0)
        y, weight = np.asarray(source.y, dtype=np.float64), weights_of(source)
        if robust:
            shift = weighted_median(y, weight)
            unit = MAD * weighted_median(np.abs(y - shift), weight) or float(np.std(y))
        else:
            shift = float(np.average(y, weights=weight))
            unit = float(np.sqrt(np.average((y - shift) ** 2, weights=weight)))
        return cls(group, mean, scale, groups, float(shift), float(unit) or DOUBLE**2)

    def columns(self, X: csr_matrix) -> Columns:
        """Return the columns that occur in rows, standardised, by group."""
        shifted, n = np.flatnonzero(self.mean), X.shape[0]
        if len(shifted):
            means, starts = np.tile(self.mean[shifted], n), np.arange(n + 1) * len(shifted)
            X = X - csr_matrix((means, np.tile(shifted, n), starts), shape=X.shape)
        standardised = csc_matrix(X.multiply(self.scale))
        standardised.eliminate_zeros()
        group = np.where(np.diff(standardised.indptr) > 0, self.group, -1)
        return Columns.of(standardised, [np.flatnonzero(group == g) for g in range(self.groups)])

    def order(self, X: csr_matrix) -> np.ndarray:
        """Return an order of rows in which those of a level of the largest group are neighbours."""
        largest, n = np.argmax(np.bincount(self.group)), X.shape[0]
        entries = np.flatnonzero(self.group[X.indices] == largest)
        return np.argsort(X.indices[entries], kind="stable") if len(entries) == n else np.arange(n)

    def signs(self, rank: int) -> np.ndarray:
        """Return signs of components; those of the products of two fields do not matter."""
        sizes = np.bincount(self.group, minlength=self.groups)
        several = np.count_nonzero(sizes) > 2 or sizes[-1] > 0
        return np.where(np.arange(rank) % 2, -1.0, 1.0) if several else np.ones(rank)


@dataclass
class Priors:
    """The learned distribution of the columns of each group, of the noise, and b."""

    mean: np.ndarray  # (groups, K)
    precision: np.ndarray  # (groups, K)
    noise: float  # its precision
    intercept: float


@dataclass(frozen=True)
class Learned:
    """What sweeps have learned: the unknowns of each column, and the priors of the groups."""

    frame: Frame
    table: np.ndarray  # (d, K), (w, v) of each standardised column
    priors: Priors
    signs: np.ndarray  # (k,)
    labels: bool
    spread: float = 0.0  # the mean variance of predictions: of labels, these shrink them

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise, in the user's units."""
        return self.frame.unit / float(np.sqrt(self.priors.noise))

    def model(
        self, fields: Sequence[np.ndarray], units: Units, shares: np.ndarray | None = None
    ) -> Model:
        r"""Return the model in standardised units, with all levels measured from those never seen.

        With m the sum over fields of their means, v' = v − mean and one level of each field g,

        .. math:: \tfrac12 \Big(\sum v\Big)^2 - \tfrac12 \sum v^2 = \tfrac12 \Big(\sum v'\Big)^2
                  - \tfrac12 \sum v'^2 + \sum_j v'_j (m - m_j)
                  + \tfrac12 m^2 - \tfrac12 \sum_g m_g^2,

        where :math:`m_j` is the mean of the column's own field, zero for other columns. With
        shares (d,) of the levels, these are measured from their mean instead.
        """
        table, signs, b = self.table, self.signs, self.priors.intercept
        means, own = self.priors.mean[: len(fields)].copy(), np.zeros_like(table)
        for g, field in enumerate(fields):
            if shares is not None:
                means[g] = np.average(table[field], axis=0, weights=shares[field])
            own[field] = means[g]
        columns, total = table - own, means.sum(axis=0)
        w = columns[:, 0] + columns[:, 1:] @ (signs * total[1:])
        w -= np.sum(signs * columns[:, 1:] * own[:, 1:], axis=1)
        b += float(total[0] + signs @ (total[1:] ** 2 - np.sum(means[:, 1:] ** 2, axis=0)) / 2)
        frame, zeros, ones = self.frame, np.zeros(len(w)), np.ones(len(w))
        size = LOG_ODDS / np.sqrt(1 + self.spread) if self.labels else frame.unit
        target = Target(frame.shift, float(size), 0.0, 1.0)
        own_units = Units(frame.mean, frame.scale, zeros, ones, zeros, target, ones, zeros)
        return in_units(Model(columns[:, 1:], signs / 2, w, b, zeros), own_units, units)

    def raw(self, fields: Sequence[np.ndarray], unseen: np.ndarray) -> tuple[float, np.ndarray]:
        """Return b and a table (d + fields, K) for the user's columns and target.

        `unseen` (fields, K) are the levels never seen.
        """
        frame, signs, table, unseen = self.frame, self.signs, self.table.copy(), unseen.copy()
        centre = frame.mean * frame.scale
        b = self.priors.intercept - float(centre @ table[:, 0])
        # (x − μ)∘σ in place of x: products with the means of numbers join w and b.
        at = centre[:, None] * table[:, 1:]
        total = at.sum(axis=0)
        b += float(signs @ (total**2 - np.sum(at**2, axis=0))) / 2
        table[:, 0] -= table[:, 1:] @ (signs * total) - np.sum(signs * table[:, 1:] * at, axis=1)
        unseen[:, 0] -= unseen[:, 1:] @ (signs * total)
        table *= frame.scale[:, None]
        unit = LOG_ODDS if self.labels else frame.unit
        both = np.concatenate([table, unseen]) * np.append(unit, np.full(len(signs), unit**0.5))
        return frame.shift + unit * b, both

    def penalties(self, units: Units) -> tuple[float, float]:
        """Return the penalties of w and M that are equivalent to the priors of these columns.

        With them, w and a matrix M of this rank are as large on average, a priori: |w|² has d
        degrees of freedom, and |M|² has kd.
        """
        varies, k, priors = units.scale > 0, len(self.signs), self.priors
        if not varies.any():
            return 0.0, 0.0
        size = (self.frame.scale * units.penalty_scale)[varies] / units.scale[varies]
        variance = size[:, None] ** 2 / priors.precision[self.frame.group[varies]]
        of_w, of_v = np.split(variance.mean(axis=0), [1])
        of_M = len(size) * float(np.sum(of_v**2)) / 2  # of |M|², over d
        return 1 / (priors.noise * float(of_w[0])), k / (priors.noise * of_M) if k else 0.0


class Posterior(NamedTuple):
    """What rows say about each column, which is the prior of further ones."""

    learned: Learned
    prior: np.ndarray  # (d, K, K), float32, precisions
    pull: np.ndarray  # (d, K), precisions times means
    share: float  # by which weights are multiplied to count rows

    def moved(self, places: np.ndarray, fields: Sequence[np.ndarray], d: int) -> "Posterior":
        """Return the same with more columns, where the old ones have these places.

        New columns have the means of their groups.
        """
        old = self.learned.frame
        group, mean, scale = np.full(d, old.groups - 1), np.zeros(d), np.ones(d)
        for g, field in enumerate(fields):
            group[field] = g
        group[places], mean[places], scale[places] = old.group, old.mean, old.scale
        table = self.learned.priors.mean[group]
        prior, pull = np.zeros((d, *self.prior.shape[1:]), np.float32), np.zeros(table.shape)
        table[places], prior[places], pull[places] = self.learned.table, self.prior, self.pull
        frame = replace(old, group=group, mean=mean, scale=scale)
        learned = replace(self.learned, frame=frame, table=table)
        return Posterior(learned, prior, pull, self.share)

    def is_valid(self, fields: Sequence[np.ndarray]) -> bool:
        """Tell whether values read from a file can be a posterior."""
        learned, prior, pull, share = self
        frame, priors, signs = learned.frame, learned.priors, learned.signs
        sizes = {len(signs) + 1, learned.table.shape[1], priors.mean.shape[1], *prior.shape[1:]}
        groups = {frame.groups, len(priors.mean), len(priors.precision)}
        if (
            max(len(sizes), len(groups)) > 1
            or frame.group.dtype.kind != "i"
            or not np.isin(signs, (-1, 1)).all()
            or not np.isin(frame.group, np.arange(frame.groups)).all()
            or any((frame.group[field] != g).any() for g, field in enumerate(fields))
        ):
            return False
        units = np.array([priors.noise, frame.unit, share, 1 + learned.spread])
        positive = (frame.scale, priors.precision, units)
        every = (frame.mean, learned.table, priors.mean, pull, prior, *positive)
        squares = [np.sum(np.square(a, dtype=np.float64)) for a in every]
        if not (np.isfinite(squares).all() and all((a > 0).all() for a in positive)):
            return False
        rounding = prior.shape[1] * SINGLE * (np.abs(prior).sum(axis=(1, 2)) + 1)
        uneven = np.abs(prior - np.swapaxes(prior, 1, 2)).max(axis=(1, 2))
        return bool((np.minimum(np.linalg.eigvalsh(prior)[:, 0], -uneven) >= -rounding).all())


def weights_of(source: MemorySource) -> np.ndarray:
    """Return the weights of rows (n,)."""
    y = np.asarray(source.y)
    return np.ones(len(y)) if source.weight is None else np.asarray(source.weight, np.float64)


class Machine:
    """Standardised rows in groups of columns, and what has been learned of them so far.

    Rows may begin with what an earlier machine has learned `before`, of the same columns. With a
    `past`, they are further rows: what earlier ones say is the prior of each column, and priors of
    groups, noise and intercept stay.
    """

    def __init__(
        self,
        frame: Frame,
        source: MemorySource,
        signs: np.ndarray,
        rng: np.random.Generator,
        labels: bool = False,
        robust: bool = False,
        before: Learned | None = None,
        past: Posterior | None = None,
    ) -> None:
        X = csr_matrix(source.X, dtype=np.float64)
        self.frame, self.rng, self.labels, self.past = frame, rng, labels, past
        self.robust = robust  # whether rows have weights by their residuals, as in Huber's loss
        self.order = frame.order(X)
        self.columns = columns = frame.columns(X[self.order])
        y, self.given = (a[self.order] for a in (np.asarray(source.y), weights_of(source)))
        self.weight = self.given
        self.n = float(self.weight.sum())
        self.target = (y.astype(np.float64) - frame.shift) / frame.unit
        self.sign = 2 * self.target - 1  # of labels
        K = len(signs) + 1
        self.before = before if past is None else past.learned
        if self.before is None:
            share = np.clip(np.average(self.target, weights=self.weight), 1e-3, 1 - 1e-3)
            b = float(ndtri(share)) if labels else 0.0
            priors = Priors(np.zeros((frame.groups, K)), np.full((frame.groups, K), 10.0), 1.0, b)
            table = START * rng.standard_normal((columns.d, K))
            table[:, 0] = 0.0
        else:
            priors, table = deepcopy(self.before.priors), self.before.table[columns.places]
        self.priors = priors
        weight = None if source.weight is None and not robust else self.weight
        self.point = Point.of(columns, self.target - priors.intercept, weight, signs, table)
        if past is not None:
            self.point.prior = past.prior[columns.places].astype(np.float64)
            self.point.pull = past.pull[columns.places]
        self.largest_first = np.argsort(-np.diff(columns.bounds), kind="stable")
        self.sweeps = 0
        self.sampled = True
        self.used = (priors.mean, priors.precision)  # in the last sweep
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
        """The number of sampled sweeps: few if there is no other optimum to look for."""
        few = self.before is not None or not len(self.signs)
        return ROUND if few else round(EXPLORED * self._share)

    @property
    def refined(self) -> int:
        """The most variational sweeps: one round for labels, since factors go on shrinking."""
        few = self.labels or self.past is not None
        return ROUND if few else round(REFINED * self._share)

    @property
    def _share(self) -> float:
        return min(1.0, max(FEWEST, MANY_ROWS / self.columns.n))

    def residuals(self) -> np.ndarray:
        """Return y − f of the rows (n,), in their order and for a target of variance one."""
        residual = np.empty(self.columns.n)
        residual[self.order] = self.point.residual
        return residual

    def learned(self) -> Learned:
        """Return what has been learned so far; columns that do not occur have their prior mean."""
        if self.past is None:
            table = self.priors.mean[self.frame.group]
        else:
            table = self.past.learned.table.copy()
        table[self.columns.places] = self.point.table
        spread = 0.0
        if self.labels and not self.sampled:
            spread = float(np.mean(self.point.variance()))
        priors = deepcopy(self.priors)
        return Learned(self.frame, table, priors, self.signs, self.labels, spread)

    def posterior(self, share: float) -> Posterior:
        """Return what further rows can begin with, in the arrays of the past if there is one."""
        assert self.point.cov is not None
        precision = np.linalg.inv(self.point.cov)
        its_pull = np.einsum("jab,jb->ja", precision, self.point.table)
        for group, mean, each in zip(self.columns.groups, *self.used, strict=True):
            precision[group] -= np.diag(each)
            its_pull[group] -= each * mean
        learned, places = self.learned(), self.columns.places
        d, K = learned.table.shape
        past = self.past or Posterior(
            learned, np.zeros((d, K, K), np.float32), np.zeros((d, K)), share
        )
        past.prior[places], past.pull[places] = precision, its_pull
        return past._replace(learned=learned)

    def begin_variational(self) -> None:
        """Follow the bound from the present point."""
        self.sampled = False
        self.point.begin_covariances()

    def sweep(self, measure: bool = True) -> None:
        """Visit all columns of all groups, then learn their distributions.

        Variational sweeps learn the noise, and know their bound, only if they `measure` variances.
        Those of labels always do: the weights depend on them.
        """
        priors, point, K = self.priors, self.point, self.point.table.shape[1]
        if self.before is None and self.sampled and self.sweeps < ROUND:
            priors.precision[:, 1:] = HELD_PRECISION
        self.sweeps += 1
        if self.robust:
            self._reweigh()
        groups = self.columns.groups
        self.used = (priors.mean.copy(), priors.precision.copy())
        for g in self.largest_first:
            if self.labels:
                self._augment()
            z = None
            if self.sampled:
                z = np.empty((self.columns.d, K))
                z[groups[g]] = self.rng.standard_normal((groups[g].stop - groups[g].start, K))
            point.sweep(groups[g], priors.mean[g], priors.precision[g], priors.noise, z)
            if self.past is None:
                self._move_intercept()
        if self.past is None:
            for g, group in enumerate(groups):
                self._learn_group(g, group)
        if self.sampled or measure or self.labels:
            self._learn_noise()

    def _reweigh(self) -> None:
        """Weigh rows as Huber's loss does; variational sweeps leave gross errors out.

        With a bounded pull these would still count as noise, and the noise decides which levels
        and components to believe in. In a sampled sweep a large residual may be the draw's fault.
        """
        size = np.abs(self.point.residual)
        scale = MAD * weighted_median(size, self.given)
        if scale > 0:
            factor = huber_factor(size / scale, np.inf)
            if not self.sampled:
                factor[size > FAR[-1] * scale] = 0.0
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
            self.weight = self.point.weight = self.given * omega
            offsets = log_expit(xi) - xi / 2 + omega * ((xi / LOG_ODDS) ** 2 + z**2) / 2
            self.of_labels = float(self.given @ offsets)
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
        self.loss = expected = float(self.weight @ residual**2)
        if not self.sampled:
            self.variance = self.point.variance()
            expected += float(self.weight @ self.variance)
        if self.labels:
            f = LOG_ODDS * (self.target - residual) / np.sqrt(1 + np.mean(self.variance))
            self.loss = -float(self.given @ log_expit(self.sign * f))
        elif self.past is None:
            drawn = self.rng.standard_gamma(self.n / 2) if self.sampled else self.n / 2
            priors.noise = min(2 * float(drawn) / max(expected, 1e-300), LARGEST_NOISE)
        self.bound = np.nan if self.sampled else self._bound(expected)

    def _bound(self, expected: float) -> float:
        """Return the bound of the log evidence, up to a constant."""
        priors, point = self.priors, self.point
        assert point.cov is not None
        bound = self.of_labels + (self.n * np.log(priors.noise) - expected * priors.noise) / 2
        for g, group in enumerate(self.columns.groups):
            L, precision = group.stop - group.start, priors.precision[g]
            bound += np.sum((SHAPE + (L + 1) / 2) * np.log(precision))
            bound -= precision @ (RATE + self._squares(g, group) / 2)
        bound += np.sum(np.linalg.slogdet(point.cov)[1]) / 2
        if point.prior is not None:
            second = point.cov + point.table[:, :, None] * point.table[:, None, :]
            bound += np.sum(point.pull * point.table) - np.sum(point.prior * second) / 2
        return float(bound)


def refine(machine: Machine, most: int, tol: float = 0.0) -> Iterator[bool]:
    """Follow the bound until it rises by less than `tol` per row; yield whether a sweep is last."""
    machine.begin_variational()
    before = -np.inf
    for number in range(1, most + 1):
        measure = number % ROUND == 0 or number == most
        machine.sweep(measure)
        settled = measure and abs(machine.bound - before) < ROUND * tol * machine.n
        yield settled or number == most
        if settled:
            return
        before = machine.bound
