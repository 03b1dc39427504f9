"""The state of a stream as plain data, its checks, and the stream that goes on from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.losses import SOLVED
from quadlin.core.moments import Tally
from quadlin.core.units import UnitsMaker
from quadlin.solve.composite.composer import PairRequest
from quadlin.solve.fields.contexts import Posterior
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.observations import row_hash
from quadlin.solve.lowrank.types import FIXED, Automatic, Options
from quadlin.solve.pairs.joint import RunningPairs
from quadlin.stream.batch import Pending
from quadlin.stream.field_stream import FieldStream
from quadlin.stream.pair_batches import PairPending
from quadlin.stream.row_sample import Buffer, RowSample
from quadlin.stream.stream import Stream
from quadlin.stream.strict import Stage, Start
from quadlin.stream.verdict import StreamVerdict

LARGEST_WEIGHT = 1e150  # whose square is still finite


class InvalidContentError(Exception):
    """A file holds a value that no stream or model can have."""


class SparseRows(NamedTuple):
    """Rows in compressed form."""

    data: np.ndarray  # (nnz,)
    indices: np.ndarray  # (nnz,)
    indptr: np.ndarray  # (n + 1,)


@dataclass(frozen=True)
class Waiting:
    """The rows of a first batch that is not complete."""

    X: np.ndarray | SparseRows  # (n, d)
    y: np.ndarray  # (n,)
    weight: np.ndarray  # (n,)


@dataclass(frozen=True)
class SampledRows:
    """The sample of all rows so far with which a stream compares its model and the constant."""

    most: int  # rows to keep
    seen: int  # rows so far
    numbers: np.ndarray  # (c,), the positions of the kept rows in the stream
    X: np.ndarray  # (c, d)
    y: np.ndarray  # (c,)
    weight: np.ndarray  # (c,)


@dataclass(frozen=True)
class StreamState:
    """Everything that a stream has learned, except the names of features and their fields."""

    options: Options
    batch_size: int
    goal: int
    first_limit: int
    make_units: UnitsMaker
    seed: int
    state: FitState | None  # after the last complete batch
    current: FitState | None  # with the incomplete batch, if there is one
    waiting: Waiting | None
    pending: Pending | None
    rows: int
    weight: float
    squared_weight: float
    automatic: Automatic = FIXED  # what the first batch has to choose
    chosen: Options | None = None  # the options of `current`, if it has chosen them
    strict: bool = False
    start: Start | None = None  # of a strict stream that has no first model yet
    since: float = 0.0
    verdict: StreamVerdict | None = None
    proven: bool = False
    probe: Array | None = None
    pairs: PairRequest | None = None
    pair_pending: PairPending | None = None
    sample: SampledRows | None = None
    most_rows: int | None = None  # of a stream of fields
    rank: int = 0
    posterior: Posterior | None = None
    counted: int = 0


def check_state(state: StreamState, d: int, fields: Sequence[np.ndarray]) -> None:
    """Refuse a state that no stream can have."""
    fitted, waiting, pending = state.state, state.waiting, state.pending
    states = [each for each in (fitted, state.current) if each is not None]
    require(bool(states), "a state without a model")
    of_fields = state.most_rows is not None
    rows_wait = waiting is not None
    require(rows_wait or fitted is not None, "the rows of the incomplete batch")
    require(of_fields or not rows_wait or fitted is None, "the rows of the incomplete batch")
    _check_posterior(state, fields)
    require(pending is None or fitted is not None, "the sums of the incomplete batch")
    _check_pairs(state, states, d)
    _check_start(state)
    require(0 <= state.seed < 2**31, "the seed")
    require(
        min(state.batch_size, state.goal, state.first_limit, state.rows) >= 1, "a count of rows"
    )
    require(min(state.weight, state.squared_weight) >= 0, "a weight of rows")
    require(max(state.weight, state.squared_weight) < LARGEST_WEIGHT, "a weight of rows")
    gathered = 0
    if waiting is not None:
        X = waiting.X.data if isinstance(waiting.X, SparseRows) else waiting.X
        floats = all(a.dtype.kind == "f" for a in (X, waiting.y, waiting.weight))
        require(floats, "the type of the rows of the incomplete batch")
        gathered = len(waiting.y)
    elif (sums := state.pair_pending or pending) is not None:
        gathered = sums.rows
    least = 0 if waiting is None and pending is None and state.pair_pending is None else 1
    require(least <= gathered < state.goal, "the number of rows of the incomplete batch")
    _check_sample(state.sample)
    require(not len(state.make_units.fields), "the fields of a state")
    for options in (state.options, state.chosen or state.options):
        _check_choices(options, state.make_units, d)
    if state.verdict is not None:
        require(min(state.verdict.model, state.verdict.constant) >= 0, "the verdict of new rows")
    for each in states:
        options = state.options if each is fitted or state.chosen is None else state.chosen
        rank = each.model.s.shape[0]
        # With pairs, the rank of M is that of the regression.
        same = options.rank == rank or each.running is not None or of_fields
        require(same and rank <= d, "the rank")
        _check_fit(each)


def _check_sample(sample: SampledRows | None) -> None:
    """Refuse a sample that no stream can have."""
    if sample is not None:
        n, arrays = sample.numbers, (sample.X, sample.y, sample.weight)
        positions = n.dtype.kind == "i" and bool(np.all(np.diff(n, prepend=-1) > 0))
        require(positions and n[-1] < sample.seen, "the positions of the sampled rows")
        require(1 <= len(n) <= sample.most, "the number of sampled rows")
        floats = all(a.dtype.kind == "f" and bool(np.isfinite(a).all()) for a in arrays)
        require(floats and float(sample.weight.min()) >= 0, "the sampled rows")


def _check_posterior(state: StreamState, fields: Sequence[np.ndarray]) -> None:
    """Refuse a posterior of fields that no stream can have."""
    posterior, most, waiting = state.posterior, state.most_rows, state.waiting
    if most is None:
        require(posterior is None and not state.counted, "the posterior of a machine")
        return
    require(posterior is not None and most >= 1 and len(fields) > 1, "the posterior of a machine")
    assert posterior is not None
    require(state.rank == len(posterior.learned.signs), "the rank of a machine")
    require(state.pending is None and state.pair_pending is None, "the sums of a machine")
    rows = 0 if waiting is None else len(waiting.y)
    good = state.counted == 0 if state.state is not None else 1 <= state.counted <= rows
    require(good, "the rows of a machine")
    wrong = posterior.problem(fields)
    require(wrong is None, str(wrong))


def _check_pairs(state: StreamState, states: Sequence[FitState], d: int) -> None:
    """Refuse pairs that no stream can have."""
    asked, sums = state.pairs, state.pair_pending
    if asked is not None:
        require(asked.most is None or asked.most >= 0, "the number of pairs")
        require(all(0 <= i <= j < d for i, j in asked.given or ()), "the pairs")
    goes_on = state.state is not None and state.state.running is not None
    require(sums is None or (goes_on and state.pending is None), "the sums of the pairs")
    for running in (each.running for each in states if each.running is not None):
        i, j, order = running.i, running.j, running.order
        require(all(a.dtype.kind == "i" for a in (i, j, order)), "the pairs")
        require(bool((i >= 0).all() and (i <= j).all() and (j < d).all()), "the pairs")
        size = 2 + d + d * running.U.shape[1] + len(i)
        require(running.gram.shape[0] == size and bool(order.min(initial=1) > 0), "the pairs")
        require(min(running.alpha) >= 0 and running.weight > 0, "the penalty of the pairs")
        require(_is_gram(running.gram) and _is_solvable(running), "the sums of the pairs")
    require(sums is None or _is_gram(sums.gram), "the sums of the pairs")


def _is_gram(gram: Array) -> bool:
    """Tell whether a matrix can be a Gram matrix: g_ij² ≤ g_ii g_jj."""
    size = np.sqrt(np.maximum(np.diag(gram), 0.0))
    return bool(np.all(np.abs(gram) <= (1 + 1e-6) * np.outer(size, size)))


def _is_solvable(running: RunningPairs) -> bool:
    """Tell whether a regression with pairs has a finite solution."""
    try:
        solved = running.solved
    except (ArithmeticError, ValueError):
        return False
    return bool(np.isfinite(solved.beta).all() and np.isfinite(solved.inverse).all())


def _check_start(state: StreamState) -> None:
    """Refuse a start that no stream can have."""
    start, fitted = state.start, state.state
    require(start is None or (state.strict and fitted is not None), "the start of the stream")
    require(
        start is None or min(start.rows, start.weight, start.batches) >= 0,
        "the start of the stream",
    )
    weight = 0.0 if fitted is None else fitted.features.weight
    require(0 <= state.since <= weight, "the weight of the rows before the mean")
    if start is not None:
        power = start.stage is Stage.power
        require((start.Q is not None) == power, "the block of the start")
        if state.pending is not None and power:
            same = state.pending.sums.action.shape[2] == start.Q.shape[1]  # type: ignore[union-attr]
            require(same, "the sums of the incomplete batch")
        counting = start.stage is Stage.moments
        require((start.rows > 0) == counting, "the number of rows of the start")
        require(state.pending is None or not counting, "the sums of the incomplete batch")


def _check_choices(options: Options, maker: UnitsMaker, d: int) -> None:
    rarity = maker.rarity
    require(options.loss in SOLVED, "the loss")
    require(options.solver in ("auto", "moments", "paper"), "the solver")
    require(options.max_iter >= 1 and 0 <= options.tol < 1, "the limits")
    require(min(options.alpha) >= 0, "the penalty")
    require(maker.squares in ("auto", True, False), "the choice of squares")
    require(rarity is None or 0 <= rarity <= 1, "the penalties of rare columns")


def _check_fit(state: FitState) -> None:
    require(len(state.history) > 0, "an empty history")
    units = state.units
    require(units.target.scale > 0 and bool((units.scale >= 0).all()), "the scale")
    require(bool((units.penalty_scale > 0).all()), "the scale of the penalty")
    for moments in (state.features, state.target):
        require(0 < moments.weight < LARGEST_WEIGHT, "the weight of the moments")
        if moments.low is not None and moments.high is not None:
            require(bool((moments.low <= moments.high).all()), "the range")
        require(bool((moments.var >= 0).all()), "the variance")
    if state.parts is not None:
        terms, d = state.parts.terms, len(units.scale)
        places = bool((terms.i >= 0).all() and (terms.i <= terms.j).all() and (terms.j < d).all())
        require(places and all(a.dtype.kind == "i" for a in (terms.i, terms.j)), "the pairs")


def require(good: Any, what: str) -> None:
    """Refuse a file if a part of it cannot be right."""
    if not good:
        raise InvalidContentError(f"{what} cannot be right")


# What a stream and its state both have, under the same names.
SHARED = (
    *("options", "batch_size", "goal", "first_limit", "seed", "pending", "automatic", "strict"),
    *("start", "since", "verdict", "proven", "probe", "pairs", "pair_pending"),
)


def state_of(stream: Stream) -> StreamState:
    """Return the state of a stream, including what it learned from an incomplete batch."""
    current, waiting, state, tally = stream.current, None, stream.state, stream.tally
    of_fields: dict[str, Any] = {}
    if isinstance(stream, FieldStream):
        names = ("rank", "most_rows", "posterior", "counted")
        of_fields = {name: getattr(stream, name) for name in names}
    if stream.state is None or stream.waiting.rows:
        source = stream.waiting.source()
        X: Any = source.X
        X = SparseRows(X.data, X.indices, X.indptr) if issparse(X) else X
        weight: Any = source.weight
        waiting = Waiting(X, source.y, weight)
    return StreamState(
        **{name: getattr(stream, name) for name in SHARED},
        make_units=replace(stream.make_units, names=(), fields=()),
        state=state,
        current=None if current is stream.state else current,
        waiting=waiting,
        rows=tally.counting,
        weight=tally.weight,
        squared_weight=tally.squared_weight,
        chosen=None if stream.chosen == stream.options else stream.chosen,
        sample=_sampled_rows(stream.sample),
        **of_fields,
    )


def stream_of(
    state: StreamState, names: Sequence[str], one_hot: Sequence[np.ndarray] = ()
) -> Stream:
    """Return the stream that continues from a state; refuse a state that no stream can have."""
    check_state(state, len(names), one_hot)
    make_units = replace(state.make_units, names=list(names), fields=one_hot)
    stream = Stream(
        state.options,
        state.batch_size,
        state.first_limit,
        make_units,
        state.seed,
        state.state,
        state.automatic,
        tally=Tally(state.rows, state.rows, state.weight, state.squared_weight),
    )
    if state.most_rows is not None:
        at = (state.rank, state.most_rows, state.posterior, state.counted)
        stream = FieldStream.of(stream, *at)
    for name in SHARED:
        setattr(stream, name, getattr(state, name))
    stream.sample = _sample(state.sample)
    stream._current = stream.state if state.current is None else state.current
    if state.waiting is not None:
        stream.waiting = _buffer(state.waiting, len(names))
    stream._chosen = state.options if state.chosen is None else state.chosen
    return stream


def _sampled_rows(sample: RowSample | None) -> SampledRows | None:
    if sample is None or sample.rows is None or sample.numbers is None or not len(sample.numbers):
        return None
    X, rows = sample.rows.X, sample.rows
    X = X.toarray() if issparse(X) else to_numpy(X)
    y, weight = to_numpy(rows.y), rows.weights
    return SampledRows(sample.most, sample.seen, sample.numbers, X, y, weight)


def _sample(rows: SampledRows | None) -> RowSample | None:
    if rows is None:
        return None
    largest = int(row_hash(rows.numbers).max())
    chunk = Chunk(rows.X, rows.y, rows.weight)
    return RowSample(rows.most, rows.seen, chunk, rows.numbers, largest)


def _buffer(waiting: Waiting, d: int) -> Buffer:
    buffer, X = Buffer(), waiting.X
    if isinstance(X, SparseRows):
        try:
            rows = csr_array((X.data, X.indices, X.indptr), shape=(len(waiting.y), d))
            rows.check_format(full_check=True)
        except (ValueError, TypeError) as error:
            raise InvalidContentError(
                f"the rows of the incomplete batch are not sparse rows ({error})"
            ) from error
        buffer.X = [rows]
    else:
        buffer.X = X
    buffer.rows, buffer.y, buffer.weight = len(waiting.y), waiting.y, waiting.weight
    buffer._filled = [buffer.rows]
    return buffer
