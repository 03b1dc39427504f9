r"""Two Triton kernels for passes over float32 rows on a GPU, with ``QUADLIN_KERNEL=triton``.

.. math:: Z Q,\ (Z \circ Z) S \qquad\text{and}\qquad Z^\top R,\ (Z \circ Z)^\top R

Rows are standardised outright in registers, so nothing of the size of a block is written. The first
kernel has one program per run of rows. In the second each program adds up a run of rows for a few
columns, and the sums of the runs are added in float64, in order: the result is the same each time.
Products are taken on the tensor units in three parts, whose error is that of float32 (``tf32x3``).
"""

import os
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from quadlin.core.arrays import Array
from quadlin.core.compiled import Kernel, Respond
from quadlin.core.response import Passed, Response, quadratic_forms
from quadlin.core.units import Units

ROWS, COLUMNS = 64, 64  # of a tile of X
NARROWEST, WIDEST = 16, 64  # columns of the other factor that a program takes
RUN = 2048  # rows that a program adds up in float32
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


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
    return tl.where(inside, (z - mean[None, :]) * scale[None, :] - rest[None, :], 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    x,
    units,
    factor,
    out,
    n,
    d,
    row_stride,
    column_stride,
    SQUARED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    width = tl.arange(0, WIDTH)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for first in range(0, d, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        z = _standardised(x, units, rows, columns, n, d, row_stride, column_stride)
        if SQUARED:
            z = z * z
        place = columns[:, None] * WIDTH + width[None, :]
        q = tl.load(factor + place, mask=(columns < d)[:, None], other=0.0)
        total += tl.dot(z, q, input_precision="tf32x3")
    place = rows.to(tl.int64)[:, None] * WIDTH + width[None, :]
    tl.store(out + place, total, mask=(rows < n)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _back(  # type: ignore[no-untyped-def]
    x,
    units,
    factor,
    out,
    n,
    d,
    row_stride,
    column_stride,
    run,
    SQUARED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    width = tl.arange(0, WIDTH)
    total = tl.zeros((COLUMNS, WIDTH), dtype=tl.float32)
    start = tl.program_id(1) * run
    for first in range(start, start + run, ROWS):
        rows = first + tl.arange(0, ROWS)
        z = _standardised(x, units, rows, columns, n, d, row_stride, column_stride)
        if SQUARED:
            z = z * z
        place = rows.to(tl.int64)[:, None] * WIDTH + width[None, :]
        r = tl.load(factor + place, mask=(rows < n)[:, None], other=0.0)
        total += tl.dot(tl.trans(z), r, input_precision="tf32x3")
    place = tl.program_id(1).to(tl.int64) * d * WIDTH + columns[:, None] * WIDTH + width[None, :]
    tl.store(out + place, total, mask=(columns < d)[:, None])


class TritonKernel(Kernel):
    """Products with standardised float32 rows, torch tensors on a GPU."""

    def __init__(self, X: Array, units: Units) -> None:
        super().__init__(X, np.dtype(np.float32))
        self.units = torch.stack([units.mean, units.scale, units.rest]).contiguous()

    @classmethod
    def of(cls, X: Array, units: Units) -> "TritonKernel | None":
        """Return the kernel for some rows; None where plain torch must do."""
        near = isinstance(X, torch.Tensor) and (X.is_cuda or INTERPRETED)
        if not near or X.dtype != torch.float32 or units.scale.dtype != torch.float32:
            return None
        return cls(X, units)

    def products(self, Q: Array, S: Array | None) -> tuple[Array, Array | None]:
        """Return Z Q and (Z∘Z) S, None without S."""
        return self._forward(Q, False), None if S is None else self._forward(S, True)

    def forms(
        self, A: Array, cores: Any, w: Array, S: Array | None
    ) -> tuple[Array, Array, Array | None]:
        """Return Z w, the quadratic forms of the rows of Z A and (Z∘Z) S, None without S."""
        products, squares = self.products(torch.cat([A, w], dim=1), S)
        a = A.shape[1]
        return products[:, a:], quadratic_forms(products[:, :a], cores), squares

    def sums(self, R: Array, square_columns: int) -> tuple[Array, Array]:
        """Return Zᵀ R, and (Z∘Z)ᵀ R for the first columns of R."""
        return self._back(R, False), self._back(R[:, :square_columns], True)

    def through(
        self, Q: Array, respond: Respond, S: Array | None, squares: bool
    ) -> tuple[Array, Array, Array | None]:
        """Return Zᵀ A, Zᵀ R and, if `squares`, (Z∘Z)ᵀ R, where A, R = respond(Z Q, (Z∘Z) S)."""
        A, R = respond(*self.products(Q, S), slice(0, self.X.shape[0]))
        m = R.shape[1]
        back, second = self.sums(torch.cat([R, A], dim=1), m if squares else 0)
        return back[:, m:], back[:, :m], second if squares else None

    def passed(self, Q: Array, response: Response, S: Array | None, squares: bool) -> Passed:
        """Return what the residuals of a response say of the rows."""
        products, square = self.products(Q, S)
        r, weighted, ZQ = response(products, square, slice(0, self.X.shape[0]))
        m = r.shape[1]
        columns = (weighted[:, :, None] * ZQ[:, None, :]).reshape(r.shape[0], -1)
        back, p2 = self.sums(torch.cat([weighted, columns], dim=1), m if squares else 0)
        loss = float((weighted * r).sum(dtype=torch.float64))
        p0 = weighted.sum(dim=0, dtype=torch.float64)
        return Passed(back[:, m:], back[:, :m], p2 if squares else None, p0, loss)

    def _forward(self, Q: Array, squared: bool) -> Array:
        n, d = self.X.shape
        slabs = [torch.empty((n, 0), dtype=torch.float32, device=self.X.device)]
        for slab, factor in _slabs(Q):
            out = torch.empty((n, factor.shape[1]), dtype=torch.float32, device=self.X.device)
            if n:
                grid = (triton.cdiv(n, ROWS),)
                _forward[grid](
                    self.X, self.units, factor, out, n, d, *self.X.stride(),
                    squared, factor.shape[1], ROWS, COLUMNS,
                )  # fmt: skip
            slabs.append(out[:, :slab])
        return torch.cat(slabs, dim=1)

    def _back(self, R: Array, squared: bool) -> Array:
        n, d = self.X.shape
        runs = triton.cdiv(n, RUN)
        slabs = [torch.empty((d, 0), dtype=torch.float32, device=self.X.device)]
        for slab, factor in _slabs(R):
            shape = (runs, d, factor.shape[1])
            out = torch.empty(shape, dtype=torch.float32, device=self.X.device)
            if n:
                grid = (triton.cdiv(d, COLUMNS), runs)
                _back[grid](
                    self.X, self.units, factor, out, n, d, *self.X.stride(), RUN,
                    squared, factor.shape[1], ROWS, COLUMNS,
                )  # fmt: skip
            slabs.append(out[:, :, :slab].sum(dim=0, dtype=torch.float64).to(torch.float32))
        return torch.cat(slabs, dim=1)


def _slabs(Q: Array) -> list[tuple[int, Array]]:
    """Return the columns of a factor in slabs as wide as a power of two, and their true widths."""
    slabs = []
    for first in range(0, Q.shape[1], WIDEST):
        slab = Q[:, first : first + WIDEST].to(torch.float32)
        width = max(NARROWEST, triton.next_power_of_2(slab.shape[1]))
        padded = torch.nn.functional.pad(slab, (0, width - slab.shape[1]))
        slabs.append((slab.shape[1], padded.contiguous()))
    return slabs
