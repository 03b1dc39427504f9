"""Rows of any number of fields, numbers and lists, as groups of columns that are swept."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.model import Model, in_units
from quadlin.core.moments import Moments, Tally, moments_of
from quadlin.core.rows import Rows
from quadlin.core.sweeps import Columns
from quadlin.core.units import Target, Units
from quadlin.solve.fields.swept_machine import LOG_ODDS, Evidence, Machine, Priors, infer, refine
from quadlin.solve.fits.robust import MAD, weighted_median

BYTES = 2**28  # most memory that the kept draws may take
ABSORBED = 5  # variational sweeps over rows that a stream goes on with, at most
STREAM_TOL = 5e-5  # the rise of the bound per row and sweep below which sweeps end
LARGEST, ROUNDING = 1e120, 1e-6  # of the numbers in a file, so that squares are finite
SMALLEST = 1e-30  # unit of a constant target, so that its predictions are constant


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
        return cls(group, mean, scale, groups, float(shift), float(unit) or SMALLEST)

    def columns(self, X: Any) -> Columns:
        """Return the columns of rows, standardised, by group."""
        X, shifted = csr_matrix(X, dtype=np.float64), np.flatnonzero(self.mean)
        n = X.shape[0]
        if len(shifted):
            means, starts = np.tile(self.mean[shifted], n), np.arange(n + 1) * len(shifted)
            X = X - csr_matrix((means, np.tile(shifted, n), starts), shape=X.shape)
        order = np.argsort(self.group, kind="stable")
        ends = np.cumsum(np.bincount(self.group, minlength=self.groups))[:-1]
        return Columns.of(X.multiply(self.scale), np.split(order, ends))

    def order(self, X: csr_matrix) -> np.ndarray | None:
        """Return an order of rows in which those of a level of the largest group are neighbours."""
        largest = np.argmax(np.bincount(self.group))
        entries = np.flatnonzero(self.group[X.indices] == largest)
        if len(entries) != X.shape[0]:
            return None
        return np.argsort(X.indices[entries], kind="stable")

    def signs(self, rank: int) -> np.ndarray:
        """Return signs of components; those of the products of two fields do not matter."""
        sizes = np.bincount(self.group, minlength=self.groups)
        several = np.count_nonzero(sizes) > 2 or sizes[-1] > 0
        return np.where(np.arange(rank) % 2, -1.0, 1.0) if several else np.ones(rank)

    def at(self, columns: np.ndarray) -> "Frame":
        """Return the frame of some of the columns."""
        group, mean, scale = (a[columns] for a in (self.group, self.mean, self.scale))
        return replace(self, group=group, mean=mean, scale=scale)

    def moved(self, places: np.ndarray, fields: Sequence[np.ndarray], d: int) -> "Frame":
        """Return the frame of more columns, where the old ones have these places."""
        group, mean, scale = np.full(d, self.groups - 1), np.zeros(d), np.ones(d)
        for g, field in enumerate(fields):
            group[field] = g
        group[places], mean[places], scale[places] = self.group, self.mean, self.scale
        return replace(self, group=group, mean=mean, scale=scale)


@dataclass(frozen=True)
class Learned:
    """What sweeps have learned: the unknowns of each column, and the priors of the groups."""

    frame: Frame
    table: np.ndarray  # (d, K), (w, v) of each standardised column
    means: np.ndarray  # (groups, K)
    precisions: np.ndarray  # (groups, K)
    signs: np.ndarray  # (k,)
    noise: float  # its precision
    intercept: float
    labels: bool
    spread: float = 0.0  # the mean variance of predictions: of labels, these shrink them

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise, in the user's units."""
        return self.frame.unit / float(np.sqrt(self.noise))

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
        table, signs, b = self.table, self.signs, self.intercept
        means, own = self.means[: len(fields)].copy(), np.zeros_like(table)
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
        b = self.intercept - float(centre @ table[:, 0])
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
        varies, k = units.scale > 0, len(self.signs)
        if not varies.any():
            return 0.0, 0.0
        size = (self.frame.scale * units.penalty_scale)[varies] / units.scale[varies]
        variance = size[:, None] ** 2 / self.precisions[self.frame.group[varies]]
        of_w, of_v = np.split(variance.mean(axis=0), [1])
        of_M = len(size) * float(np.sum(of_v**2)) / 2  # of |M|², over d
        return 1 / (self.noise * float(of_w[0])), k / (self.noise * of_M) if k else 0.0

    def moved(self, places: np.ndarray, fields: Sequence[np.ndarray], d: int) -> "Learned":
        """Return the same with more columns, which have the means of their groups."""
        frame = self.frame.moved(places, fields, d)
        table = self.means[frame.group]
        table[places] = self.table
        return replace(self, frame=frame, table=table)


def weights_of(source: MemorySource) -> np.ndarray:
    """Return the weights of rows (n,)."""
    y = np.asarray(source.y)
    return np.ones(len(y)) if source.weight is None else np.asarray(source.weight, np.float64)


class Contexts:
    """Rows in memory under inference."""

    def __init__(
        self,
        source: MemorySource,
        frame: Frame,
        signs: np.ndarray,
        rng: np.random.Generator,
        labels: bool = False,
        robust: bool = False,
        before: Learned | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        X, y, weight = csr_matrix(source.X, dtype=np.float64), np.asarray(source.y), source.weight
        weight = None if weight is None else np.asarray(weight, dtype=np.float64)
        order = self.order = frame.order(X)
        if order is not None:
            X, y, weight = X[order], y[order], None if weight is None else weight[order]
        self.frame, self.columns = frame, frame.columns(X)
        y = (y.astype(np.float64) - frame.shift) / frame.unit
        table = priors = None
        if before is not None:
            table = before.table[self.columns.places]
            at = (before.means.copy(), before.precisions.copy())
            priors = Priors(*at, before.noise, before.intercept)
        if evidence is not None:
            evidence = Evidence(*(each[self.columns.places] for each in evidence))
        self.machine = Machine(
            self.columns, y, weight, signs, rng, labels, priors, evidence, table, robust
        )

    def learned(self) -> Learned:
        """Return what the machine has learned so far."""
        machine, priors = self.machine, self.machine.priors
        table = np.empty_like(machine.point.table)
        table[self.columns.places] = machine.point.table
        spread = 0.0
        if machine.labels and not machine.sampled:
            spread = float(np.mean(machine.point.variance()))
        return Learned(
            frame=self.frame,
            table=table,
            means=priors.mean.copy(),
            precisions=priors.precision.copy(),
            signs=machine.signs,
            noise=priors.noise,
            intercept=priors.intercept,
            labels=machine.labels,
            spread=spread,
        )

    def residuals(self) -> np.ndarray:
        """Return y − f of the rows (n,), in their order and for a target of variance one."""
        residual = self.machine.point.residual
        return residual.copy() if self.order is None else residual[np.argsort(self.order)]

    def evidence(self) -> Evidence:
        """Return what the rows, and earlier ones, say about each column (d, …)."""
        prior, pull = self.machine.evidence()
        places = np.argsort(self.columns.places)
        return Evidence(prior[places], pull[places])

    def posterior(self, share: float) -> "Posterior":
        """Return what further rows can begin with, after variational sweeps."""
        prior, pull = self.evidence()
        return Posterior(self.learned(), Evidence(prior.astype(np.float32), pull), share)

    def draw(self, draws: int) -> list[tuple[Learned, float]]:
        """Continue as a sampler; return draws, as many as there is memory for, and their losses."""
        size = 8 * self.machine.point.table.size
        stride = -(-draws // max(1, min(draws, BYTES // size)))
        kept = []
        for number in range(draws):
            self.machine.sweep()
            if number % stride == stride - 1:
                kept.append((self.learned(), self.machine.loss))
        return kept


class Posterior(NamedTuple):
    """What a stream has learned from its rows, which is the prior of new ones."""

    learned: Learned
    evidence: Evidence
    share: float  # by which weights are multiplied to count rows

    @classmethod
    def of(
        cls, source: MemorySource, fields: Sequence[np.ndarray], rank: int, labels: bool, seed: int
    ) -> "Posterior":
        """Learn rows in memory. Columns that none of them has do not matter."""
        X, columns = occurring(source.X)
        share = 1.0 if labels else Tally.of(Chunk(X, source.y, source.weight)).share
        rows = replace(source, X=X, weight=share * weights_of(source))
        inside = [np.flatnonzero(np.isin(columns, field)) for field in fields]
        frame = Frame.of(rows, inside, moments_of(Rows.of(rows))[0], labels)
        contexts = Contexts(rows, frame, frame.signs(rank), np.random.default_rng(seed), labels)
        deque(infer(contexts.machine, tol=STREAM_TOL), maxlen=0)
        return contexts.posterior(share).moved(columns, fields, source.X.shape[1])

    def after(self, source: MemorySource, again: bool = False) -> "Posterior":
        """Learn further rows, in time proportional to their number; priors and noise stay.

        With `again`, the rows include all earlier ones, and priors and noise are learned too.
        """
        if not source.X.shape[0]:
            return self
        X, at = occurring(source.X)
        rows = replace(source, X=X, weight=self.share * weights_of(source))
        old, (prior, pull), rng = self.learned, self.evidence, np.random.default_rng(0)
        begun = replace(old, frame=old.frame.at(at), table=old.table[at])
        past = None if again else Evidence(*(a[at].astype(np.float64) for a in (prior, pull)))
        contexts = Contexts(
            rows, begun.frame, old.signs, rng, old.labels, before=begun, evidence=past
        )
        contexts.machine.begin_variational()
        sweeps = min(ABSORBED, contexts.machine.refined // 2)
        deque(refine(contexts.machine, sweeps, STREAM_TOL), maxlen=0)
        new, prior, pull = contexts.learned(), prior.copy(), pull.copy()
        table = new.means[old.frame.group] if again else old.table.copy()
        table[at], (prior[at], pull[at]) = new.table, contexts.evidence()
        learned = replace(new, frame=old.frame, table=table)
        return Posterior(learned, Evidence(prior, pull), self.share)

    def moved(self, places: np.ndarray, fields: Sequence[np.ndarray], d: int) -> "Posterior":
        """Return the same with more columns, where the old ones have these places."""
        learned = self.learned.moved(places, fields, d)
        return self._replace(learned=learned, evidence=self.evidence.moved(places, d))

    def problem(self, fields: Sequence[np.ndarray]) -> str | None:
        """Return what is invalid in values read from a file; None if nothing is."""
        learned, (prior, pull) = self.learned, self.evidence
        frame, K = learned.frame, len(learned.signs) + 1
        sizes = {learned.table.shape[1], learned.means.shape[1], prior.shape[1], prior.shape[2]}
        groups = {frame.groups, len(learned.means), len(learned.precisions)}
        if sizes != {K} or len(groups) > 1 or not np.isin(learned.signs, (-1, 1)).all():
            return "the sizes of a machine"
        known = frame.group.dtype.kind == "i" and len(frame.group) > 0
        if not known or not (frame.group.min() >= 0 and frame.group.max() < frame.groups):
            return "the groups of a machine"
        if any((frame.group[field] != g).any() for g, field in enumerate(fields)):
            return "the fields of a machine"
        units = np.array([learned.noise, frame.unit, self.share, 1 + learned.spread])
        positive = (frame.scale, learned.precisions, units)
        arrays = (frame.mean, learned.table, learned.means, prior, pull, *positive)
        if not all((a > 0).all() for a in positive):
            return "the precisions of a machine"
        if not all((np.abs(a) < LARGEST).all() for a in arrays):
            return "the numbers of a machine"
        size = np.abs(np.einsum("jaa->j", prior)) + 1.0
        even = np.abs(prior - np.swapaxes(prior, 1, 2)) <= ROUNDING * size[:, None, None]
        if not even.all() or not (np.linalg.eigvalsh(prior)[:, 0] > -ROUNDING * size).all():
            return "the evidence of a machine"
        return None


def occurring(X: Any) -> tuple[csr_matrix, np.ndarray]:
    """Return rows with only the columns that they have, and these."""
    rows = csr_matrix(X, dtype=np.float64)
    rows.eliminate_zeros()
    columns = np.unique(rows.indices)
    return rows[:, columns], columns
