"""From the power iteration to a walk, for correlated features: steps at a higher rank.

Correlations that remain after low-rank whitening bias the moment estimates, so a weak component may
start with the wrong sign. At rank k it would stay in that local optimum; with a few more components
it can vanish while one of the right sign grows.
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
CALAMITY = 2.0  # times the variance of the target: a larger loss means that steps were too long


def first_annealing(state: FitState) -> Start:
    """Return the start of this stage, from the model of the power iteration."""
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
    """Take one step of constant length; after a calamity, start again with half the length."""
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
