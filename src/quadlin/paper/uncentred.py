"""The authors' iteration without centring the residual, on formed matrices: what centring saves."""

import numpy as np

from quadlin.paper.laws import Law


def uncentred_iteration(
    Z: np.ndarray, y: np.ndarray, law: Law, rank: int, max_iter: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (w, M) fitted to standardised features and targets without intercept.

    The mean of the residual, tr ΔM, is left in the products and its expectation subtracted
    afterwards: the estimate is unbiased, and has the variance that the trace brings.
    """
    n, d = Z.shape
    w, M = np.zeros(d), np.zeros((d, d))
    before = float("inf")
    for _ in range(max_iter):
        r = Z @ w + np.sum((Z @ M) * Z, axis=1) - y
        loss = float(r @ r) / n
        if not loss < before * 10 or loss < 1e-20:
            break
        before = min(loss, before)
        P0, P1 = r.mean(), Z.T @ r / n
        P2 = (Z * Z).T @ r / n - P0
        E = Z.T @ (r[:, None] * Z) / n - P0 * np.eye(d)
        delta = (P2 - law.kappa * P1) / law.tau
        w = w - ((law.phi - 1) * P1 - law.kappa * P2) / law.tau
        s, Q = np.linalg.eigh(M - E / 2 - np.diag(delta - P2 / 2))
        lead = np.argsort(-np.abs(s))[:rank]
        M = (Q[:, lead] * s[lead]) @ Q[:, lead].T
    return w, M
