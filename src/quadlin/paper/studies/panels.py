"""The paper's figure, panels (a) to (h): the test error of MES and of gradient descent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quadlin.explain.displays import ConvergenceDisplay
from quadlin.paper.descent import STEP_SIZES
from quadlin.paper.laws import law_of
from quadlin.paper.methods import SOLVERS, name_of, styles
from quadlin.paper.race import Race
from quadlin.paper.samplers import on_device, tables
from quadlin.paper.settings import SettingError, Settings
from quadlin.paper.solver import Setting, Solver, load_solver
from quadlin.paper.studies.panel_verdicts import verdict
from quadlin.paper.study import Frame, Row, Study, Task

# rows = 30·k·d as in the paper; "full" is the paper's size.
SIZES = {
    "tiny": {"d": 24, "k": 2, "test": 500, "iterations": 12, "trials": 1},
    "quick": {"d": 100, "k": 4, "test": 2_000, "iterations": 30, "trials": 2},
    "full": {"d": 1000, "k": 10, "test": 10_000, "iterations": 50, "trials": 10},
}
VIEWS = {"passes": "passes over the rows", "iteration": "iteration", "seconds": "seconds"}


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


def _solvers(task: Task) -> dict[str, Solver]:
    """Return the solvers by key: our own, and those of the user."""
    solvers = dict(SOLVERS)
    for line in task.get("solver_files", "").splitlines():
        brought = load_solver(line.split("\t")[0])
        solvers[brought.name] = brought.solve
    return solvers


def figures(panel: Panel, frame: Frame) -> Mapping[str, Any]:
    """Draw the test error against passes, iterations and seconds, for each noise level."""
    shown = {}
    words = law_of(frame["distribution"].iloc[0]).words
    for noise, part in frame.groupby("noise"):
        for x, x_label in VIEWS.items():
            # The paper counts iterations and, it seems, compares with y as drawn.
            y = "nmse" if x == "iteration" else "nmse_clean"
            label = "test NMSE" if y == "nmse" or not noise else "test NMSE, y without noise"
            shown[f"{x}-noise{noise:g}"] = ConvergenceDisplay.from_trials(
                {name_of(key): trials for key, trials in curves(part, x, y).items()},
                x_label=x_label,
                y_label=label,
                title=f"({panel.name}) {words}; noise {noise:g}",
                limits=(None, 10.0),
                styles=styles(curves(part, x, y)),
                stepwise=x != "iteration",
            )
    return shown


def curves(frame: Frame, x: str, y: str) -> dict[str, list[tuple[Any, Any]]]:
    """Return the (x, y) of each trial of each solver, ours first and then the user's."""
    keys = list(dict.fromkeys(frame["solver"]))
    ordered = [key for key in SOLVERS if key in keys] + [key for key in keys if key not in SOLVERS]
    curves_of: dict[str, list[tuple[Any, Any]]] = {}
    for key in ordered:
        part = frame[frame["solver"] == key]
        trials = [t.sort_values("iteration") for _, t in part.groupby("trial")]
        curves_of[key] = [(t[x].to_numpy(), t[y].to_numpy()) for t in trials]
    return curves_of


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
    return Study(
        panel.name,
        f"Panel ({panel.name}): {law.words}, noise {noise_words}",
        panel.claim,
        setting,
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
