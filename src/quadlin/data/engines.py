"""Engines that compute sums over rows: in one thread or several, on a GPU or on a cluster.

On a GPU, the solver stays on the host, because a GPU factorises small matrices slowly. A pass sends
the model, O(kd) numbers, to the device and brings back the sums, O(kd) numbers too. Numpy rows are
copied to the device once. For them, only the passes of the fit itself (which use the rows through
products alone) run there; other passes, such as the search for fields, run on the host. All sums
over tensors on a GPU are computed there.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from joblib import cpu_count
from scipy.sparse import issparse

from quadlin.core.arrays import is_numpy, mapped
from quadlin.core.chunks import Chunk, MemorySource, RowSource
from quadlin.core.engine import (
    Engine,
    Serial,
    Threads,
    folded,
    takes_wide_blocks,
    uses_products_only,
)
from quadlin.core.library import gpu_kernels, triton_kernels
from quadlin.core.units import Units
from quadlin.data.dask_rows import OnCluster

T = TypeVar("T")
WIDE_ELEMENTS = 1 << 31  # of a block for the kernels, which write nothing of that size


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
        if getattr(source.X, "is_cuda", False):
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


@dataclass
class Kept:
    """What passes with the same units have in common, on the device."""

    units: Units  # on the host
    stacked: Any  # (3, d), as kernels take them
    target: Any  # (n,), standardised
    weight: float  # of all rows
    passes: dict[Any, list[Any]] = field(default_factory=dict)  # by shape, over each block


class OnDevice(Engine):
    """Dense rows that torch sums on a device, for a solver that uses numpy arrays.

    Parameters
    ----------
    source : RowSource
        The rows of a table, or a sample of them.
    device : str
        The device, as torch names it.
    workers : int
        Threads for the sums that are computed on the host.
    whole : OnDevice or None
        For a sample, the engine of all the rows.
    """

    # A pass over fewer entries takes less time than the solver needs between two passes.
    sample_entries: tuple[int, ...] = (1 << 27, 1 << 29)
    elsewhere = True

    def __init__(
        self, source: Any, device: str, workers: int, whole: "OnDevice | None" = None
    ) -> None:
        self.source, self.device, self.whole = source, device, whole
        self.here = Threads(source, workers)
        self.of_numpy: bool = is_numpy(source.X) if whole is None else whole.of_numpy
        self._kept: Kept | None = None

    @classmethod
    def of(cls, source: Any, device: str, workers: int) -> "OnDevice":
        """Return the engine for some rows, if they and this machine allow it."""
        try:
            import torch
        except ImportError:
            raise ImportError(f'engine="{device}" needs PyTorch: pip install torch.') from None
        if not torch.cuda.is_available():
            raise ValueError(
                f'engine="{device}" needs a GPU, but PyTorch {torch.__version__} finds none. '
                "Leave out engine to use the cores of this machine."
            )
        if not (isinstance(source, MemorySource) and isinstance(source.X, np.ndarray)):
            raise ValueError(
                f'engine="{device}" needs dense arrays or frames in memory, but these rows are '
                "sparse, not in memory, or already on a device. Leave out engine."
            )
        return cls(source, device, workers)

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return the sum over all chunks, as numpy arrays."""
        if self.of_numpy and not uses_products_only(fn):
            return self.here.carry(fn, params, per_row)
        if per_row is None and (total := self._by_kernels(fn, params)) is not None:
            return total  # type: ignore[no-any-return]
        params, per_row = self._sent((params, per_row))
        chunks = in_blocks(self.resident, takes_wide_blocks(fn))
        return brought(folded(fn, chunks, params, per_row)[0])  # type: ignore[no-any-return]

    def over(self, source: Any) -> Engine:
        """Return the same engine for a sample of the rows."""
        return OnDevice(source, self.device, self.here.workers, self)

    def _by_kernels(self, fn: Callable[..., Any], params: tuple[Any, ...]) -> Any:
        """Return the sums of a pass that the kernels compute as a whole; None for other passes."""
        kernels = triton_kernels()
        runs_here = kernels is not None and (self.device != "cpu" or kernels.INTERPRETED)
        plan = kernels.planned(fn, params) if runs_here and self._dtype == np.float32 else None
        if plan is None:
            return None
        shape, asked, units = plan
        if self._kept is None or self._kept.units is not units:
            device_units = self._sent(units)
            y, weight = self._values
            target = device_units.standardised_target(y)
            total = float(y.shape[0]) if weight is None else float(weight.sum())
            self._kept = Kept(units, kernels.stacked_units(device_units), target, total)
        sums = (run(asked) for run in self._passes(kernels, shape, self._kept))
        return kernels.summed(shape, sums, self._kept.weight)

    def _passes(self, kernels: Any, shape: Any, kept: Kept) -> Iterable[Any]:
        """Return the pass over each block of rows, prepared only once."""
        if shape in kept.passes:
            return kept.passes[shape]
        stop = 0

        def prepared(chunk: Chunk) -> Any:
            nonlocal stop
            start, stop = stop, stop + chunk.X.shape[0]
            return kernels.PreparedPass(shape, chunk, kept.target[start:stop], kept.stacked)

        blocks = in_blocks(self.resident, wide=True)
        return kept.passes.setdefault(shape, list(map(prepared, blocks)))

    @cached_property
    def _dtype(self) -> Any:
        """Return the dtype of the rows as a numpy dtype."""
        dtype = self.source.dtype if self.whole is None else self.whole._dtype
        return np.dtype(str(dtype).removeprefix("torch."))

    @cached_property
    def table(self) -> MemorySource:
        """Return the rows in this process; a sample is gathered when it is first needed."""
        table: MemorySource = getattr(self.source, "table", self.source)
        return table

    @cached_property
    def resident(self) -> MemorySource:
        """Return the rows on the device."""
        if not self.of_numpy:
            return self.table
        places = getattr(self.source, "places", None)
        if places is not None and self.whole is not None:
            rows = self.whole.resident.X[tensor(places, self.device)]
        else:
            rows = tensor(self.table.X, self.device)
        return MemorySource(rows, *self._values)

    @cached_property
    def _values(self) -> tuple[Any, Any]:
        """Return the targets and the weights on the device."""
        values = self.source.values if hasattr(self.source, "values") else self.table
        y, weight = self._sent((values.y, values.weight))
        return y, weight

    def _sent(self, value: Any) -> Any:
        def sent(leaf: Any) -> Any:
            numbers = isinstance(leaf, np.ndarray) and leaf.dtype != object
            return tensor(leaf, self.device) if numbers else leaf

        return mapped(sent, value)


class OnGpu(Serial):
    """Sums over tensors on a GPU, in this thread, for a solver there or on the host."""

    source: Any
    elsewhere = True

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.hosted = OnDevice(source, str(source.X.device), 1)

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return the sum over all chunks, which are large if the kernels can be used."""
        return folded(fn, in_blocks(self.source, takes_wide_blocks(fn)), params, per_row)[0]

    def over(self, source: Any) -> Engine:
        """Return an engine for other rows."""
        return Serial(source)


def in_blocks(rows: MemorySource, wide: bool) -> MemorySource:
    """Return tensors in blocks, as large as the kernels can use them if the sum takes `wide` ones.

    Without kernels, a block has the size that plain torch needs.
    """
    if not wide or gpu_kernels(rows.X) is None:
        return MemorySource(rows.X, rows.y, rows.weight)
    return replace(rows, block_rows=max(1, WIDE_ELEMENTS // max(1, rows.width)))


def tensor(array: np.ndarray, device: str = "cpu") -> Any:
    """Return a copy of an array, of any strides, as a tensor."""
    import torch

    return torch.from_numpy(np.array(array, order="C")).to(device)


def brought(value: Any) -> Any:
    """Return sums with all their tensors as numpy arrays."""
    return mapped(lambda leaf: leaf.cpu().numpy() if hasattr(leaf, "cpu") else leaf, value)
