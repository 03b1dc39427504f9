"""Fitted estimators in files that hold numbers and text only, and are readable without quadlin.

`docs/model_files.md` describes the format.
"""

import json
import os
from dataclasses import fields, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from quadlin.core.version import __version__
from quadlin.estimators.cv.cross_validation import SecondOrderRegressorCV
from quadlin.estimators.labels.classifier import SecondOrderClassifier
from quadlin.estimators.labels.fitted_classes import COUPLINGS, FittedClasses
from quadlin.estimators.labels.logistic_model import LogisticModel
from quadlin.estimators.machines.factorization import FactorizationMachineRegressor
from quadlin.estimators.machines.factorization_classifier import FactorizationMachineClassifier
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.export.parts import (
    check_draws,
    check_pairs,
    check_params,
    check_uncertainty,
    fields_of,
    fill_of,
    labels_of,
    labels_record,
    params_record,
    refuse_pickle_name,
    set_params,
)
from quadlin.export.record import EncoderRecord, ModelRecord, PairsRecord, ScoresRecord
from quadlin.export.signal_file import SIGNALS, signal_of, signal_parts
from quadlin.export.user_units import ARRAYS, in_user_units, require_agreement
from quadlin.storage.serialise import Deserialiser, serialise
from quadlin.storage.tensor_file import DAMAGED, JSON, FileFormatError, read_tensors, write_tensors
from quadlin.stream.restore import state_of, stream_of
from quadlin.stream.state import InvalidContentError, require

ESTIMATORS: dict[str, Any] = {
    "SecondOrderRegressor": SecondOrderRegressor,
    "FactorizationMachineRegressor": FactorizationMachineRegressor,
    "SecondOrderRegressorCV": SecondOrderRegressorCV,
    "SecondOrderClassifier": SecondOrderClassifier,
    "FactorizationMachineClassifier": FactorizationMachineClassifier,
    **SIGNALS,
}


def save(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a file.

    Parameters
    ----------
    estimator : an estimator of quadlin
        Fitted, or in the middle of a stream. Arrays of torch and others are written as numpy's.
        Parameters that are not numbers, text or lists of them (a `RandomState`, a splitter, a
        scorer) are written as None, with a warning; callbacks are left out.
    path : path
        The file, usually named ``*.safetensors``. An existing file is replaced once the new one is
        complete; a device or a pipe is written to. Names of pickles are refused.

    See Also
    --------
    load : Read it again.

    Examples
    --------
    >>> import tempfile
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(300, 4, rank=1, random_state=0)
    >>> model = SecondOrderRegressor(rank=1, random_state=0).fit(data.X, data.y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, f"{folder}/model.safetensors")
    ...     again = load(f"{folder}/model.safetensors")
    >>> bool((again.predict(data.X) == model.predict(data.X)).all())
    True
    """
    name = type(estimator).__name__
    if ESTIMATORS.get(name) is not type(estimator):
        inside = ""
        if hasattr(estimator, "best_estimator_"):
            inside = " Save its best_estimator_."
        elif hasattr(estimator, "steps"):
            inside = (
                " Save its last step, pipeline[-1], and apply the other steps to the rows yourself."
            )
        raise TypeError(f"{name} cannot be saved; {', '.join(ESTIMATORS)} can.{inside}")
    refuse_pickle_name(path)
    check_is_fitted(estimator)
    if name in SIGNALS:
        arrays, content = signal_parts(estimator)
    else:
        check_params(estimator)
        parts = parts_of(estimator)
        arrays, content = _part(estimator, parts[0])
    header = {"class": name, **content}
    if isinstance(estimator, LogisticModel):
        header["classes"] = labels_record(estimator.classes_)
        header["coupling"] = getattr(estimator.fitted_, "coupling", 0.0)
        others = [_part(estimator, part) for part in parts[1:]]
        header["other_classes"] = [content for _, content in others]
        for i, (more, _) in enumerate(others, start=1):
            arrays |= {f"{i}:{array}": values for array, values in more.items()}
    _refuse_what_load_refuses(arrays, header)
    write_tensors(path, arrays, header, kind="model")


def load(path: str | os.PathLike[str]) -> Any:
    """Read an estimator that `save` wrote. Nothing in the file is run, whoever wrote it.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    estimator
        Of the class that was saved, with all fitted attributes. On the same machine and libraries
        it predicts the same to the last bit, and `partial_fit` and `warm_start` continue as if it
        had never been saved.

    Raises
    ------
    FileFormatError
        If the file is not one that `save` wrote, or holds values that contradict each other.
    """
    tensors, header = read_tensors(path, kind="model")
    try:
        with np.errstate(all="ignore"):  # what overflows is refused
            return _estimator(tensors, header)
    except (InvalidContentError, ArithmeticError, LookupError, RecursionError, ValueError) as error:
        # No computation fails on values that `save` wrote, so no fit has produced these.
        raise FileFormatError(path, f"It contradicts itself: {error}.", _advice(header)) from error


def _advice(header: dict[str, JSON]) -> str:
    """Return what to do about a file that contradicts itself."""
    saved_by, this = header.get("quadlin_version"), __version__
    if not isinstance(saved_by, str) or saved_by == this:
        return DAMAGED
    return (
        f"It was saved by quadlin {saved_by[:20]!r}, and this is {this!r}: use that version, or "
        "fit the model again."
    )


def parts_of(estimator: Any) -> tuple[Fitted, ...]:
    """Return the fit, or for several classes the fit of each, then their joint scores."""
    fitted = estimator.fitted_
    return (*fitted.parts, *fitted.joint) if isinstance(fitted, FittedClasses) else (fitted,)


def _part(estimator: Any, fitted: Fitted) -> tuple[dict[str, np.ndarray], dict[str, JSON]]:
    """Return the arrays of one fit, and the header that says what they are."""
    arrays, numbers = in_user_units(fitted.state)
    record = _record(estimator, fitted, numbers)
    content = serialise(record, "", arrays)
    assert isinstance(content, dict)
    for added in fields(ModelRecord):
        if added.default is None and getattr(record, added.name) is None:
            del content[added.name]  # as in files of version 0.1.0
    return arrays, content


def _record(estimator: Any, fitted: Fitted, numbers: dict[str, float]) -> ModelRecord:
    columns, names = fitted.columns, fitted.columns.names_in
    fill: Any = columns.fill_list
    params: Any = params_record(estimator)
    return ModelRecord(
        quadlin_version=__version__,
        params=params,
        n_features_in=int(columns.n_features_in),
        feature_names_in=None if names is None else tuple(map(str, names)),
        encoder=EncoderRecord.of(columns.encoder),
        fields=tuple(tuple(map(int, field)) for field in fitted.fields),
        fill=fill,
        intercept=numbers["intercept"],
        value_at_mean=numbers["value_at_mean"],
        state=state_of(fitted.stream),
        uncertainty=fitted.law,
        cv=ScoresRecord.of(estimator),
        draws=fitted.draws,
        target=columns.target,
        pairs=PairsRecord.of(fitted.pairs),
        weight=columns.weight,
        **columns.csv.declared,
        noise=fitted.noise,
        train_score=fitted.train_score,
    )


def _refuse_what_load_refuses(arrays: dict[str, np.ndarray], header: dict[str, JSON]) -> None:
    """Check all that `load` checks, before anything is written."""
    try:
        with np.errstate(all="ignore"):
            _estimator(arrays, json.loads(json.dumps(header, allow_nan=False)))
    except (InvalidContentError, ValueError) as error:
        raise ValueError(
            f"The model cannot be saved, since `load` would refuse the file: {error}. "
            "Look for numbers that are far too large or too small in X, y and the weights."
        ) from error


def _estimator(arrays: dict[str, np.ndarray], header: dict[str, JSON]) -> Any:
    """Return the estimator of a file, after every value in it was checked."""
    content = dict(header)
    name = content.pop("class", None)
    require(name in tuple(ESTIMATORS), "the class")
    if name in SIGNALS:
        return signal_of(str(name), arrays, content)
    estimator = ESTIMATORS[str(name)]()
    if isinstance(estimator, LogisticModel):
        return _classifier(estimator, arrays, content)
    record, fitted = _fitted(estimator, arrays, content)
    estimator.adopt(fitted)
    crossed = isinstance(estimator, SecondOrderRegressorCV)
    require((record.cv is not None) == crossed, "the scores of the cross-validation")
    for attribute, value in ({} if record.cv is None else record.cv.attributes()).items():
        setattr(estimator, attribute, value)
    return estimator


def _classifier(
    estimator: LogisticModel, arrays: dict[str, np.ndarray], content: dict[str, JSON]
) -> LogisticModel:
    """Return the classifier of a file, with a fit for each class that has one."""
    classes = labels_of(content.pop("classes", None))
    others = content.pop("other_classes", None)
    coupling = content.pop("coupling", 0.0)
    require(coupling in COUPLINGS, "how probabilities are combined")
    if not isinstance(others, list):
        raise InvalidContentError("the fits of the classes are missing")
    headers: list[Any] = [content, *others]
    count = 1 if len(classes) == 2 else len(classes)
    joint = count > 1 and len(headers) == 2 * count  # then the scores of all classes follow
    require(joint or len(headers) == count, "the number of classes")
    parts: list[Fitted] = []
    rest = dict(arrays)
    for i in range(len(headers) - 1, -1, -1):
        prefix = f"{i}:" if i else ""
        taken = {a: rest.pop(a) for a in list(rest) if a.startswith(prefix)}
        each = {a.removeprefix(prefix): values for a, values in taken.items()}
        require(isinstance(headers[i], dict), "the fits of the classes")
        record, fitted = _fitted(estimator, each, headers[i])
        require(record.cv is None, "the parts of a classifier")
        parts.insert(0, fitted)
    require(all(part.columns.names == parts[0].columns.names for part in parts), "the features")
    fits, scores = tuple(parts[:count]), tuple(parts[count:])
    estimator.adopt(FittedClasses(classes, fits, float(coupling), scores))
    return estimator


def _fitted(
    estimator: Any, arrays: dict[str, np.ndarray], content: dict[str, JSON]
) -> tuple[ModelRecord, Fitted]:
    """Return one fit of a file, and set the parameters of its estimator."""
    coef = arrays.get("coef", np.empty(0))
    require(coef.ndim == 1 and len(coef) > 0, "the number of features")
    reader = Deserialiser(arrays, len(coef))
    given = {name: reader.unused.pop(name, None) for name in ARRAYS}
    record: ModelRecord = reader.read(ModelRecord, content, "")
    require(not reader.unused, "an array that no part of the model uses")

    set_params(estimator, record.params)
    columns = record.columns(len(coef))
    require(len(columns.names) == len(coef), "the number of encoded features")
    fields = fields_of(record.fields, len(coef))
    stream = stream_of(record.state, columns.names, fields)
    require_agreement(given, record.intercept, record.value_at_mean, stream.current)
    if record.uncertainty is not None:
        check_uncertainty(record.uncertainty, stream.current.units)
    columns = replace(columns, fill=fill_of(record.fill, columns.number_names))
    if record.draws is not None:
        check_draws(record.draws, fields, len(coef))
    logistic, counts = isinstance(estimator, LogisticModel), estimator.loss == "poisson"
    loss = "logistic" if logistic else "poisson" if counts else "squared"
    require(stream.options.loss == loss, "the loss")
    made = stream.make_units
    require((made.labels, made.counts) == (logistic, counts), "the units of the target")
    pairs = None if record.pairs is None else record.pairs.report(columns.names)
    require(record.noise is None or record.noise >= 0, "the level of the noise")
    require(record.train_score is None or record.train_score <= 1, "the score of the fitted rows")
    levels = (record.noise, record.train_score)
    fitted = Fitted(stream, columns, fields, record.uncertainty, record.draws, pairs, *levels)
    check_pairs(fitted.pair_report)
    return record, fitted
