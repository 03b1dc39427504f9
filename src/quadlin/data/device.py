"""Sums over numpy rows that are carried out on a GPU: ``engine="cuda"``.

The solver stays where it is. A pass sends the model, O(kd) numbers, to the device and brings the
sums, as many, back: two small copies, where small matrices would be factorised slowly on a GPU.
Only the passes that a fit consists of (those that know the rows by their products alone) are
carried out there; what looks at rows in other ways, such as the search for fields, is done here.

Rows stay on the device where they fit. Else each pass copies them block by block through pinned
memory, the next block while one is being summed.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from quadlin.core.chunks import DEVICE_ELEMENTS, Chunk, MemorySource, even_cuts
from quadlin.core.engine import Engine, Threads, folded, takes_wide_blocks
from quadlin.core.other_kernels import offer
from quadlin.data.prefetch import read_ahead

T = TypeVar("T")
SHARE = 0.7  # of the free memory of the device that rows may take for good


class OnDevice:
    """Dense numpy rows that are summed on a device by torch.

    Parameters
    ----------
    source : RowSource
        Rows; those of a table, or a sample of one.
    device : str
        As torch names it.
    workers : int
        Threads for the sums that are carried out here.
    limit : int or None
        Bytes of rows that may stay on the device; None takes most of what is free.
    """

    def __init__(self, source: Any, device: str, workers: int, limit: int | None = None) -> None:
        self.source, self.device, self.limit = source, device, limit
        self.here = Threads(source, workers)

    @classmethod
    def of(cls, source: Any, device: str, workers: int) -> "OnDevice":
        """Return the engine for some rows, if they and this machine allow it."""
        try:
            import torch
        except ImportError:
            raise ImportError(f'engine="{device}" needs PyTorch: pip install torch.') from None
        if not torch.cuda.is_available():
            raise ValueError(
                f'engine="{device}" needs a GPU, and PyTorch {torch.__version__} finds none here. '
                "Leave engine as it is to use the cores of this machine."
            )
        if not (isinstance(source, MemorySource) and isinstance(source.X, np.ndarray)):
            raise ValueError(
                f'engine="{device}" takes dense arrays and frames in memory, and these rows are '
                "sparse, elsewhere, or on a device already. Leave engine as it is."
            )
        return cls(source, device, workers)

    def carry(self, fn: Callable[..., T], params: tuple[Any, ...], per_row: Any = None) -> T | None:
        """Return the sum over all chunks, in numpy."""
        if not takes_wide_blocks(fn):
            return self.here.carry(fn, params, per_row)
        offer_kernels()
        params, per_row = self._sent((params, per_row))
        total: T | None = brought(folded(fn, self._chunks(), params, per_row)[0])
        return total

    def over(self, source: Any) -> Engine:
        """Return the same for other rows."""
        return OnDevice(source, self.device, self.here.workers, self.limit)

    @cached_property
    def table(self) -> MemorySource:
        """Return the rows in this process; a sample is gathered when it is first asked for."""
        table: MemorySource = getattr(self.source, "table", self.source)
        return table

    @cached_property
    def resident(self) -> MemorySource | None:
        """Return the rows on the device; None where they do not fit."""
        import torch

        X, limit = self.table.X, self.limit
        if limit is None:
            limit = int(SHARE * torch.cuda.mem_get_info(self.device)[0])
        if X.nbytes > limit:
            return None
        rows = torch.empty(X.shape, dtype=tensor(X[:0]).dtype, device=self.device)
        for part, block in self._staged():
            rows[part] = block
        return MemorySource(rows, *self._values, block_rows=self._block_rows)

    def _chunks(self) -> Iterator[Chunk]:
        if self.resident is not None:
            yield from self.resident
            return
        y, weight = self._values
        for part, block in read_ahead(self._staged(), 1):
            yield Chunk(block, y[part], None if weight is None else weight[part])

    @cached_property
    def _values(self) -> tuple[Any, Any]:
        y, weight = self._sent((self.table.y, self.table.weight))
        return y, weight

    @property
    def _block_rows(self) -> int:
        return max(1, DEVICE_ELEMENTS // max(1, self.table.width))

    def _staged(self) -> Iterator[tuple[slice, Any]]:
        """Copy block after block to the device, through pinned memory where that is faster."""
        X = self.table.X
        count = -(-self.table.rows // self._block_rows)
        stages = Stages(self.device) if self.device.startswith("cuda") else None
        for start, stop in even_cuts(self.table.rows, max(1, count)):
            rows = X[start:stop]
            yield slice(start, stop), tensor(rows, self.device) if stages is None else stages(rows)

    def _sent(self, value: Any) -> Any:
        def sent(leaf: Any) -> Any:
            numbers = isinstance(leaf, np.ndarray) and leaf.dtype != object
            return tensor(leaf, self.device) if numbers else leaf

        return mapped(sent, value)


class Stages:
    """Two pinned buffers, in turns: one is filled while the other is on its way to the device."""

    def __init__(self, device: str) -> None:
        import torch as untyped

        torch: Any = untyped
        self.torch, self.device = torch, device
        self.stream, self.turn = torch.cuda.Stream(device), 0
        self.pinned: list[Any] = [None, None]
        self.arrived = [torch.cuda.Event(), torch.cuda.Event()]

    def __call__(self, rows: np.ndarray) -> Any:
        """Return rows on the device; later work of every stream there waits for them."""
        self.turn = 1 - self.turn
        self.arrived[self.turn].synchronize()  # the last copy from this buffer
        buffer = self.pinned[self.turn]
        if buffer is None or buffer.shape[0] < rows.shape[0]:
            dtype = tensor(rows[:0]).dtype
            buffer = self.torch.empty(rows.shape, dtype=dtype, pin_memory=True)
            self.pinned[self.turn] = buffer
        np.copyto(buffer.numpy()[: rows.shape[0]], rows)
        with self.torch.cuda.stream(self.stream):
            block = buffer[: rows.shape[0]].to(self.device, non_blocking=True)
            self.arrived[self.turn].record(self.stream)
        self.torch.cuda.default_stream(self.device).wait_event(self.arrived[self.turn])
        block.record_stream(self.torch.cuda.default_stream(self.device))
        return block


def tensor(array: np.ndarray, device: str = "cpu") -> Any:
    """Return a copy of an array, of any strides, as torch's."""
    import torch

    return torch.from_numpy(np.array(array, order="C")).to(device)


def brought(value: Any) -> Any:
    """Return sums with all their tensors as numpy arrays."""
    return mapped(lambda leaf: leaf.cpu().numpy() if hasattr(leaf, "cpu") else leaf, value)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return nested tuples, lists and dataclasses with `change` applied to what they hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(mapped(change, getattr(value, f.name)) for f in fields(value)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(change, item) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(mapped(change, item) for item in value)
    return change(value)


def offer_kernels() -> None:
    """Let torch's rows on a GPU be multiplied by kernels of ours, where somebody asks for that."""
    if os.environ.get("QUADLIN_KERNEL") != "triton":
        return
    try:
        from quadlin.data.triton_kernel import TritonKernel
    except ImportError as error:
        raise ImportError(
            f"QUADLIN_KERNEL=triton needs PyTorch and Triton: pip install torch triton ({error})."
        ) from None
    offer(TritonKernel.of)
