"""The state of a stream as plain data, and the stream that continues from it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.moments import Tally
from quadlin.solve.fields.running_levels import RunningLevels
from quadlin.stream.field_stream import FieldStream
from quadlin.stream.row_sample import Buffer
from quadlin.stream.state import (
    InvalidContentError,
    SparseRows,
    StreamState,
    Waiting,
    check_state,
)
from quadlin.stream.stream import Stream


def state_of(stream: Stream) -> StreamState:
    """Return the state of a stream, including what it learned from an incomplete batch."""
    current, waiting = stream.current, None
    of_fields: tuple[int, int, RunningLevels | None] | tuple[()] = ()
    if isinstance(stream, FieldStream):
        of_fields = (stream.per_parameter, stream.most_rows, stream.levels)
    if stream.state is None or stream.waiting.rows:
        source = stream.waiting.source()
        X: Any = source.X
        if issparse(X):
            X = SparseRows(X.data, X.indices, X.indptr)
        weight: Any = source.weight
        waiting = Waiting(X, source.y, weight)
    state = stream.state
    if isinstance(stream, FieldStream) and state is not None:
        state = replace(state, model=current.model)  # its own is that of the levels
    return StreamState(
        stream.options,
        stream.batch_size,
        stream.goal,
        stream.first_limit,
        replace(stream.make_units, names=(), fields=()),
        stream.seed,
        state,
        None if current is stream.state else current,
        waiting,
        stream.pending,
        stream.tally.counting,
        stream.tally.weight,
        stream.tally.squared_weight,
        stream.automatic,
        None if stream.chosen == stream.options else stream.chosen,
        stream.strict,
        stream.start,
        stream.since,
        stream.verdict,
        stream.proven,
        stream.pairs,
        stream.pair_pending,
        *of_fields,
    )


def stream_of(
    state: StreamState, names: Sequence[str], one_hot: Sequence[np.ndarray] = ()
) -> Stream:
    """Return the stream that continues from a state; refuse a state that no stream can have."""
    check_state(state, len(names), one_hot)
    stream = Stream(
        state.options,
        state.batch_size,
        state.first_limit,
        replace(state.make_units, names=list(names), fields=one_hot),
        state.seed,
        state.state,
        state.automatic,
        state.strict,
        state.pairs,
        Tally(state.rows, state.rows, state.weight, state.squared_weight),
    )
    if state.per_parameter is not None:
        stream = FieldStream.of(stream, state.per_parameter, state.most_rows, state.levels)
    stream.pair_pending = state.pair_pending
    stream.start, stream.since, stream.sample = state.start, state.since, None
    stream.verdict, stream.proven = state.verdict, state.proven
    stream.goal, stream.pending = state.goal, state.pending
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
