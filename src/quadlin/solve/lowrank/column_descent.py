r"""Fits of sparse rows with fewer rows than parameters, by sweeps over the columns.

Without squares the model is linear in (w_j, v_j), the coefficient and the factors of one column, so
a sweep solves a small system for each column from the rows that have an entry there. It costs about
as much as one pass, while a step by conjugate gradients takes a dozen passes if there are more
columns than the rows determine. After a sweep the model moves to the minimum of the objective in
the plane of the sweep and the step before it. Columns are swept from the rarest to the most
frequent one.
"""

from dataclasses import replace
from math import inf, sqrt

import numpy as np
from scipy.sparse import issparse

from quadlin.core.chunks import MemorySource
from quadlin.core.compiled_columns import MOST_WIDTH
from quadlin.core.library import takes
from quadlin.core.moments import Tally
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.column_ridge import ridges
from quadlin.solve.lowrank.column_rows import ColumnFit
from quadlin.solve.lowrank.column_start import begin
from quadlin.solve.lowrank.driver import Iterate, Method, follow
from quadlin.solve.lowrank.polish import OnStep
from quadlin.solve.lowrank.types import Options, Problem, Solution, Status
from quadlin.solve.lowrank.whitening import Identity, Whitener

NARROW = 500  # columns up to which other fits are as good, and take a second at most
LINEAR_TOL, MOST_PASSES = 1e-5, 500  # for a fit of the linear model alone
FIRM = 1e-4  # of the weight: a penalty with which conjugate gradients need no preconditioner
SWEEPS = 4  # count as one of the `max_iter` steps, as those of a posterior do
REMAINDER, PER_TOL = 0.006, 1e4  # of the objective, and per unit of `tol`: a gain to ignore
WINDOW = 2  # steps whose gains tell how much is left
LOST = 1e-4  # of a prediction, due to means far from zero
RANGE = 1 / 4  # of the exponents of numbers: that of the units of columns
ROWS_PER_PARAMETER = 1  # with more rows, other fits need fewer passes


def goes_by_columns(rows: Rows, units: Units, options: Options, tally: Tally) -> bool:
    """Tell whether rows are sparse, in memory, wide and few enough for sweeps over columns."""
    source, d = rows.engine.source, int(units.scale.shape[0])
    if not isinstance(source, MemorySource) or not issparse(source.X) or d <= NARROW:
        return False
    plain = options.fit_linear and options.fit_intercept and options.solver == "auto"
    plain = plain and options.loss == "squared"
    few = tally.counting < ROWS_PER_PARAMETER * options.dof(d, options.rank)
    few = few or (options.rank == 0 and options.alpha[0] >= FIRM * tally.weight)
    low = options.rank <= MOST_WIDTH and min(options.alpha) > 0 and units.target.power > 0
    if not (plain and few and low) or np.any(units.free) or source.X.dtype != units.scale.dtype:
        return False
    # Rows are not centred here: squares of x'V lose (μ/σ)² times the rounding.
    lost = float(np.max(units.nu**2)) * units.eps
    # Nor are they scaled: fourth powers of them and of their coefficients must be finite.
    scale = units.scale[units.scale > 0]
    large = float(np.max(np.maximum(scale, 1 / scale), initial=0.0))
    fits = large <= float(np.finfo(scale.dtype).max) ** RANGE
    return takes(units.scale.dtype) and lost <= LOST and fits


def descent(problem: Problem, columns: ColumnFit, remainder: float) -> Method:
    """Sweep until the remaining gain is below a fraction of the objective."""
    table, counter, share = columns.table, problem.rows.counter, problem.rows.share
    table.remember()
    reached: list[float] = []
    for number in range(1, SWEEPS * problem.options.max_iter + 1):
        walks = table.walks
        reached.append(table.step() / columns.weight)
        counter.count += (table.walks - walks) * share
        done = left_to_gain(reached) <= remainder * reached[-1]
        if done or number % SWEEPS == 0:
            yield Iterate(columns.snapshot(), reached[-1], orthonormal=False)
        if done:
            return Status.converged
    return Status.out_of_steps


def left_to_gain(reached: list[float]) -> float:
    """Estimate how far the last of k objectives is above their limit.

    The distance falls as 1/k or faster, so it is at most k times the gain of one of the last steps.

    Examples
    --------
    >>> [round(left_to_gain([1 + 1 / k for k in range(1, n + 1)]), 3) for n in (10, 100)]
    [0.125, 0.01]
    """
    k = len(reached)
    if k <= WINDOW:
        return inf
    return k * max(reached[-1 - WINDOW] - reached[-1], 0.0) / WINDOW


def linear(problem: Problem, columns: ColumnFit) -> Method:
    """Yield ridge regression."""
    table, counter, share = columns.table, problem.rows.counter, problem.rows.share
    tol = max(LINEAR_TOL, 30 * float(np.finfo(columns.X.dtype).eps))
    path = ridges(*columns.parts, problem.options.alpha[:1], tol, MOST_PASSES)
    table.linear[:] = path.coef[0][columns.order]
    table.evaluate()
    counter.count += (path.passes + 1) * share
    model = columns.linear_model(path.coef[0])
    model = replace(model, U=model.U[:, :0], s=model.s[:0])
    yield Iterate(model, table.objective() / columns.weight)
    return Status.converged if path.passes < MOST_PASSES + 2 else Status.out_of_passes


def fit_by_columns(
    rows: Rows,
    units: Units,
    options: Options,
    tally: Tally,
    seed: int,
    on_step: OnStep = None,
) -> tuple[Solution, Whitener] | None:
    """Fit wide sparse rows by sweeps over their columns; None if another method is better.

    Passes: about 20 over a sample for the start, and 10 to 50 sweeps of
    O(nnz·k² + d·k³); with weak penalties and columns that most rows have, up to 4·`max_iter`.
    Memory: a copy of the rows by columns, and (3k + 16)n + 4(k + 1)d numbers.
    """
    if not goes_by_columns(rows, units, options, tally):
        return None
    problem = Problem(rows, units, options, np.random.default_rng(seed))
    white = Identity(1 / sqrt(1 + options.alpha[0] / tally.weight))
    columns = ColumnFit.of(problem)
    if options.rank == 0:
        return follow(problem, linear(problem, columns), on_step), white
    begin(problem, columns)
    remainder = max(options.tol, min(REMAINDER, PER_TOL * options.tol))
    return follow(problem, descent(problem, columns, remainder), on_step), white
