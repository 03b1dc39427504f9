r"""The uncertainty of a fit: the noise, and standard errors of anything linear in (c, w, M).

At the optimum the error t of the model, on the tangent space, is Gaussian (Laplace):

.. math:: t \sim N(0, \sigma^2 H^{-1}), \quad H = J^\top \Omega J + R + C, \quad
          \sigma^2 = \frac{\sum_i \omega_i r_i^2}{n - \mathrm{dof}}, \quad
          \mathrm{dof} = \mathrm{tr}\, H^{-1} J^\top \Omega J, \quad n = \sum_i \omega_i

J is the linearised model, Ω the row weights (repetitions), R the ridge, and A = JᵀΩJ + R. With a
ridge this is the posterior under the prior of that ridge. Its intervals include the bias of
shrinkage if the coefficients are about as large as the prior says, as with penalties of largest
evidence; they are too short if a given penalty is much too large. C is the curvature of the rank-k
matrices against the residual, 2 P_⊥ E[r zzᵀ] P_⊥ G S⁻¹: it is negligible if M stands out from the
noise; otherwise it is the cost of fitting noise.

H⁻¹ is kept as m tangent steps with Σ tᵢtᵢᵀ = H⁻¹, so the variance of a linear functional L is
σ² Σ L(tᵢ)². They are an exact root if A is small enough to be formed, otherwise draws of
N(0, H⁻¹/m) by perturb-and-solve. Both take the root of I + A⁻¹C by the midpoint rule for

.. math:: (1 + x)^{-1/2} = \frac{2}{\pi} \int_0^{\pi/2} \frac{d\varphi}{1 + x \cos^2 \varphi}

whose terms (A + C cos²φ)⁻¹ can be applied by conjugate gradients, and which stays bounded as
x → −1, where two directions of the noise compete for a place in M.

All this assumes equal noise in all rows. `robust` errors do not: see `sandwich`.
"""

from dataclasses import dataclass, replace
from math import inf, nan, sqrt

import numpy as np
from scipy.special import stdtr, stdtrit

from quadlin.core.arrays import Array, namespace, unflagged
from quadlin.core.block import Block
from quadlin.core.messages import warn
from quadlin.core.model import Model
from quadlin.core.moments import Tally
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.fits.curvature import Curvature, drawn, inverse_root
from quadlin.solve.fits.error_steps import ErrorSteps
from quadlin.solve.fits.sandwich import Laplace, sandwiched
from quadlin.solve.lowrank.gauss_newton import Point, smallest_loss
from quadlin.solve.lowrank.levels import Fields, settled_steps
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Whitener

DENSE_LIMIT = 1500  # parameters up to which A is formed: about where draws become cheaper
NORMAL = 1e12  # degrees of freedom with which Student's law is the normal one
DRAWS = 64  # a standard error from m draws is itself uncertain by 1/√(2m), here 9%


@dataclass(frozen=True)
class Uncertainty:
    r"""The law :math:`N(0, \sigma^2 \sum_i t_i t_i^\top)` of a fitted model's error.

    `noise` and `predict_std` are in the units of the standardised target, like the model; the
    standard errors of coefficients are in the user's units. All are nan if no row is left to
    estimate the noise from (n − dof < 1). Parameters that the rows cannot distinguish, such as the
    coefficients of two equal columns, have the spread of the part that the rows do determine:
    predictions for rows like those fitted are right, the single coefficients are conventions.

    Memory: O(mkd), where m ≤ 1500 is the number of parameters if `exact`, otherwise of draws. With
    d > 2000 features C is left out: this is right if M stands out from the
    noise, and too optimistic otherwise.
    """

    units: Units
    spread: ErrorSteps
    noise: float  # σ, of an observation
    error: float  # σ of the parameters: the same, but for Huber's loss and for missing values
    dof: float  # the effective number of parameters
    left: float  # n − dof: for quantiles of Student's t; `NORMAL` if the noise is known
    exact: bool  # whether Σ tᵢtᵢᵀ = H⁻¹; otherwise on average over draws, or an approximation
    converged: bool  # whether the draws reached CG_TOL; otherwise spreads are too small
    passes: int  # over the rows
    robust: bool = False  # whether noise may differ between rows

    def predict_std(self, block: Block, predictive: bool = False) -> Array:
        """Return the standard error s of f(z), or with `predictive` the spread of y around it.

        The spread is √(σ² + s²), where σ is the noise of an average row, also for robust s.
        """
        variance = self.error**2 * self.spread.of_predictions(block, self.units)
        if predictive:
            variance = self.noise**2 + variance
        return namespace(variance).sqrt(variance)

    @unflagged
    def coef_std(self) -> tuple[Array, float]:
        """Return the standard errors of w_raw = D(w − 2Mν), (d,), and of b_raw."""
        coef, intercept = self.spread.of_coefficients(self.units)
        return self._size * namespace(coef).sqrt(coef), self._size * sqrt(intercept)

    @unflagged
    def slope_std(self) -> Array:
        """Return the standard errors of Dw, the slopes at the means of the features, (d,)."""
        none = namespace(self.units.mean).zeros_like(self.units.mean)
        at_means = replace(self.units, mean=none, rest=none)
        slopes, _ = self.spread.of_coefficients(at_means)
        return self._size * namespace(slopes).sqrt(slopes)

    @unflagged
    def interaction_std(self, i: int, j: int) -> float:
        """Return the standard error of the entry ij of M_raw = D M D; 0 if it is left out."""
        if i == j and not float(self.units.free[i]):
            return 0.0
        D, variance = self.units.scale, self.spread.of_interaction(i, j, self.units)
        return self._size * float(D[i]) * float(D[j]) * sqrt(variance)

    @property
    def _size(self) -> float:
        """Return σ of the parameters in the target's units."""
        return self.units.target.scale * self.error


def uncertainty_of(
    rows: Rows,
    model: Model,
    units: Units,
    options: Options,
    white: Whitener,
    rng: np.random.Generator,
    *,
    fields: Fields = (),
    robust: bool = False,
    bend: float = inf,
    unit_noise: bool = False,
    dense_limit: int = DENSE_LIMIT,
    draws: int = DRAWS,
) -> Uncertainty:
    """Compute the uncertainty of a model that was fitted to these rows.

    Parameters
    ----------
    rows, units, options, white
        The rows of the fit, and how it was done.
    model : Model
        The optimum of a fit. Near an optimum, the results are about those of the optimum.
    rng : numpy Generator
        The generator of the draws.
    fields : sequence of arrays
        The one-hot groups; the coefficients of levels are relative to the means of their groups.
    robust : bool
        Whether noise may differ between rows: one more pass, or twice the passes of the draws,
        which do not correct residuals for leverage.
    bend : float
        The bend of Huber's loss, if these are the rows of its reweighted least squares.
    unit_noise : bool
        Whether the noise is known to be 1, as in the least squares that approximate a likelihood at
        its optimum. Then H is Fisher's information, and quantiles are normal ones.
    dense_limit : int
        Most parameters 1 + d + dk whose matrix is formed: three passes, O((dk)²) memory.
    draws : int
        Number of draws if there are more parameters; memory for some 6·draws·(k + 1)·d numbers, of
        which a sixth is kept, and d×d up to d = 2000. Passes: 20 to 30 with n = 10kd, more if C
        must be reduced.

    Returns
    -------
    Uncertainty
    """
    before = rows.walks
    task = Curvature(Problem(rows, units, options, rng), white)
    p = task.point_of(model)
    exact, converged = 1 + p.U.shape[0] * (1 + p.U.shape[1]) <= dense_limit, True
    task.learn_c(p)
    if exact:
        steps, root, dof = inverse_root(task, p)
    else:
        steps, dof, converged = drawn(task, p, draws)
    noise, freedom = noise_of(p, dof, task.problem, unit_noise)
    if robust and freedom >= 1 and exact:
        ridge = any(task.coordinates.penalties)
        at = Laplace(p.model, units, steps, root, noise, ridge, bend)
        steps = sandwiched(rows, at)
    elif robust and freedom >= 1:
        steps, _, converged = drawn(task, p, draws, noise)
        steps = steps.scaled(1.0 if unit_noise else sqrt(p.sums.weight / freedom))
    if options.levels_are_ambiguous:
        steps = settled_steps(steps, units, fields)
    spread, passes = ErrorSteps.of(steps), rows.walks - before
    return Uncertainty(units, spread, noise, noise, dof, freedom, exact, converged, passes, robust)


def noise_of(p: Point, dof: float, problem: Problem, unit_noise: bool) -> tuple[float, float]:
    """Return σ and the degrees of freedom from which it is estimated."""
    if unit_noise:
        return 1.0, NORMAL
    freedom, options = p.sums.weight - dof, problem.options
    if not any(options.alpha) and p.sums.loss <= smallest_loss(problem.units) * p.sums.weight:
        freedom = min(freedom, p.sums.weight - options.dof(*p.U.shape))  # draws give a rough dof
    return sqrt(p.sums.loss / freedom) if freedom >= 1 else nan, freedom


def made_robust(law: Uncertainty, rows: Rows, model: Model, bend: float = inf) -> Uncertainty:
    """Return a law with noise that may differ between rows, from one whose H is A: one pass."""
    if not law.left >= 1:
        return replace(law, robust=True)
    steps = law.spread
    root = namespace(steps.E).ones_like(steps.c)
    at = Laplace(model, law.units, steps, root, law.noise, True, bend)
    return replace(law, spread=ErrorSteps.of(sandwiched(rows, at)), error=law.noise, robust=True)


def warn_if_unknown(law: Uncertainty, tally: Tally) -> None:
    """Warn if the standard errors of a fit are not known."""
    if not law.noise >= 0:
        warn(
            "Standard errors are not known (nan): the fit uses as many effective parameters as "
            f"there are observations ({tally.weight:.4g}, where a weight counts as repetitions of "
            "its row), so nothing is left to estimate the noise from. Use more rows, fewer "
            f"features, or a larger penalty, such as alpha={tally.counting}; weights should have "
            "a mean of 1."
        )


def standard_errors_of(level: float, left: float) -> float:
    """Return the half-width, in standard errors, of an interval of probability `level`.

    `left` are the degrees of freedom of the estimated noise: rows minus the effective number of
    parameters.

    >>> round(standard_errors_of(0.95, 3.0), 2), round(standard_errors_of(0.95, NORMAL), 2)
    (3.18, 1.96)
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must lie between 0 and 1.")
    return float(stdtrit(left, (1 + level) / 2))


def two_sided(t: float, left: float) -> float:
    """Return the probability of a statistic at least as far from zero as t."""
    return 2 * float(stdtr(left, -abs(t)))
