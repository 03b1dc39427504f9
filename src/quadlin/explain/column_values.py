"""The values of one column of rows, as they were given."""

from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import to_numpy
from quadlin.explain.whole_columns import WholeColumn


def column_values(X: Any, column: WholeColumn) -> np.ndarray:
    """Return the numbers of a column, or the positions of its levels (−1 for others).

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
        if column.name in names:
            values = table.get_column(names[column.name])
            if column.levels is None:
                return np.asarray(values.to_numpy(), dtype=float)
            place = {level: i for i, level in enumerate(column.levels)}
            return np.array([place.get(v, -1) for v in values.cast(nw.String()).to_list()])
        X = table.to_numpy()
    part = X[:, column.features]
    part = part.toarray() if issparse(part) else to_numpy(part)
    if column.levels is None:
        return np.asarray(part[:, 0], dtype=float)
    return np.where(part.any(axis=1), part.argmax(axis=1), -1)
