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
from quadlin.data.columns.label_sets import LabelSets
from quadlin.data.columns.level_codes import MISSING_MARK, UNSEEN, level_codes
from quadlin.data.columns.names import shortened

ZERO = object()  # the value of a column whose features are all zero
ENDS = "_=:.- /"  # what may stand between the name of a column and that of a level


class WholeColumn(NamedTuple):
    """A column as it was given: one feature, or the levels of a text column or one-hot group."""

    name: str
    features: np.ndarray  # positions
    levels: tuple[str, ...] | None  # None for a column of numbers
    label: tuple[str, str, str] | None = None  # of a column of lists: that, separator, the label

    def values_of(self, value: Any) -> np.ndarray:
        """Return the features of a value of the column: a number, or one of its levels."""
        if value is ZERO:
            return np.zeros(len(self.features))
        if self.levels is not None:
            if str(value) not in self.levels:
                raise ValueError(
                    f"{value!r} is not a level of {self.name!r}. Its levels are "
                    f"{shortened(self.levels)}."
                )
            return np.array([float(level == str(value)) for level in self.levels])
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
    of_field = {int(j) for field in fields for j in field}
    label_of = {
        int(j): (name, separator, str(names[j])[len(name) + 1 :])
        for name, separator in ({} if encoder is None else encoder.separators).items()
        for j in (encoder.text[name] if encoder is not None else ())
    }
    columns = [
        WholeColumn(str(name), np.array([j]), None, label_of.get(j))
        for j, name in enumerate(names)
        if j not in of_field
    ]
    if encoder is not None:
        text = [name for name in encoder.text if name not in encoder.separators]
        for name, field in zip(text, fields, strict=True):
            labels = tuple(str(names[j])[len(name) + 1 :] for j in field)
            columns.append(WholeColumn(name, np.asarray(field), labels))
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

    A label of a column of lists is 1 where a cell has it, else 0.

    Parameters
    ----------
    X : frame, array or sparse matrix
        Rows in memory.
    column : WholeColumn
        The column.

    Returns
    -------
    array (n_rows,)

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
        if column.label is not None and column.label[0] in names:
            name, separator, label = column.label
            codes, _ = LabelSets([label], separator).codes(values_of(table.get_column(names[name])))
            return (codes >= 0).any(axis=1).astype(float)
        if column.name in names:
            values = table.get_column(names[column.name])
            if column.levels is None:
                return np.asarray(values.to_numpy(), dtype=float)
            place = {level: i for i, level in enumerate(column.levels)}
            return level_codes(values_of(values), place)
        X = table.to_numpy()
    part = X[:, column.features]
    part = part.toarray() if issparse(part) else to_numpy(part)
    if column.levels is None:
        return np.asarray(part[:, 0], dtype=float)
    return np.where((part > MISSING_MARK).any(axis=1), part.argmax(axis=1), UNSEEN)
