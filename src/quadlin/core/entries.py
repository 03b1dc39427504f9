"""Entries of rows by columns, counted for the search for fields."""

import ctypes
from ctypes import c_int, c_int64, c_void_p
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.library import address, entries_of, library, takes


class OnesOfColumns(NamedTuple):
    """What the search for fields asks of each column of sparse rows."""

    eligible: np.ndarray  # (d,), bool: all its entries are ones, and no row stores two of them
    ones: np.ndarray  # (d,), how many entries it has
    after: np.ndarray  # (d,), the nearest later column with an entry in the same row, d without one


def ones_of_columns(B: Any) -> OnesOfColumns:
    """Return what a search for fields asks of rows, dense or CSR."""
    if not issparse(B):
        return _ones_by_numpy(B)
    B = B if B.has_sorted_indices else B.sorted_indices()
    in_reach = B.shape[1] <= np.iinfo(np.int32).max
    return _ones_by_kernel(B) if takes(B.dtype) and in_reach else _ones_by_numpy(B)


def _ones_by_kernel(B: csr_array) -> OnesOfColumns:
    d = B.shape[1]
    eligible, ones, after = np.ones(d, bool), np.zeros(d, np.int32), np.full(d, d, np.int32)
    _walk("run_ones", B, eligible, ones, after, c_int(B.dtype.itemsize))
    return OnesOfColumns(eligible, ones.astype(np.int64), after.astype(np.int64))


def _ones_by_numpy(B: Any) -> OnesOfColumns:
    d = int(B.shape[1])
    if issparse(B):
        if not B.data.all():
            B = B.copy()
            B.eliminate_zeros()
        at, value, ends = B.indices.astype(np.intp), B.data, B.indptr[B.indptr > 0] - 1
    else:  # five times as fast as B.nonzero()
        row, at = np.divmod(np.flatnonzero(B != 0), d or 1)
        value, ends = B[row, at], np.flatnonzero(np.diff(row, append=-1))
    eligible, after = np.ones(d, dtype=bool), np.full(d, d)
    eligible[at[value != 1]] = False
    following = np.append(at, d)[1:]
    following[ends] = d  # of the last entry of a row
    eligible[at[at == following]] = False  # an entry stored twice is a two
    np.minimum.at(after, at, following)
    return OnesOfColumns(eligible, np.bincount(at, minlength=d), after)


def _walk(name: str, X: csr_array, *arguments: np.ndarray | c_int) -> None:
    entries, _arrays = entries_of(X)
    given = (c_void_p(address(a)) if isinstance(a, np.ndarray) else a for a in arguments)
    getattr(library(), name)(ctypes.byref(entries), c_int64(X.shape[0]), *given)
