"""The effect of the constants of Theorem 2: the ratio σ₁/σ_k of M, and p of the features."""

import numpy as np

from quadlin.paper.laws import law
from quadlin.paper.library import moment_steps
from quadlin.paper.methods import METHODS, levels_by_method
from quadlin.paper.problems import sample
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, joined, verdict_of
from quadlin.paper.trend import Power, power

STEPS = ("plain", "guarded")
EXACT, LOST = 1e-9, 1e3  # errors, beside that of the start, below or above which a run ends
SLACK = 0.15
# d, k, rows in kd, ratios σ₁/σ_k, shares q of the sparse law (p = 3/q − 1), seeds, steps
SIZES: dict[str, tuple[int, int, int, tuple[float, ...], tuple[float, ...], int, int]] = {
    "tiny": (16, 2, 160, (1.0, 4.0), (1.0, 0.5), 1, 6),
    "quick": (30, 2, 160, (1.0, 2.0, 4.0, 8.0), (1.0, 0.5, 0.25), 2, 10),
    "full": (80, 3, 160, (1.0, 2.0, 4.0, 8.0, 16.0), (1.0, 0.7, 0.5, 0.35, 0.25), 4, 14),
}
ABOUT = About(
    title="Theorem 2: σ₁/σ_k and p",
    claim="Theorem 2: the rows needed grow with (p + 1)², p = max(1, |κ|, |φ−3|, |φ−1|), and δ is "
    "bounded by an expression in σ₁/σ_k.",
    setting="Fresh rows for each step, no noise, positive M whose eigenvalues fall geometrically "
    "from 1 to σ_k/σ₁; features Gaussian with probability q, else 0, so that κ = 0 and φ = 3/q. δ "
    "is the mean factor per step of ‖ŵ − w‖ + ‖M̂ − M‖₂.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one sequence of steps each."""
    d, k, multiple, ratios, shares, seeds, steps = SIZES[size]
    places = [("ratio", ratio, 1.0) for ratio in ratios] + [("p", 1.0, share) for share in shares]
    return [
        {"varied": varied, "ratio": ratio, "share": share, "step": step, "d": d, "k": k}
        | {"n": multiple * k * d, "seed": seed, "steps": steps}
        for varied, ratio, share in places
        for step in STEPS
        for seed in range(seeds)
    ]


def run(task: Task, device: str) -> list[Row]:
    """Return the share of the error that a step leaves, on fresh rows."""
    d, k, seed = task["d"], task["k"], task["seed"]
    features = law("sparse", task["share"])
    eigenvalues = np.geomspace(1.0, 1 / task["ratio"], k)
    data = sample(
        "sparse",
        task["n"],
        d,
        k,
        seed,
        signed=False,
        parameter=task["share"],
        eigenvalues=eigenvalues.tolist(),
    )
    start = float(np.linalg.norm(data.truth.w) + 1.0)  # ‖w‖ + ‖M‖₂, the error of nothing
    errors = [start]
    with np.errstate(all="ignore"):
        for fit in moment_steps(data, features, k, task["step"], task["steps"], seed, fresh=True):
            errors.append(data.truth.error(fit))
            if not EXACT * start < errors[-1] < LOST * start:
                break
    steps = len(errors) - 1
    delta = (errors[-1] / errors[0]) ** (1 / max(1, steps))
    return [{"p": features.p, "delta": float(min(delta, LOST)), "steps_taken": steps}]


def figures(frame: Frame) -> Pictures:
    """Draw the contraction against σ₁/σ_k and against p + 1."""
    pictures: Pictures = {}
    for varied, label in (("ratio", "σ₁/σ_k of M"), ("p", "p + 1 of the features")):
        part = frame[frame["varied"] == varied]
        x = part["ratio"] if varied == "ratio" else (part["p"] + 1).round(2)
        pictures[f"constants_{varied}"] = levels_by_method(
            part.assign(x=x),
            x=("x", label),
            y=("delta", "share of error left by a step"),
            title=f"Fresh rows, n = {int(frame['n'].iloc[0]):,} per step",
            level=(1.0, "no progress"),
            by="step",
        )
    return pictures


def exponents(frame: Frame) -> dict[tuple[str, str], Power]:
    """Fit δ = a·(σ₁/σ_k)ᵖ and δ = a·(p + 1)ᵖ for each kind of step."""
    fits = {}
    for (varied, step), part in frame.groupby(["varied", "step"], sort=False):
        x = part["ratio"] if varied == "ratio" else part["p"] + 1
        fits[varied, step] = power(x, part["delta"])
    return fits


def verdict(frame: Frame) -> Verdict:
    """Compare with δ ∝ (p + 1), and see what the ratio costs."""
    fits = exponents(frame)
    converges = {
        varied: float((part["delta"] < 1).mean())
        for varied, part in frame[frame["step"] == "plain"].groupby("varied")
    }
    checks = {
        "p": fits["p", "plain"].at_most(1.0, SLACK),
        "converges at every ratio": converges["ratio"] == 1.0,
        "converges at every p": converges["p"] == 1.0,
    }
    measured = (
        "The share δ of the error that a step leaves grows as "
        + joined(f"(σ₁/σ_k)^({fits['ratio', s]}) for {METHODS[s].name}" for s in STEPS)
        + " and as "
        + joined(f"(p + 1)^({fits['p', s]}) for {METHODS[s].name}" for s in STEPS)
        + "."
    )
    words = (
        "The theorem asks for n ∝ (p + 1)²/δ², that is, δ of at most the order p + 1. Its bound on "
        "δ, as printed, is 1 at w = 0 and grows with σ₁/σ_k, so it cannot say what an uneven M "
        f"costs; {converges['ratio']:.0%} of the runs of the authors' iteration converge over the "
        f"ratios tried and {converges['p']:.0%} over the p tried, at the same number of rows."
    )
    return Verdict(measured, verdict_of(checks), words)
