"""Streams that survive a kill: their state, O(kd) numbers, is written every few seconds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from quadlin.core.chunks import Chunk
from quadlin.core.rows import Rows
from quadlin.storage.identity import START_AGAIN, CheckpointError, identity_of, refuse_other_fit
from quadlin.storage.serialise import Deserialiser, serialise
from quadlin.storage.tensor_file import read_tensors, write_tensors
from quadlin.stream.restore import state_of, stream_of
from quadlin.stream.state import InvalidContentError, StreamState
from quadlin.stream.stream import Stream

WRITE_SECONDS = 5.0


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
            first = min(n, max(0, skip - done))
            self._compare(chunk, first, skip - done)
            done += n
            if first < n:
                self.whole, self.seen = False, done
                yield chunk if first == 0 else chunk.between(first, n)
        if done < skip:
            raise CheckpointError(
                f"{self.path} was written by a stream that had read more rows than there are now. "
                f"{START_AGAIN}"
            )

    def _compare(self, chunk: Chunk, first: int, skip: int) -> None:
        """Add the targets of a chunk to the digest, and compare it where the stream resumes."""
        for part in (slice(0, first), slice(first, None)):
            if part.start == first == skip and self.expected:
                if self.digest.hexdigest() != self.expected:
                    raise CheckpointError(
                        f"{self.path} was written by a stream of other rows. {START_AGAIN}"
                    )
                self.expected = ""
            self.digest.update(np.ascontiguousarray(chunk.y[part]).data)

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
        tensors: dict[str, np.ndarray] = {}
        state = serialise(state_of(self.stream), "state", tensors)
        seen = {"seen": self.seen, "digest": self.digest.hexdigest()}
        header = {"identity": self.identity, **seen, "state": state}
        write_tensors(self.path, tensors, header, kind="checkpoint")
        self.written = time.monotonic()

    def _resume(self) -> None:
        tensors, header = read_tensors(self.path, kind="checkpoint")
        recorded = header.get("identity")
        recorded = recorded if isinstance(recorded, dict) else {}
        refuse_other_fit(self.path, recorded, self.identity)
        maker = self.stream.make_units
        reader = Deserialiser(tensors, len(maker.names))
        try:
            state = reader.read(StreamState, header.get("state"), "state")
            self.stream = stream_of(state, maker.names, maker.fields)
            self.seen = reader.read(int, header.get("seen"), "seen")
            self.expected = reader.read(str, header.get("digest"), "digest")
            if self.seen < 1:
                raise InvalidContentError("'seen' is not a number of rows")
        except InvalidContentError as error:
            raise CheckpointError(
                f"{self.path} holds values that contradict each other: {error}. {START_AGAIN}"
            ) from None


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
