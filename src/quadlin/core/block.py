"""One block of standardised rows as an operator, without a standardised copy of it."""

from functools import cached_property

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import Array, namespace
from quadlin.core.compiled import DenseKernel, SparseKernel
from quadlin.core.kernels import (
    DenseReference,
    Kernel,
    Passed,
    Residuals,
    Response,
    SparseReference,
)
from quadlin.core.library import gpu_kernels
from quadlin.core.units import Units


class Block:
    """Standardised rows Z of one block, used only through their products.

    A kernel standardises rows inside the products, or a few at a time: the block is not copied.
    """

    def __init__(self, X: Array, units: Units) -> None:
        self.X, self.units = X, units

    @cached_property
    def reference(self) -> DenseReference | SparseReference:
        """Return the kernel that takes all rows."""
        return (SparseReference if issparse(self.X) else DenseReference)(self.X, self.units)

    @cached_property
    def compiled(self) -> Kernel | None:
        """Return the compiled kernel of the rows; None if there is none."""
        if issparse(self.X):
            return SparseKernel.of(self.X, self.units)
        if isinstance(self.X, np.ndarray):
            return DenseKernel.of(self.X, self.units)
        kernels = gpu_kernels(self.X)
        return None if kernels is None else kernels.TritonKernel.of(self.X, self.units)

    @property
    def kernel(self) -> Kernel:
        """Return the fastest kernel of the rows."""
        return self.reference if self.compiled is None else self.compiled

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return int(self.X.shape[0])

    def matmul(self, Q: Array) -> Array:
        """Return Z Q for skinny Q (d, q)."""
        return self.products(Q, None)[0]

    def products(self, Q: Array, S: Array | None) -> tuple[Array, Array | None]:
        """Return Z Q and (Z∘Z) S, None without S, from one read of the rows."""
        return self.kernel.products(Q, S)

    def rmatmul(self, R: Array) -> Array:
        """Return Zᵀ R for R (n, q) or (n,)."""
        return self.rmatmul(R[:, None])[:, 0] if R.ndim == 1 else self.kernel.sums(R, 0)[0]

    def passed(
        self, Q: Array, residuals: Response | Residuals, S: Array | None, squares: bool
    ) -> Passed:
        """Return the sums of residuals, from one read of the rows.

        Parameters
        ----------
        Q : array of shape (d, q)
        residuals : Response or callable
            Gets Z Q, (Z∘Z) S (None without S) and which rows they are of; returns the residuals
            (n, m) of those rows, the weighted residuals and the products (n, a) that they are
            multiplied by.
        S : array of shape (d, p) or None
        squares : bool
            Whether P2 is needed.
        """
        return self.kernel.passed(Q, residuals, S, squares)

    def gram(self, weight: Array | None) -> Array:
        """Return Zᵀ diag(weight) Z, a d×d matrix, which is formed only on request."""
        dtype = self.units.scale.dtype
        omega = None if weight is None else namespace(weight).astype(weight, dtype, copy=False)
        return self.reference.gram(omega)
