"""How well the models along the path of a search predict rows that were left out.

Each fold is searched again, without its rows.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils import _safe_indexing, indexable

from quadlin.core.losses import constant_deviance, log_odds, value_and_slope


def validated_path(estimator: Any, X: Any, y: Any, cv: Any, steps: int) -> list[float]:
    """Return R² of rows left out, D² of labels, with 0, 1, … `steps` of the pairs.

    In every fold the estimator chooses as it does, pairs included, from the other rows. Then its
    rank and penalties stay, and the first 0, 1, … of its pairs are given.
    """
    X, y = indexable(X, y)
    labels = is_classifier(estimator)
    if isinstance(cv, int):
        folds = StratifiedKFold if labels else KFold
        cv = folds(cv, shuffle=True, random_state=0)
    loss, constant = np.zeros(steps + 1), 0.0
    for train, test in check_cv(cv, y, classifier=labels).split(X, y):
        kept = [_safe_indexing(rows, train) for rows in (X, y)]
        left_out, target = (_safe_indexing(rows, test) for rows in (X, y))
        for step, model in enumerate(_path(clone(estimator).fit(*kept), kept, steps)):
            loss[step] += _loss(model, left_out, target)
        constant += _constant_loss(model, kept[1], target)
    values: list[float] = (1 - loss / constant).tolist()
    return values


def _path(chosen: Any, rows: list[Any], steps: int) -> Iterator[Any]:
    """Yield models with the first 0, 1, … `steps` pairs of one; the last again if it has fewer."""
    pairs = [] if chosen.pairs_ is None else chosen.pairs_.pairs
    fixed = {"rank": chosen.rank_, "alpha": chosen.alpha_}
    model = chosen
    for step in range(steps + 1):
        first = [(p.first, p.second) for p in pairs if p.order <= step]
        if step == 0 or any(p.order == step for p in pairs):
            model = clone(chosen).set_params(**fixed, pairs=first or None).fit(*rows)
        yield model


def _loss(model: Any, X: Any, y: Any) -> float:
    """Return the squared error of rows, or the deviance of labels."""
    if not is_classifier(model):
        return float(np.sum((np.asarray(y) - np.asarray(model.predict(X))) ** 2))
    f, labels = np.asarray(model.decision_function(X)), np.asarray(y) == model.classes_[1]
    return float(value_and_slope("logistic", f, labels.astype(float))[0].sum())


def _constant_loss(model: Any, training: Any, y: Any) -> float:
    """Return the same loss of the best constant for the training rows."""
    training, y = np.asarray(training), np.asarray(y)
    if not is_classifier(model):
        return float(np.sum((y - training.mean()) ** 2))
    share, f = (y == model.classes_[1]).mean(), log_odds((training == model.classes_[1]).mean())
    return len(y) * constant_deviance(float(share), float(f))
