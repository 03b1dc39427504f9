"""Exact recovery without noise: the rows it takes, by measurement and by method."""

import warnings
from importlib import import_module
from itertools import islice, repeat
from time import perf_counter
from typing import Any

import numpy as np

from quadlin.estimators.signals.sensing import MatrixSensing
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.descent import MAX_STEPS, fit_factors
from quadlin.paper.displays import PhaseTransitionDisplay, ScalingDisplay
from quadlin.paper.iterations import plain
from quadlin.paper.laws import law, law_name
from quadlin.paper.library import fit, steps
from quadlin.paper.methods import (
    FITS,
    LAWS,
    METHODS,
    SOLVERS,
    errors_by_method,
    levels_by_method,
    points,
    styles,
)
from quadlin.paper.problems import (
    INTERCEPT,
    TEST_ROWS,
    Sample,
    random_truth,
    sample,
    streamed,
    tables,
)
from quadlin.paper.race import Race, Setting
from quadlin.paper.study import (
    About,
    Frame,
    Pictures,
    Power,
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

EXACT = 1e-6  # test NMSE of a recovery
MOST = {"plain": 60, "guarded": 16, "polished": 6, "psd": 6, "uncentred": 60}  # in (k + 1)d rows
UNCENTRED_STEPS = 40
PRECISION = {"tiny": 1.4, "quick": 1.15, "full": 1.06}  # a threshold is known to this factor
SLACK = 0.15


def search(task: Task, device: str) -> list[Row]:
    """Bisect for the fewest rows, the first n of one table, from which the model is recovered.

    The median over tables is the n with 50% success. Success is assumed to be monotone in n. Near
    the threshold it need not be, and the search finds one of the crossings.
    """
    d, k, method = task["d"], task["k"], task["method"]
    squares = task.get("squares", "yes") == "yes"
    dof = degrees_of_freedom(d, k)
    low, high = dof, MOST[method] * (k + 1) * d  # fewer rows than parameters cannot do
    signed = task["sign"] == "signed"
    has_diagonal = None if squares else False
    data = sample(task["law"], high, d, k, task["seed"], signed=signed, has_diagonal=has_diagonal)
    # From below in doublings: fits of many rows are the expensive ones.
    n = min(2 * low, high)
    while not _recovers(data, task, n, has_diagonal):
        if n == high:
            return [{"n50": float("nan"), "dof": dof}]
        low, n = n, min(2 * n, high)
    high = n
    while high > task["precision"] * low + 1:
        middle = int(np.sqrt(low * high))
        success = _recovers(data, task, middle, has_diagonal)
        low, high = (low, middle) if success else (middle, high)
    return [{"n50": high, "dof": dof}]


def _recovers(data: Sample, task: Task, n: int, has_diagonal: bool | None) -> bool:
    X, y, k, seed = data.X[:n], data.y[:n], task["k"], task["seed"]
    if task["method"] == "psd":
        return data.nmse(fit_factors(X, y, k, seed, np.ones(k))) <= EXACT
    if task["method"] != "uncentred":
        model = fit(task["method"], X, y, k, max_iter=100, has_diagonal=has_diagonal)
        return data.nmse(model) <= EXACT
    # The mean of the residual, tr ΔM, is left in the products and adds to their variance.
    models = plain(repeat((X, y - INTERCEPT)), k, data.truth.has_diagonal, seed, centred=False)
    with np.errstate(all="ignore"):
        *_, last = islice(models, UNCENTRED_STEPS)
        error = last.values(data.X_test) + INTERCEPT - data.y_test
        return bool(np.mean(error**2) / np.var(data.y_test) <= EXACT)


COMPARED = ("plain", "uncentred", "guarded", "polished")


def list_samples(size: str) -> list[Task]:
    """List one search for each method, law, sign, d and k."""
    gaussian, others, seeds = {
        "tiny": (((16, 1), (16, 3), (32, 1)), ((16, 2),), 1),
        "quick": (((30, 1), (30, 4), (30, 16), (15, 2), (50, 2)), ((30, 1), (30, 4)), 1),
        "full": (
            ((80, 1), (80, 2), (80, 4), (80, 8), (80, 16), (80, 32), (20, 3), (40, 3), (160, 3)),
            ((80, 1), (80, 4), (80, 16)),
            3,
        ),
    }[size]
    signs, seed, precision = ("positive", "signed"), range(seeds), PRECISION[size]
    plan = grid(
        law="gaussian", method=COMPARED, place=gaussian, sign=signs, seed=seed, precision=precision
    ) + grid(
        law=("truncated", "bernoulli"),
        method=("plain", "guarded", "polished"),
        place=others,
        sign=signs,
        seed=seed,
        precision=precision,
    )
    tasks = [dict(zip("dk", task.pop("place"), strict=True)) | task for task in plan]
    return [
        task
        for task in tasks
        if task["sign"] == "positive"
        or (task["k"] > 1 and task["method"] in ("guarded", "polished"))
    ]


def samples_exponents(frame: Frame) -> dict[tuple[str, str], dict[str, Power]]:
    """Fit n = a·kᵖ·d^q for each law and method, of a positive M."""
    return {
        key: powers({"k": part["k"], "d": part["d"]}, part["n50"])
        for key, part in frame[frame["sign"] == "positive"].groupby(["law", "method"], sort=False)
    }


def draw_samples(frame: Frame) -> Pictures:
    """Draw the thresholds against k at the d that was tried with most of them."""
    gaussian = frame[(frame["law"] == "gaussian") & (frame["sign"] == "positive")]
    d = gaussian.groupby("d")["k"].nunique().idxmax()
    display = ScalingDisplay.from_points(
        points(gaussian[gaussian["d"] == d], "k", "n50"),
        x_label="rank k",
        y_label="rows needed",
        title=f"Rows to exact recovery, d = {d}",
        styles=styles(COMPARED),
    )
    return {"samples_k": display}


def judge_samples(frame: Frame) -> Verdict:
    """Compare the exponents of the plain step with k²d, where the theorem applies."""
    fits = samples_exponents(frame)
    inside = {name: fits[name, "plain"] for name in ("gaussian", "truncated")}
    checks = {
        name: growth["k"].at_most(2.0, SLACK)
        for name, growth in inside.items()
        if np.isfinite(growth["k"].exponent)
    }
    checks["d"] = inside["gaussian"]["d"].at_most(1.0, SLACK)
    gaussian = {m: fits["gaussian", m] for m in COMPARED}
    measured = (
        "On Gaussian features the rows needed grow as "
        + joined(f"k^({g['k']})·d^({g['d']}) for {METHODS[m].name}" for m, g in gaussian.items())
        + "."
    )
    ranks = frame[(frame["law"] == "gaussian") & (frame["method"] == "plain")]
    own = powers({"k": ranks["k"], "d": ranks["d"]}, ranks["dof"])["k"]
    per_dof = (frame["n50"] / frame["dof"]).groupby(frame["method"]).median()
    words = (
        "In the median a method needs this many rows per parameter: "
        + joined(f"{METHODS[m].name} {per_dof[m]:.1f}" for m in COMPARED)
        + ". The bound of k²d is an upper one, so fewer rows do not contradict it. The number of "
        f"parameters itself grows as k^({own}) over these k, so an exponent below 1 says little. "
        "Leaving the mean of the residual in the products changes the exponent of k by "
        f"{gaussian['uncentred']['k'].exponent - gaussian['plain']['k'].exponent:+.2f}. Bernoulli "
        f"features are outside the theorem. {int(frame['n50'].isna().sum())} searches did not "
        "succeed within their limit and are left out."
    )
    return Verdict(measured, verdict_of(checks), words)


SAMPLES = Study(
    "samples",
    About(
        "Theorem 2: rows needed for exact recovery",
        "Theorem 2: on τ-MIP features of the order k²d rows are enough (and kd are necessary).",
        "No noise, eigenvalues of M all +1 (positive) or of alternating sign, w and b unknown; "
        f"exact is a test NMSE of {EXACT:g} within 100 steps. For each table the fewest rows are "
        f"found by bisection (within {PRECISION['full'] - 1:.0%} in the full run). “Uncentred MES” "
        "is the plain step with the mean of the residual left in the products.",
    ),
    list_samples,
    search,
    draw_samples,
    judge_samples,
)

ARMS = (("plain", "yes"), ("plain", "no"), ("polished", "yes"), ("psd", "yes"))
REDUNDANT = 1.25  # rows without the constraint over rows with it, at most


def list_self_interactions(size: str) -> list[Task]:
    """List one search for each arm and rank."""
    d, ranks, seeds = {
        "tiny": (16, (1, 3), 1),
        "quick": (30, (1, 4, 8), 2),
        "full": (80, (1, 2, 4, 8, 16), 3),
    }[size]
    common = {"law": "gaussian", "sign": "positive", "d": d, "precision": PRECISION[size]}
    return [
        {"method": method, "squares": squares} | task
        for method, squares in ARMS
        for task in grid(k=ranks, seed=range(seeds), **common)
    ]


def self_exponents(frame: Frame) -> dict[tuple[str, str], Power]:
    """Fit n = a·kᵖ for each arm."""
    arms = frame.groupby(["method", "squares"], sort=False)
    return {arm: power(part["k"], part["n50"]) for arm, part in arms}


def draw_self_interactions(frame: Frame) -> Pictures:
    """Draw the rows needed against the rank."""

    def name(arm: tuple[str, str]) -> str:
        return METHODS[arm[0]].name + ("" if arm[1] == "yes" else ", M without diagonal")

    display = ScalingDisplay.from_points(
        points(frame, "k", "n50", ["method", "squares"], name),
        x_label="rank k",
        y_label="rows needed",
        title=f"Rows to exact recovery, Gaussian features, d = {frame['d'].iloc[0]}",
        styles={
            name((m, s)): {**METHODS[m].style, **({"linestyle": ":"} if s == "no" else {})}
            for m, s in ARMS
        },
    )
    return {"self_interactions": display}


def judge_self_interactions(frame: Frame) -> Verdict:
    """Compare the exponents of k, and the rows with and without the constraint."""
    fits = self_exponents(frame)
    free, squares = fits["plain", "no"], fits["plain", "yes"]
    medians = frame.groupby(["method", "squares"])["n50"].median()
    gain = float(medians["polished", "yes"] / medians["psd", "yes"])
    checks = {
        "kd without squares": free.at_most(1.0, SLACK),
        "k²d with them": squares.at_most(2.0, SLACK),
        "psd redundant": gain <= REDUNDANT,
    }
    measured = (
        f"The plain step needs rows as k^({free}) without self-interactions and as "
        f"k^({squares}) with them; without the constraint the polished fit needs {gain:.2f} times "
        "the rows of a model whose M is positive."
    )
    words = (
        "The bounds are upper ones. The residual is centred here, which removes the trace, and "
        "with it the difference that self-interactions make."
    )
    return Verdict(measured, verdict_of(checks), words)


SELF_INTERACTIONS = Study(
    "self_interactions",
    About(
        "The 2019 result: self-interactions, and positivity",
        "The same group in 2019 (arXiv 1901.11149): without self-interactions of the order kd rows "
        "are enough, with them k²d/τ²; requiring M to be positive is redundant.",
        "Gaussian features, no noise, positive M with or without its diagonal, w and b unknown; "
        f"exact is a test NMSE of {EXACT:g}; the fewest rows by bisection.",
    ),
    list_self_interactions,
    search,
    draw_self_interactions,
    judge_self_interactions,
)

RIVALS = ("guarded", "polished", "signs", "factors")


def run_transition(task: Task, device: str) -> list[Row]:
    """Return whether the model is recovered."""
    d, k, method = task["d"], task["k"], task["method"]
    n = int(task["ratio"] * degrees_of_freedom(d, k))
    data = sample("gaussian", n, d, k, task["seed"])
    if method in FITS:
        error = data.nmse(fit(method, data.X, data.y, k, max_iter=100))
    else:
        signs = data.truth.s if method == "signs" else None
        error = data.nmse(fit_factors(data.X, data.y, k, task["seed"], signs))
    return [{"n": n, "nmse": error, "recovered": int(error <= EXACT)}]


def _thresholds(frame: Frame) -> dict[str, list[float]]:
    """Return the least rows per parameter that recover at least half, by method, for each k."""
    least: dict[str, list[float]] = {method: [] for method in RIVALS}
    for (method, _), part in frame.groupby(["method", "k"]):
        shares = part.groupby("ratio")["recovered"].mean().sort_index()
        below = shares[shares < 0.5]
        above = shares.index[shares.index > (below.index.max() if len(below) else 0)]
        least[method].append(float(above[0]) if len(above) else float("inf"))
    return least


def draw_transition(frame: Frame) -> Pictures:
    """Draw one map for each method."""
    return {
        f"transition_{method}": PhaseTransitionDisplay.from_trials(
            rows["ratio"], rows["k"], rows["recovered"], title=METHODS[method].name
        )
        for method, rows in frame.groupby("method", sort=False)
    }


def judge_transition(frame: Frame) -> Verdict:
    """Compare the thresholds."""
    least, total = _thresholds(frame), frame.groupby("method")["recovered"].mean()
    checks = {
        f"{ours} before {rival}": bool(
            np.median(least[ours]) <= np.median(least[rival]) and total[ours] >= total[rival]
        )
        for ours in RIVALS[:2]
        for rival in RIVALS[2:]
    }

    def span(values: list[float]) -> str:
        low, high = min(values), max(values)
        text = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        return text.replace("inf", "more than were tried")

    measured = (
        "Half of the trials are recovered from this many rows per parameter, over the ranks: "
        + joined(f"{METHODS[m].name} {span(least[m])}" for m in RIVALS)
        + "."
    )
    words = (
        "Of all trials, "
        + joined(f"{total[m]:.0%} are recovered by {METHODS[m].name}" for m in RIVALS)
        + ". L-BFGS had a single random start: several were not tried. All eigenvalues are ±1; "
        "weak ones beside strong ones need more rows."
    )
    return Verdict(measured, verdict_of(checks), words)


TRANSITION = Study(
    "transition",
    About(
        "Phase transition of exact recovery",
        "Beyond the paper: with M of both signs and w and b unknown, moment estimates and the "
        "polished fit recover from fewer rows than a general optimiser from a random start.",
        f"Gaussian features, no noise; exact is a test NMSE of {EXACT:g} within 100 steps. L-BFGS "
        f"has {MAX_STEPS} steps on the same squared error, from random factors a tenth of the "
        "truth's size, once on M = U diag(±1) Uᵀ with the true signs given and once on "
        "M = sym(U Vᵀ).",
    ),
    grids(
        tiny={"method": RIVALS, "d": 12, "k": (1, 2), "ratio": (1.0, 3.0), "seed": 0},
        quick={"method": RIVALS, "d": 24, "k": (1, 3, 6), "ratio": (1.0, 1.3, 1.7, 2.2, 3.0),
               "seed": range(2)},
        full={"method": RIVALS, "d": 60, "k": (1, 2, 4, 8, 12), "seed": range(5),
              "ratio": (1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)},
    ),
    run_transition,
    draw_transition,
    judge_transition,
)  # fmt: skip

MASKS = {"0/1": ("bernoulli", 0.5), "0/1, rare": ("bernoulli", 0.1), "±1": ("signs", None)}
EXACT_MASKS = 1e-8  # test NMSE
ENOUGH_MASKS = 4  # rows in kd from which recovery is asked for


def run_masks(task: Task, device: str) -> list[Row]:
    """Fit y = xᵀMx, without a linear part or an intercept, on the masks as they are."""
    rng = np.random.default_rng(task["seed"])
    d, k = task["d"], task["k"]
    n = int(task["ratio"] * k * d)
    truth = random_truth(rng, d, k, signed=task["sign"] == "signed")
    X = law(*MASKS[task["mask"]]).sample(rng, n + TEST_ROWS, d)
    y = ((X @ truth.Q) ** 2) @ truth.s
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recovery is what is measured
        M = MatrixSensing(rank=k, random_state=0).fit(X[:n], y[:n]).matrix_
    test, rows = y[n:], X[n:]
    error = float(np.mean((np.sum((rows @ M) * rows, axis=1) - test) ** 2) / np.var(test))
    return [{"n": n, "nmse": error, "recovered": int(error <= EXACT_MASKS)}]


def draw_masks(frame: Frame) -> Pictures:
    """Draw the shares of recoveries, by mask and rows."""
    arms = frame["mask"] + ", " + frame["sign"]
    names = list(arms.unique())
    display = PhaseTransitionDisplay.from_trials(
        frame["ratio"],
        arms.map(names.index),
        frame["recovered"],
        x_label="rows / kd",
        y_label="mask, sign of M",
        title=f"Matrix sensing with masks, d = {frame['d'].iloc[0]}, k = {frame['k'].iloc[0]}",
        y_names=names,
    )
    return {"masks": display}


def judge_masks(frame: Frame) -> Verdict:
    """Count the recoveries from 4kd rows on."""
    enough = frame[frame["ratio"] >= ENOUGH_MASKS]
    shares = {arm: r["recovered"] for arm, r in enough.groupby(["mask", "sign"], sort=False)}
    measured = (
        f"From {ENOUGH_MASKS}kd rows on the sensed matrix is recovered in "
        + joined(f"{int(r.sum())} of {len(r)} ({m}, {s} M)" for (m, s), r in shares.items())
        + " trials."
    )
    words = (
        "Masks take two values, so the features are not τ-MIP, yet without a linear part the "
        "square x² = x (or 1) is not lost in w, and the sensed matrix predicts exactly. For ±1 "
        "masks only the trace of the diagonal is seen, and the low rank determines the rest. The "
        "rows are reused; the introduction asks whether a nonconvex method can do it at all."
    )
    checks = {", ".join(arm): bool(r.mean() == 1) for arm, r in shares.items()}
    return Verdict(measured, verdict_of(checks), words)


SIGNS = ("positive", "signed")
SENSING = Study(
    "masks",
    About(
        "Introduction: matrix sensing with two-valued masks",
        "Section 1: it is unclear how to solve symmetric rank-one matrix sensing on general "
        "sub-Gaussian distributions such as Bernoulli by nonconvex iteration; MES does.",
        "y = xᵀMx exactly, without w and b; 0/1 masks with probability .5 or .1, or ±1 masks, as "
        "sampled; `MatrixSensing` with the true rank; recovered is a test NMSE below "
        f"{EXACT_MASKS:g}.",
    ),
    grids(
        tiny={"mask": MASKS, "sign": "positive", "d": 20, "k": 1, "ratio": 4.0, "seed": 0},
        quick={"mask": MASKS, "sign": SIGNS, "d": 40, "k": 2, "ratio": (2.0, 3.0, 4.0, 6.0),
               "seed": range(2)},
        full={"mask": MASKS, "sign": SIGNS, "d": 100, "k": 4, "seed": range(4),
              "ratio": (1.5, 2.0, 3.0, 4.0, 6.0, 10.0)},
    ),
    run_masks,
    draw_masks,
    judge_masks,
)  # fmt: skip

SIGNED_METHODS = (*FITS, "psd")
NEGATIVE = 0.5  # an eigenvalue of M below minus this, where the true ones are ±1
EXACT_SIGNED, POOR = 1e-10, 1e-2  # test NMSE: recovered, and not learnt


def run_signed(task: Task, device: str) -> list[Row]:
    """Return the test error after each step, and how many eigenvalues are negative."""
    n, d, k, method = (task[name] for name in ("n", "d", "k", "method"))
    data = sample(task["law"], n, d, k, task["seed"], signed=task["sign"] == "signed")
    if method == "psd":
        positive = fit_factors(data.X, data.y, k, task["seed"], np.ones(k))
        return [{"t": 1, "passes": positive.passes, "nmse": data.nmse(positive), "negative": 0}]
    tol = 1e-6 if method == "polished" else 0.0
    rows: list[Row] = []
    for model in steps(method, data.X, data.y, k, max_iter=task["steps"], tol=tol):
        negative = int(np.sum(np.linalg.eigvalsh(model.M) < -NEGATIVE))
        rows.append({"t": len(rows) + 1, "passes": model.passes, "nmse": data.nmse(model)})
        rows[-1]["negative"] = negative
    return rows


def draw_signed(frame: Frame) -> Pictures:
    """Draw the errors of a signed M, one picture per law."""
    return {
        f"signed_{name}": errors_by_method(
            rows, title=f"M of both signs, {law_name(name)} features"
        )
        for name, rows in frame[frame["sign"] == "signed"].groupby("law")
    }


def judge_signed(frame: Frame) -> Verdict:
    """Say what is recovered with either sign, and what a positive model leaves."""
    keys = ["law", "sign", "method", "seed"]
    last = frame.sort_values("t").groupby(keys, as_index=False).last()
    share = (last["nmse"] <= EXACT_SIGNED).groupby([last["method"], last["sign"]]).mean()
    left = last[(last["method"] == "psd") & (last["sign"] == "signed")]["nmse"]
    checks = {METHODS[m].name: bool(share[m, "signed"] >= share[m, "positive"]) for m in FITS}
    checks["recovered"] = bool(share["guarded", "signed"] == share["polished", "signed"] == 1.0)
    measured = (
        "An M of both signs is recovered exactly in "
        + joined(f"{share[m, 'signed']:.0%} of the trials by {METHODS[m].name}" for m in FITS)
        + f"; a positive model of such an M ends at an NMSE of {left.min():.2f} to "
        f"{left.max():.2f}."
    )
    words = (
        "The first moment estimate already has the signs. A model with a positive M, such as any "
        "classical factorization machine, cannot represent a signed one: whatever its solver, it "
        f"leaves at least {left.min():.2f} of the variance."
    )
    return Verdict(measured, verdict_of(checks), words)


SIGNED = Study(
    "signed",
    About(
        "M of both signs",
        "Section 5: the model allows a symmetric M that is not positive, and its recovery is left "
        "out for want of space.",
        "Eigenvalues of M all +1, or +1 and −1 in turn; no noise, the same rows in every step, w "
        "and b unknown; test NMSE against the passes over the rows.",
    ),
    lambda size: grid(
        law=LAWS, sign=SIGNS, method=SIGNED_METHODS, **{
            "tiny": {"d": 15, "k": 2, "n": 1800, "seed": range(1), "steps": 30},
            "quick": {"d": 40, "k": 4, "n": 4800, "seed": range(2), "steps": 40},
            "full": {"d": 150, "k": 6, "n": 27_000, "seed": range(3), "steps": 50},
        }[size],
    ),
    run_signed,
    draw_signed,
    judge_signed,
)  # fmt: skip

ENOUGH_ASYMMETRIC = 10  # rows in k(p + q) from which recovery is asked for


def list_asymmetric(size: str) -> list[Task]:
    """List one table each."""
    p, q, k, multiples, seeds = {
        "tiny": (10, 8, 1, (40,), 1),
        "quick": (25, 15, 1, (5, 20, 80), 2),
        "full": (60, 40, 2, (5, 10, 20, 40, 80, 160), 4),
    }[size]
    plan = grid(p=p, q=q, k=k, ratio=multiples, seed=range(seeds))
    return [task | {"n": task["ratio"] * k * (p + q)} for task in plan]


def run_asymmetric(task: Task, device: str) -> list[Row]:
    """Return the relative error of A, read off the off-diagonal block of M."""
    rng = np.random.default_rng(task["seed"])
    p, q, k, n = task["p"], task["q"], task["k"], task["n"]
    U, V = (np.linalg.qr(rng.standard_normal((size, k)))[0] for size in (p, q))
    A = U @ V.T
    X = rng.standard_normal((n, p + q))
    y = np.sum((X[:, :p] @ A) * X[:, p:], axis=1)
    matrices = {m: fit(m, X, y, 2 * k).M for m in FITS}
    stream = streamed(X, y, 2 * k)
    matrices["stream"] = (stream.components_.T * stream.eigenvalues_) @ stream.components_
    return [
        {"method": m, "error": float(np.linalg.norm(2 * M[:p, p:] - A) / np.linalg.norm(A))}
        for m, M in matrices.items()
    ]


def draw_asymmetric(frame: Frame) -> Pictures:
    """Draw the error of A against the rows."""
    p, q, k = (frame[name].iloc[0] for name in "pqk")
    display = levels_by_method(
        frame,
        x=("ratio", "rows / k(p + q)"),
        y=("error", "relative error of A"),
        title=f"y = xᵀAz by [x; z]: A is {p} × {q} of rank {k}",
        level=(EXACT, "exact, below"),
    )
    return {"asymmetric": display}


def judge_asymmetric(frame: Frame) -> Verdict:
    """Count exact recoveries where there are enough rows."""
    worst = frame[frame["ratio"] >= ENOUGH_ASYMMETRIC].groupby("method")["error"].max()
    most = frame[frame["ratio"] == frame["ratio"].max()].groupby("method")["error"].max()
    checks = {method: bool(worst[method] <= EXACT) for method in ("guarded", "polished")}
    checks["plain"] = bool(most["plain"] <= EXACT)
    measured = (
        f"From {ENOUGH_ASYMMETRIC}k(p + q) rows on the relative error of A is at most "
        f"{worst['polished']:.0e} for the polished fit and {worst['guarded']:.0e} for moment "
        f"estimates; with the most rows it is {most['plain']:.0e} for the plain step and "
        f"{most['stream']:.0e} after one pass."
    )
    words = (
        "With the features [x; z] the model has the symmetric matrix [[0, A/2], [Aᵀ/2, 0]] of rank "
        "2k, of both signs, and nothing else changes: asymmetric rank-one sensing, and with side "
        "information for x and z inductive matrix completion, are special cases. A model with a "
        "positive M cannot represent them."
    )
    return Verdict(measured, verdict_of(checks), words)


ASYMMETRIC = Study(
    "asymmetric",
    About(
        "The 2016 result: asymmetric sensing by [x; z]",
        "The same group in 2016 (NIPS, generalized factorization machines and rank-one matrix "
        "sensing): asymmetric sensing and inductive matrix completion reduce to the symmetric "
        "model with the features [x; z], and one pass is enough.",
        "Gaussian x (p features) and z (q features), y = xᵀAz without noise, A of rank k; fits of "
        "rank 2k to [x; z], and one pass of partial_fit in twenty pieces.",
    ),
    list_asymmetric,
    run_asymmetric,
    draw_asymmetric,
    judge_asymmetric,
)

ITERATIONS = 50
PENALTY = 1e-6  # λ/n, for y of variance one: without noise as good as an equality


def nuclear_norm(
    X: np.ndarray, y: np.ndarray, penalty: float = PENALTY
) -> tuple[float, np.ndarray, np.ndarray]:
    r"""Solve the paper's Eq. (3), with an intercept, as a semidefinite programme; return b, w, M.

    .. math:: \min_{b, w, M}\; \frac{1}{2n} \sum_i (b + x_i^\top w + x_i^\top M x_i - y_i)^2
              + \lambda \|M\|_*

    M is the difference of two positive matrices, and the sum of their traces its nuclear norm.
    The rows are first reduced by a QR decomposition to as many as there are products of features;
    the work grows as d⁶. Clarabel, an interior-point method, is good to 1e-8, where a first-order
    one such as SCS is good to 1e-4 and would not tell recovery from failure.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((40, 4))
    >>> b, w, M = nuclear_norm(X, 1.0 + X[:, 0] + 2 * X[:, 1] * X[:, 2])
    >>> bool(abs(M[1, 2] - 1) < 1e-3)
    True
    """
    try:
        cp: Any = import_module("cvxpy")
    except ImportError as error:
        raise ImportError(
            'The nuclear-norm problem needs cvxpy: pip install "quadlin[reproduce]".'
        ) from error
    n, d = X.shape
    i, j = np.triu_indices(d)
    products = np.where(i == j, 1.0, 2.0) * X[:, i] * X[:, j]
    design = np.column_stack([np.ones(n), X, products, y])
    reduced = np.asarray(np.linalg.qr(design.astype(np.float64), mode="r"))
    b, w = cp.Variable(), cp.Variable(d)
    positive, negative = (cp.Variable((d, d), PSD=True) for _ in range(2))
    M = positive - negative
    entries = cp.vec(M, order="C")[i * d + j]
    residual = reduced[:, :-1] @ cp.hstack([b, w, entries]) - reduced[:, -1]
    nuclear = cp.trace(positive) + cp.trace(negative)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(residual) / (2 * n) + penalty * nuclear))
    problem.solve(solver=cp.CLARABEL)
    return float(b.value), np.asarray(w.value), np.asarray(M.value)


def list_nuclear(size: str) -> list[Task]:
    """List a task for each number of rows and trial."""
    d, k, test, trials, ratios = {
        "tiny": (8, 1, 500, 1, (4, 30)),
        "quick": (16, 2, 2_000, 1, (2, 3, 5, 10, 30)),
        "full": (30, 3, 10_000, 2, (2, 3, 4, 5, 7, 10, 20, 30)),
    }[size]
    plan = grid(ratio=ratios, trial=range(trials), d=d, k=k, test=test)
    return [task | {"seed": 1000 + task["trial"]} for task in plan]


def run_nuclear(task: Task, device: str) -> list[Row]:
    """Run every solver on the same few rows; always on the CPU, in float64."""
    d, k = task["d"], task["k"]
    sizes = (task["ratio"] * k * d, task["test"])
    train, test = tables(law("truncated", 0.0), sizes, d, k, task["seed"])
    X, X_test = (t.X.astype(np.float64) for t in (train, test))
    race = Race(X, train.f, X_test, test.f, test.f, Setting(k, True, ITERATIONS, task["seed"]))
    keep = ("solver", "nmse", "seconds", "iteration")
    lasts = [race.run(key, solver)[-1] for key, solver in SOLVERS.items()]
    lines = [{name: last[name] for name in keep} for last in lasts]
    mean, sd, scale = X.mean(axis=0), X.std(axis=0), train.f.std()
    start = perf_counter()
    b, w, M = nuclear_norm((X - mean) / sd, train.f / scale)
    seconds, Z = perf_counter() - start, (X_test - mean) / sd
    error = scale * (b + Z @ w + np.sum((Z @ M) * Z, axis=1)) - test.f
    nmse = float(np.mean(error**2) / np.mean(test.f**2))
    return [*lines, {"solver": "convex", "nmse": nmse, "seconds": seconds, "iteration": 1}]


def draw_nuclear(frame: Frame) -> Pictures:
    """Draw the error against the rows."""
    display = levels_by_method(
        frame.assign(nmse=frame["nmse"].clip(1e-16)),
        x=("ratio", "rows / kd"),
        y=("nmse", "test NMSE"),
        title=f"Error of every solver, d = {frame['d'].iloc[0]}, k = {frame['k'].iloc[0]}",
        level=(EXACT, "found, below"),
        by="solver",
    )
    return {"error": display}


def judge_nuclear(frame: Frame) -> Verdict:
    """Compare the rows each solver needs, and the time it takes."""
    need: dict[str, float] = {}
    for key, part in frame.groupby("solver", sort=False):
        worst = part.groupby("ratio")["nmse"].max().sort_index(ascending=False)
        good = worst.index[(worst < EXACT).cummin()]
        need[str(key)] = float(good.min()) if len(good) else float("inf")
    reach = {key: n for key, n in need.items() if np.isfinite(n)}
    never = [METHODS[key].name for key in need if key not in reach]
    measured = (
        f"An NMSE below {EXACT:g} in every trial takes "
        + joined(f"{n:g}kd rows with {METHODS[key].name}" for key, n in reach.items())
        + "."
    )
    time = frame.groupby("solver")["seconds"].median()
    ratio = float(time["convex"] / time["polished"])
    words = (
        f"The convex problem takes {time['convex']:.2g} s in the median, {ratio:.2g} times as long "
        "as the polished fit at this size; the work of an interior-point method grows as d⁶, "
        "which rules out the paper's d = 1000."
    ) + (f" No number of rows tried was enough for {joined(never)}." if never else "")
    checks = {
        "recovers": bool(np.isfinite(need["convex"])),
        "slower": ratio > 1,
        "no fewer rows": need["polished"] <= need["convex"],
    }
    return Verdict(measured, verdict_of(checks), words)


NUCLEAR = Study(
    "nuclear",
    About(
        "The nuclear norm and all others, at small d",
        "Section 2: minimising the nuclear norm recovers M but is computationally expensive, and a "
        "factored form is more efficient.",
        "x = min(x̂, 0), no noise, M = QQᵀ, w ~ N(0, I/d); the last iterate of each solver (at most "
        f"{ITERATIONS} iterations) on test rows. Eq. (3) with an intercept and λ/n = {PENALTY:g} "
        "(y of variance one), by Clarabel, a real interior-point solver; float64 on the CPU.",
    ),
    list_nuclear,
    run_nuclear,
    draw_nuclear,
    judge_nuclear,
)
STUDIES = (SAMPLES, SELF_INTERACTIONS, TRANSITION, SENSING, SIGNED, ASYMMETRIC, NUCLEAR)
