"""How well a model fits: R², of which rows, and whether it had seen them."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier

from quadlin.core.arrays import to_numpy, unflagged
from quadlin.data import Source
from quadlin.solve.lowrank.types import Status

TRAINING = "on the fitted rows (training)"
UNKNOWN = "not known without rows; give X and y to compute it"


class Quality(NamedTuple):
    """A score and where it comes from."""

    name: str  # "R²", "D²" of counts, or the score of a classifier
    value: float | None
    how: str  # the rows it was computed from, and how they were used
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
    return Quality(name, None, UNKNOWN)


def _of_the_fit(model: Any) -> Quality | None:
    variance = float(model.target_moments_.var[0])
    fitted, history = model.fitted_, model.history_
    law = fitted.law
    if hasattr(model, "best_score_") and model.scoring is None:  # minus the mean squared error
        folds = sum(name.startswith("split") for name in model.cv_results_)
        value = 1 + float(model.best_score_) / variance
        return Quality("R²", value, f"by cross-validation with {folds} folds")
    if fitted.train_score is not None:
        return Quality("D²" if model.loss == "poisson" else "R²", fitted.train_score, TRAINING)
    if model.loss == "poisson":  # half the deviance, and the penalty
        value = 1 - float(history[-1].loss) / float(history[0].loss)
        return Quality("D²", value, TRAINING, bound=any(model.alpha_))
    if model.loss != "squared":
        return None
    if law is not None and np.isfinite(law.noise):
        noise = law.noise * fitted.state.units.target.scale
        value = 1 - noise**2 * law.left / (law.left + law.dof) / variance
        return Quality("R²", value, TRAINING)
    value = 1 - float(history[-1].loss) / variance
    if not np.isfinite(value):
        return None
    if len(history) > 1 and history[-1].passes == history[-2].passes:
        return Quality("R²", value, "on the last batch, before the model learned from it")
    penalty = _penalty(model)
    if penalty is None:
        return Quality("R²", value, TRAINING, bound=True)
    return Quality("R²", value + penalty / variance, TRAINING)


@unflagged
def _penalty(model: Any) -> float | None:
    """Return the part of the objective that is no squared error; None where it is not known.

    Of one-hot fields it is not: constants have moved between their levels after the fit. Nor is it
    of pairs, which may have a penalty of their own.
    """
    fitted = model.fitted_
    if not any(model.alpha_):
        return 0.0
    if len(fitted.fields) or fitted.state.parts or fitted.status is Status.interrupted:
        return None
    low_rank, units = fitted.state.low_rank, fitted.state.units
    arrays = (units.penalty_scale, low_rank.w, low_rank.U, low_rank.s)
    rho, w, U, s = (to_numpy(a).astype(np.float64) for a in arrays)
    E = rho[:, None] * U
    squares = model.alpha_[0] * np.sum((rho * w) ** 2) if model.fit_linear else 0.0
    squares += 2 * model.alpha_[1] * np.sum(((E.T @ E) * s) * ((E.T @ E) * s).T)
    penalty = float(units.target.scale**2 * squares / float(model.moments_.weight))
    return penalty if np.isfinite(penalty) else None
