"""Fitted estimators in files that hold numbers and text only, and are readable without quadlin.

Type hints of dataclasses are the schema of a file; `docs/reference/model_files.md` describes it.
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import to_numpy
from quadlin.core.messages import warn
from quadlin.core.version import __version__
from quadlin.estimators.checks import check_options
from quadlin.estimators.classifier import SecondOrderClassifier
from quadlin.estimators.factorization_machines import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
)
from quadlin.estimators.fitted import Fitted, FittedClasses
from quadlin.estimators.regressor import (
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    shared_params,
)
from quadlin.estimators.signals import MatrixSensing, PhaseRetriever, search_effort
from quadlin.exceptions import OptionWarning
from quadlin.files.tensors import (
    JSON,
    FileFormatError,
    Reader,
    flatten,
    hints_of,
    packed,
    read_tensors,
    unpacked,
    write_tensors,
)
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.types import Record, Status
from quadlin.stream.state import StreamState, require, state_of, stream_of

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
# What a fit holds besides its stream and its fields; the schema is the type hints of `Fitted`.
LEARNED = "columns", "law", "draws", "pairs", "noise", "train_score"


class UserUnits(NamedTuple):
    r"""About the mean of the features, :math:`y = v + e^\top g + e^\top M e,\ e = x - \bar x`.

    M is ``factor @ diag(factor_weights) @ factor.T``, with its diagonal where `has_diagonal`.
    """

    feature_mean: np.ndarray  # (d,), x̄
    feature_sd: np.ndarray  # (d,)
    slope_at_mean: np.ndarray  # (d,), g
    value_at_mean: float  # v
    factor: np.ndarray  # (d, k)
    factor_weights: np.ndarray  # (k,)
    has_diagonal: np.ndarray  # (d,)

    @classmethod
    def of(cls, state: FitState) -> "UserUnits":
        """Return the model of a fit, in the form in which nothing cancels."""
        model, units, target = state.model, state.units, state.units.target
        U, s, w, free, scale, mean, rest = (
            to_numpy(a).astype(np.float64)
            for a in (model.U, model.s, model.w, units.free, units.scale, units.mean, units.rest)
        )
        value = target.mean + target.scale * (model.c - float(np.sum(free * ((U * U) @ s))))
        return cls(
            mean + rest / np.where(scale > 0, scale, 1.0),
            np.sqrt(to_numpy(state.features.var)),
            target.scale * scale * w,
            float(value),
            scale[:, None] * U,
            target.scale * s,
            free > 0,
        )


@dataclass(frozen=True)
class SignalRecord:
    """What an estimator of signals has learned: its attributes, without the underscore."""

    n_features_in: int
    status: Status
    history: tuple[Record, ...]
    feature_names_in: np.ndarray | None = None
    signal: np.ndarray | None = None
    imaginary: np.ndarray | None = None  # part of a complex signal, whose real part is `signal`
    left: np.ndarray | None = None
    values: np.ndarray | None = None
    right: np.ndarray | None = None
    is_pair: bool | None = None
    intercept: float | None = None

    @classmethod
    def of(cls, estimator: Any) -> "SignalRecord":
        """Return the record of an estimator."""
        found: dict[str, Any] = {
            f.name: getattr(estimator, f"{f.name}_", None) for f in fields(cls)
        }
        if np.iscomplexobj(z := found["signal"]):
            found |= {"signal": np.real(z).copy(), "imaginary": np.imag(z).copy()}
        return cls(**found)

    def restore(self, estimator: Any) -> None:
        """Give an estimator what it learned."""
        found = dict(vars(self))
        if (imaginary := found.pop("imaginary")) is not None:
            found["signal"] = self.signal + 1j * imaginary
        for name, value in found.items():
            if value is not None:
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
        raise TypeError(f"{name} cannot be saved; {', '.join(ESTIMATORS)} can.")
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
            record = {name: getattr(part, name) for name in LEARNED}
            record["fields"] = [field.tolist() for field in part.fields]
            record["state"] = state_of(part.stream)
            flatten(UserUnits.of(part.state), str(i) if i else "", header, arrays)
            for name, value in record.items():
                flatten(value, f"{i}.{name}" if i else name, header, arrays)
    if isinstance(estimator, SecondOrderClassifier):
        header["classes"] = packed(estimator.classes_)
        header["n_joint"] = len(getattr(estimator.fitted_, "joint", ()))
    if isinstance(estimator, SecondOrderRegressorCV):
        header["scores"] = packed({name: getattr(estimator, name) for name in SCORES})
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
        return _estimator(Reader(header, arrays))
    except Exception as error:
        # No computation fails on values that `save` wrote, so no fit has produced these.
        raise FileFormatError(
            f"{path} contradicts itself: {error}. It is damaged, or was saved by another version: "
            f"{str(header.get('quadlin_version'))[:20]!r}, and this is {__version__!r}. Use that "
            "version, or fit the model again."
        ) from error


def parts_of(estimator: Any) -> tuple[Fitted, ...]:
    """Return the fit, or for several classes the fit of each, then their joint scores."""
    fitted = estimator.fitted_
    return (*fitted.parts, *fitted.joint) if isinstance(fitted, FittedClasses) else (fitted,)


@np.errstate(all="ignore")  # what overflows raises an error
def _estimator(reader: Reader) -> Any:
    """Return the estimator of a file."""
    kind = reader.read(str, "class")
    reader.read(str, "quadlin_version")
    require(kind in ESTIMATORS, "the class")
    estimator = ESTIMATORS[kind]()
    _set_params(estimator, reader.values.pop("params"))
    if isinstance(estimator, SIGNALS):
        reader.read(SignalRecord).restore(estimator)
    elif isinstance(estimator, SecondOrderClassifier):
        classes, n_joint = reader.read(np.ndarray, "classes"), reader.read(int, "n_joint")
        count = 1 if len(classes) == 2 else len(classes)
        parts = tuple(_fit(reader, f"{i}." if i else "") for i in range(count + n_joint))
        estimator.adopt(FittedClasses(classes, parts[:count], parts[count:]))
    else:
        estimator.adopt(_fit(reader, ""))
        if isinstance(estimator, SecondOrderRegressorCV):
            for name, value in unpacked(reader.values.pop("scores")).items():
                require(name in SCORES, "the scores")
                setattr(estimator, name, value)
    require(not reader.values, f"{min(reader.values, default='')!r}")
    return estimator


def _fit(reader: Reader, prefix: str) -> Fitted:
    """Return the fit of a file; raise an error if no fit can have given these values."""
    reader.read(UserUnits, prefix.removesuffix("."))  # for readers other than this one
    hints = hints_of(Fitted)
    learned = {name: reader.read(hints[name], prefix + name) for name in LEARNED}
    fields = reader.read(tuple[tuple[int, ...], ...], f"{prefix}fields")
    positions = tuple(np.asarray(field, dtype=int) for field in fields)
    state = reader.read(StreamState, f"{prefix}state")
    fitted = Fitted(
        stream_of(state, learned["columns"].names, positions), fields=positions, **learned
    )
    X = to_numpy(fitted.state.units.mean)[None]  # whatever contradicts itself cannot predict it
    require(np.isfinite(to_numpy(fitted.predict(X))).all(), "the model")
    require(not fitted.has_spread or np.isfinite(fitted.predict_std(X)).all(), "the spread")
    return fitted


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
                f"saved as {name}=None; set it again after loading.",
                OptionWarning,
            )
    return record


def _set_params(estimator: Any, params: JSON) -> None:
    require(isinstance(params, dict), "the parameters")
    require(params.keys() == estimator.get_params(deep=False).keys(), "the parameters")
    for name, value in params.items():
        setattr(estimator, name, unpacked(value))
    _check_params(estimator)
