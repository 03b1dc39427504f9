r"""Fits of sparse rows with fewer rows than parameters, by sweeps over the columns.

Without squares the model is linear in (w_j, v_j), the coefficient and the factors of one column, so
a sweep solves a small system for each column from the rows that have an entry there. It costs about
as much as one pass, while a step by conjugate gradients takes a dozen passes if there are more
columns than the rows determine. Between sweeps the model is extrapolated by half of its last
change, as long as that lowers the objective.
"""

from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np
from scipy.sparse import csc_array, csr_array, issparse, vstack

from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.compiled_columns import MOST_WIDTH, ColumnTable
from quadlin.core.library import takes
from quadlin.core.model import Model, degrees_of_freedom
from quadlin.core.rows import Rows
from quadlin.core.sums import standardised_target
from quadlin.core.survey import Tally
from quadlin.core.units import Units
from quadlin.solve.lowrank.column_ridge import ridges
from quadlin.solve.lowrank.driver import Iterate, Method, follow
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.polish import OnStep, leading_directions
from quadlin.solve.lowrank.types import Options, Problem, Solution, Status
from quadlin.solve.lowrank.whitening import FULL_LIMIT, Identity, LowRank, Whitener

RIDGE_TOL, RIDGE_WALKS = 0.03, 20  # for the linear model at the start of a fit
LINEAR_TOL, MOST_WALKS = 1e-5, 500  # for a fit of the linear model alone
FIRM = 1e-4  # of the weight: a penalty with which conjugate gradients need no preconditioner
BLOCKS = 4  # products with the moment matrix, for the directions and signs of the start
WEAKEST = 0.1  # of the largest component at the start: a component of zero would stay zero
PLAIN_SWEEPS, MOMENTUM = 2, 0.6  # before the model is extrapolated, and how far
SWEEPS = 4  # count as one of the `max_iter` steps, as those of a posterior do
REMAINDER, PER_TOL = 0.005, 1e4  # of the objective, and per unit of `tol`: a gain to ignore
LOST = 1e-4  # of a prediction, due to means far from zero
ROWS_PER_PARAMETER = 1  # with more rows, other fits need fewer passes


def goes_by_columns(rows: Rows, units: Units, options: Options, tally: Tally) -> bool:
    """Tell whether rows are sparse, in memory, wide and few enough for sweeps over columns."""
    source, d = rows.engine.source, int(units.scale.shape[0])
    if not isinstance(source, MemorySource) or not issparse(source.X) or d <= FULL_LIMIT:
        return False
    plain = options.fit_linear and options.fit_intercept and options.polish
    plain = plain and options.loss == "squared" and options.whiten in ("auto", "none")
    few = tally.counting < ROWS_PER_PARAMETER * degrees_of_freedom(d, options.rank, **options.parts)
    few = few or (options.rank == 0 and options.alpha[0] >= FIRM * tally.weight)
    low = options.rank <= MOST_WIDTH and min(options.alpha) > 0 and units.target.power > 0
    if not (plain and few and low) or np.any(units.free) or source.X.dtype != units.scale.dtype:
        return False
    # Rows are not centred here: squares of x'V lose (μ/σ)² times the rounding.
    lost = float(np.max(units.nu**2)) * float(np.finfo(units.scale.dtype).eps)
    return takes(units.scale.dtype) and lost <= LOST


@dataclass(frozen=True)
class ColumnFit:
    """The rows by columns, a model of them, and its standardised units."""

    table: ColumnTable
    X: csr_array
    y: np.ndarray  # (n,), standardised
    weights: np.ndarray | None  # (n,)
    units: Units

    @classmethod
    def of(cls, problem: Problem) -> "ColumnFit":
        """Collect the rows: one pass."""
        rows, units, options = problem.rows, problem.units, problem.options
        chunks: list[Chunk] = rows.collect(_as_it_is)
        X = chunks[0].X if len(chunks) == 1 else vstack([c.X for c in chunks], "csr")
        y = np.concatenate([standardised_target(c, units) for c in chunks])
        weighted = chunks[0].weight is not None
        weight = np.concatenate([np.asarray(c.weight) for c in chunks]) if weighted else None
        scale = units.scale.astype(np.float64)
        varies = scale > 0
        inverse = 1 / np.where(varies, scale, 1.0)
        penalty = np.where(varies, (units.penalty_scale * inverse) ** 2, 0.0)
        signs = np.ones(max(options.rank, 1))
        table = ColumnTable(
            csc_array(X), y, weight, units.nu * inverse, penalty, signs, options.alpha
        )
        return cls(table, csr_array(X), y, weight, units)

    @property
    def parts(self) -> tuple[csr_array, np.ndarray, np.ndarray | None, np.ndarray]:
        """Return the rows, targets and weights, and the penalties of columns."""
        return self.X, self.y, self.weights, self.table.penalty

    @property
    def weight(self) -> float:
        """Return the total weight of the rows."""
        return float(len(self.y) if self.weights is None else self.weights.sum())

    def shares(self) -> np.ndarray:
        """Return the share of the rows, by weight, that have an entry of each column (d,)."""
        X, each = self.X, None
        if self.weights is not None:
            each = np.repeat(self.weights, np.diff(X.indptr))
        return np.bincount(X.indices, each, X.shape[1]) / self.weight

    def begin(self, w: np.ndarray, V: np.ndarray, signs: np.ndarray) -> None:
        """Start with the slopes w at the means, and with the best length of V: one pass.

        Along the line M = t V diag(s) Vᵀ the objective is a parabola.
        """
        table, k = self.table, self.table.k
        table.signs[:k], table.V[:], table.linear[:] = signs, V, 0.0
        table.linear[:] = -table.levels
        table.evaluate()
        weight = np.ones(len(self.y)) if self.weights is None else self.weights
        products = table.errors + self.y
        products -= np.average(products, weights=weight)
        rest = self.y - self.X @ w.astype(self.X.dtype)
        rest -= np.average(rest, weights=weight)
        along, size = weight @ (products * rest), weight @ products**2 + table.ridge_of_products()
        length = max(float(along), 0.0) / size if size > 0 else 0.0
        table.linear[:] = w + length * table.linear
        table.V[:] *= sqrt(length)

    def model(self) -> Model:
        """Return the current model; its U is not orthonormal."""
        table, units, s = self.table, self.units, self.table.signs[: self.table.k]
        V, mean = table.V, table.mean
        centre = float(s @ (mean @ V) ** 2 - mean**2 @ (V**2 @ s))
        c = table.intercept + float(mean @ table.linear) + centre
        dtype = units.scale.dtype
        U = (self.inverse[:, None] * V).astype(dtype)
        w = (self.inverse * table.levels).astype(dtype)
        return Model(U, s.astype(dtype), w, c, units.free)

    def linear_model(self, w: np.ndarray) -> Model:
        """Return the model with these slopes and no products."""
        units, d = self.units, len(w)
        dtype = units.scale.dtype
        U, s = np.zeros((d, 1), dtype), np.zeros(1, dtype)
        return Model(U, s, (self.inverse * w).astype(dtype), units.target.centre, units.free)

    @property
    def inverse(self) -> np.ndarray:
        """Return the standard deviations (d,), zero for constant columns."""
        scale = self.units.scale.astype(np.float64)
        return np.where(scale > 0, 1 / np.where(scale > 0, scale, 1.0), 0.0)


def _as_it_is(chunk: Chunk) -> Chunk:
    return chunk


def begin(problem: Problem, columns: ColumnFit) -> None:
    """Start from ridge regression and the leading directions of its residual: some ten passes.

    The directions are those of the moment matrix of columns weighted by the square root of the
    share of rows that have them. Otherwise a few rare columns would lead, whose coefficients the
    penalty removes.
    """
    options, counter = problem.options, problem.rows.counter
    path = ridges(*columns.parts, options.alpha[:1], RIDGE_TOL, RIDGE_WALKS)
    counter.count += path.walks * problem.rows.share
    V, signs = start_of(problem, columns, path.coef[0])
    columns.begin(path.coef[0], V, np.ones_like(signs) if options.psd else signs)
    counter.count += problem.rows.share


def start_of(problem: Problem, columns: ColumnFit, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors, in the units of the rows, and the signs of the leading directions."""
    units, options = problem.units, problem.options
    weigh = np.sqrt(columns.shares()).astype(units.scale.dtype)
    none = np.zeros((len(weigh), 0), weigh.dtype)
    white = LowRank(weigh, none, none[0])
    U, s, _ = leading_directions(
        GaussNewton(problem, white), columns.linear_model(w), options.rank, BLOCKS
    )
    size = np.abs(np.asarray(s, np.float64))
    size = np.sqrt(np.maximum(size, WEAKEST * size.max()))
    V = units.scale[:, None] * np.asarray(white.apply(U)) * size
    return V, np.where(np.asarray(s) < 0, -1.0, 1.0)


def descent(problem: Problem, columns: ColumnFit, remainder: float) -> Method:
    """Sweep until the remaining gain is below a fraction of the objective."""
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
            # Gains that fall by the same factor r each time add up to gain·r/(1 − r).
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
        old = new if gain > 0 else None  # after a sweep that failed, there is no extrapolation
    return Status.out_of_steps


def linear(problem: Problem, columns: ColumnFit) -> Method:
    """Yield ridge regression."""
    table, counter, share = columns.table, problem.rows.counter, problem.rows.share
    tol = max(LINEAR_TOL, 30 * float(np.finfo(columns.X.dtype).eps))
    path = ridges(*columns.parts, problem.options.alpha[:1], tol, MOST_WALKS)
    table.linear[:] = path.coef[0]
    table.evaluate()
    counter.count += (path.walks + 1) * share
    model = columns.linear_model(path.coef[0])
    model = replace(model, U=model.U[:, :0], s=model.s[:0])
    yield Iterate(model, table.objective() / columns.weight)
    return Status.converged if path.walks < MOST_WALKS + 2 else Status.out_of_passes


def fit_by_columns(
    rows: Rows,
    units: Units,
    options: Options,
    tally: Tally,
    seed: int,
    on_step: OnStep = None,
) -> tuple[Solution, Whitener] | None:
    """Fit wide sparse rows by sweeps over their columns; None if another method is better.

    Passes: about 20 for the start, most of them with one column, and 10 to 30 sweeps of
    O(nnz·k² + d·k³), each of which counts as two.
    Memory: a copy of the rows by columns, and (k + 8)(n + 2d) numbers.
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
