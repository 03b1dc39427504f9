"""Which streams of a machine learn the levels of fields by their posterior."""

from dataclasses import replace
from typing import Any

from quadlin.core.arrays import is_numpy
from quadlin.core.chunks import MemorySource
from quadlin.core.messages import Message, warn
from quadlin.data import Source, is_dask
from quadlin.data.columns.grown_levels import joint, places, with_levels_of
from quadlin.estimators.machines.posterior_options import has_posterior
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import BATCH_ELEMENTS, BATCH_PER_PARAMETER, Task
from quadlin.solve.fields.field_result import AUTO_RANK
from quadlin.stream.field_stream import FieldStream
from quadlin.stream.stream import FIRST_ROWS, Stream

NUMBERS = 8  # (k + 1)×(k + 1) matrices per level that inference holds at a time, at most
BYTES = 8
NO_ROOM = Message(
    "{max_memory=} has no room for a batch of rows of categories, so partial_fit learns them by "
    "least squares without a penalty, which predicts worse where levels, such as users and items, "
    "have few rows. Raise {max_memory=} if you can."
)


def field_stream(estimator: Any, task: Task, source: MemorySource | Source) -> Stream:
    """Return a stream of a machine: by the posterior of levels, where that may be possible."""
    plain, fields = task.stream(task.options), task.make_units.fields
    numbers = isinstance(source, Source) or is_numpy(source.X)
    if len(fields) < 2 or not numbers or not has_posterior(estimator):
        return plain
    per_parameter = BATCH_PER_PARAMETER if task.batch_size == "auto" else 0
    most = _most_rows(task)
    if most < FIRST_ROWS * (_rank(task) + 1) * len(task.make_units.names):
        warn(NO_ROOM)
        return plain
    return FieldStream.of(plain, per_parameter, most)


def _rank(task: Task) -> int:
    return AUTO_RANK if task.automatic.rank else task.options.rank


def _most_rows(task: Task) -> int:
    """Return how many rows of a batch there is room for; their entries are an index and a value."""
    entries = task.columns.n_features_in if task.columns.encoder is not None else 0
    entries = entries or len(task.make_units.fields) + 1
    if task.max_memory == "minimal":
        return 0
    if isinstance(task.max_memory, str):
        return BATCH_ELEMENTS // entries
    levels = NUMBERS * BYTES * (_rank(task) + 1) ** 2 * len(task.make_units.names)
    return max(0, int(task.max_memory) - levels) // (2 * BYTES * (entries + 2))


def with_levels(fitted: Fitted, X: Any) -> tuple[Fitted, Any]:
    """Return a machine that knows the levels of new rows too, and the rows, encoded by all."""
    encoder, stream = fitted.columns.encoder, fitted.stream
    if encoder is None or not isinstance(stream, FieldStream):
        return fitted, X
    if isinstance(X, Source):
        if X.encoder is None or X.encoder.input_names != encoder.input_names:
            return fitted, X  # which is refused
        grown = joint(encoder, X.encoder)
        reader: Any = X.reader
        X = replace(X, reader=replace(reader, encoder=grown))
    elif is_dask(X):
        return fitted, X
    else:
        grown = with_levels_of(encoder, X)
    if grown is encoder:
        return fitted, X
    maker = replace(stream.make_units, names=list(grown.names), fields=grown.fields)
    columns = replace(fitted.columns, encoder=grown)
    moved = stream.grown(maker, places(encoder, grown))
    return replace(fitted, stream=moved, columns=columns, fields=grown.fields), X
