r"""Draws of the error of a fit whose matrix A is too large to be formed.

A draw solves A t = JᵀΩ^½ε + R^½η by conjugate gradients, with ε and η normal, so its covariance is
A⁻¹; see `uncertainty`.
"""

from math import sqrt

import numpy as np

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import folded, height
from quadlin.core.model import Model, Steps, predict
from quadlin.core.sums import Sums, batch_sums, cut_rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.tangent import Ridge

NOISE_ROWS = 256  # whose noise is drawn together
TOL, PASSES = 1e-3, 100  # far below the 9% error of 64 draws


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
    sums = problem.rows.reduce_beside(noise_sums, range(n_rows), *args)
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
    """Draw the noise of some rows; it depends on their positions, not on how rows are cut."""
    if not places:
        return np.empty((0, draws))
    first, last = places[0] // NOISE_ROWS, places[-1] // NOISE_ROWS
    drawn = [
        np.random.default_rng([seed, number]).standard_normal((NOISE_ROWS, draws))
        for number in range(first, last + 1)
    ]
    start = places[0] - first * NOISE_ROWS
    return np.concatenate(drawn)[start : start + len(places)]


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
