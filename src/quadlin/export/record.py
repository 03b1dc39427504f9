"""What a model file says of an estimator, as plain data: parameters, columns, state, scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, cast

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.messages import warn
from quadlin.core.units import Units
from quadlin.data.encoder import TableEncoder
from quadlin.data.label_sets import LabelSets
from quadlin.estimators.cross_validation import OWN, SecondOrderRegressorCV
from quadlin.estimators.parameters import check_options
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.explain.pair_report import (
    DEVIANCE,
    VARIANCE,
    Exchange,
    Pair,
    PairReport,
    PathStep,
)
from quadlin.solve.gibbs import Draws
from quadlin.solve.uncertainty import Uncertainty
from quadlin.storage.serialise import AnyJSON
from quadlin.storage.tensor_file import JSON
from quadlin.stream.state import InvalidContentError, StreamState

LABEL_KINDS = {"U": str, "i": int, "u": int, "f": float, "b": bool, "O": object}
LARGEST_STEP = 1e100  # of an error's law: the squares of its products are finite
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
SCORE_COLUMNS = {  # of cv_results_, beside params and the splits
    "param_rank": np.int64,
    "param_alpha": np.float64,
    "mean_test_score": np.float64,
    "std_test_score": np.float64,
    "rank_test_score": np.int64,
}


@dataclass(frozen=True)
class EncoderRecord:
    """The columns of a table and the levels of its text columns, in order."""

    columns: tuple[str, ...]
    levels: tuple[tuple[str, ...] | None, ...]  # None for numbers
    dtype: str
    separators: tuple[str | None, ...] = ()  # of columns of lists, None for others; () for none

    @classmethod
    def of(cls, encoder: TableEncoder | None) -> "EncoderRecord | None":
        """Return the record of an encoder."""
        if encoder is None:
            return None
        levels = tuple(None if labels is None else tuple(labels) for labels in encoder.levels)
        lists = encoder.separators
        separators = tuple(lists.get(name) for name in encoder.input_names) if lists else ()
        return cls(tuple(encoder.input_names), levels, encoder.dtype.name, separators)

    def encoder(self) -> TableEncoder:
        """Return the encoder, if there can be such a one."""
        require(distinct(self.columns), "the columns of the table")
        require(len(self.columns) == len(self.levels), "the number of columns")
        require(all(labels is None or distinct(labels) for labels in self.levels), "the levels")
        require(self.dtype in ("float32", "float64"), "the type of the columns")
        separators = self.separators or (None,) * len(self.columns)
        require(len(separators) == len(self.columns), "the number of separators")
        pairs = tuple(zip(self.levels, separators, strict=True))
        require(all(s is None or (s and labels is not None) for labels, s in pairs), "separators")
        levels = tuple(
            None
            if labels is None
            else {label: i for i, label in enumerate(labels)}
            if separator is None
            else LabelSets(labels, separator)
            for labels, separator in pairs
        )
        encoder = TableEncoder(self.columns, levels, np.dtype(self.dtype))
        require(distinct(encoder.names) and len(encoder.names), "the names of encoded columns")
        return encoder


@dataclass(frozen=True)
class ScoresRecord:
    """What cross-validation adds to an estimator."""

    alpha: tuple[float, float]
    best_score: AnyJSON  # a number that may be infinite, where a fit failed
    n_passes: int
    results: AnyJSON  # the columns of cv_results_, without params

    @classmethod
    def of(cls, estimator: Any) -> "ScoresRecord | None":
        """Return the scores of an estimator that has some."""
        if not isinstance(estimator, SecondOrderRegressorCV):
            return None
        results: Any = {k: v.tolist() for k, v in estimator.cv_results_.items() if k != "params"}
        score: Any = float(estimator.best_score_)
        on_w, on_M = map(float, estimator.alpha_)
        return cls((on_w, on_M), score, int(estimator.n_passes_), results)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the estimator."""
        results: Any = self.results
        require(isinstance(results, dict), "the scores")
        splits = {
            f"split{i}_test_score": np.float64 for i in range(len(results) - len(SCORE_COLUMNS))
        }
        kinds: dict[str, Any] = {**SCORE_COLUMNS, **splits}
        require(results.keys() == kinds.keys(), "the columns of the scores")
        try:
            table = {name: np.asarray(results[name], dtype=kinds[name]) for name in kinds}
            score = float(self.best_score)  # type: ignore[arg-type]
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidContentError(f"the scores are not numbers ({error})") from error
        rank = table["param_rank"]
        require(rank.ndim == 1, "the ranks tried")
        shapes = {name: (len(rank), 2) if name == "param_alpha" else (len(rank),) for name in table}
        require({name: a.shape for name, a in table.items()} == shapes, "the scores")
        pairs = zip(rank.tolist(), map(tuple, table["param_alpha"].tolist()), strict=True)
        first = ("param_rank", "param_alpha", *splits)
        order = (*first, *(name for name in SCORE_COLUMNS if name not in first))
        params = [{"rank": k, "alpha": alpha} for k, alpha in pairs]
        return {
            "best_score_": score,
            "n_passes_": self.n_passes,
            "cv_results_": {"params": params, **{name: table[name] for name in order}},
        }


@dataclass(frozen=True)
class PairsRecord:
    """What a search for pairs has said, by columns; null stands for what is not known."""

    pairs: AnyJSON
    exchangeable: AnyJSON
    path: AnyJSON
    n_rows: int
    n_features: int
    n_candidates: int
    at_limit: bool
    measure: str = VARIANCE

    @classmethod
    def of(cls, report: PairReport | None) -> "PairsRecord | None":
        """Return the record of a report."""
        if report is None:
            return None

        def table(rows: Any) -> Any:
            return [[v if isinstance(v, str) or isfinite(v) else None for v in r] for r in rows]

        exchangeable = [(*taken, *other, cost) for taken, other, cost in report.exchangeable]
        return cls(
            pairs=table(report.pairs),
            exchangeable=table(exchangeable),
            path=table(report.path),
            n_rows=int(report.n_rows),
            n_features=int(report.n_features),
            n_candidates=int(report.n_candidates),
            at_limit=bool(report.at_limit),
            measure=report.measure,
        )

    def report(self, names: Sequence[str]) -> PairReport:
        """Return the report, if there can be such a one."""
        number = (int, float, type(None))
        kinds: Any = (
            (self.pairs, (str, str, *[number] * 5, int)),
            (self.exchangeable, (str, str, str, str, number)),
            (self.path, (int, number, number)),
        )
        for table, kind in kinds:
            require(isinstance(table, list), "the pairs")
            for row in table:
                good = isinstance(row, list) and len(row) == len(kind)
                require(good and all(map(isinstance, row, kind)), "the pairs")
                require({v for v in row if isinstance(v, str)} <= set(names), "a name of a pair")
        tables: list[Any] = [
            [[nan if v is None else v for v in row] for row in table] for table, _ in kinds
        ]
        pairs, exchangeable, path = tables
        require(path, "the path of the pairs")
        require(self.measure in (VARIANCE, DEVIANCE), "the measure of the pairs")
        return PairReport(
            [Pair(*row) for row in pairs],
            [Exchange((a, b), (c, d), cost) for a, b, c, d, cost in exchangeable],
            [PathStep(*row) for row in path],
            False,
            self.n_rows,
            self.n_features,
            self.n_candidates,
            self.at_limit,
            None,
            self.measure,
        )


@dataclass(frozen=True)
class ModelRecord:
    """The header of a model file, beside the name of the class; see docs/model_files.md."""

    quadlin_version: str
    params: AnyJSON
    n_features_in: int
    feature_names_in: tuple[str, ...] | None
    encoder: EncoderRecord | None
    fields: tuple[tuple[int, ...], ...]
    fill: AnyJSON
    intercept: float
    value_at_mean: float
    state: StreamState
    uncertainty: Uncertainty | None
    cv: ScoresRecord | None
    draws: Draws | None = None
    target: str | None = None
    pairs: PairsRecord | None = None


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


def set_params(estimator: Any, params: JSON) -> None:
    """Set all parameters to those of a file."""
    names = estimator.get_params(deep=False).keys()
    require(isinstance(params, dict), "the parameters")
    require(names - ADDED_PARAMS <= params.keys() <= names, "the parameters")
    for name, value in params.items():
        setattr(estimator, name, _param(value))
    try:
        check_params(estimator)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidContentError(f"the parameters are not valid ({error})") from error


def check_params(estimator: Any) -> None:
    """Refuse parameters that `fit` would refuse before it reads a row."""
    if isinstance(estimator, SecondOrderRegressorCV):
        params = estimator.get_params(deep=False).items()
        estimator = SecondOrderRegressor(rank=1, **{k: v for k, v in params if k not in OWN})
    check_options(estimator)


def fields_of(record: tuple[tuple[int, ...], ...], d: int) -> tuple[np.ndarray, ...]:
    """Return the groups of features of a file."""
    members = [j for field in record for j in field]
    require(all(0 <= j < d for j in members), "a feature of a field")
    require(distinct(members), "a feature in two fields")
    return tuple(np.asarray(field, dtype=int) for field in record)


def fill_of(record: JSON, columns: list[str]) -> dict[str, float] | None:
    """Return what a file says stands for missing values, by column."""
    if record is None:
        return None
    good = isinstance(record, list) and all(type(v) is float and isfinite(v) for v in record)
    require(good and len(record) == len(columns), "the values that replace missing ones")
    return dict(zip(columns, record, strict=True))


def check_uncertainty(law: Uncertainty, units: Units) -> None:
    """Refuse a law of errors that gives standard errors that are not numbers.

    They are NaN where too few rows are left over to estimate the noise, and nowhere else.
    """
    arrays = [to_numpy(a) for a in (law.steps.E, law.steps.H, law.steps.w, law.steps.c)]
    small = all(np.max(np.abs(a), initial=0.0) <= LARGEST_STEP for a in arrays)
    sizes = (law.noise, law.error)
    unknown = [not isfinite(size) for size in sizes]
    require(small and (all(unknown) if law.left < 1 else not any(unknown)), "the standard errors")
    require(all(size >= 0 for size in sizes if isfinite(size)), "the level of the noise")
    same = (
        np.array_equal(to_numpy(getattr(law.units, part)), to_numpy(getattr(units, part)))
        for part in ("mean", "scale", "free", "rest")
    )
    require(all(same) and law.units.target == units.target, "the units of the standard errors")


def check_draws(draws: Draws, fields: tuple[np.ndarray, ...], d: int) -> None:
    """Refuse draws that cannot predict rows of these features."""
    S, levels, K = draws.tables.shape
    require(S > 0 and levels == d + len(fields) and len(draws.signs) + 1 == K, "the draws")
    arrays = (draws.tables, draws.centred, draws.intercepts, draws.noises, draws.signs)
    require(all(a.dtype.kind == "f" and np.isfinite(a).all() for a in arrays), "the draws")
    require(draws.tables.dtype == draws.centred.dtype == np.float32, "the type of the draws")
    require(bool((draws.noises >= 0).all() and (np.abs(draws.signs) == 1).all()), "the draws")
    layout, integers = draws.layout, all(a.dtype.kind == "i" for a in draws.layout.parts)
    require(integers and not draws.history, "the draws")
    same = len(layout.fields) == len(fields) and all(map(np.array_equal, layout.fields, fields))
    require(same, "the fields of the draws")
    columns = [int(j) for part in layout.parts for j in np.ravel(part)]
    require(distinct(columns) and all(0 <= j < d for j in columns), "the columns of the draws")


def distinct(items: Any) -> bool:
    """Return whether no item comes twice."""
    return len(set(items)) == len(items)


def require(good: Any, what: str) -> None:
    """Refuse a file, unless what it says is good."""
    if not good:
        raise InvalidContentError(f"{what} cannot be right")
