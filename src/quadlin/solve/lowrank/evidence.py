r"""The evidence (marginal likelihood), whose maximum gives penalties and rank without folds.

For a model that is linear in its parameters, y = c + Φθ + noise, Gaussian priors are ridge
penalties, α_g = σ²/(prior variance of group g), and the evidence, with c and σ² eliminated, is

.. math:: 2 \log p(y \mid \alpha) = -N \log S + \sum_g p_g \log \alpha_g - \log |A| + \text{const},
          \quad A = \Phi^\top \Phi + R, \quad S = |y|^2 - y^\top \Phi A^{-1} \Phi^\top y

for centred columns, N = Σω − 1 and R = diag(α_g r). At its maximum, α_g = σ²γ_g/|θ_g|²_r, where
σ² = S/N and γ_g is the number of parameters of the group that the rows determine (MacKay).

A model of rank k is linear on the tangent space of the rank-k matrices at its M, which contains M,
so the same holds there. But the tangent space was chosen after seeing the rows: the prior is spread
over the curved set of all rank-k matrices, whose volume is c(d, k) times that of one tangent space
(`log_volume`). Directions that the rows determine pay for that volume; for the others the posterior
is the prior, whatever the volume. Hence

.. math:: \log p(y \mid k) = \log p(y \mid \text{tangent space}) - \frac{\gamma}{p} \log c(d, k)

with γ/p the determined share of the parameters of M. Without the volume, the evidence overfits few
rows (rank 6 instead of 3 with 1.7 rows per parameter); with all of it, it underfits them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from math import inf, log, pi
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri, dtrtri
from scipy.special import gammaln, multigammaln

EXACT = 1e-14  # of |y|²: a smaller S is rounding
NO_PENALTY = -30.0  # log(α/N)
INTERPOLATION = -12.0  # log(α/N) with which more parameters than rows fit any target
ROUNDING = 1e-13  # of the power of a column: how much sums over rows may lose
DIGITS = 80  # of `log_volume`, whose matrix has a condition number of 10^k or so


@dataclass(frozen=True)
class Value:
    """The log evidence at some penalties, and the numbers behind it."""

    log_evidence: float
    gradient: np.ndarray  # (g,), with respect to log α
    noise: float  # σ²
    determined: np.ndarray  # (g,), γ

    def there(self, log_alpha: np.ndarray) -> "Evidence":
        """Return the value together with the penalties."""
        return Evidence(self.log_evidence, log_alpha, self.noise, self.determined)


NOTHING = Value(-inf, np.zeros(0), inf, np.zeros(0))


class Linear(Protocol):
    """A model that is linear in groups of parameters, each with a penalty."""

    @property
    def weight(self) -> float:
        """Return N."""

    @property
    def sizes(self) -> Sequence[int]:
        """Return the number of parameters of each group."""

    @property
    def lowest(self) -> float:
        """Return the smallest log(α/N) that may be chosen."""

    def at(self, log_alpha: np.ndarray, gradient: bool = True, least: float = -inf) -> Value:
        """Return the evidence at some penalties; without the gradient if it is below `least`."""


def lowest_penalty(model: Linear) -> float:
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
    for rounding in (0.0, ROUNDING):
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
class ColumnGram:
    """Computed from products of centred columns: p×p, for fewer parameters than rows."""

    products: np.ndarray  # (p, p), ΦᵀΩΦ, the columns group by group
    right: np.ndarray  # (p,), ΦᵀΩy
    power: float  # Σω y²
    weight: float
    sizes: Sequence[int]
    unit: np.ndarray  # (p,), r
    noise: float | None = None  # σ², if it is known

    @property
    def lowest(self) -> float:
        """Return the smallest log(α/N) that may be chosen."""
        return lowest_penalty(self)

    def at(self, log_alpha: np.ndarray, gradient: bool = True, least: float = -inf) -> Value:
        """Return the evidence at some penalties: O(p³)."""
        R = np.repeat(np.exp(log_alpha), self.sizes) * self.unit
        L = factored(with_ridge(self.products, R))
        if L is None:  # no penalty, and linearly dependent columns
            return NOTHING
        theta = cho_solve((L, True), self.right, check_finite=False)
        S = max(self.power - float(self.right @ theta), EXACT * self.power)
        half_log_det = float(np.log(np.diag(L)).sum() - np.log(R).sum() / 2)
        fit, noise = _log_likelihood(S, self.weight, self.noise)
        value = fit - half_log_det
        if not gradient or value < least:
            return Value(value, np.zeros(0), noise, np.zeros(0))
        inverse = dtrtri(L, lower=1)[0] if L.size else L  # LAPACK refuses an empty matrix
        shrunk = self._by_group(R * np.einsum("ij,ij->j", inverse, inverse))
        determined = np.asarray(self.sizes) - shrunk
        pull = _over_noise(self._by_group(R * theta**2), S, self.weight, self.noise)
        return Value(value, (determined - pull) / 2, noise, determined)

    def solved(self, log_alpha: np.ndarray) -> np.ndarray:
        """Return θ at some penalties; it is zero in directions that the rows do not determine."""
        R = np.repeat(np.exp(log_alpha[-len(self.sizes) :]), self.sizes) * self.unit
        A = with_ridge(self.products, R)
        try:
            L = cholesky(A, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            theta: np.ndarray = np.linalg.lstsq(A, self.right, rcond=1e-12)[0]
            return theta
        return np.asarray(cho_solve((L, True), self.right, check_finite=False))

    def _by_group(self, values: np.ndarray) -> np.ndarray:
        stops = np.cumsum(self.sizes)
        return np.array(
            [values[stop - p : stop].sum() for p, stop in zip(self.sizes, stops, strict=True)]
        )


class KernelRows(NamedTuple):
    """The rows of a kernel in memory."""

    Z: np.ndarray  # (n, d), z/ρ
    root: np.ndarray  # (n,), √ω
    mean: float  # of y


@dataclass(frozen=True)
class RowKernel:
    """Computed from products of rows, ΦR⁻¹Φᵀ = Σ_g K_g/α_g: n×n, for fewer rows than parameters."""

    kernels: Sequence[np.ndarray]  # (n, n), Ω^½ Φ_g r⁻¹ Φ_gᵀ Ω^½ of centred columns
    y: np.ndarray  # (n,), Ω^½ y, centred
    shares: np.ndarray  # (n,), ω/Σω
    weight: float
    sizes: Sequence[int]
    noise: float | None = None  # σ², if it is known
    table: KernelRows | None = None  # from which the kernels were computed

    @property
    def lowest(self) -> float:
        """Return the smallest log(α/N) that may be chosen."""
        return lowest_penalty(self)

    def at(self, log_alpha: np.ndarray, gradient: bool = True, least: float = -inf) -> Value:
        """Return the evidence at some penalties: O(n³)."""
        shares = np.exp(-log_alpha)
        A = shares[0] * self.kernels[0]
        for share, K in zip(shares[1:], self.kernels[1:], strict=True):
            A += share * K
        A.flat[:: len(A) + 1] += 1.0
        L = factored(A)
        if L is None:  # penalties so small that rounding is larger than the identity
            return NOTHING
        left = solve_triangular(L, self.y, lower=True, check_finite=False)
        S = max(float(left @ left), EXACT * float(self.y @ self.y))
        half_log_det = float(np.log(np.diag(L)).sum())
        fit, noise = _log_likelihood(S, self.weight, self.noise)
        value = fit - half_log_det
        if not gradient or value < least:
            return Value(value, np.zeros(0), noise, np.zeros(0))
        inverse = dpotri(L, lower=1)[0].T  # its lower triangle is zero, as that of Lᵀ
        inverse.flat[:: len(A) + 1] /= 2
        a = inverse @ self.y + self.y @ inverse
        determined = shares * [2 * np.vdot(inverse, K) for K in self.kernels]
        pull = shares * [a @ K @ a for K in self.kernels]
        pull = _over_noise(pull, S, self.weight, self.noise)
        return Value(value, (determined - pull) / 2, noise, determined)

    def summed(self, alpha: Sequence[float]) -> np.ndarray:
        """Return Σ K_g/α_g; if w is the only group, only one of two penalties is used."""
        penalties = alpha[-len(self.kernels) :]
        return np.asarray(sum(K / a for K, a in zip(self.kernels, penalties, strict=True)))

    def some(self, rows: np.ndarray) -> "RowKernel":
        """Return the model of some of the rows: about the same penalties at a lower cost."""
        kernels = [K[np.ix_(rows, rows)] for K in self.kernels]
        weight = self.weight * len(rows) / len(self.y)
        shares = self.shares[rows]
        return RowKernel(kernels, self.y[rows], shares, weight, self.sizes, self.noise)


def _log_likelihood(S: float, weight: float, noise: float | None) -> tuple[float, float]:
    """Return −(N log 2πσ² + S/σ²)/2 and σ² = S/N; if σ² is known, only the term with S."""
    if noise is not None:
        return -S / noise / 2, noise
    log_noise = log(2 * pi * S / weight) + 1 if S > 0 else -inf
    return -weight / 2 * log_noise, S / weight


def _over_noise(values: np.ndarray, S: float, weight: float, noise: float | None) -> np.ndarray:
    """Return values divided by σ²."""
    return values * weight / S if noise is None else values / noise


@dataclass(frozen=True)
class Evidence:
    """The penalties of largest evidence."""

    log_evidence: float
    log_alpha: np.ndarray  # (g,)
    noise: float  # σ², of standardised targets
    determined: np.ndarray  # (g,), γ


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
    with localcontext(prec=DIGITS):
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
    with localcontext(prec=DIGITS):
        while table:
            pivot = max(table, key=lambda row: abs(row[0]))
            total += abs(pivot[0]).ln()
            rest = [row for row in table if row is not pivot]
            table = [
                [x - row[0] / pivot[0] * y for x, y in zip(row[1:], pivot[1:], strict=True)]
                for row in rest
            ]
    return float(total)
