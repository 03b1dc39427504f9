"""The sweeps of one fit over rows in memory, each counted as a pass, and the fit they have reached.

Sampled sweeps find the products, variational ones leave one model, and draws go on from the
sampler between the two.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from scipy.sparse import csr_array, vstack

from quadlin.core.arrays import to_numpy
from quadlin.core.chunks import MemorySource
from quadlin.core.model import with_rank
from quadlin.core.moments import Moments, Survey
from quadlin.core.rows import Rows
from quadlin.solve.fields.contexts import Contexts, Frame, Learned, Posterior, weights_of
from quadlin.solve.fields.swept_machine import HELD, infer
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.types import Options, Plan, Record, Status
from quadlin.solve.lowrank.whitening import Identity

AUTO_RANK = 8  # components at the start of rank="auto"; those that the rows do not need vanish
SWEEPS = 3  # that count as one of the `max_iter` steps
EXPLORED_WARM = 10  # sampled sweeps from an earlier fit
BOUND_TOL = 50.0  # times `tol`: the rise of the bound per row and sweep below which sweeps end
NEGLIGIBLE = 0.01  # standard deviations of y that a component adds to the predictions


@dataclass
class Sweeping:
    """The sweeps of one fit, and what they have learned so far."""

    contexts: Contexts
    rows: Rows  # whose counter they add to
    plan: Plan
    surveyed: Survey
    share: float = 1.0  # by which weights were multiplied to count rows
    columns: np.ndarray | None = None  # of the rows, that the sweeps visit; None: all
    warm: bool = False  # whether they begin with an earlier fit
    history: list[Record] = field(default_factory=list)  # one for each sweep
    drawn: list[Learned] = field(default_factory=list)
    status: Status = Status.interrupted  # until the sweeps end

    @classmethod
    def of_fields(
        cls,
        source: MemorySource,
        rows: Rows,
        plan: Plan,
        surveyed: Survey,
        robust: bool = False,
        before: Learned | None = None,
    ) -> "Sweeping":
        """Return the sweeps over rows of fields, before the first one.

        The weights of labels count rows as they are, all others observations (`Tally`). Sweeps
        begin with what a machine has learned `before`, if it has the same columns and rank.
        """
        labels, fields = plan.options.loss == "logistic", plan.make_units.fields
        share = 1.0 if labels else surveyed.tally.share
        if share != 1:
            source = replace(source, weight=share * weights_of(source))
        frame = Frame.of(source, fields, surveyed.features, labels, robust)
        signs, rng = frame.signs(rank_of(plan)), np.random.default_rng(plan.seed)
        if before is not None and not (
            np.array_equal(before.frame.group, frame.group) and len(before.signs) == len(signs)
        ):
            before = None
        contexts = Contexts(source, frame, signs, rng, labels, robust, before)
        return cls(contexts, rows, plan, surveyed, share, warm=before is not None)

    def run_with_draws(self, draws: int | None, on_step: Callable[[], bool] | None) -> None:
        """Sweep, and go on from the sampler where there are draws.

        After Ctrl-C a last variational sweep makes a model of what is known, were it a draw.
        """
        between = None if draws is None else partial(self._draw, draws)
        try:
            self.run(on_step, between, EXPLORED_WARM if self.warm else None)
        except KeyboardInterrupt:
            if not self.history:
                raise
            if self.contexts.machine.sampled:
                self.contexts.machine.begin_variational()
            self.contexts.machine.sweep()

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
        explored = min(machine.explored if explored is None else explored, -(-2 * most // 3))
        enough = machine.refined if refined is None else refined
        refined, ends = min(enough, most - explored), False
        for last in infer(machine, explored, refined, BOUND_TOL * options.tol, between, held):
            self.note(machine.loss)
            ends = last
            if on_step is not None and not machine.sampled:
                self.status = Status.stopped
                if on_step():
                    return
                self.status = Status.interrupted
        done = ends and (refined == enough or len(self.history) < explored + refined)
        self.status = Status.converged if done else Status.out_of_steps

    def _draw(self, draws: int) -> None:
        for learned, loss in self.contexts.draw(draws):
            self.drawn.append(learned)
            self.note(loss)

    def note(self, loss: float) -> None:
        """Count a sweep, and record the mean of its losses."""
        self.rows.counter.count += 1
        mean = loss * self.contexts.frame.unit**2 / self.contexts.machine.n
        step = 1 + len(self.history) // SWEEPS
        self.history.append(Record(step, self.rows.walks, mean))

    def learned(self) -> Learned:
        """Return what the sweeps have learned, of all columns."""
        learned, maker = self.contexts.learned(), self.plan.make_units
        if self.columns is None:
            return learned
        return learned.moved(self.columns, maker.fields, len(maker.names))

    def posterior(self) -> Posterior:
        """Return what further rows can begin with."""
        return self.contexts.posterior(self.share)

    def fit(self) -> tuple[FitState, Options]:
        """Return the fit so far, and the options with its rank and equivalent penalties."""
        moments = (self.surveyed.features, self.surveyed.target)
        state, options = fit_of(self.learned(), self.plan, moments, self.share)
        return replace(state, history=tuple(self.history), status=self.status), options


def rank_of(plan: Plan) -> int:
    """Return how many components sweeps begin with."""
    return AUTO_RANK if plan.automatic.rank else plan.options.rank


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


def gathered(rows: Rows, most: int) -> MemorySource | None:
    """Return rows in memory, sparse; None if there are more of them than this."""
    chunks, n = [], 0
    for chunk in rows.walk():
        n += chunk.X.shape[0]
        if n > most:
            return None
        chunks.append(chunk)
    X = csr_array(vstack([csr_array(chunk.X) for chunk in chunks], "csr"))
    weighted = chunks[0].weight is not None
    y, weight = (
        np.concatenate([to_numpy(part) for part in parts]) if parts else None
        for parts in ([c.y for c in chunks], [c.weight for c in chunks] if weighted else [])
    )
    return MemorySource(X, y, weight)
