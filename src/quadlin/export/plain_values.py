"""Parameters of an estimator and labels of classes as plain data, and back."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, cast

import numpy as np

from quadlin.core.messages import warn
from quadlin.estimators.cv.cross_validation import SecondOrderRegressorCV, shared_params
from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.estimators.rows.parameters import check_options
from quadlin.export.checks import distinct
from quadlin.storage.tensor_file import JSON
from quadlin.stream.state import InvalidContentError, require

LABEL_KINDS = {"U": str, "i": int, "u": int, "f": float, "b": bool, "O": object}
# Since 0.1.0, whose files do not have them.
ADDED_PARAMS = {
    "categorical_features",
    "draws",
    "extrapolation",
    "hierarchy",
    "loss",
    "max_memory",
    "missing",
    "multi_hot",
    "pairs",
}


def params_record(estimator: Any) -> dict[str, JSON]:
    """Return the constructor's parameters; None with a warning for those that no file can hold."""
    record = {}
    for name, value in estimator.get_params(deep=False).items():
        try:
            record[name] = _param_record(value)
        except TypeError:
            record[name] = None
            warn(
                f"The parameter {name}={value!r} is neither a number nor text nor a list of them. "
                f"It is saved as {name}=None; set it again after loading."
            )
    return record


def _param_record(value: Any) -> JSON:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, tuple):
        return {"tuple": [_param_record(item) for item in value]}
    if isinstance(value, list | range):
        return [_param_record(item) for item in value]
    if isinstance(value, Mapping):
        return {"dict": [[_param_record(k), _param_record(v)] for k, v in value.items()]}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and isfinite(value):
        return value
    raise TypeError


def _param(value: JSON) -> Any:
    if isinstance(value, dict):
        kind, items = next(iter(value.items()), ("", None))
        require(len(value) == 1 and kind in ("tuple", "dict"), "a parameter")
        require(isinstance(items, list), "a parameter")
        parts = tuple(_param(item) for item in cast(list[JSON], items))
        if kind == "tuple":
            return parts
        pairs = all(isinstance(p, list) and len(p) == 2 and _is_label(p[0]) for p in parts)
        require(pairs, "a parameter")
        return dict(parts)
    return [_param(item) for item in value] if isinstance(value, list) else value


def _is_label(value: Any) -> bool:
    return type(value) in (str, int, float, bool)


def labels_record(classes: np.ndarray) -> JSON:
    """Return class labels as plain data."""
    labels = classes.tolist()
    if not all(map(_is_label, labels)) or classes.dtype.kind not in LABEL_KINDS:
        raise ValueError(
            f"Labels of type {classes.dtype} cannot be saved. Use text, whole numbers or booleans."
        )
    return {"kind": classes.dtype.kind, "labels": labels}


def labels_of(record: JSON) -> np.ndarray:
    """Return the class labels of a file."""
    require(isinstance(record, dict) and record.keys() == {"kind", "labels"}, "the classes")
    kind, labels = record["kind"], record["labels"]
    require(kind in tuple(LABEL_KINDS) and isinstance(labels, list), "the classes")
    require(all(map(_is_label, labels)) and distinct(labels), "the classes")
    same = kind == "O" or all(isinstance(label, LABEL_KINDS[kind]) for label in labels)
    require(same and len({type(label) for label in labels}) == 1 and len(labels) > 1, "the classes")
    try:
        classes = np.asarray(labels, dtype=object if kind == "O" else None)
        require(bool(np.all(classes[:-1] < classes[1:])), "the order of the classes")
    except (TypeError, OverflowError) as error:
        raise InvalidContentError(f"the classes cannot be right ({error})") from error
    return classes


def assign_params(estimator: Any, params: JSON) -> None:
    """Set all parameters to those of a file, whatever their values."""
    names = estimator.get_params(deep=False).keys()
    require(isinstance(params, dict), "the parameters")
    require(names - ADDED_PARAMS <= params.keys() <= names, "the parameters")
    for name, value in params.items():
        setattr(estimator, name, _param(value))


def set_params(estimator: Any, params: JSON) -> None:
    """Set all parameters to those of a file, and check them."""
    assign_params(estimator, params)
    try:
        check_params(estimator)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidContentError(f"the parameters are not valid ({error})") from error


def check_params(estimator: Any) -> None:
    """Refuse parameters that `fit` would refuse before it reads a row."""
    if isinstance(estimator, SecondOrderRegressorCV):
        estimator = SecondOrderRegressor(rank=1, **shared_params(estimator))
    check_options(estimator)
