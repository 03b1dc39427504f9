"""The contents of a model file as plain data: parameters, columns, state, scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy as np

from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.label_sets import LabelSets
from quadlin.data.sources.csv_text import REMEMBERED, Dialect
from quadlin.estimators.cv.cross_validation import SecondOrderRegressorCV
from quadlin.estimators.rows.columns import Columns
from quadlin.explain.pair_report import (
    DEVIANCE,
    VARIANCE,
    Exchange,
    Pair,
    PairBlock,
    PairReport,
    PathStep,
)
from quadlin.export.parts import distinct
from quadlin.solve.fields.gibbs import Draws
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.storage.serialise import AnyJSON
from quadlin.stream.state import InvalidContentError, StreamState, require

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
    kinds: tuple[str | None, ...] = ()  # dtypes of levels, None for text; () where all are

    @classmethod
    def of(cls, encoder: TableEncoder | None) -> "EncoderRecord | None":
        """Return the record of an encoder."""
        if encoder is None:
            return None
        levels = tuple(None if labels is None else tuple(labels) for labels in encoder.levels)
        lists = encoder.separators
        separators = tuple(lists.get(name) for name in encoder.input_names) if lists else ()
        names, dtype = tuple(encoder.input_names), encoder.dtype.name
        return cls(names, levels, dtype, separators, encoder.kinds)

    def encoder(self) -> TableEncoder:
        """Return the encoder; refuse a record that no encoder can have."""
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
        require(len(self.kinds) in (0, len(self.columns)), "the number of dtypes of levels")
        encoder = TableEncoder(self.columns, levels, np.dtype(self.dtype), self.kinds)
        require(distinct(encoder.names) and len(encoder.names), "the names of encoded columns")
        try:
            for name in self.columns:
                encoder.level_values(name)
        except (TypeError, ValueError, OverflowError):
            require(False, "the dtypes of levels")
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
        """Return the scores of a cross-validation, None for other estimators."""
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
        more = {"param_pairs": np.int64} if "param_pairs" in results else {}
        columns: dict[str, Any] = {**SCORE_COLUMNS, **more}
        splits = {f"split{i}_test_score": np.float64 for i in range(len(results) - len(columns))}
        kinds: dict[str, Any] = {**columns, **splits}
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
        order = (*first, *(name for name in columns if name not in first))
        params: list[dict[str, Any]] = [{"rank": k, "alpha": alpha} for k, alpha in pairs]
        if more:
            counts = table["param_pairs"].tolist()
            params = [{**p, "pairs": count} for p, count in zip(params, counts, strict=True)]
        return {
            "best_score_": score,
            "n_passes_": self.n_passes,
            "cv_results_": {"params": params, **{name: table[name] for name in order}},
        }


@dataclass(frozen=True)
class PairsRecord:
    """The report of a search for pairs, as tables; null stands for an unknown value."""

    pairs: AnyJSON
    exchangeable: AnyJSON
    path: AnyJSON
    n_rows: int
    n_features: int
    n_candidates: int
    at_limit: bool
    measure: str = VARIANCE
    blocks: AnyJSON | None = None  # of files of earlier versions

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
            blocks=table(report.blocks),
        )

    def report(self, names: Sequence[str]) -> PairReport:
        """Return the report; refuse a record that no report can have."""
        number = (int, float, type(None))
        pairs = _checked(self.pairs, (str, str, *[number] * 5, int), "the pairs")
        exchangeable = _checked(self.exchangeable, (str, str, str, str, number), "the pairs")
        path = _checked(self.path, (int, number, number), "the pairs")
        for row in (*pairs, *exchangeable):
            require({v for v in row if isinstance(v, str)} <= set(names), "a name of a pair")
        block = (str, str, int, number, number, int)
        blocks = _checked(self.blocks or [], block, "the blocks of pairs")
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
            blocks=[PairBlock(*row) for row in blocks],
        )


def _checked(table: Any, kinds: tuple[Any, ...], what: str) -> list[list[Any]]:
    """Return rows of values of these kinds, with nan for null, or refuse them."""
    require(isinstance(table, list), what)
    for row in table:
        good = isinstance(row, list) and len(row) == len(kinds)
        require(good and all(map(isinstance, row, kinds)), what)
    return [[nan if v is None else v for v in row] for row in table]


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
    weight: str | None = None
    delimiter: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    header: bool | None = None
    na: tuple[str, ...] | None = None
    noise: float | None = None
    train_score: float | None = None

    def columns(self, n_features: int) -> Columns:
        """Return the columns that the model was fitted to."""
        encoder = None if self.encoder is None else self.encoder.encoder()
        width = n_features if encoder is None else len(encoder.input_names)
        require(self.n_features_in == width, "the number of features")
        names = self.feature_names_in
        if names is not None:
            require(distinct(names) and len(names) == width, "the names of the features")
            # scikit-learn keeps only names that are text; an encoder has all of them, as text.
            require(self.encoder is None or names == self.encoder.columns, "the names of columns")
        names_in = None if names is None else np.asarray(names, dtype=object)
        csv = Dialect.of(**{name: getattr(self, name) for name in REMEMBERED})
        return Columns(width, names_in, encoder, None, self.target, self.weight, csv)
