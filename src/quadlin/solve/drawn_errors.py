r"""Draws of the error of a fitted model by perturb-and-solve, where its matrix is not formed.

A draw is :math:`t = (I + A^{-1} C)^{-1/2} a`, with A a = JᵀΩ^½ε + R^½η and ε, η normal; see
`uncertainty` for A and C.
"""

from math import cos, pi, sqrt

from quadlin.core.arrays import Array, namespace
from quadlin.core.engine import height
from quadlin.core.model import Steps
from quadlin.solve.curvature import Curvature, noise_sums
from quadlin.solve.gauss_newton import Point
from quadlin.solve.tangent import Ridge, Tangent

CG_TOL, CG_CAP = 1e-3, 100  # far below the 9% of 64 draws; passes over the rows
COSINES = [cos(pi / 8) ** 2, cos(3 * pi / 8) ** 2]  # cos²φ at the midpoints


def drawn(
    task: Curvature, p: Point, draws: int, noise: float | None = None
) -> tuple[Steps, float, bool]:
    """Perturb and solve, A a = JᵀΩ^½ε + R^½η with ε and η normal, t = (I + A⁻¹C)^−½ a; and dof.

    With `noise`, σ, robust errors: A a = JᵀΩ(r∘ε) + σR^½η.
    """
    problem, E, n = task.problem, p.model.U, p.sums.weight
    seed = int(problem.rng.integers(2**62))
    n_rows = sum(problem.rows.collect(height))
    args = (E, task.units, seed, draws, task.squares, None if noise is None else p.model)
    sums = problem.rows.reduce_numbered(noise_sums, n_rows, *args)
    ridge = ridge_noise(task, E, n, draws, 1.0 if noise is None else noise)
    g = task.coordinates.gradient(sums, p.U, E, ridge)
    amounts = (1.0, 0.75, 0.5, 0.0) if task.normal is not None else (0.0,)
    for amount in amounts:
        t, converged = applied_root(task, p, g, amount)
        if converged:
            break
    task.share = 0.0
    t = draws**-0.5 * t
    steps = task.coordinates.steps(p.model, p.U, t)
    penalty = steps.penalty(task.coordinates.penalties, task.units.penalty_scale)
    return steps, n * t.dot(task.curvature(p, t)) - penalty, converged


def applied_root(task: Curvature, p: Point, g: Tangent, amount: float) -> tuple[Tangent, bool]:
    """Return −(I + A⁻¹C)^−½ A⁻¹ g with this amount of C; tell whether A + C ≥ 0 and CG_TOL was met.

    Short of an optimum A + C ≥ 0 may fail, and draws along the direction where it does be huge.
    """
    shares = [amount * cosine for cosine in COSINES] if amount else [0.0]
    t = 0.0 * g
    for task.share in shares:
        part, met = task.direction(p, g, CG_TOL, CG_CAP)
        bend = amount * float(namespace(part.G).sum(part.G * task.bent(part.G)))
        # With tᵀ(A + share·C)t = −gᵀt, tᵀ(A + amount·C)t is:
        positive = -part.dot(g) + (1 - task.share / (amount or 1)) * bend >= 0
        t = t + (1 / len(shares)) * part
        if not (met and positive):
            return t, False
    return t, True


def ridge_noise(task: Curvature, E: Array, n: float, draws: int, size: float) -> Ridge:
    """Draw size·R^½η/n as a gradient adds it: √α₁ ρη, and √(α₂/2) ρ(Ξ + Ξᵀ)ρE, Ξ normal, d×d."""
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
