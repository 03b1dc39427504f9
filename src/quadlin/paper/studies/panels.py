"""The paper's figure, panels (a) to (h): the test error of MES and of gradient descent."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quadlin.core.arrays import Array
from quadlin.metrics import degrees_of_freedom
from quadlin.paper.methods import BUILT_IN, ROUNDING, Race, Setting, load_solver
from quadlin.paper.problems import law, sample
from quadlin.paper.studies import (
    EXACT,
    METHODS,
    Curves,
    Frame,
    Row,
    Study,
    Task,
    Verdict,
    claims,
    convergence,
    listed,
    name_of,
    series,
    study,
    text_of,
)

LEVELS = ("truncated:0", "truncated:0.001", "truncated:0.01", "truncated:0.1")
PANELS: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = {  # distributions, noises
    "a": (("truncated:0",), (0.0,)),
    "b": (("truncated:0",), (1.0,)),
    "c": (("rare",), (0.0,)),
    "d": (("bernoulli:0.1",), (0.0,)),
    "levels": (LEVELS, (0.0, 1.0)),  # the paper's panels (e) to (h)
}
SIZES = claims()["panels"]["sizes"]
BOTH = 30  # rows in which two rare features are both 1: with the paper's rows, 1 in 100 is 1
NEAR = 1e-3  # a test NMSE that is worth counting passes to
DESCENTS = ("gd_printed", "gd_standardised")
MUCH = 2.0  # times: a smaller ratio of passes or of errors counts as none
VIEWS = {"passes": "passes over the rows", "iteration": "iteration"}
LIMITS = (1e-14, 10.0)


class SettingError(ValueError):
    """A setting that is not valid; the message says which one, and what is."""


@dataclass(frozen=True)
class Settings:
    """What to change about the panels; None leaves a setting as the panel has it.

    Parameters
    ----------
    features : int or None
        Number of features d.
    rank : int or None
        Rank k of the model.
    rows : int, str or None
        Training rows: a number, or a multiple of kd such as 30kd.
    noise : float or None
        Standard deviation of the noise.
    signed : bool
        Eigenvalues of M of alternating signs.
    ratio : float
        Ratio of the largest eigenvalue of M to the smallest; they fall geometrically.
    coherent : bool
        Eigenvectors of M that are features instead of random directions.
    trials : int or None
        Number of trials.
    iterations : int or None
        Maximum number of iterations of a solver.
    distribution : str or None
        gaussian, truncated:0.1, bernoulli:0.2, exponential, ar1:0.9, or the file of a function
        draw(rng, n, d).
    methods : str or None
        Built-in methods, separated by commas; all by default.
    solver : tuple of path
        A Python file that defines solve(X, y, setting, report), see `quadlin.paper.methods`; may be
        repeated.

    Examples
    --------
    >>> Settings(features=20, rank=2, rows="30kd").rows_for(20, 2)
    1200
    >>> Settings(rank=30, features=20).check(1, 1)
    Traceback (most recent call last):
        ...
    quadlin.paper.studies.panels.SettingError: The rank (30) must not exceed the features (20).
    """

    features: int | None = None
    rank: int | None = None
    rows: int | str | None = None
    noise: float | None = None
    signed: bool = False
    ratio: float = 1.0
    coherent: bool = False
    trials: int | None = None
    iterations: int | None = None
    distribution: str | None = None
    methods: str | None = None
    solver: tuple[str, ...] = ()

    def changed(self) -> dict[str, Any]:
        """Return the settings that differ from those of the paper."""
        defaults = asdict(Settings())
        return {name: v for name, v in asdict(self).items() if v != defaults[name]}

    def rows_for(self, d: int, k: int) -> int:
        """Return the number of training rows."""
        text = str("30kd" if self.rows is None else self.rows).strip().lower()
        try:
            number = float(text.removesuffix("kd")) * (k * d if text.endswith("kd") else 1)
        except ValueError:
            number = 0.0
        if not 2 <= number < 1e9:
            raise SettingError(
                f"`rows` must be a number of rows such as 20000, or a multiple of kd such as 30kd, "
                f"not {self.rows!r}."
            )
        return int(number)

    def check(self, features: int, rank: int) -> None:
        """Check the settings; `features` and `rank` replace those not set here."""
        least = {"features": 1, "rank": 1, "trials": 1, "iterations": 1, "noise": 0, "ratio": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not bound <= value < float("inf"):
                raise SettingError(f"`{name}` must be at least {bound}, not {value!r}.")
        d, k = self.features or features, self.rank or rank
        if k > d:
            raise SettingError(f"The rank ({k}) must not exceed the features ({d}).")
        self.rows_for(d, k)
        unknown = [m for m in (self.methods or "polished").split(",") if m not in BUILT_IN]
        if unknown:
            raise SettingError(
                f"There is no method {unknown[0]!r}. Choose from: {', '.join(BUILT_IN)}."
            )
        try:
            law(self.distribution or "gaussian")
            names = [load_solver(path)[0] for path in self.solver]
        except ValueError as error:
            raise SettingError(error.args[0]) from None
        taken = [*METHODS, *(entry[0] for entry in METHODS.values())]
        for number, name in enumerate(names):
            if name in taken + names[:number]:
                raise SettingError(f"Another solver is called {name!r} already; change its NAME.")


def conditions(name: str, settings: Settings, n: int) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the distributions and the noises of a panel with n rows."""
    laws, noises = PANELS[name]
    laws = tuple(f"bernoulli:{(BOTH / n) ** 0.5:.2g}" if x == "rare" else x for x in laws)
    return (
        laws if settings.distribution is None else (settings.distribution,),
        noises if settings.noise is None else (settings.noise,),
    )


def list_tasks(settings: Settings, name: str, size: str) -> list[Task]:
    """Return one task for each trial, distribution and noise; the rows of a trial are the same."""
    s = SIZES[size]
    d, k = settings.features or s["d"], settings.rank or s["k"]
    n = settings.rows_for(d, k)
    laws, noises = conditions(name, settings, n)
    extra = {n: v for n, v in settings.changed().items() if n in ("signed", "ratio", "coherent")}
    if settings.methods:
        extra["methods"] = settings.methods
    if settings.solver:
        extra["solvers"] = "\n".join(str(Path(path).resolve()) for path in settings.solver)
    trials = settings.trials or s["trials"]
    if name == "levels" and settings.trials is None:
        trials = -(-trials // 2)  # of each of eight panels
    first = 100 * (1 + list(PANELS).index(name))
    return [
        {"distribution": str(Path(text).resolve()) if text.endswith(".py") else text}
        | {"noise": noise, "seed": first + trial, "d": d, "k": k, "rows": n}
        | {"test": s["test"], "iterations": settings.iterations or s["iterations"], **extra}
        for text in laws
        for noise in noises
        for trial in range(trials)
    ]


def run(task: Task, device: str) -> list[Row]:
    """Run every solver on the rows of one trial."""
    truth = {name: task[name] for name in ("signed", "ratio", "coherent") if name in task}
    place = (task["rows"], task["d"], task["k"], task["seed"])
    data = sample(
        task["distribution"], *place, noise=task["noise"], n_test=task["test"],
        standardised=False, dtype=np.float32, b=0.0, **truth,
    )  # fmt: skip
    X, y, X_test, y_test = (
        on_device(a, device) for a in (data.X, data.y, data.X_test, data.y_test)
    )
    setting = Setting(task["k"], data.truth.has_diagonal, task["iterations"], task["seed"])
    race = Race(X, y, X_test, y_test, setting)
    rows = [
        row for name in task.get("methods", ",".join(BUILT_IN)).split(",") for row in race.run(name)
    ]
    for path in task.get("solvers", "").splitlines():
        rows += race.run(*load_solver(path))
    power = float(np.mean(data.y_test**2))
    return [row | {"power": power} for row in rows]


def on_device(a: np.ndarray, device: str) -> Array:
    """Return the array as it is for "cpu", or as a torch tensor on another device."""
    if device == "cpu":
        return a
    import torch

    return torch.asarray(a, device=device)


def parts(frame: Frame) -> dict[str, Frame]:
    """Return the rows of each distribution and noise, by words for both."""
    groups = frame.groupby(["distribution", "noise"], sort=False)
    return {f"{law(text).words}; noise {noise:g}": part for (text, noise), part in groups}


def draw(name: str, frame: Frame) -> dict[str, Any]:
    """Draw the test error against the passes; of the levels what differs."""
    if name != "levels":
        ((title, part),) = parts(frame).items()
        curves = convergence(part, "passes", part["solver"].unique())
        words = (VIEWS["passes"], "test NMSE", f"({name}) {title}")
        return {"passes": Curves(curves, *words, log="y", limits=LIMITS)}
    last = ends(frame).assign(level=lambda f: f["distribution"].str.replace("truncated:", "a = "))
    return {
        f"ends-noise{noise:g}": Curves(
            series(part, "level", "nmse", "solver"), "x = min(x̂, a)", "last test NMSE",
            f"Panels (e) to (h) together, noise {noise:g}", log="y",
        )
        for noise, part in last.groupby("noise")
    }  # fmt: skip


@dataclass
class Together:
    """All panels in four rows of two, against iterations or passes, with one legend."""

    pictures: list[Curves]
    shape: tuple[int, int] = (4, 2)
    size: tuple[float, float] = (6.4, 10.0)

    def draw(self, axes: Any) -> None:
        """Draw each panel on axes of its own."""
        handles: dict[str, Any] = {}
        for ax, picture in zip(axes.ravel(), self.pictures, strict=False):
            picture.draw(ax, legend=False)
            ax.set_title(picture.title, fontsize="x-small")
            handles |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
        place = {"loc": "outside lower center", "ncols": 3, "frameon": False}
        axes.ravel()[0].figure.legend(handles.values(), handles.keys(), fontsize="x-small", **place)


def overview(frames: Mapping[str, Frame]) -> dict[str, Together]:
    """Return the eight panels as one figure, by passes and by iterations."""
    titled = [(f"({name}) {t}", f) for name in "abcd" for t, f in parts(frames[name]).items()]
    levels = frames["levels"][frames["levels"]["noise"] == 0]
    titled += [
        (f"({x}) {title}", f) for x, (title, f) in zip("efgh", parts(levels).items(), strict=False)
    ]
    shown = [key for key in BUILT_IN if key != "literal"]
    return {
        f"by-{x}": Together(
            [
                Curves(convergence(f, x, shown), x=label, y="test NMSE", title=title, log="y",
                       limits=LIMITS)
                for title, f in titled
            ]
        )
        for x, label in VIEWS.items()
    }  # fmt: skip


def ends(frame: Frame) -> Frame:
    """Return the last line of each solver in each trial."""
    keys = ["distribution", "noise", "seed", "solver"]
    lines = frame.sort_values("iteration", kind="stable").groupby(keys, sort=False, as_index=False)
    return lines.last().assign(nmse=lambda last: np.maximum(last["nmse"], ROUNDING))


def final_errors(frame: Frame) -> dict[str, float]:
    """Return the geometric mean over the trials of each solver's last test NMSE."""
    errors = ends(frame).groupby("solver", sort=False)["nmse"]
    return {str(key): float(np.exp(np.log(part).mean())) for key, part in errors}


def judge(name: str, frame: Frame) -> Verdict:
    """Judge the panel at each of its distributions and noises."""
    d, k, n = (int(frame[column].iloc[0]) for column in ("d", "k", "rows"))
    checks: list[bool] = []
    sentences: list[str] = []
    clean: dict[str, dict[str, float]] = {}  # final errors by distribution, without noise
    for (text, noise), part in frame.groupby(["distribution", "noise"], sort=False):
        bound = 3 * noise**2 * degrees_of_freedom(d, k) / n / part["power"].mean()
        last, goal = final_errors(part), max(NEAR, bound)
        passes = {key: passes_to(part[part["solver"] == key], goal) for key in last}
        if not {"plain", *DESCENTS} <= set(last):
            return Verdict("in part", "Not every solver of the panel was run.")
        checks.append(last["plain"] <= max(EXACT, bound))
        checks += [passes[key] > MUCH * passes["plain"] for key in DESCENTS]
        if name != "levels":
            ended = listed(f"{name_of(key)} at {value:.1e}" for key, value in last.items())
            counts = listed(f"{name_of(key)} {count:.0f}" for key, count in passes.items())
            sentences.append(f"The test NMSE ends for {ended}.")
            sentences.append(f"Passes to an NMSE of {goal:.0e}: {counts.replace('inf', 'never')}.")
        elif not noise:
            clean[text] = last
            shown = ("plain", "gaussian", *DESCENTS)
            ended = listed(f"{name_of(key)} at {last[key]:.1e}" for key in shown)
            sentences.append(f"{law(text).words}: skewness {law(text).kappa:.2f}, {ended}.")
    if name == "levels":
        first, level = clean[LEVELS[0]], clean[LEVELS[-1]]
        checks += [first[DESCENTS[0]] > EXACT, first[DESCENTS[1]] > MUCH * level[DESCENTS[1]]]
    return Verdict.of(checks, " ".join(sentences))


def passes_to(part: Frame, goal: float) -> float:
    """Return the mean number of passes to a goal; infinite if a trial does not get there."""
    reached = part[part["nmse"] <= goal].groupby("seed")["passes"].min()
    return float(reached.mean()) if len(reached) == part["seed"].nunique() else float("inf")


def panel(name: str, settings: Settings | None = None) -> Study:
    """Return the study of one panel, with other settings if there are any."""
    settings, full = settings or Settings(), SIZES["full"]
    laws, noises = conditions(name, settings, settings.rows_for(full["d"], full["k"]))
    noise = " and ".join(f"{noise:g}" for noise in noises)
    title = f"Panel ({name}): {law(laws[0]).words}, noise {noise}"
    if len(laws) > 1:
        title = "Panels (e) to (h): four truncation levels"
    return Study(
        name, text_of("panels", name) | {"title": title},
        partial(list_tasks, settings, name), run, partial(draw, name), partial(judge, name),
    )  # fmt: skip


def customised(study: Study, settings: Settings, size: str) -> Study:
    """Return the study with other settings; only panels have any."""
    if study.name not in PANELS:
        raise SettingError(
            f"These settings change the panels only; the study {study.name!r} has its own. Name a "
            "panel, for example with --only a."
        )
    settings.check(SIZES[size]["d"], SIZES[size]["k"])
    return panel(study.name, settings)


COMPARED = ("published", "plain", "gaussian", "guarded", *DESCENTS)
ITERATIONS = claims()["panels"]["sizes"]["full"]["iterations"]  # the paper's
KEPT = 60  # lines kept of a run: the first, the last and some between
PLACES = {  # features, whether the eigenvectors of M are single features, and words
    "mild": ("truncated:3", False, "min(x̂, 3)"),
    "a = 0.1": ("truncated:0.1", False, "min(x̂, 0.1)"),
    "a = 0": ("truncated:0", False, "min(x̂, 0)"),
    "a = 0, coherent": ("truncated:0", True, "min(x̂, 0), coherent U"),
    "exponential": ("exponential", False, "exponential"),
}


def run_causes(task: Task, device: str) -> list[Row]:
    """Return the test error of some of the iterations."""
    name, coherent, _ = PLACES[task["place"]]
    place = (task["n"], task["d"], task["k"], task["seed"])
    data = sample(name, *place, standardised=False, b=0.0, coherent=coherent)
    setting = Setting(task["k"], True, task["steps"], task["seed"])
    race = Race(data.X, data.y, data.X_test, data.y_test, setting, until_settled=False)
    lines = race.run(task["method"])
    kept = set(np.geomspace(1, len(lines), KEPT).astype(int) - 1) | {ITERATIONS}
    return [
        {"iteration": line["iteration"], "passes": line["passes"], "nmse": line["nmse"]}
        for number, line in enumerate(lines)
        if number in kept
    ]


def errors_at(frame: Frame, at: float = np.inf) -> Any:
    """Return the median of the last error up to an iteration, by place and method."""
    rows = frame[frame["iteration"] <= at].sort_values("iteration", kind="stable")
    last = rows.groupby(["place", "method", "seed"])["nmse"].last()
    return last.groupby(level=["place", "method"]).median()


def draw_causes(frame: Frame) -> dict[str, Any]:
    """Draw all methods, place by place."""
    return {
        f"causes-{number}": Curves(
            convergence(frame[frame["place"] == place], "passes", COMPARED, "method"),
            x="passes over the rows", y="test NMSE", title=f"x {words}, no noise", log="y",
            limits=(1e-30, 1e6),
        )
        for number, (place, (_, _, words)) in enumerate(PLACES.items())
    }  # fmt: skip


def judge_causes(frame: Frame) -> Verdict:
    """Judge what stops gradient descent, and what stops the method of 2016."""
    last, early = errors_at(frame), errors_at(frame, ITERATIONS)
    most = int(frame["iteration"].max())
    printed, standard = last["a = 0", "gd_printed"], last["a = 0", "gd_standardised"]
    mes = [last[place, "plain"] for place in PLACES]
    checks = {
        "GD as printed does not find the optimum": early["a = 0", "gd_printed"] > EXACT,
        "it is worse at a = 0": printed > 2 * last["mild", "gd_printed"],
        "skewness alone makes it worse": standard > 2 * last["mild", "gd_standardised"],
        "MES converges": max(mes) < EXACT,
    }
    measured = (
        f"At a = 0 gradient descent as printed is at an NMSE of {early['a = 0', 'gd_printed']:.1e} "
        f"after {ITERATIONS} iterations and at {printed:.1e} after {most:,}; standardised, which "
        f"leaves the skewness, at {early['a = 0', 'gd_standardised']:.1e} and {standard:.1e}. The "
        f"plain step ends at {max(mes):.1e} or below everywhere; without skewness and kurtosis "
        "(2016 MES) it ends at "
        + listed(f"{last[p, 'gaussian']:.1e} ({PLACES[p][2]})" for p in PLACES)
        + "."
    )
    return Verdict.of(checks.values(), measured)


STUDIES = [
    *(panel(name) for name in PANELS),
    study("causes", run_causes, draw_causes, judge_causes),
]
