"""Theorems 2 and 5, Lemmas 6 to 8 and Section 3.1: rates, constants, and what is hidden."""

from typing import Any

import numpy as np

from quadlin.core.moments import Moments
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.iterations import solve_systems
from quadlin.paper.methods import moment_steps, steps
from quadlin.paper.problems import (
    BLOCK,
    TEST_ROWS,
    Law,
    fitted,
    law,
    law_name,
    random_truth,
    sample,
)
from quadlin.paper.studies import (
    EXACT,
    LAWS,
    SLACK,
    Curves,
    Frame,
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

INVERTIBLE = LAWS[:2]  # the theorems are about these
STEPS = ("published", "plain")
LOCAL = 0.2  # the largest error of which a rate is read off, and the largest τ
EXACT_STEP, LOST_STEP = 1e-10, 10.0  # errors below or above say nothing more about a rate

CASES = {  # law, and whether M has a diagonal of its own in addition to the low rank
    "Bernoulli(.1)": ("bernoulli:0.1", False),
    "Bernoulli(.3), any diagonal": ("bernoulli:0.3", True),
    "±1": ("bernoulli:0.5", False),
    "Gaussian": ("gaussian", False),
}
ANY_DIAGONAL = "Bernoulli(.3), any diagonal"
QUANTITIES = {
    "prediction": "predictions",
    "off_diagonal": "M off its diagonal",
    "folded": "w + κ∘diag M",
    "diagonal": "diag M",
    "linear": "w",
}


def run_identifiability(task: Task, device: str) -> list[Row]:
    """Return the relative error of each quantity, and how far a twin's predictions differ."""
    name, extra = CASES[task["case"]]
    features, rng, d = law(name), np.random.default_rng(task["seed"]), task["d"]
    truth = random_truth(rng, d, task["k"], signed=True)
    M, w = truth.M + np.diag(rng.standard_normal(d)) * extra, truth.w
    n, m, kappa = task["n"], np.diag(M), features.kappa
    Z = features.draw(rng, n + TEST_ROWS, d)
    f = 1 + Z @ w + np.sum((Z @ M) * Z, axis=1)
    model = fitted(Z[:n], f[:n], task["k"])
    estimate = (model.components_.T * model.eigenvalues_) @ model.components_
    # Where the diagonal is not modelled, that of the low-rank part stands for it, and z² = 1 + κz
    # takes its share out of w.
    found = np.diag(estimate)
    w_hat = model.coef_ - np.where(model.has_diagonal_, 0.0, kappa * found)
    # The twin has no diagonal: z² = 1 + κz moves it into w and b, where z takes two values.
    twin = 1 + m.sum() + Z @ (w + kappa * m) + np.sum((Z @ _off(M)) * Z, axis=1)
    values = {
        "prediction": _relative(model.predict(Z[n:]) - f[n:], f[n:] - f[n:].mean()),
        "off_diagonal": _relative(_off(estimate) - _off(M), _off(M)),
        "folded": _relative(w_hat + kappa * found - w - kappa * m, w + kappa * m),
        "diagonal": _relative(found - m, m),
        "linear": _relative(w_hat - w, w),
        "twin": _relative(twin - f, f - f.mean()),
    }
    return [{"quantity": name, "value": value} for name, value in values.items()]


def _off(M: np.ndarray) -> np.ndarray:
    return np.asarray(M - np.diag(np.diag(M)))


def _relative(error: np.ndarray, size: np.ndarray) -> float:
    return float(np.linalg.norm(error) / np.linalg.norm(size))


def draw_identifiability(frame: Frame) -> dict[str, Any]:
    """Draw the relative errors, by quantity."""
    shown = frame[frame["quantity"].isin(list(QUANTITIES))]
    points = {
        case: (part["quantity"].map(QUANTITIES).to_numpy(), part["value"].to_numpy())
        for case, part in shown.groupby("case", sort=False)
    }
    title = "What is recovered, M with its diagonal and no noise"
    level = (EXACT, "known exactly, below")
    return {
        "identifiability": Curves(points, y="relative error", title=title, log="y", level=level)
    }


def judge_identifiability(frame: Frame) -> Verdict:
    """Say what is lost on two-valued features, and what is not."""
    groups = {"any": frame["case"] == ANY_DIAGONAL, "Gaussian": frame["case"] == "Gaussian"}
    groups["low"] = ~groups["any"] & ~groups["Gaussian"]
    least, most = (
        {g: getattr(frame[rows].groupby("quantity")["value"], of)() for g, rows in groups.items()}
        for of in ("min", "max")
    )
    checks = {
        "a diagonal of its own is lost": least["any"]["diagonal"] > EXACT,
        "twins predict alike": most["any"]["twin"] < 1e-10,
        "that of a low-rank M is lost": least["low"]["diagonal"] > EXACT,
        "the function cannot be learnt": most["any"]["prediction"] > EXACT,
    }

    def errors(group: str) -> str:
        return listed(f"{most[group][q]:.0e} for {words}" for q, words in QUANTITIES.items())

    measured = (
        "On two-valued features the largest relative errors are, for an M of low rank, "
        f"{errors('low')}; with any diagonal added to it, {errors('any')}."
    )
    return Verdict.of(checks.values(), measured)


def run_rate(task: Task, device: str) -> list[Row]:
    """Return the factor δ per step of ‖ŵ − w‖ + ‖M̂ − M‖₂, and `drift`.

    `drift` is the rate of the later half of the steps over that of the earlier one, in logarithms.
    """
    name, n, d, k, seed = (task[key] for key in ("law", "n", "d", "k", "seed"))
    data = sample(name, n, d, k, seed, ratio=task.get("ratio", 1.0))
    models = moment_steps(data, law(name), k, task["method"], task["steps"], seed)
    errors = [float(np.linalg.norm(data.truth.w) + 1.0)]  # ‖w‖ + ‖M‖₂, the error of nothing
    with np.errstate(all="ignore"):
        for model in models:
            errors.append(model.error(data.truth))
            if not EXACT_STEP < errors[-1] < LOST_STEP:
                break
    logs = np.log(np.array(errors)[np.array(errors) < LOCAL])
    slopes = np.diff(logs[: np.argmin(logs) + 1]) if len(logs) else np.zeros(0)
    half = len(slopes) // 2
    drift = slopes[-half:].mean() / slopes[:half].mean() if half else float("nan")
    overall = min((errors[-1] / errors[0]) ** (1 / (len(errors) - 1)), LOST_STEP)
    delta = float(np.exp(slopes.mean())) if len(slopes) else float("nan")
    return [{"delta": delta, "overall": float(overall), "drift": float(drift)}]


def draw_rate(frame: Frame) -> dict[str, Any]:
    """Draw the contraction against n."""
    points = series(
        frame, "n", "delta", ["method", "law"], lambda key: f"{name_of(key[0])}, {law_name(key[1])}"
    )
    title = "Contraction of a step on fresh rows"
    return {"rate": Curves(points, "rows n", "share of error left by a step", title, slopes=True)}


def rate_of(frame: Frame, name: str, method: str) -> Power:
    """Return the exponent of n in the contraction."""
    rows = frame[(frame["law"] == name) & (frame["method"] == method)]
    return power(rows["n"], rows["delta"])


def judge_rate(frame: Frame) -> Verdict:
    """Judge Theorem 2 where its hypotheses hold: τ-MIP features and fresh rows."""
    drift = float(frame[frame["law"].isin(INVERTIBLE)]["drift"].median())
    linear = 0.7 <= drift <= 1.4
    checks = [linear, *(rate_of(frame, name, "plain").near(-0.5) for name in INVERTIBLE)]
    measured = (
        "With fresh rows the plain step contracts as n to the power "
        + listed(f"{rate_of(frame, m, 'plain')} on {law_name(m)} features" for m in INVERTIBLE)
        + f"; the steps are {'' if linear else 'not '}equally effective from first to last."
    )
    return Verdict.of(checks, measured)


def constants(frame: Frame) -> dict[tuple[str, str], Power]:
    """Fit δ = a·(σ₁/σ_k)ᵖ and δ = a·(p + 1)ᵖ for each kind of step."""
    x = {"ratio": frame["ratio"], "p": frame["law"].map(lambda text: law(text).phi)}
    return {
        (varied, method): power(x[varied].loc[part.index], part["overall"])
        for (varied, method), part in frame.groupby(["varied", "method"], sort=False)
    }


def draw_constants(frame: Frame) -> dict[str, Any]:
    """Draw the contraction against σ₁/σ_k and against p + 1."""
    frame = frame.assign(p=frame["law"].map(lambda text: round(law(text).phi, 2)))
    labels = {"ratio": "σ₁/σ_k of M", "p": "p + 1 = φ of the features"}
    return {
        varied: Curves(
            series(frame[frame["varied"] == varied], varied, "overall"), label,
            "share of error left by a step", "Fresh rows", level=(1.0, "no progress"),
        )
        for varied, label in labels.items()
    }  # fmt: skip


def judge_constants(frame: Frame) -> Verdict:
    """Compare with δ ∝ (p + 1), and see what the ratio costs."""
    fits = constants(frame)
    converges = (frame[frame["method"] == "plain"]["overall"] < 1).mean()
    measured = (
        "The share δ of the error that a step leaves grows as "
        + listed(f"(σ₁/σ_k)^({fits['ratio', m]}) for {name_of(m)}" for m in STEPS)
        + " and as "
        + listed(f"(p + 1)^({fits['p', m]}) for {name_of(m)}" for m in STEPS)
        + "."
    )
    return Verdict.of([fits["p", "plain"].at_most(1.0), converges == 1], measured)


LARGE = 10  # a constant of Theorem 5 that is not of the order 1


def blocks(features: Law, rng: np.random.Generator, n: int, d: int) -> Any:
    """Yield standardised rows, some thousands at a time."""
    for start in range(0, n, BLOCK):
        yield features.draw(rng, min(BLOCK, n - start), d)


def run_operator(task: Task, device: str) -> list[Row]:
    """Return the spectral norm of each deviation over that of M, and of it over k√(d/n)."""
    rng = np.random.default_rng(task["seed"])
    features, n, d, k = law(task["law"]), task["n"], task["d"], task["k"]
    truth = random_truth(rng, d, k, task["sign"] == "signed")  # fixed, before the rows
    M, square, plain, total = truth.M, np.zeros((d, d)), np.zeros((d, d)), 0.0
    for Z in blocks(features, rng, n, d):
        a = ((Z @ truth.Q) ** 2) @ truth.s
        square += Z.T @ (a[:, None] * Z) / n
        plain += Z.T @ Z / n
        total += float(a.sum()) / n
    expected = 2 * M + (features.phi - 3) * np.diag(np.diag(M))
    deviations = {
        "printed": square - expected - np.trace(M) * np.eye(d),
        "centred": square - total * plain - expected,
    }
    return [
        {"part": part, "deviation": float(np.linalg.norm(E, 2)), "phi": features.phi}
        for part, E in deviations.items()
    ]


def operator_exponents(frame: Frame) -> dict[tuple[str, str, str], dict[str, Power]]:
    """Fit deviation = a·nᵖ·d^q·k^r for each part, law and sign of M."""
    rows = frame[frame["law"].isin(INVERTIBLE)]
    return {
        key: powers({name: part[name] for name in "ndk"}, part["deviation"])
        for key, part in rows.groupby(["part", "law", "sign"])
    }


def operator_constants(frame: Frame) -> Frame:
    """Return the constants deviation/(k√(d/n)) of the sparse laws, and what the theorem needs."""
    rows = frame[~frame["law"].isin(INVERTIBLE) & (frame["part"] == "printed")]
    constant = rows["deviation"] / (rows["k"] * (rows["d"] / rows["n"]) ** 0.5)
    return rows.assign(constant=constant, needed=(2 + (rows["phi"] - 3).abs()) ** 2)


def draw_operator(frame: Frame) -> dict[str, Any]:
    """Draw the deviation of a positive M against k, and the constants against d."""
    shown = frame[(frame["sign"] == "positive") & frame["law"].isin(INVERTIBLE)]
    n, d = (shown[name].mode()[0] for name in "nd")
    shown = shown[(shown["n"] == n) & (shown["d"] == d)]
    points = series(
        shown, "k", "deviation", ["part", "law"], lambda key: f"{key[0]}, {law_name(key[1])}"
    )
    title = f"M positive, n = {n:,} and d = {d}"
    sparse = operator_constants(frame)
    by_phi = series(sparse, "d", "constant", "phi", "φ = {:.3g}".format)
    label = "deviation / (k√(d/n)·‖M‖₂)"
    return {
        "k": Curves(points, "rank k", "deviation / size of M", title, slopes=True),
        "constant": Curves(by_phi, "features d, with n = 200d", label, "The constant of Theorem 5"),
    }


def judge_operator(frame: Frame) -> Verdict:
    """Compare with δ ∝ k·√(d/n) on τ-MIP laws, and ask what the condition on d is for."""
    fits = operator_exponents(frame)
    checks = []
    for name in INVERTIBLE:
        for sign in ("positive", "signed"):
            growth = fits["printed", name, sign]
            checks += [growth["n"].near(-0.5), growth["d"].at_most(0.5)]
            checks.append(growth["k"].at_most(1.0))

    def mean(part: str, sign: str, factor: str) -> float:
        return float(np.mean([fits[part, name, sign][factor].exponent for name in INVERTIBLE]))

    sparse = operator_constants(frame)
    growth = powers({"phi": sparse["phi"], "d": sparse["d"]}, sparse["constant"])
    outside = sparse[sparse["d"] < sparse["needed"]]["constant"]
    inside = sparse[sparse["d"] >= sparse["needed"]]["constant"].max()
    checks += [inside < LARGE, growth["d"].exponent < 0]  # more features mend it
    checks.append(outside.min() >= LARGE)  # and as many as the condition asks for are needed
    powers_of = " ".join(f"{f}^({mean('printed', 'positive', f):+.2f})" for f in "ndk")
    measured = (
        f"For a positive M the deviation grows as {powers_of}, where the theorem has n^(−0.50) "
        f"d^(+0.50) k^(+1.00); of centred targets as k^({mean('centred', 'positive', 'k'):+.2f}). "
        f"Its constant is at most {inside:.2f} where d ≥ (2 + |φ−3|)² and {outside.min():.2f} to "
        f"{outside.max():.2f} where it is not, and grows as φ^({growth['phi']})·d^({growth['d']})."
    )
    return Verdict.of(checks, measured.replace("^(-", "^(−"))


CONCENTRATED = {
    "P0": "P⁽⁰⁾",
    "P1": "P⁽¹⁾",
    "P2": "P⁽²⁾",
    "H": "A′(y)/n",
    "G_moments": "coefficients G",
    "H_moments": "coefficients H",
    "M": "estimate of M",
    "W": "estimate of w",
}
REPEATS = 8  # tables of a task: a single number such as P⁽⁰⁾ may be near its mean by luck


def run_concentration(task: Task, device: str) -> list[Row]:
    """Return the root mean square of each deviation over a few tables."""
    rng = np.random.default_rng(task["seed"])
    tables = [_deviations(task, rng) for _ in range(REPEATS)]
    return [
        {"part": part, "deviation": float(np.sqrt(np.mean([t[part] ** 2 for t in tables])))}
        for part in tables[0]
    ]


def _deviations(task: Task, rng: np.random.Generator) -> dict[str, float]:
    """Return each deviation on one table, in the spectral norm (of a vector its length)."""
    features, n, d = law(task["law"]), task["n"], task["d"]
    mip, kappa, phi = features.is_invertible, features.kappa, features.phi
    truth = random_truth(rng, d, task["k"], has_diagonal=mip)  # the lemma has no intercept
    P0, P1, square, E, moments = 0.0, np.zeros(d), np.zeros(d), np.zeros((d, d)), None
    for Z in blocks(features, rng, n, d):
        y = truth(Z)
        P0 += float(y.sum()) / n
        P1 += Z.T @ y / n
        square += (Z * Z).T @ y / n
        E += Z.T @ (y[:, None] * Z) / n
        moments = Moments.of(Z) if moments is None else moments + Moments.of(Z)
    assert moments is not None
    P2, M, w, m = square - P0, truth.M, truth.w, np.diag(truth.M)
    trace, half = float(m.sum()), (E - P0 * np.eye(d)) / 2
    deviations = {
        "P0": P0 - trace,
        "P1": P1 - w - kappa * m,
        "P2": P2 - kappa * w - (phi - 1) * m,
        "H": E - 2 * M - np.diag(trace + (phi - 3) * m + kappa * w),
    }
    if mip:
        G, H = solve_systems(moments.kappa, moments.phi)
        exact = solve_systems(np.full(d, kappa), np.full(d, phi))
        deviations["M"] = half - np.diag(G[0] * P1 + G[1] * P2) / 2 - M
        deviations["W"] = H[0] * P1 + H[1] * P2 - w
        deviations["G_moments"] = np.max(np.abs(np.subtract(G, exact[0])))
        deviations["H_moments"] = np.max(np.abs(np.subtract(H, exact[1])))
    else:
        deviations |= {"M": half - np.diag(P2) / 2 - M, "W": P1 - w}
    return {
        part: abs(float(value)) if np.ndim(value) == 0 else float(np.linalg.norm(value, 2))
        for part, value in deviations.items()
    }


def draw_concentration(frame: Frame) -> dict[str, Any]:
    """Draw the deviations against n on truncated features."""
    rows = frame[frame["law"] == LAWS[1]]
    points = series(rows, "n", "deviation", "part", CONCENTRATED.__getitem__)
    title = "Statistics of a step and what is made of them, truncated features"
    return {
        "concentration": Curves(points, "rows n", "deviation from the mean", title, slopes=True)
    }


def judge_concentration(frame: Frame) -> Verdict:
    """Count the statistics whose deviation falls as n^(−1/2), on the laws of each lemma."""
    fits = [power(g["n"], g["deviation"]) for _, g in frame.groupby(["part", "law"])]
    checks = [growth.near(-0.5) for growth in fits]
    values = np.array([growth.exponent for growth in fits])
    measured = (
        f"{sum(checks)} of {len(checks)} deviations fall as n^(−1/2), within {SLACK} and two "
        f"standard errors; the exponents lie between {values.min():+.2f} and {values.max():+.2f}, "
        f"with a mean of {values.mean():+.3f}."
    ).replace(" -", " −")
    return Verdict.of(checks, measured)


TAU_PARTS = {"G": "error of G", "H": "error of H", "diagonal": "noise of the diagonal of M"}
TAU_LAWS = {"near": "nearly two values", "zeros": "±1 and rarely 0"}


def run_tau(task: Task, device: str) -> list[Row]:
    """Return the errors of the coefficients, times √n, and the excess risk of fits."""
    n, d, k, tau, seed = (task[name] for name in ("n", "d", "k", "tau", "seed"))
    name = f"{task['family']}:{tau:g}"
    data, features = sample(name, n, d, k, seed, noise=1.0, signed=True), law(name)
    moments = Moments.of(data.X)
    exact = solve_systems(np.full(d, features.kappa), np.full(d, features.phi))
    estimated = solve_systems(moments.kappa, moments.phi)
    r = data.y - data.truth(data.X)  # the noise, which is the residual of the truth
    r = r - r.mean()
    P1, P2 = data.X.T @ r / n, (data.X * data.X).T @ r / n
    values = {
        "G": np.max(np.abs(np.subtract(estimated[0], exact[0]))),
        "H": np.max(np.abs(np.subtract(estimated[1], exact[1]))),
        "diagonal": np.sqrt(np.mean(((P2 - features.kappa * P1) / features.tau) ** 2)),
    }
    rows = [{"part": part, "value": float(np.sqrt(n) * v)} for part, v in values.items()]
    if task["family"] == "near":
        for method in ("plain", "guarded"):
            model = steps(method, data, k)[-1]
            level = degrees_of_freedom(d, k) / n
            rows.append({"part": f"{method} risk", "value": data.risk(model) / level})
    return rows


def tau_exponent(frame: Frame, family: str, part: str) -> Power:
    """Return the exponent of τ where it is small."""
    rows = frame[(frame["family"] == family) & (frame["part"] == part)]
    rows = rows[rows["tau"] <= LOCAL]
    return power(rows["tau"], rows["value"])


def draw_tau(frame: Frame) -> dict[str, Any]:
    """Draw the errors against τ, and what the fits make of it."""
    shown = frame[frame["part"].isin(["G", "diagonal"])]
    risks = frame[frame["part"].isin([f"{method} risk" for method in ("plain", "guarded")])]
    risks = risks.assign(method=risks["part"].str.removesuffix(" risk"))
    points = series(
        shown, "tau", "value", ["part", "family"],
        lambda key: f"{TAU_PARTS[key[0]]}, {TAU_LAWS[key[1]]}",
    )  # fmt: skip
    label = "excess risk / (σ²·dof/n)"
    level = (1.0, "σ²·dof/n")
    return {
        "moments": Curves(points, "τ", "error · √n", "One moment estimate", slopes=True),
        "risk": Curves(series(risks, "tau", "value"), "τ", label, "Noise 1", level=level),
    }


def judge_tau(frame: Frame) -> Verdict:
    """Judge Lemma 7 by the errors of G and H; the error of the estimate is only stated."""
    fits = {(f, part): tau_exponent(frame, f, part) for f in TAU_LAWS for part in TAU_PARTS}
    # n ∝ 1/(τ²δ²) is an error of 1/(τ√n).
    checks = [fits[f, "G"].near(-1.0) for f in TAU_LAWS]
    measured = (
        f"For τ ≤ {LOCAL} the error of G grows as "
        + listed(f"τ^({fits[f, 'G']}) ({words})" for f, words in TAU_LAWS.items())
        + f" and that of H as τ^({fits['near', 'H']}) on the former; the noise of the estimate of "
        f"M grows as τ^({fits['near', 'diagonal']})."
    )
    return Verdict.of(checks, measured)


STUDIES = (
    study("identifiability", run_identifiability, draw_identifiability, judge_identifiability),
    study("rate", run_rate, draw_rate, judge_rate),
    study("constants", run_rate, draw_constants, judge_constants),
    study("operator", run_operator, draw_operator, judge_operator),
    study("concentration", run_concentration, draw_concentration, judge_concentration),
    study("tau", run_tau, draw_tau, judge_tau),
)
