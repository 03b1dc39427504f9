r"""The curvature of whitened Gaussian features where w or b is not fitted, and its inverse.

A change D = U Gᵀ + G Uᵀ of M then brings a change v = 2Dν of w along, or one of the mean
prediction, m, ν being the mean of the features. For means far from zero these are nearly all of

.. math:: E f^2 = 2 |D|^2 + |v|^2 + m^2

Beside 2|D|², whose inverse is known, both are of low rank: Woodbury's formula has the rest.
"""

from dataclasses import dataclass

from quadlin.core.arrays import Array, namespace, solved


@dataclass(frozen=True)
class TiedParts:
    """The mean of the features, and which parts of the model are fitted beside M."""

    nu: Array  # (d,), in whitened units
    fit_linear: bool
    fit_intercept: bool

    def inverse(self, U: Array, v: Array, G: Array) -> tuple[Array, Array]:
        """Return the inverse of the curvature times (v (d, m), G (d, m, k)).

        In float64, as small differences of large terms count.
        """
        xp, dtype = namespace(U), U.dtype
        nu, U, v, G = (xp.astype(a, xp.float64) for a in (self.nu, U, v, G))
        X = self._of_products(U, nu, G)
        if not self.fit_intercept:  # m = b·v + B·G
            b = float(self.fit_linear) * nu[:, None]
            sign = -1.0 if self.fit_linear else 1.0
            B = 2 * (U + sign * nu[:, None] * (nu @ U))[:, None, :]
            Y = self._of_products(U, nu, B)
            m = xp.sum(b * v, axis=0) + xp.sum(B * X, axis=(0, 2))
            m = m / (1 + float(xp.sum(b * b) + xp.sum(B * Y)))
            v, X = v - b * m, X - Y * m[None, :, None]
        return xp.astype(v, dtype), xp.astype(X, dtype)

    def _of_products(self, U: Array, nu: Array, G: Array) -> Array:
        """Return the inverse of 2|D|², plus 4|Dν|² where w is not fitted, times G.

        With N G = Dν and A that of 2|D|², it is A⁻¹ − A⁻¹Nᵀ(¼I + N A⁻¹Nᵀ)⁻¹N A⁻¹; N A⁻¹Nᵀ is a
        multiple of I outside of the span of U and ν.
        """
        X = without_ties(U, G)
        if self.fit_linear:
            return X
        xp, k = namespace(U), U.shape[1]
        a = nu @ U
        rest = nu - U @ a
        rest = rest - U @ (rest @ U)  # once more, for rounding
        beyond, alpha = float(xp.linalg.vector_norm(rest)), float(a @ a)
        e = rest / beyond if beyond > 0 else rest
        basis = xp.concat([U, e[:, None]], axis=1)
        q = U @ xp.tensordot(X, nu, axes=((0,), (0,))).T + X @ a  # Dν, (d, m)
        inner = basis.T @ q
        like = {"dtype": a.dtype, "device": a.device}
        S = xp.zeros((k + 1, k + 1), **like)
        S[:k, :k] = (1 + alpha + beyond**2) * xp.eye(k, **like) + a[:, None] * a
        S[:k, k] = S[k, :k] = beyond * a
        S[k, k] = 1 + alpha
        y = 4 * (basis @ solved(S, inner) + (q - basis @ inner) / (1 + alpha))
        back = nu[:, None, None] * (y.T @ U)[None, :, :] + y[:, :, None] * a
        return X - without_ties(U, back)


def without_ties(U: Array, G: Array) -> Array:
    """Return the inverse of 2|D|² times G (d, m, k)."""
    xp, (d, m, k) = namespace(U), G.shape
    flat = xp.reshape(G, (d, m * k))
    return (G - xp.reshape(U @ (U.T @ flat), (d, m, k)) / 2) / 4
