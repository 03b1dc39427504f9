"""One block of standardised rows as an operator, and the kernels that carry its products out.

The compiled kernel reads numpy rows, dense or sparse, from memory once. Without it, the references
do the same in numpy, or in any other array library.
"""

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array, is_numpy, namespace, remembered
from quadlin.core.library import (
    Pass,
    address,
    aligned_zeros,
    entries_of,
    gpu_kernels,
    instruction_level,
    library,
    point,
    scratch,
    takes,
)
from quadlin.core.units import Units

Residuals = Callable[[Array, Array | None, slice], tuple[Array, Array, Array]]

RUN_BYTES, LEAST_RUN = 1 << 20, 128  # rows that stay in a cache of 2 MB with their squares; rows
UNIT = 16  # bytes of the narrowest vector: rows of several weights or sums are whole ones
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

    def passed(
        self, Q: Array, residuals: Response | Residuals, S: Array | None, squares: bool
    ) -> Passed:
        """Return the sums of residuals, which `Block.passed` explains.

        Rows are read from memory once: each run of them is multiplied by Q and, with the residuals,
        multiplied back while it is in the cache.
        """
        xp, p0, loss = namespace(Q), 0.0, 0.0
        total = total_squares = None
        for part in self.parts():
            some = self.rows(part)
            r, weighted, ZQ = residuals(*some.products(Q, S), part)
            p0 = p0 + xp.sum(xp.astype(weighted, xp.float64), axis=0)
            loss += float(xp.sum(xp.astype(weighted * r, xp.float64)))
            n, m = r.shape
            products = xp.reshape(weighted[:, :, None] * ZQ[:, None, :], (n, m * ZQ.shape[1]))
            back, second = some.sums(xp.concat([weighted, products], axis=1), m if squares else 0)
            total = back if total is None else total + back
            total_squares = second if total_squares is None else total_squares + second
        assert total is not None
        return Passed(total[:, m:], total[:, :m], total_squares if squares else None, p0, loss)


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
        return self.Z @ Q, None if S is None else (self.Z * self.Z) @ S

    def sums(self, R: Array, square_columns: int) -> tuple[Array, Array]:
        """Return Zᵀ R, and (Z∘Z)ᵀ R for the first columns of R."""
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


class CompiledKernel(Kernel):
    """A kernel that carries out a pass as a whole."""

    # Runs a pass, and returns the sums (d, columns) and those of squares (d, square_columns).
    run: Callable[..., tuple[Array, Array]]

    def products(self, Q: Array, S: Array | None) -> tuple[Array, Array | None]:
        """Return Z Q and (Z∘Z) S, None without S."""
        n = self.X.shape[0]
        products = np.empty((Q.shape[1], n), self.dtype)
        squares = None if S is None else np.empty((S.shape[1], n), self.dtype)
        self.run(Pass(), {"products": products, "squares": squares}, Q, S, 0, 0)
        return products.T, None if squares is None else squares.T

    def sums(self, R: Array, square_columns: int) -> tuple[Array, Array]:
        """Return Zᵀ R, and (Z∘Z)ᵀ R for the first columns of R."""
        given = {"R": np.ascontiguousarray(R.T, self.dtype)}
        return self.run(Pass(), given, None, None, R.shape[1], square_columns)

    def passed(
        self, Q: Array, residuals: Response | Residuals, S: Array | None, squares: bool
    ) -> Passed:
        """Return the sums of residuals; those of a response in one call."""
        if not isinstance(residuals, Response):
            return super().passed(Q, residuals, S, squares)
        response, assembly, action = residuals, residuals.assembly, residuals.action
        m, actions = assembly.constant.shape[0], action.stop - action.start
        total, loss = np.zeros(m), np.zeros(1)
        vectors = {
            "constant": assembly.constant,
            "factor": response.factor,
            "y": response.y,
            "weight": response.weight,
        }
        arrays = {name: None if v is None else self.vector(v) for name, v in vectors.items()}
        given = {**arrays, "total": total, "loss": loss}
        what = Pass(respond=1, m=m, k=response.factor.shape[0], right=response.right)
        what.action, what.actions = action.start, actions
        back, p2 = self.run(what, given, Q, S, m + m * actions, m if squares else 0)
        return Passed(back[:, m:], back[:, :m], p2 if squares else None, total, float(loss[0]))

    def vector(self, v: Array) -> np.ndarray:
        """Return a vector, contiguous and in the dtype of the kernel."""
        return np.ascontiguousarray(v, self.dtype)


class DenseKernel(CompiledKernel):
    """Dense rows of any strides; each is standardised outright when it is read."""

    def __init__(self, X: np.ndarray, units: Units) -> None:
        super().__init__(X, units.scale.dtype)
        self.units = units

    def parts(self) -> Iterable[slice]:
        """Return runs of rows that stay in the cache."""
        return runs(self.X, self.dtype)

    def rows(self, part: slice) -> Kernel:
        """Return the kernel of some rows."""
        return DenseKernel(self.X[part], self.units)

    def run(
        self,
        what: Pass,
        given: Mapping[str, np.ndarray | None],
        Q: Array | None,
        S: Array | None,
        columns: int,
        square_columns: int,
    ) -> tuple[Array, Array]:
        """Run a pass, and return the sums (d, columns) and those of squares (d, square_columns)."""
        X, units, d = self.X, self.units, self.X.shape[1]
        back = np.empty((columns, d), self.dtype)
        squares = np.empty((square_columns, d), self.dtype)
        arrays = {name: self.vector(getattr(units, name)) for name in ("mean", "scale", "rest")}
        arrays |= {"Q": rows_of(Q, self.dtype, d), "S": square_rows_of(S, self.dtype, d)}
        arrays |= {"back": back, "back_squares": squares}
        (what.n, what.d), what.x, what.x_bytes = X.shape, address(X), X.itemsize
        what.x_row, what.x_column = X.strides
        what.q, what.s = arrays["Q"].shape[0], arrays["S"].shape[0]
        what.columns, what.square_columns = columns, square_columns
        point(what, {**arrays, **given})
        loaded, size = library(), self.dtype.itemsize
        assert loaded is not None
        memory = scratch(loaded.memory_needed(ctypes.byref(what), size))
        what.memory = address(memory)
        loaded.run_pass(ctypes.byref(what), size, instruction_level())
        return back.T, squares.T


def _transposed(Q: Array | None, dtype: np.dtype, d: int) -> np.ndarray:
    """Return Qᵀ, contiguous; no rows without Q."""
    return np.empty((0, d), dtype) if Q is None else np.ascontiguousarray(Q.T, dtype)


rows_of, square_rows_of = remembered(_transposed), remembered(_transposed)


class SparseKernel(CompiledKernel):
    """CSR rows that are centred inside the products.

    .. math:: Z Q = X (D Q) - 1 (\\nu^\\top Q), \\quad
              (Z \\circ Z) S = (X \\circ X) D^2 S - 2 X D\\nu S + 1 (\\nu \\circ \\nu)^\\top S
    """

    def __init__(self, X: csr_array, units: Units) -> None:
        super().__init__(X, units.scale.dtype)
        self.units, self.level = units, _level(X, self.dtype)

    def run(
        self,
        what: Pass,
        given: Mapping[str, np.ndarray | None],
        Q: Array | None,
        S: Array | None,
        columns: int,
        square_columns: int,
    ) -> tuple[Array, Array]:
        """Run a pass, and return the sums (d, columns) and those of squares (d, square_columns)."""
        X, (n, d), level, units = self.X, self.X.shape, self.level, self.units
        q, s = (0 if weights is None else weights.shape[1] for weights in (Q, S))
        # What cannot be written to stays as it is, such as the columns of a model that predicts.
        make = _weights if any(w is not None and w.flags.writeable for w in (Q, S)) else _remembered
        weights, square_weights, constant = make(Q, S, units.scale, units.nu, level)
        back = _lines(d, columns, self.dtype)
        back_squares = _lines(d, square_columns, self.dtype)
        totals = np.zeros(columns)
        rows, entries = entries_of(X, self.dtype)
        rows.levelled, rows.level = level is not None, 0 if level is None else float(level[0])
        rows.width, rows.square_width = weights.shape[1], square_weights.shape[1]
        rows.back_width, rows.back_square_width = back.shape[1], back_squares.shape[1]
        arrays = {
            **entries,
            "weights": weights,
            "square_weights": square_weights,
            "constant": constant,
            "back": back,
            "back_squares": back_squares,
            "totals": totals,
            "scale": self.vector(units.scale),
            "shift": self.vector(units.nu),
        }
        point(rows, arrays)
        what.n, what.d, what.q, what.s = n, d, q, s
        what.columns, what.square_columns = columns, square_columns
        point(what, given)
        loaded, size = library(), self.dtype.itemsize
        assert loaded is not None
        what_at, rows_at = ctypes.byref(what), ctypes.byref(rows)
        memory = scratch(loaded.sparse_memory_needed(what_at, rows_at, size))
        what.memory = address(memory)
        loaded.run_sparse_pass(what_at, rows_at, size, instruction_level())
        return back[:, :columns], back_squares[:, :square_columns]


def _weights(
    Q: Array | None, S: Array | None, scale: np.ndarray, shift: np.ndarray, level: Array | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the factors of entries and of their squares, and what is subtracted."""
    (d,), dtype = scale.shape, scale.dtype
    q, s = (0 if weights is None else weights.shape[1] for weights in (Q, S))
    weights, constant = _lines(d, q + s, dtype), np.zeros(q + s, dtype)
    square_weights = _lines(d, s if level is None else 0, dtype)
    by_scale, by_shift = scale[:, None], shift[:, None]
    if Q is not None:
        np.multiply(by_scale, Q, out=weights[:, :q])
        constant[:q] = shift @ Q
    if S is not None:
        slope = -2 * by_shift if level is None else level * by_scale - 2 * by_shift
        weights[:, q : q + s] = slope * by_scale * S
        constant[q:] = -(shift**2 @ S)
        if level is None:
            square_weights[:, :s] = by_scale**2 * S
    return weights, square_weights, constant


_remembered = remembered(_weights)


def _lines(rows: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """Return zeros that start at a line of the cache, in rows of whole vectors or of one."""
    unit = UNIT // dtype.itemsize
    width = columns if columns == 1 else -(-columns // unit) * unit
    return aligned_zeros((rows, width), dtype)


@remembered
def _outright(units: Units) -> bool:
    """Tell whether columns are standardised outright.

    They are far from zero, or their squares, in the user's units, may leave the range of numbers.
    """
    root, scale = float(np.finfo(units.scale.dtype).max) ** (1 / 3), units.scale
    small = (scale > 0) & (scale < 1 / root)
    wild = small | (scale > root) | (np.abs(units.mean) > root)
    return bool(np.any(far_columns(units) | wild))


def _level(X: csr_array, dtype: np.dtype) -> Array:
    """Return the value of all entries that are stored, as of one-hot rows; None if they differ."""
    if not X.nnz or X.data[0] != X.data[-1] or X.data.min() != X.data.max():
        return None
    level = X.data[:1].astype(dtype)
    return _ones(level.dtype) if level == 1 else level


@cache
def _ones(dtype: np.dtype) -> np.ndarray:
    """Return the level of one-hot rows, always the same array: see `remembered`."""
    return np.ones(1, dtype)


class Block:
    """Standardised rows Z of one block, used only through their products.

    A kernel standardises rows inside the products, or a few at a time: the block is not copied.
    """

    def __init__(self, X: Array, units: Units) -> None:
        self.X, self.units = X, units

    @cached_property
    def reference(self) -> DenseReference | SparseReference:
        """Return the kernel that takes all rows."""
        return (SparseReference if issparse(self.X) else DenseReference)(self.X, self.units)

    @cached_property
    def compiled(self) -> Kernel | None:
        """Return the compiled kernel of the rows; None if there is none."""
        X, units, kernels = self.X, self.units, gpu_kernels(self.X)
        if kernels is not None:
            return kernels.TritonKernel.of(X, units)  # type: ignore[no-any-return]
        if not isinstance(X, np.ndarray | csr_array):
            return None
        if not (takes(X.dtype) and takes(units.scale.dtype)):
            return None
        if issparse(X):
            return None if _outright(units) else SparseKernel(X, units)
        return DenseKernel(X, units) if X.flags.aligned else None

    @property
    def kernel(self) -> Kernel:
        """Return the fastest kernel of the rows."""
        return self.reference if self.compiled is None else self.compiled

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return int(self.X.shape[0])

    def matmul(self, Q: Array) -> Array:
        """Return Z Q for skinny Q (d, q)."""
        return self.products(Q, None)[0]

    def products(self, Q: Array, S: Array | None) -> tuple[Array, Array | None]:
        """Return Z Q and (Z∘Z) S, None without S, from one read of the rows."""
        return self.kernel.products(Q, S)

    def rmatmul(self, R: Array) -> Array:
        """Return Zᵀ R for R (n, q) or (n,)."""
        return self.rmatmul(R[:, None])[:, 0] if R.ndim == 1 else self.kernel.sums(R, 0)[0]

    def passed(
        self, Q: Array, residuals: Response | Residuals, S: Array | None, squares: bool
    ) -> Passed:
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
        return self.kernel.passed(Q, residuals, S, squares)

    def gram(self, weight: Array | None) -> Array:
        """Return Zᵀ diag(weight) Z, a d×d matrix, which is formed only on request."""
        dtype = self.units.scale.dtype
        omega = None if weight is None else namespace(weight).astype(weight, dtype, copy=False)
        return self.reference.gram(omega)
