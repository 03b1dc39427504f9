r"""The objective of a problem with few features as a function of M, from one pass over its rows.

With β_ij the coefficient of z_i z_j (2M_ij off the diagonal, M_ii on it) and everything linear
solved for, the objective of any M is

.. math:: |R \beta(M) - t|^2 + \text{what no M explains}

where R has at most d(d+1)/2 rows and comes from the Gram matrix of all products.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.model import Model
from quadlin.core.units import Units
from quadlin.solve.lowrank.many_descents import SignedFactors, losses, residuals
from quadlin.solve.lowrank.tangent import orthonormalised
from quadlin.solve.lowrank.types import Options

SHRINKAGE = 0.1  # of the unrestricted optimum, as a share of the mean eigenvalue
LOST = 64  # times the rounding of a diagonal: the error that it may cause in a prediction
ROUNDING = 1e-12  # of the largest eigenvalue of a Gram matrix: smaller ones count as zero


class Landscape:
    """The objective as a function of M alone, with everything linear solved for.

    Its M is that of features z/size.
    """

    def __init__(self, gram: np.ndarray, units: Units, options: Options) -> None:
        d = units.scale.shape[0]
        weight = float(gram[0, 0])
        i, j = np.triu_indices(d)
        nu, rho, free = (
            to_numpy(a).astype(np.float64) for a in (units.nu, units.penalty_scale, units.free)
        )
        first, second = options.alpha
        ridge = np.concatenate(
            [
                [0.0],
                first * options.fit_linear * rho**2,
                second * np.where(i == j, 2.0, 1.0) * (rho[i] * rho[j]) ** 2,
                [0.0],
            ]
        )
        gram = (gram + np.diag(ridge)) / weight
        shown = np.where(i == j, free[i], 1.0)
        self.d, self.pairs = d, (i, j)
        self.tied = not (options.fit_linear and options.fit_intercept)
        # If w does not absorb their means, features far from zero are large.
        self.size = np.ones(d) if options.fit_linear else 1 / np.sqrt(1 + nu**2)
        self.tie, self.span = linear_parts(
            nu, i, j, shown, options.fit_linear, options.fit_intercept
        )
        p, q = len(i), self.span.shape[1]
        G = self._changed(gram) if self.tied else _of_difference(gram)
        self.solved = -pseudo_inverse(G[:q, :q]) @ G[:q, q:]  # ψ given (β, 1)
        seen = np.count_nonzero(np.diag(G)[q:-1])
        G = G[q:, q:] + G[q:, :q] @ self.solved
        self.unit, self.values, vectors = _eigenpairs(G[:-1, :-1])
        self.determined = len(self.values) == seen  # all products that are not constantly zero
        root = np.sqrt(self.values)
        self.R = root[:, None] * vectors.T / self.unit
        self.t = -(vectors.T @ (self.unit * G[:-1, -1])) / root
        self.unexplained = max(0.0, float(G[-1, -1] - self.t @ self.t))
        self.place = np.zeros((d, d), dtype=np.int64)  # of a product among all
        self.place[i, j] = self.place[j, i] = np.arange(p)
        # ∂(Rβ)/∂L_ia = 2σ_a Σ_j slope_ij L_ja, the same for i = j.
        self.slope = self.R[:, self.place]
        # A prediction subtracts the diagonal of M, with its rounding errors; if linear parts are
        # tied to M, it also subtracts products with ν, which are larger.
        self.rounding = LOST * units.eps * self.size**2 * (1 + nu**2 if self.tied else 1.0)

    @cached_property
    def curvature(self) -> np.ndarray:
        """Return 4 Σ_p slope_iu slope_jv, (d³, d)."""
        G, at = 4 * (self.R.T @ self.R), self.place.ravel()
        return np.asarray(G[at[:, None], at].reshape(self.d**3, self.d))

    def _changed(self, gram: np.ndarray) -> np.ndarray:
        """Return the products of (ψ, β, 1), where ψ are the free linear parts.

        `gram` has those of (c, w, β, y); the difference from y is fitted.
        """
        (i, j), d = self.pairs, self.d
        p, q = len(i), self.span.shape[1]
        change = np.zeros((d + 2 + p, q + p + 1))
        change[: d + 1, :q], change[: d + 1, q : q + p] = self.span, self.tie
        change[d + 1 : -1, q : q + p], change[-1, -1] = np.eye(p), -1.0
        change[:, q : q + p] *= self.size[i] * self.size[j]
        return np.asarray(change.T @ gram @ change)

    def beta(self, M: np.ndarray) -> np.ndarray:
        """Return the coefficients of the products."""
        i, j = self.pairs
        beta: np.ndarray = np.where(i == j, 1.0, 2.0) * M[i, j]
        return beta

    def residual(self, L: np.ndarray, signs: np.ndarray) -> np.ndarray:
        """Return Rβ − t."""
        r: np.ndarray = residuals(self, L[None], signs[None])[0]
        return r

    def factors(self, L: np.ndarray, signs: np.ndarray) -> SignedFactors:
        """Return factors with their loss."""
        loss = losses(self, L[None], self.residual(L, signs)[None])
        return SignedFactors(L, signs, float(loss[0]))

    def again(self, optima: Sequence[SignedFactors]) -> list[SignedFactors]:
        """Return factors of another landscape with their losses in this one."""
        return [self.factors(f.L, f.signs) for f in optima]

    def optimum(self) -> np.ndarray:
        """Return the best M of any rank, shrunk in directions that few rows determine."""
        shrunk = self.values + SHRINKAGE * np.sum(self.values) / max(1, len(self.values))
        return self._matrix(self.unit**2 * (self.R.T @ (self.t / shrunk)))

    def unrestricted(self, units: Units) -> Model:
        """Return the model of the best M of any rank."""
        M = self._matrix(self.unit**2 * (self.R.T @ (self.t / self.values)))
        values, vectors = np.linalg.eigh(M)
        return self.model(self.factors(vectors * np.sqrt(np.abs(values)), np.sign(values)), units)

    def _matrix(self, beta: np.ndarray) -> np.ndarray:
        """Return M with these coefficients of the products."""
        M, (i, j) = np.zeros((self.d, self.d)), self.pairs
        M[i, j] = M[j, i] = np.where(i == j, 1.0, 0.5) * beta
        return M

    def slope_of_loss(self, f: SignedFactors) -> np.ndarray:
        """Return half the gradient of the loss by M, a symmetric matrix."""
        return np.tensordot(self.residual(f.L, f.signs), self.slope, axes=1)

    def model(self, f: SignedFactors, units: Units) -> Model:
        """Return the factors as a model, with the best linear parts.

        In float64 if these are tied: with means far from zero, float32 would be too inexact.
        """
        xp = namespace(units.scale)
        dtype = xp.float64 if self.tied else units.scale.dtype
        M = (f.L * f.signs) @ f.L.T
        beta = self.beta(M)
        linear = self.span @ (self.solved @ np.append(beta, 1.0))
        i, j = self.pairs
        linear = linear + self.tie @ (self.size[i] * self.size[j] * beta)

        def array(a: np.ndarray) -> Array:
            return xp.asarray(a, dtype=dtype, device=units.scale.device)

        L = self.size[:, None] * f.L
        c = linear[0] + float((L**2 @ f.signs) @ to_numpy(units.free))
        return orthonormalised(
            Model(
                array(L), array(f.signs), array(linear[1:]), float(c), xp.astype(units.free, dtype)
            )
        )


def _of_difference(gram: np.ndarray) -> np.ndarray:
    """Return the same if nothing is tied: the products with y change their sign."""
    G = gram.copy()
    G[-1, :-1], G[:-1, -1] = -G[-1, :-1], -G[:-1, -1]
    return G


def linear_parts(
    nu: np.ndarray,
    i: np.ndarray,
    j: np.ndarray,
    shown: np.ndarray,
    fit_linear: bool,
    fit_intercept: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (A, B) with (c, w) = A β + B ψ: a part that is not fitted is tied to M.

    In the user's units f = xᵀMx; in standardised units it has w = 2Mν and c = νᵀw − νᵀMν. If only
    the intercept is tied, ψ = w − (νᵀMν/|ν|²)ν makes c = νᵀψ, and no large terms cancel.
    """
    d, p = len(nu), len(i)
    A, B = np.zeros((d + 1, p)), np.eye(d + 1)
    if not fit_linear:
        np.add.at(A, (1 + i, np.arange(p)), nu[j] * shown)
        np.add.at(A, (1 + j, np.arange(p)), nu[i] * shown)
        B = B[:, :1]
    if not fit_intercept:
        quadratic = nu[i] * nu[j] * shown
        if fit_linear:
            A[1:] += np.outer(nu / max(nu @ nu, 1e-300), quadratic)
        else:
            A[0] = nu @ A[1:] - quadratic
        B = B[:, 1:]
        B[0] = nu @ B[1:]
    return A, B


def _eigenpairs(G: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return units in which the diagonal of G is 1, and eigenpairs there that are not rounding."""
    diagonal = np.diag(G)
    unit = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    G = unit[:, None] * (G + G.T) / 2 * unit
    values, vectors = np.linalg.eigh(G) if len(G) else (np.zeros(0), G)
    kept = values > ROUNDING * values.max(initial=0.0)
    return unit, values[kept], vectors[:, kept]


def pseudo_inverse(G: np.ndarray) -> np.ndarray:
    """Return the pseudo-inverse of a Gram matrix, in units in which its diagonal is 1."""
    unit, values, vectors = _eigenpairs(G)
    return np.asarray(unit[:, None] * (vectors / values) @ vectors.T * unit)
