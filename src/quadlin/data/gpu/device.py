"""Sums over rows that are computed on a GPU, for a solver that stays on the host.

The solver stays on the host because a GPU factorises small matrices slowly. A pass sends the model,
O(kd) numbers, to the device and brings back the sums, O(kd) numbers too: two small copies. Numpy
rows stay on the device if they fit; otherwise each pass copies them block by block, the next block
while one is being summed. For numpy rows, only the passes of the fit itself (which use the rows
through products alone) run on the device; other passes, such as the search for fields, run on the
host. All sums over tensors on a GPU are computed there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
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
from quadlin.core.units import Units
from quadlin.data.gpu.device_kernels import offer_kernels, runs_on, takes_rows, wide_rows
from quadlin.data.gpu.staging import STAGE_BYTES, Stages, tensor, torch_dtype
from quadlin.data.sources.source import read_ahead

if TYPE_CHECKING:
    from quadlin.data.gpu.triton_fit import PassShape, PreparedPass

T = TypeVar("T")
SHARE = 0.7  # of the free memory of the device that resident rows may take


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
        from quadlin.data.gpu.triton_fit import planned, summed

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
        from quadlin.data.gpu.triton_fit import PreparedPass

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
        from quadlin.data.gpu.triton_kernel import stacked_units

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
            for _ in Stages(self.device, self.here.workers).copies(X, self._cuts, rows):
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
        for part, block in read_ahead(self._staged(), 1):
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
            yield from self._stages(X, self._cuts)
        else:
            yield from ((slice(a, b), tensor(X[a:b])) for a, b in self._cuts)

    @cached_property
    def _stages(self) -> Stages:
        stages = Stages(self.device, self.here.workers)
        stages.pin(self.table.X)
        return stages

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
            source = MemorySource(source.X, source.y, source.weight, wide_rows(source))
        return folded(fn, source, params, per_row)[0]

    def over(self, source: Any) -> Engine:
        """Return an engine for other rows."""
        return Serial(source)


def brought(value: Any) -> Any:
    """Return sums with all their tensors as numpy arrays."""
    return mapped(lambda leaf: leaf.cpu().numpy() if hasattr(leaf, "cpu") else leaf, value)
