"""How near to the least possible error a fit comes: in a batch, and in one pass."""

from typing import Any

from quadlin.metrics import degrees_of_freedom
from quadlin.paper.displays import LevelDisplay
from quadlin.paper.laws import law_name
from quadlin.paper.methods import LAW_STYLES, points
from quadlin.paper.problems import fitted, sample, streamed
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, joined, verdict_of

LAWS = ("gaussian", "bernoulli", "truncated")
NOISE = 1.0
NAMES = {"batch": "Polished fit", "stream": "One pass of partial_fit"}
TEST_ROWS = 5000
NEAR = 1.25
# d, k, seeds, and rows in kd by mode: a stream's first batch alone is 10(k + 1)d
SIZES: dict[str, tuple[int, int, int, dict[str, tuple[int, ...]]]] = {
    "tiny": (12, 1, 1, {"batch": (30, 100), "stream": (100, 300)}),
    "quick": (30, 2, 6, {"batch": (10, 30, 100), "stream": (60, 200, 600)}),
    "full": (100, 3, 5, {"batch": (5, 10, 30, 100), "stream": (100, 300, 600)}),
}
ABOUT = About(
    title="Excess risk beside the Cramér–Rao level",
    claim="Beyond the paper: the polished fit, and one pass of a stream, reach the least possible "
    "error σ²·dof/n.",
    setting="Signed M of rank k, noise 1, features standardised by their law; mean squared error "
    f"on {TEST_ROWS} new noiseless rows over σ²·dof/n; rank=k and alpha=0, all else at its "
    "defaults.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one fit each."""
    d, k, seeds, rows = SIZES[size]
    return [
        {"law": name, "mode": mode, "d": d, "k": k, "n": m * k * d, "seed": seed}
        for name in LAWS
        for mode in NAMES
        for m in rows[mode]
        for seed in range(seeds)
    ]


def run(task: Task, device: str) -> list[Row]:
    """Return the excess risk on new rows over σ²·dof/n."""
    n, d, k = task["n"], task["d"], task["k"]
    data = sample(task["law"], n, d, k, task["seed"], noise=NOISE, n_test=TEST_ROWS)
    model = (fitted if task["mode"] == "batch" else streamed)(data.X, data.y, k)
    dof = degrees_of_freedom(d, k)
    level = NOISE**2 * dof / n
    return [{"ratio": data.risk(model) / level, "fair": n / (n - dof - 1)}]


def figures(frame: Frame) -> Pictures:
    """Draw the excess over the level, against the rows."""
    return {
        f"risk_{mode}": LevelDisplay(
            points(rows, "n", "ratio", "law", law_name)
            | {"n/(n − dof − 1)": tuple(rows.drop_duplicates("n")[["n", "fair"]].to_numpy().T)},
            level=1.0,
            level_label="Cramér–Rao, σ²·dof/n",
            x_label="rows n",
            y_label="excess risk / (σ²·dof/n)",
            title=NAMES[mode],
            log_x=True,
            styles={law_name(name): style for name, style in LAW_STYLES.items()},
        )
        for mode, rows in frame.groupby("mode", sort=False)
    }


def _spread(ratios: Any) -> str:
    """Return two standard errors of a mean, in words."""
    return f" ± {2 * ratios.std() / len(ratios) ** 0.5:.2f}" if len(ratios) > 1 else ""


def verdict(frame: Frame) -> Verdict:
    """Compare with the level for the largest number of rows of each mode."""
    checks: dict[str, bool] = {}
    lines, ranges = [], {}
    for mode, rows in frame.groupby("mode", sort=False):
        most = rows[rows["n"] == rows["n"].max()]
        ratios = {name: most[most["law"] == name]["ratio"] for name in LAWS}
        checks |= {f"{mode} {name}": bool(r.mean() <= NEAR) for name, r in ratios.items()}
        lines.append(
            f"{NAMES[mode]} over n = {int(rows['n'].max()):,} rows has an excess risk of "
            + joined(f"{r.mean():.2f}{_spread(r)} ({law_name(name)})" for name, r in ratios.items())
            + " times σ²·dof/n."
        )
        few = rows[rows["n"] == rows["n"].min()]
        ranges[mode] = (float(few["ratio"].mean()), float(few["fair"].mean()))
    words = (
        "1 is the smallest ratio that an unbiased estimator can have. "
        f"{sum(checks.values())} of {len(checks)} means are within {NEAR} of it for the most rows "
        "tried. With the fewest rows tried the fit is at "
        f"{ranges['batch'][0]:.2f}, of which random rows alone explain {ranges['batch'][1]:.2f}, "
        f"and the stream at {ranges['stream'][0]:.2f} ({ranges['stream'][1]:.2f}). A stream sees "
        "each row once, after a first batch that is fitted as a table; what it pays above the "
        "batch is what the first error leaves behind."
    )
    return Verdict(" ".join(lines), verdict_of(checks), words)
