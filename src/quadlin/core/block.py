"""One block of standardised rows as an operator, without a standardised copy of it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core import kernel
from quadlin.core.arrays import Array, is_numpy, namespace
from quadlin.core.kernel_far import far_columns, wild
from quadlin.core.units import Units

Response = Callable[[Array, Array | None, slice], Array]


class Piece(NamedTuple):
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

    def last(self) -> "Back":
        """Return those of the last column of R."""
        near = None if self.near is None else self.near[-1:, :]
        far = None if self.far is None else self.far[-1:, :]
        return Back(near, far, self.total[-1:])


class Block:
    r"""Standardised rows of one block, known by their products alone.

    .. math:: Z = X D - 1\nu^\top

    D scales and ν = μ/σ centres, both inside the products: the block is not copied. Columns whose
    mean is far from zero are standardised outright, a few rows at a time.
    """

    def __init__(self, X: Array, units: Units) -> None:
        self.X, self.units, self.xp = X, units, namespace(X)
        self.sparse, self.dtype = issparse(X), units.scale.dtype
        self.tiled = not self.sparse and is_numpy(X)
        self.scale, self.shift = units.scale, units.nu
        mask = far_columns(self.scale, self.shift, self.sparse)
        self.far: Array = None  # the places of the columns that are standardised outright
        self.all_far = False
        if mask is not None:
            xp, d = self.xp, X.shape[1]
            self.far = xp.nonzero(mask)[0]
            self.all_far = self.far.shape[0] == d
            # Where the sums of each column are, far ones last.
            last = d - 1 + xp.cumulative_sum(xp.astype(mask, xp.int64))
            self.order = xp.where(mask, last, xp.arange(d, device=mask.device))
            self.scale, self.shift = (
                xp.where(mask, xp.zeros_like(v), v) for v in (self.scale, self.shift)
            )
        # Rows whose squares would leave the range of numbers are scaled outright, without centring.
        self.outright = self.sparse and bool(wild(units.scale).any())
        if self.outright:
            self.scale = np.where(self.scale > 0, self.scale.dtype.type(1), self.scale)
        # X∘X = level · X, as for one-hot rows; None where it is not.
        self.level = None if self.outright or self.far is not None else _level(X, self.dtype)

    def matmul(self, Q: Array) -> Array:
        """Return Z Q for skinny Q (d, q)."""
        forward = self._forward(Q)
        return self._stacked([forward(piece) for piece in self._pieces()], Q.shape[1])

    def rmatmul(self, R: Array) -> Array:
        """Return Zᵀ R for R (n, q) or (n,)."""
        if R.ndim == 1:
            return self.rmatmul(R[:, None])[:, 0]
        sums = None
        for piece in self._pieces():
            sums = self._back(piece, R[piece.part, :]).plus(sums)
        return self._standardised(sums or self._nothing(R.shape[1]))

    def squares_matmul(self, Q: Array) -> Array:
        """Return (Z∘Z) Q for skinny Q (d, q)."""
        return self.products(Q[:, :0], Q)[1]

    def products(self, Q: Array, S: Array) -> tuple[Array, Array]:
        """Return Z Q and (Z∘Z) S, from one read of the rows."""
        q = Q.shape[1]
        cross, combine = self._squares_forward(S)
        forward = self._forward(self.xp.concat([Q, cross], axis=1))
        first, second = [], []
        for piece in self._pieces():
            product = forward(piece)
            first.append(product[:, :q])
            second.append(combine(product[:, q:], self._squared(piece)))
        return self._stacked(first, q), self._stacked(second, S.shape[1])

    def squares_rmatvec(self, r: Array) -> Array:
        """Return (Z∘Z)ᵀ r for r (n,) or (n, q)."""
        if r.ndim == 1:
            return self.squares_rmatvec(r[:, None])[:, 0]
        first = second = None
        for piece in self._pieces():
            part = r[piece.part, :]
            first = self._back(piece, part).plus(first)
            if self.level is None:
                second = self._back(self._squared(piece), part).plus(second)
        return self._squares_standardised(second, first or self._nothing(r.shape[1]))

    def through(
        self, Q: Array, respond: Response, square_weights: Array | None, squares: bool
    ) -> tuple[Array, Array | None]:
        """Return Zᵀ R and, if `squares`, (Z∘Z)ᵀ r, where R = respond(Z Q, (Z∘Z) s) ends with r.

        Rows are read from memory once: each run of them is multiplied by Q, given to `respond` and
        multiplied back while it is in the cache.

        Parameters
        ----------
        Q : array of shape (d, q)
        respond : callable
            Gets Z Q, (Z∘Z) s (None without s) and which rows they are of; returns R of those rows.
        square_weights : array of shape (d,) or None
            s.
        squares : bool
            Whether anybody needs (Z∘Z)ᵀ r.
        """
        combine = None
        if square_weights is not None:
            cross, combine = self._squares_forward(square_weights[:, None])
            Q = self.xp.concat([Q, cross], axis=1)
        forward = self._forward(Q)
        first = second = None
        for piece in self._pieces() if self.X.shape[0] else [Piece(slice(0, 0), None, None)]:
            products, response = forward(piece), None
            square = self._squared(piece) if squares or combine is not None else piece
            if combine is not None:
                products, response = products[:, :-1], combine(products[:, -1:], square)[:, 0]
            R = respond(products, response, piece.part)
            first = self._back(piece, R).plus(first)
            if squares and self.level is None:
                second = self._back(square, R[:, -1:]).plus(second)
        assert first is not None
        if not squares:
            return self._standardised(first), None
        return self._standardised(first), self._squares_standardised(second, first.last())[:, 0]

    def toarray(self) -> Array:
        """Return Z itself, dense: for those who have few columns."""
        X = self.X.toarray() if self.sparse else self.X
        units = self.units
        return (self._in_dtype(X) - units.mean) * units.scale - units.rest

    def gram(self, weight: Array | None) -> Array:
        """Return Zᵀ diag(weight) Z, a d×d matrix: only for those who ask."""
        omega = None if weight is None else self._in_dtype(weight)
        if not self.sparse:
            Z = self.toarray()
            return (Z if omega is None else Z * omega[:, None]).T @ Z
        if not self.X.shape[0]:
            return self._zeros(self.X.shape[1], self.X.shape[1])
        piece, o = next(self._pieces()), self.shift
        omega = np.ones(self.X.shape[0], self.dtype) if omega is None else omega
        S = _with_data(piece.near, piece.near.data * self.scale[piece.near.indices])
        scaled = _with_data(S, S.data * np.repeat(omega, np.diff(S.indptr)))
        total = S.T @ omega
        product = (S.T @ scaled).toarray() - np.outer(total, o) - np.outer(o, total)
        product += omega.sum() * np.outer(o, o)
        if self.far is not None:  # whose rows and columns are zero so far
            F = omega[:, None] * piece.far
            cross = S.T @ F - np.outer(o, F.sum(axis=0))
            cross[self.far] = piece.far.T @ F / 2
            product[:, self.far] += cross
            product[self.far] += cross.T
        return product

    def _pieces(self) -> Iterator[Piece]:
        """Cut the rows into runs; what is made of one lives until the next."""
        n, d = self.X.shape
        units = self.units
        if not self.tiled:
            if n:
                near = self._sparse_rows() if self.sparse else self._in_dtype(self.X)
                yield Piece(slice(0, n), None if self.all_far else near, self._far_of(self.X))
            return
        for part in kernel.pieces(n, d * self.dtype.itemsize):
            x = self.X[part]
            if self.all_far:
                Z = kernel.standardised(x, units.mean, units.scale, units.rest)
                yield Piece(part, None, Z)
            else:
                yield Piece(part, kernel.prepared(x, self.dtype), self._far_of(x))

    def _sparse_rows(self) -> csr_array:
        if self.X.dtype == self.dtype and not self.outright:
            return self.X
        data = self._in_dtype(self.X.data)
        if self.outright:
            data = data * self.units.scale[self.X.indices]
        return _with_data(self.X, data)

    def _in_dtype(self, a: Array) -> Array:
        return self.xp.astype(a, self.dtype, copy=False)

    def _far_of(self, X: Array) -> Array | None:
        if self.far is None:
            return None
        take, units, places = self.xp.take, self.units, self.far
        columns = X[:, self.far].toarray() if self.sparse else take(X, places, axis=1)
        centred = self._in_dtype(columns) - take(units.mean, places)
        return centred * take(units.scale, places) - take(units.rest, places)

    def _squared(self, piece: Piece) -> Piece:
        near = piece.near
        if near is not None and self.level is None:
            if self.sparse:
                near = _with_data(near, near.data * near.data)
            else:
                near = kernel.squared(near) if self.tiled else near * near
        far = piece.far
        return piece._replace(near=near, far=None if far is None else far * far)

    def _forward(self, Q: Array) -> Callable[[Piece], Array]:
        """Return what multiplies a piece of Z by Q."""
        W, constant = self.scale[:, None] * Q, self.shift @ Q
        Qf = None if self.far is None else self.xp.take(Q, self.far, axis=0)

        def forward(piece: Piece) -> Array:
            product = self._product(piece, W, Qf)
            product -= constant
            return product

        return forward

    def _squares_forward(self, Q: Array) -> tuple[Array, Callable[[Array, Piece], Array]]:
        """Return C, and what makes (Z∘Z) Q of Z C and the squares of a piece.

        Z∘Z = X²D² − 2XDν + ν²: the second term is a product with X, and so is the first where
        every entry of X that is stored is the same number.
        """
        scale, o = self.scale[:, None], self.shift[:, None]
        cross = 2 * o * Q if self.level is None else (2 * o - self.level * scale) * Q
        W, constant = scale**2 * Q, self.shift @ cross - self.shift**2 @ Q
        Qf = None if self.far is None else self.xp.take(Q, self.far, axis=0)

        def combine(ZC: Array, squares: Piece) -> Array:
            rest = -ZC - constant
            return rest if self.level is not None else self._product(squares, W, Qf) + rest

        return cross, combine

    def _product(self, piece: Piece, W: Array, Qf: Array | None) -> Array:
        if piece.near is None and piece.far is None:
            return self._zeros(0, W.shape[1])
        if piece.near is None:
            return self._near(piece.far, Qf)
        product = self._near(piece.near, W)
        return product if piece.far is None else product + piece.far @ Qf

    def _near(self, x: Array, W: Array) -> Array:
        if self.tiled:
            return kernel.times(x, W)
        # In the order of `kernel.times`, and for the same reason.
        return np.asfortranarray(x @ W) if self.sparse else x @ W

    def _back(self, piece: Piece, R: Array) -> Back:
        """Return Rᵀ of a piece."""
        if R.shape[0] == 0:
            return self._nothing(R.shape[1])
        if self.tiled:
            near, far = (
                None if x is None else kernel.transposed_times(x, R)
                for x in (piece.near, piece.far)
            )
            return Back(near, far, R.sum(axis=0))
        near = None if piece.near is None else (piece.near.T @ R).T
        return Back(near, None if piece.far is None else R.T @ piece.far, self.xp.sum(R, axis=0))

    def _standardised(self, sums: Back) -> Array:
        """Return Zᵀ R of the sums Rᵀ X."""
        if sums.near is None:
            return sums.far.T
        near = self.scale[:, None] * sums.near.T - self.shift[:, None] * sums.total
        return self._merged(near, sums.far)

    def _squares_standardised(self, squares: Back | None, sums: Back) -> Array:
        """Return (Z∘Z)ᵀ R of the sums Rᵀ (X∘X) and Rᵀ X.

        The first are None where there are no rows, or where they are a multiple of the others.
        """
        if squares is None:
            level = 0 if self.level is None else self.level
            squares = sums if sums.near is None else sums._replace(near=level * sums.near)
        if squares.near is None:
            return squares.far.T
        scale, o = self.scale[:, None], self.shift[:, None]
        near = scale**2 * squares.near.T - 2 * scale * o * sums.near.T + o**2 * sums.total
        return self._merged(near, squares.far)

    def _merged(self, near: Array, far: Array | None) -> Array:
        """Lay the sums of all columns in order."""
        if far is None:
            return near
        return self.xp.take(self.xp.concat([near, far.T], axis=0), self.order, axis=0)

    def _stacked(self, products: list[Array], columns: int) -> Array:
        if not products:
            return self._zeros(0, columns)
        return products[0] if len(products) == 1 else self.xp.concat(products, axis=0)

    def _nothing(self, q: int) -> Back:
        """Return the sums over no rows."""
        near = None if self.all_far else self._zeros(q, self.X.shape[1])
        far = None if self.far is None else self._zeros(q, self.far.shape[0])
        return Back(near, far, self._zeros(q, 1)[:, 0])

    def _zeros(self, *shape: int) -> Array:
        device = None if self.sparse else self.X.device
        return self.xp.zeros(shape, dtype=self.dtype, device=device)


def _level(X: Array, dtype: np.dtype) -> Array:
    """Return the value of all entries that sparse rows store, or None where they differ."""
    if not issparse(X) or not X.nnz or X.data.min() != X.data.max():
        return None
    return X.data[:1].astype(dtype)


def _with_data(X: csr_array, data: np.ndarray) -> csr_array:
    return csr_array((data, X.indices, X.indptr), shape=X.shape)
