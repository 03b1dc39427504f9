"""Rank and penalties of wide sparse rows, chosen on rows held out while columns are swept.

One table of the rows by columns serves all candidates. Rows held out weigh nothing in it, and a
sweep keeps their errors up to date as well, so that judging a model costs nothing. Ridge regression
comes first, with many penalties at once; factors begin with what it leaves. The answer is ridge
regression unless products are clearly better.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from quadlin.core.chunks import Chunk
from quadlin.core.moments import Survey, Tally
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.rank import as_good, folds_by
from quadlin.solve.lowrank.column_descent import goes_by_columns
from quadlin.solve.lowrank.column_ridge import ridges
from quadlin.solve.lowrank.column_rows import ColumnFit, OrderedRows
from quadlin.solve.lowrank.column_start import passed, start_of, start_sample
from quadlin.solve.lowrank.observations import content_keys
from quadlin.solve.lowrank.types import Options, Plan, Problem

RANKS = 2, 8  # that are compared where none is given
RIDGES = 10.0 ** np.arange(-3, 1.1, 0.25)  # of the weight, for w
RIDGE_TOL, RIDGE_PASSES = 1e-2, 60
STIFFER = 16.0  # the penalty of M, in units of that of w, that a search begins with
TIMES, MOST_CHANGES = 4.0, 4  # by which it is changed, and how often at most in one direction
CLEARLY = 2.0  # standard errors by which products must be better, the best of many candidates
FEWEST = 50  # rows of which a fifth can judge; fewer have a penalty that halves coefficients
SWEEPS = 8  # of one candidate at most
WORTH = 4e-3  # of the error of rows held out: what a step must gain for another one to follow


P = TypeVar("P", bound=Plan)


def choose_by_columns(rows: Rows, units: Units, plan: Plan, tally: Tally) -> Options | None:
    """Return the options with rank and penalties chosen; None where the rows are of another kind.

    Passes: some 50 with one column for ridge regression, and 15 to 40 sweeps, each of which costs
    O(nnz·k² + d·k³). Memory: that of `fit_by_columns`, and 40 numbers per column.
    """
    options, choose_rank, choose_alpha = plan.options, plan.automatic.rank, plan.automatic.alpha
    most = max(RANKS) if choose_rank else options.rank
    alpha = (tally.weight, tally.weight) if choose_alpha else options.alpha
    if not goes_by_columns(rows, units, replace(options, rank=most, alpha=alpha), tally):
        return None
    if tally.counting < FEWEST:
        return replace(options, rank=0 if choose_rank else options.rank, alpha=alpha)
    search = ColumnSearch(rows, units, replace(options, rank=most), plan.seed)
    linear = search.ridge(RIDGES * search.columns.weight if choose_alpha else np.array(alpha[:1]))
    if most == 0:
        return replace(options, rank=0, alpha=(search.first, search.first))
    second = STIFFER * search.first if choose_alpha else alpha[1]
    for rank in RANKS if choose_rank else (most,):
        search.try_penalties(rank, second, (1 / TIMES, TIMES) if choose_alpha else ())
    if choose_rank and as_good(linear, search.squares, search.omega, CLEARLY):
        return replace(options, rank=0, alpha=(search.first, search.best[1]))
    return replace(options, rank=search.best[0], alpha=(search.first, search.best[1]))


def without_squares(rows: Rows, plan: P, surveyed: Survey) -> P:
    """Return the plan without squares if ``squares="auto"`` and the rows can go by columns.

    This is for more columns than fit in a matrix. Such rows, if sparse and few, say little about
    squares, and without them a fit takes a tenth of the time.
    """
    maker, tally, options = plan.make_units, surveyed.tally, plan.options
    if maker.squares != "auto":
        return plan
    maker = replace(maker, wide=True)
    plain = replace(maker, loss="squared")
    units = plain(surveyed.features, surveyed.target)
    rank = max(RANKS) if plan.automatic.rank else options.rank
    alpha = (tally.weight, tally.weight) if plan.automatic.alpha else options.alpha
    options = replace(options, rank=rank, alpha=alpha, loss="squared")
    by_columns = goes_by_columns(rows, units, options, tally)
    return replace(plan, make_units=maker) if by_columns else plan


class ColumnSearch:
    """Candidates on the rows that are kept, and their errors on those that are held out."""

    def __init__(self, rows: Rows, units: Units, options: Options, seed: int) -> None:
        rng = np.random.default_rng(seed)
        held = folds_by(content_keys(rows, units), rng) == 0
        self.held = np.flatnonzero(held)
        weights = rows.reweighted(held.astype(units.scale.dtype)).collect(_weights)
        self.omega = np.concatenate(weights)[self.held].astype(np.float64)
        kept = rows.reweighted((~held).astype(units.scale.dtype))
        self.problem = Problem(kept, units, options, rng)
        self.columns = ColumnFit.of(self.problem)
        self.first = options.alpha[0]  # the penalty of w
        self.w = np.zeros(len(units.scale))
        self.best = self.last = (0, 0.0)  # rank and penalty of M
        self.error, self.squares = np.inf, np.zeros(len(self.held))  # of the best

    def ridge(self, alphas: np.ndarray) -> np.ndarray:
        """Take the best of some penalties of w, and return its squared errors."""
        columns = self.columns
        path = ridges(*columns.parts, alphas.tolist(), RIDGE_TOL, RIDGE_PASSES)
        self._count(path.passes + 1)
        f = columns.X[self.held] @ path.coef.T + path.intercept
        squares = np.asarray(f - columns.y[self.held, None], np.float64) ** 2
        best = int(np.argmin(self.omega @ squares))
        self.w, self.first = path.coef[best], float(alphas[best])
        return squares[:, best]

    @cached_property
    def start(self) -> tuple[OrderedRows, np.ndarray, np.ndarray]:
        """Return rows, and factors and signs of what ridge regression leaves of them."""
        sample = start_sample(self.problem, self.columns)
        w = self.w[self.columns.order]
        return sample, *start_of(self.problem, self.columns, sample, w)

    def begin(self, rank: int, second: float) -> None:
        """Put the factors where a fit of the rank begins: those that are zero stay zero."""
        (sample, V, signs), table, w = self.start, self.columns.table, self.w[self.columns.order]
        table.alpha = self.first, second
        self.columns.begin(sample, w, V * (np.arange(V.shape[1]) < rank), signs)
        passed(self.problem, self.columns, sample, 2)
        table.remember()
        self._count(table.walks)

    def try_penalties(self, rank: int, second: float, factors: Sequence[float]) -> None:
        """Try a rank with a penalty of M, and with smaller or larger ones while they are better."""
        self.begin(rank, second)
        error = self.sweep(rank, second)
        for times in factors:
            penalty = second
            for _ in range(MOST_CHANGES):
                if self.last != (rank, penalty):
                    self.begin(rank, penalty)
                penalty, before = times * penalty, error
                error = self.sweep(rank, penalty)
                if error >= before:
                    error = before
                    break
            if penalty != times * second:  # the first step was better
                break

    def sweep(self, rank: int, second: float) -> float:
        """Sweep with a penalty of M, and return the error of rows held out."""
        table, before = self.columns.table, np.inf
        table.alpha = self.first, second
        self.last, least = (rank, second), np.inf
        for _ in range(SWEEPS):
            walks = table.walks
            table.step()
            self._count(table.walks - walks)
            squares = table.errors[self.held] ** 2
            error = float(self.omega @ squares)
            if error < self.error:
                self.best, self.error, self.squares = self.last, error, squares
            least = min(least, error)
            if error >= (1 - WORTH) * before:
                break
            before = error
        return least

    def _count(self, walks: int) -> None:
        rows = self.problem.rows
        rows.counter.count += walks * rows.share


def _weights(chunk: Chunk) -> np.ndarray:
    return np.asarray(chunk.weight)
