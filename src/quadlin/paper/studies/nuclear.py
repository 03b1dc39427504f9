"""The convex problem of Eq. (3) beside every other solver, where it can still be solved."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from quadlin.explain.displays import LevelDisplay
from quadlin.paper import race
from quadlin.paper.baselines import nuclear_norm
from quadlin.paper.samplers import draw
from quadlin.paper.study import Frame, Row, Study, Task, Verdict

SETTINGS = {
    "tiny": {"d": 8, "k": 1, "test": 500, "trials": 1, "ratios": (4, 30)},
    "quick": {"d": 20, "k": 2, "test": 2_000, "trials": 2, "ratios": (2, 3, 5, 10, 30)},
    "full": {"d": 30, "k": 3, "test": 10_000, "trials": 10, "ratios": (2, 3, 4, 5, 7, 10, 20, 30)},
}
ITERATIONS = 50
PENALTY = 1e-6  # λ/n, for y of variance one: without noise as good as an equality
CONVEX = "nuclear norm"
FOUND = 1e-6


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
    train, test = draw("truncated", 0.0, (task["ratio"] * k * d, task["test"]), d, k, task["seed"])
    X, X_test = (t.X.astype(np.float64) for t in (train, test))
    settings = {"rank": k, "iterations": ITERATIONS, "seed": task["seed"]}
    runners = race.prepared(X, train.f, X_test, test.f, test.f, True, **settings)
    keep = ("solver", "nmse", "seconds", "iteration")
    lines = []
    for solver in race.SOLVERS:
        last = race.run(runners, [solver])[-1]
        lines.append({name: last[name] for name in keep})
    return [*lines, _convex(X, train.f, X_test, test.f)]


def _convex(X: np.ndarray, f: np.ndarray, X_test: np.ndarray, f_test: np.ndarray) -> Row:
    mean, sd, scale = X.mean(axis=0), X.std(axis=0), f.std()
    start = perf_counter()
    fit = nuclear_norm((X - mean) / sd, f / scale, PENALTY)
    seconds = perf_counter() - start
    error = np.mean((scale * fit.predict((X_test - mean) / sd) - f_test) ** 2)
    nmse = float(error / np.mean(f_test**2))
    return {"solver": CONVEX, "nmse": nmse, "seconds": seconds, "iteration": 1}


def figures(frame: Frame) -> Mapping[str, Any]:
    """Draw error and time against the rows."""
    names = [*race.SOLVERS, CONVEX]
    parts = {name: frame[frame["solver"] == name] for name in names}
    common: dict[str, Any] = {"x_label": "rows / kd", "log_y": True, "log_x": True}

    def points(column: str, floor: float) -> dict[str, tuple[Any, Any]]:
        return {n: (p["ratio"].to_numpy(), np.maximum(p[column], floor)) for n, p in parts.items()}

    return {
        "error": LevelDisplay(points("nmse", 1e-16), FOUND, "found", y_label="test NMSE", **common),
        "seconds": LevelDisplay(points("seconds", 1e-6), y_label="seconds", **common),
    }


def verdict(frame: Frame) -> Verdict:
    """Compare the rows each solver needs, and the time it takes."""
    need, listed = {}, []
    for name, part in frame.groupby("solver", sort=False):
        share = (part["nmse"] < FOUND).groupby(part["ratio"]).mean()
        need[name] = next(
            (r for r in sorted(share.index) if (share[share.index >= r] == 1).all()), None
        )
        rows = "at no number of rows tried" if need[name] is None else f"from {need[name]}kd rows"
        listed.append(f"{name} {rows}, {part['seconds'].median():.2g} s")
    measured = f"Found in every trial (NMSE below {FOUND:g}), and median time: {'; '.join(listed)}."
    convex, ours = need[CONVEX], need[race.POLISHED]
    time = {name: frame[frame["solver"] == name]["seconds"].median() for name in need}
    ratio = time[CONVEX] / time[race.POLISHED]
    asks = {n: "more rows than were tried" if r is None else f"{r}kd rows" for n, r in need.items()}
    words = (
        f"The convex problem asks for {asks[CONVEX]} where the polished fit asks for "
        f"{asks[race.POLISHED]} and MES alone for {asks[race.OURS]}. It takes {ratio:.2g} times as "
        "long as the polished fit at this size; the work of an interior-point method grows as d⁶, "
        "which rules out the paper's d = 1000."
    )
    if convex is None:
        return Verdict(measured, "no", words)
    holds = "yes" if ratio > 1 and ours is not None and ours <= convex else "in part"
    return Verdict(measured, holds, words)


STUDY = Study(
    "nuclear",
    "The nuclear norm and all others, at small d",
    "Section 2: minimising the nuclear norm recovers M but is computationally expensive, and a "
    "factored form is more efficient.",
    "x = min(x̂, 0), no noise, M = QQᵀ, w ~ N(0, I/d); the last iterate of each solver (at most "
    f"{ITERATIONS} iterations) on test rows. Eq. (3) with an intercept and λ/n = {PENALTY:g} (y of "
    "variance one), by Clarabel, a real interior-point solver; float64 on the CPU.",
    tasks,
    run,
    figures,
    verdict,
)
