"""What a fit and a stream hold beside the rows, as d and k grow."""

import gc
import tracemalloc
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.explain.displays import ScalingDisplay
from quadlin.paper.study import Frame, Row, Study, Task, Verdict
from quadlin.paper.trend import Power, joined, powers, verdict_of

CHUNK = 8  # rows given to the stream at a time: what it makes of them is the caller's choice
CHUNKS = 12  # of them while the stream is watched, the last of which completes a batch
FIRST = 4  # rows of the first batch for each of the (k + 1)d parameters
FLOAT = 8  # bytes
PARTS = {
    "bytes_stream": "partial_fit, from the second batch on",
    "bytes_first": "partial_fit, first batch",
    "bytes_fit": "fit(polish=False)",
}
SLACK = 0.15
# d tried at the first k, k tried at the first d
SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "tiny": ((40, 80), (4, 8)),
    "quick": ((200, 100, 400), (4, 8, 16)),
    "full": ((400, 200, 800, 1200), (4, 2, 8, 16, 32)),
}


def tasks(size: str) -> list[Task]:
    """List the tasks: one (d, k) each, and one with twice the rows."""
    ds, ks = SIZES[size]
    places = [(d, ks[0]) for d in ds] + [(ds[0], k) for k in ks[1:]]
    plan: list[Task] = [{"d": d, "k": k, "batches": 2, "seed": 0} for d, k in places]
    return [*plan, {"d": ds[0], "k": ks[0], "batches": 6, "seed": 0}]


def run(task: Task, device: str) -> list[Row]:
    """Return the peaks of what is allocated beyond the rows, which are there before.

    The first batch is gathered and fitted as a table, and is measured separately. Of each later
    batch the last rows are measured as they arrive, a few at a time, with all that is held then.
    """
    d, k = task["d"], task["k"]
    n = FIRST * (k + 1) * d
    rng = np.random.default_rng(task["seed"])
    X = rng.standard_normal((n, d))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(n)
    few = {"rank": k, "alpha": 0.0, "whiten": "none", "polish": False, "max_iter": 3, "tol": 0.5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        # What is loaded and cached on first use is nobody's memory.
        SecondOrderRegressor(**few, random_state=0).fit(X[: 50 + k], y[: 50 + k])
        model = SecondOrderRegressor(**few, batch_size=n, random_state=0)
        first, stream = _peaks(model, X, y, task["batches"])
        tracemalloc.start()
        SecondOrderRegressor(**few, random_state=0).fit(X, y)
        whole = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    sizes = {"factor": FLOAT * k * d, "square": FLOAT * d * d, "table": X.nbytes}
    return [{"bytes_first": first, "bytes_stream": stream, "bytes_fit": whole} | sizes]


def _peaks(
    model: SecondOrderRegressor, X: np.ndarray, y: np.ndarray, batches: int
) -> tuple[int, int]:
    """Return the peak of the first batch, and of the ends of those after it."""
    tracemalloc.start()
    try:
        model.partial_fit(X, y)
        first, stream = tracemalloc.get_traced_memory()[1], 0
        head = len(y) - CHUNK * CHUNKS
        for _ in range(batches):
            model.partial_fit(X[:head], y[:head])
            gc.collect()
            tracemalloc.reset_peak()
            for start in range(head, len(y), CHUNK):
                model.partial_fit(X[start : start + CHUNK], y[start : start + CHUNK])
            stream = max(stream, tracemalloc.get_traced_memory()[1])
        return first, stream
    finally:
        tracemalloc.stop()


def exponents(frame: Frame) -> dict[str, dict[str, Power]]:
    """Fit bytes = a·dᵖ·k^q for each part."""
    shortest = frame[frame["batches"] == frame["batches"].min()]
    return {
        part: powers({"d": shortest["d"], "k": shortest["k"]}, shortest[part]) for part in PARTS
    }


def figures(frame: Frame) -> Mapping[str, Any]:
    """Draw the peaks against d at one k and against k at one d."""
    shortest = frame[frame["batches"] == frame["batches"].min()]
    pictures = {}
    for varied, fixed in (("d", "k"), ("k", "d")):
        part = shortest[shortest[fixed] == shortest[fixed].mode()[0]]
        columns = PARTS | {"square": "a d×d matrix"}
        pictures[f"memory_{varied}"] = ScalingDisplay.from_points(
            {label: (part[varied].to_numpy(), part[c].to_numpy()) for c, label in columns.items()},
            x_label="features d" if varied == "d" else "rank k",
            y_label="bytes",
            title=f"Peak beside the rows, {fixed} = {shortest[fixed].mode()[0]}",
        )
    return pictures


def verdict(frame: Frame) -> Verdict:
    """Compare the growth with kd."""
    fits = exponents(frame)
    base = frame[frame["batches"] == frame["batches"].min()]
    longer = frame[frame["batches"] == frame["batches"].max()].iloc[0]
    same = base[(base["d"] == longer["d"]) & (base["k"] == longer["k"])].iloc[0]
    growth = float(longer["bytes_stream"] / same["bytes_stream"])
    stream = fits["bytes_stream"]
    widest = base.loc[base["d"].idxmax()]
    multiple = float(widest["bytes_stream"] / widest["factor"])
    checks = {
        "stream in d": stream["d"].at_most(1.0, SLACK),
        "stream in k": stream["k"].at_most(1.0, SLACK),
        "no growth with rows": growth < 1.1,
    }
    measured = (
        "Memory grows as "
        + joined(
            f"d^({fits[part]['d']}) k^({fits[part]['k']}) for {label}"
            for part, label in PARTS.items()
        )
        + f"; at d = {int(widest['d'])}, k = {int(widest['k'])} a stream holds {multiple:.0f} "
        f"times U, or {widest['bytes_stream'] / widest['square']:.2g} of a d×d matrix."
    )
    ratio = longer["batches"] / same["batches"]
    words = (
        f"From the second batch on a stream holds {'' if all(checks.values()) else 'more than '}"
        f"O(kd) and what it makes of the {CHUNK} rows it is given: {ratio:g} times as many batches "
        f"take {growth:.2f} times the memory. "
    )
    first = float(widest["bytes_first"] / widest["table"])
    words += (
        f"But the first batch is kept and fitted as a table: {first:.1f} times its own size, "
        f"{FIRST}(k + 1)d rows here, so O(kd²) numbers until it is complete. "
        "`fit` holds a block of at most 2¹⁹ entries with its temporaries: "
        f"{widest['bytes_fit'] / 2**20:.0f} MiB at the widest, for any n."
    )
    holds = verdict_of(checks)
    if holds == "yes" and not fits["bytes_first"]["d"].at_most(1.0, SLACK):
        holds = "in part"
    return Verdict(measured, holds, words)


STUDY = Study(
    name="memory",
    title="Memory",
    claim="Section 1: one pass of the data in O(kd) memory.",
    setting="Peak of what Python and numpy allocate (tracemalloc) beyond the rows given, for "
    f"partial_fit on {CHUNK} rows at a time (a step included) and for "
    "fit(polish=False), no whitening.",
    tasks=tasks,
    run=run,
    figures=figures,
    verdict=verdict,
)
