"""The sweeps of one fit over rows in memory, each counted as a pass, and the fit they have reached.

Sampled sweeps find the products, variational ones leave one model, and draws go on from the
sampler between the two.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import csr_array, vstack

from quadlin.core.arrays import to_numpy
from quadlin.core.chunks import MemorySource
from quadlin.core.model import with_rank
from quadlin.core.moments import Moments, Survey, survey
from quadlin.core.rows import Rows
from quadlin.solve.fields.machine import (
    ROUND,
    Frame,
    Learned,
    Machine,
    Posterior,
    refine,
    weights_of,
)
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.types import Options, Plan, Record, Status
from quadlin.solve.lowrank.whitening import Identity

AUTO_RANK = 8  # components at the start of rank="auto"; those that the rows do not need vanish
BOUND_TOL = 50.0  # times `tol`: the rise of the bound per row and sweep below which sweeps end
NEGLIGIBLE = 0.01  # standard deviations of y that a component adds, or that noise has
KEPT = 2**29  # bytes of what is kept beside a model: draws, or the first rows of a stream


@dataclass
class Sweeps:
    """The sweeps of one fit, and what they have learned so far."""

    machine: Machine
    rows: Rows  # whose counter they add to
    plan: Plan
    surveyed: Survey
    share: float = 1.0  # by which weights were multiplied to count rows
    history: list[Record] = field(default_factory=list)  # one for each sweep
    drawn: list[Learned] = field(default_factory=list)
    status: Status = Status.interrupted  # until the sweeps end

    @classmethod
    def of(
        cls,
        source: MemorySource,
        rows: Rows,
        plan: Plan,
        surveyed: Survey,
        rank: int | None = None,
        robust: bool = False,
        before: Learned | None = None,
    ) -> "Sweeps":
        """Return the sweeps over rows, before the first one; by default of the plan's rank.

        The weights of labels count rows as they are, all others observations (`Tally`). Sweeps
        begin with what a machine has learned `before`, if it has the same columns and rank.
        """
        labels, fields = plan.options.loss == "logistic", plan.make_units.fields
        share = 1.0 if labels else surveyed.tally.share
        if share != 1:
            source = replace(source, weight=share * weights_of(source))
        frame = Frame.of(source, fields, surveyed.features, labels, robust)
        signs = frame.signs(rank_of(plan) if rank is None else rank)
        if before is not None and not (
            np.array_equal(before.frame.group, frame.group) and len(before.signs) == len(signs)
        ):
            before = None
        rng = np.random.default_rng(plan.seed)
        machine = Machine(frame, source, signs, rng, labels, robust, before)
        return cls(machine, rows, plan, surveyed, share)

    def run_until_interrupted(
        self,
        on_step: Callable[[], bool] | None,
        draws: int = 0,
        explored: int | None = None,
        refined: int | None = None,
    ) -> None:
        """Sweep; after Ctrl-C a last variational sweep makes a model of what is known."""
        try:
            self.run(on_step, draws, explored, refined)
        except KeyboardInterrupt:
            if not self.history:
                raise
            if self.machine.sampled:
                self.machine.begin_variational()
            self.machine.sweep()

    def run(
        self,
        on_step: Callable[[], bool] | None = None,
        draws: int = 0,
        explored: int | None = None,
        refined: int | None = None,
    ) -> None:
        """Sweep, sampled and then variational; `on_step` is called after the latter.

        The numbers of sweeps may be given. Draws go on from the sampler where it has settled.
        """
        machine, options = self.machine, self.plan.options
        most = ROUND * options.max_iter
        explored = min(machine.explored if explored is None else explored, -(-2 * most // 3))
        enough = machine.refined if refined is None else refined
        refined, ends = min(enough, most - explored), False
        for _ in range(explored):
            machine.sweep()
            self._note()
        self.drawn = self._draw(draws)
        for last in refine(machine, refined, BOUND_TOL * options.tol):
            self._note()
            ends = last
            if on_step is not None:
                self.status = Status.stopped
                if on_step():
                    return
                self.status = Status.interrupted
        done = ends and (refined == enough or len(self.history) < explored + draws + refined)
        self.status = Status.converged if done else Status.out_of_steps

    def _draw(self, draws: int) -> list[Learned]:
        """Return draws from the posterior, as many as there is memory for."""
        size = np.dtype(np.float64).itemsize * self.machine.frame.group.size
        room = max(1, KEPT // (size * (1 + len(self.machine.signs))))
        stride, kept = -(-draws // min(max(draws, 1), room)), []
        for number in range(draws):
            self.machine.sweep()
            self._note()
            if number % stride == stride - 1:
                kept.append(self.machine.learned())
        return kept

    def _note(self) -> None:
        """Count a sweep, and record the mean of its losses."""
        self.rows.counter.count += 1
        mean = self.machine.loss * self.machine.frame.unit**2 / self.machine.n
        self.history.append(Record(1 + len(self.history) // ROUND, self.rows.walks, mean))

    def posterior(self) -> Posterior:
        """Return what further rows can begin with."""
        return self.machine.posterior(self.share)

    def fit(self) -> tuple[FitState, Options]:
        """Return the fit so far, and the options with its rank and equivalent penalties."""
        moments = (self.surveyed.features, self.surveyed.target)
        state, options = fit_of(self.machine.learned(), self.plan, moments, self.share)
        return replace(state, history=tuple(self.history), status=self.status), options


def learn(source: MemorySource, plan: Plan) -> Posterior:
    """Return what rows say, from the beginning."""
    rows = Rows.of(source)
    sweeps = Sweeps.of(source, rows, plan, rows.reduce(survey))
    sweeps.run()
    return sweeps.posterior()


def learn_further(past: Posterior, source: MemorySource, tol: float) -> Machine:
    """Return the machine of further rows, in time proportional to their number."""
    old, rng = past.learned, np.random.default_rng(0)
    weighted = replace(source, weight=past.share * weights_of(source))
    machine = Machine(old.frame, weighted, old.signs, rng, old.labels, past=past)
    for _ in refine(machine, machine.refined, BOUND_TOL * tol):
        pass
    return machine


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


def gathered(rows: Rows, most: float = np.inf) -> MemorySource | None:
    """Return rows in memory, sparse, with a pass; None if there are more of them than this."""
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
