"""The vectors that measure a matrix, as rows or pairs of rows, checked before use."""

from numbers import Integral
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_array

from quadlin.core.messages import Message, Option, warn
from quadlin.estimators.parameters import float_types, is_auto


def refuse_complex(rows: Any) -> None:
    """Refuse complex vectors, and say what takes them."""
    for X in rows if isinstance(rows, tuple) else (rows,):
        if np.issubdtype(getattr(X, "dtype", float), np.complexfloating):
            raise ValueError(
                "Complex data not supported: MatrixSensing takes real vectors. If y is the size of "
                "A @ z squared, use PhaseRetriever, which takes complex ones."
            )


def as_pair(rows: Any) -> Any:
    """Return a list of two tables as a tuple; everything else stays as it is."""
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
    if A.shape[0] != B.shape[0]:
        raise ValueError(
            f"A has {A.shape[0]} rows but B has {B.shape[0]}: the i-th measurement is of the i-th "
            "row of each."
        )
    return A, B


def rank_of_pairs(rank: Any, psd: bool) -> int | None:
    """Return the rank that is asked for, None for the best one; refuse what pairs cannot have."""
    auto = is_auto(rank)
    if not auto and (not isinstance(rank, Integral) or rank < 1):
        option = Option("rank", rank)
        raise ValueError(Message('{option} must be a whole number ≥ 1, or "auto".', option=option))
    if psd:
        text = "{psd} needs a symmetric matrix: give one array of rows A."
        raise ValueError(Message(text, psd=Option("psd", True)))
    return None if auto else int(rank)


def warn_of_count(n: int, rank: int, unknowns: int) -> None:
    """Say how many measurements there are, and how many a matrix of some rank needs."""
    if n >= unknowns:
        text = (
            "The {n} measurements hardly determine a matrix of rank {k}, which has {unknowns} "
            "unknowns, and the search did not converge. Add measurements, or lower {rank}."
        )
    else:
        text = (
            "{n} measurements do not determine a matrix of rank {k}, which has {unknowns} "
            "unknowns. Add measurements, about two for each unknown, or lower {rank}."
        )
    warn(Message(text, n=n, k=rank, unknowns=unknowns, rank=Option("rank")))


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
