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
σ² Σ L(tᵢ)². They are an exact root if A is small enough to be formed, otherwise draws.

All this assumes equal noise in all rows. Robust errors do not: the residuals give the noise of each
direction (White, 1980; MacKinnon and White's HC3, 1985),

.. math:: \mathrm{cov} = A^{-1} \left( J^\top \mathrm{diag}(\omega_i^2 e_i^2)\, J
          + \sigma^2 R \right) A^{-1}, \quad e_i = \frac{r_i}{1 - h_i}, \quad
          h_i = \omega_i\, \varphi_i^\top A^{-1} \varphi_i

with φ the rows of J. With the same noise in every row it is again σ²A⁻¹. A row counts as one
observation, independent of the others, whatever its weight: weights may be precisions or shares of
a population. With Huber's loss, ω are the weights of its reweighted least squares. The loss is
curved only inside the bend, so the rows outside are subtracted from A.

If A is too large to be formed, a draw solves A t = JᵀΩ^½ε + R^½η by conjugate gradients, with ε and
η of variance 1, so its covariance is A⁻¹.

A missing number is replaced by its mean. If it is δ standard deviations from there, the prediction
changes by gδ + mδ², where g is the slope and m the coefficient of the square, so that

.. math:: E (g \delta + m \delta^2)^2 = g^2 + 2 g m \kappa + m^2 \varphi

with the third and fourth moments of the column. A row without a level of a field, since it is
missing or new, is predicted as one with the average level. With level l the prediction would
change by :math:`\Delta_l = a_l^\top h, h = (1, U^\top z)`, and its mean square over the levels of
the fitted rows is :math:`h^\top E[a a^\top] h`. Columns count as independent. The residuals of
rows with a gap contain that error, so the noise is estimated from complete rows, as long as they
are more than the parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, nan, sqrt

import numpy as np
from scipy.sparse import csr_array, issparse
from scipy.special import stdtr, stdtrit

from quadlin.core.arrays import Array, namespace, symmetric, to_numpy, unflagged
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import folded, height
from quadlin.core.messages import warn
from quadlin.core.model import Model, Steps, changes, in_dtype, predict
from quadlin.core.moments import Tally
from quadlin.core.rows import Rows
from quadlin.core.sums import ELEMENTS, Sums, batch_sums, cut_rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Design
from quadlin.solve.lowrank.gauss_newton import GaussNewton, smallest_loss
from quadlin.solve.lowrank.levels import Fields, settled_steps
from quadlin.solve.lowrank.linear_model import Gram
from quadlin.solve.lowrank.observations import row_hash
from quadlin.solve.lowrank.tangent import Ridge
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Whitener

NORMAL = 1e12  # degrees of freedom with which Student's law is the normal one
TOL, PASSES = 1e-3, 100  # of a draw, far below the 9% error of 64 draws
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
    S = symmetric(sums[0, :, :])
    identity = xp.eye(S.shape[0], dtype=S.dtype, device=S.device)
    S = S + law.noise**2 * identity  # A = JᵀΩJ + R along these steps; the rows subtract JᵀΩJ
    if bend < inf:
        values, V = xp.linalg.eigh(identity - symmetric(sums[1, :, :]))
        inverse = (V / xp.clip(values, min=INSIDE)) @ V.T
        S = symmetric(inverse @ S @ inverse)
    values, V = xp.linalg.eigh(S)
    root = V * (xp.sqrt(xp.clip(values, min=0)) / law.noise)
    spread = steps.combined(xp.astype(root, steps.E.dtype))
    return replace(law, spread=spread, error=law.noise, robust=True)


def score_sums(chunk: Chunk, law: Uncertainty, model: Model, bend: float) -> Array:
    """Return Σ (ω²e² − σ²ω) qqᵀ, and with a bend Σ ω qqᵀ of rows outside, (…, m, m); q = J A^−½."""
    _, m, k = law.spread.H.shape
    pieces = cut_rows(chunk, m * max(1, k)) or [chunk]
    return folded(_score_sums, pieces, (law, model, bend))[0]


def _score_sums(chunk: Chunk, law: Uncertainty, model: Model, bend: float) -> Array:
    block, units, xp = Block(chunk.X, law.units), law.units, namespace(law.spread.E)
    q = xp.astype(changes(block, law.spread, units.free), xp.float64)
    r = xp.astype(predict(model, block) - units.standardised_target(chunk.y), xp.float64)
    omega = xp.ones_like(r) if chunk.weight is None else xp.astype(chunk.weight, xp.float64)
    leverage, most = omega * xp.sum(q * q, axis=1), 1 - sqrt(units.eps)
    e = r / (1 - xp.clip(leverage, max=most))
    # The residual of a row that alone determines a parameter is rounding.
    parts = [xp.where(leverage < most, (omega * e) ** 2 - law.noise**2 * omega, 0 * omega)]
    if bend < inf:
        parts.append(xp.where(xp.abs(r) > bend, omega, 0 * omega))
    return xp.stack([q.T @ (part[:, None] * q) for part in parts])


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


def drawn(
    task: GaussNewton, model: Model, draws: int, noise: float | None = None
) -> tuple[Steps, float]:
    """Return draws t and the effective number of parameters.

    With `noise`, which is σ, errors are robust: A t = JᵀΩ(r∘ε) + σR^½η.
    """
    problem, p = task.problem, task.point_of(model)
    E, n = p.model.U, p.sums.weight
    seed = int(problem.rng.integers(2**62))
    n_rows = sum(problem.rows.collect(height))
    args = (E, task.units, seed, draws, task.squares, None if noise is None else p.model)
    sums = problem.rows.reduce(noise_sums, *args, beside=range(n_rows))
    ridge = ridge_noise(task, E, n, draws, 1.0 if noise is None else noise)
    t, _ = task.direction(p, task.coordinates.gradient(sums, p.U, E, ridge), TOL, PASSES)
    t = draws**-0.5 / (noise or 1.0) * t
    steps = task.coordinates.steps(p.model, p.U, t)
    penalty = steps.penalty(task.coordinates.penalties, task.units.penalty_scale)
    return steps, n * t.dot(task.curvature(p, t)) - penalty


def noise_sums(
    numbered: tuple[Chunk, range],
    E: Array,
    units: Units,
    seed: int,
    draws: int,
    squares: bool,
    model: Model | None = None,
) -> Sums:
    """Return the sums of noise Ω^½ε, or with a model those of Ω(r∘ε), where r are its residuals."""
    (chunk, places), xp = numbered, namespace(E)
    pieces = cut_rows(chunk, draws * E.shape[1])
    if len(pieces) > 1:
        params = (E, units, seed, draws, squares, model)
        return folded(noise_sums, pieces, params, places)[0]  # type: ignore[return-value]
    r = xp.asarray(noise(places, seed, draws), dtype=E.dtype, device=E.device)
    if chunk.weight is not None:
        weight = xp.astype(chunk.weight, E.dtype)[:, None]
        r = xp.sqrt(weight) * r if model is None else weight * r
    if model is not None:
        residual = predict(model, Block(chunk.X, units)) - units.standardised_target(chunk.y)
        r = residual[:, None] * r

    def drawn(ZE: Array, _: None, part: slice) -> tuple[Array, Array, Array]:
        return r[part, :], r[part, :], ZE

    return batch_sums(chunk, units, E, drawn, None, squares)


def noise(places: range, seed: int, draws: int) -> np.ndarray:
    """Return random signs for some rows; they depend on their positions, not on how rows are cut.

    All that matters of noise is its variance of 1.
    """
    numbers = np.arange(len(places) * draws, dtype=np.uint64) + np.uint64(places.start * draws)
    bits = row_hash(numbers, seed).reshape(-1, draws) >> np.uint64(63)
    return 1.0 - 2.0 * bits.astype(np.float64)


def ridge_noise(task: GaussNewton, E: Array, n: float, draws: int, size: float) -> Ridge:
    """Draw size·R^½η/n as part of a gradient: √α₁ ρη, and √(α₂/2) ρ(Ξ + Ξᵀ)ρE, Ξ normal, d×d."""
    xp, rng, rho = namespace(E), task.problem.rng, task.units.penalty_scale
    (first, second), (d, k) = task.coordinates.penalties, E.shape
    first, second = size**2 * first, size**2 * second
    # ρE = QR, and (Ξ + Ξᵀ)Q is symmetric within the span of Q and free outside of it.
    Q, R = xp.linalg.qr(rho[:, None] * E)

    def normal(*shape: int) -> Array:
        return xp.asarray(rng.standard_normal(shape), dtype=E.dtype, device=E.device)

    def pull() -> Array:
        inside, outside = normal(k, k), normal(d, k)
        outside = sqrt(2) * (outside - Q @ (Q.T @ outside))
        return (Q @ (inside + inside.T) + outside) @ R

    w, ME = [], []
    for _ in range(draws):
        w.append(sqrt(first) / n * rho * normal(d) if first else rho)
        ME.append(sqrt(second / 2) / n * rho[:, None] * pull() if second else E)
    return Ridge(xp.stack(w, axis=1) if first else None, xp.stack(ME, axis=1) if second else None)


def residual_sums(chunk: Chunk, model: Model, units: Units) -> np.ndarray:
    """Return Σω and Σω r² (2, 2) of a chunk, of all rows and of complete ones."""
    r = predict(model, Block(chunk.X, units)) - units.standardised_target(chunk.y)
    has_gap = 0 if chunk.absent is None else np.diff(chunk.absent.indptr)
    omega = np.stack([chunk.weights, chunk.weights * (has_gap == 0)])
    return np.stack([omega.sum(axis=1), omega @ to_numpy(r).astype(np.float64) ** 2])


def with_noise_of_complete_rows(law: Uncertainty, rows: Rows, model: Model) -> Uncertainty:
    """Return the law with the noise of complete rows: one pass."""
    weight, squares = rows.reduce(residual_sums, model, law.units)
    if weight[1] <= law.dof or not law.left >= 1:
        return law
    every, complete = squares / weight
    return replace(law, noise=law.noise * sqrt(complete / every) if every else law.noise)


def missing_variance(
    model: Model,
    units: Units,
    X: Array,
    absent: csr_array | None,
    fields: Sequence[np.ndarray],
) -> np.ndarray | None:
    """Return the mean square error (n,) that missing values add, in scale_y²; None for none.

    `absent` (n, d) tells which values are missing, and `fields` are groups of one-hot columns.
    """
    n, d = X.shape
    gaps = csr_array((n, d), dtype=bool) if absent is None else absent
    number = np.repeat(np.arange(len(fields)), [len(field) for field in fields])
    members = np.concatenate([np.empty(0, dtype=int), *fields])
    member = csr_array((np.ones(len(members)), (members, number)), shape=(d, len(fields)))
    has_level = (X if issparse(X) else to_numpy(X)) @ member
    has_level = has_level.toarray() if issparse(has_level) else np.asarray(has_level)
    rows = np.flatnonzero((np.diff(gaps.indptr) > 0) | (has_level == 0).any(axis=1))
    if not len(rows):
        return None
    xp = namespace(X)
    selected = X[rows] if issparse(X) else xp.take(X, xp.asarray(rows, device=X.device), axis=0)
    parts = (model.U, model.s, model.w, model.free, Block(selected, units).matmul(model.U))
    U, s, w, free, ZU = (to_numpy(a).astype(np.float64) for a in parts)
    parts = (units.kappa, units.phi, units.mean, units.scale, units.nu)
    kappa, phi, mean, scale, nu = (to_numpy(a).astype(np.float64) for a in parts)
    diagonal = (U * U) @ s
    row, j = gaps[rows].nonzero()
    g, m = w[j] + 2 * np.sum((ZU * s)[row] * U[j], axis=1), (free * diagonal)[j]
    squares = np.where(scale[j] > 0, g**2 + 2 * g * m * kappa[j] + m**2 * phi[j], 0.0)
    total = np.bincount(row, squares, len(rows)).astype(np.float64)
    # What a level adds to none of its field: products within a field are zero.
    w = w + 2 * (1 - free) * diagonal * nu + free * diagonal * scale
    for f, field in enumerate(fields):
        at = np.flatnonzero(has_level[rows, f] == 0)
        if len(at):
            share = np.maximum(mean[field], 0.0) / max(mean[field].sum(), np.finfo(float).tiny)
            a = scale[field, None] * np.column_stack([w[field], 2 * U[field] * s])
            h = np.column_stack([np.ones(len(at)), ZU[at]])
            total[at] += np.einsum("ra,ab,rb->r", h, (a * share[:, None]).T @ a, h)
    variance = np.zeros(n)
    variance[rows] = total
    return variance
