"""Classifiers in the commands that use a model: one class of several, probabilities, scores."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from quadlin.cli.options import UsageError
from quadlin.cli.printing import number
from quadlin.core.arrays import to_numpy
from quadlin.data import Source, SourceError
from quadlin.estimators.labels.logistic_model import LogisticModel
from quadlin.estimators.regression.predicting import NO_WEIGHT

SMALLEST_SHARE = 1e-12  # of a class that was never seen
LABEL = "prediction"  # the column of labels
FITTED_SHARES = "for the shares of the classes among the fitted rows"
COMMONEST = "for the class that is most frequent among the fitted rows"


def one_of(model: Any, label: str | None) -> Any:
    """Return the model of a class; one must be named where there are more than two."""
    if label is None:
        if isinstance(model, LogisticModel) and len(model.classes_) > 2:
            labels = ", ".join(map(str, model.classes_))
            raise UsageError(f"There is one model per class: name one of {labels} with --label.")
        return model
    if not isinstance(model, LogisticModel):
        raise UsageError("--label is for classifiers, and this model predicts numbers.")
    names = {str(each): each for each in model.classes_.tolist()}
    if label not in names:
        raise UsageError(f"--label {label} is not one of {', '.join(names)}.")
    return model if len(names) == 2 else model.one_vs_rest(names[label])


def columns_of(model: LogisticModel) -> list[str]:
    """Return the names of the columns of probabilities."""
    return [f"probability={label}" for label in model.classes_]


def predicted(model: LogisticModel, rows: Source, named: bool) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield probabilities chunk by chunk, and beside them what was kept and the labels."""
    for chunk, P, labels in model.predict_chunks(rows):
        beside = chunk.kept_columns
        if named:
            beside = with_labels(beside, labels)
        yield np.asarray(P, dtype=np.float64), beside


def with_labels(kept: Any, labels: np.ndarray) -> Any:
    """Return a table of the columns that were kept, if any, and of labels."""
    import pyarrow as pa

    column = pa.array(labels.astype(str) if labels.dtype.kind in "OU" else labels)
    if kept is None:
        return pa.table({LABEL: column})
    return kept.append_column(LABEL, column)


def scores(model: LogisticModel, rows: Source) -> dict[str, Any]:
    """Return AUC (of two classes), log-loss and accuracy; 16 bytes per row are kept for the AUC."""
    values, codes, weights = [], [], []
    right = 0.0
    for chunk, P, labels in model.predict_chunks(rows):
        truth = model.classes_[_codes(to_numpy(chunk.y), rows, model)]
        weight = np.ones(len(truth)) if chunk.weight is None else to_numpy(chunk.weight)
        right += float(weight @ (to_numpy(labels) == truth))
        values.append(to_numpy(P))
        codes.append(np.searchsorted(model.classes_, truth))
        weights.append(weight)
    P, y, weight = (np.concatenate(parts) for parts in (values, codes, weights))
    if not weight.sum() > 0:
        raise ValueError(NO_WEIGHT)
    every, constant = np.arange(len(model.classes_)), class_shares(model)
    two = len(every) == 2 and len(np.unique(y[weight > 0])) == 2
    return {
        "rows": len(y),
        "auc": float(roc_auc_score(y, P[:, 1], sample_weight=weight)) if two else None,
        "log_loss": float(log_loss(y, P, labels=every, sample_weight=weight)),
        "log_loss_constant": float(weight @ -np.log(constant[y])) / float(weight.sum()),
        "accuracy": right / float(weight.sum()),
        "accuracy_constant": float(weight @ (y == np.argmax(constant))) / float(weight.sum()),
        "classes": model.classes_.tolist(),
    }


def class_shares(model: LogisticModel) -> np.ndarray:
    """Return the shares of the classes among the fitted rows, none of them 0."""
    parts = getattr(model.fitted_, "parts", (model.fitted_,))
    shares = np.array([float(part.state.target.mean[0]) for part in parts])
    if len(shares) == 1:
        shares = np.array([1 - shares[0], shares[0]])
    shares = np.maximum(shares, SMALLEST_SHARE)
    return np.asarray(shares / shares.sum())


def _codes(y: np.ndarray, rows: Source, model: LogisticModel) -> np.ndarray:
    """Return the numbers of the classes of targets, which are labels or positions of them."""
    if rows.labels is not None:
        return y.astype(np.int64)  # the source was opened with the labels of the model
    numbers = model.classes_.dtype.kind not in "OU"
    strange = np.flatnonzero(~np.isin(y, model.classes_)) if numbers else np.arange(len(y))
    if len(strange):
        labels = ", ".join(map(str, model.classes_))
        raise SourceError(
            f"The target is {number(float(y[strange[0]]))} in row {strange[0]} (counted from 0), "
            f"but the classes of the model are {labels}. Name the column of labels with --target."
        )
    return np.searchsorted(model.classes_, y)


def score_table(content: dict[str, Any]) -> list[list[str]]:
    """Return the scores as lines to print."""
    table = [["rows", f"{content['rows']:,}", ""]]
    if content["auc"] is not None:
        table.append(["AUC", number(content["auc"]), "0.5 for guessing, 1 is perfect"])
    return [
        *table,
        ["log-loss", number(content["log_loss"]), "of the probabilities, 0 is perfect"],
        ["log-loss, constant", number(content["log_loss_constant"]), FITTED_SHARES],
        ["accuracy", f"{100 * content['accuracy']:.1f}%", "of the labels are predicted"],
        ["accuracy, constant", f"{100 * content['accuracy_constant']:.1f}%", COMMONEST],
    ]
