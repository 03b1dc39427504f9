"""The paper's figure, panels (a) to (h): the test error of MES and of gradient descent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from quadlin.core.arrays import Array
from quadlin.paper.descent import STEP_SIZES
from quadlin.paper.displays import ConvergenceDisplay
from quadlin.paper.laws import law_of
from quadlin.paper.methods import SOLVERS, name_of, points, styles
from quadlin.paper.problems import tables
from quadlin.paper.race import Race
from quadlin.paper.settings import SettingError, Settings
from quadlin.paper.solver import Setting, Solver, load_solver
from quadlin.paper.studies.panel_verdicts import verdict
from quadlin.paper.study import About, Frame, Pictures, Row, Study, Task

# rows = 30·k·d as in the paper; "full" is the paper's size.
SIZES = {
    "tiny": {"d": 24, "k": 2, "test": 500, "iterations": 12, "trials": 1},
    "quick": {"d": 100, "k": 4, "test": 2_000, "iterations": 30, "trials": 2},
    "full": {"d": 1000, "k": 10, "test": 10_000, "iterations": 50, "trials": 10},
}
# The paper draws MES and GD against iterations; the pictures of the panels have the rest.
SHOWN = {
    "iteration": ("plain", "guarded", "gd_printed", "gd_standardised", "gd_centred"),
    "passes": ("plain", "literal", "guarded", "polished", "gd_printed", "gd_centred"),
}
ERRORS = {"iteration": "nmse", "passes": "nmse_clean"}  # against y as drawn, and without noise
LOWEST, HIGHEST = 1e-14, 10.0
PALE = 0.4
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
    """Draw the test error against passes, iterations and seconds, for each noise level."""
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
