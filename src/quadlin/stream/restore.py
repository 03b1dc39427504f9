"""The state of a stream as plain data, and the stream that continues from it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.moments import Tally
from quadlin.solve.lowrank.observations import row_hash
from quadlin.stream.field_stream import FieldStream
from quadlin.stream.row_sample import Buffer, RowSample
from quadlin.stream.state import (
    InvalidContentError,
    SampledRows,
    SparseRows,
    StreamState,
    Waiting,
    check_state,
)
from quadlin.stream.stream import Stream

# What a stream and its state both have, under the same names.
SHARED = (
    *("options", "batch_size", "goal", "first_limit", "seed", "pending", "automatic", "strict"),
    *("start", "since", "verdict", "proven", "pairs", "pair_pending"),
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
