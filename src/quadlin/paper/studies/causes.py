"""What hides parameters and slows solvers: two values, mean and skewness of features."""

from typing import Any

import numpy as np

from quadlin.paper.methods import Race, Setting
from quadlin.paper.pictures import Curves, convergence
from quadlin.paper.problems import TEST_ROWS, fitted, law, random_truth, sample
from quadlin.paper.studies.panels import DESCENTS
from quadlin.paper.study import EXACT, Frame, Row, Task, Verdict, claims, listed, study

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


def ends(frame: Frame, at: int = 10**9) -> Any:
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
    last, early = ends(frame), ends(frame, ITERATIONS)
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


CASES = {  # law, and whether M has a diagonal of its own in addition to the low rank
    "Bernoulli(.1)": ("bernoulli:0.1", False),
    "Bernoulli(.3), any diagonal": ("bernoulli:0.3", True),
    "±1": ("bernoulli:0.5", False),
    "Gaussian": ("gaussian", False),
}
ANY_DIAGONAL = "Bernoulli(.3), any diagonal"
QUANTITIES = {
    "prediction": "predictions",
    "off_diagonal": "M off its diagonal",
    "folded": "w + κ∘diag M",
    "diagonal": "diag M",
    "linear": "w",
}


def run_identifiability(task: Task, device: str) -> list[Row]:
    """Return the relative error of each quantity, and how far a twin's predictions differ."""
    name, extra = CASES[task["case"]]
    features, rng, d = law(name), np.random.default_rng(task["seed"]), task["d"]
    truth = random_truth(rng, d, task["k"], signed=True)
    M, w = truth.M + np.diag(rng.standard_normal(d)) * extra, truth.w
    n, m, kappa = task["n"], np.diag(M), features.kappa
    Z = features.draw(rng, n + TEST_ROWS, d)
    f = 1 + Z @ w + np.sum((Z @ M) * Z, axis=1)
    model = fitted(Z[:n], f[:n], task["k"])
    estimate = (model.components_.T * model.eigenvalues_) @ model.components_
    # Where the diagonal is not modelled, that of the low-rank part stands for it, and z² = 1 + κz
    # takes its share out of w.
    found = np.diag(estimate)
    w_hat = model.coef_ - np.where(model.has_diagonal_, 0.0, kappa * found)
    # The twin has no diagonal: z² = 1 + κz moves it into w and b, where z takes two values.
    twin = 1 + m.sum() + Z @ (w + kappa * m) + np.sum((Z @ _off(M)) * Z, axis=1)
    values = {
        "prediction": _relative(model.predict(Z[n:]) - f[n:], f[n:] - f[n:].mean()),
        "off_diagonal": _relative(_off(estimate) - _off(M), _off(M)),
        "folded": _relative(w_hat + kappa * found - w - kappa * m, w + kappa * m),
        "diagonal": _relative(found - m, m),
        "linear": _relative(w_hat - w, w),
        "twin": _relative(twin - f, f - f.mean()),
    }
    return [{"quantity": name, "value": value} for name, value in values.items()]


def _off(M: np.ndarray) -> np.ndarray:
    return np.asarray(M - np.diag(np.diag(M)))


def _relative(error: np.ndarray, size: np.ndarray) -> float:
    return float(np.linalg.norm(error) / np.linalg.norm(size))


def draw_identifiability(frame: Frame) -> dict[str, Any]:
    """Draw the relative errors, by quantity."""
    shown = frame[frame["quantity"].isin(list(QUANTITIES))]
    points = {
        case: (part["quantity"].map(QUANTITIES).to_numpy(), part["value"].to_numpy())
        for case, part in shown.groupby("case", sort=False)
    }
    title = "What is recovered, M with its diagonal and no noise"
    level = (EXACT, "known exactly, below")
    return {
        "identifiability": Curves(points, y="relative error", title=title, log="y", level=level)
    }


def judge_identifiability(frame: Frame) -> Verdict:
    """Say what is lost on two-valued features, and what is not."""
    groups = {"any": frame["case"] == ANY_DIAGONAL, "Gaussian": frame["case"] == "Gaussian"}
    groups["low"] = ~groups["any"] & ~groups["Gaussian"]
    least, most = (
        {g: getattr(frame[rows].groupby("quantity")["value"], of)() for g, rows in groups.items()}
        for of in ("min", "max")
    )
    checks = {
        "a diagonal of its own is lost": least["any"]["diagonal"] > EXACT,
        "twins predict alike": most["any"]["twin"] < 1e-10,
        "that of a low-rank M is lost": least["low"]["diagonal"] > EXACT,
        "the function cannot be learnt": most["any"]["prediction"] > EXACT,
    }

    def errors(group: str) -> str:
        return listed(f"{most[group][q]:.0e} for {words}" for q, words in QUANTITIES.items())

    measured = (
        "On two-valued features the largest relative errors are, for an M of low rank, "
        f"{errors('low')}; with any diagonal added to it, {errors('any')}."
    )
    return Verdict.of(checks.values(), measured)


STUDIES = (
    study("causes", run_causes, draw_causes, judge_causes),
    study("identifiability", run_identifiability, draw_identifiability, judge_identifiability),
)
