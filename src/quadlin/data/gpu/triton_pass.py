r"""Triton kernels for float32 rows on a GPU: products, sums, and a pass of a fit with two reads.

.. math:: Z Q,\ (Z \circ Z) S \qquad Z^\top R,\ (Z \circ Z)^\top R \qquad
          r = c + Z w + \sum_a t_a (Z E_a) \circ (Z H_a) - (Z \circ Z) s - y

Rows are standardised in registers, so nothing of the size of a block is written. The tensor units
compute products in three parts, whose error is that of float32 (``tf32x3``). Factors and residuals
are stored by columns, as the tensor units need them. Columns beyond the last one have a scale of
zero, so they are zero; rows beyond the last one are multiplied by residuals of zero.

The tensor units truncate when they add to a sum; other units round. So they add up only one tile,
and the sums of tiles are added in float32, multiplied by `one` so that no compiler merges the two.
"""

import triton
import triton.language as tl


@triton.jit
def _standardised(  # type: ignore[no-untyped-def]
    x, units, rows, columns, n, d, row_stride, column_stride
):
    inside = (rows < n)[:, None] & (columns < d)[None, :]
    place = rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride
    z = tl.load(x + place, mask=inside, other=0.0)
    mean = tl.load(units + columns, mask=columns < d, other=0.0)
    scale = tl.load(units + d + columns, mask=columns < d, other=0.0)
    rest = tl.load(units + 2 * d + columns, mask=columns < d, other=0.0)
    return (z - mean[None, :]) * scale[None, :] - rest[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def _factor(factor, columns, d, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load some rows of a factor (d, WIDTH) that is stored by columns."""
    place = tl.arange(0, WIDTH)[:, None] * d + columns[None, :]
    return tl.trans(tl.load(factor + place, mask=(columns < d)[None, :], other=0.0))


@triton.jit  # type: ignore[untyped-decorator]
def forward(  # type: ignore[no-untyped-def]
    x,
    units,
    factor,
    out,
    n,
    d_over,
    row_stride_over,
    column_stride,
    one,
    VECTOR: tl.constexpr,
    SQUARED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write Z Q (n, WIDTH), or (Z∘Z) Q."""
    d, row_stride = d_over * VECTOR, row_stride_over * VECTOR
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for first in range(0, d, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        z = _standardised(x, units, rows, columns, n, d, row_stride, column_stride)
        if SQUARED:
            z = z * z
        total += one * tl.dot(z, _factor(factor, columns, d, WIDTH), input_precision="tf32x3")
    place = rows.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(out + place, total, mask=(rows < n)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def respond(  # type: ignore[no-untyped-def]
    x,
    units,
    first_factor,
    second_factor,
    left_out,
    coefficients,
    y,
    weight,
    out,
    totals,
    n,
    d_over,
    row_stride_over,
    column_stride,
    one,
    one_at,
    VECTOR: tl.constexpr,
    SECOND: tl.constexpr,
    PAIRED: tl.constexpr,
    SQUARES: tl.constexpr,
    TARGET: tl.constexpr,
    WEIGHTED: tl.constexpr,
    FIRST_WIDTH: tl.constexpr,
    SECOND_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write ω∘r∘(Z Q), with 1 instead of the column `one_at` of Z Q, and Σωr² and Σωr.

    PAIRED factors are stored as one, with alternating columns, so that one product serves both.
    `coefficients` are rows of length FIRST_WIDTH: t for pairs of equal columns of the first factor,
    t for pairs of columns of both, the mark of the linear column, and the constant.
    """
    d, row_stride = d_over * VECTOR, row_stride_over * VECTOR
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    width = tl.arange(0, FIRST_WIDTH)
    BOTH: tl.constexpr = FIRST_WIDTH + (SECOND_WIDTH if PAIRED else 0)
    a = tl.zeros((ROWS, BOTH), dtype=tl.float32)
    b = tl.zeros((ROWS, SECOND_WIDTH), dtype=tl.float32)
    squares = tl.zeros((ROWS,), dtype=tl.float32)
    for first in range(0, d, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        z = _standardised(x, units, rows, columns, n, d, row_stride, column_stride)
        q = _factor(first_factor, columns, d, BOTH)
        a += one * tl.dot(z, q, input_precision="tf32x3")
        if SECOND and not PAIRED:
            h = _factor(second_factor, columns, d, SECOND_WIDTH)
            b += one * tl.dot(z, h, input_precision="tf32x3")
        if SQUARES:
            s = tl.load(left_out + columns, mask=columns < d, other=0.0)
            squares += tl.sum(z * z * s[None, :], axis=1)
    if PAIRED:
        a, b = tl.split(tl.reshape(a, (ROWS, FIRST_WIDTH, 2)))
    squared = tl.load(coefficients + width)
    linear = tl.load(coefficients + 2 * FIRST_WIDTH + width)
    terms = a * (squared[None, :] * a + linear[None, :])
    if PAIRED:
        paired = tl.load(coefficients + FIRST_WIDTH + width)
        terms += a * (paired[None, :] * b)
    r = tl.sum(terms, axis=1) + tl.load(coefficients + 3 * FIRST_WIDTH) - squares
    counts = rows < n
    if TARGET:
        r -= tl.load(y + rows, mask=counts, other=0.0)
    weighted = r
    if WEIGHTED:
        weighted = r * tl.load(weight + rows, mask=counts, other=0.0)
    weighted = tl.where(counts, weighted, 0.0)
    tl.store(totals + tl.program_id(0), tl.sum(weighted * tl.where(counts, r, 0.0), axis=0))
    tl.store(totals + tl.num_programs(0) + tl.program_id(0), tl.sum(weighted, axis=0))
    if SECOND and not PAIRED:
        answer, columns_out = b, tl.arange(0, SECOND_WIDTH)
    else:
        answer, columns_out = a, width
    answer = tl.where((columns_out == one_at)[None, :], 1.0, answer) * weighted[:, None]
    place = columns_out.to(tl.int64)[None, :] * n + rows[:, None]
    tl.store(out + place, answer, mask=counts[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def back(  # type: ignore[no-untyped-def]
    x,
    units,
    factor,
    out,
    n,
    d_over,
    row_stride_over,
    column_stride,
    one,
    run,
    squares_of,
    VECTOR: tl.constexpr,
    SQUARED: tl.constexpr,
    SQUARES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write Rᵀ Z (WIDTH, d), or Rᵀ(Z∘Z), of each run of rows; R is stored by columns.

    With SQUARES one row more: the column `squares_of` of R, times Z∘Z.
    """
    d, row_stride = d_over * VECTOR, row_stride_over * VECTOR
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    width = tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH, COLUMNS), dtype=tl.float32)
    squares = tl.zeros((COLUMNS,), dtype=tl.float32)
    start = tl.program_id(1) * run
    for first in range(start, start + run, ROWS):
        rows = first + tl.arange(0, ROWS)
        z = _standardised(x, units, rows, columns, n, d, row_stride, column_stride)
        if SQUARED:
            z = z * z
        place = width.to(tl.int64)[:, None] * n + rows[None, :]
        r = tl.load(factor + place, mask=(rows < n)[None, :], other=0.0)
        total += one * tl.dot(r, z, input_precision="tf32x3")
        if SQUARES:
            at = factor + tl.cast(squares_of, tl.int64) * n + rows
            squares += tl.sum(z * z * tl.load(at, mask=rows < n, other=0.0)[:, None], axis=0)
    base = out + tl.program_id(1).to(tl.int64) * d * (WIDTH + SQUARES)
    tl.store(base + width[:, None] * d + columns[None, :], total, mask=(columns < d)[None, :])
    if SQUARES:
        tl.store(base + WIDTH * d + columns, squares, mask=columns < d)


@triton.jit  # type: ignore[untyped-decorator]
def total(  # type: ignore[no-untyped-def]
    runs,
    residuals,
    out,
    out_residuals,
    count,
    size,
    programs,
    RUNS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Add up the sums of all runs, and the sums of residuals of all programs, in float64."""
    program = tl.program_id(0)
    if program == 0:
        many = tl.arange(0, RUNS * COLUMNS)
        first_sum = tl.zeros((RUNS * COLUMNS,), dtype=tl.float64)
        second_sum = tl.zeros((RUNS * COLUMNS,), dtype=tl.float64)
        for first in range(0, programs, RUNS * COLUMNS):
            inside = first + many < programs
            first_sum += tl.load(residuals + first + many, mask=inside, other=0.0).to(tl.float64)
            at = residuals + programs + first + many
            second_sum += tl.load(at, mask=inside, other=0.0).to(tl.float64)
        tl.store(out_residuals, tl.sum(first_sum, axis=0))
        tl.store(out_residuals + 1, tl.sum(second_sum, axis=0))
    else:
        columns = (program - 1) * COLUMNS + tl.arange(0, COLUMNS)
        sums = tl.zeros((RUNS, COLUMNS), dtype=tl.float64)
        for first in range(0, count, RUNS):
            run = first + tl.arange(0, RUNS)
            place = run.to(tl.int64)[:, None] * size + columns[None, :]
            inside = (run < count)[:, None] & (columns < size)[None, :]
            sums += tl.load(runs + place, mask=inside, other=0.0).to(tl.float64)
        result = tl.sum(sums, axis=0).to(tl.float32)
        tl.store(out + columns, result, mask=columns < size)
