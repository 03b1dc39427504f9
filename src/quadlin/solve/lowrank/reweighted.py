r"""A start from few rows without noise: iteratively reweighted least squares (MatrixIRLS).

Of all M that fit the rows, a step takes the smallest in a norm that weighs directions by the M
before it: with the eigenpairs (σ, V) of that M and B = V max(|σ|, ε) Vᵀ it solves

.. math:: \min \; \mathrm{tr}(B^{-1} M B^{-1} M) \quad\text{s.t.}\quad
          y_i = c + z_i^\top w + z_i^\top M z_i

in the dual, whose kernel is (zᵢᵀBzⱼ)²; w and c are not weighted. ε is the largest eigenvalue beyond
the rank so far, and falls to zero where a matrix of this rank fits all rows. Weak components are
found as well as strong ones, which the moments of few rows do not show.
"""

from math import inf

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from quadlin.core.arrays import namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import one_blas_thread
from quadlin.core.model import Model
from quadlin.solve.lowrank.exact import dense
from quadlin.solve.lowrank.types import Problem

MOST_ROWS = 1500  # whose n×n systems are solved: a step takes n³/3 products, 0.1 s
MOST_PER_PARAMETER = 4.0  # rows: with more, the moments show weak components too
STEPS = 40
NEAR = 1e-3  # of the smallest component to keep: with a smaller ε, Gauss–Newton steps do the rest
STALLED = 0.999  # of ε before the step
RIDGE = 1e-12  # of the mean of the kernel's diagonal, against rounding


def reweighted_start(problem: Problem) -> Model | None:
    """Return a model near one of its rank that fits the rows; None if they are too many."""
    options, units = problem.options, problem.units
    rank, d = options.rank, units.scale.shape[0]
    plain = options.fit_linear and options.fit_intercept and not options.psd
    if not plain or any(options.alpha) or options.loss != "squared" or not 0 < rank < d:
        return None
    per_parameter = 1 / problem.error if problem.error > 0 else inf
    rows = per_parameter * options.dof(d, rank)
    if not (1 < per_parameter <= MOST_PER_PARAMETER and rows <= MOST_ROWS):
        return None
    chunks = problem.rows.collect(Chunk.counting)
    Z = np.concatenate([to_numpy(dense(chunk, units)) for chunk in chunks])
    y = np.concatenate([to_numpy(units.standardised_target(chunk.y)) for chunk in chunks])
    with one_blas_thread():
        found = reweighted_matrix(Z, y.astype(np.float64), 1 - to_numpy(units.free), rank)
    if found is None:
        return None
    U, s, w, c = found
    c += float((U * U @ s) @ to_numpy(units.free))
    xp, like = namespace(units.scale), units.scale
    U, s, w = (xp.asarray(a, dtype=like.dtype, device=like.device) for a in (U, s, w))
    return Model(U, s, w, c, units.free)


def reweighted_matrix(
    Z: np.ndarray, y: np.ndarray, fixed: np.ndarray, rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float] | None:
    """Return U, s, w and c; squares of features that are `fixed` (1, else 0) are not modelled."""
    (n, d), Z = Z.shape, Z.astype(np.float64)
    linear = np.column_stack([np.ones(n), Z])
    squares = Z * Z * fixed  # what a fixed feature's square would add
    B, floor = np.eye(d), inf
    found = None
    for _ in range(STEPS):
        ZB = Z @ B
        K = (ZB @ Z.T) ** 2
        if fixed.any():
            cross = (ZB * ZB) @ squares.T
            K += squares @ (B * B) @ squares.T - cross - cross.T
        K[np.diag_indices(n)] += RIDGE * np.trace(K) / n
        try:
            solved = cho_solve(cho_factor(K, overwrite_a=True), np.column_stack([y, linear]))
        except LinAlgError:
            return found
        beta = np.linalg.lstsq(linear.T @ solved[:, 1:], linear.T @ solved[:, 0])[0]
        a = solved[:, 0] - solved[:, 1:] @ beta
        M = (Z * a[:, None]).T @ Z
        M = B @ (M - np.diag(fixed * np.diag(M))) @ B
        s, V = np.linalg.eigh((M + M.T) / 2)
        order = np.argsort(-np.abs(s))
        s, V = s[order], V[:, order]
        if not (np.isfinite(s).all() and s[0]):
            return found
        before, floor = floor, min(floor, abs(s[rank]))
        found = V[:, :rank], s[:rank], beta[1:], float(beta[0])
        if floor <= NEAR * abs(s[rank - 1]) or floor > STALLED * before:
            break
        B = (V * (np.maximum(np.abs(s), floor) / abs(s[0]))) @ V.T
    return found
