"""Sweeps over rows in memory, each counted as a pass, with the fit after any of them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from quadlin.core.model import with_rank
from quadlin.core.moments import Moments, Survey
from quadlin.core.rows import Rows
from quadlin.solve.fields.contexts import Contexts, Learned
from quadlin.solve.fields.swept_machine import HELD, infer
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.types import Options, Plan, Record, Status
from quadlin.solve.lowrank.whitening import Identity

SWEEPS = 2  # that count as one of the `max_iter` steps
BOUND_TOL = 50.0  # times `tol`: the rise of the bound per row and sweep below which sweeps end
NEGLIGIBLE = 0.01  # standard deviations of y that a component adds to the predictions


@dataclass
class Sweeping:
    """The sweeps of one fit, and what they have learned so far."""

    contexts: Contexts
    rows: Rows  # whose counter they add to
    plan: Plan
    surveyed: Survey
    share: float  # by which weights were multiplied to count rows
    columns: np.ndarray | None = None  # of the rows, that the sweeps visit; None: all
    history: list[Record] = field(default_factory=list)  # one for each sweep
    status: Status = Status.interrupted  # until the sweeps end

    def run(
        self,
        on_step: Callable[[], bool] | None = None,
        between: Callable[[], None] | None = None,
        explored: int | None = None,
        refined: int | None = None,
    ) -> None:
        """Sweep, sampled and then variational; `on_step` is called after the latter.

        `between` is called where the sampler has settled. Their numbers may be given; from an
        earlier fit, or without products, there is no other optimum for the sampler to look for.
        """
        machine, options = self.contexts.machine, self.plan.options
        most, held = SWEEPS * options.max_iter, HELD if explored is None else 0
        explored = min(machine.explored if explored is None else explored, -(-3 * most // 5))
        enough = machine.refined if refined is None else refined
        refined, ends = min(enough, most - explored), False
        for last in infer(machine, explored, refined, BOUND_TOL * options.tol, between, held):
            self.note(machine.error)
            ends = last
            if on_step is not None and not machine.sampled:
                self.status = Status.stopped
                if on_step():
                    return
                self.status = Status.interrupted
        done = ends and (refined == enough or len(self.history) < explored + refined)
        self.status = Status.converged if done else Status.out_of_steps

    def note(self, error: float) -> None:
        """Count a sweep, and record the sum of its squared errors."""
        self.rows.counter.count += 1
        loss = error * self.contexts.frame.unit**2 / self.contexts.machine.n
        step = 1 + len(self.history) // SWEEPS
        self.history.append(Record(step, self.rows.walks, loss))

    def learned(self) -> Learned:
        """Return what the sweeps have learned, of all columns."""
        learned, maker = self.contexts.learned(), self.plan.make_units
        if self.columns is None:
            return learned
        return learned.moved(self.columns, maker.fields, len(maker.names))

    def fit(self) -> tuple[FitState, Options]:
        """Return the fit so far, and the options with its rank and equivalent penalties."""
        moments = (self.surveyed.features, self.surveyed.target)
        state, options = fit_of(self.learned(), self.plan, moments, self.share)
        return replace(state, history=tuple(self.history), status=self.status), options


def fit_of(
    learned: Learned, plan: Plan, moments: tuple[Moments, Moments], share: float
) -> tuple[FitState, Options]:
    """Return what was learned as a fit without a history, with its rank and equivalent penalties.

    The model has no negligible components if the rank is chosen.
    """
    units = plan.make_units(*moments)
    exact = replace(plan.make_units, dtype=np.dtype(np.float64))(*moments)
    model = learned.model(plan.make_units.fields, exact)
    if plan.automatic.rank:
        size = (1.0 if learned.labels else learned.frame.unit) / units.target.scale
        model = with_rank(model, int(np.sum(np.abs(model.s) > NEGLIGIBLE * size)))
    dtype = units.scale.dtype
    arrays = {name: getattr(model, name).astype(dtype) for name in ("U", "s", "w")}
    model = replace(model, free=units.free, **arrays)
    on_w, on_M = learned.penalties(exact)
    options = replace(plan.options, rank=len(model.s), alpha=(on_w / share, on_M / share))
    return FitState(model, units, *moments, (), Status.converged, Identity()), options
