"""The stages in which a stream that keeps no rows arrives at its first model, batch by batch.

Labels are treated as numbers until there is a first model, and as log-odds from then on. Near the
constant that fits them best, log-odds are to first order a least-squares fit of the labels, so the
stages before the first model are those of any target. Their result is refined by a walk (`walk`),
for which a rough estimate of the curvature of the loss is enough.
"""

from dataclasses import dataclass, field, replace
from math import sqrt

from quadlin.core.chunks import Chunk
from quadlin.core.model import Model
from quadlin.core.moments import Tally
from quadlin.core.units import UnitsMaker
from quadlin.solve.composite.composer import PairRequest
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.logistic import Linearised
from quadlin.solve.lowrank.driver import loss_unit
from quadlin.solve.lowrank.gauss_newton import usual_curvature
from quadlin.solve.lowrank.types import FIXED, Automatic, Options, Record
from quadlin.stream.batch import Pending
from quadlin.stream.power_iteration import (
    POWER_ROWS,
    Stage,
    Start,
    constant_state_of,
    contracts,
    first_block,
    judged,
    moments_with,
    power_step,
)
from quadlin.stream.verdict import StreamVerdict, trusted, verdict_of
from quadlin.stream.walk import WALK_ROWS


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
    verdict: StreamVerdict | None = field(default=None, init=False)  # of new rows on the model
    proven: bool = field(default=False, init=False)  # whether a step was found to do no harm

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
        verdict = self._early_verdict(start, self.state)
        if start.stage is Stage.power:
            self.state, self.start = power_step(self.state, self.pending, start, *self._early)
            if self.start.stage is Stage.power and self.start.batches == 0:
                self._lengthen(self.start)
            if self.start.stage is Stage.contraction:
                self.since = self.state.features.weight
                if self.options.loss != "squared":
                    self._walk()
        else:
            if start.batches == 0 or contracts(self.state, self.pending):  # a step of full length
                self.since = self.state.features.weight
                self.start = replace(start, batches=start.batches + 1)
                self.state = self._step(self.pending)
            else:  # from here on models are averaged, beginning with the last full step
                self.state = self._step(self.pending)
                self._walk()
        self.pending = None
        # Without a start, the next verdict begins with all rows so far. After a step that was
        # undone, the model is the one before, which was judged.
        judged_before = self.state.before is None and verdict is not None
        self.verdict = None if self.start is None else self.verdict if judged_before else verdict

    def _early_verdict(self, start: Start, state: FitState) -> StreamVerdict | None:
        """Return the verdict of the pending rows on the model whose residuals were summed."""
        pending = self.pending
        if pending is None or not pending.sums.weight:
            return None
        with_slope = start.stage is Stage.contraction
        return verdict_of(pending.sums, pending.target, state, state.units, "squared", with_slope)

    def _trusted_early(self, start: Start, state: FitState) -> FitState:
        """Return the last model that new rows did not find worse than the one before.

        It is shortened if it is worse than a constant, as after a first step that was too long.
        """
        if self.pending is not None and not state.history[-1].step:  # no model yet: a constant
            features = state.features + self.pending.features
            target = state.target + self.pending.target
            return constant_state_of(features, target, *self._early)
        shown, verdict = judged(state, self.pending, self.goal), self.verdict
        enough = self.pending is not None and 2 * self.pending.rows >= self.goal
        if enough and shown is state:
            verdict = self._early_verdict(start, state)
        worse = verdict is not None and verdict.model > verdict.constant
        return trusted(shown, verdict, "squared") if worse else shown

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
        if self.options.loss != "squared":
            self.state = as_log_odds(self.state, self.options, self.make_units)
        self.state = replace(self.state, walker=self.state.model, before=None)
        self.start, self.since = None, self.state.features.weight
        self.goal = WALK_ROWS * self._dof

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
