"""Rows that are seen once: the first batch is fitted, every later one is a single step of its sums.

From the second batch on no row is kept, only its O(kd) sums, so that how the caller cuts the stream
changes nothing but rounding.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import issparse, vstack

from quadlin import mes
from quadlin.arrays import Array, namespace
from quadlin.chunks import Chunk, MemorySource
from quadlin.design import Units
from quadlin.engine import Additive, reduce
from quadlin.gauss_newton import averaged_step
from quadlin.guard import family, member
from quadlin.model import Model, RawModel, in_units, positive, tied, to_raw, with_rank
from quadlin.moments import Moments
from quadlin.polish import fit_rows
from quadlin.solve import Options, Record, Solution, Status
from quadlin.standardise import UnitsMaker
from quadlin.sums import Sums, residual_sums
from quadlin.whiten import Identity, Whitener

SIGNIFICANT = 1.5
RISE = 2.0  # a loss on new rows that grows by more than this undoes the step before


@dataclass(frozen=True)
class Learned:
    """What is known after some whole batches."""

    model: Model
    units: Units
    features: Moments
    target: Moments
    history: tuple[Record, ...]
    status: Status
    white: Whitener
    pace: float = 1.0  # of the steps, halved when one went wrong
    before: tuple[Model, Units] | None = None  # the last step, to go back to

    @cached_property
    def raw(self) -> RawModel:
        """Return the model in the user's units."""
        return to_raw(self.model, self.units)


@dataclass(frozen=True)
class Pending:
    """What the rows of the batch that is being gathered have left behind."""

    rows: int
    sums: Sums
    features: Moments
    target: Moments


@dataclass(frozen=True)
class Tally(Additive):
    """How many rows there are, and what they weigh."""

    rows: int
    counting: int  # rows whose weight is not zero
    weight: float  # Σω
    squared_weight: float  # Σω²

    @classmethod
    def of(cls, chunk: Chunk) -> "Tally":
        """Count the rows of a chunk."""
        n, omega = chunk.X.shape[0], chunk.weight
        if omega is None:
            return cls(n, n, float(n), float(n))
        xp = namespace(omega)
        counting = int(xp.sum(xp.astype(omega > 0, xp.int64)))
        return cls(n, counting, float(xp.sum(omega)), float(xp.sum(omega**2)))


@dataclass(frozen=True)
class Survey(Additive):
    """The moments of the features and of the target, and the rows they are taken from."""

    features: Moments
    target: Moments
    tally: Tally


def surveyed(chunk: Chunk) -> Survey:
    """Survey one chunk."""
    X, y, weight = chunk.X, chunk.y[:, None], chunk.weight
    return Survey(Moments.of(X, weight), Moments.of(y, weight), Tally.of(chunk))


def survey(source: Iterable[Chunk]) -> Survey:
    """Take one pass for all that must be known before a fit."""
    return reduce(surveyed, source)


def moments_of(source: Iterable[Chunk]) -> tuple[Moments, Moments]:
    """Take the moments of the features and of the target in one pass."""
    total = survey(source)
    return total.features, total.target


def learn_table(
    source: Iterable[Chunk],
    options: Options,
    make_units: UnitsMaker,
    seed: int,
    warm: Learned | None = None,
    on_step: Callable[[Learned], bool] | None = None,
    known: Survey | None = None,
) -> Learned:
    """Fit rows that can be walked again, from scratch or from what is known already."""
    known = survey(source) if known is None else known
    features, target = known.features, known.target
    units = make_units(features, target)
    start = None
    if warm is not None and warm.model.w.shape == units.scale.shape:
        start = in_units(warm.model, warm.units, units)
        start = with_rank(positive(start) if options.psd else start, options.rank)

    def learned(s: Solution, white: Whitener) -> Learned:
        return Learned(s.model, units, features, target, s.history, s.status, white)

    hook = None if on_step is None else lambda solution: on_step(learned(solution, Identity()))
    rng = np.random.default_rng(seed)
    return learned(*fit_rows(source, units, options, features.weight, rng, start, hook))


def gather(pending: Pending | None, source: MemorySource, learned: Learned) -> Pending:
    """Add the sums and moments of some rows to those that wait."""
    sums = reduce(residual_sums, source, learned.model, learned.units)
    features, target = moments_of(source)
    n = source.X.shape[0]
    if pending is None:
        return Pending(n, sums, features, target)
    return Pending(
        pending.rows + n,
        pending.sums + sums,
        pending.features + features,
        pending.target + target,
    )


def learn(learned: Learned, pending: Pending, options: Options, make_units: UnitsMaker) -> Learned:
    """Take one step of length (weight of the batch)/(weight so far): a mean of Newton steps.

    Each batch's step alone would land at the truth plus that batch's noise; the running mean
    averages the noise away at the rate of all rows together. A step that new rows find to have
    doubled the loss is undone, and the pace halved.
    """
    model, units = learned.model, learned.units
    features, target = learned.features + pending.features, learned.target + pending.target
    loss = pending.sums.loss / pending.sums.weight * units.target.scale**2
    last = learned.history[-1]
    grown = replace(
        learned,
        features=features,
        target=target,
        history=(*learned.history, Record(last.step + 1, last.passes, loss)),
    )
    if learned.before is not None and not loss <= RISE * last.loss:
        # New rows are the judge: features more correlated than the step believes, say.
        model, units = learned.before
        return replace(grown, model=model, units=units, pace=learned.pace / 2, before=None)
    share = learned.pace * pending.sums.weight / features.weight
    if isinstance(learned.white, Identity):
        new_units = make_units(features, target)
        moved = in_units(_moment_step(learned, pending.sums, share, options), units, new_units)
    else:  # the covariance is that of the first batch, and so are the units it is told in
        new_units = units
        moved = averaged_step(model, pending.sums, share, units, options, learned.white)
    return replace(grown, model=moved, units=new_units, before=(model, units))


def _moment_step(learned: Learned, sums: Sums, share: float, options: Options) -> Model:
    """Take a share of the tangent step, with each feature's own κ and φ."""
    model, units = learned.model, learned.units
    xp = namespace(model.U)
    parts = (options.fit_linear, options.fit_intercept)
    directions = family(model, mes.tangent_step(sums, model.U, units), None, units, *parts)
    alpha = [1.0] + [1.0] * options.fit_linear + [-sums.p0 / sums.weight] * options.fit_intercept
    steps = xp.asarray([share * a for a in alpha], dtype=xp.float64, device=model.U.device)
    return tied(member(directions, steps, model.s.shape[0], options.psd), units, *parts)


class Buffer:
    """Rows copied as they come (the caller's arrays may change), dense ones into one array."""

    def __init__(self) -> None:
        self.rows = 0
        self.X: Array = None  # (capacity, d), or a list of sparse pieces
        self.y: Array = None  # (capacity,)
        self.weight: Array = None  # (capacity,)

    def append(self, chunk: Chunk, capacity: int) -> None:
        """Copy a chunk to the end; `capacity` is how many rows are to come in all."""
        start, stop = self.rows, self.rows + chunk.X.shape[0]
        self.y = self._room(self.y, chunk.y, capacity)
        self.weight = self._room(self.weight, chunk.y, capacity)
        self.y[start:stop] = chunk.y
        self.weight[start:stop] = 1.0 if chunk.weight is None else chunk.weight
        if issparse(chunk.X):
            self.X = [*(self.X or []), chunk.X.copy()]
        else:
            self.X = self._room(self.X, chunk.X, capacity)
            self.X[start:stop, ...] = chunk.X
        self.rows = stop

    def shorten(self, rows: int) -> None:
        """Keep the first rows only."""
        if isinstance(self.X, list):
            while self.rows > rows:
                self.rows -= self.X.pop().shape[0]
        self.rows = rows

    def source(self) -> MemorySource:
        """Return the rows gathered so far."""
        X = vstack(self.X).tocsr() if isinstance(self.X, list) else self.X[: self.rows, ...]
        return MemorySource(X, self.y[: self.rows], self.weight[: self.rows])

    def _room(self, old: Array, like: Array, capacity: int) -> Array:
        """Return an array for so many rows, with those of the old one in it."""
        if old is not None and old.shape[0] >= capacity:
            return old
        xp = namespace(like)
        new = xp.empty((capacity, *like.shape[1:]), dtype=like.dtype, device=like.device)
        if old is not None:
            new[: self.rows, ...] = old[: self.rows, ...]
        return new


def stands_out(learned: Learned, rows: int) -> bool:
    """Tell whether every eigenvalue of M is above what noise alone makes of this many rows.

    The estimate's noise, ½ Σ r z zᵀ/n, has spectral norm sd(r)·√(d/n).
    """
    xp = namespace(learned.model.s)
    d, k = learned.model.U.shape
    if k == 0:
        return True
    sd = learned.history[-1].loss ** 0.5 / learned.units.target.scale
    weakest = float(xp.min(xp.abs(learned.model.s)))
    return bool(weakest > SIGNIFICANT * sd * (d / rows) ** 0.5)


class Stream:
    """A model that learns from batches of `batch_size` rows, each row seen once.

    Later batches only refine what the first one found, so where noise hides some of M in it, the
    first batch is doubled until M stands out, at most to `first_limit` rows.

    Memory: O(kd), and the rows of the first batch until it is complete.
    """

    def __init__(
        self,
        options: Options,
        batch_size: int,
        first_limit: int,
        make_units: UnitsMaker,
        seed: int,
        learned: Learned | None = None,
    ) -> None:
        self.options = options
        self.batch_size = self.goal = batch_size
        self.first_limit = first_limit
        self.make_units = make_units
        self.seed = seed
        self.learned = learned
        self.waiting = Buffer()  # rows of the first batch
        self.pending: Pending | None = None  # sums of a later one
        self.rows, self.weight, self.squared_weight = 0, 0.0, 0.0
        self._current: Learned | None = learned

    def feed(self, chunk: Chunk) -> None:
        """Take in some rows, learning whenever a batch is complete."""
        n, start = chunk.X.shape[0], 0
        while start < n:
            stop = min(n, start + self.goal - self._gathered)
            part = slice(start, stop)
            self._take(
                Chunk(
                    chunk.X[part, :],
                    chunk.y[part],
                    None if chunk.weight is None else chunk.weight[part],
                )
            )
            start = stop
        self.count(Tally.of(chunk))

    def count(self, tally: Tally) -> None:
        """Count rows that were learned from, and their weights."""
        self.rows += tally.rows
        self.weight += tally.weight
        self.squared_weight += tally.squared_weight

    @property
    def effective_rows(self) -> float:
        """Return (Σω)²/Σω², the number of equally weighted rows that say as much."""
        return self.weight**2 / self.squared_weight if self.squared_weight else 0.0

    @property
    def current(self) -> Learned:
        """Return what is known now, the incomplete batch included."""
        if self._current is None:
            self._current = self._learn_pending()
        return self._current

    @property
    def example(self) -> Array:
        """Return an array that lives where the model lives."""
        return self.waiting.y if self.learned is None else self.learned.model.w

    @property
    def _gathered(self) -> int:
        if self.learned is None:
            return self.waiting.rows
        return 0 if self.pending is None else self.pending.rows

    def _take(self, chunk: Chunk) -> None:
        before = self._current, self.waiting.rows, self.pending
        try:
            self._current = None
            if self.learned is None:
                self.waiting.append(chunk, self.goal)
            else:
                self.pending = self._with_sums_of(_source(chunk))
            rows = self._gathered
            if rows < self.goal:
                return
            self._current = self._learn_pending()
        except BaseException:  # rows that nothing can be learned from must not stay
            self._current, self.pending = before[0], before[2]
            self.waiting.shorten(before[1])
            raise
        may_grow = self.learned is None and 2 * rows <= self.first_limit
        if may_grow and not stands_out(self._current, rows):
            self.goal = 2 * rows
            return
        self.learned, self.goal = self._current, self.batch_size
        self.waiting, self.pending = Buffer(), None

    def _with_sums_of(self, source: MemorySource) -> Pending:
        """Return what waits with these rows, unless they are too large to be squared."""
        assert self.learned is not None
        pending = gather(self.pending, source, self.learned)
        self.make_units.refuse_overflow(pending.features, pending.target)
        if not np.isfinite(pending.sums.loss):
            raise ValueError(
                "Some rows are so far from all before that their errors cannot be squared. "
                "Look for wrong units or typing errors in X and y."
            )
        return pending

    def _learn_pending(self) -> Learned:
        if self.learned is None:
            source = self.waiting.source()
            learned = learn_table(source, self.options, self.make_units, self.seed)
            if learned.status is Status.interrupted:  # half a fit is not what is known
                raise KeyboardInterrupt(learned.status.value)
            return learned
        if self.pending is None or self.pending.sums.weight == 0:
            return self.learned
        return learn(self.learned, self.pending, self.options, self.make_units)


def _source(chunk: Chunk) -> MemorySource:
    return MemorySource(chunk.X, chunk.y, chunk.weight)
