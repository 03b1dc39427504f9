"""How many rows exact recovery takes, against the rank k and the features d: k²d, kd, or other?"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from quadlin.explain.displays import LevelDisplay, ScalingDisplay
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.problems import fitted, sample
from quadlin.paper.study import Frame, Row, Study, Task, Verdict
from quadlin.paper.trend import Power, powers, verdict_of

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"polish": False, "step": "plain", "max_iter": 100},
    "guarded": {"polish": False, "max_iter": 100},
    "polished": {"max_iter": 100},
}
NAMES = {"plain": "MES, plain step", "guarded": "MES, guarded step", "polished": "polished fit"}
EXACT = 1e-6  # test NMSE of a recovery
MOST = {"plain": 60, "guarded": 16, "polished": 6}  # rows searched up to, in (k + 1)d
PRECISION = {"tiny": 1.4, "quick": 1.1, "full": 1.06}  # the threshold is known to this factor
SLACK = 0.1
# (d, k) pairs, and seeds: one line of growing k, one of growing d
SIZES: dict[str, tuple[tuple[tuple[int, int], ...], int]] = {
    "tiny": (((16, 1), (16, 3), (32, 1)), 1),
    "quick": (((30, 1), (30, 2), (30, 5), (15, 2), (50, 2)), 1),
    "full": (((80, 1), (80, 2), (80, 4), (80, 8), (20, 3), (40, 3), (80, 3), (160, 3)), 3),
}


def tasks(size: str) -> list[Task]:
    """List the tasks: one search for a threshold each."""
    pairs, seeds = SIZES[size]
    return [
        {"method": method, "sign": sign, "d": d, "k": k, "seed": seed}
        | {"precision": PRECISION[size]}
        for method in METHODS
        for sign in ("positive", "signed")
        for d, k in pairs
        for seed in range(seeds)
        if sign == "positive" or (k > 1 and method != "plain")
    ]


def run(task: Task, device: str) -> list[Row]:
    """Bisect for the fewest rows, the first n of one table, from which the model is recovered.

    The median over tables is the n of 50% success. Success is taken to be monotone in n, which
    near the threshold it need not be: there the search finds one of the crossings.
    """
    d, k, method = task["d"], task["k"], task["method"]
    dof = degrees_of_freedom(d, k)
    low, high = dof, MOST[method] * (k + 1) * d  # fewer rows than parameters cannot do
    data = sample("gaussian", high, d, k, task["seed"], signed=task["sign"] == "signed")

    def recovered(n: int) -> bool:
        fit = fitted(data.X[:n], data.y[:n], k, **METHODS[method])
        return data.nmse(fit) <= EXACT

    # From below in doublings: fits of many rows are the dear ones.
    n = min(2 * low, high)
    while not recovered(n):
        if n == high:
            return [{"n50": float("nan"), "dof": dof}]
        low, n = n, min(2 * n, high)
    high = n
    while high > task["precision"] * low + 1:
        middle = int(np.sqrt(low * high))
        low, high = (low, middle) if recovered(middle) else (middle, high)
    return [{"n50": high, "dof": dof}]


def exponents(frame: Frame) -> dict[tuple[str, str], dict[str, Power]]:
    """Fit n = a·kᵖ·d^q for each method and sign; a single component has either sign."""
    found = {}
    for method in METHODS:
        for sign in ("positive", "signed"):
            own = frame[(frame["method"] == method) & ((frame["sign"] == sign) | (frame["k"] == 1))]
            if (own["sign"] == sign).any():
                found[method, sign] = powers({"k": own["k"], "d": own["d"]}, own["n50"])
    return found


def figures(frame: Frame) -> Mapping[str, Any]:
    """Draw the thresholds against k at one d, against d at one k, and in rows a parameter."""
    pictures: dict[str, Any] = {}
    for varied, fixed in (("k", "d"), ("d", "k")):
        # The value of the other that was tried with the most of this one.
        counts = frame.groupby(fixed)[varied].nunique()
        own = frame[(frame[fixed] == counts.idxmax()) & (frame["sign"] == "positive")]
        pictures[f"samples_{varied}"] = ScalingDisplay.from_points(
            {
                NAMES[method]: (part[varied].to_numpy(), part["n50"].to_numpy())
                for method, part in own.groupby("method", sort=False)
            },
            x_label="rank k" if varied == "k" else "features d",
            y_label="rows needed",
            title=f"Rows to exact recovery, {fixed} = {counts.idxmax()}",
        )
    pictures["samples_dof"] = LevelDisplay(
        {
            f"{NAMES[method]}, {sign}": (
                part["k"].to_numpy(),
                (part["n50"] / part["dof"]).to_numpy(),
            )
            for (method, sign), part in frame.groupby(["method", "sign"], sort=False)
        },
        level=1.0,
        level_label="as many rows as parameters",
        x_label="rank k",
        y_label="rows needed / parameters",
        title="Rows a parameter",
        log_y=True,
    )
    return pictures


def verdict(frame: Frame) -> Verdict:
    """Say the exponents, and whether more than kd is seen."""
    found = exponents(frame)
    lines = [
        f"{NAMES[method]}, {sign} M: n ∝ k^({fit['k']})·d^({fit['d']})"
        for (method, sign), fit in found.items()
    ]
    per_dof = (frame["n50"] / frame["dof"]).groupby(frame["method"]).median()
    missed = int(frame["n50"].isna().sum())
    own = found["plain", "positive"]
    within = {"k": own["k"].at_most(2.0, SLACK), "d": own["d"].at_most(1.0, SLACK)}
    linear = [fit["k"].at_most(1.0, SLACK) for fit in found.values()]
    words = (
        "The bound of k²d is an upper one, so fewer rows do not contradict it. "
        + (
            "No method needs more than about kd: the residual is centred, which takes the trace "
            "of the error out of the variance, and with it the second k. "
            if all(linear)
            else "Some exponents of k exceed 1. "
        )
        + "An exponent of k below 1 is what (k + c)·d looks like over so few k. In the median the "
        + ", ".join(f"{NAMES[method]} took {per_dof[method]:.1f}" for method in METHODS)
        + " rows a parameter."
    )
    if missed:
        words += f" {missed} searches did not succeed within their limit and are left out."
    return Verdict("; ".join(lines), verdict_of(within), words)


STUDY = Study(
    name="samples",
    title="Rows needed for exact recovery",
    claim="Theorem 1: of the order k²d rows are enough (and kd are necessary).",
    setting="Gaussian features, no noise, eigenvalues of M all +1 (positive) or of alternating "
    f"sign, w and b unknown; exact is a test NMSE of {EXACT:g} within 100 steps. For each table "
    f"the fewest rows that do are found by bisection (within {PRECISION['full'] - 1:.0%} in the "
    "full run); half of the tables need more than the median.",
    tasks=tasks,
    run=run,
    figures=figures,
    verdict=verdict,
)
