r"""Splits a fitted M into a matrix of lower rank and a few entries, without a pass.

Two steps alternate: the leading eigenvectors of what the entries leave, and the largest entries of
what the eigenvectors leave. The entries are a guess at the pairs that a fit of low rank has
absorbed: five pairs are a matrix of rank ten.
"""

from math import log

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.model import Model, degrees_of_freedom
from quadlin.solve.pairs.pair_sums import ProductMoments
from quadlin.solve.pairs.pair_terms import PairTerms

TURNS = 30
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of entries that are tried
DENSE = 4  # a matrix of full rank is split only into a rank of at most d / DENSE and entries
MOST_FEATURES = 150  # for which eigenvectors are cheap; with more, only entries are tried


def absorbed_pairs(
    model: Model, moments: ProductMoments, rows: float, noise: float, most: int
) -> tuple[PairTerms, int] | None:
    """Return the pairs that the L of a model seems to have absorbed; see `split`."""
    U, s, free = (to_numpy(a).astype(float) for a in (model.U, model.s, model.free))
    M = (U * s) @ U.T
    M[np.diag_indices(len(M))] *= free
    C = to_numpy(moments.second) / moments.weight
    return split(M, len(s), C, rows, noise, most)


def split(
    M: np.ndarray, rank: int, C: np.ndarray, rows: float, noise: float, most: int
) -> tuple[PairTerms, int] | None:
    """Return the entries that, with a lower rank, approximate M with fewer parameters.

    Parameters
    ----------
    M : array (d, d)
        The matrix of a model, without the diagonal that is not modelled.
    rank : int
        The rank of its low-rank part.
    C : array (d, d)
        The correlations of the features.
    rows, noise : float
        The number of rows, and σ² of what M leaves of the standardised target.
    most : int
        The maximum number of entries.

    Returns
    -------
    PairTerms and int, or None
        The entries and the rank of the rest; None if a lower rank with some entries is no better
        than M, or a part of M of lower rank, alone.
    """
    d, candidates = len(M), len(M) * (len(M) + 1) // 2

    def cost(lost: float, rank: int, terms: int) -> float:
        """Return the extended BIC of a split, with the variance that it loses."""
        dof = degrees_of_freedom(d, rank, linear=False, intercept=False)
        fit = rows * log(max(noise + lost, 1e-300))
        return fit + (dof + terms) * log(rows) + 2 * terms * log(candidates)

    lost_by_rank = _lost_by_rank(M, C)
    best, rank = min((cost(lost, k, 0), k) for k, lost in enumerate(lost_by_rank[: rank + 1]))
    chosen, rest = None, rank
    counts = [count for count in COUNTS if count <= min(most, candidates)]
    # A pair takes two ranks, a square one; fewer if features are shared or were not fitted.
    tried = {
        (max(0, rank - (halves * count) // 2), count) for count in counts for halves in (2, 3, 4)
    }
    if rank == d:  # a dense matrix has no lower rank that is nearly as high
        tried = {(lower, count) for lower, count in tried if lower <= d // DENSE}
    for lower, count in sorted(tried):
        # The rank of a matrix of `count` entries is at most twice as large.
        least = cost(lost_by_rank[min(lower + 2 * count, d)], lower, count)
        if (lower and d > MOST_FEATURES) or least >= best:
            continue
        entries, L = _apart(M, lower, count)
        R = (M - entries - L) @ C
        lost = 2 * float(np.sum(R * R.T))  # the variance of zᵀRz for normal z
        if (value := cost(lost, lower, count)) < best:
            best, chosen, rest = value, entries, lower
    if chosen is None:
        return None
    i, j = np.nonzero(np.triu(chosen))
    return PairTerms(i, j, np.where(i == j, 1.0, 2.0) * chosen[i, j]), rest


def _apart(M: np.ndarray, rank: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` entries, and the low-rank matrix that remains."""
    first, second = np.triu_indices(len(M))
    S, L, before = np.zeros_like(M), np.zeros_like(M), np.zeros(0, np.int64)
    values = np.zeros(0)
    for _ in range(TURNS if rank else 1):
        L = _low_rank(M - S, rank)
        D = M - L
        largest = np.sort(np.argsort(-np.abs(D[first, second]), kind="stable")[:count])
        i, j = first[largest], second[largest]
        S = np.zeros_like(M)
        S[i, j] = S[j, i] = D[i, j]
        if np.array_equal(largest, before) and np.allclose(S[i, j], values, rtol=1e-3, atol=0):
            break
        before, values = largest, S[i, j]
    return S, L


def _lost_by_rank(M: np.ndarray, C: np.ndarray) -> list[float]:
    """Return the variance that the best matrix of rank 0, 1, … loses of zᵀMz, for normal z."""
    values, V = np.linalg.eigh(C)
    root = V * np.sqrt(np.maximum(values, 0.0))
    squares = np.sort(np.linalg.eigvalsh(root.T @ M @ root) ** 2)
    return [0.0, *np.cumsum(2 * squares).tolist()][::-1]


def _low_rank(M: np.ndarray, rank: int) -> np.ndarray:
    if not rank:
        return np.zeros_like(M)
    values, vectors = np.linalg.eigh(M)
    kept = np.argsort(-np.abs(values), kind="stable")[:rank]
    return np.asarray((vectors[:, kept] * values[kept]) @ vectors[:, kept].T)
