"""Where the iterations end with noise and without: at the statistical error, or above it?"""

import numpy as np

from quadlin.metrics import degrees_of_freedom
from quadlin.paper.laws import law_name
from quadlin.paper.library import watched
from quadlin.paper.methods import FITS, LAWS, METHODS, errors_by_method, levels_by_method
from quadlin.paper.problems import sample
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, grid, joined, verdict_of
from quadlin.paper.trend import power
from quadlin.solve.lowrank.types import Options

LEVELS = (0.0, 1.0)  # the paper's
EXACT = 1e-12  # NMSE that only rounding is left of
NEAR = 1.5  # times the statistical error, beyond what random rows cost everyone
SLACK = 0.15
# d, k, rows in kd, seeds
SIZES: dict[str, tuple[int, int, tuple[int, ...], int]] = {
    "tiny": (15, 1, (60, 240), 1),
    "quick": (30, 2, (20, 60, 180), 2),
    "full": (100, 3, (15, 30, 100, 300), 3),
}
ABOUT = About(
    title="After Theorem 2: noise, and the statistical error",
    claim="After Theorem 2: with noise the estimate converges linearly to the statistical error; "
    "noise levels 0 and 1 in Section 5.",
    setting="Positive M of rank k, noise 0 or 1, rows reused; excess risk on new rows over "
    "σ²·dof/n, dof = 1 + d + dk − k(k−1)/2 parameters, and over n/(n − dof − 1), which random rows "
    "cost any unbiased least squares.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one fit each."""
    d, k, multiples, seeds = SIZES[size]
    n, seed = [m * k * d for m in multiples], range(seeds)
    return grid(law=LAWS, method=FITS, noise=LEVELS, d=d, k=k, n=n, seed=seed)


def run(task: Task, device: str) -> list[Row]:
    """Return the error on new, noiseless rows after each step."""
    n, d, k = task["n"], task["d"], task["k"]
    data = sample(task["law"], n, d, k, task["seed"], noise=task["noise"], signed=False)
    variance = float(np.var(data.y_test))
    level = degrees_of_freedom(d, k) / n  # times σ²
    rows = []
    for t, fit in enumerate(watched(data.X, data.y, Options(k, **FITS[task["method"]])), 1):
        risk = data.risk(fit)
        entry = {"t": t, "passes": fit.passes, "risk": risk, "nmse": risk / variance}
        rows.append(entry | {"level": level, "dof": degrees_of_freedom(d, k)})
    return rows


def ends(frame: Frame) -> Frame:
    """Return the last step of each fit, with its error over σ²·dof/n and that of least squares.

    On new rows any unbiased least squares has `fair` = n/(n − dof − 1), as the rows are random.
    """
    keys = ["law", "method", "noise", "n", "seed"]
    last = frame.sort_values("t").groupby(keys, as_index=False).last()
    fair = last["n"] / (last["n"] - last["dof"] - 1)
    return last.assign(ratio=last["risk"] / last["level"], fair=fair)


def figures(frame: Frame) -> Pictures:
    """Draw the floor over the statistical error against n, and the way there."""
    last = ends(frame)
    noisy = last[last["noise"] > 0]
    pictures: Pictures = {}
    for name, rows in noisy.groupby("law"):
        pictures[f"noise_floor_{name}"] = levels_by_method(
            rows,
            x=("n", "rows n"),
            y=("ratio", "excess risk / (σ²·dof/n)"),
            title=f"Noise 1, {law_name(name)} features",
            level=(1.0, "σ²·dof/n"),
        )
    most = frame[(frame["n"] == frame["n"].max()) & (frame["law"] == "truncated")]
    for noise, rows in most.groupby("noise"):
        pictures[f"noise_curves_{noise:g}"] = errors_by_method(
            rows,
            y_label="test NMSE (noiseless target)",
            title=f"Truncated features, noise {noise:g}, n = {int(frame['n'].max()):,}",
        )
    return pictures


def verdict(frame: Frame) -> Verdict:
    """Say how far above σ²·dof/n each method ends, and whether it falls as 1/n."""
    last = ends(frame)
    clean, noisy = last[last["noise"] == 0], last[last["noise"] > 0]
    most = noisy[noisy["n"] == noisy["n"].max()]
    floors = {
        (method, name): float((rows["ratio"] / rows["fair"]).mean())
        for (method, name), rows in most.groupby(["method", "law"])
    }
    falls = {m: power(rows["n"], rows["risk"]) for m, rows in noisy.groupby("method")}
    exact = {m: float((rows["nmse"] <= EXACT).mean()) for m, rows in clean.groupby("method")}
    checks = {f"{m} on {name}": ratio <= NEAR for (m, name), ratio in floors.items()}
    checks |= {f"{m} falls": fit.at_most(-1.0, SLACK) for m, fit in falls.items()}

    def span(method: str) -> str:
        values = [floors[method, name] for name in LAWS]
        return f"{min(values):.2f} to {max(values):.2f}"

    measured = (
        f"With noise 1 and n = {int(noisy['n'].max()):,} the excess risk over σ²·dof/n is "
        + joined(f"{span(m)} for {METHODS[m].name}" for m in FITS)
        + "; it falls as n to the power "
        + joined(f"{falls[m]}" for m in FITS)
        + "."
    )
    above = [
        f"{METHODS[m].name} on {law_name(name)} features"
        for (m, name), r in floors.items()
        if r > NEAR
    ]
    words = (
        "Without noise the share of fits that end in rounding errors is "
        + joined(f"{exact[m]:.0%} for {METHODS[m].name}" for m in FITS)
        + ". With noise 1 and the most rows, "
        + (
            f"{joined(above)} end above {NEAR} times the statistical error. "
            if above
            else f"all end within {NEAR} times the statistical error. "
        )
    )
    pays = [floors["plain", name] / floors["guarded", name] for name in LAWS]
    words += (
        f"The authors' iteration has {min(pays):.2f} to {max(pays):.2f} times the excess risk of "
        "the guarded one: "
    )
    words += (
        "its fixed point solves moment equations, which on other than Gaussian features are not "
        "those of least squares. So “the statistical error” holds up to a constant that depends on "
        "the law."
        if max(pays) > 1.1
        else "both are where least squares is."
    )
    return Verdict(measured, verdict_of(checks), words)
