"""Rows that are seen once: the first batch is fitted, every later one is a single step of its sums.

From the second batch on no row is kept, only its O(kd) sums, so that how the caller cuts the stream
changes nothing but rounding.
"""

from copy import copy
from dataclasses import replace

import numpy as np

from quadlin.core.arrays import Array
from quadlin.core.chunks import Chunk
from quadlin.core.model import degrees_of_freedom
from quadlin.core.rows import Rows
from quadlin.core.survey import Tally
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.choice import fit_choosing
from quadlin.solve.composite.pair_composite import PairRequest
from quadlin.solve.composite.pair_stage import FEWEST_ROWS, Plan
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.logistic_choice import fit_logistic
from quadlin.solve.lowrank.types import FIXED, Automatic, Options, finished
from quadlin.stream.anneal import annealed_model
from quadlin.stream.batch import Pending, batch_step, gather, undone, without_zero_weights
from quadlin.stream.pair_batches import PairPending, first_with_pairs, gather_pairs, pair_step
from quadlin.stream.power_iteration import Stage, Start, stands_out, still_moving
from quadlin.stream.row_sample import Buffer, RowSample
from quadlin.stream.stages import Beginning, as_log_odds
from quadlin.stream.verdict import StreamVerdict, first_verdict, trusted, verdict_of

PIECES = 8  # that a call's rows are cut into, at least, by a stream that keeps none
LABEL_ROWS = 20  # the same of labels with pairs, where memory and `batch_size` allow
FIRST_ROWS = 2  # per parameter, that the first batch has at least: else the steps after it diverge


class Stream(Beginning):
    """A model that learns from batches of `batch_size` rows, each row seen once.

    Later batches only refine what the first one found. Their steps, by a share of (rows of the
    batch)/(rows so far), are stable once there are more rows than parameters, whatever the size of
    the batch; so the first batch has at least two rows per parameter. Where noise hides some of
    M in it, it is doubled until M stands out, at most to `first_limit` rows.

    With `pairs` the first batch is searched for some. Those that it has are then columns of a
    regression on all rows so far, whose Gram matrix is kept in place of the steps.

    Rows judge the model before they are learned. Where they find it worse than a constant, what
    `current` shows is shortened towards the constant; the steps go on from the model as it is. So
    it is where the constant is better on a sample of all rows, which a saved stream leaves behind.

    A stream does not change: `fed` returns the one that has learned more.

    Memory: O(kd), the rows of the first batch until it is complete, and a sample of all rows of 256
    KiB or, with more than 500 features, of 64 rows; with pairs O(p²) for p parameters.
    """

    def __init__(
        self,
        options: Options,
        batch_size: int,
        first_limit: int,
        make_units: UnitsMaker,
        seed: int,
        state: FitState | None = None,
        automatic: Automatic = FIXED,
        strict: bool = False,
        pairs: PairRequest | None = None,
    ) -> None:
        self.options = options  # with what was chosen, once the first batch is complete
        self.automatic = automatic  # what the first batch has to choose
        self.batch_size = batch_size
        self.first_limit = first_limit
        self.make_units = make_units
        self.seed = seed
        self.pairs = pairs  # to look for in the first batch
        self.strict = strict  # whether rows are never kept, not even those of a first batch
        self.start = Start() if strict and state is None else None
        self.since = 0.0  # weight of the rows before those that the steps are a mean of
        self.state = state  # after the last whole batch
        self.goal = self._first_goal() if state is None else batch_size
        self.waiting = Buffer()  # rows of the first batch
        self.pending: Pending | None = None  # sums of a later one
        self.pair_pending: PairPending | None = None  # the same of a stream with pairs
        self.verdict: StreamVerdict | None = None  # of rows not learned yet, on the steps so far
        self.proven = False  # whether new rows found the steps so far to do no harm
        self.tally = Tally(0, 0, 0.0, 0.0)
        sampled = state is None and not strict
        self.sample = RowSample.of_features(len(make_units.names)) if sampled else None
        self._current: FitState | None = state
        self._chosen = options

    def _first_goal(self) -> int:
        pairs = self.pairs
        if pairs is None:
            least = FIRST_ROWS * self._dof
        else:
            wanted = len(pairs.given) if pairs.given is not None else pairs.most or 0
            least = max(FIRST_ROWS * (self._dof + wanted), FEWEST_ROWS)
            if self.options.loss != "squared":  # each batch is one Newton step from the last model
                least = max(least, min(self.first_limit, LABEL_ROWS * (self._dof + wanted)))
        return least if self.strict else max(self.batch_size, least)

    @property
    def _dof(self) -> int:
        d = len(self.make_units.names)
        return int(degrees_of_freedom(d, self.options.rank, **self.options.parts))

    def fed(self, chunk: Chunk) -> "Stream":
        """Return the stream that has taken in some rows, and learned from complete batches."""
        stream = copy(self)
        stream.waiting = copy(self.waiting)
        stream._feed(without_zero_weights(chunk))
        return stream

    def counted(self, tally: Tally) -> "Stream":
        """Return the stream that knows of rows that were learned from by other means."""
        stream = copy(self)
        stream.tally = self.tally + tally
        return stream

    def with_state(self, state: FitState) -> "Stream":
        """Return the stream that goes on from another state."""
        stream = copy(self)
        stream.state = state if self.state is not None else None
        stream._current = state
        return stream

    def with_rank(self, rank: int) -> "Stream":
        """Return the stream that goes on with another rank."""
        stream = copy(self)
        stream.options = replace(self.options, rank=rank)
        stream._chosen = replace(self._chosen, rank=rank)
        return stream

    def _feed(self, chunk: Chunk) -> None:
        n, start = chunk.X.shape[0], 0
        if self.sample is not None and n:
            self.sample = self.sample.fed(chunk)
        piece = max(2 * self.options.rank + 2, n // PIECES) if self.strict else n
        while start < n:
            stop = min(n, start + self.goal - self._gathered, start + piece)
            part = slice(start, stop)
            weight = None if chunk.weight is None else chunk.weight[part]
            self._take(Chunk(chunk.X[part, :], chunk.y[part], weight))
            start = stop
        self.tally = self.tally + Tally.of(chunk)

    @property
    def n_rows(self) -> int:
        """Return the number of rows that were learned from."""
        return self.tally.counting

    @property
    def current(self) -> FitState:
        """Return the state now, the incomplete batch included."""
        if self._current is None:
            self._current = self._shown(self._learn_pending())
        return self._current

    @property
    def chosen(self) -> Options:
        """Return the options of `current`: rank and penalties may be chosen from its rows."""
        return self.options if self.current is self.state else self._chosen

    @property
    def example(self) -> Array:
        """Return an array that lives where the model lives."""
        return self.waiting.y if self.state is None else self.state.model.w

    @property
    def _gathered(self) -> int:
        if self.start is not None and self.start.stage is Stage.moments:
            return self.start.rows
        if self.state is None:
            return self.waiting.rows
        pending = self.pair_pending or self.pending
        return 0 if pending is None else pending.rows

    def _take(self, chunk: Chunk) -> None:
        self._current = None
        if self.start is not None:
            self._begin(self.start, chunk)
            return
        if self.state is None:
            self.waiting.append(chunk, self.goal)
        elif self.state.running is not None:
            self.pair_pending = gather_pairs(self.pair_pending, chunk, self.state.running)
        else:
            self.pending = self._with_sums_of(chunk)
        rows = self._gathered
        if rows < self.goal:
            return
        learned = self._learn_pending()
        self._current = learned
        may_grow = self.state is None and 2 * rows <= self.first_limit
        if may_grow and not stands_out(learned, rows, self.options.loss):
            self.goal = 2 * rows
            return
        self._current = self._shown(learned)
        self.verdict, self.proven = self._judged(learned), self._proves_steps()
        self.state = learned
        self.options, self.automatic = self._chosen, FIXED
        if self.options.loss != "squared" and learned.running is None:
            self._walk_on()
        elif learned.walker is None:
            self.goal = self.batch_size
        self.waiting, self.pending, self.pair_pending = Buffer(), None, None

    def _with_sums_of(self, chunk: Chunk) -> Pending:
        """Return what waits with these rows, unless they are too large to be squared."""
        assert self.state is not None
        Q, model, start = None, None, self.start
        if start is not None and start.stage is Stage.annealing:
            model = annealed_model(start, self.state)
        elif start is not None and start.stage is Stage.power:
            Q = self.state.white.apply(start.Q)
        loss = self.options.loss if start is None else "squared"
        pending = gather(self.pending, chunk, self.state, loss, Q, model)
        self.make_units.refuse_overflow(pending.features, pending.target)
        if not np.isfinite(pending.sums.loss + pending.rise_squares):
            raise ValueError(
                "Some rows are so far from all earlier ones that their errors cannot be squared. "
                "Look for wrong units or typing errors in X and y."
            )
        return pending

    def _learn_pending(self) -> FitState:
        if self.state is None:
            rows = Rows.of(self.waiting.source())
            state, self._chosen = self._first_fit(rows)
            return finished(state)  # half a fit is no state to go on from
        if self.state.running is not None:
            if self.pair_pending is None:
                return self.state
            return pair_step(self.state, self.pair_pending, self.make_units)
        if self.start is not None:  # a step of full length needs a whole batch, and is tried first
            state = self._trusted_early(self.start, self.state)
            state = still_moving(state)
            if self.options.loss == "squared":
                return state
            return as_log_odds(state, self.options, self.make_units)
        if self.pending is None or self.pending.sums.weight == 0:
            return self.state
        if self.state.walker is not None and self.pending.rows < self.goal:
            return self.state  # a walk goes by whole batches
        return self._step(self.pending)

    def _first_fit(self, rows: Rows) -> tuple[FitState, Options]:
        choices = (self.options, self.make_units, self.seed, self.automatic)
        if self.pairs is not None:
            return first_with_pairs(rows, Plan(*choices), self.pairs)
        fit = fit_logistic if self.options.loss == "logistic" else fit_choosing
        return fit(rows, *choices)

    def _shown(self, learned: FitState) -> FitState:
        """Return what has been learned, as far as new rows confirm it.

        A step is shown once they found one before it to do no harm, and is shortened towards the
        constant where they find the model to be worse.
        """
        if self.state is None or self.start is not None or self.pending is None:
            return learned
        if not self._proves_steps() and learned.before is not None and learned.walker is None:
            learned = replace(learned, model=learned.before, before=None)
        learned = trusted(learned, self._judged(learned), self.options.loss)
        sample = self.sample
        return learned if sample is None else sample.shrunk(learned, self.options.loss)

    def _proves_steps(self) -> bool:
        """Tell whether rows have judged steps by now, those that wait included, and undid none."""
        state, pending = self.state, self.pending
        if state is None or pending is None:
            return self.proven
        if undone(state, pending, self.options.loss) is not None:
            return False
        return self.proven or state.before is not None

    def _judged(self, learned: FitState) -> StreamVerdict | None:
        """Return the verdict with that of the rows that wait, on the model before they count.

        Rows that undo a step have nothing to say of the model before it.
        """
        state, pending, loss = self.state, self.pending, self.options.loss
        if state is None or self.start is not None or pending is None or not pending.sums.weight:
            return self.verdict
        if self.verdict is None:
            verdict = first_verdict(state, loss)
        else:
            verdict = self.verdict.faded(pending.sums.weight / learned.features.weight)
        if undone(state, pending, loss) is not None:
            return verdict
        return verdict + verdict_of(pending.sums, pending.target, state, learned.units, loss)

    def _step(self, pending: Pending) -> FitState:
        assert self.state is not None
        return batch_step(self.state, pending, self.options, self.make_units, self.since)
