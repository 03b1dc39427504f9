"""Rows made of one-hot fields, fitted by their posterior: variational, or by draws from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix, vstack

from quadlin.core.arrays import is_numpy, to_numpy
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.messages import Message, Option
from quadlin.core.model import with_rank
from quadlin.core.rows import Rows
from quadlin.core.survey import Survey, survey
from quadlin.data import Source
from quadlin.estimators.columns import check_weights
from quadlin.estimators.fitted import Fitted
from quadlin.estimators.fitting import Task, fit
from quadlin.estimators.input_errors import warn_of_target
from quadlin.estimators.parameters import is_auto
from quadlin.estimators.tasks import is_asked_for
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.column_choice import left_to_columns
from quadlin.solve.field_machine import FieldMachine, Sweep, sweeps
from quadlin.solve.field_predict import Layout, field_model, in_raw_columns
from quadlin.solve.field_rows import FieldRows, default_signs, field_rows, may_follow
from quadlin.solve.fit_state import FitState
from quadlin.solve.gibbs import Draws, draw
from quadlin.solve.types import Record, Status
from quadlin.solve.whitening import Identity
from quadlin.stream.stream import FIXED

AUTO_RANK = 8  # components at the start of rank="auto"; those that the rows do not need vanish
NEGLIGIBLE = 0.01  # standard deviations of y that a component adds to the predictions
NOISELESS = 0.01  # standard deviations of y: with so little noise least squares needs no penalty
SMALLEST = 1e-12  # of a prior variance, where a component vanishes
GATHERED = 2**30  # bytes of a source that is read into memory
SWEEPS = 4  # that count as one of the `max_iter` steps; Gauss–Newton takes some twelve passes
BOUND_TOL = 10.0  # times `tol`: the rise of the bound per row and sweep that is too little to go on

NOT_FIELDS = Message(
    "{draws} needs rows that fit into memory (1 GB of numbers), with at least two one-hot fields "
    "(columns of categories), in which every other column follows the level of one of "
    "them. Give only such columns, or leave {draws} out.",
    draws=Option("draws"),
)
NOT_A_STREAM = Message(
    "{draws} needs rows in memory that can be walked again: use `fit`, or leave {draws} out.",
    draws=Option("draws"),
)

OnStep = Callable[[Callable[[], dict[str, Any]]], bool]


def has_posterior(estimator: Any) -> bool:
    """Tell whether the options leave penalties to be learned, and ask for no other model."""
    learns = is_auto(estimator.alpha) and not estimator.uncertainty
    return learns and not _contradictions(estimator)


def check_draws(estimator: Any) -> None:
    """Refuse draws that cannot be taken, and options that they cannot be combined with."""
    draws = estimator.draws
    if not isinstance(draws, Integral) or isinstance(draws, bool) or draws < 2:
        raise ValueError(
            Message("{draws} must be None or a whole number ≥ 2.", draws=Option("draws", draws))
        )
    wrong = _contradictions(estimator)
    if estimator.uncertainty:
        wrong.append(Option("uncertainty", True))
    if not is_auto(estimator.alpha):
        wrong.append(Option("alpha", estimator.alpha))
    if wrong:
        raise ValueError(
            Message(
                "{draws} cannot be combined with {other}. Leave one of them out.",
                draws=Option("draws"),
                other=wrong[0],
            )
        )


def _contradictions(estimator: Any) -> list[Option]:
    """Return the options that ask for another model than the one that has a posterior here."""
    asked = [
        (Option("loss", estimator.loss), estimator.loss in ("huber", "poisson")),
        (Option("psd", True), estimator.psd),
        (Option("fit_linear", False), not estimator.fit_linear),
        (Option("fit_intercept", False), not estimator.fit_intercept),
        (Option("polish", False), not estimator.polish),
        (Option("pairs", estimator.pairs), is_asked_for(estimator.pairs)),  # perhaps a list
    ]
    return [option for option, wrong in asked if wrong]


@dataclass(frozen=True)
class FieldTable:
    """Rows of one-hot fields and functions of them, with numbers on a common scale."""

    rows: FieldRows
    fields: Sequence[np.ndarray]
    mean: np.ndarray  # (d,), taken off the columns
    scale: np.ndarray  # (d,), that they were multiplied by

    @property
    def layout(self) -> Layout:
        """Return which columns are levels of which field."""
        return Layout(tuple(np.asarray(field) for field in self.fields), self.rows.parts)

    def raw(self, table: np.ndarray) -> np.ndarray:
        """Return tables of coefficients for the user's columns."""
        return in_raw_columns(table, self.layout, self.mean, self.scale)


def _may_qualify(source: Any, fields: Sequence[np.ndarray]) -> bool:
    """Tell without a walk whether rows can be a `FieldTable`."""
    in_memory = isinstance(source, MemorySource) and is_numpy(source.X)
    return in_memory and len(fields) > 1 and may_follow(source.X, fields)


def gathered(rows: Rows, source: Source, fields: Sequence[np.ndarray]) -> MemorySource | None:
    """Read encoded rows of a source into memory; None if they do not qualify or are too many."""
    if len(fields) < 2 or not source.sparse or source.client() is not None:
        return None
    chunks: list[Chunk] = []
    size = 0
    for chunk in rows.walk():
        if not chunks and not may_follow(chunk.X, fields):
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


def field_table(source: Any, fields: Sequence[np.ndarray], surveyed: Survey) -> FieldTable | None:
    """Return rows in memory whose columns are all levels of fields or functions of them.

    None where they are not, or where there is only one entity and so no products.
    """
    X = csr_matrix(source.X, dtype=np.float64)
    mean, scale = _standard(X, surveyed)
    shifted = np.flatnonzero(mean)
    if len(shifted):
        X = X - csr_matrix(
            (
                np.tile(mean[shifted], X.shape[0]),
                np.tile(shifted, X.shape[0]),
                np.arange(X.shape[0] + 1) * len(shifted),
            ),
            shape=X.shape,
        )
    X = X.multiply(scale).tocsr()
    rows = field_rows(X, source.y, fields, source.weight)
    return None if rows.loose or len(rows.entities) < 2 else FieldTable(rows, fields, mean, scale)


def _standard(X: csr_matrix, surveyed: Survey) -> tuple[np.ndarray, np.ndarray]:
    """Return what is taken off the columns and what they are multiplied by; 0/1 stays 0/1.

    Numbers get standard deviation one, and mean zero unless most of them are zero.
    """
    moments, n = surveyed.features, X.shape[0]
    one_zero = np.isclose(moments.var, moments.mean * (1 - moments.mean))  # E x² = E x
    varies = moments.varies(np.float64) & ~one_zero
    entries = X.getnnz(axis=0)
    scale = np.where(varies, 1 / np.sqrt(np.where(varies, moments.var, 1.0)), 1.0)
    return np.where(varies & (2 * entries > n), moments.mean, 0.0), scale


def fit_fields(
    task: Task, rows: Rows, source: Any, draws: int | None, on_step: OnStep | None
) -> Fitted | None:
    """Fit rows of one-hot fields by their posterior; None where the rows are not of that kind.

    With `draws`, the predictions are means over so many draws.
    """
    fields = task.make_units.fields
    if isinstance(source, Source):
        source = gathered(rows, source, fields)
    if not _may_qualify(source, fields):
        return None
    surveyed = survey(rows)
    check_weights(surveyed.tally, task.make_units.dtype)
    rank = AUTO_RANK if task.automatic.rank else task.options.rank
    few = left_to_columns(rows, replace(task.options, rank=rank), surveyed, task.make_units)
    table = None if few and draws is None else field_table(source, fields, surveyed)
    if table is None:
        return None
    warn_of_target(surveyed, task.options)
    inference = _Inference(task, surveyed, table, rows)
    try:
        status = inference.run(on_step)
        if draws is not None and status is not Status.stopped:
            inference.sample(draws)
        fitted = inference.fitted(status)
    except KeyboardInterrupt:
        if not inference.history:
            raise
        fitted = inference.fitted(status := Status.interrupted)
    done = draws is None and status in (Status.converged, Status.out_of_steps)
    if done and inference.history[-1].noise < NOISELESS * table.rows.scale:
        return _without_penalty(task, rows, fitted, on_step)
    return fitted


def _without_penalty(task: Task, rows: Rows, fitted: Fitted, on_step: OnStep | None) -> Fitted:
    """Go on by least squares, where there are enough rows: without noise it is exact."""
    options = replace(fitted.options, alpha=(0.0, 0.0))
    dof = degrees_of_freedom(*fitted.state.model.U.shape, **options.parts)
    if fitted.stream.n_rows < dof:
        return fitted
    exact = fit(replace(task, options=options, automatic=FIXED), rows, fitted.state, on_step)
    return exact if exact.is_begun else fitted.interrupted()


class _Inference:
    """Variational inference sweep by sweep, perhaps followed by draws; a sweep counts as a walk."""

    def __init__(self, task: Task, surveyed: Survey, table: FieldTable, rows: Rows) -> None:
        self.task, self.surveyed, self.table, self.counter = task, surveyed, table, rows.counter
        self.walks = rows.walks
        rank = AUTO_RANK if task.automatic.rank else task.options.rank
        signs = default_signs(table.rows, rank)
        self.machine = FieldMachine(
            table.rows, signs, np.random.default_rng(task.seed), sampled=False
        )
        self.history: list[Sweep] = []
        self.point = self.machine.table(table.fields)  # after the last sweep
        self.penalties = (0.0, 0.0)
        self.draws: Draws | None = None

    def run(self, on_step: OnStep | None) -> Status:
        """Sweep until the bound hardly rises."""
        options, most = self.task.options, SWEEPS * self.task.options.max_iter
        for line, converged in sweeps(self.machine, most, BOUND_TOL * options.tol):
            self.point = self.machine.table(self.table.fields)
            self.penalties = _penalties(self.machine)
            self.history.append(line)
            self.counter.count += 1
            if converged:
                return Status.converged
            if on_step is None or line.sweep % SWEEPS:
                continue
            if on_step(lambda: self.fitted(Status.stopped).attributes()):
                return Status.stopped
        return Status.out_of_steps

    def sample(self, draws: int) -> None:
        """Draw from the posterior."""
        drawn = draw(self.machine, self.table.fields, draws)
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
        if self.task.automatic.rank:
            model = with_rank(model, int(np.sum(np.abs(model.s) > NEGLIGIBLE)))
        units = make_units(*moments)
        arrays = {name: getattr(model, name).astype(make_units.dtype) for name in ("U", "s", "w")}
        model = replace(model, free=units.free, **arrays)
        history = tuple(
            Record(-(-line.sweep // SWEEPS), self.walks + line.sweep, line.loss)
            for line in self.history
        )
        state = FitState(model, units, *moments, history, status, Identity())
        options = replace(self.task.options, rank=len(model.s), alpha=self.penalties)
        stream = self.task.stream(options, state).counted(surveyed.tally)
        return replace(self.task.fitted(stream), draws=self.draws, noise=self.history[-1].noise)


def _penalties(machine: FieldMachine) -> tuple[float, float]:
    """Return the penalties of w and M that the precisions of the two largest fields come to.

    A ridge weighs the coefficient of a one-hot column by its standard deviation, 1/√levels.
    """
    noise = 1 / float(machine.noise.mean)
    keys = [entity.members[-1] for entity in machine.rows.entities[:2]]
    precisions = [machine.precisions[key.group].mean for key in keys]
    roots = [len(key.columns) ** 0.5 for key in keys]
    on_w = sum(root * precision[0] for root, precision in zip(roots, precisions, strict=True)) / 2
    products = float(np.sum(1 / (precisions[0][1:] * precisions[1][1:])))
    on_M = roots[0] * roots[1] / max(products, SMALLEST)
    return noise * float(on_w), noise * on_M
