"""One block of standardised rows as an operator, without a standardised copy of it."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import Array, namespace
from quadlin.core.compiled import DenseKernel, Kernel
from quadlin.core.compiled_sparse import SparseKernel
from quadlin.core.library import gpu_kernels
from quadlin.core.pieces import BlockPiece, Pieces, with_data
from quadlin.core.response import Passed, Response
from quadlin.core.units import Units

Respond = Callable[[Array, Array | None, slice], tuple[Array, Array]]
Residuals = Callable[[Array, Array | None, slice], tuple[Array, Array, Array]]


class Block:
    r"""Standardised rows of one block, used only through their products.

    .. math:: Z = X D - 1\nu^\top

    D scales and ν = μ/σ centres, both inside the products: the block is not copied. Columns whose
    mean is far from zero are standardised outright, a few rows at a time. The compiled kernel, if
    it takes the rows, standardises all columns outright, a few rows at a time.
    """

    def __init__(self, X: Array, units: Units) -> None:
        self.X, self.units, self.xp = X, units, namespace(X)

    @cached_property
    def pieces(self) -> Pieces:
        """Return the rows as the reference multiplies them."""
        return Pieces(self.X, self.units)

    @cached_property
    def kernel(self) -> Kernel | None:
        """Return the compiled kernel of the rows; None if there is none."""
        if issparse(self.X):
            return SparseKernel.of(self.pieces)
        if isinstance(self.X, np.ndarray):
            return DenseKernel.of(self.X, self.units)
        kernels = gpu_kernels(self.X)
        return None if kernels is None else kernels.TritonKernel.of(self.X, self.units)

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return int(self.X.shape[0])

    def matmul(self, Q: Array) -> Array:
        """Return Z Q for skinny Q (d, q)."""
        return self.products(Q, None)[0]

    def products(self, Q: Array, S: Array | None) -> tuple[Array, Array | None]:
        """Return Z Q and (Z∘Z) S, None without S, from one read of the rows."""
        if self.kernel is not None:
            return self.kernel.products(Q, S)
        first, second = [], []
        forward = self._forward(Q, S)
        for piece in self.pieces:
            ZQ, squares = forward(piece, None if S is None else self.pieces.squared(piece))
            first.append(ZQ)
            second.append(squares)
        stacked = self.pieces.stacked
        ZQ = stacked(first, Q.shape[1])
        return ZQ, None if S is None else stacked(second, S.shape[1])

    def rmatmul(self, R: Array) -> Array:
        """Return Zᵀ R for R (n, q) or (n,)."""
        if R.ndim == 1:
            return self.rmatmul(R[:, None])[:, 0]
        if self.kernel is not None:
            return self.kernel.sums(R, 0)[0]
        sums = None
        for piece in self.pieces:
            sums = self.pieces.back(piece, R[piece.part, :]).plus(sums)
        return self.pieces.standardised_sums(sums or self.pieces.nothing(R.shape[1]))

    def through(
        self, Q: Array, respond: Respond, S: Array | None, squares: bool
    ) -> tuple[Array, Array, Array | None]:
        """Return Zᵀ A, Zᵀ R and, if `squares`, (Z∘Z)ᵀ R, where A, R = respond(Z Q, (Z∘Z) S).

        Rows are read from memory once: each run of them is multiplied by Q, given to `respond` and
        multiplied back while it is in the cache.

        Parameters
        ----------
        Q : array of shape (d, q)
        respond : callable
            Gets Z Q, (Z∘Z) S (None without S) and which rows they are of; returns A and R of those
            rows.
        S : array of shape (d, p) or None
        squares : bool
            Whether (Z∘Z)ᵀ R is needed.
        """
        if self.kernel is not None:
            return self.kernel.through(Q, respond, S, squares)
        forward = self._forward(Q, S)
        pieces, first, second, m = self.pieces, None, None, 0
        for piece in pieces if self.n_rows else [BlockPiece(slice(0, 0), None, None)]:
            squared = pieces.squared(piece) if squares or S is not None else None
            A, R = respond(*forward(piece, squared), piece.part)
            first, m = pieces.back(piece, self.xp.concat([R, A], axis=1)).plus(first), R.shape[1]
            if squared is not None and squares and pieces.level is None:
                second = pieces.back(squared, R).plus(second)
        assert first is not None
        back = self.pieces.standardised_sums(first)
        p2 = self.pieces.standardised_squares(second, first.leading(m)) if squares else None
        return back[:, m:], back[:, :m], p2

    def passed(self, Q: Array, residuals: Residuals, S: Array | None, squares: bool) -> Passed:
        """Return the sums of residuals, from one read of the rows.

        Parameters
        ----------
        Q : array of shape (d, q)
        residuals : Response or callable
            Gets Z Q, (Z∘Z) S (None without S) and which rows they are of; returns the residuals
            (n, m) of those rows, the weighted residuals and the products (n, a) that they are
            multiplied by.
        S : array of shape (d, p) or None
        squares : bool
            Whether P2 is needed.
        """
        if self.kernel is not None and isinstance(residuals, Response):
            return self.kernel.passed(Q, residuals, S, squares)
        xp, weighted, losses = self.xp, [], []

        def respond(products: Array, square: Array | None, part: slice) -> tuple[Array, Array]:
            r, weighted_r, ZQ = residuals(products, square, part)
            weighted.append(weighted_r)
            losses.append(weighted_r * r)
            columns = weighted_r[:, :, None] * ZQ[:, None, :]
            return xp.reshape(columns, (r.shape[0], r.shape[1] * ZQ.shape[1])), weighted_r

        action, p1, p2 = self.through(Q, respond, S, squares)
        p0 = xp.sum(xp.astype(xp.concat(weighted), xp.float64), axis=0)
        loss = float(xp.sum(xp.astype(xp.concat(losses), xp.float64)))
        return Passed(action, p1, p2, p0, loss)

    def gram(self, weight: Array | None) -> Array:
        """Return Zᵀ diag(weight) Z, a d×d matrix, which is formed only on request."""
        omega = None if weight is None else self.pieces.in_dtype(weight)
        if not self.pieces.sparse:
            Z = self.units.standardised(self.X)
            if omega is not None:
                Z *= self.xp.sqrt(omega)[:, None]  # a copy already: no other is made
            return Z.T @ Z
        if not self.n_rows:
            return self.pieces.zeros(self.X.shape[1], self.X.shape[1])
        piece, o, far = next(iter(self.pieces)), self.pieces.shift, self.pieces.far
        omega = np.ones(self.n_rows, self.pieces.scale.dtype) if omega is None else omega
        S = with_data(piece.near, piece.near.data * self.pieces.scale[piece.near.indices])
        scaled = with_data(S, S.data * np.repeat(omega, np.diff(S.indptr)))
        total = S.T @ omega
        product = (S.T @ scaled).toarray() - np.outer(total, o) - np.outer(o, total)
        product += omega.sum() * np.outer(o, o)
        if far is not None:  # whose rows and columns are zero so far
            F = omega[:, None] * piece.far
            cross = S.T @ F - np.outer(o, F.sum(axis=0))
            cross[far] = piece.far.T @ F / 2
            product[:, far] += cross
            product[far] += cross.T
        return product

    def _forward(
        self, Q: Array, S: Array | None
    ) -> Callable[[BlockPiece, BlockPiece | None], tuple[Array, Array | None]]:
        """Return the function that computes Z Q and (Z∘Z) S from a piece and its squares.

        Z∘Z = X²D² − 2XDν + ν²: the second term is a product with X, and so is the first where
        every entry of X that is stored is the same number.
        """
        pieces, scale, o, q = (
            self.pieces,
            self.pieces.scale[:, None],
            self.pieces.shift[:, None],
            Q.shape[1],
        )
        crossed = self.pieces.shifted or pieces.level is not None
        if S is not None:
            square_weights, far_squares = scale**2 * S, pieces.of_far(S)
        if S is not None and crossed:
            cross = 2 * o * S if pieces.level is None else (2 * o - pieces.level * scale) * S
            Q = self.xp.concat([Q, cross], axis=1)
            square_constant = self.pieces.shift @ cross - self.pieces.shift**2 @ S
        weights, constant, far = scale * Q, self.pieces.shift @ Q, pieces.of_far(Q)

        def forward(piece: BlockPiece, squared: BlockPiece | None) -> tuple[Array, Array | None]:
            products = pieces.product(piece, weights, far)
            if self.pieces.shifted:
                products -= constant
            if S is None or squared is None:
                return products, None
            squares = -products[:, q:] - square_constant if crossed else 0
            if pieces.level is None:
                squares = squares + pieces.product(squared, square_weights, far_squares)
            return products[:, :q], squares

        return forward
