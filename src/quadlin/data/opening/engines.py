"""Engines that compute sums over rows: in one thread or several, on a GPU or on a cluster."""

import ctypes
import multiprocessing
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, TypeVar

import numpy as np
from joblib import cpu_count
from scipy.sparse import issparse

from quadlin.core.chunks import Chunk, MemorySource, RowSource
from quadlin.core.engine import (
    Engine,
    Serial,
    Threads,
    cut,
    folded,
    height,
    one_blas_thread,
    summed,
)
from quadlin.data.gpu.device import OnDevice, OnGpu, offer_kernels
from quadlin.data.opening.dask_collections import DaskFeed
from quadlin.data.sources.source import Source

T = TypeVar("T")
PARTS_PER_THREAD = 2  # of a cluster: enough to balance the load, at 10 ms of overhead per task
FAN_IN = 8  # sums that one task adds


class ChunkError(RuntimeError):
    """Rows that could not be summed: which ones, and why."""


def on_gpu(source: MemorySource) -> bool:
    """Return whether rows are torch tensors on a CUDA device."""
    return getattr(source.X, "is_cuda", False) is True


def engine_for(source: RowSource, engine: Any) -> Engine:
    """Return the engine that computes sums over the rows of a source.

    Parameters
    ----------
    source : RowSource
        Rows.
    engine : None, "serial", "threads", "cuda", int or distributed.Client
        None uses the cluster that holds Dask's rows, if there is one; as many threads as there are
        cores for numpy rows in memory; and this thread for all other rows.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin.core.chunks import MemorySource
    >>> engine_for(MemorySource(np.ones((4, 2)), np.ones(4)), 3).workers
    3
    """
    if engine is None and isinstance(source, MemorySource):
        if isinstance(source.X, np.ndarray) or issparse(source.X):
            return Threads(source, free_cores())
        if on_gpu(source):
            offer_kernels()
            return OnGpu(source)
    elif engine is None:
        engine = source.client()
    if engine is None or engine == "serial":
        return Serial(source)
    if engine == "threads":
        return Threads(source, cpu_count())
    if isinstance(engine, int) and not isinstance(engine, bool) and engine >= 1:
        return Threads(source, engine)
    if isinstance(engine, str) and engine.split(":")[0] == "cuda":
        return OnDevice.of(source, engine, free_cores())
    if hasattr(engine, "scheduler_info") and hasattr(engine, "persist"):
        return OnCluster(source, engine)
    raise ValueError(
        f'engine={engine!r} must be None, "serial", "threads", a number of '
        'threads, "cuda" or a distributed.Client.'
    )


def free_cores() -> int:
    """Return how many threads can run without slowing down other work.

    One per core that this process may use, but no more than OMP_NUM_THREADS, which joblib sets to
    divide the cores among its processes; and only one if this thread or process is itself one of
    several workers.
    """
    is_worker_thread = threading.current_thread() is not threading.main_thread()
    if is_worker_thread or multiprocessing.current_process().daemon:
        return 1
    limit = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    cores = int(cpu_count())
    return max(1, min(cores, int(limit))) if limit.isdigit() else cores


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
        tasks = [_task(delayed, number, part) for number, part in enumerate(parts)]
        self.blocks = client.persist(tasks)

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
            delayed(_sum, pure=False)(number, block, fn, sent, share)
            for number, (block, share) in enumerate(zip(self.blocks, shares, strict=True))
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


def _task(delayed: Any, number: int, part: Any) -> Any:
    """Return the task that reads a part on a worker; Dask's blocks are its inputs."""
    if not (isinstance(part, Source) and isinstance(part.feed, DaskFeed)):
        return delayed(_read, pure=False)(number, part, None)
    feed = part.feed
    blocks = [
        None if group is None else [_delayed_block(block) for block in group]
        for group in (feed.blocks, feed.targets, feed.weights)
    ]
    empty = replace(part, feed=replace(feed, blocks=(), targets=None, weights=None))
    return delayed(_read, pure=False)(number, empty, blocks)


def _delayed_block(block: Any) -> Any:
    """Return a collection of one partition as a delayed task; numpy arrays stay as they are."""
    if not hasattr(block, "to_delayed"):
        return block
    tasks = block.to_delayed()
    return tasks[0] if isinstance(tasks, list) else tasks.ravel()[0]


def _read(number: int, part: Any, blocks: Any) -> list[Chunk]:
    """Read the chunks of a part, on a worker."""
    if blocks is not None:
        X, y, weight = (None if group is None else tuple(group) for group in blocks)
        feed = replace(part.feed, blocks=X, targets=y, weights=weight)
        part = replace(part, feed=feed)
    try:
        return list(part)
    except Exception as error:
        raise ChunkError(f"Part {number} of the rows could not be read: {error}") from error


def _height(chunks: list[Chunk]) -> int:
    return sum(height(chunk) for chunk in chunks)


def _sum(
    number: int, chunks: list[Chunk], fn: Callable[..., T], params: tuple[Any, ...], per_row: Any
) -> T | None:
    """Return the sum over one part, on a worker, with one thread per part."""
    _keep_temporaries()
    try:
        with one_blas_thread():
            return folded(fn, chunks, params, per_row)[0]
    except Exception as error:
        rows = _height(chunks)
        raise ChunkError(
            f"Part {number} of the rows ({rows} rows) could not be summed: "
            f"{type(error).__name__}: {error}"
        ) from error


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
