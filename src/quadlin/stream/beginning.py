"""How a stream that keeps no row comes to its first model: from stage to stage, batch by batch."""

from dataclasses import replace

from quadlin.core.chunks import Chunk
from quadlin.core.units import UnitsMaker
from quadlin.solve.fit_state import FitState
from quadlin.solve.types import Options
from quadlin.solve.whitening import Identity, covariance
from quadlin.stream.anneal import anneal_step, first_annealing
from quadlin.stream.batch import Pending
from quadlin.stream.correlations import correlation_step, first_probe
from quadlin.stream.label_start import as_log_odds, as_numbers
from quadlin.stream.start import (
    POWER_ROWS,
    Stage,
    Start,
    constant_state,
    constant_state_of,
    contracts,
    first_block,
    power_step,
)
from quadlin.stream.walk import WALK_ROWS

LONGEST = 8  # times its first length has a batch of the power iteration, once some of M is seen
GROWTH = 0.25  # of the batches of a walk of log-odds, with the root of the rows per parameter
PROBE_ROWS = 10  # per parameter, of a batch that tells of correlations


class Beginning:
    """The stages before the steps of a stream have a mean; `Stream` explains the attributes."""

    options: Options
    batch_size: int
    make_units: UnitsMaker
    seed: int
    start: Start | None
    since: float
    state: FitState | None
    goal: int
    pending: Pending | None
    proven: bool

    @property
    def _early(self) -> tuple[Options, UnitsMaker]:
        """Return the options and units of these stages, in which labels are numbers."""
        return as_numbers(self.options, self.make_units)

    @property
    def _dof(self) -> int:
        raise NotImplementedError

    @property
    def _gathered(self) -> int:
        raise NotImplementedError

    def _with_sums_of(self, chunk: Chunk) -> Pending:
        raise NotImplementedError

    def _step(self, pending: Pending) -> FitState:
        raise NotImplementedError

    def _begin(self, start: Start, chunk: Chunk) -> None:
        """Learn from rows without keeping any, until there is a model that steps can refine."""
        if start.stage is Stage.moments:
            self.state = constant_state(self.state, chunk, *self._early)
            self.start = replace(start, rows=start.rows + chunk.X.shape[0])
            if self._gathered >= self.goal:
                self._probe()
            return
        assert self.state is not None
        self.pending = self._with_sums_of(chunk)
        if start.stage is Stage.correlations:
            spread = covariance(chunk, self.state.units, start.Q)
            spread = spread if start.spread is None else start.spread + spread
            self.start = start = replace(start, spread=spread)
        if self.pending.rows < self.goal:
            return
        if start.stage is Stage.correlations:
            self._whiten(start, self.pending)
        elif start.stage is Stage.power:
            args = (self.state, self.pending, start, *self._early)
            self.state, self.start = power_step(*args)
            if self.start.stage is Stage.power and self.start.batches == 0:
                self._lengthen(self.start)
            if self.start.stage is Stage.contraction:
                self.since = self.state.features.weight
                if self.options.loss != "squared" or not isinstance(self.state.white, Identity):
                    self._anneal()
        elif start.stage is Stage.annealing:
            args = (self.state, self.pending, start, *self._early)
            self.state, self.start = anneal_step(*args)
            if self.start.batches == 0:
                self._walk()
        else:
            goes_on = start.batches == 0 or contracts(self.state, self.pending)
            if goes_on:  # a step of full length
                self.since = self.state.features.weight
                self.start = replace(start, batches=start.batches + 1)
            else:  # a mean from here on, which the last step of full length is the first part of
                self.start, self.goal, self.proven = None, self.batch_size, True
            self.state = self._step(self.pending)
        self.pending = None

    def _probe(self) -> None:
        """Look for correlations first, where they may be whitened."""
        assert self.state is not None
        units, options = self.state.units, self.options
        if options.whiten == "none" or len(self.make_units.names) == 1:
            self._find_block()
            return
        self.start = first_probe(units, options.rank, self.seed)
        self.goal = PROBE_ROWS * self._dof

    def _whiten(self, start: Start, pending: Pending) -> None:
        """Learn of correlations from a batch; go on to M once they are known."""
        assert self.state is not None
        units = self.state.units
        features = self.state.features + pending.features
        target = self.state.target + pending.target
        always = self.options.whiten == "lowrank"
        self.start, white = correlation_step(start, units, pending.features, always)
        latest = self.state.white if white is None else white
        self.state = constant_state_of(features, target, *self._early, latest)
        if white is not None:
            self._find_block()

    def _find_block(self) -> None:
        """Begin with the power iteration for M."""
        assert self.state is not None
        self.start = first_block(self.state, self.options, self.seed)
        if self.start.stage is Stage.contraction and self.options.loss != "squared":
            self._walk()
            return
        self.goal = max(self.batch_size, POWER_ROWS * self._dof)

    def _anneal(self) -> None:
        """Go on with steps of constant length at a higher rank."""
        assert self.state is not None
        self.state = replace(self.state, before=None)
        self.start, self.goal = first_annealing(self.state), WALK_ROWS * self._dof

    def _walk(self) -> None:
        """Go on with steps of constant length, whose models have a mean."""
        assert self.state is not None
        if self.options.loss != "squared":
            self.state = as_log_odds(self.state, self.options, self.make_units)
        self.state = replace(self.state, walker=self.state.model, before=None)
        self.start, self.since = None, self.state.features.weight
        self.goal = WALK_ROWS * self._dof

    def _walk_on(self) -> None:
        """Go on with a walk of log-odds, from the optimum of a first batch or the last step.

        Of another loss than squared errors the mean of a walk is off by what one step is off,
        squared. So batches grow as the root of the number of rows, and that does as the error.
        """
        assert self.state is not None
        if self.state.walker is None:
            self.state = replace(self.state, walker=self.state.model)
        rows = self.state.features.weight - self.since
        self.goal = int(self._dof * max(WALK_ROWS, GROWTH * (rows / self._dof) ** 0.5))

    def _lengthen(self, start: Start) -> None:
        """Go on with batches of twice the length, as noise hides some of M in shorter ones.

        What eight times the length does not show may not be there: the rank may be too high. But
        without any of M there is nothing to refine.
        """
        assert self.state is not None
        if not start.some or self.goal < LONGEST * max(self.batch_size, POWER_ROWS * self._dof):
            self.goal, self.start = 2 * self.goal, replace(start, batches=1)
        else:
            self.start = Start(Stage.contraction)
