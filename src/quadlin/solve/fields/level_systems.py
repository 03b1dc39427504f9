"""Small systems of equations, one per level of a field, for all levels at once.

Levels are the last axis of arrays. The compiled kernel does the work if there is one, else numpy.
"""

import numpy as np

from quadlin.core import compiled_levels
from quadlin.core.compiled_levels import LevelFactors, takes_levels


def factorised(A: np.ndarray, r: np.ndarray, noise: float, precision: np.ndarray) -> LevelFactors:
    """Return F, the factors of noise·A + Λ of all levels, Σ FᵀF and Σ FᵀF·noise·r."""
    if takes_levels(len(A)):
        return compiled_levels.factorised(A, r, noise, precision)
    K = len(A)
    P = noise * A
    P[np.arange(K), np.arange(K)] += precision[:, None]
    factor = inverse_cholesky(P)
    half = np.einsum("abl,bl->al", factor, noise * r)
    flat = factor.transpose(1, 0, 2).reshape(K, -1)
    return LevelFactors(factor, flat @ flat.T, flat @ half.ravel())


def solved(factor: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Return FᵀF r (K, L), the solutions of the equations of all levels."""
    if takes_levels(len(factor)):
        return compiled_levels.solved(factor, r)
    return spread_out(factor, np.einsum("abl,bl->al", factor, r))


def spread_out(factor: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return Fᵀ z (K, L): deviations of the levels from their means, if z are normal numbers."""
    if takes_levels(len(factor)):
        return compiled_levels.spread_out(factor, z)
    return np.asarray(np.einsum("cal,cl->al", factor, z))


def covariances(factor: np.ndarray) -> np.ndarray:
    """Return FᵀF (K, K, L), the inverses of the matrices."""
    if takes_levels(len(factor)):
        return compiled_levels.covariances(factor)
    return np.asarray(np.einsum("cal,cbl->abl", factor, factor))


def remainder(G: np.ndarray, h: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return h − G θ (K, L)."""
    if takes_levels(len(G)):
        return compiled_levels.remainder(G, h, theta)
    return np.asarray(h - np.einsum("abp,bp->ap", G, theta))


def inverse_cholesky(P: np.ndarray) -> np.ndarray:
    """Return inverses of the Cholesky factors of positive definite matrices (K, K, L)."""
    K = len(P)
    factor = P.copy()
    inverse = np.zeros_like(P)
    for j in range(K):
        column = factor[j:, j]
        column /= np.sqrt(column[0])
        for i in range(j + 1, K):
            factor[i, j + 1 : i + 1] -= column[i - j] * column[1 : i - j + 1]
    for j in range(K):
        row = inverse[j, : j + 1]
        row[j] = 1
        for i in range(j):
            row[: i + 1] -= factor[j, i] * inverse[i, : i + 1]
        row /= factor[j, j]
    return inverse
