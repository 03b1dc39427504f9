"""Parts of a model file as plain data: what no fit could have written is refused."""

import os
from collections.abc import Mapping, Sequence
from math import isfinite, isinf
from pathlib import Path
from typing import Any, cast

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.messages import warn
from quadlin.core.units import Units
from quadlin.estimators.cv.cross_validation import SecondOrderRegressorCV, shared_params
from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.estimators.rows.parameters import check_options
from quadlin.explain.pair_report import PairReport
from quadlin.solve.fields.gibbs import Draws
from quadlin.solve.fits.column_covariances import ColumnCovariances
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.storage.tensor_file import JSON
from quadlin.stream.state import InvalidContentError, require

PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib")  # whose readers expect another format
LARGEST_STEP = 1e100  # behind standard errors: squares of its products are finite
LARGEST_DRAW = 1e32  # of a prediction in float32: the sum of some thousand of them is finite
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
    "rarity",
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
                f"The parameter {name}={value!r} is not a number, text or a list of these. It is "
                f"saved as {name}=None; set it again after loading."
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


def distinct(items: Any) -> bool:
    """Tell whether no item occurs twice."""
    return len(set(items)) == len(items)


def refuse_pickle_name(path: str | os.PathLike[str]) -> None:
    """Refuse the name of a file that programs would read as a pickle."""
    if Path(path).suffix.lower() in PICKLE_SUFFIXES:
        raise ValueError(
            f"{os.fspath(path)} is named like a pickle, but `save` writes safetensors, which "
            f"`load` reads. Name it {Path(path).with_suffix('.safetensors').name!r}."
        )


def fields_of(record: tuple[tuple[int, ...], ...], d: int) -> tuple[np.ndarray, ...]:
    """Return the groups of features of a file."""
    members = [j for field in record for j in field]
    require(all(0 <= j < d for j in members), "a feature of a field")
    require(distinct(members), "a feature in two fields")
    return tuple(np.asarray(field, dtype=int) for field in record)


def fill_of(record: JSON, columns: Sequence[str]) -> dict[str, float] | None:
    """Return the values that replace missing ones, by column."""
    if record is None:
        return None
    good = isinstance(record, list) and all(type(v) is float and isfinite(v) for v in record)
    require(good and len(record) == len(columns), "the values that replace missing ones")
    return dict(zip(columns, record, strict=True))


def check_uncertainty(law: Uncertainty, units: Units) -> None:
    """Refuse standard errors that are not numbers.

    They may be NaN only if too few rows are left over to estimate the noise.
    """
    spread = law.spread
    if isinstance(spread, ColumnCovariances):
        k, diagonal = spread.E.shape[1], np.cumsum(np.arange(1, spread.E.shape[1] + 2)) - 1
        require(spread.triangles.shape[1] == len(np.tril_indices(k + 1)[0]), "the covariances")
        positive = (spread.triangles[:, diagonal] >= 0).all() and spread.of_c >= 0
        require(bool(positive), "the covariances")
        group = spread.group
        numbered = group.dtype.kind == "i" and ((group >= -1) & (group < len(group))).all()
        require(bool(numbered), "the groups of the covariances")
        with np.errstate(over="ignore"):
            arrays = [spread.E**2, spread.triangles]
    else:
        arrays = [to_numpy(a) for a in (spread.E, spread.H, spread.w, spread.c)]
    small = all(np.max(np.abs(a), initial=0.0) <= LARGEST_STEP for a in arrays)
    sizes = (law.noise, law.error)
    unknown = [not isfinite(size) for size in sizes]
    require(small and (all(unknown) if law.left < 1 else not any(unknown)), "the standard errors")
    require(all(size >= 0 for size in sizes if isfinite(size)), "the level of the noise")
    same = (
        np.array_equal(to_numpy(getattr(law.units, part)), to_numpy(getattr(units, part)))
        for part in ("mean", "scale", "free", "rest")
    )
    if law.gaps is not None:
        share = to_numpy(law.gaps.share)
        good = isfinite(law.gaps.noise) == isfinite(law.noise) and not law.gaps.noise < 0
        require(good and ((share >= 0) & (share <= 1)).all(), "the missing values")
    require(all(same) and law.units.target == units.target, "the units of the standard errors")


def check_pairs(report: PairReport | None) -> None:
    """Refuse pairs whose numbers overflow; NaN stands for what no row determines."""
    for pair in [] if report is None else report.pairs:
        numbers = (pair.coefficient, pair.std_error, pair.share)
        require(not any(map(isinf, numbers)), "the pairs")


def check_draws(draws: Draws, fields: tuple[np.ndarray, ...], d: int) -> None:
    """Refuse draws that cannot predict rows of these features."""
    S, levels, K = draws.tables.shape
    require(S > 0 and levels == d + len(fields) and len(draws.signs) + 1 == K, "the draws")
    arrays = (draws.tables, draws.centred, draws.intercepts, draws.noises, draws.signs)
    require(all(a.dtype.kind == "f" and np.isfinite(a).all() for a in arrays), "the draws")
    linear = max(np.abs(a[..., 0]).max() for a in (draws.tables, draws.centred))
    factors = max(np.abs(a[..., 1:]).max(initial=0.0) for a in (draws.tables, draws.centred))
    sizes = linear, np.abs(draws.intercepts).max(), draws.noises.max(), factors**2
    require(max(map(float, sizes)) < LARGEST_DRAW, "the size of the draws")
    require(draws.tables.dtype == draws.centred.dtype == np.float32, "the type of the draws")
    require(bool((draws.noises >= 0).all() and (np.abs(draws.signs) == 1).all()), "the draws")
    layout, integers = draws.layout, all(a.dtype.kind == "i" for a in draws.layout.parts)
    require(integers and not draws.history, "the draws")
    same = len(layout.fields) == len(fields) and all(map(np.array_equal, layout.fields, fields))
    require(same, "the fields of the draws")
    columns = [int(j) for part in layout.parts for j in np.ravel(part)]
    require(distinct(columns) and all(0 <= j < d for j in columns), "the columns of the draws")
