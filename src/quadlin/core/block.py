"""One block of standardised rows as an operator: dense, or sparse with implicit centring."""

import numpy as np
from scipy.sparse import coo_array, csr_array, issparse

from quadlin.core.arrays import Array, namespace
from quadlin.core.units import Units

FAR = 100.0  # σ: columns whose mean is further from zero have next to no zeros, and are centred


class Block:
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

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return int(self.S.shape[0])

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

    def columns(self, index: Array) -> Array:
        """Return Z[:, index], dense: a few columns."""
        if self.offset is None:
            xp = namespace(self.S)
            return xp.take(self.S, xp.asarray(index, device=self.S.device), axis=1)
        return self.S[:, index].toarray() - self.offset[index]

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
