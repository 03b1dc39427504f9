"""The report of a model: what it has learned, as plain data and as a page of HTML."""

import math
from typing import Any

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.version import __version__
from quadlin.explain.effects import MOST_COLUMNS, Effects
from quadlin.explain.page import model_page
from quadlin.explain.pictures import pictures_of
from quadlin.explain.quality import quality_of
from quadlin.explain.tables import found_pairs, left_side, pairs_are_named, rank_of
from quadlin.solve.fits.status_advice import status_advice
from quadlin.solve.fits.uncertainty import Uncertainty

REGRESSIONS = ("squared", "huber")


def report_page(model: Any, X: Any, y: Any, target: str | None, top: int) -> str:
    """Return the page of a fitted estimator; see `SecondOrderRegressor.report`."""
    name = target or getattr(y, "name", None)
    content = describe(model, max(0, top), X, y, None if name is None else str(name))
    content["diagnosis"] = content["diagnosis"].splitlines()
    about = f" about {content['target']}" if content["target"] else ""
    title = f"What the model says{about}"
    return model_page(title, content, pictures_of(model, X, content["target"]))


def describe(
    model: Any, top: int, X: Any = None, y: Any = None, target: str | None = None
) -> dict[str, Any]:
    """Return what a fitted model has learned, as plain data.

    Parameters
    ----------
    model : fitted estimator
        Its public attributes are read.
    top : int
        How many interactions, linear terms and columns to list, the strongest first.
    X, y : rows and targets, or None
        Rows to measure R² and effects with.
    target : str or None
        Name of the target; by default that of the column it was read from, where that is known.

    Returns
    -------
    dict
        The parts of the answer by name.
    """
    law, view = model.fitted_.law, model.interactions_
    errors = None if law is None or math.isnan(law.noise) else mean_slope_errors(model)
    interactions = [
        pair._asdict() | ({"std_error": None} if errors is None else {})
        for pair in view.top(top, squares=True)
    ]
    quality = quality_of(model, X, y)
    target = target or getattr(model.fitted_.columns, "target", None)
    noise = float(getattr(model, "noise_", math.nan))
    return {
        "class": type(model).__name__,
        "version": __version__,
        "target": target,
        "formula": f"{_bracketed(left_side(model, target))} = b + xᵀw + xᵀMx",
        "rows": model.n_samples_seen_,
        "features": len(view.names),
        "rank": model.rank_,
        "rank_in_words": rank_of(model),
        "alpha": list(model.alpha_),
        "rarity": model.rarity_,
        "intercept": float(model.intercept_),
        "eigenvalues": to_numpy(model.eigenvalues_).tolist(),
        "noise": noise if math.isfinite(noise) else None,
        "score": quality.name,
        "r2": quality.value,
        "r2_of": quality.how,
        "r2_is_bound": quality.bound,
        "status": model.status_.name,
        "advice": status_advice(model.status_, model.get_params(deep=False)),
        "std_errors": None if errors is None else _kind_of_errors(model, law),
        "interactions": interactions,
        "linear": _strongest_slopes(model, errors, top),
        "found_pairs": [pair._asdict() for pair in found_pairs(model)],
        "pairs_are_named": pairs_are_named(model),
        "effects": _effects(model, top, X),
        "history": [
            {"step": r.step, "passes": r.passes, "loss": float(r.loss)} for r in model.history_
        ],
        "diagnosis": model.diagnose(),
    }


def _strongest_slopes(model: Any, errors: np.ndarray | None, top: int) -> list[dict[str, Any]]:
    names, coef = model.interactions_.names, to_numpy(model.coef_).astype(float)
    slopes = mean_slopes(model)
    strength = slopes * np.sqrt(to_numpy(model.moments_.var))
    order = np.argsort(-np.abs(strength), kind="stable")[:top]
    return [
        {
            "feature": names[j],
            "slope": float(slopes[j]),
            "strength": float(strength[j]),
            "std_error": None if errors is None else float(errors[j]),
            "coefficient": float(coef[j]),
        }
        for j in order.tolist()
        if slopes[j] != 0
    ]


def _bracketed(words: str) -> str:
    """Return words in which an equals sign does not look like that of the formula."""
    return f"({words})" if "=" in words else words


def _kind_of_errors(model: Any, law: Uncertainty) -> str:
    """Return which standard errors those of coefficients are; those of pairs are always robust."""
    if law.robust:
        return "robust to noise that differs between rows"
    return "for equal noise in all rows" if model.loss in REGRESSIONS else "of the likelihood"


def _effects(model: Any, top: int, X: Any) -> dict[str, Any] | None:
    if len(model.decomposition().columns) > MOST_COLUMNS:
        return None
    effects: Effects = model.effects(X)
    return {
        "rows": effects.rows,
        "reference": effects.reference,
        "columns": [{"column": e.first, "strength": e.strength} for e in effects.columns[:top]],
        "pairs": [effect._asdict() for effect in effects.pairs[:top]],
        "levels": [level._asdict() for level in effects.strongest_levels(top)],
        "are_centred": bool(model.fitted_.fields),
    }


def mean_slopes(model: Any) -> np.ndarray:
    r"""Return :math:`w + 2 M \mu` (d,), in the user's units, μ the means of the fitted rows.

    Where there are products, w alone is the slope where all other features are zero, which no row
    may be near. Levels of one column are never together, so M has no products of them.
    """
    view, mean = model.interactions_, to_numpy(model.moments_.mean).astype(float)
    factor, signs = view.factor, view.signs
    Mx = factor @ (signs * (mean @ factor))
    lone = ~view.has_diagonal & (view.field < 0)
    Mx[lone] -= (np.sum(factor * signs * factor, axis=1) * mean)[lone]
    for number in range(int(view.field.max(initial=-1)) + 1):
        group = np.flatnonzero(view.field == number)
        Mx[group] -= factor[group] @ (signs * (mean[group] @ factor[group]))
    return np.asarray(to_numpy(model.coef_).astype(float) + 2 * Mx)


def mean_slope_errors(model: Any) -> np.ndarray:
    """Return the standard errors of the slopes (d,). Needs a law of the errors."""
    fitted, mean = model.fitted_, to_numpy(model.moments_.mean).astype(float)
    return np.asarray(fitted.law.slope_std(mean, fitted.fields))
