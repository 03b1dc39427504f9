"""The vectors that measure, as rows or pairs of rows, checked before use."""

from os import PathLike
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator
from sklearn.utils.validation import check_array

from quadlin.core.arrays import refuse_broken_sparse
from quadlin.data.columns import TEXT, check_frame
from quadlin.estimators.checks import (
    float_types,
    refuse_masked,
    refuse_no_table,
    validated,
)

LARGEST = 1e140  # number whose square, and sums of it, are numbers too


def refuse_complex(rows: Any) -> None:
    """Refuse complex vectors, and say what takes them."""
    for X in rows if isinstance(rows, tuple) else (rows,):
        if np.issubdtype(getattr(X, "dtype", float), np.complexfloating):
            raise ValueError(
                "Complex data not supported: MatrixSensing takes real vectors. If y is the size of "
                "A @ z squared, use PhaseRetriever, which takes complex ones."
            )


def refuse_paths(rows: Any) -> None:
    """Refuse names of files, queries, dates and masked entries, with what to do about them."""
    for X in rows if isinstance(rows, tuple) else (rows,):
        if isinstance(X, str | PathLike):
            raise TypeError(
                f"{X!r} is the name of a file, and measurement vectors are taken from memory: give "
                "an array, for example np.load(path), or pandas.read_csv(path).to_numpy()."
            )
        refuse_broken_sparse(X, "A")
        refuse_no_table(X)
        refuse_masked(X, "A")
        _refuse_frame(X)


def _refuse_frame(X: Any) -> None:
    """Refuse a frame that is a query, has a name twice, or columns of dates or text."""
    try:
        frame = nw.from_native(X, pass_through=True)
    except nw.exceptions.DuplicateError:
        frame = None
    if isinstance(frame, nw.LazyFrame):
        raise TypeError(f"A {type(X).__name__} is a query, not a table. Collect it.")
    check_frame(X)
    if isinstance(frame, nw.DataFrame):
        text = next((name for name, dtype in frame.schema.items() if dtype in TEXT), None)
        if text is not None:
            raise ValueError(
                f"Column {text!r} holds text, but vectors that measure are numbers. Leave it out."
            )


def as_pair(rows: Any) -> Any:
    """Return a list of two tables as a tuple, and refuse what holds no rows."""
    refuse_paths(rows)
    shape = getattr(rows, "shape", ())
    if len(shape) == 3:
        raise ValueError(
            f"A has the shape {shape}. MatrixSensing takes vectors as rows: (n, d) for aᵀMa, or a "
            "tuple (A, B) of two such arrays for aᵀMb. Matrices aaᵀ or abᵀ are not taken."
        )
    tables = isinstance(rows, list) and [len(getattr(X, "shape", ())) for X in rows] == [2, 2]
    return tuple(rows) if tables else rows


def pair_of_rows(pair: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the rows a and b as numbers."""
    if len(pair) != 2:
        raise ValueError(f"Give two arrays of rows, (A, B); there are {len(pair)}.")
    A, B = (
        check_array(X, accept_sparse="csr", dtype=float_types(X), input_name=name)
        for X, name in zip(pair, "AB", strict=True)
    )
    for X, name in ((A, "A"), (B, "B")):
        refuse_unsquarable(X, name)
    if A.shape[0] != B.shape[0]:
        raise ValueError(
            f"A has {A.shape[0]} rows but B has {B.shape[0]}: the i-th measurement is of the i-th "
            "row of each."
        )
    return A, B


def refuse_unsquarable(values: Any, name: str, least: float = 1 / LARGEST) -> None:
    """Refuse numbers whose squares overflow, or all underflow."""
    if isinstance(values, LinearOperator):
        return
    entries = values.data if issparse(values) else np.asarray(values)
    size = float(np.max(np.abs(entries), initial=0.0))
    if size > LARGEST or 0 < size < least:
        what, remedy = ("large", "Divide") if size > 1 else ("small", "Multiply")
        raise ValueError(
            f"The largest number in {name} is {size:.0e}, too {what} to be squared. {remedy} "
            f"{name} by a constant."
        )


def measurement_rows(estimator: Any, *rows: Any, **checks: Any) -> Any:
    """Return validated rows; NaN is refused in words for measurements."""
    try:
        return validated(estimator, *rows, **checks)
    except ValueError as error:
        reason, *advice = str(error).split("\n")
        if not advice or "NaN" not in reason:
            raise
        raise ValueError(
            f"{reason.replace('Input X', 'Input A')} A measurement by an unknown vector tells "
            "nothing: leave those rows out of A and y."
        ) from error
