"""Levels of text columns, learned from pieces of a table, and columns that should not be text."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.core.messages import warn
from quadlin.data.columns.columns import (
    Values,
    identifier_advice,
    is_text,
    missing_in,
    number_dtype,
    refuse_missing_rows,
    values_of,
)
from quadlin.data.columns.errors import ColumnError, IdentifierWarning
from quadlin.data.columns.level_codes import (
    MISSING_LEVEL,
    NUMBER,
    Levels,
    common_kind,
    filtered,
    kind_of,
    label_of,
)
from quadlin.data.columns.names import shortened

Where = Callable[[Any, str], str]  # a column and one of its labels → the first row that has it
MOST_LEVELS = 10_000  # a column with more is a number or an identifier rather than a category
MANY, FEW = 20, 0.1  # fewest labels, and largest share that are no numbers, of a column of numbers


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

    @classmethod
    def of(
        cls, frame: Any, declared: Collection[Any] = (), missing: str = "error"
    ) -> "LevelLearner | None":
        """Return a learner for the columns of a frame; None if all of them hold numbers."""
        table = nw.from_native(frame, eager_only=True)
        text = [
            column.name
            for column in table.iter_columns()
            if column.name in declared or is_text(column)
        ]
        if not text:
            return None
        dtype = number_dtype(table.drop(text).schema.values())
        return cls(table.columns, text, dtype, declared, missing)

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


def first_row_with(table: nw.DataFrame[Any], name: Any, label: str) -> str:
    """Return the first row of a frame that has a label."""
    labels = table.get_column(name).cast(nw.String()).to_list()
    return f"row {labels.index(label)} (counted from 0)"
