"""How well a model fits: R², of which rows, and whether it had seen them."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier

from quadlin.core.messages import Message, Phrase
from quadlin.data import Source


class Quality(NamedTuple):
    """A score and where it comes from."""

    name: str  # "R²", "D²" of counts, or the score of a classifier
    value: float | None
    how: str  # which rows it is of, and how they were used
    bound: bool = False  # whether the value is only a lower bound

    def __str__(self) -> str:
        if self.value is None:
            return self.how
        return f"{'at least ' * self.bound}{self.value:.4f} {self.how}"


def quality_of(model: Any, X: Any = None, y: Any = None, sample_weight: Any = None) -> Quality:
    """Return R² of the rows given, or else what the fit itself knows about its rows."""
    name = "accuracy" if is_classifier(model) else "D²" if model.loss == "poisson" else "R²"
    if X is not None and (y is not None or isinstance(X, Source)):
        given = "on the rows given"
        if hasattr(y, "__len__"):
            given = f"on the {len(y):,} rows given"
        return Quality(name, float(model.score(X, y, sample_weight)), given)
    if name != "accuracy" and model.target_moments_.varies(np.float64)[0]:
        quality = _of_the_fit(model)
        if quality is not None:
            return quality
    return Quality(name, None, _unknown())


def _of_the_fit(model: Any) -> Quality | None:
    variance = float(model.target_moments_.var[0])
    law, history = model.fitted_.law, model.history_
    if hasattr(model, "best_score_") and model.scoring is None:  # minus the mean squared error
        folds = sum(name.startswith("split") for name in model.cv_results_)
        value = 1 + float(model.best_score_) / variance
        return Quality("R²", value, f"by cross-validation with {folds} folds")
    if model.loss == "poisson":  # half the deviance, and the penalty
        value = 1 - float(history[-1].loss) / float(history[0].loss)
        return Quality("D²", value, "on the fitted rows (training)", bound=any(model.alpha_))
    if model.loss != "squared":
        return None
    if law is not None and np.isfinite(law.noise):
        weight = float(model.moments_.weight)
        noise = law.noise * model.fitted_.state.units.target.scale
        value = 1 - noise**2 * law.left / (weight * variance)
        return Quality("R²", value, "on the fitted rows (training)")
    value = 1 - float(history[-1].loss) / variance
    if not np.isfinite(value):
        return None
    if len(history) > 1 and history[-1].passes == history[-2].passes:
        return Quality("R²", value, "on the last batch, before the model learned from it")
    if any(model.alpha_):  # the objective is the mean squared error and the penalty
        return Quality("R²", value, "on the fitted rows (training)", bound=True)
    return Quality("R²", value, "on the fitted rows (training)")


def _unknown() -> str:
    return Message(
        "not known without rows; {give}",
        give=Phrase("give X and y to compute it", "see quadlin evaluate"),
    )
