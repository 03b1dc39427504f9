"""Columns whose cells list several labels, such as the genres "drama|war" of a film.

Each label becomes a 0/1 column, so its coefficient is what the label adds, whatever the other
labels of the row. (A weight of 1/√m for m labels would give rows with many labels no more variance
than rows with one. But a label would then count less the more others there are, and its column
would be neither 0/1 nor readable; the penalty of the labels is learned from the rows in any case.)
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.core.messages import warn
from quadlin.data.columns.columns import Values, missing_in
from quadlin.data.columns.errors import SourceError
from quadlin.data.columns.level_codes import (
    ABSENT,
    UNSEEN,
    Levels,
    filtered,
    label_of,
    level_codes,
)

SEPARATOR = "|"
SEPARATORS = ("|", ";")  # by which cells are recognised as lists
LISTED = (list, tuple, set, frozenset, np.ndarray)  # types of cells that are lists already
LISTS = 0.3  # share of distinct cells with a separator above which all cells count as lists


class LabelSets(dict[str, int]):
    """The position of each label of a column of lists, and the separator of labels in a cell."""

    def __init__(self, labels: Iterable[str] = (), separator: str = SEPARATOR) -> None:
        super().__init__({label: i for i, label in enumerate(labels)})
        self.separator = separator

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, LabelSets) and self.separator == other.separator
        return same and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return f"LabelSets({list(self)!r}, {self.separator!r})"

    def codes(self, values: Values) -> tuple[np.ndarray, int]:
        """Return the positions of the labels of each row, and how many rows have an unknown label.

        Positions are sorted and padded with -1, (n, most labels of a row); a missing value has no
        labels.
        """
        cells, place = _cells(values, self.separator)
        sets = [labels_of(cell, self.separator) for cell in cells]
        positions_of = [sorted(self[label] for label in labels if label in self) for labels in sets]
        table = np.full((len(cells) + 1, max(map(len, positions_of), default=0)), -1)
        for row, positions in zip(table, positions_of, strict=False):
            row[: len(positions)] = positions
        new = np.array([len(k) < len(s) for k, s in zip(positions_of, sets, strict=True)] + [False])
        return table[place], int(new[place].sum())


def labels_of(cell: Any, separator: str) -> list[str]:
    """Return the labels of a cell, each once; the cell is text or a list.

    Examples
    --------
    >>> labels_of("war| drama||war", "|")
    ['war', 'drama']
    """
    parts = str(_joined(cell, separator)).split(separator)
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def labels_in(values: Values, separator: str) -> tuple[set[str], bool]:
    """Return the labels that occur in cells, and whether a cell has a separator."""
    cells, _ = _cells(values, separator)
    labels = {label for cell in cells for label in labels_of(cell, separator)}
    return labels, _are_lists(values) or any(separator in cell for cell in cells)


def _are_lists(values: Values) -> bool:
    """Return whether cells are lists of labels rather than text."""
    are_objects = isinstance(values, np.ndarray) and values.dtype.kind == "O"
    return are_objects and any(isinstance(value, LISTED) for value in values)


def _joined(value: Any, separator: str) -> Any:
    """Return a list of labels as text with separators."""
    return separator.join(map(label_of, value)) if isinstance(value, LISTED) else value


def _cells(values: Values, separator: str) -> tuple[list[str], np.ndarray]:
    """Return the distinct cells as text, and the position of each row's cell, -1 for none."""
    if _are_lists(values):
        values = np.array([_joined(value, separator) for value in values], dtype=object)
    absent = missing_in(values)
    if isinstance(values, np.ndarray):
        cells = list(dict.fromkeys(label_of(value) for value in values[~absent].tolist()))
    else:
        # Cells of a categorical column may be numbers.
        cells = filtered(values, ~absent).unique().cast(nw.String()).to_list()
    place = level_codes(values, {cell: i for i, cell in enumerate(cells)})
    return cells, np.where(absent, -1, place)


def separators_of(given: Any) -> dict[Any, str]:
    """Return the columns of lists and the separators of their labels.

    Examples
    --------
    >>> separators_of(["genres"]), separators_of({"tags": ";"})
    ({'genres': '|'}, {'tags': ';'})
    """
    if given is None:
        return {}
    named = [given] if isinstance(given, str) else given
    pairs = dict(named) if isinstance(named, Mapping) else dict.fromkeys(named, SEPARATOR)
    if wrong := [value for value in pairs.values() if not isinstance(value, str) or not value]:
        raise SourceError(
            "`multi_hot` must be a list of columns, or a dict of columns and what "
            f"separates their labels, such as {{'genres': '|'}}; {wrong[0]!r} is not a "
            "separator."
        )
    return pairs


def list_separator(labels: Sequence[str]) -> str | None:
    """Return the separator of a text column whose values look like lists of repeated labels.

    Examples
    --------
    >>> list_separator(["drama", "drama|war", "war", "comedy|drama"]), list_separator(["a", "b"])
    ('|', None)
    """
    for separator in SEPARATORS:
        lists = [label for label in labels if separator in label]
        if len(lists) < max(2, LISTS * len(labels)):
            continue
        parts = [part for label in labels for part in labels_of(label, separator)]
        if 2 * len(set(parts)) <= len(parts):
            return separator
    return None


def warn_of_lists(name: Any, labels: list[str]) -> None:
    """Warn of a text column whose levels look like lists of repeated labels."""
    separator = list_separator(labels)
    if separator is None:
        return
    given: Any = [str(name)] if separator == SEPARATOR else {str(name): separator}
    example = next(label for label in labels if separator in label)
    warn(
        f"Column {str(name)!r} holds lists, such as {example!r}, and each list is treated "
        f"as one level. Give multi_hot={given!r}, so that each label of a "
        "list becomes a column of its own."
    )


def warn_of_no_list(name: Any, separator: str) -> None:
    """Warn of a column that was declared to hold lists but has no separator in any cell."""
    warn(
        f"No value of column {str(name)!r} contains {separator!r}, the separator "
        "that `multi_hot` names, so each value is treated as one label."
    )


def codes_of(values: Values, levels: Levels) -> tuple[np.ndarray, int, int]:
    """Return the positions of levels or labels, and how many rows are unknown and how many missing.

    A cell without labels is an empty list, not a missing value.
    """
    if isinstance(levels, LabelSets):
        return *levels.codes(values), 0
    codes = level_codes(values, levels)
    return codes, int((codes == UNSEEN).sum()), int((codes == ABSENT).sum())
