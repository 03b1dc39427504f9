r"""The uncertainty of a fit: the noise, and standard errors of anything linear in (c, w, M).

At the optimum the error t of the model, on the tangent space, is Gaussian (Laplace):

.. math:: t \sim N(0, \sigma^2 A^{-1}), \quad A = J^\top \Omega J + R, \quad
          \sigma^2 = \frac{\sum_i \omega_i r_i^2}{n - \mathrm{dof}}, \quad
          \mathrm{dof} = \mathrm{tr}\, A^{-1} J^\top \Omega J, \quad n = \sum_i \omega_i

J is the linearised model, Ω the row weights (repetitions) and R the ridge: it is the linear model
on the tangent space. With a ridge this is the posterior under the prior of that ridge. Its
intervals include the bias of shrinkage if the coefficients are about as large as the prior says, as
with penalties of largest evidence; they are too short if a given penalty is much too large. They
are also too short for a component that fits noise: the curvature of the rank-k matrices is left
out, which is negligible if M stands out from the noise.

A⁻¹ is kept as m tangent steps with Σ tᵢtᵢᵀ = A⁻¹, so the variance of a linear functional L is
σ² Σ L(tᵢ)². They are an exact root if A is small enough to be formed, otherwise `draws`.

All this assumes equal noise in all rows. Robust errors do not: the residuals give the noise of each
direction (White, 1980; MacKinnon and White's HC3, 1985),

.. math:: \mathrm{cov} = A^{-1} \left( J^\top \mathrm{diag}(\omega_i^2 e_i^2)\, J
          + \sigma^2 R \right) A^{-1}, \quad e_i = \frac{r_i}{1 - h_i}, \quad
          h_i = \omega_i\, \varphi_i^\top A^{-1} \varphi_i

with φ the rows of J. With the same noise in every row it is again σ²A⁻¹. A row counts as one
observation, independent of the others, whatever its weight: weights may be precisions or shares of
a population. With Huber's loss, ω are the weights of its reweighted least squares. The loss is
curved only inside the bend, so the rows outside are subtracted from A.
"""

from dataclasses import dataclass, replace
from math import inf, nan, sqrt

import numpy as np
from scipy.special import stdtr, stdtrit

from quadlin.core.arrays import Array, namespace, symmetric, unflagged
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, folded
from quadlin.core.messages import warn
from quadlin.core.model import Model, Steps, changes, in_dtype, predict
from quadlin.core.moments import Tally
from quadlin.core.rows import Rows
from quadlin.core.sums import ELEMENTS, Sums, cut_rows
from quadlin.core.units import Units
from quadlin.solve.fits.draws import drawn
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Design
from quadlin.solve.lowrank.gauss_newton import GaussNewton, smallest_loss
from quadlin.solve.lowrank.levels import Fields, settled_steps
from quadlin.solve.lowrank.linear_model import Gram
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Whitener

NORMAL = 1e12  # degrees of freedom with which Student's law is the normal one
DRAWS = 64  # a standard error from m draws is itself uncertain by 1/√(2m), here 9%
INSIDE = 0.05  # of the curvature along a direction: the least that remains with Huber's loss


@dataclass(frozen=True)
class Uncertainty:
    r"""The law :math:`N(0, \sigma^2 \sum_i t_i t_i^\top)` of a fitted model's error.

    `noise` and `predict_std` are in the units of the standardised target, like the model; the
    standard errors of coefficients are in the user's units. All are nan if no row is left to
    estimate the noise from (n − dof < 1). Parameters that the rows cannot distinguish, such as the
    coefficients of two equal columns, have the spread of the part that the rows do determine:
    predictions for rows like those fitted are right, the single coefficients are conventions.

    Memory: O(mkd), where m ≤ 1500 is the number of parameters if `exact`, otherwise of draws.
    """

    units: Units
    spread: Steps  # tᵢ, whose Σ tᵢtᵢᵀ is the covariance over the squared `error`
    noise: float  # σ, of an observation
    error: float  # σ of the parameters: the same, but for Huber's loss and for missing values
    dof: float  # the effective number of parameters
    left: float  # n − dof: for quantiles of Student's t; `NORMAL` if the noise is known
    exact: bool  # whether Σ tᵢtᵢᵀ = A⁻¹; otherwise on average over draws, or an approximation
    robust: bool = False  # whether noise may differ between rows

    def predict_std(self, block: Block, predictive: bool = False) -> Array:
        """Return the standard error s of f(z), or with `predictive` the spread of y around it.

        The spread is √(σ² + s²), where σ is the noise of an average row, also for robust s.
        """
        steps, xp = self.spread, namespace(self.spread.E)
        _, m, k = steps.H.shape
        size = max(1, ELEMENTS // max(1, block.n_rows * max(1, k)))
        variance = xp.zeros(block.n_rows, dtype=steps.E.dtype, device=steps.E.device)
        for start in range(0, m, size):
            part = changes(block, steps[start : start + size], self.units.free)
            variance = variance + xp.sum(part * part, axis=1)
        return xp.sqrt(self.error**2 * variance + (self.noise**2 if predictive else 0.0))

    @unflagged
    def coef_std(self) -> tuple[Array, float]:
        """Return the standard errors of w_raw = D(w − 2Mν), (d,), and of b_raw."""
        xp = namespace(self.spread.E)
        t, units = in_dtype(self.spread, xp.float64), in_dtype(self.units, xp.float64)
        nu, free = units.nu, units.free
        along = t.times(nu, free)
        b = t.c - free @ t.diagonals() - nu @ t.w + nu @ along  # c − Σ_F m − νᵀw + νᵀMν
        coef, intercept = units.scale[:, None] * (t.w - 2 * along), float(xp.linalg.vector_norm(b))
        return self._size * xp.linalg.vector_norm(coef, axis=1), self._size * intercept

    @unflagged
    def slope_std(self) -> Array:
        """Return the standard errors of Dw, the slopes at the means of the features, (d,)."""
        xp = namespace(self.spread.E)
        w, D = (xp.astype(a, xp.float64) for a in (self.spread.w, self.units.scale))
        return self._size * D * xp.linalg.vector_norm(w, axis=1)

    @unflagged
    def interaction_std(self, i: int, j: int) -> float:
        """Return the standard error of the entry ij of M_raw = D M D; 0 if it is left out."""
        (E, H), D = (self.spread.E, self.spread.H), self.units.scale
        if i == j and not float(self.units.free[i]):
            return 0.0
        entry = H[j, :, :] @ E[i, :] + H[i, :, :] @ E[j, :]
        size = self._size * float(D[i]) * float(D[j])
        return size * float(namespace(E).linalg.vector_norm(entry))

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
    most_exact: int = EXACT_COLUMNS,
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
    most_exact : int
        Most parameters whose matrix is formed: two passes, O((dk)²) memory.
    draws : int
        Number of draws if there are more parameters; memory for some 6·draws·(k + 1)·d numbers, of
        which a sixth is kept. Passes: 20 to 30 with n = 10kd.

    Returns
    -------
    Uncertainty
    """
    problem = Problem(rows, units, options, rng)
    task, design = GaussNewton(problem, white), Design.at(model.U, units, options)
    exact = sum(design.sizes) <= most_exact
    if exact:
        steps, dof = Gram.of(rows, design).error_steps(options.alpha)
    else:
        steps, dof = drawn(task, model, draws)
    sums = problem.sums(model, squares=False)
    noise, freedom = noise_of(sums, dof, problem, unit_noise)
    if robust and freedom >= 1 and not exact:
        steps, _ = drawn(task, model, draws, noise)
        steps = steps.scaled(1.0 if unit_noise else sqrt(sums.weight / freedom))
    if options.levels_are_ambiguous:
        steps = settled_steps(steps, units, fields)
    law = Uncertainty(units, steps, noise, noise, dof, freedom, exact, robust)
    return made_robust(law, rows, model, bend) if robust and exact else law


def noise_of(sums: Sums, dof: float, problem: Problem, unit_noise: bool) -> tuple[float, float]:
    """Return σ and the degrees of freedom from which it is estimated."""
    if unit_noise:
        return 1.0, NORMAL
    freedom, options, d = sums.weight - dof, problem.options, problem.units.scale.shape[0]
    if not any(options.alpha) and sums.loss <= smallest_loss(problem.units) * sums.weight:
        freedom = min(freedom, sums.weight - options.dof(d, options.rank))  # draws give a rough dof
    return sqrt(sums.loss / freedom) if freedom >= 1 else nan, freedom


def made_robust(law: Uncertainty, rows: Rows, model: Model, bend: float = inf) -> Uncertainty:
    """Return a law with noise that may differ between rows, of another: one pass, O(nm²)."""
    if not law.left >= 1:
        return replace(law, robust=True)
    steps, xp = law.spread, namespace(law.spread.E)
    sums = rows.reduce(score_sums, law, model, bend)
    S, outside = symmetric(sums.scores), symmetric(sums.outside)
    identity = xp.eye(S.shape[0], dtype=S.dtype, device=S.device)
    S = S + law.noise**2 * identity  # A = JᵀΩJ + R along these steps; the rows subtract JᵀΩJ
    if bend < inf:
        values, V = xp.linalg.eigh(identity - outside)
        inverse = (V / xp.clip(values, min=INSIDE)) @ V.T
        S = symmetric(inverse @ S @ inverse)
    values, V = xp.linalg.eigh(S)
    root = V * (xp.sqrt(xp.clip(values, min=0)) / law.noise)
    spread = steps.combined(xp.astype(root, steps.E.dtype))
    return replace(law, spread=spread, error=law.noise, robust=True)


@dataclass(frozen=True)
class ScoreSums(Additive):
    """Sums over rows with q = J A^−½ and HC3 residuals e."""

    scores: Array  # (m, m), Σ (ω²e² − σ²ω) qqᵀ
    outside: Array  # (m, m), Σ ω qqᵀ of the rows outside the bend


def score_sums(chunk: Chunk, law: Uncertainty, model: Model, bend: float) -> ScoreSums:
    """Sum over one chunk, in pieces."""
    _, m, k = law.spread.H.shape
    pieces = cut_rows(chunk, m * max(1, k)) or [chunk]
    return folded(_score_sums, pieces, (law, model, bend))[0]  # type: ignore[return-value]


def _score_sums(chunk: Chunk, law: Uncertainty, model: Model, bend: float) -> ScoreSums:
    block, units, xp = Block(chunk.X, law.units), law.units, namespace(law.spread.E)
    q = xp.astype(changes(block, law.spread, units.free), xp.float64)
    r = xp.astype(predict(model, block) - units.standardised_target(chunk.y), xp.float64)
    omega = xp.ones_like(r) if chunk.weight is None else xp.astype(chunk.weight, xp.float64)
    leverage, most = omega * xp.sum(q * q, axis=1), 1 - sqrt(units.eps)
    e = r / (1 - xp.clip(leverage, max=most))
    # The residual of a row that alone determines a parameter is rounding.
    score = xp.where(leverage < most, (omega * e) ** 2 - law.noise**2 * omega, 0 * omega)
    outside = xp.where(xp.abs(r) > bend, omega, 0 * omega)
    return ScoreSums(q.T @ (score[:, None] * q), q.T @ (outside[:, None] * q))


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
