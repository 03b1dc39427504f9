"""How many rows exact recovery takes, against the rank k and the features d: k²d, kd, or other?"""

import numpy as np

from quadlin.paper.displays import ScalingDisplay
from quadlin.paper.laws import law_name
from quadlin.paper.methods import METHODS, levels_by_method, points, styles
from quadlin.paper.studies.thresholds import EXACT, PRECISION, search
from quadlin.paper.study import About, Frame, Pictures, Task, Verdict, joined, verdict_of
from quadlin.paper.trend import Power, powers

COMPARED = ("plain", "uncentred", "guarded", "polished")
OTHER_LAWS = ("truncated", "bernoulli")
SLACK = 0.1
# (d, k) pairs for Gaussian features, (d, k) pairs for the other laws, and seeds
SIZES: dict[str, tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], int]] = {
    "tiny": (((16, 1), (16, 3), (32, 1)), ((16, 2),), 1),
    "quick": (((30, 1), (30, 4), (30, 16), (15, 2), (50, 2)), ((30, 1), (30, 4)), 1),
    "full": (
        ((80, 1), (80, 2), (80, 4), (80, 8), (80, 16), (80, 32), (20, 3), (40, 3), (160, 3)),
        ((80, 1), (80, 4), (80, 16)),
        3,
    ),
}
ABOUT = About(
    title="Theorem 2: rows needed for exact recovery",
    claim="Theorem 2: on τ-MIP features of the order k²d rows are enough (and kd are necessary).",
    setting="No noise, eigenvalues of M all +1 (positive) or of alternating sign, w and b unknown; "
    f"exact is a test NMSE of {EXACT:g} within 100 steps. For each table the fewest rows are found "
    f"by bisection (within {PRECISION['full'] - 1:.0%} in the full run). "
    "“Uncentred MES” is the authors' iteration with the mean of the residual left in the products.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one search for a threshold each."""
    gaussian, others, seeds = SIZES[size]
    places = [("gaussian", method, d, k) for method in COMPARED for d, k in gaussian]
    places += [
        (name, method, d, k)
        for name in OTHER_LAWS
        for method in COMPARED
        for d, k in others
        if method != "uncentred"
    ]
    return [
        {"law": name, "method": method, "sign": sign, "d": d, "k": k, "seed": seed}
        | {"precision": PRECISION[size]}
        for name, method, d, k in places
        for sign in ("positive", "signed")
        for seed in range(seeds)
        if sign == "positive" or (k > 1 and method in ("guarded", "polished"))
    ]


run = search


def exponents(frame: Frame) -> dict[tuple[str, str, str], dict[str, Power]]:
    """Fit n = a·kᵖ·d^q for each law, method and sign; a single component has either sign."""
    fits = {}
    for (name, method), part in frame.groupby(["law", "method"], sort=False):
        for sign in ("positive", "signed"):
            own_sign = part[(part["sign"] == sign) | (part["k"] == 1)]
            if (own_sign["sign"] == sign).any():
                factors = {"k": own_sign["k"], "d": own_sign["d"]}
                fits[name, method, sign] = powers(factors, own_sign["n50"])
    return fits


def figures(frame: Frame) -> Pictures:
    """Draw the thresholds against k at one d, against d at one k, and in rows per parameter."""
    pictures: Pictures = {}
    gaussian = frame[(frame["law"] == "gaussian") & (frame["sign"] == "positive")]
    for varied, fixed in (("k", "d"), ("d", "k")):
        # The value of the other that was tried with the most of this one.
        counts = gaussian.groupby(fixed)[varied].nunique()
        part = gaussian[gaussian[fixed] == counts.idxmax()]
        pictures[f"samples_{varied}"] = ScalingDisplay.from_points(
            points(part, varied, "n50"),
            x_label="rank k" if varied == "k" else "features d",
            y_label="rows needed",
            title=f"Rows to exact recovery, {fixed} = {counts.idxmax()}",
            styles=styles(COMPARED),
        )
    for name, part in frame[frame["sign"] == "positive"].groupby("law", sort=False):
        pictures[f"samples_{name}"] = levels_by_method(
            part.assign(ratio=part["n50"] / part["dof"]),
            x=("k", "rank k"),
            y=("ratio", "rows needed / parameters"),
            title=f"Rows per parameter, {law_name(name)} features",
            level=(1.0, "as many rows as parameters"),
        )
    return pictures


def verdict(frame: Frame) -> Verdict:
    """Compare the exponents of the authors' iteration with k²d, where the theorem applies."""
    fits = exponents(frame)
    inside = {name: fits[name, "plain", "positive"] for name in ("gaussian", "truncated")}
    within = {
        f"k, {name}": fit["k"].at_most(2.0, SLACK)
        for name, fit in inside.items()
        if np.isfinite(fit["k"].exponent)
    }
    within["d"] = inside["gaussian"]["d"].at_most(1.0, SLACK)
    per_dof = (frame["n50"] / frame["dof"]).groupby(frame["method"]).median()
    shown = [m for m in COMPARED if m in per_dof.index]
    gaussian = {m: fits["gaussian", m, "positive"] for m in shown}
    measured = (
        "On Gaussian features the rows needed grow as "
        + joined(
            f"k^({fit['k']})·d^({fit['d']}) for {METHODS[m].name}" for m, fit in gaussian.items()
        )
        + "."
    )
    words = (
        "In the median a method needs this many rows per parameter: "
        + joined(f"{METHODS[m].name} {per_dof[m]:.1f}" for m in shown)
        + ". The bound of k²d is an upper one, so fewer rows do not contradict it. An exponent of "
        "k below 1 is what (k + c)·d looks like over these k. "
    )
    largest = int(frame["k"].max())
    if "uncentred" in gaussian:
        difference = gaussian["uncentred"]["k"].exponent - gaussian["plain"]["k"].exponent
        words += (
            f"Up to k = {largest}, leaving the mean of the residual in the products raises the "
            f"exponent of k by {difference:.2f}: "
            + (
                "centring is what saves the second k. "
                if difference > 0.25
                else "at these ranks centring saves a constant rather than a power of k. "
            )
        )
    others = [
        f"k^({fit['k']}) for {METHODS[m].name} on {law_name(name)} features"
        for (name, m, sign), fit in fits.items()
        if name in OTHER_LAWS and sign == "positive" and np.isfinite(fit["k"].exponent)
    ]
    if others:
        words += f"On other laws the rows needed grow as {joined(others)}. "
    words += "Bernoulli features are outside the theorem."
    missed = int(frame["n50"].isna().sum())
    if missed:
        words += f" {missed} searches did not succeed within their limit and are left out."
    return Verdict(measured, verdict_of(within), words)
