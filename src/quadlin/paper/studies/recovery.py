"""Exact recovery without noise: the rows that it takes, by method, rank and eigenvalues."""

from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.metrics import degrees_of_freedom
from quadlin.paper.methods import FITS, name_of, steps
from quadlin.paper.pictures import Curves, Map, series
from quadlin.paper.problems import Sample, fitted, sample
from quadlin.paper.study import (
    EXACT,
    LAWS,
    Frame,
    Power,
    Row,
    Task,
    Verdict,
    listed,
    powers,
    study,
)

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
    study("samples", search, draw_samples, judge_samples, has_sign),
    study("transition", run_transition, draw_transition, judge_transition, has_ratio),
)
