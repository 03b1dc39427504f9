"""The paper's figure, panels (a) to (h): the test error of MES and of gradient descent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from quadlin.core.arrays import Array
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.displays import ConvergenceDisplay
from quadlin.paper.laws import law_of
from quadlin.paper.methods import SOLVERS, name_of, points, styles
from quadlin.paper.problems import tables
from quadlin.paper.race import STEP_SIZES, Race, Setting, Solver, load_solver
from quadlin.paper.settings import SettingError, Settings
from quadlin.paper.study import About, Frame, Pictures, Row, Study, Task, Verdict, joined

# rows = 30·k·d as in the paper; "full" is the paper's size.
SIZES = {
    "tiny": {"d": 24, "k": 2, "test": 500, "iterations": 12, "trials": 1},
    "quick": {"d": 100, "k": 4, "test": 2_000, "iterations": 30, "trials": 2},
    "full": {"d": 1000, "k": 10, "test": 10_000, "iterations": 50, "trials": 10},
}
# The paper draws MES and GD against iterations; the pictures of the panels have the rest.
SHOWN = {
    "iteration": ("published", "plain", "gaussian", "guarded", "gd_printed", "gd_standardised"),
    "passes": ("published", "plain", "gaussian", "guarded", "polished", "gd_printed", "gd_centred"),
}
ERRORS = {"iteration": "nmse", "passes": "nmse_clean"}  # against y as drawn, and without noise
LOWEST, HIGHEST = 1e-14, 10.0
PALE = 0.4
VIEWS = {"passes": "passes over the rows", "iteration": "iteration"}


@dataclass(frozen=True)
class Panel:
    """What one panel shows."""

    name: str
    distribution: str
    noises: tuple[float, ...]
    claim: str


FASTER = "Section 5: MES converges linearly and is significantly faster than gradient descent"
SKEWED = (
    "Section 5: MES converges globally and linearly at any truncation level; gradient descent "
    "gets worse as the level a falls to 0, because the skewness grows"
)
PANELS = {
    panel.name: panel
    for panel in (
        Panel("a", "truncated:0", (0.0,), f"{FASTER}, on features truncated at 0."),
        Panel("b", "truncated:0", (1.0,), f"{FASTER}, on features truncated at 0, with noise."),
        Panel("c", "bernoulli:0.01", (0.0,), f"{FASTER}, on rare 0/1 features."),
        Panel("d", "bernoulli:0.1", (0.0,), f"{FASTER}, on 0/1 features."),
        Panel("e", "truncated:0", (0.0, 1.0), f"{SKEWED}. At a = 0 it does not find the optimum."),
        Panel("f", "truncated:0.001", (0.0, 1.0), f"{SKEWED}."),
        Panel("g", "truncated:0.01", (0.0, 1.0), f"{SKEWED}."),
        Panel("h", "truncated:0.1", (0.0, 1.0), f"{SKEWED}."),
    )
}


def tasks(panel: Panel, settings: Settings, size: str) -> Sequence[Task]:
    """Return one task for each trial and noise level; the rows of a trial are the same."""
    s = SIZES[size]
    d, k = settings.features or s["d"], settings.rank or s["k"]
    common: dict[str, Any] = {
        "d": d,
        "k": k,
        "rows": settings.rows_for(d, k),
        "test": s["test"],
        "iterations": settings.iterations or s["iterations"],
        "distribution": settings.distribution or panel.distribution,
    }
    if common["distribution"].endswith(".py"):
        common["distribution"] = str(Path(common["distribution"]).resolve())
    if settings.solvers:
        common["solver_files"] = settings.solver_paths()
    first = 100 * (1 + list(PANELS).index(panel.name))
    noises = panel.noises if settings.noise is None else (settings.noise,)
    return [
        {"trial": trial, "seed": first + trial, "noise": noise, **common}
        for noise in noises
        for trial in range(settings.trials or s["trials"])
    ]


def run(task: Task, device: str) -> list[Row]:
    """Run every solver on the rows of one trial."""
    law = law_of(task["distribution"])
    train, test = tables(law, (task["rows"], task["test"]), task["d"], task["k"], task["seed"])
    y, y_test = (on_device(t.f + task["noise"] * t.noise, device) for t in (train, test))
    X, X_test, clean = (on_device(a, device) for a in (train.X, test.X, test.f))
    setting = Setting(task["k"], law.is_invertible, task["iterations"], task["seed"])
    race = Race(X, y, X_test, y_test, clean, setting)
    power = float(np.mean(test.f**2))
    rows = [row for name, solver in _solvers(task).items() for row in race.run(name, solver)]
    return [row | {"power": power} for row in rows]


def on_device(a: np.ndarray, device: str) -> Array:
    """Return the array as it is for "cpu", or as a torch tensor on another device."""
    if device == "cpu":
        return a
    import torch

    return torch.asarray(a, device=device)


def _solvers(task: Task) -> dict[str, Solver]:
    """Return the solvers by key: our own, and those of the user."""
    solvers = dict(SOLVERS)
    for line in task.get("solver_files", "").splitlines():
        brought = load_solver(line.split("\t")[0])
        solvers[brought.name] = brought.solve
    return solvers


def figures(panel: Panel, frame: Frame) -> Pictures:
    """Draw the test error against passes and iterations, for each noise level."""
    shown: Pictures = {}
    words = law_of(frame["distribution"].iloc[0]).words
    for noise, part in frame.groupby("noise"):
        for x, x_label in VIEWS.items():
            # The paper counts iterations and, it seems, compares with y as drawn.
            y = "nmse" if x == "iteration" else "nmse_clean"
            label = "test NMSE" if y == "nmse" or not noise else "test NMSE, y without noise"
            trials = curves(part, x, y)
            shown[f"{x}-noise{noise:g}"] = ConvergenceDisplay.from_trials(
                {name_of(key): runs for key, runs in trials.items()},
                x_label=x_label,
                y_label=label,
                title=f"({panel.name}) {words}; noise {noise:g}",
                limits=(None, 10.0),
                styles=styles(trials),
                stepwise=x != "iteration",
            )
    return shown


def curves(frame: Frame, x: str, y: str) -> dict[str, list[tuple[Any, Any]]]:
    """Return the (x, y) of each trial of each solver, in the order in which they ran."""
    return {
        str(key): list(points(part, x, y, "trial").values())
        for key, part in frame.groupby("solver", sort=False)
    }


@dataclass
class OverviewDisplay:
    """Panels (a) to (h) in four rows of two: test NMSE against iterations or passes."""

    frames: Mapping[str, Frame]  # by the name of the panel
    x: str = "iteration"
    figure_: Any = None

    def plot(self) -> Self:
        """Draw the figure; a panel with two noise levels shows noise 1 in paler lines."""
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(4, 2, figsize=(6.4, 9.2), sharex="row", layout="constrained")
        handles: dict[str, Any] = {}
        for ax, name in zip(axes.ravel(), PANELS, strict=True):
            frame = self.frames[name]
            for noise, part in frame.groupby("noise"):
                pale = len(frame["noise"].unique()) > 1 and noise > 0
                handles = self._curves(ax, part, PALE if pale else 1.0) | handles
            words = law_of(frame["distribution"].iloc[0]).words.split(", x̂")[0]
            words = words.replace("x is 1 with probability", "P(x = 1) =").split(", else")[0]
            noises = " and ".join(f"{v:g}" for v in sorted(frame["noise"].unique()))
            ax.set_title(f"({name}) {words}\nnoise {noises}", fontsize="small")
            if frame["noise"].min() == 0:
                ax.set_ylim(LOWEST, HIGHEST)
        for ax in axes[:, 0]:
            ax.set_ylabel("test NMSE")
        for ax in axes[-1]:
            ax.set_xlabel(VIEWS[self.x])
        place = {"loc": "outside lower center", "ncols": 2, "frameon": False}
        figure.legend(handles.values(), handles.keys(), fontsize="small", **place)
        self.figure_ = figure
        return self

    def _curves(self, ax: Any, frame: Frame, alpha: float) -> dict[str, Any]:
        """Draw the mean curve of each solver; return a handle for each name."""
        y = ERRORS[self.x]
        trials = {k: t for k, t in curves(frame, self.x, y).items() if k in SHOWN[self.x]}
        look = {name: {**style, "alpha": alpha} for name, style in styles(trials).items()}
        drawn = ConvergenceDisplay.from_trials(
            {name_of(key): runs for key, runs in trials.items()},
            x_label="",
            y_label="",
            styles=look,
            stepwise=self.x == "passes",
        )
        drawn.bands = None  # eight small pictures have no room for them
        drawn.plot(ax)
        ax.get_legend().remove()
        return dict(zip(drawn.curves, ax.lines, strict=False))


FOUND = 1e-6  # a test NMSE below which the optimum counts as found
NEAR = 1e-3  # and one that is worth counting passes to
FLOOR = 1e-16  # rounding goes no lower
MUCH = 2.0  # times as many passes: below, two solvers count as equally fast


@dataclass(frozen=True)
class Summary:
    """What one solver did at one noise level, over the trials."""

    final: float  # geometric mean of the last NMSE against labels without noise
    rate: float  # the factor an iteration takes it down by, before it levels off
    passes: float  # mean number of passes to the goal; infinite if a trial does not get there
    iterations: float  # likewise
    seconds_per_pass: float  # median

    def reaches(self, level: float) -> bool:
        """Tell whether the solver ends below a level."""
        return self.final <= level


def summaries(frame: Frame, goal: float) -> dict[str, Summary]:
    """Sum up the curves of each solver."""
    result = {}
    for solver, part in frame.groupby("solver", sort=False):
        trials = [t.sort_values("iteration") for _, t in part.groupby("trial")]
        errors = [np.maximum(t["nmse_clean"].to_numpy(), FLOOR) for t in trials]
        reached = [np.flatnonzero(e <= goal) for e in errors]
        firsts = [
            (t["passes"].iloc[r[0]], t["iteration"].iloc[r[0]]) if len(r) else (np.inf, np.inf)
            for t, r in zip(trials, reached, strict=True)
        ]
        pace = [t["seconds"].iloc[-1] / max(1, t["passes"].iloc[-1]) for t in trials]
        result[str(solver)] = Summary(
            float(np.exp(np.mean([np.log(e[-1]) for e in errors]))),
            float(np.exp(np.mean([np.log(_rate(e)) for e in errors]))),
            float(np.mean([p for p, _ in firsts])),
            float(np.mean([i for _, i in firsts])),
            float(np.median(pace)),
        )
    return result


def final_errors(frame: Frame) -> dict[str, float]:
    """Return the geometric mean over the trials of each solver's last test NMSE."""
    last = frame.sort_values("iteration").groupby(["solver", "trial"], sort=False)["nmse_clean"]
    ends = np.log(np.maximum(last.last(), FLOOR)).groupby(level="solver", sort=False)
    return {str(key): float(np.exp(end.mean())) for key, end in ends}


def _rate(error: np.ndarray) -> float:
    """Return the mean factor per iteration, from after the first to within ten of the last."""
    first = min(1, len(error) - 1)
    near = np.flatnonzero(error <= 10 * error[-1])
    last = int(near[0]) if near[0] > first else len(error) - 1
    return float((error[last] / error[first]) ** (1 / max(1, last - first)))


def verdict(panel: str, frame: Frame) -> Verdict:
    """Judge the panel at each of its noise levels."""
    parts = [_verdict(float(noise), part) for noise, part in frame.groupby("noise")]
    holds = {v.holds for v in parts}
    law = law_of(frame["distribution"].iloc[0])
    n, q = int(frame["rows"].iloc[0]), law.mean
    notes = []
    if panel in "efgh":  # the claim names a cause, and a panel only shows how fast a solver is
        holds = {"no"} if holds == {"no"} else {"in part"}
        notes.append(
            "The claim blames the skewness. The panel measures speed and not its cause, so the "
            "claim holds at most in part; see the study of skewness."
        )
    if law.is_invertible:
        notes.append(f"The skewness of the features is {law.kappa:.2f}.".replace("-", "−"))
    elif 0 < q < 1 and n * q * q < 10:
        holds = {"not judged"}
        notes.append(
            f"At this size two features are both 1 in only {n * q * q:.1f} rows, which do not "
            "determine M: nothing is judged by them."
        )
    return Verdict(
        " ".join(v.measured for v in parts),
        holds.pop() if len(holds) == 1 else "in part",
        "\n\n".join([*(v.words for v in parts), *notes]),
    )


def _verdict(noise: float, frame: Frame) -> Verdict:
    d, k, n = (int(frame[name].iloc[0]) for name in ("d", "k", "rows"))
    power = frame["power"].mean()
    # The Cramér–Rao level is one of the error itself, and E y² differs from trial to trial.
    alike = frame.assign(nmse_clean=frame["nmse_clean"] * frame["power"] / power)
    bound = noise**2 * degrees_of_freedom(d, k) / n / power
    level, goal = max(FOUND, 3 * bound), max(NEAR, 3 * bound)
    sums = summaries(alike, goal)
    mes, others = sums.get("plain"), [s for key, s in sums.items() if key.startswith("gd_")]
    last = final_errors(frame)
    ends = joined(f"{name_of(key)} at {last[key]:.1e}" for key in sums)
    measured = f"With noise {noise:g}, " if noise else "Without noise, "
    measured += f"the test NMSE ends for {ends}."
    if mes is None or not others:
        return Verdict(measured, "in part", "Not every solver of the panel was run.")
    faster = [o.passes > MUCH * mes.passes for o in others]
    holds = "yes" if mes.reaches(level) and all(faster) else "in part" if any(faster) else "no"
    return Verdict(measured, holds, " ".join(_words(noise, level, goal, sums)))


def _words(noise: float, level: float, goal: float, sums: dict[str, Summary]) -> list[str]:
    target = (
        f"three times the Cramér–Rao level, an NMSE of {level:.1e}"
        if noise
        else f"an NMSE of {level:.0e}"
    )
    reach = [name_of(key) for key, s in sums.items() if s.reaches(level)]
    short = [f"{name_of(key)} ({s.final:.0e})" for key, s in sums.items() if not s.reaches(level)]
    sentences = [f"The optimum counts as found below {target}."]
    if reach:
        sentences.append(f"It is found by {joined(reach)}.")
    if short:
        sentences.append(f"It is not found within the iterations by {joined(short)}.")
    counts = joined(f"{name_of(key)} {_count(s.passes)}" for key, s in sums.items())
    sentences.append(f"Passes over the rows to an NMSE of {goal:.0e}: {counts}.")
    rates = [f"{name_of(k)} {s.rate:.2g}" for k, s in sums.items() if s.final < 1]
    if not noise and rates:
        sentences.append(f"An iteration multiplies the error by this factor: {joined(rates)}.")
    pace = joined(f"{name_of(key)} {1e3 * s.seconds_per_pass:,.1f}" for key, s in sums.items())
    sentences.append(f"Milliseconds per pass: {pace}.")
    printed, centred = sums.get("gd_printed"), sums.get("gd_centred")
    if printed and centred and centred.reaches(level) and not printed.reaches(level):
        sentences.append(
            "Gradient descent finds the optimum once its features are standardised and its "
            "quadratic part is centred: the mean is what stops it. Skewness and kurtosis do stop "
            "the moment iteration that leaves them out (2016 MES)."
        )
    return sentences


def _count(passes: float) -> str:
    return f"{passes:.0f}" if np.isfinite(passes) else "never"


def study(panel: Panel, settings: Settings | None = None) -> Study:
    """Return the study of one panel."""
    settings = settings or Settings()
    law = law_of(settings.distribution or panel.distribution)
    noises = panel.noises if settings.noise is None else (settings.noise,)
    noise_words = " and ".join(f"{noise:g}" for noise in noises)
    less = "" if law.is_invertible else " less its diagonal"
    setting = (
        f"{law.words}, as sampled; y = xᵀw + xᵀMx + noise of sd {noise_words}, M = QQᵀ{less}, Q "
        "random orthonormal, w ~ N(0, I/d). Every iteration uses the same training rows. All "
        "solvers but the printed GD standardise the features by the training rows and fit the "
        "intercept that this makes. They stop as in the paper: at the last iteration, or when the "
        "training error changes by less than 1e-8. The error is E(ŷ−y)²/E y² on test rows. "
        f"GD: the best of the step sizes {', '.join(map(str, STEP_SIZES))} over the curvature of "
        "each block at the start, by the training error at the end. Curves are geometric means "
        "over the trials; bands go from the least to the largest."
    )
    if panel.name in "efgh":
        setting += (
            " The paper says that panels (e) to (h) show these levels under different noise: here "
            "each panel is one level, at noise 0 and 1."
        )
    elif not law.is_invertible:
        setting += " The paper does not name the noise of this panel: none is assumed."
    title = f"Panel ({panel.name}): {law.words}, noise {noise_words}"
    return Study(
        panel.name,
        About(title, panel.claim, setting),
        partial(tasks, panel, settings),
        run,
        partial(figures, panel),
        partial(verdict, panel.name),
    )


def as_run(chosen: Study, frame: Frame) -> Study:
    """Return the study with the title and the setting that its results were made with."""
    if chosen.name not in PANELS:
        return chosen
    panel = PANELS[chosen.name]
    noises = tuple(sorted(frame["noise"].unique()))
    settings = Settings(
        distribution=str(frame["distribution"].iloc[0]),
        noise=None if noises == panel.noises else float(noises[0]),
    )
    return study(panel, settings)


def customised(chosen: Study, settings: Settings, size: str) -> Study:
    """Return the study with other settings; only panels have any."""
    if chosen.name not in PANELS:
        raise SettingError(
            f"These settings change the panels a to h only; the study {chosen.name!r} has its own. "
            "Name a panel, for example with --only a."
        )
    settings.check(SIZES[size]["d"], SIZES[size]["k"])
    return study(PANELS[chosen.name], settings)


STUDIES = [study(panel) for panel in PANELS.values()]
