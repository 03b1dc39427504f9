"""The start of a stream that keeps no rows: moments, power iteration on new rows, full steps.

The rows of a batch are not stored. Their sum Zᵀ(r∘ZQ) for the current block Q determines the next
block, so a batch of new rows replaces a pass over the same rows. The estimates are unbiased for
independent features.

Labels are treated as numbers until there is a first model, and as log-odds from then on. Near the
constant that fits them best, log-odds are to first order a least-squares fit of the labels, so the
stages before the first model are those of any target. Their result is refined by a walk (`batch`),
for which a rough estimate of the curvature of the loss is enough.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from math import ceil, log2, sqrt

import numpy as np

from quadlin.core.arrays import Array, lead, namespace, orthonormal
from quadlin.core.chunks import Chunk
from quadlin.core.losses import constant_deviance
from quadlin.core.model import Model, constant_model, in_units, tied
from quadlin.core.moments import Moments, Tally, survey
from quadlin.core.sums import Sums
from quadlin.core.units import UnitsMaker
from quadlin.solve.composite.composer import PairRequest
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.logistic import Linearised
from quadlin.solve.lowrank import moment_sequence as mes
from quadlin.solve.lowrank.driver import loss_unit
from quadlin.solve.lowrank.gauss_newton import usual_curvature
from quadlin.solve.lowrank.levels import settled
from quadlin.solve.lowrank.tangent import orthonormalised
from quadlin.solve.lowrank.types import FIXED, Automatic, Options, Record, Status
from quadlin.solve.lowrank.whitening import Identity
from quadlin.stream.batch import WALK_ROWS, Pending, undone, watchful
from quadlin.stream.row_sample import constant_of, shortened

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
    # In a handful of rows every feature may take only two values, so nothing raises an error yet.
    units = replace(make_units, squares="auto")(features, target)
    model = tied(constant_model(units, options.rank), units, True, options.fit_intercept)
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
    s, vectors = lead(Q.T @ B, options.rank, False)
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
        return tied(moved, units, True, options.fit_intercept)

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


def is_worse(pending: Pending, state: FitState, loss: str) -> bool:
    """Tell whether the constant is better on rows that the model has not learned."""
    target, units, unit = pending.target, state.units, loss_unit(loss, state.units)
    mean, var = float(target.mean[0]), float(target.var[0])
    constant = var + (mean - units.target.mean) ** 2
    if loss != "squared":
        constant = unit * constant_deviance(mean, units.target.centre)
    return not unit * pending.sums.loss <= target.weight * constant


def no_worse(state: FitState, worse: bool, loss: str) -> FitState:
    """Return the state, or that of the constant if the model is worse."""
    if not worse:
        return state
    return replace(state, model=shortened(state.model, constant_of(state.units, loss), 0.0))


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


def as_numbers(options: Options, make_units: UnitsMaker) -> tuple[Options, UnitsMaker]:
    """Return the options and units of the stages before the first model."""
    if options.loss == "squared":
        return options, make_units
    return replace(options, loss="squared"), Linearised(**vars(make_units))


def as_log_odds(state: FitState, options: Options, make_units: UnitsMaker) -> FitState:
    """Return the state of log-odds that, to first order, equals a fit of labels as numbers."""
    units = make_units(state.features, state.target)
    root = sqrt(usual_curvature(options.loss, units))

    def scaled(model: Model) -> Model:
        c = units.target.centre + model.c / root
        return replace(model, s=model.s / root, w=model.w / root, c=c)

    before = None if state.before is None else scaled(state.before)
    last, constant = state.history[-1], units.target.power * loss_unit(options.loss, units)
    history = (Record(0, 1, constant), Record(last.step, last.passes, constant))[: last.step + 1]
    model = scaled(state.model)
    return replace(state, model=model, units=units, history=history, before=before)


NO_ROWS = Tally(0, 0, 0.0, 0.0)
LONGEST = 8  # times the first length of a batch of the power iteration
GROWTH = 0.25  # of batches in a walk of log-odds, per square root of the rows per parameter


@dataclass(eq=False, repr=False)
class Beginning:
    """The fields of a stream, and its stages before steps are averaged."""

    options: Options  # including what the first batch has chosen
    batch_size: int
    first_limit: int
    make_units: UnitsMaker
    seed: int
    state: FitState | None = None  # after the last complete batch
    automatic: Automatic = FIXED  # what the first batch has to choose
    strict: bool = False  # whether no rows are kept, not even for a first batch
    pairs: PairRequest | None = None  # that the first batch is searched for
    tally: Tally = NO_ROWS  # of all rows so far
    start: Start | None = field(default=None, init=False)
    since: float = field(default=0.0, init=False)  # weight of the rows before those averaged
    goal: int = field(default=0, init=False)  # rows of the batch that is being gathered
    pending: Pending | None = field(default=None, init=False)  # sums of a later batch
    worse: bool = field(default=False, init=False)  # than the constant on the last batch
    probe: Array | None = field(default=None, init=False)  # (d, 1): what M may lack

    def _with_sums_of(self, chunk: Chunk) -> Pending:
        raise NotImplementedError

    def _step(self, pending: Pending) -> FitState:
        raise NotImplementedError

    @property
    def _early(self) -> tuple[Options, UnitsMaker]:
        """Return the options and units of these stages, in which labels are numbers."""
        return as_numbers(self.options, self.make_units)

    @property
    def _dof(self) -> int:
        raise NotImplementedError

    def _begin(self, start: Start, chunk: Chunk) -> None:
        """Learn from rows without keeping them, until there is a model that steps can refine."""
        if start.stage is Stage.moments:
            features, target = moments_with(self.state, chunk)
            self.state = constant_state_of(features, target, *self._early)
            self.start = replace(start, rows=start.rows + chunk.X.shape[0])
            if self.start.rows >= self.goal:
                self._find_block()
            return
        assert self.state is not None
        self.pending = self._with_sums_of(chunk)
        if self.pending.rows < self.goal:
            return
        self.worse = is_worse(self.pending, self.state, "squared")
        if start.stage is Stage.power:
            self.state, self.start = power_step(self.state, self.pending, start, *self._early)
            if self.start.stage is Stage.power and self.start.batches == 0:
                self._lengthen(self.start)
            if self.start.stage is Stage.contraction:
                self.since = self.state.features.weight
                if self.options.loss != "squared":
                    self._walk()
        else:
            full = start.batches == 0 or contracts(self.state, self.pending)
            if full:
                self.since = self.state.features.weight
                self.start = replace(start, batches=start.batches + 1)
            self.state = self._step(self.pending)
            if not full:  # from here on models are averaged, beginning with the last full step
                self._walk()
        self.pending = None

    def _trusted_early(self, state: FitState) -> FitState:
        """Return the last model that new rows did not find worse than the one before."""
        if self.pending is not None and not state.history[-1].step:  # no model yet: a constant
            features = state.features + self.pending.features
            target = state.target + self.pending.target
            return constant_state_of(features, target, *self._early)
        return no_worse(judged(state, self.pending, self.goal), self.worse, "squared")

    def _find_block(self) -> None:
        """Start the power iteration for M."""
        assert self.state is not None
        self.start = first_block(self.state, self.options, self.seed)
        if self.start.stage is Stage.contraction and self.options.loss != "squared":
            self._walk()
            return
        self.goal = max(self.batch_size, POWER_ROWS * self._dof)

    def _walk(self) -> None:
        """Continue with steps of constant length, whose models are averaged."""
        assert self.state is not None
        d = self.state.units.scale.shape[0]
        if self.options.loss != "squared":
            self.state = as_log_odds(self.state, self.options, self.make_units)
        elif 0 < self.options.rank < d:
            random = np.random.default_rng(self.seed).standard_normal((d, 1))
            self.probe = orthonormal(self.state.units.array(random))
        self.state = replace(self.state, walker=self.state.model, before=None)
        self.start, self.since = None, self.state.features.weight
        self.goal = WALK_ROWS * self._dof

    def _completed(self, state: FitState, learned: FitState, pending: Pending) -> FitState:
        """Return what was learned, with a component that M lacks instead of its weakest one.

        Each batch is a step of the power iteration on what the model leaves of M. If more is left
        than the weakest component, the walk has the wrong one, perhaps of the wrong sign, or
        features depend on each other and it is slow. The mean of the models then begins anew, and
        counts as converged once it has as many rows as there were before.
        """
        assert self.probe is not None
        assert learned.walker is not None
        xp, walker, q = namespace(self.probe), learned.walker, self.probe
        sums, units = replace(pending.sums, action=pending.beside), watchful(walker, state.units)[1]
        left = -mes.unbiased(sums, q, units)[0]
        s = xp.sum(q * left, axis=0)  # of qqᵀ; q does not depend on these rows
        self.probe = orthonormal(left)
        if 2 * self.since > learned.features.weight:
            return replace(learned, status=Status.searching)
        weakest, sd = xp.abs(walker.s[-1:]), (sums.loss / sums.weight) ** 0.5
        excess = xp.abs(s) - weakest
        if float(excess[0]) <= 0 or not above_noise(excess, sd, q.shape[0], pending.rows):
            return replace(learned, status=Status.converged)
        self.since = learned.features.weight
        # The size grows by itself: that of s is too large where features depend on each other.
        U = xp.concat([walker.U[:, :-1], q], axis=1)
        s = xp.concat([walker.s[:-1], xp.sign(s) * weakest])
        moved = orthonormalised(replace(walker, U=U, s=s))
        moved = tied(moved, learned.units, True, self.options.fit_intercept)
        return replace(learned, walker=moved, before=walker, status=Status.searching)

    def _walk_on(self) -> None:
        """Continue with a walk of log-odds, from the optimum of a first batch or the last step.

        For losses other than squared errors, the mean of a walk has a bias of the order of the
        squared error of one step. So batches grow as the square root of the number of rows, and
        the bias falls as fast as the sampling error.
        """
        assert self.state is not None
        if self.state.walker is None:
            self.state = replace(self.state, walker=self.state.model)
        rows = self.state.features.weight - self.since
        self.goal = int(self._dof * max(WALK_ROWS, GROWTH * (rows / self._dof) ** 0.5))

    def _lengthen(self, start: Start) -> None:
        """Continue with batches of twice the length, since noise hides part of M in shorter ones.

        Components that eight times the length does not show may not exist: the rank may be too
        high. But without any part of M there is nothing to refine.
        """
        assert self.state is not None
        if not start.some or self.goal < LONGEST * max(self.batch_size, POWER_ROWS * self._dof):
            self.goal, self.start = 2 * self.goal, replace(start, batches=1)
        else:
            self.start = Start(Stage.contraction)
