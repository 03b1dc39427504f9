r"""Gauss–Newton steps on the tangent space of rank-k matrices, matrix-free.

.. math:: \min\; \frac1n \sum_i \omega_i r_i^2 + \frac{\alpha_1}{n} |\rho \circ w|^2
          + \frac{2 \alpha_2}{n} \|\rho\rho^\top \circ \bar M\|_F^2

over w = B v and M̄ = (BU) diag(s) (BU)ᵀ, B a whitener. A step solves the normal equations on the
tangent space D = U Gᵀ + G Uᵀ by conjugate gradients, preconditioned by the inverse Gram matrix of
whitened Gaussian features, one pass over the rows an iteration; then M ← rank-k part of M + D.
"""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import Array, lead, namespace
from quadlin.core.engine import reduce
from quadlin.core.model import Model, tied
from quadlin.core.sums import Step, Sums, dual_sums
from quadlin.core.units import Units
from quadlin.solve.types import Options, Problem
from quadlin.solve.whitening import Whitener

BACKTRACKS = (1.0, 0.3, 0.1, 0.03)


@dataclass(frozen=True)
class Tangent:
    """A change (c, w = B v, M = B(UGᵀ + GUᵀ)Bᵀ), or a gradient with respect to one."""

    c: float  # the mean of the change of the predictions
    v: Array  # (d,)
    G: Array  # (d, k)

    def dot(self, other: "Tangent") -> float:
        """Return the inner product."""
        xp = namespace(self.v)
        return self.c * other.c + float(self.v @ other.v + xp.sum(self.G * other.G))

    def plus(self, size: float, other: "Tangent") -> "Tangent":
        """Return self + size · other."""
        return Tangent(self.c + size * other.c, self.v + size * other.v, self.G + size * other.G)


@dataclass(frozen=True)
class Point:
    """A model in whitened coordinates with what one pass said of its residual."""

    c: float  # the mean of the predictions, as far as whitening tells
    v: Array  # (d,)
    U: Array  # (d, k), orthonormal
    s: Array  # (k,)
    model: Model  # the same in standardised units
    sums: Sums
    objective: float


class Task:
    """Rows, whitener and penalty; every product with the rows goes through here."""

    def __init__(self, problem: Problem, white: Whitener) -> None:
        self.problem, self.white = problem, white
        self.units, self.options = problem.units, problem.options
        xp = namespace(self.units.free)
        self.squares = bool(xp.any(self.units.free == 0))

    def model(self, c: float, v: Array, U: Array, s: Array) -> Model:
        """Return the model that these whitened coordinates mean; its U is not orthonormal."""
        E = self.white.apply(U)
        own = c - mean_of_quadratic(s, E)
        model = Model(E, s, self.white.apply(v), own, self.units.free)
        return tied(model, self.units, self.options.fit_linear, self.options.fit_intercept)

    def point(self, c: float, v: Array, U: Array, s: Array) -> Point:
        """Evaluate a model: one pass, which also delivers the gradient."""
        model = self.model(c, v, U, s)
        sums = self.problem.sums(model, squares=self.squares)
        loss = sums.loss + ridge(model, self.units, self.options)
        return Point(c, v, U, s, model, sums, loss / sums.weight)

    def gradient(self, p: Point) -> Tangent:
        """Return half the gradient of the objective; no pass."""
        first, second = (a / p.sums.weight for a in self.options.alpha)
        E = p.model.U
        rho = self.units.burden**2
        RE = rho[:, None] * E
        w = first * rho * p.model.w if first and self.options.fit_linear else None
        ME = 2 * second * (RE @ (p.s[:, None] * (E.T @ RE))) if second else None
        return self.pulled_back(p.sums, p.U, E, w, ME)

    def curvature(self, p: Point, t: Tangent) -> Tangent:
        """Return the Gauss–Newton matrix times a tangent vector: one pass."""
        step = self._pushed_forward(p, t)
        self.problem.passes += 1
        sums = reduce(dual_sums, self.problem.source, step, self.units, self.squares)
        E = step.E
        w, ME = self.ridge_curvature(E, step.H, step.w, sums.weight)
        return self.pulled_back(sums, p.U, E, w, ME)

    def ridge_curvature(
        self, E: Array, H: Array, w: Array, weight: float
    ) -> tuple[Array | None, Array | None]:
        """Return what the ridge adds to a product of the curvature, for `pulled_back`."""
        first, second = (a / weight for a in self.options.alpha)
        rho = self.units.burden**2
        RE, RH = rho[:, None] * E, rho[:, None] * H
        return (
            first * rho * w if first and self.options.fit_linear else None,
            2 * second * (RE @ (H.T @ RE) + RH @ (E.T @ RE)) if second else None,
        )

    def _pushed_forward(self, p: Point, t: Tangent) -> Step:
        """Return the step in standardised units, with the parts that are tied to others."""
        xp = namespace(p.U)
        free, nu = self.units.free, self.units.nu
        E, H = p.model.U, self.white.apply(t.G)
        w, c = self.white.apply(t.v), t.c
        m = 2 * xp.sum(E * H, axis=1)
        along = E @ (H.T @ nu) + H @ (E.T @ nu) - (1 - free) * m * nu  # dM ν
        if not self.options.fit_linear:
            w = 2 * along
        if self.options.fit_intercept:
            # t.c is the mean of the change: E zᵀdMz = 2 tr UᵀG for whitened z, and Σm is taken
            # off by the model itself. Otherwise c and M would be tied by correlated features.
            c = c - 2 * float(xp.sum(p.U * t.G)) + float(xp.sum(m))
        else:
            c = float(xp.sum(free * m) + nu @ w - nu @ along)
        return Step(E, H, w, c)

    def pulled_back(
        self,
        sums: Sums,
        U: Array,
        E: Array,
        ridge_w: Array | None = None,
        ridge_ME: Array | None = None,
    ) -> Tangent:
        """Return the mean of q ∂f, plus the ridge's part, as a tangent vector: the adjoint."""
        free, nu = self.units.free, self.units.nu
        n = sums.weight
        c, w = sums.p0 / n, sums.p1 / n
        ME = (sums.action - ((1 - free) * sums.p2 + free * sums.p0)[:, None] * E) / n
        if self.options.fit_intercept:
            ME = ME + c * E
        else:
            ME = ME + c * ((free + (1 - free) * nu**2)[:, None] * E - nu[:, None] * (nu @ E))
            w, c = w + c * nu, 0.0
        if not self.options.fit_linear:
            ME = ME + w[:, None] * (nu @ E) + nu[:, None] * (w @ E)
            ME = ME - (2 * (1 - free) * w * nu)[:, None] * E
            w = 0 * w
        w = w if ridge_w is None else w + ridge_w
        ME = ME if ridge_ME is None else ME + ridge_ME
        B = self.white.transpose
        return Tangent(c, B(w), 2 * (B(ME) - c * U))


def ridge(model: Model, units: Units, options: Options) -> float:
    """Return α₁|ρ∘w|² + 2α₂‖ρρᵀ∘M̄‖²_F."""
    first, second = options.alpha
    if not (first or second):
        return 0.0
    w, E = units.burden * model.w, units.burden[:, None] * model.U
    A = (E.T @ E) * model.s
    linear = float(w @ w) if options.fit_linear else 0.0
    return first * linear + 2 * second * float(namespace(A).sum(A * A.T))


def mean_of_quadratic(s: Array, E: Array) -> float:
    """Return E zᵀMz − Σm for whitened z, M = E diag(s) Eᵀ: what the model does not take off."""
    xp = namespace(E)
    return float(xp.sum(s) - xp.sum((E * E) @ s))


def preconditioned(U: Array, h: Tangent) -> Tangent:
    """Apply the inverse Gram matrix of whitened Gaussian features on the tangent space at U."""
    return Tangent(h.c, h.v, (h.G - U @ (U.T @ h.G) / 2) / 4)


def conjugate_gradients(
    task: Task, p: Point, g: Tangent, tol: float, cap: int, damping: float
) -> tuple[Tangent, bool]:
    """Solve (JᵀJ + ridge + damping·P⁻¹) t = −g; say whether `tol` was met within `cap` passes.

    A damping by rounding is always there: it keeps the step still in directions that no row sees.
    """
    damping = max(damping, 16 * float(namespace(p.U).finfo(p.U.dtype).eps))
    h = Tangent(-g.c, -g.v, -g.G)
    t = Tangent(0.0, 0 * g.v, 0 * g.G)
    direction = preconditioned(p.U, h)
    unpreconditioned = h  # P⁻¹ · direction, for the damping
    size = h.dot(direction)
    goal = tol**2 * size
    for _ in range(cap):
        product = task.curvature(p, direction).plus(damping, unpreconditioned)
        bend = direction.dot(product)
        if not bend > 0:
            break
        t, h = t.plus(size / bend, direction), h.plus(-size / bend, product)
        z = preconditioned(p.U, h)
        size, before = h.dot(z), size
        if size <= goal:
            return t, True
        direction = z.plus(size / before, direction)
        unpreconditioned = h.plus(size / before, unpreconditioned)
    return t, False


def retracted(task: Task, p: Point, t: Tangent, size: float, rank: int) -> Point:
    """Go a step, truncate M to the rank and evaluate."""
    U, s = truncated(p.U, p.s, size * t.G, rank, task.options.psd)
    return task.point(p.c + size * t.c, p.v + size * t.v, U, s)


def truncated(U: Array, s: Array, G: Array, rank: int, psd: bool) -> tuple[Array, Array]:
    """Return the rank-k part, by size of eigenvalues, of U diag(s) Uᵀ + U Gᵀ + G Uᵀ."""
    xp = namespace(U)
    V, R = xp.linalg.qr(xp.concat([U, G], axis=1))
    u, g = R[:, : U.shape[1]], R[:, U.shape[1] :]
    cross = u @ g.T
    values, vectors = lead((u * s) @ u.T + cross + cross.T, rank, psd)
    return V @ vectors, values


def descended(
    task: Task, p: Point, g: Tangent, tol: float, cap: int, damping: float = 0.0
) -> tuple[Point | None, bool]:
    """Take one Gauss–Newton step that lowers the objective; None if there is none."""
    t, met = conjugate_gradients(task, p, g, tol, cap, damping)
    for size in BACKTRACKS:
        reached = retracted(task, p, t, size, p.s.shape[0])
        if reached.objective < p.objective:
            return reached, met
    return None, met


def averaged_step(
    model: Model, sums: Sums, size: float, units: Units, options: Options, white: Whitener
) -> Model:
    """Take a share of the Newton step that some rows' sums (at U) ask for, Σ known by `white`."""
    task = Task(Problem((), units, options, np.random.default_rng()), white)
    c, v, U, s = whitened(model, white)
    E = white.apply(U)
    sums = replace(sums, action=sums.action @ (model.U.T @ E))
    t = preconditioned(U, task.pulled_back(sums, U, E))
    U, s = truncated(U, s, -size * t.G, s.shape[0], options.psd)
    return orthonormalised(task.model(c - size * t.c, v - size * t.v, U, s))


def orthonormalised(model: Model) -> Model:
    """Return the same model with orthonormal U, sorted by size."""
    V, R = namespace(model.U).linalg.qr(model.U)
    s, vectors = lead((R * model.s) @ R.T, model.s.shape[0])
    return replace(model, U=V @ vectors, s=s)


def whitened(model: Model, white: Whitener) -> tuple[float, Array, Array, Array]:
    """Return (c, v, U, s) of a model in whitened coordinates."""
    V, R = namespace(model.U).linalg.qr(white.inverse(model.U))
    s, vectors = lead((R * model.s) @ R.T, model.s.shape[0])
    U = V @ vectors
    c = model.c + mean_of_quadratic(s, white.apply(U))
    return c, white.inverse(model.w), U, s
