r"""Models that are linear in their parameters: coefficients, evidence, errors of rows left out.

For y = c + Φθ + noise, Gaussian priors are ridge penalties, α_g = σ²/(prior variance of group g),
and the evidence (marginal likelihood), with c and σ² eliminated, is

.. math:: 2 \log p(y \mid \alpha) = -N \log S + \sum_g p_g \log \alpha_g - \log |A| + \text{const},
          \quad A = \Phi^\top \Phi + R, \quad S = |y|^2 - y^\top \Phi A^{-1} \Phi^\top y

for centred columns, N = Σω − 1 and R = diag(α_g r). At its maximum, α_g = σ²γ_g/|θ_g|²_r, where
σ² = S/N and γ_g is the number of parameters of the group that the rows determine (MacKay).
A row that is left out is predicted with the error e = r/(1 − h), from its residual r and its
leverage h = ω φᵀA⁻¹φ. On a tangent space, which was chosen with the row, e is a little too small.

The matrix is Φᵀ Φ (`Gram`) or, for fewer rows than parameters, Φ R⁻¹ Φᵀ (`Kernel`).

A model of rank k is linear on the tangent space of the rank-k matrices at its M, which contains M,
so the evidence of a linear model holds there. But the tangent space was chosen after seeing the
rows: the prior is spread over the curved set of all rank-k matrices, whose volume is c(d, k) times
that of one tangent space. Directions that the rows determine pay for that volume; for the others
the posterior is the prior, whatever the volume. Hence

.. math:: \log p(y \mid k) = \log p(y \mid \text{tangent space}) - \frac{\gamma}{p} \log c(d, k)

with γ/p the determined share of the parameters of M. Without the volume, the evidence overfits few
rows (rank 6 instead of 3 with 1.7 rows per parameter); with all of it, it underfits them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from functools import lru_cache
from math import inf, log, pi, sqrt
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri, dtrtri
from scipy.special import gammaln, multigammaln

from quadlin.core.arrays import Array, lead, moved, namespace, solved, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, folded, one_blas_thread
from quadlin.core.model import Model, Steps
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.design import (
    EXACT_COLUMNS,
    EXACT_FEATURES,
    Alpha,
    Design,
    dense,
)
from quadlin.solve.lowrank.observations import LEAST_FREEDOM, observed_squares
from quadlin.solve.lowrank.types import Options
from quadlin.solve.lowrank.whitening import Covariance

EXACT = 1e-14  # of |y|²: a smaller S is rounding
LOST_MEANS = 1e-4  # of the power of a product: the largest rounding error if means stay in it
NO_PENALTY = -30.0  # log(α/N)
INTERPOLATION = -12.0  # log(α/N) with which more parameters than rows fit any target
LOST = 1e-13  # of the power of a column: how much sums over rows may lose to rounding
UNDETERMINED = 1e-12  # of the largest eigenvalue of a Gram matrix: smaller ones count as zero
GRAM_WORK = 2e9  # most multiplications for a matrix of all rows, if a sample would do as well
SMALLEST_RIDGE = 1e-12  # of the weight: a smaller ridge does not matter, but rounding of A / R does
VOLUME_DIGITS = 80  # of `log_volume`, whose matrix has a condition number of 10^k or so

NONE = np.zeros(0)  # of numbers that were not computed


class Evidence(NamedTuple):
    """The log evidence at some penalties, and the numbers behind it."""

    log_evidence: float
    log_alpha: np.ndarray  # (g,)
    noise: float = inf  # σ², of standardised targets
    determined: np.ndarray = NONE  # (g,), γ
    gradient: np.ndarray = NONE  # (g,), with respect to log α; empty if it was not computed


class LeftOut(NamedTuple):
    """What the errors of rows that are left out are made of."""

    weight: np.ndarray  # (n,), ω of the rows of positive weight
    residual: np.ndarray  # (n,), r of the standardised target
    leverage: np.ndarray  # (n,), h

    @property
    def squares(self) -> np.ndarray:
        """Return ωe² of each observation."""
        return observed_squares(self.weight, self.residual, 1 - self.leverage)


class LinearModel(Protocol):
    """A model that is linear in groups of parameters, each with a penalty."""

    weight: float  # N
    sizes: Sequence[int]  # the number of parameters of each group
    noise: float | None  # σ², if it is known

    def at(self, log_alpha: np.ndarray, least: float = -inf) -> Evidence:
        """Return the evidence at some penalties; without its gradient if it is below `least`."""

    def model(self, alpha: Alpha) -> Model | None:
        """Return the optimum; None if the rows do not determine M, or it has a low rank."""

    def left_out(self, rows: Rows, alpha: Alpha) -> LeftOut:
        """Return what the errors of rows left out are made of."""

    def of_groups(self, alpha: Alpha) -> np.ndarray:
        """Return the penalties of the groups, from those of w and M."""


def check_products(units: Units, options: Options) -> None:
    """Raise an error if rounding hides what differs between products of features.

    An intercept removes the means of all columns. Without one, the products of two features whose
    means are ν standard deviations are ν² on average, and their sums of products ν⁴.
    """
    far = float(np.max(np.abs(to_numpy(units.nu)), initial=0))
    tied = options.fit_linear and not options.fit_intercept
    if tied and far**4 * np.finfo(np.float64).eps > LOST_MEANS:
        raise ValueError(
            f"Without an intercept, a feature whose mean is {far:,.0f} standard deviations from "
            "zero has products that rounding makes useless. Use fit_intercept=True, or subtract "
            "a constant from the feature."
        )


def lowest_penalty(model: LinearModel) -> float:
    """Return the smallest log(α/N) that may be chosen.

    No fewer parameters than observations fit any target without noise. If two of these rows are
    equal, the evidence of ever smaller penalties rises without bound, although it says nothing.
    """
    return NO_PENALTY if sum(model.sizes) < model.weight else INTERPOLATION


def factored(A: np.ndarray) -> np.ndarray | None:
    """Return L with A = LLᵀ up to rounding, or None if A is not positive.

    Columns of very large power, such as a feature far from zero without an intercept, leave
    rounding errors in A; adding as much to its diagonal makes up for them.
    """
    for rounding in (0.0, LOST):
        try:
            B = with_ridge(A, rounding * np.diag(A)) if rounding else A
            L = cholesky(B, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            continue
        return np.asarray(L)
    return None


def with_ridge(A: np.ndarray, ridge: np.ndarray) -> np.ndarray:
    """Return A + diag(ridge)."""
    A = A.copy()
    A.flat[:: len(A) + 1] += ridge
    return A


@dataclass(frozen=True)
class Gram(LinearModel):
    """Products of centred columns: p×p, for fewer parameters than rows."""

    products: np.ndarray  # (p, p), ΦᵀΩΦ, the columns group by group
    right: np.ndarray  # (p,), ΦᵀΩy
    power: float  # Σω y²
    weight: float
    sizes: Sequence[int]
    unit: np.ndarray  # (p,), r
    noise: float | None = None
    design: Design | None = None  # of the columns
    mean: np.ndarray = field(
        default_factory=lambda: NONE
    )  # (p + 1,), of φ and y, which an intercept removes; else 0
    share: float = 0.0  # of the intercept in the leverage of a row of weight 1

    @classmethod
    def of(cls, rows: Rows, design: Design, noise: float | None = None) -> "Gram":
        """Return the linear model of some rows: one pass, O(p²) memory."""
        if design.basis.rank:
            check_products(design.units, design.options)
        products = to_numpy(rows.reduce(column_products, design).gram)
        return cls.from_products(products, design, noise)

    @classmethod
    def from_products(cls, G: np.ndarray, design: Design, noise: float | None = None) -> "Gram":
        """Return the model from the products of (1, φ, y), with the intercept eliminated."""
        weight, mean, share = float(G[0, 0]), np.zeros(len(G) - 1), 0.0
        centred = G[1:, 1:]
        if design.options.fit_intercept:
            mean, share = G[0, 1:] / weight, 1 / weight
            centred = centred - weight * np.outer(mean, mean)
            weight = max(weight - 1, 1.0)  # if all rows are equal, nothing remains
        parts = centred[:-1, :-1], centred[:-1, -1], float(centred[-1, -1])
        return cls(*parts, weight, design.sizes, design.unit, noise, design, mean, share)

    def ridge(self, alpha: np.ndarray) -> np.ndarray:
        """Return the ridge of each parameter, for the penalties of the groups."""
        return np.asarray(np.repeat(alpha, self.sizes) * self.unit)

    def of_groups(self, alpha: Sequence[float]) -> np.ndarray:
        """Return the penalties of the groups, from those of w and M, and of chosen products."""
        without_w = self.design is not None and not self.design.options.fit_linear
        return np.asarray(alpha[1:] if without_w else alpha[: len(self.sizes)], np.float64)

    def at(self, log_alpha: np.ndarray, least: float = -inf) -> Evidence:
        """Return the evidence at some penalties: O(p³)."""
        R = self.ridge(np.exp(log_alpha))
        L = factored(with_ridge(self.products, R))
        if L is None:  # no penalty, and linearly dependent columns
            return Evidence(-inf, log_alpha)
        theta = cho_solve((L, True), self.right, check_finite=False)
        S = max(self.power - float(self.right @ theta), EXACT * self.power)
        half_log_det = float(np.log(np.diag(L)).sum() - np.log(R).sum() / 2)
        fit, noise = log_likelihood(S, self)
        if fit - half_log_det < least:
            return Evidence(fit - half_log_det, log_alpha, noise)
        inverse = dtrtri(L, lower=1)[0] if L.size else L  # LAPACK takes no empty matrix
        shrunk = self._by_group(R * np.einsum("ij,ij->j", inverse, inverse))
        determined = np.asarray(self.sizes) - shrunk
        pull = over_noise(self._by_group(R * theta**2), S, self)
        return Evidence(fit - half_log_det, log_alpha, noise, determined, (determined - pull) / 2)

    def _by_group(self, values: np.ndarray) -> np.ndarray:
        return np.array([part.sum() for part in np.split(values, np.cumsum(self.sizes)[:-1])])

    def solved(self, alpha: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return θ, zero where the rows do not determine it, and whether they determine all."""
        R = self.ridge(alpha)
        A = with_ridge(self.products, R)
        L = factored(A) if R.min(initial=1.0) > 0 else None
        if L is None:
            return least_squares(A, self.right)
        return np.asarray(cho_solve((L, True), self.right, check_finite=False)), True

    def model(self, alpha: Alpha) -> Model | None:
        """Return the optimum of rank 0 or d; None if the rows do not determine M."""
        assert self.design is not None
        theta, determined = self.solved(self.of_groups(alpha))
        return None if self.design.basis.rank and not determined else self.model_of(theta)

    def model_of(self, theta: np.ndarray) -> Model:
        """Return the model of coefficients."""
        assert self.design is not None
        constant = float(self.mean[-1] - self.mean[:-1] @ theta)
        return self.design.model(theta, constant)

    def error_steps(self, alpha: Sequence[float]) -> tuple[Steps, float]:
        """Return steps t with Σ tᵢtᵢᵀ = A⁻¹, and the effective number of parameters."""
        assert self.design is not None
        R = self.ridge(self.of_groups(alpha))
        T = inverse_root(with_ridge(self.products, R))
        constant = -self.mean[:-1] @ T
        dof = T.shape[1] - float(R @ np.sum(T * T, axis=1))
        if self.design.options.fit_intercept:  # its error is independent of centred columns
            T = np.concatenate([T, np.zeros((len(T), 1))], axis=1)
            constant, dof = np.append(constant, sqrt(self.share)), dof + 1
        return self.design.steps(T, constant), dof

    def covariance(self) -> Covariance | None:
        """Return Σω z zᵀ of the features; None if parts are tied, since the sums then differ."""
        assert self.design is not None
        units, options = self.design.units, self.design.options
        if not (options.fit_linear and options.fit_intercept):
            return None
        d, rho = self.sizes[0], to_numpy(units.penalty_scale).astype(np.float64)
        G = self.products[:d, :d] + np.outer(self.mean[:d], self.mean[:d]) / self.share
        moments = moved(rho[:, None] * G * rho, units.scale)
        return Covariance(1 / self.share, namespace(moments).astype(moments, units.scale.dtype))

    def left_out(self, rows: Rows, alpha: Sequence[float]) -> LeftOut:
        """Return what the errors of rows left out are made of: one pass, O(np²)."""
        assert self.design is not None
        ridge = np.maximum(self.ridge(self.of_groups(alpha)), SMALLEST_RIDGE * self.weight)
        with one_blas_thread():
            Q = self._inverse_root(ridge)
        beta = Q @ (Q.T @ self.right)
        arrays = (moved(a, self.design.units.scale) for a in (Q, beta, self.mean))
        parts = zip(*rows.collect(_left_out, self.design, *arrays, self.share), strict=True)
        return LeftOut(*(np.concatenate(part) for part in parts))

    def _inverse_root(self, ridge: np.ndarray) -> np.ndarray:
        """Return Q with A⁻¹ = Q Qᵀ."""
        L = factored(with_ridge(self.products, ridge)) if len(ridge) else None
        if L is not None:  # LAPACK takes no empty matrix
            return np.asarray(np.triu(dtrtri(L, lower=1)[0].T))
        root = 1 / np.sqrt(ridge)
        values, V = np.linalg.eigh(root[:, None] * self.products * root)
        return np.asarray(root[:, None] * V / np.sqrt(np.maximum(values, 0.0) + 1))


@dataclass(frozen=True)
class Products(Additive):
    """Σω φφᵀ over rows."""

    gram: Array


def column_products(chunk: Chunk, design: Design, start: int = 0) -> Products:
    """Sum φφᵀ for φ = (1, z, the directions, products, y) over one chunk, in float64.

    Only its columns from `start` on.
    """
    # In small parts, since there are many more columns than features.
    return folded(_products, design.parts(chunk), (design, start))[0]  # type: ignore[return-value]


def _products(chunk: Chunk, design: Design, start: int) -> Products:
    A = design.columns(chunk)
    if chunk.weight is not None:
        xp = namespace(A)
        A = xp.sqrt(xp.astype(chunk.weight, xp.float64))[:, None] * A
    return Products(A.T @ A[:, start:])


def _left_out(
    chunk: Chunk, design: Design, Q: Array, beta: Array, mean: Array, share: float
) -> tuple[np.ndarray, ...]:
    """Return ω, r and h of the rows of positive weight of a chunk."""
    each = []
    for part in design.parts(chunk.counting()):
        A = design.columns(part)[:, 1:]
        A -= mean  # a new array, which may be changed
        A, y = A[:, :-1], A[:, -1]
        leverage = namespace(A).sum((A @ Q) ** 2, axis=1) + share
        omega = part.weights
        each.append((omega, to_numpy(y - A @ beta), omega * to_numpy(leverage)))
    return tuple(np.concatenate(arrays) for arrays in zip(*each, strict=True))


def least_squares(A: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return the smallest solution of A θ = b, and whether all columns that vary determine it."""
    T = inverse_root(A)
    return T @ (T.T @ b), T.shape[1] == np.count_nonzero(np.diag(A))


def inverse_root(A: np.ndarray, least: float = UNDETERMINED) -> np.ndarray:
    """Return T with T Tᵀ = A⁻¹, without directions that the rows do not determine.

    In units in which the diagonal of A is 1, eigenvalues that are less than `least` times the
    largest count as zero.
    """
    diagonal = np.diag(A)
    unit = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    A = unit[:, None] * A * unit
    L = factored(A) if len(A) else None  # LAPACK takes no empty matrix
    if L is not None and np.diag(L).min() > least**0.25:  # far from dependent
        return np.asarray(unit[:, None] * np.triu(dtrtri(L, lower=1)[0].T))
    values, V = np.linalg.eigh(A) if len(A) else (np.zeros(0), A)
    kept = values > least * values.max(initial=0.0)
    return np.asarray(unit[:, None] * V[:, kept] / np.sqrt(values[kept]))


@dataclass(frozen=True)
class Kernel(LinearModel):
    r"""Products of rows, ΦR⁻¹Φᵀ = Σ_g K_g/α_g: n×n, for fewer rows than parameters.

    The ridge α₁|w|² + 2α₂|M|² has the kernel :math:`z^\top z'/\alpha_1 + (z^\top z')^2/2\alpha_2`
    of features z/ρ, without the squares of those without a diagonal.
    """

    kernels: Sequence[np.ndarray]  # (n, n), Ω^½ Φ_g r⁻¹ Φ_gᵀ Ω^½ of centred columns
    y: np.ndarray  # (n,), Ω^½ y, centred
    shares: np.ndarray  # (n,), ω/Σω
    weight: float
    sizes: Sequence[int]
    noise: float | None = None
    units: Units | None = None
    Z: np.ndarray = field(default_factory=lambda: NONE)  # (n, d), z/ρ
    mean: float = 0.0  # of y

    @classmethod
    def of(cls, rows: Rows, units: Units, linear: bool = False) -> "Kernel":
        """Return the model of all products, or the `linear` one: one pass, O(n²) memory."""
        d, chunks = units.scale.shape[0], rows.collect(Chunk.counting)
        xp, rho = namespace(units.scale), units.penalty_scale
        Z = xp.concat([dense(c, units) for c in chunks]) / xp.astype(rho, xp.float64)
        y = np.concatenate([to_numpy(units.standardised_target(c.y)) for c in chunks])
        omega = np.concatenate([c.weights for c in chunks])
        root, shares = np.sqrt(omega), omega / omega.sum()
        L = Z @ Z.T
        kernels, sizes = [L], [d]
        if not linear:
            squares = Z * Z * xp.astype(units.free == 0, xp.float64)
            kernels, sizes = [L, (L * L - squares @ squares.T) / 2], [d, d * (d + 1) // 2]
        centred = [_centred(to_numpy(K), root, shares) for K in kernels]
        mean = float(shares @ y)
        args = centred, root * (y - mean), shares, max(float(omega.sum()) - 1, 1.0), sizes
        return cls(*args, units=units, Z=to_numpy(Z), mean=mean)

    def at(self, log_alpha: np.ndarray, least: float = -inf) -> Evidence:
        """Return the evidence at some penalties: O(n³)."""
        shares = np.exp(-log_alpha)
        L = factored(self._matrix(shares))
        if L is None:  # penalties so small that rounding is larger than the identity
            return Evidence(-inf, log_alpha)
        left = solve_triangular(L, self.y, lower=True, check_finite=False)
        S = max(float(left @ left), EXACT * float(self.y @ self.y))
        half_log_det = float(np.log(np.diag(L)).sum())
        fit, noise = log_likelihood(S, self)
        if fit - half_log_det < least:
            return Evidence(fit - half_log_det, log_alpha, noise)
        inverse = dpotri(L, lower=1)[0].T  # its lower triangle is zero, as that of Lᵀ
        inverse.flat[:: len(L) + 1] /= 2
        a = inverse @ self.y + self.y @ inverse
        determined = shares * [2 * np.vdot(inverse, K) for K in self.kernels]
        pull = over_noise(shares * [a @ K @ a for K in self.kernels], S, self)
        return Evidence(fit - half_log_det, log_alpha, noise, determined, (determined - pull) / 2)

    def _matrix(self, shares: np.ndarray, factor: float = 1.0) -> np.ndarray:
        """Return Σ K_g · share_g + factor · I."""
        A = shares[0] * self.kernels[0]
        for share, K in zip(shares[1:], self.kernels[1:], strict=True):
            A += share * K
        A.flat[:: len(A) + 1] += factor
        return np.asarray(A)

    def of_groups(self, alpha: Alpha) -> np.ndarray:
        """Return the penalties of the groups, from those of w and M."""
        return np.asarray(alpha[: len(self.kernels)], np.float64)

    def some(self, index: np.ndarray) -> "Kernel":
        """Return the model of some of the rows: about the same penalties at a lower cost."""
        kernels = [K[np.ix_(index, index)] for K in self.kernels]
        weight = self.weight * len(index) / len(self.y)
        return Kernel(kernels, self.y[index], self.shares[index], weight, self.sizes, self.noise)

    def model(self, alpha: Alpha) -> Model:
        """Return the optimum of rank 0 or d."""
        assert self.units is not None
        units, Z, weight = self.units, self.Z, self.shares * (self.weight + 1)
        A = self._matrix(1 / self.of_groups(alpha))
        a = np.sqrt(weight) * solved(A, self.y[:, None])[:, 0]
        a -= self.shares * a.sum()
        rho, free = (to_numpy(v).astype(np.float64) for v in (units.penalty_scale, units.free))
        w = Z.T @ a / alpha[0]
        f, s, U = Z @ w, np.zeros(0), np.zeros((len(w), 0))
        if len(self.kernels) > 1:
            M = (Z * a[:, None]).T @ Z / (2 * alpha[1])
            M -= np.diag((1 - free) * np.diag(M))
            f += np.sum((Z @ M) * Z, axis=1)
            s, U = lead(M / np.outer(rho, rho), len(w))
        c = self.mean - float(self.shares @ f) + float((U * U @ s) @ free)
        U, s, w = (units.array(v) for v in (U, s, w / rho))
        return Model(U, s, w, c, units.free)

    def left_out(self, rows: Rows, alpha: Alpha) -> LeftOut:
        """Return what the errors of rows left out are made of: no pass, O(n³).

        The intercept adds each row's share of the total weight to its leverage.
        """
        shares, weight = 1 / self.of_groups(alpha), self.shares * (self.weight + 1)
        with one_blas_thread():
            L = factored(self._matrix(shares))
            if L is not None:
                residual = cho_solve((L, True), self.y, check_finite=False)
                freedom = np.diag(dpotri(L, lower=1)[0])
            else:
                values, V = np.linalg.eigh(self._matrix(shares, 0.0))
                s = 1 / (np.maximum(values, 0.0) + 1)
                residual, freedom = V @ (s * (V.T @ self.y)), (V * V) @ s
        freedom = np.maximum(freedom - self.shares, LEAST_FREEDOM)
        return LeftOut(weight, residual / np.sqrt(weight), 1 - freedom)


def _centred(K: np.ndarray, root: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return √ω (I − 1ω̄ᵀ) K (I − ω̄1ᵀ) √ω, in place: the intercept is not penalised."""
    mean = K @ share
    K -= mean[:, None]
    K -= mean[None, :]
    K += share @ mean
    K *= root[:, None]
    K *= root[None, :]
    return K


def log_likelihood(S: float, model: LinearModel) -> tuple[float, float]:
    """Return −(N log 2πσ² + S/σ²)/2 and σ² = S/N; if σ² is known, only the term with S."""
    if model.noise is not None:
        return -S / model.noise / 2, model.noise
    log_noise = log(2 * pi * S / model.weight) + 1 if S > 0 else -inf
    return -model.weight / 2 * log_noise, S / model.weight


def over_noise(values: np.ndarray, S: float, model: LinearModel) -> np.ndarray:
    """Return values divided by σ²."""
    return values * model.weight / S if model.noise is None else values / model.noise


def unrestricted_optimum(rows: Rows, units: Units, options: Options, n_rows: float) -> Model | None:
    """Return the optimum of rank 0 or d: one pass; None for other ranks or too large problems.

    Conjugate gradients get close to it in a few passes, but never reach it. None also if the rows
    do not determine all products: of the many optima, steps from a constant lead to a smaller one.
    """
    d, entries = int(units.scale.shape[0]), rows.engine.source.entries
    columns = d + d * (d + 1) // 2 * (options.rank > 0)
    if options.loss != "squared" or 0 < options.rank < d or n_rows <= columns + 1:
        return None
    dense = options.rank or entries is None or 2 * entries >= n_rows * d  # else passes cost less
    most = EXACT_COLUMNS if options.rank else EXACT_FEATURES
    cheap = n_rows * columns**2 <= GRAM_WORK
    if columns > most or options.psd or not (cheap or (dense and not options.rank)):
        return None
    design = Design.of_rank(options.rank, units, options)
    return Gram.of(rows, design).model(options.alpha)


@lru_cache(maxsize=256)
def log_volume(d: int, k: int) -> float:
    r"""Return log c(d, k), the volume of the rank-k matrices relative to one tangent space.

    .. math:: c = (a/\pi)^{p/2} \int e^{-a \|M\|_F^2}\, dM, \quad p = dk - k(k-1)/2

    over symmetric d×d matrices M = U diag(s) Uᵀ of rank k, dM = 2^{(p-k)/2} Π_{a<b}|s_a − s_b|
    Π|s_a|^{d−k} ds dU: 1 for k = d, and 2^{(d−1)/2} for k = 1. The integral over s is a Pfaffian
    (de Bruijn). Its entries vanish unless one index is even and the other odd, so it is the
    determinant of Γ(a)Γ(b) I_½(a, b), a = (i + d − k + 1)/2 of even i < k and b of odd i, with a
    column of Γ(a) if k is odd.

    Examples
    --------
    >>> log_volume(9, 9), round(log_volume(9, 1) / log(2), 9)
    (0.0, 4.0)
    """
    if k in (0, d):
        return 0.0
    p = d * k - k * (k - 1) / 2
    a = (np.arange(k) + d - k + 1) / 2
    over_s = float(gammaln(a).sum()) + _log_determinant(_half_betas(a[0], (k + 1) // 2, k // 2))
    over_U = d * k / 2 * log(pi) - multigammaln(d / 2, k)  # signs and order do not change M
    return float(over_s + over_U + (p - k) / 2 * log(2) - p / 2 * log(pi))


def _half_betas(first: float, rows: int, columns: int) -> list[list[Decimal]]:
    """Return I_½(a + i, a + ½ + j), and a column of ones if there are more rows than columns.

    In many digits, since neighbouring columns are nearly the same. One of a and a + ½ is whole, so
    the first entry is a finite sum, and the others differ from their neighbours by one term.
    """
    with localcontext(prec=VOLUME_DIGITS):
        a, b = Decimal(first), Decimal(first) + Decimal("0.5")
        whole, other = (a, b) if a == int(a) else (b, a)
        term, total = Decimal(2) ** -other, Decimal(0)
        for j in range(int(whole)):
            total += term
            term *= (other + j) / (j + 1) / 2
        value, change = (1 - total, term) if whole is a else (total, term * b / a)
        table = []
        for _ in range(rows):  # change is 2^−(a+b) Γ(a + b)/(Γ(a + 1) Γ(b))
            right, step, c, row = value, change, b, []
            for _ in range(columns):
                row.append(right)
                right += step * a / c
                step *= (a + c) / c / 2
                c += 1
            table.append(row if columns == rows else [*row, Decimal(1)])
            value -= change
            change *= (a + b) / (a + 1) / 2
            a += 1
        return table


def _log_determinant(table: list[list[Decimal]]) -> float:
    """Return log |det| by elimination with pivots."""
    total = Decimal(0)
    with localcontext(prec=VOLUME_DIGITS):
        while table:
            pivot = max(table, key=lambda row: abs(row[0]))
            total += abs(pivot[0]).ln()
            rest = [row for row in table if row is not pivot]
            table = [
                [x - row[0] / pivot[0] * y for x, y in zip(row[1:], pivot[1:], strict=True)]
                for row in rest
            ]
    return float(total)
