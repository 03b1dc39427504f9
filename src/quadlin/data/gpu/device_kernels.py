"""Which rows on a device are multiplied by the Triton kernels, if Triton is installed."""

import os
from functools import cache
from typing import Any

from quadlin.core.chunks import MemorySource
from quadlin.core.library import offer

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

        from quadlin.data.gpu.triton_kernel import INTERPRETED, TritonKernel
        from quadlin.data.gpu.triton_moments import column_moments
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
    from quadlin.data.gpu.triton_kernel import takes

    return takes(X)


def runs_on(device: str) -> bool:
    """Return whether the kernels, if offered, run on a device."""
    from quadlin.data.gpu.triton_kernel import INTERPRETED

    return INTERPRETED or device.startswith("cuda")


def wide_rows(source: MemorySource) -> int:
    """Return the number of rows of a block for the kernels."""
    return max(1, WIDE_ELEMENTS // max(1, source.width))
