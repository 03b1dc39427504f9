"""The fit of rows that can be read again, with rank and penalties as given or chosen.

Wide sparse rows are fitted by sweeps (`wide_rows`). A rank is chosen with the penalties of largest
evidence, whatever penalties the fit has.
"""

from dataclasses import replace

import numpy as np

from quadlin.core.arrays import moved
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.least_squares import LeastSquares, choose_candidate, choose_fit
from quadlin.solve.choose.search import Search
from quadlin.solve.choose.wide_rows import fit_swept
from quadlin.solve.fits.fit_state import FitState, OnState, fit_state, fit_table
from quadlin.solve.lowrank.types import FIXED, Automatic, Options, Plan, Solution
from quadlin.solve.lowrank.whitening import Full, Identity, Whitener, sharpened

FEWEST = 3  # rows that evidence can be computed from


def fit_choosing(
    rows: Rows,
    plan: Plan,
    warm: FitState | None = None,
    on_step: OnState = None,
    surveyed: Survey | None = None,
    search: Search[LeastSquares] | None = None,
) -> tuple[FitState, Options]:
    """Fit rows that can be read again; also return the options with the chosen values.

    `search` is an earlier search on the same rows.
    """
    surveyed = rows.reduce(survey) if surveyed is None else surveyed
    automatic, options, n_rows = plan.automatic, plan.options, surveyed.tally.counting
    if automatic.alpha and n_rows >= FEWEST:
        swept = fit_swept(rows, plan, surveyed, on_step)
        if swept is not None:
            return swept
    if automatic != FIXED and n_rows < FEWEST:
        options = _for_too_few(options, automatic, surveyed.features.weight)
    elif automatic != FIXED:
        if search is None:
            units = plan.make_units(surveyed.features, surveyed.target)
            search = search_of(rows, units, plan, surveyed)
        if automatic.alpha and options.solver == "auto":
            return _by_evidence(plan, on_step, surveyed, search)
        if automatic.rank:
            options = replace(options, rank=choose_candidate(search, None, []).rank)
    return fit_table(rows, replace(plan, options=options), warm, on_step, surveyed), options


def _by_evidence(
    plan: Plan, on_step: OnState, surveyed: Survey, search: Search
) -> tuple[FitState, Options]:
    """Return the fit of largest evidence."""

    def state(solution: Solution, options: Options, white: Whitener) -> FitState:
        return fit_state(solution, surveyed, options, plan.make_units, white)

    watch = None if on_step is None else lambda s: on_step(state(s, plan.options, Identity()))
    given = None if plan.automatic.rank else plan.options.rank
    solution, options, white = choose_fit(search, given, watch)
    share = surveyed.tally.share  # of penalties for counts of observations, in the given weights
    options = replace(options, alpha=(options.alpha[0] / share, options.alpha[1] / share))
    white = sharpened(white) if isinstance(white, Full) else white
    return state(solution, options, white), options


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


def search_of(rows: Rows, units: Units, plan: Plan, surveyed: Survey) -> Search[LeastSquares]:
    """Return a search in which weights count observations (`Tally`)."""
    tally = surveyed.tally
    if tally.share != 1:
        rows = rows.reweighted(moved(np.full(tally.rows, tally.share), units.scale))
    counts = tally.counting, tally.share * surveyed.features.weight
    return Search(LeastSquares(rows, units, plan.options, *counts, plan.seed))
