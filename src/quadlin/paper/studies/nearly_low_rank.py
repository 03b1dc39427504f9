"""An M of only nearly low rank: the effect of the tail on the fit."""

from dataclasses import replace

import numpy as np

from quadlin.metrics import degrees_of_freedom
from quadlin.paper.laws import law
from quadlin.paper.methods import FITS, METHODS, levels_by_method
from quadlin.paper.problems import INTERCEPT, TEST_ROWS, fitted, of_truth, random_truth
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, grid, joined, verdict_of

NEAR = 1.5  # times what no fit of rank k can avoid
# d, k, rows in kd, sizes of the tail, seeds
SIZES: dict[str, tuple[int, int, int, tuple[float, ...], int]] = {
    "tiny": (16, 1, 60, (0.01, 0.1), 1),
    "quick": (40, 2, 60, (0.001, 0.01, 0.1), 2),
    "full": (100, 3, 100, (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3), 4),
}
ABOUT = About(
    title="After Theorem 2: M that is nearly of low rank",
    claim="After Theorem 2: the estimate converges to the statistical error if M is nearly of low "
    "rank.",
    setting="Gaussian features, no noise, eigenvalues ±1, and a symmetric random tail T of a given "
    "spectral norm, orthogonal to the leading part; a fit of rank k.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one table each."""
    d, k, multiple, sizes, seeds = SIZES[size]
    return grid(tail=sizes, d=d, k=k, n=multiple * k * d, seed=range(seeds))


def run(task: Task, device: str) -> list[Row]:
    """Return the risk of each method over what the tail alone costs."""
    rng = np.random.default_rng(task["seed"])
    n, d, k = task["n"], task["d"], task["k"]
    noise = rng.standard_normal((d, d))
    noise = noise + noise.T
    # A symmetric tail of spectral norm `tail`, orthogonal to the leading part.
    low_rank = random_truth(rng, d, k, signed=True, b=INTERCEPT)
    away = np.eye(d) - low_rank.Q @ low_rank.Q.T
    noise = away @ noise @ away
    truth = replace(low_rank, tail=task["tail"] * noise / np.linalg.norm(noise, 2))
    data = of_truth(truth, law("gaussian").draw(rng, n + TEST_ROWS, d), n, 0.0, rng)
    unexplained = 2 * float(np.sum(truth.tail**2)) if truth.tail is not None else 0.0
    level = unexplained * (1 + degrees_of_freedom(d, k) / n)  # the tail acts as noise
    return [
        {"method": method, "risk": data.risk(fitted(data.X, data.y, k, **options)), "level": level}
        for method, options in FITS.items()
    ]


def figures(frame: Frame) -> Pictures:
    """Draw the risk over the level against the size of the tail."""
    return {
        "nearly_low_rank": levels_by_method(
            frame.assign(ratio=frame["risk"] / frame["level"]),
            x=("tail", "spectral norm of the tail T (leading eigenvalues ±1)"),
            y=("ratio", "risk / what the tail alone costs"),
            title="M = low rank + T, Gaussian features",
            level=(1.0, "2‖T‖²(1 + dof/n)"),
        )
    }


def verdict(frame: Frame) -> Verdict:
    """Say how far the fits end from what the tail alone costs."""
    ratios = (frame["risk"] / frame["level"]).groupby(frame["method"])
    worst = ratios.max()
    checks = {method: bool(worst[method] <= NEAR) for method in FITS}
    measured = (
        "At most this many times what the tail alone costs: "
        + joined(f"{METHODS[m].name} {worst[m]:.2f}" for m in FITS)
        + "."
    )
    words = (
        "A rank-k model cannot explain the tail T, which costs 2‖T‖² on Gaussian features, and its "
        "estimate treats T as noise of that variance, which costs dof/n of it once more. "
        + (
            "All methods end there: the remark after Theorem 2 holds."
            if all(checks.values())
            else "Not all methods end there."
        )
    )
    return Verdict(measured, verdict_of(checks), words)
