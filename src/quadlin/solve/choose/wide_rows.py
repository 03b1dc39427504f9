"""Wide sparse rows, such as texts and baskets, fitted by sweeps, with rank and penalties chosen.

Columns that most rows have are groups of their own, as fields are; all others share a prior, whose
precisions are the penalties. Rows held out decide the rank, and the number of sweeps: the optimum
of the bound overfits where there are more columns than rows.
"""

from dataclasses import replace
from math import sqrt
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import Array, namespace
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import Survey, Tally
from quadlin.core.rows import Rows
from quadlin.core.sweeps import MOST_UNKNOWNS
from quadlin.core.units import Units
from quadlin.solve.fields.draws import law_of_draws
from quadlin.solve.fields.machine import ROUND, Learned, weights_of
from quadlin.solve.fields.sweeps import AUTO_RANK, Sweeps, gathered
from quadlin.solve.fits.fit_state import FitState, OnState
from quadlin.solve.fits.uncertainty import DRAWS, Uncertainty
from quadlin.solve.lowrank.design import EXACT_COLUMNS
from quadlin.solve.lowrank.levels import settled
from quadlin.solve.lowrank.observations import content_keys, row_hash
from quadlin.solve.lowrank.types import Options, Plan

RANKS = 0, 2, AUTO_RANK  # in this order, as long as rows held out are predicted better
FOLDS = 5  # of the rows, one of which tests a fit to the others
NARROW = 500  # columns up to which the evidence of all parameters takes a second at most


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
    source = gathered(rows)
    assert source is not None
    held = folds_by(content_keys(rows, units), np.random.default_rng(plan.seed)) == 0
    weight, best = weights_of(source), None
    kept = replace(source, weight=np.where(held, 0.0, weight))
    for rank in RANKS if plan.automatic.rank else (plan.options.rank,):
        sweeps = Sweeps.of(kept, rows, plan, surveyed, rank)
        trial = _trial(sweeps, np.where(held, weight, 0.0))
        if best and as_good(best.errors[held], trial.errors[held], weight[held]):
            break
        best = trial
    assert best is not None
    rank = len(best.explored.signs)
    sweeps = Sweeps.of(source, rows, plan, surveyed, rank, before=best.explored)
    watch = None if on_step is None else lambda: on_step(_settled_fit(sweeps)[0])
    sweeps.run_until_interrupted(watch, explored=0, refined=best.refined)
    return _settled_fit(sweeps)


def _settled_fit(sweeps: Sweeps) -> tuple[FitState, Options]:
    """Return the fit with levels measured from the mean of their field."""
    state, options = sweeps.fit()
    model = settled(state.model, state.units, sweeps.plan.make_units.fields)
    return replace(state, model=model), options


def swept_law(rows: Rows, plan: Plan, state: FitState, tally: Tally) -> Uncertainty | None:
    """Return how sure a fit of wide sparse rows is, by draws from its posterior; None for others.

    Cost: some 150 sweeps. Memory: that of the fit, and 64 models.
    """
    if not (plan.automatic.alpha and can_sweep(rows, state.units, plan.options)):
        return None
    source, surveyed = gathered(rows), Survey(state.features, state.target, tally)
    assert source is not None
    sweeps = Sweeps.of(source, rows, plan, surveyed, state.model.s.shape[0])
    sweeps.run(draws=DRAWS, refined=0)
    n, rng = tally.counting, sweeps.machine.rng
    return law_of_draws(rows, state, n, sweeps.drawn, plan.make_units.fields, rng)


class Trial(NamedTuple):
    """What sweeps over the rows that are kept say of those held out."""

    explored: Learned  # where sampled sweeps ended
    refined: int  # the number of variational sweeps that suits the rows held out
    errors: np.ndarray  # (n,), squared, of all rows


def _trial(sweeps: Sweeps, held: np.ndarray) -> Trial:
    """Sweep as long as the errors of rows with these weights, the others, fall."""
    machine, errors = sweeps.machine, np.empty(0)
    losses: list[float] = []

    def rises() -> bool:
        nonlocal errors
        squares = machine.residuals() ** 2
        losses.append(float(held @ squares))
        errors = squares if losses[-1] == min(losses) else errors
        return len(losses) > ROUND and min(losses[-ROUND:]) > min(losses)

    sweeps.run(rises, draws=1)
    return Trial(sweeps.drawn[0], 1 + int(np.argmin(losses)), errors)


def folds_by(content: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the fold of each row, from its content: neither its position nor units matter."""
    order = np.argsort(row_hash(content, int(rng.integers(2**31))), kind="stable")
    folds = np.empty(len(content), dtype=int)
    folds[order] = np.arange(len(content)) * FOLDS // max(1, len(content))
    return folds


def as_good(errors: Array, best: Array, omega: Array, within: float = 1.0) -> bool:
    """Return whether errors exceed the best by no more than some standard errors."""
    xp, gap = namespace(omega), errors - best
    total = max(float(xp.sum(omega)), 1e-300)
    mean = float(omega @ gap) / total
    return mean <= within * sqrt(float(omega**2 @ (gap - mean) ** 2)) / total
