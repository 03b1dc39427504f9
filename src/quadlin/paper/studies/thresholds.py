"""The fewest rows from which a method, or the authors' uncentred iteration, recovers the model."""

from collections.abc import Callable

import numpy as np

from quadlin.metrics import degrees_of_freedom
from quadlin.paper.laws import Law, law
from quadlin.paper.methods import FITS
from quadlin.paper.problems import INTERCEPT, Sample, fitted, sample
from quadlin.paper.study import Row, Task


def uncentred_iteration(
    Z: np.ndarray, y: np.ndarray, law: Law, rank: int, max_iter: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (w, M) fitted to standardised features and targets without intercept.

    The mean of the residual, tr ΔM, is left in the products and its expectation subtracted
    afterwards: the estimate is unbiased, but the trace adds to its variance.
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


OPTIONS = {m: options | {"max_iter": 100} for m, options in (FITS | {"psd": {"psd": True}}).items()}
EXACT = 1e-6  # test NMSE of a recovery
MOST = {"plain": 60, "guarded": 16, "polished": 6, "psd": 6, "uncentred": 60}  # in (k + 1)d rows
UNCENTRED_STEPS = 40
PRECISION = {"tiny": 1.4, "quick": 1.15, "full": 1.06}  # the threshold is known to this factor


def search(task: Task, device: str) -> list[Row]:
    """Bisect for the fewest rows, the first n of one table, from which the model is recovered.

    The median over tables is the n with 50% success. Success is assumed to be monotone in n. Near
    the threshold it need not be, and the search finds one of the crossings.
    """
    d, k, method = task["d"], task["k"], task["method"]
    squares = task.get("squares", "yes") == "yes"
    dof = degrees_of_freedom(d, k)
    low, high = dof, MOST[method] * (k + 1) * d  # fewer rows than parameters cannot do
    data = sample(
        task["law"],
        high,
        d,
        k,
        task["seed"],
        signed=task["sign"] == "signed",
        has_diagonal=None if squares else False,
    )
    recovers = _uncentred(data, task) if method == "uncentred" else _fits(data, task, squares)
    # From below in doublings: fits of many rows are the expensive ones.
    n = min(2 * low, high)
    while not recovers(n):
        if n == high:
            return [{"n50": float("nan"), "dof": dof}]
        low, n = n, min(2 * n, high)
    high = n
    while high > task["precision"] * low + 1:
        middle = int(np.sqrt(low * high))
        low, high = (low, middle) if recovers(middle) else (middle, high)
    return [{"n50": high, "dof": dof}]


def _fits(data: Sample, task: Task, squares: bool) -> Callable[[int], bool]:
    options = OPTIONS[task["method"]] | ({} if squares else {"diagonal": "zero"})

    def recovers(n: int) -> bool:
        return data.nmse(fitted(data.X[:n], data.y[:n], task["k"], **options)) <= EXACT

    return recovers


def _uncentred(data: Sample, task: Task) -> Callable[[int], bool]:
    features = law(task["law"])

    def recovers(n: int) -> bool:
        y = data.y[:n] - INTERCEPT
        with np.errstate(all="ignore"):
            w, M = uncentred_iteration(data.X[:n], y, features, task["k"], UNCENTRED_STEPS)
            f = INTERCEPT + data.X_test @ w + np.sum((data.X_test @ M) * data.X_test, axis=1)
            error = np.mean((f - data.y_test) ** 2) / np.var(data.y_test)
        return bool(error <= EXACT)

    return recovers
