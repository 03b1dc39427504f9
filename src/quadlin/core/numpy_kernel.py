"""Skinny products of dense numpy rows, tile by tile.

A block of rows is read from memory once and from the cache afterwards. Two facts make numpy alone
enough for that (`benchmarks/passes.py`):

- OpenBLAS multiplies small matrices without packing them first. Packing is a copy of X, and costs
  as much as the product itself where the other factor has few columns. `numpy.matmul` over a stack
  of tiles calls it once per tile without returning to Python in between.
- A buffer that stays with its thread is in the cache already; one that is allocated for each block
  is mapped and cleared by the operating system first.
"""

from collections.abc import Iterator

import numpy as np

from quadlin.core.library import scratch

PIECE_BYTES = 1 << 20  # rows that are multiplied twice: they and their squares fill a cache of 2 MB
LEAST_PIECE = 128  # rows: smaller pieces cost more than the cache saves
SMALL_PRODUCT = 1_000_000  # rows × columns × depth: what OpenBLAS multiplies without packing
LEAST_TILE = 16  # rows or columns of a tile: thinner ones cost more than packing


def pieces(rows: int, row_bytes: int) -> Iterator[slice]:
    """Cut rows into runs that stay in the cache of one core."""
    step = max(LEAST_PIECE, PIECE_BYTES // max(row_bytes, 1))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def buffer(use: str, like: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return an uninitialised array of the shape and order of `like`.

    It belongs to this thread, and is valid until the next call with the same `use`.
    """
    rows, columns = like.shape
    array: np.ndarray = scratch(use, like.size * dtype.itemsize).view(dtype)
    if abs(like.strides[0]) < abs(like.strides[1]):
        return array.reshape(columns, rows).T
    return array.reshape(rows, columns)


def prepared(x: np.ndarray, dtype: np.dtype, mean: np.ndarray | None) -> np.ndarray:
    """Return rows as the linear algebra library takes them: of one dtype, with one stride of one.

    If there is a mean, it is subtracted.
    """
    if mean is not None:
        out = buffer("rows", x, dtype)
        np.subtract(x, mean, out=out, casting="unsafe")
        return out
    if x.dtype == dtype and x.itemsize in x.strides and min(x.strides) > 0:
        return x
    out = buffer("rows", x, dtype)
    np.copyto(out, x, casting="unsafe")
    return out


def squared(x: np.ndarray) -> np.ndarray:
    """Return x∘x in this thread's buffer."""
    out = buffer("squares", x, x.dtype)
    np.square(x, out=out)
    return out


def times(x: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Return x W for W (d, q), in tiles of rows.

    In Fortran order: what is done with one column, or with each row alone, then runs along memory.
    """
    (n, d), q = x.shape, W.shape[1]
    out = np.empty((q, n), x.dtype).T
    tile = SMALL_PRODUCT // max(d * q, 1) // 8 * 8
    if tile < LEAST_TILE or tile >= n:
        np.matmul(x, W, out=out)
        return out
    whole = n // tile * tile
    np.matmul(x[:whole].reshape(-1, tile, d), W, out=out[:whole].reshape(-1, tile, q))
    if whole < n:
        np.matmul(x[whole:], W, out=out[whole:])
    return out


def transposed_times(x: np.ndarray, R: np.ndarray) -> np.ndarray:
    """Return Rᵀ x for R (n, q), in tiles of columns."""
    (n, d), q = x.shape, R.shape[1]
    out = np.empty((q, d), x.dtype)
    tile = SMALL_PRODUCT // max(n * q, 1) // 16 * 16
    if tile < LEAST_TILE or tile >= d:
        np.matmul(R.T, x, out=out)
        return out
    whole = d // tile * tile
    np.matmul(R.T, _column_tiles(x[:, :whole], tile), out=_column_tiles(out[:, :whole], tile))
    if whole < d:
        np.matmul(R.T, x[:, whole:], out=out[:, whole:])
    return out


def _column_tiles(A: np.ndarray, tile: int) -> np.ndarray:
    return A.reshape(A.shape[0], -1, tile).transpose(1, 0, 2)
