"""How fast the statistics of a step approach their means as the rows grow."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from quadlin.core.moments import Moments
from quadlin.explain.displays import ScalingDisplay
from quadlin.paper.problems import coefficients, law, truth
from quadlin.paper.study import Frame, Row, Study, Task, Verdict
from quadlin.paper.trend import Power, listed, power, verdict_of

LAWS = ("gaussian", "truncated", "bernoulli")
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
BLOCK = 20_000  # rows at a time
SLACK = 0.1
REPEATS = 8  # tables of a task: a single number such as P⁽⁰⁾ may be near its mean by luck
# d, k, rows, seeds
SIZES: dict[str, tuple[int, int, tuple[int, ...], int]] = {
    "tiny": (15, 2, (500, 4000), 2),
    "quick": (40, 3, (2000, 6000, 18_000), 3),
    "full": (100, 5, (4000, 16_000, 64_000, 256_000), 4),
}


def tasks(size: str) -> list[Task]:
    """List the tasks: the statistics of a few tables each."""
    d, k, rows, seeds = SIZES[size]
    return [
        {"law": name, "d": d, "k": k, "n": n, "seed": seed}
        for name in LAWS
        for n in rows
        for seed in range(seeds)
    ]


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
    own, n, d = law(task["law"]), task["n"], task["d"]
    mip = own.tau > 0.01
    model = truth(rng, d, task["k"], signed=False, free=mip)
    P0, P1, square, E, moments = 0.0, np.zeros(d), np.zeros(d), np.zeros((d, d)), None
    for start in range(0, n, BLOCK):
        Z = own.draw(rng, min(BLOCK, n - start), d)
        y = model(Z) - 1.0  # the lemma has no intercept
        P0 += float(y.sum()) / n
        P1 += Z.T @ y / n
        square += (Z * Z).T @ y / n
        E += Z.T @ (y[:, None] * Z) / n
        part = Moments.of(Z)
        moments = part if moments is None else moments + part
    assert moments is not None
    P2 = square - P0
    M, w, m = model.M, model.w, np.diag(model.M)
    trace, kappa, phi = float(m.sum()), own.kappa, own.phi
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
        found = coefficients(moments.kappa, moments.phi)
        known = coefficients(np.full(d, kappa), np.full(d, phi))
        deviations["G_moments"] = np.max(np.abs(found[0] - known[0]))
        deviations["H_moments"] = np.max(np.abs(found[1] - known[1]))
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
        (part, name): power(own["n"], own["deviation"])
        for (part, name), own in frame.groupby(["part", "law"])
    }


def figures(frame: Frame) -> Mapping[str, Any]:
    """Draw the deviations against n, one picture a law."""
    pictures = {}
    for name, own in frame.groupby("law"):
        parts = dict(list(own.groupby("part")))
        points = {
            label: (parts[part]["n"].to_numpy(), _from_one(parts[part]))
            for part, label in PARTS.items()
            if part in parts
        }
        pictures[f"concentration_{name}"] = ScalingDisplay.from_points(
            points,
            x_label="rows n",
            y_label="deviation / that with the fewest rows",
            title=f"{name} features",
        )
    return pictures


def _from_one(part: Frame) -> np.ndarray:
    """Return the deviations over their geometric mean at the fewest rows."""
    fewest = part[part["n"] == part["n"].min()]["deviation"]
    return np.asarray(part["deviation"] / np.exp(np.log(fewest).mean()))


def verdict(frame: Frame) -> Verdict:
    """Count the statistics whose deviation falls as n^(−1/2)."""
    found = exponents(frame)
    checks = {f"{PARTS[p]} on {name}": fit.near(-0.5, SLACK) for (p, name), fit in found.items()}
    values = np.array([fit.exponent for fit in found.values()])
    off = [f"{name}" for name, held in checks.items() if not held]
    measured = (
        f"{sum(checks.values())} of {len(checks)} exponents are −1/2 within {SLACK} and two "
        f"standard errors; they lie between {values.min():+.2f} and {values.max():+.2f}, "
        f"mean {values.mean():+.3f}"
    ).replace("-", "−")
    words = (
        "Means of n independent terms must fall so; what the measurement adds is that the means "
        "are those of the lemma, diagonals and skewness included, with the errata corrected "
        "(κ∘w on the diagonal of A′(Xᵀw)/n). With a wrong mean the deviation would level off. "
    )
    words += f"Away from it: {listed(off)}." if off else "None levels off."
    return Verdict(measured, verdict_of(checks), words)


STUDY = Study(
    name="concentration",
    title="Concentration of the statistics",
    claim="Lemmas 1 to 3: P⁽⁰⁾, P⁽¹⁾, P⁽²⁾, the operator, the coefficients G and H and the "
    "estimates 𝓜 and 𝓦 deviate from their means by δ of the order n^(−1/2).",
    setting="y of a fixed positive M and w without noise; deviations in the spectral norm from the "
    "means under the law's exact moments; κ and φ of 𝓜, 𝓦, G and H estimated on the same rows. On "
    "two-valued features M is without diagonal and has no G and H.",
    tasks=tasks,
    run=run,
    figures=figures,
    verdict=verdict,
)
