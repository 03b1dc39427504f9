"""The columns of a table as an estimator knows them, and rows checked against them."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from numbers import Integral
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils import check_array, check_X_y
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import canonical, moved, namespace, refuse_broken_sparse
from quadlin.core.chunks import Chunk, MemorySource, Table
from quadlin.core.messages import warn
from quadlin.core.rows import Rows
from quadlin.data import Source, is_dask, open_source
from quadlin.data.columns import (
    Counts,
    TableEncoder,
    check_frame,
    columns_in,
    in_unit,
    is_whole,
    text_columns,
)
from quadlin.data.csv_text import Dialect
from quadlin.data.names import NumberedNames, other_names, position_of, shortened
from quadlin.data.opening import with_ids
from quadlin.data.reader import array_fill, fill_missing
from quadlin.estimators.checks import (
    check_targets,
    checked_weight,
    clear_errors,
    float_types,
    refuse_masked,
    validated,
)
from quadlin.exceptions import UnseenLevelWarning

NO_TARGET = "The source has no target. Open it with `target`."
NO_WEIGHT = "All weights are zero, so there is no row to score."

# What the methods of estimators take; frames, sparse matrices and tensors are tables.
RowsLike = ArrayLike | Table | Source
Vector = ArrayLike | Table | None


@dataclass(frozen=True)
class Columns:
    """The columns that a model was fitted to, and how they become features."""

    n_features_in: int
    names_in: np.ndarray | None  # feature_names_in_, where they are text
    encoder: TableEncoder | None = None  # of text columns
    fill: dict[str, float] | None = None  # what stood for missing numbers
    target: str | None = None  # the column of the targets, where they were one
    weight: str | None = None  # the column of the weights
    csv: Dialect = field(default_factory=Dialect)  # how CSV was declared to be written

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the features, text columns by their levels."""
        if self.encoder is not None:
            return list(self.encoder.names)
        if self.names_in is None:
            return NumberedNames(self.n_features_in)
        return list(self.names_in)

    @property
    def inputs(self) -> Sequence[str]:
        """Return the names of the columns as the user gives them."""
        return self.names if self.encoder is None else list(self.encoder.input_names)

    @property
    def number_names(self) -> Sequence[str]:
        """Return the names of the columns that hold numbers."""
        if self.encoder is None:
            return self.names
        pairs = zip(self.encoder.input_names, self.encoder.levels, strict=True)
        return [name for name, levels in pairs if levels is None]

    @classmethod
    def of_source(cls, source: Source) -> "Columns":
        """Return the columns of a source."""
        inputs = inputs_of(source)
        names = None if _unnamed(inputs) else np.asarray(inputs, dtype=object)
        roles = (source.target, source.weight)
        return cls(len(inputs), names, source.encoder, source.fill, *roles, source.csv)

    def check_source(self, source: Source) -> None:
        """Raise an error for a source whose columns are not these."""
        if self.fill is not None and source.fill not in (None, self.fill):
            raise ValueError(
                "The source fills missing values with other numbers than the fit did. Open it with "
                "fill=model.fill_."
            )
        if source.encoder != self.encoder:
            raise ValueError(
                "The text columns of the source are encoded differently than in the fit. "
                "Open it with encoder=model.encoder_."
            )
        inputs = inputs_of(source)
        self.check_inputs(None if _unnamed(inputs) else inputs, len(inputs))

    def check_inputs(self, names: Sequence[Any] | None, width: int) -> None:
        """Check the columns of rows, by their names or, without any, their number."""
        if width != self.n_features_in:
            raise ValueError(
                f"X has {width} features, but the model was fitted to {self.n_features_in}."
            )
        if names is not None and list(map(str, names)) != list(self.inputs):
            raise ValueError(other_names(list(map(str, names)), self.inputs))


def inputs_of(source: Source) -> Sequence[str]:
    """Return the names of the columns of a source, text columns as one."""
    return source.names if source.encoder is None else source.encoder.input_names


def _unnamed(names: Any) -> bool:
    return all(name == f"x{j}" for j, name in enumerate(names))


def opened(
    estimator: Any, X: Any, y: Any, weight: Any, columns: Columns | None = None, least: int = 1
) -> tuple[MemorySource | Source, Columns]:
    """Return rows that were checked, in memory or wherever they are, and their columns.

    With the `columns` of a fitted estimator, the rows must have the same.
    """
    if isinstance(X, str | PathLike):
        raise TypeError(
            f"fit takes rows, not the name of a file: use quadlin.open_source({str(X)!r}, "
            "target=...)."
        )
    if isinstance(X, Source) or is_dask(X):
        source = as_source(X, y, weight, columns, estimator)
        if not source.has_target:
            raise ValueError(NO_TARGET)
        if columns is not None:
            columns.check_source(source)
        return source, columns or Columns.of_source(source)
    chunk, columns = checked(estimator, X, y, weight, columns, least)
    rows = chunk.counting()  # rows of weight 0 must not even change how sums are rounded
    ones = rows.weight is not None and bool(namespace(rows.weight).all(rows.weight == 1))
    weight = None if ones else rows.weight
    return MemorySource(rows.X, rows.y, weight, absent=rows.absent), columns


def as_source(
    X: Any, y: Any, weight: Any, columns: Columns | None, estimator: Any = None
) -> Source:
    """Return a Source, or Dask's rows as one."""
    if isinstance(X, Source):
        for values, role in ((y, "target"), (weight, "weight")):
            if values is not None:
                raise ValueError(f"A Source has its own {role}s: open_source(..., {role}=...).")
        if estimator is None:
            return X
        refuse_undeclared(estimator, X)
        return _with_ids(estimator, X, columns)
    if columns is not None:
        fill = estimator.fitted_.parts[0].fill if estimator.missing == "mean" else None
        return open_source(X, target=y, weight=weight, encoder=columns.encoder, fill=fill)
    given = declared_columns(estimator, X) or ()
    options = {"missing": estimator.missing, "categorical_features": given}
    return _with_ids(estimator, open_source(X, target=y, weight=weight, **options), None)


def _with_ids(estimator: Any, source: Source, columns: Columns | None) -> Source:
    """Return a source whose columns of whole numbers are categories if the estimator takes ids."""
    if not _guesses(estimator) or not source.again:
        return source
    known = None if columns is None else text_columns(columns.encoder)
    names = [name for name in source.reader.whole if known is None or name in known]
    return replace(source, reader=with_ids(source.feed, source.reader, names)) if names else source


def checked(
    estimator: Any, X: Any, y: Any, weight: Any, columns: Columns | None, least: int = 1
) -> tuple[Chunk, Columns]:
    """Return rows in memory that were checked and encoded, and their columns."""
    _check_table(estimator, X, columns)
    check_targets(y)
    fills = estimator.missing == "mean"
    encoder = learned_encoder(estimator, X) if columns is None else columns.encoder
    # scikit-learn notes names and numbers of columns on the estimator it checks for; the one that
    # is being fitted must stay as it is until there is a new model.
    draft = copy(estimator) if columns is None else estimator
    checks = {"y_numeric": True, "ensure_min_samples": least}
    X, y = _numbers(draft, X, y, encoder=encoder, reset=columns is None, **checks)
    y = moved(y, X)
    weight = checked_weight(weight, y, some=least > 1)
    fill = estimator.fitted_.parts[0].fill if fills and columns is not None else {}
    if columns is None:
        names_in = getattr(draft, "feature_names_in_", None)
        columns = Columns(draft.n_features_in_, names_in, encoder)
        if fills:
            means = array_fill(X, columns.names, weight)
            fill = {name: means[name] for name in columns.number_names}
            columns = replace(columns, fill=fill)
    X, absent = fill_missing(X, fill, columns.names) if fills else (X, None)
    return Chunk(X, y, weight, absent=absent), columns


def _check_table(estimator: Any, X: Any, columns: Columns | None) -> None:
    """Raise an error for what is not a table in memory; dates may only be levels."""

    def is_category(name: Any) -> bool:
        if columns is None:
            return name in (declared_columns(estimator, X) or ())
        return name in text_columns(columns.encoder)

    if (isinstance(X, dict | set) and not issparse(X)) or hasattr(X, "__next__"):
        raise TypeError(
            f"X is a {type(X).__name__}, not a table. Give an array, a sparse matrix or a frame "
            "(pd.DataFrame of a dict of columns), or open rows that come one by one with "
            "quadlin.open_source."
        )
    check_frame(X, is_category)
    refuse_broken_sparse(X)
    refuse_masked(X, "X")


def _numbers(
    estimator: Any, X: Any, *y: Any, encoder: TableEncoder | None, reset: bool, **checks: Any
) -> Any:
    """Return rows as numbers, and their targets or None."""
    fills = estimator.missing == "mean"
    finite = "allow-nan" if fills else True
    checks |= {"accept_sparse": "csr", "dtype": float_types(X), "ensure_all_finite": finite}
    with clear_errors(X, *y):
        if encoder is None:
            found = validated(estimator, X, *y, reset=reset, **checks)
        else:
            rows, unseen = encoder.encode(X, fills)
            if reset:
                validated(estimator, X, skip_check_array=True, reset=True)  # else encode compares
            if unseen:
                warn_unseen(unseen, learns=bool(y))
            found = check_X_y(rows, *y, **checks) if y else check_array(rows, **checks)
    X, target = found if y else (found, None)
    return canonical(X) if issparse(X) else X, target


def _guesses(estimator: Any) -> bool:
    """Tell whether whole numbers are categories: given to an estimator that takes ids."""
    return estimator.takes_ids and isinstance(estimator.categorical_features, str)


def chunks_to_predict(estimator: Any, X: Any, columns: Columns) -> Iterator[Chunk]:
    """Yield rows to predict, checked and encoded, a chunk at a time."""
    if isinstance(X, Source) or is_dask(X):
        source = X if isinstance(X, Source) else as_source(X, None, None, columns, estimator)
        columns.check_source(source)
        yield from Rows.of(source).walk()
        if source.unseen:
            warn_unseen(source.unseen)
        return
    _check_table(estimator, X, columns)
    (X, _), absent = _numbers(estimator, X, encoder=columns.encoder, reset=False), None
    if estimator.missing == "mean":
        X, absent = fill_missing(X, estimator.fitted_.parts[0].fill, columns.names)
    yield from Rows.of(MemorySource(X, absent=absent)).walk()


def source_to_score(estimator: Any, X: Any, y: Any, weight: Any, targets: str) -> Source | None:
    """Return the Source to score, None for other rows; what is predicted must be known."""
    if not isinstance(X, Source):
        if y is None:
            raise ValueError(f"score needs {targets}: give y, or a Source opened with target=.")
        return None
    check_is_fitted(estimator)
    source = as_source(X, y, weight, None)
    if not source.has_target:
        raise ValueError(NO_TARGET)
    return source


def declared_columns(estimator: Any, X: Any) -> list[Any] | None:
    """Return the names of the columns that are declared as categories; None where none may be.

    Parameters
    ----------
    estimator : estimator
        Its parameter `categorical_features` counts, without groups of columns. Where it takes ids
        and nothing is declared, so do columns of whole numbers other than 0 and 1.
    X : frame, array or Dask collection
        Rows. Columns of an array are called x0, x1, …

    Returns
    -------
    list of names, or None for ``categorical_features=None``
    """
    given = estimator.categorical_features
    if given is None:
        return None
    if _guesses(estimator) and not is_dask(X):
        values = columns_in(X) or {}
        return [name for name, each in values.items() if is_whole(each) and not in_unit(each)]
    columns = single_columns(given)
    if not columns:
        return []
    named = getattr(X, "column_names", getattr(X, "columns", None))
    if named is not None:
        return _chosen(columns, list(named))
    if issparse(X) or not isinstance(X, np.ndarray | list):
        raise ValueError(
            "categorical_features needs a frame or a NumPy array, but X is a "
            f"{type(X).__name__}. Encode the categories as 0/1 columns beforehand, or leave the "
            "option out."
        )
    return _chosen(columns, NumberedNames(np.asarray(X, dtype=object).shape[-1]))


def _chosen(given: Sequence[Any], names: Sequence[Any]) -> list[Any]:
    """Return the names of columns that are given by names, by positions or by booleans."""
    if all(isinstance(item, bool | np.bool_) for item in given):
        if len(given) != len(names):
            raise ValueError(
                f"categorical_features has {len(given)} booleans, but X has {len(names)} columns. "
                "Give one per column."
            )
        return [name for name, chosen in zip(names, given, strict=True) if chosen]
    try:
        return [names[position_of(names, item)] for item in given]
    except LookupError as error:
        raise ValueError(f"categorical_features: {error.args[0]}") from None


def single_columns(given: Any) -> list[Any]:
    """Return what `categorical_features` lists besides groups of columns."""
    if given is None or isinstance(given, str):
        return []
    return [item for item in given if isinstance(item, str | Integral | np.bool_)]


def learned_encoder(estimator: Any, X: Any) -> TableEncoder | None:
    """Learn the levels of categorical columns as the estimator's options say."""
    declared = declared_columns(estimator, X)
    if not declared and isinstance(X, np.ndarray) and X.dtype.kind in "biuf":
        return None
    encoder = TableEncoder.learn(X, declared or (), estimator.missing, estimator.takes_ids)
    if encoder is not None and declared is None:
        text = next(iter(encoder.text))
        raise ValueError(
            f"Column {text!r} holds text, but categorical_features=None treats all columns as "
            'numbers. Use categorical_features="from_dtype", or drop the column.'
        )
    return encoder


def refuse_undeclared(estimator: Any, source: Source) -> None:
    """Raise an error for a source that was opened without the categories that are declared."""
    given = single_columns(estimator.categorical_features)
    if not given:
        return
    names, known = list(inputs_of(source)), text_columns(source.encoder)
    if numbers := [name for name in _chosen(given, names) if name not in known]:
        raise ValueError(
            f"The source reads {shortened(numbers)} as numbers. Open it with "
            f"open_source(..., categorical_features={numbers!r})."
        )


def warn_unseen(unseen: Counts, learns: bool = False) -> None:
    """Warn of levels that the encoder does not know; if the model `learns`, say how it could."""
    what = {
        "Levels that fit did not see are treated": unseen,
        "Missing values of columns that had none in fit count": unseen.missing,
    }
    text = " ".join(
        f"{words} as an average level; rows: {', '.join(f'{n} in {c!r}' for c, n in rows.items())}."
        for words, rows in what.items()
        if rows
    )
    advice = (
        " To learn them from a stream, name all levels when it begins: partial_fit("
        "open_source(frame, target=..., levels={column: [...]})), and open later rows with "
        "encoder=model.encoder_."
    )
    warn(text + (advice if learns and len(unseen) else ""), UnseenLevelWarning)
