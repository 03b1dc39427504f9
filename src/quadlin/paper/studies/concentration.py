"""How fast the statistics of a step approach their means as the rows grow."""

from typing import Any

import numpy as np

from quadlin.core.moments import Moments
from quadlin.paper.displays import ScalingDisplay
from quadlin.paper.laws import coefficients, law, law_name
from quadlin.paper.methods import LAWS
from quadlin.paper.problems import random_truth
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, grid, joined, verdict_of
from quadlin.paper.trend import Power, power

PARTS = {
    "P0": "P⁽⁰⁾",
    "P1": "P⁽¹⁾",
    "P2": "P⁽²⁾",
    "H": "A′(y)/n",
    "G_moments": "coefficients G",
    "H_moments": "coefficients H",
    "M": "estimate of M",
    "W": "estimate of w",
}
GROUPS = {"statistics": ("P0", "P1", "P2", "H"), "estimates": ("G_moments", "H_moments", "M", "W")}
GROUP_TITLES = {"statistics": "Statistics of a step", "estimates": "What is made of them"}
SLACK = 0.1
REPEATS = 8  # tables of a task: a single number such as P⁽⁰⁾ may be near its mean by luck
# d, k, rows, seeds
SIZES: dict[str, tuple[int, int, tuple[int, ...], int]] = {
    "tiny": (15, 2, (500, 4000), 2),
    "quick": (40, 3, (2000, 6000, 18_000), 3),
    "full": (100, 5, (4000, 16_000, 64_000, 256_000), 4),
}
ABOUT = About(
    title="Lemmas 6 to 8: concentration",
    claim="Lemmas 6 to 8: P⁽⁰⁾, P⁽¹⁾, P⁽²⁾, the operator, the coefficients G and H and the "
    "estimates 𝓜 and 𝓦 deviate from their means by δ of the order n^(−1/2).",
    setting="y of a fixed positive M and w without noise; deviations in the spectral norm from the "
    "means under the law's exact moments; κ and φ of 𝓜, 𝓦, G and H estimated on the same rows. On "
    "two-valued features M is without diagonal and has no G and H.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: the statistics of a few tables each."""
    d, k, rows, seeds = SIZES[size]
    return grid(law=LAWS, d=d, k=k, n=rows, seed=range(seeds))


def run(task: Task, device: str) -> list[Row]:
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
    mip = features.is_invertible
    truth = random_truth(rng, d, task["k"], has_diagonal=mip)  # the lemma has no intercept
    P0, P1, square, E, moments = 0.0, np.zeros(d), np.zeros(d), np.zeros((d, d)), None
    for Z in features.blocks(rng, n, d):
        y = truth(Z)
        P0 += float(y.sum()) / n
        P1 += Z.T @ y / n
        square += (Z * Z).T @ y / n
        E += Z.T @ (y[:, None] * Z) / n
        part = Moments.of(Z)
        moments = part if moments is None else moments + part
    assert moments is not None
    P2 = square - P0
    M, w, m = truth.M, truth.w, np.diag(truth.M)
    trace, kappa, phi = float(m.sum()), features.kappa, features.phi
    mean = 2 * M + np.diag(trace + (phi - 3) * m + kappa * w)
    deviations = {
        "P0": P0 - trace,
        "P1": P1 - w - kappa * m,
        "P2": P2 - kappa * w - (phi - 1) * m,
        "H": E - mean,
    }
    estimate = _estimates(P0, P1, P2, E, moments.kappa, moments.phi, mip)
    deviations |= {"M": estimate[0] - M, "W": estimate[1] - w}
    if mip:
        estimated = coefficients(moments.kappa, moments.phi)
        exact = coefficients(np.full(d, kappa), np.full(d, phi))
        deviations["G_moments"] = np.max(np.abs(estimated[0] - exact[0]))
        deviations["H_moments"] = np.max(np.abs(estimated[1] - exact[1]))
    return {part: _size(value) for part, value in deviations.items()}


def _size(value: Any) -> float:
    return abs(float(value)) if np.ndim(value) == 0 else float(np.linalg.norm(value, 2))


def _estimates(
    P0: float, P1: np.ndarray, P2: np.ndarray, E: np.ndarray, kappa: Any, phi: Any, mip: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the unbiased (𝓜, 𝓦) with the moments of the same rows, and r centred by P0."""
    E = E - P0 * np.eye(len(P1))
    if not mip:
        return E / 2 - np.diag(P2) / 2, P1
    G, H = coefficients(kappa, phi)
    return E / 2 - np.diag(G[0] * P1 + G[1] * P2) / 2, H[0] * P1 + H[1] * P2


def exponents(frame: Frame) -> dict[tuple[str, str], Power]:
    """Fit deviation = a·nᵖ for each statistic and law."""
    return {
        (part, name): power(group["n"], group["deviation"])
        for (part, name), group in frame.groupby(["part", "law"])
    }


def figures(frame: Frame) -> Pictures:
    """Draw the deviations against n: the statistics, and what is made of them, for each law."""
    pictures: Pictures = {}
    for name, rows in frame.groupby("law"):
        for group, parts in GROUPS.items():
            points = {
                PARTS[part]: (chosen["n"].to_numpy(), chosen["deviation"].to_numpy())
                for part in parts
                if len(chosen := rows[rows["part"] == part])
            }
            pictures[f"concentration_{group}_{name}"] = ScalingDisplay.from_points(
                points,
                x_label="rows n",
                y_label="deviation from the mean",
                title=f"{GROUP_TITLES[group]}, {law_name(name)} features",
            )
    return pictures


def verdict(frame: Frame) -> Verdict:
    """Count the statistics whose deviation falls as n^(−1/2), on the laws of each lemma."""
    fits = exponents(frame)
    # Lemmas 6 and 8 are stated for τ-MIP laws, but their means need no inversion of moments.
    checks = {
        f"{PARTS[p]} on {law_name(name)}": fit.near(-0.5, SLACK) for (p, name), fit in fits.items()
    }
    values = np.array([fit.exponent for fit in fits.values()])
    measured = (
        f"{sum(checks.values())} of {len(checks)} deviations fall as n^(−1/2), within {SLACK} and "
        f"two standard errors; the exponents lie between {values.min():+.2f} and "
        f"{values.max():+.2f}, with a mean of {values.mean():+.3f}."
    ).replace("-", "−")
    off = [name for name, held in checks.items() if not held]
    words = (
        "Means of n independent terms must fall at this rate. What the measurement adds is that "
        "the means are those of the lemmas, diagonals and skewness included, once the errata are "
        "corrected (κ∘w on the diagonal of A′(Xᵀw)/n): with a wrong mean the deviation would level "
        "off. "
    )
    words += f"Away from it: {joined(off)}." if off else "None levels off."
    return Verdict(measured, verdict_of(checks), words)
