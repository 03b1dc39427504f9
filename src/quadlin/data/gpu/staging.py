"""Copies of rows to a GPU: from memory that is pinned in place, or through pinned buffers."""

import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

PINNED_SHARE = 0.5  # of the memory of the machine that may be pinned in place
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
        self.in_place: np.ndarray | None = None  # rows that need no buffer

    def pin(self, X: np.ndarray) -> None:
        """Pin in place rows that will be copied many times, if that is possible.

        Pinning takes as long as two copies; after that a copy is as fast as the bus.
        """
        plain = X.flags.c_contiguous and X.flags.writeable and not isinstance(X, np.memmap)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if not plain or X.nbytes > PINNED_SHARE * memory:
            return
        runtime = self.torch.cuda.cudart()
        if int(runtime.cudaHostRegister(X.ctypes.data, X.nbytes, 0)) == 0:
            self.in_place = X
            weakref.finalize(self, _release, runtime, X)
            return
        with suppress(RuntimeError):  # otherwise the next call would report this error
            self.torch.zeros(1, device=self.device).add_(1)

    def copies(self, X: np.ndarray, cuts: list[tuple[int, int]], into: Any) -> Iterator[slice]:
        """Copy runs of rows of X into a tensor on the device; yield each run once its copy starts.

        Later work on the default stream waits for the copy.
        """
        self.stream.wait_stream(self.torch.cuda.default_stream(self.device))
        with ThreadPoolExecutor(self.workers) as pool:
            for start, stop in cuts:
                self._copy(X[start:stop], into[start:stop], pool)
                yield slice(start, stop)

    def __call__(self, X: np.ndarray, cuts: list[tuple[int, int]]) -> Iterator[tuple[slice, Any]]:
        """Yield runs of rows of X on the device; later work waits for each."""
        with ThreadPoolExecutor(self.workers) as pool:
            for start, stop in cuts:
                rows = X[start:stop]
                with self.torch.cuda.stream(self.stream):
                    block = self.torch.empty(
                        rows.shape, dtype=torch_dtype(rows), device=self.device
                    )
                self._copy(rows, block, pool)
                block.record_stream(self.torch.cuda.default_stream(self.device))
                yield slice(start, stop), block

    def _copy(self, rows: np.ndarray, block: Any, pool: ThreadPoolExecutor) -> None:
        self.turn = (self.turn + 1) % BUFFERS
        self.arrived[self.turn].synchronize()  # the last copy from this buffer
        if self.in_place is not None:
            self._start(self.torch.from_numpy(rows), block)
            return
        buffer = self.pinned[self.turn]
        if buffer is None or buffer.shape[0] < rows.shape[0]:
            buffer = self.torch.empty(rows.shape, dtype=block.dtype, pin_memory=True)
            self.pinned[self.turn] = buffer
        pinned = buffer.numpy()
        ends = [len(rows) * i // self.workers for i in range(self.workers + 1)]

        def fill(i: int) -> None:
            np.copyto(pinned[ends[i] : ends[i + 1]], rows[ends[i] : ends[i + 1]])

        list(pool.map(fill, range(self.workers)))
        self._start(buffer[: rows.shape[0]], block)

    def _start(self, pinned: Any, block: Any) -> None:
        """Start a copy; later work on the default stream waits for it."""
        with self.torch.cuda.stream(self.stream):
            block.copy_(pinned, non_blocking=True)
            self.arrived[self.turn].record(self.stream)
        self.torch.cuda.default_stream(self.device).wait_event(self.arrived[self.turn])


def _release(runtime: Any, X: np.ndarray) -> None:
    runtime.cudaHostUnregister(X.ctypes.data)


def torch_dtype(array: np.ndarray) -> Any:
    """Return the dtype of an array as a torch dtype."""
    import torch

    return torch.from_numpy(np.empty(0, array.dtype)).dtype


def tensor(array: np.ndarray, device: str = "cpu") -> Any:
    """Return a copy of an array, of any strides, as a tensor."""
    import torch

    return torch.from_numpy(np.array(array, order="C")).to(device)
