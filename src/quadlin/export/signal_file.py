"""Recovered signals and matrices in files: their arrays as they are, and how they were found."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from quadlin.core.version import __version__
from quadlin.estimators.signals.phase import PhaseRetriever, search_effort
from quadlin.estimators.signals.sensing import MatrixSensing
from quadlin.export.parts import assign_params, distinct, params_record
from quadlin.solve.lowrank.types import Record, Status
from quadlin.storage.serialise import AnyJSON, Deserialiser, serialise
from quadlin.storage.tensor_file import JSON
from quadlin.stream.state import InvalidContentError, require

SIGNALS: dict[str, Any] = {"PhaseRetriever": PhaseRetriever, "MatrixSensing": MatrixSensing}


@dataclass(frozen=True)
class SignalRecord:
    """What the header of a file says beside the class and the arrays."""

    quadlin_version: str
    params: AnyJSON
    n_features_in: int
    feature_names_in: tuple[str, ...] | None
    status: Status
    history: tuple[Record, ...]
    is_pair: bool
    intercept: float


def signal_parts(estimator: Any) -> tuple[dict[str, np.ndarray], dict[str, JSON]]:
    """Return the arrays of a fitted estimator, and the header that says what they are."""
    if isinstance(estimator, PhaseRetriever):
        z = estimator.signal_
        arrays = {"signal": np.ascontiguousarray(z.real)}
        if np.iscomplexobj(z):
            arrays["signal_imag"] = np.ascontiguousarray(z.imag)
    else:
        arrays = {"left": estimator.left_, "values": estimator.values_}
        if estimator.is_pair_:
            arrays["right"] = estimator.right_
        arrays = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    names, params = getattr(estimator, "feature_names_in_", None), params_record(estimator)
    record = SignalRecord(
        __version__,
        params,  # type: ignore[arg-type]
        int(estimator.n_features_in_),
        None if names is None else tuple(map(str, names)),
        estimator.status_,
        estimator.history_,
        bool(getattr(estimator, "is_pair_", False)),
        float(getattr(estimator, "intercept_", 0.0)),
    )
    content = serialise(record, "", {})
    assert isinstance(content, dict)
    content["params"] = dict(params)
    return arrays, content


def signal_of(name: str, arrays: dict[str, np.ndarray], content: dict[str, JSON]) -> Any:
    """Return the estimator of a file, after every value in it was checked."""
    record: SignalRecord = Deserialiser({}, 1).read(SignalRecord, content, "")
    estimator = SIGNALS[name]()
    assign_params(estimator, record.params)
    try:
        search_effort(estimator)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidContentError(f"the parameters are not valid ({error})") from error
    require(all(values.dtype.kind == "f" for values in arrays.values()), "the type of an array")
    require(all(np.isfinite(values).all() for values in arrays.values()), "a number")
    require(len(record.history) > 0, "the history")
    if isinstance(estimator, PhaseRetriever):
        _set_signal(estimator, arrays, record)
    else:
        _set_matrix(estimator, arrays, record)
    estimator.status_, estimator.history_ = record.status, record.history
    estimator.n_features_in_, names = record.n_features_in, record.feature_names_in
    if names is not None:
        right = distinct(names) and len(names) == record.n_features_in and not record.is_pair
        require(right, "the names of the features")
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    return estimator


def _set_signal(
    estimator: PhaseRetriever, arrays: dict[str, np.ndarray], record: SignalRecord
) -> None:
    expected = [{"signal"}, {"signal", "signal_imag"}]
    require(arrays.keys() in expected and not record.is_pair, "the arrays of a signal")
    parts = [arrays[name] for name in ("signal", "signal_imag") if name in arrays]
    same = all(a.shape == (record.n_features_in,) and a.dtype == parts[0].dtype for a in parts)
    require(same and record.n_features_in > 0, "the length of the signal")
    if len(parts) == 1:
        estimator.signal_ = parts[0]
    else:
        estimator.signal_ = np.empty(len(parts[0]), np.result_type(parts[0].dtype, np.complex64))
        estimator.signal_.real, estimator.signal_.imag = parts


def _set_matrix(
    estimator: MatrixSensing, arrays: dict[str, np.ndarray], record: SignalRecord
) -> None:
    pair = {"right"} if record.is_pair else set()
    require(arrays.keys() == {"left", "values"} | pair, "the arrays of a matrix")
    left, values = arrays["left"], arrays["values"]
    right = arrays["right"] if record.is_pair else left
    require(values.ndim == 1 and left.ndim == right.ndim == 2, "the shape of an array")
    require(left.shape[1] == right.shape[1] == len(values), "the rank")
    width = len(left) + len(right) if record.is_pair else len(left)
    require(record.n_features_in == width and min(left.shape[0], right.shape[0]) > 0, "the width")
    estimator.left_, estimator.values_, estimator.right_ = left, values, right
    estimator.is_pair_, estimator.intercept_ = record.is_pair, record.intercept
