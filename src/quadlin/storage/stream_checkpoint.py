"""Streams that survive a kill: their state, O(kd) numbers, is written every few seconds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from quadlin.core.chunks import Chunk
from quadlin.storage.identity import BEGIN_ANEW, CheckpointError, identity_of, refuse_other
from quadlin.storage.serialise import Reader, pack
from quadlin.storage.tensor_file import read_tensors, write_tensors
from quadlin.stream.state import MismatchError, StreamState, state_of, stream_of
from quadlin.stream.stream import Stream

WRITE_SECONDS = 5.0


class Keeper:
    """Writes the state of a stream to a file every few seconds."""

    def __init__(self, path: Any, identity: dict[str, Any], stream: Stream) -> None:
        self.path, self.identity, self.stream = path, identity, stream
        self.seen, self.written, self.whole = 0, time.monotonic(), True
        self.digest, self.expected = blake2b(digest_size=16), ""
        if path is not None and Path(path).exists():
            self._go_on()

    def rest(self, source: Any) -> Iterator[Chunk]:
        """Yield the chunks of a source that are not learned from yet."""
        skip, done = self.seen, 0
        for chunk in source:
            n = chunk.X.shape[0]
            first = min(n, max(0, skip - done))
            self._compare(chunk, first, skip - done)
            done += n
            if first < n:
                self.whole, self.seen = False, done
                yield chunk if first == 0 else _tail(chunk, first)
        if done < skip:
            raise CheckpointError(f"{self.path} has seen more rows than there are. {BEGIN_ANEW}")

    def _compare(self, chunk: Chunk, first: int, skip: int) -> None:
        """Add a chunk's targets to the digest; at the place gone on from it must be as it was."""
        for part in (slice(0, first), slice(first, None)):
            if part.start == first == skip and self.expected:
                if self.digest.hexdigest() != self.expected:
                    raise CheckpointError(f"{self.path} has seen other rows. {BEGIN_ANEW}")
                self.expected = ""
            self.digest.update(np.ascontiguousarray(chunk.y[part]).data)

    @contextmanager
    def feeding(self) -> Iterator[None]:
        """Note the state after a chunk; one that was fed in part only is never written."""
        yield
        self.whole = True
        self.note()

    def note(self, now: bool = False) -> None:
        """Write the state, if it is time or `now`; the rows of a first batch are not written."""
        due = now or time.monotonic() - self.written > WRITE_SECONDS
        if self.path is None or not due or self.stream.state is None:
            return
        tensors: dict[str, np.ndarray] = {}
        state = pack(state_of(self.stream), "state", tensors)
        seen = {"seen": self.seen, "digest": self.digest.hexdigest()}
        header = {"identity": self.identity, **seen, "state": state}
        write_tensors(self.path, tensors, header, kind="checkpoint")
        self.written = time.monotonic()

    def _go_on(self) -> None:
        tensors, header = read_tensors(self.path, kind="checkpoint")
        refuse_other(self.path, header.get("identity", {}), self.identity)
        maker = self.stream.make_units
        reader = Reader(tensors, len(maker.names))
        try:
            state = reader.unpack(StreamState, header["state"], "state")
            self.stream = stream_of(state, maker.names, maker.fields)
            self.seen, self.expected = int(header["seen"]), str(header["digest"])
        except (MismatchError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self.path} contradicts itself ({error}). {BEGIN_ANEW}"
            ) from None


@contextmanager
def keeping(
    path: Any, rows: Any, estimator: Any, stream: Stream, names: Any = None
) -> Iterator[Keeper]:
    """Keep the state of an estimator's stream in a file while it learns from a source."""
    identity = {} if path is None else identity_of(rows, estimator, stream.state, names)
    keeper = Keeper(path, identity, stream)
    try:
        yield keeper
    finally:
        if keeper.seen and keeper.whole:
            keeper.note(now=True)


def _tail(chunk: Chunk, first: int) -> Chunk:
    """Return the rows of a chunk from some number on."""
    weight = None if chunk.weight is None else chunk.weight[first:]
    return Chunk(chunk.X[first:, :], chunk.y[first:], weight)
