r"""The verdict of new rows on a stream's model: is it better than a constant?

Along :math:`f_\theta = c_0 + \theta (f - c_0)` the loss of rows is a parabola. Its value for the
model (θ = 1), for the constant c₀ (θ = 0) and its slope at the model are known from the sums of the
next step, so a model can be shortened by θ without another look at the rows.
"""

from dataclasses import dataclass, replace

from quadlin.core.arrays import namespace
from quadlin.core.losses import constant_deviance
from quadlin.core.model import Model
from quadlin.core.moments import Moments
from quadlin.core.sums import Sums
from quadlin.core.units import Units
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.driver import loss_unit

TOO_LONG = 0.75  # a larger θ may be due to earlier models
LIMIT = 10.0  # times the constant's loss: the most that one batch counts against a model


@dataclass(frozen=True)
class StreamVerdict:
    """Sums over rows before they are learned from, in the user's units; recent rows count more."""

    model: float  # Σω l(f)
    constant: float  # Σω l(c₀)
    slope: float  # ½ dΣω l(f_θ)/dθ at θ = 1

    def __add__(self, other: "StreamVerdict") -> "StreamVerdict":
        return StreamVerdict(
            self.model + other.model, self.constant + other.constant, self.slope + other.slope
        )

    def limited(self) -> "StreamVerdict":
        """Return the verdict with a limited loss of the model: one wild row proves nothing."""
        kept = min(1.0, LIMIT * self.constant / self.model) if self.model > 0 else 1.0
        return StreamVerdict(kept * self.model, self.constant, kept * self.slope)

    def faded(self, share: float) -> "StreamVerdict":
        """Return the verdict with its weight reduced by a share."""
        kept = 1 - share
        return StreamVerdict(kept * self.model, kept * self.constant, kept * self.slope)

    @property
    def theta(self) -> float:
        """Return the best θ if the model is clearly too long or worse than c₀, otherwise 1."""
        curvature = self.constant - self.model + 2 * self.slope
        if not curvature > 0:
            return 0.0 if self.model > self.constant else 1.0
        theta = min(1.0, max(0.0, 1 - self.slope / curvature))
        return theta if theta < TOO_LONG or self.model > self.constant else 1.0


def constant_of(units: Units, loss: str) -> float:
    """Return the best constant, as a standardised prediction."""
    return 0.0 if loss == "squared" else units.target.centre


def first_verdict(state: FitState, loss: str) -> StreamVerdict:
    """Return the verdict of the rows that a state was fitted to, for which it is optimal."""
    mean_loss = state.history[-1].loss
    constant = _constant_loss(state.target, state.units, loss)
    return StreamVerdict(mean_loss * state.target.weight, constant, 0.0)


def verdict_of(
    sums: Sums, target: Moments, state: FitState, new: Units, loss: str, with_slope: bool = True
) -> StreamVerdict:
    """Return the verdict of new rows on a model, from their sums; `new` are the units with them.

    In a walk, that is the model from which steps are taken, which is no better than the mean. Sums
    without the products with U do not give the slope, and `with_slope` is false: the model is then
    kept as a whole or not at all.
    """
    model, units, unit = state.stepping, state.units, loss_unit(loss, state.units)
    constant = _constant_loss(target, new, loss)
    if not with_slope:
        return StreamVerdict(unit * sums.loss, constant, 0.0)
    xp = namespace(model.U)
    m, p0 = (model.U * model.U) @ model.s, float(sums.p0[0])
    shift = (new.target.mean - units.target.mean) / units.target.scale
    centre = shift + constant_of(new, loss)
    # Σω r f, as f is linear in the products of features that the sums have with r.
    quadratic = xp.sum(model.U * sums.action[:, 0, :] * model.s)
    quadratic = quadratic - ((1 - model.free) * m) @ sums.p2[:, 0]
    level = model.c - float(xp.sum(model.free * m)) - centre
    slope = level * p0 + float(model.w @ sums.p1[:, 0] + quadratic)
    return StreamVerdict(unit * sums.loss, constant, unit * slope).limited()


def _constant_loss(target: Moments, units: Units, loss: str) -> float:
    mean, var = float(target.mean[0]), float(target.var[0])
    if loss == "squared":
        return target.weight * (var + (mean - units.target.mean) ** 2)
    return loss_unit(loss, units) * target.weight * constant_deviance(mean, units.target.centre)


def trusted(state: FitState, verdict: StreamVerdict | None, loss: str) -> FitState:
    """Return the state with its model shortened towards the constant by the θ of a verdict."""
    theta = 1.0 if verdict is None else verdict.theta
    if theta == 1:
        return state
    return replace(state, model=shortened(state.model, constant_of(state.units, loss), theta))


def shortened(model: Model, c: float, theta: float) -> Model:
    """Return c + θ·(f − c), where f is the model."""
    return replace(model, s=theta * model.s, w=theta * model.w, c=c + theta * (model.c - c))
