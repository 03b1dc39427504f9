"""Columns of frames and arrays: numbers, or categories whose levels become one-hot fields."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from itertools import repeat
from numbers import Integral, Real
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import assembled, to_numpy
from quadlin.core.rows import Rows
from quadlin.data.names import (
    SourceError,
    infinite_value,
    missing_value,
    other_names,
    row_in_words,
    shortened,
)

Values = nw.Series[Any] | np.ndarray  # text of a frame, or numbers and Python's objects
TEXT = (nw.String, nw.Categorical, nw.Enum)
TIMES = (nw.Date, nw.Datetime, nw.Duration, nw.Time)
OBJECTS = (nw.Object, nw.Unknown)
FITS_FLOAT32 = {"Float32", "Float16", "Boolean", "Bool", "Int8", "Int16", "Uint8", "Uint16"}
FEWEST_IDS = 20  # distinct values of a column that are no accident
# user_id, userId, zip, postal_code, SKU; not width, paid or kids.
NAMED_ID = re.compile(
    r"(?:^|[\W_])(?i:id|ids|code|codes|zip|zipcode|postcode|postalcode|sku|isbn|fips)$"
    r"|[a-z](?:Id|ID|Code|Zip)$"
    r"|^(?i:user|customer|item|product|film|movie)$",
)


def number_dtype(kinds: Iterable[Any]) -> np.dtype:
    """Return float32 if one column of numbers has this dtype, and all others fit in it."""
    dtypes = {str(kind).capitalize() for kind in kinds}  # numpy's float32 is Float32 elsewhere
    single = "Float32" in dtypes and dtypes <= FITS_FLOAT32
    return np.dtype(np.float32 if single else np.float64)


def check_frame(rows: Any, may_be_dates: Callable[[Any], bool] | None = None) -> None:
    """Raise an error for a frame that is lazy, has two columns with the same name, or one of dates.

    So do dates in arrays: as numbers they would count nanoseconds or another unit.
    `may_be_dates` takes the name of a column, and returns True if the column is not a feature or
    if its values are levels.
    """
    if isinstance(rows, np.ndarray):
        if rows.dtype.kind in "mM":
            raise ValueError(dates_in("X", str(rows.dtype)))
        return
    try:
        table = nw.from_native(rows, pass_through=True)
    except nw.exceptions.DuplicateError:
        names = Counter(getattr(rows, "column_names", rows.columns))
        repeated = [name for name, count in names.items() if count > 1]
        raise ValueError(f"Two columns are called {repeated[0]!r}. Rename or drop one.") from None
    if isinstance(table, nw.LazyFrame):
        raise TypeError(
            f"A {type(rows).__name__} is a query, not a table. Collect it, or read it in pieces: "
            "quadlin.open_source(frame, target=...)."
        )
    if isinstance(table, nw.DataFrame):
        for name, dtype in table.schema.items():
            if dtype in TIMES and not (may_be_dates and may_be_dates(name)):
                raise _column_of_dates(name, dtype)


def dates_in(what: str, dtype: str) -> str:
    """Return a message that values are dates, and how to turn them into numbers."""
    kind = dtype.partition("(")[0]
    return (
        f"{what} holds dates or times ({kind}). The numbers that they are stored as mean nothing "
        "to a model. Turn them into numbers, such as the days since a start, the month or the "
        "weekday."
    )


def _column_of_dates(name: Any, dtype: Any) -> SourceError:
    reason = dates_in(f"Column {name!r}", str(dtype)).removesuffix(".")
    message = (
        f"{reason}, or drop the column. If each date is a category, give "
        f"categorical_features={[str(name)]!r}."
    )
    return SourceError(message, str(name))


def is_text(column: Values) -> bool:
    """Return whether a column is text rather than numbers; other types raise an error."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind == "O" and any(isinstance(value, str) for value in column)
    dtype = column.dtype
    if dtype.is_numeric() or dtype in (nw.Boolean, *TEXT):
        return dtype in TEXT
    if dtype in OBJECTS:  # it may still hold numbers only
        values = column.drop_nulls().to_numpy()
        types = set(map(type, values)) if values.dtype.kind == "O" else {values.dtype.type}
        if all(issubclass(t, Real | np.bool_ | Decimal) for t in types):
            return False
    if dtype in TIMES:
        raise _column_of_dates(column.name, dtype)
    raise SourceError(
        f"Column {column.name!r} has dtype {dtype} and holds neither only numbers nor only text. "
        "Drop it, or turn it into numbers (dates into days since a start, lists of labels into 0/1 "
        "columns) or into strings.",
        str(column.name),
    )


def is_whole(column: Values) -> bool:
    """Return whether a column has a dtype of whole numbers."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind in "iu"
    return bool(column.dtype.is_integer())


def in_unit(column: Values) -> bool:
    """Return whether the whole numbers of a column are all 0 or 1."""
    low, high = (None, None) if not len(column) else (column.min(), column.max())
    return low is None or high is None or bool(low >= 0 and high <= 1)


def columns_in(rows: Any) -> dict[Any, Values] | None:
    """Return the columns of a frame, or x0, x1, … of an array, by name; None for other rows."""
    table = nw.from_native(rows, eager_only=True, pass_through=True)
    if isinstance(table, nw.DataFrame):
        return {column.name: column for column in table.iter_columns()}
    becomes_array = hasattr(rows, "__array__") and not hasattr(rows, "shape")
    if not (isinstance(rows, np.ndarray | list) or becomes_array) or issparse(rows):
        return None
    try:
        values = np.asarray(rows)
        if values.dtype.kind == "U" and isinstance(rows, list):  # numbers and text
            values = np.asarray(rows, dtype=object)
    except ValueError:  # rows of different lengths: scikit-learn explains what is wrong
        return None
    if values.ndim != 2 or values.dtype.kind not in "fiubO":
        return None
    return {f"x{j}": values[:, j] for j in range(values.shape[1])}


def values_of(column: Values) -> Values:
    """Return the values of a column: text as it is, dates as objects, others as a numpy array."""
    if isinstance(column, np.ndarray):
        return column
    if column.dtype in (*TIMES, nw.List):  # numpy would make integers or ragged arrays of them
        values = np.empty(len(column), dtype=object)
        for i, value in enumerate(column.to_list()):
            values[i] = value
        return values
    return column if column.dtype in TEXT else np.asarray(column.to_numpy())


def missing_in(values: Values) -> np.ndarray:
    """Return which values are missing: null, None or NaN."""
    if not isinstance(values, np.ndarray):
        return np.asarray(values.is_null().to_numpy())
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind != "O":
        return np.zeros(len(values), dtype=bool)
    # NaN is the only value that differs from itself; a comparison with pandas' NA gives NA.
    absent = [v is None or type(v).__name__ in ("NAType", "NaTType") or v != v for v in values]
    return np.array(absent, dtype=bool)


def numbers_of(column: Any) -> np.ndarray:
    """Return a column of a frame, an array or an Arrow table as numbers, NaN where missing."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "O" and (absent := missing_in(column)).any():
            column = np.where(absent, np.nan, column)
        return np.asarray(column, np.float64 if column.dtype.kind == "O" else None)
    if hasattr(column, "num_chunks"):  # Arrow itself is three times as fast as a frame library
        kind = str(column.type)
        whole = kind.strip("u").startswith("int") and not column.null_count
        if not whole and kind not in ("float", "double"):
            column = column.cast("float64")
        column = column.chunk(0) if column.num_chunks == 1 else column  # without a copy
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if column.dtype not in (nw.Float32, nw.Float64) or column.null_count():
        column = column.cast(nw.Float64())
    return np.asarray(column.to_numpy())


def are_ids(name: str, values: np.ndarray) -> bool:
    """Return whether many different whole numbers are named like ids, or number the rows.

    Examples
    --------
    >>> are_ids("user", np.arange(90) % 30), are_ids("area", np.arange(90) % 30)
    (True, False)
    >>> are_ids("area", np.arange(1, 91))
    True
    """
    values = values[np.isfinite(values)]
    if (values != np.floor(values)).any() or len(np.unique(values)) < FEWEST_IDS:
        return False
    return bool(NAMED_ID.search(name)) or bool(np.all(np.diff(values) > 0))


def column_of(X: Any, j: int) -> np.ndarray:
    """Return a column of dense or sparse rows."""
    return np.asarray(X[:, [j]].toarray()[:, 0] if issparse(X) else to_numpy(X[:, j]))


def find_ids(rows: Rows, numbers: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns of numbers that look like ids in the first chunk of the rows."""
    X: Any = next(iter(rows.walk())).X
    place = {name: j for j, name in enumerate(names)}
    columns = ((str(name), column_of(X, place[str(name)])) for name in numbers)
    return [name for name, values in columns if are_ids(name, values.astype(np.float64))]


Levels = dict[str, int]  # the position of each level in its field
MISSING_LEVEL = "missing"  # the level of missing text, where that is allowed
UNSEEN, ABSENT = -1, -2  # in place of the number of a level: a new level, and a missing value
NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*|[-+]?(nan|inf(inity)?)", re.I)


class Counts(dict[str, int]):
    """Number of rows with an unknown level, by column, in a pass.

    `missing` counts rows without a value, and `dropped` those that were left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing: dict[str, int] = {}
        self.dropped = 0

    def __bool__(self) -> bool:
        return len(self) > 0 or len(self.missing) > 0

    def count(self, name: str, codes: np.ndarray) -> None:
        """Add the rows of a column."""
        for counts, mark in ((self, UNSEEN), (self.missing, ABSENT)):
            if more := int(np.sum(codes == mark)):
                counts[name] = counts.get(name, 0) + more

    def add(self, other: "Counts") -> None:
        """Add the counts of other rows."""
        for counts, more in ((self, other), (self.missing, other.missing)):
            for name, count in more.items():
                counts[name] = counts.get(name, 0) + count
        self.dropped += other.dropped

    def clear(self) -> None:
        """Reset all counts to zero, before a new pass."""
        super().clear()
        self.missing.clear()
        self.dropped = 0


def label_of(value: Any) -> str:
    """Return the name of a value as a level: 3 and 3.0 are the same level.

    Examples
    --------
    >>> label_of("Oslo"), label_of(3), label_of(3.0), label_of(2.5), label_of(True)
    ('Oslo', '3', '3', '2.5', 'True')
    >>> label_of(datetime(2024, 6, 15)), label_of(datetime(2024, 6, 15, 8, 30))
    ('2024-06-15', '2024-06-15 08:30:00')
    """
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    if isinstance(value, datetime) and value == datetime(value.year, value.month, value.day):
        return str(value.date())  # written as a date; a value with a time zone never gets here
    return str(value)


def labels_of(values: np.ndarray) -> list[str]:
    """Return the name of each value as a level."""
    if values.dtype.kind in "iu":
        return list(map(str, values.tolist()))
    return [label_of(value) for value in values.tolist()]


def kind_of(values: Values) -> str | None:
    """Return the dtype of levels that are numbers or booleans; None for text, dates and objects.

    Examples
    --------
    >>> kind_of(np.array([3, 1])), kind_of(np.array([3.0])), kind_of(np.array(["a"], dtype=object))
    ('int64', 'float64', None)
    """
    if isinstance(values, np.ndarray):
        return values.dtype.name if values.dtype.kind in "iufb" else None
    if values.dtype == nw.Categorical:  # the categories of pandas may be numbers
        categories = np.asarray(values.unique().to_list())
        return categories.dtype.name if categories.dtype.kind in "iufb" else None
    return None


def common_kind(kinds: set[str | None]) -> str | None:
    """Return the dtype of the levels of several parts of a column."""
    numbers = [np.dtype(kind) for kind in kinds if kind is not None]
    return np.result_type(*numbers).name if numbers and None not in kinds else None


def typed_levels(labels: Iterable[str], kind: str | None) -> Any:
    """Return levels as the values that they had in the table, so that tables can be joined by them.

    Examples
    --------
    >>> typed_levels(["3", "10"], "int64"), typed_levels(["a"], None)
    (array([ 3, 10]), ['a'])
    """
    labels = list(labels)
    if kind is None:
        return labels
    if np.dtype(kind).kind == "f":
        return np.array([np.nan if label == MISSING_LEVEL else label for label in labels], kind)
    if MISSING_LEVEL in labels:
        return labels
    if np.dtype(kind).kind == "b":
        return np.array([label == "True" for label in labels])
    return np.array([int(label) for label in labels], kind)


def filtered(values: Values, keep: np.ndarray) -> Any:
    """Return the values to keep."""
    if isinstance(values, np.ndarray):
        return values[keep]
    return values.filter(keep.tolist()) if len(keep) else values  # narwhals takes no empty list


def level_codes(values: Values, levels: Levels) -> np.ndarray:
    """Return the number of each row's level, `UNSEEN` if it is not among the levels.

    A missing value is the level "missing", or `ABSENT` where there is no such level.
    """
    absent = missing_in(values)
    if absent.any():
        codes = np.full(len(absent), levels.get(MISSING_LEVEL, ABSENT), dtype=np.int64)
        codes[~absent] = level_codes(filtered(values, ~absent), levels)
        return codes
    if not len(absent):
        return np.empty(0, dtype=np.int64)
    if isinstance(values, np.ndarray):
        if values.dtype.kind == "O":
            return _codes([label_of(value) for value in values], levels)
        distinct, place = np.unique(values, return_inverse=True)
        return _codes(labels_of(distinct), levels)[place]
    return _codes(values.cast(nw.String()).to_list(), levels)


def _codes(labels: list[str], levels: Levels) -> np.ndarray:
    return np.fromiter(map(levels.get, labels, repeat(UNSEEN)), np.int64, len(labels))


Where = Callable[[Any, str], str]  # a column and one of its labels → the first row that has it
FEW_WORDS = 0.1  # of the levels of a column of numbers, at most


@dataclass
class SeenLevels:
    """The levels of a column in the rows that were seen so far.

    Examples
    --------
    >>> seen = SeenLevels("city")
    >>> seen.add(np.array(["Rome", "Oslo"], dtype=object))
    >>> seen.add(np.array(["Bonn", "Rome"], dtype=object))
    >>> seen.levels()
    {'Bonn': 0, 'Oslo': 1, 'Rome': 2}
    """

    name: Any
    may_be_missing: bool = False  # a missing value is a level of its own
    keyed: set[tuple[Any, str]] = field(default_factory=set)  # each label with its sort key
    kinds: set[str | None] = field(default_factory=set)  # dtypes of the values, None for text
    rows: int = 0
    present: int = 0  # rows in which a value is not missing
    is_plain: bool = False  # whether the dtype is not categorical

    def add(self, values: Values) -> None:
        """Note the levels of some rows."""
        self.is_plain |= isinstance(values, np.ndarray) or values.dtype == nw.String
        absent = missing_in(values)
        self.rows += len(absent)
        if absent.any():
            if not self.may_be_missing:
                raise SourceError(missing_value(self.name, row_in_words(int(absent.argmax()))))
            self.keyed.add((MISSING_LEVEL, MISSING_LEVEL))
            values = filtered(values, ~absent)
        self.kinds.add(kind_of(values))
        self.keyed |= keyed_levels(values)
        self.present += len(values)

    def levels(self) -> Levels:
        """Return the levels, sorted or in the order of their categories; text after numbers."""

        def order(keyed: tuple[Any, str]) -> tuple[str, Any]:
            return "" if isinstance(keyed[0], Real) else type(keyed[0]).__name__, keyed[0]

        labels = dict.fromkeys(label for _, label in sorted(self.keyed, key=order))
        return {label: i for i, label in enumerate(labels)}

    @property
    def labels(self) -> list[str]:
        """Return the levels that are not a missing value."""
        labels = [label for _, label in self.keyed]
        return [label for label in labels if label != MISSING_LEVEL or not self.may_be_missing]

    def check(self, where: Where, decimal: str | None = None, ids: bool = False) -> None:
        """Raise an error if the values are numbers as text, or all different.

        `decimal` is the decimal point of CSV, whose options can read a cell differently. `ids` may
        be different.
        """
        name, count = str(self.name), len(self.labels)
        problem = self.number_problem(where, decimal) if self.is_plain else None
        if problem is None and not ids and FEWEST_IDS <= count == self.present:
            problem = (
                f"Column {name!r} has a different text in each of {count} rows, like an "
                "identifier, so the model learns nothing from it. Drop it, or merge its levels."
            )
        if problem is not None:
            declare = f" If it is a category, give categorical_features={[name]!r}."
            raise SourceError(problem + declare, name)

    def number_problem(self, where: Where, decimal: str | None) -> str | None:
        """Return what is wrong with levels that are numbers but for commas or a few words."""
        name, labels = str(self.name), self.labels
        words = sorted(v for v in labels if not NUMBER.fullmatch(v.replace(",", ".", 1)))
        may_be_codes = not words and all(label.isdecimal() for label in labels)
        if may_be_codes or len(words) > FEW_WORDS * len(labels):
            return None
        found = f"numbers as text, such as {min(labels)!r}"
        if words:
            found = f"numbers, but also {shortened(words, 5)}, first in {where(name, words[0])}"
        remedies = ["Convert it to numbers"]
        if decimal:
            other = "." if decimal == "," else ","
            remedies = ["Correct the file"] + [f"give na={words[:5]!r} if missing"] * bool(words)
            if any(other in label for label in labels):
                remedies.append(f'give decimal="{other}" if that is the decimal mark')
        return f"Column {name!r} holds {found}. {', or '.join(remedies)}."


def may_be_numbers(levels: Levels) -> bool:
    """Return whether levels may have been learned from numbers or booleans."""
    return all(
        NUMBER.fullmatch(label) or label in ("True", "False", MISSING_LEVEL) for label in levels
    )


def keyed_levels(values: Values) -> set[tuple[Any, str]]:
    """Return the levels that occur, each with its sort key."""
    if isinstance(values, np.ndarray):
        distinct = set(values.tolist()) if values.dtype.kind == "O" else np.unique(values).tolist()
        return {(value, label_of(value)) for value in distinct}
    levels = values.unique()
    keys, labels = levels.to_list(), levels.cast(nw.String()).to_list()
    if isinstance(values.dtype, nw.Enum):
        rank = {key: i for i, key in enumerate(values.dtype.categories)}
        keys = [rank[key] for key in keys]
    return set(zip(keys, labels, strict=True))


@dataclass(frozen=True)
class TableEncoder:
    """Rows of a table as sparse numbers: a text column with L levels becomes L one-hot columns.

    Numbers and booleans stay what they are, unless they are declared as categories. A level that
    `learn` did not see is zero in all columns of its field, and so is a missing value without a
    level of its own. Levels are sorted; an ordered categorical keeps its order.

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

    input_names: tuple[str, ...]  # as text, even where the frame's own names are not
    levels: tuple[Levels | None, ...]  # for each input column, None for numbers
    dtype: np.dtype
    # The dtype of the levels of each input column, None for text; () if no column has one.
    kinds: tuple[str | None, ...] = field(default=(), compare=False)

    @classmethod
    def learn(
        cls,
        rows: Any,
        declared: Collection[Any] = (),
        missing: str = "error",
        ids: bool = False,
    ) -> "TableEncoder | None":
        """Learn the levels of categorical columns; return None if all columns hold numbers.

        Parameters
        ----------
        rows : pandas, polars, pyarrow or other eager frame, or array
            Rows. An array of numbers needs no encoder unless a column is declared.
        declared : collection of names
            Columns that are categories whatever they hold; an array has columns x0, x1, …
        missing : {"error", "mean"}
            Whether a missing value is an error or a level of its own.
        ids : bool
            Whether the levels of text may be ids, such as those of users.

        Returns
        -------
        TableEncoder or None
        """
        given = columns_in(rows) or {}
        text = [name for name, values in given.items() if name in declared or is_text(values)]
        seen = {name: SeenLevels(name, missing == "mean") for name in text}

        def where(name: Any, label: str) -> str:
            column = given[name]
            plain = column if isinstance(column, np.ndarray) else column.cast(nw.String())
            return row_in_words(list(map(str, plain)).index(label))

        for name, levels in seen.items():
            levels.add(values_of(given[name]))
            if name not in declared:
                levels.check(where, ids=ids)
        if not seen:
            return None
        numbers = (values.dtype for name, values in given.items() if name not in seen)
        return cls.of(list(given), seen, number_dtype(numbers))

    @classmethod
    def of(
        cls, names: Sequence[Any], seen: Mapping[Any, SeenLevels], dtype: np.dtype
    ) -> "TableEncoder":
        """Return the encoder of columns, with the levels that were seen of some of them."""
        levels = tuple(seen[name].levels() if name in seen else None for name in names)
        kinds = tuple(common_kind(seen[name].kinds) if name in seen else None for name in names)
        return cls(tuple(map(str, names)), levels, dtype, kinds if any(kinds) else ())

    def __post_init__(self) -> None:
        repeated = [name for name, count in Counter(self.names).items() if count > 1]
        if repeated:
            raise SourceError(f"Two encoded columns would be named {repeated[0]!r}. Rename one.")

    def encode(self, rows: Any, may_be_missing: bool = False) -> tuple[csr_array, Counts]:
        """Encode rows, in O(n + nnz) memory.

        Parameters
        ----------
        rows : frame or array
            Rows with the columns that `learn` saw, in the same order.
        may_be_missing : bool
            Whether missing numbers become NaN, and missing values of categorical columns the level
            "missing"; otherwise they are an error.

        Returns
        -------
        X : csr_array (n_samples, len(names))
            The rows, with sorted indices and no stored zeros.
        unseen : Counts
            Number of rows with a level that `learn` did not see, for each column that has any. Its
            `missing` counts missing values in columns that had none when `learn` saw them.
        """
        columns, unseen, n = [], Counts(), 0
        for column, name, levels in zip(
            self.columns_of(rows), self.input_names, self.levels, strict=True
        ):
            values = values_of(column)
            absent, n = missing_in(values), len(values)
            if absent.any() and not may_be_missing:
                raise SourceError(missing_value(name, row_in_words(int(absent.argmax()))))
            if levels is not None:
                columns.append(codes := level_codes(values, levels))
                unseen.count(name, codes)
                continue
            with np.errstate(over="ignore"):
                columns.append(numbers := numbers_of(values).astype(self.dtype))
            if (infinite := np.isinf(numbers)).any():
                where = row_in_words(int(infinite.argmax()))
                raise SourceError(infinite_value(name, where, self.dtype))
        return self.joined(columns, n), unseen

    def only(self, names: Sequence[str]) -> tuple["TableEncoder", np.ndarray]:
        """Return the encoder of some input columns, and their output columns."""
        if tuple(names) not in self._parts:
            self._parts[tuple(names)] = self._only(names)
        return self._parts[tuple(names)]

    @cached_property
    def _parts(self) -> dict[tuple[str, ...], tuple["TableEncoder", np.ndarray]]:
        return {}

    def _only(self, names: Sequence[str]) -> tuple["TableEncoder", np.ndarray]:
        chosen = [self.input_names.index(name) for name in names]
        ends = [*self._first[1:], len(self.names)]
        features = [np.arange(self._first[i], ends[i]) for i in chosen]
        levels, kinds = tuple(self.levels[i] for i in chosen), self.kinds
        kinds = tuple(kinds[i] for i in chosen) if kinds else ()
        part = TableEncoder(tuple(names), levels, self.dtype, kinds)
        return part, np.concatenate(features)

    def level_values(self, name: str) -> Any:
        """Return the levels of a column as the values that they had in the table."""
        number = self.input_names.index(name)
        kind = self.kinds[number] if self.kinds else None
        return typed_levels(self.levels[number] or (), kind)

    def joined(self, columns: Sequence[np.ndarray], n: int) -> csr_array:
        """Put n rows together from the values of number columns and the codes of text columns.

        Parameters
        ----------
        columns : sequence of arrays (n,)
            For each input column its numbers, or what `level_codes` returns.
        n : int
            Number of rows.

        Returns
        -------
        csr_array (n, len(names))
        """
        parts: list[tuple[np.ndarray, Any, Any]] = []  # rows, the column of each, its value
        for values, levels, first in zip(columns, self.levels, self._first, strict=True):
            if levels is None:
                rows = np.flatnonzero(values)
                parts.append((rows, first, values[rows]))
                continue
            rows = np.flatnonzero(values >= 0)
            parts.append((rows, first + values[rows], 1))
        return assembled(parts, (n, len(self.names)), self.dtype)

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
        """Return the output columns of each text column; a row has at most one 1 among them."""
        return tuple(self.text.values())

    @cached_property
    def text(self) -> dict[str, np.ndarray]:
        """Return the output columns of each column that has levels, by its name."""
        return {
            name: np.arange(first, first + len(labels))
            for name, first, labels in zip(self.input_names, self._first, self.levels, strict=True)
            if labels is not None
        }

    @cached_property
    def _first(self) -> list[int]:
        """Return where in the output each input column begins."""
        widths = [1 if labels is None else len(labels) for labels in self.levels]
        return [0, *np.cumsum(widths[:-1]).tolist()]

    def columns_of(self, rows: Any) -> Iterator[Values]:
        """Yield the values of each column, after a check that it is what `learn` saw."""
        columns = columns_in(rows)
        if columns is None:
            raise ValueError(
                "The model was fitted to rows with categorical columns, but a "
                f"{type(rows).__name__} was given. Give a frame or an array with the columns "
                f"{shortened(self.input_names, 5)}."
            )
        if (names := list(map(str, columns))) != list(self.input_names):
            raise ValueError(other_names(names, self.input_names))
        for number, column in enumerate(columns.values()):
            try:
                self.check_column(number, column)
            except SourceError:
                if not len(column) or isinstance(column, np.ndarray) or not column.is_null().all():
                    raise
                column = np.full(len(column), np.nan)  # whose dtype says nothing
            yield column

    def check_column(self, number: int, column: Values) -> None:
        """Check that a column holds numbers, or levels, as it did in `learn`."""
        name, levels = self.input_names[number], self.levels[number]
        kind = self.kinds[number] if self.kinds else None
        any_dtype = isinstance(column, np.ndarray) or column.dtype in (*TIMES, *OBJECTS, nw.List)
        text = (levels is not None and any_dtype) or is_text(column)
        if text if levels is None else not (text or kind or may_be_numbers(levels)):
            raise SourceError(
                f"Column {name!r} has dtype {column.dtype}, but it held "
                f"{'numbers' if levels is None else 'text'} during the fit. Convert it.",
                name,
            )


def text_columns(encoder: TableEncoder | None) -> dict[str, np.ndarray]:
    """Return the positions of the levels of each text column."""
    return {} if encoder is None else encoder.text


def with_levels_of(encoder: TableEncoder, rows: Any) -> TableEncoder:
    """Return an encoder that also has the levels of these rows.

    Examples
    --------
    >>> import polars as pl
    >>> encoder = TableEncoder.learn(pl.DataFrame({"city": ["Rome", "Oslo"] * 2}))
    >>> with_levels_of(encoder, pl.DataFrame({"city": ["Paris", "Rome"]})).names
    ('city=Oslo', 'city=Paris', 'city=Rome')
    """
    levels, kinds = list[Levels | None](), list[str | None]()
    for column, old in zip(encoder.columns_of(rows), encoder.levels, strict=True):
        values = values_of(column)
        there = filtered(values, ~missing_in(values))
        empty = old is None or not len(there)
        levels.append(None if empty else dict.fromkeys((v for _, v in keyed_levels(there)), 0))
        kinds.append(None if empty else kind_of(there))
    return joint(encoder, replace(encoder, levels=tuple(levels), kinds=tuple(kinds)))


def joint(encoder: TableEncoder, other: TableEncoder) -> TableEncoder:
    """Return an encoder with the levels of two encoders of the same columns."""
    nothing = (None,) * len(encoder.levels)
    levels, kinds = list(encoder.levels), list(encoder.kinds or nothing)
    for i, (old, more) in enumerate(zip(encoder.levels, other.levels, strict=True)):
        kind = (other.kinds or nothing)[i]
        if old is None:
            levels[i], kinds[i] = more, kind
        elif new := set(more or ()).difference(old):
            kinds[i] = common_kind({kinds[i], kind})
            merged = _merged_labels(list(old), new, kinds[i])
            levels[i] = {label: code for code, label in enumerate(merged)}
    if all(new is old for new, old in zip(levels, encoder.levels, strict=True)):
        return encoder
    return replace(encoder, levels=tuple(levels), kinds=tuple(kinds) if any(kinds) else ())


def _merged_labels(old: list[str], new: set[str], kind: str | None) -> list[str]:
    """Return all labels, sorted as numbers or text; new ones come last if the old are unsorted."""

    def key(label: str) -> Any:
        if kind is None or np.dtype(kind).kind == "b":
            return label
        return np.inf if label == MISSING_LEVEL else float(label)

    return sorted([*old, *new], key=key) if old == sorted(old, key=key) else [*old, *sorted(new)]


def places(encoder: TableEncoder, grown: TableEncoder) -> np.ndarray:
    """Return the positions of an encoder's output columns in an encoder with more levels."""
    position = {name: place for place, name in enumerate(grown.names)}
    return np.array([position[name] for name in encoder.names], dtype=np.int64)
