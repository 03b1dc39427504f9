"""The rank and the penalties: as given, by evidence, or by held-out rows.

The evidence decides if the parameters of a rank fit in a matrix. Otherwise a fifth of the rows is
held out to compare ranks and a few penalties; wide sparse rows are fitted by sweeps (`wide_rows`).
"""

from dataclasses import replace

import numpy as np

from quadlin.core.arrays import moved
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.rank import FOLDS, HeldOut, generous_rank
from quadlin.solve.choose.rank_search import RankSearch
from quadlin.solve.choose.wide_rows import fit_swept
from quadlin.solve.fits.fit_state import FitState, OnState, fit_state, fit_table
from quadlin.solve.lowrank.design import EXACT_COLUMNS, EXACT_ENTRIES, EXACT_ROWS
from quadlin.solve.lowrank.types import FIXED, Automatic, Options, Plan, Solution, Status
from quadlin.solve.lowrank.whitening import Full, Identity, Whitener, sharpened

PENALTIES = (0.0, 0.02, 0.2)  # of the weight, for M: none, and about what noise requires
RIDGES = (0.0, 1e-3, 1e-2, 0.1, 1.0, 10.0)  # of the weight, for w with few rows per feature
FEW_ROWS = 10  # per feature
FEWEST = 3  # rows that evidence, or a held-out part, can be computed from


def fit_choosing(
    rows: Rows,
    plan: Plan,
    warm: FitState | None = None,
    on_step: OnState = None,
    surveyed: Survey | None = None,
    search: RankSearch | None = None,
) -> tuple[FitState, Options]:
    """Fit rows that can be read again; also return the options with the chosen values.

    `search` is an earlier search on the same rows.
    """
    surveyed = rows.reduce(survey) if surveyed is None else surveyed
    automatic, options = plan.automatic, plan.options
    if automatic.alpha and surveyed.tally.counting >= FEWEST:
        swept = fit_swept(rows, plan, surveyed, on_step)
        if swept is not None:
            return swept
    if automatic != FIXED:
        units, n_rows = plan.make_units(surveyed.features, surveyed.target), surveyed.tally.counting
        given = None if automatic.rank else options.rank
        small = fits(units, options, given)
        small = small or (not given and few_enough(rows, units, options, n_rows))
        by_evidence = n_rows >= FEWEST and automatic.alpha and options.solver == "auto" and small
        if by_evidence:
            search = search or search_of(rows, units, plan, surveyed)
        if n_rows < FEWEST:
            options = _for_too_few(options, automatic, surveyed.features.weight)
        elif by_evidence:
            assert search is not None
            state, options = _by_evidence(rows, plan, on_step, surveyed, search)
            if state is not None:
                return state, options
        else:
            options = _held_out(rows, units, plan, surveyed)
    return fit_table(rows, replace(plan, options=options), warm, on_step, surveyed), options


def _by_evidence(
    rows: Rows, plan: Plan, on_step: OnState, surveyed: Survey, search: RankSearch
) -> tuple[FitState | None, Options]:
    """Return the fit of largest evidence; None if held-out rows prefer a higher rank."""
    units = search.units

    def state(solution: Solution, options: Options, white: Whitener) -> FitState:
        return fit_state(solution, surveyed, options, plan.make_units, white)

    watch = None if on_step is None else lambda s: on_step(state(s, plan.options, Identity()))
    given = None if plan.automatic.rank else plan.options.rank
    choice = search.choice(given, watch)
    share = surveyed.tally.share  # of penalties for counts of observations, in the given weights
    first, second = choice.options.alpha
    options = replace(choice.options, alpha=(first / share, second / share))
    decided = given is not None or choice.certain or choice.solution.status is Status.interrupted
    if not decided and at_limit(options.rank, units, options, surveyed.tally.counting):
        higher = _held_out(rows, units, plan, surveyed, options)
        if higher.rank > options.rank:
            return None, higher
    white = sharpened(choice.white) if isinstance(choice.white, Full) else choice.white
    return state(choice.solution, options, white), options


def _for_too_few(options: Options, automatic: Automatic, weight: float) -> Options:
    """Return options for too few rows to choose anything, which fit little more than the mean.

    They are rank 0, or the given rank, with a penalty that leaves little but the mean unless these
    few rows are repeated many times.
    """
    penalty = min(weight, 4 / weight)
    penalised = automatic.alpha and options.solver == "auto"
    return replace(
        options,
        rank=0 if automatic.rank else options.rank,
        alpha=(penalty, penalty) if penalised else options.alpha,
    )


def search_of(rows: Rows, units: Units, plan: Plan, surveyed: Survey) -> RankSearch:
    """Return a search in which weights count observations (`Tally`)."""
    tally = surveyed.tally
    if tally.share != 1:
        rows = rows.reweighted(moved(np.full(tally.rows, tally.share), units.scale))
    counts = tally.counting, tally.share * surveyed.features.weight
    return RankSearch(rows, units, plan.options, *counts, plan.seed)


def fits(units: Units, options: Options, rank: int | None) -> bool:
    """Return whether the parameters of the rank, or of a linear model, fit in a matrix."""
    d = int(units.scale.shape[0])
    return options.dof(d, rank or 0) <= EXACT_COLUMNS


def few_enough(rows: Rows, units: Units, options: Options, n_rows: int) -> bool:
    """Return whether the penalty of w can be computed from a matrix of the rows (n, n)."""
    d, entries = int(units.scale.shape[0]), rows.engine.source.entries
    plain = options.fit_linear and options.fit_intercept and options.loss == "squared"
    dense = entries is None or 2 * entries >= n_rows * d
    return plain and dense and n_rows <= EXACT_ROWS and n_rows * d <= EXACT_ENTRIES


def at_limit(rank: int, units: Units, options: Options, n_rows: int) -> bool:
    """Return whether a higher rank may be better, but its parameters do not fit in a matrix.

    There must be enough held-out rows to try one.
    """
    d = int(units.scale.shape[0])
    dof = options.dof(d, rank + 1)
    return rank < generous_rank(d, n_rows * (FOLDS - 1) // FOLDS) and EXACT_COLUMNS < dof <= n_rows


def _held_out(
    rows: Rows, units: Units, plan: Plan, surveyed: Survey, evident: Options | None = None
) -> Options:
    """Choose on held-out rows; the penalty of w is that of the evidence, if given."""
    d, options, rng = int(units.scale.shape[0]), plan.options, np.random.default_rng(plan.seed)
    held_out = HeldOut(rows, units, options, surveyed.features.weight, rng)
    weight = held_out.weight  # of the rows that were fitted: a penalty does not grow with the rows
    rank, alpha, penalised = (
        options.rank,
        options.alpha,
        plan.automatic.alpha and options.solver == "auto",
    )
    if penalised:
        first = 0.0 if evident is None else evident.alpha[0] / weight
        if evident is None and surveyed.tally.counting < FEW_ROWS * d:
            first = held_out.alpha(0, [(a, a) for a in RIDGES])[0]
        alpha = (first * weight, 0.0)
    if plan.automatic.rank:
        rank = held_out.rank(alpha)
    if penalised and (evident is None or rank > evident.rank):
        first = alpha[0] / weight
        second = held_out.alpha(rank, [(first, a) for a in PENALTIES])[1] if rank else 0.0
        alpha = (first * weight, second * weight)
    return replace(options, rank=rank, alpha=alpha)
