"""The checks of a stream that was read from a file, and its names, which files have elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.stream.field_stream import FieldStream
from quadlin.stream.stream import SparseRows, Stage, Stream

StreamState = Stream | FieldStream  # without the names of features and their fields


class InvalidContentError(Exception):
    """A file holds a value that no stream or model can have."""


def require(good: Any, what: str) -> None:
    """Raise an error for a file if a part of it cannot be right."""
    if not good:
        raise InvalidContentError(f"{what} cannot be right")


def state_of(stream: Stream) -> StreamState:
    """Return the state of a stream, including what it learned from an incomplete batch."""
    _ = stream.current
    return replace(stream, make_units=replace(stream.make_units, names=(), fields=()))


def stream_of(
    state: StreamState, names: Sequence[str], one_hot: Sequence[np.ndarray] = ()
) -> StreamState:
    """Return the stream that continues from a state, after a check that a stream can have it."""
    check_state(state, len(names), one_hot)
    return replace(state, make_units=replace(state.make_units, names=list(names), fields=one_hot))


def check_state(stream: Stream, d: int, fields: Sequence[np.ndarray]) -> None:
    """Check what no computation would: counts without an end, and places outside of arrays.

    Whatever else contradicts itself raises an error where it is used, or is a wrong model.
    """
    fitted, waiting, pending, tally = stream.state, stream.waiting, stream.pending, stream.tally
    require(stream.latest and (fitted is not None or waiting.rows), "a state without a model")
    require(pending is None or fitted is not None, "the sums of the incomplete batch")
    gathered = waiting.rows if pending is None else pending.rows
    require(0 <= gathered < stream.goal, "the number of rows of the incomplete batch")
    counts = (stream.batch_size, stream.first_limit, tally.counting)
    require(min(counts) >= 1 and 0 <= stream.seed < 2**31, "a count of rows")
    weights = (tally.weight, tally.squared_weight)
    require(min(weights) >= 0 and np.isfinite(np.square(weights)).all(), "a weight of rows")
    early = stream.stage in (Stage.rows, Stage.moments)
    require(stream.stage is not None and (fitted is not None or early), "the stage of the stream")
    require(stream.Q is not None or stream.stage is not Stage.power, "the power iteration")
    for each in (fitted, stream.latest):
        require(each is None or len(each.history) > 0, "an empty history")
        require(each is None or each.model.s.shape[0] <= d, "the rank")
    if isinstance(waiting.X, SparseRows):
        try:
            waiting.X.matrix().check_format(full_check=True)
        except (ValueError, TypeError) as error:
            raise InvalidContentError(
                f"the rows of the incomplete batch are not sparse rows ({error})"
            ) from error
    if isinstance(stream, FieldStream):
        posterior = stream.posterior
        require(posterior and posterior.is_valid(fields), "the posterior of a machine")
