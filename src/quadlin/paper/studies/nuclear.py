"""The convex problem of Eq. (3) and all other solvers, at sizes where it can be solved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np

from quadlin.paper.laws import law
from quadlin.paper.methods import METHODS, SOLVERS, levels_by_method
from quadlin.paper.problems import tables
from quadlin.paper.race import Race
from quadlin.paper.solver import Setting
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, joined

MAX_CONVEX_FEATURES = 60  # beyond, the semidefinite programme takes minutes and gigabytes


@dataclass(frozen=True)
class ConvexFit:
    """The solution of the nuclear-norm problem: y = intercept + xᵀcoef + xᵀMx."""

    intercept: float
    coef: np.ndarray  # (d,)
    M: np.ndarray  # (d, d), symmetric; zero on the diagonal where that is not modelled
    status: str  # as the solver reports it

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the predictions for some rows."""
        return np.asarray(self.intercept + X @ self.coef + np.sum((X @ self.M) * X, axis=1))


def nuclear_norm(X: np.ndarray, y: np.ndarray, penalty: float = 1e-6) -> ConvexFit:
    r"""Solve the paper's Eq. (3), with an intercept, as a semidefinite programme.

    .. math:: \min_{b, w, M}\; \frac{1}{2n} \sum_i (b + x_i^\top w + x_i^\top M x_i - y_i)^2
              + \lambda \|M\|_*

    M is the difference of two positive matrices, and the sum of their traces its nuclear norm.
    The rows are first reduced by a QR decomposition to as many as there are products of features.
    The solver is Clarabel: an interior-point method, good to 1e-8, where a first-order one such
    as SCS is good to 1e-4 and would not tell recovery from failure.

    Parameters
    ----------
    X : array (n, d)
        Rows; a few dozen features at most, for the work grows as d⁶.
    y : array (n,)
        Targets.
    penalty : float
        λ, which the paper writes λ/n.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((40, 4))
    >>> fit = nuclear_norm(X, 1.0 + X[:, 0] + 2 * X[:, 1] * X[:, 2])
    >>> bool(abs(fit.M[1, 2] - 1) < 1e-3)
    True
    """
    try:
        cp: Any = import_module("cvxpy")
    except ImportError as error:
        raise ImportError(
            'The nuclear-norm problem needs cvxpy: pip install "quadlin[reproduce]".'
        ) from error
    n, d = X.shape
    if d > MAX_CONVEX_FEATURES:
        raise ValueError(
            f"X has {d} features; the nuclear-norm problem is solved here for at most "
            f"{MAX_CONVEX_FEATURES}. Use SecondOrderRegressor for more."
        )
    i, j = np.triu_indices(d)
    products = np.where(i == j, 1.0, 2.0) * X[:, i] * X[:, j]
    design = np.column_stack([np.ones(n), X, products, y])
    reduced = np.asarray(np.linalg.qr(design.astype(np.float64), mode="r"))
    b, w = cp.Variable(), cp.Variable(d)
    positive, negative = (cp.Variable((d, d), PSD=True) for _ in range(2))
    M = positive - negative
    entries = cp.vec(M, order="C")[i * d + j]
    residual = reduced[:, :-1] @ cp.hstack([b, w, entries]) - reduced[:, -1]
    nuclear = cp.trace(positive) + cp.trace(negative)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(residual) / (2 * n) + penalty * nuclear))
    problem.solve(solver=cp.CLARABEL)
    return ConvexFit(float(b.value), np.asarray(w.value), np.asarray(M.value), str(problem.status))


SETTINGS = {
    "tiny": {"d": 8, "k": 1, "test": 500, "trials": 1, "ratios": (4, 30)},
    "quick": {"d": 20, "k": 2, "test": 2_000, "trials": 2, "ratios": (2, 3, 5, 10, 30)},
    "full": {"d": 30, "k": 3, "test": 10_000, "trials": 2, "ratios": (2, 3, 4, 5, 7, 10, 20, 30)},
}
ITERATIONS = 50
PENALTY = 1e-6  # λ/n, for y of variance one: without noise as good as an equality
FOUND = 1e-6
ABOUT = About(
    "The nuclear norm and all others, at small d",
    "Section 2: minimising the nuclear norm recovers M but is computationally expensive, and a "
    "factored form is more efficient.",
    "x = min(x̂, 0), no noise, M = QQᵀ, w ~ N(0, I/d); the last iterate of each solver (at most "
    f"{ITERATIONS} iterations) on test rows. Eq. (3) with an intercept and λ/n = {PENALTY:g} (y of "
    "variance one), by Clarabel, a real interior-point solver; float64 on the CPU.",
)


def tasks(size: str) -> Sequence[Task]:
    """Return a task for each number of rows and trial."""
    s: Mapping[str, Any] = SETTINGS[size]
    return [
        {"ratio": ratio, "trial": t, "seed": 1000 + t, **{n: s[n] for n in ("d", "k", "test")}}
        for ratio in s["ratios"]
        for t in range(s["trials"])
    ]


def run(task: Task, device: str) -> list[Row]:
    """Run every solver on the same few rows; always on the CPU, in float64."""
    d, k = task["d"], task["k"]
    sizes = (task["ratio"] * k * d, task["test"])
    train, test = tables(law("truncated", 0.0), sizes, d, k, task["seed"])
    X, X_test = (t.X.astype(np.float64) for t in (train, test))
    setting = Setting(k, True, ITERATIONS, task["seed"])
    race = Race(X, train.f, X_test, test.f, test.f, setting)
    keep = ("solver", "nmse", "seconds", "iteration")
    lines = []
    for key, solver in SOLVERS.items():
        last = race.run(key, solver)[-1]
        lines.append({name: last[name] for name in keep})
    return [*lines, _convex(X, train.f, X_test, test.f)]


def _convex(X: np.ndarray, f: np.ndarray, X_test: np.ndarray, f_test: np.ndarray) -> Row:
    mean, sd, scale = X.mean(axis=0), X.std(axis=0), f.std()
    start = perf_counter()
    fit = nuclear_norm((X - mean) / sd, f / scale, PENALTY)
    seconds = perf_counter() - start
    error = np.mean((scale * fit.predict((X_test - mean) / sd) - f_test) ** 2)
    nmse = float(error / np.mean(f_test**2))
    return {"solver": "convex", "nmse": nmse, "seconds": seconds, "iteration": 1}


def figures(frame: Frame) -> Pictures:
    """Draw error and time against the rows."""
    size, x = f"d = {frame['d'].iloc[0]}, k = {frame['k'].iloc[0]}", ("ratio", "rows / kd")
    shown = frame.assign(nmse=frame["nmse"].clip(1e-16), seconds=frame["seconds"].clip(1e-6))
    return {
        "error": levels_by_method(
            shown,
            x,
            y=("nmse", "test NMSE"),
            title=f"Error of every solver, {size}",
            level=(FOUND, "found, below"),
            by="solver",
        ),
        "seconds": levels_by_method(
            shown, x, ("seconds", "seconds"), f"Time of every solver, {size}", by="solver"
        ),
    }


def verdict(frame: Frame) -> Verdict:
    """Compare the rows each solver needs, and the time it takes."""
    need: dict[str, float] = {}
    for key, part in frame.groupby("solver", sort=False):
        share = (part["nmse"] < FOUND).groupby(part["ratio"]).mean()
        good = [r for r in sorted(share.index) if (share[share.index >= r] == 1).all()]
        need[str(key)] = good[0] if good else float("inf")
    reach = {key: n for key, n in need.items() if np.isfinite(n)}
    measured = (
        f"An NMSE below {FOUND:g} in every trial takes "
        + joined(f"{n:g}kd rows with {METHODS[key].name}" for key, n in reach.items())
        + "."
        if reach
        else "No solver found the optimum in every trial."
    )
    never = [METHODS[key].name for key in need if key not in reach]
    time = frame.groupby("solver")["seconds"].median()
    ratio = float(time["convex"] / time["polished"])
    words = (
        f"The convex problem takes {time['convex']:.2g} s in the median, {ratio:.2g} times as long "
        "as the polished fit at this size; the work of an interior-point method grows as d⁶, "
        "which rules out the paper's d = 1000."
    )
    if never:
        words += f" No number of rows tried was enough for {joined(never)}."
    if not np.isfinite(need["convex"]):
        return Verdict(measured, "no", words)
    holds = "yes" if ratio > 1 and need["polished"] <= need["convex"] else "in part"
    return Verdict(measured, holds, words)
