"""The vectors that measure a matrix, as rows or pairs of rows, checked before use."""

from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_array

from quadlin.core.messages import Message, Option, warn

FLOATS = (np.float64, np.float32)


def refuse_complex(rows: Any) -> None:
    """Refuse complex vectors, and say what takes them."""
    for X in rows if isinstance(rows, tuple) else (rows,):
        if np.issubdtype(getattr(X, "dtype", float), np.complexfloating):
            raise ValueError(
                "Complex data not supported: MatrixSensing takes real vectors. If y is the size of "
                "A @ z squared, use PhaseRetriever, which takes complex ones."
            )


def pair_of_rows(pair: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the rows a and b as numbers."""
    if len(pair) != 2:
        raise ValueError(f"Give two arrays of rows, (A, B); there are {len(pair)}.")
    A, B = (
        check_array(X, accept_sparse="csr", dtype=FLOATS, input_name=name)
        for X, name in zip(pair, "AB", strict=True)
    )
    if A.shape[0] != B.shape[0]:
        raise ValueError(
            f"A has {A.shape[0]} rows but B has {B.shape[0]}: the i-th measurement is of the i-th "
            "row of each."
        )
    return A, B


def warn_of_diagonal(A: Any, rank: int) -> None:
    """Warn where squares are constant and the rank is too high to tell their weights apart."""
    size = abs(A)
    least, most = (size.min(axis=0), size.max(axis=0))
    if issparse(A):
        least, most = least.toarray().ravel(), most.toarray().ravel()
    d = int(np.count_nonzero((least == most) & (most > 0)))
    if d > 1 and (d - rank) ** 2 < d + rank:
        warn(
            Message(
                "The squares of {d} columns are constant, so only the sum of their diagonal "
                "entries in M is measured, and a rank of {k} is too high for the other entries to "
                "determine them. Entries beside the diagonal are not affected. Lower {rank}.",
                d=d,
                k=rank,
                rank=Option("rank"),
            )
        )
