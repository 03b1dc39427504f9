"""What a small τ costs: features that approach two values, with the diagonal of M modelled."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from quadlin.core.moments import Moments
from quadlin.explain.displays import LevelDisplay, ScalingDisplay
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.problems import Q_NEAR, Sample, coefficients, fitted, law, sample
from quadlin.paper.study import Frame, Row, Study, Task, Verdict
from quadlin.paper.trend import listed, power, verdict_of

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"polish": False, "step": "plain", "diagonal": "free"},
    "guarded": {"polish": False, "diagonal": "free"},
    "polished": {"diagonal": "free"},
    "default": {},  # which leaves the diagonal out where τ < 0.05
}
NAMES = {
    "plain": "MES, plain step",
    "guarded": "MES, guarded step",
    "polished": "polished",
    "default": 'polished, diagonal="auto"',
}
PARTS = {
    "G": "error of G",
    "H": "error of H",
    "diagonal": "noise of the diagonal of M",
    "linear": "noise of w",
}
EXACT = 1e-8  # test NMSE of a recovery without noise
SMALL = 0.25  # the law in τ is read off below
SLACK = 0.15
# d, k, rows in kd, τ, seeds
SIZES: dict[str, tuple[int, int, int, tuple[float, ...], int]] = {
    "tiny": (15, 1, 60, (2.0, 0.1, 0.02), 1),
    "quick": (30, 2, 60, (2.0, 1.0, 0.3, 0.1, 0.03, 0.01), 2),
    "full": (60, 3, 60, (2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01), 6),
}


def tasks(size: str) -> list[Task]:
    """List the tasks: one table each, with noise and without."""
    d, k, multiple, taus, seeds = SIZES[size]
    return [
        {"tau": tau, "noise": noise, "d": d, "k": k, "n": multiple * k * d, "seed": seed}
        for tau in taus
        for noise in (0.0, 1.0)
        for seed in range(seeds)
    ]


def run(task: Task, device: str) -> list[Row]:
    """Return the errors of the coefficients and of the fits."""
    n, d, k = task["n"], task["d"], task["k"]
    data = sample("near", n, d, k, task["seed"], noise=task["noise"], parameter=task["tau"])
    rows = _of_moments(task, data) if task["noise"] else []
    for method, options in METHODS.items():
        fit = fitted(data.X, data.y, k, **options)
        rows.append({"part": f"{method} error", "value": data.truth.error(fit)})
        if task["noise"]:
            ratio = data.risk(fit) / (task["noise"] ** 2 * degrees_of_freedom(d, k) / n)
            rows.append({"part": f"{method} risk", "value": ratio})
        else:
            rows.append({"part": f"{method} nmse", "value": data.nmse(fit)})
    return rows


def _of_moments(task: Task, data: Sample) -> list[Row]:
    """Return the errors of G and H, and what noise alone does to (𝓜, 𝓦): times √n."""
    n, own = task["n"], law("near", task["tau"])
    moments = Moments.of(data.X)
    known = coefficients(np.full(task["d"], own.kappa), np.full(task["d"], own.phi))
    found = coefficients(moments.kappa, moments.phi)
    r = data.y - data.truth(data.X)  # the noise, which is the residual of the truth
    r = r - r.mean()
    P1, P2 = data.X.T @ r / n, (data.X * data.X).T @ r / n
    delta, W = (P2 - own.kappa * P1) / own.tau, known[1][0] * P1 + known[1][1] * P2
    values = {
        "G": np.max(np.abs(found[0] - known[0])),
        "H": np.max(np.abs(found[1] - known[1])),
        "diagonal": np.sqrt(np.mean(delta**2)),
        "linear": np.sqrt(np.mean(W**2)),
    }
    return [{"part": part, "value": float(np.sqrt(n) * v)} for part, v in values.items()]


def figures(frame: Frame) -> Mapping[str, Any]:
    """Draw the amplification against τ, and what the fits make of it."""

    def series(part: str) -> tuple[np.ndarray, np.ndarray]:
        own = frame[frame["part"] == part]
        return own["tau"].to_numpy(), own["value"].to_numpy()

    return {
        "tau_moments": ScalingDisplay.from_points(
            {label: series(part) for part, label in PARTS.items()},
            x_label="τ",
            y_label="error · √n",
            title="What a small τ does to one moment estimate",
        ),
        "tau_risk": LevelDisplay(
            {label: series(f"{method} risk") for method, label in NAMES.items()},
            level=1.0,
            level_label="σ²·dof/n",
            x_label="τ",
            y_label="excess risk / (σ²·dof/n)",
            title="Noise 1: predictions",
            log_x=True,
            log_y=True,
        ),
        "tau_error": LevelDisplay(
            {label: series(f"{method} nmse") for method, label in NAMES.items()},
            level=EXACT,
            level_label="exact",
            x_label="τ",
            y_label="test NMSE",
            title="No noise: recovery",
            log_x=True,
            log_y=True,
        ),
    }


def _exactness(method: str, inexact: list[float]) -> str:
    if not inexact:
        return f"{NAMES[method]} is exact at every τ"
    return f"{NAMES[method]} is not exact at τ = {listed(f'{tau:g}' for tau in inexact)}"


def verdict(frame: Frame) -> Verdict:
    """Compare the growth as τ falls with what a need of 1/τ² rows implies."""
    small = frame[frame["tau"] <= SMALL]

    def exponent(part: str) -> Any:
        own = small[small["part"] == part]
        return power(own["tau"], own["value"])

    def median(part: str, lowest: bool = True) -> float:
        tau = frame["tau"].min() if lowest else frame["tau"].max()
        return float(frame[(frame["part"] == part) & (frame["tau"] == tau)]["value"].median())

    found = {part: exponent(part) for part in PARTS}
    # n ∝ 1/(τ²δ²) is an error of 1/(τ√n).
    checks = {part: found[part].near(-1.0, SLACK) for part in ("G", "H")}
    checks["noise"] = found["diagonal"].near(-1.0, SLACK)
    exact = {
        method: [
            float(tau)
            for tau, value in frame[frame["part"] == f"{method} nmse"]
            .groupby("tau")["value"]
            .median()
            .items()
            if value > EXACT
        ]
        for method in METHODS
    }
    lowest = float(frame["tau"].min())
    measured = (
        "for τ ≤ 0.25: "
        + ", ".join(f"{label} ∝ τ^({found[part]})" for part, label in PARTS.items())
        + f"; excess risk at τ = {lowest:g} over σ²·dof/n: "
        + ", ".join(f"{NAMES[method]} {median(f'{method} risk'):.3g}" for method in METHODS)
    )
    words = (
        f"G and H, which divide by τ, {'do' if checks['G'] and checks['H'] else 'do not both'} err "
        "as 1/(τ√n), that is, need 1/τ² rows. The noise of the estimate itself grows as "
        f"τ^({found['diagonal']}), {'like' if checks['noise'] else 'unlike'} 1/τ: the part of z² "
        "that z does not explain has variance τ, so its noise shrinks while it is divided by τ. "
        f"The plain step pays: at τ = {lowest:g} its excess risk is {median('plain risk'):.3g} "
        f"times σ²·dof/n, against {median('plain risk', lowest=False):.2g} at the largest τ. "
        "The guarded step and the polished fit divide by nothing, because low rank tells the "
        f"diagonal where the moments do not: {median('guarded risk'):.3g} and "
        f"{median('polished risk'):.3g}. "
    )
    words += "Without noise " + "; ".join(_exactness(m, taus) for m, taus in exact.items())
    words += (
        ". The default leaves the diagonal out below τ = 0.05, which costs predictions little and "
        "the diagonal altogether."
        if exact["default"] and not exact["polished"]
        else "."
    )
    return Verdict(measured, verdict_of(checks), words)


STUDY = Study(
    name="tau",
    title="Dependence on τ",
    claim="Lemmas 2 and 3: near two-valued features, where τ is small, of the order 1/τ² rows are "
    "needed.",
    setting=f"Features √(1−ε)·(two-valued, q = {Q_NEAR}) + √ε·Gaussian, with ε so that τ is from 2 "
    "(Gaussian) to 0.01; signed M with its diagonal. Errors of G, H and of one unbiased estimate "
    "at the truth under noise 1, times √n; and fits, with noise 1 and without.",
    tasks=tasks,
    run=run,
    figures=figures,
    verdict=verdict,
)
