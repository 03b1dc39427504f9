"""A machine on fields that learns batch by batch, from the posterior given all rows so far.

Only sums of the rows of earlier batches are kept (`running_levels`), so a batch takes O(its rows +
levels) memory and a few sweeps over it.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, vstack

from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.moments import Tally
from quadlin.solve.fields.field_batches import Batch, Frame, complete
from quadlin.solve.fields.field_machine import FieldMachine
from quadlin.solve.fields.field_rows import FieldRows, default_signs
from quadlin.solve.fields.field_sums import Statistics, joined, squared_error, unpacked
from quadlin.solve.fields.label_bounds import Calibration
from quadlin.solve.fields.label_machine import LabelMachine, LabelSweeps
from quadlin.solve.fields.label_rows import LabelRows
from quadlin.solve.fields.level_posterior import Gamma
from quadlin.solve.fields.loose_columns import LooseColumns, RunningSlopes
from quadlin.solve.fields.running_levels import RunningLevels
from quadlin.solve.fields.variational import NOISELESS, inferred, penalties, sweeps


class LevelPlan(NamedTuple):
    """How the rows of a stream are learned."""

    rank: int
    logistic: bool  # labels 0 and 1, otherwise numbers
    loose: bool  # whether some columns may follow no field, in a first batch
    seed: int
    most_sweeps: int
    tol: float  # of the bound, per row


class RunningMachine(FieldMachine):
    """A machine that continues from sums over past rows."""

    def __init__(self, running: RunningLevels, batch: Batch, rows: FieldRows) -> None:
        super().__init__(rows, running.signs, np.random.default_rng(0), sampled=False)
        K, ends = len(self.signs) + 1, np.cumsum(running.counts)[:-1]
        self.n_before, self.b = running.weight, running.intercept
        self.noise = Gamma(running.noise_shape, running.noise_rate)
        self.means = running.means.copy()
        self.precisions = [Gamma(*each) for each in zip(running.shapes, running.rates, strict=True)]
        self.before = []
        parts = zip(
            *(np.split(sums, ends, axis=1) for sums in (running.G, running.h)),
            running.rests,
            zip(batch.slots, rows.entities, strict=True),
            strict=True,
        )
        for G, h, rest, (slot, entity) in parts:
            old = Statistics(np.zeros((K, K, entity.size)), np.zeros((K, entity.size)), float(rest))
            at = slot[: h.shape[1]]
            old.G[:, :, at], old.h[:, at] = unpacked(G, K), h
            self.before.append(old)
        for entity, members in zip(rows.entities, self.levels, strict=True):
            for i, member in enumerate(entity.members):
                mean = np.repeat(self.means[member.group][:, None], len(member.columns), axis=1)
                seen = member.columns < len(running.table)
                mean[:, seen] = running.table[member.columns[seen]].T
                members[i] = members[i]._replace(mean=mean)
        self.state = [self._patterns(e, entity.members) for e, entity in enumerate(rows.entities)]
        for e, entity in enumerate(rows.entities):  # their covariances, from the old rows alone
            self._update_entity(e, entity, self.before[e])

    @property
    def n(self) -> float:
        """The number of rows, including past ones."""
        return self.rows.n + self.n_before

    def statistics(self, e: int) -> Statistics:
        """Return the statistics of all rows for an entity, given the others."""
        new, old = super().statistics(e), self.before[e]
        return Statistics(new.G + old.G, new.h + old.h, new.rest + old.rest)

    def _update_intercept(self, residual: float) -> None:
        """Keep b, which is part of the sums of old rows; the means of fields move instead."""


class RunningLabelMachine(LabelSweeps, RunningMachine):
    """A machine of log-odds that goes on from sums over labels that are gone."""

    def __init__(self, running: RunningLevels, batch: Batch, rows: FieldRows) -> None:
        self.labels = LabelRows.of(rows)
        super().__init__(running, batch, self.labels.merged)

    @property
    def n(self) -> float:
        """The number of labels, those that are gone included."""
        return self.labels.n + self.n_before

    def _rows_bound(self) -> float:
        """Return what labels add to the bound, those that are gone as targets."""
        gone = squared_error(self.before[-1], self.state[-1])
        return super()._rows_bound() - float(self.noise.mean) * gone / 2


def learned(
    running: RunningLevels | None,
    source: MemorySource,
    fields: Sequence[np.ndarray],
    plan: LevelPlan,
) -> RunningLevels | None:
    """Return the state after a batch; None if no machine can fit the rows of a first batch.

    Rows without a level of each field are left out.
    """
    X = csr_matrix(source.X, dtype=np.float64)
    X.eliminate_zeros()
    y = np.asarray(source.y, dtype=np.float64)
    weight = np.ones(len(y)) if source.weight is None else np.asarray(source.weight, np.float64)
    keep = np.flatnonzero((weight > 0) & complete(X, fields))
    X, y, weight = X[keep], y[keep], weight[keep]
    if running is None:
        return _first(X, y, weight, fields, plan)
    if not len(y):
        return running
    batch = Batch.of(Frame.after(running, X, fields), X, fields)
    units = (running.target_mean, running.target_scale)
    weight = weight if plan.logistic else running.share * weight
    lines = _Lines(batch.frame.beside, X)
    rows = batch.rows(lines.off(y), weight, *units)
    kind = RunningLabelMachine if plan.logistic else RunningMachine
    machine = kind(running, batch, rows)
    deque(sweeps(machine, plan.most_sweeps, plan.tol), maxlen=0)
    return _kept(machine, batch, running.share, lines.after(machine, y, weight))


def _first(
    X: csr_matrix,
    y: np.ndarray,
    weight: np.ndarray,
    fields: Sequence[np.ndarray],
    plan: LevelPlan,
) -> RunningLevels | None:
    """Learn a first batch."""
    frame = Frame.first(X, y, weight, fields, plan.loose)
    if frame is None:
        return None
    batch, rng = Batch.of(frame, X, fields), np.random.default_rng(plan.seed)
    share = 1.0 if plan.logistic else Tally.of(Chunk(X, y, weight)).share
    lines, weight = _Lines(frame.beside, X), share * weight
    rest = lines.off(y)
    mean = float(np.average(rest, weights=weight))
    scale = float(np.sqrt(np.average((rest - mean) ** 2, weights=weight))) or 1.0
    rows = batch.rows(rest, weight, mean, scale)
    signs = default_signs(rows, plan.rank)
    machine = (
        LabelMachine(rows, signs, rng)
        if plan.logistic
        else FieldMachine(rows, signs, rng, sampled=False)
    )
    deque(inferred(machine, plan.most_sweeps, plan.tol), maxlen=0)
    if not plan.logistic and np.ptp(y) > 0 and (_is_noiseless(machine) or lines.interact(machine)):
        return None
    return _kept(machine, batch, share, lines.after(machine, y, weight))


def _is_noiseless(machine: FieldMachine) -> bool:
    return float(machine.noise.mean) > 1 / NOISELESS**2


class _Lines:
    """The contribution of columns that follow no field to the rows of a batch."""

    def __init__(self, beside: RunningSlopes | None, X: csr_matrix) -> None:
        self.beside, self.Z = beside, None if beside is None else beside.values(X)

    def off(self, y: np.ndarray) -> np.ndarray:
        """Return the targets without this contribution."""
        return y if self.beside is None else y - self.Z @ self.beside.slopes

    def interact(self, machine: FieldMachine) -> bool:
        """Return whether the residual of the machine shows products of the columns."""
        if self.beside is None or self.Z is None:
            return False
        rows = machine.rows
        columns = LooseColumns(self.beside.columns, self.beside.slopes, self.Z)
        levels = [entity.of_row for entity in rows.entities]
        return columns.interact(rows.y - _values(machine), rows.weight, levels)

    def after(
        self, machine: FieldMachine, y: np.ndarray, weight: np.ndarray
    ) -> RunningSlopes | None:
        """Return the slopes with the sums of the batch added."""
        if self.beside is None or self.Z is None:
            return None
        f = machine.rows.shift + machine.rows.scale * _values(machine)
        return self.beside.fed(self.Z, y - f, weight)


def _values(machine: FieldMachine) -> np.ndarray:
    """Return the predictions of the rows at the means of all levels (n,), standardised."""
    parts = [
        theta.mean[:, entity.of_row]
        for theta, entity in zip(machine.state, machine.rows.entities, strict=True)
    ]
    total, cross = joined(parts, machine.signs)
    return np.asarray(machine.b + total[0] + cross)


def _kept(
    machine: FieldMachine, batch: Batch, share: float, beside: RunningSlopes | None
) -> RunningLevels:
    """Return the sums of all rows, and the machine."""
    rows, frame, K = machine.rows, batch.frame, len(machine.signs) + 1
    i, j = np.triu_indices(K)
    stats = [machine.statistics(e) for e in range(len(rows.entities))]
    slots, patterns = batch.slots, frame.patterns
    table = np.empty((len(frame.columns), K))
    for member, levels in machine.members():
        table[member.columns] = levels.mean.T
    joint = csr_matrix(vstack(patterns))
    first, second = penalties(machine)
    line = machine.calibration() if isinstance(machine, LabelSweeps) else Calibration()
    return RunningLevels(
        entities=frame.entities,
        columns=frame.columns,
        mean=frame.mean,
        scale=frame.scale,
        table=table,
        data=joint.data,
        indices=joint.indices.astype(np.int64),
        indptr=joint.indptr.astype(np.int64),
        counts=np.array([each.shape[0] for each in patterns]),
        G=np.concatenate([s.G[:, :, at][i, j] for s, at in zip(stats, slots, strict=True)], axis=1),
        h=np.concatenate([s.h[:, at] for s, at in zip(stats, slots, strict=True)], axis=1),
        rests=np.array([each.rest for each in stats]),
        means=machine.means,
        shapes=np.array([float(each.shape) for each in machine.precisions]),
        rates=np.array([each.rate for each in machine.precisions]),
        signs=machine.signs,
        noise_shape=float(machine.noise.shape),
        noise_rate=float(machine.noise.rate),
        intercept=float(machine.b),
        target_mean=rows.shift,
        target_scale=rows.scale,
        weight=machine.n,
        share=share,
        error=rows.scale**2 * machine.error / machine.n,
        penalties=(first / share, second / share),
        beside=beside,
        calibration=(line.shift, line.slope),
    )
