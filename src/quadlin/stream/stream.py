"""A stream of rows that are seen once: the first batch is fitted, each later one is one step.

From the second batch on, only O(kd) sums of the rows are kept, so the way in which the caller
divides the stream into calls changes nothing but rounding.
"""

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from quadlin.core.arrays import Array
from quadlin.core.chunks import Chunk
from quadlin.core.losses import LOSSES
from quadlin.core.moments import Tally, survey
from quadlin.core.rows import Rows
from quadlin.solve.choose.choice import fit_choosing
from quadlin.solve.choose.wide_rows import with_units_for
from quadlin.solve.composite.composer import FEWEST_ROWS
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.label_choice import fit_logistic
from quadlin.solve.lowrank.types import FIXED, Options, Plan, finished
from quadlin.stream.batch import Pending, batch_step, gather
from quadlin.stream.pair_batches import PairPending, first_with_pairs, gather_pairs, pair_step
from quadlin.stream.row_sample import Buffer, RowSample
from quadlin.stream.strict import (
    Beginning,
    Stage,
    Start,
    as_log_odds,
    is_worse,
    no_worse,
    stands_out,
    still_moving,
)

PIECES = 8  # of the rows of one call, at least, in a stream that keeps none
FIRST_ROWS = 2  # per parameter in the first batch, at least: with fewer, later steps diverge
LABEL_ROWS = 20  # the same for labels with pairs, if memory allows it


@dataclass(eq=False, repr=False)
class Stream(Beginning):
    """A model that learns from batches of `batch_size` rows and sees each row once.

    Later batches only refine the model of the first one. Their steps have the length (rows of the
    batch)/(rows so far). Whatever the size of the batch, such steps are stable once there are more
    rows than parameters, so the first batch has at least two rows per parameter. If noise hides
    part of M in it, it is doubled until M stands out, up to `first_limit` rows.

    With `pairs`, the first batch is searched for pairs. Those that it shows become columns of a
    regression on all rows so far, which keeps a Gram matrix and takes no steps.

    If the constant is better on a sample of all rows, `current` is shortened towards it, while the
    steps continue from the full model. Without rows, the last batch decides before it is learned.

    A stream does not change: `fed` returns another one that has learned more.

    Memory: O(kd), the rows of the first batch until it is complete, and a sample of all rows, which
    takes 256 KiB or, with more than 500 features, 64 rows; with pairs O(p²) for p parameters.
    """

    def __post_init__(self) -> None:
        fresh = self.state is None
        self.start = Start() if self.strict and fresh else None
        self.goal = self._first_goal() if fresh else self.batch_size
        self.waiting = Buffer()  # rows of the first batch
        self.pair_pending: PairPending | None = None  # `pending` in a stream with pairs
        sampled = fresh and not self.strict
        self.sample = RowSample.of_features(len(self.make_units.names)) if sampled else None
        self._current = self.state
        self._chosen = self.options

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
        dof = int(self.options.dof(d, self.options.rank))
        return max(1, dof)  # a batch without rows would never be complete

    def fed(self, chunk: Chunk) -> "Stream":
        """Return a stream that has received these rows, and learned from complete batches."""
        stream = copy(self)
        stream.waiting = copy(self.waiting)
        stream._feed(chunk.counting())
        return stream

    def _feed(self, chunk: Chunk) -> None:
        n, start = chunk.X.shape[0], 0
        if self.sample is not None and n:
            self.sample = self.sample.fed(chunk)
        piece = max(2 * self.options.rank + 2, n // PIECES) if self.strict else n
        while start < n:
            stop = min(n, start + self.goal - self._gathered, start + piece)
            self._take(chunk.between(start, stop))
            start = stop
        self.tally = self.tally + Tally.of(chunk)

    def whole(self) -> "Stream":
        """Return the stream at the end of its rows."""
        return self

    @property
    def n_rows(self) -> int:
        """Return the number of rows that were learned from."""
        return self.tally.counting

    @property
    def current(self) -> FitState:
        """Return the current state, including the incomplete batch."""
        if self._current is None:
            self._current = self._shown(self._learn_pending())
        return self._current

    @property
    def chosen(self) -> Options:
        """Return the options of `current`: rank and penalties may be chosen from its rows."""
        return self.options if self.current is self.state else self._chosen

    @property
    def example_and_dtype(self) -> tuple[Array, Any]:
        """Return an array in the namespace and on the device of the rows, and their dtype."""
        example = self.waiting.y if self.state is None else self.state.model.w
        return example, self.make_units.dtype

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
        if self.state is not None and self.pending is not None:
            self.worse = is_worse(self.pending, self.state, self.options.loss)
        self.state = learned
        self.options, self.automatic = self._chosen, FIXED
        if self.options.loss != "squared" and learned.running is None:
            self._walk_on()
        elif learned.walker is None:
            self.goal = self.batch_size
        self.waiting, self.pending, self.pair_pending = Buffer(), None, None

    def _with_sums_of(self, chunk: Chunk) -> Pending:
        """Return the pending sums with these rows; rows too large to square raise an error."""
        assert self.state is not None
        loss = self.options.loss if self.start is None else "squared"
        Q = None if self.start is None else self.start.Q
        pending = gather(self.pending, chunk, self.state, loss, Q, self.probe)
        self.make_units.refuse_overflow(pending.features, pending.target)
        if not np.isfinite(pending.sums.loss + pending.rise_squares):
            raise ValueError(
                "The errors of some rows, which are far from all earlier rows, are too large to be "
                "squared. Look for wrong units or typing errors in X and y."
            )
        return pending

    def _learn_pending(self) -> FitState:
        if self.state is None:
            rows = Rows.of(self.waiting.source())
            state, self._chosen = self._first_fit(rows)
            return finished(state)  # an interrupted fit is no state to continue from
        if self.state.running is not None:
            if self.pair_pending is None:
                return self.state
            return pair_step(self.state, self.pair_pending, self.make_units)
        if self.start is not None:  # a full step needs a complete batch, and is judged first
            state = self._trusted_early(self.state)
            state = still_moving(state)
            if self.options.loss == "squared":
                return state
            return as_log_odds(state, self.options, self.make_units)
        if self.pending is None or self.pending.sums.weight == 0:
            return self.state
        if self.state.walker is not None and self.pending.rows < self.goal:
            return self.state  # a walk needs complete batches
        return self._step(self.pending)

    def _first_fit(self, rows: Rows) -> tuple[FitState, Options]:
        plan = Plan(self.options, self.make_units, self.seed, self.automatic)
        surveyed = rows.reduce(survey)
        plan = with_units_for(rows, plan, surveyed)
        self.make_units = plan.make_units
        if self.pairs is not None:
            return first_with_pairs(rows, plan, self.pairs, surveyed)
        fit = fit_logistic if LOSSES[self.options.loss].linked else fit_choosing
        return fit(rows, plan, surveyed=surveyed)

    def _shown(self, learned: FitState) -> FitState:
        """Return the learned state, shortened if it is worse than the constant."""
        if self.state is None or self.start is not None or self.pending is None:
            return learned
        if self.sample is None:
            return no_worse(learned, self.worse, self.options.loss)
        return self.sample.shrunk(learned, self.options.loss)

    def _step(self, pending: Pending) -> FitState:
        assert self.state is not None
        learned = batch_step(self.state, pending, self.options, self.make_units, self.since)
        return learned if self.probe is None else self._completed(self.state, learned, pending)
