"""What a small τ costs: features that approach two values, with the diagonal of M modelled."""

import numpy as np

from quadlin.core.moments import Moments
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.displays import ScalingDisplay
from quadlin.paper.laws import Q_NEAR, coefficients, law
from quadlin.paper.methods import FITS, METHODS, levels_by_method, points
from quadlin.paper.problems import Sample, fitted, sample
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, grid, joined, verdict_of
from quadlin.paper.trend import power

OPTIONS = {method: options | {"diagonal": "free"} for method, options in FITS.items()}
OPTIONS["default"] = {}  # which leaves the diagonal out where τ < 0.05
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
ABOUT = About(
    title="Lemma 7: dependence on τ",
    claim="Lemma 7: G and H are within δ of their limits once n is of the order 1/(τ²δ²).",
    setting=f"Features √(1−ε)·(two-valued, q = {Q_NEAR}) + √ε·Gaussian, with ε so that τ is from 2 "
    "(Gaussian) to 0.01; signed M with its diagonal. Errors of G, H and of one unbiased estimate "
    "at the truth under noise 1, times √n; and fits, with noise 1 and without.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one table each, with noise and without."""
    d, k, multiple, taus, seeds = SIZES[size]
    return grid(tau=taus, noise=(0.0, 1.0), d=d, k=k, n=multiple * k * d, seed=range(seeds))


def run(task: Task, device: str) -> list[Row]:
    """Return the errors of the coefficients and of the fits."""
    n, d, k = task["n"], task["d"], task["k"]
    data = sample("near", n, d, k, task["seed"], noise=task["noise"], parameter=task["tau"])
    rows = _of_moments(task, data) if task["noise"] else []
    for method, options in OPTIONS.items():
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
    n, features = task["n"], law("near", task["tau"])
    moments = Moments.of(data.X)
    exact = coefficients(np.full(task["d"], features.kappa), np.full(task["d"], features.phi))
    estimated = coefficients(moments.kappa, moments.phi)
    r = data.y - data.truth(data.X)  # the noise, which is the residual of the truth
    r = r - r.mean()
    P1, P2 = data.X.T @ r / n, (data.X * data.X).T @ r / n
    delta = (P2 - features.kappa * P1) / features.tau
    W = exact[1][0] * P1 + exact[1][1] * P2
    values = {
        "G": np.max(np.abs(estimated[0] - exact[0])),
        "H": np.max(np.abs(estimated[1] - exact[1])),
        "diagonal": np.sqrt(np.mean(delta**2)),
        "linear": np.sqrt(np.mean(W**2)),
    }
    return [{"part": part, "value": float(np.sqrt(n) * v)} for part, v in values.items()]


def figures(frame: Frame) -> Pictures:
    """Draw the amplification against τ, and what the fits make of it."""

    def of_fits(what: str) -> Frame:
        rows = frame[frame["part"].str.endswith(f" {what}")]
        return rows.assign(method=rows["part"].str.removesuffix(f" {what}"))

    moments = frame[frame["part"].isin(PARTS)]
    return {
        "tau_moments": ScalingDisplay.from_points(
            points(moments, "tau", "value", "part", PARTS.__getitem__),
            x_label="τ",
            y_label="error · √n",
            title="What a small τ does to one moment estimate",
        ),
        "tau_risk": levels_by_method(
            of_fits("risk"),
            x=("tau", "τ"),
            y=("value", "excess risk / (σ²·dof/n)"),
            title="Noise 1: predictions",
            level=(1.0, "σ²·dof/n"),
        ),
        "tau_error": levels_by_method(
            of_fits("nmse"),
            x=("tau", "τ"),
            y=("value", "test NMSE"),
            title="No noise: recovery",
            level=(EXACT, "exact"),
        ),
    }


def verdict(frame: Frame) -> Verdict:
    """Judge Lemma 7 by the errors of G and H; what the estimate makes of them is beside it."""
    small = frame[frame["tau"] <= SMALL]
    fits = {}
    for part in PARTS:
        rows = small[small["part"] == part]
        fits[part] = power(rows["tau"], rows["value"])

    def median(part: str, tau: float) -> float:
        return float(frame[(frame["part"] == part) & (frame["tau"] == tau)]["value"].median())

    # n ∝ 1/(τ²δ²) is an error of 1/(τ√n).
    checks = {
        part: fits[part].at_most(0.0, SLACK) and fits[part].near(-1.0, SLACK)
        for part in ("G", "H", "diagonal")
    }
    least, most = float(frame["tau"].min()), float(frame["tau"].max())
    measured = (
        f"For τ ≤ {SMALL} the errors of G and H grow as τ^({fits['G']}) and τ^({fits['H']}), which "
        f"is 1/τ² in rows; the noise of the estimate of M grows as τ^({fits['diagonal']})."
    )
    inexact = {m: _inexact(frame, m) for m in OPTIONS}
    words = (
        "Lemma 7 holds in part. It is about G and H, which divide by τ; their 1/τ is that of this "
        "family of laws and not general (with values ±1 and, rarely, 0 the errors grow faster). "
        "The estimate of M errs less: the part of z² that "
        "z does not explain has variance τ, so its noise shrinks while it is divided by τ. "
        f"The authors' iteration pays for it: at τ = {least:g} its excess risk is "
        f"{median('plain risk', least):.3g} times σ²·dof/n, against "
        f"{median('plain risk', most):.2g} at τ = {most:g}. The guarded step and the polished fit "
        "divide by nothing, because the low rank determines the diagonal where the moments do not: "
        f"{median('guarded risk', least):.3g} and {median('polished risk', least):.3g}. "
        + " ".join(
            f"Without noise {METHODS[m].name} is "
            + (
                f"not exact at τ = {joined(f'{t:g}' for t in taus)}."
                if taus
                else "exact at every τ."
            )
            for m, taus in inexact.items()
        )
    )
    if inexact["default"] and not inexact["polished"]:
        words += (
            " The default leaves the diagonal out below τ = 0.05, which costs predictions little "
            "and the diagonal altogether."
        )
    return Verdict(measured, verdict_of(checks), words)


def _inexact(frame: Frame, method: str) -> list[float]:
    """Return the τ at which the median fit without noise is not exact."""
    medians = frame[frame["part"] == f"{method} nmse"].groupby("tau")["value"].median()
    return [float(tau) for tau, value in medians.items() if value > EXACT]
