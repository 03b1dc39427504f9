"""Matrix sensing with 0/1 and ±1 masks: the case that the introduction calls unclear."""

import numpy as np

from quadlin.paper.displays import PhaseTransitionDisplay
from quadlin.paper.laws import law
from quadlin.paper.problems import TEST_ROWS, fitted, random_truth
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, grid, joined, verdict_of

MASKS = {"0/1": ("bernoulli", 0.5), "0/1, rare": ("bernoulli", 0.1), "±1": ("signs", None)}
EXACT = 1e-8  # test NMSE
ENOUGH = 4  # rows in kd from which recovery is asked for
# d, k, rows in kd, seeds
SIZES: dict[str, tuple[int, int, tuple[float, ...], int]] = {
    "tiny": (20, 1, (4.0,), 1),
    "quick": (40, 2, (2.0, 3.0, 4.0, 6.0), 2),
    "full": (100, 4, (1.5, 2.0, 3.0, 4.0, 6.0, 10.0), 4),
}
ABOUT = About(
    title="Introduction: matrix sensing with two-valued masks",
    claim="Section 1: it is unclear how to solve symmetric rank-one matrix sensing on general "
    "sub-Gaussian distributions such as Bernoulli by nonconvex iteration; MES does.",
    setting="y = xᵀMx exactly, without w and b; 0/1 masks with probability .5 or .1, or ±1 masks, "
    "as sampled; a polished fit with fit_linear=False and fit_intercept=False; recovered is a test "
    f"NMSE below {EXACT:g}.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one fit each."""
    d, k, multiples, seeds = SIZES[size]
    signs = ("positive", "signed") if k > 1 else ("positive",)
    return grid(mask=MASKS, sign=signs, d=d, k=k, ratio=multiples, seed=range(seeds))


def run(task: Task, device: str) -> list[Row]:
    """Fit y = xᵀMx, without a linear part or an intercept, on the masks as they are."""
    rng = np.random.default_rng(task["seed"])
    d, k = task["d"], task["k"]
    n = int(task["ratio"] * k * d)
    truth = random_truth(rng, d, k, signed=task["sign"] == "signed")
    X = law(*MASKS[task["mask"]]).sample(rng, n + TEST_ROWS, d)
    y = ((X @ truth.Q) ** 2) @ truth.s
    fit = fitted(X[:n], y[:n], k, fit_linear=False, fit_intercept=False)
    test = y[n:]
    error = float(np.mean((fit.predict(X[n:]) - test) ** 2) / np.var(test))
    return [{"n": n, "nmse": error, "recovered": int(error <= EXACT)}]


def figures(frame: Frame) -> Pictures:
    """Draw the shares of recoveries, by mask and rows."""
    names = {f"{m}, {s}": i for i, (m, s) in enumerate(_arms(frame))}
    index = [names[f"{m}, {s}"] for m, s in zip(frame["mask"], frame["sign"], strict=True)]
    display = PhaseTransitionDisplay.from_trials(
        frame["ratio"],
        index,
        frame["recovered"],
        x_label="rows / kd",
        y_label="mask, sign of M",
        title=f"Matrix sensing with masks, d = {frame['d'].iloc[0]}, k = {frame['k'].iloc[0]}",
        y_names=list(names),
    )
    return {"masks": display}


def _arms(frame: Frame) -> list[tuple[str, str]]:
    return list(dict.fromkeys(zip(frame["mask"], frame["sign"], strict=True)))


def verdict(frame: Frame) -> Verdict:
    """Count the recoveries from 4kd rows on."""
    enough = frame[frame["ratio"] >= ENOUGH]
    shares = {
        arm: enough[(enough["mask"] == arm[0]) & (enough["sign"] == arm[1])]["recovered"]
        for arm in _arms(frame)
    }
    checks = {", ".join(arm): bool(r.mean() == 1) for arm, r in shares.items()}
    measured = (
        f"From {ENOUGH}kd rows on the sensed matrix is recovered in "
        + joined(f"{int(r.sum())} of {len(r)} ({m}, {s} M)" for (m, s), r in shares.items())
        + " trials."
    )
    words = (
        "Masks take two values, so the features are not τ-MIP, yet without a linear part the "
        "square x² = x (or 1) is not lost in w, and the sensed matrix predicts exactly. For ±1 "
        "masks only the trace of the diagonal is seen, and the low rank determines the rest. The "
        "rows are reused; the introduction asks whether a nonconvex method can do it at all."
    )
    return Verdict(measured, verdict_of(checks), words)
