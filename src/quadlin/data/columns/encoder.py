"""Categorical columns: their levels, learned from pieces of a table, and rows as one-hot fields."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from numbers import Integral
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import csr_array

from quadlin.core.arrays import assembled
from quadlin.core.messages import warn
from quadlin.data.columns.columns import (
    Values,
    columns_in,
    identifier_advice,
    is_category,
    is_frame,
    is_text,
    missing_in,
    number_dtype,
    numbers_of,
    refuse_missing_rows,
    values_of,
)
from quadlin.data.columns.errors import ColumnError, IdentifierWarning
from quadlin.data.columns.names import other_names, shortened

Levels = dict[str, int]  # the position of each level in its field
MISSING_LEVEL = "missing"  # the level of missing text, where that is allowed
UNSEEN, ABSENT = -1, -2  # in place of the number of a level: a new level, and a missing value
NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*|[-+]?(nan|inf(inity)?)", re.I)


class Unseen(dict[str, int]):
    """Number of rows with an unknown level, by column; `missing` counts rows without a value."""

    def __init__(self) -> None:
        super().__init__()
        self.missing: dict[str, int] = {}
        self.known: set[str] = set()  # columns in which some level was known

    def __bool__(self) -> bool:
        return len(self) > 0 or len(self.missing) > 0

    @property
    def all_new(self) -> list[str]:
        """Return the columns of several unknown levels, none of whose rows has a known one."""
        return sorted(name for name, count in self.items() if count > 1 and name not in self.known)

    def count(self, name: str, codes: np.ndarray) -> None:
        """Add the rows of a column."""
        for counts, mark in ((self, UNSEEN), (self.missing, ABSENT)):
            if more := int(np.sum(codes == mark)):
                counts[name] = counts.get(name, 0) + more
        if np.any(codes >= 0):
            self.known.add(name)

    def add(self, other: "Unseen") -> None:
        """Add the counts of other rows."""
        for counts, more in ((self, other), (self.missing, other.missing)):
            for name, count in more.items():
                counts[name] = counts.get(name, 0) + count
        self.known |= other.known

    def clear(self) -> None:
        """Reset all counts to zero."""
        super().clear()
        self.missing.clear()
        self.known.clear()


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
    return values.filter(keep.tolist()) if len(keep) else values  # narwhals refuses an empty list


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
            return np.array([levels.get(label_of(value), UNSEEN) for value in values])
        distinct, place = np.unique(values, return_inverse=True)
        return np.array([levels.get(label_of(value), UNSEEN) for value in distinct.tolist()])[place]
    column = values.cast(nw.String())
    labels = column.unique().to_list()
    numbers = [levels.get(label, UNSEEN) for label in labels]
    # A join by the library of the frame: 0.1 to 0.8 s for 10⁶ rows and 10⁵ levels.
    return np.asarray(column.replace_strict(labels, numbers, return_dtype=nw.Int64()).to_numpy())


Where = Callable[[Any, str], str]  # a column and one of its labels → the first row that has it
MOST_LEVELS = 10_000  # a column with more is a number or an identifier rather than a category
MANY, FEW = 20, 0.1  # fewest labels, and largest share that are no numbers, of a column of numbers


class LevelLearner:
    """Learns the levels of text columns from pieces of a table.

    Examples
    --------
    >>> import polars as pl
    >>> table = pl.DataFrame({"city": ["Rome", "Oslo", "Rome", "Oslo"], "age": [31, 0, 5, 2]})
    >>> learner = LevelLearner(["city", "age"], ["city"], np.dtype(float))
    >>> for start in (0, 3):
    ...     learner.add(table[start : start + 3])
    >>> learner.levels()
    ({'Oslo': 0, 'Rome': 1}, None)
    """

    def __init__(
        self,
        input_names: Sequence[Any],
        text: Sequence[Any],
        dtype: np.dtype,
        declared: Collection[Any] = (),
        missing: str = "error",
        decimal: str | None = None,
    ) -> None:
        self.input_names, self.dtype, self.rows = tuple(input_names), dtype, 0
        self.seen: dict[Any, set[tuple[Any, str]]] = {name: set() for name in text}
        self.present = dict.fromkeys(text, 0)  # rows in which a column is not missing
        self.kinds: dict[Any, set[str | None]] = {}  # dtypes of the values, None for text
        self.declared = declared  # as categories, by the user
        self.missing = missing  # "mean": a missing value is a level of its own
        self.decimal = decimal  # of CSV, whose options can read a cell differently
        self.plain: set[Any] = set()  # columns whose dtype is not categorical

    def add(self, frame: Any) -> None:
        """Note the levels of some rows; columns of numbers may be left out."""
        table = nw.from_native(frame, eager_only=True)
        self.rows += len(table)
        for name in self.seen:
            self.see(name, values_of(table.get_column(name)))

    def see(self, name: Any, values: Values) -> None:
        """Note the levels of some values of a column."""
        if isinstance(values, np.ndarray) or values.dtype == nw.String:
            self.plain.add(name)
        absent = missing_in(values)
        if absent.any():
            if self.missing != "mean":
                refuse_missing_rows(name, absent)
            self.seen[name].add((MISSING_LEVEL, MISSING_LEVEL))
            values = filtered(values, ~absent)
        self.kinds.setdefault(name, set()).add(kind_of(values))
        self.seen[name] |= keyed_levels(values)
        self.present[name] += len(values)

    def levels(self, where: Where | None = None) -> tuple[Levels | None, ...]:
        """Return the levels of each input column, None for numbers.

        Parameters
        ----------
        where : callable or None
            Names the first row in which a column has a given label, for messages.

        Raises
        ------
        ValueError
            For a column that holds numbers as text or, with too many levels, an identifier.
        """
        levels = {name: _ordered(seen) for name, seen in self.seen.items()}
        for name, labels in levels.items():
            if name not in self.declared:
                self._check(name, list(labels), where)
        return tuple(levels.get(name) for name in self.input_names)

    def level_kinds(self) -> tuple[str | None, ...]:
        """Return the dtype of the levels of each input column; None for text or without levels."""
        return tuple(common_kind(self.kinds.get(name, set())) for name in self.input_names)

    def _check(self, name: Any, labels: list[str], where: Where | None) -> None:
        """Raise an error if a column of text holds numbers or an identifier; warn if it may."""
        present = [label for label in labels if self.missing != "mean" or label != MISSING_LEVEL]
        is_category = f" If it is a category, give categorical_features={[str(name)]!r}."
        if name in self.plain and (problem := self._numbers(str(name), present, where)):
            raise ColumnError(str(name), problem + is_category)
        once = MANY <= len(present) == self.present[name]
        if once or len(labels) > MOST_LEVELS:
            advice = identifier_advice(name, len(labels), self.rows, once)
            raise ColumnError(str(name), advice + is_category)
        if 2 * len(labels) > self.rows:
            warn(identifier_advice(name, len(labels), self.rows, once), IdentifierWarning)

    def _numbers(self, name: str, labels: list[str], where: Where | None) -> str | None:
        """Return what is wrong with labels that are numbers but for commas or a few words."""
        words = [label for label in labels if not NUMBER.fullmatch(label)]
        commas = [label for label in words if _has_comma(label)]
        if commas and len(commas) == len(words):
            remedy = 'Give decimal="," if it is the decimal point' if self.decimal else "Convert it"
            return f"Column {name!r} holds numbers with commas, such as {commas[0]!r}. {remedy}."
        if len(labels) < MANY or len(words) > FEW * len(labels):
            return None
        if words:
            first = "" if where is None else f", first in {where(name, words[0])}"
            remedy = f", give na={words[:5]!r} if they are missing" if self.decimal else ""
            return (
                f"Column {name!r} holds numbers, but also {shortened(words, 5)}{first}. Correct or "
                f"empty such cells{remedy}."
            )
        if all(label.isdecimal() for label in labels):  # they may be codes
            return None
        remedy = "Convert them with pandas.to_numeric(column) or polars' cast(pl.Float64)."
        if self.decimal == ",":
            remedy = 'Give decimal="." if the point is the decimal point.'
        return f"Column {name!r} holds numbers as text, such as {labels[0]!r}. {remedy}"


def _has_comma(label: str) -> bool:
    """Return whether a label is a number in which commas are decimal points or group digits."""
    return "," in label and any(NUMBER.fullmatch(label.replace(",", sign)) for sign in (".", ""))


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


def _ordered(levels: set[tuple[Any, str]]) -> Levels:
    """Return the levels, sorted or in the order of their categories."""
    absent = {(MISSING_LEVEL, MISSING_LEVEL)} & levels
    try:
        pairs = sorted(levels)
    except TypeError:
        try:  # ranks or numbers, and a missing value
            pairs = [*sorted(levels - absent), *absent]
        except TypeError:  # categories of several types
            pairs = sorted((label, label) for _, label in levels)
    unique = dict.fromkeys(label for _, label in pairs)
    return {label: code for code, label in enumerate(unique)}


def held_other(name: str, now: str, levels: Levels | None) -> str:
    """Return a message that a column does not hold what it held during the fit."""
    before = "numbers" if levels is None else "text"
    return f"Column {name!r} has {now}, but it held {before} during the fit. Convert it."


def first_row_with(values: Values, label: str) -> str:
    """Return the first row of a column that has a label."""
    plain = values if isinstance(values, np.ndarray) else values.cast(nw.String())
    return f"row {list(map(str, plain)).index(label)} (counted from 0)"


@dataclass(frozen=True)
class TableEncoder:
    """Rows of a table as sparse numbers: a text column with L levels becomes L one-hot columns.

    Numbers and booleans stay what they are, unless they are declared as categories. A level that
    `learn` did not see is zero in all columns of its field, and so is a missing value without a
    level of its own. Levels are sorted; those of an ordered categorical keep their order.

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
    ) -> "TableEncoder | None":
        """Learn the levels of categorical columns; return None if all columns hold numbers.

        Parameters
        ----------
        rows : pandas, polars, pyarrow or other eager frame, or array
            Rows. An array of numbers needs no encoder unless a column is declared.
        declared : collection of names
            Columns that are categories whatever they hold; those of an array are x0, x1, …
        missing : {"error", "mean"}
            Whether a missing value is an error or a level of its own.

        Returns
        -------
        TableEncoder or None
        """
        columns = columns_in(rows) or {}
        text = [name for name, values in columns.items() if name in declared or is_text(values)]
        if not text:
            return None
        dtype = number_dtype(v.dtype for name, v in columns.items() if name not in text)
        learner = LevelLearner(list(columns), text, dtype, declared, missing)
        learner.rows = len(columns[text[0]])
        for name in text:
            learner.see(name, values_of(columns[name]))
        return cls.of(learner, lambda name, label: first_row_with(columns[name], label))

    @classmethod
    def of(cls, learner: LevelLearner, where: Where | None = None) -> "TableEncoder":
        """Return the encoder of what a learner has seen; see `LevelLearner.levels`."""
        levels = learner.levels(where)
        names, kinds = tuple(map(str, learner.input_names)), learner.level_kinds()
        return cls(names, levels, learner.dtype, kinds if any(kinds) else ())

    def __post_init__(self) -> None:
        repeated = [name for name, count in Counter(self.names).items() if count > 1]
        if repeated:
            raise ValueError(f"Two encoded columns would be named {repeated[0]!r}. Rename one.")

    def encode(self, rows: Any, may_be_missing: bool = False) -> tuple[csr_array, Unseen]:
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
        unseen : Unseen
            Number of rows with a level that `learn` did not see, for each column that has any. Its
            `missing` counts missing values in columns that had none when `learn` saw them.
        """
        columns, unseen, n = [], Unseen(), 0
        parts = zip(self.columns_of(rows), self.input_names, self.levels, strict=True)
        for values, name, levels in parts:
            absent, n = missing_in(values), len(values)
            if not may_be_missing:
                refuse_missing_rows(name, absent)
            if levels is None:
                columns.append(numbers_of(values, absent, name, self.dtype))
                continue
            columns.append(codes := level_codes(values, levels))
            unseen.count(name, codes)
        return self.joined(columns, n), unseen

    def only(self, names: Sequence[str]) -> tuple["TableEncoder", np.ndarray]:
        """Return the encoder of some input columns, and their output columns."""
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

    @property
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
        """Yield the values of each column, and refuse one that is not what `learn` saw."""
        columns = columns_in(rows)
        names = [] if columns is None else list(map(str, columns))
        if columns is None or (names != list(self.input_names) and not is_frame(rows)):
            unnamed = all(name == f"x{j}" for j, name in enumerate(self.input_names))
            expected = f"an array of {len(self.input_names)} columns" if unnamed else "a frame"
            raise ValueError(
                "The model was fitted to rows with categorical columns, but a "
                f"{type(rows).__name__} was given. Give {expected} with the columns "
                f"{shortened(self.input_names, 5)}."
            )
        if names != list(self.input_names):
            raise ValueError(other_names(names, self.input_names))
        kinds = self.kinds or (None,) * len(self.levels)
        parts = zip(columns.values(), self.input_names, self.levels, kinds, strict=True)
        for column, name, levels, kind in parts:
            if len(column) and not isinstance(column, np.ndarray) and column.is_null().all():
                yield np.full(len(column), np.nan)  # its dtype says nothing
                continue
            text = is_category(column, has_levels=levels is not None)
            if text if levels is None else not (text or kind or may_be_numbers(levels)):
                raise ValueError(held_other(name, f"dtype {column.dtype}", levels))
            yield values_of(column)


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
    labels: list[Collection[str]] = []
    kinds: list[str | None] = []
    for values, levels in zip(encoder.columns_of(rows), encoder.levels, strict=True):
        kind, new = None, set[str]()
        if levels is not None and len(there := filtered(values, ~missing_in(values))):
            kind, new = kind_of(there), {label for _, label in keyed_levels(there)}
        labels.append(new)
        kinds.append(kind)
    return _merged(encoder, labels, kinds)


def joint(encoder: TableEncoder, other: TableEncoder) -> TableEncoder:
    """Return an encoder with the levels of two encoders of the same columns."""
    kinds = other.kinds or (None,) * len(other.levels)
    return _merged(encoder, [levels or () for levels in other.levels], kinds)


def places(encoder: TableEncoder, grown: TableEncoder) -> np.ndarray:
    """Return the positions of an encoder's output columns in an encoder with more levels."""
    position = {name: place for place, name in enumerate(grown.names)}
    return np.array([position[name] for name in encoder.names], dtype=np.int64)


def _merged(
    encoder: TableEncoder, more: Sequence[Collection[str]], kinds: Sequence[str | None]
) -> TableEncoder:
    old_kinds = encoder.kinds or (None,) * len(encoder.levels)
    levels: list[Levels | None] = []
    merged: list[str | None] = []
    for old, labels, kind, new_kind in zip(encoder.levels, more, old_kinds, kinds, strict=True):
        new = set(labels).difference(old or ())
        levels.append(old)
        merged.append(common_kind({kind, new_kind}) if new else kind)
        if old is None or not new:
            continue
        levels[-1] = {label: i for i, label in enumerate(_merge_labels(old, new, merged[-1]))}
    if all(new is old for new, old in zip(levels, encoder.levels, strict=True)):
        return encoder
    return replace(encoder, levels=tuple(levels), kinds=tuple(merged) if any(merged) else ())


def _merge_labels(old: Levels, new: set[str], kind: str | None) -> list[str]:
    """Return all labels, sorted as numbers or text; new ones come last if the old are unsorted."""
    is_number = kind is not None and np.dtype(kind).kind in "iuf"
    key: Any = float if is_number else str
    absent = [MISSING_LEVEL] if is_number and MISSING_LEVEL in old else []
    labels = [label for label in old if label not in absent]
    keys = [key(label) for label in labels]
    if keys != sorted(keys):
        return [*old, *sorted(new)]
    return [*sorted([*labels, *sorted(new)], key=key), *absent]
