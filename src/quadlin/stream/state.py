"""The state of a stream as plain data, its checks, and the stream that goes on from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array
from quadlin.core.moments import Tally
from quadlin.core.units import UnitsMaker
from quadlin.solve.composite.composer import PairRequest
from quadlin.solve.fields.machine import Posterior
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.types import FIXED, Automatic, Options
from quadlin.stream.batch import Pending
from quadlin.stream.field_stream import FieldStream
from quadlin.stream.pair_batches import PairPending
from quadlin.stream.row_sample import Buffer, RowSample
from quadlin.stream.stream import Stream
from quadlin.stream.strict import Stage, Start

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
    worse: bool = False
    probe: Array | None = None
    pairs: PairRequest | None = None
    pair_pending: PairPending | None = None
    sample: RowSample | None = None
    most_rows: int | None = None  # of a stream of fields
    posterior: Posterior | None = None
    counted: int = 0


def check_state(state: StreamState, d: int, fields: Sequence[np.ndarray]) -> None:
    """Check what no computation would: counts without an end, and places outside of arrays.

    Whatever else contradicts itself raises an error where it is used, or is a wrong model.
    """
    fitted, waiting, pending = state.state, state.waiting, state.pair_pending or state.pending
    require(
        fitted is not None or (waiting is not None and state.current), "a state without a model"
    )
    require(pending is None or fitted is not None, "the sums of the incomplete batch")
    gathered = pending.rows if waiting is None and pending is not None else 0
    gathered = len(waiting.y) if waiting is not None else gathered
    require(0 <= gathered < state.goal, "the number of rows of the incomplete batch")
    counts = (state.batch_size, state.first_limit, state.rows)
    require(min(counts) >= 1 and 0 <= state.seed < 2**31, "a count of rows")
    weights = (state.weight, state.squared_weight)
    require(min(weights) >= 0 and max(weights) < LARGEST_WEIGHT, "a weight of rows")
    start = state.start
    require(start is None or fitted is not None, "the start of the stream")
    require(start is None or (start.Q is not None) == (start.stage is Stage.power), "the start")
    for each in (fitted, state.current):
        require(each is None or len(each.history) > 0, "an empty history")
        require(each is None or each.model.s.shape[0] <= d, "the rank")
    require((state.posterior is None) == (state.most_rows is None), "the posterior of a machine")
    if state.posterior is not None:
        wrong = state.posterior.problem(fields)
        require(wrong is None, str(wrong))


def require(good: Any, what: str) -> None:
    """Raise an error for a file if a part of it cannot be right."""
    if not good:
        raise InvalidContentError(f"{what} cannot be right")


# What a stream and its state both have, under the same names.
SHARED = (
    *("options", "batch_size", "goal", "first_limit", "seed", "pending", "automatic", "strict"),
    *("start", "since", "worse", "probe", "pairs", "pair_pending", "sample"),
)


def state_of(stream: Stream) -> StreamState:
    """Return the state of a stream, including what it learned from an incomplete batch."""
    current, waiting, state, tally = stream.current, None, stream.state, stream.tally
    of_fields: dict[str, Any] = {}
    if isinstance(stream, FieldStream):
        names = ("most_rows", "posterior", "counted")
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
        **of_fields,
    )


def stream_of(
    state: StreamState, names: Sequence[str], one_hot: Sequence[np.ndarray] = ()
) -> Stream:
    """Return the stream that continues from a state, after a check that a stream can have it."""
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
        stream = FieldStream.of(stream, state.most_rows, state.posterior, state.counted)
    for name in SHARED:
        setattr(stream, name, getattr(state, name))
    stream._current = stream.state if state.current is None else state.current
    if state.waiting is not None:
        stream.waiting = _buffer(state.waiting, len(names))
    stream._chosen = state.options if state.chosen is None else state.chosen
    return stream


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
