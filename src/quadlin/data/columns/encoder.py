"""Categorical columns of a table as groups of one-hot columns, called fields."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import csr_array

from quadlin.core.arrays import assembled
from quadlin.data.columns.columns import (
    ArrayTable,
    Values,
    array_table,
    fill_for,
    filled_numbers,
    is_category,
    missing_in,
    refuse_missing_rows,
    values_of,
)
from quadlin.data.columns.levels import (
    ABSENT,
    MISSING_LEVEL,
    MISSING_MARK,
    LevelLearner,
    Levels,
    Unseen,
    Where,
    common_kind,
    filtered,
    first_row_with,
    held_other,
    keyed_levels,
    kind_of,
    level_codes,
    may_be_numbers,
    typed_levels,
)
from quadlin.data.columns.names import other_names, shortened


@dataclass(frozen=True)
class TableEncoder:
    """Rows of a table as sparse numbers: a text column with L levels becomes L one-hot columns.

    Numbers and booleans stay what they are, unless they are declared as categories. A level that
    `learn` did not see is zero in all columns of its field. So is a missing value without a level
    of its own, except for a `MISSING_MARK` that changes no prediction. Levels are sorted; those of
    an ordered categorical keep their order.

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
        table = nw.from_native(rows, eager_only=True, pass_through=True)
        if isinstance(table, nw.DataFrame):
            learner = LevelLearner.of(table, declared, missing)
            if learner is None:
                return None
            learner.add(table)
            return cls.of(learner, lambda name, label: first_row_with(table, name, label))
        array = array_table(rows, declared)
        if array is None:
            return None
        learner = LevelLearner(array.names, array.text, array.dtype, declared, missing)
        learner.rows = len(array)
        for name in array.text:
            learner.see(name, array.column(name))
        return cls.of(learner)

    @classmethod
    def of(cls, learner: LevelLearner, where: Where | None = None) -> "TableEncoder":
        """Return the encoder of what a learner has seen; see `LevelLearner.levels`."""
        levels = learner.levels(where)
        names, kinds = tuple(map(str, learner.input_names)), learner.level_kinds()
        encoder = cls(names, levels, learner.dtype, kinds if any(kinds) else ())
        repeated = [name for name, count in Counter(encoder.names).items() if count > 1]
        if repeated:
            raise ValueError(f"Two encoded columns would be named {repeated[0]!r}. Rename one.")
        return encoder

    def encode(
        self, rows: Any, fill: Mapping[str, float] | None = None
    ) -> tuple[csr_array, Unseen]:
        """Encode rows, in O(n + nnz) memory.

        Parameters
        ----------
        rows : frame or array
            Rows with the columns that `learn` saw, in the same order.
        fill : mapping or None
            What replaces missing numbers, by column; missing values of categorical columns are
            then the level "missing". None: missing values are an error.

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
            if fill is None:
                refuse_missing_rows(name, absent)
            if levels is None:
                columns.append(filled_numbers(values, absent, name, self.dtype, fill or {}))
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

    def means(self, rows: Any, weight: np.ndarray | None = None) -> dict[str, float]:
        """Return what fills columns of numbers: the means of the values that are not missing."""
        means = {}
        parts = zip(self.columns_of(rows), self.input_names, self.levels, strict=True)
        for values, name, levels in parts:
            if levels is None:
                absent = missing_in(values)
                numbers = filled_numbers(values, absent, name, np.dtype(np.float64), {name: 0.0})
                counts = ~absent * (1.0 if weight is None else weight)
                if not counts.any():
                    raise ValueError(f"Column {name!r} has no values. Leave it out.")
                present = numbers[~absent]
                mean = float(np.average(numbers, weights=counts))
                means[name] = fill_for(mean, bool(present.min() < present.max()), self.dtype)
        return means

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
            if len(absent := np.flatnonzero(values == ABSENT)):
                parts.append((absent, first, MISSING_MARK))
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
        table = self._checked(rows)
        if isinstance(table, ArrayTable):
            for name, levels in zip(self.input_names, self.levels, strict=True):
                if levels is None and table.holds_text(name):
                    raise ValueError(held_other(name, "text", levels))
                yield table.column(name)
            return
        kinds = self.kinds or (None,) * len(self.levels)
        parts = zip(table.iter_columns(), self.input_names, self.levels, kinds, strict=True)
        for column, name, levels, kind in parts:
            if len(column) and column.is_null().all():  # its dtype says nothing
                yield np.full(len(column), np.nan)
                continue
            text = is_category(column, has_levels=levels is not None)
            if text if levels is None else not (text or kind or may_be_numbers(levels)):
                raise ValueError(held_other(name, f"dtype {column.dtype}", levels))
            yield values_of(column)

    def _checked(self, rows: Any) -> nw.DataFrame[Any] | ArrayTable:
        table = nw.from_native(rows, eager_only=True, pass_through=True)
        if not isinstance(table, nw.DataFrame):
            array = array_table(rows, self.input_names)
            if array is not None and tuple(array.names) == self.input_names:
                return array
            unnamed = all(name == f"x{j}" for j, name in enumerate(self.input_names))
            expected = f"an array of {len(self.input_names)} columns" if unnamed else "a frame"
            raise ValueError(
                "The model was fitted to rows with categorical columns, but a "
                f"{type(rows).__name__} was given. Give {expected} with the columns "
                f"{shortened(self.input_names, 5)}."
            )
        names = [str(name) for name in table.columns]
        if tuple(names) == self.input_names:
            return table
        raise ValueError(other_names(names, self.input_names))


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
        levels[-1] = {label: i for i, label in enumerate(_ordered(old, new, merged[-1]))}
    if all(new is old for new, old in zip(levels, encoder.levels, strict=True)):
        return encoder
    return replace(encoder, levels=tuple(levels), kinds=tuple(merged) if any(merged) else ())


def _ordered(old: Levels, new: set[str], kind: str | None) -> list[str]:
    """Return all labels, sorted as numbers or text; new ones come last if the old are unsorted."""
    is_number = kind is not None and np.dtype(kind).kind in "iuf"
    key: Any = float if is_number else str
    absent = [MISSING_LEVEL] if is_number and MISSING_LEVEL in old else []
    labels = [label for label in old if label not in absent]
    keys = [key(label) for label in labels]
    if keys != sorted(keys):
        return [*old, *sorted(new)]
    return [*sorted([*labels, *sorted(new)], key=key), *absent]
