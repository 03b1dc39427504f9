r"""Fits of sparse rows with fewer rows than parameters, by sweeps over the columns.

Without squares the model is linear in (w_j, v_j), the coefficient and the factors of one column, so
that a sweep solves a small system for each of them by the rows that have the column. It costs about
what one pass costs, and where columns outnumber what rows can tell, a step by conjugate gradients
takes a dozen of those. Between sweeps the model goes on for half of the way that it came, as long
as that lowers the objective.
"""

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from scipy.sparse import csc_array, issparse, vstack

from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.compiled_columns import MOST_WIDTH, ColumnTable
from quadlin.core.library import takes
from quadlin.core.model import Model, constant_model
from quadlin.core.rows import Rows
from quadlin.core.sums import standardised_target
from quadlin.core.survey import Tally
from quadlin.core.units import Units
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.driver import Iterate, Method, follow
from quadlin.solve.gauss_newton import GaussNewton
from quadlin.solve.polish import OnStep, leading_directions
from quadlin.solve.types import Options, Problem, Solution, Status
from quadlin.solve.whitening import FULL_LIMIT, Identity, Whitener

START = 0.3  # standard deviations of x'V at the start, of a standardised target
BLOCKS = 2  # products with the moment matrix that the directions and signs of the start come from
PLAIN_SWEEPS, MOMENTUM = 3, 0.5  # before the model goes on by itself, and how far
SWEEPS = 4  # that count as one of the `max_iter` steps, as those of a posterior do
REMAINDER, PER_TOL = 0.004, 1e4  # of the objective, and in units of `tol`: not worth a sweep
LOST = 1e-4  # of a prediction, by means far from zero
ROWS_PER_PARAMETER = 1  # with more of them passes need fewer walks


def goes_by_columns(rows: Rows, units: Units, options: Options, tally: Tally) -> bool:
    """Tell whether rows are sparse, in memory, wide and few enough for sweeps over columns."""
    source, d = rows.engine.source, int(units.scale.shape[0])
    if not isinstance(source, MemorySource) or not issparse(source.X) or d <= FULL_LIMIT:
        return False
    plain = options.fit_linear and options.fit_intercept and options.polish
    plain = plain and options.loss == "squared" and options.whiten in ("auto", "none")
    few = tally.counting < ROWS_PER_PARAMETER * degrees_of_freedom(d, options.rank, **options.parts)
    low = 0 < options.rank <= MOST_WIDTH and min(options.alpha) > 0 and units.target.power > 0
    if not (plain and few and low) or np.any(units.free) or source.X.dtype != units.scale.dtype:
        return False
    # Rows are not centred here: squares of x'V lose (μ/σ)² times the rounding.
    lost = float(np.max(units.nu**2)) * float(np.finfo(units.scale.dtype).eps)
    return takes(units.scale.dtype) and lost <= LOST


@dataclass(frozen=True)
class ColumnFit:
    """The table of the sweeps, and what its model is in standardised units."""

    table: ColumnTable
    units: Units
    weight: float  # of all rows

    @classmethod
    def of(cls, problem: Problem, start: np.ndarray, signs: np.ndarray) -> "ColumnFit":
        """Collect the rows, one walk, with factors V at the start."""
        rows, units = problem.rows, problem.units
        chunks: list[Chunk] = rows.collect(_as_it_is)
        X = chunks[0].X if len(chunks) == 1 else vstack([c.X for c in chunks], "csr")
        y = np.concatenate([standardised_target(c, units) for c in chunks])
        weighted = chunks[0].weight is not None
        weight = np.concatenate([np.asarray(c.weight) for c in chunks]) if weighted else None
        total = float(X.shape[0] if weight is None else weight.sum())
        scale = units.scale.astype(np.float64)
        varies = scale > 0
        inverse = 1 / np.where(varies, scale, 1.0)
        penalty = np.where(varies, (units.penalty_scale * inverse) ** 2, 0.0)
        table = ColumnTable(
            csc_array(X), y, weight, units.nu * inverse, penalty, signs, problem.options.alpha
        )
        table.V[:] = np.where(varies[:, None], start, 0.0)
        return cls(table, units, total)

    def model(self) -> Model:
        """Return the model as it is now; its U is not orthonormal."""
        table, units, s = self.table, self.units, self.table.signs[: self.table.k]
        scale = units.scale.astype(np.float64)
        inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1.0), 0.0)
        V, mean = table.V, table.mean
        centre = float(s @ (mean @ V) ** 2 - mean**2 @ (V**2 @ s))
        c = table.intercept + float(mean @ table.linear) + centre
        dtype = units.scale.dtype
        U = (inverse[:, None] * V).astype(dtype)
        return Model(U, s.astype(dtype), (inverse * table.levels).astype(dtype), c, units.free)


def _as_it_is(chunk: Chunk) -> Chunk:
    return chunk


def start_of(problem: Problem, white: Whitener) -> tuple[np.ndarray, np.ndarray]:
    """Return factors in the rows' units, and the signs, of the target's leading directions."""
    units, options = problem.units, problem.options
    task = GaussNewton(problem, white)
    centre = constant_model(units, 1, units.target.centre)
    U, s, _ = leading_directions(task, centre, options.rank, BLOCKS)
    # z'u has a variance of |u|² for uncorrelated features.
    return START * units.scale[:, None] * np.asarray(U), np.where(np.asarray(s) < 0, -1.0, 1.0)


def descent(problem: Problem, columns: ColumnFit, remainder: float) -> Method:
    """Sweep until what is left to gain is below a fraction of the objective."""
    table, counter, share = columns.table, problem.rows.counter, problem.rows.share
    table.evaluate()
    reached, gain, old = inf, 0.0, None
    for number in range(1, SWEEPS * problem.options.max_iter + 1):
        before, gain_before = reached, gain
        reached = table.sweep() / columns.weight
        counter.count += share
        gain = before - reached
        done = not gain > 0 and old is None
        if number > PLAIN_SWEEPS and 0 < gain < gain_before:
            # Gains that fall by the same factor again and again add up to gain·r/(1 − r).
            ratio = gain / gain_before
            done = gain * ratio <= remainder * reached * (1 - ratio)
        if done or number % SWEEPS == 0:
            yield Iterate(columns.model(), reached, orthonormal=False)
        if done:
            return Status.converged
        new = table.V.copy(), table.linear.copy()
        if number >= PLAIN_SWEEPS and old is not None and gain > 0:
            table.V[:] += MOMENTUM * (new[0] - old[0])
            table.linear[:] += MOMENTUM * (new[1] - old[1])
            table.evaluate()
            counter.count += share
        old = new if gain > 0 else None  # a sweep that failed is followed by one without a past
    return Status.out_of_steps


def fit_by_columns(
    rows: Rows,
    units: Units,
    options: Options,
    tally: Tally,
    seed: int,
    on_step: OnStep = None,
) -> tuple[Solution, Whitener] | None:
    """Fit wide sparse rows by sweeps over their columns; None where that is not the way.

    Passes: three and about 30 sweeps of O(nnz·k² + d·k³), two of which count as three passes.
    Memory: a copy of the rows by columns, and (k + 8)(n + 2d) numbers.
    """
    if not goes_by_columns(rows, units, options, tally):
        return None
    problem = Problem(rows, units, options, np.random.default_rng(seed))
    white = Identity(1 / sqrt(1 + options.alpha[0] / tally.weight))
    start, signs = start_of(problem, white)
    columns = ColumnFit.of(problem, start, np.ones_like(signs) if options.psd else signs)
    remainder = max(options.tol, min(REMAINDER, PER_TOL * options.tol))
    return follow(problem, descent(problem, columns, remainder), on_step), white
