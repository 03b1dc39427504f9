"""How far the sensing operator is from its mean on a fixed model: the shifted CI-RIP."""

import numpy as np

from quadlin.paper.displays import ScalingDisplay
from quadlin.paper.laws import law, law_name
from quadlin.paper.methods import LAWS, points
from quadlin.paper.problems import random_truth
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, grid, joined, verdict_of
from quadlin.paper.trend import Power, powers

PARTS = {
    "operator": "A′A(M)/n as printed",
    "centred": "the same of a centred A(M)",
    "linear": "A′(Xᵀw)/n",
}
SLACK = 0.12
# d, k and n tried, seeds: n at the first d and k, d and k at the first n
SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]] = {
    "tiny": ((20, 40), (2, 8), (4000, 16_000), 2),
    "quick": ((50, 25, 100), (4, 2, 8, 16, 32), (20_000, 5000, 10_000, 40_000), 2),
    "full": (
        (100, 50, 200, 400),
        (8, 2, 4, 16, 32, 64),
        (40_000, 10_000, 20_000, 80_000, 160_000),
        4,
    ),
}
ABOUT = About(
    title="Theorem 5: the shifted CI-RIP",
    claim="Theorem 5: for a fixed M of rank k, A′A(M)/n is 2M + tr(M)I + (φ−3)∘diag M up to "
    "δ‖M‖₂ once n is of the order k²d/δ², that is, δ of the order k√(d/n).",
    setting="Independent features standardised by their law, M of unit eigenvalues, w ~ N(0, I/d); "
    "spectral norm of the deviation from the stated mean, formed outright, over ‖M‖₂ (or ‖w‖).",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: a law, a sign and a seed at one (n, d, k)."""
    ds, ks, ns, seeds = SIZES[size]
    places = [(n, ds[0], ks[0]) for n in ns]
    places += [(ns[0], d, ks[0]) for d in ds[1:]] + [(ns[0], ds[0], k) for k in ks[1:]]
    plan = grid(law=LAWS, sign=("positive", "signed"), place=places, seed=range(seeds))
    return [dict(zip("ndk", task.pop("place"), strict=True)) | task for task in plan]


def run(task: Task, device: str) -> list[Row]:
    """Return the spectral norm of each deviation, over that of M or of w."""
    rng = np.random.default_rng(task["seed"])
    features, n, d = law(task["law"]), task["n"], task["d"]
    truth = random_truth(rng, d, task["k"], task["sign"] == "signed")  # fixed, before the rows
    M, w = truth.M, truth.w
    square, plain, linear, total = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d)), 0.0
    for Z in features.blocks(rng, n, d):
        a = ((Z @ truth.Q) ** 2) @ truth.s
        square += Z.T @ (a[:, None] * Z) / n
        linear += Z.T @ ((Z @ w)[:, None] * Z) / n
        plain += Z.T @ Z / n
        total += float(a.sum()) / n
    expected, spectral = 2 * M + (features.phi - 3) * np.diag(np.diag(M)), np.linalg.norm(M, 2)
    deviations = {
        "operator": square - expected - np.trace(M) * np.eye(d),
        "centred": square - total * plain - expected,
        "linear": linear - features.kappa * np.diag(w),
    }
    size = {"linear": np.linalg.norm(w)}
    return [
        {"part": part, "deviation": float(np.linalg.norm(E, 2) / size.get(part, spectral))}
        for part, E in deviations.items()
    ]


def exponents(frame: Frame) -> dict[tuple[str, str, str], dict[str, Power]]:
    """Fit deviation = a·nᵖ·d^q·k^r for each part, law and sign of M."""
    return {
        key: powers({name: part[name] for name in "ndk"}, part["deviation"])
        for key, part in frame.groupby(["part", "law", "sign"])
    }


def figures(frame: Frame) -> Pictures:
    """Draw the deviation of a positive M against n, and against k."""
    positive = frame[frame["sign"] == "positive"]
    # The place where the lines of tasks meet is the one that was tried most.
    base = {name: positive[name].mode()[0] for name in "ndk"}
    pictures: Pictures = {}
    for varied, label in (("n", "rows n"), ("k", "rank k")):
        others = [name for name in "ndk" if name != varied]
        shown = positive[np.logical_and.reduce([positive[o] == base[o] for o in others])]
        names = shown["part"].map(PARTS)
        if varied == "n":
            shown = shown.assign(name=names)[shown["law"] == "truncated"]
        else:
            shown = shown.assign(name=names + ", " + shown["law"].map(law_name))
            shown = shown[(shown["part"] != "linear") & (shown["law"] != "bernoulli")]
        pictures[f"rip_{varied}"] = ScalingDisplay.from_points(
            points(shown, varied, "deviation", "name"),
            x_label=label,
            y_label="deviation / size of M or w",
            title="M positive, " + joined(f"{o} = {base[o]:,}" for o in others),
        )
    return pictures


def verdict(frame: Frame) -> Verdict:
    """Compare the exponents with δ ∝ k·√(d/n), on the τ-MIP laws that the theorem is about."""
    fits = exponents(frame)
    inside = [name for name in LAWS if law(name).is_invertible]
    checks = {}
    for name in inside:
        for sign in ("positive", "signed"):
            fit = fits["operator", name, sign]
            checks[f"n, {law_name(name)}, {sign} M"] = fit["n"].near(-0.5, SLACK)
            checks[f"d, {law_name(name)}, {sign} M"] = fit["d"].at_most(0.5, SLACK)
            checks[f"k, {law_name(name)}, {sign} M"] = fit["k"].at_most(1.0, SLACK)

    def mean(part: str, sign: str, factor: str, names: list[str] = inside) -> float:
        return float(np.mean([fits[part, name, sign][factor].exponent for name in names]))

    law_of_growth = " ".join(f"{f}^({mean('operator', 'positive', f):+.2f})" for f in "ndk")
    measured = (
        f"For a positive M the deviation grows as {law_of_growth}, where the theorem has "
        f"n^(−0.50) d^(+0.50) k^(+1.00); of centred targets as "
        f"k^({mean('centred', 'positive', 'k'):+.2f})."
    ).replace("(-", "(−")
    printed, centred = mean("operator", "positive", "k"), mean("centred", "positive", "k")
    outside = [name for name in LAWS if name not in inside]
    words = (
        f"With M positive the deviation of the operator as printed grows as k^{printed:.2f}"
        + (", so k²d rows are what that operator needs" if printed > 0.75 else "")
        + f"; of centred targets as k^{centred:.2f}"
        + (", so kd rows are enough there" if centred < 0.75 else "")
        + ". The extra k comes from tr(M), which the mean carries. With signs that cancel in the "
        f"trace the operator as printed grows as k^{mean('operator', 'signed', 'k'):.2f}. On "
        f"{joined(map(law_name, outside))} features, which are not τ-MIP, the exponents are "
        + " ".join(f"{f}^({mean('operator', 'positive', f, outside):+.2f})" for f in "ndk")
        + "."
    ).replace("(-", "(−")
    failed = [name for name, held in checks.items() if not held]
    if failed:
        words += f" Outside the range of the claim: {joined(failed)}."
    return Verdict(measured, verdict_of(checks), words)
