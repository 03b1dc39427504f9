"""The moments of the columns of float32 rows on a GPU, by a Triton kernel that reads them once.

Each program sums powers of x − shift over a run of rows in float64, where shift is the mean of the
run's first tile. Then the moments of the runs are merged about their common mean.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from quadlin.core.arrays import Array
from quadlin.core.triton_passes import LONGEST_RUN, Tile, shape_of

MOMENTS = Tile(64, 32, 4, 3)


@triton.jit  # type: ignore[untyped-decorator]
def _power_sums(  # type: ignore[no-untyped-def]
    x,
    weight,
    out,
    n,
    d_over,
    row_stride_over,
    column_stride,
    run,
    VECTOR: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write shift, Σω, Σωt, Σωt², Σωt³, Σωt⁴, the least and the largest x, t = x − shift."""
    d, row_stride = d_over * VECTOR, row_stride_over * VECTOR
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * run
    weight_sum = tl.zeros((COLUMNS,), dtype=tl.float64)
    first_sum = tl.zeros((COLUMNS,), dtype=tl.float64)
    second_sum = tl.zeros((COLUMNS,), dtype=tl.float64)
    third_sum = tl.zeros((COLUMNS,), dtype=tl.float64)
    fourth_sum = tl.zeros((COLUMNS,), dtype=tl.float64)
    shift = tl.zeros((COLUMNS,), dtype=tl.float32)
    low = tl.full((COLUMNS,), float("inf"), dtype=tl.float32)
    high = tl.full((COLUMNS,), float("-inf"), dtype=tl.float32)
    for first in range(start, start + run, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows < n)[:, None] & (columns < d)[None, :]
        place = rows.to(tl.int64)[:, None] * row_stride
        place += columns.to(tl.int64)[None, :] * column_stride
        tile = tl.load(x + place, mask=inside, other=0.0)
        if first == start:
            count = tl.minimum(ROWS, n - start).to(tl.float64)
            # The mean of equal numbers is that number, so a constant column has no variance.
            shift = (tl.sum(tile.to(tl.float64), axis=0) / count).to(tl.float32)
        counts = inside
        omega = tl.where(inside, 1.0, 0.0).to(tl.float64)
        if WEIGHTED:
            by_row = tl.load(weight + rows, mask=rows < n, other=0.0)
            omega = omega * by_row[:, None]
            counts = inside & (by_row > 0)[:, None]
        low = tl.minimum(low, tl.min(tl.where(counts, tile, float("inf")), axis=0))
        high = tl.maximum(high, tl.max(tl.where(counts, tile, float("-inf")), axis=0))
        t = tile.to(tl.float64) - shift.to(tl.float64)[None, :]
        weight_sum += tl.sum(omega, axis=0)
        power = omega * t
        first_sum += tl.sum(power, axis=0)
        power = power * t
        second_sum += tl.sum(power, axis=0)
        power = power * t
        third_sum += tl.sum(power, axis=0)
        fourth_sum += tl.sum(power * t, axis=0)
    at = out + tl.program_id(1).to(tl.int64) * 8 * d + columns
    keep = columns < d
    tl.store(at, shift.to(tl.float64), mask=keep)
    tl.store(at + d, weight_sum, mask=keep)
    tl.store(at + 2 * d, first_sum, mask=keep)
    tl.store(at + 3 * d, second_sum, mask=keep)
    tl.store(at + 4 * d, third_sum, mask=keep)
    tl.store(at + 5 * d, fourth_sum, mask=keep)
    tl.store(at + 6 * d, low.to(tl.float64), mask=keep)
    tl.store(at + 7 * d, high.to(tl.float64), mask=keep)


def column_moments(X: Array, weight: Array | None) -> tuple[Any, ...] | None:
    """Return the fields of `Moments` of float32 rows on a GPU; None of no numbers."""
    if not X.shape[0] or not X.shape[1]:
        return None
    (n, d), (*size, vector) = X.shape, shape_of(X)
    runs = triton.cdiv(n, LONGEST_RUN)
    out = torch.empty((runs, 8, d), dtype=torch.float64, device=X.device)
    omega = X if weight is None else weight.to(torch.float64).contiguous()
    grid = (triton.cdiv(d, MOMENTS.COLUMNS), runs)
    _power_sums[grid](
        X, omega, out, *size, LONGEST_RUN, vector, weight is not None, **MOMENTS._asdict()
    )
    return _merged(out)


def _merged(runs: Array) -> tuple[Any, ...]:
    """Merge the moments that the programs computed about their shifts."""
    shift, weight, m1, m2, m3, m4, low, high = runs.unbind(1)  # each (runs, d)
    heavy = weight.clamp(min=1e-300)
    m1, m2, m3, m4 = (m / heavy for m in (m1, m2, m3, m4))
    total = weight.sum(dim=0)
    mean = shift + m1
    # Sums are relative to the mean of the first run, so runs of equal means give exactly that mean.
    common = mean[0] + (weight * (mean - mean[0])).sum(dim=0) / total.clamp(min=1e-300)
    gap, var = mean - common, (m2 - m1**2).clamp(min=0)
    third = m3 - 3 * m1 * m2 + 2 * m1**3
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4

    def average(moments: Array) -> Array:
        return (weight * moments).sum(dim=0) / total.clamp(min=1e-300)

    spread = average(var + gap**2)
    varies = spread > 0
    sd = torch.where(varies, spread, 1.0).sqrt()
    kappa = average(third + 3 * gap * var + gap**3) / sd**3
    phi = average(fourth + 4 * gap * third + 6 * gap**2 * var + gap**4) / sd**4
    kappa, phi = torch.where(varies, kappa, 0.0), torch.where(varies, phi, 1.0)
    return float(total[0]), common, spread, kappa, phi, low.amin(dim=0), high.amax(dim=0)
