"""Sums over rows that are computed on a GPU, for a solver that stays on the host.

The solver stays on the host because a GPU factorises small matrices slowly. A pass sends the model,
O(kd) numbers, to the device and brings back the sums, O(kd) numbers too: two small copies. Numpy
rows stay on the device if they fit; otherwise each pass copies them block by block, the next block
while one is being summed. For numpy rows, only the passes of the fit itself (which use the rows
through products alone) run on the device; other passes, such as the search for fields, run on the
host. All sums over tensors on a GPU are computed there.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from quadlin.core.arrays import is_numpy, mapped
from quadlin.core.chunks import Chunk, MemorySource, even_cuts
from quadlin.core.engine import (
    Engine,
    Serial,
    Threads,
    folded,
    takes_wide_blocks,
    uses_products_only,
)
from quadlin.core.library import offer
from quadlin.core.units import Units
from quadlin.data.source import read_ahead

if TYPE_CHECKING:
    from quadlin.data.triton_passes import PassShape, PreparedPass

T = TypeVar("T")
SHARE = 0.7  # of the free memory of the device that resident rows may take


WIDE_ELEMENTS = 1 << 31  # of a block for the kernels, which write nothing of that size
COMPUTE_CAPABILITY = (8, 0)  # of the tensor units that the kernels need


def offer_kernels() -> bool:
    """Offer Triton kernels for float32 rows on a GPU; return whether they can be used.

    ``QUADLIN_KERNEL=torch`` in the environment leaves everything to plain torch.
    """
    return _kernels_offered() and os.environ.get("QUADLIN_KERNEL") != "torch"


@cache
def _kernels_offered() -> bool:
    """Offer the kernels if Triton is installed and the GPU has the tensor units for them."""
    try:
        import torch

        from quadlin.data.triton_moments import column_moments
        from quadlin.data.triton_passes import INTERPRETED, TritonKernel
    except ImportError:  # plain torch will do
        return False
    gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() >= COMPUTE_CAPABILITY
    if not (gpu or INTERPRETED):
        return False
    offer(TritonKernel.of)
    offer(column_moments, "moments")
    return True


def takes_rows(X: Any) -> bool:
    """Return whether the kernels, if offered, take such rows."""
    from quadlin.data.triton_passes import takes

    return takes(X)


def runs_on(device: str) -> bool:
    """Return whether the kernels, if offered, run on a device."""
    from quadlin.data.triton_passes import INTERPRETED

    return INTERPRETED or device.startswith("cuda")


def wide_rows(source: MemorySource) -> int:
    """Return the number of rows of a block for the kernels."""
    return max(1, WIDE_ELEMENTS // max(1, source.width))


BUFFERS = 3  # one is filled while the others are copied
STAGE_BYTES = 1 << 26


class Stages:
    """Pinned buffers that take turns: one is filled while the others are copied to the device.

    Parameters
    ----------
    device : str
        The device, as torch names it.
    workers : int
        Threads that fill a buffer together: one alone is slower than the copy to the device.
    """

    def __init__(self, device: str, workers: int) -> None:
        import torch as untyped

        torch: Any = untyped
        self.torch, self.device, self.workers = torch, device, workers
        self.stream, self.turn = torch.cuda.Stream(device), 0
        self.pinned: list[Any] = [None] * BUFFERS
        self.arrived = [torch.cuda.Event() for _ in range(BUFFERS)]

    def copies(
        self, X: np.ndarray, cuts: list[tuple[int, int]], into: Any = None
    ) -> Iterator[tuple[slice, Any]]:
        """Yield runs of rows of X on the device, new or in a tensor; later work waits for each."""
        self.stream.wait_stream(self.torch.cuda.default_stream(self.device))
        with ThreadPoolExecutor(self.workers) as pool:
            for start, stop in cuts:
                rows = X[start:stop]
                with self.torch.cuda.stream(self.stream):
                    block = into[start:stop] if into is not None else self._empty(rows)
                self._copy(rows, block, pool)
                block.record_stream(self.torch.cuda.default_stream(self.device))
                yield slice(start, stop), block

    def _empty(self, rows: np.ndarray, **options: Any) -> Any:
        options = options or {"device": self.device}
        return self.torch.empty(rows.shape, dtype=torch_dtype(rows), **options)

    def _copy(self, rows: np.ndarray, block: Any, pool: ThreadPoolExecutor) -> None:
        self.turn = (self.turn + 1) % BUFFERS
        self.arrived[self.turn].synchronize()  # the last copy from this buffer
        buffer = self.pinned[self.turn]
        if buffer is None or buffer.shape[0] < rows.shape[0]:
            buffer = self.pinned[self.turn] = self._empty(rows, pin_memory=True)
        pinned = buffer.numpy()
        cuts = even_cuts(len(rows), self.workers)
        list(pool.map(lambda cut: np.copyto(pinned[slice(*cut)], rows[slice(*cut)]), cuts))
        with self.torch.cuda.stream(self.stream):
            block.copy_(buffer[: rows.shape[0]], non_blocking=True)
            self.arrived[self.turn].record(self.stream)
        self.torch.cuda.default_stream(self.device).wait_event(self.arrived[self.turn])


def torch_dtype(array: np.ndarray) -> Any:
    """Return the dtype of an array as a torch dtype."""
    import torch

    return torch.from_numpy(np.empty(0, array.dtype)).dtype


def tensor(array: np.ndarray, device: str = "cpu") -> Any:
    """Return a copy of an array, of any strides, as a tensor."""
    import torch

    return torch.from_numpy(np.array(array, order="C")).to(device)


class OnDevice(Engine):
    """Dense rows that torch sums on a device, for a solver that uses numpy arrays.

    Parameters
    ----------
    source : RowSource
        The rows of a table, or a sample of them.
    device : str
        The device, as torch names it.
    workers : int
        Threads for the sums that are computed on the host, and for copies.
    limit : int or None
        Bytes of rows that may stay on the device; None takes most of the free memory.
    whole : OnDevice or None
        For a sample, the engine of all the rows.
    """

    # A pass over fewer entries takes less time than the solver needs between two passes.
    sample_entries: tuple[int, ...] = (1 << 27, 1 << 29)
    elsewhere = True

    def __init__(
        self,
        source: Any,
        device: str,
        workers: int,
        limit: int | None = None,
        whole: "OnDevice | None" = None,
    ) -> None:
        self.source, self.device, self.limit, self.whole = source, device, limit, whole
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
        kernels, wide = self._has_kernels, takes_wide_blocks(fn)
        if self.of_numpy and not uses_products_only(fn):
            return self.here.carry(fn, params, per_row)
        if kernels and per_row is None:
            total = self._by_kernels(fn, params)
            if total is not None:
                return total  # type: ignore[no-any-return]
        params, per_row = self._sent((params, per_row))
        return brought(folded(fn, self._chunks(wide and kernels), params, per_row)[0])  # type: ignore[no-any-return]

    def over(self, source: Any) -> Engine:
        """Return the same engine for a sample of the rows."""
        return OnDevice(source, self.device, self.here.workers, self.limit, self)

    @property
    def _has_kernels(self) -> bool:
        """Return whether the kernels can be used on this device."""
        return offer_kernels() and runs_on(self.device)

    def _by_kernels(self, fn: Callable[..., Any], params: tuple[Any, ...]) -> Any:
        """Return the sums of a pass that the kernels compute as a whole; None for other passes."""
        from quadlin.data.triton_passes import planned, summed

        plan = planned(fn, params) if self._dtype == np.float32 else None
        if plan is None:
            return None
        shape, asked, units = plan
        if self._kept is None or self._kept.units is not units:
            self._kept = self._prepared(units)
        passes = self._passes(shape, self._kept)
        return summed(shape, (run(asked) for run in passes), self._kept.weight)

    def _passes(self, shape: "PassShape", kept: "Kept") -> "Iterable[PreparedPass]":
        """Return the pass over each block of rows, prepared only once if the rows stay there."""
        from quadlin.data.triton_passes import PreparedPass

        if shape in kept.passes:
            return kept.passes[shape]
        stop = 0

        def prepared(chunk: Chunk) -> PreparedPass:
            nonlocal stop
            start, stop = stop, stop + chunk.X.shape[0]
            return PreparedPass(shape, chunk, kept.target[start:stop], kept.stacked)

        passes = map(prepared, self._chunks(True))
        if self.resident is None:
            return passes
        return kept.passes.setdefault(shape, list(passes))

    def _prepared(self, units: Units) -> "Kept":
        from quadlin.data.triton_passes import stacked_units

        device_units = self._sent(units)
        y, weight = self._values
        target = device_units.standardised_target(y)
        total = float(y.shape[0]) if weight is None else float(weight.sum())
        return Kept(units, stacked_units(device_units), target, total)

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
    def resident(self) -> MemorySource | None:
        """Return the rows on the device; None if they do not fit."""
        import torch

        if not self.of_numpy:
            return self.table
        places = getattr(self.source, "places", None)
        if places is not None and self.whole is not None and self.whole.resident is not None:
            rows = self.whole.resident.X[tensor(places, self.device)]
            return MemorySource(rows, *self._values)
        X, limit = self.table.X, self.limit
        if limit is None:
            limit = int(SHARE * torch.cuda.mem_get_info(self.device)[0])
        if X.nbytes > limit:
            return None
        rows = torch.empty(X.shape, dtype=torch_dtype(X), device=self.device)
        if self.device.startswith("cuda"):
            for _ in self._stages.copies(X, self._cuts, rows):
                pass
        else:
            rows[:] = tensor(X)
        return MemorySource(rows, *self._values)

    def _chunks(self, wide: bool) -> Iterator[Chunk]:
        resident = self.resident
        if resident is not None:
            rows = wide_rows(resident) if wide and takes_rows(resident.X) else None
            yield from MemorySource(resident.X, resident.y, resident.weight, rows)
            return
        y, weight = self._values
        for part, block in read_ahead(self._staged()):
            yield Chunk(block, y[part], None if weight is None else weight[part])

    @cached_property
    def _values(self) -> tuple[Any, Any]:
        """Return the targets and the weights on the device."""
        values = self.source.values if hasattr(self.source, "values") else self.table
        y, weight = self._sent((values.y, values.weight))
        return y, weight

    @property
    def _cuts(self) -> list[tuple[int, int]]:
        """Return runs of rows that each fill a pinned buffer."""
        X = self.table.X
        return even_cuts(X.shape[0], max(1, -(-X.nbytes // STAGE_BYTES)))

    def _staged(self) -> Iterator[tuple[slice, Any]]:
        """Copy block after block to the device."""
        X = self.table.X
        if self.device.startswith("cuda"):
            yield from self._stages.copies(X, self._cuts)
        else:
            yield from ((slice(a, b), tensor(X[a:b])) for a, b in self._cuts)

    @cached_property
    def _stages(self) -> Stages:
        return Stages(self.device, self.here.workers)

    def _sent(self, value: Any) -> Any:
        def sent(leaf: Any) -> Any:
            numbers = isinstance(leaf, np.ndarray) and leaf.dtype != object
            return tensor(leaf, self.device) if numbers else leaf

        return mapped(sent, value)


@dataclass
class Kept:
    """What passes with the same units have in common, on the device."""

    units: Units  # on the host
    stacked: Any  # (3, d), as kernels take them
    target: Any  # (n,), standardised
    weight: float  # of all rows
    passes: "dict[PassShape, list[PreparedPass]]" = field(default_factory=dict)  # over each block


class OnGpu(Serial):
    """Sums over tensors on a GPU, in this thread, for a solver there or on the host."""

    source: Any
    elsewhere = True

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.hosted = OnDevice(source, str(source.X.device), 1)

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return the sum over all chunks, which are large if the kernels can be used."""
        source = self.source
        if takes_wide_blocks(fn) and offer_kernels() and takes_rows(source.X):
            source = replace(source, block_rows=wide_rows(source))
        return folded(fn, source, params, per_row)[0]

    def over(self, source: Any) -> Engine:
        """Return an engine for other rows."""
        return Serial(source)


def brought(value: Any) -> Any:
    """Return sums with all their tensors as numpy arrays."""
    return mapped(lambda leaf: leaf.cpu().numpy() if hasattr(leaf, "cpu") else leaf, value)
