"""The paper's figure, panels (a) to (h): test error against iterations, MES beside GD."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from quadlin.explain.displays import ConvergenceDisplay
from quadlin.metrics import degrees_of_freedom
from quadlin.paper import race
from quadlin.paper.baselines import STEP_SIZES
from quadlin.paper.samplers import draw, on_device
from quadlin.paper.study import Frame, Row, Study, Task, Verdict

# rows = 30·k·d as in the paper; "full" is the paper's size.
SETTINGS = {
    "tiny": {"d": 24, "k": 2, "test": 500, "iterations": 12, "trials": 1},
    "quick": {"d": 100, "k": 4, "test": 2_000, "iterations": 30, "trials": 2},
    "full": {"d": 1000, "k": 10, "test": 10_000, "iterations": 50, "trials": 10},
}
ROWS_PER_KD = 30
FOUND = 1e-6  # a test NMSE below which the optimum counts as found
NEAR = 1e-3  # and one that is worth counting iterations to
FLOOR = 1e-12  # float32 goes no lower


@dataclass(frozen=True)
class Panel:
    """What one panel shows."""

    name: str
    features: str
    parameter: float
    noises: tuple[float, ...]
    claim: str

    @property
    def has_diagonal(self) -> bool:
        """Tell whether the squares of the features are modelled: the paper's MIP form."""
        return self.features != "bernoulli"

    @property
    def law(self) -> str:
        """Return the features' distribution in words."""
        if self.features == "bernoulli":
            return f"x is 1 with probability {self.parameter:g}, else 0"
        return f"x = min(x̂, {self.parameter:g}), x̂ standard normal"

    @property
    def solvers(self) -> tuple[str, ...]:
        """Return who runs: centring, which needs a diagonal to matter, is shown in (a) and (b)."""
        return tuple(s for s in race.SOLVERS if self.name in "ab" or s != race.GD_CENTRED)


FASTER = "Section 5: MES converges linearly and is significantly faster than gradient descent"
SKEWED = (
    "Section 5: MES converges globally and linearly under any truncation level; gradient descent "
    "gets worse as the level a falls to 0, because the skewness grows"
)
PANELS = (
    Panel("a", "truncated", 0.0, (0.0,), FASTER + ", on features truncated at 0."),
    Panel("b", "truncated", 0.0, (1.0,), FASTER + ", on features truncated at 0, with noise."),
    Panel(
        "c", "bernoulli", 0.01, (0.0,), FASTER + ", on rare 0/1 features, the diagonal left out."
    ),
    Panel("d", "bernoulli", 0.1, (0.0,), FASTER + ", on 0/1 features, the diagonal left out."),
    Panel("e", "truncated", 0.0, (0.0, 1.0), SKEWED + ". At a = 0 it does not find the optimum."),
    Panel("f", "truncated", 0.001, (0.0, 1.0), SKEWED + "."),
    Panel("g", "truncated", 0.01, (0.0, 1.0), SKEWED + "."),
    Panel("h", "truncated", 0.1, (0.0, 1.0), SKEWED + "."),
)


def tasks(panel: Panel, size: str) -> Sequence[Task]:
    """Return one task a trial, so that its rows are drawn once for all solvers."""
    s = SETTINGS[size]
    first = 100 * (1 + [p.name for p in PANELS].index(panel.name))
    common = {name: s[name] for name in ("d", "k", "test", "iterations")}
    rows = ROWS_PER_KD * s["k"] * s["d"]
    return [
        {"trial": trial, "seed": first + trial, "rows": rows, **common}
        for trial in range(s["trials"])
    ]


def run(panel: Panel, task: Task, device: str) -> list[Row]:
    """Run every solver at every noise level on the rows of one trial."""
    sizes = (task["rows"], task["test"])
    train, test = draw(panel.features, panel.parameter, sizes, task["d"], task["k"], task["seed"])
    X, X_test, clean = (on_device(a, device) for a in (train.X, test.X, test.f))
    power = float(np.mean(test.f**2))
    lines = []
    for noise in panel.noises:
        y, y_test = (on_device(t.f + noise * t.noise, device) for t in (train, test))
        settings = {"rank": task["k"], "iterations": task["iterations"], "seed": task["seed"]}
        runners = race.prepared(X, y, X_test, y_test, clean, panel.has_diagonal, **settings)
        rows = race.run(runners, panel.solvers)
        lines += [row | {"noise": noise, "power": power} for row in rows]
    return lines


def figures(panel: Panel, frame: Frame) -> Mapping[str, Any]:
    """Draw the test error against iterations, seconds and passes, for each noise level."""
    shown = {}
    for noise in panel.noises:
        part = frame[frame["noise"] == noise]
        word = f"noise {noise:g}"
        views = [("iteration", "nmse", "iterations")]
        if noise > 0:
            views.append(("iteration", "nmse_clean", "clean"))
        views.append(("seconds", "nmse_clean", "seconds"))
        if len(panel.noises) == 1:
            views.append(("passes", "nmse_clean", "passes"))
        for x, y, name in views:
            label = "test NMSE" + (", labels without noise" if noise and y != "nmse" else "")
            shown[f"{name}-{word.replace(' ', '')}"] = ConvergenceDisplay.from_trials(
                curves(part, x, y),
                x_label="passes over the rows" if x == "passes" else x,
                y_label=label,
                title=f"({panel.name}) {panel.law}; {word}",
                limits=(None, 10.0),
            )
    return shown


def curves(frame: Frame, x: str, y: str) -> dict[str, list[tuple[Any, Any]]]:
    """Return the (x, y) of each trial of each solver."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for solver in [s for s in race.SOLVERS if (frame["solver"] == s).any()]:
        part = frame[frame["solver"] == solver]
        trials = [t.sort_values("iteration") for _, t in part.groupby("trial")]
        found[solver] = [(t[x].to_numpy(), t[y].to_numpy()) for t in trials]
    return found


@dataclass(frozen=True)
class Summary:
    """What one solver did at one noise level, over the trials."""

    final: float  # geometric mean of the last NMSE against labels without noise
    rate: float  # the factor an iteration takes it down by, before it levels off
    reach: float  # mean number of iterations to the goal; infinite if a trial does not get there
    milliseconds: float  # median, an iteration


def summary(frame: Frame, goal: float) -> dict[str, Summary]:
    """Sum up each solver's curves."""
    found = {}
    seconds = curves(frame, "iteration", "seconds")
    for solver, runs in curves(frame, "iteration", "nmse_clean").items():
        errors = [np.maximum(y, FLOOR) for _, y in runs]
        reach = [float(np.argmax(y <= goal)) if (y <= goal).any() else np.inf for y in errors]
        paces = [t[-1] / max(1, x[-1]) for x, t in seconds[solver]]
        found[solver] = Summary(
            float(np.exp(np.mean([np.log(y[-1]) for y in errors]))),
            float(np.exp(np.mean([np.log(_rate(y)) for y in errors]))),
            float(np.mean(reach)),
            1e3 * float(np.median(paces)),
        )
    return found


def _rate(y: np.ndarray) -> float:
    """Return the mean factor an iteration, from after the first to within ten of the last."""
    first = min(1, len(y) - 1)
    near = np.flatnonzero(y <= 10 * y[-1])
    last = int(near[0]) if near[0] > first else len(y) - 1
    return float((y[last] / y[first]) ** (1 / max(1, last - first)))


def verdict(panel: Panel, frame: Frame) -> Verdict:
    """Say what was seen, at each noise level."""
    parts = [_verdict(panel, frame, noise) for noise in panel.noises]
    said = []
    n, q = int(frame["rows"].iloc[0]), panel.parameter
    if any(f"{race.PUBLISHED} does not" in v.words for v in parts):
        said.append(
            "The printed iteration is fast at first and then stalls or drifts: it carries the skew "
            "part of UVᵀ along, which no residual sees. Symmetric factors do not have it."
        )
    if panel.has_diagonal:
        said.append(f"The features' skewness is {skewness(q):.2f}.")
    elif n * q * q < 10:
        said.append(f"At this size two features are both 1 in only {n * q * q:.1f} rows.")
    words = {v.holds for v in parts}
    holds = words.pop() if len(words) == 1 else "in part"
    paragraphs = [v.words for v in parts] + [" ".join(said)]
    measured = " ".join(v.measured for v in parts)
    return Verdict(measured, holds, "\n\n".join(p for p in paragraphs if p))


def _verdict(panel: Panel, frame: Frame, noise: float) -> Verdict:
    part = frame[frame["noise"] == noise]
    d, k, n = (int(part[name].iloc[0]) for name in ("d", "k", "rows"))
    power = part["power"].mean()
    # The Cramér–Rao level is one of the error itself, and E y² differs from trial to trial.
    part = part.assign(nmse_clean=part["nmse_clean"] * part["power"] / power)
    bound = noise**2 * degrees_of_freedom(d, k) / n / power
    level, goal = max(FOUND, 2 * bound), max(NEAR, 2 * bound)
    sums = summary(part, goal)
    listed = "; ".join(f"{name} {s.final:.1e} ({_count(s.reach)})" for name, s in sums.items())
    measured = f"Noise {noise:g}: last test NMSE (iterations to {goal:.1g}): {listed}."
    published, ours, descent = (sums[name] for name in (race.PUBLISHED, race.OURS, race.GD))
    if published.final <= level and published.reach < descent.reach:
        holds = "yes"
    elif min(published.reach, ours.reach) < descent.reach:
        holds = "in part"
    else:
        holds = "no"
    return Verdict(measured, holds, " ".join(_words(noise, level, sums)))


def _count(iterations: float) -> str:
    return f"{iterations:.0f}" if np.isfinite(iterations) else "never"


def _words(noise: float, level: float, sums: dict[str, Summary]) -> list[str]:
    said = [
        f"With noise {noise:g}, twice the Cramér–Rao level is an NMSE of {level:.1e}."
        if noise
        else f"Without noise the optimum counts as found below {level:.0e}."
    ]
    for solver, s in sums.items():
        end = "finds it" if s.final <= level else "diverges" if s.final > 1 else "does not find it"
        pace = f" (error × {s.rate:.2g} an iteration)" if s.final <= 1 and not noise else ""
        said.append(f"{solver} {end}{pace}.")
    if sums[race.GD].final <= level:
        said.append("So gradient descent does find the optimum here.")
    times = ", ".join(f"{solver} {s.milliseconds:,.1f}" for solver, s in sums.items())
    return [*said, f"Milliseconds an iteration: {times}."]


def skewness(level: float) -> float:
    """Return the skewness of min(x, level), x standard normal.

    Examples
    --------
    >>> [round(skewness(a), 2) for a in (0.0, 0.1)]
    [-1.64, -1.5]
    """
    x = np.linspace(-12, 12, 240_001)
    weight = np.exp(-x * x / 2)
    weight /= weight.sum()
    t = np.minimum(x, level)
    t = t - weight @ t
    return float(weight @ t**3 / (weight @ t**2) ** 1.5)


def study(panel: Panel) -> Study:
    """Return the study of one panel."""
    noises = " and ".join(f"{noise:g}" for noise in panel.noises)
    less = "" if panel.has_diagonal else " less its diagonal"
    setting = (
        f"{panel.law}, as sampled; y = xᵀw + xᵀMx + noise of sd {noises}, M = QQᵀ{less}, Q random "
        "orthonormal, w ~ N(0, I/d), 30kd training rows that every iteration reuses. Every solver "
        "standardises the features by the training rows and fits the intercept which that makes. "
        "Stops as in the paper: at the last iteration, or when the training error changes by less "
        "than 1e-8. The error is E(ŷ−y)²/E y² on test rows whose y have noise like the training "
        "rows' (the paper does not say); a second picture compares with y without noise. "
        f"GD: the best of η = {', '.join(map(str, STEP_SIZES))} over each block's curvature, by "
        "the training error at the end. Curves: geometric mean over trials; bands: least and "
        "largest."
    )
    if panel.name in "efgh":
        setting += (
            " The paper says that panels (e) to (h) show these levels under different noise: here "
            "each panel is one level, at noise 0 and 1."
        )
    elif not panel.has_diagonal:
        setting += " The paper does not name the noise of this panel: none is assumed."
    title = f"Panel ({panel.name}): {panel.law}, noise {noises}"
    return Study(
        panel.name,
        title,
        panel.claim,
        setting,
        partial(tasks, panel),
        partial(run, panel),
        partial(figures, panel),
        partial(verdict, panel),
    )


STUDIES = [study(panel) for panel in PANELS]
