"""What an estimator knows beside its numbers, as JSON: parameters, columns, fields, scores."""

from typing import Any

import numpy as np

from quadlin.core.messages import warn
from quadlin.data.encoder import TableEncoder
from quadlin.estimators.cross_validation import OWN, SecondOrderRegressorCV
from quadlin.estimators.parameters import check_options
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.storage.serialise import pack
from quadlin.storage.tensor_file import JSON
from quadlin.stream.state import MismatchError

CV_COLUMNS = {  # of cv_results_, beside params and the splits
    "param_rank": np.int64,
    "param_alpha": np.float64,
    "mean_test_score": np.float64,
    "std_test_score": np.float64,
    "rank_test_score": np.int64,
}


def packed_params(estimator: Any) -> dict[str, JSON]:
    """Return the constructor's parameters, None with a warning for what no file can hold."""
    packed = {}
    for name, value in estimator.get_params(deep=False).items():
        try:
            packed[name] = _packed_param(value)
        except TypeError:
            packed[name] = None
            warn(
                f"The parameter {name}={value!r} is neither a number nor text nor a list of them. "
                f"The file says {name}=None; set it again after loading."
            )
    return packed


def _packed_param(value: Any) -> JSON:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, tuple):
        return {"tuple": [_packed_param(item) for item in value]}
    if isinstance(value, list | range):
        return [_packed_param(item) for item in value]
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and np.isfinite(value):
        return value
    raise TypeError


def _param(value: JSON) -> Any:
    if isinstance(value, dict):
        need(value.keys() == {"tuple"} and isinstance(value["tuple"], list), "a parameter")
        return tuple(_param(item) for item in value["tuple"])
    return [_param(item) for item in value] if isinstance(value, list) else value


def set_params(estimator: Any, params: JSON) -> None:
    """Set all parameters to what a file says."""
    own = estimator.get_params(deep=False)
    need(isinstance(params, dict) and params.keys() == own.keys(), "the parameters")
    for name, value in params.items():
        setattr(estimator, name, _param(value))
    try:
        check_params(estimator)
    except (ValueError, TypeError, OverflowError) as error:
        raise MismatchError(f"the parameters make no sense ({error})") from error


def check_params(estimator: Any) -> None:
    """Refuse parameters that `fit` would refuse without a look at the rows."""
    if isinstance(estimator, SecondOrderRegressorCV):
        params = estimator.get_params(deep=False).items()
        estimator = SecondOrderRegressor(rank=1, **{k: v for k, v in params if k not in OWN})
    check_options(estimator)


def packed_encoder(encoder: TableEncoder | None) -> JSON:
    """Return the columns of a table and their levels, in order."""
    if encoder is None:
        return None
    levels = [None if known is None else list(known) for known in encoder.levels]
    return {"columns": list(encoder.input_names), "levels": levels, "dtype": encoder.dtype.name}


def encoder_of(said: JSON) -> TableEncoder | None:
    """Return the encoder for the columns that a file names."""
    if said is None:
        return None
    need(isinstance(said, dict) and said.keys() == {"columns", "levels", "dtype"}, "the encoder")
    columns, levels = said["columns"], said["levels"]
    need(texts(columns) and isinstance(levels, list), "the columns")
    need(len(columns) == len(levels), "the number of columns")
    need(all(known is None or texts(known) for known in levels), "the levels")
    need(said["dtype"] in ("float32", "float64"), "the type of the columns")
    known = tuple(
        None if labels is None else {label: i for i, label in enumerate(labels)}
        for labels in levels
    )
    encoder = TableEncoder(tuple(columns), known, np.dtype(said["dtype"]))
    need(len(set(encoder.names)) == len(encoder.names) > 0, "the names of encoded columns")
    return encoder


def fields_of(said: JSON, d: int) -> tuple[np.ndarray, ...]:
    """Return the groups of features that a file names."""
    need(isinstance(said, list) and all(isinstance(field, list) for field in said), "the fields")
    members = [j for field in said for j in field]
    need(all(type(j) is int and 0 <= j < d for j in members), "a feature of a field")
    need(len(set(members)) == len(members), "a feature in two fields")
    return tuple(np.asarray(field, dtype=int) for field in said)


def number_columns(estimator: Any) -> list[str]:
    """Return the names of the columns that hold numbers, in order."""
    encoder = estimator._encoder
    if encoder is None:
        return list(estimator._names())
    pairs = zip(encoder.input_names, encoder.levels, strict=True)
    return [name for name, known in pairs if known is None]


def packed_fill(estimator: Any) -> JSON:
    """Return what stood for missing values, a number for each column of numbers."""
    fill = estimator._fill
    return None if fill is None else [float(fill[name]) for name in number_columns(estimator)]


def fill_of(said: JSON, columns: list[str]) -> dict[str, float] | None:
    """Return what a file says stands for missing values, by column."""
    if said is None:
        return None
    good = isinstance(said, list) and all(type(v) is float and np.isfinite(v) for v in said)
    need(good and len(said) == len(columns), "what missing values are filled with")
    return dict(zip(columns, said, strict=True))


def packed_cv(estimator: SecondOrderRegressorCV) -> JSON:
    """Return what cross-validation found."""
    results = estimator.cv_results_.items()
    columns = {k: pack(v.tolist(), k, {}) for k, v in results if k != "params"}
    passes, score = int(estimator.n_passes_), float(estimator.best_score_)
    known = {"alpha": list(estimator.alpha_), "best_score": pack(score, "", {}), "n_passes": passes}
    return {**known, "results": columns}


def cv_of(said: JSON) -> dict[str, Any]:
    """Return the attributes that cross-validation adds."""
    parts = {"alpha", "best_score", "n_passes", "results"}
    need(isinstance(said, dict) and said.keys() == parts, "the cross-validation")
    results = said["results"]
    need(isinstance(results, dict), "the scores")
    splits = {f"split{i}_test_score": np.float64 for i in range(len(results) - len(CV_COLUMNS))}
    kinds: dict[str, Any] = {**CV_COLUMNS, **splits}
    need(results.keys() == kinds.keys(), "the columns of the scores")
    try:
        table = {name: np.asarray(results[name], dtype=kinds[name]) for name in kinds}
        alpha, score = np.asarray(said["alpha"], dtype=float), float(said["best_score"])
    except (ValueError, TypeError, OverflowError) as error:
        raise MismatchError(f"the scores are not numbers ({error})") from error
    rank = table["param_rank"]
    need(rank.ndim == 1, "the ranks tried")
    shapes = {name: (len(rank), 2) if name == "param_alpha" else (len(rank),) for name in table}
    need({name: a.shape for name, a in table.items()} == shapes, "the scores")
    need(alpha.shape == (2,) and type(said["n_passes"]) is int, "the choice")
    pairs = zip(rank.tolist(), map(tuple, table["param_alpha"].tolist()), strict=True)
    order = ("param_rank", "param_alpha", *splits)
    ordered = {name: table[name] for name in (*order, *(n for n in CV_COLUMNS if n not in order))}
    return {
        "alpha_": tuple(alpha.tolist()),
        "best_score_": score,
        "n_passes_": said["n_passes"],
        "cv_results_": {"params": [{"rank": k, "alpha": a} for k, a in pairs], **ordered},
    }


def texts(said: JSON) -> bool:
    """Tell whether it is a list of different texts."""
    texts = isinstance(said, list) and all(isinstance(item, str) for item in said)
    return texts and len(set(said)) == len(said)


def need(good: Any, what: str) -> None:
    """Refuse what a file says, unless it is good."""
    if not good:
        raise MismatchError(f"{what} cannot be right")
