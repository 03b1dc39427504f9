"""M of both signs, which the paper allows but does not show, and a positive model."""

from typing import Any

import numpy as np

from quadlin.paper.laws import law_name
from quadlin.paper.library import watched
from quadlin.paper.methods import LAWS, METHODS, errors_by_method
from quadlin.paper.problems import sample
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, grid, joined, verdict_of
from quadlin.solve.lowrank.types import Options

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"polish": False, "step": "plain", "tol": 0.0},
    "guarded": {"polish": False, "tol": 0.0},
    "polished": {},
    "psd": {"psd": True},
}
EXACT, POOR = 1e-10, 1e-2  # test NMSE: recovered, and not learnt
# d, k, rows in kd, seeds, most steps
SIZES: dict[str, tuple[int, int, int, int, int]] = {
    "tiny": (15, 2, 60, 1, 30),
    "quick": (40, 4, 30, 2, 40),
    "full": (150, 6, 30, 3, 50),
}
ABOUT = About(
    title="M of both signs",
    claim="Section 5: the model allows a symmetric M that is not positive, and its recovery is "
    "left out for want of space.",
    setting="Eigenvalues of M all +1, or +1 and −1 in turn; no noise, the same rows in every step, "
    "w and b unknown; test NMSE against the passes over the rows.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one fit each."""
    d, k, multiple, seeds, steps = SIZES[size]
    n, seed, signs = multiple * k * d, range(seeds), ("positive", "signed")
    return grid(law=LAWS, sign=signs, method=OPTIONS, d=d, k=k, n=n, seed=seed, steps=steps)


def run(task: Task, device: str) -> list[Row]:
    """Return the test error after each step, and how many eigenvalues are negative."""
    n, d, k = task["n"], task["d"], task["k"]
    signed = task["sign"] == "signed"
    data = sample(task["law"], n, d, k, task["seed"], signed=signed)
    options = Options(k, max_iter=task["steps"], **OPTIONS[task["method"]])
    return [
        {
            "t": t,
            "passes": fit.passes,
            "nmse": data.nmse(fit),
            "negative": int(np.sum(fit.eigenvalues_ < 0)),
        }
        for t, fit in enumerate(watched(data.X, data.y, options), 1)
    ]


def figures(frame: Frame) -> Pictures:
    """Draw the errors of a signed M, one picture per law."""
    return {
        f"signed_{name}": errors_by_method(
            rows, title=f"M of both signs, {law_name(name)} features"
        )
        for name, rows in frame[frame["sign"] == "signed"].groupby("law")
    }


def verdict(frame: Frame) -> Verdict:
    """Say what is recovered with either sign, and what a positive model leaves."""
    keys = ["law", "sign", "method", "seed"]
    last = frame.sort_values("t").groupby(keys, as_index=False).last()

    def share(method: str, sign: str) -> float:
        rows = last[(last["method"] == method) & (last["sign"] == sign)]
        return float((rows["nmse"] <= EXACT).mean())

    def passes(method: str, sign: str) -> float:
        rows = frame[(frame["method"] == method) & (frame["sign"] == sign)]
        rows = rows[rows["nmse"] <= EXACT]
        return float(rows.groupby(["law", "seed"])["passes"].min().median())

    free = [m for m in OPTIONS if m != "psd"]
    left = last[(last["method"] == "psd") & (last["sign"] == "signed")]["nmse"]
    fitting = last[(last["method"] == "psd") & (last["sign"] == "positive")]["nmse"]
    checks = {METHODS[m].name: share(m, "signed") >= min(1.0, share(m, "positive")) for m in free}
    checks["recovered"] = share("guarded", "signed") == share("polished", "signed") == 1.0
    measured = (
        "An M of both signs is recovered exactly in "
        + joined(f"{share(m, 'signed'):.0%} of the trials by {METHODS[m].name}" for m in free)
        + f"; with psd=True the fit of such an M ends at an NMSE of {left.min():.2f} to "
        f"{left.max():.2f}."
    )
    slower = [name for name, held in checks.items() if not held]
    words = (
        "Median passes to an NMSE of "
        f"{EXACT:g}, positive and signed: "
        + ", ".join(
            f"{METHODS[m].name} {passes(m, 'positive'):.0f} and {passes(m, 'signed'):.0f}"
            for m in free
            if share(m, "signed") > 0 and share(m, "positive") > 0
        )
        + ". "
        + (
            f"Signs cost: {joined(slower)}. "
            if slower
            else "Signs cost nothing: the first moment estimate already has them. "
        )
    )
    words += (
        f"A model with a positive M, such as any classical factorization machine, cannot represent "
        f"a signed one: whatever its solver, it leaves at least {left.min():.2f} of the variance. "
        f"On a positive M its NMSE is {fitting.median():.0e}."
        if left.min() > POOR
        else f"A positive model left {left.min():.1g} of the variance in one draw: no failure."
    )
    return Verdict(measured, verdict_of(checks), words)
