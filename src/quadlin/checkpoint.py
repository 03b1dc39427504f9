"""Fits that survive a kill: every sum over the rows is written down, and read back at a restart.

A fit asks its rows for nothing but sums (`engine.reduce`), and is otherwise determined by its
options and its seed. So a journal of the sums is a checkpoint of whatever method is at work:
started again, the fit runs through what it did before without touching a row, to the last bit, and
goes on. (What leaves a number a row, such as the errors that `rank="auto"` compares, is walked
again.) A journal holds numbers and text; nothing in it is run.
"""

import json
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from scipy.sparse import issparse

from quadlin.arrays import Array, namespace, to_numpy
from quadlin.chunks import Chunk, MemorySource
from quadlin.engine import Asked, recorded
from quadlin.exact import Normal
from quadlin.guard import Gram
from quadlin.many import ManySums
from quadlin.moments import Moments
from quadlin.pack import Reader, pack
from quadlin.state import MismatchError, StreamState, state_of, stream_of
from quadlin.store import read_tensors, replacing, write_tensors
from quadlin.stream import Stream, Survey, Tally
from quadlin.sums import Sums
from quadlin.whiten import Covariance

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAGIC = b"quadlin journal 1\n"
FRAME = struct.Struct("<QQ16s")  # bytes of JSON, bytes of arrays, digest of both
SYNC_SECONDS = 5.0  # a killed process loses nothing, a power failure at most this
SUMS = {
    kind.__name__: kind
    for kind in (Sums, Gram, Covariance, Normal, ManySums, Survey, Moments, Tally)
}
MOST_JSON = 64 << 20


BEGIN_ANEW = "Remove it to begin anew."


class CheckpointError(ValueError):
    """A checkpoint that cannot be gone on from: which one, why, and what to do."""


@contextmanager
def checkpointed(
    path: Any, rows: Any, estimator: Any, seed: int, start: Any = None
) -> Iterator[int]:
    """Record the sums of a fit meanwhile; yield the seed to use, that of the fit gone on with.

    Parameters
    ----------
    path : path or None
        The journal; None records nothing.
    rows : MemorySource or Source
        What is fitted.
    estimator : estimator
        Its class and parameters are part of the fit's identity.
    seed : int
        For a new journal.
    start : dataclass or None
        What a warm start begins with.
    """
    if path is None:
        with recorded(None):  # a fit within another fit is no part of its journal
            yield seed
        return
    identity = identity_of(rows, estimator, start)
    if identity["rows"] is None:
        raise CheckpointError(
            "Rows of an iterator, a lazy query or a dataset cannot be told from others, and a "
            "checkpoint must not be mixed up. Write them to a file, or do without checkpoint."
        )
    journal = Journal(path, identity, seed, getattr(rows, "y", None))
    try:
        with recorded(journal):
            yield journal.seed
    finally:
        journal.close()


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
        due = now or time.monotonic() - self.written > SYNC_SECONDS
        if self.path is None or not due or self.stream.learned is None:
            return
        tensors: dict[str, np.ndarray] = {}
        state = pack(state_of(self.stream), "state", tensors)
        seen = {"seen": self.seen, "digest": self.digest.hexdigest()}
        header = {"identity": self.identity, **seen, "state": state}
        write_tensors(self.path, tensors, header, kind="checkpoint")
        self.written = time.monotonic()

    def _go_on(self) -> None:
        tensors, header = read_tensors(self.path, kind="checkpoint")
        _refuse_other(self.path, header.get("identity", {}), self.identity)
        maker = self.stream.make_units
        reader = Reader(tensors, len(maker.names))
        try:
            state = reader.unpack(StreamState, header["state"], "state")
            self.stream = stream_of(state, maker.names, maker.fields)
            self.seen, self.expected = int(header["seen"]), str(header["digest"])
        except (MismatchError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self.path} contradicts itself ({error}). Remove it to begin anew."
            ) from None


@contextmanager
def keeping(path: Any, rows: Any, estimator: Any, stream: Stream) -> Iterator[Keeper]:
    """Keep the state of an estimator's stream in a file while it learns from a source."""
    start = None if stream.learned is None else stream.learned
    identity = {} if path is None else identity_of(rows, estimator, start)
    keeper = Keeper(path, identity, stream)
    try:
        yield keeper
    finally:
        if keeper.seen and keeper.whole:
            keeper.note(now=True)


class Journal:
    """The sums of a fit in the order in which it asks for them.

    Parameters
    ----------
    path : path
        Where it is kept; made if it is not there.
    identity : dict
        Of the fit, in JSON: a journal of another one is refused.
    seed : int
        Kept with it.
    like : array or None
        What lives where the fit's arrays live; None for numpy.
    """

    def __init__(self, path: Any, identity: dict[str, Any], seed: int, like: Array = None) -> None:
        self.path, self.like, self.replayed = Path(path), like, 0
        if not self.path.exists():
            head = json.dumps({"identity": identity, "seed": seed}).encode()
            with replacing(self.path) as file:
                file.write(MAGIC)
                _write_frame(file, head, [])
        self.file = self._opened()
        self.seed = self._checked_head(identity)
        self.replaying, self.synced = True, time.monotonic()

    def __call__(self, asked: Asked, carry: Any) -> Any:
        """Return the next sum: the one written down, else carried out now, and written down.

        A sum is known by its name, the digest of its parameters and that of the weights of rows.
        """
        name = [asked[0], digest_of(asked[1:])]
        if self.replaying:
            start = self.file.tell()
            found = self._next()
            if found is not None and found[0] == name:
                self.replayed += 1
                return found[1]
            # The end, a record cut short by the kill, or the first one that went another way (a
            # linear algebra library with another number of threads rounds otherwise).
            self.file.seek(start)
            self.file.truncate()
            self.replaying = False
        value = carry()
        arrays: list[np.ndarray] = []
        _write_frame(self.file, json.dumps([name, _packed(value, arrays)]).encode(), arrays)
        self.file.flush()
        if time.monotonic() - self.synced > SYNC_SECONDS:
            os.fsync(self.file.fileno())
            self.synced = time.monotonic()
        return value

    def close(self) -> None:
        """Bring everything to the disk."""
        if not self.file.closed:
            self.file.flush()
            os.fsync(self.file.fileno())
            self._release(self.file)
            self.file.close()

    def _release(self, file: BinaryIO) -> None:
        """Unlock explicitly: a process that was forked meanwhile has the file open too."""
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)

    def _opened(self) -> BinaryIO:
        try:
            file = open(self.path, "r+b")  # noqa: SIM115  # closed by `close`
        except IsADirectoryError:
            raise CheckpointError(f"{self.path} is a folder. Name a file in it.") from None
        try:
            if fcntl is not None:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                return file  # there are file systems without locks
            file.close()
            raise CheckpointError(
                f"{self.path} is in use by another fit. Give each fit a checkpoint of its own."
            ) from None
        return file

    def _checked_head(self, identity: dict[str, Any]) -> int:
        if self.file.read(len(MAGIC)) != MAGIC:
            self._refuse("is not a checkpoint of quadlin", "Name another file")
        try:
            head, _ = _read_frame(self.file)
            said, seed = head["identity"], head["seed"]
            if not (isinstance(said, dict) and type(seed) is int and seed >= 0):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            self._refuse("is damaged", "Remove it to begin anew")
        try:
            _refuse_other(self.path, said, identity)
        except CheckpointError:
            self.file.close()
            raise
        return int(seed)

    def _refuse(self, wrong: str, advice: str) -> None:
        self.file.close()
        raise CheckpointError(f"{self.path} {wrong}. {advice}.")

    def _next(self) -> tuple[Any, Any] | None:
        try:
            said, arrays = _read_frame(self.file)
            name, packed = said
            return name, _unpacked(packed, arrays, self.like)
        except (ValueError, TypeError, KeyError, IndexError):
            return None


def _refuse_other(path: Any, said: dict[str, Any], identity: dict[str, Any]) -> None:
    other = [name for name in identity if said.get(name) != identity[name]]
    if other:
        raise CheckpointError(
            f"{path} belongs to a fit with other {' and '.join(other)}. Fit as then, or remove it "
            "to begin anew."
        )


def _tail(chunk: Chunk, first: int) -> Chunk:
    """Return the rows of a chunk from some number on."""
    weight = None if chunk.weight is None else chunk.weight[first:]
    return Chunk(chunk.X[first:, :], chunk.y[first:], weight)


def identity_of(rows: Any, estimator: Any, start: Any = None) -> dict[str, Any]:
    """Return what tells a fit from others: its rows, options, start and quadlin's version."""
    params = estimator.get_params(deep=False)
    seed = params.pop("random_state", None)
    options = {name: digest_of(value) for name, value in sorted(params.items())}
    if isinstance(seed, int | np.integer):
        options["random_state"] = repr(int(seed))  # else the journal's own seed is used
    names = getattr(estimator, "feature_names_in_", ())
    return {
        "version of quadlin": version("quadlin"),
        "options": {"class": type(estimator).__name__, **options},
        "rows": fingerprint(rows),
        "names": digest_of([str(name) for name in names]),
        "start": digest_of(start),
    }


def digest_of(value: Any) -> str:
    """Return a digest of numbers, text, arrays, and lists and dataclasses of them."""
    digest = blake2b(digest_size=16)
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if is_dataclass(value) and not isinstance(value, type):
        digest.update(type(value).__name__.encode())
        value = [getattr(value, f.name) for f in fields(value)]
    if isinstance(value, list | tuple):
        digest.update(f"[{len(value)}]".encode())
        for item in value:
            _add(digest, item)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        array = to_numpy(value)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    elif value is None or isinstance(value, str | int | float | Enum | np.dtype | type):
        digest.update(f"{type(value).__name__}:{value}".encode())
    else:  # a scorer, a splitter: what it is, not where it lies in memory
        said = getattr(value, "__dict__", {})
        digest.update(f"{type(value).__name__}:{getattr(value, '__name__', '')}".encode())
        _add(digest, [[str(key), said[key]] for key in sorted(said)] if said else repr(type(value)))


def fingerprint(rows: Any) -> str | None:
    """Return a digest of all rows in memory, or what a source says of itself."""
    if not isinstance(rows, MemorySource):
        said: str | None = rows.fingerprint()
        return said
    digest = blake2b(digest_size=16)
    X = rows.X
    parts = [X.data, X.indices, X.indptr] if issparse(X) else [X]
    digest.update(str(tuple(X.shape)).encode())
    for part in (*parts, rows.y, rows.weight):
        array = np.empty(0) if part is None else to_numpy(part)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        step = max(1, (1 << 24) // max(1, array[:1].nbytes))
        for start in range(0, len(array), step):  # without a second copy of X
            digest.update(np.ascontiguousarray(array[start : start + step]).data)
    return digest.hexdigest()


def _packed(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a sum as JSON, its arrays put aside."""
    if is_dataclass(value):
        kind = type(value).__name__
        return {kind: [_packed(getattr(value, f.name), arrays) for f in fields(value)]}
    if isinstance(value, int | float):
        return value
    array = to_numpy(value)
    turned = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
    # The order in memory is kept: sums in another order round otherwise.
    arrays.append(np.ascontiguousarray(array.T if turned else array))
    return [arrays[-1].dtype.str, list(arrays[-1].shape), turned]


def _unpacked(packed: Any, arrays: "_Arrays", like: Array) -> Any:
    if isinstance(packed, dict):
        ((kind, values),) = packed.items()
        own = SUMS[kind]
        if len(values) != len(fields(own)):
            raise ValueError("another version")
        return own(*(_unpacked(value, arrays, like) for value in values))
    if isinstance(packed, int | float):
        return packed
    dtype, shape, turned = packed
    array = arrays.take(np.dtype(dtype), tuple(shape))
    array = array.T if turned else array
    return array if like is None else namespace(like).asarray(array, device=like.device)


class _Arrays:
    """The bytes of a record's arrays, taken in order."""

    def __init__(self, data: bytes) -> None:
        self.data, self.start = data, 0

    def take(self, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        if dtype.kind not in "fiub" or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError("no array of numbers")
        stop = self.start + dtype.itemsize * int(np.prod(shape, dtype=object))
        array = np.frombuffer(self.data[self.start : stop], dtype).reshape(shape)
        self.start = stop
        return array.copy()  # writeable, and aligned


def _write_frame(file: BinaryIO, text: bytes, arrays: list[np.ndarray]) -> None:
    digest = blake2b(text, digest_size=16)
    for array in arrays:
        digest.update(array.reshape(-1).view(np.uint8).data)
    size = sum(array.nbytes for array in arrays)
    file.write(FRAME.pack(len(text), size, digest.digest()) + text)
    for array in arrays:
        file.write(array.reshape(-1).view(np.uint8).data)


def _read_frame(file: BinaryIO) -> tuple[Any, Any]:
    """Return the JSON and the arrays of the next record; ValueError where it is not whole."""
    head = file.read(FRAME.size)
    if len(head) < FRAME.size:
        raise ValueError("the end")
    length, size, digest = FRAME.unpack(head)
    left = os.fstat(file.fileno()).st_size - file.tell()
    if length > MOST_JSON or length + size > left:
        raise ValueError("cut short")
    text, data = file.read(length), file.read(size)
    whole = blake2b(text, digest_size=16)
    whole.update(data)
    if whole.digest() != digest:
        raise ValueError("damaged")
    return json.loads(text), _Arrays(data)
