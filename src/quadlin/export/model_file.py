"""Fitted estimators in files that hold numbers and text only, and are readable without quadlin.

`docs/model_files.md` describes the format.
"""

import json
import os
from importlib.metadata import version
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import to_numpy
from quadlin.estimators.cross_validation import SecondOrderRegressorCV
from quadlin.estimators.factorization import FactorizationMachineRegressor
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.export.header import (
    check_params,
    cv_of,
    encoder_of,
    fields_of,
    fill_of,
    need,
    number_columns,
    packed_cv,
    packed_encoder,
    packed_fill,
    packed_params,
    set_params,
    texts,
)
from quadlin.solve.fit_state import Learned
from quadlin.solve.uncertainty import Uncertainty
from quadlin.storage.serialise import Reader, pack
from quadlin.storage.tensor_file import DAMAGED, JSON, FileFormatError, read_tensors, write_tensors
from quadlin.stream.state import MismatchError, StreamState, state_of, stream_of

ESTIMATORS: dict[str, Any] = {
    "SecondOrderRegressor": SecondOrderRegressor,
    "FactorizationMachineRegressor": FactorizationMachineRegressor,
    "SecondOrderRegressorCV": SecondOrderRegressorCV,
}
PARTS = {  # of the header
    *("class", "quadlin_version", "params", "n_features_in", "feature_names_in", "encoder"),
    *("fields", "fill", "intercept", "value_at_mean", "state", "uncertainty", "cv"),
}
PUBLIC = (  # arrays in the user's units, for readers without quadlin
    *("coef", "components", "eigenvalues", "has_diagonal"),
    *("feature_mean", "feature_sd", "slope_at_mean", "factor", "factor_weights"),
)
ROUNDING = 1e-5  # what the two tellings of a model may differ by, of the size of their terms


def save(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a file.

    Parameters
    ----------
    estimator : SecondOrderRegressor, FactorizationMachineRegressor or SecondOrderRegressorCV
        Fitted, or in the middle of a stream. Arrays of torch and others are written as numpy's.
        Parameters that are not numbers, text or lists of them (a `RandomState`, a splitter, a
        scorer) are written as None, with a warning; callbacks are left out.
    path : path
        The file, by custom named ``*.safetensors``. One that is there is replaced, at once.

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
    check_is_fitted(estimator)
    check_params(estimator)
    state = state_of(estimator._fitted)
    tensors, numbers = _in_raw_units(estimator._fitted.current)
    names = getattr(estimator, "feature_names_in_", None)
    header = {
        "class": name,
        "quadlin_version": version("quadlin"),
        "params": packed_params(estimator),
        "n_features_in": int(estimator.n_features_in_),
        "feature_names_in": None if names is None else [str(name) for name in names],
        "encoder": packed_encoder(estimator._encoder),
        "fields": [[int(j) for j in field] for field in estimator._fields],
        "fill": packed_fill(estimator),
        "state": pack(state, "state", tensors),
        "uncertainty": pack(estimator._law, "uncertainty", tensors),
        "cv": packed_cv(estimator) if isinstance(estimator, SecondOrderRegressorCV) else None,
        **numbers,
    }
    _refuse_what_load_refuses(tensors, header)
    write_tensors(path, tensors, header, kind="model")


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
        it predicts the same to the last bit; it goes on with `partial_fit` and `warm_start` as if
        it had never been saved.

    Raises
    ------
    FileFormatError
        If the file is not one that `save` wrote, or says things that cannot all be true.
    """
    tensors, header = read_tensors(path, kind="model")
    try:
        with np.errstate(all="ignore"):  # whatever overflows is refused
            return _estimator(tensors, header)
    except (MismatchError, RecursionError) as error:  # lists in lists in lists
        raise FileFormatError(path, f"It contradicts itself: {error}.", DAMAGED) from error


def _refuse_what_load_refuses(tensors: dict[str, np.ndarray], header: dict[str, JSON]) -> None:
    """Go through all that `load` looks at, before anything is written."""
    try:
        with np.errstate(all="ignore"):
            _estimator(tensors, json.loads(json.dumps(header, allow_nan=False)))
    except (MismatchError, ValueError) as error:
        raise ValueError(
            f"The model cannot be saved, since `load` would refuse the file: {error}. "
            "Look for numbers that are far too large or too small in X, y and the weights."
        ) from error


def _estimator(tensors: dict[str, np.ndarray], header: dict[str, JSON]) -> Any:
    need(header.keys() == PARTS, "the parts of the header")
    need(header["class"] in tuple(ESTIMATORS), "the class")
    estimator = ESTIMATORS[header["class"]]()
    set_params(estimator, header["params"])
    encoder = estimator._encoder = encoder_of(header["encoder"])
    coef = tensors.get("coef", np.empty(0))
    width = len(coef) if encoder is None else len(encoder.input_names)
    need(
        coef.ndim == 1 and width > 0 and header["n_features_in"] == width, "the number of features"
    )
    names = header["feature_names_in"]
    if names is not None:
        need(texts(names) and len(names) == width, "the names of features")
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    # Names that are no text, as of a table without a header, are none to scikit-learn.
    known = (None, list(encoder.input_names)) if encoder is not None else (names,)
    need(names in known, "the names of columns")
    estimator.n_features_in_ = width
    features = estimator._names()
    need(len(features) == len(coef), "the number of encoded features")
    estimator._fields = fields_of(header["fields"], len(coef))
    estimator._fill = fill_of(header["fill"], number_columns(estimator))
    reader = Reader(tensors, len(coef))
    public = {name: reader.tensors.pop(name, None) for name in PUBLIC}
    stream = stream_of(
        reader.unpack(StreamState, header["state"], "state"), features, estimator._fields
    )
    law = reader.unpack(Uncertainty | None, header["uncertainty"], "uncertainty")
    need(not reader.tensors, "an array that nobody asked for")
    _compare(public, header, stream.current)
    estimator._fitted, estimator._law = stream, law
    if isinstance(estimator, SecondOrderRegressorCV):
        estimator.__dict__.update(cv_of(header["cv"]))
    else:
        need(header["cv"] is None, "scores without cross-validation")
    return estimator


def _in_raw_units(learned: Learned) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return b, w and M, and the value and the slope at the mean, where nothing cancels.

    M comes twice: orthonormal components are what one looks at, but where features have very
    different units they are rounded by the largest; the factor is exact in each.
    """
    raw, units, target = learned.raw, learned.units, learned.units.target
    model = learned.model
    U, s, w, free, scale, mean, rest = (
        to_numpy(a).astype(np.float64)
        for a in (model.U, model.s, model.w, units.free, units.scale, units.mean, units.rest)
    )
    value = model.c - float(np.sum(free * ((U * U) @ s)))
    arrays = {
        "coef": to_numpy(raw.coef),
        "components": to_numpy(raw.components),
        "eigenvalues": to_numpy(raw.eigenvalues),
        "has_diagonal": free > 0,
        "feature_mean": mean + rest / np.where(scale > 0, scale, 1.0),
        "feature_sd": np.sqrt(to_numpy(learned.features.var)),
        "slope_at_mean": target.scale * scale * w,
        "factor": scale[:, None] * U,
        "factor_weights": target.scale * s,
    }
    value_at_mean = target.mean + target.scale * value
    return arrays, {"intercept": float(raw.intercept), "value_at_mean": float(value_at_mean)}


def _compare(public: dict[str, Any], header: dict[str, JSON], learned: Learned) -> None:
    """Refuse a file whose model in the user's units is not the one that will predict."""
    try:
        arrays, numbers = _in_raw_units(learned)
    except np.linalg.LinAlgError as error:
        raise MismatchError("the model is not a number") from error
    for name, own in arrays.items():
        said = public[name]
        need(said is not None and said.shape == own.shape and said.dtype == own.dtype, repr(name))
    for name, number in numbers.items():
        need(type(header[name]) is float and np.isfinite(number), repr(name))
    need(bool((public["has_diagonal"] == arrays["has_diagonal"]).all()), "the diagonal")
    for name in ("feature_mean", "feature_sd", "slope_at_mean", "factor", "factor_weights"):
        _need_close(public[name], arrays[name], np.abs(arrays[name]), repr(name))
    value, mean, slope = header["value_at_mean"], arrays["feature_mean"], arrays["slope_at_mean"]
    _need_close(value, numbers["value_at_mean"], abs(numbers["value_at_mean"]), "the value")
    # Eigenvectors of equal eigenvalues are a matter of taste, a product with M is not.
    factor = (arrays["factor"], arrays["factor_weights"], arrays["has_diagonal"])
    for probe in (np.cos(np.arange(len(mean))), mean):
        product, size = _times(*factor, probe)
        said = _times(public["components"].T, public["eigenvalues"], factor[2], probe)[0]
        # Orthonormal components are rounded by their largest entries, whatever a feature's unit.
        largest = np.max(np.abs(public["components"]), initial=0.0) ** 2
        slack = np.max(np.abs(public["eigenvalues"]), initial=0.0) * largest * np.abs(probe).sum()
        slack *= 1e3 * np.finfo(public["components"].dtype).eps / ROUNDING
        _need_close(said, product, np.max(size) + slack, "'components' or 'eigenvalues'")
    # With large means b and w are small differences: judge them by the terms they are made of.
    _need_close(public["coef"], slope - 2 * product, np.abs(slope) + 2 * size, "'coef'")
    intercept = value - mean @ slope + mean @ product
    terms = abs(value) + np.abs(mean) @ (np.abs(slope) + size)
    _need_close(header["intercept"], intercept, terms, "'intercept'")


def _times(A: Any, s: Any, has_diagonal: Any, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return A diag(s) Aᵀv, less the diagonal not modelled, and the size of the terms it sums."""
    A = A.astype(np.float64)
    size = np.abs(A) @ (np.abs(s) * (np.abs(A.T) @ np.abs(v)))
    return A @ (s * (A.T @ v)) - ((A * A) @ s) * (~has_diagonal * v), 2 * size


def _need_close(said: Any, own: Any, size: Any, what: str) -> None:
    need(bool(np.all(np.abs(said - own) <= ROUNDING * size)), what)
