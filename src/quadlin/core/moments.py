"""Mean, variance, skewness κ and kurtosis φ of each feature, and a survey of rows before a fit.

All of them add: the moments of two halves are those of the whole.
"""

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import gcd, inf
from operator import add
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array, canonical, namespace, to_numpy, unflagged
from quadlin.core.chunks import BLOCK_ELEMENTS, Chunk, even_cuts, in_main_memory
from quadlin.core.engine import Additive, in_wide_blocks
from quadlin.core.library import column_moments, gpu_kernels
from quadlin.core.rows import Rows

TAU_FREE = 0.05  # below this τ, the diagonal of M can hardly be told from w
EXACTLY, ROUNDING = 1e-9, 1e-14  # of a variance of two values, and of the values themselves
TWO_VALUED = 1e-6  # τ/φ of a two-valued feature is zero up to rounding


@dataclass(frozen=True)
class Moments:
    r"""Per feature :math:`\mu`, :math:`\sigma^2`, :math:`\kappa = E z^3`, :math:`\phi = E z^4`.

    Kept in standardised form, so that neither 1e30 nor 1e-30 overflows in a fourth power. A
    constant feature has κ = 0 and φ = 1, so τ = 0.

    Cost: one pass; memory: four vectors and a block.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[0.0], [0.0], [0.0], [1.0]])
    >>> m = Moments.of(x[:1]) + Moments.of(x[1:])
    >>> float(m.mean[0]), round(float(m.var[0]), 12), round(float(m.tau[0]), 12)
    (0.25, 0.1875, 0.0)
    """

    weight: float  # Σω
    mean: Array  # (d,)
    var: Array  # (d,)
    kappa: Array  # (d,)
    phi: Array  # (d,)
    low: Array  # (d,), the smallest value in rows with weight
    high: Array  # (d,), and the largest

    @classmethod
    @unflagged  # those who use the moments check for infinities
    def of(cls, X: Array, weight: Array | None = None) -> "Moments":
        """Take the moments of a block of rows, in float64 whatever the rows are."""
        X = canonical(X) if issparse(X) else X
        compiled = column_moments(X, weight) or _on_gpu(X, weight)
        if compiled is not None:
            return cls(*compiled)
        return _of_sparse(X, weight) if issparse(X) else _of_pieces(X, weight)

    @unflagged
    def __add__(self, other: "Moments") -> "Moments":
        if self.weight == 0 or other.weight == 0:
            return self if other.weight == 0 else other
        xp = namespace(self.mean)
        total = self.weight + other.weight
        p, q = self.weight / total, other.weight / total
        gap = other.mean - self.mean
        var = p * self.var + q * other.var + p * q * gap**2
        sd = xp.where(var > 0, xp.sqrt(var), 1.0)
        a, b, t = xp.sqrt(self.var) / sd, xp.sqrt(other.var) / sd, gap / sd
        # Central moments about the common mean, in units of the common sd.
        kappa = (
            p * a**3 * self.kappa
            + q * b**3 * other.kappa
            + p * q * (3 * t * (b**2 - a**2) + (p - q) * t**3)
        )
        phi = (
            p * a**4 * self.phi
            + q * b**4 * other.phi
            + p * q * (4 * t * (b**3 * other.kappa - a**3 * self.kappa))
            + p * q * (6 * t**2 * (p * b**2 + q * a**2) + (p * p - p * q + q * q) * t**4)
        )
        phi = xp.where(var > 0, phi, 1.0)
        low, high = xp.minimum(self.low, other.low), xp.maximum(self.high, other.high)
        return Moments(total, self.mean + q * gap, var, kappa, phi, low, high)

    @cached_property
    def tau(self) -> Array:
        """Return τ = φ − 1 − κ² ≥ 0, which is zero exactly for two-valued features."""
        xp = namespace(self.phi)
        return xp.clip(self.phi - 1 - self.kappa**2, min=0)

    def varies(self, dtype: Any) -> Array:
        """Tell which features are not constant: up to the rounding of the mean, and 1/σ in `dtype`.

        The mean is of float64 whatever the rows are, and rows as given have no rounding.
        """
        xp = namespace(self.var)
        sd, eps = xp.sqrt(self.var), float(xp.finfo(xp.float64).eps)
        least = 4 * float(xp.finfo(dtype).smallest_normal)
        return (sd > 8 * eps * xp.abs(self.mean)) & (sd > least)

    @cached_property
    def differs(self) -> Array:
        """Tell which features take different values, also where their squares are rounded to 0."""
        xp = namespace(self.var)
        eps = float(xp.finfo(xp.float64).eps)
        return xp.astype(self.high - self.low, xp.float64) > 8 * eps * xp.abs(self.mean)

    @cached_property
    def two_valued(self) -> Array:
        """Tell which features take two values, so that their squares are linear in them."""
        return (self.tau <= TWO_VALUED * self.phi) & (self.var > 0)

    @cached_property
    def has_two_values(self) -> Array:
        """Tell which features take exactly two values: one that dwarfs all others is no second.

        The variance is at most (highest − mean)(mean − lowest), and that only with two values.
        """
        xp = namespace(self.var)
        low, high = (xp.astype(v, xp.float64) for v in (self.low, self.high))
        rounding = ROUNDING * (xp.abs(low) + xp.abs(high)) * (high - low)
        rest = (high - self.mean) * (self.mean - low) - self.var
        return self.two_valued & (rest <= EXACTLY * self.var + rounding)


def _of_pieces(X: Array, weight: Array | None) -> Moments:
    """Cut a large block in main memory, since its rows are copied."""
    count = 1 + X.shape[0] * X.shape[1] // BLOCK_ELEMENTS if in_main_memory(X) else 1
    parts = even_cuts(X.shape[0], count) or [(0, 0)]
    pieces = (_of_dense(X[a:b, :], None if weight is None else weight[a:b]) for a, b in parts)
    return reduce(add, pieces)


def _of_dense(X: Array, weight: Array | None) -> Moments:
    xp = namespace(X)
    x = xp.astype(X, xp.float64)
    omega = xp.ones_like(x[:, 0]) if weight is None else xp.astype(weight, xp.float64)
    total = float(xp.sum(omega))
    share = omega / (total if total > 0 else 1.0)
    extremes = _extremes(x if weight is None else xp.take(x, xp.nonzero(weight > 0)[0], axis=0))
    mean = share @ x
    mean = mean + share @ (x - mean)  # a second look removes the rounding of the first
    x = x - mean
    var = share @ x**2
    x = x * _inverse_root(var)
    return _whole(total, mean, var, share @ (x * x * x), share @ (x**2) ** 2, extremes)


def _on_gpu(X: Array, weight: Array | None) -> Any:
    if gpu_kernels(X) is None:
        return None
    from quadlin.core import triton_moments

    return triton_moments.column_moments(X, weight)


def _of_sparse(X: csr_array, weight: Array | None) -> Moments:
    """Sum the stored entries; the zeros have the rest of the weight."""
    n, d = X.shape
    omega = np.ones(n) if weight is None else np.asarray(weight, dtype=np.float64)
    total = float(omega.sum())
    share = np.repeat(omega / (total if total > 0 else 1.0), np.diff(X.indptr))
    data = X.data.astype(np.float64)

    def column_sums(values: Array) -> Array:
        return np.bincount(X.indices, weights=values, minlength=d)

    mean = column_sums(share * data)
    full = np.bincount(X.indices, minlength=d) == n
    zeros = np.where(full, 0.0, np.clip(1.0 - column_sums(share), 0.0, None))
    # A second look removes the rounding of the first, by which a constant column would vary.
    mean = mean + column_sums(share * (data - mean[X.indices])) - zeros * mean
    centred = data - mean[X.indices]
    var = column_sums(share * centred**2) + zeros * mean**2
    size = _inverse_root(var)
    z, nu = centred * size[X.indices], mean * size
    third, fourth = (column_sums(share * z**p) + zeros * (-nu) ** p for p in (3, 4))
    extremes = _extremes(X if weight is None else X[omega > 0])
    return _whole(total, mean, var, third, fourth, extremes)


def _extremes(X: Array) -> tuple[Array, Array]:
    """Return the smallest and the largest value of each column; infinities without a row."""
    if not X.shape[0]:
        xp = np if issparse(X) else namespace(X)
        device = {} if issparse(X) else {"device": X.device}
        nothing = xp.full((X.shape[1],), inf, dtype=xp.float64, **device)
        return nothing, -nothing
    if issparse(X):
        return tuple(a.toarray().ravel().astype(np.float64) for a in (X.min(axis=0), X.max(axis=0)))
    xp = namespace(X)
    return xp.min(X, axis=0), xp.max(X, axis=0)


def _inverse_root(var: Array) -> Array:
    """Return 1/σ, by which powers neither overflow nor underflow; 1 where nothing varies."""
    xp = namespace(var)
    return 1 / xp.sqrt(xp.where(var > 0, var, 1.0))


def _whole(
    total: float,
    mean: Array,
    var: Array,
    third: Array,
    fourth: Array,
    extremes: tuple[Array, Array],
) -> Moments:
    xp = namespace(var)
    kappa, phi = xp.where(var > 0, third, 0.0), xp.where(var > 0, fourth, 1.0)
    return Moments(total, mean, var, kappa, phi, *extremes)


NOT_WHOLE = -1  # the unit of weights that are not whole numbers


@dataclass(frozen=True)
class Tally(Additive):
    """The number of rows, their weight, and how many observations they are.

    Weights that are whole numbers count observations, in units of their greatest common divisor: a
    row of weight 2 is two rows. Other weights are relative, and together count as (Σω)²/Σω² rows.
    """

    rows: int
    counting: int  # rows whose weight is not zero
    weight: float  # Σω
    squared_weight: float  # Σω²
    unit: int = 1  # greatest common divisor of the weights, or NOT_WHOLE
    filled: int = 0  # values that were missing

    @classmethod
    def of(cls, chunk: Chunk) -> "Tally":
        """Count the rows of a chunk."""
        n, filled = chunk.X.shape[0], 0 if chunk.absent is None else int(chunk.absent.nnz)
        if chunk.weight is None:
            return cls(n, n, float(n), float(n), filled=filled)
        omega = to_numpy(chunk.weight).astype(np.float64)
        counting, unit = int(np.count_nonzero(omega > 0)), whole_unit(omega)
        return cls(n, counting, float(omega.sum()), float(omega @ omega), unit, filled)

    def __add__(self, other: "Tally") -> "Tally":
        whole = NOT_WHOLE not in (self.unit, other.unit)
        unit = gcd(self.unit, other.unit) if whole else NOT_WHOLE
        return replace(super().__add__(other), unit=unit)

    @property
    def effective(self) -> float:
        """Return the effective number of rows, (Σω)²/Σω²."""
        return self.weight**2 / max(self.squared_weight, 1e-300)

    @property
    def share(self) -> float:
        """Return the factor by which weights become numbers of observations."""
        if self.unit == NOT_WHOLE:
            return self.weight / max(self.squared_weight, 1e-300)
        return 1.0 / max(self.unit, 1)

    @property
    def observations(self) -> float:
        """Return how many observations the rows are."""
        return self.share * self.weight


@dataclass(frozen=True)
class Survey(Additive):
    """The moments of the features and of the target, and the rows they are taken from."""

    features: Moments
    target: Moments
    tally: Tally


@in_wide_blocks
def survey(chunk: Chunk) -> Survey:
    """Survey one chunk; `rows.reduce(survey)` is the survey of all rows."""
    X, y, weight = chunk.X, chunk.y[:, None], chunk.weight
    return Survey(Moments.of(X, weight), Moments.of(y, weight), Tally.of(chunk))


def moments_of(rows: Rows) -> tuple[Moments, Moments]:
    """Return the moments of the features and of the target: one pass."""
    total = rows.reduce(survey)
    return total.features, total.target


def whole_unit(weight: np.ndarray) -> int:
    """Return the greatest common divisor of weights, or NOT_WHOLE.

    Examples
    --------
    >>> whole_unit(np.array([0.0, 20.0, 30.0])), whole_unit(np.array([0.5, 1.0]))
    (10, -1)
    """
    if not np.all((weight == np.floor(weight)) & (weight < 2**53)):
        return NOT_WHOLE
    return int(np.gcd.reduce(weight.astype(np.int64))) if len(weight) else 0
