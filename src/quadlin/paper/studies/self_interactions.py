"""The 2019 result: rows with and without self-interactions, and whether positivity helps."""

from quadlin.paper.displays import ScalingDisplay
from quadlin.paper.methods import METHODS, points
from quadlin.paper.studies.thresholds import EXACT, PRECISION, search
from quadlin.paper.study import About, Frame, Pictures, Task, Verdict, verdict_of
from quadlin.paper.trend import Power, power

ARMS = (("plain", "yes"), ("plain", "no"), ("polished", "yes"), ("psd", "yes"))
SLACK = 0.15
REDUNDANT = 1.25  # rows without the constraint over rows with it, at most
# d, ranks, seeds
SIZES: dict[str, tuple[int, tuple[int, ...], int]] = {
    "tiny": (16, (1, 3), 1),
    "quick": (30, (1, 4, 8), 2),
    "full": (80, (1, 2, 4, 8, 16), 3),
}
ABOUT = About(
    title="The 2019 result: self-interactions, and positivity",
    claim="The same group in 2019 (arXiv 1901.11149): without self-interactions of the order kd "
    "rows are enough, with them k²d/τ²; requiring M to be positive is redundant.",
    setting="Gaussian features, no noise, positive M with or without its diagonal, w and b "
    f"unknown; exact is a test NMSE of {EXACT:g}; the fewest rows by bisection.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one search for a threshold each."""
    d, ranks, seeds = SIZES[size]
    return [
        {"law": "gaussian", "method": method, "squares": squares, "sign": "positive", "d": d}
        | {"k": k, "seed": seed, "precision": PRECISION[size]}
        for method, squares in ARMS
        for k in ranks
        for seed in range(seeds)
    ]


run = search


def _name(arm: tuple[str, str]) -> str:
    return METHODS[arm[0]].name + ("" if arm[1] == "yes" else ", M without diagonal")


def exponents(frame: Frame) -> dict[tuple[str, str], Power]:
    """Fit n = a·kᵖ for each arm."""
    return {
        (method, squares): power(part["k"], part["n50"])
        for (method, squares), part in frame.groupby(["method", "squares"], sort=False)
    }


def figures(frame: Frame) -> Pictures:
    """Draw the rows needed against the rank."""
    dotted = {"linestyle": ":", "marker": "x"}
    return {
        "self_interactions": ScalingDisplay.from_points(
            points(frame, "k", "n50", ["method", "squares"], _name),
            x_label="rank k",
            y_label="rows needed",
            title=f"Rows to exact recovery, Gaussian features, d = {frame['d'].iloc[0]}",
            styles={
                _name((m, s)): {**METHODS[m].style, **(dotted if s == "no" else {})}
                for m, s in ARMS
            },
        )
    }


def verdict(frame: Frame) -> Verdict:
    """Compare the exponents of k, and the rows with and without the constraint."""
    fits = exponents(frame)
    free, squares = fits["plain", "no"], fits["plain", "yes"]
    medians = frame.groupby(["method", "squares"])["n50"].median()
    gain = float(medians["polished", "yes"] / medians["psd", "yes"])
    checks = {
        "kd without squares": free.at_most(1.0, SLACK),
        "k²d with them": squares.at_most(2.0, SLACK),
        "psd redundant": gain <= REDUNDANT,
    }
    measured = (
        f"The authors' iteration needs rows as k^({free}) without self-interactions and as "
        f"k^({squares}) with them; without the constraint the polished fit needs {gain:.2f} times "
        "the rows that it needs with psd=True."
    )
    words = (
        "The bounds are upper ones. With self-interactions the measured exponent is "
        + ("no larger than without" if squares.at_most(free.exponent, SLACK) else "larger")
        + ": the residual is centred here, which removes the trace. A positive M is recovered "
        + ("from the same number of rows" if gain <= REDUNDANT else "from fewer rows")
        + " when the fit is told that it is positive."
    )
    return Verdict(measured, verdict_of(checks), words)
