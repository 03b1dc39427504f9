"""What a pass computes from the rows of a block, and the kernels that take all rows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from quadlin.core.arrays import Array, is_numpy, namespace
from quadlin.core.units import Units

Respond = Callable[[Array, Array | None, slice], tuple[Array, Array]]
Residuals = Callable[[Array, Array | None, slice], tuple[Array, Array, Array]]

RUN_BYTES, LEAST_RUN = 1 << 20, 128  # rows that stay in a cache of 2 MB with their squares; rows
# Z Q = X(D Q) − 1(νᵀQ) subtracts what the means contribute after it has been rounded. With unit
# roundoff u, entries of Z of size 1 and ν the means over the standard deviations, it errs by about
# u|ν| in a product and by u(1 + |ν|)² in a square. A sparse column beyond this line is therefore
# standardised outright: below it squares err by less than 5e-7 in float32 and 1e-12 in float64. A
# column with |ν| > 1 has more entries than zeros, so that this at most doubles it.
FAR = {4: 1.0, 8: 100.0}  # |ν|, by the bytes of a number


@dataclass(frozen=True)
class Assembly:
    """How p functions f(z) are put together, with m = diag M̄ (d, p): the formula of
    `quadlin.core.model.Model`."""

    constant: Array  # (p,), c − Σ_F m
    left_out: Array | None  # (d, p), m outside F; None where every diagonal is modelled

    @classmethod
    def of(cls, c: Array | float, m: Array, free: Array) -> "Assembly":
        """Return the assembly of functions with constants c and diagonals m."""
        every = bool(namespace(free).all(free == 1))
        return cls(c - free @ m, None if every else (1 - free)[:, None] * m)

    def assembled(self, linear: Array, quadratic: Array, squares: Array | None) -> Array:
        """Return f(z) (n, p) from zᵀw, zᵀM̄z and (z∘z)ᵀ`left_out`."""
        f = linear + quadratic + self.constant
        return f if squares is None else f - squares

    def bilinear(self, products: Array, squares: Array | None, factor: Array, right: int) -> Array:
        """Return f(z) (n, p) with zᵀM̄ᵢz = Σ t_a (zᵀe_a)(zᵀh_ia).

        From Z [E w …] and (Z∘Z)`left_out`.

        `factor` is t (k,), and `right` the place of the columns H (pk), at 0 where they are E.
        """
        xp, n = namespace(products), products.shape[0]
        k, p = factor.shape[0], self.constant.shape[0]
        E, H = products[:, None, :k], products[:, right : right + p * k]
        terms = xp.reshape(E * xp.reshape(H, (n, p, k)), (n * p, k))
        return self.assembled(products[:, k : k + p], xp.reshape(terms @ factor, (n, p)), squares)


@dataclass(frozen=True)
class Response:
    r"""Residuals and their products with some columns, as data: any kernel can compute them.

    .. math:: r_i = \omega \circ (c_i + Z w_i + \sum_a t_a (Z E_a) \circ (Z H_{ia})
              - (Z \circ Z) s_i - y), \quad i = 1 \dots m

    The products are those with the columns [E w …]; calling it is the reference of every kernel.
    """

    assembly: Assembly  # c and s
    factor: Array  # (k,), t
    right: int  # where the columns H start among the products: at 0 where they are E
    action: slice  # the columns by whose products the residuals are multiplied
    y: Array | None  # (n,), zero where it is None
    weight: Array | None  # (n,), ω, one where it is None

    def __call__(
        self, products: Array, squares: Array | None, part: slice
    ) -> tuple[Array, Array, Array]:
        """Return r without ω, r and r∘(Z Q), one column after another, of some rows."""
        r = self.assembly.bilinear(products, squares, self.factor, self.right)
        if self.y is not None:
            r = r - self.y[part, None]
        weighted = r
        if self.weight is not None:
            weighted = namespace(r).astype(self.weight[part], r.dtype)[:, None] * r
        return r, weighted, products[:, self.action]


class Passed(NamedTuple):
    """Sums of m residuals r, weighted by ω, over standardised rows Z, with a products Z Q."""

    action: Array  # (d, ma), Zᵀ(ω∘r∘ZQ)
    p1: Array  # (d, m), Zᵀ(ω∘r)
    p2: Array | None  # (d, m), (Z∘Z)ᵀ(ω∘r), None where it was not asked for
    p0: Array  # (m,), Σω r, float64
    loss: float  # Σω r²


class Kernel:
    """Products with the standardised rows Z of one block."""

    # Return Z Q and (Z∘Z) S, None without S.
    products: Callable[[Array, Array | None], tuple[Array, Array | None]]
    # Return Zᵀ R, and (Z∘Z)ᵀ R for a number of the first columns of R.
    sums: Callable[[Array, int], tuple[Array, Array]]

    def __init__(self, X: Array, dtype: np.dtype) -> None:
        self.X, self.dtype = X, dtype

    def parts(self) -> Iterable[slice]:
        """Return runs of rows that are multiplied forth and back at a time."""
        return [slice(0, self.X.shape[0])]

    def rows(self, part: slice) -> "Kernel":
        """Return the kernel of such a run."""
        return self

    def through(
        self, Q: Array, respond: Respond, S: Array | None, squares: bool
    ) -> tuple[Array, Array, Array | None]:
        """Return Zᵀ A, Zᵀ R and, if `squares`, (Z∘Z)ᵀ R, where A, R = respond(Z Q, (Z∘Z) S).

        `respond` also gets which rows the products are of. Rows are read from memory once: each run
        of them is multiplied by Q, given to `respond` and multiplied back while it is in the cache.
        """
        total = total_squares = None
        for part in self.parts():
            some = self.rows(part)
            A, R = respond(*some.products(Q, S), part)
            m = R.shape[1]
            back, second = some.sums(namespace(R).concat([R, A], axis=1), m if squares else 0)
            total = back if total is None else total + back
            total_squares = second if total_squares is None else total_squares + second
        assert total is not None
        return total[:, m:], total[:, :m], total_squares if squares else None

    def passed(
        self, Q: Array, residuals: Response | Residuals, S: Array | None, squares: bool
    ) -> Passed:
        """Return the sums of residuals, which `Block.passed` explains."""
        xp, weighted, losses = namespace(Q), [], []

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


class DenseReference(Kernel):
    """Dense rows of any array library, standardised outright; those of numpy a run at a time."""

    def __init__(self, X: Array, units: Units) -> None:
        super().__init__(X, units.scale.dtype)
        self.units = units

    def parts(self) -> list[slice]:
        """Return runs of rows that stay in the cache."""
        return runs(self.X, self.dtype) if is_numpy(self.X) else [slice(0, self.X.shape[0])]

    def rows(self, part: slice) -> "DenseReference":
        """Return the kernel of some rows."""
        return DenseReference(self.X[part, :], self.units)

    @cached_property
    def Z(self) -> Array:
        """Return the standardised rows, all of them."""
        return self.units.standardised(self.X)

    def products(self, Q: Array, S: Array | None) -> tuple[Array, Array | None]:
        """Return Z Q and (Z∘Z) S, None without S."""
        parts, xp = self.parts(), namespace(Q)
        if len(parts) > 1:
            pieces = [self.rows(part).products(Q, S) for part in parts]
            ZQ, squares = zip(*pieces, strict=True)
            return xp.concat(ZQ), None if S is None else xp.concat(squares)
        return self.Z @ Q, None if S is None else (self.Z * self.Z) @ S

    def sums(self, R: Array, square_columns: int) -> tuple[Array, Array]:
        """Return Zᵀ R, and (Z∘Z)ᵀ R for the first columns of R."""
        parts = self.parts()
        if len(parts) > 1:
            pieces = [self.rows(part).sums(R[part, :], square_columns) for part in parts]
            back, squares = zip(*pieces, strict=True)
            return sum(back[1:], back[0]), sum(squares[1:], squares[0])
        squares = self.Z * self.Z if square_columns else self.Z
        return self.Z.T @ R, squares.T @ R[:, :square_columns]

    def gram(self, omega: Array | None) -> Array:
        """Return Zᵀ diag(ω) Z."""
        Z = self.units.standardised(self.X)
        if omega is not None:
            Z *= namespace(Z).sqrt(omega)[:, None]  # a copy already: no other is made
        return Z.T @ Z


class SparseReference(Kernel):
    r"""CSR rows: columns near zero are centred inside the products, the few others outright.

    .. math:: Z Q = X D Q - 1 \nu^\top Q + F Q_F, \quad
              (Z \circ Z) S = (X D \circ X D) S - 2 X D (\nu \circ S) + 1 (\nu \circ \nu)^\top S
              + (F \circ F) S_F

    D and ν are zero for the columns of F.
    """

    def __init__(self, X: csr_array, units: Units) -> None:
        super().__init__(X, units.scale.dtype)
        self.units = units
        far = far_columns(units)
        self.far, self.shift = np.flatnonzero(far), np.where(far, self.dtype.type(0), units.nu)
        scale = np.where(far, self.dtype.type(0), units.scale)
        self.scaled = with_data(X, X.data.astype(self.dtype) * scale[X.indices])  # X D

    @cached_property
    def outright(self) -> np.ndarray:
        """Return F, the standardised columns far from zero."""
        return np.asarray(self.units.standardised(self.X, self.far))

    @cached_property
    def squares(self) -> csr_array:
        """Return X D ∘ X D."""
        return with_data(self.scaled, self.scaled.data**2)

    def products(self, Q: Array, S: Array | None) -> tuple[Array, Array | None]:
        """Return Z Q and (Z∘Z) S, None without S."""
        shift, far = self.shift[:, None], self.far
        ZQ = self.scaled @ Q - self.shift @ Q + self.outright @ Q[far]
        if S is None:
            return ZQ, None
        near = self.squares @ S - 2 * (self.scaled @ (shift * S)) + self.shift**2 @ S
        return ZQ, near + self.outright**2 @ S[far]

    def sums(self, R: Array, square_columns: int) -> tuple[Array, Array]:
        """Return Zᵀ R, and (Z∘Z)ᵀ R for the first columns of R."""
        shift, far, m = self.shift[:, None], self.far, square_columns
        back, total = self.scaled.T @ R, R.sum(axis=0)
        near = self.squares if m else self.scaled
        squares = near.T @ R[:, :m] - 2 * shift * back[:, :m] + shift**2 * total[:m]
        back = back - shift * total
        back[far], squares[far] = self.outright.T @ R, (self.outright**2).T @ R[:, :m]
        return back, squares

    def gram(self, omega: Array | None) -> Array:
        """Return Zᵀ diag(ω) Z."""
        S, F, o, far = self.scaled, self.outright, self.shift, self.far
        omega = np.ones(S.shape[0], self.dtype) if omega is None else omega
        weighted = with_data(S, S.data * np.repeat(omega, np.diff(S.indptr)))
        total = S.T @ omega
        product = (S.T @ weighted).toarray() - np.outer(total, o) - np.outer(o, total)
        product += omega.sum() * np.outer(o, o)
        F_omega = omega[:, None] * F
        cross = S.T @ F_omega - np.outer(o, F_omega.sum(axis=0))
        cross[far] = F.T @ F_omega / 2  # the rows and columns of the far ones are zero so far
        product[:, far] += cross
        product[far] += cross.T
        return product


def runs(X: np.ndarray, dtype: np.dtype) -> list[slice]:
    """Cut dense rows into runs that stay in the cache of one core; one, if there are no rows."""
    n, d = X.shape
    step = max(LEAST_RUN, RUN_BYTES // max(d * dtype.itemsize, 1))
    return [slice(start, min(start + step, n)) for start in range(0, max(n, 1), step)]


def with_data(X: csr_array, data: np.ndarray) -> csr_array:
    """Return sparse rows with other numbers in the same places."""
    return csr_array((data, X.indices, X.indptr), shape=X.shape)


def far_columns(units: Units) -> np.ndarray:
    """Mark the columns of sparse rows that are standardised outright."""
    return np.asarray(np.abs(units.nu) > FAR[units.scale.dtype.itemsize])
