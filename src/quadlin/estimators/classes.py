"""Class labels as numbers: which classes there are, and what rows of each weigh."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from quadlin.core.arrays import is_numpy, to_numpy
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.data.columns import missing_in
from quadlin.estimators.checks import refuse_dates, refuse_masked
from quadlin.explain.diagnosis import listed


def codes_of(y: Any, classes: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, sorted, and the number of the class of each label."""
    refuse_masked(y, "y")
    refuse_dates(y, "y", " If each date is a class, turn it into text: y.astype(str).")
    y = column_or_1d(y, warn=True) if is_listlike(y) else to_numpy(y)
    bad = ~np.isfinite(y) if y.dtype.kind == "f" else missing_in(y)
    if bad.any():
        raise ValueError(
            f"Input y contains NaN, infinity or missing values, first in row {int(bad.argmax())} "
            f"(counted from 0); {int(bad.sum())} of the {len(y)} labels are like this. Every row "
            "needs a label: drop the rows without one."
        )
    present = sorted_classes(y)  # in words where they cannot be sorted
    try:
        check_classification_targets(y)
    except ValueError as error:
        raise ValueError(
            f"{error} Labels are text, whole numbers or booleans. For targets such as 3.5 use "
            "SecondOrderRegressor, or make classes of them, such as y >= 4."
        ) from None
    classes = present if classes is None else classes
    codes = np.searchsorted(classes, y)
    codes = np.minimum(codes, len(classes) - 1)
    strange = classes[codes] != y
    if strange.any():
        names = listed([str(label) for label in np.unique(y[strange])])
        raise ValueError(
            f"y has labels that are not among the classes of the model: {names}. Name "
            "all classes in the first call: partial_fit(X, y, classes=[...])."
        )
    return classes, codes.astype(np.float64)


def sorted_classes(labels: Any) -> np.ndarray:
    """Return the different labels, sorted."""
    try:
        return np.unique(np.asarray(labels))
    except TypeError:
        raise TypeError("Labels must be all text or all numbers, not a mixture.") from None


def is_listlike(y: Any) -> bool:
    """Tell whether labels are a list, a series or an array of numpy."""
    return (not hasattr(y, "__array_namespace__") and not hasattr(y, "cpu")) or is_numpy(y)


def check_whole(values: np.ndarray) -> None:
    """Raise an error if the different targets look like a measurement."""
    if np.any(values != np.round(values)):
        raise ValueError(
            f"Unknown label type: continuous. The target has {len(values)} values and looks like a "
            "measurement: use SecondOrderRegressor, or turn it into classes."
        )


def class_totals(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the different targets of rows, and the weight of the rows of each: one pass."""
    labels, weights = map(np.concatenate, zip(*rows.collect(_totals), strict=True))
    values, codes = np.unique(labels, return_inverse=True)
    return values, np.bincount(codes, weights)


def _totals(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    values, codes = np.unique(to_numpy(chunk.y), return_inverse=True)
    return values, np.bincount(codes, chunk.weights, len(values))


def class_weights(class_weight: Any, classes: np.ndarray, totals: np.ndarray) -> np.ndarray | None:
    """Return the factor of the weights of each class, None where there are none."""
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        return np.where(totals > 0, totals.sum() / (len(classes) * np.maximum(totals, 1e-300)), 1.0)
    factors: np.ndarray = compute_class_weight(class_weight, classes=classes, y=classes)
    if not (np.isfinite(factors).all() and (factors >= 0).all()):
        raise ValueError("class_weight must hold numbers ≥ 0.")
    return factors


@dataclass(frozen=True)
class LabelledRows(MemorySource):
    """Rows in memory whose targets are the numbers of their classes."""

    classes: Any = None  # (K,), the labels


def class_names(source: MemorySource | Source) -> np.ndarray | None:
    """Return the labels that the targets of rows are positions of; None where they are numbers."""
    if isinstance(source, LabelledRows):
        return np.asarray(source.classes)
    labels = source.labels if isinstance(source, Source) else None
    return None if labels is None else np.asarray(labels)


def fitted_classes(count: int) -> Sequence[int]:
    """Return the numbers of the classes that have log-odds of their own."""
    return [1] if count == 2 else range(count)
