"""The statistical error of fits and streams, with noise or a tail of M, and a stream's memory."""

import tracemalloc
from dataclasses import replace

import numpy as np

from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.displays import LevelDisplay, ScalingDisplay
from quadlin.paper.laws import law, law_name
from quadlin.paper.library import fit, steps
from quadlin.paper.methods import FITS, LAW_STYLES, LAWS, METHODS, levels_by_method, points
from quadlin.paper.problems import (
    INTERCEPT,
    TEST_ROWS,
    fitted,
    of_truth,
    random_truth,
    sample,
    streamed,
)
from quadlin.paper.study import (
    About,
    Frame,
    Pictures,
    Row,
    Study,
    Task,
    Verdict,
    grid,
    grids,
    joined,
    power,
    powers,
    verdict_of,
)
from quadlin.stream.memory import NUMBERS, strict_bytes

EXACT = 1e-12  # NMSE that only rounding is left of
NEAR = 1.5  # times the statistical error, beyond what random rows cost everyone
SLACK = 0.15


def run_noise(task: Task, device: str) -> list[Row]:
    """Return the error on new, noiseless rows after each step."""
    n, d, k = task["n"], task["d"], task["k"]
    data = sample(task["law"], n, d, k, task["seed"], noise=task["noise"], signed=False)
    variance, dof = float(np.var(data.y_test)), degrees_of_freedom(d, k)
    rows = []
    for t, model in enumerate(steps(task["method"], data.X, data.y, k), 1):
        risk = data.risk(model)
        entry = {"t": t, "passes": model.passes, "risk": risk, "nmse": risk / variance}
        rows.append(entry | {"level": dof / n, "dof": dof})
    return rows


def _last_steps(frame: Frame) -> Frame:
    """Return the last step of each fit, with its error over σ²·dof/n and that of least squares.

    On new rows any unbiased least squares has `fair` = n/(n − dof − 1), as the rows are random.
    """
    keys = ["law", "method", "noise", "n", "seed"]
    last = frame.sort_values("t").groupby(keys, as_index=False).last()
    fair = last["n"] / (last["n"] - last["dof"] - 1)
    return last.assign(ratio=last["risk"] / last["level"], fair=fair)


def draw_noise(frame: Frame) -> Pictures:
    """Draw the floor over the statistical error against n, for each law."""
    last = _last_steps(frame)
    return {
        f"noise_floor_{name}": levels_by_method(
            rows,
            x=("n", "rows n"),
            y=("ratio", "excess risk / (σ²·dof/n)"),
            title=f"Noise 1, {law_name(name)} features",
            level=(1.0, "σ²·dof/n"),
        )
        for name, rows in last[last["noise"] > 0].groupby("law")
    }


def judge_noise(frame: Frame) -> Verdict:
    """Say how far above σ²·dof/n each method ends, and whether it falls as 1/n."""
    last = _last_steps(frame)
    clean, noisy = last[last["noise"] == 0], last[last["noise"] > 0]
    most = noisy[noisy["n"] == noisy["n"].max()]
    floors = (most["ratio"] / most["fair"]).groupby([most["method"], most["law"]]).mean()
    falls = {m: power(rows["n"], rows["risk"]) for m, rows in noisy.groupby("method")}
    exact = (clean["nmse"] <= EXACT).groupby(clean["method"]).mean()
    checks = {str(key): bool(ratio <= NEAR) for key, ratio in floors.items()}
    checks |= {f"{m} falls": growth.at_most(-1.0, SLACK) for m, growth in falls.items()}
    measured = (
        f"With noise 1 and n = {int(noisy['n'].max()):,} the excess risk over σ²·dof/n is "
        + joined(
            f"{floors[m].min():.2f} to {floors[m].max():.2f} for {METHODS[m].name}" for m in FITS
        )
        + "; it falls as n to the power "
        + joined(f"{falls[m]}" for m in FITS)
        + "."
    )
    pays = floors["plain"] / floors["guarded"]
    words = (
        "Without noise the share of fits that end in rounding errors is "
        + joined(f"{exact[m]:.0%} for {METHODS[m].name}" for m in FITS)
        + f". The plain step has {pays.min():.2f} to {pays.max():.2f} times the excess risk of the "
        "guarded one: its fixed point solves moment equations, which on other than Gaussian "
        "features are not those of least squares. So “the statistical error” holds up to a "
        "constant that depends on the law."
    )
    return Verdict(measured, verdict_of(checks), words)


NOISE = Study(
    "noise",
    About(
        "After Theorem 2: noise, and the statistical error",
        "After Theorem 2: with noise the estimate converges linearly to the statistical error; "
        "noise levels 0 and 1 in Section 5.",
        "Positive M of rank k, noise 0 or 1, rows reused; excess risk on new rows over σ²·dof/n, "
        "dof = 1 + d + dk − k(k−1)/2 parameters, and over n/(n − dof − 1), which random rows cost "
        "any unbiased least squares.",
    ),
    lambda size: grid(
        law=LAWS, method=FITS, noise=(0.0, 1.0), **{
            "tiny": {"d": 15, "k": 1, "n": (900, 3600), "seed": 0},
            "quick": {"d": 30, "k": 2, "n": (1200, 3600, 10_800), "seed": range(2)},
            "full": {"d": 100, "k": 3, "n": (4500, 9000, 30_000, 90_000), "seed": range(3)},
        }[size],
    ),
    run_noise,
    draw_noise,
    judge_noise,
)  # fmt: skip


def run_nearly_low_rank(task: Task, device: str) -> list[Row]:
    """Return the risk of each method over what the tail alone costs."""
    rng = np.random.default_rng(task["seed"])
    n, d, k = task["n"], task["d"], task["k"]
    noise = rng.standard_normal((d, d))
    noise = noise + noise.T
    # A symmetric tail of spectral norm `tail`, orthogonal to the leading part.
    low_rank = random_truth(rng, d, k, signed=True, b=INTERCEPT)
    away = np.eye(d) - low_rank.Q @ low_rank.Q.T
    noise = away @ noise @ away
    tail = task["tail"] * noise / np.linalg.norm(noise, 2)
    truth = replace(low_rank, tail=tail)
    data = of_truth(truth, law("gaussian").draw(rng, n + TEST_ROWS, d), n, 0.0, rng)
    # The tail acts as noise.
    level = 2 * float(np.sum(tail**2)) * (1 + degrees_of_freedom(d, k) / n)
    return [
        {"method": method, "risk": data.risk(fit(method, data.X, data.y, k)), "level": level}
        for method in FITS
    ]


def draw_nearly_low_rank(frame: Frame) -> Pictures:
    """Draw the risk over the level against the size of the tail."""
    display = levels_by_method(
        frame.assign(ratio=frame["risk"] / frame["level"]),
        x=("tail", "spectral norm of the tail T (leading eigenvalues ±1)"),
        y=("ratio", "risk / what the tail alone costs"),
        title="M = low rank + T, Gaussian features",
        level=(1.0, "2‖T‖²(1 + dof/n)"),
    )
    return {"nearly_low_rank": display}


def judge_nearly_low_rank(frame: Frame) -> Verdict:
    """Say how far the fits end from what the tail alone costs."""
    worst = (frame["risk"] / frame["level"]).groupby(frame["method"]).max()
    measured = (
        "At most this many times what the tail alone costs: "
        + joined(f"{METHODS[m].name} {worst[m]:.2f}" for m in FITS)
        + "."
    )
    words = (
        "A rank-k model cannot explain the tail T, which costs 2‖T‖² on Gaussian features, and its "
        "estimate treats T as noise of that variance, which costs dof/n of it once more."
    )
    checks = {method: bool(worst[method] <= NEAR) for method in FITS}
    return Verdict(measured, verdict_of(checks), words)


NEARLY_LOW_RANK = Study(
    "nearly_low_rank",
    About(
        "After Theorem 2: M that is nearly of low rank",
        "After Theorem 2: the estimate converges to the statistical error if M is nearly of low "
        "rank.",
        "Gaussian features, no noise, eigenvalues ±1, and a symmetric random tail T of a given "
        "spectral norm, orthogonal to the leading part; a fit of rank k.",
    ),
    grids(
        tiny={"tail": (0.01, 0.1), "d": 16, "k": 1, "n": 960, "seed": 0},
        quick={"tail": (0.001, 0.01, 0.1), "d": 40, "k": 2, "n": 4800, "seed": range(2)},
        full={"tail": (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3), "d": 100, "k": 3, "n": 30_000,
              "seed": range(4)},
    ),
    run_nearly_low_rank,
    draw_nearly_low_rank,
    judge_nearly_low_rank,
)  # fmt: skip

RISK_LAWS = ("gaussian", "bernoulli", "truncated")
MODES = {"batch": "Polished fit", "stream": "One pass of partial_fit"}
RISK_TEST_ROWS = 5000
RISK_NEAR = 1.25


def list_risk(size: str) -> list[Task]:
    """List one fit each; a stream's first batch alone is 10(k + 1)d rows."""
    sizes: dict[str, tuple[int, int, int, dict[str, tuple[int, ...]]]] = {
        "tiny": (12, 1, 1, {"batch": (360, 1200), "stream": (1200, 3600)}),
        "quick": (30, 2, 6, {"batch": (600, 1800, 6000), "stream": (3600, 12_000, 36_000)}),
        "full": (
            100,
            3,
            5,
            {"batch": (1500, 3000, 9000, 30_000), "stream": (30_000, 90_000, 180_000)},
        ),
    }
    d, k, seeds, rows = sizes[size]
    return [
        task
        for mode in MODES
        for task in grid(law=RISK_LAWS, mode=mode, d=d, k=k, n=rows[mode], seed=range(seeds))
    ]


def run_risk(task: Task, device: str) -> list[Row]:
    """Return the excess risk on new rows over σ²·dof/n."""
    n, d, k = task["n"], task["d"], task["k"]
    data = sample(task["law"], n, d, k, task["seed"], noise=1.0, n_test=RISK_TEST_ROWS)
    model = (fitted if task["mode"] == "batch" else streamed)(data.X, data.y, k)
    dof = degrees_of_freedom(d, k)
    return [{"ratio": data.risk(model) / (dof / n), "fair": n / (n - dof - 1)}]


def draw_risk(frame: Frame) -> Pictures:
    """Draw the excess over the level, against the rows."""
    return {
        f"risk_{mode}": LevelDisplay(
            points(rows, "n", "ratio", "law", law_name)
            | {"n/(n − dof − 1)": tuple(rows.drop_duplicates("n")[["n", "fair"]].to_numpy().T)},
            level=1.0,
            level_label="Cramér–Rao, σ²·dof/n",
            x_label="rows n",
            y_label="excess risk / (σ²·dof/n)",
            title=MODES[mode],
            log_x=True,
            styles={law_name(name): style for name, style in LAW_STYLES.items()},
        )
        for mode, rows in frame.groupby("mode", sort=False)
    }


def judge_risk(frame: Frame) -> Verdict:
    """Compare with the level for the largest number of rows of each mode."""
    checks: dict[str, bool] = {}
    lines = []
    for mode, label in MODES.items():
        rows = frame[frame["mode"] == mode]
        ratios = rows[rows["n"] == rows["n"].max()].groupby("law")["ratio"]
        means, counts = ratios.mean(), ratios.size()
        spread = 2 * ratios.std() / counts**0.5
        checks |= {f"{mode} {name}": bool(means[name] <= RISK_NEAR) for name in RISK_LAWS}
        lines.append(
            f"{label} over n = {int(rows['n'].max()):,} rows has an excess risk of "
            + joined(
                f"{means[name]:.2f}"
                + (f" ± {spread[name]:.2f}" if counts[name] > 1 else "")
                + f" ({law_name(name)})"
                for name in RISK_LAWS
            )
            + " times σ²·dof/n."
        )
    words = (
        "1 is the smallest ratio that an unbiased estimator can have. A stream sees each row once, "
        "after a first batch that is fitted as a table. Features are independent here: strong "
        "correlation and heavy tails are outside of this study."
    )
    return Verdict(" ".join(lines), verdict_of(checks), words)


RISK = Study(
    "risk",
    About(
        "Excess risk beside the Cramér–Rao level",
        "Beyond the paper: the polished fit, and one pass of a stream, reach the least possible "
        "error σ²·dof/n.",
        "Signed M of rank k, noise 1, features standardised by their law; mean squared error on "
        f"{RISK_TEST_ROWS} new noiseless rows over σ²·dof/n; rank=k and alpha=0, all else at its "
        "defaults.",
    ),
    list_risk,
    run_risk,
    draw_risk,
    judge_risk,
)

FLOAT = 8  # bytes
OBJECTS = 1 << 17  # bytes of Python's own objects, whatever d and k
CALL = 256  # rows given to the stream at a time
DRAWN = 4  # rows for each of the (k + 1)d parameters; they come again
# Rows per parameter for each of `batches`: two of them reach from the first row beyond the first
# batch of the power iteration.
STRICT = 12


def list_memory(size: str) -> list[Task]:
    """List all d at the first k, all k at the first d, and one of them with more rows."""
    ds, ks = {
        "tiny": ((40, 80), (4, 8)),
        "quick": ((200, 100, 300), (4, 8)),
        "full": ((400, 200, 800, 1200), (4, 2, 8, 16)),
    }[size]
    places = [(d, ks[0]) for d in ds] + [(ds[0], k) for k in ks[1:]]
    plan: list[Task] = [{"d": d, "k": k, "batches": 2, "seed": 0} for d, k in places]
    return [*plan, {"d": ds[0], "k": ks[0], "batches": 6, "seed": 0}]


def run_memory(task: Task, device: str) -> list[Row]:
    """Return the peak of what is allocated beyond the rows, which are there before."""
    d, k = task["d"], task["k"]
    n = DRAWN * (k + 1) * d
    rng = np.random.default_rng(task["seed"])
    X = rng.standard_normal((n, d))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(n)
    _peak(X[:50, :5], y[:50], 1, task["batches"])  # for what is loaded on first use
    peak = _peak(X, y, k, task["batches"])
    return [{"bytes_strict": peak, "factor": FLOAT * k * d, "square": FLOAT * d * d}]


def _peak(X: np.ndarray, y: np.ndarray, k: int, batches: int) -> int:
    model = SecondOrderRegressor(rank=k, alpha=0.0, max_memory="minimal", random_state=0)
    calls = STRICT * batches * degrees_of_freedom(X.shape[1], k) // CALL + 1
    tracemalloc.start()
    try:
        for call in range(calls):
            start = call * CALL % len(y)
            model.partial_fit(X[start : start + CALL], y[start : start + CALL])
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def draw_memory(frame: Frame) -> Pictures:
    """Draw the peaks against d at one k."""
    part = frame[(frame["batches"] == 2) & (frame["k"] == frame["k"].mode()[0])]
    columns = {"bytes_strict": "partial_fit", "square": "a d×d matrix", "factor": "U"}
    display = ScalingDisplay.from_points(
        {label: (part["d"].to_numpy(), part[c].to_numpy()) for c, label in columns.items()},
        x_label="features d",
        y_label="bytes",
        title=f"Peak beside the rows, k = {part['k'].iloc[0]}",
    )
    return {"memory_d": display}


def judge_memory(frame: Frame) -> Verdict:
    """Compare the growth with kd, and the peak with a bound in which no rows occur."""
    base = frame[frame["batches"] == frame["batches"].min()]
    fits = powers({"d": base["d"], "k": base["k"]}, base["bytes_strict"])
    widest = base.loc[base["d"].idxmax()]
    limits = [
        strict_bytes(int(d), int(k)) + FLOAT * CALL * d + OBJECTS
        for d, k in zip(frame["d"], frame["k"], strict=True)
    ]
    checks = {"bound": bool((frame["bytes_strict"] <= limits).all())}
    checks |= {name: growth.at_most(1.0, SLACK) for name, growth in fits.items()}
    measured = (
        f"A stream that keeps no row grows as d^({fits['d']}) k^({fits['k']}) in memory; at "
        f"d = {int(widest['d'])}, k = {int(widest['k'])} it holds "
        f"{widest['bytes_strict'] / widest['factor']:.0f} times U, or "
        f"{widest['bytes_strict'] / widest['square']:.2g} of a d×d matrix, from its first row on, "
        f"its work on the {CALL} rows of one call included."
    )
    words = (
        f'With max_memory="minimal" a stream holds {"at most" if checks["bound"] else "more than"} '
        f"{NUMBERS}kd numbers and as much as the rows of one call, however many rows it sees. By "
        "default a stream keeps its first batch and fits it as a table, O(kd²) numbers until it "
        "is complete."
    )
    return Verdict(measured, verdict_of(checks), words)


MEMORY = Study(
    "memory",
    About(
        "Memory",
        "Section 1: one pass of the data in O(kd) memory.",
        "Peak of what Python and numpy allocate (tracemalloc) beyond the rows given, for "
        f'partial_fit with max_memory="minimal" on {CALL} rows at a time, from the first row '
        "through units, correlations and the start of the power iteration.",
    ),
    list_memory,
    run_memory,
    draw_memory,
    judge_memory,
)
STUDIES = (NOISE, NEARLY_LOW_RANK, RISK, MEMORY)
