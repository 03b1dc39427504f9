"""Fits and streams that survive a kill: the state after a completed step is in a file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from quadlin.core.arrays import mapped, namespace, to_numpy
from quadlin.core.chunks import Chunk, RowSource
from quadlin.core.rows import Rows
from quadlin.core.version import __version__
from quadlin.files.tensors import (
    JSON,
    FileFormatError,
    Reader,
    flatten,
    read_tensors,
    write_tensors,
)
from quadlin.solve.fits.fit_state import FitState
from quadlin.stream.state import InvalidContentError, StreamState, state_of, stream_of
from quadlin.stream.stream import Stream

WRITE_SECONDS = 5.0  # between two states: at most this is lost
START_AGAIN = "Delete it to start again."
OnStep = Callable[[Callable[[], dict[str, Any]]], bool]


class CheckpointError(ValueError):
    """A checkpoint that a fit cannot continue from: which one, why, and what to do."""


class Checkpoint:
    """The state after the last completed step of a fit, in a file; without a path it is none.

    Parameters
    ----------
    path : path or None
        The file. If it exists, `start` and `seed` are from the fit that wrote it.
    identity : dict
        Of the fit, as JSON: the file of another fit raises an error.
    seed : int
        For a new file.
    like : array or None
        An array of the namespace and on the device of the fit.
    """

    def __init__(self, path: Any, identity: dict[str, Any], seed: int, like: Any = None) -> None:
        self.path, self.identity, self.seed = path, identity, seed
        self.start: FitState | None = None
        self.written = time.monotonic()
        if path is None:
            return
        if Path(path).exists():
            reader = _reader(path, identity)
            with _contradictions(path):
                self.seed = reader.read(int, "seed")
                self.start = reader.read(FitState | None, "state")
            if like is not None and self.start is not None:
                xp = namespace(like)
                self.start = mapped(lambda a: xp.asarray(a, device=like.device), self.start)
        else:
            self._write(None)

    def watched(self, on_step: OnStep | None) -> OnStep | None:
        """Return a hook of the solver that also writes the state, when it is due."""
        if self.path is None:
            return on_step

        def hook(attributes: Callable[[], dict[str, Any]]) -> bool:
            if time.monotonic() - self.written > WRITE_SECONDS:
                self.note(attributes()["fitted_"])
            return on_step is not None and on_step(attributes)

        return hook

    def note(self, fitted: Any) -> None:
        """Write the state of a fit, if it is that of one model."""
        state = getattr(fitted, "state", None)
        if self.path is not None and isinstance(state, FitState):
            self._write(state)
            self.written = time.monotonic()

    def _write(self, state: FitState | None) -> None:
        _write_state(self.path, state, {"identity": self.identity, "seed": self.seed})


def checkpoint_of(
    path: Any, rows: Any, estimator: Any, seed: int, start: Any = None, names: Any = None
) -> Checkpoint:
    """Return the checkpoint of a fit of an estimator to rows, with names and a warm start."""
    if path is None:
        return Checkpoint(None, {}, seed)
    identity = identity_of(rows, estimator, start, names)
    if identity["rows"] is None:
        raise CheckpointError(
            "A checkpoint must be able to recognise its rows, which is impossible for an "
            "iterator, a lazy query or a dataset. Write the rows to a file, or fit without "
            "`checkpoint`."
        )
    return Checkpoint(path, identity, seed, rows.y)


class StreamCheckpoint:
    """Writes the state of a stream to a file every few seconds."""

    def __init__(self, path: Any, identity: dict[str, Any], stream: Stream) -> None:
        self.path, self.identity, self.stream = path, identity, stream
        self.seen, self.written, self.whole = 0, time.monotonic(), True
        self.digest, self.expected = blake2b(digest_size=16), ""
        if path is not None and Path(path).exists():
            self._resume()

    def rest(self, rows: Rows) -> Iterator[Chunk]:
        """Yield the chunks that the stream has not learned from yet: one pass."""
        skip, done = self.seen, 0
        for chunk in rows.walk():
            n = chunk.X.shape[0]
            first, y = min(n, max(0, skip - done)), np.ascontiguousarray(to_numpy(chunk.y))
            self.digest.update(y[:first].data)
            if self.expected and done + first == skip:
                if self.digest.hexdigest() != self.expected:
                    raise CheckpointError(
                        f"{self.path} was written by a stream of other rows. {START_AGAIN}"
                    )
                self.expected = ""
            self.digest.update(y[first:].data)
            done += n
            if first < n:
                self.whole, self.seen = False, done
                yield chunk if first == 0 else chunk.between(first, n)
        if done < skip:
            raise CheckpointError(
                f"{self.path} was written by a stream that had read more rows than there are now. "
                f"{START_AGAIN}"
            )

    @contextmanager
    def feeding(self) -> Iterator[None]:
        """Write the state after a complete chunk, never after an interrupted one."""
        yield
        self.whole = True
        self.note()

    def note(self, now: bool = False) -> None:
        """Write the state if it is due, or `now`; the rows of a first batch are not written."""
        due = now or time.monotonic() - self.written > WRITE_SECONDS
        resumed = not self.expected  # until then the file is that of a stream, perhaps another's
        if self.path is None or not due or self.stream.state is None or not resumed:
            return
        about = {"seen": self.seen, "digest": self.digest.hexdigest(), "identity": self.identity}
        _write_state(self.path, state_of(self.stream), about)
        self.written = time.monotonic()

    def _resume(self) -> None:
        reader, maker = _reader(self.path, self.identity), self.stream.make_units
        with _contradictions(self.path):
            state = reader.read(StreamState, "state")
            self.stream = stream_of(state, maker.names, maker.fields)
            self.seen, self.expected = reader.read(int, "seen"), reader.read(str, "digest")
            if self.seen < 1:
                raise InvalidContentError("'seen' is not a number of rows")


@contextmanager
def checkpointed_stream(
    path: Any, rows: Any, estimator: Any, stream: Stream, names: Any = None
) -> Iterator[StreamCheckpoint]:
    """Write the state of an estimator's stream to a file while it learns from a source."""
    identity = {} if path is None else identity_of(rows, estimator, stream.state, names)
    checkpoint = StreamCheckpoint(path, identity, stream)
    try:
        yield checkpoint
    finally:
        if checkpoint.seen and checkpoint.whole:
            checkpoint.note(now=True)


def _write_state(path: Any, state: Any, header: dict[str, JSON]) -> None:
    arrays: dict[str, np.ndarray] = {}
    flatten(state, "state", header, arrays)
    write_tensors(path, arrays, header, kind="checkpoint")


def _reader(path: Any, identity: dict[str, Any]) -> Reader:
    """Return a reader of a checkpoint; raise an error if it is that of another fit."""
    try:
        arrays, header = read_tensors(path, kind="checkpoint")
    except FileFormatError as error:
        raise CheckpointError(f"{error} {START_AGAIN}") from None
    with _contradictions(path):
        reader = Reader(header, arrays)
        known = dict(reader.values.pop("identity", ()))
    different = [name for name in identity if known.get(name) != identity[name]]
    if different:
        raise CheckpointError(
            f"{path} belongs to a fit with other {' and '.join(different)}. Use the same as "
            "before, or delete the file to start again. A completed fit no longer needs it."
        )
    return reader


@contextmanager
def _contradictions(path: Any) -> Iterator[None]:
    try:
        yield
    except InvalidContentError as error:
        raise CheckpointError(
            f"{path} holds values that contradict each other: {error}. {START_AGAIN}"
        ) from None


def identity_of(
    rows: RowSource, estimator: Any, start: Any = None, names: Any = None
) -> dict[str, Any]:
    """Return what identifies a fit: its rows, options, start and quadlin's version."""
    params = estimator.get_params(deep=False)
    seed = params.pop("random_state", None)
    options = {name: digest_of(value) for name, value in sorted(params.items())}
    if isinstance(seed, int | np.integer):
        options["random_state"] = repr(int(seed))  # else that of the checkpoint is used
    return {
        "version of quadlin": __version__,
        "options": {"class": type(estimator).__name__, **options},
        "rows": rows.fingerprint(),
        "names": digest_of([str(name) for name in (() if names is None else names)]),
        "start": digest_of(start),
    }


def digest_of(value: Any) -> str:
    """Return a digest of a parameter, of names, or of a state."""
    header: dict[str, JSON] = {}
    arrays: dict[str, np.ndarray] = {}
    if is_dataclass(value):  # by its contents, wherever its arrays are
        flatten(value, "state", header, arrays)
        value = header, arrays
    return str(joblib.hash(value))
