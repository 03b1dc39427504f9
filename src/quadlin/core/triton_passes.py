r"""Triton kernels for float32 rows on a GPU: products, sums, and a pass of a fit with two reads.

.. math:: Z Q,\ (Z \circ Z) S \qquad Z^\top R,\ (Z \circ Z)^\top R \qquad
          r = c + Z w + \sum_a t_a (Z E_a) \circ (Z H_a) - (Z \circ Z) s - y

Rows are standardised in registers, so nothing of the size of a block is written. The tensor units
compute products in three parts, whose error is that of float32 (``tf32x3``). Factors and residuals
are stored by columns, as the tensor units need them. Columns beyond the last one have a scale of
zero, so they are zero; rows beyond the last one are multiplied by residuals of zero.

The tensor units truncate when they add to a sum; other units round. So they add up only one tile,
and the sums of tiles are added in float32, multiplied by `one` so that no compiler merges the two.
Each program of the backward kernel adds up a run of rows in float32. The sums of the runs are added
in float64, in order, so the result is the same each time.

In a fit the solver is on the host. It packs the parameters of a pass into one buffer and sends it.
Three kernels then run one after the other without the host, and all sums come back at once.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from quadlin.core.arrays import Array
from quadlin.core.block import Kernel
from quadlin.core.chunks import Chunk
from quadlin.core.sums import (
    Asked,
    Sums,
    change_sums,
    changes_asked,
    residual_sums,
    residuals_asked,
)
from quadlin.core.units import Units

NARROWEST, WIDEST = 16, 64  # columns of a factor that a program takes
LONGEST_RUN, PROGRAMS = 2048, 1024  # rows that a program adds up, and programs at least
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HEAD = 4  # float32 places that two float64 numbers take
TOTAL_RUNS, TOTAL_COLUMNS = 16, 64  # of a tile of the sums of runs


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
def forward_kernel(  # type: ignore[no-untyped-def]
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
def respond_kernel(  # type: ignore[no-untyped-def]
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
def back_kernel(  # type: ignore[no-untyped-def]
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
def total_kernel(  # type: ignore[no-untyped-def]
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


class Tile(NamedTuple):
    """How much of X a program loads at a time, and how it is launched."""

    ROWS: int
    COLUMNS: int
    num_warps: int
    num_stages: int


def forward_tile(width: int, factors: int = 1) -> Tile:
    """Return the tile for products with this many columns, as measured on an H200."""
    if width <= 2 * NARROWEST:
        return Tile(64 * factors, 64, 4, 3)
    return Tile(128, 32, 4, 4)


def back_tile(width: int, squares: bool) -> Tile:
    """Return the tile for sums with this many columns, with or without squares, as measured."""
    return Tile(32, 256, 4, 3) if squares and width <= NARROWEST else Tile(32, 128, 4, 4)


class TritonKernel(Kernel):
    """Products with standardised float32 rows, torch tensors on a GPU."""

    def __init__(self, X: Array, units: Units) -> None:
        super().__init__(X, np.dtype(np.float32))
        self.units = stacked_units(units)

    @classmethod
    def of(cls, X: Array, units: Units) -> "TritonKernel | None":
        """Return the kernel for float32 rows; None if their units need plain torch."""
        return cls(X, units) if units.scale.dtype == torch.float32 else None

    def products(self, Q: Array, S: Array | None) -> tuple[Array, Array | None]:
        """Return Z Q and (Z∘Z) S, None without S."""
        return self._forward(Q, False), None if S is None else self._forward(S, True)

    def sums(self, R: Array, square_columns: int) -> tuple[Array, Array]:
        """Return Zᵀ R, and (Z∘Z)ᵀ R for the first columns of R."""
        return self._back(R, False), self._back(R[:, :square_columns], True)

    def _forward(self, Q: Array, squared: bool) -> Array:
        n = self.X.shape[0]
        slabs = [torch.empty((n, 0), dtype=torch.float32, device=self.X.device)]
        for slab, factor in _slabs(Q):
            width = factor.shape[0]
            out = torch.empty((n, width), dtype=torch.float32, device=self.X.device)
            if n:
                tile, (*size, vector) = forward_tile(width), shape_of(self.X)
                forward_kernel[(triton.cdiv(n, tile.ROWS),)](
                    self.X,
                    self.units,
                    factor,
                    out,
                    *size,
                    1.0,
                    vector,
                    squared,
                    width,
                    **tile._asdict(),
                )
            slabs.append(out[:, :slab])
        return torch.cat(slabs, dim=1)

    def _back(self, R: Array, squared: bool) -> Array:
        d = self.X.shape[1]
        slabs = [torch.empty((d, 0), dtype=torch.float32, device=self.X.device)]
        for slab, factor in _slabs(R):
            runs = Runs(self.X, factor.shape[0], False)
            runs.launcher(self.units, factor, 0, squared)()
            total = runs.out.sum(dim=0, dtype=torch.float64).to(torch.float32)
            slabs.append(total[:slab, :].T)
        return torch.cat(slabs, dim=1)


def takes(X: Array) -> bool:
    """Return whether the kernels take such rows."""
    on_gpu = isinstance(X, torch.Tensor) and (X.is_cuda or INTERPRETED)
    return on_gpu and X.dtype == torch.float32


def stacked_units(units: Units) -> Array:
    """Return the units that standardise rows, stacked for the kernels, (3, d)."""
    return torch.stack([units.mean, units.scale, units.rest]).contiguous()


def shape_of(X: Array) -> tuple[int, int, int, int, int]:
    """Return n, d and the row stride over a vector's width, the column stride, and that width.

    If rows begin at multiples of 16 bytes, four numbers are loaded at a time.
    """
    n, d = X.shape
    row, column = X.stride()
    aligned = d % 4 == 0 and row % 4 == 0 and column == 1
    vector = 4 if aligned else 1
    return n, d // vector, row // vector, column, vector


class Runs:
    """The sums Rᵀ Z of runs of rows, (runs, width, d); with `squares` one row more for Z∘Z."""

    def __init__(self, X: Array, width: int, squares: bool) -> None:
        (n, d), self.X, self.width, self.squares = X.shape, X, width, squares
        self.tile = tile = back_tile(width, squares)
        self.blocks = triton.cdiv(d, tile.COLUMNS)
        most = triton.cdiv(n * self.blocks, PROGRAMS * tile.ROWS) * tile.ROWS
        self.run = max(tile.ROWS, min(LONGEST_RUN, most))
        shape = (triton.cdiv(n, self.run), width + squares, d)
        self.out = torch.empty(shape, dtype=torch.float32, device=X.device)

    def launcher(
        self, units: Array, R: Array, squares_of: int = 0, squared: bool = False
    ) -> Callable[[], Any]:
        """Return a function that computes the sums for R, stored by columns.

        `squares_of` is the column that is multiplied by Z∘Z.
        """
        if not self.out.shape[0]:
            return lambda: None
        *size, vector = shape_of(self.X)
        return partial(
            back_kernel[(self.blocks, self.out.shape[0])],
            self.X, units, R, self.out, *size, 1.0, self.run, squares_of, vector,
            squared, self.squares, self.width, **self.tile._asdict(),
        )  # fmt: skip


def padded_width(columns: int) -> int:
    """Return the number of columns, padded with zeros, that the tensor units need."""
    return int(max(NARROWEST, triton.next_power_of_2(columns)))


def _slabs(Q: Array) -> list[tuple[int, Array]]:
    """Return the columns of a factor in slabs, stored by columns, with the width of each."""
    slabs = []
    for first in range(0, Q.shape[1], WIDEST):
        slab = Q[:, first : first + WIDEST].to(torch.float32)
        width = padded_width(slab.shape[1])
        padded = torch.nn.functional.pad(slab.T, (0, 0, 0, width - slab.shape[1]))
        slabs.append((slab.shape[1], padded.contiguous()))
    return slabs


@dataclass(frozen=True)
class PassShape:
    """The shapes of a pass: passes of the same shape use the same memory.

    The residuals themselves are in the column after the products that multiply them.
    """

    d: int
    k: int  # columns of the first factor, before the linear one
    first: int  # the same with the linear one, padded with zeros
    second: int  # columns of the second factor, likewise, 0 without it
    paired: bool  # whether the columns of the two factors are multiplied with each other
    left_out: bool  # whether some squares are left out
    answers: int  # products that multiply the residuals
    target: bool  # whether targets are subtracted
    squares: bool  # whether P2 is needed

    @property
    def width(self) -> int:
        """Return the number of columns of the answer, including those of zeros."""
        return self.first if self.paired or not self.second else self.second

    @property
    def parts(self) -> tuple[int, int, int]:
        """Return where in the buffer the two factors and the left-out squares begin."""
        second = (4 + self.d) * self.first
        return 4 * self.first, second, second + self.d * self.second

    @property
    def size(self) -> int:
        """Return how many numbers the buffer holds."""
        return self.parts[2] + self.left_out * self.d


def planned(
    fn: Callable[..., Any], params: tuple[Any, ...]
) -> tuple[PassShape, Asked, Units] | None:
    """Return the shape of a pass with numpy parameters; None if the kernels cannot compute it."""
    if fn is residual_sums:
        defaults: tuple[Any, ...] = (None, True, "squared")
        model, units, Q, squares, loss = (*params, *defaults[len(params) - 2 :])
        if loss != "squared":
            return None
        asked, target = residuals_asked(model, Q), True
    elif fn is change_sums and len(params) == 3 and params[0].H.shape[1] == 1:
        steps, units, squares = params
        asked, target = changes_asked(steps, units), False
    else:
        return None
    shape = _shape_of_pass(asked, target, squares) if units.scale.dtype == np.float32 else None
    return None if shape is None else (shape, asked, units)


def _shape_of_pass(asked: Asked, target: bool, squares: bool) -> PassShape | None:
    response, (d, k) = asked.response, (asked.columns.shape[0], asked.response.factor.shape[0])
    paired, by_first = response.right > 0, response.action.start == 0
    answers = response.action.stop - response.action.start
    first = second = padded_width(k + 1)
    if not paired:
        second = 0 if by_first else padded_width(answers + 1)
    if max(first, second) > WIDEST or (paired and not by_first):
        return None
    left_out = response.assembly.left_out is not None
    return PassShape(d, k, first, second, paired, left_out, answers, target, squares)


def write(asked: Asked, shape: PassShape, buffer: np.ndarray) -> None:
    """Write coefficients, both factors and the left-out squares; the rest stays zero."""
    response, Y = asked.response, asked.columns
    d, k, first, paired = shape.d, shape.k, shape.first, shape.paired
    begin, second, end = shape.parts
    coefficients = buffer[:begin].reshape(4, first)
    coefficients[1 if paired else 0, :k] = response.factor
    coefficients[2, k], coefficients[3, 0] = 1.0, response.assembly.constant[0]
    if paired:
        both = buffer[begin:end].reshape(first, 2, d)
        both[: k + 1, 0] = Y[:, : k + 1].T
        both[:k, 1] = Y[:, response.right : response.right + k].T
    else:
        buffer[begin:second].reshape(first, d)[: k + 1] = Y[:, : k + 1].T
    if shape.second and not paired:
        buffer[second:end].reshape(-1, d)[: shape.answers] = Y[:, response.action].T
    left_out = response.assembly.left_out
    if left_out is not None:
        buffer[end:] = left_out[:, 0]


class PreparedPass:
    """A pass of one shape over rows that stay on the device, in memory that is reserved once."""

    def __init__(self, shape: PassShape, chunk: Chunk, y: Array, units: Array) -> None:
        X, self.shape = chunk.X, shape
        self.device = X.device if X.is_cuda else None

        def here(size: int) -> Array:
            return torch.empty(size, dtype=torch.float32, pin_memory=X.is_cuda)

        def there(*sizes: int) -> Array:
            return torch.empty(sizes, dtype=torch.float32, device=X.device)

        size = HEAD + (shape.width + shape.squares) * shape.d
        self.asked, self.sent = here(shape.size), there(shape.size)
        self.asked.numpy().fill(0.0)  # torch would wake its threads for this
        self.result, self.brought = there(size), here(size)  # Σωr² and Σωr in float64, all sums
        self.kernels = self._kernels(chunk, y, units, there)

    def __call__(self, asked: Asked) -> tuple[np.ndarray, np.ndarray]:
        """Return Σωr² and Σωr in float64, and all sums in float32."""
        write(asked, self.shape, self.asked.numpy())
        self.sent.copy_(self.asked, non_blocking=True)
        for kernel in self.kernels:
            kernel()
        self.brought.copy_(self.result, non_blocking=True)
        if self.device is not None:
            torch.cuda.current_stream(self.device).synchronize()
        brought = self.brought.numpy().copy()  # the next pass writes there
        return brought[:HEAD].view(np.float64), brought[HEAD:]

    def _kernels(
        self, chunk: Chunk, y: Array, units: Array, there: Callable[..., Array]
    ) -> tuple[Callable[[], Any], ...]:
        """Return the launches of the three kernels, with all their arguments."""
        X, shape, sent = chunk.X, self.shape, self.sent
        n, *size, vector = shape_of(X)
        first, second, left_out = shape.parts
        weighted = chunk.weight is not None
        weight = y if chunk.weight is None else chunk.weight.to(torch.float32).contiguous()
        factors = 2 if shape.second and not shape.paired else 1
        tile = forward_tile(shape.first + shape.second, factors)
        programs = triton.cdiv(n, tile.ROWS)
        answer, residuals = there(shape.width, n), there(2, programs)
        respond = partial(
            respond_kernel[(programs,)],
            X, units, sent[first:], sent[second:] if shape.second else sent,
            sent[left_out:] if shape.left_out else sent, sent, y, weight, answer, residuals,
            n, *size, 1.0, shape.answers, vector, shape.second > 0, shape.paired,
            shape.left_out, shape.target, weighted, shape.first, shape.second or NARROWEST,
            **tile._asdict(),
        )  # fmt: skip
        runs = Runs(X, shape.width, shape.squares)
        head, body = self.result[:HEAD].view(torch.float64), self.result[HEAD:]
        total = partial(
            total_kernel[(1 + triton.cdiv(body.shape[0], TOTAL_COLUMNS),)],
            runs.out, residuals, body, head,
            runs.out.shape[0], body.shape[0], programs, TOTAL_RUNS, TOTAL_COLUMNS,
        )  # fmt: skip
        return respond, runs.launcher(units, answer, shape.answers), total


def summed(
    shape: PassShape, blocks: Iterable[tuple[np.ndarray, np.ndarray]], weight: float
) -> Sums:
    """Return the sums of a pass over one or several blocks of rows."""
    (residuals, body), *others = blocks
    if others:
        residuals = residuals + sum(other[0] for other in others)
        body = sum((other[1] for other in others), body.astype(np.float64)).astype(np.float32)
    rows = body.reshape(-1, shape.d)
    p1 = rows[shape.answers][:, None]
    p2 = rows[shape.width][:, None] if shape.squares else np.zeros_like(p1)
    action = np.ascontiguousarray(rows[: shape.answers].T)[:, None, :]
    return Sums(weight, float(residuals[0]), residuals[1:], p1, p2, action)
