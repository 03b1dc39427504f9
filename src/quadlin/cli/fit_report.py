"""What `quadlin fit` prints of a fitted model."""

import warnings
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np

from quadlin.cli.options import OutputOptions
from quadlin.cli.printing import aligned, message_text, number, print_answer
from quadlin.core.moments import Moments
from quadlin.data import Source
from quadlin.explain.quality import quality_of
from quadlin.explain.tables import eigenvalues_name, found_pairs, rank_of
from quadlin.solve.fits.status_advice import status_advice

CONSTANT = "none: not defined for a constant target"
ZERO_OR_ONE = (
    "The target has only the values 0 and 1. For probabilities of the two, use --classify."
)


def report_fit(
    model: Any,
    source: Source,
    output: Path,
    streamed: bool,
    r2: float | None,  # None where the objective is the mean squared error
    seconds: float,
    answer: OutputOptions,
) -> None:
    """Print what a fit of a number has come to, as a table or as JSON."""
    history, target = model.history_, model.target_moments_
    varies = bool(target.varies(np.float64)[0])
    if not varies:
        r2 = None
        if streamed:  # the other fits have warned
            value = number(float(target.mean[0]))
            text = f"The target is {value} in every row, so the model is constant."
            warnings.warn(text, stacklevel=2)
    elif r2 is None:
        r2 = 1 - history[-1].loss / float(target.var[0])
    if answer.quiet and not answer.json:
        return
    score = "D²" if model.loss == "poisson" else "R²"
    passes = 1 if streamed else getattr(model, "n_passes_", history[-1].passes)
    content = _about(model, source, output, passes, seconds) | {
        "features": len(model.coef_),
        "rank": model.rank_,
        "alpha": model.alpha_,
        "rarity": model.rarity_,
        "eigenvalues": model.eigenvalues_,
        "pairs": [pair._asdict() for pair in found_pairs(model)],
        "loss": history[-1].loss,
        "r2_last_batch" if streamed else f"{score[0]}2_train".lower(): r2,
    }
    fit_text = number(r2) if varies else CONSTANT
    table = [
        ["rank", f"{rank_of(model)}{_eigenvalues(model)}"],
        [f"{score} ({'last batch' if streamed else 'training'})", fit_text],
    ]
    if varies and hasattr(model, "best_score_"):  # which `inspect` shows
        content["r2_cv"] = quality_of(model).value
        table.append(["R² (cross-validation)", number(content["r2_cv"])])
    _print(content, table, answer.json)


def report_classes(
    model: Any, source: Source, output: Path, streamed: bool, seconds: float, answer: OutputOptions
) -> None:
    """Print what a fit of classes has come to."""
    if answer.quiet and not answer.json:
        return
    labels = model.classes_.tolist()
    parts = [model] if len(labels) == 2 else [model.one_vs_rest(label) for label in labels]
    ranks, pairs = [part.rank_ for part in parts], [found_pairs(part) for part in parts]
    losses = [part.history_[-1].loss for part in parts]
    one = len(parts) == 1
    passes = 1 if streamed else model.n_passes_
    content = _about(model, source, output, passes, seconds) | {
        "features": len(parts[0].coef_),
        "classes": labels,
        "rank": ranks[0] if one else ranks,
        "alpha": parts[0].alpha_ if one else [part.alpha_ for part in parts],
        "rarity": parts[0].rarity_ if one else [part.rarity_ for part in parts],
        "pairs": [pair._asdict() for each in pairs for pair in each],
        "loss": losses[0] if one else losses,
    }
    shown = ", ".join(map(str, labels[:8])) + (", …" if len(labels) > 8 else "")
    note = "" if one else "   one model for each class against the rest"
    count = sum(map(len, pairs))
    note += f", beside {count} pair{'s' * (count > 1)} of features" if count else ""
    table = [
        ["classes", shown],
        ["rank", ", ".join(map(str, ranks[:8])) + note],
        ["log-loss + penalty", ", ".join(map(number, losses[:8]))],
    ]
    _print(content, table, answer.json)


def is_zero_or_one(target: Moments) -> bool:
    """Tell whether a target takes the values 0 and 1 only: then its variance is μ(1 − μ)."""
    mean, var = float(target.mean[0]), float(target.var[0])
    return bool(target.has_two_values[0]) and isclose(var, mean * (1 - mean), rel_tol=1e-9)


def _about(model: Any, source: Source, output: Path, passes: int, seconds: float) -> dict[str, Any]:
    """Return what is reported about every fit."""
    return {
        "model": str(output),
        "rows": model.n_samples_seen_,
        "dropped": source.dropped,
        "status": model.status_.name,
        "advice": message_text(status_advice(model.status_, model.get_params(deep=False))),
        "steps": model.n_iter_,
        "passes": passes,
        "seconds": round(seconds, 3),
    }


def _print(content: dict[str, Any], table: list[list[str]], as_json: bool) -> None:
    passes = "1 pass" if content["passes"] == 1 else f"{content['passes']:,} passes"
    table = [
        ["rows", f"{content['rows']:,}"],
        ["features", f"{content['features']:,}"],
        *table,
        ["status", f"{content['status']}, {passes} in {content['seconds']:.1f} s"],
        ["model", content["model"]],
    ]
    print_answer(content, aligned(table, ""), as_json)


def _eigenvalues(model: Any) -> str:
    values = model.eigenvalues_
    if not len(values):
        return ""
    shown = ", ".join(number(float(value), sign=True) for value in values[:5])
    name = eigenvalues_name(model.rank_, len(model.coef_))
    return f"   {name} {shown}" + (", …" if len(values) > 5 else "")
