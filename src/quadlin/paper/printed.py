r"""Algorithm 1 of the paper as it is printed, with the smallest changes that make it run.

.. math:: \hat U = V - \mathcal{M} U,\quad U^+ R = \hat U,\quad V^+ = U R^\top,\quad
          w^+ = w - \mathcal{W}

This is a literal reading, not what the authors run: their public code (MingLin-home/gFM)
symmetrises UVᵀ before each step, which is
``SecondOrderRegressor(k, alpha=0, step="plain", polish=False)``.
Without these corrections nothing changes or everything diverges:

- features are standardised and the mean of y is carried as c, because 0/1 and min(x, a) as sampled
  have neither mean 0 nor variance 1;
- the residual is centred, that is, ½P0·I is subtracted from 𝓜: otherwise the trace diverges for
  k ≥ 3;
- V⁺ = U Rᵀ, where V Rᵀ is printed, with which V would stay zero;
- H(z) = A′(z)/(2n), the only form with consistent types.

The start, the top singular vectors of H(y), and the asymmetric factors are as printed. The skew
part of U Vᵀ changes no prediction, so no residual corrects it.
"""

from typing import Any

import numpy as np

from quadlin.core.arrays import Array, namespace
from quadlin.paper.solver import Predict, Report, Setting
from quadlin.paper.standardised import Standardised

START_PASSES = 2  # the moments, and the spectral start


def literal(X: Array, y: Array, setting: Setting, report: Report) -> None:
    """Run the printed algorithm; one pass per iteration."""
    with np.errstate(over="ignore", invalid="ignore"):
        _run(Standardised.of(X, y), setting, report)


def _run(rows: Standardised, setting: Setting, report: Report) -> None:
    xp, Z = namespace(rows.Z), rows.Z
    n, d = Z.shape
    kappa, phi = xp.mean(Z**3, axis=0), xp.mean(Z**4, axis=0)
    tau = phi - 1 - kappa**2
    s, Q = xp.linalg.eigh(rows.moment_matrix())
    U = xp.take(Q, xp.argsort(-xp.abs(s))[: setting.rank], axis=1)
    V, w = U * 0, xp.zeros(d, dtype=Z.dtype, device=Z.device)
    c: Any = 0.0
    for step in range(setting.max_iter + 1):
        f, ZU = values(Z, U, V, w, c, setting.has_diagonal)
        r = f - rows.t
        predict = _predictor(rows, (U, V, w, c), setting.has_diagonal)
        if report(START_PASSES + 1 + step, predict, rows.mean_square(xp.mean(r * r))):
            return
        P0, P1 = xp.mean(r), Z.T @ r / n
        P2 = (Z * Z).T @ r / n - P0
        HU = Z.T @ (r[:, None] * ZU) / (2 * n) - P0 / 2 * U
        if setting.has_diagonal:
            MU = HU - (2 * kappa / tau * P1 + (1 - 2 / tau) * P2)[:, None] * U / 2
            W = ((phi - 1) * P1 - kappa * P2) / tau
        else:
            MU, W = HU - P2[:, None] * U / 2, P1
        U_next, R = xp.linalg.qr(V - MU)
        U, V, w, c = U_next, U @ R.T, w - W, c - P0


def values(
    Z: Array, U: Array, V: Array, w: Array, c: Any, has_diagonal: bool
) -> tuple[Array, Array]:
    """Return f with its quadratic part centred, and ZU."""
    xp = namespace(Z)
    ZU, m = Z @ U, xp.sum(U * V, axis=1)
    f = c + Z @ w + xp.sum(ZU * (Z @ V), axis=1)
    return (f - xp.sum(m) if has_diagonal else f - (Z * Z) @ m), ZU


def _predictor(rows: Standardised, model: tuple[Any, ...], has_diagonal: bool) -> Predict:
    U, V, w, c = model
    return lambda X: rows.predictions(values(rows.standardise(X), U, V, w, c, has_diagonal)[0])
