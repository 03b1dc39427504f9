r"""A batch of rows that are seen once: its sums, and the step that they determine.

Steps of constant length from small batches, the mean of the models, and their size.

If the Hessian is known only approximately, as for correlated features in O(rd) memory, a mean of
Newton steps converges as :math:`N^{-\lambda}`, where λ is the smallest eigenvalue of the
preconditioned Hessian. The mean of the *models* along a walk of constant steps has the error of
least squares whatever λ is, once the walk has forgotten its start (Polyak and Ruppert). Later
models have larger weights, proportional to :math:`\sqrt t`: the start is forgotten sooner, and an
eighth more rows are needed in the end.

Rows whose label is nearly certain have next to no curvature :math:`h = p(1 - p)`, and these are
the rows of large log-odds. So a likelihood is flattest along the size of the log-odds, and steps
that assume one curvature for all directions are too short along it. The curvature along
:math:`f \mapsto \bar f + (1 + \theta)(f - \bar f)` takes three sums over rows.
"""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import Array, lead, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive
from quadlin.core.losses import curvature, value_and_slope
from quadlin.core.model import Model, in_units, predict, tied
from quadlin.core.moments import Moments, moments_of
from quadlin.core.rows import Rows
from quadlin.core.sums import Sums, residual_sums
from quadlin.core.units import Units, UnitsMaker, watchful_scale
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.driver import loss_unit
from quadlin.solve.lowrank.gauss_newton import usual_curvature
from quadlin.solve.lowrank.levels import settled
from quadlin.solve.lowrank.moment_sequence import tangent_step
from quadlin.solve.lowrank.tangent import averaged_step, truncated
from quadlin.solve.lowrank.types import Options, Record
from quadlin.solve.lowrank.whitening import Identity, Whitener, with_ridge

LENGTH = 0.07  # of a step, where 1 is a full Newton step
GROWTH = 0.5  # the weight of a model is its number to this power
WALK_ROWS = 2  # rows per parameter in a batch
FAR = 0.5  # the largest change of size in one step


def mean_share(weight: float, so_far: float) -> float:
    """Return the share of the newest model in the mean; `so_far` includes its batch."""
    return (1 + GROWTH) * weight / (so_far + GROWTH * weight)


def averaged(mean: Model, newest: Model, share: float, units: Units, options: Options) -> Model:
    """Return (1 − share)·mean + share·newest, M truncated to its rank.

    Predictions are linear in (c, w, M). The truncation removes terms of second order in the
    distance of the two.
    """
    xp, k = namespace(mean.U), mean.s.shape[0]
    c, w = ((1 - share) * a + share * b for a, b in ((mean.c, newest.c), (mean.w, newest.w)))
    V, R = xp.linalg.qr(xp.concat([mean.U, newest.U], axis=1))
    s = xp.concat([(1 - share) * mean.s, share * newest.s])
    values, vectors = lead((R * s) @ R.T, k, False)
    model = replace(mean, U=V @ vectors, s=values, w=w, c=c)
    return tied(model, units, True, options.fit_intercept)


@dataclass(frozen=True)
class Flatness(Additive):
    """Sums over rows at a model: curvatures h, predictions f and half slopes r of the loss."""

    h: float = 0.0  # Σωh
    hf: float = 0.0  # Σωhf
    hff: float = 0.0  # Σωhf²
    r: float = 0.0  # Σωr
    rf: float = 0.0  # Σωrf

    def step(self) -> tuple[float, float]:
        """Return the θ of the smallest loss, to second order, and f̄."""
        if not self.h > 0:
            return 0.0, 0.0
        mean = self.hf / self.h
        curved, slope = self.hff - mean * self.hf, self.rf - mean * self.r
        theta = -slope / curved if curved > 0 else 0.0
        return min(FAR, max(-FAR, theta)), mean


NOT_ASKED = Flatness()


def flatness_of(chunk: Chunk, model: Model, units: Units, loss: str) -> Flatness:
    """Sum over the rows of a chunk."""
    xp = namespace(model.U)
    f = xp.astype(predict(model, Block(chunk.X, units)), xp.float64)
    omega = xp.ones_like(f) if chunk.weight is None else xp.astype(chunk.weight, xp.float64)
    y = xp.astype(units.standardised_target(chunk.y), xp.float64)
    h, r = omega * curvature(f, loss), omega * value_and_slope(loss, f, y)[1]
    return Flatness(
        float(xp.sum(h)), float(h @ f), float(h @ (f * f)), float(xp.sum(r)), float(r @ f)
    )


def resized(model: Model, flat: Flatness, length: float) -> Model:
    """Return the model after a step of this length along its size."""
    theta, mean = flat.step()
    size = 1 + length * theta
    c = mean + size * (model.c - mean)
    return replace(model, s=size * model.s, w=size * model.w, c=c)


SURE = 3.0  # standard errors: a larger rise of the loss undoes a step
RECOVERY = 1.1  # the pace grows by this factor with every step that is kept
LONGEST_HISTORY = 1000  # records: a stream may never end
SHARE_OF_CURVATURE = 0.6  # about that of directions in which log-odds vary
WIDER = 10.0  # a feature whose scale grows by this factor in one batch is learned anew


@dataclass(frozen=True)
class Rise(Additive):
    """How the last step changed the loss of new rows, from l₀ to l."""

    before: float  # Σω l₀
    total: float  # Σω (l − l₀)
    squares: float  # Σω² (l − l₀)²


@dataclass(frozen=True)
class Pending(Additive):
    """Sums over the rows of a batch that is not complete yet."""

    rows: int
    sums: Sums
    features: Moments
    target: Moments
    before: float = 0.0  # the three sums of `Rise`, if there was a step
    rise: float = 0.0
    rise_squares: float = 0.0
    flat: Flatness = NOT_ASKED  # in a walk of log-odds
    beside: Array | float = 0.0  # (d, 1, 1), Zᵀ(r∘Zq) for a probe q


def rise_of(chunk: Chunk, model: Model, before: Model, units: Units, loss: str = "squared") -> Rise:
    """Compare two models on the rows of a chunk."""
    xp = namespace(model.U)
    block, y = Block(chunk.X, units), units.standardised_target(chunk.y)
    f, f0 = (xp.astype(predict(m, block), xp.float64) for m in (model, before))
    y = xp.astype(y, xp.float64)
    omega = xp.ones_like(f) if chunk.weight is None else xp.astype(chunk.weight, xp.float64)
    (now, _), (then, _) = value_and_slope(loss, f, y), value_and_slope(loss, f0, y)
    change = omega * ((f - f0) * (f + f0 - 2 * y) if loss == "squared" else now - then)
    return Rise(float(omega @ then), float(xp.sum(change)), float(change @ change))


def without(left_out: Array, model: Model) -> Model:
    """Return the model without some features, as if they were always at their means."""
    rest = namespace(left_out).astype(~left_out, model.U.dtype)
    return replace(model, U=rest[:, None] * model.U, w=rest * model.w)


def watchful(model: Model, units: Units) -> tuple[Model, Units]:
    """Give a scale to features that were constant so far, so that changes in them are seen."""
    return without(units.scale == 0, model), replace(units, scale=watchful_scale(units))


def gather(
    pending: Pending | None,
    chunk: Chunk,
    state: FitState,
    loss: str = "squared",
    Q: Array | None = None,
    probe: Array | None = None,
) -> Pending:
    """Add the sums and moments of some rows to the pending ones; Q is that of `residual_sums`.

    A `probe` (d, 1) is multiplied together with U. The residuals are those of the model from which
    the next step is taken.
    """
    units, model, before = state.units, state.stepping, state.before
    rows = Rows.of(MemorySource(chunk.X, chunk.y, chunk.weight))
    watched, seen = watchful(model, units)
    if probe is not None:
        Q = namespace(probe).concat([watched.U, probe], axis=1)
    sums = rows.reduce(residual_sums, watched, seen, Q, True, loss)
    new = Pending(chunk.X.shape[0], sums, *moments_of(rows))
    if probe is not None:
        k = model.s.shape[0]
        own = replace(sums, action=sums.action[:, :, :k])
        new = replace(new, sums=own, beside=sums.action[:, :, k:])
    if state.walker is not None and loss != "squared":
        new = replace(new, flat=rows.reduce(flatness_of, model, units, loss))
    if before is not None:
        rise = rows.reduce(rise_of, model, before, units, loss)
        new = replace(new, before=rise.before, rise=rise.total, rise_squares=rise.squares)
    return new if pending is None else pending + new


def undone(state: FitState, pending: Pending, loss: str = "squared") -> Model | None:
    """Return the model before the last step if new rows find that the step did harm.

    The same rows judge the models before and after the step, so both losses include the same noise,
    however heavy its tails. A step did harm if the loss rose by more than its sampling error, or if
    it doubled, which even a few rows can show.
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
    """Take one step of length (weight of the batch)/(weight so far), as in a mean of Newton steps.

    In a walk, the step has constant length and the models are averaged. `since` is the weight of
    the rows before those that are averaged.

    The step of a single batch would lead to the truth plus the noise of that batch; the running
    mean averages the noise of all rows. If new rows find that a step did harm, it is undone and the
    pace is halved; later steps raise it again.
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
        rest = tied(without(wider, start), units, True, options.fit_intercept)
        before, model = in_units(start, units, new), in_units(rest, units, new)
    elif back is not None:
        model = in_units(back, units, new)
    else:
        (watched, seen), sums = watchful(start, units), pending.sums
        share = pace * (LENGTH if walks else sums.weight / (features.weight - since))
        curvature = step_curvature(options.loss, seen, sums)
        weight = curvature * features.weight
        model = _step(watched, sums, share / curvature, seen, options, state.white, weight, walks)
        if walks and options.loss != "squared":
            model = resized(model, pending.flat, pace * LENGTH)
        before, model = in_units(watched, seen, new), in_units(model, seen, new)
    walker: Model | None = None
    if walks:
        share = mean_share(pending.sums.weight, features.weight - since)
        mean, walker = in_units(without(wider, state.model), units, new), model
        model = averaged(mean, walker, 0.0 if back is not None else share, new, options)
    loss = pending.sums.loss / pending.sums.weight * loss_unit(options.loss, units)
    history = lengthened(state.history, Record(last.step + 1, last.passes, loss))
    if len(make_units.fields) and options.levels_are_ambiguous:
        model = settled(model, new, make_units.fields)
    learned = FitState(model, new, features, target, history, state.status, state.white)
    return replace(learned, pace=pace, before=before, walker=walker, notes=state.notes)


def lengthened(history: tuple[Record, ...], record: Record) -> tuple[Record, ...]:
    """Return the history with one more record; a long one loses its oldest records.

    The first record, that of the constant model, is kept.
    """
    return (history[0], *history[1:][2 - LONGEST_HISTORY :], record)


def step_curvature(loss: str, units: Units, sums: Sums) -> float:
    """Return the curvature of the loss that the steps of a stream assume.

    Rows whose label is nearly certain have hardly any curvature, and neither have the directions in
    which the log-odds vary most. For a mean of steps, steps that are too short cost more than steps
    that are up to twice too long.
    """
    if loss == "squared":
        return 1.0
    uncertain = sums.loss / (sums.weight * units.target.power) if units.target.power else 1.0
    # If all labels are certain up to rounding, the slope that is divided by it is zero as well.
    uncertain = max(uncertain, float(np.finfo(np.float64).eps))
    return SHARE_OF_CURVATURE * min(1.0, uncertain) * usual_curvature(loss, units)


def _step(
    model: Model,
    sums: Sums,
    share: float,
    units: Units,
    options: Options,
    white: Whitener,
    weight: float,
    walks: bool,
) -> Model:
    """Take a share of a Newton step; with the penalty, rows so far have this weight."""
    if any(options.alpha):
        white = with_ridge(white, options.alpha[0] / weight)
    elif isinstance(white, Identity) and options.fit_intercept:  # moment estimates ignore ties
        return _moment_step(model, sums, share, units)
    return averaged_step(model, sums, share, units, options, white, weight, walks)


def _moment_step(model: Model, sums: Sums, share: float, units: Units) -> Model:
    """Take a share of the tangent step, with each feature's own κ and φ."""
    Y, dw = tangent_step(sums, model.U, units)
    G = model.U @ (model.U.T @ Y) / 2 - Y
    U, s = truncated(model.U, model.s, share * G, model.s.shape[0], False)
    c = model.c - share * float(sums.p0[0]) / sums.weight
    return replace(model, U=U, s=s, w=model.w - share * dw, c=c)
