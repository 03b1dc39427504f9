r"""The curvature of the objective at an optimum, its inverse root, and draws of the error of a fit.

If the matrix of the curvature is not formed, a draw is :math:`t = (I + A^{-1} C)^{-1/2} a`, with
A a = JᵀΩ^½ε + R^½η and ε, η normal; see `uncertainty` for A and C.
"""

from math import cos, pi, sqrt

import numpy as np

from quadlin.core.arrays import Array, namespace, symmetric
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import folded, height
from quadlin.core.model import Model, Steps, predict
from quadlin.core.sums import Sums, batch_sums, cut_rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.gauss_newton import GaussNewton, Point
from quadlin.solve.lowrank.tangent import Ridge, Tangent
from quadlin.solve.lowrank.types import Problem
from quadlin.solve.lowrank.whitening import FULL_LIMIT, Whitener

NOISE_ROWS = 256  # whose noise is drawn together


class Curvature(GaussNewton):
    """A + share·C at an optimum: A is that of Gauss–Newton, C that of the rank-k matrices.

    C/n maps G to 2 P_⊥ E[r zzᵀ] P_⊥ G S⁻¹, in whitened coordinates.
    """

    def __init__(self, problem: Problem, white: Whitener) -> None:
        super().__init__(problem, white)
        self.normal: Array | None = None  # (d, d), P_⊥ E[r zzᵀ] P_⊥, whitened
        self.inverse_s: Array = None  # (k,)
        self.share = 0.0  # of C in `curvature`

    def learn_c(self, p: Point) -> None:
        """Learn C, from a d×d matrix: one pass. |C| ≤ A at an optimum, for Gaussian features."""
        xp, (d, k), second = namespace(p.U), p.U.shape, self.options.alpha[1]
        if d > FULL_LIMIT or k in (0, d):
            return
        identity = xp.eye(d, dtype=p.U.dtype, device=p.U.device)
        E, B = p.model.U, self.white.apply(identity)
        sums = self.problem.sums(p.model, B, squares=self.squares)
        RE, RB = (self.units.penalty_scale[:, None] ** 2 * A for A in (E, B))
        ME = 2 * second / sums.weight * (RE @ (p.s[:, None] * (E.T @ RB)))
        ridge = Ridge(None, ME[:, None, :])
        G = self.coordinates.gradient(sums, identity, B, ridge).G[:, 0, :]
        P = identity - p.U @ p.U.T
        self.normal = symmetric(P @ G @ P / 2)
        most = 2 / max(float(xp.linalg.matrix_norm(self.normal, ord=2)), 1e-30)
        self.inverse_s = xp.sign(p.s) / xp.clip(xp.abs(p.s), min=1 / most)

    def times_c(self, G: Array) -> Array:
        """Return C/n times the G (d, m, k) of some tangents."""
        if self.normal is None:
            return 0 * G
        xp, shape = namespace(G), G.shape
        flat = xp.reshape(G * self.inverse_s, (shape[0], shape[1] * shape[2]))
        return 2 * xp.reshape(self.normal @ flat, shape)

    def curvature(self, p: Point, t: Tangent) -> Tangent:
        """Return (A + share·C)/n times every tangent: one pass for all."""
        A = super().curvature(p, t)
        return A if not self.share else Tangent(A.c, A.v, A.G + self.share * self.times_c(t.G))


COSINES = [cos(pi / 8) ** 2, cos(3 * pi / 8) ** 2]  # cos²φ at the midpoints


def inverse_root(task: Curvature, p: Point) -> tuple[Steps, Array, float]:
    """Form A and C in whitened coordinates; return the steps of H's inverse root, their
    lengths in the metric of A, and dof.

    A rotation of the columns of U changes nothing, so A has zero eigenvalues; these are left out,
    and so are those of collinear features and of parameters tied to others.
    """
    xp, (d, k), n = namespace(p.U), p.U.shape, p.sums.weight
    size = 1 + d + d * k
    identity = xp.eye(size, dtype=p.U.dtype, device=p.U.device)
    basis = _tangents(identity, d, k)
    A = n * _columns(task.curvature(p, basis))
    values, V = xp.linalg.eigh(symmetric(A))
    keep = xp.nonzero(values > size * xp.finfo(values.dtype).eps * xp.max(values))[0]
    W = xp.take(V, keep, axis=1) / xp.sqrt(xp.take(values, keep))  # W Wᵀ = A⁻¹
    G = _tangents(W, d, k).G
    CG = task.times_c(G)
    x, V = xp.linalg.eigh(symmetric(n * xp.tensordot(G, CG, axes=((0, 2), (0, 2)))))
    x = xp.clip(x, min=-1)  # smaller only if this is not an optimum
    root = sum(1 / (1 + x * cosine) for cosine in COSINES) / len(COSINES)
    steps = task.coordinates.steps(p.model, p.U, basis).combined((W @ V) * root)
    coordinates = task.coordinates
    penalty = steps.penalty(coordinates.penalties, task.units.penalty_scale)
    return steps, root, float(xp.sum(root * root)) - penalty


def _tangents(columns: Array, d: int, k: int) -> Tangent:
    """Return the tangents whose coordinates (c, v, G) are the columns of a matrix."""
    xp = namespace(columns)
    G = xp.reshape(columns[1 + d :, :], (d, k, columns.shape[1]))
    return Tangent(columns[0, :], columns[1 : 1 + d, :], xp.permute_dims(G, (0, 2, 1)))


def _columns(t: Tangent) -> Array:
    """Return the coordinates of tangents as the columns of a matrix."""
    xp, (d, m, k) = namespace(t.v), t.G.shape
    G = xp.reshape(xp.permute_dims(t.G, (0, 2, 1)), (d * k, m))
    return xp.concat([t.c[None, :], t.v, G], axis=0)


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


CG_TOL, CG_CAP = 1e-3, 100  # far below the 9% error of 64 draws; most passes over the rows


def drawn(
    task: Curvature, p: Point, draws: int, noise: float | None = None, tol: float = CG_TOL
) -> tuple[Steps, float, bool]:
    """Return draws t, the dof and convergence: A a = JᵀΩ^½ε + R^½η, t = (I + A⁻¹C)^−½ a.

    With `noise`, which is σ, errors are robust: A a = JᵀΩ(r∘ε) + σR^½η.
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
        t, converged = applied_root(task, p, g, amount, tol)
        if converged:
            break
    task.share = 0.0
    t = draws**-0.5 / (noise or 1.0) * t
    steps = task.coordinates.steps(p.model, p.U, t)
    penalty = steps.penalty(task.coordinates.penalties, task.units.penalty_scale)
    return steps, n * t.dot(task.curvature(p, t)) - penalty, converged


def applied_root(
    task: Curvature, p: Point, g: Tangent, amount: float, tol: float
) -> tuple[Tangent, bool]:
    """Return −(I + A⁻¹C)^−½ A⁻¹ g with this amount of C, and whether A + C ≥ 0 and `tol` is met.

    Away from an optimum A + C ≥ 0 may fail, and draws along such a direction would be huge.
    """
    shares = [amount * cosine for cosine in COSINES] if amount else [0.0]
    t = 0.0 * g
    for task.share in shares:
        part, met = task.direction(p, g, tol, CG_CAP)
        bend = amount * float(namespace(part.G).sum(part.G * task.times_c(part.G)))
        # With tᵀ(A + share·C)t = −gᵀt, tᵀ(A + amount·C)t is:
        positive = -part.dot(g) + (1 - task.share / (amount or 1)) * bend >= 0
        t = t + (1 / len(shares)) * part
        if not (met and positive):
            return t, False
    return t, True


def ridge_noise(task: Curvature, E: Array, n: float, draws: int, size: float) -> Ridge:
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
