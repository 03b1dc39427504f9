"""Text columns of a table as groups of one-hot columns, called fields."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import csr_array, get_index_dtype

from quadlin.core.messages import warn

Levels = dict[str, int]  # the position of each level in its field
TEXT = (nw.String, nw.Categorical, nw.Enum)
MANY, FEW = 20, 0.1  # levels of a column, and the share that are no numbers, to be suspicious of
FITS_FLOAT32 = {"Float32", "Float16", "Boolean", "Int8", "Int16", "UInt8", "UInt16"}


@dataclass(frozen=True)
class TableEncoder:
    """Rows of a table as sparse numbers: a text column with L levels becomes L one-hot columns.

    Numbers and booleans stay what they are. A level not seen by `learn` is zero in all columns of
    its field. Levels are sorted; those of an ordered categorical keep their order.

    Examples
    --------
    >>> import polars as pl
    >>> table = pl.DataFrame({"city": ["Rome", "Oslo", "Rome", "Oslo"], "age": [31, 0, 5, 2]})
    >>> encoder = TableEncoder.learn(table)
    >>> encoder.names
    ('city=Oslo', 'city=Rome', 'age')
    >>> encoder.fields
    (array([0, 1]),)
    >>> X, unseen = encoder.encode(pl.DataFrame({"city": ["Oslo", "Bonn"], "age": [7, 8]}))
    >>> X.toarray()
    array([[1., 0., 7.],
           [0., 0., 8.]])
    >>> unseen
    {'city': 1}
    """

    input_names: tuple[str, ...]  # as text, whatever the frame has for names
    levels: tuple[Levels | None, ...]  # for each input column, None for numbers
    dtype: np.dtype

    @classmethod
    def learn(cls, frame: Any) -> "TableEncoder | None":
        """Learn the levels of a frame's text columns; None where all columns hold numbers.

        Parameters
        ----------
        frame : pandas, polars, pyarrow or other eager frame
            Rows. What is not a frame needs no encoder either.

        Returns
        -------
        TableEncoder or None
        """
        table = nw.from_native(frame, eager_only=True, pass_through=True)
        if not isinstance(table, nw.DataFrame):
            return None
        learner = LevelLearner.of(table)
        if learner is None:
            return None
        learner.add(table)
        return learner.encoder()

    def encode(self, frame: Any) -> tuple[csr_array, dict[str, int]]:
        """Encode rows, in O(n + nnz) memory.

        Parameters
        ----------
        frame : frame
            Rows with the columns that `learn` saw, in the same order.

        Returns
        -------
        X : csr_array (n_samples, len(names))
            The rows, with sorted indices and no stored zeros.
        unseen : dict
            How many rows have a level that `learn` did not see, for each column that has any.
        """
        table = self._checked(frame)
        columns, unseen = [], {}
        parts = zip(table.iter_columns(), self.input_names, self.levels, strict=True)
        for column, name, known in parts:
            _refuse(column, column.is_null().to_numpy(), "NaN (a missing value)")
            if is_text(column) == (known is None):
                raise ValueError(
                    f"Column {name!r} has dtype {column.dtype}, but it held "
                    f"{'numbers' if known is None else 'text'} when it was learned. Convert it."
                )
            if known is None:
                columns.append(_numbers(column, self.dtype))
            else:
                columns.append(level_codes(column, known))
                if new := int((columns[-1] < 0).sum()):
                    unseen[name] = new
        return self.joined(columns, len(table)), unseen

    def joined(self, columns: Sequence[np.ndarray], n: int) -> csr_array:
        """Put n rows together from the values of number columns and the codes of text columns.

        Parameters
        ----------
        columns : sequence of arrays (n,)
            For each input column its numbers, or the positions of its levels, -1 for none.
        n : int
            Number of rows.

        Returns
        -------
        csr_array (n, len(names))
        """
        parts: list[tuple[np.ndarray, Any, Any]] = []  # rows, the column of each, its value
        for values, known, first in zip(columns, self.levels, self._first, strict=True):
            rows = np.flatnonzero(values if known is None else values >= 0)
            if known is None:
                parts.append((rows, first, values[rows]))
            else:
                parts.append((rows, first + values[rows], 1))
        return _assembled(parts, (n, len(self.names)), self.dtype)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the output columns, such as ``city=Paris``."""
        return tuple(
            name
            for column, labels in zip(self.input_names, self.levels, strict=True)
            for name in (
                [str(column)] if labels is None else [f"{column}={label}" for label in labels]
            )
        )

    @property
    def fields(self) -> tuple[np.ndarray, ...]:
        """Return the output columns of each text column."""
        return tuple(
            np.arange(first, first + len(labels))
            for first, labels in zip(self._first, self.levels, strict=True)
            if labels is not None
        )

    @cached_property
    def _first(self) -> list[int]:
        """Return where in the output each input column begins."""
        widths = [1 if labels is None else len(labels) for labels in self.levels]
        return [0, *np.cumsum(widths[:-1]).tolist()]

    def _checked(self, frame: Any) -> nw.DataFrame[Any]:
        table = nw.from_native(frame, eager_only=True, pass_through=True)
        if not isinstance(table, nw.DataFrame):
            raise ValueError(
                "The model was fitted to a table with text columns, but a "
                f"{type(frame).__name__} came. Give a frame with those columns."
            )
        found = [str(name) for name in table.columns]
        if tuple(found) == self.input_names:
            return table
        said = ["The feature names should match those that were passed during fit."]
        if extra := [name for name in found if name not in self.input_names]:
            said.append(f"Feature names unseen at fit time: {_some(extra)}.")
        if gone := [name for name in self.input_names if name not in found]:
            said.append(f"Feature names seen at fit time, yet now missing: {_some(gone)}.")
        if not extra and not gone:
            said.append("Feature names must be in the same order as they were in fit.")
        raise ValueError(" ".join(said))


def check_frame(rows: Any) -> None:
    """Refuse a frame that is lazy, or that has two columns of one name; all else passes."""
    try:
        table = nw.from_native(rows, pass_through=True)
    except nw.exceptions.DuplicateError:
        names = Counter(getattr(rows, "column_names", rows.columns))
        twice = [name for name, times in names.items() if times > 1]
        raise ValueError(f"Two columns are called {twice[0]!r}. Rename or drop one.") from None
    if isinstance(table, nw.LazyFrame):
        raise TypeError(
            f"A {type(rows).__name__} is a plan of rows, not rows. Collect it, or walk it piece by "
            "piece: quadlin.open_source(frame, target=...)."
        )


class LevelLearner:
    """Learns a TableEncoder from pieces of a table, as `TableEncoder.learn` does from all of it.

    Examples
    --------
    >>> import polars as pl
    >>> table = pl.DataFrame({"city": ["Rome", "Oslo", "Rome", "Oslo"], "age": [31, 0, 5, 2]})
    >>> learner = LevelLearner.of(table)
    >>> for start in (0, 3):
    ...     learner.add(table[start : start + 3])
    >>> learner.encoder().names
    ('city=Oslo', 'city=Rome', 'age')
    """

    def __init__(self, input_names: Sequence[Any], text: Sequence[Any], dtype: np.dtype) -> None:
        self.input_names, self.dtype, self.rows = tuple(input_names), dtype, 0
        self.seen: dict[Any, set[tuple[Any, str]]] = {name: set() for name in text}

    @classmethod
    def of(cls, frame: Any) -> "LevelLearner | None":
        """Look at the columns of a frame; None where all of them hold numbers."""
        table = nw.from_native(frame, eager_only=True)
        text = [column.name for column in table.iter_columns() if is_text(column)]
        if not text:
            return None
        return cls(table.columns, text, number_dtype(table.drop(text).schema.values()))

    def add(self, frame: Any) -> None:
        """Note the levels of some rows; columns that hold numbers need not be there."""
        table = nw.from_native(frame, eager_only=True)
        self.rows += len(table)
        for name, seen in self.seen.items():
            seen |= _keyed_levels(table.get_column(name))

    def encoder(self) -> TableEncoder:
        """Return the encoder of the rows seen, with a warning where levels are too many."""
        known = {name: _ordered(seen) for name, seen in self.seen.items()}
        for name, labels in known.items():
            strays = _strays(labels)
            if strays:
                warn(
                    f"Column {name!r} is taken for text, with a level for each value, because "
                    f"{_some(strays)} among its {len(labels)} values cannot be read as a number. "
                    "If numbers are meant, mend or leave out those rows."
                )
            elif 2 * len(labels) > self.rows:
                warn(
                    f"Column {name!r} has {len(labels)} levels in {self.rows} rows, as an "
                    "identifier has: levels seen once or twice teach little. Drop the column or "
                    "merge its rare levels."
                )
        levels = tuple(known.get(name) for name in self.input_names)
        encoder = TableEncoder(tuple(map(str, self.input_names)), levels, self.dtype)
        twice = [name for name, times in Counter(encoder.names).items() if times > 1]
        if twice:
            raise ValueError(f"Two encoded columns would be called {twice[0]!r}. Rename a column.")
        return encoder


def _strays(labels: Iterable[str]) -> list[str]:
    """Return the labels that are no numbers, where nearly all of many are."""
    labels = list(labels)
    strays = [label for label in labels if not _is_number(label)]
    return strays if strays and len(labels) >= MANY and len(strays) <= FEW * len(labels) else []


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def number_dtype(kinds: Iterable[Any]) -> np.dtype:
    """Return float32 where it holds all columns of these kinds and one of them asks for it."""
    words = {str(kind) for kind in kinds}
    single = "Float32" in words and words <= FITS_FLOAT32
    return np.dtype(np.float32 if single else np.float64)


def _assembled(parts: Any, shape: tuple[int, int], dtype: np.dtype) -> csr_array:
    """Put rows together from their columns, which come in order."""
    size = sum(len(rows) for rows, _, _ in parts)
    index = get_index_dtype(maxval=max(size, *shape))
    indptr = np.zeros(shape[0] + 1, index)
    for rows, _, _ in parts:
        indptr[1 + rows] += 1
    np.cumsum(indptr, out=indptr)
    free, indices, data = indptr[:-1].copy(), np.empty(size, index), np.empty(size, dtype)
    for rows, columns, values in parts:
        spot = free[rows]
        indices[spot], data[spot] = columns, values
        free[rows] += 1
    return csr_array((data, indices, indptr), shape=shape)


def is_text(column: nw.Series[Any]) -> bool:
    """Return whether a column is text rather than numbers, and refuse one that is neither."""
    dtype = column.dtype
    if dtype.is_numeric() or dtype in (nw.Boolean, *TEXT):
        return dtype in TEXT
    if dtype in (nw.Object, nw.Unknown):  # it may still hold numbers only
        values = column.drop_nulls().to_numpy()
        types = set(map(type, values)) if values.dtype.kind == "O" else {values.dtype.type}
        if all(issubclass(t, Real | np.bool_ | Decimal) for t in types):
            return False
    raise ValueError(
        f"Column {column.name!r} has dtype {dtype} and holds neither only numbers nor only text. "
        "Drop it, or turn it into numbers (a date into days since a start) or into strings."
    )


def _refuse(column: nw.Series[Any], bad: np.ndarray, what: str) -> None:
    if bad.any():
        raise ValueError(
            f"Column {column.name!r} contains {what}, first in row {int(bad.argmax())} (counted "
            "from 0). Drop such rows or fill them: numbers with sklearn.impute.SimpleImputer, text "
            "with a level of its own, such as 'missing'."
        )


def _numbers(column: nw.Series[Any], dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        values = column.cast(nw.Float32() if dtype == np.float32 else nw.Float64()).to_numpy()
    _refuse(column, np.isnan(values), "NaN")
    _refuse(column, np.isinf(values), f"infinity or a value too large for {dtype}")
    return values


def _keyed_levels(column: nw.Series[Any]) -> set[tuple[Any, str]]:
    """Return the levels that occur, each with what it is sorted by."""
    _refuse(column, column.is_null().to_numpy(), "NaN (a missing value)")
    levels = column.unique()
    keys, labels = levels.to_list(), levels.cast(nw.String()).to_list()
    if isinstance(column.dtype, nw.Enum):
        rank = {key: i for i, key in enumerate(column.dtype.categories)}
        keys = [rank[key] for key in keys]
    return set(zip(keys, labels, strict=True))


def _ordered(levels: set[tuple[Any, str]]) -> Levels:
    """Return the levels, sorted or in the order of their categories."""
    try:
        pairs = sorted(levels)
    except TypeError:  # categories of several types
        pairs = sorted((label, label) for _, label in levels)
    unique = dict.fromkeys(label for _, label in pairs)
    return {label: code for code, label in enumerate(unique)}


def level_codes(column: nw.Series[Any], known: Levels) -> np.ndarray:
    """Return the number of each row's level, -1 for one not known."""
    column = column.cast(nw.String())
    labels = column.unique().to_list()
    if not labels:
        return np.empty(0, dtype=np.int64)
    codes = [known.get(label, -1) for label in labels]
    # A join by the frame's own library: 0.1 to 0.8 s for 10⁶ rows and 10⁵ levels.
    return column.replace_strict(labels, codes, return_dtype=nw.Int64()).to_numpy()


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if names[5:] else "")
