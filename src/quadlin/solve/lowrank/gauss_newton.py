r"""Gauss–Newton steps on the tangent space of rank-k matrices, matrix-free.

.. math:: \min\; \frac1n \sum_i \omega_i r_i^2 + \frac{\alpha_1}{n} |\rho \circ w|^2
          + \frac{2 \alpha_2}{n} \|\rho\rho^\top \circ \bar M\|_F^2

over w = B v and M̄ = (BU) diag(s) (BU)ᵀ, B a whitener. A step solves the normal equations on the
tangent space D = U Gᵀ + G Uᵀ by conjugate gradients, preconditioned by the inverse Gram matrix of
whitened Gaussian features, one pass over the rows per iteration; then M ← rank-k part of M + D.
"""

from dataclasses import dataclass, replace
from math import inf

from quadlin.core.arrays import Array, namespace
from quadlin.core.model import Model, in_dtype
from quadlin.core.sums import Sums
from quadlin.solve.lowrank.krylov import conjugate_gradients
from quadlin.solve.lowrank.tangent import Coordinates, Tangent, truncated
from quadlin.solve.lowrank.types import Problem, usual_curvature
from quadlin.solve.lowrank.whitening import Whitener, in_float64

BACKTRACKS = (1.0, 0.3, 0.1, 0.03)
LOST = 1e-4  # of a prediction: what rounding may take of terms that tie parts of the model to M
SEPARATED = 5e-3  # of the deviance of a constant: without a penalty the rest would follow


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


class GaussNewton:
    """The objective of a problem in whitened coordinates: its value, gradient and curvature."""

    def __init__(self, problem: Problem, white: Whitener) -> None:
        self.problem, self.units, self.options = problem, problem.units, problem.options
        self.coordinates = Coordinates(problem.units, problem.options, white)
        free = problem.units.free
        self.unit = usual_curvature(problem.options.loss, problem.units)
        self.squares = bool(namespace(free).any(free == 0))

    @property
    def white(self) -> Whitener:
        """Return the whitener."""
        return self.coordinates.white

    def point(self, c: float, v: Array, U: Array, s: Array) -> Point:
        """Evaluate a model: one pass, which also delivers the gradient."""
        model = self.coordinates.model(c, v, U, s)
        sums = self.problem.sums(model, squares=self.squares)
        loss = sums.loss + self.coordinates.ridge(model)
        return Point(c, v, U, s, model, sums, loss / sums.weight)

    def point_of(self, model: Model) -> Point:
        """Evaluate a model in standardised units: one pass."""
        return self.point(*self.coordinates.of(in_dtype(model, self.units.scale.dtype)))

    def gradient(self, p: Point) -> Tangent:
        """Return half the gradient of the objective; no pass."""
        ridge = self.coordinates.ridge_gradient(p.model, p.sums.weight)
        return self.coordinates.gradient(p.sums, p.U, p.model.U, ridge)

    def curvature(self, p: Point, t: Tangent) -> Tangent:
        """Return the Gauss–Newton matrix times some tangents: one pass for all."""
        steps = self.coordinates.steps(p.model, p.U, t)
        sums = self.problem.changes(steps, p.model, self.squares)
        ridge = self.coordinates.ridge_curvature(steps, sums.weight)
        return self.coordinates.gradient(sums, p.U, steps.E, ridge)

    def preconditioned(self, p: Point, h: Tangent) -> Tangent:
        """Return about the inverse of the curvature times h."""
        return self.coordinates.preconditioned(p.U, h, p.sums.weight)

    def direction(
        self,
        p: Point,
        g: Tangent,
        tol: float,
        cap: int,
        damping: float = 0.0,
        goal: float = inf,
    ) -> tuple[Tangent, bool]:
        """Solve (JᵀJ + ridge + damping·P⁻¹) t = −g; tell whether `tol` was met in `cap` passes.

        A step that promises to lower the objective by `goal` is precise enough.

        A damping by rounding is always there: it keeps the step still in directions no row sees.
        """
        return conjugate_gradients(
            lambda t: self.curvature(p, t),
            -1.0 * g,
            Tangent.dot,
            tol,
            cap,
            lambda h: self.preconditioned(p, h),
            max(self.unit * damping, 16 * float(namespace(p.U).finfo(p.U.dtype).eps)),
            goal=goal,
        )

    def separates(self, p: Point) -> bool:
        """Tell whether log-odds would grow for ever, as nothing but a penalty could hold them."""
        penalised = any(self.coordinates.penalties)
        logistic = self.options.loss == "logistic"
        return logistic and not penalised and p.objective <= SEPARATED * self.units.target.power

    def moved(self, p: Point, t: Tangent, size: float, rank: int) -> Point:
        """Go a step, truncate M to the rank and evaluate: one pass."""
        U, s = truncated(p.U, p.s, size * t.G[:, 0, :], rank, self.options.psd)
        return self.point(p.c + size * float(t.c[0]), p.v + size * t.v[:, 0], U, s)

    def descended(
        self,
        p: Point,
        g: Tangent,
        tol: float,
        cap: int,
        damping: float = 0.0,
        goal: float = inf,
    ) -> tuple[Point | None, bool]:
        """Take one Gauss–Newton step that lowers the objective; None if there is none."""
        t, met = self.direction(p, g, tol, cap, damping, goal)
        for size in BACKTRACKS:
            reached = self.moved(p, t, size, p.s.shape[0])
            if reached.objective < p.objective:
                return reached, met
        return None, met


def precise(problem: Problem, white: Whitener) -> GaussNewton:
    """Return the task, in float64 where float32 loses what ties b or w to M.

    Of features far from zero those ties are ν² times what they leave. The rows stay as they are.
    """
    units, fitted = problem.units, problem.options.fit_linear and problem.options.fit_intercept
    xp = namespace(units.nu)
    largest = 0.0 if fitted else float(xp.max(xp.abs(units.nu)))
    if float(xp.finfo(units.nu.dtype).eps) * largest**2 <= LOST:
        return GaussNewton(problem, white)
    wide = replace(problem, units=in_dtype(units, xp.float64))
    return GaussNewton(wide, in_float64(white))
