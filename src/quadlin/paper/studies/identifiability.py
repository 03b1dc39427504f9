"""What two-valued features hide of M and w, and what they do not."""

import numpy as np

from quadlin.paper.displays import LevelDisplay
from quadlin.paper.laws import law
from quadlin.paper.problems import INTERCEPT, fitted, random_truth
from quadlin.paper.study import About, Frame, Pictures, Row, Task, Verdict, grid, joined, verdict_of

CASES = {  # law, its parameter, and whether M has a diagonal of its own beside the low rank
    "Bernoulli(.1)": ("bernoulli", 0.1, False),
    "Bernoulli(.3), any diagonal": ("bernoulli", 0.3, True),
    "±1": ("bernoulli", 0.5, False),
    "Gaussian": ("gaussian", None, False),
}
QUANTITIES = {
    "prediction": "predictions",
    "off_diagonal": "M off its diagonal",
    "folded": "w + κ∘diag M",
    "diagonal": "diag M",
    "linear": "w",
}
SMALL_D = 6  # features whose products are all formed, to count what is identified
EXACT, LOST = 1e-4, 0.1  # relative errors: known up to rounding, and not known
# d, k, rows in kd, seeds
SIZES: dict[str, tuple[int, int, int, int]] = {
    "tiny": (15, 1, 30, 1),
    "quick": (40, 3, 20, 3),
    "full": (200, 5, 20, 10),
}
ABOUT = About(
    title="What two-valued features hide",
    claim="Section 3.1: where τ = 0 the model cannot be learnt unless M has no diagonal, and it "
    "can if it has none.",
    setting="Signed M of rank k *with* its diagonal, or with any diagonal, and no noise; a fit "
    "with defaults. The twin of a model has no diagonal and w + κ∘diag M for w. Hidden directions "
    f"are counted in the table of all products of {SMALL_D} features.",
)


def tasks(size: str) -> list[Task]:
    """List the tasks: one fit each."""
    d, k, multiple, seeds = SIZES[size]
    return grid(case=CASES, d=d, k=k, n=multiple * k * d, seed=range(seeds))


def run(task: Task, device: str) -> list[Row]:
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
    estimated_m = np.where(fit.has_diagonal_, np.diag(estimate), 0.0)
    kappa = features.kappa
    residual = fit.predict(Z[test]) - f[test]
    values = {
        "prediction": _relative(residual, f[test] - f[test].mean()),
        "off_diagonal": _relative(_off(estimate) - _off(M), _off(M)),
        "folded": _relative(fit.coef_ + kappa * estimated_m - w - kappa * m, w + kappa * m),
        "diagonal": _relative(estimated_m - m, m),
        "linear": _relative(fit.coef_ - w, w),
    }
    rows: list[Row] = [{"quantity": q, "value": value} for q, value in values.items()]
    # The twin has no diagonal: z² = 1 + κz moves it into w and b, where z takes two values.
    twin = INTERCEPT + m.sum() + Z @ (w + kappa * m) + np.sum((Z @ _off(M)) * Z, axis=1)
    rows.append({"quantity": "twin_prediction", "value": _relative(twin - f, f - f.mean())})
    rows.append({"quantity": "twin_parameters", "value": _relative(np.diag(m), M)})
    rows.append({"quantity": "hidden", "value": _hidden(features.draw(rng, 2000, SMALL_D))})
    rows.append({"quantity": "refused", "value": _refused(Z[train], f[train], task["k"])})
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


def _refused(X: np.ndarray, y: np.ndarray, rank: int) -> float:
    """Tell whether the fit refuses to model a diagonal that cannot be seen."""
    try:
        fitted(X, y, rank, diagonal="free", max_iter=1)
    except ValueError:
        return 1.0
    return 0.0


def figures(frame: Frame) -> Pictures:
    """Draw the relative errors, by quantity."""
    shown = frame[frame["quantity"].isin(list(QUANTITIES))]
    points = {}
    for case, part in shown.groupby("case", sort=False):
        points[case] = ([QUANTITIES[q] for q in part["quantity"]], part["value"].to_numpy())
    return {
        "identifiability": LevelDisplay(
            points,
            level=EXACT,
            level_label="known exactly, below",
            y_label="relative error",
            title="What is recovered, M with its diagonal and no noise",
            log_y=True,
        )
    }


def verdict(frame: Frame) -> Verdict:
    """Say what is lost on two-valued features, and what is not."""
    gaussian = frame["case"] == "Gaussian"
    control, two_valued = (
        frame[rows].groupby("quantity")["value"] for rows in (gaussian, ~gaussian)
    )
    least, most = two_valued.min(), two_valued.max()
    checks = {
        "the function cannot be learnt": bool(most["prediction"] > EXACT),
        "the diagonal is lost": bool(least["diagonal"] > LOST),
        "twins predict alike": bool(most["twin_prediction"] < 1e-10),
        "one direction per feature is hidden": bool(most["hidden"] == least["hidden"] == 1.0),
        "Gaussian features hide nothing": bool(control.max()["hidden"] == 0.0),
    }
    measured = (
        "On two-valued features the largest relative errors are "
        + joined(f"{most[q]:.1g} for {label}" for q, label in QUANTITIES.items())
        + f"; models that differ in M by at least {least['twin_parameters']:.2f} of it "
        f"predict alike within {most['twin_prediction']:.0e}."
    )
    words = (
        f"{most['hidden']:g} direction per feature is hidden: diag M trades against w and b, as "
        "z² = 1 + κz, and data determine only w + κ∘diag M. "
        if checks["one direction per feature is hidden"]
        else f"{least['hidden']:g} to {most['hidden']:g} directions per feature are hidden. "
    )
    names = QUANTITIES | {"folded": "that sum"}
    kept = [names[q] for q in ("prediction", "off_diagonal", "folded") if most[q] <= EXACT]
    words += (
        f"What is not lost: {', '.join(kept)}, even where the diagonal is not that of a low-rank "
        "matrix. So the claim holds in part: an M without diagonal names one of the equivalent "
        "parameter sets, but the function is learnt with any. The fit reports no diagonal here; "
        "where M is of low rank, its entries off the diagonal determine the diagonal as well. "
        if kept
        else "Nothing was recovered in every draw. "
    )
    words += (
        'With diagonal="free" the estimator refuses to model such a diagonal and explains why. '
        if least["refused"] == 1.0
        else "The estimator does not always refuse to model such a diagonal. "
    )
    words += f"On Gaussian features the diagonal is found within {control.max()['diagonal']:.0e}."
    return Verdict(measured, verdict_of(checks), words)
