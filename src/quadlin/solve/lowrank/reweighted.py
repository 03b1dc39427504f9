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
from quadlin.core.model import Model, tied
from quadlin.solve.lowrank.design import dense
from quadlin.solve.lowrank.types import Problem

MOST_ROWS = 2000  # whose n×n systems are solved: a step takes n³/3 products, 0.2 s
MOST_PER_PARAMETER = 3.0  # rows: with more, the moments show weak components too
STEPS = 40
NEAR = 1e-3  # of the smallest component to keep: with a smaller ε, Gauss–Newton steps do the rest
STALLED = 0.98  # of ε before the step: noise keeps it from falling
FLAT = 0.7  # of the smallest component: before ε falls below, it may pause
RIDGE = 1e-12  # of the mean of the kernel's diagonal, against rounding


def reweighted_start(problem: Problem) -> Model | None:
    """Return a model near one of its rank that fits the rows; None if they are too many."""
    options, units = problem.options, problem.units
    rank, d = options.rank, units.scale.shape[0]
    least_squares = options.loss == "squared" and not any(options.alpha) and not options.psd
    if not least_squares or not 0 < rank < d or options.fit_linear > options.fit_intercept:
        return None
    per_parameter = 1 / problem.error if problem.error > 0 else inf
    rows = per_parameter * options.dof(d, rank)
    if not (1 < per_parameter <= MOST_PER_PARAMETER and rows <= MOST_ROWS):
        return None
    chunks = problem.rows.collect(Chunk.counting)
    Z = np.concatenate([to_numpy(dense(chunk, units)) for chunk in chunks]).astype(np.float64)
    y = np.concatenate([to_numpy(units.standardised_target(chunk.y)) for chunk in chunks])
    # Without w, the features themselves are multiplied, not their differences from the mean.
    nu = np.zeros(d) if options.fit_linear else to_numpy(units.nu).astype(np.float64)
    parts = [np.ones((len(Z), 1))] * options.fit_intercept + [Z] * options.fit_linear
    linear = np.hstack(parts) if parts else np.zeros((len(Z), 0))
    free = to_numpy(units.free)
    with one_blas_thread():
        found = reweighted_matrix(Z + nu, y.astype(np.float64), linear, 1 - free, rank)
    if found is None:
        return None
    U, s, beta = found
    M = (U * s) @ U.T
    c = float(np.diag(M) @ free + nu @ (M - np.diag((1 - free) * np.diag(M))) @ nu)
    c += float(beta[0]) if options.fit_intercept else 0.0
    w = beta[1:] if options.fit_linear else np.zeros(d)
    xp, like = namespace(units.scale), units.scale
    U, s, w = (xp.asarray(a, dtype=like.dtype, device=like.device) for a in (U, s, w))
    model = Model(U, s, w, c, units.free)
    return tied(model, units, options.fit_linear, options.fit_intercept)


def reweighted_matrix(
    Z: np.ndarray, y: np.ndarray, linear: np.ndarray, fixed: np.ndarray, rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return U, s and the coefficients of `linear`, the columns that are not weighted.

    Squares of features that are `fixed` (1, else 0) are not modelled.
    """
    n, d = Z.shape
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
        found = V[:, :rank], s[:rank], beta
        falls = floor < STALLED * before or floor > FLAT * abs(s[rank - 1])
        if floor <= NEAR * abs(s[rank - 1]) or not falls:
            break
        B = (V * (np.maximum(np.abs(s), floor) / abs(s[0]))) @ V.T
    return found
