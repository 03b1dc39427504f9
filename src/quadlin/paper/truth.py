"""The model that the rows of a study come from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Truth:
    r""":math:`y = b + x^\top w + x^\top M x`, :math:`M = Q\,\mathrm{diag}(s)\,Q^\top + T`.

    Where the diagonal is not modelled it is left out of M. T is a small tail that no rank-k model
    explains; it is zero unless a study asks for it.
    """

    Q: np.ndarray  # (d, k), orthonormal columns
    s: np.ndarray  # (k,)
    w: np.ndarray  # (d,)
    has_diagonal: bool = True
    b: float = 0.0
    tail: np.ndarray | None = field(default=None, repr=False)  # (d, d), symmetric

    @property
    def M(self) -> np.ndarray:
        """Return M, d×d."""
        M = matrix(self.Q, self.s, np.full(len(self.w), self.has_diagonal))
        return M if self.tail is None else M + self.tail

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Return the noiseless targets of some rows in float64."""
        products = (X @ np.column_stack([self.Q, self.w]).astype(X.dtype)).astype(np.float64)
        f = self.b + products[:, -1] + (products[:, :-1] ** 2) @ self.s
        if not self.has_diagonal:
            f -= (X * X) @ ((self.Q * self.Q) @ self.s).astype(X.dtype)
        if self.tail is not None:
            f += np.sum((X @ self.tail) * X, axis=1)
        return np.asarray(f)

    def error(self, fit: Any) -> float:
        """Return the paper's error ‖ŵ − w‖ + ‖M̂ − M‖₂ of anything with a fit's attributes."""
        M = matrix(fit.components_.T, fit.eigenvalues_, fit.has_diagonal_)
        return float(np.linalg.norm(fit.coef_ - self.w) + np.linalg.norm(M - self.M, 2))


def matrix(Q: np.ndarray, s: np.ndarray, has_diagonal: np.ndarray) -> np.ndarray:
    """Return Q diag(s) Qᵀ without the diagonal entries that are not modelled."""
    M = (Q * s) @ Q.T
    return np.asarray(M - np.diag(np.where(has_diagonal, 0.0, np.diag(M))))


def random_truth(
    rng: np.random.Generator,
    d: int,
    k: int,
    signed: bool = False,
    has_diagonal: bool = True,
    b: float = 0.0,
    eigenvalues: Sequence[float] | None = None,
) -> Truth:
    """Draw a model as the paper does: Q orthonormal, w ~ N(0, I/d), eigenvalues 1.

    If signed, the signs of the eigenvalues alternate.
    """
    Q = np.linalg.qr(rng.standard_normal((d, k)))[0]
    s = np.ones(k) if eigenvalues is None else np.asarray(eigenvalues, dtype=float)
    if signed:
        s = s * np.where(np.arange(k) % 2, -1.0, 1.0)
    return Truth(Q, s, rng.standard_normal(d) / d**0.5, has_diagonal, b)
