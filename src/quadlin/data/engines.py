"""Engines that compute sums over rows: in one thread or several, on a GPU or on a cluster."""

import multiprocessing
import os
import threading
from typing import Any

import numpy as np
from joblib import cpu_count
from scipy.sparse import issparse

from quadlin.core.chunks import MemorySource, RowSource
from quadlin.core.engine import Engine, Serial, Threads
from quadlin.data.dask_rows import OnCluster
from quadlin.data.device import OnDevice, OnGpu, offer_kernels


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
