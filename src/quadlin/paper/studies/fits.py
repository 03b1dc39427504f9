"""What fits need and leave: rows to exact recovery, statistical error, and a stream's memory."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.methods import FITS, steps
from quadlin.paper.problems import Sample, fitted, law_name, sample
from quadlin.paper.studies import (
    EXACT,
    LAWS,
    Curves,
    Frame,
    Map,
    Power,
    Row,
    Task,
    Verdict,
    listed,
    name_of,
    power,
    powers,
    series,
    study,
)

NEAR = 1.5  # times the statistical error, beyond what random rows cost everyone
METHODS_WITH_NOISE = (*FITS, "stream")


def run_noise(task: Task, device: str) -> list[Row]:
    """Return the excess risk on new rows over σ²·dof/n, and what random rows cost everyone.

    On new rows any unbiased least squares has `fair` = n/(n − dof − 1) times the level.
    """
    n, d, k, method = (task[name] for name in ("n", "d", "k", "method"))
    data = sample(task["law"], n, d, k, task["seed"], noise=1.0)
    if method == "stream":
        model: Any = fitted(data.X, data.y, k, stream=True)
    else:
        model = steps(method, data, k)[-1]
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


MOST = {"plain": 60, "guarded": 16, "polished": 6}  # rows in (k + 1)d, at most


def error_of(method: str, data: Sample, k: int) -> float:
    """Return the test NMSE of a method."""
    if method == "polished":
        return data.nmse(fitted(data.X, data.y, k, max_iter=100))
    return data.nmse(steps(method, data, k, max_iter=100)[-1])


def search(task: Task, device: str) -> list[Row]:
    """Bisect for the fewest rows, the first n of one table, from which the model is recovered.

    The median over tables is the n with 50% success. Success is assumed to be monotone in n. Near
    the threshold it need not be, and the search finds one of the crossings.
    """
    d, k = task["d"], task["k"]
    method, _, without = task["method"].partition(" without ")
    squares: dict[str, Any] = {"has_diagonal": False} if without else {}
    dof = degrees_of_freedom(d, k)
    low, high = dof, MOST[method] * (k + 1) * d  # fewer rows than parameters cannot do
    data = sample(task["law"], high, d, k, task["seed"], signed=task["sign"] == "signed", **squares)

    def recovers(n: int) -> bool:
        return error_of(method, replace(data, X=data.X[:n], y=data.y[:n]), k) <= EXACT

    n = min(2 * low, high)
    while not recovers(n):  # from below in doublings: fits of many rows are the expensive ones
        if n == high:
            return [{"n50": float("nan"), "dof": dof}]
        low, n = n, min(2 * n, high)
    high = n
    while high > task["precision"] * low + 1:
        middle = int(np.sqrt(low * high))
        low, high = (low, middle) if recovers(middle) else (middle, high)
    return [{"n50": high, "dof": dof}]


def has_sign(task: Task) -> bool:
    """Tell whether a sign of M is tried: of rank one, and by the plain step, one is enough."""
    return task["sign"] == "positive" or (task["k"] > 1 and not task["method"].startswith("plain"))


def samples_exponents(frame: Frame) -> dict[tuple[str, str], dict[str, Power]]:
    """Fit n = a·kᵖ·d^q for each law and method, of a positive M."""
    return {
        key: powers({"k": part["k"], "d": part["d"]}, part["n50"])
        for key, part in frame[frame["sign"] == "positive"].groupby(["law", "method"], sort=False)
    }


def draw_samples(frame: Frame) -> dict[str, Any]:
    """Draw the thresholds against k at the d that was tried with most of them."""
    gaussian = frame[(frame["law"] == "gaussian") & (frame["sign"] == "positive")]
    d = gaussian.groupby("d")["k"].nunique().idxmax()
    points = series(gaussian[gaussian["d"] == d], "k", "n50")
    title = f"Rows to exact recovery, d = {d}"
    return {"k": Curves(points, "rank k", "rows needed", title, slopes=True)}


def judge_samples(frame: Frame) -> Verdict:
    """Compare the exponents of the plain step with k²d, where the theorem applies."""
    fits = samples_exponents(frame)
    inside = [fits[name, "plain"]["k"] for name in LAWS[:2]]
    checks = [growth.at_most(2.0) for growth in inside if np.isfinite(growth.exponent)]
    checks.append(fits["gaussian", "plain"]["d"].at_most(1.0))
    without = fits["gaussian", "plain without squares"]["k"]
    checks.append(without.at_most(1.0))
    measured = (
        "On Gaussian features the rows needed grow as "
        + listed(
            f"k^({fits['gaussian', m]['k']})·d^({fits['gaussian', m]['d']}) for {name_of(m)}"
            for m in FITS
        )
        + f"; for the plain step without self-interactions as k^({without})."
    )
    return Verdict.of(checks, measured)


SHARE = 0.8  # of the trials, from which a cell of the map counts as recovered


def has_ratio(task: Task) -> bool:
    """Tell whether there is a ratio of eigenvalues."""
    return bool(task["k"] > 1 or task["ratio"] == 1)


def run_transition(task: Task, device: str) -> list[Row]:
    """Return whether the model is recovered."""
    d, k, seed = task["d"], task["k"], task["seed"]
    n = int(task["rows"] * degrees_of_freedom(d, k))
    data = sample("gaussian", n, d, k, seed, signed=True, ratio=float(task["ratio"]))
    error = error_of(task["method"], data, k)
    return [{"nmse": error, "recovered": int(error <= EXACT)}]


def draw_transition(frame: Frame) -> dict[str, Any]:
    """Draw one map for each method."""
    frame = frame.sort_values(["k", "ratio"], kind="stable")
    place = "k = " + frame["k"].astype(str) + ", σ₁/σ_k = " + frame["ratio"].astype(str)
    words = {"x": "rows / parameters", "y": ""}
    return {
        method: Map.of(rows, "rows", "place", "recovered", title=name_of(method), **words)
        for method, rows in frame.assign(place=place).groupby("method", sort=False)
    }


def fewest_rows(frame: Frame) -> dict[tuple[int, int], str]:
    """Return from how many rows per parameter on our fit recovers most trials, by k and ratio."""
    shares = (
        frame[frame["method"] == "polished"].groupby(["k", "ratio", "rows"])["recovered"].mean()
    )
    least = {}
    for (k, ratio), cells in shares.groupby(level=["k", "ratio"]):
        below = [rows for (_, _, rows), share in cells.items() if share < SHARE]
        above = [rows for (_, _, rows) in cells.index if rows > max(below, default=0)]
        least[k, ratio] = f"{min(above):g}" if above else "more than were tried"
    return least


def judge_transition(frame: Frame) -> Verdict:
    """Compare the shares of recoveries, and say from how many rows the fit finds the model."""
    total = frame.groupby(["method", "ratio"])["recovered"].mean()
    ratios = sorted(frame["ratio"].unique())
    measured = (
        f"{name_of('polished').capitalize()} recovers {SHARE:.0%} of the trials or more from this "
        "many rows per parameter on: "
        + listed(f"{n} (k = {k}, σ₁/σ_k = {r})" for (k, r), n in fewest_rows(frame).items())
        + ". Of all trials it recovers "
        + listed(
            f"{total['polished', ratio]:.0%} with σ₁/σ_k = {ratio} ({name_of('guarded')} "
            f"{total['guarded', ratio]:.0%})"
            for ratio in ratios
        )
        + "."
    )
    checks = [total["polished", ratio] >= total["guarded", ratio] for ratio in ratios]
    return Verdict.of(checks, measured)


STUDIES = (
    study("noise", run_noise, draw_noise, judge_noise),
    study("nearly_low_rank", run_nearly_low_rank, draw_nearly_low_rank, judge_nearly_low_rank),
    study("memory", run_memory, draw_memory, judge_memory),
    study("samples", search, draw_samples, judge_samples, has_sign),
    study("transition", run_transition, draw_transition, judge_transition, has_ratio),
)
