"""How precise the steps of a fit are, and where it ends."""

from dataclasses import dataclass, replace
from math import inf, sqrt

from quadlin.core.arrays import namespace
from quadlin.core.losses import LINKED
from quadlin.solve.lowrank.gauss_newton import GaussNewton

LOOSE_TOL = 0.5  # a step solves its equations to this fraction of its gradient at least
TIGHT_TOL = 1e-3  # and to this one at most
# Where steps promise more than this share of the objective, there is hardly any noise. They then
# solve their equations to these at most, by the bytes of a number, and aim at this part of the
# smallest loss.
PROMISING, TIGHTEST_TOL, AIM = 0.5, {4: 1e-3, 8: 1e-5}, 0.5
CLOSING_STEPS, WITHIN = (
    3,
    0.1,
)  # Newton steps that square the error of a fit, and to which part of it


@dataclass(frozen=True)
class Ends:
    """Where a fit ends: at a gain per step, as a fraction of the objective, or at an objective.

    An objective that is right to `gain` has predictions that are right to about √gain. Where
    deviances are convex in the parameters, the last steps are Newton's: a few of them make the
    predictions right to `gain`, too. Squared errors of such parameters need one step only.
    """

    gain: float
    least: float  # the gain that no closing step goes beyond
    rounding: float  # an objective that nothing improves on
    steps: int  # closing ones that are left

    @classmethod
    def of(cls, task: GaussNewton, rounding: float) -> "Ends":
        """Return where the fit of a task ends."""
        options, scale = task.options, task.units.scale
        gain = max(options.tol, task.problem.worthless)
        convex = options.rank == 0 or (options.rank == scale.shape[0] and not options.psd)
        if options.loss not in LINKED or not convex:
            return cls(gain, gain, rounding, 0)
        eps = float(namespace(scale).finfo(scale.dtype).eps)
        return cls(gain, min(gain, max((WITHIN * gain) ** 2, eps)), rounding, CLOSING_STEPS)

    def reached(self, gain: float) -> bool:
        """Tell whether a fit ends where the next step promises a gain below `self.gain`."""
        return gain <= self.least or self.steps == 0

    def after_closing(self) -> "Ends":
        """Return the ends after a closing step."""
        return replace(self, steps=self.steps - 1)


def precision(
    task: GaussNewton, objective: float, promised: float, tol: float, ends: Ends
) -> tuple[float, float]:
    """Return how precisely a step solves its equations, and the gain beyond which it need not.

    `tol` is what the last steps suggest, `promised` about the gain of this one.
    """
    if promised > PROMISING * objective and task.options.loss == "squared":
        # Without noise the error of a step is its size squared, and the fit ends by rounding.
        size = sqrt(objective / max(task.units.target.power, 1e-300))
        scale = task.units.scale
        tightest = TIGHTEST_TOL[int(namespace(scale).finfo(scale.dtype).bits) // 8]
        return min(LOOSE_TOL, max(size, tightest)), objective - AIM * ends.rounding
    # What is left of the gain after this step need not be less than what ends the fit.
    enough = 0.5 * sqrt(max(ends.least * objective, ends.rounding) / promised)
    return min(LOOSE_TOL, max(tol, enough, TIGHT_TOL)), inf
