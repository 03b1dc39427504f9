"""What the rows themselves tell about a fit: errors, outliers, what the rank lacks."""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from quadlin.core.arrays import namespace, to_numpy
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.solve.choose.leave_one_out import left_out_error
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.grid import squared_errors
from quadlin.solve.lowrank.exact import EXACT_COLUMNS
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.polish import leading_directions
from quadlin.solve.lowrank.tangent_gram import tangent_gram
from quadlin.solve.lowrank.types import Options, Problem

LEAST_PENALTY = 1e-9  # of the weight: dependent columns leave a matrix that has no inverse
HANDFUL = 5  # rows


@dataclass(frozen=True)
class RowFindings:
    """Numbers about the rows that a fit is diagnosed with, errors in the user's units."""

    edge: tuple[float, float] | None  # the residual's leading eigenvalue, and that of noise alone
    error: float  # root mean square
    left_out_error: float | None  # the same when each row is left out; None if it is not known
    heavy: tuple[int, ...]  # the rows that carry most of the squared error, if they are a handful
    heavy_share: float  # of the squared error


def row_findings(rows: Rows, state: FitState, options: Options, seed: int) -> RowFindings:
    """Look at the rows: seven passes, and O(p²) memory up to 1,500 parameters.

    Other rows than those of the fit have only errors: a residual that is not orthogonal to columns
    such as the levels of a category shows directions that whitening makes large.
    """
    squares, weight = map(to_numpy, squared_errors(state.model, state.units, rows))
    total = float(weight @ squares)
    unit, n = state.units.target.scale, float(weight.sum())
    top = np.argsort(-weight * squares)[:HANDFUL]
    shares = np.cumsum((weight * squares)[top]) / max(total, 1e-300)
    few = len(squares) >= 20 * HANDFUL and shares[-1] > 0.5
    count = int(np.argmax(shares > 0.5)) + 1 if few else 0
    fitted = _were_fitted(rows, state)
    left_out = _left_out(rows, state, options, n) if fitted else None
    return RowFindings(
        residual_edge(rows, state, options, seed) if fitted else None,
        unit * sqrt(total / n),
        None if left_out is None else unit * sqrt(left_out),
        tuple(sorted(int(i) for i in top[:count])),
        float(shares[count - 1]) if count else 0.0,
    )


def _were_fitted(rows: Rows, state: FitState) -> bool:
    """Tell whether rows have the extremes of those of the fit, which do not depend on weights."""
    features, of_fit = rows.reduce(survey).features, state.features
    pairs = ((features.low, of_fit.low), (features.high, of_fit.high))
    return all(b is None or np.array_equal(to_numpy(a), to_numpy(b)) for a, b in pairs)


def residual_edge(rows: Rows, state: FitState, options: Options, seed: int) -> tuple[float, float]:
    """Return the leading eigenvalue of the residual's moment matrix, and that of noise alone."""
    xp = namespace(state.model.s)
    problem = Problem(rows, state.units, options, np.random.default_rng(seed))
    _, s, _ = leading_directions(GaussNewton(problem, state.white), state.model, 1)
    residual = problem.sums(state.model, squares=False)
    d, n = state.model.U.shape[0], residual.weight
    return float(xp.max(xp.abs(s))), (residual.loss / n * d / n) ** 0.5


def _left_out(rows: Rows, state: FitState, options: Options, weight: float) -> float | None:
    """Return the mean squared error of rows left out, where a matrix of the parameters fits.

    The penalties are those of a low-rank M: pairs beside it have another one.
    """
    dof = options.dof(*state.model.U.shape)
    if state.parts is not None or dof > EXACT_COLUMNS:
        return None
    first, second = (max(alpha, LEAST_PENALTY * weight) for alpha in options.alpha)
    gram = tangent_gram(rows, state.units, options, state.model.U)
    try:
        return left_out_error(rows, state.units, gram, (first, second), weight)
    except np.linalg.LinAlgError:
        return None
