"""Rows of fields, numbers and lists, fitted by sweeps: sampled, then variational, with draws."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix, vstack

from quadlin.core.arrays import is_numpy, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.estimators.checks import check_row_count, check_weights, warn_of_target
from quadlin.estimators.fitted import Fitted, Job
from quadlin.estimators.tasks import Task
from quadlin.solve.composite.fitting import law_of
from quadlin.solve.fields.contexts import Contexts, Frame, Learned, draws_of, kept
from quadlin.solve.fields.draws import predict_all
from quadlin.solve.fields.swept_machine import HELD, infer
from quadlin.solve.fits.error_steps import ErrorSteps
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.status_advice import warn_if_unknown
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.types import FIXED, Record, Status
from quadlin.solve.lowrank.whitening import Identity

GATHERED = 2**30  # bytes of a source that is read into memory
AUTO_RANK = 8  # components at the start of rank="auto"; those that the rows do not need vanish
NOISELESS = 0.01  # standard deviations of y: with less noise, least squares needs no penalty
EXPLORED_WARM = 10  # sampled sweeps from an earlier fit
SWEEPS = 2  # that count as one of the `max_iter` steps
BOUND_TOL = 50.0  # times `tol`: the rise of the bound per row and sweep below which sweeps end
LAW_DRAWS = 100  # a standard error is then uncertain by 7%, a mean variance over rows by far less
COMPARED = 1000  # rows on which laws and draws are compared


def fit_fields(
    job: Job, draws: int | None, labels: bool = False, before: Learned | None = None
) -> Fitted | None:
    """Fit rows with at least two one-hot fields by their posterior; None for other rows.

    Weights count observations (`Tally`). With `draws`, the predictions are means over so many
    draws. With `labels`, the targets are labels 0 and 1, their weights count rows as they are, and
    the log-odds are fitted. Sweeps begin with what a machine has learned `before`, if it has the
    same columns and rank.
    """
    task, rows = job.task, job.rows
    source: Any = job.source
    if isinstance(source, Source):
        source = gathered(rows, source, task.make_units.fields)
    in_memory = isinstance(source, MemorySource) and is_numpy(source.X)
    if not in_memory or len(task.make_units.fields) < 2:
        return None
    surveyed = rows.reduce(survey)
    check_row_count(surveyed.tally.rows)
    check_weights(surveyed.tally, task.make_units.dtype)
    share = 1.0 if labels else surveyed.tally.share
    if share != 1:
        weight = np.ones(len(source.y)) if source.weight is None else np.asarray(source.weight)
        source = replace(source, weight=share * weight)
    warn_of_target(surveyed, task.options)
    inference = _Sweeps(job, source, surveyed, share, labels, before)
    try:
        fitted = inference.fitted(inference.run(draws))
    except KeyboardInterrupt:
        if not inference.history:
            raise
        return inference.fitted(Status.interrupted)
    if draws is None:
        fitted = replace(fitted, posterior=inference.contexts.posterior(share))
    if fitted.status is Status.stopped or draws is not None or labels:
        return fitted
    if (fitted.noise or 0.0) < NOISELESS * float(np.std(np.asarray(source.y))):
        return _without_penalty(job, fitted)
    return inference.with_law(fitted) if task.uncertainty else fitted


def gathered(rows: Rows, source: Source, fields: Sequence[np.ndarray]) -> MemorySource | None:
    """Read encoded rows of a source into memory; None if they do not qualify or are too many."""
    if len(fields) < 2 or not source.sparse or source.client() is not None:
        return None
    chunks: list[Chunk] = []
    size = 0
    for chunk in rows.walk():
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


def rank_of(task: Task) -> int:
    """Return how many components sweeps begin with."""
    return AUTO_RANK if task.automatic.rank else task.options.rank


def _without_penalty(job: Job, fitted: Fitted) -> Fitted:
    """Go on by least squares, where there are enough rows: without noise it is exact."""
    options = replace(fitted.options, alpha=(0.0, 0.0))
    dof = options.dof(*fitted.state.model.U.shape)
    if fitted.n_rows < dof:
        return fitted
    told = replace(job.task, options=options, automatic=FIXED)
    exact = replace(job, task=told, warm=fitted.state).fitted()
    return exact if exact.is_begun else fitted.interrupted()


class _Sweeps:
    """Sweeps, each counted as a pass, and what they have learned so far."""

    def __init__(
        self,
        job: Job,
        source: MemorySource,
        surveyed: Survey,
        share: float,
        labels: bool,
        before: Learned | None,
    ) -> None:
        task = self.task = job.task
        self.rows, self.on_step, self.surveyed, self.share = job.rows, job.on_step, surveyed, share
        self.fields, self.rng = task.make_units.fields, np.random.default_rng(task.seed)
        frame = Frame.of(source, self.fields, surveyed.features, labels, task.robust)
        signs = frame.signs(rank_of(task))
        if before is not None and not (
            np.array_equal(before.frame.group, frame.group) and len(before.signs) == len(signs)
        ):
            before = None
        self.before = before
        self.contexts = Contexts(source, frame, signs, self.rng, labels, task.robust, self.before)
        self.history: list[float] = []  # the mean squared error after each sweep
        self.drawn: list[Learned] = []

    def run(self, draws: int | None) -> Status:
        """Sweep, and go on from the sampler where there are draws."""
        options = self.task.options
        most = SWEEPS * options.max_iter
        machine = self.contexts.machine
        explored, held = (machine.explored, HELD) if self.before is None else (EXPLORED_WARM, 0)
        explored = min(explored, -(-3 * most // 5))
        enough = machine.refined
        refined = min(enough, most - explored)
        if draws is None and self.task.uncertainty:
            draws = LAW_DRAWS
        between = None if draws is None else partial(self._draw, draws)
        on_step, done = self.on_step, False
        for ended in infer(machine, explored, refined, BOUND_TOL * options.tol, between, held):
            self._note(machine.error)
            done = ended
            if on_step is None or machine.sampled:
                continue
            if on_step(lambda: self.fitted(Status.stopped).attributes()):
                return Status.stopped
        done = done and (refined == enough or len(self.history) < explored + refined)
        return Status.converged if done else Status.out_of_steps

    def _draw(self, draws: int) -> None:
        for learned, error in self.contexts.draw(draws):
            self.drawn.append(learned)
            self._note(error)

    def _note(self, error: float) -> None:
        self.rows.counter.count += 1
        self.history.append(error * self.contexts.frame.unit**2 / self.contexts.machine.n)

    def fitted(self, status: Status) -> Fitted:
        """Return what was learned so far."""
        task, surveyed, machine = self.task, self.surveyed, self.contexts.machine
        moments = (surveyed.features, surveyed.target)
        exact = replace(task.make_units, dtype=np.dtype(np.float64))
        units = task.make_units(*moments)
        size = (1.0 if machine.labels else self.contexts.frame.unit) / units.target.scale
        learned = self.contexts.learned()
        model = learned.model(self.fields, exact(*moments))
        model = kept(model, units, task.automatic.rank, size)
        history = tuple(
            Record(-(-(i + 1) // SWEEPS), self.rows.walks - len(self.history) + i + 1, loss)
            for i, loss in enumerate(self.history)
        )
        state = FitState(model, units, *moments, history, status, Identity())
        on_w, on_M = learned.penalties()
        alpha = (on_w / self.share, on_M / self.share)
        options = replace(task.options, rank=len(model.s), alpha=alpha)
        fitted = Fitted.of(task, state, options, surveyed.tally)
        draws = None
        if self.drawn and not task.uncertainty:
            draws = draws_of(self.drawn, self.fields, self.rng)
        return replace(fitted, draws=draws, noise=learned.deviation)

    def with_law(self, fitted: Fitted) -> Fitted:
        """Return a fit with its standard errors: how far draws from the posterior are from it.

        Robust ones are those of least squares with the penalties that the priors come to. Either
        way the errors are scaled, since draws also differ from the model beyond its tangent space:
        the mean square of their predictions' distances from its own, and the noise, are those of
        the draws.
        """
        task, rows = self.task, self.rows
        try:
            law = None
            if task.uncertainty == "robust":
                law = law_of(fitted.state, rows, fitted.options, task, fitted.learned.tally)
                warn_if_unknown(law, fitted.learned.tally)
            law = self._scaled(law, fitted)
        except KeyboardInterrupt:  # the model is there, its standard errors are not
            return fitted.interrupted()
        return replace(fitted, law=law).with_passes(rows)

    def _scaled(self, law: Uncertainty | None, fitted: Fitted) -> Uncertainty:
        """Return a law whose errors of predictions are those of draws, on average over new rows.

        Without one, its steps are the draws themselves.
        """
        units, X = fitted.state.units, next(iter(self.rows.walk())).X[:COMPARED]
        draws = draws_of(self.drawn, self.fields, self.rng)
        noise = draws.noise / units.target.scale

        def drawn(X: Any) -> np.ndarray:
            f = predict_all(X, draws.fields, draws.tables, draws.signs) + draws.intercepts
            return np.asarray(f / units.target.scale)

        if law is None:
            n = float(fitted.n_rows)  # weights are relative
            leverage = float(np.mean(np.var(drawn(X), axis=1))) / noise**2
            dof = min(n * leverage, n - 1)
            spread = _steps(fitted, self.drawn, self.fields)
            law = Uncertainty(units, spread, noise, 1.0, dof, n - dof, False, True, len(self.drawn))
        X = _new_pairs(csr_matrix(X), self.fields)
        f, model = drawn(X), np.asarray(fitted.predict(X)) / units.target.scale
        mean = float(np.mean((f - model[:, None]) ** 2))
        now = float(np.mean(law.predict_std(Block(X, units)) ** 2))
        factor = np.sqrt(mean / now) if now > 0 else 1.0
        return replace(law, error=law.error * factor, noise=noise)


def _new_pairs(X: csr_matrix, fields: Sequence[np.ndarray]) -> csr_matrix:
    """Return rows whose fields come from different rows: where draws differ most."""
    n, d = X.shape
    group = np.full(d, len(fields))
    for g, field in enumerate(fields):
        group[field] = g
    parts = [
        X[(np.arange(n) + 7 * g) % n].multiply(csr_matrix(group == g).astype(X.dtype))
        for g in range(len(fields) + 1)
    ]
    return csr_matrix(sum(parts[1:], parts[0]))


def _steps(fitted: Fitted, drawn: Sequence[Learned], fields: Sequence[np.ndarray]) -> ErrorSteps:
    """Return the deviations of draws from their mean, each divided by the root of their number.

    Levels are measured from the mean of their field over the rows, not from that of the prior.
    M changes by D within the tangent space of the model: U Hᵀ + H Uᵀ with H = DU − ½UUᵀDU.
    """
    model, units = fitted.state.model, fitted.state.units
    U, shares = to_numpy(model.U).astype(np.float64), to_numpy(fitted.state.features.mean)
    parts = []
    for each in drawn:
        draw = each.model(fields, units, shares)
        DU = (draw.U * draw.s) @ (draw.U.T @ U)
        parts.append((DU - U @ (U.T @ DU) / 2, draw.w, np.array(draw.c)))
    steps = []
    for part in zip(*parts, strict=True):
        deviations = (np.stack(part) - np.mean(part, axis=0)) / np.sqrt(len(parts))
        steps.append(np.moveaxis(deviations, 0, min(1, part[0].ndim)).astype(model.U.dtype))
    return ErrorSteps(model.U, *steps)
