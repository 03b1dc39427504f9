"""How much to fit: the rank and the penalties as given, by evidence, or by rows held out.

The evidence decides wherever the parameters of a rank fit into a matrix. Beyond that, a fifth of
the rows is held out to compare ranks and a few penalties.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from quadlin.core.arrays import moved
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units, UnitsMaker
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.choose.automatic import RankSearch, choose
from quadlin.solve.choose.column_choice import choose_by_columns
from quadlin.solve.choose.last_fit import Choice
from quadlin.solve.choose.rank import FOLDS, HeldOut, generous_rank
from quadlin.solve.fits.fit_state import FitState, fit_state, fit_table
from quadlin.solve.lowrank.exact import EXACT_COLUMNS, EXACT_ENTRIES, EXACT_ROWS
from quadlin.solve.lowrank.row_hash import counted_once
from quadlin.solve.lowrank.types import Automatic, Options, Solution, Status
from quadlin.solve.lowrank.whitening import Full, Identity, Whitener, sharpened

PENALTIES = (0.0, 0.02, 0.2)  # of the weight, for M: none, and about what noise asks for
RIDGES = (0.0, 1e-3, 1e-2, 0.1, 1.0, 10.0)  # of the weight, for w of few rows per feature
FEW_ROWS = 10  # per feature
FEWEST = 3  # rows that evidence, or rows held out, can be found from


def fit_choosing(
    rows: Rows,
    options: Options,
    make_units: UnitsMaker,
    seed: int,
    automatic: Automatic,
    warm: FitState | None = None,
    on_step: Callable[[FitState], bool] | None = None,
    surveyed: Survey | None = None,
    search: RankSearch | None = None,
) -> tuple[FitState, Options]:
    """Fit rows that can be read again; also return the options with what was chosen.

    `search` is a search of the same rows that was begun before; each distinct row counts once.
    """
    if not automatic:
        return fit_table(rows, options, make_units, seed, warm, on_step, surveyed), options
    surveyed = survey(rows) if surveyed is None else surveyed
    units = make_units(surveyed.features, surveyed.target)
    given = None if automatic.rank else options.rank
    n_rows, by_evidence = surveyed.tally.counting, False
    small = fits(units, options, given) or (not given and few_enough(rows, units, options, n_rows))
    if n_rows >= FEWEST and automatic.alpha and options.polish and small:
        # Each distinct row counts once on average, however often it is repeated and whatever the
        # scale of the weights: repeating a row does not make its noise better known.
        search = search_of(rows, units, options, surveyed, seed) if search is None else search
        n_rows, by_evidence = search.n_rows, True
    if n_rows < FEWEST:
        options = _for_too_few(options, automatic, surveyed.features.weight)
        return fit_table(rows, options, make_units, seed, warm, on_step, surveyed), options
    if by_evidence:
        assert search is not None

        def state(solution: Solution, options: Options, white: Whitener) -> FitState:
            return fit_state(solution, surveyed, options, make_units, white)

        def hook(solution: Solution) -> bool:
            assert on_step is not None
            return on_step(state(solution, options, Identity()))

        watched, args = None if on_step is None else hook, (n_rows, float(n_rows), seed, given)
        choice = choose(search.rows, units, options, *args, watched, search)
        choice = _weighing(choice, n_rows / surveyed.features.weight)
        ended = given is not None or choice.solution.status is Status.interrupted
        higher, rank = None, choice.options.rank
        if not ended and at_limit(rank, units, options, n_rows):
            higher = _held_out(rows, units, options, automatic, surveyed, seed, choice)
        if higher is None or higher.rank <= rank:
            white = choice.white
            white = sharpened(white) if isinstance(white, Full) else white
            return state(choice.solution, choice.options, white), choice.options
        return fit_table(rows, higher, make_units, seed, warm, on_step, surveyed), higher
    swept = None
    if options.polish:
        wanted = (automatic.rank, automatic.alpha)
        swept = choose_by_columns(rows, units, options, surveyed.tally, seed, *wanted)
    options = swept or _held_out(rows, units, options, automatic, surveyed, seed)
    return fit_table(rows, options, make_units, seed, warm, on_step, surveyed), options


def _for_too_few(options: Options, automatic: Automatic, weight: float) -> Options:
    """Return options for rows that are too few to choose from: little more than the mean.

    Namely rank 0, or the given rank, with a penalty that leaves little else unless these few rows
    are repeated many times.
    """
    penalty = min(weight, 4 / weight)
    penalised = automatic.alpha and options.polish
    return replace(
        options,
        rank=0 if automatic.rank else options.rank,
        alpha=(penalty, penalty) if penalised else options.alpha,
    )


def _weighing(choice: Choice, share: float) -> Choice:
    """Return a choice with the penalties for rows that weigh 1/share times as much."""
    first, second = choice.options.alpha
    return replace(choice, options=replace(choice.options, alpha=(first / share, second / share)))


def search_of(
    rows: Rows, units: Units, options: Options, surveyed: Survey, seed: int
) -> RankSearch:
    """Return a search in which each different row counts once on average: a pass.

    Repeated rows are one row with their total weight: they are left out together.
    """
    n_rows, once = counted_once(rows, units, surveyed.tally.counting)
    share = n_rows / surveyed.features.weight
    if share != 1 or once is not None:
        factors = np.ones(surveyed.tally.rows) if once is None else once
        rows = rows.reweighted(moved(share * factors, units.scale))
    return RankSearch(rows, units, options, n_rows, float(n_rows), seed)


def fits(units: Units, options: Options, rank: int | None) -> bool:
    """Tell whether the parameters of the rank, or those of a linear model, fit into a matrix."""
    d = int(units.scale.shape[0])
    return degrees_of_freedom(d, rank or 0, **options.parts) <= EXACT_COLUMNS


def few_enough(rows: Rows, units: Units, options: Options, n_rows: int) -> bool:
    """Tell whether a matrix with a row and a column for each row tells the penalty of w."""
    d, entries = int(units.scale.shape[0]), rows.engine.source.entries
    plain = options.fit_linear and options.fit_intercept and options.loss == "squared"
    dense = entries is None or 2 * entries >= n_rows * d
    return plain and dense and n_rows <= EXACT_ROWS and n_rows * d <= EXACT_ENTRIES


def at_limit(rank: int, units: Units, options: Options, n_rows: int) -> bool:
    """Tell whether a higher rank may be better, but its parameters do not fit into a matrix.

    Rows held out must be enough to try one.
    """
    d = int(units.scale.shape[0])
    dof = degrees_of_freedom(d, rank + 1, **options.parts)
    return rank < generous_rank(d, n_rows * (FOLDS - 1) // FOLDS) and EXACT_COLUMNS < dof <= n_rows


def _held_out(
    rows: Rows,
    units: Units,
    options: Options,
    automatic: Automatic,
    surveyed: Survey,
    seed: int,
    choice: Choice | None = None,
) -> Options:
    """Choose on rows held out; a choice by evidence tells the penalty of w."""
    weight, d = surveyed.features.weight, int(units.scale.shape[0])
    held_out = HeldOut(rows, units, options, weight, np.random.default_rng(seed))
    rank, alpha = options.rank, options.alpha
    if automatic.alpha and options.polish:
        first = 0.0 if choice is None else choice.options.alpha[0] / weight
        if choice is None and surveyed.tally.counting < FEW_ROWS * d:
            first = held_out.ridge(RIDGES)
        alpha = (first * weight, 0.0)
    if automatic.rank:
        rank = held_out.rank(alpha)
    higher = choice is None or rank > choice.options.rank
    if automatic.alpha and options.polish and higher:
        first = alpha[0] / weight
        second = held_out.alpha(rank, [(first, a) for a in PENALTIES])[1] if rank else 0.0
        alpha = (first * weight, second * weight)
    return replace(options, rank=rank, alpha=alpha)
