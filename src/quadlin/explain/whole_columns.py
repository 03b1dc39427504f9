"""Features gathered into the columns of the user's table, and the values of such a column."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import to_numpy
from quadlin.data.columns.columns import values_of
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.label_sets import LabelSets, labels_of
from quadlin.data.columns.level_codes import MISSING_MARK, UNSEEN, level_codes
from quadlin.data.columns.names import shortened

ZERO = object()  # the value of a column whose features are all zero
ENDS = "_=:.- /"  # what may stand between the name of a column and that of a level


class WholeColumn(NamedTuple):
    """A column as it was given: one feature, or the levels of a text column or one-hot group.

    Of a column of lists, such as the genres "drama|war" of a film, the levels are the labels.
    """

    name: str
    features: np.ndarray  # positions
    levels: tuple[str, ...] | None  # None for a column of numbers
    separator: str | None = None  # of the labels of a cell; None where a row has one level

    def values_of(self, value: Any) -> np.ndarray:
        """Return the features of a value of the column: a number, a level, or a list of labels."""
        if value is ZERO:
            return np.zeros(len(self.features))
        if self.levels is not None:
            lists = None if self.separator is None else labels_of(value, self.separator)
            chosen = [str(value)] if lists is None else lists
            if unknown := [level for level in chosen if level not in self.levels]:
                raise ValueError(
                    f"{unknown[0]!r} is not a level of {self.name!r}. Its levels are "
                    f"{shortened(self.levels)}."
                )
            return np.isin(np.array(self.levels, dtype=object), chosen).astype(float)
        try:
            return np.array([float(value)])
        except (TypeError, ValueError):
            raise ValueError(
                f"{self.name!r} holds numbers, but its reference is {value!r}. Give a number."
            ) from None


def whole_columns(
    names: Sequence[str], fields: Sequence[np.ndarray], encoder: TableEncoder | None
) -> tuple[WholeColumn, ...]:
    """Gather the features of each field.

    Parameters
    ----------
    names : sequence of str
        Of the features.
    fields : sequence of arrays
        The positions of the features of each one-hot group.
    encoder : TableEncoder or None
        Of the text columns, which knows their names; other groups are named after their features.

    Returns
    -------
    tuple of WholeColumn
        In the order of their first features.

    Examples
    --------
    >>> columns = whole_columns(["age", "city_Oslo", "city_Rome"], [np.array([1, 2])], None)
    >>> [(column.name, column.levels) for column in columns]
    [('age', None), ('city', ('Oslo', 'Rome'))]
    """
    groups = list(fields) if encoder is None else list(encoder.text.values())
    grouped = {int(j) for group in groups for j in group}
    columns = [
        WholeColumn(str(name), np.array([j]), None)
        for j, name in enumerate(names)
        if j not in grouped
    ]
    if encoder is not None:
        for name, features in encoder.text.items():
            labels = tuple(str(names[j])[len(name) + 1 :] for j in features)
            separator = encoder.separators.get(name)
            columns.append(WholeColumn(name, np.asarray(features), labels, separator))
    else:
        taken = {column.name for column in columns}
        columns += [
            _group([str(names[j]) for j in field], np.asarray(field), taken) for field in fields
        ]
    return tuple(sorted(columns, key=lambda column: int(column.features[0])))


def _group(names: list[str], field: np.ndarray, taken: set[str]) -> WholeColumn:
    """Name a one-hot group by what the names of its features begin with, if that is a name."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    start = "".join(letters[0] for letters in same)
    start = start[: max(start.rfind(end) for end in ENDS) + 1]
    name = start.rstrip(ENDS)
    if not name or name in taken:
        return WholeColumn(f"{names[0]} … {names[-1]}", field, tuple(names))
    taken.add(name)
    return WholeColumn(name, field, tuple(level[len(start) :] for level in names))


def column_values(X: Any, column: WholeColumn) -> np.ndarray:
    """Return the numbers of a column, or the positions of its levels (negative for others).

    Of a column of lists these are the positions of all labels of a row, filled up with −1.

    Parameters
    ----------
    X : frame, array or sparse matrix
        Rows in memory.
    column : WholeColumn
        The column.

    Returns
    -------
    array (n_rows,), of a column of lists (n_rows, most labels of a row)

    Examples
    --------
    >>> import polars as pl
    >>> city = WholeColumn("city", np.array([0, 1]), ("Oslo", "Rome"))
    >>> column_values(pl.DataFrame({"city": ["Rome", "Oslo", "Bonn"]}), city)
    array([ 1,  0, -1])
    """
    table = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(table, nw.DataFrame):
        names = {str(name): name for name in table.columns}
        if column.name in names:
            values = table.get_column(names[column.name])
            if column.levels is None:
                return np.asarray(values.to_numpy(), dtype=float)
            if column.separator is not None:
                return LabelSets(column.levels, column.separator).codes(values_of(values))[0]
            place = {level: i for i, level in enumerate(column.levels)}
            return level_codes(values_of(values), place)
        X = table.to_numpy()
    part = X[:, column.features]
    part = part.toarray() if issparse(part) else to_numpy(part)
    if column.levels is None:
        return np.asarray(part[:, 0], dtype=float)
    if column.separator is not None:
        codes = np.where(part > 0, np.arange(part.shape[1]), UNSEEN)
        return -np.sort(-codes, axis=1)[:, : int(np.sum(codes >= 0, axis=1).max(initial=0))]
    return np.where((part > MISSING_MARK).any(axis=1), part.argmax(axis=1), UNSEEN)


def value_pairs(X: Any, first: WholeColumn, second: WholeColumn) -> np.ndarray:
    """Return the values of two columns in each row (n, 2); a row of several labels has several."""
    x, y = (column_values(X, column) for column in (first, second))
    x, y = (values.reshape(len(values), -1) for values in (x, y))
    pairs = [
        np.stack([x[:, a], y[:, b]], axis=1) for a in range(x.shape[1]) for b in range(y.shape[1])
    ]
    together = np.concatenate([np.empty((0, 2)), *pairs])
    lists = [column.separator is not None for column in (first, second)]
    return together[~(lists & (together < 0)).any(axis=1)]
