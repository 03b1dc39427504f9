"""Exact recovery without noise: the rows it takes, by measurement and by method."""

import warnings
from time import process_time
from typing import Any

import numpy as np

from quadlin.estimators.signals.sensing import MatrixSensing
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.methods import (
    BUILT_IN,
    FITS,
    Race,
    Setting,
    fit_factors,
    name_of,
    steps,
)
from quadlin.paper.pictures import Curves, Map, convergence, series
from quadlin.paper.problems import (
    TEST_ROWS,
    Sample,
    fitted,
    law,
    law_name,
    matrix,
    random_truth,
    sample,
    streamed,
)
from quadlin.paper.studies.rates import LAWS
from quadlin.paper.study import (
    Frame,
    Power,
    Row,
    Task,
    Verdict,
    listed,
    power,
    powers,
    study,
)

EXACT = 1e-6  # test NMSE of a recovery
MOST = {"plain": 60, "guarded": 16, "polished": 6, "psd": 6}  # in (k + 1)d rows
SLACK = 0.15  # of an exponent, beside twice its standard error


def error_of(method: str, data: Sample, n: int, k: int, seed: int) -> float:
    """Return the test NMSE of a method on the first n rows."""
    X, y = data.X[:n], data.y[:n]
    if method == "polished":
        return data.nmse(fitted(X, y, k, max_iter=100))
    if method in FITS:
        found = steps(method, X, y, k, max_iter=100, has_diagonal=data.truth.has_diagonal)
        return data.nmse(found[-1])
    signs = {"psd": np.ones(k), "signs": np.sign(data.truth.s), "factors": None}[method]
    return data.nmse(fit_factors(X, y, k, seed, signs))


def search(task: Task, device: str) -> list[Row]:
    """Bisect for the fewest rows, the first n of one table, from which the model is recovered.

    The median over tables is the n with 50% success. Success is assumed to be monotone in n. Near
    the threshold it need not be, and the search finds one of the crossings.
    """
    d, k = task["d"], task["k"]
    method, _, without = str(task.get("arm") or task["method"]).partition(" without ")
    squares: dict[str, Any] = {"has_diagonal": False} if without else {}
    dof = degrees_of_freedom(d, k)
    low, high = dof, MOST[method] * (k + 1) * d  # fewer rows than parameters cannot do
    data = sample(task["law"], high, d, k, task["seed"], signed=task["sign"] == "signed", **squares)

    def recovers(n: int) -> bool:
        return error_of(method, data, n, k, task["seed"]) <= EXACT

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
    return bool(task["sign"] == "positive" or (task["k"] > 1 and task["method"] != "plain"))


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
    checks = [growth.at_most(2.0, SLACK) for growth in inside if np.isfinite(growth.exponent)]
    checks.append(fits["gaussian", "plain"]["d"].at_most(1.0, SLACK))
    measured = (
        "On Gaussian features the rows needed grow as "
        + listed(
            f"k^({fits['gaussian', m]['k']})·d^({fits['gaussian', m]['d']}) for {name_of(m)}"
            for m in FITS
        )
        + "."
    )
    return Verdict.of(checks, measured)


REDUNDANT = 1.25  # rows without the constraint over rows with it, at most


def self_exponents(frame: Frame) -> dict[str, Power]:
    """Fit n = a·kᵖ for each arm."""
    return {arm: power(part["k"], part["n50"]) for arm, part in frame.groupby("arm", sort=False)}


def draw_self_interactions(frame: Frame) -> dict[str, Any]:
    """Draw the rows needed against the rank."""
    title = f"Rows to exact recovery, Gaussian features, d = {frame['d'].iloc[0]}"
    points = series(frame, "k", "n50", "arm")
    return {"k": Curves(points, "rank k", "rows needed", title, slopes=True)}


def judge_self_interactions(frame: Frame) -> Verdict:
    """Compare the exponents of k, and the rows with and without the constraint."""
    fits = self_exponents(frame)
    free, squares = fits["plain without squares"], fits["plain"]
    medians = frame.groupby("arm")["n50"].median()
    gain = float(medians["polished"] / medians["psd"])
    checks = [free.at_most(1.0, SLACK), squares.at_most(2.0, SLACK), gain <= REDUNDANT]
    measured = (
        f"The plain step needs rows as k^({free}) without self-interactions and as "
        f"k^({squares}) with them; without the constraint our fit needs {gain:.2f} times the rows "
        "of a model whose M is positive."
    )
    return Verdict.of(checks, measured)


RIVALS = ("guarded", "polished", "signs", "factors")
SHARE = 0.8  # of the trials, from which a cell of the map counts as recovered


def has_ratio(task: Task) -> bool:
    """Tell whether there is a ratio of eigenvalues."""
    return bool(task["k"] > 1 or task["ratio"] == 1)


def run_transition(task: Task, device: str) -> list[Row]:
    """Return whether the model is recovered."""
    d, k, seed = task["d"], task["k"], task["seed"]
    n = int(task["rows"] * degrees_of_freedom(d, k))
    data = sample("gaussian", n, d, k, seed, signed=True, ratio=float(task["ratio"]))
    error = error_of(task["method"], data, n, k, seed)
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


def judge_transition(frame: Frame) -> Verdict:
    """Compare the shares of recoveries, and say from how many rows the fit finds the model."""
    shares = frame.groupby(["method", "k", "ratio", "rows"])["recovered"].mean()
    least = {}
    for (k, ratio), cells in shares["polished"].groupby(level=["k", "ratio"]):
        below = [rows for (_, _, rows), share in cells.items() if share < SHARE]
        above = [rows for (_, _, rows) in cells.index if rows > max(below, default=0)]
        least[k, ratio] = f"{min(above):g}" if above else "more than were tried"
    total = frame.groupby(["method", "ratio"])["recovered"].mean()
    rivals = [m for m in RIVALS if m != "polished"]
    checks = [
        total["polished", ratio] >= total[rival, ratio]
        for rival in rivals
        for ratio in frame["ratio"].unique()
    ]
    measured = (
        f"{name_of('polished').capitalize()} recovers {SHARE:.0%} of the trials or more from this "
        "many rows per parameter on: "
        + listed(f"{n} (k = {k}, σ₁/σ_k = {ratio})" for (k, ratio), n in least.items())
        + ". Of all trials with σ₁/σ_k = "
        + "; ".join(
            f"{ratio}: " + listed(f"{total[m, ratio]:.0%} by {name_of(m)}" for m in RIVALS)
            for ratio in sorted(frame["ratio"].unique())
        )
        + "."
    )
    return Verdict.of(checks, measured)


MASKS = {"0/1": "bernoulli:0.5", "0/1, rare": "bernoulli:0.1", "±1": "signs"}
EXACT_MASKS = 1e-8  # test NMSE
ENOUGH_MASKS = 4  # rows in kd from which recovery is asked for


def run_masks(task: Task, device: str) -> list[Row]:
    """Fit y = xᵀMx, without a linear part or an intercept, on the masks as they are."""
    rng = np.random.default_rng(task["seed"])
    d, k = task["d"], task["k"]
    n = int(task["rows"] * k * d)
    truth = random_truth(rng, d, k, signed=task["sign"] == "signed")
    X = law(MASKS[task["mask"]]).sample(rng, n + TEST_ROWS, d)
    y = ((X @ truth.Q) ** 2) @ truth.s
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recovery is what is measured
        M = MatrixSensing(rank=k, random_state=0).fit(X[:n], y[:n]).matrix_
    test, rows = y[n:], X[n:]
    error = float(np.mean((np.sum((rows @ M) * rows, axis=1) - test) ** 2) / np.var(test))
    return [{"nmse": error, "recovered": int(error <= EXACT_MASKS)}]


def draw_masks(frame: Frame) -> dict[str, Any]:
    """Draw the shares of recoveries, by mask and rows."""
    frame = frame.assign(arm=frame["mask"] + ", " + frame["sign"])
    words = {"x": "rows / kd", "y": "mask, sign of M", "title": "Matrix sensing with masks"}
    return {"masks": Map.of(frame, "rows", "arm", "recovered", **words)}


def judge_masks(frame: Frame) -> Verdict:
    """Count the recoveries from 4kd rows on."""
    enough = frame[frame["rows"] >= ENOUGH_MASKS]
    shares = {arm: r["recovered"] for arm, r in enough.groupby(["mask", "sign"], sort=False)}
    measured = (
        f"From {ENOUGH_MASKS}kd rows on the sensed matrix is recovered in "
        + listed(f"{int(r.sum())} of {len(r)} ({m}, {s} M)" for (m, s), r in shares.items())
        + " trials."
    )
    return Verdict.of([r.mean() == 1 for r in shares.values()], measured)


EXACT_SIGNED = 1e-10  # test NMSE


def run_signed(task: Task, device: str) -> list[Row]:
    """Return the test error after each step."""
    n, d, k, method = (task[name] for name in ("n", "d", "k", "method"))
    data = sample(task["law"], n, d, k, task["seed"], signed=task["sign"] == "signed")
    if method == "psd":
        error = error_of(method, data, n, k, task["seed"])
        return [{"iteration": 1, "passes": 1, "nmse": error}]
    tol = 1e-6 if method == "polished" else 0.0
    found = steps(method, data.X, data.y, k, max_iter=task["steps"], tol=tol)
    return [
        {"iteration": number, "passes": step.passes, "nmse": data.nmse(step)}
        for number, step in enumerate(found, 1)
    ]


def draw_signed(frame: Frame) -> dict[str, Any]:
    """Draw the errors of a signed M, one picture per law."""
    return {
        name.partition(":")[0]: Curves(
            convergence(rows, "passes", FITS, "method"), "passes over the rows", "test NMSE",
            f"M of both signs, {law_name(name)} features", log="y",
        )
        for name, rows in frame[frame["sign"] == "signed"].groupby("law")
    }  # fmt: skip


def judge_signed(frame: Frame) -> Verdict:
    """Say what is recovered with either sign, and what a positive model leaves."""
    keys = ["law", "sign", "method", "seed"]
    last = frame.sort_values("iteration", kind="stable").groupby(keys, as_index=False).last()
    share = (last["nmse"] <= EXACT_SIGNED).groupby([last["method"], last["sign"]]).mean()
    left = last[(last["method"] == "psd") & (last["sign"] == "signed")]["nmse"]
    checks = [share[m, "signed"] >= share[m, "positive"] for m in FITS]
    checks.append(share["guarded", "signed"] == share["polished", "signed"] == 1.0)
    measured = (
        "An M of both signs is recovered exactly in "
        + listed(f"{share[m, 'signed']:.0%} of the trials by {name_of(m)}" for m in FITS)
        + f"; a positive model of such an M ends at an NMSE of {left.min():.2f} to "
        f"{left.max():.2f}."
    )
    return Verdict.of(checks, measured)


ENOUGH_ASYMMETRIC = 10  # rows in k(p + q) from which recovery is asked for


def run_asymmetric(task: Task, device: str) -> list[Row]:
    """Return the relative error of A, read off the off-diagonal block of M."""
    rng = np.random.default_rng(task["seed"])
    p, q, k = task["p"], task["q"], task["k"]
    n = task["rows"] * k * (p + q)
    U, V = (np.linalg.qr(rng.standard_normal((size, k)))[0] for size in (p, q))
    A = U @ V.T
    X = rng.standard_normal((n, p + q))
    y = np.sum((X[:, :p] @ A) * X[:, p:], axis=1)
    matrices = {m: steps(m, X, y, 2 * k, has_diagonal=True)[-1].raw()[2] for m in FITS}
    stream = streamed(X, y, 2 * k)
    matrices["stream"] = matrix(stream.components_.T, stream.eigenvalues_, np.ones(p + q))
    return [
        {"method": m, "error": float(np.linalg.norm(2 * M[:p, p:] - A) / np.linalg.norm(A))}
        for m, M in matrices.items()
    ]


def draw_asymmetric(frame: Frame) -> dict[str, Any]:
    """Draw the error of A against the rows."""
    points = series(frame, "rows", "error")
    labels = ("rows / k(p + q)", "relative error of A", "y = xᵀAz by [x; z]")
    return {"asymmetric": Curves(points, *labels, level=(EXACT, "exact, below"))}


def judge_asymmetric(frame: Frame) -> Verdict:
    """Count exact recoveries where there are enough rows."""
    worst = frame[frame["rows"] >= ENOUGH_ASYMMETRIC].groupby("method")["error"].max()
    most = frame[frame["rows"] == frame["rows"].max()].groupby("method")["error"].max()
    checks = [worst["guarded"] <= EXACT, worst["polished"] <= EXACT, most["plain"] <= EXACT]
    measured = (
        f"From {ENOUGH_ASYMMETRIC}k(p + q) rows on the relative error of A is at most "
        f"{worst['polished']:.0e} for our fit and {worst['guarded']:.0e} for the guarded step; "
        f"with the most rows it is {most['plain']:.0e} for the plain step and {most['stream']:.0e} "
        "after one pass."
    )
    return Verdict.of(checks, measured)


ADMM_STEPS, ADMM_TOL = 20_000, 1e-9
SHRINK = 0.1  # of the largest eigenvalue at the start: what a step takes off each eigenvalue


def nuclear_norm(X: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    r"""Return b, w and the M of least nuclear norm that fits the rows, by ADMM.

    .. math:: \min_{b, w, M}\; \|M\|_* \quad\text{s.t.}\quad y_i = b + x_i^\top w + x_i^\top M x_i

    The entries of M are d(d + 1)/2 unknowns, so memory grows as d⁴ and work as d⁶.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((40, 4))
    >>> b, w, M = nuclear_norm(X, 1.0 + X[:, 0] + 2 * X[:, 1] * X[:, 2])
    >>> bool(abs(M[1, 2] - 1) < 1e-6)
    True
    """
    d = X.shape[1]
    i, j = np.triu_indices(d)
    unit = np.where(i == j, 1.0, 2**0.5)  # in which the length of the entries is that of M
    design = np.column_stack([np.ones(len(X)), X, X[:, i] * X[:, j] * unit])
    inverse = np.linalg.pinv(design, rcond=1e-10)
    fixed, free = inverse @ y, np.eye(design.shape[1]) - inverse @ design

    def matrix_of(v: np.ndarray) -> np.ndarray:
        M = np.zeros((d, d))
        M[i, j] = v[1 + d :] / unit
        return np.asarray(M + M.T - np.diag(np.diag(M)))

    z, u, x = fixed, np.zeros_like(fixed), fixed
    shrink = SHRINK * np.linalg.norm(matrix_of(fixed), 2)
    for _ in range(ADMM_STEPS):
        x, before = fixed + free @ (z - u), z
        s, V = np.linalg.eigh(matrix_of(x + u))
        M = (V * np.sign(s) * np.maximum(np.abs(s) - shrink, 0)) @ V.T
        z = np.concatenate([(x + u)[: 1 + d], M[i, j] * unit])
        u = u + x - z
        if max(np.linalg.norm(x - z), np.linalg.norm(z - before)) <= ADMM_TOL * np.linalg.norm(x):
            break
    return float(x[0]), x[1 : 1 + d], matrix_of(x)


def run_nuclear(task: Task, device: str) -> list[Row]:
    """Run every solver on the same few rows; always on the CPU, in float64."""
    (d, rows), k, seed = task["place"], task["k"], task["seed"]
    data = sample("truncated:0", rows * k * d, d, k, seed, standardised=False, b=0.0)
    race = Race(data.X, data.y, data.X_test, data.y_test, Setting(k, True, 50, seed))
    lines = [race.run(key)[-1] for key in BUILT_IN]
    mean, sd, scale = data.X.mean(axis=0), data.X.std(axis=0), data.y.std()
    start = process_time()
    b, w, M = nuclear_norm((data.X - mean) / sd, data.y / scale)
    seconds, Z = process_time() - start, (data.X_test - mean) / sd
    error = scale * (b + Z @ w + np.sum((Z @ M) * Z, axis=1)) - data.y_test
    lines.append({"solver": "convex", "nmse": np.mean(error**2) / np.mean(data.y_test**2)})
    lines[-1]["seconds"] = seconds
    return [
        {"solver": line["solver"], "nmse": float(line["nmse"]), "seconds": line["seconds"]}
        | {"d": d, "rows": rows}
        for line in lines
    ]


def draw_nuclear(frame: Frame) -> dict[str, Any]:
    """Draw the error against the rows, and the time against d."""
    by_rows = frame[frame["d"] == frame["d"].mode()[0]].assign(nmse=frame["nmse"].clip(1e-16))
    by_d = frame[frame["rows"] == 5]
    level = (EXACT, "found, below")
    return {
        "error": Curves(
            series(by_rows, "rows", "nmse", "solver"), "rows / kd", "test NMSE",
            f"Error of every solver, d = {frame['d'].mode()[0]}", level=level,
        ),
        "time": Curves(
            series(by_d, "d", "seconds", "solver"), "features d", "CPU seconds", "5kd rows"
        ),
    }  # fmt: skip


def judge_nuclear(frame: Frame) -> Verdict:
    """Compare the rows each solver needs, and the time it takes."""
    by_rows, need = frame[frame["d"] == frame["d"].mode()[0]], {}
    for key, part in by_rows.groupby("solver", sort=False):
        worst = part.groupby("rows")["nmse"].max().sort_index(ascending=False)
        good = worst.index[(worst < EXACT).cummin()]
        need[str(key)] = float(good.min()) if len(good) else float("inf")
    widest = frame[frame["d"] == frame["d"].max()].groupby("solver")["seconds"].median()
    ratio = float(widest["convex"] / widest["polished"])
    convex = frame[(frame["solver"] == "convex") & (frame["rows"] == 5)]
    measured = (
        f"An NMSE below {EXACT:g} in every trial takes "
        + listed(f"{n:g}kd rows with {name_of(m)}" for m, n in need.items() if np.isfinite(n))
        + f". At d = {frame['d'].max()} the convex problem takes {ratio:.2g} times the CPU time of "
        f"our fit; its time grows as d^({power(convex['d'], convex['seconds'])})."
    )
    checks = [np.isfinite(need["convex"]), ratio > 1, need["polished"] <= need["convex"]]
    return Verdict.of(checks, measured)


STUDIES = (
    study("samples", search, draw_samples, judge_samples, has_sign),
    study("transition", run_transition, draw_transition, judge_transition, has_ratio),
    study("self_interactions", search, draw_self_interactions, judge_self_interactions),
    study("asymmetric", run_asymmetric, draw_asymmetric, judge_asymmetric),
    study("masks", run_masks, draw_masks, judge_masks),
    study("signed", run_signed, draw_signed, judge_signed),
    study("nuclear", run_nuclear, draw_nuclear, judge_nuclear),
)
