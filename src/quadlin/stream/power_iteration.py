"""The start of a stream that keeps no rows: moments first, then block power iteration on new rows.

The rows of a batch are not stored. Their sum Zᵀ(r∘ZQ) for the current block Q determines the next
block, so a batch of new rows replaces a pass over the same rows. The estimates are unbiased for
independent features.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil, log2

import numpy as np

from quadlin.core.arrays import Array, lead, namespace, orthonormal
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model, constant_model, in_units, tied
from quadlin.core.moments import Moments, survey
from quadlin.core.sums import Sums
from quadlin.core.units import UnitsMaker
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank import moment_estimates as mes
from quadlin.solve.lowrank.gauss_newton import usual_curvature
from quadlin.solve.lowrank.levels import settled
from quadlin.solve.lowrank.types import Options, Record, Status
from quadlin.solve.lowrank.whitening import Identity
from quadlin.stream.batch import Pending, undone, watchful

SIGNIFICANT = 1.5  # times the noise: an eigenvalue above it stands out
REAL = 2.0  # times the noise within the block: a smaller eigenvalue counts as zero
POWER_ROWS = 10  # rows per parameter in a batch of the power iteration
EXPLAINED = 1e-4  # of the variance of the target: a model with a smaller loss explains it
FALLING = 0.8  # full steps still help if the loss falls below this share of the last one


class Stage(Enum):
    """The stages of the start; the value says what the rows are used for."""

    moments = "Mean, variance, skewness and kurtosis of the features."
    power = "A step of the power iteration for each batch."
    contraction = "A step of full length for each batch, as long as the loss falls."


@dataclass(frozen=True)
class Start:
    """What is known before there is a first model."""

    stage: Stage = Stage.moments
    rows: int = 0  # whose moments were taken, in the first stage
    weight: float = 0.0  # of those rows, in the second stage
    batches: int = 0  # left before longer ones are tried; in the last stage, the steps taken
    some: bool = False  # whether the last batch of the power iteration showed part of M
    Q: Array | None = None  # (d, q), orthonormal: the block of the power iteration


def stands_out(state: FitState, rows: int, loss: str = "squared") -> bool:
    """Tell whether every eigenvalue of L exceeds those of noise alone in this many rows."""
    if loss == "squared":
        sd = state.history[-1].loss ** 0.5 / state.units.target.scale
    else:  # slopes have variance p(1 − p), and are divided by it
        sd = usual_curvature(loss, state.units) ** -0.5
    return above_noise(state.low_rank.s, sd, state.model.U.shape[0], rows)


def above_noise(s: Array, sd: float, d: int, rows: int) -> bool:
    """Tell whether every eigenvalue of M exceeds those of noise alone in this many rows.

    The noise of the estimate, ½ Σ r z zᵀ/n, has the spectral norm sd(r)·√(d/n).
    """
    if s.shape[0] == 0:
        return True
    xp = namespace(s)
    return bool(float(xp.min(xp.abs(s))) > SIGNIFICANT * sd * (d / rows) ** 0.5)


def moments_with(state: FitState | None, chunk: Chunk) -> tuple[Moments, Moments]:
    """Return the moments of features and target of the rows so far."""
    new = survey(chunk)
    if state is None:
        return new.features, new.target
    return state.features + new.features, state.target + new.target


def constant_state_of(
    features: Moments, target: Moments, options: Options, make_units: UnitsMaker
) -> FitState:
    """Return the constant model of rows with these moments."""
    # In a handful of rows every feature may take only two values, so nothing is refused yet.
    units = replace(make_units, squares="auto")(features, target)
    model = tied(constant_model(units, options.rank), units, *_parts(options))
    loss = units.target.power * units.target.scale**2
    history = (Record(0, 1, loss),)
    return FitState(model, units, features, target, history, Status.searching, Identity())


def first_block(state: FitState, options: Options, seed: int) -> Start:
    """Return the start of the power iteration, from a random block."""
    d = state.units.scale.shape[0]
    if options.rank == 0:
        return Start(Stage.contraction)
    q = min(d, options.rank + mes.OVERSAMPLING)
    random = np.random.default_rng(seed).standard_normal((d, q))
    Q = orthonormal(state.units.array(random))
    return Start(Stage.power, weight=state.features.weight, batches=rounds(d), Q=Q)


def rounds(d: int) -> int:
    """Return how many batches the power iteration needs from a random block.

    The error of that block is about √d, and each batch of ten rows per parameter halves it.
    """
    return 2 + ceil(log2(max(d, 1)) / 2)


def power_step(
    state: FitState, pending: Pending, start: Start, options: Options, make_units: UnitsMaker
) -> tuple[FitState, Start]:
    """Take one step of the power iteration; it is the last one if all of M stands out.

    Q does not depend on these rows, so QᵀB with B = (M̄ − 𝓜)Q is an unbiased estimate of QᵀMQ. Its
    leading eigenpairs are the model, and an orthonormal basis of B is the next block.
    """
    assert start.Q is not None
    units, Q, sums = state.units, start.Q, pending.sums
    xp = namespace(Q)
    features, target = state.features + pending.features, state.target + pending.target
    new = make_units(features, target)
    B, moved_to = _estimate(state, sums, Q, options)
    s, vectors = lead(Q.T @ B, options.rank, options.psd)
    ratio = xp.where(new.scale > 0, units.scale / xp.where(new.scale > 0, new.scale, 1.0), 0.0)
    B = ratio[:, None] * B  # in the new units
    B = orthonormal(B)  # under the same name, since it is one of the largest arrays of a stream
    sd, (d, q), n = (sums.loss / sums.weight) ** 0.5, Q.shape, pending.rows
    stand_out, some = above_noise(s, sd, d, n), above_noise(s[:1], sd, d, n)
    s = xp.where(xp.abs(s) > REAL * sd * (q / n) ** 0.5, s, 0.0)
    # The block always changes; the model only if new rows prefer it to the one before.
    back = state.before if pending.rise > 0 else None
    if back is None:
        # A mean over the batches: each gives an unbiased Δw, whatever is known about M.
        model = moved_to(Q @ vectors, s, sums.weight / (features.weight - start.weight))
    else:
        model = back
    before = in_units(state.model, units, new) if back is None else None
    last = state.history[-1]
    loss = sums.loss / sums.weight * units.target.scale**2
    history = (*state.history, Record(last.step + 1, last.passes, loss))
    moved = in_units(model, units, new)
    if len(make_units.fields) and options.levels_are_ambiguous:
        moved = settled(moved, new, make_units.fields)
    done = stand_out and back is None
    status = Status.converged if done else state.status
    learned = FitState(moved, new, features, target, history, status, state.white, before=before)
    if done:
        return learned, Start(Stage.contraction)
    return learned, replace(start, batches=start.batches - 1, some=some, Q=B)


Moved = Callable[[Array, Array, float], Model]  # from eigenpairs and the share of Δw and Δc


def _estimate(state: FitState, sums: Sums, Q: Array, options: Options) -> tuple[Array, Moved]:
    """Return (M̄ − 𝓜)Q and the function that makes the next model."""
    units, varied = state.units, namespace(Q).astype(state.units.scale > 0, Q.dtype)
    model, watched = watchful(state.model, units)
    MQ, W = mes.unbiased(sums, Q, watched)

    def moved_to(U: Array, s: Array, share: float) -> Model:
        c = model.c - share * float(sums.p0[0]) / sums.weight
        moved = Model(U, s, model.w - share * varied * W, c, model.free)
        return tied(moved, units, *_parts(options))

    return varied[:, None] * (model.U @ (model.s[:, None] * (model.U.T @ Q)) - MQ), moved_to


def contracts(state: FitState, pending: Pending) -> bool:
    """Tell whether another step of full length is worthwhile, judged by new rows.

    It is if the last one lowered the loss by a fifth. A step that did harm was too long, and a
    shorter one follows.
    """
    loss = pending.sums.loss / pending.sums.weight * state.units.target.scale**2
    return loss < FALLING * state.history[-1].loss or undone(state, pending) is not None


def still_moving(state: FitState) -> FitState:
    """Return the state with the status `searching`, unless its model explains the target.

    Even if all of M stands out, it may be far from the truth, as the next full steps show.
    """
    explained = state.history[-1].loss <= EXPLAINED * float(state.target.var[0])
    return state if explained else replace(state, status=Status.searching)


def judged(state: FitState, pending: Pending | None, goal: int) -> FitState:
    """Return the state with the last model that new rows did not find worse.

    Steps of full length may overshoot, for example if features are correlated. Half a batch is
    enough to see it.
    """
    if state.before is None:
        return state
    if pending is not None and 2 * pending.rows >= goal and pending.rise <= 0:
        return state
    return replace(state, model=state.before, before=None)


def _parts(options: Options) -> tuple[bool, bool]:
    return options.fit_linear, options.fit_intercept
