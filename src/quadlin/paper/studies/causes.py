"""What hides parameters and slows solvers: two values, mean and skewness of features."""

import numpy as np

from quadlin.paper.displays import ConvergenceDisplay, LevelDisplay
from quadlin.paper.laws import law
from quadlin.paper.methods import METHODS, SOLVERS, errors_by_method, styles, trials
from quadlin.paper.problems import INTERCEPT, fitted, random_truth, tables
from quadlin.paper.race import STEP_SIZES, Race, Setting
from quadlin.paper.study import (
    About,
    Frame,
    Pictures,
    Row,
    Study,
    Task,
    Verdict,
    grid,
    joined,
    verdict_of,
)

CASES = {  # law, its parameter, and whether M has a diagonal of its own beside the low rank
    "Bernoulli(.1)": ("bernoulli", 0.1, False),
    "Bernoulli(.3), any diagonal": ("bernoulli", 0.3, True),
    "±1": ("bernoulli", 0.5, False),
    "Gaussian": ("gaussian", None, False),
}
ANY_DIAGONAL = "Bernoulli(.3), any diagonal"
QUANTITIES = {
    "prediction": "predictions",
    "off_diagonal": "M off its diagonal",
    "folded": "w + κ∘diag M",
    "diagonal": "diag M",
    "linear": "w",
}
SMALL_D = 6  # features whose products are all formed, to count what is identified
KNOWN, UNKNOWN = 1e-4, 0.1  # relative errors: known up to rounding, and not known
# d, k, rows in kd, seeds
IDENTIFIABILITY_SIZES: dict[str, tuple[int, int, int, int]] = {
    "tiny": (15, 1, 30, 1),
    "quick": (40, 3, 20, 3),
    "full": (200, 5, 20, 10),
}
IDENTIFIABILITY_ABOUT = About(
    title="What two-valued features hide",
    claim="Section 3.1: where τ = 0 the model cannot be learnt unless M has no diagonal, and it "
    "can if it has none.",
    setting="Signed M of rank k *with* its diagonal, or with any diagonal, and no noise; a fit "
    "with defaults. The twin of a model has no diagonal and w + κ∘diag M for w. Hidden directions "
    f"are counted in the table of all products of {SMALL_D} features.",
)


def list_identifiability(size: str) -> list[Task]:
    """List the tasks: one fit each."""
    d, k, multiple, seeds = IDENTIFIABILITY_SIZES[size]
    return grid(case=CASES, d=d, k=k, n=multiple * k * d, seed=range(seeds))


def run_identifiability(task: Task, device: str) -> list[Row]:
    """Return the relative error of each quantity, and what twins and counting say."""
    name, parameter, extra = CASES[task["case"]]
    features, rng, d = law(name, parameter), np.random.default_rng(task["seed"]), task["d"]
    truth = random_truth(rng, d, task["k"], signed=True)
    M, w = truth.M, truth.w
    if extra:
        M = M + np.diag(rng.standard_normal(d))
    Z = features.draw(rng, task["n"] + 2000, d)
    f = INTERCEPT + Z @ w + np.sum((Z @ M) * Z, axis=1)
    train, test = slice(0, task["n"]), slice(task["n"], None)
    fit = fitted(Z[train], f[train], task["k"])
    estimate = (fit.components_.T * fit.eigenvalues_) @ fit.components_
    m = np.diag(M)
    # Where the diagonal is not modelled, that of the low-rank part stands for it, and z² = 1 + κz
    # takes its share out of w.
    estimated_m, kappa = np.diag(estimate), features.kappa
    w_hat = fit.coef_ - np.where(fit.has_diagonal_, 0.0, kappa * estimated_m)
    residual = fit.predict(Z[test]) - f[test]
    values = {
        "prediction": _relative(residual, f[test] - f[test].mean()),
        "off_diagonal": _relative(_off(estimate) - _off(M), _off(M)),
        "folded": _relative(w_hat + kappa * estimated_m - w - kappa * m, w + kappa * m),
        "diagonal": _relative(estimated_m - m, m),
        "linear": _relative(w_hat - w, w),
    }
    rows: list[Row] = [{"quantity": q, "value": value} for q, value in values.items()]
    # The twin has no diagonal: z² = 1 + κz moves it into w and b, where z takes two values.
    twin = INTERCEPT + m.sum() + Z @ (w + kappa * m) + np.sum((Z @ _off(M)) * Z, axis=1)
    rows.append({"quantity": "twin_prediction", "value": _relative(twin - f, f - f.mean())})
    rows.append({"quantity": "twin_parameters", "value": _relative(np.diag(m), M)})
    rows.append({"quantity": "hidden", "value": _hidden(features.draw(rng, 2000, SMALL_D))})
    return rows


def _off(M: np.ndarray) -> np.ndarray:
    return np.asarray(M - np.diag(np.diag(M)))


def _relative(error: np.ndarray, size: np.ndarray) -> float:
    return float(np.linalg.norm(error) / np.linalg.norm(size))


def _hidden(Z: np.ndarray) -> float:
    """Return how many directions of (b, w, M) move no prediction, for each feature."""
    d = Z.shape[1]
    i, j = np.triu_indices(d)
    design = np.column_stack([np.ones(len(Z)), Z, Z[:, i] * Z[:, j]])
    return float((design.shape[1] - np.linalg.matrix_rank(design)) / d)


def draw_identifiability(frame: Frame) -> Pictures:
    """Draw the relative errors, by quantity."""
    shown = frame[frame["quantity"].isin(list(QUANTITIES))]
    points = {}
    for case, part in shown.groupby("case", sort=False):
        points[case] = ([QUANTITIES[q] for q in part["quantity"]], part["value"].to_numpy())
    return {
        "identifiability": LevelDisplay(
            points,
            level=KNOWN,
            level_label="known exactly, below",
            y_label="relative error",
            title="What is recovered, M with its diagonal and no noise",
            log_y=True,
        )
    }


def judge_identifiability(frame: Frame) -> Verdict:
    """Say what is lost on two-valued features, and what is not."""
    cases = {
        "Gaussian": frame["case"] == "Gaussian",
        "any": frame["case"] == ANY_DIAGONAL,
    }
    cases["low"] = ~cases["Gaussian"] & ~cases["any"]
    least, most = (
        {
            case: getattr(frame[rows].groupby("quantity")["value"], of)()
            for case, rows in cases.items()
        }
        for of in ("min", "max")
    )
    checks = {
        "a diagonal of its own is lost": bool(least["any"]["diagonal"] > UNKNOWN),
        "twins predict alike": bool(most["any"]["twin_prediction"] < 1e-10),
        "that of a low-rank M is lost": bool(least["low"]["diagonal"] > UNKNOWN),
        "the function cannot be learnt": bool(most["any"]["prediction"] > KNOWN),
    }
    measured = (
        "On two-valued features the largest relative errors are, for an M of low rank, "
        + joined(f"{most['low'][q]:.0e} for {label}" for q, label in QUANTITIES.items())
        + "; with any diagonal added to it, "
        + joined(f"{most['any'][q]:.0e} for {label}" for q, label in QUANTITIES.items())
        + "."
    )
    words = (
        "One direction per feature is hidden among all M: as z² = 1 + κz, diag M trades against w "
        "and b, and models that differ in M by "
        f"{least['any']['twin_parameters']:.2f} of it predict alike within "
        f"{most['any']['twin_prediction']:.0e}. So a diagonal of its own is lost. That of a "
        "low-rank M is not: the entries off the diagonal determine the factor, our own low-rank "
        "part has its diagonal, and w follows. The function itself is learnt in either case. On "
        f"Gaussian features the diagonal is found within {most['Gaussian']['diagonal']:.0e}."
    )
    return Verdict(measured, verdict_of(checks), words)


PAPER = (0.0, 0.001, 0.01, 0.1)  # the levels of min(x, a) that the paper compares
LEVEL_STYLES = {  # of the paper's levels, for the picture that shows them together
    0.0: {"color": "#D55E00", "linestyle": "-", "marker": "o"},
    0.001: {"color": "#0072B2", "linestyle": "--", "marker": "s"},
    0.01: {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    0.1: {"color": "#000000", "linestyle": ":", "marker": "D"},
    1.0: {"color": "#CC79A7", "linestyle": (0, (5, 1)), "marker": "v"},
}
DESCENTS = ("gd_printed", "gd_standardised", "gd_centred")
COMPARED = ("plain", "guarded", *DESCENTS)
SOLVED = 1e-6  # test NMSE
STUCK = 0.5  # an NMSE that the later half of the iterations leaves at more than this share of it
SKEWNESS_TEST_ROWS = 2000
ITERATIONS = 50  # the paper's
KEPT = 100  # lines kept of a run: the first and some of the rest
# d, k, rows in kd, levels, seeds, most iterations of MES and of gradient descent
SKEWNESS_SIZES: dict[str, tuple[int, int, int, tuple[float, ...], int, tuple[int, int]]] = {
    "tiny": (15, 2, 30, (1.0, 0.0), 1, (12, 40)),
    "quick": (30, 3, 30, (1.0, *PAPER[::-1]), 2, (40, 200)),
    "full": (100, 5, 30, (3.0, 1.0, *PAPER[::-1], -1.0), 3, (50, 1000)),
}
SKEWNESS_ABOUT = About(
    title="Section 5: gradient descent, skewness and the mean",
    claim="Section 5: as a → 0 the features min(x, a) grow more skewed and gradient descent gets "
    "worse, until at a = 0 it cannot find the optimum; MES converges linearly for any a.",
    setting="Features min(x̂, a) as sampled, M positive, no noise, the same 30kd rows in every "
    "iteration, no rule for stopping but the number of iterations. Gradient descent as printed "
    "(Eq. 4, features as sampled, no intercept), on standardised features with an intercept, and "
    f"with a centred quadratic part; from a spectral start, at the best of {len(STEP_SIZES)} step "
    "sizes.",
)


def list_skewness(size: str) -> list[Task]:
    """List the tasks: one run each."""
    d, k, multiple, levels, seeds, (few, many) = SKEWNESS_SIZES[size]
    plan = grid(method=COMPARED, a=levels, d=d, k=k, n=multiple * k * d, seed=range(seeds))
    return [task | {"steps": many if task["method"] in DESCENTS else few} for task in plan]


def run_skewness(task: Task, device: str) -> list[Row]:
    """Return the test error of the iterations, of gradient descent at its best step size."""
    d, k, seed = task["d"], task["k"], task["seed"]
    features = law("truncated", task["a"])
    train, test = tables(features, (task["n"], SKEWNESS_TEST_ROWS), d, k, seed)
    X, X_test = (t.X.astype(np.float64) for t in (train, test))
    setting = Setting(k, True, task["steps"], seed)
    race = Race(X, train.f, X_test, test.f, test.f, setting, until_settled=False)
    lines = race.run(task["method"], SOLVERS[task["method"]])
    kept = set(np.unique(np.geomspace(1, len(lines), KEPT).astype(int) - 1).tolist())
    kept |= {0, len(lines) // 2, len(lines) - 1}
    return [
        {"t": line["iteration"], "passes": line["passes"], "nmse": line["nmse"]}
        | {"kappa": features.kappa, "step_size": line["step_size"] or 0.0}
        for number, line in enumerate(lines)
        if number in kept
    ]


def ends(frame: Frame) -> Frame:
    """Return the last error of each run, and the share that its later half leaves."""
    entries = []
    for (method, a, seed), part in frame.groupby(["method", "a", "seed"]):
        part = part.sort_values("t")
        half = part[part["t"] >= part["t"].iloc[-1] // 2].iloc[0]
        last = part.iloc[-1]
        entries.append(
            {"method": method, "a": a, "seed": seed, "kappa": last["kappa"], "last": last["nmse"]}
            | {"left": last["nmse"] / max(half["nmse"], 1e-300)}
        )
    return type(frame)(entries)


def draw_skewness(frame: Frame) -> Pictures:
    """Draw all methods at a = 0, all of the paper's levels for GD, and the end against a."""
    pictures: Pictures = {
        "skewness_curves": errors_by_method(
            frame[frame["a"] == 0], title="x = min(x̂, 0), no noise", limits=(1e-16, 10.0)
        )
    }
    shown = frame[frame["a"].isin(LEVEL_STYLES)].sort_values("a", kind="stable")
    for method in ("gd_printed", "gd_standardised", "plain"):
        rows = shown[shown["method"] == method]
        pictures[f"skewness_levels_{method}"] = ConvergenceDisplay.from_trials(
            trials(rows, "t", "nmse", "a", "a = {:g}".format),
            title=f"{METHODS[method].name}: the truncation levels together",
            limits=(1e-16, 10.0),
            styles={f"a = {a:g}": style for a, style in LEVEL_STYLES.items()},
        )
    last = ends(frame)
    pictures["skewness_end"] = LevelDisplay(
        {
            METHODS[m].name: (
                [f"{a:g}" for a in last[last["method"] == m]["a"]],
                np.maximum(last[last["method"] == m]["last"], 1e-30).to_numpy(),
            )
            for m in COMPARED
        },
        level=SOLVED,
        level_label="solved, below",
        x_label="truncation level a",
        y_label="last test NMSE",
        title="Where the iterations end",
        log_y=True,
        styles=styles(COMPARED),
    )
    return pictures


def judge_skewness(frame: Frame) -> Verdict:
    """Judge: is gradient descent as printed stuck at a = 0, and is MES not?"""
    last = ends(frame)

    def median(what: str, method: str, a: float) -> float:
        rows = last[(last["method"] == method) & (last["a"] == a)]
        return float(rows[what].median())

    def solved(method: str) -> str:
        """Return after how many iterations the median run at a = 0 is below SOLVED."""
        runs = frame[(frame["method"] == method) & (frame["a"] == 0)]
        below = runs[runs["nmse"] <= SOLVED].groupby("seed")["t"].min()
        typical = float(np.median([below.get(seed, np.inf) for seed in runs["seed"].unique()]))
        return f"after {typical:.0f} iterations" if np.isfinite(typical) else "never"

    early = frame[frame["t"] <= ITERATIONS].query("method == 'gd_printed' and a == 0")
    printed = float(early.sort_values("t").groupby("seed")["nmse"].last().median())
    mild, least = float(frame["a"].max()), float(frame["a"].min())
    iterations = int(frame[frame["method"] == "gd_printed"]["t"].max())
    mes = last[(last["method"] == "plain") & (last["a"] >= 0)]
    checks = {
        "GD as printed does not find the optimum at a = 0": printed > SOLVED,
        "it is worse at a = 0": median("last", "gd_printed", 0.0)
        > 2 * median("last", "gd_printed", mild),
        "skewness alone stops GD": median("last", "gd_standardised", 0.0) > SOLVED,
        "MES converges at every a": bool(((mes["last"] < SOLVED) | (mes["left"] < STUCK)).all()),
    }
    measured = (
        f"At a = 0 gradient descent as printed is at an NMSE of {printed:.1e} after "
        f"{min(ITERATIONS, iterations)} iterations and at {median('last', 'gd_printed', 0.0):.1e} "
        f"after {iterations:,}; standardised it ends at "
        f"{median('last', 'gd_standardised', 0.0):.1e} and centred at "
        f"{median('last', 'gd_centred', 0.0):.1e}. The plain step is at "
        f"{median('last', 'plain', 0.0):.1e} after {int(frame['steps'].min())}."
    )
    words = (
        f"At a = {mild:g} gradient descent as printed ends at "
        f"{median('last', 'gd_printed', mild):.1e}, at a = 0 at "
        f"{median('last', 'gd_printed', 0.0):.1e}. Standardising removes the mean of the features "
        f"and leaves their skewness. An NMSE of {SOLVED:g} is reached at a = 0 (in the median, "
        f"within {iterations:,} iterations) {solved('gd_printed')} as printed, "
        f"{solved('gd_standardised')} standardised and {solved('gd_centred')} with a centred "
        "quadratic part. So the mean is what slows gradient descent down, more than the skewness. "
    )
    paper = [a for a in PAPER if (frame["a"] == a).any()]
    skew = frame.groupby("a")["kappa"].first().abs()
    if len(paper) > 1:
        words += (
            f"The paper's levels a = {min(paper):g} to {max(paper):g} differ in skewness by only "
            f"{max(skew[a] for a in paper) - min(skew[a] for a in paper):.2f}; gradient descent as "
            "printed ends at "
            + joined(f"{median('last', 'gd_printed', a):.1e} (a = {a:g})" for a in paper)
            + " there. "
        )
    if least < 0:
        words += (
            f"Beyond the paper's levels, at a = {least:g} with a skewness of {-skew[least]:.1f}, "
            f"these rows are too few for the plain step, which ends at "
            f"{median('last', 'plain', least):.1e}; the guarded one ends at "
            f"{median('last', 'guarded', least):.1e}."
        )
    words = words.strip().replace(" -", " −")
    return Verdict(measured, verdict_of(checks), words)


STUDIES = (
    Study(
        "identifiability",
        IDENTIFIABILITY_ABOUT,
        list_identifiability,
        run_identifiability,
        draw_identifiability,
        judge_identifiability,
    ),
    Study("skewness", SKEWNESS_ABOUT, list_skewness, run_skewness, draw_skewness, judge_skewness),
)
