"""The rows of one block as they are given, cut into pieces that are multiplied in the cache."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core import numpy_kernel
from quadlin.core.arrays import Array, is_numpy, namespace, remembered
from quadlin.core.units import Units

# Z Q = X(D Q) − 1(νᵀQ) subtracts what the means contribute after it has been rounded. With unit
# roundoff u, entries of Z of size 1 and ν the means over the standard deviations, it errs by about
# u|ν| in a product and by u(1 + |ν|)² in a square; and where all columns of Q point along ν, the
# sums that cancel are as large as ‖ν‖, so that they err by u‖ν‖ (times √d/6 for the rounding of d
# additions). A column beyond the first line, or all of them where ‖ν‖ is beyond the second, is
# therefore centred outright: (x − μ) is exact to u|x − μ|. Below the lines squares err by less than
# 5e-7 in float32 and 1e-12 in float64, products by less than 2e-6 and 5e-12 in the worst direction,
# and by u|ν_j| in others. In float32 the lines lie where a fit takes as many steps as with rows
# that are centred outright: with means of 5σ it takes up to three times as many. A sparse column
# with |ν_j| > 1 has more entries than zeros, so that centring it at most doubles it.
FAR = {4: 1.0, 8: 100.0}  # |ν_j|, by the bytes of a number
FAR_TOGETHER = {4: 8.0, 8: 1e4}  # ‖ν‖
FIRST = 64  # entries of sparse rows: if any differ, these usually do
FEW = 8  # if more than one column in this many is far, all are centred


class BlockPiece(NamedTuple):
    """Some rows: the columns that are centred implicitly, and those that are standardised."""

    part: slice
    near: Array  # (b, d) as given, dense or CSR; None where all are far
    far: Array  # (b, f) standardised; None where none is


class Back(NamedTuple):
    """Sums over rows: Rᵀ X, with the far columns standardised, and Rᵀ 1."""

    near: Array  # (q, d), or None
    far: Array  # (q, f), or None
    total: Array  # (q,)

    def plus(self, other: "Back | None") -> "Back":
        """Add the sums of other rows."""
        if other is None:
            return self
        near = None if self.near is None else self.near + other.near
        far = None if self.far is None else self.far + other.far
        return Back(near, far, self.total + other.total)

    def leading(self, columns: int) -> "Back":
        """Return the sums of the first columns of R."""
        near = None if self.near is None else self.near[:columns, :]
        far = None if self.far is None else self.far[:columns, :]
        return Back(near, far, self.total[:columns])


class Pieces:
    """Rows of any layout: dense numpy rows in tiles, sparse and other arrays in one piece.

    `scale` and `shift` standardise the near columns, and are zero for the far ones.
    """

    def __init__(self, X: Array, units: Units) -> None:
        self.X, self.units, self.xp = X, units, namespace(X)
        self.sparse, self.dtype = issparse(X), units.scale.dtype
        self.tiled = not self.sparse and is_numpy(X)
        self.scale, self.shift = units.scale, units.nu
        # Rows whose squares would leave the range of numbers are scaled outright.
        self.outright = wild(units)
        # Dense rows with many means far from zero are centred outright, a piece at a time.
        self.centred = not self.sparse and not self.outright and many_far(self.shift)
        if self.centred:
            self.shift = units.rest
        self.all_far = self.outright and not self.sparse
        if self.all_far:
            self.scale = self.shift = self.xp.zeros_like(units.scale)
        mask = far_columns(self.shift)
        self.far: Array = None  # the places of the columns that are standardised outright
        if bool(self.xp.any(mask)):
            xp, d = self.xp, X.shape[1]
            self.far = xp.nonzero(mask)[0]
            # Where the sums of each column are, far ones last.
            last = d - 1 + xp.cumulative_sum(xp.astype(mask, xp.int64))
            self.order = xp.where(mask, last, xp.arange(d, device=mask.device))
            self.scale, self.shift = (
                xp.where(mask, xp.zeros_like(v), v) for v in (self.scale, self.shift)
            )
        if self.outright and self.sparse:
            self.scale = np.where(self.scale > 0, self.scale.dtype.type(1), self.scale)
        # X∘X = level · X, as for one-hot rows; None where it is not.
        self.level = None if self.outright or self.far is not None else _level(X, self.dtype)
        self.shifted = bool(self.xp.any(self.shift != 0))

    def __iter__(self) -> Iterator[BlockPiece]:
        """Yield the rows in runs; each is valid until the next."""
        (n, d), mean = self.X.shape, self.units.mean
        if not self.tiled:
            if n and self.all_far:
                yield BlockPiece(slice(0, n), None, self._far_of(self.X))
            elif n:
                near = self._sparse_rows() if self.sparse else self.in_dtype(self.X)
                near = near - mean if self.centred else near
                yield BlockPiece(slice(0, n), near, self._far_of(self.X))
            return
        for part in numpy_kernel.pieces(n, d * self.dtype.itemsize):
            x = self.X[part]
            near = None
            if not self.all_far:
                near = numpy_kernel.prepared(x, self.dtype, mean if self.centred else None)
            yield BlockPiece(part, near, self._far_of(x))

    def squared(self, piece: BlockPiece) -> BlockPiece:
        """Return the squares of all entries, or the piece itself where they are a multiple."""
        near = piece.near
        if near is not None and self.level is None:
            if self.sparse:
                near = with_data(near, near.data * near.data)
            else:
                near = numpy_kernel.squared(near) if self.tiled else near * near
        far = piece.far
        return piece._replace(near=near, far=None if far is None else far * far)

    def product(self, piece: BlockPiece, near_weights: Array, far_weights: Array | None) -> Array:
        """Return the product of a piece with weights of the near columns and of the far ones."""
        if piece.near is None and piece.far is None:
            return self.zeros(0, near_weights.shape[1])
        if piece.near is None:
            return self._times(piece.far, far_weights)
        product = self._times(piece.near, near_weights)
        return product if piece.far is None else product + piece.far @ far_weights

    def back(self, piece: BlockPiece, R: Array) -> Back:
        """Return Rᵀ of a piece."""
        if R.shape[0] == 0:
            return self.nothing(R.shape[1])
        if self.tiled:
            near, far = (
                None if x is None else numpy_kernel.transposed_times(x, R)
                for x in (piece.near, piece.far)
            )
            return Back(near, far, R.sum(axis=0))
        near = None if piece.near is None else (piece.near.T @ R).T
        return Back(near, None if piece.far is None else R.T @ piece.far, self.xp.sum(R, axis=0))

    def nothing(self, q: int) -> Back:
        """Return the sums over no rows."""
        near = None if self.all_far else self.zeros(q, self.X.shape[1])
        far = None if self.far is None else self.zeros(q, self.far.shape[0])
        if self.all_far:
            far = self.zeros(q, self.X.shape[1])
        return Back(near, far, self.zeros(q, 1)[:, 0])

    def of_far(self, Q: Array) -> Array | None:
        """Return the rows of Q (d, q) that belong to the far columns."""
        if self.all_far:
            return Q
        return None if self.far is None else self.xp.take(Q, self.far, axis=0)

    def merged(self, near: Array, far: Array | None) -> Array:
        """Lay the sums of all columns in order."""
        if far is None:
            return near
        return self.xp.take(self.xp.concat([near, far.T], axis=0), self.order, axis=0)

    def standardised_sums(self, sums: Back) -> Array:
        """Return Zᵀ R of the sums Rᵀ X."""
        if sums.near is None:
            return sums.far.T
        near = self.scale[:, None] * sums.near.T
        if self.shifted:
            near -= self.shift[:, None] * sums.total
        return self.merged(near, sums.far)

    def standardised_squares(self, squares: Back | None, sums: Back) -> Array:
        """Return (Z∘Z)ᵀ R of the sums Rᵀ (X∘X) and Rᵀ X.

        The first are None where there are no rows, or where they are a multiple of the others.
        """
        if squares is None:
            level = 0 if self.level is None else self.level
            squares = sums if sums.near is None else sums._replace(near=level * sums.near)
        if squares.near is None:
            return squares.far.T
        scale, o = self.scale[:, None], self.shift[:, None]
        near = scale**2 * squares.near.T
        if self.shifted:
            near += o**2 * sums.total - 2 * scale * o * sums.near.T
        return self.merged(near, squares.far)

    def stacked(self, products: list[Array], columns: int) -> Array:
        """Return the products of all pieces below one another."""
        if not products:
            return self.zeros(0, columns)
        return products[0] if len(products) == 1 else self.xp.concat(products, axis=0)

    def in_dtype(self, a: Array) -> Array:
        """Return an array in the dtype of the products."""
        return self.xp.astype(a, self.dtype, copy=False)

    def zeros(self, *shape: int) -> Array:
        """Return zeros where the rows are."""
        device = None if self.sparse else self.X.device
        return self.xp.zeros(shape, dtype=self.dtype, device=device)

    def _times(self, x: Array, W: Array) -> Array:
        if self.tiled:
            return numpy_kernel.times(x, W)
        # In the order of `numpy_kernel.times`, and for the same reason.
        return np.asfortranarray(x @ W) if self.sparse else x @ W

    def _sparse_rows(self) -> csr_array:
        if self.X.dtype == self.dtype and not self.outright:
            return self.X
        data = self.in_dtype(self.X.data)
        if self.outright:
            data = data * self.units.scale[self.X.indices]
        return with_data(self.X, data)

    def _far_of(self, X: Array) -> Array | None:
        if self.all_far:
            return self.units.standardised(X)
        return None if self.far is None else self.units.standardised(X, self.far)


def with_data(X: csr_array, data: np.ndarray) -> csr_array:
    """Return sparse rows with other numbers in the same places."""
    return csr_array((data, X.indices, X.indptr), shape=X.shape)


def _level(X: Array, dtype: np.dtype) -> Array:
    """Return the value of all entries that sparse rows store, or None where they differ."""
    if not issparse(X) or not X.nnz:
        return None
    for entries in (X.data[:FIRST], X.data):  # where they differ, the first ones tell
        if entries.min() != entries.max():
            return None
    level = X.data[:1].astype(dtype)
    return _ones(level.dtype) if level == 1 else level


@cache
def _ones(dtype: np.dtype) -> np.ndarray:
    """Return the level of one-hot rows, always the same array: see `remembered`."""
    return np.ones(1, dtype)


@remembered
def far_columns(nu: Array) -> Array:
    """Mark the columns that are standardised outright."""
    return namespace(nu).abs(nu) > FAR[_bytes(nu)]


def many_far(nu: Array) -> bool:
    """Tell whether the columns of dense rows are better centred outright, all of them."""
    xp, far = namespace(nu), far_columns(nu)
    together = float(xp.sum(xp.where(far, xp.zeros_like(nu), nu * nu)))
    count = int(xp.sum(xp.astype(far, xp.int64)))
    return together > FAR_TOGETHER[_bytes(nu)] ** 2 or FEW * count > far.shape[0]


@remembered
def wild(units: Units) -> bool:
    """Tell whether squares, in the user's units, may leave the range of numbers."""
    xp, scale = namespace(units.scale), units.scale
    root = float(xp.finfo(scale.dtype).max) ** (1 / 3)
    small = (scale > 0) & (scale < 1 / root)
    return bool(xp.any(small | (scale > root) | (xp.abs(units.mean) > root)))


def _bytes(a: Array) -> int:
    return int(namespace(a).finfo(a.dtype).bits) // 8
