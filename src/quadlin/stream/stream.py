"""A stream of rows that are seen once: the first batch is fitted, each later one is one step.

From the second batch on, only O(kd) sums of the rows are kept, so the way in which the caller
divides the stream into calls changes nothing but rounding. If no row may be kept, the first model
is that of a power iteration on new rows.
"""

from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil, log2, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from quadlin.core.arrays import Array, namespace
from quadlin.core.chunks import BLOCK_ELEMENTS, Chunk, MemorySource
from quadlin.core.moments import Tally, survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.wide_rows import with_units_for
from quadlin.solve.composite.composer import FEWEST_ROWS, PairRequest
from quadlin.solve.composite.fitting import PairedFit, TablePlan
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.likelihood import Linearised
from quadlin.solve.lowrank.design import EXACT_COLUMNS
from quadlin.solve.lowrank.driver import loss_unit
from quadlin.solve.lowrank.gauss_newton import usual_curvature
from quadlin.solve.lowrank.moment_sequence import OVERSAMPLING
from quadlin.solve.lowrank.types import (
    FIXED,
    NO_NOISE,
    Automatic,
    Options,
    Record,
    Status,
    finished,
)
from quadlin.solve.lowrank.whitening import FULL_LIMIT
from quadlin.stream.batch import (
    Pending,
    as_constant,
    batch_step,
    constant_state,
    exchanged,
    first_block,
    gather,
    is_worse,
    power_step,
    stands_out,
)

LEAST_ROWS = 2  # per parameter in a batch: with fewer in the first, later steps diverge
DOUBLINGS = 3  # of batches of the power iteration, if noise hides a part of M
NUMBERS = 40  # per entry of U, at most, in a stream that keeps no rows, including its work space
BYTES = 8


class SparseRows(NamedTuple):
    """Rows in compressed form."""

    data: np.ndarray  # (nnz,)
    indices: np.ndarray  # (nnz,)
    indptr: np.ndarray  # (n + 1,)
    width: int

    def matrix(self) -> csr_array:
        """Return the rows."""
        shape = (len(self.indptr) - 1, self.width)
        return csr_array((self.data, self.indices, self.indptr), shape=shape)


@dataclass(frozen=True)
class Waiting:
    """Copies of rows that are learned together, since the arrays of the caller may change.

    The first rows decide whether all of them are dense or sparse.
    """

    X: Array | SparseRows | None = None  # (n, d)
    y: Array | None = None  # (n,)
    weight: Array | None = None  # (n,)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return 0 if self.y is None else int(self.y.shape[0])

    def source(self) -> MemorySource:
        """Return the rows."""
        X = self.X.matrix() if isinstance(self.X, SparseRows) else self.X
        return MemorySource(X, self.y, self.weight)

    def joined(self, chunk: Chunk) -> "Waiting":
        """Return these rows and those of a chunk."""
        xp, old, X, y = namespace(chunk.y), self.source(), chunk.X, chunk.y
        weight = xp.ones_like(y) if chunk.weight is None else xp.astype(chunk.weight, y.dtype)
        sparse = issparse(X) if self.y is None else isinstance(self.X, SparseRows)
        if self.y is not None:
            y, weight = xp.concat([old.y, y]), xp.concat([old.weight, weight])
        if sparse:
            X = csr_array(X) if self.y is None else vstack([old.X, X]).tocsr()
            data, indices, indptr = map(np.array, (X.data, X.indices, X.indptr))
            kept = SparseRows(data, indices, indptr, X.shape[1])
            return Waiting(kept, xp.asarray(y, copy=True), weight)
        X = X.toarray() if issparse(X) else X
        X = X if self.y is None else namespace(X).concat([old.X, X])
        return Waiting(*(namespace(a).asarray(a, copy=True) for a in (X, y, weight)))


NO_ROWS, NONE_WAIT = Tally(0, 0, 0.0, 0.0), Waiting()


class Stage(Enum):
    """What the rows of a batch are for."""

    rows = "They are kept, and fitted together."
    moments = "The mean, variance, skewness and kurtosis of the features."
    power = "A step of the power iteration."
    full = "A step of full length, as long as the loss falls."
    mean = "A step of a running mean, or of a walk whose models are averaged."


@dataclass(eq=False, repr=False)
class Stream:
    """A model that learns from batches of `batch_size` rows and sees each row once.

    Later batches only refine the model of the first one. Their steps have the length (rows of the
    batch)/(rows so far). Whatever the size of the batch, such steps are stable once there are more
    rows than parameters, so the first batch has at least two rows per parameter. If noise hides
    part of M in it, it is doubled until M stands out, up to `first_limit` rows.

    With `pairs`, the first batch is searched for pairs. Those that it shows become columns of a
    regression on all rows so far, which keeps a Gram matrix and takes no steps.

    A `strict` stream keeps no row. After the moments of the features, each batch is a step of the
    power iteration, until M stands out, and then one of full length, as long as the loss falls.
    Labels are numbers until then, and log-odds from then on: near the constant that fits them best,
    log-odds are to first order a least-squares fit of the labels.

    Each batch judges the model before it learns from it: if the constant is better, `current` is
    the constant, while the steps continue from the model.

    The fields are its whole state. A stream does not change: `fed` returns another one that has
    learned more.

    Memory: O(kd), and the rows of the first batch until it is complete; with pairs O(p²) for p
    parameters.
    """

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
    stage: Stage | None = None
    goal: int = 0  # rows of the batch that is being gathered
    waiting: Waiting = NONE_WAIT  # rows of the first batch
    pending: Pending | None = None  # sums of a later batch
    latest: FitState | None = None  # with the incomplete batch, once it is asked for
    latest_options: Options | None = None  # and its options, as far as it has chosen them
    since: float = 0.0  # weight of the rows before those averaged
    worse: bool = False  # than the constant on the last batch
    rounds: int = 0  # left of the power iteration, or of steps that need not lower the loss
    Q: Array | None = None  # (d, q), the block of the power iteration, or what M may lack (d, 1)

    def __post_init__(self) -> None:
        if self.stage is None:
            first = Stage.moments if self.strict else Stage.rows
            self.stage = first if self.state is None else Stage.mean
            self.goal = self.batch_size if self.state is not None else self._first_goal()
            self.latest = self.state
        self.latest_options = self.latest_options or self.options

    def _first_goal(self) -> int:
        wanted = 0
        if self.pairs is not None:
            wanted = len(self.pairs.given or ()) or self.pairs.most or 0
        least = max(LEAST_ROWS * (self._dof + wanted), FEWEST_ROWS if self.pairs else 0)
        return least if self.strict else max(self.batch_size, least)

    @property
    def _dof(self) -> int:
        d = len(self.make_units.names)
        dof = int(self.options.dof(d, self.options.rank))
        return max(1, dof)  # a batch without rows would never be complete

    def fed(self, chunk: Chunk) -> "Stream":
        """Return a stream that has received these rows, and learned from complete batches."""
        stream, chunk = copy(self), chunk.counting()
        n, start = chunk.X.shape[0], 0
        while start < n:
            stop = min(n, start + stream.goal - stream._gathered)
            stream._take(chunk.between(start, stop))
            stream.tally = stream.tally + Tally.of(chunk.between(start, stop))
            start = stop
        return stream

    def whole(self) -> "Stream":
        """Return the stream at the end of its rows."""
        return self

    def catch_up(self) -> None:
        """Learn from all rows, so that `current` needs no fit."""
        _ = self.current

    @property
    def n_rows(self) -> int:
        """Return the number of rows that were learned from."""
        return self.tally.counting

    @property
    def current(self) -> FitState:
        """Return the current state, including the incomplete batch."""
        if self.latest is None:
            self.latest = self._shown(self._learn_pending())
        return self.latest

    @property
    def chosen(self) -> Options:
        """Return the options of `current`: rank and penalties may be chosen from its rows."""
        _ = self.current  # whose options are chosen once it is known
        return self.latest_options or self.options

    @property
    def example_and_dtype(self) -> tuple[Array, Any]:
        """Return an array in the namespace and on the device of the rows, and their dtype."""
        example = self.waiting.y if self.state is None else self.state.model.w
        return example, self.make_units.dtype

    @property
    def _early(self) -> bool:
        """Tell whether labels are numbers, since there is no model of log-odds yet."""
        before = self.stage in (Stage.moments, Stage.power, Stage.full)
        return before and self.options.loss != "squared"

    @property
    def _numbers(self) -> tuple[Options, UnitsMaker]:
        """Return the options and units of the next step."""
        if not self._early:
            return self.options, self.make_units
        return replace(self.options, loss="squared"), Linearised(**vars(self.make_units))

    @property
    def _gathered(self) -> int:
        if self.stage is Stage.moments:
            return self.tally.counting
        if self.stage is Stage.rows:
            return self.waiting.rows
        return 0 if self.pending is None else self.pending.rows

    def _take(self, chunk: Chunk) -> None:
        self.latest, (options, make_units) = None, self._numbers
        if self.stage is Stage.rows:
            self.waiting = self.waiting.joined(chunk)
            gathered = self.waiting.rows
        elif self.stage is Stage.moments:
            new = survey(chunk)
            features, target, gathered = new.features, new.target, self._gathered + len(chunk.y)
            if self.state is not None:
                features, target = self.state.features + features, self.state.target + target
            self.state = constant_state(features, target, options, make_units)
        else:
            assert self.state is not None
            block, probe = (self.Q, None) if self.stage is Stage.power else (None, self.Q)
            pending = gather(self.pending, chunk, self.state, options.loss, block, probe)
            make_units.refuse_overflow(pending.features, pending.target)
            self.pending, gathered = pending, pending.rows
        if gathered >= self.goal:
            self._complete(gathered)

    def _complete(self, rows: int) -> None:
        """Learn from a complete batch."""
        if self.stage is Stage.rows:
            self.latest = learned = self._learn_pending()
            loss = self.options.loss
            if 2 * rows <= self.first_limit and not stands_out(learned, rows, loss):
                self.goal = 2 * rows
                return
            self.state, self.waiting, self.stage = learned, NONE_WAIT, Stage.mean
            self.options, self.automatic = self.chosen, FIXED
            self.goal = self.batch_size
            if loss != "squared" and learned.running is None:
                self.state = replace(learned, walker=learned.model)
                self.goal = self._rows_of_walk(learned.features.weight)
            return
        assert self.state is not None
        if self.stage is Stage.moments:
            self._begin(self.state)
            return
        assert self.pending is not None
        one_model = self.state.running is None and self.state.walker is None
        self.worse = one_model and is_worse(self.pending, self.state, self._numbers[0].loss)
        if self.stage is Stage.power:
            self._iterate(self.state, self.pending)
        elif self.stage is Stage.full:
            self._contract(self.state, self.pending)
        else:
            learned = self._learn_pending()
            if learned.walker is not None:
                learned = self._go_on_walking(learned, self.pending)
            self.state, self.latest = learned, self._shown(learned)
        self.pending = None

    def _learn_pending(self) -> FitState:
        """Return the state with the rows of the incomplete batch, where that makes sense."""
        if self.stage is Stage.rows:
            fitted, self.latest_options = self._fit_first(Rows.of(self.waiting.source()))
            return finished(fitted)  # an interrupted fit is no state to continue from
        state, pending = self.state, self.pending
        assert state is not None
        if pending is None or not pending.features.weight > 0 or self.stage is not Stage.mean:
            return state
        if state.walker is not None and pending.rows < self.goal:
            return state  # a walk needs complete batches
        return batch_step(state, pending, self.options, self.make_units, self.since)

    def _shown(self, state: FitState) -> FitState:
        """Return the state in log-odds of labels, or that of the constant if that is better."""
        if self.worse:
            c = 0.0 if self._numbers[0].loss == "squared" else state.units.target.centre
            state = replace(state, model=as_constant(state.model, c))
        return as_log_odds(state, self.options, self.make_units) if self._early else state

    def _fit_first(self, rows: Rows) -> tuple[FitState, Options]:
        """Fit the rows of a first batch; return the options that it has chosen, too.

        If all parameters fit into a matrix, the state has a regression that continues with the
        pairs. Otherwise later steps continue with M as a whole.
        """
        choices = self.options, self.make_units, self.seed, self.automatic
        plan, surveyed = TablePlan(*choices, pairs=self.pairs), rows.reduce(survey)
        plan = with_units_for(rows, plan, surveyed)
        self.make_units = plan.make_units
        fitted = PairedFit(plan, rows, surveyed, early=True).run()
        state, options = fitted.kept(), fitted.options
        if not plan.automatic.alpha:  # whatever the search used
            options = replace(options, alpha=plan.options.alpha)
        if state.running is None:
            return state, options
        model, parts = state.running.model(plan.make_units.fields)
        state = replace(state, model=model, units=state.running.units, parts=parts)
        return state, replace(options, rank=int(model.s.shape[0]))

    def _begin(self, state: FitState) -> None:
        """Start the power iteration for M, once the moments of the features are known.

        The error of a random block is about √d, and each batch of ten rows per parameter halves it.
        """
        self.since, (d,) = state.features.weight, state.units.scale.shape
        self.goal = self.batch_size
        if self.options.rank:
            self.stage, self.rounds = Stage.power, 2 + ceil(log2(max(d, 1)) / 2) + DOUBLINGS
            self.Q = first_block(state.units, min(d, self.options.rank + OVERSAMPLING), self.seed)
        elif self._early:
            self._walk()
        else:
            self.stage, self.rounds = Stage.full, 2

    def _iterate(self, state: FitState, pending: Pending) -> None:
        """Take a step of the power iteration; it is the last one if all of M stands out.

        After some rounds batches are doubled, since noise hides a part of M in shorter ones. What
        eight times the length does not show may not exist: the rank may be too high. But without
        any part of M there is nothing to refine.
        """
        numbers = self._numbers
        self.state, self.Q, strong = power_step(state, pending, self.Q, *numbers, self.since)
        self.rounds -= 1
        if strong == self.options.rank or (strong and self.rounds <= 0):
            self.stage, self.Q, self.rounds = Stage.full, None, 2
            if self._early:
                self._walk()
        elif self.rounds <= DOUBLINGS:
            self.goal = 2 * self.goal

    def _contract(self, state: FitState, pending: Pending) -> None:
        """Take a step of full length, as long as such steps lower the loss by a fifth or more.

        Where one did not, the next is half as long; where that did not, either, a walk begins.
        """
        options, make_units = self._numbers
        if state.before is None or 5 * pending.judgement.rise < -pending.judgement.before:
            self.since, self.rounds = state.features.weight, 3
        state = batch_step(state, pending, options, make_units, self.since)
        if state.history[-1].loss <= NO_NOISE * state.history[0].loss:
            state = replace(state, status=Status.converged)
        self.state, self.rounds = state, self.rounds - 1
        if not self.rounds:
            self._walk()

    def _walk(self) -> None:
        """Continue with steps of constant length, whose models are averaged."""
        state, status = self.state, Status.converged
        assert state is not None
        if self._early:
            state = as_log_odds(state, self.options, self.make_units)
        elif 0 < self.options.rank < state.units.scale.shape[0]:
            self.Q, status = first_block(state.units, 1, self.seed), Status.searching
        self.stage, self.since = Stage.mean, state.features.weight
        self.goal = self._rows_of_walk(self.since)
        self.state = replace(state, walker=state.model, before=None, status=status)

    def _rows_of_walk(self, weight: float) -> int:
        """Return the rows of the next batch of a walk, after rows of this weight.

        For losses other than squared errors, the mean of a walk has a bias of the order of the
        squared error of one step. So batches grow as the square root of the number of rows, and
        the bias falls as fast as the sampling error.
        """
        rows = 0.0 if self.options.loss == "squared" else weight - self.since
        return int(max(LEAST_ROWS * self._dof, (self._dof * rows) ** 0.5 / 4))

    def _go_on_walking(self, state: FitState, pending: Pending) -> FitState:
        """Choose the length of the next batch, and exchange a component for one that M lacks.

        After an exchange of components the mean of the models begins anew, and counts as converged
        once it has as many rows as there were before.
        """
        weight = state.features.weight
        self.goal = self._rows_of_walk(weight)
        if self.Q is None:
            return state
        self.Q, walker = exchanged(state, pending, self.Q, self.options.fit_intercept)
        status = Status.searching if 2 * self.since > weight else Status.converged
        if status is Status.converged and walker is not None:
            self.since, status = weight, Status.searching
            state = replace(state, walker=walker, before=state.walker)
        return replace(state, status=status)


def as_log_odds(state: FitState, options: Options, make_units: UnitsMaker) -> FitState:
    """Return the state of log-odds that, to first order, equals a fit of labels as numbers."""
    units = make_units(state.features, state.target)
    root = sqrt(usual_curvature(options.loss, units))
    model, last = state.model, state.history[-1]
    c = units.target.centre + model.c / root
    model = replace(model, s=model.s / root, w=model.w / root, c=c)
    constant = units.target.power * loss_unit(options.loss, units)
    history = (Record(0, 1, constant), Record(last.step, last.passes, constant))[: last.step + 1]
    return replace(state, model=model, units=units, history=history, before=None)


def strict_bytes(d: int, rank: int) -> int:
    """Return the memory of a stream that keeps no rows, without the rows of one call."""
    return BYTES * NUMBERS * max(rank, 4) * d


def pair_numbers(d: int, rank: int, most: int) -> int:
    """Return how many numbers a search for pairs and the regression after it hold."""
    columns = 2 + d + d * rank + most
    return 8 * d * d + 4 * columns * columns


def rows_within(
    limit: int | str, options: Options, d: int, chooses: bool, more_numbers: int = 0
) -> int:
    """Return how many rows of a first batch can be kept and fitted within a limit of bytes.

    Sparse rows count as dense ones. Rows are copied when others join them. The fit takes a block of
    rows and its products, three d×d matrices for correlations, four p×p matrices if rank or
    penalties are chosen, and the numbers that a search for pairs holds.
    """
    if isinstance(limit, str):
        return 0
    work = strict_bytes(d, options.rank) + 3 * BYTES * BLOCK_ELEMENTS + BYTES * more_numbers
    if options.solver == "auto" and d <= FULL_LIMIT:
        work += 3 * BYTES * d * d
    if chooses:
        work += 4 * BYTES * min(EXACT_COLUMNS, (options.rank + 1) * d) ** 2
    return max(0, int(limit) - work) // (2 * BYTES * (d + 2))


def refuse_with_strict(options: Options) -> None:
    """Raise an error for options that need a first batch of rows if no rows are kept."""
    if any(options.alpha):
        raise ValueError(
            "`alpha` needs a first batch of rows in memory, but `max_memory` keeps none. Raise "
            "`max_memory`, or leave `alpha` out."
        )


def refuse_pairs_with_strict(pairs: PairRequest) -> None:
    """Raise an error for pairs that the user asked for if there is no room for their matrix."""
    if pairs.asked:
        raise ValueError(
            "`pairs` needs more memory than `max_memory` allows: a first batch of "
            "rows, and the matrix of a regression. Raise `max_memory`, or leave "
            "`pairs` out."
        )
