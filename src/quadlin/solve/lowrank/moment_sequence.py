"""The moment estimation sequence: steps from the moments of the residual alone."""

from dataclasses import dataclass, replace
from math import isfinite

from quadlin.core.arrays import Array, namespace
from quadlin.core.model import Model, constant_model, tied
from quadlin.core.sums import Sums
from quadlin.solve.lowrank import moment_estimates as mes
from quadlin.solve.lowrank import step_length
from quadlin.solve.lowrank.driver import Iterate, Method
from quadlin.solve.lowrank.gauss_newton import smallest_loss
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import Problem, Status
from quadlin.solve.lowrank.whitening import Identity

DIVERGED = 100.0  # times the loss of the constant model
RETREATS = (1.0, 0.5, 0.25, 0.125)  # shares of the step without momentum, after the full one failed


@dataclass(frozen=True)
class State:
    """The state of the iteration."""

    model: Model
    loss: float  # mean squared residual, in standardised units
    sums: Sums | None = None  # of the residual of the model; None before the first step
    previous: Model | None = None
    done: Status | None = None


def moment_sequence(problem: Problem, warm: Model | None = None) -> Method:
    """Fit the model by the moment estimation sequence, from scratch or from the model `warm`.

    Passes: 6 for the first step, then 2 each. Memory: O(kd) and a block.
    """
    units, options = problem.units, problem.options
    step = guarded_step if options.solver != "paper" else plain_step
    constant = constant_model(units, options.rank)
    parts = (options.fit_linear, options.fit_intercept)
    state = State(tied(constant, units, *parts), units.target.power)
    if warm is not None:
        start = evaluated(problem, warm)
        if start.loss < state.loss:  # otherwise the constant is a better start
            state = start
            yield Iterate(state.model, state.loss)
    while True:
        state = step(problem, state)
        if state.done is None or options.solver == "paper":
            yield Iterate(state.model, state.loss, state.done)
        if state.done is not None:
            return state.done


def evaluated(problem: Problem, model: Model, previous: Model | None = None) -> State:
    """Return the sums of the residual that the next step needs: one pass."""
    options = problem.options
    model = tied(model, problem.units, options.fit_linear, options.fit_intercept)
    # The guarded step needs P2 only if some diagonal is not modelled.
    free = problem.units.free
    squares = options.solver == "paper" or bool(namespace(free).any(free == 0))
    sums = problem.sums(model, squares=squares)
    return State(model, sums.loss / sums.weight, sums, previous)


def first_estimate(problem: Problem) -> tuple[Array, Array, Array]:
    """Return the spectral estimate (U, s, w) from the residual of the constant model."""
    options, units = problem.options, problem.units
    centre = constant_model(units, 1, units.target.centre)

    def estimate(Q: Array) -> mes.Estimate:
        return mes.unbiased(problem.sums(centre, Q), Q, units)

    d = units.scale.shape[0]
    columns = min(d, options.rank + min(options.rank, mes.OVERSAMPLING))
    random = problem.rng.standard_normal((d, columns))
    return mes.spectral(estimate, units.array(random), options.rank, options.psd)


def guarded_step(problem: Problem, state: State) -> State:
    """Move to the best model in the span of the step and the momentum, never to a worse one."""
    options, units, model = problem.options, problem.units, state.model
    parts = (options.fit_linear, options.fit_intercept)
    if state.loss <= smallest_loss(units):
        return replace(state, done=Status.converged)
    steps = 1
    if state.sums is None:
        family = step_length.rank_k_family(model, *first_estimate(problem), units, *parts)
    else:
        step = mes.tangent_step(state.sums, model.U, units)
        # Moments ignore ties: their steps end where moments agree, while the loss can still fall.
        other = None if all(parts) else downhill(problem, state.sums, model.U)
        family = step_length.family(model, step, state.previous, units, *parts, other)
        steps = 1 if other is None else 2
    gram = problem.gram(family)
    everything = len(family.cores) - 1
    without_momentum = steps * (1 + options.fit_linear) + options.fit_intercept
    _, promised = step_length.best(gram, everything)
    if state.loss - promised <= options.tol * state.loss:
        return replace(state, done=Status.converged)
    tries = [(everything, 1.0)] + [(without_momentum, share) for share in RETREATS]
    for directions, share in tries[everything == without_momentum :]:
        alpha, _ = step_length.best(gram, directions)
        if state.sums is None:
            alpha = step_length.first_best(gram, directions)
        candidate = step_length.member(family, share * alpha, options.rank, options.psd)
        # There is no momentum from a first estimate.
        previous = None if state.sums is None else model
        reached = evaluated(problem, candidate, previous)
        if reached.loss < state.loss:
            return reached
    # Truncation to rank k undoes even the shortest step: only rounding remains.
    return replace(state, done=Status.converged)


def downhill(problem: Problem, sums: Sums, U: Array) -> tuple[Array, Array]:
    """Return (H, v), the step U Hᵀ + H Uᵀ, v along the gradient, for Gaussian features.

    It respects ties: if b or w is not fitted, it changes with M.
    """
    coordinates = Coordinates(problem.units, problem.options, Identity())
    t = coordinates.preconditioned(U, coordinates.gradient(sums, U, U))
    return -t.G[:, 0, :], -t.v[:, 0]


def plain_step(problem: Problem, state: State) -> State:
    """Take the step of the paper at full length, whether or not the loss falls."""
    options, units, model = problem.options, problem.units, state.model
    if state.sums is None:
        U, s, w = first_estimate(problem)
        reached = evaluated(problem, Model(U, s, w, units.target.centre, units.free))
    else:
        at_model, P0 = state.sums, float(state.sums.p0[0]) / state.sums.weight

        def estimate(Q: Array) -> mes.Estimate:
            return mes.unbiased(at_model if Q is model.U else problem.sums(model, Q), Q, units)

        reached = evaluated(problem, mes.full_step(model, estimate, P0, options.psd))
    if not isfinite(reached.loss) or reached.loss > DIVERGED:
        return replace(reached, done=Status.diverged)
    if abs(state.loss - reached.loss) <= options.tol * state.loss:
        return replace(reached, done=Status.converged)
    return reached
