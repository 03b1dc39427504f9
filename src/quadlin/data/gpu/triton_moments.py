"""The moments of the columns of float32 rows on a GPU, by a Triton kernel that reads them once.

Each program sums powers of x − shift over a run of rows in float64, its shift the mean of the
run's first tile; then the moments of the runs are merged about their common mean.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from quadlin.core.arrays import Array
from quadlin.data.gpu.triton_kernel import Tile, layout, takes

MOMENTS = Tile(64, 32, 4, 3)
RUN = 2048  # rows of a program


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
            # Equal numbers have themselves as their mean, so that a constant varies by nothing.
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
    """Return the fields of `Moments` of float32 rows on a GPU; None where torch must do."""
    if not takes(X) or not X.shape[0] or not X.shape[1]:
        return None
    (n, d), (*size, vector) = X.shape, layout(X)
    runs = triton.cdiv(n, RUN)
    out = torch.empty((runs, 8, d), dtype=torch.float64, device=X.device)
    omega = X if weight is None else weight.to(torch.float64).contiguous()
    grid = (triton.cdiv(d, MOMENTS.columns), runs)
    _power_sums[grid](X, omega, out, *size, RUN, vector, weight is not None, **MOMENTS.how)
    return _merged(out)


def _merged(runs: Array) -> tuple[Any, ...]:
    """Merge what programs found about their shifts."""
    shift, weight, *sums, low, high = runs.unbind(1)
    heavy = torch.where(weight > 0, weight, 1.0)
    m1, m2, m3, m4 = (s / heavy for s in sums)
    var = (m2 - m1**2).clamp(min=0)  # of each run, about its own mean
    third = m3 - 3 * m1 * m2 + 2 * m1**3
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    total = weight.sum(0)
    share = weight / torch.where(total > 0, total, 1.0)
    # From one of the means, so that runs of equal means have it as their common one.
    base = shift[0] + m1[0]
    mean = base + (share * (shift + m1 - base)).sum(0)
    gap = shift + m1 - mean
    spread = (share * (var + gap**2)).sum(0)
    root = torch.where(spread > 0, spread, 1.0).sqrt()
    kappa = (share * (third + 3 * gap * var + gap**3)).sum(0) / root**3
    phi = (share * (fourth + 4 * gap * third + 6 * gap**2 * var + gap**4)).sum(0) / root**4
    varies = spread > 0
    return (
        float(total[0]),
        mean,
        spread,
        torch.where(varies, kappa, 0.0),
        torch.where(varies, phi, 1.0),
        low.amin(0),
        high.amax(0),
    )
