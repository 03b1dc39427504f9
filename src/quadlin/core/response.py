"""Residuals of a model, from the products of the rows with its columns."""

from dataclasses import dataclass
from typing import NamedTuple

from quadlin.core.arrays import Array, namespace


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
