"""The memory of a fit and of a stream, beside the rows, as d and k grow."""

import gc
import tracemalloc
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.displays import ScalingDisplay
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, joined, verdict_of
from quadlin.paper.trend import Power, powers
from quadlin.stream.memory import NUMBERS, strict_bytes

CHUNK = 8  # rows given to the stream at a time: what it makes of them is the caller's choice
CHUNKS = 12  # of them while the stream is watched, the last of which completes a batch
FIRST = 4  # rows of the first batch for each of the (k + 1)d parameters
FLOAT = 8  # bytes
OBJECTS = 1 << 17  # bytes of Python's own objects, whatever d and k
CALL = 256  # rows given at a time to a stream that keeps none
# Rows per parameter that such a stream is given for each of `batches`: two of them reach from its
# first row beyond the first batch of the power iteration.
STRICT = 12
PARTS = {
    "bytes_strict": 'partial_fit, max_memory="minimal"',
    "bytes_stream": "partial_fit, from the second batch on",
    "bytes_first": "partial_fit, first batch",
    "bytes_fit": "fit(polish=False)",
}
SLACK = 0.15
# d tried at the first k, k tried at the first d
SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "tiny": ((40, 80), (4, 8)),
    "quick": ((200, 100, 400), (4, 8, 16)),
    "full": ((400, 200, 800, 1200), (4, 2, 8, 16)),
}
ABOUT = About(
    title="Memory",
    claim="Section 1: one pass of the data in O(kd) memory.",
    setting="Peak of what Python and numpy allocate (tracemalloc) beyond the rows given: for "
    f'partial_fit with max_memory="minimal" on {CALL} rows at a time, from the first row through '
    "units, correlations and the start of the power iteration; for partial_fit with a first batch "
    f"on {CHUNK} rows at a time (a step included) and for fit(polish=False), both without "
    "whitening.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one (d, k) each, and one with twice the rows."""
    ds, ks = SIZES[size]
    places = [(d, ks[0]) for d in ds] + [(ds[0], k) for k in ks[1:]]
    plan: list[Task] = [{"d": d, "k": k, "batches": 2, "seed": 0} for d, k in places]
    return [*plan, {"d": ds[0], "k": ks[0], "batches": 6, "seed": 0}]


def run(task: Task, device: str) -> list[Row]:
    """Return the peaks of what is allocated beyond the rows, which are there before.

    The first batch is collected and fitted as a table, and is measured separately. In each later
    batch the last rows are measured as they arrive, a few at a time, with all memory in use.
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
        _strict_peak(X[:50, :5], y[:50], 1, task["batches"])  # for what is loaded on first use
        strict = _strict_peak(X, y, k, task["batches"])
    sizes = {"factor": FLOAT * k * d, "square": FLOAT * d * d, "table": X.nbytes}
    peaks = {"bytes_strict": strict, "bytes_stream": stream, "bytes_first": first}
    return [peaks | {"bytes_fit": whole} | sizes]


def _strict_peak(X: np.ndarray, y: np.ndarray, k: int, batches: int) -> int:
    """Return the peak of a stream that keeps no row, from its first row on; rows come again."""
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


def figures(frame: Frame) -> Pictures:
    """Draw the peaks against d at one k and against k at one d."""
    shortest = frame[frame["batches"] == frame["batches"].min()]
    pictures: Pictures = {}
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
    """Compare the growth with kd, of a stream that keeps no row and of one past its first batch."""
    fits = exponents(frame)
    base = frame[frame["batches"] == frame["batches"].min()]
    longer = frame[frame["batches"] == frame["batches"].max()].iloc[0]
    same = base[(base["d"] == longer["d"]) & (base["k"] == longer["k"])].iloc[0]
    growth = float(longer["bytes_stream"] / same["bytes_stream"])
    widest = base.loc[base["d"].idxmax()]
    limits = [
        strict_bytes(int(d), int(k)) + FLOAT * CALL * d + OBJECTS
        for d, k in zip(frame["d"], frame["k"], strict=True)
    ]
    within = bool((frame["bytes_strict"] <= limits).all())
    checks = {"bound of a strict stream": within, "no growth with the rows": growth < 1.1}
    for part in ("bytes_strict", "bytes_stream"):
        checks[f"{part} in d"] = fits[part]["d"].at_most(1.0, SLACK)
        checks[f"{part} in k"] = fits[part]["k"].at_most(1.0, SLACK)
    measured = (
        "Memory grows as "
        + joined(
            f"d^({fits[part]['d']}) k^({fits[part]['k']}) for {label}"
            for part, label in PARTS.items()
        )
        + f"; at d = {int(widest['d'])}, k = {int(widest['k'])} a stream that keeps no row holds "
        f"{widest['bytes_strict'] / widest['factor']:.0f} times U, or "
        f"{widest['bytes_strict'] / widest['square']:.2g} of a d×d matrix, from its first row on, "
        f"its work on the {CALL} rows of one call included."
    )
    first = float(widest["bytes_first"] / widest["table"])
    words = (
        f'With max_memory="minimal" a stream holds {"at most" if within else "more than"} '
        f"{NUMBERS}kd numbers and as much as the rows of one call ({CALL} here). "
        "By default the first batch is kept and fitted as a table: "
        f"{first:.1f} times its own size, {FIRST}(k + 1)d rows here, so O(kd²) numbers until it is "
        f"complete, and O(kd) afterwards beside a sample of rows (256 KiB, or 64 rows): "
        f"{longer['batches'] / same['batches']:g} times as many "
        f"batches take {growth:.2f} times the memory. "
        "`fit` holds a block of at most 2¹⁹ entries with its temporaries: "
        f"{widest['bytes_fit'] / 2**20:.0f} MiB at the widest, for any n."
    )
    return Verdict(measured, verdict_of(checks), words)
