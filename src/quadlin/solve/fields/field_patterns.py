"""Which columns follow the level of a field, and the patterns that rows of a level have in them.

A column may follow a field exactly, as the genres of a film do, or nearly, because some cells are
blank or a user grows older. A level then has several patterns instead of one.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

FIRST_ROWS = 1000  # enough to show cheaply that most columns follow no field
NEARLY = 0.1  # largest share of a column's variance within the levels of a field it nearly follows
LEAST_ROWS = 30  # beyond one per level, needed to estimate such a share


class Patterns(NamedTuple):
    """The distinct rows that the levels of a field have in the columns that follow it."""

    of_row: np.ndarray  # (n,), the pattern of each row
    size: int  # number of patterns
    at: np.ndarray  # (m,), those that occur
    rows: np.ndarray  # (m,), a row of each of them
    level: np.ndarray | None = None  # (size,), the level of each; None if patterns are the levels


def first_rows(level: np.ndarray, L: int) -> np.ndarray:
    """Return the first row of each of L levels, −1 if there is none."""
    first = np.full(L, -1)
    first[level[::-1]] = np.arange(len(level))[::-1]
    return first


def exact_followers(X: csr_matrix, level: np.ndarray, L: int) -> np.ndarray:
    """Return which columns are a function of the level (d,)."""
    changes = (X - X[first_rows(level, L)[level]]).tocoo()
    follows = np.ones(X.shape[1], dtype=bool)
    follows[changes.col[changes.data != 0]] = False
    return follows


def near_followers(X: csr_matrix, level: np.ndarray, L: int, most: float = NEARLY) -> np.ndarray:
    """Return which columns vary within levels by only a small share of their variance (d,)."""
    n, counts = X.shape[0], np.bincount(level, minlength=L)
    free = n - np.count_nonzero(counts)
    if free < LEAST_ROWS:
        return np.zeros(X.shape[1], dtype=bool)
    of_level = csr_matrix((np.ones(n), (level, np.arange(n))), shape=(L, n))
    sums, squares = of_level @ X, X.multiply(X)
    between = (sums.multiply(sums)).T @ (1 / np.maximum(counts, 1))
    total = np.asarray(squares.sum(axis=0)).ravel()
    about_mean = total - np.asarray(X.sum(axis=0)).ravel() ** 2 / n
    return np.asarray((total - between) / free <= most * about_mean / max(1, n - 1))


def levels_as_patterns(level: np.ndarray, L: int) -> Patterns:
    """Return one pattern per level."""
    first = first_rows(level, L)
    at = np.flatnonzero(first >= 0)
    return Patterns(level, L, at, first[at])


def patterns_of(X: csr_matrix, level: np.ndarray) -> Patterns:
    """Return the different rows of X that each level has, ordered by level.

    Rows of a level are compared by a random projection, which differs for different rows.
    """
    projected = X @ np.random.default_rng(0).standard_normal(X.shape[1])
    values, code = np.unique(projected, return_inverse=True)
    _, rows, of_row = np.unique(
        level * len(values) + code.ravel(), return_index=True, return_inverse=True
    )
    return Patterns(of_row.ravel(), len(rows), np.arange(len(rows)), rows, level[rows])
