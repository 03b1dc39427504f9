"""The 2016 result: asymmetric sensing, y = xᵀAz, by the features [x; z]; also in one pass."""

import numpy as np

from quadlin.paper.methods import FITS, levels_by_method
from quadlin.paper.problems import fitted, streamed
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, grid, verdict_of

EXACT = 1e-6  # relative error of A
ENOUGH = 10  # rows in k(p + q) from which recovery is asked for
# p, q, rank of A, rows in k(p + q), seeds
SIZES: dict[str, tuple[int, int, int, tuple[int, ...], int]] = {
    "tiny": (10, 8, 1, (40,), 1),
    "quick": (25, 15, 1, (5, 20, 80), 2),
    "full": (60, 40, 2, (5, 10, 20, 40, 80, 160), 4),
}
ABOUT = About(
    title="The 2016 result: asymmetric sensing by [x; z]",
    claim="The same group in 2016 (NIPS, generalized factorization machines and rank-one matrix "
    "sensing): asymmetric sensing and inductive matrix completion reduce to the symmetric model "
    "with the features [x; z], and one pass is enough.",
    setting="Gaussian x (p features) and z (q features), y = xᵀAz without noise, A of rank k; "
    "fits of rank 2k to [x; z], and one pass of partial_fit in twenty pieces.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one table each."""
    p, q, k, multiples, seeds = SIZES[size]
    plan = grid(p=p, q=q, k=k, ratio=multiples, seed=range(seeds))
    return [task | {"n": task["ratio"] * k * (p + q)} for task in plan]


def run(task: Task, device: str) -> list[Row]:
    """Return the relative error of A, read off the off-diagonal block of M."""
    rng = np.random.default_rng(task["seed"])
    p, q, k, n = task["p"], task["q"], task["k"], task["n"]
    U, V = (np.linalg.qr(rng.standard_normal((size, k)))[0] for size in (p, q))
    A = U @ V.T
    X = rng.standard_normal((n, p + q))
    y = np.sum((X[:, :p] @ A) * X[:, p:], axis=1)
    fits = {m: fitted(X, y, 2 * k, **o) for m, o in FITS.items()}
    fits["stream"] = streamed(X, y, 2 * k)
    rows = []
    for method, fit in fits.items():
        M = (fit.components_.T * fit.eigenvalues_) @ fit.components_
        error = np.linalg.norm(2 * M[:p, p:] - A) / np.linalg.norm(A)
        rows.append({"method": method, "error": float(error)})
    return rows


def figures(frame: Frame) -> Pictures:
    """Draw the error of A against the rows."""
    p, q, k = (frame[name].iloc[0] for name in "pqk")
    return {
        "asymmetric": levels_by_method(
            frame,
            x=("ratio", "rows / k(p + q)"),
            y=("error", "relative error of A"),
            title=f"y = xᵀAz by [x; z]: A is {p} × {q} of rank {k}",
            level=(EXACT, "exact, below"),
        )
    }


def verdict(frame: Frame) -> Verdict:
    """Count exact recoveries where there are enough rows."""
    enough = frame[frame["ratio"] >= ENOUGH]
    worst = enough.groupby("method")["error"].max()
    most = frame[frame["ratio"] == frame["ratio"].max()].groupby("method")["error"].max()
    batch = {method: bool(worst[method] <= EXACT) for method in ("guarded", "polished")}
    checks = {**batch, "authors": bool(most["plain"] <= EXACT)}
    measured = (
        f"From {ENOUGH}k(p + q) rows on the relative error of A is at most {worst['polished']:.0e} "
        f"for the polished fit and {worst['guarded']:.0e} for moment estimates; with the most rows "
        f"it is {most['plain']:.0e} for the authors' iteration and {most['stream']:.0e} after one "
        "pass."
    )
    words = (
        "With the features [x; z] the model has the symmetric matrix [[0, A/2], [Aᵀ/2, 0]] of rank "
        "2k, of both signs, and nothing else changes: asymmetric rank-one sensing, and with side "
        "information for x and z inductive matrix completion, are special cases. A model with a "
        "positive M cannot represent them."
    )
    return Verdict(measured, verdict_of(checks), words)
