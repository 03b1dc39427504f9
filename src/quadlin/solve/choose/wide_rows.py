"""Wide sparse rows, such as texts and baskets, fitted by sweeps, with rank and penalties chosen.

Columns that most rows have are groups of their own, as fields are; all others share a prior, whose
precisions are the penalties. Rows held out decide the rank, and the number of sweeps: the optimum
of the bound overfits where there are more columns than rows.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import to_numpy
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.moments import Survey, Tally, moments_of
from quadlin.core.rows import Rows
from quadlin.core.sweeps import MOST_UNKNOWNS
from quadlin.core.units import Units
from quadlin.solve.choose.rank import as_good, folds_by
from quadlin.solve.fields.contexts import Contexts, Frame, Learned, occurring
from quadlin.solve.fields.draws import LAW_DRAWS, law_of_draws
from quadlin.solve.fields.sweeping import Sweeping
from quadlin.solve.fields.swept_machine import HELD
from quadlin.solve.fits.fit_state import FitState, OnState
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.design import EXACT_COLUMNS
from quadlin.solve.lowrank.levels import settled
from quadlin.solve.lowrank.observations import content_keys
from quadlin.solve.lowrank.types import Options, Plan

RANKS = 0, 2, 8  # in this order, as long as rows held out are predicted better
NARROW = 500  # columns up to which the evidence of all parameters takes a second at most
PATIENCE = 3  # sweeps without a gain that end a trial


def are_wide_and_sparse(rows: Rows, columns: int) -> bool:
    """Tell whether rows are sparse, in memory, and have many columns."""
    source = rows.engine.source
    return isinstance(source, MemorySource) and issparse(source.X) and columns > NARROW


def can_sweep(rows: Rows, units: Units, options: Options) -> bool:
    """Tell whether rows are wide and sparse, and the model has all parts but squares."""
    if not are_wide_and_sparse(rows, units.scale.shape[0]):
        return False
    usual = options.plain and options.solver == "auto" and options.rank < MOST_UNKNOWNS
    return usual and units.target.power > 0 and not np.any(units.free)


P = TypeVar("P", bound=Plan)


def with_units_for(rows: Rows, plan: P, surveyed: Survey) -> P:
    """Return the plan with the units of wide sparse rows, if the rows are such.

    Their columns, often counts of words, are taken as they are, so rare ones are shrunk more. There
    are no squares if ``squares="auto"`` and sweeps can fit the rows, which say little about the
    squares of more columns than fit in a matrix.
    """
    maker, options = plan.make_units, plan.options
    columns, chosen = len(maker.names), plan.automatic.alpha  # whether penalties are chosen
    if not are_wide_and_sparse(rows, columns):
        return plan
    few = surveyed.tally.counting < options.dof(columns, options.rank)
    if maker.squares == "auto" and columns >= EXACT_COLUMNS and (few or chosen):
        wide = replace(maker, wide=True)
        units = replace(wide, loss="squared")(surveyed.features, surveyed.target)
        maker = wide if can_sweep(rows, units, options) else maker
    return replace(plan, make_units=replace(maker, raw=chosen))


def fit_swept(
    rows: Rows, plan: Plan, surveyed: Survey, on_step: OnState = None
) -> tuple[FitState, Options] | None:
    """Fit wide sparse rows by least squares and return the chosen options; None for other rows.

    Cost: some 100 sweeps of O(nnz·k² + d·k³) for each rank. Memory: a copy of the rows by columns,
    k²/4 + k numbers per row and 2k² per column.
    """
    units = plan.make_units(surveyed.features, surveyed.target)
    if not can_sweep(rows, units, plan.options):
        return None
    wide = WideRows.of(rows, plan, surveyed)
    trial = wide.chosen(folds_by(content_keys(rows, units), np.random.default_rng(plan.seed)) == 0)
    sweeping = wide.sweeping(wide.source, trial.rank, trial.explored)
    watch = None if on_step is None else lambda: on_step(_settled_fit(sweeping)[0])
    try:
        sweeping.run(watch, explored=0, refined=trial.refined)
    except KeyboardInterrupt:
        if not sweeping.history:
            raise
    return _settled_fit(sweeping)


def _settled_fit(sweeping: Sweeping) -> tuple[FitState, Options]:
    """Return the fit with levels measured from the mean of their field."""
    state, options = sweeping.fit()
    model = settled(state.model, state.units, sweeping.plan.make_units.fields)
    return replace(state, model=model), options


def swept_law(rows: Rows, plan: Plan, state: FitState, tally: Tally) -> Uncertainty | None:
    """Return how sure a fit of wide sparse rows is, by draws from its posterior; None for others.

    Cost: some 160 sweeps. Memory: that of the fit, and 100 models.
    """
    if not (plan.automatic.alpha and can_sweep(rows, state.units, plan.options)):
        return None
    wide = WideRows.of(rows, plan, Survey(state.features, state.target, tally))
    sweeping = wide.sweeping(wide.source, state.model.s.shape[0])
    machine, drawn = sweeping.contexts.machine, []
    for number in range(machine.explored + LAW_DRAWS):
        machine.sweep(hold=number < HELD)
        if number >= machine.explored:
            drawn.append(sweeping.learned())
    rows.counter.count += machine.explored + LAW_DRAWS
    return law_of_draws(rows, state, tally.counting, drawn, plan.make_units.fields, machine.rng)


class Trial(NamedTuple):
    """A rank on the rows that are kept, and the number of sweeps that suits those held out."""

    rank: int
    explored: Learned  # where sampled sweeps ended
    refined: int
    errors: np.ndarray  # (n,), squared, of all rows


@dataclass(frozen=True)
class WideRows:
    """Rows with only the columns that occur, and what their sweeps begin with."""

    rows: Rows
    plan: Plan
    surveyed: Survey
    source: MemorySource
    weight: np.ndarray
    columns: np.ndarray  # those that occur
    frame: Frame

    @classmethod
    def of(cls, rows: Rows, plan: Plan, surveyed: Survey) -> "WideRows":
        """Collect the rows: one pass."""
        y, weight = (np.concatenate(part) for part in zip(*rows.collect(_values), strict=True))
        X, columns = occurring(rows.engine.source.X)
        weight = surveyed.tally.share * weight
        source = MemorySource(X, y, weight)
        fields = [np.flatnonzero(np.isin(columns, field)) for field in plan.make_units.fields]
        frame = Frame.of(source, fields, moments_of(Rows.of(source))[0])
        return cls(rows, plan, surveyed, source, weight, columns, frame)

    def chosen(self, held: np.ndarray) -> Trial:
        """Return the smallest rank as good as the best one, on the rows that are held out."""
        ranks = RANKS if self.plan.automatic.rank else (self.plan.options.rank,)
        best = self.trial(ranks[0], held)
        weight = self.weight[held]
        for rank in ranks[1:]:
            trial = self.trial(rank, held)
            if as_good(best.errors[held], trial.errors[held], weight):
                break
            best = trial
        return best

    def trial(self, rank: int, held: np.ndarray) -> Trial:
        """Sweep over the rows that are kept, as long as the errors of the others fall."""
        weight = np.where(held, 0.0, self.weight)
        sweeping = self.sweeping(replace(self.source, weight=weight), rank)
        omega = np.where(held, self.weight, 0.0)
        begun: list[Learned] = []
        losses: list[float] = []
        errors = np.empty(0)

        def rises() -> bool:
            nonlocal errors
            squares = sweeping.contexts.residuals() ** 2
            losses.append(float(omega @ squares))
            errors = squares if losses[-1] == min(losses) else errors
            return len(losses) > PATIENCE and min(losses[-PATIENCE:]) > min(losses)

        explored = None if rank else 0
        sweeping.run(rises, lambda: begun.append(sweeping.contexts.learned()), explored)
        return Trial(rank, begun[0], 1 + int(np.argmin(losses)), errors)

    def sweeping(self, source: MemorySource, rank: int, before: Learned | None = None) -> Sweeping:
        """Return the sweeps over rows, before the first one."""
        rng, signs = np.random.default_rng(self.plan.seed), self.frame.signs(rank)
        contexts = Contexts(source, self.frame, signs, rng, before=before)
        share = self.surveyed.tally.share
        return Sweeping(contexts, self.rows, self.plan, self.surveyed, share, self.columns)


def _values(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    return to_numpy(chunk.y).astype(np.float64), chunk.weights
