"""Rows that are seen once: the first batch is fitted, every later one is a single step of its sums.

From the second batch on no row is kept, only its O(kd) sums, so that how the caller cuts the stream
changes nothing but rounding.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from quadlin import mes
from quadlin.arrays import Array, diagonal, namespace
from quadlin.chunks import Chunk, MemorySource
from quadlin.design import Rows, Units
from quadlin.engine import Additive, reduce
from quadlin.gauss_newton import averaged_step
from quadlin.guard import family, member
from quadlin.levels import settled
from quadlin.model import (
    Model,
    RawModel,
    in_units,
    positive,
    predict,
    tied,
    to_raw,
    with_rank,
)
from quadlin.moments import Moments
from quadlin.polish import fit_rows
from quadlin.solve import Options, Record, Solution, Status
from quadlin.standardise import UnitsMaker
from quadlin.sums import Sums, residual_sums, standardised_target
from quadlin.whiten import Full, Identity, LowRank, Whitener

SIGNIFICANT = 1.5
SURE = 3.0  # a rise of the loss by so many standard errors undoes a step
RECOVERY = 1.1  # what the pace gains with every step that is kept
WIDER = 10.0  # a feature whose spread grows so much in one batch has to be learned anew


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
    before: Model | None = None  # the last step, in the same units, to go back to

    @cached_property
    def raw(self) -> RawModel:
        """Return the model in the user's units."""
        return to_raw(self.model, self.units)


@dataclass(frozen=True)
class Rise(Additive):
    """What the last step did to the squared residuals of new rows: r₀² before it, r² after."""

    before: float  # Σω r₀²
    total: float  # Σω (r² − r₀²)
    squares: float  # Σω² (r² − r₀²)²


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
        white = open_to(units.scale == 0, white)
        model = settled(s.model, units, make_units.fields) if options.loose else s.model
        return Learned(model, units, features, target, s.history, s.status, white)

    hook = None if on_step is None else lambda solution: on_step(learned(solution, Identity()))
    rng = np.random.default_rng(seed)
    return learned(*fit_rows(source, units, options, features.weight, rng, start, hook))


def open_to(constant: Array, white: Whitener) -> Whitener:
    """Return the whitener with B = I for features that were constant, for when they vary.

    They have no correlation with others, so that nothing else changes.
    """
    xp = namespace(constant)
    if isinstance(white, Identity) or not bool(xp.any(constant)):
        return white
    if isinstance(white, LowRank):
        return replace(white, h=xp.where(constant, 1.0, white.h))
    known = xp.astype(~constant, white.V.dtype)
    V = known[:, None] * white.V
    own = diagonal(1 - known)
    size, vectors = xp.linalg.eigh((V * white.size) @ V.T + own)
    values = xp.sum(vectors * (((V * white.values) @ V.T + own) @ vectors), axis=0)
    return Full(vectors, values, size)


def rise_of(chunk: Chunk, model: Model, before: Model, units: Units) -> Rise:
    """Compare two models on the rows of a chunk."""
    xp = namespace(model.U)
    rows, y = Rows(chunk.X, units), standardised_target(chunk, units)
    now, then = (xp.astype(predict(m, rows) - y, xp.float64) for m in (model, before))
    omega = xp.ones_like(now) if chunk.weight is None else xp.astype(chunk.weight, xp.float64)
    change = omega * (now - then) * (now + then)
    return Rise(float(omega @ then**2), float(xp.sum(change)), float(change @ change))


def without(left_out: Array, model: Model) -> Model:
    """Return the model without some features, at their means."""
    rest = namespace(left_out).astype(~left_out, model.U.dtype)
    return replace(model, U=rest[:, None] * model.U, w=rest * model.w)


def watchful(model: Model, units: Units) -> tuple[Model, Units]:
    """Give features that were constant so far a scale, to see them should they begin to vary."""
    xp = namespace(units.scale)
    constant = units.scale == 0
    scale = xp.where(constant, 1 / xp.clip(xp.abs(units.mean), min=1), units.scale)
    return without(constant, model), replace(units, scale=scale)


def gather(pending: Pending | None, source: MemorySource, learned: Learned) -> Pending:
    """Add the sums and moments of some rows to those that wait."""
    model, units, before = learned.model, learned.units, learned.before
    sums = reduce(residual_sums, source, *watchful(model, units))
    new = Pending(source.X.shape[0], sums, *moments_of(source))
    if before is not None:
        rise = reduce(rise_of, source, model, before, units)
        new = replace(new, before=rise.before, rise=rise.total, rise_squares=rise.squares)
    return new if pending is None else pending + new


def told_in(new: Units, model: Model, units: Units, sums: Sums) -> tuple[Model, Sums]:
    """Say a model and the sums of its residual, its own U their Q, in other units."""
    xp = namespace(model.U)
    moved = in_units(model, units, new)
    # z′ = g∘(z − h) with x the same, r′ = y r, and the new U is what U/g becomes times a matrix.
    g = new.scale / units.scale
    stretch = xp.where(g > 0, 1 / xp.where(g > 0, g, 1.0), 0.0)
    h = (new.mean - units.mean) * units.scale + stretch * new.rest - units.rest
    y = units.target.scale / new.target.scale
    p1, hU = sums.p1 - sums.p0 * h, h @ model.U
    p2 = sums.p2 - h * (sums.p1 + p1)
    action = sums.action - h[:, None] * (sums.p1 @ model.U) - p1[:, None] * hU
    action = g[:, None] * (action @ (xp.linalg.pinv(stretch[:, None] * model.U) @ moved.U))
    return moved, Sums(
        sums.weight, y**2 * sums.loss, y * sums.p0, y * g * p1, y * g * (g * p2), y * action
    )


def undone(learned: Learned, pending: Pending) -> Model | None:
    """Return the model before the last step if new rows find that the step did harm.

    The same rows judge the model before it and after it, so that noise, however heavy its tails,
    is in both. Harm is a rise of the loss beyond its own sampling error, or by as much as there
    was, which few rows can tell as well.
    """
    last = learned.history[-1].loss / learned.units.target.scale**2
    usual = max(pending.before, last * pending.sums.weight)
    harm = not pending.rise <= min(usual, SURE * pending.rise_squares**0.5)
    return learned.before if harm else None


def learn(learned: Learned, pending: Pending, options: Options, make_units: UnitsMaker) -> Learned:
    """Take one step of length (weight of the batch)/(weight so far): a mean of Newton steps.

    Each batch's step alone would land at the truth plus that batch's noise; the running mean
    averages the noise away at the rate of all rows together. A step that new rows find to have done
    harm is undone, and the pace halved; it recovers with the steps that follow.
    """
    units, last = learned.units, learned.history[-1]
    features, target = learned.features + pending.features, learned.target + pending.target
    new = make_units(features, target)
    back = undone(learned, pending)
    known = learned.model if back is None else back
    pace = min(1.0, RECOVERY * learned.pace) if back is None else learned.pace / 2
    wider = units.scale > WIDER * new.scale
    before: Model | None = None
    if bool(namespace(wider).any(wider)):
        # A coefficient that hardly mattered may be anything; the next rows judge whether it was.
        rest = tied(without(wider, known), units, options.fit_linear, options.fit_intercept)
        before, model = in_units(known, units, new), in_units(rest, units, new)
    elif back is not None:
        model = in_units(back, units, new)
    else:
        before, sums = told_in(new, *watchful(known, units), pending.sums)
        share = pace * sums.weight / features.weight
        model = _step(before, sums, share, new, options, learned.white)
    loss = pending.sums.loss / pending.sums.weight * units.target.scale**2
    history = (*learned.history, Record(last.step + 1, last.passes, loss))
    if options.loose:
        model = settled(model, new, make_units.fields)
    status, white = learned.status, learned.white
    return Learned(model, new, features, target, history, status, white, pace, before)


def _step(
    model: Model, sums: Sums, share: float, units: Units, options: Options, white: Whitener
) -> Model:
    if isinstance(white, Identity):
        return _moment_step(model, sums, share, units, options)
    return averaged_step(model, sums, share, units, options, white)


def _moment_step(model: Model, sums: Sums, share: float, units: Units, options: Options) -> Model:
    """Take a share of the tangent step, with each feature's own κ and φ."""
    xp = namespace(model.U)
    parts = (options.fit_linear, options.fit_intercept)
    directions = family(model, mes.tangent_step(sums, model.U, units), None, units, *parts)
    alpha = [1.0] + [1.0] * options.fit_linear + [-sums.p0 / sums.weight] * options.fit_intercept
    steps = xp.asarray([share * a for a in alpha], dtype=xp.float64, device=model.U.device)
    return tied(member(directions, steps, model.s.shape[0], options.psd), units, *parts)


class Buffer:
    """Rows copied as they come (the caller's arrays may change), dense ones into one array.

    The first rows decide whether all are kept dense or sparse.
    """

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
        X = _alike(chunk.X, chunk.X if self.X is None else self.X)
        if issparse(X):
            self.X = [*(self.X or []), X.copy()]
        else:
            self.X = self._room(self.X, X, capacity)
            self.X[start:stop, ...] = X
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


def _alike(X: Array, kept: Array) -> Array:
    """Return rows as dense or sparse as those that are kept."""
    wanted = issparse(kept) or isinstance(kept, list)
    if issparse(X) == wanted:
        return X
    return csr_array(X) if wanted else X.toarray()


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
        chunk = counting(chunk)
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
        self.rows += tally.counting
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
        if not np.isfinite(pending.sums.loss + pending.rise_squares):
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


def counting(chunk: Chunk) -> Chunk:
    """Leave out the rows of weight zero."""
    if chunk.weight is None:
        return chunk
    xp = namespace(chunk.weight)
    kept = xp.nonzero(chunk.weight > 0)[0]
    if kept.shape[0] == chunk.weight.shape[0]:
        return chunk
    X = chunk.X[kept, :] if issparse(chunk.X) else xp.take(chunk.X, kept, axis=0)
    return Chunk(X, xp.take(chunk.y, kept), xp.take(chunk.weight, kept))


def _source(chunk: Chunk) -> MemorySource:
    return MemorySource(chunk.X, chunk.y, chunk.weight)
