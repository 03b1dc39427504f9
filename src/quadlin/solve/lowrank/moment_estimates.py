r"""From the moments of a residual to the error of the model: the moment estimation sequence.

Pure functions. With P0, P1, P2 the means of r, r z, r z∘z (r centred) and F the free features:

    off the diagonal   E r z zᵀ = 2 ΔM                          (no solving)
    j ∈ F              P1 = Δw + κ ΔM_jj,  P2 = κ Δw + (φ−1) ΔM_jj
    j ∉ F              P1 = Δw
"""

from collections.abc import Callable

from quadlin.core.arrays import Array, lead, namespace, orthonormal
from quadlin.core.model import Model
from quadlin.core.moments import TWO_VALUED
from quadlin.core.sums import Sums
from quadlin.core.units import Units
from quadlin.solve.lowrank.krylov import block_krylov, conjugate_gradients

Estimate = tuple[Array, Array]  # a product with ΔM, and Δw
KRYLOV_BLOCKS = 4
OVERSAMPLING = 4
CG_STEPS = 30
CG_TOLERANCE = 1e-3
CG_LEAST = 1e-9  # of the size of a direction: a smaller product with it is rounding


def centred(sums: Sums, Q: Array) -> tuple[Array, Array, Array]:
    """Return P1, P2 and E r z zᵀ Q of the centred r (E z = 0, E z zᵀ = I)."""
    n = sums.weight
    P0 = float(sums.p0[0]) / n
    return sums.p1[:, 0] / n, sums.p2[:, 0] / n - P0, sums.action[:, 0, :] / n - P0 * Q


def unbiased(sums: Sums, Q: Array, units: Units) -> Estimate:
    """Return (𝓜Q, 𝓦), whose expectations are (ΔM Q, Δw) for independent features.

    Each free feature's 2×2 moment system is solved for (Δw_j, δ_j); the off-diagonal is read off.
    """
    xp = namespace(Q)
    P1, P2, EQ = centred(sums, Q)
    kappa, phi = units.kappa, units.phi
    # With two values, δ and Δw cannot be distinguished.
    solvable = (units.free > 0) & (units.tau > TWO_VALUED * phi)
    tau = xp.where(solvable, units.tau, xp.ones_like(units.tau))
    delta = xp.where(solvable, (P2 - kappa * P1) / tau, 0.0)
    W = xp.where(solvable, ((phi - 1) * P1 - kappa * P2) / tau, P1)
    return EQ / 2 + (delta - P2 / 2)[:, None] * Q, W


def spectral(
    estimate: Callable[[Array], Estimate],
    start: Array,
    rank: int,
    psd: bool,
    blocks: int = KRYLOV_BLOCKS,
) -> tuple[Array, Array, Array]:
    """Return (U, s, w): the `rank` leading eigenpairs of −𝓜 by block Krylov, and −𝓦."""
    W: Array = None  # the same for every product

    def negative(Q: Array) -> Array:
        nonlocal W
        MQ, W = estimate(Q)
        return -MQ

    basis, projected = block_krylov(negative, start, blocks)
    s, vectors = lead(projected, rank, psd)
    return basis @ vectors, s, -W


def full_step(model: Model, estimate: Callable[[Array], Estimate], P0: float, psd: bool) -> Model:
    """Take the paper's step: M ← rank-k part of M − 𝓜, w ← w − 𝓦, c ← c − P0."""

    def B(Q: Array) -> tuple[Array, Array]:
        MQ, W = estimate(Q)
        return model.U @ (model.s[:, None] * (model.U.T @ Q)) - MQ, W

    U = orthonormal(B(model.U)[0])
    BU, W = B(U)
    s, vectors = lead(U.T @ BU, U.shape[1], psd)
    return Model(U @ vectors, s, model.w - W, model.c - P0, model.free)


def tangent_step(sums: Sums, U: Array, units: Units) -> tuple[Array, Array]:
    r"""Return (Y, Δw) with Y = D U, where D is the error of M on the tangent space of rank k.

    It is the least-squares step with the population Gram matrix, restricted to
    D = Y Uᵀ + U Yᵀ − U UᵀY Uᵀ. With Δw = P1 − κ∘diag D eliminated, it remains to solve

        P_T[ D + (h − 1)∘diag D ] = P_T[ ½ E r z zᵀ + diag e ],
        j ∈ F:  h = τ/2, e = −κP1/2        j ∉ F:  h = 0, e = −P2/2

    by conjugate gradients on (d, k) matrices, without another pass over the rows. Unlike the full
    inverse it has no 1/τ: if τ is small, the low rank determines the diagonal.
    """
    xp = namespace(U)
    P1, P2, EU = centred(sums, U)
    h = units.free * units.tau / 2
    e = -xp.where(units.free > 0, units.kappa * P1, P2) / 2
    b = EU / 2 + e[:, None] * U
    Y = _solve_on_tangent(h - 1, b - U @ (U.T @ b - b.T @ U) / 2, U)
    return Y, P1 - units.free * units.kappa * tangent_diagonal(Y, U)


def tangent_diagonal(Y: Array, U: Array) -> Array:
    """Return the diagonal of D = Y Uᵀ + U Yᵀ − U UᵀY Uᵀ."""
    xp = namespace(U)
    return xp.sum(U * (2 * Y - U @ (U.T @ Y)), axis=1)


def _solve_on_tangent(g: Array, b: Array, U: Array) -> Array:
    """Solve P_T[D + g∘diag D] = b for Y = D U by conjugate gradients; g ≥ −1."""
    xp = namespace(U)

    def inner(A: Array, B: Array) -> float:
        return float(2 * xp.sum(A * B) - xp.sum((U.T @ A) * (U.T @ B)))

    def apply(Y: Array) -> Array:
        return Y + (g * tangent_diagonal(Y, U))[:, None] * U

    # If a column of U is a single feature, nothing distinguishes its diagonal from the others.
    return conjugate_gradients(apply, b, inner, CG_TOLERANCE, CG_STEPS, least=CG_LEAST)[0]
