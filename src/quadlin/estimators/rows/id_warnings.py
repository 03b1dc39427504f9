"""Warnings of ids that were not declared as categories, and of ratings without a machine."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from quadlin.core.arrays import is_numpy, to_numpy
from quadlin.core.chunks import MemorySource
from quadlin.core.messages import Message, Option, warn
from quadlin.core.rows import Rows
from quadlin.data.columns.column_roles import (
    FEWEST_IDS,
    MOST_COLUMNS,
    MOST_GRADES,
    ColumnRoles,
    column_roles,
    field_names,
    ratings_advice,
)
from quadlin.data.columns.names import shortened
from quadlin.estimators.rows.columns import Columns

FIRST_ROWS = 1000  # that show cheaply that a column holds no ids


def roles_in(
    rows: Rows, columns: Columns, fields: Any, numbers: list[str] | None = None
) -> ColumnRoles:
    """Return which columns are ids or codes, and whether the rows are ratings."""
    encoded = columns.encoder is not None or not len(fields)
    titles = field_names(columns.encoder) if encoded else None
    numbers = columns.number_names if numbers is None else numbers
    return column_roles(rows, numbers, columns.names, fields, titles)


def warn_of_ids(columns: Columns, fields: Any, rows: Rows, source: Any) -> None:
    """Warn of columns of numbers that look like ids, of a machine; of ratings beside fields."""
    numbers = _may_be_ids(columns, source)
    if not numbers or _large(fields) > 1:
        return
    roles = roles_in(rows, columns, fields, numbers)
    codes = [name for name in roles.codes if len(fields) < 2 or name in roles.ids]
    if codes:
        warn(
            Message(
                "{names} hold whole numbers that look like ids, and a machine without categories "
                "has nothing to learn from their order. Give {categorical}, so that each value "
                "becomes a level.",
                names=shortened(codes, 5),
                categorical=Option("categorical_features", given_names(codes, columns)),
            )
        )


def warn_of_ratings(columns: Columns, fields: Any, rows: Rows, source: Any, machine: str) -> None:
    """Warn where rows are ratings, which the class `machine` fits better."""
    if not isinstance(source, MemorySource):
        return
    first = min(FIRST_ROWS, source.rows)
    if len(np.unique(to_numpy(source.y[:first]))) > MOST_GRADES:
        return
    if len(columns.number_names) + len(fields) > MOST_COLUMNS:
        return
    if len(_may_be_ids(columns, source)) + _large(fields) < 2:
        return
    roles = roles_in(rows, columns, fields)
    if roles.ids:
        warn(ratings_advice(roles, machine, given_names(roles.codes, columns)))


def _large(fields: Any) -> int:
    return sum(len(field) >= FEWEST_IDS for field in fields)


def given_names(names: Sequence[str], columns: Columns) -> list[Any]:
    """Return names as the user would give them; columns of arrays have positions only."""
    return [int(name[1:]) for name in names] if columns.names_in is None else list(names)


def _may_be_ids(columns: Columns, source: Any) -> list[str]:
    """Return the columns of numbers whose first values are whole and many, of rows in memory."""
    numbers = columns.number_names
    if len(numbers) > MOST_COLUMNS or not isinstance(source, MemorySource):
        return []
    if not is_numpy(source.X):
        return []
    X = csr_matrix(source.X[:FIRST_ROWS]).toarray()
    place = {name: j for j, name in enumerate(columns.names)}
    return [name for name in numbers if _whole_and_many(X[:, place[name]])]


def _whole_and_many(values: np.ndarray) -> bool:
    return bool(np.all(values == np.floor(values))) and len(np.unique(values)) >= FEWEST_IDS
