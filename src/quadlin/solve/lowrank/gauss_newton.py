r"""Gauss–Newton steps on the tangent space of rank-k matrices, matrix-free.

.. math:: \min\; \frac1n \sum_i \omega_i r_i^2 + \frac{\alpha_1}{n} |\rho \circ w|^2
          + \frac{2 \alpha_2}{n} \|\rho\rho^\top \circ \bar M\|_F^2

over w = B v and M̄ = (BU) diag(s) (BU)ᵀ, where B is a whitener. A step solves the normal equations
on the tangent space D = U Gᵀ + G Uᵀ by conjugate gradients, preconditioned by the inverse Gram
matrix of whitened Gaussian features, with one pass over the rows per iteration; then M becomes the
rank-k part of M + D. `precision` gives the precision of that solution, and `least_gain` the end
of a fit.
"""

from dataclasses import dataclass, replace
from math import inf, sqrt

from quadlin.core.arrays import Array, namespace
from quadlin.core.losses import LOSSES, curvature
from quadlin.core.model import Model, in_dtype
from quadlin.core.sums import Sums
from quadlin.core.units import Units
from quadlin.solve.lowrank.krylov import conjugate_gradients
from quadlin.solve.lowrank.tangent import Coordinates, Tangent, truncated
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Whitener, in_float64

EXACT = 1e-20  # of the loss of the constant model: a smaller loss counts as zero
BACKTRACKS = (1.0, 0.3, 0.1, 0.03)
LOST = 1e-4  # of a prediction: the rounding error of terms that tie b or w to M
LOOSE_TOL = 0.5  # a step solves its equations at least to this fraction of its gradient
TIGHT_TOL = 1e-3  # and at most to this one
# If a step promises more than PROMISING of the objective, there is hardly any noise. It then solves
# its equations at most to TIGHTEST_TOL, which depends on the bytes of a number, and aims at AIM
# times the smallest loss.
PROMISING, TIGHTEST_TOL, AIM = 0.5, {4: 1e-3, 8: 1e-5}, 0.5
WITHIN = 0.01  # of `tol`: the precision of predictions that are linear in the parameters
ERROR, PER_TOL = 0.01, 1e4  # of the statistical error: not worth a step; and per unit of `tol`
SEPARATED = 5e-3  # of the deviance of a constant: below, it would fall to zero without a penalty


def smallest_loss(units: Units) -> float:
    """Return the smallest loss that is not rounding."""
    return max(EXACT, 64 * units.eps**2)


def usual_curvature(loss: str, units: Units) -> float:
    """Return half the curvature of the loss at the best constant, for a row of average weight."""
    if loss == "squared":
        return 1.0
    xp = namespace(units.scale)
    return float(curvature(xp.asarray(units.target.centre, dtype=xp.float64), loss))


@dataclass(frozen=True)
class Point:
    """A model in whitened coordinates with the sums of its residual, from one pass."""

    c: float  # the mean of the predictions, up to errors of the whitening
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
        """Evaluate a model: one pass, which also gives the gradient."""
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

    def direction(
        self,
        p: Point,
        g: Tangent,
        tol: float,
        cap: int,
        damping: float = 0.0,
        goal: float = inf,
    ) -> tuple[Tangent, bool]:
        """Solve (JᵀJ + ridge + damping·P⁻¹) t = −g; return t, and whether `tol` is met.

        At most `cap` passes. A step that promises to lower the objective by `goal` is enough.

        There is always some damping, of the size of rounding errors: directions that the rows do
        not determine do not change.
        """
        return conjugate_gradients(
            lambda t: self.curvature(p, t),
            -1.0 * g,
            Tangent.dot,
            tol,
            cap,
            lambda h: self.coordinates.preconditioned(p.U, h, p.sums.weight),
            max(self.unit * damping, 16 * float(namespace(p.U).finfo(p.U.dtype).eps)),
            goal=goal,
        )

    def separates(self, p: Point) -> bool:
        """Return whether log-odds would grow forever, because there is no penalty to limit them."""
        if not LOSSES[self.options.loss].separable or any(self.coordinates.penalties):
            return False
        return p.objective <= SEPARATED * self.units.target.power

    def moved(self, p: Point, t: Tangent, size: float, rank: int) -> Point:
        """Take a step, truncate M to the rank and evaluate: one pass."""
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
    """Return the task, in float64 if float32 is not precise enough for ties of b or w to M.

    For features far from zero, the terms of a tie are ν² times as large as their sum. The rows keep
    their dtype.
    """
    units, fitted = problem.units, problem.options.fit_linear and problem.options.fit_intercept
    xp = namespace(units.nu)
    largest = 0.0 if fitted else float(xp.max(xp.abs(units.nu)))
    if units.eps * largest**2 <= LOST:
        return GaussNewton(problem, white)
    wide = replace(problem, units=in_dtype(units, xp.float64))
    return GaussNewton(wide, in_float64(white))


def least_gain(task: GaussNewton) -> float:
    """Return the gain of a step, relative to the objective, with which the fit ends.

    If the objective is precise to a gain, the predictions are precise to about its root. If they
    are linear in the parameters, they become precise to WITHIN times the gain.
    """
    options, (d,) = task.options, task.units.scale.shape
    gain = max(options.tol, task.problem.worthless)
    linear = options.rank == 0 or (options.rank == d and not options.psd)
    return min(gain, max((WITHIN * gain) ** 2, task.units.eps)) if linear else gain


def final_error(options: Options, error: float) -> float:
    """Return the largest gain, relative to the objective, that is not worth a step on all rows.

    `error` is dof/n, the statistical error of the optimum as a fraction of the objective.
    """
    return min(ERROR, PER_TOL * options.tol) * min(error, 1.0)


def precision(
    task: GaussNewton, objective: float, promised: float, tol: float, gain: float
) -> tuple[float, float]:
    """Return how precisely a step solves its equations, and the gain at which it may stop earlier.

    The last steps suggest `tol`, and this one promises a gain of about `promised`.
    """
    rounding = smallest_loss(task.units)
    if promised > PROMISING * objective and task.options.loss == "squared":
        # Without noise the error of a step is its size squared, and only rounding ends the fit.
        size = sqrt(objective / max(task.units.target.power, 1e-300))
        scale = task.units.scale
        tightest = TIGHTEST_TOL[int(namespace(scale).finfo(scale.dtype).bits) // 8]
        return min(LOOSE_TOL, max(size, tightest)), objective - AIM * rounding
    # The gain that remains after this step need not be smaller than the one that ends the fit.
    enough = 0.5 * sqrt(max(gain * objective, rounding) / promised)
    return min(LOOSE_TOL, max(tol, enough, TIGHT_TOL)), inf
