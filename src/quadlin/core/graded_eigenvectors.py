"""Eigenvectors of a low-rank matrix whose rows have very different units, accurate in every entry.

Beside a row of size 1, an ordinary decomposition loses a row of size 10⁻¹² to rounding. Here each
entry M_ij keeps its digits: rows are factored in order of decreasing size, and the remaining small
matrix, graded like the rows, is diagonalised by rotations that depend on only two of its rows.
"""

import numpy as np
from scipy.linalg import qr, solve_triangular

RATIO = 1e3  # of the largest row to the smallest: above it, rows are called graded
SWEEPS = 40
EPS = float(np.finfo(np.float64).eps)


def row_sizes(A: np.ndarray) -> np.ndarray:
    """Return the largest absolute entry of each row."""
    return np.asarray(np.max(np.abs(A), axis=1, initial=0.0))


def is_graded(A: np.ndarray) -> bool:
    """Tell whether the nonzero rows of A differ greatly in size."""
    size = row_sizes(A)
    size = size[size > 0]
    return len(size) > 0 and bool(size.max() > RATIO * size.min())


def graded_eigenpairs(A: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues (k,) of A diag(s) Aᵀ by decreasing size, and its vectors (d, k).

    Each entry of the sum of λ v vᵀ is exact up to rounding of |A_i| |s| |A_j|. O(dk² + k³), k ≤ d.

    Examples
    --------
    >>> A, s = np.array([[1.0, 0.0], [1e-12, 1e-12]]), np.array([1.0, -1.0])
    >>> values, V = graded_eigenpairs(A, s)
    >>> bool(abs((V * values) @ V.T - (A * s) @ A.T)[1, 1] < 1e-36)
    True
    """
    A = A * np.sqrt(np.abs(s))
    order = np.argsort(-row_sizes(A), kind="stable")
    A = A[order]
    V, R, pivot = qr(A, mode="economic", pivoting=True)
    size = np.abs(np.diag(R))
    rank = int(np.count_nonzero(size))  # pivots decrease
    R, A, signs = R[:rank], A[:, pivot], np.sign(s[pivot])
    # Rows smaller than a pivot have small entries, which V R = A gives more accurately.
    small = row_sizes(A)[:, None] < size[:rank]
    solution = solve_triangular(R[:, :rank], A[:, :rank].T, trans="T").T
    V[:, :rank] = np.where(small, solution, V[:, :rank])
    values, Q = _jacobi((R * signs) @ R.T)
    by_size = np.argsort(-np.abs(values), kind="stable")
    V[:, :rank] = V[:, :rank] @ Q[:, by_size]
    return np.append(values[by_size], np.zeros(len(s) - rank)), V[np.argsort(order)]


def _jacobi(N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues and vectors of a symmetric matrix by Jacobi's rotations.

    The pairs of a round are disjoint, so their rotations are applied together.
    """
    k = len(N)
    N, Q = N.copy(), np.eye(k)
    for _ in range(SWEEPS):
        rotated = False
        for p, q in _rounds(k):
            a, b, c = N[p, p], N[q, q], N[p, q]
            big = np.abs(c) > EPS * np.sqrt(np.abs(a)) * np.sqrt(np.abs(b))
            with np.errstate(over="ignore"):
                theta = (b - a) / np.where(big, 2 * c, 1.0)
                t = np.where(theta < 0, -1.0, 1.0) / (np.abs(theta) + np.hypot(1, theta))
            t = np.where(big, t, 0.0)
            cos = 1 / np.sqrt(1 + t * t)
            sin = t * cos
            for B in (N, Q):
                B[:, p], B[:, q] = cos * B[:, p] - sin * B[:, q], sin * B[:, p] + cos * B[:, q]
            N[p], N[q] = (
                cos[:, None] * N[p] - sin[:, None] * N[q],
                sin[:, None] * N[p] + cos[:, None] * N[q],
            )
            N[p, p], N[q, q] = a - t * c, b + t * c
            N[p, q] = N[q, p] = np.where(big, 0.0, c)
            rotated = rotated or bool(big.any())
        if not rotated:
            break
    return np.diag(N).copy(), Q


def _rounds(k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return every pair of k players once, in rounds in which each plays at most once."""
    players = np.arange(k + k % 2)
    rounds = []
    for _ in range(len(players) - 1):
        first, second = players[: len(players) // 2], players[: len(players) // 2 - 1 : -1]
        real = (first < k) & (second < k)
        rounds.append((first[real], second[real]))
        players = np.concatenate([players[:1], players[-1:], players[1:-1]])
    return rounds
