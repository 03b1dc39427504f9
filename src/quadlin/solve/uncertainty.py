r"""How sure a fit is: the noise level, and standard errors of whatever is linear in (c, w, M).

At the optimum the error t of the model, on the tangent space, is Gaussian (Laplace):

.. math:: t \sim N(0, \sigma^2 H^{-1}), \quad H = J^\top \Omega J + R + C, \quad
          \sigma^2 = \frac{\sum_i \omega_i r_i^2}{n - \mathrm{dof}}, \quad
          \mathrm{dof} = \mathrm{tr}\, H^{-1} J^\top \Omega J, \quad n = \sum_i \omega_i

J is the linearised model, Ω the row weights (repetitions), R the ridge, and A = JᵀΩJ + R. With a
ridge this is the posterior of the prior that it stands for, whose intervals allow for the bias of
shrinking. C is the curvature of the rank-k matrices against the residual, 2 P_⊥ E[r zzᵀ] P_⊥ G S⁻¹:
next to nothing where M stands out of the noise, and where it does not, what fitting noise costs.

H⁻¹ is kept as m tangent steps with Σ tᵢtᵢᵀ = H⁻¹, so that the variance of a linear functional L is
σ² Σ L(tᵢ)². They are an exact root where A is small enough to be formed, and draws of N(0, H⁻¹/m)
by perturb-and-solve where it is not. Both take the root of I + A⁻¹C by the midpoint rule for

.. math:: (1 + x)^{-1/2} = \frac{2}{\pi} \int_0^{\pi/2} \frac{d\varphi}{1 + x \cos^2 \varphi}

whose terms (A + C cos²φ)⁻¹ conjugate gradients can apply, and which bounds it as x → −1, where two
directions of the noise compete for a place in M.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import cos, nan, pi, sqrt

import numpy as np

from quadlin.core.arrays import Array, namespace, symmetric, unflagged
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, Numbered
from quadlin.core.engine import collect, height, reduce
from quadlin.core.model import Model
from quadlin.core.units import Units
from quadlin.solve.gauss_newton import Point, Tangent, conjugate_gradients, whitened
from quadlin.solve.levels import Fields, settled_steps
from quadlin.solve.tangents import ELEMENTS, Many, Steps, beside, changes, noise_sums
from quadlin.solve.types import Options, Problem
from quadlin.solve.whitening import Whitener

DENSE_LIMIT = 1500  # parameters up to which A is formed: about where draws become cheaper
DRAWS = 64  # a standard error from m draws is itself uncertain by 1/√(2m), here 9%
CG_TOL, CG_CAP = 1e-3, 100  # far below that 9%; passes over the rows
COSINES = [cos(pi / 8) ** 2, cos(3 * pi / 8) ** 2]  # cos²φ at the midpoints


@dataclass(frozen=True)
class Uncertainty:
    r"""The law :math:`N(0, \sigma^2 \sum_i t_i t_i^\top)` of a fitted model's error.

    `noise` and `predict_std` are in the units of the standardised target, as the model is; the
    standard errors of coefficients are in the user's units. All are nan where no row is left
    over to tell the noise by (n − dof < 1). What the rows cannot tell apart, such as the
    coefficients of two equal columns, has the spread of its part that they do tell: predictions
    for rows like those fitted are right, the single coefficients are conventions.

    Memory: O(mkd), m ≤ 1500 the number of parameters where `exact`, else that of the draws. With
    d > 2000 features C is left out: sound where M stands out of the noise, too sure elsewhere.
    """

    units: Units
    steps: Steps
    noise: float  # σ, of an observation
    error: float  # σ, of what the rows say of the parameters: the same but for Huber's loss
    dof: float  # the effective number of parameters
    left: float  # n − dof: for quantiles of Student's t
    exact: bool  # whether Σ tᵢtᵢᵀ = H⁻¹, or only on average over draws
    converged: bool  # whether the draws were solved for to CG_TOL; else spreads are too small
    passes: int  # over the rows

    def predict_std(self, rows: Block, predictive: bool = False) -> Array:
        """Return the standard error of f(z), or with `predictive` the spread of y about it."""
        E, free = self.steps.E, self.units.free
        xp = namespace(E)
        ZE = rows.matmul(E)
        size = max(1, ELEMENTS // max(1, ZE.shape[0] * E.shape[1]))
        variance = xp.zeros_like(ZE[:, 0])
        for start in range(0, self.steps.c.shape[0], size):
            q = changes(rows, ZE, self.steps[start : start + size], free)
            variance = variance + xp.sum(q * q, axis=1)
        own = self.error**2 * variance
        return xp.sqrt(self.noise**2 + own if predictive else own)

    @unflagged
    def coef_std(self) -> tuple[Array, float]:
        """Return the standard errors of w_raw = D(w − 2Mν), (d,), and of b_raw."""
        xp, s, units = namespace(self.steps.E), self.steps, self.units
        given = (units.scale, units.mean, units.rest, units.free)
        D, mean, rest, free = (xp.astype(a, xp.float64) for a in given)
        t = Steps(*(xp.astype(a, xp.float64) for a in (s.E, s.H, s.w, s.c)))
        nu = mean * D + rest
        along = t.times(nu, free)
        b = t.c - free @ t.diagonals() - nu @ t.w + nu @ along  # c − Σ_F m − νᵀw + νᵀMν
        return self._spread(D[:, None] * (t.w - 2 * along)), float(self._spread(b))

    @unflagged
    def interaction_std(self, i: int, j: int) -> float:
        """Return the standard error of the entry ij of M_raw = D M D; 0 where it is left out."""
        D, E, H = self.units.scale, self.steps.E, self.steps.H
        if i == j and not float(self.units.free[i]):
            return 0.0
        M = H[j, :, :] @ E[i, :] + H[i, :, :] @ E[j, :]
        return float(D[i]) * float(D[j]) * float(self._spread(M))

    def _spread(self, values: Array) -> Array:
        """Return scale_y·σ·√Σ Lᵢ² of functionals L of the steps, (…, m)."""
        xp = namespace(values)
        return self.units.target.scale * self.error * xp.sqrt(xp.sum(values * values, axis=-1))


def uncertainty_of(
    source: Iterable[Chunk],
    model: Model,
    units: Units,
    options: Options,
    white: Whitener,
    rng: np.random.Generator,
    *,
    fields: Fields = (),
    dense_limit: int = DENSE_LIMIT,
    draws: int = DRAWS,
) -> Uncertainty:
    """Measure how sure a model is of what it learned from these rows.

    Parameters
    ----------
    source, units, options, white
        What the model was fitted to, and how.
    model : Model
        The optimum that a polish found. Near it, the answers are about those of the optimum.
    rng : numpy Generator
        Of the draws.
    fields : sequence of arrays
        The one-hot groups, from whose means the model is told.
    dense_limit : int
        Parameters 1 + d + dk up to which their matrix is formed: three passes, O((dk)²) memory.
    draws : int
        How many to take above that; memory for some 6·draws·(k + 1)·d numbers, of which a sixth
        is kept, and d×d up to d = 2000. Passes: 20 to 30 with n = 10kd, more where C must be cut.

    Returns
    -------
    Uncertainty
    """
    task = Many(Problem(source, units, options, rng), white)
    p = task.point(*whitened(model, white))
    task.look_around(p)
    exact = 1 + p.U.shape[0] * (1 + p.U.shape[1]) <= dense_limit
    steps, dof, converged = inverse_root(task, p) if exact else drawn(task, p, draws)
    if options.loose:
        steps = settled_steps(steps, units, fields)
    left = p.sums.weight - dof
    noise = sqrt(p.sums.loss / left) if left >= 1 else nan
    return Uncertainty(units, steps, noise, noise, dof, left, exact, converged, task.problem.passes)


def inverse_root(task: Many, p: Point) -> tuple[Steps, float, bool]:
    """Form A and C in whitened coordinates; return the steps of H's inverse root, and dof.

    Turning the columns of U among each other changes nothing, so A has zero eigenvalues; those of
    collinear features and of parameters tied to others are left out with them.
    """
    xp, (d, k), n = namespace(p.U), p.U.shape, p.sums.weight
    size = 1 + d + d * k
    identity = xp.eye(size, dtype=p.U.dtype, device=p.U.device)
    c, v, G = identity[:, 0], identity[:, 1 : 1 + d], xp.reshape(identity[:, 1 + d :], (size, d, k))
    basis = beside([Tangent(float(c[i]), v[i, :], G[i, :, :]) for i in range(size)])
    t = task.curvature(p, basis)
    G = xp.reshape(xp.permute_dims(xp.reshape(t.G, (d, size, k)), (1, 0, 2)), (size, d * k))
    A = n * xp.concat([t.v[:size, None], xp.reshape(t.v[size:], (size, d)), G], axis=1)
    values, V = xp.linalg.eigh(symmetric(A))
    keep = xp.nonzero(values > size * xp.finfo(values.dtype).eps * xp.max(values))[0]
    W = xp.take(V, keep, axis=1) / xp.sqrt(xp.take(values, keep))  # W Wᵀ = A⁻¹
    G = xp.permute_dims(xp.reshape(W[1 + d :, :], (d, k, W.shape[1])), (0, 2, 1))
    x, V = xp.linalg.eigh(symmetric(n * xp.tensordot(G, task.bent(G), axes=((0, 2), (0, 2)))))
    x = xp.clip(x, min=-1)  # less only short of an optimum
    root = sum(1 / (1 + x * cosine) for cosine in COSINES) / len(COSINES)
    steps = task.steps(p, basis).combined((W @ V) * root)
    return steps, float(xp.sum(root * root)) - steps.penalty(task.ridge, task.units.burden), True


def drawn(task: Many, p: Point, draws: int) -> tuple[Steps, float, bool]:
    """Perturb and solve, A a = JᵀΩ^½ε + R^½η with ε and η normal, t = (I + A⁻¹C)^−½ a; and dof."""
    problem, E, n = task.problem, p.model.U, p.sums.weight
    seed = int(problem.rng.integers(2**62))
    problem.passes += 1
    rows = Numbered(problem.source, sum(collect(height, problem.source)))
    sums = reduce(noise_sums, rows, E, task.units, seed, draws, task.squares).each()
    g = beside([task.pulled_back(s, p.U, E, *ridge_noise(task, E, n)) for s in sums])
    amounts = (1.0, 0.75, 0.5, 0.0) if task.normal is not None else (0.0,)
    for amount in amounts:
        t, converged = applied_root(task, p, g, amount)
        if converged:
            break
    task.share, size = 0.0, draws**-0.5
    t = Tangent(0.0, size * t.v, size * t.G)
    steps = task.steps(p, t)
    return (
        steps,
        n * t.dot(task.curvature(p, t)) - steps.penalty(task.ridge, task.units.burden),
        converged,
    )


def applied_root(task: Many, p: Point, g: Tangent, amount: float) -> tuple[Tangent, bool]:
    """Return −(I + A⁻¹C)^−½ A⁻¹ g with this amount of C; say whether A + C ≥ 0 and CG_TOL was met.

    Short of an optimum A + C ≥ 0 may fail, and draws along the direction where it does be huge.
    """
    shares = [amount * cosine for cosine in COSINES] if amount else [0.0]
    t = Tangent(0.0, 0 * g.v, 0 * g.G)
    for task.share in shares:
        part, met = conjugate_gradients(task, p, g, CG_TOL, CG_CAP, 0.0)
        d, k = p.U.shape
        G = namespace(g.G).reshape(part.G, (d, part.v.shape[0] // (d + 1), k))
        bend = amount * float(namespace(G).sum(G * task.bent(G)))
        # With tᵀ(A + share·C)t = −gᵀt, tᵀ(A + amount·C)t is:
        positive = -part.dot(g) + (1 - task.share / (amount or 1)) * bend >= 0
        t = t.plus(1 / len(shares), part)
        if not (met and positive):
            return t, False
    return t, True


def ridge_noise(task: Many, E: Array, n: float) -> tuple[Array | None, Array | None]:
    """Draw R^½η/n as `pulled_back` adds it: √α₁ ρη, and √(α₂/2) ρ(Ξ + Ξᵀ)ρE, Ξ normal, d×d."""
    xp, rng, rho = namespace(E), task.problem.rng, task.units.burden
    (first, second), (d, k) = task.ridge, E.shape

    def normal(*shape: int) -> Array:
        return xp.asarray(rng.standard_normal(shape), dtype=E.dtype, device=E.device)

    w = sqrt(first) / n * rho * normal(d) if first else None
    if not second:
        return w, None
    # ρE = QR, and (Ξ + Ξᵀ)Q is symmetric within the span of Q and free outside of it.
    (Q, R), inside, outside = xp.linalg.qr(rho[:, None] * E), normal(k, k), normal(d, k)
    outside = sqrt(2) * (outside - Q @ (Q.T @ outside))
    pull = (Q @ (inside + inside.T) + outside) @ R
    return w, sqrt(second / 2) / n * rho[:, None] * pull
