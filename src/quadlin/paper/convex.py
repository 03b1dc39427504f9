"""The convex problem of the paper's Eq. (3), the nuclear norm, as a semidefinite programme."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

MAX_CONVEX_FEATURES = 60  # beyond, the semidefinite programme takes minutes and gigabytes


@dataclass(frozen=True)
class ConvexFit:
    """The solution of the nuclear-norm problem: y = intercept + xᵀcoef + xᵀMx."""

    intercept: float
    coef: np.ndarray  # (d,)
    M: np.ndarray  # (d, d), symmetric; zero on the diagonal where that is not modelled
    status: str  # as the solver reports it

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the predictions for some rows."""
        return np.asarray(self.intercept + X @ self.coef + np.sum((X @ self.M) * X, axis=1))


def nuclear_norm(
    X: np.ndarray, y: np.ndarray, penalty: float = 1e-6, diagonal: bool = True
) -> ConvexFit:
    r"""Solve the paper's Eq. (3), with an intercept, as a semidefinite programme.

    .. math:: \min_{b, w, M}\; \frac{1}{2n} \sum_i (b + x_i^\top w + x_i^\top M x_i - y_i)^2
              + \lambda \|M\|_*

    M is the difference of two positive matrices, and the sum of their traces its nuclear norm.
    The rows are first reduced by a QR decomposition to as many as there are products of features.
    The solver is Clarabel: an interior-point method, good to 1e-8, where a first-order one such
    as SCS is good to 1e-4 and would not tell recovery from failure.

    Parameters
    ----------
    X : array (n, d)
        Rows; a few dozen features at most, for the work grows as d⁶.
    y : array (n,)
        Targets.
    penalty : float
        λ, which the paper writes λ/n.
    diagonal : bool
        Whether squares of features are modelled; else only the off-diagonal of M counts.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((40, 4))
    >>> fit = nuclear_norm(X, 1.0 + X[:, 0] + 2 * X[:, 1] * X[:, 2])
    >>> bool(abs(fit.M[1, 2] - 1) < 1e-3)
    True
    """
    try:
        cp: Any = import_module("cvxpy")
    except ImportError as error:
        raise ImportError(
            'The nuclear-norm problem needs cvxpy: pip install "quadlin[reproduce]".'
        ) from error
    n, d = X.shape
    if d > MAX_CONVEX_FEATURES:
        raise ValueError(
            f"X has {d} features; the nuclear-norm problem is solved here for at most "
            f"{MAX_CONVEX_FEATURES}. Use SecondOrderRegressor for more."
        )
    i, j = np.triu_indices(d, 0 if diagonal else 1)
    products = np.where(i == j, 1.0, 2.0) * X[:, i] * X[:, j]
    design = np.column_stack([np.ones(n), X, products, y])
    reduced = np.asarray(np.linalg.qr(design.astype(np.float64), mode="r"))
    b, w = cp.Variable(), cp.Variable(d)
    positive, negative = (cp.Variable((d, d), PSD=True) for _ in range(2))
    M = positive - negative
    entries = cp.vec(M, order="C")[i * d + j]
    residual = reduced[:, :-1] @ cp.hstack([b, w, entries]) - reduced[:, -1]
    nuclear = cp.trace(positive) + cp.trace(negative)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(residual) / (2 * n) + penalty * nuclear))
    problem.solve(solver=cp.CLARABEL)
    solution = np.asarray(M.value)
    if not diagonal:
        solution = solution - np.diag(np.diag(solution))
    return ConvexFit(float(b.value), np.asarray(w.value), solution, str(problem.status))
