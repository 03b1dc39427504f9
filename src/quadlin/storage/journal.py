"""Fits that survive a kill: every sum over the rows is recorded, and read again after a restart.

A fit asks its rows only for sums (`Rows.reduce`), and is otherwise determined by its options and
its seed. So a journal of the sums is a checkpoint of any method: when it is started again, the fit
repeats what it did before without reading a row, to the last bit, and continues. (What gives one
number per row, such as the errors that `rank="auto"` compares, is computed again.) A journal
holds numbers and text; nothing in it is run.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from quadlin.core.arrays import Array, namespace
from quadlin.core.moments import Survey
from quadlin.core.rows import Asked
from quadlin.core.sums import Sums
from quadlin.data.columns.fields import FieldCounts, Flags
from quadlin.solve.fits.missing_values import GapSums
from quadlin.solve.lowrank.exact import Normal
from quadlin.solve.lowrank.step_length import Gram
from quadlin.solve.lowrank.tangent_gram import Products
from quadlin.solve.lowrank.whitening import Covariance
from quadlin.solve.pairs.pair_fit import Scores
from quadlin.solve.pairs.pair_remainder import BoundedMoments
from quadlin.solve.pairs.pair_sparse import Occurrences
from quadlin.solve.pairs.pair_sums import (
    FirstLook,
    FlippedMoments,
    JointGram,
    LabelGram,
    ProductMoments,
    ResidualMoments,
)
from quadlin.storage.atomic import atomic_write, require_regular_file
from quadlin.storage.identity import (
    START_AGAIN,
    CheckpointError,
    digest_of,
    identity_of,
    refuse_other_fit,
)
from quadlin.storage.records import FrameError, read_frame, write_frame
from quadlin.storage.serialise import Deserialiser, serialise
from quadlin.storage.tensor_file import JSON
from quadlin.stream.state import InvalidContentError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAGIC = b"quadlin journal 2\n"
FORMER_MAGIC = b"quadlin journal 1\n"
SYNC_SECONDS = 5.0  # a killed process loses nothing, a power failure at most this
KINDS = (
    *(BoundedMoments, Covariance, FieldCounts, FirstLook, Flags, FlippedMoments, GapSums, Gram),
    *(JointGram, LabelGram, Normal, Occurrences, ProductMoments, Products),
    *(ResidualMoments, Scores, Sums, Survey),
)
SUMS: dict[str, Any] = {"number": float, **{kind.__name__: kind for kind in KINDS}}


@contextmanager
def checkpointed(
    path: Any, rows: Any, estimator: Any, seed: int, start: Any = None, names: Any = None
) -> Iterator[tuple[int, "Journal"]]:
    """Open the journal of a fit; yield the seed to use (a fit that continues keeps its own) and it.

    Parameters
    ----------
    path : path
        The journal.
    rows : MemorySource or Source
        The rows to fit.
    estimator : estimator
        Its class and parameters are part of the fit's identity.
    seed : int
        For a new journal.
    start : dataclass or None
        The state from which a warm start begins.
    names : sequence of str or None
        The names of the columns.
    """
    identity = identity_of(rows, estimator, start, names)
    if identity["rows"] is None:
        raise CheckpointError(
            "A checkpoint must be able to recognise its rows, which is impossible "
            "for an iterator, a lazy query or a dataset. Write the rows to a file, "
            "or fit without `checkpoint`."
        )
    journal = Journal(path, identity, seed, rows.width, rows.y)
    try:
        yield journal.seed, journal
    except (ArithmeticError, np.linalg.LinAlgError, IndexError) as error:
        if not journal.replayed:
            raise
        raise CheckpointError(
            f"The fit failed after it continued from {path} ({error}), which may hold sums of "
            f"other rows. {START_AGAIN}"
        ) from error
    finally:
        journal.close()


class Journal:
    """The sums of a fit in the order in which it asks for them.

    Parameters
    ----------
    path : path
        The file; it is created if it does not exist.
    identity : dict
        Of the fit, as JSON: the journal of another fit is refused.
    seed : int
        For a new journal.
    width : int, default=1
        The number of features.
    like : array or None, default=None
        An array of the namespace and on the device of the fit; None for numpy.
    """

    def __init__(
        self, path: Any, identity: dict[str, Any], seed: int, width: int = 1, like: Array = None
    ) -> None:
        self.path, self.width, self.like, self.replayed = Path(path), width, like, 0
        if not self.path.exists():
            with atomic_write(self.path) as file:
                file.write(MAGIC)
                write_frame(file, {"identity": identity, "seed": seed}, {})
        self.file = self._opened()
        try:
            self.seed = self._checked_head(identity)
        except CheckpointError:
            self.file.close()
            raise
        self.replaying, self.synced = True, time.monotonic()

    def __call__(self, asked: Asked, carry: Any) -> Any:
        """Return the next sum: the recorded one, else the one that `carry` computes now.

        A sum is identified by its name, and the digest of its parameters and row weights.
        """
        question = [asked[0], digest_of(asked[1:])]
        if self.replaying:
            start = self.file.tell()
            recorded_question, value = self._next()
            if recorded_question == question:
                self.replayed += 1
                return value
            # The end, a record that a kill cut short, or the first one that differs (a linear
            # algebra library with another number of threads rounds differently).
            self.file.seek(start)
            self.file.truncate()
            self.replaying = False
        value = carry()
        self._append(question, value)
        return value

    def close(self) -> None:
        """Write everything to the disk."""
        if not self.file.closed:
            self.file.flush()
            os.fsync(self.file.fileno())
            if fcntl is not None:  # a process forked meanwhile has the file open too
                with suppress(OSError):
                    fcntl.flock(self.file.fileno(), fcntl.LOCK_UN)
            self.file.close()

    def _opened(self) -> BinaryIO:
        try:
            require_regular_file(self.path)
        except OSError as error:
            raise CheckpointError(str(error)) from None
        file = open(self.path, "r+b")  # noqa: SIM115  # closed by `close`
        try:
            if fcntl is not None:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise CheckpointError(
                f"{self.path} is in use by another fit. Give each fit its own checkpoint."
            ) from None
        except OSError:  # there are file systems without locks
            pass
        return file

    def _checked_head(self, identity: dict[str, Any]) -> int:
        magic = self.file.read(len(MAGIC))
        if magic == FORMER_MAGIC:
            raise CheckpointError(
                f"{self.path} was written by an earlier version of quadlin. {START_AGAIN}"
            )
        if magic != MAGIC:
            raise CheckpointError(
                f"{self.path} is not a checkpoint of quadlin. Choose another file."
            )
        try:
            head, _ = read_frame(self.file)
        except FrameError:
            head = None
        match head:
            case {"identity": dict(recorded_identity), "seed": int(seed)} if seed >= 0:
                refuse_other_fit(self.path, recorded_identity, identity)
                return seed
        raise CheckpointError(f"{self.path} is damaged. {START_AGAIN}")

    def _append(self, question: JSON, value: Any) -> None:
        arrays: dict[str, np.ndarray] = {}
        kind = "number" if isinstance(value, float) else type(value).__name__
        content = {"asked": question, "kind": kind, "value": serialise(value, "sum", arrays)}
        write_frame(self.file, content, arrays)
        self.file.flush()
        if time.monotonic() - self.synced > SYNC_SECONDS:
            os.fsync(self.file.fileno())
            self.synced = time.monotonic()

    def _next(self) -> tuple[JSON, Any]:
        """Return the next record, a question and its answer; None for both if it is incomplete."""
        try:
            content, arrays = read_frame(self.file)
            question, kind, value = (content[part] for part in ("asked", "kind", "value"))
            reader = Deserialiser(arrays, self.width, convert=self._convert)
            answer = reader.read(SUMS[kind], value, "sum")
            return (question, answer) if _is_possible(answer) else (None, None)
        except (FrameError, InvalidContentError, KeyError, TypeError):
            return None, None

    def _convert(self, array: np.ndarray) -> Array:
        if self.like is None:
            return array
        return namespace(self.like).asarray(array, device=self.like.device)


def _is_possible(answer: Any) -> bool:
    """Tell whether a value can be a sum over rows: it has a weight, and at least one row."""
    if isinstance(answer, Survey):
        tally, moments = answer.tally, (answer.features, answer.target)
        variances = all(bool((m.var >= 0).all()) and m.weight > 0 for m in moments)
        return variances and min(tally.rows, tally.counting, tally.weight) > 0
    return isinstance(answer, float) or getattr(answer, "weight", 1.0) > 0
