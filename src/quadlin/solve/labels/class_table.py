r"""Several classes on one dense matrix: scores whose softmax is the probability of each.

.. math:: \min\; 2 \sum_i \omega_i \Bigl(\log \sum_j e^{f_{ij}} - f_{i y_i}\Bigr)
          + \sum_k \theta_k^\top R\, \theta_k, \qquad f_{ik} = \varphi_i^\top \theta_k

with the same columns φ (all features, or all products as well) and the same penalties for all
classes: one prior. Newton's method takes all classes at once; the evidence is Laplace's
approximation at the optimum.
"""

from dataclasses import dataclass
from math import exp

import numpy as np
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dtrtri
from scipy.special import log_softmax

from quadlin.core.model import Model
from quadlin.solve.choose.penalty_posterior import Lattice, posterior_of
from quadlin.solve.labels.label_table import (
    MOST_COLUMNS,
    MOST_PRODUCTS,
    LabelTable,
    Line,
    descended,
)
from quadlin.solve.lowrank.design import Alpha, Basis
from quadlin.solve.lowrank.linear_model import factored, with_ridge

TOL, LATTICE_TOL = 1e-9, 1e-4  # the relative decrease that ends a fit; the same on a lattice
PEAK_STEPS, SETTLED, LONGEST = 8, 0.3, 3.0  # changes of log α: the one that ends them, the longest
LEAST_LEFT = 1e-9  # remaining freedom of a row whose leverage is one
COMMON = 1e-6  # of the weight: a ridge on intercepts, because only their differences matter


@dataclass(frozen=True)
class ClassScores:
    """Scores of all classes with some penalties."""

    theta: np.ndarray  # (K, p)
    F: np.ndarray  # (n, K)
    objective: float


@dataclass(frozen=True)
class ClassTable:
    """Rows of several classes as one matrix."""

    table: LabelTable
    codes: np.ndarray  # (n,), the class of each row
    count: int
    times: np.ndarray  # (n,), how often each row is repeated

    def takes(self, k: int) -> bool:
        """Return whether steps of rank 0 or d are cheap."""
        n, d = self.table.Z.shape
        p = self.count * (1 + d + d * k - k * (k - 1) // 2)
        return p <= MOST_COLUMNS and n * p * p <= MOST_PRODUCTS and self.table.takes(k)

    def basis(self, k: int) -> Basis:
        """Return the basis of all products, or of none."""
        return Basis(np.eye(self.table.Z.shape[1]), k)

    def _model(self, k: int, alpha: Alpha) -> tuple[np.ndarray, np.ndarray]:
        """Return the columns of rank 0 or d, and the ridge of each parameter."""
        basis = self.basis(k)
        return self.table.columns(basis), self.table.ridge(basis, alpha)

    def fitted(
        self, k: int, alpha: Alpha, start: ClassScores | None = None, tol: float = TOL
    ) -> ClassScores:
        """Return the optimum of rank 0 or d."""
        A, R = self._model(k, alpha)
        theta = np.zeros((self.count, A.shape[1])) if start is None else start.theta

        def line(at: ClassScores) -> Line[ClassScores]:
            P = np.exp(log_softmax(at.F, axis=1))
            P[np.arange(len(P)), self.codes] -= 1
            down = -((self.table.omega[:, None] * P).T @ A + R * at.theta)
            L = self._factor(at, A, R)
            step = cho_solve((L, True), down.ravel(), check_finite=False).reshape(theta.shape)
            return lambda size: self._at(at.theta + size * step, A, R)

        return descended(self._at(theta, A, R), line, tol)

    def _at(self, theta: np.ndarray, A: np.ndarray, R: np.ndarray) -> ClassScores:
        F = A @ theta.T
        losses = -log_softmax(F, axis=1)[np.arange(len(F)), self.codes]
        value = 2 * float(self.table.omega @ losses) + float(np.sum(R * theta**2))
        return ClassScores(theta, F, value if np.isfinite(value) else np.inf)

    def _factor(self, at: ClassScores, A: np.ndarray, R: np.ndarray) -> np.ndarray:
        """Return L with LLᵀ the curvature of half the objective."""
        P, (n, p) = np.exp(log_softmax(at.F, axis=1)), A.shape
        B = (np.sqrt(self.table.omega)[:, None] * P)[:, :, None] * A[:, None, :]
        B = B.reshape(n, -1)
        H = -(B.T @ B)
        for k in range(self.count):
            part = slice(k * p, (k + 1) * p)
            H[part, part] += A.T @ ((self.table.omega * P[:, k])[:, None] * A)
        common = np.where(np.arange(p) == 0, COMMON * self.table.weight, 0.0)
        L = factored(with_ridge(H, np.tile(R + common, self.count)))
        assert L is not None
        return L

    def evidence(self, k: int, at: ClassScores, alpha: Alpha) -> float:
        """Return the log evidence at an optimum, up to a constant of the rows."""
        A, R = self._model(k, alpha)
        half_log_det = float(np.log(np.diag(self._factor(at, A, R))).sum())
        return self.count * float(np.log(R[1:]).sum()) / 2 - half_log_det - at.objective / 2

    def left_out(self, k: int, at: ClassScores, alpha: Alpha) -> float:
        """Return the weighted sum of the log-loss of rows that are left out one at a time.

        One Newton step from the optimum, for all classes together, leaves a row out.
        """
        A, R = self._model(k, alpha)
        (n, p), K, places = A.shape, self.count, np.arange(self.count)
        inverse = dtrtri(self._factor(at, A, R), lower=1)[0]
        B = np.stack([inverse[:, a * p : (a + 1) * p] @ A.T for a in range(K)])
        V = np.einsum("amn,bmn->nab", B, B, optimize=True)  # φᵀA⁻¹φ of two classes, for each row
        P, share = np.exp(log_softmax(at.F, axis=1)), (self.table.omega / self.times)[:, None]
        slope = P.copy()
        slope[np.arange(n), self.codes] -= 1
        H = -P[:, :, None] * P[:, None, :]
        H[:, places, places] += P
        A_i = (1 + LEAST_LEFT) * np.eye(K) - V @ (share[:, :, None] * H)
        moved = np.linalg.solve(A_i, V @ (share * slope)[:, :, None])[:, :, 0]
        log_p = log_softmax(at.F + moved, axis=1)
        return -float(self.table.omega @ log_p[np.arange(n), self.codes])

    def peak(self, k: int, alpha: Alpha) -> tuple[Alpha, ClassScores]:
        """Return approximately the penalties of largest evidence (MacKay), and their scores."""
        d, at = self.table.Z.shape[1], None
        for _ in range(PEAK_STEPS):
            A, R = self._model(k, alpha)
            at = self.fitted(k, alpha, at, LATTICE_TOL)
            inverse = dtrtri(self._factor(at, A, R), lower=1)[0]
            free = 1 - np.tile(R, self.count) * np.einsum("ij,ij->j", inverse, inverse)
            free = free.reshape(self.count, -1)[:, 1:].sum(axis=0)
            squares = (R * at.theta**2)[:, 1:].sum(axis=0)
            groups = [slice(0, d), slice(d, None)][: 1 + (k > 0)]
            ratio = [free[g].sum() / max(squares[g].sum(), 1e-12) for g in groups]
            change = np.clip(np.log(np.maximum(ratio, 1e-12)), -LONGEST, LONGEST)
            first, second = (a * exp(c) for a, c in zip(alpha, change[[0, -1]], strict=True))
            alpha = first, second
            if np.max(np.abs(change)) <= SETTLED:
                break
        assert at is not None
        return alpha, at

    def chosen(self, k: int, alpha: Alpha, lattice: Lattice, least: float) -> tuple[Alpha, float]:
        """Return the posterior mean of the penalties, and the log evidence over all of them.

        The evidence and the likelihood of left-out rows count half each.
        """
        alpha, begin = self.peak(k, alpha)

        def evaluate(alpha: Alpha, near: ClassScores) -> tuple[ClassScores, float]:
            at = self.fitted(k, alpha, near, LATTICE_TOL)
            return at, (self.evidence(k, at, alpha) - self.left_out(k, at, alpha)) / 2

        start = np.log(alpha if k else alpha[:1])
        posterior = posterior_of(evaluate, begin, [start], lattice, least)
        return posterior.alpha, posterior.log_evidence

    def models(self, k: int, at: ClassScores) -> list[Model]:
        """Return the score of each class."""
        return [self.table.model_of(theta, self.basis(k)) for theta in at.theta]
