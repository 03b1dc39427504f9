"""Passes over float32 rows on a GPU by the Triton kernels of `triton_pass`.

Each program of the backward kernel adds up a run of rows in float32. The sums of the runs are
added in float64, in order, so the result is the same each time.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import triton

from quadlin.core.arrays import Array
from quadlin.core.compiled import Kernel, Respond
from quadlin.core.response import Passed, Response, quadratic_forms
from quadlin.core.units import Units
from quadlin.data.gpu import triton_pass

NARROWEST, WIDEST = 16, 64  # columns of a factor that a program takes
LONGEST_RUN, PROGRAMS = 2048, 1024  # rows that a program adds up, and programs at least
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Tile(NamedTuple):
    """How much of X a program loads at a time, and how it is launched."""

    rows: int
    columns: int
    warps: int
    stages: int

    @property
    def how(self) -> dict[str, int]:
        """Return the arguments of a launch."""
        return {
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


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
        """Return the kernel for some rows; None if they need plain torch."""
        return cls(X, units) if takes(X) and units.scale.dtype == torch.float32 else None

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
        """Return the sums of the residuals of a response over the rows."""
        products, square = self.products(Q, S)
        r, weighted, ZQ = response(products, square, slice(0, self.X.shape[0]))
        m = r.shape[1]
        columns = (weighted[:, :, None] * ZQ[:, None, :]).reshape(r.shape[0], -1)
        back, p2 = self.sums(torch.cat([weighted, columns], dim=1), m if squares else 0)
        p0 = weighted.sum(dim=0, dtype=torch.float64)
        loss = float((weighted * r).sum(dtype=torch.float64))
        return Passed(back[:, m:], back[:, :m], p2 if squares else None, p0, loss)

    def _forward(self, Q: Array, squared: bool) -> Array:
        n = self.X.shape[0]
        slabs = [torch.empty((n, 0), dtype=torch.float32, device=self.X.device)]
        for slab, factor in _slabs(Q):
            width = factor.shape[0]
            out = torch.empty((n, width), dtype=torch.float32, device=self.X.device)
            if n:
                tile, (*size, vector) = forward_tile(width), shape_of(self.X)
                triton_pass.forward[(triton.cdiv(n, tile.rows),)](
                    self.X, self.units, factor, out, *size, 1.0, vector, squared, width, **tile.how
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
    return on_gpu and X.dtype == torch.float32 and os.environ.get("QUADLIN_KERNEL") != "torch"


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
        self.blocks = triton.cdiv(d, tile.columns)
        most = triton.cdiv(n * self.blocks, PROGRAMS * tile.rows) * tile.rows
        self.run = max(tile.rows, min(LONGEST_RUN, most))
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
            triton_pass.back[(self.blocks, self.out.shape[0])],
            self.X, units, R, self.out, *size, 1.0, self.run, squares_of, vector,
            squared, self.squares, self.width, **self.tile.how,
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
