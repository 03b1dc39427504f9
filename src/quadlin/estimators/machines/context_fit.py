"""Rows of many fields, numbers and lists, fitted by sweeps over their columns."""

from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.core.moments import Survey
from quadlin.core.sweeps import MOST_UNKNOWNS
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import Job
from quadlin.estimators.regression.tasks import Task
from quadlin.solve.fields.contexts import Contexts
from quadlin.solve.fields.gibbs import Draws
from quadlin.solve.fields.swept_machine import EXPLORED, REFINED, Machine, infer
from quadlin.solve.fields.variational import AUTO_RANK, kept
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.types import Record, Status
from quadlin.solve.lowrank.whitening import Identity


def are_swept(task: Task) -> bool:
    """Tell whether the options allow sweeps: they have no standard errors and no robust loss."""
    return not task.uncertainty and not task.robust and _rank(task) < MOST_UNKNOWNS


def fit_contexts(
    job: Job, source: Any, surveyed: Survey, share: float, draws: int | None, labels: bool
) -> Fitted:
    """Fit rows in memory by sampled and then variational sweeps, one of `max_iter` each."""
    inference = _Sweeps(job, source, surveyed, share, labels)
    try:
        status = inference.run(draws)
    except KeyboardInterrupt:
        if not inference.history:
            raise
        status = Status.interrupted
    return inference.fitted(status)


def _rank(task: Task) -> int:
    return AUTO_RANK if task.automatic.rank else task.options.rank


class _Sweeps:
    """Sweeps, each counted as a pass, and what they have learned so far."""

    def __init__(self, job: Job, source: Any, surveyed: Survey, share: float, labels: bool) -> None:
        task = self.task = job.task
        self.rows, self.on_step, self.surveyed, self.share = job.rows, job.on_step, surveyed, share
        fields, rank = task.make_units.fields, _rank(task)
        self.contexts = Contexts.of(source, fields, surveyed.features, labels)
        several = len(self.contexts.columns.groups) > 2  # the signs of two do not matter
        signs = np.where(np.arange(rank) % 2, -1.0, 1.0) if several else np.ones(rank)
        rng = np.random.default_rng(task.seed)
        at = (self.contexts.columns, self.contexts.y, self.contexts.weight, signs, rng)
        self.machine = Machine(*at, labels=labels)
        self.history: list[float] = []  # the mean squared error after each sweep
        self.draws: Draws | None = None

    def run(self, draws: int | None) -> Status:
        """Sweep, and go on from the sampler where there are draws."""
        most = self.task.options.max_iter
        explored = min(EXPLORED, -(-2 * most // 3))
        refined = min(REFINED, most - explored)
        for number in infer(self.machine, explored, refined, self._draw if draws else None, draws):
            self._note(self.machine.error)
            stop = (
                self.on_step is not None
                and number > explored
                and self.on_step(lambda: self.fitted(Status.stopped).attributes())
            )
            if stop:
                return Status.stopped
        return Status.converged if refined == REFINED else Status.out_of_steps

    def _draw(self, draws: int) -> None:
        self.draws, errors = self.contexts.draw(self.machine, draws)
        for error in errors:
            self._note(error)

    def _note(self, error: float) -> None:
        self.rows.counter.count += 1
        self.history.append(error * self.contexts.unit**2 / self.machine.n)

    def fitted(self, status: Status) -> Fitted:
        """Return what was learned so far."""
        task, surveyed, machine = self.task, self.surveyed, self.machine
        moments = (surveyed.features, surveyed.target)
        exact = replace(task.make_units, dtype=np.dtype(np.float64))
        units = task.make_units(*moments)
        size = 1 / units.target.scale if machine.labels else 1.0
        if machine.point.cov is None:
            machine.begin_variational()
        model = kept(
            self.contexts.model(machine, exact(*moments)), units, task.automatic.rank, size
        )
        history = tuple(
            Record(i + 1, self.rows.walks - len(self.history) + i + 1, loss)
            for i, loss in enumerate(self.history)
        )
        state = FitState(model, units, *moments, history, status, Identity())
        on_w, on_M = self.contexts.penalties(machine)
        alpha = (on_w / self.share, on_M / self.share)
        options = replace(task.options, rank=len(model.s), alpha=alpha)
        fitted = Fitted.of(task, state, options, surveyed.tally)
        noise = self.contexts.unit / float(np.sqrt(machine.priors.noise))
        return replace(fitted, draws=self.draws, noise=noise)
