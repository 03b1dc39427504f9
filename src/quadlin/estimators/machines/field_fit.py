"""Rows made of one-hot fields, fitted by their posterior: variational, or by draws from it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from quadlin.core.arrays import is_numpy, to_numpy
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.estimators.machines.context_fit import are_swept, fit_contexts
from quadlin.estimators.machines.field_law import with_law
from quadlin.estimators.machines.robust_fields import ROUNDS, RobustRows
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import Job, OnStep, fit
from quadlin.estimators.regression.tasks import Task
from quadlin.estimators.rows.input_errors import check_row_count, check_weights, warn_of_target
from quadlin.solve.choose.rank_climb import too_wide
from quadlin.solve.fields.field_machine import FieldMachine, Sweep
from quadlin.solve.fields.field_predict import field_model
from quadlin.solve.fields.field_rows import default_signs, has_many_entities, may_follow
from quadlin.solve.fields.field_table import FieldTable, field_table
from quadlin.solve.fields.gibbs import Draws, draw
from quadlin.solve.fields.label_machine import BURN_IN as LABEL_BURN_IN
from quadlin.solve.fields.label_machine import SHARE as LABEL_SHARE
from quadlin.solve.fields.label_machine import LabelMachine
from quadlin.solve.fields.variational import (
    AUTO_RANK,
    BOUND_TOL,
    NOISELESS,
    SWEEPS,
    inferred,
    kept,
    penalties,
)
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.types import FIXED, Record, Status
from quadlin.solve.lowrank.whitening import Identity

GATHERED = 2**30  # bytes of a source that is read into memory


def fit_fields(
    job: Job, draws: int | None, loose: bool = False, labels: bool = False
) -> Fitted | None:
    """Fit rows of one-hot fields by their posterior; None where the rows are not of that kind.

    Weights count observations (`Tally`). With `draws`, the predictions are means over so many
    draws. With `loose` there may be columns that follow no field. With `labels`, the targets are
    labels 0 and 1, their weights count rows as they are, and the log-odds are fitted. Rows of more
    than two entities are fitted by sweeps over their columns (`fit_contexts`).
    """
    task, rows, on_step = job.task, job.rows, job.on_step
    source: Any = job.source
    fields = task.make_units.fields
    if isinstance(source, Source):
        source = gathered(rows, source, fields, loose)
    if not _may_qualify(source, fields, loose):
        return None
    surveyed = rows.reduce(survey)
    check_row_count(surveyed.tally.rows)
    check_weights(surveyed.tally, task.make_units.dtype)
    share = 1.0 if labels else surveyed.tally.share
    if share != 1:
        weight = np.ones(len(source.y)) if source.weight is None else np.asarray(source.weight)
        source = replace(source, weight=share * weight)
    swept = are_swept(task) and float(surveyed.target.var[0]) > 0
    if swept and len(fields) > 2 and has_many_entities(csr_array(source.X), fields):
        warn_of_target(surveyed, task.options)
        fitted = fit_contexts(job, source, surveyed, share, draws, labels)
        if _is_exact(fitted, source) and draws is None and not labels:
            return _without_penalty(task, rows, fitted, on_step)
        return fitted
    robust = RobustRows.of(source) if task.robust else None
    if robust is not None:
        source, surveyed = robust.source, robust.surveyed(surveyed)
    slopes = loose and draws is None and not labels
    table = field_table(source, fields, surveyed.features, slopes)
    if table is None:
        if not swept or not too_wide(source.X.shape[1]):
            return None
        return fit_contexts(job, source, surveyed, share, draws, labels)
    warn_of_target(surveyed, task.options)
    inference = _Inference(task, surveyed, table, rows, share, labels=labels)
    try:
        status = inference.run(on_step)
        if robust is not None:
            inference, robust, status = _reweighted(inference, robust, status, rows, on_step)
            source, table = robust.source, inference.table
        if draws is not None and status is not Status.stopped:
            inference.sample(draws)
        fitted = inference.fitted(status)
        fitted = fitted if robust is None else replace(fitted, noise=robust.scale)
    except KeyboardInterrupt:
        if not inference.history:
            raise
        fitted = inference.fitted(status := Status.interrupted)
    done = draws is None and status in (Status.converged, Status.out_of_steps)
    if done and table.beside and not _products_of_fields_alone(fitted, table, source):
        return fit_contexts(job, source, surveyed, share, draws, labels) if swept else None
    if done and not labels and inference.history[-1].noise < NOISELESS * table.rows.scale:
        return _without_penalty(task, rows, fitted, on_step)
    if done and task.uncertainty:
        return with_law(task, rows, fitted, table, inference.machine)
    return fitted


def _is_exact(fitted: Fitted, source: MemorySource) -> bool:
    """Tell whether there is hardly any noise."""
    done = fitted.status in (Status.converged, Status.out_of_steps)
    return done and (fitted.noise or 0.0) < NOISELESS * float(np.std(np.asarray(source.y)))


def _may_qualify(source: Any, fields: Sequence[np.ndarray], loose: bool) -> bool:
    """Tell without a pass whether rows can be a `FieldTable`."""
    in_memory = isinstance(source, MemorySource) and is_numpy(source.X)
    return in_memory and len(fields) > 1 and _may_fit(source.X, fields, loose)


def _may_fit(X: Any, fields: Sequence[np.ndarray], loose: bool) -> bool:
    return (loose and too_wide(X.shape[1])) or may_follow(X, fields)


def gathered(
    rows: Rows, source: Source, fields: Sequence[np.ndarray], loose: bool = False
) -> MemorySource | None:
    """Read encoded rows of a source into memory; None if they do not qualify or are too many."""
    if len(fields) < 2 or not source.sparse or source.client() is not None:
        return None
    chunks: list[Chunk] = []
    size = 0
    for chunk in rows.walk():
        if not chunks and not _may_fit(chunk.X, fields, loose):
            return None
        chunks.append(chunk)
        size += 16 * chunk.X.nnz  # a number and where it stands, a target and a weight
        if size > GATHERED:
            return None
    X = csr_array(vstack([chunk.X for chunk in chunks], "csr"))
    weighted = chunks[0].weight is not None
    y, weight = (
        np.concatenate([to_numpy(part) for part in parts]) if parts else None
        for parts in ([c.y for c in chunks], [c.weight for c in chunks] if weighted else [])
    )
    return MemorySource(X, y, weight)


def _products_of_fields_alone(fitted: Fitted, table: FieldTable, source: Any) -> bool:
    """Tell whether there are products, and errors show none of the loose columns."""
    if table.beside is None or not len(fitted.state.model.s):
        return False
    error = np.asarray(source.y, dtype=np.float64) - np.asarray(fitted.predict(source.X))
    levels = [entity.of_row for entity in table.rows.entities]
    return not table.beside.interact(error, source.weight, levels)


def _without_penalty(task: Task, rows: Rows, fitted: Fitted, on_step: OnStep | None) -> Fitted:
    """Go on by least squares, where there are enough rows: without noise it is exact."""
    options = replace(fitted.options, alpha=(0.0, 0.0))
    dof = options.dof(*fitted.state.model.U.shape)
    if fitted.n_rows < dof:
        return fitted
    exact = fit(replace(task, options=options, automatic=FIXED), rows, fitted.state, on_step)
    return exact if exact.is_begun else fitted.interrupted()


def _reweighted(
    inference: "_Inference", robust: RobustRows, status: Status, rows: Rows, on_step: OnStep | None
) -> tuple["_Inference", RobustRows, Status]:
    """Fit again with the weights of residuals until they have settled."""
    before = inference
    for _ in range(ROUNDS):
        again = robust.again(inference.fitted(status).predict(robust.given.X, clip=False))
        if status not in (Status.converged, Status.out_of_steps) or again.is_settled(robust):
            break
        surveyed, first = again.surveyed(before.surveyed), before.table
        table = field_table(again.source, first.fields, surveyed.features, first.beside is not None)
        if table is None:
            break
        args = (before.task, surveyed, table, rows, before.share, inference.history)
        inference, robust = _Inference(*args), again
        status = inference.run(on_step)
    return inference, robust, status


class _Inference:
    """Variational inference sweep by sweep, perhaps followed by draws; a sweep counts as a pass."""

    def __init__(
        self,
        task: Task,
        surveyed: Survey,
        table: FieldTable,
        rows: Rows,
        share: float,
        history: Sequence[Sweep] = (),
        labels: bool = False,
    ) -> None:
        self.task, self.surveyed, self.table, self.counter = task, surveyed, table, rows.counter
        self.walks, self.share = rows.walks, share  # `share`: of the weights, counted as rows
        rank = AUTO_RANK if task.automatic.rank else task.options.rank
        signs = default_signs(table.rows, rank)
        rng = np.random.default_rng(task.seed)
        self.machine = (
            LabelMachine(table.rows, signs, rng)
            if labels
            else FieldMachine(table.rows, signs, rng, sampled=False)
        )
        self.history = list(history)  # of earlier rounds
        self.begun = history[-1].sweep if history else 0
        self.point = self._point()  # after the last sweep
        self.penalties = (0.0, 0.0)
        self.draws: Draws | None = None

    def run(self, on_step: OnStep | None) -> Status:
        """Sweep until the bound hardly rises; then log-odds are those of mean probabilities."""
        status = self._swept(on_step)
        if isinstance(self.machine, LabelMachine):
            self.point = self.machine.calibration().of(*self.point)
        return status

    def _swept(self, on_step: OnStep | None) -> Status:
        options, most = self.task.options, SWEEPS * self.task.options.max_iter
        for line, converged in inferred(self.machine, most, BOUND_TOL * options.tol):
            self.point = self._point()
            first, second = penalties(self.machine)
            self.penalties = (first / self.share, second / self.share)
            self.history.append(line._replace(sweep=self.begun + line.sweep))
            self.counter.count += 1
            if converged:
                return Status.converged
            if on_step is None or line.sweep % SWEEPS:
                continue
            if on_step(lambda: self.fitted(Status.stopped).attributes()):
                return Status.stopped
        return Status.out_of_steps

    def _point(self) -> tuple[float, np.ndarray]:
        """Return b and the table of coefficients, slopes of loose columns among them."""
        b, table = self.machine.table(self.table.fields)
        beside = self.table.beside
        if beside is not None:
            table[beside.columns, 0] = beside.slopes
            shift = (self.table.mean * self.table.scale)[beside.columns]
            b -= float(shift @ beside.slopes)
        return b, table

    def sample(self, draws: int) -> None:
        """Draw from the posterior."""
        machine, fields = self.machine, self.table.fields
        if isinstance(machine, LabelMachine):
            machine.exact, burn_in = True, max(LABEL_BURN_IN, int(LABEL_SHARE * draws))
            drawn = draw(machine, fields, draws, burn_in, labels=True)
        else:
            drawn = draw(machine, fields, draws)
        tables, centred = self.table.raw(drawn.tables), self.table.raw(drawn.centred)
        self.draws = replace(drawn, tables=tables, centred=centred, history=())
        before, self.counter.count = len(self.history), self.counter.count + len(drawn.history)
        self.history += [line._replace(sweep=before + line.sweep) for line in drawn.history]

    def fitted(self, status: Status) -> Fitted:
        """Return what was learned so far."""
        make_units, surveyed = self.task.make_units, self.surveyed
        exact = replace(make_units, dtype=np.dtype(np.float64))
        moments = (surveyed.features, surveyed.target)
        (b, table), layout, signs = self.point, self.table.layout, self.machine.signs
        model = field_model(b, self.table.raw(table), layout, signs, exact(*moments))
        units = make_units(*moments)
        # Log-odds of one are large, whatever the standard deviation of the labels.
        size = 1 / units.target.scale if isinstance(self.machine, LabelMachine) else 1.0
        model = kept(model, units, self.task.automatic.rank, size)
        history = tuple(
            Record(-(-line.sweep // SWEEPS), self.walks + line.sweep, line.loss)
            for line in self.history
        )
        state = FitState(model, units, *moments, history, status, Identity())
        options = replace(self.task.options, rank=len(model.s), alpha=self.penalties)
        fitted = Fitted.of(self.task, state, options, surveyed.tally)
        return replace(fitted, draws=self.draws, noise=self.history[-1].noise)
