r"""A batch of rows that are seen once: its sums, and the step that they determine.

A batch leaves nothing but sums. Most steps are one of a running mean: a Newton step from a single
batch would lead to the truth plus the noise of that batch, and the mean of such steps averages the
noise of all rows.

If the Hessian is known only approximately, as for correlated features in O(rd) memory, a mean of
Newton steps converges as :math:`N^{-\lambda}`, where λ is the smallest eigenvalue of the
preconditioned Hessian. The mean of the *models* along a walk of constant steps has the error of
least squares whatever λ is, once the walk has forgotten its start (Polyak and Ruppert). Later
models have larger weights, proportional to :math:`\sqrt t`: the start is forgotten sooner, and an
eighth more rows are needed in the end.

Before there is a first model, the sum Zᵀ(r∘ZQ) of a batch determines the next block Q of a power
iteration, so a batch of new rows replaces a pass over the same rows. The estimates are unbiased for
independent features.
"""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import Array, lead, namespace, orthonormal
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive
from quadlin.core.losses import constant_deviance, curvature, value_and_slope
from quadlin.core.model import Model, constant_model, in_units, predict, tied
from quadlin.core.moments import Moments, moments_of
from quadlin.core.rows import Rows
from quadlin.core.sums import Sums, residual_sums
from quadlin.core.units import Units, UnitsMaker, watchful_scale
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank import moment_sequence as mes
from quadlin.solve.lowrank.driver import loss_unit
from quadlin.solve.lowrank.gauss_newton import usual_curvature
from quadlin.solve.lowrank.levels import settled
from quadlin.solve.lowrank.tangent import averaged_step, orthonormalised, truncated
from quadlin.solve.lowrank.types import Options, Record, Status
from quadlin.solve.lowrank.whitening import Identity, Whitener, with_ridge
from quadlin.solve.pairs.regression import JointGram

LENGTH = 0.07  # of a step of a walk, where 1 is a full Newton step
GROWTH = 0.5  # the weight of a model of a walk is its number to this power
SURE = 3.0  # standard errors: a larger rise of the loss undoes a step
RECOVERY = 1.1  # the pace grows by this factor with every step that is kept
LONGEST_HISTORY = 1000  # records: a stream may never end
SHARE_OF_CURVATURE = 0.6  # about that of directions in which log-odds vary
WIDER = 10.0  # a feature whose scale grows by this factor in one batch is learned anew
SIGNIFICANT = 1.5  # times the noise: an eigenvalue above it stands out


@dataclass(frozen=True)
class Judgement(Additive):
    """What new rows find about the last step, from loss l₀ to l, and about the size of its result.

    h are curvatures, f predictions and r half slopes of the loss.
    """

    before: float = 0.0  # Σω l₀
    rise: float = 0.0  # Σω (l − l₀)
    squares: float = 0.0  # Σω² (l − l₀)²
    h: float = 0.0  # Σωh
    hf: float = 0.0  # Σωhf
    hff: float = 0.0  # Σωhf²
    r: float = 0.0  # Σωr
    rf: float = 0.0  # Σωrf

    def best_size(self) -> tuple[float, float]:
        """Return the θ of f̄ + (1 + θ)(f − f̄) with the smallest loss, to second order, and f̄.

        At most the size is doubled.
        """
        mean = self.hf / self.h if self.h > 0 else 0.0
        curved, slope = self.hff - mean * self.hf, self.rf - mean * self.r
        theta = -slope / curved if curved > 0 else 0.0
        return min(1.0, max(-1.0, theta)), mean


@dataclass(frozen=True)
class Pending(Additive):
    """Sums over the rows of a batch that is not complete yet."""

    rows: int
    sums: Sums | JointGram  # of residuals; the second of a regression that goes on
    features: Moments
    target: Moments
    judgement: Judgement = Judgement()
    beside: Array | float = 0.0  # (d, 1, 1), Zᵀ(r∘Zq) for a probe q


def judgement_of(
    chunk: Chunk, model: Model, before: Model | None, units: Units, loss: str
) -> Judgement:
    """Judge a model on the rows of a chunk, beside the one before it."""
    block, y, xp = Block(chunk.X, units), units.standardised_target(chunk.y), namespace(model.U)

    f = xp.astype(predict(model, block), xp.float64)
    f0 = f if before is None else xp.astype(predict(before, block), xp.float64)
    y = xp.astype(y, xp.float64)
    omega = xp.ones_like(f) if chunk.weight is None else xp.astype(chunk.weight, xp.float64)
    (now, r), (then, _) = value_and_slope(loss, f, y), value_and_slope(loss, f0, y)
    change = omega * ((f - f0) * (f + f0 - 2 * y) if loss == "squared" else now - then)
    h, r = omega * curvature(f, loss), omega * r
    rise = (omega @ then, xp.sum(change), change @ change)
    return Judgement(*map(float, (*rise, xp.sum(h), h @ f, h @ f**2, xp.sum(r), r @ f)))


def resized(model: Model, judgement: Judgement, length: float) -> Model:
    """Return a model whose predictions are stretched about their mean, by a share of the best.

    Rows whose label is nearly certain have next to no curvature, and these are the rows of large
    log-odds. So a likelihood is flattest along the size of the log-odds, and steps that assume one
    curvature for all directions are too short along it.
    """
    theta, mean = judgement.best_size()
    size = 1 + length * theta
    return replace(model, s=size * model.s, w=size * model.w, c=mean + size * (model.c - mean))


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
    loss: str,
    Q: Array | None = None,
    probe: Array | None = None,
) -> Pending:
    """Add the sums and moments of some rows to the pending ones; Q is that of `residual_sums`.

    A `probe` (d, 1) is multiplied together with U. The residuals are those of the model from which
    the next step is taken. Rows too large to square raise an error.
    """
    rows = Rows.of(MemorySource(chunk.X, chunk.y, chunk.weight))
    sums: Sums | JointGram
    judgement, beside = Judgement(), 0.0
    if state.running is not None:
        sums = state.running.sums(rows)
        finite = np.isfinite(sums.gram).all()
    else:
        units, model, before = state.units, state.stepping, state.before
        watched, seen = watchful(model, units)
        if probe is not None:
            Q = namespace(probe).concat([watched.U, probe], axis=1)
        sums = rows.reduce(residual_sums, watched, seen, Q, True, loss)
        if probe is not None:
            k = model.s.shape[0]
            beside, sums = sums.action[:, :, k:], replace(sums, action=sums.action[:, :, :k])
        if before is not None or (state.walker is not None and loss != "squared"):
            judgement = rows.reduce(judgement_of, model, before, units, loss)
        finite = np.isfinite(sums.loss + judgement.squares)
    new = Pending(chunk.X.shape[0], sums, *moments_of(rows), judgement, beside)
    if not finite:
        raise ValueError(
            "The errors of some rows, which are far from all earlier rows, or their products are "
            "too large to be squared. Look for wrong units or typing errors in X and y."
        )
    return new if pending is None else pending + new


def undone(state: FitState, pending: Pending, loss: str) -> Model | None:
    """Return the model before the last step if new rows find that the step did harm.

    The same rows judge the models before and after the step, so both losses include the same noise,
    however heavy its tails. A step did harm if the loss rose by more than its sampling error, or if
    it doubled, which even a few rows can show.
    """
    new, last = pending.judgement, state.history[-1].loss / loss_unit(loss, state.units)
    usual = max(new.before, last * pending.features.weight)
    harm = not new.rise <= min(usual, SURE * new.squares**0.5)
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
    the rows before those that are averaged. If new rows find that a step did harm, it is undone and
    the pace is halved; later steps raise it again. A regression that goes on takes no step, but is
    solved for all rows so far.
    """
    units, sums = state.units, pending.sums
    if state.running is not None and isinstance(sums, JointGram):
        running = state.running.with_sums(sums.gram)
        model, parts = running.model(make_units.fields)
        learned = _learned(state, pending, model, running.units, running.loss)
        return replace(learned, running=running, parts=parts)
    assert isinstance(sums, Sums)
    new = make_units(state.features + pending.features, state.target + pending.target)
    total = state.features.weight + sums.weight
    back = undone(state, pending, options.loss)
    pace = min(1.0, RECOVERY * state.pace) if back is None else state.pace / 2
    start = state.stepping if back is None else back
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
        watched, seen = watchful(start, units)
        share = pace * (LENGTH if walks else sums.weight / (total - since))
        curved = step_curvature(options.loss, seen, sums)
        weight = curved * total
        model = _step(watched, sums, share / curved, seen, options, state.white, weight, walks)
        if walks and options.loss != "squared":
            model = resized(model, pending.judgement, pace * LENGTH)
        before, model = in_units(watched, seen, new), in_units(model, seen, new)
    walker: Model | None = None
    if walks:
        share = mean_share(sums.weight, total - since)
        mean, walker = in_units(without(wider, state.model), units, new), model
        model = averaged(mean, walker, 0.0 if back is not None else share, new, options)
    if len(make_units.fields) and options.levels_are_ambiguous:
        model = settled(model, new, make_units.fields)
    learned = _learned(state, pending, model, new, options.loss)
    return replace(learned, pace=pace, before=before, walker=walker)


def _learned(state: FitState, pending: Pending, model: Model, units: Units, loss: str) -> FitState:
    """Return the state with another model, and a record of the loss before that was learned."""
    features, target = state.features + pending.features, state.target + pending.target
    reached = pending.sums.loss / pending.features.weight * loss_unit(loss, state.units)
    last = state.history[-1]
    history = lengthened(state.history, Record(last.step + 1, last.passes, reached))
    return replace(
        state, model=model, units=units, features=features, target=target, history=history
    )


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
        Y, dw = mes.tangent_step(sums, model.U, units)
        G = model.U @ (model.U.T @ Y) / 2 - Y
        U, s = truncated(model.U, model.s, share * G, model.s.shape[0], False)
        c = model.c - share * float(sums.p0[0]) / sums.weight
        return replace(model, U=U, s=s, w=model.w - share * dw, c=c)
    return averaged_step(model, sums, share, units, options, white, weight, walks)


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


def exchanged(
    state: FitState, pending: Pending, probe: Array, fit_intercept: bool
) -> tuple[Array, Model | None]:
    """Return the next probe of what M lacks, and the walker with it as a component, if larger.

    Each batch is a step of the power iteration on what the walker leaves of M. If more is left than
    its weakest component, the walk has the wrong one, perhaps of the wrong sign, or features depend
    on each other and it is slow.
    """
    walker, sums = state.walker, pending.sums
    assert walker is not None
    assert isinstance(sums, Sums)
    xp, units = namespace(probe), watchful(walker, state.units)[1]
    left = -mes.unbiased(replace(sums, action=pending.beside), probe, units)[0]
    s = xp.sum(probe * left, axis=0)  # of qqᵀ; q does not depend on these rows
    weakest, sd = xp.abs(walker.s[-1:]), (sums.loss / sums.weight) ** 0.5
    excess = xp.abs(s) - weakest
    if float(excess[0]) <= 0 or not above_noise(excess, sd, probe.shape[0], pending.rows):
        return orthonormal(left), None
    # The size grows by itself: that of s is too large where features depend on each other.
    U = xp.concat([walker.U[:, :-1], probe], axis=1)
    s = xp.concat([walker.s[:-1], xp.sign(s) * weakest])
    model = orthonormalised(replace(walker, U=U, s=s))
    return orthonormal(left), tied(model, state.units, True, fit_intercept)


def constant_state(
    features: Moments, target: Moments, options: Options, make_units: UnitsMaker
) -> FitState:
    """Return the constant model of rows with these moments."""
    # In a handful of rows every feature may take only two values, so nothing raises an error yet.
    units = replace(make_units, squares="auto")(features, target)
    model = tied(constant_model(units, options.rank), units, True, options.fit_intercept)
    history = (Record(0, 1, units.target.power * units.target.scale**2),)
    return FitState(model, units, features, target, history, Status.searching, Identity())


def first_block(units: Units, columns: int, seed: int) -> Array:
    """Return a random orthonormal block (d, columns)."""
    d = units.scale.shape[0]
    return orthonormal(units.array(np.random.default_rng(seed).standard_normal((d, columns))))


def power_step(
    state: FitState,
    pending: Pending,
    Q: Array,
    options: Options,
    make_units: UnitsMaker,
    since: float,
) -> tuple[FitState, Array, int]:
    """Take a step of the power iteration; return the state, the next block, and what stands out.

    Q does not depend on these rows, so QᵀB with B = (M̄ − 𝓜)Q is an unbiased estimate of QᵀMQ. Its
    leading eigenpairs are the model, and an orthonormal basis of B is the next block. The linear
    part is a mean over the batches: each gives an unbiased Δw, whatever is known about M.
    """
    units, sums, xp = state.units, pending.sums, namespace(Q)
    assert isinstance(sums, Sums)
    new = make_units(state.features + pending.features, state.target + pending.target)
    back = state.before if pending.judgement.rise > 0 else None  # new rows prefer it
    varied, (model, seen) = xp.astype(units.scale > 0, Q.dtype), watchful(state.model, units)
    MQ, W = mes.unbiased(sums, Q, seen)
    B = varied[:, None] * (model.U @ (model.s[:, None] * (model.U.T @ Q)) - MQ)
    s, vectors = lead(Q.T @ B, options.rank, False)
    share = sums.weight / (state.features.weight + sums.weight - since)
    c = model.c - share * float(sums.p0[0]) / sums.weight
    model = Model(Q @ vectors, s, model.w - share * varied * W, c, model.free)
    model = tied(model, units, True, options.fit_intercept) if back is None else back
    before, model = in_units(state.model, units, new), in_units(model, units, new)
    if len(make_units.fields) and options.levels_are_ambiguous:
        model = settled(model, new, make_units.fields)
    d, sd = Q.shape[0], (sums.loss / sums.weight) ** 0.5
    strong = sum(above_noise(s[i : i + 1], sd, d, pending.rows) for i in range(s.shape[0]))
    ratio = xp.where(new.scale > 0, units.scale / xp.where(new.scale > 0, new.scale, 1.0), 0.0)
    learned = _learned(state, pending, model, new, "squared")
    learned = replace(learned, before=before if back is None else None)
    return learned, orthonormal(ratio[:, None] * B), strong


def above_noise(s: Array, sd: float, d: int, rows: int) -> bool:
    """Tell whether every eigenvalue of M exceeds those of noise alone in this many rows.

    The noise of the estimate, ½ Σ r z zᵀ/n, has the spectral norm sd(r)·√(d/n).
    """
    if s.shape[0] == 0:
        return True
    xp = namespace(s)
    return bool(float(xp.min(xp.abs(s))) > SIGNIFICANT * sd * (d / rows) ** 0.5)


def stands_out(state: FitState, rows: int, loss: str = "squared") -> bool:
    """Tell whether every eigenvalue of L exceeds those of noise alone in this many rows."""
    if loss == "squared":
        sd = state.history[-1].loss ** 0.5 / state.units.target.scale
    else:  # slopes have variance p(1 − p), and are divided by it
        sd = usual_curvature(loss, state.units) ** -0.5
    return above_noise(state.low_rank.s, sd, state.model.U.shape[0], rows)


def is_worse(pending: Pending, state: FitState, loss: str) -> bool:
    """Tell whether the constant is better on rows that the model has not learned."""
    target, units, unit = pending.target, state.units, loss_unit(loss, state.units)
    mean, var = float(target.mean[0]), float(target.var[0])
    constant = var + (mean - units.target.mean) ** 2
    if loss != "squared":
        constant = unit * constant_deviance(mean, units.target.centre)
    return not unit * pending.sums.loss <= target.weight * constant


def as_constant(model: Model, c: float) -> Model:
    """Return the model that predicts `c` everywhere, of the same rank."""
    return replace(model, s=0 * model.s, w=0 * model.w, c=c)
