"""One block of standardised rows as an operator: dense, or sparse with implicit centring."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array, csr_array, issparse

from quadlin.arrays import Array, namespace
from quadlin.moments import Moments

FAR = 100.0  # σ: columns whose mean is further from zero have next to no zeros, and are centred
OFF_CENTRE = 1e-3  # of σ: a mean that is off by less is as good as exact


class Target(NamedTuple):
    """How the user's y becomes the solver's: y = mean + scale · f, with E f² = power."""

    mean: float
    scale: float
    centre: float  # E f, zero when there is an intercept to take it up
    power: float  # 1, or 0 for a target that is constant


@dataclass(frozen=True)
class Units:
    r"""From the user's units to the solver's.

    .. math:: z = (x - \mathrm{mean}) \circ \mathrm{scale} - \mathrm{rest}
    """

    mean: Array  # (d,), μ rounded to the rows' dtype, so that x − μ is what is computed
    scale: Array  # (d,), 1/σ, and 0 for a constant feature
    kappa: Array  # (d,), E z³
    phi: Array  # (d,), E z⁴
    free: Array  # (d,), 1 where the diagonal of M is modelled, 0 where it is not
    target: "Target"
    burden: Array  # (d,), ρ: the ridge weighs ρ∘w and ρρᵀ∘M̄
    rest: Array  # (d,), what rounding took of μ/σ, 0 where it hardly matters

    @property
    def nu(self) -> Array:
        """Return μ/σ, the mean in standardised units."""
        return self.mean * self.scale + self.rest

    @property
    def tau(self) -> Array:
        """Return τ = φ − 1 − κ²."""
        return namespace(self.phi).clip(self.phi - 1 - self.kappa**2, min=0)


def target_of(moments: Moments, fit_intercept: bool) -> Target:
    """Centre and scale the target; without an intercept zero must stay where it is."""
    mean, var = float(moments.mean[0]), float(moments.var[0])
    varies = bool(moments.varies(namespace(moments.mean).float64)[0])
    if fit_intercept:
        scale = var**0.5 if varies else 1.0
        return Target(mean, scale, 0.0, 1.0 if varies else 0.0)
    power = mean**2 + var
    scale = power**0.5 if power > 0 else 1.0
    return Target(0.0, scale, mean / scale, 1.0 if power > 0 else 0.0)


def units_of(
    features: Moments, free: Array, target: Target, dtype: Any, one_hot: Array | None = None
) -> Units:
    """Make units from the moments of the features and those of the target.

    A one-hot column has ρ² = 1/σ, so that a rare level, which few rows speak for, is shrunk more
    than a common one: half-way between the ridge on standardised columns (ρ² = 1, the same share
    for all) and on raw ones (ρ² = 1/σ²), and about as good as the better of the two
    (`benchmarks/levels.py`).
    """
    xp = namespace(features.mean)
    varies = features.varies(dtype)
    sd = xp.where(varies, xp.sqrt(features.var), 1.0)
    rest = (features.mean - xp.astype(xp.astype(features.mean, dtype), xp.float64)) / sd
    rest = xp.where(varies & (xp.abs(rest) > OFF_CENTRE), rest, 0.0)
    burden = xp.ones_like(sd) if one_hot is None else xp.where(one_hot, 1 / xp.sqrt(sd), 1.0)

    def cast(v: Array) -> Array:
        return xp.astype(v, dtype)

    return Units(
        cast(features.mean),
        cast(xp.where(varies, 1 / sd, 0.0)),
        cast(xp.where(varies, features.kappa, 0.0)),
        cast(xp.where(varies, features.phi, 1.0)),
        cast(free & varies),
        target,
        cast(burden),
        cast(rest),
    )


class Rows:
    """Standardised rows Z = S − 1·offsetᵀ of one block, known by their products alone.

    Dense rows are centred outright (no cancellation when |mean| ≫ sd) and have no offset. Sparse
    rows are scaled where they are stored and centred implicitly; a column with no zero in the
    block, or with a mean far from zero, is centred outright as well. Either way the copy is of one
    block, never of the table.
    """

    def __init__(self, X: Array, units: Units) -> None:
        self.S: Array
        self.offset: Array | None
        if issparse(X):
            self.S, self.offset = _scaled_sparse(X, units)
        else:
            xp = namespace(X)
            S = (xp.astype(X, units.scale.dtype, copy=False) - units.mean) * units.scale
            self.S = S - units.rest if bool(xp.any(units.rest != 0)) else S
            self.offset = None

    def matmul(self, Q: Array) -> Array:
        """Return Z Q for skinny Q (d, q)."""
        product = self.S @ Q
        return product if self.offset is None else product - self.offset @ Q

    def rmatmul(self, R: Array) -> Array:
        """Return Zᵀ R for R (n, q) or (n,)."""
        product = self.S.T @ R
        if self.offset is None:
            return product
        total = R.sum(axis=0)
        return product - (self.offset * total if R.ndim == 1 else self.offset[:, None] * total)

    def squares_matmul(self, Q: Array) -> Array:
        """Return (Z∘Z) Q for skinny Q (d, q)."""
        product = self._squares @ Q
        if self.offset is None:
            return product
        o = self.offset[:, None]
        return product - 2 * (self.S @ (o * Q)) + self.offset**2 @ Q

    def squares_rmatvec(self, r: Array) -> Array:
        """Return (Z∘Z)ᵀ r for r (n,)."""
        product = self._squares.T @ r
        if self.offset is None:
            return product
        return product - 2 * self.offset * (self.S.T @ r) + self.offset**2 * r.sum()

    def gram(self, weight: Array | None) -> Array:
        """Return Zᵀ diag(weight) Z, a d×d matrix: only for those who ask."""
        S, o = self.S, self.offset
        if o is None:
            xp = namespace(S)
            return (S if weight is None else S * xp.astype(weight, S.dtype)[:, None]).T @ S
        omega = np.ones(S.shape[0], S.dtype) if weight is None else weight.astype(S.dtype)
        scaled = csr_array(
            (S.data * np.repeat(omega, np.diff(S.indptr)), S.indices, S.indptr), shape=S.shape
        )
        total = S.T @ omega
        product = (S.T @ scaled).toarray() - np.outer(total, o) - np.outer(o, total)
        return product + omega.sum() * np.outer(o, o)

    @property
    def _squares(self) -> Array:
        S = self.S
        if issparse(S):
            return csr_array((S.data * S.data, S.indices, S.indptr), shape=S.shape)
        return S * S


def _scaled_sparse(X: csr_array, units: Units) -> tuple[csr_array, Array]:
    n, d = X.shape
    # An explicit zero is a stored entry; scipy keeps at most one per place in canonical form.
    full = np.bincount(X.indices, minlength=d) == n
    far = np.abs(units.nu) > FAR
    if (far & ~full).any():
        X, full = _with_zeros(X, np.flatnonzero(far & ~full)), full | far
    data = X.data.astype(units.scale.dtype, copy=False)
    if full.any():
        data = data - np.where(full, units.mean, 0)[X.indices]
    data = data * units.scale[X.indices]
    if (full & (units.rest != 0)).any():
        data = data - np.where(full, units.rest, 0)[X.indices]
    S = csr_array((data, X.indices, X.indptr), shape=X.shape)
    return S, np.where(full, 0, units.nu).astype(units.scale.dtype)


def _with_zeros(X: csr_array, columns: np.ndarray) -> csr_array:
    """Return the rows with every zero of some columns stored."""
    row, at = np.nonzero(X[:, columns].toarray() == 0)
    own = X.tocoo()
    places = (np.concatenate([own.row, row]), np.concatenate([own.col, columns[at]]))
    data = np.concatenate([own.data, np.zeros(len(row), X.dtype)])
    return coo_array((data, places), shape=X.shape).tocsr()  # which adds what stands twice
