"""The way from the power iteration to a walk, where features are correlated: at a higher rank.

What low-rank whitening leaves of the correlations biases the moment estimates, and a weak component
may begin with the wrong sign. At rank k it would stay there, in a local optimum; a few components
more let it vanish, and the one of the right sign grow.
"""

from dataclasses import replace

from quadlin.core.model import Model, tied, with_rank
from quadlin.core.units import UnitsMaker
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.moment_estimates import OVERSAMPLING
from quadlin.solve.lowrank.tangent import averaged_step
from quadlin.solve.lowrank.types import Options, Record
from quadlin.stream.batch import Pending, converted, watchful
from quadlin.stream.power_iteration import Stage, Start
from quadlin.stream.walk import LENGTH

STEPS = 40
CALAMITY = 2.0  # times the variance of the target: steps that end there were too long


def first_annealing(state: FitState) -> Start:
    """Return the stage, from the model that the power iteration found."""
    d, k = state.model.U.shape
    model = with_rank(state.model, min(d, k + OVERSAMPLING))
    return Start(Stage.annealing, batches=STEPS, Q=model.U, s=model.s)


def annealed_model(start: Start, state: FitState) -> Model:
    """Return the model of the higher rank."""
    assert start.Q is not None
    assert start.s is not None
    return replace(state.model, U=start.Q, s=start.s)


def anneal_step(
    state: FitState, pending: Pending, start: Start, options: Options, make_units: UnitsMaker
) -> tuple[FitState, Start]:
    """Take one step of constant length; after a calamity begin anew, with half the length."""
    units, sums = state.units, pending.sums
    features, target = state.features + pending.features, state.target + pending.target
    new, model, pace = make_units(features, target), annealed_model(start, state), state.pace
    if not sums.loss <= CALAMITY * sums.weight * units.target.power:
        model, pace = replace(model, s=0 * model.s, w=0 * model.w, c=units.target.centre), pace / 2
        sums = replace(sums, p0=0 * sums.p0, p1=0 * sums.p1, p2=0 * sums.p2, action=0 * sums.action)
    begin, sums = converted(new, *watchful(model, units), sums)
    moved = averaged_step(begin, sums, pace * LENGTH, new, options, state.white)
    last = state.history[-1]
    loss = pending.sums.loss / pending.sums.weight * units.target.scale**2
    history = (*state.history, Record(last.step + 1, last.passes, loss))
    model = with_rank(moved, options.rank)
    model = tied(model, new, options.fit_linear, options.fit_intercept)
    learned = FitState(model, new, features, target, history, state.status, state.white, pace)
    return learned, replace(start, batches=start.batches - 1, Q=moved.U, s=moved.s)
