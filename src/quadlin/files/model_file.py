"""Fitted estimators in files that hold numbers and text only, and are readable without quadlin.

The dataclasses here are the schema of a file; `docs/reference/model_files.md` describes it.
"""

import json
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import to_numpy
from quadlin.core.losses import loss_named
from quadlin.core.messages import warn
from quadlin.core.version import __version__
from quadlin.data.csv_text import Dialect
from quadlin.data.encoder import TableEncoder
from quadlin.estimators.cross_validation import SecondOrderRegressorCV, shared_params
from quadlin.estimators.labels.classifier import SecondOrderClassifier
from quadlin.estimators.labels.fitted_classes import FittedClasses
from quadlin.estimators.machines.factorization import FactorizationMachineRegressor
from quadlin.estimators.machines.factorization_classifier import FactorizationMachineClassifier
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.estimators.rows.checks import check_options
from quadlin.estimators.rows.columns import Columns
from quadlin.estimators.signals.phase import PhaseRetriever, search_effort
from quadlin.estimators.signals.sensing import MatrixSensing
from quadlin.explain.pair_report import PairReport
from quadlin.files.schema import AnyJSON, Reader, flatten, packed, unpacked
from quadlin.files.tensors import DAMAGED, JSON, FileFormatError, read_tensors, write_tensors
from quadlin.solve.fields.draws import Draws
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.labels.class_probabilities import COUPLINGS
from quadlin.solve.lowrank.types import Record, Status
from quadlin.stream.state import InvalidContentError, StreamState, require, state_of, stream_of

ESTIMATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(SecondOrderRegressor, FactorizationMachineRegressor, SecondOrderRegressorCV),
        *(SecondOrderClassifier, FactorizationMachineClassifier, PhaseRetriever, MatrixSensing),
    )
}
SIGNALS = (PhaseRetriever, MatrixSensing)
PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib")  # whose readers expect another format
SCORES = "best_index_", "best_params_", "best_score_", "cv_results_"  # of cross-validation
ROUNDING = 1e-5  # by which the two forms of a model may differ


@dataclass(frozen=True)
class ColumnsRecord:
    """The columns that a model was fitted to, and the levels of its text columns."""

    n_features_in: int
    names: tuple[str, ...] | None  # feature_names_in_
    levels: tuple[tuple[str, ...] | None, ...] | None  # of each column, None for numbers
    inputs: tuple[str, ...]  # the names of columns with levels
    kinds: tuple[str | None, ...]  # dtypes of levels, None for text; () where all are
    dtype: str
    fill: tuple[float, ...] | None  # what stands for missing numbers
    target: str | None
    weight: str | None
    csv: AnyJSON  # how CSV was declared to be written

    @classmethod
    def of(cls, columns: Columns) -> "ColumnsRecord":
        """Return the record of columns."""
        names, encoder, csv = columns.names_in, columns.encoder, columns.csv.declared
        levels: Any = None if encoder is None else [v and tuple(v) for v in encoder.levels]
        inputs = () if encoder is None else tuple(encoder.input_names)
        return cls(
            n_features_in=int(columns.n_features_in),
            names=None if names is None else tuple(map(str, names)),
            levels=levels,
            inputs=inputs,
            kinds=() if encoder is None else encoder.kinds,
            dtype="float64" if encoder is None else encoder.dtype.name,
            fill=None if columns.fill_list is None else tuple(columns.fill_list),
            target=columns.target,
            weight=columns.weight,
            csv=csv,  # type: ignore[arg-type]
        )

    def columns(self) -> Columns:
        """Return the columns; raise an error if no table can have them."""
        encoder = None
        if self.levels is not None:
            require(_distinct(self.inputs), "the columns of the table")
            require(len(self.levels) == len(self.inputs), "the levels")
            levels: Any = tuple(
                None if labels is None else {label: i for i, label in enumerate(labels)}
                for labels in self.levels
            )
            require(all(each is None or _distinct(each) for each in self.levels), "the levels")
            require(len(self.kinds) in (0, len(self.inputs)), "the dtypes of levels")
            encoder = TableEncoder(self.inputs, levels, np.dtype(self.dtype), self.kinds)
            require(_distinct(encoder.names) and len(encoder.names), "the names of the features")
            for name in self.inputs:
                encoder.level_values(name)
        names = None if self.names is None else np.asarray(self.names, dtype=object)
        if self.names is not None:
            same = encoder is None or self.names == self.inputs
            require(same and _distinct(self.names), "the names of the columns")
            require(len(self.names) == self.n_features_in, "the number of columns")
        require(encoder is None or len(self.inputs) == self.n_features_in, "the number of columns")
        csv: Any = self.csv
        columns = Columns(self.n_features_in, names, encoder, None, self.target, self.weight)
        columns = replace(columns, csv=Dialect.of(**csv))
        if self.fill is None:
            return columns
        return replace(columns, fill=dict(zip(columns.number_names, self.fill, strict=True)))


@dataclass(frozen=True)
class FitRecord:
    r"""One fit: :math:`y = v + e^\top g + e^\top M e,\ e = x - \bar x`, and all that it learned.

    M is ``factor @ diag(factor_weights) @ factor.T``, with its diagonal where `has_diagonal`.
    """

    feature_mean: np.ndarray  # x̄
    feature_sd: np.ndarray
    slope_at_mean: np.ndarray  # g
    value_at_mean: float  # v
    factor: np.ndarray  # (d, k)
    factor_weights: np.ndarray  # (k,)
    has_diagonal: np.ndarray
    columns: ColumnsRecord
    fields: tuple[tuple[int, ...], ...]
    state: StreamState
    uncertainty: Uncertainty | None
    draws: Draws | None
    pairs: PairReport | None
    noise: float | None
    train_score: float | None

    @classmethod
    def of(cls, fitted: Fitted) -> "FitRecord":
        """Return the record of a fit."""
        return cls(
            **in_user_units(fitted.state),
            columns=ColumnsRecord.of(fitted.columns),
            fields=tuple(tuple(map(int, field)) for field in fitted.fields),
            state=state_of(fitted.stream),
            uncertainty=fitted.law,
            draws=fitted.draws,
            pairs=fitted.pairs,
            noise=fitted.noise,
            train_score=fitted.train_score,
        )

    def fitted(self) -> Fitted:
        """Return the fit; raise an error if no fit can have given this record."""
        columns, members = self.columns.columns(), [j for field in self.fields for j in field]
        d = len(self.feature_mean)
        require(len(columns.names) == d, "the number of features")
        require(_distinct(members) and all(0 <= j < d for j in members), "the fields")
        fields = tuple(np.asarray(field, dtype=int) for field in self.fields)
        stream = stream_of(self.state, columns.names, fields)
        for name, value in in_user_units(stream.current).items():
            given = getattr(self, name)
            same = np.shape(given) == np.shape(value) and np.isfinite(value).all()
            same = same and np.asarray(given).dtype == np.asarray(value).dtype
            close = same and np.abs(np.asarray(given) * 1.0 - value) <= ROUNDING * np.abs(value)
            require(np.all(close), repr(name))
        learned = (self.uncertainty, self.draws, self.pairs, self.noise, self.train_score)
        fitted = Fitted(stream, columns, fields, *learned)
        # Whatever shapes and types do not show, a prediction does.
        X = np.asarray(self.feature_mean[None], dtype=to_numpy(stream.current.units.scale).dtype)
        require(np.isfinite(to_numpy(fitted.predict(X))).all(), "the model")
        require(not fitted.has_spread or np.isfinite(fitted.predict_std(X)).all(), "the spread")
        return fitted


@dataclass(frozen=True)
class SignalRecord:
    """What an estimator of signals has learned: its attributes, without the underscore."""

    n_features_in: int
    feature_names_in: tuple[str, ...] | None
    status: Status
    history: tuple[Record, ...]
    signal: np.ndarray | None = None
    imaginary: np.ndarray | None = None  # part of a complex signal, whose real part is `signal`
    left: np.ndarray | None = None
    values: np.ndarray | None = None
    right: np.ndarray | None = None
    is_pair: bool = False
    intercept: float = 0.0

    @classmethod
    def of(cls, estimator: Any) -> "SignalRecord":
        """Return the record of an estimator."""
        found: dict[str, Any] = {
            f.name: getattr(estimator, f"{f.name}_", f.default) for f in fields(cls)
        }
        names, z = getattr(estimator, "feature_names_in_", None), found["signal"]
        found["feature_names_in"] = None if names is None else tuple(map(str, names))
        if np.iscomplexobj(z):
            found |= {"signal": np.real(z).copy(), "imaginary": np.imag(z).copy()}
        if not found["is_pair"]:
            found["right"] = None
        return cls(**found)

    def restore(self, estimator: Any) -> None:
        """Give an estimator what it learned; raise an error if it cannot have learned it."""
        left, right, found = self.left, self.right, vars(self).copy()
        matrix = isinstance(estimator, MatrixSensing)
        missing = [name for name in ("signal", "left", "values") if found[name] is None]
        require(missing == (["signal"] if matrix else ["left", "values"]), "the recovered arrays")
        require((right is None) != self.is_pair, "the factors of a matrix")
        widths = [len(a) for a in (self.signal, left, right) if a is not None]
        require(self.n_features_in == sum(widths) and min(widths) > 0, "the width")
        require(self.history, "the history")
        if (imaginary := found.pop("imaginary")) is not None:
            require(not matrix, "the recovered arrays")
            found["signal"] = self.signal + 1j * imaginary
        found["right"] = left if right is None else right
        if (names := found.pop("feature_names_in")) is not None:
            require(_distinct(names) and len(names) == self.n_features_in, "the names")
            estimator.feature_names_in_ = np.asarray(names, dtype=object)
        for name, value in found.items():
            if value is not None and (matrix or name not in ("intercept", "is_pair")):
                setattr(estimator, f"{name}_", value)


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
        complete; a device or a pipe is written to. Names of pickles raise an error.

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
    if Path(path).suffix.lower() in PICKLE_SUFFIXES:
        raise ValueError(
            f"{os.fspath(path)} is named like a pickle, but `save` writes safetensors, which "
            f"`load` reads. Name it {Path(path).with_suffix('.safetensors').name!r}."
        )
    check_is_fitted(estimator)
    _check_params(estimator)
    header: dict[str, JSON] = {"class": name, "quadlin_version": __version__}
    header["params"] = _params_record(estimator)
    arrays: dict[str, np.ndarray] = {}
    if isinstance(estimator, SIGNALS):
        flatten(SignalRecord.of(estimator), "", header, arrays)
    else:
        for i, part in enumerate(parts_of(estimator)):
            flatten(FitRecord.of(part), str(i) if i else "", header, arrays)
    if isinstance(estimator, SecondOrderClassifier):
        header["classes"] = packed(estimator.classes_)
        header["coupling"] = getattr(estimator.fitted_, "coupling", 0.0)
        header["n_joint"] = len(getattr(estimator.fitted_, "joint", ()))
    if isinstance(estimator, SecondOrderRegressorCV):
        header["scores"] = packed({name: getattr(estimator, name) for name in SCORES})
    try:  # all that `load` checks, before anything is written
        _estimator(arrays, json.loads(json.dumps(header, allow_nan=False)))
    except (InvalidContentError, ArithmeticError, LookupError, ValueError) as error:
        raise ValueError(
            f"The model cannot be saved, since `load` would not read the file: {error}. "
            "Look for numbers that are far too large or too small in X, y and the weights."
        ) from error
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
    arrays, header = read_tensors(path, kind="model")
    try:
        return _estimator(arrays, header)
    except Exception as error:
        # No computation fails on values that `save` wrote, so no fit has produced these.
        saved_by, advice = str(header.get("quadlin_version"))[:20], DAMAGED
        if saved_by != __version__:
            advice = f"It was saved by quadlin {saved_by!r}, and this is {__version__!r}: use that "
            advice += "version, or fit the model again."
        raise FileFormatError(path, f"It contradicts itself: {error}.", advice) from error


def parts_of(estimator: Any) -> tuple[Fitted, ...]:
    """Return the fit, or for several classes the fit of each, then their joint scores."""
    fitted = estimator.fitted_
    return (*fitted.parts, *fitted.joint) if isinstance(fitted, FittedClasses) else (fitted,)


def in_user_units(state: FitState) -> dict[str, Any]:
    """Return the model about the mean of the features, where nothing cancels."""
    model, units, target = state.model, state.units, state.units.target
    U, s, w, free, scale, mean, rest = (
        to_numpy(a).astype(np.float64)
        for a in (model.U, model.s, model.w, units.free, units.scale, units.mean, units.rest)
    )
    value = target.mean + target.scale * (model.c - float(np.sum(free * ((U * U) @ s))))
    return {
        "feature_mean": mean + rest / np.where(scale > 0, scale, 1.0),
        "feature_sd": np.sqrt(to_numpy(state.features.var)),
        "slope_at_mean": target.scale * scale * w,
        "value_at_mean": float(value),
        "factor": scale[:, None] * U,
        "factor_weights": target.scale * s,
        "has_diagonal": free > 0,
    }


@np.errstate(all="ignore")  # what overflows raises an error
def _estimator(arrays: dict[str, np.ndarray], header: dict[str, JSON]) -> Any:
    """Return the estimator of a file, after every value in it was checked."""
    reader = Reader(header, arrays)
    kind = reader.read(str, "class")
    reader.read(str, "quadlin_version")
    require(kind in ESTIMATORS, "the class")
    estimator = ESTIMATORS[kind]()
    _set_params(estimator, reader.read(AnyJSON, "params"))
    if isinstance(estimator, SIGNALS):
        reader.read(SignalRecord).restore(estimator)
    elif isinstance(estimator, SecondOrderClassifier):
        classes, coupling = _classes(reader), reader.read(float, "coupling")
        count, n_joint = 1 if len(classes) == 2 else len(classes), reader.read(int, "n_joint")
        require(n_joint in (0, count) and coupling in COUPLINGS, "how classes are combined")
        parts = [_fit(reader, str(i) if i else "", "logistic") for i in range(count + n_joint)]
        require(all(p.columns.names == parts[0].columns.names for p in parts), "the features")
        fits, joint = tuple(parts[:count]), tuple(parts[count:])
        estimator.adopt(FittedClasses(classes, fits, coupling, joint))
    else:
        loss = loss_named(estimator.loss).solved
        estimator.adopt(_fit(reader, "", loss))
        if isinstance(estimator, SecondOrderRegressorCV):
            scores = unpacked(reader.read(AnyJSON, "scores"))
            require(isinstance(scores, dict) and set(scores) == set(SCORES), "the scores")
            for name, value in scores.items():
                setattr(estimator, name, value)
    reader.finish()
    return estimator


def _fit(reader: Reader, name: str, loss: str) -> Fitted:
    fitted: Fitted = reader.read(FitRecord, name).fitted()
    require(fitted.options.loss == loss, "the loss")
    return fitted


def _classes(reader: Reader) -> np.ndarray:
    """Return labels of one type in their order."""
    classes = unpacked(reader.read(AnyJSON, "classes"))
    require(isinstance(classes, np.ndarray) and len(classes) > 1, "the classes")
    types = {type(label) for label in classes.tolist()}
    require(len(types) == 1 and types <= {str, int, float, bool}, "the classes")
    require(bool(np.all(classes[:-1] < classes[1:])), "the order of the classes")
    return np.asarray(classes)


def _check_params(estimator: Any) -> None:
    """Raise an error for parameters for which `fit` would, before it reads a row."""
    if isinstance(estimator, SIGNALS):
        search_effort(estimator)
        return
    if isinstance(estimator, SecondOrderRegressorCV):
        estimator = SecondOrderRegressor(rank=1, **shared_params(estimator))
    check_options(estimator)


def _params_record(estimator: Any) -> JSON:
    """Return the constructor's parameters; None with a warning for those that no file can hold."""
    record = {}
    for name, value in estimator.get_params(deep=False).items():
        try:
            record[name] = packed(value.tolist() if isinstance(value, np.ndarray) else value)
        except TypeError:
            record[name] = None
            warn(
                f"The parameter {name}={value!r} is not a number, text or a list of these. It is "
                f"saved as {name}=None; set it again after loading."
            )
    return record


def _set_params(estimator: Any, params: JSON) -> None:
    require(isinstance(params, dict), "the parameters")
    require(params.keys() == estimator.get_params(deep=False).keys(), "the parameters")
    for name, value in params.items():
        setattr(estimator, name, unpacked(value))
    try:
        _check_params(estimator)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidContentError(f"the parameters are not valid ({error})") from error


def _distinct(items: Any) -> bool:
    return len(set(items)) == len(items)
