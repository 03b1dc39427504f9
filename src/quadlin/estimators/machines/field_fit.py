"""Rows of fields, numbers and lists, fitted by sweeps: sampled, then variational, with draws."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from quadlin.core.arrays import is_numpy, to_numpy
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.estimators.checks import check_row_count, check_weights, warn_if_constant
from quadlin.estimators.fitted import Fitted, Job
from quadlin.estimators.tasks import Task
from quadlin.solve.composite.fitting import law_of
from quadlin.solve.fields.contexts import Contexts, Frame, Learned, draws_of
from quadlin.solve.fields.sampled_law import LAW_DRAWS, law_of_draws
from quadlin.solve.fields.sweeping import Sweeping
from quadlin.solve.fits.uncertainty import warn_if_unknown
from quadlin.solve.lowrank.types import FIXED, Status

GATHERED = 2**30  # bytes of a source that is read into memory
EXPLORED_WARM = 10  # sampled sweeps from an earlier fit
AUTO_RANK = 8  # components at the start of rank="auto"; those that the rows do not need vanish
NOISELESS = 0.01  # standard deviations of y: with less noise, least squares needs no penalty


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
    warn_if_constant(surveyed)
    inference = _Sweeps(job, source, surveyed, share, labels, before)
    try:
        inference.run(draws)
    except KeyboardInterrupt:
        if not inference.sweeping.history:
            raise
    fitted = inference.fitted()
    if fitted.status is Status.interrupted:
        return fitted
    if draws is None:
        fitted = replace(fitted, posterior=inference.sweeping.contexts.posterior(share))
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
        self.rows, self.on_step = job.rows, job.on_step
        self.fields, self.rng = task.make_units.fields, np.random.default_rng(task.seed)
        frame = Frame.of(source, self.fields, surveyed.features, labels, task.robust)
        signs = frame.signs(rank_of(task))
        if before is not None and not (
            np.array_equal(before.frame.group, frame.group) and len(before.signs) == len(signs)
        ):
            before = None
        contexts = Contexts(source, frame, signs, self.rng, labels, task.robust, before)
        self.sweeping = Sweeping(contexts, job.rows, task, surveyed, share)
        self.explored = None if before is None else EXPLORED_WARM
        self.drawn: list[Learned] = []

    def run(self, draws: int | None) -> None:
        """Sweep, and go on from the sampler where there are draws."""
        if draws is None and self.task.uncertainty:
            draws = LAW_DRAWS
        on_step = self.on_step
        show = None if on_step is None else lambda: on_step(lambda: self.fitted().attributes())
        self.sweeping.run(
            show, None if draws is None else partial(self._draw, draws), self.explored
        )

    def _draw(self, draws: int) -> None:
        for learned, error in self.sweeping.contexts.draw(draws):
            self.drawn.append(learned)
            self.sweeping.note(error)

    def fitted(self) -> Fitted:
        """Return what was learned so far."""
        state, options = self.sweeping.fit()
        fitted = Fitted.of(self.task, state, options, self.sweeping.surveyed.tally)
        draws = None
        if self.drawn and not self.task.uncertainty:
            draws = draws_of(self.drawn, self.fields, self.rng)
        return replace(fitted, draws=draws, noise=self.sweeping.learned().deviation)

    def with_law(self, fitted: Fitted) -> Fitted:
        """Return a fit with its standard errors: how far draws from the posterior are from it.

        Robust ones are those of least squares with the penalties that the priors come to, scaled.
        """
        task, rows = self.task, self.rows
        try:
            law = None
            if task.uncertainty == "robust":
                law = law_of(fitted.state, rows, fitted.options, task)
                warn_if_unknown(law, fitted.learned.tally)
            n = float(fitted.n_rows)  # weights are relative
            law = law_of_draws(rows, fitted.state, n, self.drawn, self.fields, self.rng, law)
        except KeyboardInterrupt:  # the model is there, its standard errors are not
            return fitted.interrupted()
        return replace(fitted, law=law).with_passes(rows)
