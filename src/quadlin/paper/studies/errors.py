"""The statistical error of fits and streams, with noise or a tail of M, and a stream's memory."""

import tracemalloc
from typing import Any

import numpy as np

from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.methods import FITS, name_of, steps
from quadlin.paper.pictures import Curves, series
from quadlin.paper.problems import law_name, sample, streamed
from quadlin.paper.study import (
    Frame,
    Row,
    Task,
    Verdict,
    listed,
    power,
    powers,
    study,
)

NEAR = 1.5  # times the statistical error, beyond what random rows cost everyone
METHODS_WITH_NOISE = (*FITS, "stream")
RISK_TEST_ROWS = 5000


def run_noise(task: Task, device: str) -> list[Row]:
    """Return the excess risk on new rows over σ²·dof/n, and what random rows cost everyone.

    On new rows any unbiased least squares has `fair` = n/(n − dof − 1) times the level.
    """
    n, d, k, method = (task[name] for name in ("n", "d", "k", "method"))
    data = sample(task["law"], n, d, k, task["seed"], noise=1.0, n_test=RISK_TEST_ROWS)
    stream = method == "stream"
    model = streamed(data.X, data.y, k) if stream else steps(method, data, k)[-1]
    dof = degrees_of_freedom(d, k)
    return [{"risk": data.risk(model), "level": dof / n, "fair": n / (n - dof - 1)}]


def draw_noise(frame: Frame) -> dict[str, Any]:
    """Draw the excess over the level against n, for each law."""
    labels, level = ("rows n", "excess risk / (σ²·dof/n)"), (1.0, "Cramér–Rao, σ²·dof/n")
    frame = frame.assign(ratio=frame["risk"] / frame["level"])
    return {
        name.partition(":")[0]: Curves(
            series(rows, "n", "ratio"), *labels, f"Noise 1, {law_name(name)} features", level=level
        )
        for name, rows in frame.groupby("law", sort=False)
    }


def judge_noise(frame: Frame) -> Verdict:
    """Say how far above σ²·dof/n each method ends, and whether it falls as 1/n."""
    most = frame[frame["n"] == frame["n"].max()]
    ratio = most["risk"] / most["level"] / most["fair"]
    floors = ratio.groupby([most["method"], most["law"]]).mean()
    falls = {m: power(rows["n"], rows["risk"]) for m, rows in frame.groupby("method")}
    checks = [ratio <= NEAR for ratio in floors]
    checks += [growth.at_most(-1.0) for growth in falls.values()]
    measured = (
        f"With noise 1 and n = {int(frame['n'].max()):,} the excess risk over σ²·dof/n is "
        + listed(
            f"{floors[m].min():.2f} to {floors[m].max():.2f} for {name_of(m)}"
            for m in METHODS_WITH_NOISE
        )
        + "; it falls as n to the power "
        + listed(f"{falls[m]}" for m in METHODS_WITH_NOISE)
        + "."
    )
    return Verdict.of(checks, measured)


def run_nearly_low_rank(task: Task, device: str) -> list[Row]:
    """Return the risk of each method over what the tail alone costs; the tail acts as noise."""
    n, d, k, seed = (task[name] for name in ("n", "d", "k", "seed"))
    data = sample("gaussian", n, d, k, seed, tail=task["tail"], signed=True)
    tail = data.truth.tail
    assert tail is not None
    level = 2 * float(np.sum(tail**2)) * (1 + degrees_of_freedom(d, k) / n)
    return [{"method": m, "ratio": data.risk(steps(m, data, k)[-1]) / level} for m in FITS]


def draw_nearly_low_rank(frame: Frame) -> dict[str, Any]:
    """Draw the risk over the level against the size of the tail."""
    labels = ("spectral norm of the tail T", "risk / what the tail alone costs")
    title, level = "M = low rank + T, Gaussian features", (1.0, "2‖T‖²(1 + dof/n)")
    return {"tail": Curves(series(frame, "tail", "ratio"), *labels, title, level=level)}


def judge_nearly_low_rank(frame: Frame) -> Verdict:
    """Say how far the fits end from what the tail alone costs."""
    worst = frame.groupby("method")["ratio"].max()
    measured = (
        "At most this many times what the tail alone costs: "
        + listed(f"{name_of(m)} {worst[m]:.2f}" for m in FITS)
        + "."
    )
    return Verdict.of([worst[method] <= NEAR for method in FITS], measured)


CALL = 256  # rows given to the stream at a time
DRAWN = 4  # rows for each of the (k + 1)d parameters; they come again
# Rows per parameter for each of `batches`: two of them reach from the first row beyond the first
# batch of the power iteration.
STRICT = 12


def run_memory(task: Task, device: str) -> list[Row]:
    """Return the peak of what is allocated beyond the rows, which are there before."""
    d, k = task["d"], task["k"]
    n = DRAWN * (k + 1) * d
    rng = np.random.default_rng(task["seed"])
    X = rng.standard_normal((n, d))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(n)
    _peak(X[:50, :5], y[:50], 1, task["batches"])  # for what is loaded on first use
    peak = _peak(X, y, k, task["batches"])
    return [{"bytes_strict": peak, "factor": X.itemsize * k * d, "square": X.itemsize * d * d}]


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


def draw_memory(frame: Frame) -> dict[str, Any]:
    """Draw the peaks against d at one k."""
    part = frame[(frame["batches"] == 2) & (frame["k"] == frame["k"].mode()[0])]
    columns = {"bytes_strict": "partial_fit", "square": "a d×d matrix", "factor": "U"}
    points = {label: (part["d"].to_numpy(), part[c].to_numpy()) for c, label in columns.items()}
    title = f"Peak without the rows, k = {part['k'].iloc[0]}"
    return {"d": Curves(points, "features d", "bytes", title, slopes=True)}


def judge_memory(frame: Frame) -> Verdict:
    """Compare the growth with kd."""
    base = frame[frame["batches"] == frame["batches"].min()]
    fits = powers({"d": base["d"], "k": base["k"]}, base["bytes_strict"])
    widest = base.loc[base["d"].idxmax()]
    measured = (
        f"A stream that keeps no row grows as d^({fits['d']}) k^({fits['k']}) in memory; at "
        f"d = {int(widest['d'])}, k = {int(widest['k'])} it holds "
        f"{widest['bytes_strict'] / widest['factor']:.0f} times U, or "
        f"{widest['bytes_strict'] / widest['square']:.2g} of a d×d matrix, its work on the {CALL} "
        "rows of one call included."
    )
    return Verdict.of([growth.at_most(1.0) for growth in fits.values()], measured)


STUDIES = (
    study("noise", run_noise, draw_noise, judge_noise),
    study("nearly_low_rank", run_nearly_low_rank, draw_nearly_low_rank, judge_nearly_low_rank),
    study("memory", run_memory, draw_memory, judge_memory),
)
