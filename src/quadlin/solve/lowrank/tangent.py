r"""Whitened coordinates of a model, and of its changes and gradients on the tangent space.

The model is w = B v and M̄ = (BU) diag(s) (BU)ᵀ with B a whitener, and a change is
D = U Gᵀ + G Uᵀ. Nothing here needs rows: sums of a pass become gradients, directions become steps.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from quadlin.core.arrays import Array, lead, namespace, qr, solved, unflagged
from quadlin.core.model import Model, Steps, tied
from quadlin.core.sums import Sums
from quadlin.core.units import Units
from quadlin.solve.lowrank.types import Options
from quadlin.solve.lowrank.whitening import Whitener


@dataclass(frozen=True)
class TiedParts:
    r"""The curvature for whitened Gaussian features if w or b is not fitted, and its inverse.

    A change D = U Gᵀ + G Uᵀ of M then changes w by v = 2Dν, or the mean prediction by m, where ν
    is the mean of the features. For means far from zero, these terms dominate

    .. math:: E f^2 = 2 |D|^2 + |v|^2 + m^2

    The inverse of 2|D|² has a closed form, and the other two terms are of low rank: Woodbury's
    formula gives the rest. With ridges a₁ and a₂ it is

    .. math:: \frac{1 + a_2}{(1 + a_1)^2} 2 |D|^2 + \frac{|v|^2}{1 + a_1} + m^2
    """

    nu: Array  # (d,), in whitened units
    fit_linear: bool
    fit_intercept: bool
    variance: float = 1.0  # of whitened features, 1/(1 + a₁)
    stiffness: float = 1.0  # the factor of 2|D|², (1 + a₂)/(1 + a₁)²

    def inverse(self, U: Array, v: Array, G: Array) -> tuple[Array, Array]:
        """Return the inverse of the curvature times (v (d, m), G (d, m, k)).

        In float64, since small differences of large terms matter.
        """
        xp, dtype = namespace(U), U.dtype
        nu, U, v, G = (xp.astype(a, xp.float64) for a in (self.nu, U, v, G))
        X = self._of_products(U, nu, G)
        if not self.fit_intercept:  # m = b·v + B·G
            b = float(self.fit_linear) * nu[:, None]
            sign = -1.0 if self.fit_linear else 1.0
            trace = self.variance * U
            B = 2 * (trace + sign * nu[:, None] * (nu @ U))[:, None, :]
            Y = self._of_products(U, nu, B)
            m = xp.sum(b * v, axis=0) + xp.sum(B * X, axis=(0, 2))
            m = m / (1 + float(xp.sum(b * b) + xp.sum(B * Y)))
            v, X = v - b * m, X - Y * m[None, :, None]
        return xp.astype(v, dtype), xp.astype(X, dtype)

    def _of_products(self, U: Array, nu: Array, G: Array) -> Array:
        """Return the inverse of 2|D|², plus 4|Dν|² if w is not fitted, times G, with ridges.

        With N G = Dν and A that of 2|D|², it is A⁻¹ − A⁻¹Nᵀ(¼I + N A⁻¹Nᵀ)⁻¹N A⁻¹; N A⁻¹Nᵀ is a
        multiple of I outside the span of U and ν.
        """
        X = without_ties(U, G) / self.stiffness
        if self.fit_linear:
            return X
        xp, k = namespace(U), U.shape[1]
        nu = (self.variance / self.stiffness) ** 0.5 * nu
        a = nu @ U
        rest = nu - U @ a
        rest = rest - U @ (rest @ U)  # again, to remove rounding errors
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


@dataclass(frozen=True)
class Tangent:
    """Changes i = 1 … m: (cᵢ, wᵢ = B vᵢ, Mᵢ = B(U Gᵢᵀ + Gᵢ Uᵀ)Bᵀ), or gradients in them.

    Conjugate gradients treat the m systems as one with equal blocks.
    """

    c: Array  # (m,), the means of the changes of the predictions
    v: Array  # (d, m)
    G: Array  # (d, m, k)

    @unflagged  # float32 may overflow, which ends conjugate gradients
    def dot(self, other: "Tangent") -> float:
        """Return the inner product, summed over the changes."""
        xp = namespace(self.v)
        return float(self.c @ other.c + xp.sum(self.v * other.v) + xp.sum(self.G * other.G))

    def __add__(self, other: "Tangent") -> "Tangent":
        return Tangent(self.c + other.c, self.v + other.v, self.G + other.G)

    def __sub__(self, other: "Tangent") -> "Tangent":
        return Tangent(self.c - other.c, self.v - other.v, self.G - other.G)

    def __rmul__(self, size: float) -> "Tangent":
        return Tangent(size * self.c, size * self.v, size * self.G)


@dataclass(frozen=True)
class Ridge:
    """The gradient of a penalty: (d, m) for w and (d, m, k) for M E; None if it is zero."""

    w: Array | None = None
    ME: Array | None = None


@dataclass(frozen=True)
class Coordinates:
    """Units, options and whitener, which convert models and steps to coordinates and back."""

    units: Units
    options: Options
    white: Whitener

    @property
    def penalties(self) -> tuple[float, float]:
        """Return α₁ and α₂; a linear part that is tied to M is not penalised."""
        first, second = self.options.alpha
        return first * self.options.fit_linear, second

    def model(self, c: float, v: Array, U: Array, s: Array) -> Model:
        """Return the model with these coordinates; its U is not orthonormal."""
        E = self.white.apply(U)
        centre = c - mean_of_quadratic(s, E)
        model = Model(E, s, self.white.apply(v), centre, self.units.free)
        return tied(model, self.units, self.options.fit_linear, self.options.fit_intercept)

    def of(self, model: Model) -> tuple[float, Array, Array, Array]:
        """Return (c, v, U, s) of a model."""
        V, R = qr(self.white.inverse(model.U))
        s, vectors = lead((R * model.s) @ R.T, model.s.shape[0])
        U = V @ vectors
        c = model.c + mean_of_quadratic(s, self.white.apply(U))
        return c, self.white.inverse(model.w), U, s

    def ridge(self, model: Model) -> float:
        """Return α₁|ρ∘w|² + 2α₂‖ρρᵀ∘M̄‖²_F."""
        first, second = self.penalties
        if not (first or second):
            return 0.0
        rho = self.units.penalty_scale
        w, E = rho * model.w, rho[:, None] * model.U
        A = (E.T @ E) * model.s
        return first * float(w @ w) + 2 * second * float(namespace(A).sum(A * A.T))

    def ridge_gradient(self, model: Model, weight: float) -> Ridge:
        """Return what the ridge adds to the gradient at a model."""
        first, second = (a / weight for a in self.penalties)
        rho, E = self.units.penalty_scale**2, model.U
        RE = rho[:, None] * E
        return Ridge(
            (first * rho * model.w)[:, None] if first else None,
            2 * second * (RE @ (model.s[:, None] * (E.T @ RE)))[:, None, :] if second else None,
        )

    def ridge_curvature(self, steps: Steps, weight: float) -> Ridge:
        """Return what the ridge adds to products of the curvature with some steps."""
        first, second = (a / weight for a in self.penalties)
        xp, rho = namespace(steps.E), self.units.penalty_scale**2
        w = first * rho[:, None] * steps.w if first else None
        if not second:
            return Ridge(w)
        RE, RH = rho[:, None] * steps.E, rho[:, None, None] * steps.H
        # ρ²(E Hᵀ + H Eᵀ)ρ²E, for each H.
        HRE = xp.tensordot(xp.permute_dims(steps.H, (1, 2, 0)), RE, axes=((2,), (0,)))  # (m, k, k)
        REH = xp.tensordot(RE, HRE, axes=((1,), (1,)))
        return Ridge(w, 2 * second * (REH + RH @ (steps.E.T @ RE)))

    @cached_property
    def whitened_mean(self) -> Array:
        """Return the mean of the features, in whitened units."""
        return self.white.transpose(self.units.nu)

    def preconditioned(self, U: Array, h: Tangent, weight: float | None = None) -> Tangent:
        """Apply the inverse Gram matrix of whitened Gaussian features on the tangent space at U.

        If the `weight` of the rows is given, it includes the ridge, divided by that weight.
        """
        first, second = (0.0, 0.0) if weight is None else self.options.alpha
        variance = 1 / (1 + first / (weight or 1.0))
        stiffness = (1 + second / (weight or 1.0)) * variance**2
        parts = (self.options.fit_linear, self.options.fit_intercept)
        if all(parts):
            return Tangent(h.c, h.v, without_ties(U, h.G) / stiffness)
        tied_parts = TiedParts(self.whitened_mean, *parts, variance, stiffness)
        return Tangent(h.c, *tied_parts.inverse(U, h.v, h.G))

    def steps(self, model: Model, U: Array, t: Tangent) -> Steps:
        """Return tangents at U as steps in standardised units, including tied parts."""
        xp, (d, m, k) = namespace(U), t.G.shape
        free, nu = self.units.free, self.units.nu
        H = xp.reshape(self.white.apply(xp.reshape(t.G, (d, m * k))), (d, m, k))
        steps = Steps(model.U, H, self.white.apply(t.v), t.c)
        diagonals = steps.diagonals()
        w = steps.w if self.options.fit_linear else 2 * steps.times(nu, free)
        if self.options.fit_intercept:
            # t.c is the mean of the change: E zᵀdMz = 2 tr UᵀG for whitened z, and the model
            # itself subtracts Σm. Otherwise correlated features would couple c and M.
            trace = xp.sum(U[:, None, :] * t.G, axis=(0, 2))
            c = t.c - 2 * trace + xp.sum(diagonals, axis=0)
        else:
            c = free @ diagonals + nu @ w - nu @ steps.times(nu, free)
        return replace(steps, w=w, c=c)

    def gradient(self, sums: Sums, U: Array, E: Array, ridge: Ridge | None = None) -> Tangent:
        """Return the means of qᵢ ∂f, plus the ridge, as tangents: the adjoint of `steps`."""
        xp, free, nu = namespace(E), self.units.free, self.units.nu
        (d, m, k), n = sums.action.shape, sums.weight
        c, w = xp.astype(sums.p0 / n, E.dtype), sums.p1 / n
        centre = xp.ones_like(nu) if self.options.fit_intercept else nu**2
        left_out = (1 - free)[:, None] * (sums.p2 / n - centre[:, None] * c)
        ME = sums.action / n - left_out[:, :, None] * E[:, None, :]
        if not self.options.fit_intercept:
            ME = ME - (nu[:, None] * c)[:, :, None] * (nu @ E)
            w, c = w + nu[:, None] * c, 0 * c
        if not self.options.fit_linear:
            wE = w.T @ E  # (m, k)
            ME = ME + w[:, :, None] * (nu @ E) + nu[:, None, None] * wE[None, :, :]
            ME = ME - (2 * (1 - free) * nu)[:, None, None] * w[:, :, None] * E[:, None, :]
            w = 0 * w
        if ridge is not None:
            w = w if ridge.w is None else w + ridge.w
            ME = ME if ridge.ME is None else ME + ridge.ME
        BME = self.white.transpose(xp.reshape(ME, (d, m * k)))
        G = 2 * (xp.reshape(BME, (U.shape[0], m, k)) - c[None, :, None] * U[:, None, :])
        return Tangent(c, self.white.transpose(w), G)


def mean_of_quadratic(s: Array, E: Array) -> float:
    """Return E zᵀMz − Σm for whitened z, M = E diag(s) Eᵀ: the part that models do not subtract."""
    xp = namespace(E)
    return float(xp.sum(s) - xp.sum((E * E) @ s))


def truncated(U: Array, s: Array, G: Array, rank: int, psd: bool) -> tuple[Array, Array]:
    """Return the rank-k part, by size of eigenvalues, of U diag(s) Uᵀ + U Gᵀ + G Uᵀ."""
    xp = namespace(U)
    V, R = qr(xp.concat([U, G], axis=1))
    u, g = R[:, : U.shape[1]], R[:, U.shape[1] :]
    cross = u @ g.T
    values, vectors = lead((u * s) @ u.T + cross + cross.T, rank, psd)
    return V @ vectors, values


def orthonormalised(model: Model) -> Model:
    """Return the same model with orthonormal U, sorted by size."""
    V, R = qr(model.U)
    s, vectors = lead((R * model.s) @ R.T, model.s.shape[0])
    return replace(model, U=V @ vectors, s=s)


def averaged_step(
    model: Model,
    sums: Sums,
    size: float,
    units: Units,
    options: Options,
    white: Whitener,
    weight: float,
    walks: bool = False,
) -> Model:
    """Take a share of the Newton step from sums at U, with the covariance behind `white`.

    The penalties are those of rows of this weight. A running mean is the optimum of the rows
    before, so that only these sums have a gradient; the penalty is part of the curvature. In a
    walk, whose steps do not add up to an optimum, its gradient is part of each step as well.
    """
    coordinates = Coordinates(units, options, white)
    c, v, U, s = coordinates.of(model)
    E = white.apply(U)
    sums = replace(sums, action=sums.action @ (model.U.T @ E))
    ridge = None
    if walks:
        ridge = coordinates.ridge_gradient(replace(model, U=E, s=s), weight)
    t = coordinates.preconditioned(U, coordinates.gradient(sums, U, E, ridge), weight)
    U, s = truncated(U, s, -size * t.G[:, 0, :], s.shape[0], options.psd)
    moved = coordinates.model(c - size * float(t.c[0]), v - size * t.v[:, 0], U, s)
    return orthonormalised(moved)
