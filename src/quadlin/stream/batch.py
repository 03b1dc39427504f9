"""A batch that is seen once: its sums, and the one step that they make."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive
from quadlin.core.losses import value_and_slope
from quadlin.core.model import (
    Model,
    in_units,
    predict,
    tied,
)
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.sums import Sums, residual_sums, standardised_target
from quadlin.core.survey import moments_of
from quadlin.core.units import Units, UnitsMaker, watchful_scale
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank import moment_estimates as mes
from quadlin.solve.lowrank.levels import settled
from quadlin.solve.lowrank.step_length import family, member
from quadlin.solve.lowrank.tangent import averaged_step
from quadlin.solve.lowrank.types import Options, Record, loss_unit, usual_curvature
from quadlin.solve.lowrank.whitening import Identity, Whitener
from quadlin.stream.flatness import NOT_ASKED, Flatness, flatness_of, resized
from quadlin.stream.walk import LENGTH, mean_of, mean_share

SURE = 3.0  # a rise of the loss by so many standard errors undoes a step
RECOVERY = 1.1  # what the pace gains with every step that is kept
LONGEST_HISTORY = 1000  # records: a stream may go on for ever
SHARE_OF_CURVATURE = 0.6  # that directions in which log-odds vary have, about
WIDER = 10.0  # a feature whose spread grows so much in one batch has to be learned anew


@dataclass(frozen=True)
class Rise(Additive):
    """What the last step did to the loss of new rows: l₀ before it, l after."""

    before: float  # Σω l₀
    total: float  # Σω (l − l₀)
    squares: float  # Σω² (l − l₀)²


@dataclass(frozen=True)
class Pending(Additive):
    """What the rows of the batch that is being gathered have left behind."""

    rows: int
    sums: Sums
    features: Moments
    target: Moments
    before: float = 0.0  # these three as in Rise, where there is a last step
    rise: float = 0.0
    rise_squares: float = 0.0
    flat: Flatness = NOT_ASKED  # of a walk of log-odds


def rise_of(chunk: Chunk, model: Model, before: Model, units: Units, loss: str = "squared") -> Rise:
    """Compare two models on the rows of a chunk."""
    xp = namespace(model.U)
    block, y = Block(chunk.X, units), standardised_target(chunk, units)
    f, f0 = (xp.astype(predict(m, block), xp.float64) for m in (model, before))
    y = xp.astype(y, xp.float64)
    omega = xp.ones_like(f) if chunk.weight is None else xp.astype(chunk.weight, xp.float64)
    (now, _), (then, _) = value_and_slope(loss, f, y), value_and_slope(loss, f0, y)
    change = omega * ((f - f0) * (f + f0 - 2 * y) if loss == "squared" else now - then)
    return Rise(float(omega @ then), float(xp.sum(change)), float(change @ change))


def without_zero_weights(chunk: Chunk) -> Chunk:
    """Leave out the rows of weight zero."""
    if chunk.weight is None:
        return chunk
    xp = namespace(chunk.weight)
    kept = xp.nonzero(chunk.weight > 0)[0]
    if kept.shape[0] == chunk.weight.shape[0]:
        return chunk
    X = chunk.X[kept, :] if issparse(chunk.X) else xp.take(chunk.X, kept, axis=0)
    return Chunk(X, xp.take(chunk.y, kept), xp.take(chunk.weight, kept))


def without(left_out: Array, model: Model) -> Model:
    """Return the model without some features, at their means."""
    rest = namespace(left_out).astype(~left_out, model.U.dtype)
    return replace(model, U=rest[:, None] * model.U, w=rest * model.w)


def watchful(model: Model, units: Units) -> tuple[Model, Units]:
    """Give features that have been constant so far a scale, so that a change in them is seen."""
    return without(units.scale == 0, model), replace(units, scale=watchful_scale(units))


def gather(
    pending: Pending | None,
    chunk: Chunk,
    state: FitState,
    loss: str = "squared",
    Q: Array | None = None,
    model: Model | None = None,
) -> Pending:
    """Add the sums and moments of some rows to those that wait; Q as in `residual_sums`.

    They are of the residuals of the model that steps are taken from, unless another is given.
    """
    units, before = state.units, state.before
    model = state.stepping if model is None else model
    rows = Rows.of(MemorySource(chunk.X, chunk.y, chunk.weight))
    sums = rows.reduce(residual_sums, *watchful(model, units), Q, True, loss)
    new = Pending(chunk.X.shape[0], sums, *moments_of(rows))
    if state.walker is not None and loss != "squared":
        new = replace(new, flat=rows.reduce(flatness_of, model, units, loss))
    if before is not None:
        rise = rows.reduce(rise_of, model, before, units, loss)
        new = replace(new, before=rise.before, rise=rise.total, rise_squares=rise.squares)
    return new if pending is None else pending + new


def converted(new: Units, model: Model, units: Units, sums: Sums) -> tuple[Model, Sums]:
    """Convert a model, and the sums of its residual with its own U as Q, to other units."""
    xp = namespace(model.U)
    moved = in_units(model, units, new)
    # z′ = g∘(z − h) with x the same, r′ = y r, and the new U is what U/g becomes times a matrix.
    g = new.scale / units.scale
    stretch = xp.where(g > 0, 1 / xp.where(g > 0, g, 1.0), 0.0)
    h = (new.mean - units.mean) * units.scale + stretch * new.rest - units.rest
    y = units.target.scale / new.target.scale
    p0, p1_before, action = float(sums.p0[0]), sums.p1[:, 0], sums.action[:, 0, :]
    p1, hU = p1_before - p0 * h, h @ model.U
    p2 = sums.p2[:, 0] - h * (p1_before + p1)
    action = action - h[:, None] * (p1_before @ model.U) - p1[:, None] * hU
    action = g[:, None] * (action @ (xp.linalg.pinv(stretch[:, None] * model.U) @ moved.U))
    return moved, Sums(
        sums.weight,
        y**2 * sums.loss,
        y * sums.p0,
        (y * g * p1)[:, None],
        (y * g * (g * p2))[:, None],
        (y * action)[:, None, :],
    )


def undone(state: FitState, pending: Pending, loss: str = "squared") -> Model | None:
    """Return the model before the last step if new rows find that the step did harm.

    The same rows judge the model before it and after it, so that noise, however heavy its tails,
    is in both. Harm is a rise of the loss beyond its own sampling error, or by as much as there
    was, which few rows can tell as well.
    """
    last = state.history[-1].loss / loss_unit(loss, state.units)
    usual = max(pending.before, last * pending.sums.weight)
    harm = not pending.rise <= min(usual, SURE * pending.rise_squares**0.5)
    return state.before if harm else None


def batch_step(
    state: FitState,
    pending: Pending,
    options: Options,
    make_units: UnitsMaker,
    since: float = 0.0,
) -> FitState:
    """Take one step of length (weight of the batch)/(weight so far): a mean of Newton steps.

    Or one of constant length, of a walk whose models have a mean. `since` is the weight of the rows
    before those that the mean is of.

    Each batch's step alone would land at the truth plus that batch's noise; the running mean
    averages the noise away at the rate of all rows together. A step that new rows find to have done
    harm is undone, and the pace halved; it recovers with the steps that follow.
    """
    units, last = state.units, state.history[-1]
    features, target = state.features + pending.features, state.target + pending.target
    new = make_units(features, target)
    back = undone(state, pending, options.loss)
    start = state.stepping if back is None else back
    pace = min(1.0, RECOVERY * state.pace) if back is None else state.pace / 2
    wider, walks = units.scale > WIDER * new.scale, state.walker is not None
    before: Model | None = None
    if bool(namespace(wider).any(wider)):
        # The coefficient of a feature that hardly varied may be wrong by any factor, so it is
        # dropped; the next rows judge whether that was right.
        rest = tied(without(wider, start), units, options.fit_linear, options.fit_intercept)
        before, model = in_units(start, units, new), in_units(rest, units, new)
    elif back is not None:
        model = in_units(back, units, new)
    else:
        before, sums = converted(new, *watchful(start, units), pending.sums)
        share = pace * (LENGTH if walks else sums.weight / (features.weight - since))
        share = share / step_curvature(options.loss, new, sums)
        model = _step(before, sums, share, new, options, state.white)
        model = resized(model, pending.flat, pace * LENGTH)
    walker: Model | None = None
    if walks:
        share = mean_share(pending.sums.weight, features.weight - since)
        mean, walker = in_units(without(wider, state.model), units, new), model
        model = mean_of(mean, walker, 0.0 if back is not None else share, new, options)
    loss = pending.sums.loss / pending.sums.weight * loss_unit(options.loss, units)
    history = lengthened(state.history, Record(last.step + 1, last.passes, loss))
    if options.levels_are_ambiguous:
        model = settled(model, new, make_units.fields)
    learned = FitState(model, new, features, target, history, state.status, state.white)
    return replace(learned, pace=pace, before=before, walker=walker, notes=state.notes)


def lengthened(history: tuple[Record, ...], record: Record) -> tuple[Record, ...]:
    """Return the history with one more record, the last ones kept.

    The first is the constant model's.
    """
    return (history[0], *history[1:][2 - LONGEST_HISTORY :], record)


def step_curvature(loss: str, units: Units, sums: Sums) -> float:
    """Return the curvature of the loss that the steps of a stream count on.

    Rows whose label is nearly certain have hardly any, and so do the directions in which the
    log-odds vary most. Steps that are too short cost a mean of steps more than steps that are up
    to twice too long.
    """
    if loss == "squared":
        return 1.0
    uncertain = sums.loss / (sums.weight * units.target.power) if units.target.power else 1.0
    # Where all labels are certain up to rounding there is no slope to be divided by it either.
    uncertain = max(uncertain, float(np.finfo(np.float64).eps))
    return SHARE_OF_CURVATURE * min(1.0, uncertain) * usual_curvature(loss, units)


def _step(
    model: Model, sums: Sums, share: float, units: Units, options: Options, white: Whitener
) -> Model:
    tied_to_m = not (options.fit_linear and options.fit_intercept)
    if isinstance(white, Identity) and not tied_to_m:  # moments know nothing of ties
        return _moment_step(model, sums, share, units, options)
    return averaged_step(model, sums, share, units, options, white)


def _moment_step(model: Model, sums: Sums, share: float, units: Units, options: Options) -> Model:
    """Take a share of the tangent step, with each feature's own κ and φ."""
    xp = namespace(model.U)
    parts = (options.fit_linear, options.fit_intercept)
    directions = family(model, mes.tangent_step(sums, model.U, units), None, units, *parts)
    alpha = (
        [1.0]
        + [1.0] * options.fit_linear
        + [-float(sums.p0[0]) / sums.weight] * options.fit_intercept
    )
    steps = xp.asarray([share * a for a in alpha], dtype=xp.float64, device=model.U.device)
    return tied(member(directions, steps, model.s.shape[0], options.psd), units, *parts)
