"""Levels of text columns, learned from pieces of a table, and columns that should not be text."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.core.messages import warn
from quadlin.data.columns.columns import (
    DATES_AS_NUMBERS,
    Values,
    drop_it,
    identifier_advice,
    is_text,
    missing_in,
    number_dtype,
    refuse_missing_rows,
    refused_dates,
    values_of,
)
from quadlin.data.columns.errors import ColumnError, IdentifierWarning
from quadlin.data.columns.label_sets import (
    LabelSets,
    labels_in,
    list_separator,
    warn_of_lists,
    warn_of_no_list,
)
from quadlin.data.columns.level_codes import (
    DATE,
    MISSING_LEVEL,
    NUMBER,
    PERIOD,
    Levels,
    common_kind,
    filtered,
    kind_of,
    label_of,
    written_numbers,
)
from quadlin.data.columns.numbers_as_text import (
    MANY,
    are_numbers,
    described,
    marks_in,
    stray_words,
    strays,
    warn_of_marks,
    warn_of_periods,
)

# A column and one of its labels → the first row that has it. With None instead of a label → the
# first cell that is not a number; "" if there is none.
Where = Callable[[Any, str | None], str]
MOST_LEVELS = 10_000  # a column with more is a number or an identifier rather than a category


class LevelLearner:
    """Learns the levels of text columns from pieces of a table.

    Examples
    --------
    >>> import polars as pl
    >>> table = pl.DataFrame({"city": ["Rome", "Oslo", "Rome", "Oslo"], "age": [31, 0, 5, 2]})
    >>> learner = LevelLearner.of(table)
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
        separators: Mapping[Any, str] | None = None,
    ) -> None:
        self.input_names, self.dtype, self.rows = tuple(input_names), dtype, 0
        self.seen: dict[Any, set[tuple[Any, str]]] = {name: set() for name in text}
        self.present = dict.fromkeys(text, 0)  # rows in which a column is not missing
        self.kinds: dict[Any, set[str | None]] = {}  # dtypes of the values, None for text
        self.declared = declared  # as categories, by the user
        self.missing = missing  # "mean": a missing value is a level of its own
        self.separators = dict(separators or {})  # of the columns whose cells list several labels
        self.lists: set[Any] = set()  # those of them in which a cell is a list
        self.plain: set[Any] = set()  # columns whose dtype is not categorical
        self.notices_marks = True  # such as "?"; False if the reader of the rows handles them

    @classmethod
    def of(
        cls,
        frame: Any,
        declared: Collection[Any] = (),
        missing: str = "error",
        separators: Mapping[Any, str] | None = None,
    ) -> "LevelLearner | None":
        """Return a learner for the columns of a frame; None if all of them hold numbers."""
        table = nw.from_native(frame, eager_only=True)
        given = {*declared, *(separators or {})}
        text = [
            column.name
            for column in table.iter_columns()
            if column.name in given or is_text(column)
        ]
        if not text:
            return None
        dtype = number_dtype(table.drop(text).schema.values())
        return cls(table.columns, text, dtype, declared, missing, separators)

    def add(self, frame: Any) -> None:
        """Note the levels of some rows; columns of numbers may be left out."""
        table = nw.from_native(frame, eager_only=True)
        self.rows += len(table)
        for name in self.seen:
            self.see(name, values_of(table.get_column(name)))

    def see(self, name: Any, values: Values) -> None:
        """Note the levels of some values of a column."""
        if name in self.separators:
            labels, has_lists = labels_in(values, self.separators[name])
            self.seen[name] |= {(label, label) for label in labels}
            self.lists |= {name} if has_lists else set()
            return
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
            For a column that is a date or, with too many levels, a number or an identifier.
        """
        levels = {name: _ordered(seen) for name, seen in self.seen.items()}
        for name, labels in levels.items():
            if name not in self.separators:
                if name not in self.declared:
                    self._check(name, list(labels), where)
                continue
            if name not in self.lists and labels and self.rows:
                warn_of_no_list(name, self.separators[name])
            levels[name] = LabelSets(labels, self.separators[name])
        return tuple(levels.get(name) for name in self.input_names)

    def level_kinds(self) -> tuple[str | None, ...]:
        """Return the dtype of the levels of each input column; None for text or without levels."""
        return tuple(common_kind(self.kinds.get(name, set())) for name in self.input_names)

    def _check(self, name: Any, labels: list[str], where: Where | None) -> None:
        is_category = f" If it is a category, give categorical_features={([str(name)])!r}."
        present = [label for label in labels if self.missing != "mean" or label != MISSING_LEVEL]
        if present and all(DATE.fullmatch(label.strip()) for label in present):
            reason = f"Column {str(name)!r} holds dates as text, such as {present[0]!r}."
            raise refused_dates(name, f"{reason} {DATES_AS_NUMBERS}")
        if present and all(PERIOD.fullmatch(label.strip()) for label in present):
            warn_of_periods(str(name), present[0])
            return
        example = written_numbers(present)
        if example is not None:
            raise ColumnError(
                str(name),
                (
                    f"Column {str(name)!r} holds numbers with a currency, a percent sign, "
                    f"brackets, a unit or a typographic minus sign, such as {example!r}. "
                    f"Write plain numbers, or {drop_it(name)}.{is_category}"
                ),
            )
        marks = marks_in(present) if self.notices_marks else []
        if marks:
            warn_of_marks(name, present, marks)
            return
        odd, once = strays(labels), MANY <= len(present) == self.present[name]
        rare, many = 2 * len(labels) > self.rows, len(labels) > MOST_LEVELS
        refused = many or (once and list_separator(labels) is None)
        if odd:
            absent = self._absent(odd)
            place = "" if where is None else f", first in {where(name, odd[0])}"
            refused = refused or rare
            text = stray_words(str(name), len(labels), odd, place, absent, refused)
            if refused:
                raise ColumnError(str(name), text + is_category)
            warn(text)
        elif (numbers := self._numbers(name, present, where)) is not None:
            text, _ = numbers
            if refused or rare:
                raise ColumnError(str(name), text)
            warn(text)
        elif rare:
            advice = identifier_advice(name, len(labels), self.rows, once)
            if refused:
                raise ColumnError(str(name), advice + is_category)
            warn(advice, IdentifierWarning)
        if not odd:
            warn_of_lists(name, labels)

    def _numbers(self, name: Any, labels: list[str], where: Where | None) -> tuple[str, str] | None:
        """Return a message that labels are numbers, and the word that makes them text.

        None if they are not numbers, or may be codes.
        """
        if name not in self.plain or not are_numbers(labels):
            return None
        word = "" if where is None else where(name, None)
        if not word and not are_numbers(labels, False):
            return None
        cell = f"{word!r} in {where(name, word)}" if where is not None and word else ""
        return described(str(name), labels, cell), word

    def _absent(self, words: list[str]) -> str | None:
        """Return the option that declares a few words of a CSV file to be missing values."""
        return f"na={words!r}" if words and len(words) <= 5 and not self.notices_marks else None


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


def first_row_with(table: nw.DataFrame[Any], name: Any, label: str | None) -> str:
    """Return the first row of a frame that has a label; "" without a label."""
    if label is None:
        return ""  # rows of a frame are never left out
    labels = table.get_column(name).cast(nw.String()).to_list()
    return f"row {labels.index(label)} (counted from 0)"
