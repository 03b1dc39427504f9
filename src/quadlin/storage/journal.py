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
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.engine import Asked, recorded
from quadlin.core.moments import Moments
from quadlin.core.sums import Sums
from quadlin.core.survey import Survey, Tally
from quadlin.data.fields import FieldCounts, Flags
from quadlin.solve.exact import Normal
from quadlin.solve.step_length import Gram
from quadlin.solve.tangents import ManySums
from quadlin.solve.whitening import Covariance
from quadlin.storage.identity import (
    CheckpointError,
    digest_of,
    identity_of,
    refuse_other,
)
from quadlin.storage.tensor_file import replacing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAGIC = b"quadlin journal 1\n"
FRAME = struct.Struct("<QQ16s")  # bytes of JSON, bytes of arrays, digest of both
SYNC_SECONDS = 5.0  # a killed process loses nothing, a power failure at most this
SUMS = {
    kind.__name__: kind
    for kind in (
        Sums,
        Gram,
        Covariance,
        Normal,
        ManySums,
        Survey,
        Moments,
        Tally,
        FieldCounts,
        Flags,
    )
}
MOST_JSON = 64 << 20


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
            refuse_other(self.path, said, identity)
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
