"""Dask: partitions as rows, a cluster as the engine of sums, and lazy predictions."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import isnan
from typing import Any, TypeVar

import narwhals as nw
import numpy as np

from quadlin.core.chunks import Chunk, RowSource, is_dask
from quadlin.core.engine import Engine, Serial, cut, folded, height, one_blas_thread, summed
from quadlin.data.names import SourceError, explained
from quadlin.data.reader import Reader
from quadlin.data.source import Feed, Source, Unit

T = TypeVar("T")
PARTS_PER_THREAD = 2  # of a cluster: enough to balance the load, at 10 ms of overhead per task
FAN_IN = 8  # sums that one task adds


def is_dask_frame(given: Any) -> bool:
    """Return whether something is a Dask frame."""
    return is_dask(given) and hasattr(given, "get_partition")


@dataclass(frozen=True)
class Partition(Unit):
    """A partition of rows: Dask collections of one block, or what a worker has computed of them."""

    X: Any
    y: Any
    weight: Any
    number: int
    rows: int | None = None

    @property
    def place(self) -> str:  # type: ignore[override]
        """Return the number of the partition."""
        return f"partition {self.number}"

    def read(self, columns: Sequence[Any] | None, rows: int) -> Iterator[Any]:
        """Compute the rows."""
        import dask

        X = self.X if columns is None else self.X[list(columns)]
        with explained(f"Partition {self.number}", "Compute it alone to see more."):
            X, y, weight = dask.compute(X, self.y, self.weight)
        if columns is not None:  # narwhals slices a frame by position
            X = nw.from_native(X, eager_only=True)
        yield X, *(v.to_numpy() if hasattr(v, "to_numpy") else v for v in (y, weight))

    def identity(self, columns: Sequence[Any] | None) -> Any:
        """Return the names that Dask gives to the blocks: hashes of their computation."""
        blocks = [v for v in (self.X, self.y, self.weight) if v is not None]
        return [str(getattr(v, "name", None) or v._name) for v in blocks]

    def client(self) -> Any:
        """Return the current client, None if there is none."""
        try:
            from distributed import default_client

            return default_client()
        except (ImportError, ValueError):
            return None


def open_dask_array(X: Any, y: Any, weight: Any, missing: str) -> tuple[Feed, Reader]:
    """Split a Dask array into its blocks of rows."""
    if X.ndim != 2:
        raise SourceError(f"The Dask array has {X.ndim} dimensions; rows × features are needed.")
    d = X.shape[1]
    X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
    sizes = tuple(None if isnan(size) else int(size) for size in X.chunks[0])
    reader = Reader.of_array(
        d, np.dtype(X.dtype), hasattr(X._meta, "tocsr"), y is not None, missing
    )
    blocks = tuple(X.blocks[i] for i in range(len(sizes)))
    return _feed(blocks, y, weight, sizes, f"Dask array of {len(sizes)} blocks"), reader


def open_dask_frame(frame: Any, y: Any, weight: Any) -> tuple[nw.DataFrame[Any], Feed]:
    """Split a Dask frame into its partitions; the first one shows the types of the columns."""
    parts = tuple(frame.get_partition(i) for i in range(frame.npartitions))
    title = f"Dask frame of {len(parts)} partitions"
    with explained(title, "Compute its first partition alone to see more."):
        sample = nw.from_native(parts[0].compute(), eager_only=True)
    feed = _feed(parts, y, weight, (None,) * len(parts), title)
    return sample, replace(feed, columns=tuple(frame.columns))


def _feed(
    parts: tuple[Any, ...], y: Any, weight: Any, sizes: tuple[int | None, ...], title: str
) -> Feed:
    vectors = [
        [None] * len(parts) if values is None else _cut_as_rows(values, sizes, role)
        for values, role in ((y, "target"), (weight, "weight"))
    ]
    units = map(Partition, parts, *vectors, range(len(parts)), sizes)
    return Feed(tuple(units), title)


def _cut_as_rows(values: Any, sizes: tuple[int | None, ...], role: str) -> list[Any]:
    """Cut the target or the weights in the same way as the rows."""
    import dask.array

    if hasattr(values, "get_partition"):
        blocks = [values.get_partition(i) for i in range(values.npartitions)]
    else:
        if not is_dask(values):
            values = dask.array.from_array(np.asarray(values), chunks=-1)
        values = values.reshape(-1) if values.ndim == 2 and values.shape[1] == 1 else values
        if None not in sizes and not isnan(values.shape[0]):
            with explained(f"the {role}", "Give one number per row."):
                values = values.rechunk((sizes,))
        blocks = [values.blocks[i] for i in range(values.numblocks[0])]
    if len(blocks) != len(sizes):
        raise SourceError(
            f"The {role} has {len(blocks)} partitions, but the rows have {len(sizes)}. "
            "Repartition one of them like the other."
        )
    return blocks


def lazily(predict: Callable[[Any], Any], X: Any, dtype: np.dtype, width: int | None = None) -> Any:
    """Return the predictions for a Dask collection as a lazy Dask array.

    Parameters
    ----------
    predict : callable
        Returns an array (n,), or (n, `width`), for the rows of one block.
    X : Dask array or frame
        Rows.
    dtype : dtype
        The dtype of the predictions.
    width : int or None
        The number of columns of the predictions; None for a vector.

    Returns
    -------
    Dask array (n_samples,) or (n_samples, width)
    """
    shape = (0,) if width is None else (0, width)

    def predicted(rows: Any) -> np.ndarray:
        return np.asarray(predict(rows), dtype) if len(rows) else np.empty(shape, dtype)

    if is_dask_frame(X):
        return X.map_partitions(predicted, meta=np.empty(shape, dtype))
    rows, dropped = X.rechunk({1: -1}), 1 if width is None else None
    chunks = rows.chunks[:1] if width is None else (rows.chunks[0], (width,))
    meta = np.empty(shape, dtype)
    return rows.map_blocks(predicted, drop_axis=dropped, chunks=chunks, dtype=dtype, meta=meta)


def lazily_with_std(predict: Callable[..., Any], X: Any, dtype: np.dtype) -> tuple[Any, Any]:
    """Return predictions and standard deviations for a Dask collection as lazy Dask arrays."""
    both = lazily(lambda rows: np.column_stack(predict(rows, return_std=True)), X, dtype, 2)
    return both[:, 0], both[:, 1]


class OnCluster(Engine):
    """Rows that are sent to the workers of a cluster once, and summed there.

    A pass sends the parameters, O(kd) numbers, to each worker once, and adds the sums of the parts
    in a tree. If a worker dies, another one reads its rows again from their source.

    Parameters
    ----------
    source : RowSource
        Rows; the parts are pickled, so files must be where the workers can read them.
    client : distributed.Client
        The client of the cluster.
    """

    def __init__(self, source: RowSource, client: Any) -> None:
        try:
            from dask import delayed
        except ImportError as error:  # pragma: no cover
            raise ImportError('A cluster needs Dask: pip install "quadlin[dask]".') from error
        self.source, self.client = source, client
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        threads = sum(worker["nthreads"] for worker in workers)
        parts = source.parts(max(1, PARTS_PER_THREAD * threads))
        self.blocks = client.persist([_task(delayed, part) for part in parts])

    @cached_property
    def heights(self) -> list[int]:
        """Count the rows of the parts, on their workers."""
        from dask import delayed

        counts = [delayed(_height, pure=False)(block) for block in self.blocks]
        heights: list[int] = self.client.gather(self.client.compute(counts))
        return heights

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return the sum over all chunks; values per row are sent each time."""
        from dask import config, delayed

        sent = delayed(params, traverse=False, pure=False)  # one node, however many parts
        shares = [None] * len(self.blocks) if per_row is None else cut(per_row, self.heights)
        level = [
            delayed(_sum, pure=False)(block, fn, sent, share)
            for block, share in zip(self.blocks, shares, strict=True)
        ]
        while len(level) > 1:
            groups = (level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN))
            level = [delayed(summed, pure=False)(group) for group in groups]
        # Dask would warn of graphs above 10 MB. Values per row are in the graph, so that they are
        # not lost with a worker.
        with config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
            total: T | None = self.client.compute(level[0]).result()
        return total

    def over(self, source: Any) -> Engine:
        """Return an engine for a sample, whose rows are in this process, not on the workers."""
        return Serial(source)


def _task(delayed: Any, part: Any) -> Any:
    """Return the task that reads a part on a worker; Dask's blocks are its inputs."""
    units: Any = part.feed.units if isinstance(part, Source) else ()
    if not any(isinstance(unit, Partition) for unit in units):
        return delayed(_read, pure=False)(part, None)
    blocks = [[_delayed_block(v) for v in (unit.X, unit.y, unit.weight)] for unit in units]
    empty = [replace(unit, X=None, y=None, weight=None) for unit in units]
    part = replace(part, feed=replace(part.feed, units=empty))
    return delayed(_read, pure=False)(part, blocks)


def _delayed_block(block: Any) -> Any:
    """Return a collection of one partition as a delayed task; numpy arrays stay as they are."""
    if not hasattr(block, "to_delayed"):
        return block
    tasks = block.to_delayed()
    return tasks[0] if isinstance(tasks, list) else tasks.ravel()[0]


def _read(part: Any, blocks: Any) -> list[Chunk]:
    """Read the chunks of a part, on a worker."""
    if blocks is not None:
        units = [
            replace(unit, X=X, y=y, weight=weight)
            for unit, (X, y, weight) in zip(part.feed.units, blocks, strict=True)
        ]
        part = replace(part, feed=replace(part.feed, units=units))
    return list(part)


def _height(chunks: list[Chunk]) -> int:
    return sum(height(chunk) for chunk in chunks)


def _sum(
    chunks: list[Chunk], fn: Callable[..., T], params: tuple[Any, ...], per_row: Any
) -> T | None:
    """Return the sum over one part, on a worker, with one thread per part."""
    _keep_temporaries()
    with one_blas_thread():
        return folded(fn, chunks, params, per_row)[0]


@cache
def _keep_temporaries() -> None:
    """Let the allocator of a worker keep up to 64 MB of free memory.

    Dask starts its workers with a glibc setting that returns freed memory above 64 kB at once. The
    temporary arrays of each block must then be mapped again, which takes half of a pass or more.
    """
    trim, mmap = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    with suppress(OSError, AttributeError, TypeError):  # no glibc
        allocator = ctypes.CDLL(None)
        allocator.mallopt(trim, 64 << 20)
        allocator.mallopt(mmap, 32 << 20)
